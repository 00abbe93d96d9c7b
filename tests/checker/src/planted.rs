//! The checker against histories written by hand: a right one passes; each with one planted fault is found, by the rule
//! it breaks.

use super::*;

const KEY: &str = "k";
/// The cluster clock when real time is 0.
const EPOCH_MS: u64 = 1_000_000;

/// An answered call of one client and key: invoked and sent at `from_ms`, returned a millisecond later, judged at
/// `from_ms`.
fn call(from_ms: u64, index: u64, operation: Operation, answer: Answer) -> Call {
    let witness = Witness { position: Position { index, ordinal: 0 }, clock_ms: EPOCH_MS + from_ms, term: 1 };
    let ns = from_ms * 1_000_000;
    Call {
        client: 1,
        node: 1,
        key: KEY.to_owned(),
        operation,
        invoked_ns: ns,
        sent_ns: ns,
        returned_ns: ns + 1_000_000,
        repeated: false,
        outcome: Outcome::Answered(witness, answer),
    }
}

fn acquired(from_ms: u64, index: u64, token: u64, fence: u64) -> Call {
    call(from_ms, index, Operation::Acquire { token, ttl_ms: 1000 }, Answer::Granted(Live { fence, ttl_ms: 1000 }))
}

fn renewed(from_ms: u64, index: u64, token: u64, fence: u64) -> Call {
    let operation = Operation::Renew { token, fence, ttl_ms: 1000 };
    call(from_ms, index, operation, Answer::Granted(Live { fence, ttl_ms: 1000 }))
}

fn released(from_ms: u64, index: u64, token: u64, fence: u64) -> Call {
    call(from_ms, index, Operation::Release { token, fence }, Answer::Done)
}

fn refused(reason: &str, live: Option<(u64, u64)>) -> Answer {
    let live = live.map(|(fence, ttl_ms)| Live { fence, ttl_ms });
    Answer::Refused { reason: reason.to_owned(), live, yours: false }
}

fn seen_held(from_ms: u64, index: u64, fence: u64, ttl_ms: u64) -> Call {
    let sight = Sight { held: Some(Live { fence, ttl_ms }), last: None };
    call(from_ms, index, Operation::Get, Answer::Seen(Some(sight)))
}

fn seen_free(from_ms: u64, index: u64, last: u64, reason: &str) -> Call {
    let sight = Sight { held: None, last: Some((last, reason.to_owned())) };
    call(from_ms, index, Operation::Get, Answer::Seen(Some(sight)))
}

/// The same call, its answer lost.
fn unknown(mut call: Call) -> Call {
    call.outcome = Outcome::Unknown;
    call
}

/// The same call over a longer time.
fn lasting(mut call: Call, ms: u64) -> Call {
    call.returned_ns = call.invoked_ns + ms * 1_000_000;
    call
}

/// The same call at another cluster clock.
fn clocked(mut call: Call, clock_ms: u64) -> Call {
    if let Outcome::Answered(witness, _) = &mut call.outcome {
        witness.clock_ms = EPOCH_MS + clock_ms;
    }
    call
}

fn rules(history: &[Call]) -> Vec<Rule> {
    check(history).into_iter().map(|violation| violation.rule).collect()
}

/// The history is found faulty, for this reason.
#[track_caller]
fn finds(rule: Rule, history: &[Call]) {
    assert!(rules(history).contains(&rule), "{rule:?} is not found, only {:?}", check(history));
}

/// The history has this fault alone.
#[track_caller]
fn finds_only(rule: Rule, history: &[Call]) {
    let mut found = rules(history);
    found.dedup();
    assert_eq!(found, [rule], "{:#?}", check(history));
}

#[track_caller]
fn passes(history: &[Call]) {
    let found = check(history);
    assert!(found.is_empty(), "{found:#?}");
}

/// A life of grants: renewed, released, expired, refused, seen.
fn right() -> Vec<Call> {
    vec![
        acquired(10, 1, 1, 1),
        call(20, 2, Operation::Acquire { token: 2, ttl_ms: 1000 }, refused("held", Some((1, 990)))),
        renewed(500, 3, 1, 1),
        seen_held(600, 3, 1, 900),
        released(700, 4, 1, 1),
        seen_free(710, 4, 1, "released"),
        acquired(800, 5, 3, 2),
        seen_free(1900, 6, 2, "expired"),
        call(1910, 7, Operation::Renew { token: 3, fence: 2, ttl_ms: 1000 }, refused("expired", None)),
        acquired(2000, 8, 4, 5),
        seen_held(2100, 9, 5, 900),
    ]
}

