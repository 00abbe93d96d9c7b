//! The rules on grants, fed with commands and replies written by hand; and the real machine, which keeps them.

use std::sync::Arc;

use tenure::keyspace::{Acquire, Command, Keyspace, OpReply, Reason, Refusal, Reply};
use tenure_cluster::StateMachine;

use super::super::Verdict;
use super::super::grants::Grants;
use super::{TTL_MS, acquire, key, moment, release, renew};

/// Steps of one key: at so many milliseconds this command was answered so. Empty, or the laws that it breaks.
fn judged(steps: &[(u64, Command, Reply)]) -> Vec<String> {
    let (mut grants, mut verdict) = (Grants::default(), Verdict::default());
    for (index, (at_ms, command, reply)) in steps.iter().enumerate() {
        grants.step(&moment(index as u64, *at_ms), command, reply, &[], &mut verdict);
    }
    let mut laws: Vec<String> = verdict.0.into_iter().map(|violation| violation.law).collect();
    laws.dedup();
    laws
}

fn told(result: bool, fence: u64, ttl_ms: u64) -> Reply {
    Reply::Op(OpReply { result, fence: Some(fence), ttl_ms: Some(ttl_ms), ..OpReply::default() })
}

fn no(reason: Reason) -> Reply {
    Reply::Op(OpReply { reason: Some(reason), ..OpReply::default() })
}

fn done() -> Reply {
    Reply::Op(OpReply { result: true, ..OpReply::default() })
}

fn first() -> (u64, Command, Reply) {
    (0, acquire(1, None), told(true, 1, TTL_MS))
}

#[track_caller]
fn after_first(expected: &[&str], steps: &[(u64, Command, Reply)]) {
    let all: Vec<_> = std::iter::once(first()).chain(steps.iter().cloned()).collect();
    assert_eq!(judged(&all), expected);
}

#[test]
fn not_early() {
    after_first(&["NotEarly"], &[(999, acquire(2, None), told(true, 2, TTL_MS))]);
    after_first(&[], &[(1_000, acquire(2, None), told(true, 2, TTL_MS))]);
    after_first(
        &["NotEarly"],
        &[(500, renew(1, 1), told(true, 1, 1_000)), (1_400, acquire(2, None), told(true, 2, 1_000))],
    );
    after_first(&["NotEarly"], &[(999, renew(1, 1), no(Reason::Expired))]);
    after_first(&[], &[(999, renew(1, 1), no(Reason::KeyExpired))]);
    after_first(&["NotEarly"], &[(999, renew(1, 1), Reply::Refused(Refusal::NoSuchKey))]);
    after_first(&[], &[(1_000, renew(1, 1), Reply::Refused(Refusal::NoSuchKey))]);
    after_first(&["NotEarly"], &[(999, release(1, 1), no(Reason::NotHeld))]);
    let expire = Command::Expire { key: key(), ttl_ms: 10 };
    after_first(&["NotEarly"], &[(999, expire, Reply::Done { result: false, reason: None })]);
    let get = Command::Batch(vec![Command::Get { key: key() }]);
    after_first(&["NotEarly"], &[(999, get.clone(), Reply::Batch(vec![Reply::View(None)]))]);
    after_first(&[], &[(1_000, get, Reply::Batch(vec![Reply::View(None)]))]);
    let delete = Command::Del { keys: vec![key()], fence: None };
    after_first(&["NotEarly"], &[(999, delete.clone(), Reply::Deleted(0))]);
    after_first(&[], &[(9, delete, Reply::Deleted(1)), (10, acquire(2, None), told(true, 2, TTL_MS))]);
    after_first(&[], &[(9, release(1, 1), done()), (10, acquire(2, None), told(true, 2, TTL_MS))]);
}

#[test]
fn a_break_has_its_grace() {
    let broken = |grace_ms| Command::Break { key: key(), reason: Arc::from("r"), grace_ms, fence: None };
    let taken = |at_ms| (at_ms, acquire(2, None), told(true, 2, TTL_MS));
    after_first(&[], &[(100, broken(0), done()), taken(100)]);
    after_first(&[], &[(100, broken(50), told(true, 1, 50)), taken(150)]);
    after_first(&["NotEarly"], &[(100, broken(50), told(true, 1, 50)), taken(149)]);
    after_first(
        &["EndedStaysEnded"],
        &[(100, broken(50), told(true, 1, 50)), (120, renew(1, 1), told(true, 1, 1_000))],
    );
    after_first(&["EndedStaysEnded"], &[(1_000, broken(0), done())]);
}

