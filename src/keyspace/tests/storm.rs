//! A hundred thousand random steps on a pool of 512, and a judge that knows nothing of how pools work: it keeps what the
//! answers said to whom, and holds them to the safety of ids.
//!
//! `TENURE_POOL_SEED=1234` repeats a run; every run prints its seed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::pool_log::Log;
use crate::keyspace::{
    AcquireSlot, Command, OnConflict, PoolOptions, Reason, Reply, SlotGrant, SlotOutcome, SlotReply, TokenHash,
};

const STEPS: usize = 100_000;
const IDENTITIES: usize = 700;
const QUARANTINE_MS: u64 = 60_000;
const RELEASE_QUARANTINE_MS: u64 = 2_000;

/// Random numbers (splitmix64).
pub struct Dice(u64);

impl Dice {
    /// Seeded by the environment or the time, and told.
    pub fn new() -> Self {
        let time = || SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        let seed = std::env::var("TENURE_POOL_SEED").map_or_else(|_| time(), |seed| seed.parse().unwrap());
        println!("TENURE_POOL_SEED={seed}");
        Self(seed)
    }

    /// The same each time.
    pub fn fixed() -> Self {
        Self(9)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// True in so many of a hundred.
    pub fn is(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// Who has an id, by the answers.
#[derive(Clone, Debug)]
struct Holder {
    identity: usize,
    token: TokenHash,
    fence: u64,
    deadline: u64,
    /// Broken: RENEW is lost.
    broken: bool,
}

/// Until when an id is not for others, and for whom it still is.
#[derive(Clone, Copy, Debug)]
struct Shut {
    until: u64,
    but_for: Option<usize>,
}

/// See the module's head.
struct Judge {
    holders: BTreeMap<u32, Holder>,
    /// The ids that each identity holds.
    own: BTreeMap<usize, Vec<u32>>,
    /// No grant ends before.
    next: u64,
    shut: BTreeMap<u32, Shut>,
    /// Until when others do not get an id, whatever its holder does.
    guarded: BTreeMap<u32, u64>,
    /// When it was taken over, or another left for it: by the identity that had the id last.
    takeovers: BTreeMap<u32, (usize, Vec<u64>)>,
    /// The id that each identity had last.
    had: BTreeMap<usize, u32>,
    /// Until when one that was taken over may be at work there.
    believed: BTreeMap<u32, u64>,
    fence: u64,
    size: u32,
    counts: BTreeMap<&'static str, usize>,
}

impl Judge {
    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Time got to `now`.
    fn pass(&mut self, now: u64) {
        if now < self.next {
            return;
        }
        let over: Vec<_> = self.holders.iter().filter(|(_, one)| one.deadline <= now).map(|(id, _)| *id).collect();
        for id in over {
            self.count("expired");
            let holder = self.leave(id).unwrap();
            let but_for = (!holder.broken).then_some(holder.identity);
            self.shut(id, holder.deadline + QUARANTINE_MS, but_for);
        }
        self.next = self.holders.values().map(|one| one.deadline).min().unwrap_or(u64::MAX);
    }

    fn guard(&mut self, id: u32, until: u64) {
        let guarded = self.guarded.entry(id).or_default();
        *guarded = until.max(*guarded);
    }

    fn shut(&mut self, id: u32, until: u64, but_for: Option<usize>) {
        let until = until.max(self.guarded.get(&id).copied().unwrap_or(0));
        self.shut.insert(id, Shut { until, but_for });
    }

    fn enter(&mut self, id: u32, holder: Holder) {
        self.next = self.next.min(holder.deadline);
        self.own.entry(holder.identity).or_default().push(id);
        assert!(self.holders.insert(id, holder).is_none());
    }

    fn leave(&mut self, id: u32) -> Option<Holder> {
        let holder = self.holders.remove(&id)?;
        self.own.get_mut(&holder.identity).unwrap().retain(|own| *own != id);
        Some(holder)
    }

    fn of_identity(&self, identity: usize) -> Option<u32> {
        let own = self.own.get(&identity)?;
        assert!(own.len() <= 1, "{identity} has two live ids: {own:?}");
        own.first().copied()
    }

    /// The id that an identity holds, or that is kept for it.
    fn own(&self, identity: usize) -> Option<u32> {
        let is_kept = |id: &u32| self.shut.get(id).is_some_and(|shut| shut.but_for == Some(identity));
        self.of_identity(identity).or(self.had.get(&identity).copied().filter(is_kept))
    }

    /// What is to be told of those who lost the id and may not know it.
    fn prior(&self, now: u64, id: u32, old: Option<&Holder>) -> Option<(Option<u64>, u64)> {
        let left = self.believed.get(&id).map_or(0, |until| until.saturating_sub(now));
        match old {
            Some(old) => Some((Some(old.fence), left.max(old.deadline - now))),
            None => (left > 0).then_some((None, left)),
        }
    }

    fn granted(&mut self, now: u64, who: (usize, TokenHash, Option<u32>), reply: &SlotReply, grant: &SlotGrant) {
        let (identity, token, avoid) = who;
        let holder = Holder { identity, token, fence: grant.fence, deadline: now + grant.ttl_ms, broken: false };
        if reply.yours {
            self.count("yours");
            let own = self.leave(grant.id).expect("yours is live");
            assert_eq!((own.identity, own.token, own.fence), (identity, token, grant.fence));
            assert!(holder.deadline >= own.deadline, "shortened");
            let left = self.believed.get(&grant.id).map_or(0, |until| until.saturating_sub(now));
            assert_eq!(reply.prior.map_or(0, |prior| prior.ttl_ms), left, "also told again");
            self.enter(grant.id, holder);
            return;
        }
        assert!(grant.fence > self.fence, "fences grow: {} after {}", grant.fence, self.fence);
        self.fence = grant.fence;
        let own = self.own(identity);
        let moves = own.and_then(|own| self.takeovers.get(&own)).filter(|(last, _)| *last == identity);
        let mut times = moves.map(|(_, times)| times.clone()).unwrap_or_default();
        times.retain(|time| now < time + 60_000);
        times.push(now);
        let told = reply.prior.map(|prior| (prior.fence, prior.ttl_ms));
        if let Some(old) = self.leave(grant.id) {
            assert_eq!(old.identity, identity, "two live holders of {}: {old:?}", grant.id);
            assert_eq!(told, self.prior(now, grant.id, Some(&old)));
            assert!(times.len() <= 3, "more than three takeovers in a minute");
            self.takeovers.insert(grant.id, (identity, times));
            let believed = self.believed.entry(grant.id).or_default();
            *believed = old.deadline.max(*believed);
            self.guard(grant.id, old.deadline + QUARANTINE_MS);
            self.count("took over");
        } else {
            // Its own other grant, on an id that it avoids or that lies beyond the end. Another token of it may be at work
            // there until its deadline.
            let old = self.of_identity(identity).map(|id| (id, self.leave(id).unwrap()));
            let lost = old.as_ref().map(|(_, old)| old).filter(|old| old.token != token);
            assert_eq!(told, self.prior(now, grant.id, None));
            let (is_lost, left) = (lost.is_some(), old.as_ref().map(|(id, _)| *id));
            if let Some((id, old)) = old {
                assert!(id >= self.size || avoid == Some(id), "{id} was given up");
                if is_lost {
                    let believed = self.believed.entry(id).or_default();
                    *believed = old.deadline.max(*believed);
                }
                let until = if is_lost { old.deadline + QUARANTINE_MS } else { now + RELEASE_QUARANTINE_MS };
                self.shut(id, until, None);
                self.count("left for another");
            }
            assert!(grant.id < self.size, "{} is out of range", grant.id);
            let shut = self.shut.remove(&grant.id).filter(|shut| now < shut.until);
            if let Some(shut) = shut {
                assert_eq!(shut.but_for, Some(identity), "{} is in quarantine: {shut:?}", grant.id);
                self.guard(grant.id, shut.until);
                self.count("own id in quarantine");
            }
            if is_lost || (own.is_some() && own == avoid) {
                assert!(times.len() <= 3, "more than three in a minute, from {left:?}");
                self.takeovers.insert(grant.id, (identity, times));
            }
            let last = self.takeovers.entry(grant.id).or_insert((identity, Vec::new()));
            if last.0 != identity {
                *last = (identity, Vec::new());
            }
            self.count("granted");
        }
        assert_eq!(self.of_identity(identity), None, "{identity} has another id");
        self.had.insert(identity, grant.id);
        self.enter(grant.id, holder);
    }

    /// When an id can be given to whoever has no claim.
    fn opens(&self, id: u32) -> u64 {
        match self.holders.get(&id) {
            Some(holder) => (holder.deadline + QUARANTINE_MS).max(self.guarded.get(&id).copied().unwrap_or(0)),
            None => self.shut.get(&id).map_or(0, |shut| shut.until),
        }
    }

    fn refused(&mut self, now: u64, identity: usize, reply: &SlotReply) {
        match reply.reason.unwrap() {
            Reason::Exhausted => {
                self.count("exhausted");
                let opens = (0..self.size).map(|id| self.opens(id)).min().unwrap();
                assert!(opens > now, "an id could be given");
                assert_eq!(reply.retry_after_ms, Some(opens - now));
            }
            Reason::IdentityConflict => {
                self.count("conflict");
                let id = self.own(identity).unwrap();
                assert!(self.takeovers[&id].1.iter().filter(|time| now < *time + 60_000).count() >= 3);
            }
            Reason::IdentityInUse => {
                self.count("in use");
                let id = self.of_identity(identity).unwrap();
                assert!(self.holders[&id].broken);
            }
            Reason::TakenOver => self.count("taken over"),
            Reason::TokenUsed => self.count("token used"),
            Reason::Broken => self.count("broken"),
            other => panic!("{other:?}"),
        }
    }

    /// The id is nobody's for a while, unless it is another's.
    fn avoided(&mut self, now: u64, id: u32) {
        if self.holders.contains_key(&id) {
            self.count("avoided another's");
        } else if id < self.size {
            let until = self.shut.get(&id).map_or(0, |shut| shut.until).max(now + QUARANTINE_MS);
            self.shut.insert(id, Shut { until, but_for: None });
            self.count("avoided");
        }
    }

    fn ended(&mut self, id: u32, until: u64, but_for: Option<usize>) {
        self.leave(id);
        self.shut(id, until, but_for);
    }
}

struct Storm {
    log: Log,
    judge: Judge,
    dice: Dice,
    /// The token that each identity's process has.
    tokens: Vec<TokenHash>,
    /// That of its process before.
    former: Vec<TokenHash>,
}

impl Storm {
    fn new(dice: Dice) -> Self {
        let options = PoolOptions {
            release_quarantine_ms: RELEASE_QUARANTINE_MS,
            on_conflict: OnConflict::Takeover,
            ..PoolOptions::default()
        };
        let mut log = Log::new(options);
        let tokens = (0..IDENTITIES).map(|_| log.token()).collect();
        let judge = Judge {
            holders: BTreeMap::new(),
            own: BTreeMap::new(),
            next: 0,
            shut: BTreeMap::new(),
            guarded: BTreeMap::new(),
            takeovers: BTreeMap::new(),
            had: BTreeMap::new(),
            believed: BTreeMap::new(),
            fence: 0,
            size: options.size,
            counts: BTreeMap::new(),
        };
        let former = (0..IDENTITIES).map(|_| log.token()).collect();
        Self { log, judge, dice, tokens, former }
    }

    fn acquire(&mut self, identity: usize, avoid: Option<u32>) {
        let (token, ttl_ms) = (self.tokens[identity], 20_000 + self.dice.below(60_000) as i64);
        let ask = AcquireSlot { avoid, ttl_ms, ..self.log.ask(&name(identity), token) };
        let reply = self.log.acquire(ask);
        let now = self.log.now;
        match &reply.outcome {
            SlotOutcome::Granted(grant) => {
                // Beyond the end it is of no effect.
                assert_ne!(Some(grant.id), avoid.filter(|id| *id < self.judge.size));
                assert_eq!(grant.identity, Some(name(identity)));
                self.judge.granted(now, (identity, token, avoid), &reply, grant);
                if let Some(id) = avoid.filter(|_| !reply.yours) {
                    self.judge.avoided(now, id);
                }
            }
            SlotOutcome::Nothing if avoid.is_some() && reply.reason == Some(Reason::Exhausted) => {
                self.judge.count("avoided in vain");
            }
            SlotOutcome::Nothing => self.judge.refused(now, identity, &reply),
            other => panic!("{other:?}"),
        }
    }

    /// RENEW or RELEASE of whoever thinks it holds.
    fn renew(&mut self, identity: usize) {
        let token = self.tokens[identity];
        let reply = self.log.renew(token);
        let now = self.log.now;
        let own = self.judge.holders.values_mut().find(|holder| holder.token == token);
        match (&reply.outcome, own) {
            (SlotOutcome::Renewed(grant), Some(own)) => {
                assert!(!own.broken);
                assert_eq!(own.fence, grant.fence);
                assert!(now + grant.ttl_ms >= own.deadline.max(now + 30_000), "never shorter");
                own.deadline = now + grant.ttl_ms;
            }
            (SlotOutcome::Lost, Some(own)) => assert!(own.broken, "lost, but it is live: {own:?}"),
            (SlotOutcome::Lost, None) => self.judge.count("lost"),
            (other, own) => panic!("{other:?} {own:?}"),
        }
    }

    fn release(&mut self, identity: usize) {
        let token = self.tokens[identity];
        let released = self.log.release(token);
        let own =
            self.judge.holders.iter().find(|(_, holder)| holder.token == token).map(|(id, one)| (*id, one.clone()));
        assert_eq!(released, own.is_some());
        if let Some((id, own)) = own {
            // A BREAK leaves its quarantine behind, though the holder gives the id back in the grace.
            let quarantine_ms = if own.broken { QUARANTINE_MS } else { RELEASE_QUARANTINE_MS };
            let but_for = Some(identity).filter(|_| !own.broken);
            self.judge.ended(id, self.log.now + quarantine_ms, but_for);
            self.judge.count("released");
        }
    }

    fn break_one(&mut self) {
        let id = self.dice.below(self.judge.size as usize) as u32;
        let grace_ms = if self.dice.is(50) { 0 } else { 5_000 };
        let reason = Arc::from("storm");
        let command = Command::BreakSlot { key: self.log.key(), id, reason, grace_ms, fence: None };
        let reply = self.log.apply(command);
        let now = self.log.now;
        let broken = matches!(reply, Reply::OfSlot { op, .. } if op.result);
        assert_eq!(broken, self.judge.holders.contains_key(&id));
        if let Some(holder) = self.judge.holders.get_mut(&id) {
            (holder.deadline, holder.broken) = (holder.deadline.min(now + grace_ms), true);
            self.judge.next = self.judge.next.min(holder.deadline);
            self.judge.count("broke");
        }
    }

    fn resize(&mut self) {
        let size = 256 + 64 * self.dice.below(6) as u32;
        let reply = self.log.apply(Command::Resize { key: self.log.key(), size });
        assert_eq!(reply, Reply::Done { result: true, reason: None });
        self.judge.size = size;
        self.judge.count("resized");
    }

    fn step(&mut self) {
        match self.dice.below(10_000) {
            0..5 => self.resize(),
            5..8 => self.log.restart(),
            8..11 => self.log.now += 70_000,
            11..30 => self.log.now += 5_000,
            30..9_000 => {}
            _ => self.log.now += self.dice.below(200) as u64,
        }
        self.judge.pass(self.log.now);
        let identity = self.dice.below(IDENTITIES);
        match self.dice.below(100) {
            0..40 => self.acquire(identity, None),
            40..80 => self.renew(identity),
            80..88 => self.release(identity),
            // A process restarts: killed, or in order.
            88..96 => {
                self.former[identity] = std::mem::replace(&mut self.tokens[identity], self.log.token());
                self.acquire(identity, None);
            }
            96..99 => {
                let own = self.judge.of_identity(identity).filter(|_| self.dice.is(60));
                let id = own.unwrap_or_else(|| self.dice.below(600) as u32);
                self.acquire(identity, Some(id));
            }
            _ if self.dice.is(50) => self.break_one(),
            // The process before is still there.
            _ => {
                std::mem::swap(&mut self.tokens[identity], &mut self.former[identity]);
                self.acquire(identity, None);
                self.renew(identity);
            }
        }
    }
}

fn name(identity: usize) -> Arc<str> {
    Arc::from(format!("pod-{identity}"))
}

/// A storm of [`STEPS`] steps, and what it counted.
fn storm(dice: Dice) -> BTreeMap<&'static str, usize> {
    let begun = Instant::now();
    let mut storm = Storm::new(dice);
    for step in 0..STEPS {
        storm.step();
        if step % 100 == 0 {
            storm.judge.pass(storm.log.now);
            let view = storm.log.view();
            assert_eq!(view.held as usize, storm.judge.holders.len());
        }
    }
    println!("{STEPS} steps in {:?}: {:#?}", begun.elapsed(), storm.judge.counts);
    storm.judge.counts
}

#[test]
fn a_storm_breaks_no_law_of_ids() {
    storm(Dice::new());
}

/// The steps are the same each time, so that what is met is no matter of luck.
#[test]
fn a_storm_meets_everything() {
    let counts = storm(Dice::fixed());
    let often = ["granted", "yours", "released", "expired", "exhausted", "took over", "own id in quarantine", "lost"];
    for what in often {
        assert!(counts.get(what).is_some_and(|count| *count > 100), "{what} is rare");
    }
    for what in ["avoided", "avoided another's", "broke", "resized", "taken over", "in use"] {
        assert!(counts.get(what).is_some_and(|count| *count > 3), "{what} is rare");
    }
}