#[test]
fn a_right_history_passes() {
    passes(&right());
}

#[test]
fn a_right_history_passes_in_any_order_of_recording() {
    let mut history = right();
    history.reverse();
    passes(&history);
}

#[test]
fn a_saved_history_is_the_same() {
    let file = tempfile::NamedTempFile::new().unwrap();
    save(&right(), file.path()).unwrap();
    assert_eq!(load(file.path()).unwrap(), right());
}

#[test]
fn two_holders_at_once() {
    // The second was granted on a clock that ran far ahead of real time: right by positions and stamps alone.
    let early = clocked(acquired(500, 2, 2, 2), 1_100);
    finds(Rule::OneHolder, &[acquired(10, 1, 1, 1), early]);
}

#[test]
fn a_holder_believes_by_its_answers() {
    // A late answer proves less: counted from sending, the first one's time is over at 1 000 / 1.01 ms.
    let late = lasting(acquired(0, 1, 1, 1), 950);
    passes(&[late.clone(), acquired(1001, 2, 2, 2)]);
    // Renewed at 900 ms, it believes until 1 890 ms.
    let second = clocked(acquired(1500, 3, 2, 2), 1_900);
    finds(Rule::OneHolder, &[late, renewed(900, 2, 1, 1), second.clone()]);
    // A RENEW that nobody answered extends no belief.
    let history = [acquired(0, 1, 1, 1), unknown(renewed(900, 0, 1, 1)), acquired(1500, 3, 2, 2)];
    passes(&history);
    // A BREAK ends it over the holder's head.
    let broken = call(100, 2, Operation::Break, Answer::Done);
    passes(&[acquired(10, 1, 1, 1), broken, acquired(200, 3, 2, 2)]);
    // It stops with sending RELEASE, whatever comes of it.
    passes(&[acquired(10, 1, 1, 1), unknown(released(100, 0, 1, 1)), acquired(200, 3, 2, 2)]);
}

#[test]
fn a_grant_before_the_deadline_of_the_one_before() {
    let early = acquired(900, 2, 2, 2);
    finds(Rule::NotEarly, &[acquired(10, 1, 1, 1), early.clone()]);
    // Not excused by the doubtful RELEASE of another token, nor by one sent after it.
    finds(Rule::NotEarly, &[acquired(10, 1, 1, 1), unknown(released(100, 0, 9, 1)), early.clone()]);
    finds(Rule::NotEarly, &[acquired(10, 1, 1, 1), early, unknown(released(950, 0, 1, 1))]);
    // After a RENEW the deadline is a later one.
    finds(Rule::NotEarly, &[acquired(10, 1, 1, 1), renewed(500, 2, 1, 1), acquired(1200, 3, 2, 2)]);
}

#[test]
fn an_end_seen_or_told_early() {
    finds(Rule::NotEarly, &[acquired(10, 1, 1, 1), seen_free(900, 2, 1, "expired")]);
    let renew = call(900, 2, Operation::Renew { token: 1, fence: 1, ttl_ms: 1000 }, refused("expired", None));
    finds_only(Rule::NotEarly, &[acquired(10, 1, 1, 1), renew]);
    let release = call(900, 2, Operation::Release { token: 1, fence: 1 }, refused("not_held", None));
    finds_only(Rule::NotEarly, &[acquired(10, 1, 1, 1), release]);
}

#[test]
fn what_has_ended_comes_back() {
    let base = [acquired(10, 1, 1, 1), released(100, 2, 1, 1)];
    finds(Rule::EndedStaysEnded, &[base.as_slice(), &[renewed(200, 3, 1, 1)]].concat());
    finds(Rule::EndedStaysEnded, &[base.as_slice(), &[released(200, 3, 1, 1)]].concat());
    // A read at the position of the RELEASE that shows the grant: a stale state under a fresh position.
    finds(Rule::EndedStaysEnded, &[base.as_slice(), &[seen_held(200, 2, 1, 810)]].concat());
    // Renewed after its deadline, or after it was seen expired.
    finds(Rule::EndedStaysEnded, &[acquired(10, 1, 1, 1), renewed(1100, 2, 1, 1)]);
    let seen = [acquired(10, 1, 1, 1), seen_free(1020, 2, 1, "expired"), seen_held(1030, 3, 1, 1)];
    finds(Rule::EndedStaysEnded, &seen);
    // An older grant than the latest.
    let back = [acquired(10, 1, 1, 1), released(20, 2, 1, 1), acquired(30, 3, 2, 2), renewed(40, 4, 1, 1)];
    finds_only(Rule::EndedStaysEnded, &back);
}

