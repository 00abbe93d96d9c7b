//! One key as its clients see it: what each answer says of the state, and the states that may follow.
//!
//! Time only permits an end, never forces one: the cluster clock may stand still. A grant can have ended when the latest
//! instant at which the call may act is not before the earliest instant at which its deadline can have come: lifetimes
//! count from the invocation, on a clock that is at most rho fast. Once its end was seen there is no way back.
//!
//! One that waited in line is granted at some instant of its call, so its lifetime counts from the invocation at the earliest.
//! If its caller may have gone meanwhile it may be returned at any time, until its token is heard of.
//!
//! A grant that nobody was told of has a fence that is not known: above the last one, and fixed when first seen.

use super::history::{Answer, Call, Live, Operation, Sight};

/// `1 + rho`, in percent, as in the rule on the clock's pace; and what whole milliseconds hide at either end.
const PACE_PERCENT: u128 = 101;
const ROUNDING_NS: u64 = 2_000_000;

/// A call that acts.
pub(super) struct Step<'a> {
    pub call: &'a Call,
    /// Whatever it was answered was not to this try.
    pub in_doubt: bool,
    /// At the latest.
    pub until_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Grant {
    token: u64,
    /// `None`: above `Spec::fence_floor`.
    fence: Option<u64>,
    /// The earliest instant at which it can have ended.
    end_ns: u64,
    /// Nobody may be there for it: it can go back at any time.
    returnable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum End {
    Released,
    Expired,
    Broken,
}

/// A key's own lifetime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Lifetime {
    #[default]
    Endless,
    /// Over at this instant at the earliest.
    Until(u64),
    /// Seen to be over.
    Over,
}

/// The state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Spec {
    exists: bool,
    /// Every grant so far had at most this fence, but for one whose fence is not known.
    fence_floor: u64,
    held: Option<Grant>,
    /// The grant that ended last.
    last: Option<(Grant, End)>,
    lifetime: Lifetime,
}

/// The earliest instant at which `ttl_ms` can be over that counts from a call invoked then.
fn earliest_end(invoked_ns: u64, ttl_ms: u64) -> u64 {
    let ns = (u128::from(ttl_ms) * 1_000_000).saturating_sub(u128::from(ROUNDING_NS)) * 100 / PACE_PERCENT;
    invoked_ns.saturating_add(u64::try_from(ns).unwrap_or(u64::MAX))
}

impl Spec {
    /// Every state that may follow. None: the answer cannot be.
    pub(super) fn after(&self, step: &Step<'_>) -> Vec<Self> {
        let answer = step.call.answered().map(|(_, answer)| answer).filter(|_| !step.in_doubt);
        if answer.is_some() && step.call.finds_no_key() {
            return self.absent(step).into_iter().collect();
        }
        match (answer, step.call.operation) {
            (
                None | Some(Answer::Granted(_)),
                Operation::Acquire { token, ttl_ms } | Operation::Wait { token, ttl_ms, .. },
            ) => self.acquired(step, token, ttl_ms, answer),
            // Its end by the key's is told whoever holds; all else tells nothing of the state.
            (Some(Answer::Refused { reason, live: None, .. }), Operation::Wait { .. }) if reason != "token_used" => {
                vec![self.clone()]
            }
            (
                Some(Answer::Refused { reason, live, yours }),
                Operation::Acquire { token, .. } | Operation::Wait { token, .. },
            ) => self.acquire_refused(step, token, reason, *live, *yours).into_iter().collect(),
            (Some(Answer::Seen(None)), Operation::Get) => self.absent(step).into_iter().collect(),
            (Some(Answer::Seen(Some(sight))), Operation::Get) => self.seen(step, sight).into_iter().collect(),
            (Some(Answer::Granted(live)), Operation::Renew { token, ttl_ms, .. }) => {
                self.renewed(step, token, ttl_ms, *live).into_iter().collect()
            }
            (None | Some(Answer::Done), _) => self.done(step).into_iter().collect(),
            (Some(Answer::Refused { reason, live, .. }), _) => self.refused(step, reason, *live).into_iter().collect(),
            // A RENEW that must not be true, and answers that do not belong to their question.
            _ => Vec::new(),
        }
    }

