//! A key's record: what the table keeps per key, whatever its type, and what time alone makes of it.
//!
//! Model: a record changes in two ways only. A command changes it; and time does, which [`Record::pass`] does and
//! [`Record::seen`] answers for any stamp without touching the record. Every reader and every command looks at a record
//! through `seen`, so that what has ended has ended, whether a timer has fired already or stands in a backlog. What
//! follows when a lease gets free while somebody waits is no part of it: a grant needs a fence, so it is made where
//! commands are applied (`waiting`), at the time at which they are.
//!
//! What time does, in this order: the grant whose deadline passed ends; waiters whose wait is over, or whose place was
//! kept long enough, leave; then, if the key's lifetime is over, so do all others, held or not; and the key goes if it
//! is free.
//!
//! Invariants:
//! - [`Record::timer`] is a function of the record. It is the earliest stamp at which `seen` differs in the grant, in
//!   who waits or in the existence of the key, or at which the lease can be handed on: after it nothing is outstanding
//!   that cleaning would have to do.
//! - Nothing ends a grant early: the key's own lifetime is looked at only once the key is free.
//! - `seen(a)` then `seen(b)` is `seen(b)`, for `a <= b`.

use std::borrow::Cow;
use std::sync::Arc;

use tenure_cluster::planted::{self, Bug};
use tenure_cluster::{Position, Stamp};

use super::lease::{End, Lease};
use super::pool::{Ended, Pool};
use super::queue::{Queue, Waiter};
use super::{Refusal, TokenHash};

/// A key made by ACQUIRE `create` goes this long after it became acquirable: a delay or minimum hold is kept to its end.
pub(super) const IDLE_MS: u64 = 24 * 60 * 60 * 1000;

/// When time next has work to do on a key; for equal stamps the earlier grant (0: never granted) comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Timer {
    pub stamp: Stamp,
    fence: u64,
}

/// What the table keeps per key.
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// Position of the last change: index and ordinal. Beside the flag they take no room of their own.
    index: u64,
    ordinal: u32,
    /// Made by ACQUIRE `create`, and not made to stay by PERSIST.
    pub auto_created: bool,
    /// End of the key's lifetime, set by EXPIRE.
    pub ends: Option<Stamp>,
    /// What the key is.
    pub kind: Kind,
}

/// The types of keys.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    Lease(Lease),
    Pool(Box<Pool>),
}

/// What time did to a record.
#[derive(Debug)]
pub(super) struct Passed {
    /// The key goes.
    pub is_gone: bool,
    /// Grants of a pool's slots that ended.
    pub ended: Vec<Ended>,
    /// How many slots of a pool changed.
    pub slots: usize,
    /// Waiters whose time was over.
    pub left: Vec<Arc<Waiter>>,
    /// Waiters that the end of the key's lifetime took along.
    pub outlived: Vec<Arc<Waiter>>,
}

impl Record {
    /// A free lease, changed last by its creation.
    pub fn of_lease(version: Position, auto_created: bool, lease: Lease) -> Self {
        let Position { index, ordinal } = version;
        Self { index, ordinal, auto_created, ends: None, kind: Kind::Lease(lease) }
    }

    /// A pool of which no slot was given, changed last by its creation.
    pub fn of_pool(version: Position, pool: Pool) -> Self {
        let Position { index, ordinal } = version;
        Self { index, ordinal, auto_created: false, ends: None, kind: Kind::Pool(Box::new(pool)) }
    }

    /// Position of the last change.
    pub fn version(&self) -> Position {
        Position { index: self.index, ordinal: self.ordinal }
    }

    /// Marks a change.
    pub fn mark(&mut self, version: Position) {
        (self.index, self.ordinal) = (version.index, version.ordinal);
    }

    /// The lease.
    ///
    /// # Errors
    /// [`Refusal::WrongType`] if the key is of another type.
    pub fn lease(&self) -> Result<&Lease, Refusal> {
        match &self.kind {
            Kind::Lease(lease) => Ok(lease),
            Kind::Pool(_) => Err(Refusal::WrongType),
        }
    }

    /// The pool.
    ///
    /// # Errors
    /// [`Refusal::WrongType`] if the key is of another type.
    pub fn pool(&self) -> Result<&Pool, Refusal> {
        match &self.kind {
            Kind::Pool(pool) => Ok(pool),
            Kind::Lease(_) => Err(Refusal::WrongType),
        }
    }

    /// Those who wait, if any.
    pub fn queue(&self) -> Option<&Queue> {
        match &self.kind {
            Kind::Lease(lease) => lease.queue(),
            Kind::Pool(pool) => pool.queue(),
        }
    }

    /// The token's waiter.
    pub fn waiter(&self, token: TokenHash) -> Option<&Arc<Waiter>> {
        self.queue()?.of_token(token)
    }

    pub fn edit_queue<R>(&mut self, change: impl FnOnce(&mut Queue) -> R) -> R {
        match &mut self.kind {
            Kind::Lease(lease) => lease.edit_queue(change),
            Kind::Pool(pool) => pool.edit_queue(change),
        }
    }

    /// Waiters, kept places included.
    pub fn waiters(&self) -> usize {
        self.queue().map_or(0, Queue::len)
    }

    /// The version of a snapshot that can tell it.
    pub fn form(&self) -> u16 {
        let undelivered = |lease: &Lease| lease.last.as_ref().is_some_and(|last| last.end == End::Undelivered);
        match &self.kind {
            Kind::Lease(lease) if lease.waiting.is_some() || undelivered(lease) => 2,
            Kind::Lease(_) => 1,
            Kind::Pool(_) => 3,
        }
    }

