//! What the keyspace is told and what it answers. A persisted format: variants and fields are only ever appended in a
//! new version (`StateMachine::FORMAT_VERSION`); nothing here is edited once shipped.
//!
//! Validation stands at the edge (`api::convert`): what arrives here has legal lengths and ranges. A refusal is a reply.

mod answers;
mod events;
mod slots;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use answers::*;
pub use events::*;
pub use slots::*;

/// A key: 1..=1024 bytes of UTF-8 without control characters, exact bytes.
pub type Key = Arc<str>;

/// First 16 bytes of SHA-256 over the length-prefixed key and token. Made at the edge: no log, peer, answer, metric or
/// event ever sees a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TokenHash(pub [u8; 16]);

/// Options of a lease, fixed at CREATE. Milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseOptions {
    /// Not acquirable for so long after an expiry or BREAK; never after RELEASE. 0..=31 536 000 000.
    pub delay_ms: u64,
    /// After an early RELEASE not acquirable until the grant is of that age. 0..=31 536 000 000.
    pub min_hold_ms: u64,
    /// Greatest `ttl_ms` a grant of this key may ask for; `None`: the general limit.
    pub ttl_ms_max: Option<u64>,
}

/// ACQUIRE.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquire {
    /// The lease.
    pub key: Key,
    /// Who holds, readable: 1..=256 bytes.
    pub owner: Arc<str>,
    /// The holder's secret, hashed.
    pub token: TokenHash,
    /// Wanted lifetime, at most 31 536 000 000; zero or negative is refused with `ttl_not_positive`.
    pub ttl_ms: i64,
    /// Make the lease if the key is absent.
    pub create: bool,
    /// Free text for operators: at most 1024 bytes.
    pub note: Option<Arc<str>>,
    /// Overrides the key's option for this grant.
    pub min_hold_ms: Option<u64>,
    /// Overrides the key's option for this grant.
    pub delay_ms: Option<u64>,
    /// Refuse a token that was this key's last ended grant.
    pub once: bool,
}

/// The process that holds a client's socket: a node, in one of its lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EdgeId {
    /// The node.
    pub node: u64,
    /// Which of its lives: drawn at random when the process starts.
    pub incarnation: u64,
}

/// Where a waiter is waited for: a request that an edge holds open. A command that names another than the waiter's own
/// is stale and does nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Attach {
    /// The edge.
    pub edge: EdgeId,
    /// Its number for the request; never used twice in a life.
    pub request: u64,
}

/// OP ACQUIRE that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// What is asked for.
    pub ask: Acquire,
    /// How long to wait for it, from when this is applied: 1..=86 400 000.
    pub wait_ms: u64,
    /// Who is told.
    pub attach: Attach,
}

