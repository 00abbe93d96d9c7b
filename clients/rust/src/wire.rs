//! The JSON of `POST /v1/{COMMAND}`: request bodies, answers, problems. Server, client and CLI share these types.
//!
//! Requests ([`request`]) are strict: unknown fields are refused. Answers are read leniently: a newer node may say more.
//! Names are fixed. Every time is in milliseconds; every number stays below 2^53, so that any JSON reader keeps its
//! digits.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

mod event;
pub mod pool;
mod problem;
pub mod reason;
pub mod request;
mod snapshot;
mod token;

pub use event::{Cut, Event, Reset};
pub use pool::{
    AcquireSlotArgs, BreakSlotArgs, Holder, HoldersArgs, HoldersPage, KeyOptions, OnConflict, PoolOptions,
    RenewSlotArgs, ResizeArgs, SlotCounts, SlotGrant, SlotRenewal, TookOver,
};
pub use problem::{Code, Problem};
pub use request::{
    AcquireArgs, Batch, BreakArgs, CheckArgs, Create, Del, Exists, Expire, Get, HeldArgs, LeaseOptions, Op, OpArgs,
    Operation, Persist, ReleaseArgs, RenewArgs, Repeat, Request, Scan, Ttl, Type,
};
pub use snapshot::{EndedGrant, ScanPage, Snapshot};
pub use token::Token;

/// Greatest `ttl_ms`, `delay_ms` and `min_hold_ms`: 365 days.
pub const TTL_MS_MAX: u64 = 31_536_000_000;
/// `ttl_ms` where none is given.
pub const TTL_MS_DEFAULT: u64 = 30_000;
/// Greatest `wait_ms`: a day.
pub const WAIT_MS_MAX: u64 = 86_400_000;
/// Greatest length of a key, bytes of UTF-8.
pub const KEY_BYTES_MAX: usize = 1024;
/// Greatest length of an owner, bytes of UTF-8.
pub const OWNER_BYTES_MAX: usize = 256;
/// Greatest length of a token, bytes of UTF-8.
pub const TOKEN_BYTES_MAX: usize = 256;
/// Greatest length of a note or a reason, bytes of UTF-8.
pub const TEXT_BYTES_MAX: usize = 1024;
/// Greatest request body, bytes.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// Most keys of a DEL, commands of a BATCH, keys of a SCAN page.
pub const ITEMS_MAX: usize = 1000;
/// `limit` of a SCAN where none is given.
pub const SCAN_LIMIT_DEFAULT: u64 = 100;
/// Numbers on the wire stay below this.
pub const NUMBER_LIMIT: u64 = 1 << 53;
/// The default client port.
pub const PORT: u16 = 13_378;

/// Answer header: position of the entry that was applied or read, `index.n`.
pub const HEADER_POSITION: &str = "tenure-position";
/// Answer header: the cluster clock, milliseconds.
pub const HEADER_CLOCK: &str = "tenure-clock";
/// Answer header: the Raft term.
pub const HEADER_TERM: &str = "tenure-term";
/// Answer header: the cluster's id.
pub const HEADER_CLUSTER: &str = "tenure-cluster";
/// Answer header of a stale read: its age in milliseconds.
pub const HEADER_AGE_MS: &str = "tenure-age-ms";

/// A successful answer: `{"result": …}` plus named extras, flat.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The result: boolean, number, string, object, array or null.
    pub result: serde_json::Value,
    /// Named extras: `fence`, `ttl_ms`, `owner`, `reason`, `yours`, `retry_after_ms`, `detail`, `ahead`, `waiters`,
    /// `index`; of a pool also `id`, `ttl_raised`, `took_over`, `prior_fence`, `prior_ttl_ms`.
    #[serde(flatten)]
    pub extras: BTreeMap<String, serde_json::Value>,
}

impl Answer {
    /// Is the result the boolean `true`?
    pub fn is_true(&self) -> bool {
        self.result == serde_json::Value::Bool(true)
    }

    /// Why the result is false: one of [`reason`].
    pub fn reason(&self) -> Option<&str> {
        self.text("reason")
    }

    /// The live grant's fence, after the command.
    pub fn fence(&self) -> Option<u64> {
        self.number("fence")
    }

    /// The live grant's remaining time, milliseconds.
    pub fn ttl_ms(&self) -> Option<u64> {
        self.number("ttl_ms")
    }

    /// The live grant's owner.
    pub fn owner(&self) -> Option<&str> {
        self.text("owner")
    }

    /// ACQUIRE: the token already holds the lease; of a pool, the slot, which is renewed by this.
    pub fn yours(&self) -> bool {
        self.is_set("yours")
    }

    /// ACQUIRE: the caller holds what it asked for, a lease or a slot.
    pub fn grants(&self) -> bool {
        self.is_true() || self.yours() || self.slot().is_some()
    }

    /// When trying again may help, milliseconds.
    pub fn retry_after_ms(&self) -> Option<u64> {
        self.number("retry_after_ms")
    }

    /// The operator's text of a BREAK.
    pub fn detail(&self) -> Option<&str> {
        self.text("detail")
    }

    /// A token that waits: waiters before it, kept places included.
    pub fn ahead(&self) -> Option<u64> {
        self.number("ahead")
    }

    /// A token that waits: all waiters of the key, itself included.
    pub fn waiters(&self) -> Option<u64> {
        self.number("waiters")
    }

    /// BATCH `all_or_nothing` of which nothing was done: the first command that was not true, from 0.
    pub fn index(&self) -> Option<u64> {
        self.number("index")
    }

    fn is_set(&self, name: &str) -> bool {
        self.extras.get(name) == Some(&serde_json::Value::Bool(true))
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.extras.get(name)?.as_u64()
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.extras.get(name)?.as_str()
    }
}
