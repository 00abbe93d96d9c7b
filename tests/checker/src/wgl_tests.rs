//! The search: against histories written by hand; against random right ones, each reply of which is falsified in turn;
//! against faulty stores, beside the witness checker.

use super::random::history;
use super::store::Fault;
use super::wgl::{Search, search};
use super::*;

const SEEDS: u64 = 25;
/// About half of them of each of two keys.
const CALLS: usize = 150;

/// Time on the clients' clock is all that counts: the witness is nonsense.
fn call(from_ms: u64, to_ms: u64, operation: Operation, outcome: Option<Answer>) -> Call {
    let witness = Witness { position: Position::default(), clock_ms: 0, term: 0 };
    Call {
        client: 1,
        node: 1,
        key: "k".to_owned(),
        operation,
        invoked_ns: from_ms * 1_000_000,
        sent_ns: from_ms * 1_000_000,
        returned_ns: to_ms * 1_000_000,
        repeated: false,
        outcome: outcome.map_or(Outcome::Unknown, |answer| Outcome::Answered(witness, answer)),
    }
}

const fn acquire(token: u64) -> Operation {
    Operation::Acquire { token, ttl_ms: 1000 }
}

fn granted(fence: u64) -> Option<Answer> {
    Some(Answer::Granted(Live { fence, ttl_ms: 1000 }))
}

fn refused(reason: &str) -> Option<Answer> {
    Some(Answer::Refused { reason: reason.to_owned(), live: None, yours: false })
}

fn held(fence: u64) -> Option<Answer> {
    Some(Answer::Seen(Some(Sight { held: Some(Live { fence, ttl_ms: 1 }), last: None })))
}

fn free(fence: u64, reason: &str) -> Option<Answer> {
    Some(Answer::Seen(Some(Sight { held: None, last: Some((fence, reason.to_owned())) })))
}

const fn release(token: u64, fence: u64) -> Operation {
    Operation::Release { token, fence }
}

fn verdict(calls: &[Call]) -> Search {
    search(&calls.iter().collect::<Vec<_>>())
}

#[track_caller]
fn right(calls: &[Call]) {
    assert_eq!(verdict(calls), Search::Linearizable);
}

#[track_caller]
fn wrong(calls: &[Call]) {
    assert_eq!(verdict(calls), Search::NotLinearizable);
}

#[test]
fn one_after_the_other() {
    let first = call(0, 10, acquire(1), granted(1));
    right(&[first.clone(), call(1100, 1110, acquire(2), granted(2))]);
    wrong(&[first.clone(), call(500, 510, acquire(2), granted(2))]);
    wrong(&[first.clone(), call(1100, 1110, acquire(2), granted(1))]);
    right(&[first.clone(), call(20, 30, release(1, 1), Some(Answer::Done)), call(40, 50, acquire(2), granted(7))]);
    wrong(&[first.clone(), call(20, 30, release(1, 1), Some(Answer::Done)), call(40, 50, Operation::Get, held(1))]);
    wrong(&[first.clone(), call(20, 30, Operation::Get, free(1, "expired"))]);
    wrong(&[first.clone(), call(1100, 1110, Operation::Get, free(1, "released"))]);
    wrong(&[first, call(1100, 1110, Operation::Get, Some(Answer::Seen(None)))]);
    wrong(&[call(0, 10, Operation::Get, held(1))]);
}

#[test]
fn an_end_that_was_seen_stays() {
    let seen = [call(0, 10, acquire(1), granted(1)), call(1100, 1110, Operation::Get, free(1, "expired"))];
    let renew = Operation::Renew { token: 1, fence: 1, ttl_ms: 1000 };
    right(&[seen.as_slice(), &[call(1120, 1130, renew, refused("expired"))]].concat());
    wrong(&[seen.as_slice(), &[call(1120, 1130, renew, granted(1))]].concat());
    // But nobody has to see it: the cluster's clock may stand still.
    right(&[seen[0].clone(), call(5000, 5010, renew, granted(1)), call(5500, 5510, Operation::Get, held(1))]);
    wrong(&[seen[0].clone(), call(900, 910, renew, granted(1)), call(1500, 1510, acquire(2), granted(2))]);
}

#[test]
fn calls_at_one_time_go_in_any_order() {
    let acquired = call(0, 100, acquire(1), granted(2));
    right(&[acquired.clone(), call(10, 90, acquire(2), granted(1)), call(20, 95, release(2, 1), Some(Answer::Done))]);
    wrong(&[acquired, call(110, 190, acquire(2), granted(1)), call(120, 195, release(2, 1), Some(Answer::Done))]);
}

