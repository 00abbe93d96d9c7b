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
        if call.is_doubtful() {
            key.doubts.add(call, floor, clock_ms);
        }
        if call.answered().is_some() {
            key.calls.push(call);
        }
    }
    for key in keys.values_mut() {
        key.calls.sort_by_key(|call| (position(call), !call.is_write()));
        let mut state = State::new(&key.doubts, verdict);
        for call in &key.calls {
            tell(&mut state, call);
        }
    }
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
        (Operation::Acquire { token, ttl_ms }, Answer::Granted(live)) => state.granted(at, token, ttl_ms, *live),
        (Operation::Acquire { token, .. }, Answer::Refused { reason, live, yours }) => {
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
