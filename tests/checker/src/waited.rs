//! Calls that waited in line: right histories pass, each with one planted fault is found, by both checkers where both can.

use super::*;

const EPOCH_MS: u64 = 1_000_000;

/// An answered call from then to then; its witness at this position, the clock at its end.
fn call(ms: (u64, u64), index: u64, operation: Operation, answer: Answer) -> Call {
    let witness = Witness { position: Position { index, ordinal: 0 }, clock_ms: EPOCH_MS + ms.1, term: 1 };
    Call {
        client: 1,
        node: 1,
        key: "k".to_owned(),
        operation,
        invoked_ns: ms.0 * 1_000_000,
        sent_ns: ms.0 * 1_000_000,
        returned_ns: ms.1 * 1_000_000 + 500_000,
        repeated: false,
        outcome: Outcome::Answered(witness, answer),
    }
}

const fn live(fence: u64, ttl_ms: u64) -> Live {
    Live { fence, ttl_ms }
}

fn acquired(ms: (u64, u64), index: u64, token: u64, fence: u64) -> Call {
    call(ms, index, Operation::Acquire { token, ttl_ms: 1000 }, Answer::Granted(live(fence, 1000)))
}

const fn wait(token: u64) -> Operation {
    Operation::Wait { token, ttl_ms: 1000, wait_ms: 5000 }
}

fn waited(ms: (u64, u64), index: u64, token: u64, fence: u64) -> Call {
    call(ms, index, wait(token), Answer::Granted(live(fence, 1000)))
}

fn released(ms: (u64, u64), index: u64, token: u64, fence: u64) -> Call {
    call(ms, index, Operation::Release { token, fence }, Answer::Done)
}

fn seen(ms: (u64, u64), index: u64, sight: Sight) -> Call {
    call(ms, index, Operation::Get, Answer::Seen(Some(sight)))
}

fn unknown(mut call: Call) -> Call {
    call.outcome = Outcome::Unknown;
    call
}

#[track_caller]
fn right(calls: &[Call]) {
    assert_eq!(check(calls), [], "{calls:#?}");
    assert_eq!(cross_check(calls).violations, [], "{calls:#?}");
}

#[track_caller]
fn wrong(rule: Rule, calls: &[Call]) {
    let rules: Vec<Rule> = check(calls).into_iter().map(|violation| violation.rule).collect();
    assert!(rules.contains(&rule), "{rules:?}: {calls:#?}");
}

#[test]
fn a_grant_has_the_position_of_what_made_the_lease_free() {
    let first = acquired((0, 1), 1, 1, 1);
    // By a RELEASE, and by time before a RELEASE that came too late.
    right(&[first.clone(), released((100, 101), 5, 1, 1), waited((50, 101), 5, 2, 2)]);
    let late = call(
        (900, 1100),
        5,
        Operation::Release { token: 1, fence: 1 },
        Answer::Refused { reason: "expired".to_owned(), live: Some(live(2, 1000)), yours: false },
    );
    right(&[first.clone(), late, waited((50, 1100), 5, 2, 2)]);
    // By a BREAK, of which two were waiting, one of them granted by time at its position.
    let broken = |ms| call(ms, 5, Operation::Break, Answer::Done);
    right(&[first.clone(), broken((100, 101)), waited((50, 101), 5, 2, 2)]);
    right(&[first.clone(), waited((50, 1100), 5, 2, 2), broken((1000, 1100)), waited((60, 1100), 5, 3, 3)]);
    // Two others at one position are two all the same.
    let twice = [first, released((100, 101), 5, 1, 1), acquired((50, 101), 5, 2, 2)];
    wrong(Rule::PositionsAreUnique, &twice);
}

#[test]
fn what_waits_is_not_granted_early() {
    let first = acquired((0, 1), 1, 1, 1);
    wrong(Rule::NotEarly, &[first.clone(), waited((50, 500), 5, 2, 2)]);
    wrong(Rule::FencesGrow, &[first.clone(), released((100, 101), 5, 1, 1), waited((50, 101), 5, 2, 1)]);
    let early = [first.clone(), waited((50, 500), 5, 2, 2)];
    assert_eq!(cross_check(&early).violations.len(), 1);
    // It counts from the grant.
    right(&[first, released((100, 101), 5, 1, 1), waited((50, 101), 5, 2, 2), acquired((1101, 1102), 9, 3, 3)]);
}

#[test]
fn a_grant_goes_back_if_nobody_was_there_for_it() {
    let first = [acquired((0, 1), 1, 1, 1), unknown(waited((50, 90), 0, 2, 2)), released((100, 101), 5, 1, 1)];
    let last = |reason: &str| Sight { held: None, last: Some((2, reason.to_owned())) };
    let held = Sight { held: Some(live(2, 951)), last: Some((1, "released".to_owned())) };
    let with = |calls: &[Call]| first.iter().chain(calls).cloned().collect::<Vec<Call>>();
    right(&with(&[seen((149, 150), 6, held.clone()), seen((200, 201), 7, last("undelivered"))]));
    right(&with(&[seen((149, 150), 6, held), acquired((200, 201), 7, 3, 3)]));
    // Not once its token was heard of.
    let renew = Operation::Renew { token: 2, fence: 2, ttl_ms: 1000 };
    let renewed = call((149, 150), 6, renew, Answer::Granted(live(2, 1000)));
    wrong(Rule::NotEarly, &with(&[renewed.clone(), seen((200, 201), 7, last("undelivered"))]));
    assert_eq!(cross_check(&with(&[renewed, acquired((200, 201), 7, 3, 3)])).violations.len(), 1);
    // And not what nobody waited for.
    let plain = [
        acquired((0, 1), 1, 1, 1),
        seen((200, 201), 7, Sight { held: None, last: Some((1, "undelivered".to_owned())) }),
    ];
    wrong(Rule::NotEarly, &plain);
    assert_eq!(cross_check(&plain).violations.len(), 1);
}

#[test]
fn who_gets_nothing_is_told_what_its_node_saw() {
    let first = acquired((0, 1), 1, 1, 1);
    let over =
        |reason: &str, ttl_ms| Answer::Refused { reason: reason.to_owned(), live: Some(live(1, ttl_ms)), yours: false };
    right(&[first.clone(), call((50, 300), 5, wait(2), over("wait_timeout", 701))]);
    // At the position of another's call, as a read.
    let renew = Operation::Renew { token: 1, fence: 1, ttl_ms: 1000 };
    let renewed = call((250, 300), 5, renew, Answer::Granted(live(1, 1000)));
    right(&[first.clone(), call((50, 300), 5, wait(2), over("wait_timeout", 1000)), renewed]);
    right(&[first.clone(), call((50, 300), 5, wait(1), over("superseded", 701))]);
    wrong(Rule::DeadlinesStand, &[first, call((50, 300), 5, wait(2), over("wait_timeout", 400))]);
}