#[test]
fn what_is_unknown_may_act_late_or_never() {
    let unknown = call(0, 10, acquire(1), None);
    right(std::slice::from_ref(&unknown));
    right(&[unknown.clone(), call(500, 510, Operation::Get, held(3))]);
    right(&[unknown.clone(), call(500, 510, acquire(2), granted(2)), call(1600, 1610, Operation::Get, held(3))]);
    wrong(&[unknown.clone(), call(500, 510, acquire(2), granted(3)), call(1600, 1610, Operation::Get, held(2))]);
    wrong(&[call(500, 510, Operation::Get, held(3)), call(600, 610, acquire(1), None)]);
    // The fence of a grant that was seen does not change.
    wrong(&[unknown, call(500, 510, Operation::Get, held(3)), call(600, 610, Operation::Get, held(4))]);
    let released = [call(0, 10, acquire(1), granted(1)), call(20, 30, release(1, 1), None)];
    right(&[released.as_slice(), &[call(500, 510, Operation::Get, held(1))]].concat());
    right(&[released.as_slice(), &[call(500, 510, acquire(2), granted(2))]].concat());
    let mut repeated = call(20, 30, release(1, 1), refused("not_held"));
    repeated.repeated = true;
    right(&[released[0].clone(), repeated]);
}

#[test]
fn a_lifetime_ends_a_key_and_no_grant() {
    let expire = Operation::Expire { ttl_ms: 200 };
    let base = [call(0, 10, acquire(1), granted(1)), call(20, 30, expire, Some(Answer::Done))];
    let after = |calls: &[Call]| [base.as_slice(), calls].concat();
    let gone = call(300, 310, Operation::Get, Some(Answer::Seen(None)));
    wrong(&after(std::slice::from_ref(&gone)));
    wrong(&after(&[call(300, 310, acquire(2), granted(2))]));
    let released = call(250, 260, release(1, 1), Some(Answer::Done));
    right(&after(&[released.clone(), gone]));
    right(&after(&[released, call(300, 310, acquire(2), granted(2))]));
    // Who waited hears of that end, and of whom has the key that was made since.
    let wait = Operation::Wait { token: 3, ttl_ms: 1000, wait_ms: 900 };
    let late =
        Answer::Refused { reason: "key_expired".to_owned(), live: Some(Live { fence: 2, ttl_ms: 990 }), yours: false };
    let released = call(250, 260, release(1, 1), Some(Answer::Done));
    right(&after(&[released, call(300, 310, acquire(2), granted(2)), call(50, 320, wait, Some(late))]));
    let renew = Operation::Renew { token: 1, fence: 1, ttl_ms: 1000 };
    right(&after(&[call(300, 310, renew, refused("key_expired"))]));
    wrong(&after(&[call(100, 110, renew, refused("key_expired"))]));
    wrong(&after(&[
        call(300, 310, renew, refused("key_expired")),
        call(320, 330, Operation::Persist, Some(Answer::Done)),
    ]));
    wrong(&after(&[
        call(300, 310, renew, refused("key_expired")),
        call(1100, 1110, Operation::Get, free(1, "expired")),
    ]));
    right(&after(&[
        call(40, 50, Operation::Persist, Some(Answer::Done)),
        call(1100, 1110, Operation::Get, free(1, "expired")),
    ]));
}

#[test]
fn only_tokens_renew() {
    let trespass = Operation::Trespass { fence: Some(1), ttl_ms: 1000 };
    let base = call(0, 10, acquire(1), granted(1));
    right(&[base.clone(), call(20, 30, trespass, refused("not_held")), call(500, 510, Operation::Get, held(1))]);
    wrong(&[base, call(20, 30, trespass, granted(1))]);
}

#[test]
fn too_long_is_said() {
    let many: Vec<Call> =
        (0..300).map(|at| call(at * 10, at * 10 + 5, Operation::Get, Some(Answer::Seen(None)))).collect();
    assert_eq!(verdict(&many), Search::TooLong);
    let found = cross_check(&many);
    assert_eq!((found.violations.len(), found.judged, found.too_long), (0, 0, 1));
    assert_eq!(cross_check(&many[..200]).judged, 1);
}

#[test]
fn a_right_store_is_never_refuted() {
    let (mut judged, mut too_long) = (0, 0);
    for seed in 0..SEEDS * 4 {
        let found = cross_check(&history(Fault::None, seed, CALLS));
        assert!(found.violations.is_empty(), "seed {seed}: {found:#?}");
        judged += found.judged;
        too_long += found.too_long;
    }
    eprintln!("{judged} keys judged, {too_long} too long");
    assert!(too_long * 20 <= judged, "{judged} keys judged, {too_long} too long");
}

