//! Calls of one key whose effect is unknown, and from which position on each may have acted: later than everything that
//! had been answered before it was sent. For each kind the earliest such position is all that matters.

use std::collections::BTreeMap;

use super::history::{Call, Operation, Position};

/// What may have happened to one key without anybody having been told.
#[derive(Default)]
pub(super) struct Doubts {
    acquires: Floors,
    /// Of waiting calls: whose grant may go back without anybody being told, since its caller had gone.
    returns: Floors,
    renewals: Claims,
    releases: Claims,
    over_their_heads: Option<Position>,
    lifetimes: Lifetimes,
}

/// Unknown EXPIREs and PERSISTs.
#[derive(Default)]
struct Lifetimes {
    /// The earliest floor of any.
    any: Option<Position>,
    /// Of each EXPIRE: its floor, and the earliest end it may have set.
    ends: Vec<(Position, u64)>,
}

/// The earliest floor of any token, and of each.
#[derive(Default)]
struct Floors {
    any: Option<Position>,
    of: BTreeMap<u64, Position>,
}

impl Floors {
    fn add(&mut self, of: u64, floor: Position) {
        least(&mut self.any, floor);
        let known = self.of.entry(of).or_insert(floor);
        *known = floor.min(*known);
    }

    /// May one (`None`: any) have acted at or before `at`?
    fn may_have(&self, of: Option<u64>, at: Position) -> bool {
        let floor = of.map_or(self.any, |of| self.of.get(&of).copied());
        floor.is_some_and(|floor| floor < at)
    }
}

/// The earliest floor of what names a grant by its fence and its token, in this order.
#[derive(Default)]
struct Claims(BTreeMap<(u64, u64), Position>);

impl Claims {
    fn add(&mut self, (fence, token): (u64, u64), floor: Position) {
        let known = self.0.entry((fence, token)).or_insert(floor);
        *known = floor.min(*known);
    }

    /// May one of this grant have acted at or before `at`? Of any token where it is not known.
    fn may_have(&self, (fence, token): (u64, Option<u64>), at: Position) -> bool {
        let (from, to) = token.map_or((0, u64::MAX), |token| (token, token));
        self.0.range((fence, from)..=(fence, to)).any(|(_, floor)| *floor < at)
    }
}

fn least(known: &mut Option<Position>, floor: Position) {
    *known = Some(known.map_or(floor, |known| known.min(floor)));
}

impl Doubts {
    /// Takes in a doubtful call that was sent when everything up to `floor` had been answered, and the clock had been at
    /// `clock_ms` in the log.
    pub(super) fn add(&mut self, call: &Call, floor: Position, clock_ms: u64) {
        match call.operation {
            Operation::Acquire { token, .. } => self.acquires.add(token, floor),
            Operation::Wait { token, .. } => {
                self.acquires.add(token, floor);
                self.returns.add(token, floor);
            }
            Operation::Renew { token, fence, .. } => self.renewals.add((fence, token), floor),
            Operation::Release { token, fence } => self.releases.add((fence, token), floor),
            Operation::Break | Operation::Delete => least(&mut self.over_their_heads, floor),
            Operation::Expire { ttl_ms } => {
                least(&mut self.lifetimes.any, floor);
                self.lifetimes.ends.push((floor, clock_ms.saturating_add(ttl_ms)));
            }
            Operation::Persist => least(&mut self.lifetimes.any, floor),
            Operation::Trespass { .. } | Operation::Get => {}
        }
    }

    /// An unknown EXPIRE or PERSIST may have set the key's lifetime by then.
    pub(super) fn lifetime_changed(&self, at: Position) -> bool {
        self.lifetimes.any.is_some_and(|floor| floor < at)
    }

    /// An unknown EXPIRE may have set a lifetime that is over by then.
    pub(super) fn lifetime_over(&self, at: Position, clock_ms: u64) -> bool {
        self.lifetimes.ends.iter().any(|(floor, ends_ms)| *floor < at && *ends_ms <= clock_ms)
    }

    /// An unknown ACQUIRE (of this token; `None`: of any) may have been granted by then.
    pub(super) fn granted(&self, token: Option<u64>, at: Position) -> bool {
        self.acquires.may_have(token, at)
    }

    /// An unknown RENEW of this grant (its fence, and its token if known) may have moved its deadline by then.
    pub(super) fn renewed(&self, grant: (u64, Option<u64>), at: Position) -> bool {
        self.renewals.may_have(grant, at)
    }

    /// An unknown RELEASE of this grant may have ended it by then.
    pub(super) fn released(&self, grant: (u64, Option<u64>), at: Position) -> bool {
        self.releases.may_have(grant, at)
    }

    /// An unknown BREAK or DEL may have ended whatever was there by then.
    pub(super) fn ended_from_outside(&self, at: Position) -> bool {
        self.over_their_heads.is_some_and(|floor| floor < at)
    }

    /// A grant of this token, of which it had not heard, may have been returned by then.
    pub(super) fn returned(&self, token: Option<u64>, at: Position) -> bool {
        self.returns.may_have(token, at)
    }

    /// This grant may have ended before its deadline by then.
    pub(super) fn ended(&self, grant: (u64, Option<u64>), at: Position) -> bool {
        self.released(grant, at) || self.ended_from_outside(at)
    }
}