    fn is_over(&self, until_ns: u64) -> bool {
        match self.lifetime {
            Lifetime::Endless => false,
            Lifetime::Until(end_ns) => end_ns <= until_ns,
            Lifetime::Over => true,
        }
    }

    fn end(&self, end: End) -> Self {
        let last = self.held.map(|grant| (grant, end)).or(self.last);
        Self { held: None, last, ..self.clone() }
    }

    fn gone(&self) -> Self {
        Self { fence_floor: self.fence_floor, ..Self::default() }
    }

    /// Nobody holds, if that can be.
    fn free(&self, step: &Step<'_>) -> Option<Self> {
        match self.held {
            None => Some(self.clone()),
            Some(grant) => (grant.returnable || grant.end_ns <= step.until_ns).then(|| self.end(End::Expired)),
        }
    }

    /// There is no such key, if that can be.
    fn absent(&self, step: &Step<'_>) -> Option<Self> {
        if !self.exists {
            return Some(self.clone());
        }
        self.free(step).filter(|free| free.is_over(step.until_ns)).map(|_| self.gone())
    }

    /// A grant of this fence is live, if that can be.
    fn held_by(&self, fence: u64) -> Option<Self> {
        let grant = self.held?;
        self.with_fence(grant, fence).map(|(grant, fence_floor)| Self {
            held: Some(grant),
            fence_floor,
            ..self.clone()
        })
    }

    fn with_fence(&self, grant: Grant, fence: u64) -> Option<(Grant, u64)> {
        match grant.fence {
            Some(known) => (known == fence).then_some((grant, self.fence_floor)),
            None => (fence > self.fence_floor).then_some((Grant { fence: Some(fence), ..grant }, fence)),
        }
    }

    fn acquired(&self, step: &Step<'_>, token: u64, ttl_ms: u64, answer: Option<&Answer>) -> Vec<Self> {
        let fence = if let Some(Answer::Granted(live)) = answer { Some(live.fence) } else { None };
        let Some(free) = self.free(step) else { return Vec::new() };
        // A grant whose fence nobody saw took one too.
        let hidden = free.last.is_some_and(|(grant, _)| grant.fence.is_none()) && self.held.is_some();
        let fence_floor = self.fence_floor + u64::from(hidden);
        if fence.is_some_and(|fence| fence <= fence_floor) {
            return Vec::new();
        }
        let (end_ns, returnable) = (earliest_end(step.call.invoked_ns, ttl_ms), step.in_doubt && step.call.is_wait());
        let held = Some(Grant { token, fence, end_ns, returnable });
        let fence_floor = fence.unwrap_or(fence_floor);
        let stayed = Self { exists: true, held, fence_floor, ..free.clone() };
        let made = Self { held, fence_floor, exists: true, ..Self::default() };
        match free.lifetime {
            Lifetime::Over => vec![made],
            Lifetime::Until(_) if free.is_over(step.until_ns) => vec![made, stayed],
            _ => vec![stayed],
        }
    }

    fn acquire_refused(
        &self,
        step: &Step<'_>,
        token: u64,
        reason: &str,
        live: Option<Live>,
        yours: bool,
    ) -> Option<Self> {
        let seen = match live {
            Some(live) => self.held_by(live.fence)?,
            None if matches!(reason, "held" | "key_expired") => self.held.map(|_| self.clone())?,
            None => self.clone(),
        };
        // Whoever was superseded may see the grant of its own token.
        let may_be_its = yours || !step.call.is_wait();
        if live.is_some() && may_be_its && seen.held.is_some_and(|grant| (grant.token == token) != yours) {
            return None;
        }
        if reason == "key_expired" { seen.seen_over(step) } else { Some(seen) }
    }

