//! What keeps an id from others while somebody may still be at work with it, whoever held it after that: and what else a
//! pool must do in the very entry in which it can.

use std::sync::Arc;

use tenure_cluster::{Moment, Position, ReadAt, Stamp, StateMachine};

use super::pool_log::Log;
use crate::keyspace::{
    Acquire, AcquireSlot, Attach, Command, EdgeId, Event, EventKind, Holders, Key, PoolOptions, PoolUuid, Reason,
    Reply, SlotGrant, SlotOutcome, SlotReply, TokenHash, Wait, WaitSlot,
};

fn attach(request: u64) -> Attach {
    Attach { edge: EdgeId { node: 1, incarnation: 1 }, request }
}

fn granted(reply: &SlotReply) -> &SlotGrant {
    match &reply.outcome {
        SlotOutcome::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

fn wait(log: &mut Log, ask: AcquireSlot, request: u64) -> Reply {
    log.apply(Command::WaitSlot(WaitSlot { ask, wait_ms: 3_600_000, attach: attach(request) }))
}

fn break_slot(log: &mut Log, id: u32, grace_ms: u64) {
    let reason = Arc::from("ops");
    let reply = log.apply(Command::BreakSlot { key: log.key(), id, reason, grace_ms, fence: None });
    assert!(matches!(reply, Reply::OfSlot { op, .. } if op.result));
}

/// Who lost an id to another of its identity believes in it until its deadline.
#[test]
fn a_holder_that_was_lost_to_an_avoiding_one_keeps_others_out() {
    let mut log = Log::new(PoolOptions { size: 2, quarantine_ms: 1_000, ..PoolOptions::default() });
    let (old, new, other) = (log.token(), log.token(), log.token());
    let ask = AcquireSlot { ttl_ms: 600_000, ..log.ask("pod", old) };
    assert_eq!(granted(&log.acquire(ask)).id, 0);
    let reply = log.acquire(AcquireSlot { avoid: Some(0), ..log.ask("pod", new) });
    assert_eq!(granted(&reply).id, 1);
    log.pass(600_999);
    let reply = log.acquire(log.ask("other", other));
    assert_ne!(reply.grant().map(|grant| grant.id), Some(0), "its old holder is at work until then, or stalls");
}

/// The same where the id lies beyond the end, and comes back.
#[test]
fn a_holder_that_was_lost_beyond_the_end_keeps_others_out() {
    let mut log = Log::new(PoolOptions { size: 2, quarantine_ms: 1_000, ..PoolOptions::default() });
    let (filler, old, new, other) = (log.token(), log.token(), log.token(), log.token());
    log.take("filler", filler);
    assert_eq!(granted(&log.acquire(AcquireSlot { ttl_ms: 600_000, ..log.ask("pod", old) })).id, 1);
    log.apply(Command::Resize { key: log.key(), size: 1 });
    assert!(log.release(filler));
    assert!(granted(&log.acquire(log.ask("pod", new))).id == 0);
    log.apply(Command::Resize { key: log.key(), size: 2 });
    log.pass(10_000);
    let reply = log.acquire(log.ask("other", other));
    assert_eq!(reply.reason, Some(Reason::Exhausted), "the old holder of 1 is at work");
}

/// An id in quarantine that its identity got, and was not told of, is in quarantine still.
#[test]
fn what_was_not_delivered_ends_no_quarantine() {
    let mut log = Log::new(PoolOptions { size: 1, ..PoolOptions::default() });
    let (old, new, other) = (log.token(), log.token(), log.token());
    log.take("pod", old);
    log.pass(30_000);
    let ask = log.ask("pod", new);
    let reply = wait(&mut log, ask, 1);
    assert!(matches!(reply, Reply::Slot(slot) if slot.grant().is_some()));
    let reply = log.apply(Command::Detach { key: log.key(), token: new, attach: attach(1) });
    assert_eq!(reply, Reply::Done { result: true, reason: None });
    let reply = log.acquire(log.ask("other", other));
    assert_eq!((reply.reason, reply.retry_after_ms), (Some(Reason::Exhausted), Some(60_000)));
}

/// Nor does the RELEASE of whoever came after it.
#[test]
fn a_release_ends_no_earlier_quarantine() {
    let mut log = Log::new(PoolOptions { size: 1, ..PoolOptions::default() });
    let (old, new, other) = (log.token(), log.token(), log.token());
    log.take("pod", old);
    log.pass(30_000);
    log.take("pod", new);
    log.pass(1_000);
    assert!(log.release(new));
    let reply = log.acquire(log.ask("other", other));
    assert_eq!((reply.reason, reply.retry_after_ms), (Some(Reason::Exhausted), Some(59_000)));
}

/// A takeover leaves somebody behind who believes in the id.
#[test]
fn a_release_after_a_takeover_keeps_others_out() {
    let mut log = Log::new(PoolOptions { size: 1, quarantine_ms: 1_000, ..PoolOptions::default() });
    let (old, new, other) = (log.token(), log.token(), log.token());
    log.acquire(AcquireSlot { ttl_ms: 600_000, ..log.ask("pod", old) });
    assert!(log.acquire(log.ask("pod", new)).prior.is_some());
    assert!(log.release(new));
    log.pass(599_999);
    let reply = log.acquire(log.ask("other", other));
    assert_eq!(reply.reason, Some(Reason::Exhausted), "the old holder was not told");
}

/// So does a BREAK of whoever came after; and what is told of it comes true.
#[test]
fn a_break_after_a_takeover_keeps_others_out() {
    let mut log = Log::new(PoolOptions { size: 1, quarantine_ms: 1_000, ..PoolOptions::default() });
    let (old, new, other) = (log.token(), log.token(), log.token());
    log.acquire(AcquireSlot { ttl_ms: 600_000, ..log.ask("pod", old) });
    assert!(log.acquire(log.ask("pod", new)).prior.is_some());
    log.restart();
    let reply = log.acquire(log.ask("other", other));
    assert_eq!((reply.reason, reply.retry_after_ms), (Some(Reason::Exhausted), Some(601_000)));
    break_slot(&mut log, 0, 0);
    log.pass(600_999);
    assert_eq!(log.acquire(log.ask("other", other)).retry_after_ms, Some(1));
    log.pass(1);
    assert_eq!(log.take("other", other).id, 0);
}

/// A grant in the grace of a BREAK that was not delivered leaves what a BREAK leaves.
#[test]
fn what_was_broken_and_not_delivered_is_in_quarantine() {
    let mut log = Log::new(PoolOptions { size: 1, ..PoolOptions::default() });
    let (token, again) = (log.token(), log.token());
    let ask = log.ask("pod", token);
    wait(&mut log, ask, 1);
    break_slot(&mut log, 0, 10_000);
    let reply = log.apply(Command::Detach { key: log.key(), token, attach: attach(1) });
    assert_eq!(reply, Reply::Done { result: true, reason: None });
    assert_eq!(log.acquire(log.ask("pod", again)).reason, Some(Reason::Exhausted), "for its own identity too");
}

/// A command of the token shows that its holder knows of the grant, whatever it is answered.
#[test]
fn who_asks_in_the_grace_of_a_break_knows_of_its_grant() {
    let mut log = Log::new(PoolOptions { size: 1, ..PoolOptions::default() });
    let token = log.token();
    let ask = log.ask("pod", token);
    wait(&mut log, ask, 1);
    break_slot(&mut log, 0, 10_000);
    assert_eq!(log.acquire(log.ask("pod", token)).reason, Some(Reason::Broken));
    let reply = log.apply(Command::Detach { key: log.key(), token, attach: attach(1) });
    assert_eq!(reply, Reply::Done { result: false, reason: None });
}

/// Moving on in the grace of a BREAK: the grant ends as broken, as by a RELEASE.
#[test]
fn who_moves_on_in_the_grace_of_a_break_ends_as_broken() {
    let mut log = Log::new(PoolOptions { size: 2, ..PoolOptions::default() });
    let token = log.token();
    log.take("pod", token);
    break_slot(&mut log, 0, 10_000);
    let reply = log.acquire(AcquireSlot { avoid: Some(0), ..log.ask("pod", token) });
    assert_eq!(granted(&reply).id, 1);
    let at = ReadAt { applied: Stamp(log.now), now: Stamp(log.now) };
    let which = Holders { id: Some(0), limit: 1, ..Default::default() };
    let page = log.keyspace.holders("ids", &which, at).unwrap().unwrap();
    assert_eq!(page.slots[0].last.as_ref().map(|last| last.reason), Some(Reason::Broken));
}

/// All of a batch asks for what its items ask for.
#[test]
fn all_or_nothing_of_slots_is_of_the_third_format() {
    let log = Log::new(PoolOptions::default());
    let ask = log.ask("pod", TokenHash([1; 16]));
    assert_eq!(Command::AllOrNothing(vec![Command::AcquireSlot(ask)]).format(), 3);
    assert_eq!(Command::AllOrNothing(Vec::new()).format(), 2);
}

/// A slot that comes back by RESIZE when its quarantine is over goes to who waits in that very entry.
#[test]
fn growing_brings_back_what_was_shut() {
    let mut log = Log::new(PoolOptions { size: 2, ..PoolOptions::default() });
    let (a, b, c) = (log.token(), log.token(), log.token());
    assert_eq!((log.take("a", a).id, log.take("b", b).id), (0, 1));
    log.pass(29_000);
    assert!(log.renew(a).grant().is_some());
    log.pass(1_000);
    log.apply(Command::Resize { key: log.key(), size: 1 });
    for _ in 0..4 {
        log.pass(20_000);
        assert!(log.renew(a).grant().is_some());
    }
    let ask = log.ask("c", c);
    assert!(matches!(wait(&mut log, ask, 1), Reply::SlotQueued(_)));
    log.apply(Command::Resize { key: log.key(), size: 2 });
    assert_eq!(log.count(EventKind::Granted), 1);
    assert!(log.keyspace.wake().is_none_or(|wake| wake > Stamp(log.now)));
}

/// A pool whose lifetime is over goes with its last grant, in that very entry.
#[test]
fn the_last_release_takes_an_over_pool_along() {
    for how in 0..3 {
        let mut log = Log::new(PoolOptions { quarantine_ms: 0, ..PoolOptions::default() });
        let token = log.token();
        let ask = log.ask("pod", token);
        wait(&mut log, ask, 1);
        log.apply(Command::Expire { key: log.key(), ttl_ms: 10 });
        log.pass(10);
        match how {
            0 => assert!(log.release(token)),
            1 => break_slot(&mut log, 0, 0),
            _ => drop(log.apply(Command::Detach { key: log.key(), token, attach: attach(1) })),
        }
        assert_eq!(log.count(EventKind::Deleted), 1, "{how}");
        assert_eq!(log.keyspace.keys(), 0);
    }
}

/// Whoever holds waits no more, and the request that waited is told.
#[test]
fn a_request_whose_token_got_a_slot_otherwise_is_told() {
    let mut log = Log::new(PoolOptions { size: 1, ..PoolOptions::default() });
    let (old, token) = (log.token(), log.token());
    log.take("pod", old);
    let waits = Acquire {
        key: log.key(),
        owner: Arc::from("anybody"),
        token,
        ttl_ms: 30_000,
        create: false,
        note: None,
        min_hold_ms: None,
        delay_ms: None,
        once: false,
    };
    let reply = log.apply(Command::Wait(Wait { ask: waits, wait_ms: 3_600_000, attach: attach(1) }));
    assert!(matches!(reply, Reply::SlotQueued(_)));
    log.take("pod", token);
    let told: Vec<_> = log.events.iter().filter(|event| event.attach == Some(attach(1))).collect();
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].kind, told[0].reason), (EventKind::WaitEnded, Some(Reason::Superseded)));
}