#[test]
fn fences_do_not_grow() {
    let mut history = right();
    history[9] = acquired(2000, 8, 4, 2);
    finds(Rule::FencesGrow, &history);
    // Across keys: one counter.
    let mut other = acquired(2200, 10, 7, 5);
    other.key = "other".to_owned();
    finds_only(Rule::FencesGrow, &[right(), vec![other]].concat());
}

#[test]
fn a_position_used_twice() {
    let mut other = acquired(15, 1, 7, 2);
    other.key = "other".to_owned();
    let twice = [clocked(acquired(14, 1, 1, 1), 15), other];
    finds_only(Rule::PositionsAreUnique, &twice);
}

#[test]
fn clock_and_term_fall() {
    // The same deadline by a clock that fell, so that nothing else is wrong.
    let mut fallen = clocked(renewed(100, 2, 1, 1), 9);
    if let Outcome::Answered(_, Answer::Granted(live)) = &mut fallen.outcome {
        live.ttl_ms = 1001;
    }
    finds_only(Rule::ClockGrows, &[acquired(10, 1, 1, 1), fallen]);
    // A read's clock below the stamp of what it saw.
    let mut read = clocked(seen_held(100, 1, 1, 1001), 9);
    read.client = 2;
    finds_only(Rule::ClockGrows, &[acquired(10, 1, 1, 1), read]);
    let mut older = renewed(100, 2, 1, 1);
    if let Outcome::Answered(witness, _) = &mut older.outcome {
        witness.term = 0;
    }
    finds(Rule::ClockGrows, &[acquired(10, 1, 1, 1), older]);
}

#[test]
fn the_clock_outruns_real_time() {
    finds_only(Rule::ClockKeepsPace, &[acquired(10, 1, 1, 1), clocked(renewed(510, 2, 1, 1), 520)]);
    // 1 % is allowed, and standing still is.
    passes(&[acquired(10, 1, 1, 1), clocked(renewed(510, 2, 1, 1), 514), clocked(renewed(1300, 3, 1, 1), 514)]);
}

#[test]
fn a_stale_read() {
    // Another client's read, sent after the RENEW was answered, from before it.
    let mut stale = seen_held(510, 1, 1, 500);
    stale.client = 2;
    finds_only(Rule::NeverStale, &[acquired(10, 1, 1, 1), renewed(500, 2, 1, 1), stale.clone()]);
    // Sent before that, it may see either.
    stale.invoked_ns = 499_000_000;
    passes(&[acquired(10, 1, 1, 1), renewed(500, 2, 1, 1), stale]);
    // Two reads, one after the other, the second from before the first.
    let reads = [acquired(10, 1, 1, 1), seen_held(100, 3, 1, 910), seen_held(110, 2, 1, 900)];
    finds_only(Rule::NeverStale, &reads);
}

#[test]
fn an_acknowledged_grant_is_lost() {
    // The last read of the key knows nothing of the second grant.
    let lost = [acquired(10, 1, 1, 1), acquired(1100, 2, 2, 2), seen_free(2200, 3, 1, "expired")];
    finds_only(Rule::NothingIsLost, &lost);
    let gone = [acquired(10, 1, 1, 1), call(2000, 2, Operation::Get, Answer::Seen(None))];
    finds_only(Rule::NothingIsLost, &gone);
    let deleted = call(100, 2, Operation::Delete, Answer::Done);
    passes(&[acquired(10, 1, 1, 1), deleted, call(2000, 3, Operation::Get, Answer::Seen(None))]);
    // An acknowledged RELEASE that the state shows as an expiry.
    let unreleased = [acquired(10, 1, 1, 1), released(20, 2, 1, 1), seen_free(2000, 3, 1, "expired")];
    finds_only(Rule::NothingIsLost, &unreleased);
}

#[test]
fn a_deadline_that_nobody_moved() {
    finds_only(Rule::DeadlinesStand, &[acquired(10, 1, 1, 1), seen_held(500, 1, 1, 900)]);
    finds_only(Rule::DeadlinesStand, &[acquired(10, 1, 1, 1), seen_held(500, 1, 1, 400)]);
    let mut longer = renewed(500, 2, 1, 1);
    if let Outcome::Answered(_, Answer::Granted(live)) = &mut longer.outcome {
        live.ttl_ms = 5000;
    }
    finds_only(Rule::DeadlinesStand, &[acquired(10, 1, 1, 1), longer.clone()]);
    // Unless an unknown RENEW did.
    let unknown = unknown(call(100, 0, Operation::Renew { token: 1, fence: 1, ttl_ms: 9000 }, Answer::Done));
    passes(&[acquired(10, 1, 1, 1), unknown, longer]);
}

