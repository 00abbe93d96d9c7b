//! How events are made: never with a token in them.

use std::sync::Arc;

use super::lease::Grant;
use super::queue::Waiter;
use super::slot::Tenancy;
use super::{Attach, Event, EventKind, Key, Reason, Slotted};

impl Event {
    pub(super) fn of_key(key: &Key, kind: EventKind) -> Self {
        Self {
            key: Key::clone(key),
            kind,
            fence: None,
            owner: None,
            last_renewed: None,
            detail: None,
            ttl_ms: None,
            attach: None,
            reason: None,
            slot: None,
        }
    }

    pub(super) fn of_grant(key: &Key, kind: EventKind, grant: &Grant) -> Self {
        Self { fence: Some(grant.fence), owner: Some(Arc::clone(&grant.owner)), ..Self::of_key(key, kind) }
    }

    /// The grant's time was over. Not of one that was broken: it was told of at its BREAK.
    pub(super) fn of_expiry(key: &Key, grant: &Grant) -> Option<Self> {
        let event = Self::of_grant(key, EventKind::Expired, grant);
        grant.broken.is_none().then_some(Self { last_renewed: Some(grant.renewed_at), ..event })
    }

    /// The same, of this slot of a pool.
    pub(super) fn of_slot(self, id: u32, held: &Tenancy) -> Self {
        let slotted = Slotted { id, identity: held.identity.clone(), answer: None, held: None };
        Self { slot: Some(slotted), ..self }
    }

    /// What happened to the waiter of the request `attach`.
    pub(super) fn of_waiter(
        key: &Key,
        kind: EventKind,
        waiter: &Waiter,
        attach: Attach,
        reason: Option<Reason>,
    ) -> Self {
        let owner = Some(Arc::clone(&waiter.terms.owner));
        Self { owner, attach: Some(attach), reason, ..Self::of_key(key, kind) }
    }
}
