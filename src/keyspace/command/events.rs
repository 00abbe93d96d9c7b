//! What is told to listeners. Not persisted, and never said to another node.

use std::sync::Arc;

use tenure_cluster::Stamp;

use super::{Attach, Key, Reason, SlotReply};

/// What happened to a key. `owner` and `fence` never tell a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The key.
    pub key: Key,
    /// What.
    pub kind: EventKind,
    /// The grant concerned, if any.
    pub fence: Option<u64>,
    /// Its owner.
    pub owner: Option<Arc<str>>,
    /// Expired: stamp of the last grant or renewal.
    pub last_renewed: Option<Stamp>,
    /// Broken: the operator's text.
    pub detail: Option<Arc<str>>,
    /// Granted and Renewed: the grant's remaining time.
    pub ttl_ms: Option<u64>,
    /// Granted by waiting, and all that concerns a waiter: the request.
    pub attach: Option<Attach>,
    /// WaitEnded: why. Released: `undelivered` or `taken_over` where it was not the holder's doing.
    pub reason: Option<Reason>,
    /// Of a pool: the slot concerned, if any.
    pub slot: Option<Slotted>,
}

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// The key was made.
    Created,
    /// A grant began.
    Granted,
    /// A grant was renewed.
    Renewed,
    /// A grant was given back.
    Released,
    /// A grant's deadline passed.
    Expired,
    /// An operator ended a grant (at the BREAK; with grace, the grant goes on until its deadline).
    Broken,
    /// The key was deleted or its lifetime ended.
    Deleted,
    /// A waiter took its place in line. Told to edges, not to watchers; so are the next two.
    Waiting,
    /// A waiter left the line without a grant.
    WaitEnded,
    /// A waiter's request is taken for gone, though its edge did not say so.
    Detached,
}

impl EventKind {
    /// Does it concern a waiter alone?
    #[must_use]
    pub const fn is_of_waiter(self) -> bool {
        matches!(self, Self::Waiting | Self::WaitEnded | Self::Detached)
    }
}

/// What an event tells of a pool's slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slotted {
    /// The slot.
    pub id: u32,
    /// Whose it is or was; `None`: anonymous.
    pub identity: Option<Arc<str>>,
    /// Granted: what the caller is answered. Whoever waited is told this.
    pub answer: Option<Arc<SlotReply>>,
    /// Granted: slots of the pool that are held now.
    pub held: Option<u32>,
}
