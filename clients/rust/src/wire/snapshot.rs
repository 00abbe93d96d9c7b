//! What GET and SCAN answer, as a reader takes it: fields a node leaves out are `None`, unknown ones are skipped.

use serde::{Deserialize, Serialize};

use super::pool::{KeyOptions, SlotCounts};

/// GET: a lease, also a free one, or a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// The key.
    pub key: String,
    /// `lease` or `pool`.
    #[serde(rename = "type")]
    pub kind: String,
    /// A non-expired grant exists; of a pool: one at least.
    pub held: bool,
    /// Who holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The grant's fence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
    /// Remaining time of the grant, at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Since the grant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_for_ms: Option<u64>,
    /// RFC 3339, the leader's wall clock at the grant: informational.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acquired_at: Option<String>,
    /// The holder's note.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Broken by an operator and in its grace: the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
    /// How many wait.
    pub waiters: u64,
    /// 0: can be acquired now; else the least time until it could be.
    pub acquirable_in_ms: u64,
    /// The options.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub options: Option<KeyOptions>,
    /// Position of the key's last change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Remaining lifetime of the key; `None`: no end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_ttl_ms: Option<u64>,
    /// Made by ACQUIRE with `create`: vanishes 24 h after it became free.
    pub auto_created: bool,
    /// The grant that ended last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<EndedGrant>,
    /// A pool: its uuid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// A pool: how its slots stand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<SlotCounts>,
}

/// A grant that ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EndedGrant {
    /// Its fence.
    pub fence: u64,
    /// Who held.
    pub owner: String,
    /// How it ended: `released`, `expired`, `broken`, …
    pub reason: String,
    /// How long ago.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_ms_ago: Option<u64>,
    /// The operator's text of a BREAK.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// SCAN: one page, in byte order of the keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScanPage {
    /// The keys.
    pub keys: Vec<Snapshot>,
    /// Where the next page starts; `None`: that was all.
    pub cursor: Option<String>,
}
