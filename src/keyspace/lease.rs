//! A lease: its live grant, the grant that ended last, who waits for it, and who may claim what.
//!
//! Model: a lease is free or has one [`Grant`]. A grant ends by its holder (RELEASE), an operator (BREAK) or its
//! deadline; what is remembered of it is [`Last`], so that a late RENEW or RELEASE can be told why, and so that a delay
//! or minimum hold can keep the lease shut.
//!
//! Invariants: a grant's deadline moves later only (RENEW), but for BREAK; a broken grant's deadline never moves later.
//! A grant that was broken ends as broken when its grace runs out, and as released if its holder returns it before.
//! `waiting` is there only while somebody waits or a grant is not confirmed: a lease without pays a word for it.
//!
//! Not promised: any memory of grants before the last.

use std::sync::Arc;

use tenure_cluster::Stamp;
use tenure_cluster::planted::{self, Bug};

use super::queue::{Queue, Waiter};
use super::{Acquire, Attach, LeaseOptions, OpReply, Reason, Standing, TokenHash};

/// A lease.
#[derive(Clone, Debug, Default)]
pub(super) struct Lease {
    pub options: LeaseOptions,
    pub grant: Option<Grant>,
    pub last: Option<Box<Last>>,
    pub waiting: Option<Box<Waiting>>,
}

/// What waiting leaves with a lease.
#[derive(Clone, Debug, Default)]
pub(super) struct Waiting {
    pub queue: Queue,
    /// The live grant came by the wait of this request, and no command of its token was applied since: its client may
    /// not know of it.
    pub unconfirmed: Option<Attach>,
}

/// What a grant is asked with.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub token: TokenHash,
    pub owner: Arc<str>,
    pub ttl_ms: u64,
    pub note: Option<Arc<str>>,
    pub min_hold_ms: Option<u64>,
    pub delay_ms: Option<u64>,
    /// Of a pool: what is asked for besides.
    pub slot: Option<Box<SlotTerms>>,
}

/// What a slot of a pool is asked with besides.
#[derive(Clone, Debug, Default)]
pub(super) struct SlotTerms {
    /// `None`: anonymous.
    pub identity: Option<Arc<str>>,
    /// The caller's wall clock less the cluster's.
    pub clock: Option<i64>,
    /// Less than the pool's minimum was asked for.
    pub ttl_raised: bool,
}

impl Terms {
    pub fn of(ask: Acquire, ttl_ms: u64) -> Self {
        let Acquire { token, owner, note, min_hold_ms, delay_ms, .. } = ask;
        Self { token, owner, ttl_ms, note, min_hold_ms, delay_ms, slot: None }
    }

    /// The identity that a slot is asked for.
    pub fn identity(&self) -> Option<&Arc<str>> {
        self.slot.as_ref()?.identity.as_ref()
    }

    /// Does it ask by itself that the lease be held once per period?
    pub fn asks_min_hold(&self) -> bool {
        self.min_hold_ms.is_some_and(|min_hold_ms| min_hold_ms > 0)
    }
}

/// The live grant.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    pub fence: u64,
    pub owner: Arc<str>,
    pub token: TokenHash,
    pub deadline: Stamp,
    pub granted_at: Stamp,
    /// Of the grant or the last RENEW.
    pub renewed_at: Stamp,
    /// The leader's wall clock at the grant; informational.
    pub granted_wall_ms: u64,
    /// In force for this grant: ACQUIRE's, else the key's.
    pub min_hold_ms: u64,
    /// In force for this grant: ACQUIRE's, else the key's.
    pub delay_ms: u64,
    pub note: Option<Arc<str>>,
    /// The operator's text, in the grace of a BREAK.
    pub broken: Option<Arc<str>>,
}

/// The grant that ended last.
#[derive(Clone, Debug)]
pub(super) struct Last {
    pub fence: u64,
    pub owner: Arc<str>,
    pub token: TokenHash,
    pub end: End,
    /// When it ended; an expiry: its deadline.
    pub at: Stamp,
    /// From when the lease may be acquired again.
    pub opens_at: Stamp,
}