#[test]
fn a_grant_from_nowhere() {
    finds_only(Rule::NothingFromNowhere, &[acquired(10, 1, 1, 1), seen_held(1100, 2, 2, 500)]);
    // Unless somebody may have been given it.
    let asked = unknown(acquired(1050, 0, 2, 2));
    passes(&[acquired(10, 1, 1, 1), asked, seen_held(1100, 2, 2, 500)]);
    // Not by asking afterwards.
    let asked = unknown(acquired(1200, 0, 2, 2));
    finds_only(Rule::NothingFromNowhere, &[acquired(10, 1, 1, 1), seen_held(1100, 2, 2, 500), asked]);
}

#[test]
fn a_free_key_is_refused() {
    let refused = call(200, 3, Operation::Acquire { token: 2, ttl_ms: 1000 }, refused("held", None));
    finds_only(Rule::FreeIsGranted, &[acquired(10, 1, 1, 1), released(100, 2, 1, 1), refused]);
}

#[test]
fn doubt_goes_both_ways() {
    // The unknown RELEASE may have happened, or not yet.
    let base = [acquired(10, 1, 1, 1), unknown(released(100, 0, 1, 1))];
    passes(&[base.as_slice(), &[acquired(200, 2, 2, 2)]].concat());
    passes(&[base.as_slice(), &[seen_held(200, 2, 1, 810)]].concat());
    passes(&[base.as_slice(), &[seen_free(200, 2, 1, "released")]].concat());
    // An ACQUIRE whose answer got lost is found to be held, and proved by a RENEW.
    let yours = Answer::Refused { reason: "held".to_owned(), live: Some(Live { fence: 1, ttl_ms: 950 }), yours: true };
    let again = call(60, 2, Operation::Acquire { token: 1, ttl_ms: 1000 }, yours);
    passes(&[unknown(acquired(10, 0, 1, 1)), again, renewed(100, 3, 1, 1), released(200, 4, 1, 1)]);
}

#[test]
fn violations_are_bounded() {
    let many: Vec<Call> = (1..200).map(|n| acquired(n * 10, n, n, n)).collect();
    let of = |rule| check(&many).iter().filter(|violation| violation.rule == rule).count();
    assert_eq!((of(Rule::NotEarly), of(Rule::OneHolder)), (VIOLATIONS_MAX, VIOLATIONS_MAX));
}

fn expires(from_ms: u64, index: u64, ttl_ms: u64) -> Call {
    call(from_ms, index, Operation::Expire { ttl_ms }, Answer::Done)
}

fn absent(from_ms: u64, index: u64) -> Call {
    call(from_ms, index, Operation::Get, Answer::Seen(None))
}

#[test]
fn a_lifetime_ends_no_grant() {
    let base = [acquired(10, 1, 1, 1), expires(20, 2, 200)];
    let after = |calls: &[Call]| [base.as_slice(), calls].concat();
    let renew = Operation::Renew { token: 1, fence: 1, ttl_ms: 1000 };
    // Held over its lifetime: it refuses, and goes with its grant.
    let refusal = call(300, 3, renew, refused("key_expired", Some((1, 710))));
    passes(&after(&[refusal.clone(), seen_held(400, 3, 1, 610), released(500, 4, 1, 1), absent(510, 4)]));
    passes(&after(&[refusal, absent(1100, 4), acquired(1200, 5, 2, 2)]));
    finds_only(Rule::NotEarly, &after(&[absent(300, 3)]));
    finds_only(Rule::NotEarly, &after(&[call(300, 3, renew, refused("no_such_key", None))]));
    finds(Rule::NotEarly, &after(&[acquired(300, 3, 2, 2)]));
    // An unknown EXPIRE excuses nothing of it.
    finds_only(Rule::NotEarly, &[base[0].clone(), unknown(expires(20, 0, 200)), absent(300, 3)]);
}