    /// A held key's lifetime is over, if that can be.
    fn seen_over(&self, step: &Step<'_>) -> Option<Self> {
        let can_be = self.held.is_some() && self.is_over(step.until_ns);
        can_be.then(|| Self { lifetime: Lifetime::Over, ..self.clone() })
    }

    fn renewed(&self, step: &Step<'_>, token: u64, ttl_ms: u64, live: Live) -> Option<Self> {
        let seen = self.held_by(live.fence).filter(|seen| seen.lifetime != Lifetime::Over)?;
        let grant = seen.held.filter(|grant| grant.token == token)?;
        let end_ns = grant.end_ns.max(earliest_end(step.call.invoked_ns, ttl_ms));
        Some(Self { held: Some(Grant { end_ns, returnable: false, ..grant }), ..seen })
    }

    /// RELEASE, BREAK, DEL, EXPIRE or PERSIST was true.
    fn done(&self, step: &Step<'_>) -> Option<Self> {
        let changed = match step.call.operation {
            Operation::Release { token, fence } => self
                .held_by(fence)
                .filter(|seen| seen.held.is_some_and(|grant| grant.token == token))?
                .end(End::Released),
            Operation::Break => self.held.map(|_| self.end(End::Broken))?,
            Operation::Delete => self.exists.then(|| self.gone())?,
            Operation::Expire { ttl_ms } => {
                let lifetime = Lifetime::Until(earliest_end(step.call.invoked_ns, ttl_ms));
                return self.may_be_set().then(|| Self { lifetime, ..self.clone() });
            }
            Operation::Persist => {
                return self.may_be_set().then(|| Self { lifetime: Lifetime::Endless, ..self.clone() });
            }
            _ => return None,
        };
        // What was seen to be over goes with its grant.
        Some(if changed.lifetime == Lifetime::Over { changed.gone() } else { changed })
    }

    fn may_be_set(&self) -> bool {
        self.exists && self.lifetime != Lifetime::Over
    }

    fn refused(&self, step: &Step<'_>, reason: &str, live: Option<Live>) -> Option<Self> {
        let seen = live.map_or_else(|| Some(self.clone()), |live| self.held_by(live.fence))?;
        let mine = |token, fence| {
            seen.held.is_some_and(|grant| grant.token == token && grant.fence.is_none_or(|known| known == fence))
        };
        match (step.call.operation, reason) {
            (_, "ttl_not_positive") => Some(seen),
            (Operation::Renew { token, fence, .. }, "key_expired") => {
                seen.seen_over(step).filter(|_| mine(token, fence))
            }
            (_, "key_expired") => seen.seen_over(step),
            (Operation::Renew { token, fence, .. } | Operation::Release { token, fence }, _) => {
                if mine(token, fence) {
                    seen.free(step)
                } else {
                    Some(seen)
                }
            }
            (Operation::Break, _) => seen.free(step),
            _ => Some(seen),
        }
    }

    fn seen(&self, step: &Step<'_>, sight: &Sight) -> Option<Self> {
        if !self.exists {
            return None;
        }
        let Some(live) = sight.held else { return self.seen_free(step, sight.last.as_ref()) };
        self.held_by(live.fence)
    }

    fn seen_free(&self, step: &Step<'_>, last: Option<&(u64, String)>) -> Option<Self> {
        let free = self.free(step).filter(|free| free.lifetime != Lifetime::Over)?;
        let ((grant, end), (fence, reason)) = (free.last?, last?);
        let right = match end {
            End::Released => reason == "released",
            End::Expired => reason == "expired" || (reason == "undelivered" && grant.returnable),
            End::Broken => reason == "broken",
        };
        let (grant, fence_floor) = free.with_fence(grant, *fence).filter(|_| right)?;
        Some(Self { last: Some((grant, end)), fence_floor, ..free })
    }
}
