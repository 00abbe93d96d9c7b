//! Waiting against the naive model: as in [`super::against_model`], with few keys that are mostly held, so that there is
//! something to wait for, and requests that are met again, by their own waiter and by others.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::against_model::{KEYS, Run, Step, TOKENS, agree, item, steps};
use crate::keyspace::{Acquire, Attach, Command, EdgeId, Event, EventKind, LeaseOptions, TokenHash, Wait, token_hash};

fn key() -> impl Strategy<Value = Arc<str>> {
    prop::sample::select(&KEYS[..2]).prop_map(Arc::from)
}

fn edge() -> impl Strategy<Value = EdgeId> {
    prop::sample::select(vec![(1, 1), (1, 1), (1, 2), (2, 1)])
        .prop_map(|(node, incarnation)| EdgeId { node, incarnation })
}

/// A token and mostly the request that is its own.
fn whose() -> impl Strategy<Value = (&'static str, Attach)> {
    let any = (edge(), 0_u64..3).prop_map(|(edge, request)| Attach { edge, request });
    (0..TOKENS.len(), prop::option::weighted(0.4, any)).prop_map(|(n, attach)| {
        let edge = EdgeId { node: 1 + n as u64 % 2, incarnation: 1 };
        (TOKENS[n], attach.unwrap_or(Attach { edge, request: n as u64 }))
    })
}

fn ask() -> impl Strategy<Value = (Acquire, Attach)> {
    let times = |weight| prop::option::weighted(weight, prop::sample::select(vec![0, 3_000, 3_000]));
    let ttl_ms = prop::sample::select(vec![0_i64, 50, 1_000, 60_000, 60_000, 60_000]);
    (key(), whose(), ttl_ms, times(0.5), times(0.15), prop::bool::weighted(0.2)).prop_map(
        |(key, (token, attach), ttl_ms, min_hold_ms, delay_ms, once)| {
            let (owner, note) = (Arc::from(format!("owner of {token}")), once.then(|| Arc::from("note")));
            let token = token_hash(&key, token);
            (Acquire { key, owner, token, ttl_ms, create: true, note, min_hold_ms, delay_ms, once }, attach)
        },
    )
}

fn claim() -> impl Strategy<Value = (Arc<str>, TokenHash, Attach)> {
    (key(), whose()).prop_map(|(key, (token, attach))| {
        let token = token_hash(&key, token);
        (key, token, attach)
    })
}

fn held() -> impl Strategy<Value = Command> {
    let renew = |(key, token, _)| Command::Renew { key, token, ttl_ms: 5_000, fence: None };
    prop_oneof![
        2 => ask().prop_map(|(ask, _)| Command::Acquire(ask)),
        4 => claim().prop_map(|(key, token, _)| Command::Release { key, token, fence: None }),
        1 => claim().prop_map(renew),
        1 => claim().prop_map(|(key, token, _)| Command::Held { key, token: Some(token) }),
    ]
}

/// All that may be in the log, but BATCH.
pub fn command() -> impl Strategy<Value = Command> {
    let wait_ms = prop::sample::select(vec![1_u64, 100, 1_000, 5_000, 20_000, 20_000]);
    let options = LeaseOptions { delay_ms: 20, min_hold_ms: 100, ttl_ms_max: Some(5_000) };
    prop_oneof![
        10 => (ask(), wait_ms).prop_map(|((ask, attach), wait_ms)| Command::Wait(Wait { ask, wait_ms, attach })),
        5 => held(),
        3 => claim().prop_map(|(key, token, attach)| Command::Detach { key, token, attach }),
        1 => claim().prop_map(|(key, token, attach)| Command::Cancel { key, token, attach }),
        4 => edge().prop_map(|edge| Command::Presence { edge }),
        1 => edge().prop_map(|edge| Command::Away { edge }),
        2 => prop::collection::vec(prop_oneof![3 => held(), 1 => item()], 0..4).prop_map(Command::AllOrNothing),
        1 => key().prop_map(move |key| Command::Create { key, options }),
        1 => key().prop_map(|key| Command::Del { keys: vec![key], fence: None }),
        1 => key().prop_map(|key| Command::Expire { key, ttl_ms: 2_000 }),
        2 => item(),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    let passed = prop_oneof![
        14 => Just(0_u64),
        7 => prop::sample::select(vec![1, 50, 100]),
        3 => prop::sample::select(vec![1_000, 2_000]),
        1 => prop::sample::select(vec![3_000, 5_000, 86_400_000]),
    ];
    steps(passed, command().boxed())
}

/// What is met at least once in so many runs, or the mixes are not what they should be.
const MET: [&str; 9] = [
    "WaitEnded Superseded",
    "WaitEnded WaitTimeout",
    "WaitEnded CancelledWait",
    "WaitEnded MinHold",
    "WaitEnded KeyExpired",
    "WaitEnded Deleted",
    "Released Undelivered",
    "Detached",
    "Granted by waiting",
];

/// Which of [`MET`] is it?
fn name(event: &Event, in_line: &mut BTreeSet<Attach>) -> String {
    let waited = event.attach.is_some_and(|attach| in_line.remove(&attach));
    match (event.kind, event.attach, event.reason) {
        (EventKind::Waiting, Some(attach), _) => {
            in_line.insert(attach);
            "Waiting".to_owned()
        }
        (EventKind::Granted, ..) if waited => "Granted by waiting".to_owned(),
        (kind, _, Some(reason)) => format!("{kind:?} {reason:?}"),
        (kind, ..) => format!("{kind:?}"),
    }
}

/// So many that are the same each time, which have to meet everything, so that it is no matter of luck; and as many others.
const CASES: u32 = 700;

#[test]
fn waits_as_the_model() {
    let met: RefCell<BTreeMap<String, usize>> = RefCell::default();
    let keys_max = prop::option::weighted(0.1, 2_u64..4);
    let runs = (prop::collection::vec(any_step(), 1..60), keys_max, prop::bool::weighted(0.2));
    let config = Config { cases: CASES, source_file: Some(file!()), ..Config::default() };
    let law = |(steps, keys_max, narrow): (Vec<Step>, _, bool)| {
        let waiters_max = if narrow { (2, 3) } else { (usize::MAX, usize::MAX) };
        let mut in_line = BTreeSet::new();
        for event in agree(Run::new(keys_max, Some(waiters_max)), &steps) {
            *met.borrow_mut().entry(name(&event, &mut in_line)).or_default() += 1;
        }
        Ok(())
    };
    let same = TestRng::deterministic_rng(RngAlgorithm::default());
    let run = |mut runner: TestRunner| runner.run(&runs, law).unwrap_or_else(|error| panic!("{error}"));
    run(TestRunner::new_with_rng(config.clone(), same));
    for what in MET {
        assert!(met.borrow().contains_key(what), "{what} was not met: {met:?}");
    }
    println!("{met:#?}");
    run(TestRunner::new(config));
}
