//! How events are made: never with a token in them.

use std::sync::Arc;

use super::lease::Grant;
use super::{Event, EventKind, Key};

impl Event {
    pub(super) fn of_key(key: &Key, kind: EventKind) -> Self {
        Self { key: Key::clone(key), kind, fence: None, owner: None, last_renewed: None, detail: None }
    }

    pub(super) fn of_grant(key: &Key, kind: EventKind, grant: &Grant) -> Self {
        Self { fence: Some(grant.fence), owner: Some(Arc::clone(&grant.owner)), ..Self::of_key(key, kind) }
    }
}