/// How a grant ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    Released,
    Expired,
    /// With the operator's text.
    Broken(Arc<str>),
    /// Its client was gone before it could be told.
    Undelivered,
    /// Another token of the identity took it over. Of a pool's slot only.
    TakenOver,
}

impl End {
    pub fn reason(&self) -> Reason {
        match self {
            Self::Released => Reason::Released,
            Self::Expired => Reason::Expired,
            Self::Broken(_) => Reason::Broken,
            Self::Undelivered => Reason::Undelivered,
            Self::TakenOver => Reason::TakenOver,
        }
    }

    pub fn detail(&self) -> Option<Arc<str>> {
        match self {
            Self::Broken(text) => Some(Arc::clone(text)),
            Self::Released | Self::Expired | Self::Undelivered | Self::TakenOver => None,
        }
    }
}

/// What a caller says of the grant it means. What it leaves out fits every grant.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Claim {
    pub token: Option<TokenHash>,
    pub fence: Option<u64>,
}

impl Claim {
    pub fn fits(&self, token: TokenHash, fence: u64) -> bool {
        self.token.is_none_or(|own| own == token) && self.fence.is_none_or(|own| own == fence)
    }

    fn is_empty(&self) -> bool {
        self.token.is_none() && self.fence.is_none()
    }
}

impl Grant {
    /// Remaining time, at least 1: a grant that has none left is not live.
    pub fn remaining_ms(&self, now: Stamp) -> u64 {
        self.deadline.ms_since(now).max(1)
    }

    /// The extras of an answer that speaks of this grant.
    pub fn told(&self, now: Stamp) -> OpReply {
        OpReply {
            fence: Some(self.fence),
            ttl_ms: Some(self.remaining_ms(now)),
            owner: Some(Arc::clone(&self.owner)),
            detail: self.broken.clone(),
            ..OpReply::default()
        }
    }
}

impl Lease {
    /// The live grant, if the claim fits it.
    pub fn claimed(&self, claim: &Claim) -> Option<&Grant> {
        self.grant.as_ref().filter(|grant| claim.fits(grant.token, grant.fence))
    }

    /// HELD and CHECK: does the claim fit the live grant?
    pub fn holds(&self, claim: &Claim, now: Stamp) -> OpReply {
        match self.claimed(claim) {
            Some(grant) => OpReply { result: true, ..grant.told(now) },
            None => self.lost(claim, now),
        }
    }

    /// HELD: as [`Lease::holds`], or the place of a token that waits.
    pub fn standing(&self, claim: &Claim, now: Stamp) -> Standing {
        let queued = claim.token.and_then(|token| self.queued(token, now));
        queued.unwrap_or_else(|| self.holds(claim, now).into())
    }

    /// When a free lease that is shut (delay, minimum hold) may be acquired again. May lie in the past.
    pub fn opens_at(&self) -> Option<Stamp> {
        if self.grant.is_some() { None } else { self.last.as_ref().map(|last| last.opens_at) }
    }

    /// When this lease can be acquired if nothing but time happens; in the past: now.
    pub fn acquirable_at(&self) -> Stamp {
        match &self.grant {
            Some(grant) => grant.deadline.plus_ms(grant.delay_ms),
            None => self.opens_at().unwrap_or_default(),
        }
    }

    /// Why the lease is shut at `now` though free.
    pub fn shut(&self, now: Stamp) -> Option<Reason> {
        let last = self.last.as_ref().filter(|last| self.grant.is_none() && last.opens_at > now)?;
        Some(if last.end == End::Released { Reason::MinHold } else { Reason::Delay })
    }

    /// A refusal, with what may be known of the live grant. BREAK's text is told only where it is the reason.
    pub fn refused(&self, reason: Reason, now: Stamp) -> OpReply {
        let told = self.grant.as_ref().map(|grant| grant.told(now)).unwrap_or_default();
        OpReply { reason: Some(reason), detail: None, ..told }
    }