/// One clock that runs ahead does not run on for as long as another that does not.
#[test]
fn each_clock_runs_until_its_own_end() {
    let mut log = Log::new(PoolOptions { size: 1, quarantine_ms: 0, ..PoolOptions::default() });
    let wrong = 3_600_000;
    let (a, b, c) = (log.token(), log.token(), log.token());
    let unix_ms = Some(log.now + wrong);
    log.acquire(AcquireSlot { unix_ms, ttl_ms: 30_000, ..log.ask("pod", a) });
    log.pass(29_000);
    let unix_ms = Some(log.now);
    log.acquire(AcquireSlot { unix_ms, ttl_ms: 80_000_000, ..log.ask("pod", b) });
    let ended = log.now + 1_000;
    log.pass(500);
    log.take("pod", c);
    log.pass(29_000);
    let token = log.token();
    let floor = log.take("pod", token).floor_unix_ms;
    assert_eq!(floor, Some((ended + wrong).max(log.now)));
}

/// A backlog that nobody has settled yet, of 1 500 slots that expire at once: more than one command settles.
fn behind(options: PoolOptions) -> Log {
    let mut log = Log::new(PoolOptions { size: 2_000, ..options });
    for n in 0..1_500 {
        let token = log.token();
        assert_eq!(log.take(&format!("pod-{n}"), token).id, n);
    }
    log.now += 30_000;
    log
}