#[test]
fn a_key_goes_when_its_lifetime_is_over() {
    let base = [acquired(10, 1, 1, 1), released(15, 2, 1, 1), expires(20, 3, 200)];
    let after = |calls: &[Call]| [base.as_slice(), calls].concat();
    passes(&after(&[seen_free(200, 3, 1, "released"), absent(230, 4), acquired(300, 5, 2, 2)]));
    finds_only(Rule::NothingIsLost, &after(&[absent(200, 3)]));
    finds_only(Rule::LifetimesStand, &after(&[seen_free(230, 4, 1, "released")]));
    finds_only(Rule::NothingFromNowhere, &after(&[absent(230, 4), seen_free(240, 4, 1, "released")]));
    finds_only(Rule::NothingFromNowhere, &after(&[absent(230, 4), expires(240, 5, 100)]));
    // Its time was changed, or may have been.
    let persisted = call(100, 4, Operation::Persist, Answer::Done);
    passes(&after(&[persisted.clone(), seen_free(230, 5, 1, "released")]));
    finds_only(Rule::NothingIsLost, &after(&[persisted.clone(), absent(230, 5)]));
    passes(&after(&[unknown(persisted.clone()), seen_free(230, 5, 1, "released")]));
    passes(&after(&[unknown(persisted), absent(230, 5)]));
    passes(&after(&[expires(100, 4, 400), seen_free(230, 5, 1, "released"), absent(510, 6)]));
    passes(&after(&[unknown(expires(100, 4, 50)), absent(160, 5)]));
    // Not by an EXPIRE whose time cannot have run out yet.
    finds_only(Rule::NothingIsLost, &after(&[unknown(expires(100, 4, 400)), absent(200, 5)]));
}

#[test]
fn a_key_is_refused_as_over_too_early() {
    let base = [acquired(10, 1, 1, 1), expires(20, 2, 200)];
    let asked = |from_ms| {
        call(
            from_ms,
            3,
            Operation::Acquire { token: 2, ttl_ms: 1000 },
            refused("key_expired", Some((1, 1010 - from_ms))),
        )
    };
    passes(&[base.as_slice(), &[asked(220)]].concat());
    finds_only(Rule::LifetimesStand, &[base.as_slice(), &[asked(219)]].concat());
    passes(&[base[0].clone(), unknown(expires(20, 0, 100)), asked(150)]);
    finds_only(Rule::LifetimesStand, &[base[0].clone(), unknown(expires(20, 0, 200)), asked(150)]);
    finds_only(Rule::LifetimesStand, &[base.as_slice(), &[renewed(300, 3, 1, 1)]].concat());
    // Who waited hears of it late, when others know that the key has gone; never before it was over.
    let base = [acquired(10, 1, 1, 1), released(15, 2, 1, 1), expires(20, 3, 200)];
    let waited = |from_ms| {
        let wait = Operation::Wait { token: 2, ttl_ms: 1000, wait_ms: 900 };
        call(from_ms, 5, wait, refused("key_expired", None))
    };
    passes(&[base.as_slice(), &[absent(230, 4), waited(231)]].concat());
    finds_only(Rule::LifetimesStand, &[base.as_slice(), &[waited(200)]].concat());
}

#[test]
fn a_break_beside_a_grant_by_time_may_have_ended_either() {
    let wait = Operation::Wait { token: 2, ttl_ms: 1000, wait_ms: 900 };
    let entry = [
        call(1020, 5, wait, Answer::Granted(Live { fence: 2, ttl_ms: 1000 })),
        call(1020, 5, Operation::Break, Answer::Done),
    ];
    let after = |doubt: &[Call], seen: Call| [&[acquired(10, 1, 1, 1)], doubt, &entry, &[seen]].concat();
    let doubt = [unknown(renewed(500, 2, 1, 1))];
    // Seen at that very position, and later.
    for index in [5, 6] {
        passes(&after(&doubt, seen_free(1025, index, 2, "broken")));
        passes(&after(&doubt, seen_held(1025, index, 2, 995)));
        passes(&after(&[], seen_free(1025, index, 2, "broken")));
        finds(Rule::NothingIsLost, &after(&doubt, seen_free(1025, index, 2, "released")));
    }
}

#[test]
fn a_foreign_token_renews() {
    let trespass = |fence, answer| call(500, 2, Operation::Trespass { fence, ttl_ms: 1000 }, answer);
    let renewed = Answer::Granted(Live { fence: 1, ttl_ms: 1000 });
    for fence in [None, Some(1)] {
        finds_only(Rule::TokensOnly, &[acquired(10, 1, 1, 1), trespass(fence, renewed.clone())]);
        passes(&[
            acquired(10, 1, 1, 1),
            trespass(fence, refused("not_held", Some((1, 510)))),
            seen_held(600, 2, 1, 410),
        ]);
    }
    // It moves nothing even in doubt, and nobody holds by it.
    let moved = seen_held(600, 3, 1, 900);
    finds_only(Rule::DeadlinesStand, &[acquired(10, 1, 1, 1), unknown(trespass(Some(1), renewed.clone())), moved]);
    let taken = [acquired(10, 1, 1, 1), trespass(Some(1), renewed), clocked(acquired(1020, 3, 2, 2), 1600)];
    assert!(!rules(&taken).contains(&Rule::OneHolder));
}
