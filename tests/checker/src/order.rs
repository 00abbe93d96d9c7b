//! Witnesses: what answers swear by, against each other and against real time.
//!
//! A write's clock is its entry's stamp: one per entry, never falling along the log. A read's clock is the leader's at
//! the read, which may be ahead of the log: it is at least the stamp of everything it saw, and says nothing of what
//! comes later (the next leader's clock starts at the log).
//!
//! What waited in line is answered at the position of whatever ended its wait: another's call may have it too.

use super::history::{Answer, Call, Position, Witness};
use super::{Rule, Verdict};

/// Stamps are whole milliseconds, rounded at either end of an interval.
const ROUNDING_NS: i128 = 2_000_000;
/// `1 + rho`, in percent.
const PACE_PERCENT: i128 = 101;

pub(super) fn check(history: &[Call], verdict: &mut Verdict) {
    let mut answered: Vec<(&Call, &Witness, &Answer)> =
        history.iter().filter_map(|call| call.answered().map(|(witness, answer)| (call, witness, answer))).collect();
    in_real_time(&answered, verdict);
    // What a read at a position saw includes the write at that position. What was granted at one was in order of fences.
    answered.sort_by_key(|(call, witness, _)| (witness.position, !call.is_write(), call.granted()));
    along_the_log(&answered, verdict);
    pace(&answered, verdict);
    fences(&answered, verdict);
}

/// Whoever asks after an answer was given sees at least that.
fn in_real_time(answered: &[(&Call, &Witness, &Answer)], verdict: &mut Verdict) {
    let mut by_return: Vec<_> = answered.iter().collect();
    by_return.sort_by_key(|(call, ..)| call.returned_ns);
    let mut by_invocation: Vec<_> = answered.iter().collect();
    by_invocation.sort_by_key(|(call, ..)| call.invoked_ns);
    let mut returned = by_return.into_iter().peekable();
    let mut furthest: Option<(&Call, Position)> = None;
    let mut latest: Option<(&Call, u64)> = None;
    for (call, witness, _) in by_invocation {
        while let Some((before, seen, _)) = returned.next_if(|(before, ..)| before.returned_ns < call.invoked_ns) {
            if furthest.is_none_or(|(_, position)| seen.position > position) {
                furthest = Some((before, seen.position));
            }
            if latest.is_none_or(|(_, term)| seen.term > term) {
                latest = Some((before, seen.term));
            }
        }
        if let Some((before, _)) = furthest.filter(|(_, position)| witness.position < *position) {
            verdict.add(Rule::NeverStale, || format!("{call} came after {before} and stands before it"));
        }
        if let Some((before, _)) = latest.filter(|(_, term)| witness.term < *term) {
            verdict.add(Rule::NeverStale, || format!("{call} came after {before} and is of an older term"));
        }
    }
}

/// Positions are used once; clock and term never fall.
fn along_the_log(answered: &[(&Call, &Witness, &Answer)], verdict: &mut Verdict) {
    let mut before: Option<(&Call, &Witness)> = None;
    for (call, witness, _) in answered {
        let Some((other, last)) = before else {
            before = call.is_write().then_some((*call, *witness));
            continue;
        };
        if witness.clock_ms < last.clock_ms || witness.term < last.term {
            verdict.add(Rule::ClockGrows, || format!("{call} stands after {other}"));
        }
        if !call.is_write() {
            continue;
        }
        if witness.position == last.position && !call.is_wait() && !other.is_wait() {
            verdict.add(Rule::PositionsAreUnique, || format!("{call} and {other}"));
        }
        let one_entry = witness.position.index == last.position.index;
        if one_entry && (witness.clock_ms, witness.term) != (last.clock_ms, last.term) {
            verdict.add(Rule::ClockGrows, || format!("one entry, two clocks or terms: {call} and {other}"));
        }
        before = Some((call, witness));
    }
}

/// For any write and anything at or after it in the log: the clock went on by no more than real time may have, times
/// 1 + rho. Enough to compare with the write that leaves the least room.
fn pace(answered: &[(&Call, &Witness, &Answer)], verdict: &mut Verdict) {
    let ns = |ms: u64| i128::from(ms) * 1_000_000 * 100;
    let mut tightest: Option<(i128, &Call)> = None;
    for (call, witness, _) in answered {
        let clock = ns(witness.clock_ms);
        let ahead = clock - i128::from(call.returned_ns) * PACE_PERCENT;
        if let Some((least, before)) = tightest.filter(|(least, _)| ahead > least + ROUNDING_NS * 100) {
            verdict.add(Rule::ClockKeepsPace, || {
                format!("the clock is {} us too far from {before} to {call}", (ahead - least) / 100_000)
            });
        }
        let room = clock - i128::from(call.invoked_ns) * PACE_PERCENT;
        if call.is_write() && tightest.is_none_or(|(least, _)| room < least) {
            tightest = Some((room, call));
        }
    }
}

/// One counter for the whole store: along the log each grant's fence is greater.
fn fences(answered: &[(&Call, &Witness, &Answer)], verdict: &mut Verdict) {
    let mut before: Option<(u64, &Call)> = None;
    for (call, ..) in answered {
        let Some(granted) = call.granted() else { continue };
        if let Some((_, other)) = before.filter(|(fence, _)| granted <= *fence) {
            verdict.add(Rule::FencesGrow, || format!("{call} stands after {other}"));
        }
        before = Some((granted, call));
    }
}
