//! A store of leases that has one fault, or none.

use std::collections::BTreeMap;

use super::*;

pub(super) const TTL_MS: u64 = 300;
const EPOCH_MS: u64 = 5_000_000;
/// How far a fault in time is off.
const OFF_MS: u64 = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// Grants are given away before their deadline.
    EndsEarly,
    /// A read's state is old, and says so by its position.
    ReadsStale,
    /// A read's state is old, under the position of now.
    ReadsStaleInSecret,
    /// A read shows an end that is not in the log, by a clock that the next leader does not go on with.
    ReadsAhead,
    /// RELEASE is acknowledged and not done.
    ForgetsReleases,
    /// RENEW is acknowledged and not done.
    ForgetsRenewals,
    /// ACQUIRE is acknowledged and not done.
    ForgetsGrants,
    /// RENEW brings back what has ended.
    Revives,
    /// RENEW shortens.
    Shortens,
    /// Every grant has its whole ttl again, at some moment.
    RenewsAll,
    /// The fence is now and then the one before.
    RepeatsFences,
    /// So is the position.
    RepeatsPositions,
    /// The clock is 5 % fast.
    ClockRuns,
    /// The clock falls back at some moment.
    ClockFalls,
    /// A free key is refused.
    RefusesFree,
    /// A key's lifetime ends its live grant.
    LifetimesEndGrants,
    /// A free key goes before the end of its lifetime.
    KeysGoEarly,
    /// A key stays after its lifetime.
    KeysStay,
    /// `key_expired` before the end of the lifetime.
    KeysExpireEarly,
    /// RENEW asks for the owner, not the token.
    RenewsByOwner,
}

#[derive(Clone, Default)]
struct Key {
    grant: Option<(u64, u64, u64)>,
    last: Option<(u64, String)>,
    ends_ms: Option<u64>,
}

impl Key {
    /// Ends the grant, (fence, token, deadline), if its time is over.
    fn settle(&mut self, clock_ms: u64) {
        if let Some((fence, ..)) = self.grant.filter(|(.., deadline)| clock_ms >= *deadline) {
            self.end(fence, "expired");
        }
    }

    fn is_over(&self, clock_ms: u64) -> bool {
        self.ends_ms.is_some_and(|ends_ms| clock_ms >= ends_ms)
    }

    fn end(&mut self, fence: u64, reason: &str) {
        self.grant = None;
        self.last = Some((fence, reason.to_owned()));
    }
}

/// The store.
pub(super) struct Store {
    fault: Fault,
    dice: Dice,
    keys: BTreeMap<String, Key>,
    /// States of a while ago: position, clock, keys.
    old: (u64, u64, BTreeMap<String, Key>),
    index: u64,
    fence: u64,
    upset: bool,
}

fn no(reason: &str, live: Option<Live>) -> Answer {
    Answer::Refused { reason: reason.to_owned(), live, yours: false }
}

impl Store {
    pub(super) fn new(fault: Fault, seed: u64) -> Self {
        let old = (0, EPOCH_MS, BTreeMap::new());
        Self { fault, dice: Dice::new(seed, 1), keys: BTreeMap::new(), old, index: 0, fence: 0, upset: false }
    }

    fn clock_ms(&self, now_ns: u64) -> u64 {
        let ms = now_ns / 1_000_000;
        EPOCH_MS
            + match self.fault {
                Fault::ClockRuns => ms * 105 / 100,
                Fault::ClockFalls if self.upset => ms - OFF_MS,
                _ => ms,
            }
    }

    pub(super) fn apply(&mut self, now_ns: u64, name: &str, operation: Operation) -> (Witness, Answer) {
        let clock_ms = self.clock_ms(now_ns);
        if now_ns > 2_000_000_000 && !self.upset {
            self.upset = true;
            if self.fault == Fault::RenewsAll {
                self.keys.values_mut().filter_map(|key| key.grant.as_mut()).for_each(|grant| grant.2 += TTL_MS);
            }
        }
        if clock_ms.abs_diff(self.old.1) >= OFF_MS {
            self.old = (self.index, clock_ms, self.keys.clone());
        }
        if operation == Operation::Get {
            return self.read(clock_ms, name);
        }
        let repeats = self.fault == Fault::RepeatsPositions && self.dice.percent(5);
        self.index += u64::from(!repeats);
        let answer = self.write(clock_ms, name, operation);
        let position = Position { index: self.index, ordinal: 0 };
        (Witness { position, clock_ms, term: 1 }, answer)
    }

    /// Does the key go at this clock, once it is free?
    fn goes(&self, key: &Key, clock_ms: u64) -> bool {
        let early = if self.fault == Fault::KeysGoEarly { OFF_MS } else { 0 };
        let in_the_way = key.grant.is_some() && self.fault != Fault::LifetimesEndGrants;
        key.is_over(clock_ms + early) && !in_the_way && self.fault != Fault::KeysStay
    }

    /// Ends what is over; removes the key if it goes.
    fn settle(&mut self, clock_ms: u64, name: &str) {
        let Some(mut key) = self.keys.remove(name) else { return };
        key.settle(clock_ms);
        if !self.goes(&key, clock_ms) {
            self.keys.insert(name.to_owned(), key);
        }
    }

