//! How events are made: never with a token in them.

use std::sync::Arc;

use super::lease::Grant;
use super::queue::Waiter;
use super::{Attach, Event, EventKind, Key, Reason};

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
        }
    }

    pub(super) fn of_grant(key: &Key, kind: EventKind, grant: &Grant) -> Self {
        Self { fence: Some(grant.fence), owner: Some(Arc::clone(&grant.owner)), ..Self::of_key(key, kind) }
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
