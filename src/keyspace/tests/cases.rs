//! What scripts do not reach: exact values, and many keys.

use std::sync::Arc;

use tenure_cluster::{Moment, Position, ReadAt, Stamp, StateMachine};

use crate::keyspace::{Acquire, Command, EventKind, Keyspace, LeaseOptions, OpReply, Reply, TokenHash, token_hash};

fn at(stamp: u64, index: u64) -> Moment {
    Moment { stamp: Stamp(stamp), position: Position { index, ordinal: 0 }, wall_ms: 0 }
}

fn acquire(key: &str) -> Command {
    Command::Acquire(Acquire {
        key: key.into(),
        owner: "me".into(),
        token: token_hash(key, "mine"),
        ttl_ms: 1000,
        create: true,
        note: None,
        min_hold_ms: None,
        delay_ms: None,
        once: false,
    })
}

/// A keyspace of `keys` leases, held from stamp 0 to 1000.
fn held(keys: usize) -> Keyspace {
    let mut keyspace = Keyspace::default();
    for n in 0..keys {
        keyspace.apply(&at(0, 1), acquire(&format!("{n:06}")), &mut Vec::new());
    }
    keyspace
}

#[test]
fn token_hashes_are_frozen() {
    let hex = |key, token| token_hash(key, token).0.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(hex("", ""), "374708fff7719dd5979ec875d56cd228");
    assert_eq!(hex("job", "secret"), "c494c371b639e24ff7bd4e7756bd20de");
    assert_eq!(hex("jobs", "ecret"), "00db40b4c25b4ea5bd60b1e6552e4edf");
    assert_eq!(hex("schlüssel/🔑", "a token of many words"), "73bb6cf034db98bcb42def51d2b3a5ad");
}

#[test]
fn one_call_of_advance_fires_at_most_10_000_timers() {
    let mut keyspace = held(25_000);
    let mut told = Vec::new();
    for left in [15_000, 5_000, 0, 0] {
        keyspace.advance(&at(1000, 2), &mut told);
        assert_eq!((told.len(), keyspace.grants()), (25_000 - left, left));
        assert_eq!(keyspace.wake().is_some_and(|wake| wake <= Stamp(1000)), left > 0, "the backlog asks for more");
    }
    assert!(told.iter().all(|event| event.kind == EventKind::Expired));
    assert!(told.iter().zip(1..).all(|(event, fence)| event.fence == Some(fence)), "each once, by grant");
}

#[test]
fn a_backlog_keeps_no_dead_lease_alive() {
    let mut keyspace = held(25_000);
    let (now, key) = (at(1000, 2), "024999");
    keyspace.advance(&now, &mut Vec::new());
    let read = ReadAt { applied: now.stamp, now: now.stamp };
    assert!(!keyspace.held(key, None, read).unwrap().unwrap().op.result);
    let mut told = Vec::new();
    let reply = keyspace.apply(&now, acquire(key), &mut told);
    assert!(matches!(reply, Reply::Op(OpReply { result: true, fence: Some(25_001), .. })), "{reply:?}");
    assert_eq!(told.iter().map(|event| event.kind).collect::<Vec<_>>(), [EventKind::Expired, EventKind::Granted]);
    keyspace.advance(&now, &mut told);
    keyspace.advance(&now, &mut told);
    assert_eq!((keyspace.grants(), told.len()), (1, 2 + 14_999), "the lease that was cleaned before is not told again");
}

#[test]
fn a_scan_over_dead_keys_is_bounded_and_goes_on() {
    let mut keyspace = held(25_000);
    let late = at(1000 + 86_400_000, 2);
    keyspace.apply(&late, acquire("024998"), &mut Vec::new());
    let read = ReadAt { applied: late.stamp, now: late.stamp };
    let mut cursor: Option<Arc<str>> = None;
    let mut sizes = Vec::new();
    loop {
        let page = keyspace.scan("", cursor.as_deref(), 100, read).unwrap();
        sizes.push(page.views.len());
        cursor = page.cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(sizes, [0, 0, 1], "10 000 keys a page, all dead but one");
}

#[test]
fn a_batch_in_a_batch_does_nothing() {
    let mut keyspace = Keyspace::default();
    let nested = Command::Batch(vec![Command::Batch(vec![acquire("a")]), acquire("b")]);
    let reply = keyspace.apply(&at(0, 1), nested, &mut Vec::new());
    assert!(matches!(&reply, Reply::Batch(replies) if replies.len() == 2 && replies[0] == Reply::Batch(Vec::new())));
    assert_eq!(keyspace.keys(), 1);
}

#[test]
fn no_event_or_reply_shows_a_token() {
    let token = TokenHash([0xAB; 16]);
    let seen = format!("{:?}", token.0);
    let mut keyspace = Keyspace::default();
    let mut events = Vec::new();
    let Command::Acquire(ask) = acquire("a") else { unreachable!() };
    let take = Command::Acquire(Acquire { token, ..ask });
    let key = Arc::from("a");
    let read = [Command::Get { key }, Command::Held { key: "a".into(), token: Some(token) }];
    let replies: Vec<_> =
        [take.clone(), take].into_iter().chain(read).map(|c| keyspace.apply(&at(0, 1), c, &mut events)).collect();
    keyspace.advance(&at(1000, 2), &mut events);
    assert_eq!(events.len(), 3);
    assert!(!format!("{replies:?} {events:?}").contains(&seen));
}

/// A log that stood still while a lease was shut would give the wait again after a restart.
#[test]
fn time_matters_while_a_free_lease_is_shut() {
    let mut keyspace = Keyspace::default();
    let (key, token) = ("job", token_hash("job", "mine"));
    let events = &mut Vec::new();
    keyspace.apply(&at(0, 1), Command::Create { key: key.into(), options: LeaseOptions::default() }, events);
    assert_eq!(keyspace.wake(), None);
    let Command::Acquire(ask) = acquire(key) else { unreachable!() };
    let ask = Acquire { create: false, min_hold_ms: Some(90_000), ..ask };
    keyspace.apply(&at(0, 2), Command::Acquire(ask), events);
    keyspace.apply(&at(10, 3), Command::Release { key: key.into(), token, fence: None }, events);
    assert_eq!(keyspace.wake(), Some(Stamp(90_000)), "shut until the minimum hold is over");
    let mut saved = Vec::new();
    keyspace.save(&mut saved).unwrap();
    assert_eq!(Keyspace::load(&mut &saved[..]).unwrap().wake(), Some(Stamp(90_000)), "after a restart too");
    keyspace.advance(&at(89_999, 4), events);
    assert_eq!(keyspace.wake(), Some(Stamp(90_000)));
    keyspace.advance(&at(90_000, 5), events);
    assert_eq!(keyspace.wake(), None, "nothing is outstanding any more");
}