/// A command of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// CREATE of a lease.
    Create {
        /// The key.
        key: Key,
        /// Its options.
        options: LeaseOptions,
    },
    /// OP ACQUIRE, without waiting.
    Acquire(Acquire),
    /// OP RENEW.
    Renew {
        /// The lease.
        key: Key,
        /// The holder's secret, hashed.
        token: TokenHash,
        /// New lifetime from now; never shortens. Zero or negative: `ttl_not_positive`.
        ttl_ms: i64,
        /// Only the grant with this fence.
        fence: Option<u64>,
    },
    /// OP RELEASE.
    Release {
        /// The lease.
        key: Key,
        /// The holder's secret, hashed.
        token: TokenHash,
        /// Only the grant with this fence.
        fence: Option<u64>,
    },
    /// OP BREAK.
    Break {
        /// The lease.
        key: Key,
        /// Why: 1..=1024 bytes; the old holder is told.
        reason: Arc<str>,
        /// How long the holder keeps the lease at most.
        grace_ms: u64,
        /// Only the grant with this fence.
        fence: Option<u64>,
    },
    /// EXPIRE: the key's lifetime, 1..=31 536 000 000 ms from now.
    Expire {
        /// The key.
        key: Key,
        /// Its lifetime.
        ttl_ms: u64,
    },
    /// PERSIST: the key's lifetime no longer ends (nor that of a key made by ACQUIRE `create`).
    Persist {
        /// The key.
        key: Key,
    },
    /// DEL.
    Del {
        /// 1..=1000 keys.
        keys: Vec<Key>,
        /// Only a key whose live grant has this fence.
        fence: Option<u64>,
    },
    /// BATCH: 1..=1000 commands, in order, later ones see earlier ones. Not nested.
    Batch(#[serde(deserialize_with = "super::unnested::items")] Vec<Command>),
    /// GET inside a BATCH.
    Get {
        /// The key.
        key: Key,
    },
    /// OP HELD inside a BATCH.
    Held {
        /// The lease.
        key: Key,
        /// Is it this one's?
        token: Option<TokenHash>,
    },
    /// OP CHECK inside a BATCH.
    Check {
        /// The lease.
        key: Key,
        /// Is this the live grant's fence?
        fence: u64,
    },
    // From here on format 2.
    /// OP ACQUIRE, waiting: granted at once, refused, or put in line. A repeat by the same token keeps its place.
    Wait(Wait),
    /// The client of a waiting request went away: its waiter is passed over, its place kept for a while; a grant that it
    /// was not told of is returned.
    Detach {
        /// The lease.
        key: Key,
        /// The waiter's secret, hashed.
        token: TokenHash,
        /// The request.
        attach: Attach,
    },
    /// The wait of a request is over: its waiter goes.
    Cancel {
        /// The lease.
        key: Key,
        /// The waiter's secret, hashed.
        token: TokenHash,
        /// The request.
        attach: Attach,
    },
    /// An edge that has waiters is still there. Waiters of the same node's other lives are detached.
    Presence {
        /// The edge.
        edge: EdgeId,
    },
    /// An edge is gone: its waiters are detached.
    Away {
        /// The edge.
        edge: EdgeId,
    },
    /// BATCH `all_or_nothing`: 1..=1000 of ACQUIRE, RENEW and RELEASE; the first that is not true undoes all.
    AllOrNothing(#[serde(deserialize_with = "super::unnested::items")] Vec<Command>),
    // From here on format 3.
    /// CREATE of a pool.
    CreatePool {
        /// The key.
        key: Key,
        /// Its options.
        options: PoolOptions,
        /// Drawn at random at the edge.
        uuid: PoolUuid,
    },
    /// OP ACQUIRE of a slot for an identity, without waiting.
    AcquireSlot(AcquireSlot),
    /// OP ACQUIRE of a slot for an identity, waiting: granted at once, refused, or put in line.
    WaitSlot(WaitSlot),
    /// OP RENEW that tells the holder's clock.
    RenewSlot {
        /// The pool.
        key: Key,
        /// The holder's secret, hashed.
        token: TokenHash,
        /// New lifetime from now; never shortens.
        ttl_ms: i64,
        /// Only the grant with this fence.
        fence: Option<u64>,
        /// The caller's wall clock, Unix milliseconds, below 2^53.
        unix_ms: u64,
    },
    /// OP BREAK of a slot.
    BreakSlot {
        /// The pool.
        key: Key,
        /// The slot.
        id: u32,
        /// Why: 1..=1024 bytes; the old holder is told.
        reason: Arc<str>,
        /// How long the holder keeps the slot at most.
        grace_ms: u64,
        /// Only the grant with this fence.
        fence: Option<u64>,
    },
    /// OP RESIZE of a pool. Live grants beyond the new end go on; their slots are not given again.
    Resize {
        /// The pool.
        key: Key,
        /// The new size: 1..=65 536.
        size: u32,
    },
}

impl Command {
    /// The format it needs of whoever reads it.
    pub(super) fn format(&self) -> u16 {
        match self {
            Self::Wait(_) | Self::Detach { .. } | Self::Cancel { .. } | Self::Presence { .. } | Self::Away { .. } => 2,
            Self::CreatePool { .. }
            | Self::AcquireSlot(_)
            | Self::WaitSlot(_)
            | Self::RenewSlot { .. }
            | Self::BreakSlot { .. }
            | Self::Resize { .. } => 3,
            // The edge puts none of them into a BATCH; whoever does, says so.
            Self::Batch(commands) => commands.iter().map(Self::format).max().unwrap_or(1),
            Self::AllOrNothing(commands) => commands.iter().map(Self::format).max().unwrap_or(2).max(2),
            _ => 1,
        }
    }
}
