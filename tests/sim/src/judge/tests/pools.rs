//! The rules on pools: the real machine, which keeps them under any commands; and steps that are told otherwise than they were.

use std::collections::BTreeMap;
use std::sync::Arc;

use checker::Dice;
use tenure::keyspace::{
    Acquire, AcquireSlot, Attach, Command, EdgeId, Keyspace, OnConflict, PoolOptions, PoolUuid, Wait, WaitSlot,
};
use tenure_cluster::StateMachine;

use super::super::Verdict;
use super::super::grants::Grants;
use super::{key, moment, token};

/// Random commands of some tokens, each of one identity or of none.
struct Random {
    dice: Dice,
    requests: u64,
    /// Requests that were made, by token.
    made: BTreeMap<u8, Vec<Attach>>,
}

fn identity(number: u8) -> Option<Arc<str>> {
    (number < 10).then(|| format!("i{}", number % 4).into())
}

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.dice.in_range(0..=limit - 1)
    }

    fn attach(&mut self, number: u8) -> Attach {
        self.requests += 1;
        let edge = EdgeId { node: self.dice.in_range(1..=3), incarnation: 1 + u64::from(self.dice.percent(10)) };
        let own = Attach { edge, request: self.requests };
        self.made.entry(number).or_default().push(own);
        own
    }

    fn attach_of(&mut self, number: u8) -> Attach {
        let made = self.made.get(&number).cloned().unwrap_or_default();
        match made.len() {
            0 => Attach::default(),
            count => made[usize::try_from(self.below(count as u64)).unwrap()],
        }
    }

    fn ask(&mut self, number: u8) -> Command {
        let (token, once, waits) = (token(number), self.dice.percent(50), self.dice.percent(40));
        let (ttl_ms, wait_ms) = (self.dice.in_range(0..=2_500).cast_signed(), self.dice.in_range(1..=9_000));
        let Some(identity) = identity(number) else {
            let ask = Acquire {
                key: key(),
                owner: Arc::from("o"),
                token,
                ttl_ms,
                create: false,
                note: None,
                min_hold_ms: None,
                delay_ms: None,
                once,
            };
            return match waits {
                true => Command::Wait(Wait { ask, wait_ms, attach: self.attach(number) }),
                false => Command::Acquire(ask),
            };
        };
        let avoid = self.dice.percent(15).then(|| u32::try_from(self.dice.in_range(0..=8)).unwrap());
        let unix_ms = self.dice.percent(60).then(|| self.dice.in_range(0..=9_000_000));
        let ask = AcquireSlot { key: key(), identity, token, ttl_ms, avoid, unix_ms, note: None, once };
        match waits {
            true => Command::WaitSlot(WaitSlot { ask, wait_ms, attach: self.attach(number) }),
            false => Command::AcquireSlot(ask),
        }
    }

    fn create(&mut self) -> Command {
        let options = PoolOptions {
            size: u32::try_from(self.dice.in_range(1..=5)).unwrap(),
            first: u32::try_from(self.dice.in_range(0..=1) * 3).unwrap(),
            quarantine_ms: self.dice.in_range(0..=2) * 700,
            release_quarantine_ms: self.dice.in_range(0..=1) * 300,
            ttl_ms_min: self.dice.in_range(1..=600),
            ttl_ms_max: 2_400,
            on_conflict: if self.dice.percent(40) { OnConflict::Reject } else { OnConflict::Takeover },
        };
        Command::CreatePool { key: key(), options, uuid: PoolUuid([u8::try_from(self.below(250)).unwrap(); 16]) }
    }

    fn renewal(&mut self, number: u8, fence: u64) -> Command {
        let (fence, ttl_ms) = (self.dice.percent(30).then_some(fence), self.dice.in_range(0..=2_500).cast_signed());
        match self.dice.percent(50) {
            true => Command::Renew { key: key(), token: token(number), ttl_ms, fence },
            false => {
                let unix_ms = self.dice.in_range(0..=9_000_000);
                Command::RenewSlot { key: key(), token: token(number), ttl_ms, fence, unix_ms }
            }
        }
    }

    fn next(&mut self, fence: u64) -> Command {
        let number = u8::try_from(self.dice.in_range(1..=13)).unwrap();
        let (token, edge) = (token(number), EdgeId { node: self.dice.in_range(1..=3), incarnation: 1 });
        match self.dice.in_range(0..=99) {
            0..40 => self.ask(number),
            40..46 => Command::Detach { key: key(), token, attach: self.attach_of(number) },
            46..49 => Command::Cancel { key: key(), token, attach: self.attach_of(number) },
            49..58 => Command::Presence { edge },
            58 => Command::Away { edge },
            59..70 => Command::Release { key: key(), token, fence: self.dice.percent(30).then_some(fence) },
            70..81 => self.renewal(number, fence),
            81..85 => {
                let (id, grace_ms) = (u32::try_from(self.below(7)).unwrap(), self.below(2) * 300);
                Command::BreakSlot { key: key(), id, reason: Arc::from("r"), grace_ms, fence: None }
            }
            85..88 => Command::Resize { key: key(), size: u32::try_from(self.dice.in_range(1..=5)).unwrap() },
            88 => Command::Expire { key: key(), ttl_ms: self.dice.in_range(1..=9_000) },
            89..91 => Command::Persist { key: key() },
            91 => Command::Del { keys: vec![key()], fence: None },
            92..94 => self.create(),
            _ => Command::Batch(vec![
                self.renewal(number, fence),
                Command::Held { key: key(), token: Some(token) },
                Command::Check { key: key(), fence },
                Command::Get { key: key() },
            ]),
        }
    }
}

