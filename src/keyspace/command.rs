//! What the keyspace is told and what it answers. A persisted format: variants and fields are only ever appended in a
//! new version (`StateMachine::FORMAT_VERSION`); nothing here is edited once shipped.
//!
//! Validation stands at the edge (`api::convert`): what arrives here has legal lengths and ranges. A refusal is a reply.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tenure_cluster::{Position, Stamp};

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
}

impl Command {
    /// The format it needs of whoever reads it.
    pub(super) fn format(&self) -> u16 {
        match self {
            Self::Wait(_)
            | Self::Detach { .. }
            | Self::Cancel { .. }
            | Self::Presence { .. }
            | Self::Away { .. }
            | Self::AllOrNothing(_) => 2,
            // The edge puts none of them into a BATCH; whoever does, says so.
            Self::Batch(commands) => commands.iter().map(Self::format).max().unwrap_or(1),
            _ => 1,
        }
    }
}

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
    Batch(#[serde(deserialize_with = "super::unnested::items")] Vec<Reply>),
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
}

impl Reply {
    /// The format it needs of whoever reads it.
    pub(super) fn format(&self) -> u16 {
        match self {
            Self::Queued { .. } | Self::NotAll { .. } => 2,
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
    /// WaitEnded: why. Released: `undelivered` where it was not the holder's doing.
    pub reason: Option<Reason>,
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
