//! What `GET /v1/watch` tells, as a reader takes it: fields a node leaves out are `None`, unknown ones are skipped.

use serde::{Deserialize, Serialize};

use super::Snapshot;

/// Something happened to a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Event {
    /// Its place in the log of that cluster: a watch resumes after it. Not in the data, but beside it.
    pub id: String,
    /// `created`, `granted`, `renewed`, `released`, `expired`, `broken` or `deleted`. Not in the data, but beside it.
    #[serde(rename = "event")]
    pub kind: String,
    /// The key.
    pub key: String,
    /// The grant's fence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
    /// Who holds, or held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// A pool: which slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// A pool: for which identity; `None`: anonymous.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// What a grant or a renewal gave, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Why the grant ended: one of [`super::reason`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The operator's text of a BREAK.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Position of the command or tick that caused it, `index.n`.
    pub position: String,
    /// The cluster clock then, milliseconds.
    pub clock_ms: u64,
    /// RFC 3339, the leader's wall clock then: informational.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
}

/// A page of a fresh beginning: what was told before may have a gap, and this is how things stand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reset {
    /// `start`, `too_old`, `other_cluster` or `jumped`.
    pub reason: String,
    /// The keys that are watched and exist; `None`: they were not asked for.
    pub keys: Option<Vec<Snapshot>>,
    /// Another page follows.
    pub more: bool,
}

/// The last word of a stream that the node ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cut {
    /// `too_slow` or `leaving`.
    pub reason: String,
}
