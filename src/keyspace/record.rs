//! A key's record: what the table keeps per key, whatever its type, and what time alone makes of it.
//!
//! Model: a record changes in two ways only. A command changes it; and time does, which [`Record::seen`] answers for
//! any stamp without touching the record. Every reader and every command looks at a record through `seen`, so that it
//! is of no account whether a timer has fired already or stands in a backlog.
//!
//! Invariants:
//! - [`Record::timer`] is a function of the record. It is the earliest stamp at which `seen` differs in the grant or in
//!   the existence of the key: after it nothing is outstanding that cleaning would have to do.
//! - Nothing ends a grant early: the key's own lifetime is looked at only once the key is free.
//! - `seen(a)` then `seen(b)` is `seen(b)`, for `a <= b`.

use std::borrow::Cow;

use tenure_cluster::planted::{self, Bug};
use tenure_cluster::{Position, Stamp};

use super::Refusal;
use super::lease::Lease;

/// A key made by ACQUIRE `create` goes this long after it became acquirable: a delay or minimum hold is kept to its end.
pub(super) const IDLE_MS: u64 = 24 * 60 * 60 * 1000;

/// When time alone next ends a grant or a key; for equal stamps the earlier grant (0: never granted) comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Timer {
    pub stamp: Stamp,
    fence: u64,
}

/// What the table keeps per key.
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// Position of the last change.
    pub version: Position,
    /// End of the key's lifetime, set by EXPIRE.
    pub ends: Option<Stamp>,
    /// Made by ACQUIRE `create`, and not made to stay by PERSIST.
    pub auto_created: bool,
    /// What the key is.
    pub kind: Kind,
}

/// The types of keys.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    Lease(Lease),
}

impl Record {
    /// The lease.
    ///
    /// # Errors
    /// [`Refusal::WrongType`] if the key is of another type.
    pub fn lease(&self) -> Result<&Lease, Refusal> {
        match &self.kind {
            Kind::Lease(lease) => Ok(lease),
        }
    }

    /// Is the key in use by a grant, as far as it has been settled?
    pub fn is_held(&self) -> bool {
        match &self.kind {
            Kind::Lease(lease) => lease.grant.is_some(),
        }
    }

    /// Is the key's lifetime over? It is still there only while a grant outlives it.
    pub fn is_over(&self, now: Stamp) -> bool {
        self.ends.is_some_and(|ends| ends <= now)
    }

    /// When the key goes if it stays free: at the end of its lifetime, or idle. `None` while it is held or has no end.
    pub fn gone_at(&self) -> Option<Stamp> {
        let Kind::Lease(lease) = &self.kind;
        if lease.grant.is_some() {
            return self.ends_held();
        }
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

    /// When time alone next ends the grant or the key.
    pub fn timer(&self) -> Option<Timer> {
        let Kind::Lease(lease) = &self.kind;
        match &lease.grant {
            Some(grant) => {
                let stamp = self.ends_held().map_or(grant.deadline, |ends| ends.min(grant.deadline));
                Some(Timer { stamp, fence: grant.fence })
            }
            None => {
                self.gone_at().map(|stamp| Timer { stamp, fence: lease.last.as_ref().map_or(0, |last| last.fence) })
            }
        }
    }

    /// Until when a delay or minimum hold keeps it shut though free, if it does at all.
    pub fn shut_until(&self) -> Option<Stamp> {
        let Kind::Lease(lease) = &self.kind;
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
        let Kind::Lease(lease) = &self.kind;
        [self.timer().map(|timer| timer.stamp), self.ends, lease.opens_at()]
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
        let Kind::Lease(lease) = &mut after.kind;
        lease.expire(now);
        if after.gone_at().is_some_and(|gone_at| gone_at <= now) { None } else { Some(Cow::Owned(after)) }
    }
}