/// Applies without a timer that fires before.
fn apply(log: &mut Log, command: Command) -> (Reply, Vec<Event>) {
    let at = Moment { stamp: Stamp(log.now), position: Position { index: 1 << 30, ordinal: 0 }, wall_ms: 0 };
    let mut events = Vec::new();
    (log.keyspace.apply(&at, command, &mut events), events)
}

/// An id that is avoided in a backlog is free, and nobody's for a while.
#[test]
fn an_expired_id_is_avoided_in_a_backlog_too() {
    let mut log = behind(PoolOptions::default());
    log.now += 59_000;
    let token = log.token();
    let ask = AcquireSlot { avoid: Some(1_400), ..log.ask("new", token) };
    apply(&mut log, Command::AcquireSlot(ask));
    log.pass(2_000);
    let again = log.token();
    assert_ne!(log.take("pod-1400", again).id, 1_400);
}

/// A key that is over is gone with its last grant and quarantine, though a backlog has not got there.
#[test]
fn a_pool_in_a_backlog_is_gone_when_it_is() {
    let mut log = behind(PoolOptions { quarantine_ms: 0, ..PoolOptions::default() });
    log.now -= 29_000;
    log.apply(Command::Expire { key: log.key(), ttl_ms: 10 });
    log.now += 29_000;
    let (key, options) = (Key::from("ids"), PoolOptions::default());
    let (reply, _) = apply(&mut log, Command::CreatePool { key, options, uuid: PoolUuid([8; 16]) });
    assert_eq!(reply, Reply::Done { result: true, reason: None });
}