    fn read(&mut self, clock_ms: u64, name: &str) -> (Witness, Answer) {
        let ahead = self.fault == Fault::ReadsAhead;
        let clock_ms = clock_ms + if ahead { self.dice.in_range(0..=OFF_MS) } else { 0 };
        // What a read shows as ended is in the log first: a tick.
        if !ahead && self.keys.contains_key(name) {
            self.index += 1;
            self.settle(clock_ms, name);
        }
        let stale = matches!(self.fault, Fault::ReadsStale | Fault::ReadsStaleInSecret) && self.dice.percent(30);
        let (mut at, mut keys) = ((self.index, clock_ms), if stale { self.old.2.clone() } else { self.keys.clone() });
        if stale && self.fault == Fault::ReadsStale {
            at = (self.old.0, self.old.1);
        }
        let (index, clock_ms) = at;
        let witness = Witness { position: Position { index, ordinal: 0 }, clock_ms, term: 1 };
        if let Some(key) = keys.get_mut(name) {
            key.settle(clock_ms);
        }
        let sight = keys.get(name).filter(|key| !self.goes(key, clock_ms)).map(|key| {
            let held = key.grant.map(|(fence, _, deadline)| Live { fence, ttl_ms: deadline - clock_ms });
            Sight { held, last: key.last.clone() }
        });
        (witness, Answer::Seen(sight))
    }

    fn write(&mut self, clock_ms: u64, name: &str, operation: Operation) -> Answer {
        let early = if self.fault == Fault::EndsEarly { OFF_MS } else { 0 };
        if !(self.fault == Fault::Revives && matches!(operation, Operation::Renew { .. })) {
            self.settle(clock_ms + early, name);
        }
        if let Operation::Acquire { .. } = operation {
            self.keys.entry(name.to_owned()).or_default();
        }
        let Some(mut key) = self.keys.remove(name) else { return no("no_such_key", None) };
        let answer = self.written(clock_ms, &mut key, operation);
        // What is over goes with its grant; a key that nobody was granted was never made.
        if !self.goes(&key, clock_ms) && operation != Operation::Delete && (key.grant.is_some() || key.last.is_some()) {
            self.keys.insert(name.to_owned(), key);
        }
        answer
    }

    fn written(&mut self, clock_ms: u64, key: &mut Key, operation: Operation) -> Answer {
        let early = if self.fault == Fault::KeysExpireEarly { OFF_MS } else { 0 };
        let over = key.is_over(clock_ms + early) && self.fault != Fault::KeysStay;
        let live = key.grant.map(|(fence, _, deadline)| Live { fence, ttl_ms: deadline.saturating_sub(clock_ms) });
        match (operation, key.grant) {
            (Operation::Acquire { token, .. }, Some((_, holder, _))) => {
                let reason = if over && token != holder { "key_expired" } else { "held" };
                Answer::Refused { reason: reason.to_owned(), live, yours: token == holder }
            }
            (Operation::Acquire { .. }, None) if self.fault == Fault::RefusesFree && self.dice.percent(10) => {
                no("held", None)
            }
            (Operation::Acquire { token, ttl_ms }, None) => self.grant(clock_ms, key, token, ttl_ms),
            (Operation::Renew { token, .. }, Some((_, holder, _))) if token == holder && over => {
                no("key_expired", live)
            }
            (Operation::Renew { token, ttl_ms, .. }, Some((_, holder, _))) if token == holder => {
                self.renew(clock_ms, key, ttl_ms)
            }
            (Operation::Trespass { ttl_ms, .. }, Some(_)) if self.fault == Fault::RenewsByOwner => {
                self.renew(clock_ms, key, ttl_ms)
            }
            (Operation::Release { token, .. }, Some((fence, holder, _))) if token == holder => {
                if !(self.fault == Fault::ForgetsReleases && self.dice.percent(10)) {
                    key.end(fence, "released");
                }
                Answer::Done
            }
            (Operation::Break, Some((fence, ..))) => {
                key.end(fence, "broken");
                Answer::Done
            }
            (Operation::Expire { .. } | Operation::Persist, _) if over => no("key_expired", None),
            (Operation::Expire { ttl_ms }, _) => {
                key.ends_ms = Some(clock_ms + ttl_ms);
                Answer::Done
            }
            (Operation::Persist, _) => {
                key.ends_ms = None;
                Answer::Done
            }
            (Operation::Delete, _) => Answer::Done,
            _ => no("not_held", live),
        }
    }

    fn grant(&mut self, clock_ms: u64, key: &mut Key, token: u64, ttl_ms: u64) -> Answer {
        let repeats = self.fault == Fault::RepeatsFences && self.dice.percent(10);
        self.fence += u64::from(!repeats);
        let forgets = self.fault == Fault::ForgetsGrants && self.dice.percent(10);
        key.grant = Some((self.fence, token, clock_ms + ttl_ms)).filter(|_| !forgets);
        Answer::Granted(Live { fence: self.fence, ttl_ms })
    }

    fn renew(&mut self, clock_ms: u64, key: &mut Key, ttl_ms: u64) -> Answer {
        let Some((_, _, deadline)) = &mut key.grant else { return no("not_held", None) };
        let shortens = self.fault == Fault::Shortens;
        let next = if shortens { clock_ms + ttl_ms / 2 } else { (*deadline).max(clock_ms + ttl_ms) };
        if !(self.fault == Fault::ForgetsRenewals && self.dice.percent(20)) {
            *deadline = next;
        }
        let fence = key.grant.map_or(0, |(fence, ..)| fence);
        Answer::Granted(Live { fence, ttl_ms: next.saturating_sub(clock_ms) })
    }
}
