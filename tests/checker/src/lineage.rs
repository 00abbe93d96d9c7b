//! Each key's calls in the order of the log, told to its [`State`].

use std::collections::BTreeMap;

use super::Verdict;
use super::doubt::Doubts;
use super::history::{Answer, Call, Operation, Position};
use super::state::{At, State};

#[derive(Default)]
struct Key<'a> {
    doubts: Doubts,
    calls: Vec<&'a Call>,
}

pub(super) fn check(history: &[Call], verdict: &mut Verdict) {
    let mut keys: BTreeMap<&str, Key<'_>> = BTreeMap::new();
    for (call, floor, clock_ms) in with_floors(history) {
        let key = keys.entry(&call.key).or_default();
        // A node asks for a waiting caller again when it has lost sight of its place: what was asked first may have had its
        // grant, which came and went unseen.
        if call.is_doubtful() || call.is_wait() {
            key.doubts.add(call, floor, clock_ms);
        }
        if call.answered().is_some() {
            key.calls.push(call);
        }
    }
    for key in keys.values_mut() {
        key.calls.sort_by_key(|call| (position(call), !call.is_write()));
        let mut state = State::new(&key.doubts, verdict);
        for together in key.calls.chunk_by(|one, other| position(one) == position(other)) {
            if together.iter().any(|call| call.is_wait() && call.granted().is_some()) {
                let (calls, perhaps_broken) = in_turn(&state, together);
                let (writes, reads) = calls.split_at(calls.partition_point(|call| call.is_write()));
                writes.iter().for_each(|call| tell(&mut state, call));
                if perhaps_broken {
                    state.perhaps_broken();
                }
                // They see what both came to.
                reads.iter().for_each(|call| tell(&mut state, call));
            } else {
                together.iter().for_each(|call| tell(&mut state, call));
            }
        }
    }
}

/// Calls of one position, of which some waited: what made the lease free comes before the grant that it made, and after
/// one that time made. Time goes first in an entry; where nobody can tell which of the two a BREAK was, the grant may be
/// the one that it ended.
fn in_turn<'a>(state: &State<'_>, together: &[&'a Call]) -> (Vec<&'a Call>, bool) {
    let mut grants: Vec<u64> = together.iter().filter_map(|call| call.granted()).collect();
    grants.sort_unstable();
    let mut perhaps_broken = false;
    let mut before_break = |call: &Call| {
        let Some((witness, _)) = call.answered() else { return 0 };
        let at = At { position: witness.position, clock_ms: witness.clock_ms, call };
        let by_time = witness.position.ordinal == 0 && !state.holds(at);
        // What it broke was there before, or is the first of two.
        if grants.len() > 1 || (by_time && !state.may_hold(at)) {
            return grants.first().copied().unwrap_or_default();
        }
        perhaps_broken |= by_time;
        0
    };
    // The fence of the grant that a call follows at once.
    let mut turn = |call: &Call| match (call.operation, call.answered().map(|(_, answer)| answer)) {
        (Operation::Release { fence, .. }, Some(Answer::Done)) => (false, fence, 1),
        (Operation::Break, Some(Answer::Done)) => (false, before_break(call), 1),
        _ => (!call.is_write(), call.granted().unwrap_or(u64::MAX), u8::from(call.granted().is_none())),
    };
    let mut calls = together.to_vec();
    calls.sort_by_cached_key(|call| turn(call));
    (calls, perhaps_broken)
}

fn position(call: &Call) -> Position {
    call.answered().map_or(Position::default(), |(witness, _)| witness.position)
}

/// Every call, with the furthest position that had been answered before it was invoked, and the latest clock of a write
/// that had (a read's may be ahead of the log).
fn with_floors(history: &[Call]) -> Vec<(&Call, Position, u64)> {
    let mut by_return: Vec<&Call> = history.iter().filter(|call| call.answered().is_some()).collect();
    by_return.sort_by_key(|call| call.returned_ns);
    let mut by_invocation: Vec<&Call> = history.iter().collect();
    by_invocation.sort_by_key(|call| call.invoked_ns);
    let mut returned = by_return.into_iter().peekable();
    let (mut floor, mut clock_ms) = (Position::default(), 0);
    let mut found = Vec::with_capacity(history.len());
    for call in by_invocation {
        while let Some(before) = returned.next_if(|before| before.returned_ns < call.invoked_ns) {
            floor = floor.max(position(before));
            let written = before.answered().filter(|_| before.is_write());
            clock_ms = clock_ms.max(written.map_or(0, |(witness, _)| witness.clock_ms));
        }
        found.push((call, floor, clock_ms));
    }
    found
}

fn tell(state: &mut State<'_>, call: &Call) {
    let Some((witness, answer)) = call.answered() else { return };
    let at = At { position: witness.position, clock_ms: witness.clock_ms, call };
    if call.finds_no_key() {
        state.seen_absent(at);
    }
    match (call.operation, answer) {
        (Operation::Acquire { token, ttl_ms } | Operation::Wait { token, ttl_ms, .. }, Answer::Granted(live)) => {
            state.granted(at, token, ttl_ms, *live)
        }
        (Operation::Acquire { token, .. } | Operation::Wait { token, .. }, Answer::Refused { reason, live, yours }) => {
            state.acquire_refused(at, token, reason, *live, *yours);
        }
        (Operation::Renew { token, ttl_ms, .. }, Answer::Granted(live)) => state.renewed(at, token, ttl_ms, *live),
        (
            Operation::Renew { token, fence, .. } | Operation::Release { token, fence },
            Answer::Refused { reason, .. },
        ) => {
            state.denied(at, token, fence, reason);
        }
        (Operation::Trespass { .. }, Answer::Granted(live)) => state.trespassed(at, *live),
        (Operation::Trespass { .. }, Answer::Refused { live: Some(live), .. }) => state.seen_held(at, None, *live),
        (Operation::Expire { ttl_ms }, Answer::Done) => state.lifetime_set(at, Some(ttl_ms)),
        (Operation::Persist, Answer::Done) => state.lifetime_set(at, None),
        (Operation::Expire { .. } | Operation::Persist, Answer::Refused { reason, .. }) if reason == "key_expired" => {
            state.key_expired(at);
        }
        (Operation::Release { token, fence }, Answer::Done) => state.released(at, token, fence),
        (Operation::Break, Answer::Done) => state.broken(at),
        (Operation::Delete, Answer::Done) => state.deleted(),
        (Operation::Get, Answer::Seen(sight)) => state.seen(at, sight.as_ref()),
        // A BREAK or DEL of nothing; anything else does not belong together.
        _ => {}
    }
}