/// The same where all of it is in quarantine then, for those beyond the end too: it is there until that is over.
#[test]
fn a_pool_in_a_backlog_keeps_its_quarantines() {
    let mut log = behind(PoolOptions::default());
    log.now -= 29_000;
    log.apply(Command::Resize { key: log.key(), size: 1 });
    log.apply(Command::Expire { key: log.key(), ttl_ms: 10 });
    log.now += 29_000;
    let create = |log: &mut Log| {
        let (key, options) = (Key::from("ids"), PoolOptions::default());
        let (reply, _) = apply(log, Command::CreatePool { key, options, uuid: PoolUuid([8; 16]) });
        reply == Reply::Done { result: true, reason: None }
    };
    assert!(!create(&mut log));
    let token = log.token();
    let reply = log.acquire(log.ask("late", token));
    let retry_after_ms = reply.retry_after_ms.unwrap();
    assert_eq!(reply.reason, Some(Reason::KeyExpired));
    log.now += retry_after_ms - 1;
    assert!(!create(&mut log));
    log.now += 1;
    assert!(create(&mut log));
}

/// What a command ends in a backlog, since it is about it, is handed on by that command.
#[test]
fn an_expired_slot_in_a_backlog_goes_to_who_waits() {
    let mut log = Log::new(PoolOptions { size: 1_500, quarantine_ms: 0, ..PoolOptions::default() });
    let tokens: Vec<_> = (0..1_500).map(|_| log.token()).collect();
    for (n, token) in tokens.iter().enumerate() {
        log.take(&format!("pod-{n}"), *token);
    }
    // Shortly before their end, so that the edge of those who wait is not silent for long.
    log.pass(29_990);
    for n in 0..1_400 {
        let token = log.token();
        let ask = log.ask(&format!("waits-{n}"), token);
        assert!(matches!(wait(&mut log, ask, n), Reply::SlotQueued(_)));
    }
    log.now += 20;
    let claim = Command::Renew { key: log.key(), token: tokens[1_499], ttl_ms: 30_000, fence: None };
    let (reply, events) = apply(&mut log, claim);
    assert!(matches!(reply, Reply::Slot(reply) if reply.reason == Some(Reason::Expired)));
    let given = events.iter().filter(|event| event.kind == EventKind::Granted);
    let given: Vec<_> = given.filter_map(|event| event.slot.as_ref()).map(|slot| slot.id).collect();
    assert_eq!((given.len(), given.last()), (1_001, Some(&1_499)), "those of one pass, and the one it is about");
}

/// DEL in a backlog: what has expired has expired.
#[test]
fn a_deletion_in_a_backlog_tells_of_expiries() {
    let mut log = behind(PoolOptions::default());
    let (reply, events) = apply(&mut log, Command::Del { keys: vec![Key::from("ids")], fence: None });
    assert_eq!(reply, Reply::Deleted(1));
    assert_eq!(events.iter().filter(|event| event.kind == EventKind::Expired).count(), 1_500);
}
