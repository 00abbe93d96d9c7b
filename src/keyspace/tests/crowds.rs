//! Many who wait: those who are dead are passed over, limits hold, and what it costs is told (`--nocapture`).

use std::mem::size_of;
use std::time::Instant;

use tenure_cluster::{Moment, Position, ReadAt, Stamp, StateMachine};

use super::against_model::saved;
use crate::keyspace::record::Record;
use crate::keyspace::waiting::{QUEUE_MAX, WAITERS_MAX};
use crate::keyspace::{
    Acquire, Attach, Command, EdgeId, Event, EventKind, Key, Keyspace, OpReply, Place, Reason, Reply, TokenHash, Wait,
};

const LONG_MS: u64 = 3_600_000;

/// A keyspace with a log of its own.
#[derive(Default)]
struct Log {
    keyspace: Keyspace,
    index: u64,
    events: Vec<Event>,
}

fn token(n: u64) -> TokenHash {
    let mut token = [0; 16];
    token[..8].copy_from_slice(&n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes());
    token[8..].copy_from_slice(&n.to_be_bytes());
    TokenHash(token)
}

fn ask(key: &str, n: u64) -> Acquire {
    let owner = format!("worker-{n:08}").into();
    let (token, ttl_ms) = (token(n), LONG_MS as i64);
    Acquire {
        key: key.into(),
        owner,
        token,
        ttl_ms,
        create: true,
        note: None,
        min_hold_ms: None,
        delay_ms: None,
        once: true,
    }
}

fn attach(node: u64, request: u64) -> Attach {
    Attach { edge: EdgeId { node, incarnation: 7 }, request }
}

impl Log {
    /// One entry; its events are kept alone.
    fn apply(&mut self, stamp: u64, command: Command) -> Reply {
        self.index += 1;
        let at = Moment { stamp: Stamp(stamp), position: Position { index: self.index, ordinal: 0 }, wall_ms: 0 };
        self.events.clear();
        self.keyspace.advance(&at, &mut self.events);
        self.keyspace.apply(&at, command, &mut self.events)
    }

    /// `key` held by token 0, and `waiters` behind it, of edges 1..=nodes in turn.
    fn line(&mut self, key: &str, waiters: u64, nodes: u64) {
        self.apply(0, Command::Acquire(ask(key, 0)));
        for n in 1..=waiters {
            let wait = Wait { ask: ask(key, n), wait_ms: LONG_MS, attach: attach(1 + n % nodes, n) };
            let reply = self.apply(0, Command::Wait(wait));
            let Reply::Queued { place, .. } = reply else { panic!("{n}: {reply:?}") };
            assert_eq!(place, Place { ahead: n - 1, waiters: n });
        }
    }

    fn release(&mut self, stamp: u64, key: &str, n: u64) -> Option<Attach> {
        let command = Command::Release { key: key.into(), token: token(n), fence: None };
        let reply = self.apply(stamp, command);
        assert!(matches!(&reply, Reply::Op(OpReply { result: true, .. })), "{n}: {reply:?}");
        self.events.iter().find(|event| event.kind == EventKind::Granted).and_then(|event| event.attach)
    }

    fn count(&self, kind: EventKind, reason: Option<Reason>) -> usize {
        self.events.iter().filter(|event| event.kind == kind && event.reason == reason).count()
    }
}

/// A hundred whose clients were killed, or whose node was: the next that lives holds in the very entry of the release.
#[test]
fn the_dead_are_passed_over() {
    for by_node in [false, true] {
        let mut log = Log::default();
        log.line("job", 100, 1);
        let wait = Wait { ask: ask("job", 101), wait_ms: LONG_MS, attach: attach(9, 101) };
        log.apply(1, Command::Wait(wait));
        if by_node {
            log.apply(2, Command::Away { edge: attach(1, 0).edge });
            assert_eq!(log.count(EventKind::Detached, None), 100);
        } else {
            for n in 1..=100 {
                let detach = Command::Detach { key: "job".into(), token: token(n), attach: attach(1, n) };
                assert_eq!(log.apply(2, detach), Reply::Done { result: true, reason: None });
            }
        }
        assert_eq!(log.release(3, "job", 0), Some(attach(9, 101)));
        assert_eq!(log.keyspace.waiters(), 100, "their places are kept");
        log.apply(5_001, Command::Presence { edge: attach(9, 0).edge });
        assert_eq!(log.keyspace.waiters(), 100);
        log.apply(5_002, Command::Presence { edge: attach(9, 0).edge });
        assert_eq!(log.keyspace.waiters(), 0);
        assert_eq!(log.events, [], "silently");
    }
}

