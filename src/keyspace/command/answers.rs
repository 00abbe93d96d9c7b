//! What is answered: reasons, refusals, replies and views. Persisted as its parent is: nothing here is edited once shipped.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tenure_cluster::{Position, Stamp};

use super::{Key, LeaseArgument, LeaseOptions, PoolView, SlotReply};

/// Why a command was refused or a grant ended. The names on the wire are fixed (snake case).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Another token holds it.
    Held,
    /// This token waits in line.
    Queued,
    /// Inside the delay after an expiry or BREAK.
    Delay,
    /// Inside the minimum hold after an early RELEASE.
    MinHold,
    /// The key's own lifetime is over.
    KeyExpired,
    /// `ttl_ms` was zero or negative.
    TtlNotPositive,
    /// `once`, and the token was the last ended grant's.
    TokenUsed,
    /// The wait ended without a grant.
    WaitTimeout,
    /// A newer call of the same token took over.
    Superseded,
    /// Too many wait.
    QueueFull,
    /// The waiter was cancelled.
    CancelledWait,
    /// A grant could not be delivered and was returned.
    Undelivered,
    /// That token (or fence) does not hold it.
    NotHeld,
    /// That grant's deadline passed.
    Expired,
    /// An operator ended that grant.
    Broken,
    /// The key was deleted.
    Deleted,
    /// The grant ended with a restore.
    Restored,
    /// Another token of the identity took the slot over.
    TakenOver,
    /// No slot is free.
    Exhausted,
    /// The identity is in use.
    IdentityInUse,
    /// Two processes fight for one identity.
    IdentityConflict,
    /// The holder gave it back. Only as the reason why a grant ended.
    Released,
}

/// An error of a command: bad for this state of the keyspace. Changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// OP, on a key that does not exist.
    NoSuchKey,
    /// CREATE, of a key that exists.
    AlreadyExists,
    /// The key is of another type.
    WrongType,
    /// `ttl_ms` above the key's `ttl_ms_max`.
    TtlAboveMax {
        /// The key's limit.
        max: u64,
    },
    /// The keyspace holds `keys_max` keys.
    KeysMax {
        /// The limit.
        max: u64,
    },
    /// The fence counter is used up (2^53).
    FenceExhausted,
    // From here on format 3.
    /// ACQUIRE of a pool's slot with an argument that only a lease has.
    NotForPool(LeaseArgument),
    /// BREAK of a pool without `id`.
    IdMissing,
    /// RESIZE beyond the last id, 2^32 - 1.
    SizeAboveMax {
        /// The greatest size of that pool.
        max: u32,
    },
}

impl Refusal {
    fn format(&self) -> u16 {
        match self {
            Self::NotForPool(_) | Self::IdMissing | Self::SizeAboveMax { .. } => 3,
            _ => 1,
        }
    }
}

/// The answer to an OP on a lease. `fence`, `ttl_ms` and `owner` are absent when there is no live grant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpReply {
    /// The contract's boolean.
    pub result: bool,
    /// Why not, when `result` is false.
    pub reason: Option<Reason>,
    /// ACQUIRE: the token already holds it.
    pub yours: bool,
    /// The live grant's fence (the caller's or another's), after the command.
    pub fence: Option<u64>,
    /// The live grant's remaining time, milliseconds, at least 1.
    pub ttl_ms: Option<u64>,
    /// The live grant's owner.
    pub owner: Option<Arc<str>>,
    /// When trying again may help, milliseconds.
    pub retry_after_ms: Option<u64>,
    /// The operator's text of a BREAK.
    pub detail: Option<Arc<str>>,
}

/// A grant that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Its fence.
    pub fence: u64,
    /// Who held.
    pub owner: Arc<str>,
    /// How it ended: released, expired, broken.
    pub reason: Reason,
    /// When, on the cluster clock (an expiry: its deadline).
    pub at: Stamp,
    /// The operator's text of a BREAK.
    pub detail: Option<Arc<str>>,
}

/// GET: a lease as a reader sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// The key.
    pub key: Key,
    /// The live grant.
    pub grant: Option<GrantView>,
    /// Waiters in the queue.
    pub waiters: u64,
    /// 0 when it can be acquired now; else the least time until it could be, milliseconds.
    pub acquirable_in_ms: u64,
    /// The options.
    pub options: LeaseOptions,
    /// Position of the key's last change.
    pub version: Position,
    /// Remaining lifetime of the key, milliseconds; 0: over, goes with its grant; `None`: no end.
    pub key_ttl_ms: Option<u64>,
    /// Made by ACQUIRE with `create`: vanishes 24 h after it became acquirable.
    pub auto_created: bool,
    /// The grant that ended last.
    pub last: Option<Ended>,
}

/// The live grant in a [`View`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantView {
    /// Who holds.
    pub owner: Arc<str>,
    /// Its fence.
    pub fence: u64,
    /// Remaining time, milliseconds, at least 1.
    pub ttl_ms: u64,
    /// Since the grant, milliseconds of the cluster clock.
    pub held_for_ms: u64,
    /// The leader's wall clock at the grant, Unix milliseconds. Informational.
    pub acquired_wall_ms: u64,
    /// The holder's note.
    pub note: Option<Arc<str>>,
    /// Broken by an operator and in its grace: the text.
    pub broken: Option<Arc<str>>,
}

/// What a command answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// CREATE, EXPIRE, PERSIST. The reason where it is false and more can be said.
    Done {
        /// The contract's boolean.
        result: bool,
        /// `key_expired`, or nothing.
        reason: Option<Reason>,
    },
    /// DEL: how many were deleted.
    Deleted(u64),
    /// An OP, CHECK included.
    Op(OpReply),
    /// GET in a BATCH; `None`: no such key.
    View(Option<Box<View>>),
    /// BATCH, in order.
    Batch(#[serde(deserialize_with = "crate::keyspace::unnested::items")] Vec<Reply>),
    /// An error.
    Refused(Refusal),
    // From here on format 2.
    /// The token waits in line: what an operation answers it (false, `queued`), and its place.
    Queued {
        /// The answer to the operation.
        op: OpReply,
        /// Where it stands.
        place: Place,
    },
    /// BATCH `all_or_nothing`: nothing was done.
    NotAll {
        /// The first item that was not true, from 0.
        index: u32,
        /// What it was answered.
        why: Result<OpReply, Refusal>,
    },
    // From here on format 3.
    /// ACQUIRE and RENEW on a pool.
    Slot(Box<SlotReply>),
    /// ACQUIRE on a pool, by a token that waits in line: null, `queued`, and its place.
    SlotQueued(Place),
    /// Any other operation on a pool that concerns one slot.
    OfSlot {
        /// The answer.
        op: OpReply,
        /// The slot.
        id: u32,
    },
    /// GET in a BATCH of a pool.
    PoolView(Box<PoolView>),
}

impl Reply {
    /// The format it needs of whoever reads it.
    pub(in crate::keyspace) fn format(&self) -> u16 {
        match self {
            Self::Queued { .. } | Self::NotAll { .. } => 2,
            Self::Slot(_) | Self::SlotQueued(_) | Self::OfSlot { .. } | Self::PoolView(_) => 3,
            Self::Refused(refusal) => refusal.format(),
            Self::Batch(replies) => replies.iter().map(Self::format).max().unwrap_or(1),
            _ => 1,
        }
    }
}

/// A waiter's place in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Waiters before it, places that are kept included; 0: it is next.
    pub ahead: u64,
    /// All waiters of the key, itself included.
    pub waiters: u64,
}
