//! The body of each command. An absent field means its default; an explicit zero is zero.
//!
//! # What may be repeated after a lost answer
//! [`Request::repeat`] says it for each body, and the rule is the command's, not the network's:
//! - reads: always;
//! - ACQUIRE: the token is the request's identity. Where the first copy was granted, the second is told `yours`, which
//!   counts as held only after a RENEW (a repeated copy may also outlive its caller: `once` refuses a used token);
//! - RENEW and RELEASE with a `fence`: they touch that one grant or nothing. RENEW never shortens; the second RELEASE is
//!   told `not_held`;
//! - all else: never. A repeated DEL, EXPIRE, PERSIST, BREAK or RESIZE could undo what somebody did in between, a repeated
//!   CREATE could not tell its own key from another's.

use serde::{Deserialize, Serialize};

use super::{PoolOptions, Token};

/// May a request be sent again when an earlier copy could have reached a node?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// It changes nothing.
    Read,
    /// It is idempotent by its token (and fence).
    ByToken,
    /// No: its outcome is unknown then.
    Never,
}

/// A body of `POST /v1/{COMMAND}`.
pub trait Request: Serialize {
    /// The command, as in the path.
    const COMMAND: &'static str;

    /// May it be sent again when an earlier copy could have reached a node?
    fn repeat(&self) -> Repeat;
}

/// CREATE.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Create<O = LeaseOptions> {
    /// The key: 1..=1024 bytes.
    pub key: String,
    /// `lease` or `pool`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its options: [`LeaseOptions`] or [`PoolOptions`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<O>,
}

impl Create {
    /// CREATE of a lease.
    pub fn lease(key: impl Into<String>, options: LeaseOptions) -> Create {
        Create { key: key.into(), kind: "lease".to_owned(), options: Some(options) }
    }
}

impl Create<PoolOptions> {
    /// CREATE of a pool.
    pub fn pool(key: impl Into<String>, options: PoolOptions) -> Create<PoolOptions> {
        Create { key: key.into(), kind: "pool".to_owned(), options: Some(options) }
    }
}

/// Options of a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseOptions {
    /// Not acquirable for so long after an expiry or BREAK, never after RELEASE. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// After an early RELEASE not acquirable until the grant is of that age. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_hold_ms: Option<u64>,
    /// Greatest `ttl_ms` of a grant. Default: the general limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms_max: Option<u64>,
}

/// What an OP does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// Take the lease, or a slot of the pool.
    Acquire,
    /// Keep it.
    Renew,
    /// Give it back.
    Release,
    /// Is it held?
    Held,
    /// An operator ends a grant.
    Break,
    /// Is this the live grant's fence?
    Check,
    /// A pool gets another size.
    Resize,
    /// Who holds the slots of a pool?
    Holders,
}

/// OP: an operation on one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Op<A> {
    /// The key.
    pub key: String,
    /// The operation; its arguments' type says which.
    pub operation: Operation,
    /// Its arguments.
    pub args: A,
}

impl<A: OpArgs> Op<A> {
    /// The OP of these arguments.
    pub fn new(key: impl Into<String>, args: A) -> Op<A> {
        Op { key: key.into(), operation: A::OPERATION, args }
    }
}

/// Arguments of an [`Operation`].
pub trait OpArgs: Serialize {
    /// Whose arguments these are.
    const OPERATION: Operation;

    /// See [`Request::repeat`].
    fn repeat(&self) -> Repeat;
}

impl<A: OpArgs> Request for Op<A> {
    const COMMAND: &'static str = "OP";

    fn repeat(&self) -> Repeat {
        self.args.repeat()
    }
}

/// Arguments of ACQUIRE.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcquireArgs {
    /// Who holds, readable: 1..=256 bytes.
    pub owner: String,
    /// The holder's secret.
    pub token: Token,
    /// Wanted lifetime; zero or negative is refused with `ttl_not_positive`. Default 30 000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<i64>,
    /// How long to wait in the queue: 0..=86 400 000. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// Make the lease if the key is absent. Default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create: Option<bool>,
    /// Free text for operators: at most 1024 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Overrides the key's option for this grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_hold_ms: Option<u64>,
    /// Overrides the key's option for this grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// Refuse a token that was this key's last ended grant. Default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub once: Option<bool>,
}

impl OpArgs for AcquireArgs {
    const OPERATION: Operation = Operation::Acquire;

    fn repeat(&self) -> Repeat {
        Repeat::ByToken
    }
}

/// Arguments of RENEW.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenewArgs {
    /// The holder's secret.
    pub token: Token,
    /// New lifetime from now; never shortens. Default 30 000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<i64>,
    /// Only the grant with this fence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
}

impl OpArgs for RenewArgs {
    const OPERATION: Operation = Operation::Renew;

