//! Why a result is false, or how a grant ended: the fixed names on the wire. A refusal is never an error.
//!
//! Strings and not an enum: a client must stay able to read the answer of a node that knows one more.

/// Another token holds it.
pub const HELD: &str = "held";
/// This token waits in line.
pub const QUEUED: &str = "queued";
/// Inside the delay after an expiry or BREAK.
pub const DELAY: &str = "delay";
/// Inside the minimum hold after an early RELEASE.
pub const MIN_HOLD: &str = "min_hold";
/// The key's own lifetime is over.
pub const KEY_EXPIRED: &str = "key_expired";
/// `ttl_ms` was zero or negative.
pub const TTL_NOT_POSITIVE: &str = "ttl_not_positive";
/// `once`, and the token was the last ended grant's.
pub const TOKEN_USED: &str = "token_used";
/// The wait ended without a grant.
pub const WAIT_TIMEOUT: &str = "wait_timeout";
/// A newer call of the same token took over.
pub const SUPERSEDED: &str = "superseded";
/// Too many wait.
pub const QUEUE_FULL: &str = "queue_full";
/// The waiter was cancelled.
pub const CANCELLED_WAIT: &str = "cancelled_wait";
/// A grant could not be delivered and was returned.
pub const UNDELIVERED: &str = "undelivered";
/// That token (or fence) does not hold it.
pub const NOT_HELD: &str = "not_held";
/// That grant's deadline passed.
pub const EXPIRED: &str = "expired";
/// An operator ended that grant.
pub const BROKEN: &str = "broken";
/// The key was deleted.
pub const DELETED: &str = "deleted";
/// The grant ended with a restore.
pub const RESTORED: &str = "restored";
/// Another token of the identity took the slot over.
pub const TAKEN_OVER: &str = "taken_over";
/// No slot is free.
pub const EXHAUSTED: &str = "exhausted";
/// The identity is in use.
pub const IDENTITY_IN_USE: &str = "identity_in_use";
/// Two processes fight for one identity.
pub const IDENTITY_CONFLICT: &str = "identity_conflict";
/// The holder gave it back: only as the reason why a grant ended.
pub const RELEASED: &str = "released";