#[test]
fn ended_stays_ended_and_deadlines_stand() {
    after_first(&["EndedStaysEnded"], &[(1_000, renew(1, 1), told(true, 1, TTL_MS))]);
    after_first(&["EndedStaysEnded"], &[(1_000, release(1, 1), done())]);
    after_first(&["EndedStaysEnded"], &[(1_000, renew(2, 1), told(false, 1, 1))]);
    after_first(&[], &[(999, renew(2, 1), told(false, 1, 1))]);
    after_first(&["DeadlinesStand"], &[(990, renew(2, 1), told(false, 1, 1))]);
    after_first(&["DeadlinesStand"], &[(500, renew(1, 1), told(true, 1, 500))]);
    assert_eq!(judged(&[(0, acquire(1, None), told(true, 1, TTL_MS + 1))]), ["DeadlinesStand"]);
}

#[test]
fn fences_grow_and_tokens_rule() {
    after_first(&["FencesGrow"], &[(1_000, acquire(2, None), told(true, 1, TTL_MS))]);
    after_first(&[], &[(1_000, acquire(2, None), told(true, 9, TTL_MS))]);
    after_first(&["TokensOnly"], &[(500, renew(2, 1), told(true, 1, TTL_MS))]);
    after_first(&["TokensOnly"], &[(500, release(2, 1), done())]);
    let mine = Reply::Op(OpReply { yours: true, fence: Some(1), ttl_ms: Some(500), ..OpReply::default() });
    after_first(&["TokensOnly"], &[(500, acquire(2, None), mine.clone())]);
    after_first(&[], &[(500, acquire(1, None), mine)]);
    after_first(&["FreeIsGranted"], &[(1_000, acquire(2, None), no(Reason::Held))]);
}

/// An ACQUIRE with a minimum hold of 600 ms, a delay of 300 ms, and `once`.
fn shutting(number: u8) -> Command {
    let Command::Acquire(ask) = acquire(number, None) else { unreachable!() };
    Command::Acquire(Acquire { min_hold_ms: Some(600), delay_ms: Some(300), once: true, ..ask })
}

#[test]
fn what_is_shut_stays_shut_and_remembers_its_last_token() {
    let first = (0, shutting(1), told(true, 1, TTL_MS));
    let returned = (100, release(1, 1), done());
    let again = |at_ms, number| (at_ms, shutting(number), told(true, 2, TTL_MS));
    for (steps, expected) in [
        (vec![returned.clone(), again(599, 2)], vec!["StaysShut"]),
        (vec![returned.clone(), again(600, 2)], vec![]),
        (vec![again(1_299, 2)], vec!["StaysShut"]),
        (vec![again(1_300, 2)], vec![]),
        (vec![(1_299, shutting(2), no(Reason::Delay))], vec![]),
        (vec![(1_300, shutting(2), no(Reason::Delay))], vec!["FreeIsGranted"]),
        (vec![returned.clone(), again(600, 1)], vec!["TokensOnly"]),
        (vec![again(1_300, 1)], vec!["TokensOnly"]),
    ] {
        let all: Vec<_> = std::iter::once(first.clone()).chain(steps).collect();
        assert_eq!(judged(&all), expected, "{all:?}");
    }
}

#[test]
fn the_real_machine_breaks_no_law() {
    let (mut keyspace, mut grants, mut verdict) = (Keyspace::default(), Grants::default(), Verdict::default());
    let mut dice = checker::Dice::new(3, 3);
    let (mut at_ms, mut fence) = (0, 1);
    for index in 1..3_000 {
        at_ms += dice.in_range(0..=400);
        let number = dice.in_range(1..=3) as u8;
        let command = match dice.in_range(0..=9) {
            0..=2 => acquire(number, None),
            3..=5 => renew(number, fence),
            6 => release(number, fence),
            7 => Command::Expire { key: key(), ttl_ms: dice.in_range(1..=900) },
            8 => {
                let grace_ms = dice.in_range(0..=1) * 300;
                Command::Break { key: key(), reason: Arc::from("r"), grace_ms, fence: None }
            }
            _ if dice.percent(50) => Command::Del { keys: vec![key()], fence: None },
            _ => Command::Batch(vec![Command::Get { key: key() }, Command::Check { key: key(), fence }]),
        };
        let moment = moment(index, at_ms);
        let mut events = Vec::new();
        keyspace.advance(&moment, &mut events);
        grants.passed(&moment, &events, &mut verdict);
        events.clear();
        let reply = keyspace.apply(&moment, command.clone(), &mut events);
        grants.step(&moment, &command, &reply, &events, &mut verdict);
        if let Reply::Op(OpReply { fence: Some(now), .. }) = &reply {
            fence = *now;
        }
    }
    assert!(verdict.0.is_empty(), "{:#?}", verdict.0);
    assert!(fence > 300, "only {fence} grants");
}