    fn repeat(&self) -> Repeat {
        if self.fence.is_some() { Repeat::ByToken } else { Repeat::Never }
    }
}

/// Arguments of RELEASE.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReleaseArgs {
    /// The holder's secret.
    pub token: Token,
    /// Only the grant with this fence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
}

impl OpArgs for ReleaseArgs {
    const OPERATION: Operation = Operation::Release;

    fn repeat(&self) -> Repeat {
        if self.fence.is_some() { Repeat::ByToken } else { Repeat::Never }
    }
}

/// Arguments of HELD.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldArgs {
    /// Is it this one's?
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Token>,
}

impl OpArgs for HeldArgs {
    const OPERATION: Operation = Operation::Held;

    fn repeat(&self) -> Repeat {
        Repeat::Read
    }
}

/// Arguments of BREAK.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BreakArgs {
    /// Why: 1..=1024 bytes; the old holder is told.
    pub reason: String,
    /// How long the holder keeps the lease at most. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    /// Only the grant with this fence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
}

impl OpArgs for BreakArgs {
    const OPERATION: Operation = Operation::Break;

    fn repeat(&self) -> Repeat {
        Repeat::Never
    }
}

/// Arguments of CHECK.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckArgs {
    /// Is this the live grant's fence?
    pub fence: u64,
}

impl OpArgs for CheckArgs {
    const OPERATION: Operation = Operation::Check;

    fn repeat(&self) -> Repeat {
        Repeat::Read
    }
}

/// The commands whose body is a key alone.
macro_rules! key_commands {
    ($($(#[$doc:meta])* $name:ident $command:literal $repeat:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            /// The key.
            pub key: String,
        }

        impl Request for $name {
            const COMMAND: &'static str = $command;

            fn repeat(&self) -> Repeat {
                Repeat::$repeat
            }
        }
    )*};
}

key_commands! {
    /// GET: a snapshot, null if the key is absent.
    Get "GET" Read;
    /// TYPE: `"lease"`, `"pool"` or null.
    Type "TYPE" Read;
    /// EXISTS: boolean.
    Exists "EXISTS" Read;
    /// TTL of the key: milliseconds, -1 no end, -2 no key.
    Ttl "TTL" Read;
    /// PERSIST: the key's lifetime no longer ends; false: no key.
    Persist "PERSIST" Never;
}

impl<O: Serialize> Request for Create<O> {
    const COMMAND: &'static str = "CREATE";

    fn repeat(&self) -> Repeat {
        Repeat::Never
    }
}

/// EXPIRE: the key's lifetime; false: no key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expire {
    /// The key.
    pub key: String,
    /// 1..=31 536 000 000.
    pub ttl_ms: u64,
}

impl Request for Expire {
    const COMMAND: &'static str = "EXPIRE";

    fn repeat(&self) -> Repeat {
        Repeat::Never
    }
}

/// DEL: how many were deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Del {
    /// 1..=1000 keys.
    pub keys: Vec<String>,
    /// Only a key whose live grant has this fence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
}

impl Request for Del {
    const COMMAND: &'static str = "DEL";

    fn repeat(&self) -> Repeat {
        Repeat::Never
    }
}

/// SCAN: a page of snapshots in byte order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scan {
    /// Only keys that start so. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// 1..=1000. Default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// The page before's cursor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

impl Request for Scan {
    const COMMAND: &'static str = "SCAN";

    fn repeat(&self) -> Repeat {
        Repeat::Read
    }
}

/// BATCH: up to 1000 commands in one entry, in order.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// Each `{"command": …, …its body}`.
    pub commands: Vec<serde_json::Value>,
    /// ACQUIRE, RENEW and RELEASE alone: all are done, or nothing is. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all_or_nothing: bool,
}

impl Batch {
    /// For commands of which all are to be done, or nothing. Answered by the list of their answers; else by false, with
    /// the `index` of the first that was not true and its reason.
    pub fn all_or_nothing() -> Batch {
        Batch { commands: Vec::new(), all_or_nothing: true }
    }

    /// Adds one command.
    ///
    /// # Errors
    /// The body is no JSON object.
    pub fn push<R: Request>(&mut self, request: &R) -> Result<(), serde_json::Error> {
        let mut body: serde_json::Map<String, serde_json::Value> =
            serde_json::from_value(serde_json::to_value(request)?)?;
        body.insert("command".to_owned(), R::COMMAND.into());
        self.commands.push(body.into());
        Ok(())
    }
}

impl std::fmt::Debug for Batch {
    // The items hold tokens.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Batch({} commands)", self.commands.len())
    }
}

impl Request for Batch {
    const COMMAND: &'static str = "BATCH";

    fn repeat(&self) -> Repeat {
        Repeat::Never
    }
}