    /// The refusal of a claim that does not fit the live grant: how that grant ended, if it is the last that did.
    pub fn lost(&self, claim: &Claim, now: Stamp) -> OpReply {
        let last = self.last.as_ref().filter(|last| !claim.is_empty() && claim.fits(last.token, last.fence));
        match last.map(|last| &last.end) {
            Some(end @ (End::Expired | End::Broken(_) | End::Undelivered | End::TakenOver)) => {
                OpReply { detail: end.detail(), ..self.refused(end.reason(), now) }
            }
            Some(End::Released) | None => self.refused(Reason::NotHeld, now),
        }
    }

    /// Ends the grant if its deadline has passed: as broken if an operator broke it, else as expired.
    pub fn expire(&mut self, now: Stamp) {
        if let Some(grant) = self.grant.take_if(|grant| grant.deadline <= now) {
            let end = grant.broken.clone().map_or(End::Expired, End::Broken);
            let at = grant.deadline;
            self.last = Some(Box::new(grant.ended(end, at)));
            self.confirm();
        }
    }

    /// Ends the grant at `now`.
    pub fn end(&mut self, end: End, now: Stamp) {
        if let Some(grant) = self.grant.take() {
            self.last = Some(Box::new(grant.ended(end, now)));
            self.confirm();
        }
    }

    /// Those who wait, if any.
    pub fn queue(&self) -> Option<&Queue> {
        self.waiting.as_ref().map(|waiting| &waiting.queue).filter(|queue| !queue.is_empty())
    }

    /// Waiters, kept places included.
    pub fn waiters(&self) -> usize {
        self.queue().map_or(0, Queue::len)
    }

    /// The token's waiter.
    pub fn waiter(&self, token: TokenHash) -> Option<&Arc<Waiter>> {
        self.queue()?.of_token(token)
    }

    /// The refusal of a token that stands in line.
    pub fn queued(&self, token: TokenHash, now: Stamp) -> Option<Standing> {
        let queue = self.queue()?;
        let waiter = queue.of_token(token)?;
        Some(Standing { op: self.refused(Reason::Queued, now), place: Some(queue.place(waiter.ticket)), slot: None })
    }

    /// The request that the live grant's client may not know of.
    pub fn unconfirmed(&self) -> Option<Attach> {
        self.waiting.as_ref().and_then(|waiting| waiting.unconfirmed)
    }

    /// The live grant, if it is this token's by the wait of this request, and not confirmed.
    pub fn undelivered(&self, token: TokenHash, attach: Attach) -> Option<&Grant> {
        self.grant.as_ref().filter(|grant| grant.token == token && self.unconfirmed() == Some(attach))
    }

    pub fn edit_queue<R>(&mut self, change: impl FnOnce(&mut Queue) -> R) -> R {
        self.edit_waiting(|waiting| change(&mut waiting.queue))
    }

    /// The holder knows of its grant, or there is none.
    pub fn confirm(&mut self) {
        if self.unconfirmed().is_some() && !planted::has(Bug::UndeliveredAfterHeard) {
            self.edit_waiting(|waiting| waiting.unconfirmed = None);
        }
    }

    pub fn edit_waiting<R>(&mut self, change: impl FnOnce(&mut Waiting) -> R) -> R {
        let mut waiting = self.waiting.take().unwrap_or_default();
        let result = change(&mut waiting);
        self.waiting = Some(waiting).filter(|waiting| !waiting.queue.is_empty() || waiting.unconfirmed.is_some());
        result
    }
}

impl Grant {
    /// What is remembered of it. The lease stays shut for the delay after an expiry or BREAK, and until the minimum
    /// age after a RELEASE; a grant that was not delivered leaves nothing behind.
    fn ended(self, end: End, at: Stamp) -> Last {
        let opens_at = match end {
            End::Released => self.granted_at.plus_ms(self.min_hold_ms),
            End::Expired | End::Broken(_) => at.plus_ms(self.delay_ms),
            End::Undelivered | End::TakenOver => at,
        };
        Last { fence: self.fence, owner: self.owner, token: self.token, end, at, opens_at }
    }
}
