//! Calls of one key whose effect is unknown, and from which position on each may have acted: later than everything that
//! had been answered before it was sent. For each kind the earliest such position is all that matters.

use std::collections::BTreeMap;

use super::history::{Call, Operation, Position};

/// What may have happened to one key without anybody having been told.
#[derive(Default)]
pub(super) struct Doubts {
    acquires: Floors,
    renewals: Floors,
    releases: Floors,
    over_their_heads: Option<Position>,
}

/// The earliest floor of any token, and of each.
#[derive(Default)]
struct Floors {
    any: Option<Position>,
    by_token: BTreeMap<u64, Position>,
}

impl Floors {
    fn add(&mut self, token: u64, floor: Position) {
        least(&mut self.any, floor);
        let known = self.by_token.entry(token).or_insert(floor);
        *known = floor.min(*known);
    }

    /// May one have acted at or before `at`? Of any token where it is not known.
    fn may_have(&self, token: Option<u64>, at: Position) -> bool {
        let floor = token.map_or(self.any, |token| self.by_token.get(&token).copied());
        floor.is_some_and(|floor| floor < at)
    }
}

fn least(known: &mut Option<Position>, floor: Position) {
    *known = Some(known.map_or(floor, |known| known.min(floor)));
}

impl Doubts {
    /// Takes in a doubtful call that was sent when everything up to `floor` had been answered.
    pub(super) fn add(&mut self, call: &Call, floor: Position) {
        match call.operation {
            Operation::Acquire { token, .. } => self.acquires.add(token, floor),
            Operation::Renew { token, .. } => self.renewals.add(token, floor),
            Operation::Release { token, .. } => self.releases.add(token, floor),
            Operation::Break | Operation::Delete => least(&mut self.over_their_heads, floor),
            Operation::Get => {}
        }
    }

    /// An unknown ACQUIRE (of this token; `None`: of any) may have been granted by then.
    pub(super) fn granted(&self, token: Option<u64>, at: Position) -> bool {
        self.acquires.may_have(token, at)
    }

    /// An unknown RENEW of this token may have moved its deadline by then.
    pub(super) fn renewed(&self, token: Option<u64>, at: Position) -> bool {
        self.renewals.may_have(token, at)
    }

    /// An unknown RELEASE of this token may have ended its grant by then.
    pub(super) fn released(&self, token: Option<u64>, at: Position) -> bool {
        self.releases.may_have(token, at)
    }

    /// An unknown BREAK or DEL may have ended whatever was there by then.
    pub(super) fn ended_from_outside(&self, at: Position) -> bool {
        self.over_their_heads.is_some_and(|floor| floor < at)
    }

    /// The token's grant may have ended before its deadline by then.
    pub(super) fn ended(&self, token: Option<u64>, at: Position) -> bool {
        self.released(token, at) || self.ended_from_outside(at)
    }
}