/// Granted to one dead after the other: each returns the grant, none of them holds it for a time.
#[test]
fn grants_to_the_dead_come_back_one_by_one() {
    let mut log = Log::default();
    log.line("job", 100, 1);
    log.release(1, "job", 0);
    for n in 1..100 {
        let detach = Command::Detach { key: "job".into(), token: token(n), attach: attach(1, n) };
        log.apply(1, detach);
        assert_eq!(log.count(EventKind::Released, Some(Reason::Undelivered)), 1);
        let granted = log.events.last().and_then(|event| event.attach);
        assert_eq!(granted, Some(attach(1, n + 1)));
    }
    assert_eq!(log.keyspace.longest_ttl_ms(), LONG_MS);
}

#[test]
fn limits_are_those_of_the_contract() {
    let mut log = Log::default();
    log.line("job", 10_000, 3);
    let wait = |key: &str, n| Command::Wait(Wait { ask: ask(key, n), wait_ms: LONG_MS, attach: attach(1, n) });
    let full = |reply| matches!(reply, Reply::Op(OpReply { reason: Some(Reason::QueueFull), .. }));
    assert!(full(log.apply(0, wait("job", 10_001))));
    assert_eq!((QUEUE_MAX, WAITERS_MAX), (10_000, 100_000));
    // The other limit, with fewer.
    log.keyspace = log.keyspace.with_waiters_max(QUEUE_MAX, 10_001);
    log.apply(0, Command::Acquire(ask("last", 0)));
    assert!(!full(log.apply(0, wait("last", 1))));
    assert!(full(log.apply(0, wait("last", 2))));
    // All of one edge at once, and the whole in and out of a snapshot.
    let begun = Instant::now();
    log.apply(3_000, Command::Persist { key: "none".into() });
    assert_eq!(log.count(EventKind::Detached, None), 10_001);
    println!("10 001 detached in {:?}", begun.elapsed());
    let begun = Instant::now();
    let bytes = saved(&log.keyspace);
    let loaded = Keyspace::load(&mut bytes.as_slice()).unwrap();
    println!("saved and loaded, {} bytes, in {:?}", bytes.len(), begun.elapsed());
    assert_eq!(saved(&loaded), bytes);
}

#[test]
fn a_lease_without_waiters_pays_a_word_that_was_padding() {
    assert_eq!(size_of::<Record>(), 200);
}

/// Resident memory of this process, from Linux.
fn resident_bytes() -> i64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<i64>().unwrap() * 4096
}

/// No judgement on time, which is the machine's that runs this: the counts are judged.
#[test]
fn ten_thousand_in_line() {
    let mut log = Log::default();
    let mut lap = Instant::now();
    let mut told = |what: &str, count: u64| {
        println!("{what:32} {:9.2} us each", lap.elapsed().as_secs_f64() * 1e6 / count as f64);
        lap = Instant::now();
    };
    let before = resident_bytes();
    log.line("job", 10_000, 3);
    told("wait", 10_000);
    println!("memory {} bytes a waiter, if this test runs alone", (resident_bytes() - before) / 10_000);
    for n in 1..=1_000 {
        let wait = Wait { ask: ask("job", n * 10), wait_ms: LONG_MS, attach: attach(5, n) };
        assert!(matches!(log.apply(0, Command::Wait(wait)), Reply::Queued { place, .. } if place.ahead == n * 10 - 1));
    }
    told("wait again", 1_000);
    for n in 1..=1_000 {
        log.apply(0, Command::Presence { edge: EdgeId { node: 1 + n % 3, incarnation: 7 } });
    }
    told("presence", 1_000);
    for n in 0..1_000 {
        assert!(log.release(0, "job", n).is_some());
    }
    told("release, handed on", 1_000);
    let kept = log.keyspace.clone();
    for n in 1_000..2_000 {
        assert!(log.release(0, "job", n).is_some());
    }
    told("release, handed on, cloned", 1_000);
    let at = ReadAt { applied: Stamp(0), now: Stamp(0) };
    for n in 2_001..3_001 {
        assert!(log.keyspace.held("job", Some(token(n)), at).unwrap().unwrap().place.is_some());
    }
    told("held, with a place", 1_000);
    log.apply(0, Command::Del { keys: vec![Key::from("job")], fence: None });
    assert_eq!(log.count(EventKind::WaitEnded, Some(Reason::Deleted)), 8_000);
    told("deleted with", 8_000);
    assert_eq!((log.keyspace.waiters(), log.keyspace.edges().count(), kept.waiters()), (0, 0, 9_000));
}