    /// Live grants, as far as it has been settled.
    pub fn grants(&self) -> usize {
        match &self.kind {
            Kind::Lease(lease) => usize::from(lease.grant.is_some()),
            Kind::Pool(pool) => pool.held() as usize,
        }
    }

    /// Is the key's lifetime over? It is still there only while a grant outlives it.
    pub fn is_over(&self, now: Stamp) -> bool {
        self.ends.is_some_and(|ends| ends <= now)
    }

    /// When the key goes if it stays free: at the end of its lifetime, or idle. `None` while it is held or has no end. A pool
    /// stays until all its quarantines are over: one that is made anew would give those slots at once.
    pub fn gone_at(&self) -> Option<Stamp> {
        if self.grants() > 0 {
            return self.ends_held();
        }
        let lease = match &self.kind {
            Kind::Lease(lease) => lease,
            Kind::Pool(_) if planted::has(Bug::KeyTtlEndsQuarantine) => return self.ends,
            Kind::Pool(pool) => return self.ends.map(|ends| ends.max(pool.quiet_at().unwrap_or_default())),
        };
        let idle =
            lease.last.as_ref().filter(|_| self.auto_created).map(|last| last.at.max(last.opens_at).plus_ms(IDLE_MS));
        match (self.ends, idle) {
            (Some(ends), Some(idle)) => Some(ends.min(idle)),
            (ends, idle) => ends.or(idle),
        }
    }

    /// The end of its lifetime, if that were one while a grant is live: it never is.
    fn ends_held(&self) -> Option<Stamp> {
        self.ends.filter(|_| planted::has(Bug::KeyTtlEndsGrant))
    }

    /// When time next has work to do: it ends the grant, the key or a wait, or opens the lease for who waits.
    pub fn timer(&self) -> Option<Timer> {
        let lease = match &self.kind {
            Kind::Lease(lease) => lease,
            Kind::Pool(pool) => return self.pool_timer(pool),
        };
        let fence = lease.grant.as_ref().map(|grant| grant.fence).or(lease.last.as_ref().map(|last| last.fence));
        let own = match &lease.grant {
            Some(grant) => Some(self.ends_held().map_or(grant.deadline, |ends| ends.min(grant.deadline))),
            None => self.gone_at(),
        };
        let stamp = match lease.queue() {
            Some(queue) => [own, queue.next_time(), self.ends, opening(lease, queue)].into_iter().flatten().min(),
            None => own,
        };
        stamp.map(|stamp| Timer { stamp, fence: fence.unwrap_or(0) })
    }

    fn pool_timer(&self, pool: &Pool) -> Option<Timer> {
        let own = pool.next_time().map(|(stamp, fence)| Timer { stamp, fence });
        // The end of its lifetime ends what waits, also while grants and quarantines outlive it.
        let ends = self.ends.filter(|_| pool.queue().is_some());
        let line = pool.queue().and_then(Queue::next_time);
        let others = [self.gone_at(), ends, line].into_iter().flatten().map(|stamp| Timer { stamp, fence: 0 });
        own.into_iter().chain(others).min()
    }

    /// Until when a delay or minimum hold keeps it shut though free, if it does at all.
    pub fn shut_until(&self) -> Option<Stamp> {
        let lease = self.lease().ok()?;
        let last = lease.last.as_ref().filter(|last| lease.grant.is_none() && last.opens_at > last.at)?;
        Some(last.opens_at)
    }

    /// Has time work to do on it?
    pub fn is_due(&self, now: Stamp) -> bool {
        self.timer().is_some_and(|timer| timer.stamp <= now)
    }

    /// The earliest stamp after `now` at which an answer about this record changes by time alone (remaining times
    /// apart). Besides the timer: the end of a held key's lifetime, and the end of a delay or minimum hold.
    pub fn next_change(&self, now: Stamp) -> Option<Stamp> {
        let opens_at = self.lease().ok().and_then(Lease::opens_at);
        [self.timer().map(|timer| timer.stamp), self.ends, opens_at]
            .into_iter()
            .flatten()
            .filter(|stamp| *stamp > now)
            .min()
    }

    /// The record as it stands at `now`, `None` when the key is gone by then. Borrowed if time has changed nothing.
    pub fn seen(&self, now: Stamp) -> Option<Cow<'_, Self>> {
        if !self.is_due(now) {
            return Some(Cow::Borrowed(self));
        }
        let mut after = self.clone();
        if after.pass(now, usize::MAX).is_gone { None } else { Some(Cow::Owned(after)) }
    }

    /// Lets time do what it does alone, on at most `limit` slots if it is a pool.
    pub fn pass(&mut self, now: Stamp, limit: usize) -> Passed {
        let is_over = self.is_over(now);
        let (ended, slots) = match &mut self.kind {
            Kind::Lease(lease) => {
                lease.expire(now);
                (Vec::new(), 0)
            }
            Kind::Pool(pool) => pool.pass(now, limit),
        };
        let due = self.queue().and_then(Queue::next_time).is_some_and(|next| next <= now);
        let left = if due { self.edit_queue(|queue| queue.take_due(now)) } else { Vec::new() };
        let is_gone = self.gone_at().is_some_and(|gone_at| gone_at <= now);
        let ends_line = (is_over || is_gone) && self.waiters() > 0;
        let outlived =
            if ends_line { self.edit_queue(std::mem::take).iter().map(Arc::clone).collect() } else { Vec::new() };
        Passed { is_gone, ended, slots, left, outlived }
    }
}

/// When a free lease opens for those who wait for it.
fn opening(lease: &Lease, queue: &Queue) -> Option<Stamp> {
    let is_free = lease.grant.is_none() && queue.first_attached().is_some();
    is_free.then(|| lease.opens_at().unwrap_or_default())
}