/// Changes what was answered, so that it is not what the store answered. `None` where every answer is as good.
fn falsified(call: &Call, dice: &mut Dice) -> Option<Call> {
    let (witness, answer) = call.answered()?;
    let (by, half) = (dice.in_range(1..=3), dice.percent(50));
    let off = |live: Live| Live { fence: live.fence + by, ..live };
    let no = Answer::Refused { reason: "not_held".to_owned(), live: None, yours: false };
    let other = match (call.operation, answer.clone()) {
        (Operation::Get, Answer::Seen(None)) => held(1)?,
        (Operation::Get, Answer::Seen(Some(Sight { held: Some(live), last }))) if half => {
            Answer::Seen(Some(Sight { held: Some(off(live)), last }))
        }
        (Operation::Get, Answer::Seen(Some(Sight { held: Some(live), .. }))) => free(live.fence, "expired")?,
        (Operation::Get, Answer::Seen(Some(Sight { last: Some((fence, _)), .. }))) => held(fence)?,
        (Operation::Renew { .. }, Answer::Granted(_)) => no,
        (Operation::Acquire { .. }, Answer::Granted(live)) => Answer::Granted(off(live)),
        (Operation::Release { .. }, Answer::Done) => no,
        (Operation::Renew { fence, .. }, Answer::Refused { .. }) => granted(fence)?,
        (Operation::Release { .. }, Answer::Refused { .. }) => Answer::Done,
        (Operation::Acquire { .. }, Answer::Refused { live: Some(live), .. }) => Answer::Granted(off(live)),
        _ => return None,
    };
    Some(Call { outcome: Outcome::Answered(*witness, other), ..call.clone() })
}

/// Some falsified answers could have been true as well: a refusal that came when the lease had just run out, the fence of
/// a last grant that nobody looked at. They are few.
#[test]
fn nearly_every_falsified_answer_is_refuted() {
    let (mut refuted, mut passed, mut too_long) = (0, 0, 0);
    let mut dice = Dice::new(7, 7);
    for seed in 0..SEEDS {
        let calls = history(Fault::None, seed, CALLS);
        for _ in 0..20 {
            let at = usize::try_from(dice.in_range(0..=calls.len() as u64 - 1)).unwrap();
            let Some(false_call) = falsified(&calls[at], &mut dice) else { continue };
            let mut mutant: Vec<&Call> = calls.iter().filter(|call| call.key == false_call.key).collect();
            let at = mutant.iter().position(|call| std::ptr::eq(*call, &raw const calls[at])).unwrap();
            mutant[at] = &false_call;
            match search(&mutant) {
                Search::NotLinearizable => refuted += 1,
                Search::Linearizable => passed += 1,
                Search::TooLong => too_long += 1,
            }
        }
    }
    eprintln!("falsified answers: {refuted} refuted, {passed} passed, {too_long} too long");
    assert!(refuted > 200 && refuted >= (passed + too_long) * 9, "{refuted} refuted, {passed}, {too_long}");
}

/// What both can see, both see. The search alone finds little: where an ACQUIRE in doubt excuses all that follows, it
/// still looks for the fence that it would have got.
#[test]
fn it_agrees_with_the_witness_checker() {
    let visible = [
        Fault::EndsEarly,
        Fault::ReadsStale,
        Fault::ReadsStaleInSecret,
        Fault::ForgetsReleases,
        Fault::ForgetsRenewals,
        Fault::ForgetsGrants,
        Fault::RepeatsFences,
        Fault::RefusesFree,
        Fault::LifetimesEndGrants,
        Fault::KeysGoEarly,
        Fault::RenewsByOwner,
    ];
    let mut search_alone = 0;
    for fault in visible {
        let (mut both, mut witness_alone, alone_before) = (0, 0, search_alone);
        for seed in 0..SEEDS {
            let calls = history(fault, seed, CALLS);
            match (!check(&calls).is_empty(), !cross_check(&calls).violations.is_empty()) {
                (true, true) => both += 1,
                (true, false) => witness_alone += 1,
                (false, true) => search_alone += 1,
                (false, false) => {}
            }
        }
        let alone = search_alone - alone_before;
        eprintln!(
            "{fault:?}: found by both {both}, the witness checker {witness_alone}, the search {alone} of {SEEDS}"
        );
        assert!(both > 0, "{fault:?} is not found");
    }
    assert!(
        search_alone <= 5,
        "{search_alone} seeds are found by the search alone: the witness checker excuses too much"
    );
}

#[test]
fn a_key_takes_milliseconds() {
    let histories: Vec<_> = (0..SEEDS).map(|seed| history(Fault::None, seed, 2 * CALLS)).collect();
    let from = std::time::Instant::now();
    let judged: usize = histories.iter().map(|calls| cross_check(calls).judged).sum();
    let per_key = from.elapsed() / u32::try_from(judged).unwrap();
    eprintln!("{judged} keys of about {CALLS} calls, {per_key:?} each");
    assert!(per_key.as_millis() < 100, "{per_key:?} a key");
}