/// Steps of the real machine, judged; now and then it is saved and loaded.
fn judged(seed: u64, loads: bool, steps: u64, counts: &mut BTreeMap<&'static str, u64>) -> Verdict {
    let (mut keyspace, mut grants, mut verdict) = (Keyspace::default(), Grants::default(), Verdict::default());
    let mut random = Random { dice: Dice::new(seed, 5), requests: 0, made: BTreeMap::new() };
    let mut at_ms = 0;
    for index in 1..steps {
        at_ms += random.dice.in_range(0..=1) * random.dice.in_range(0..=400);
        if loads && random.dice.percent(2) {
            let mut bytes = Vec::new();
            keyspace.save(&mut bytes).unwrap();
            keyspace = Keyspace::load(&mut bytes.as_slice()).unwrap_or(keyspace);
        }
        let fence = grants.fence;
        let (command, moment) = (random.next(fence), moment(index, at_ms));
        let mut events = Vec::new();
        keyspace.advance(&moment, &mut events);
        grants.passed(&moment, &events, &mut verdict);
        events.clear();
        let reply = keyspace.apply(&moment, command.clone(), &mut events);
        grants.step(&moment, &command, &reply, &events, &mut verdict);
        if !verdict.0.is_empty() {
            break;
        }
    }
    for (what, times) in &grants.pools.counts {
        *counts.entry(what).or_default() += times;
    }
    verdict
}

#[test]
fn the_real_machine_keeps_them() {
    let mut counts = BTreeMap::new();
    for seed in 0..30 {
        let verdict = judged(seed, seed % 2 == 1, 3_000, &mut counts);
        assert!(verdict.0.is_empty(), "seed {seed}: {:#?}", verdict.0.first());
    }
    eprintln!("{counts:#?}");
    assert!(counts.len() >= 30 && counts.values().all(|times| *times >= 5), "{counts:#?}");
}

/// Each is found by a law that is about it, whatever else it breaks.
#[cfg(feature = "planted")]
#[test]
fn planted_bugs_are_found() {
    use tenure_cluster::planted::{Bug, plant};

    let bugs: [(Bug, &[&str]); 15] = [
        (Bug::QuarantineSkipped, &["QuarantineStands", "IdsInOrder"]),
        (Bug::QuarantineForgottenBySnapshot, &["QuarantineStands", "IdsInOrder", "ReadsAgree"]),
        (Bug::SupersededRenews, &["SupersededStaysOut"]),
        (Bug::SupersededForgottenBySnapshot, &["SupersededStaysOut", "LostIsLost"]),
        (Bug::ClaimSurvivesAnother, &["IdsInOrder", "QuarantineStands"]),
        (Bug::BreakKeepsClaim, &["IdsInOrder", "QuarantineStands"]),
        (Bug::AvoidedGivenAgain, &["IdsInOrder", "QuarantineStands"]),
        (Bug::IdentityHoldsTwice, &["OneSlotOfIdentity"]),
        (Bug::ResizeCutsLive, &["LostIsLost", "EndsAreTold", "NotEarly"]),
        (Bug::IdBeyondTheEnd, &["IdsInRange"]),
        (Bug::FloorForgotten, &["FloorStands"]),
        (Bug::PriorToldOnce, &["TakeoversStand"]),
        (Bug::AvoidNotCounted, &["TakeoversStand"]),
        (Bug::OlderAskWaitsOn, &["TakeoversStand"]),
        (Bug::KeyTtlEndsQuarantine, &["QuarantineStands"]),
    ];
    let mut missed = Vec::new();
    for (bug, laws) in bugs {
        plant(Some(bug));
        let found = (0..40).find_map(|seed| {
            let broken = judged(seed, true, 3_000, &mut BTreeMap::new()).0;
            broken.into_iter().map(|violation| violation.law).find(|law| laws.contains(&law.as_str()))
        });
        plant(None);
        eprintln!("{bug:?}: {found:?}");
        if found.is_none() {
            missed.push(bug);
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
