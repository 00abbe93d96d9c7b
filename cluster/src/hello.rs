//! The first words on a connection between nodes: who speaks, of which cluster and group, and in what version.
//!
//! Frozen twins like the rest of what nodes say (`peer.rs`); encoded with `codec` (kind `Hello`). A hello proves nothing
//! by itself: the transport authenticates it, and the node decides whether it deals with the one who says it.

use serde::{Deserialize, Serialize};

use crate::raft::NodeId;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PurposeV1 {
    /// Requests and answers.
    Requests,
    /// One snapshot.
    Snapshot,
}

/// Who speaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelloV1 {
    /// Lowest protocol version spoken.
    pub protocol_min: u16,
    /// Highest protocol version spoken.
    pub protocol_max: u16,
    /// The replicated group: 0 for a node's only one.
    pub group: u64,
    /// The cluster; `None` while the node belongs to none.
    pub cluster: Option<[u8; 16]>,
    /// The node's id.
    pub node: NodeId,
    /// Its data directory's incarnation: a wiped node has another.
    pub incarnation: u64,
    /// It has no data of a cluster: it may be founded, or admitted. With a cluster: it founds that one just now.
    pub empty: bool,
    /// Index of the entry by which its incarnation was taken into the membership, 0 for a founding member: a listener
    /// whose membership is older than that may not judge it.
    pub admitted_at: u64,
    /// `host:port` for clients.
    pub client: String,
    /// `host:port` for peers.
    pub peer: String,
    /// Highest feature level this build supports.
    pub feature_level: u16,
    /// The build's version, for people.
    pub build: String,
    /// What the connection is for.
    pub purpose: PurposeV1,
}
