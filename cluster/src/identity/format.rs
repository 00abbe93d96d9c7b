//! What the identity file says, in every version.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::codec::{self, DecodeError, EncodeError, Kind};
use crate::error::Remedy;
use crate::raft::NodeId;

/// The version of the identity file that this build writes. It reads all before.
const VERSION: u16 = 2;

/// A cluster's id.
pub type ClusterId = [u8; 16];

/// A cluster id as 32 hexadecimal digits.
#[must_use]
pub fn hex(cluster: &ClusterId) -> String {
    cluster.iter().fold(String::with_capacity(32), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The cluster that a node belongs to. Frozen: part of version 2 of the identity file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Belonging {
    /// The cluster, drawn at random when it was founded.
    pub cluster: ClusterId,
    /// The wall clock when the cluster was founded, Unix milliseconds.
    pub founded_wall_ms: u64,
    /// This node founds it: while its log is empty, the cluster's first entry has not been written by anybody.
    pub founder: bool,
    /// Index of the entry by which the node's incarnation was taken into the membership; 0 for one that was there when
    /// the cluster was founded. Whoever knows only an older membership is behind.
    pub admitted_at: u64,
}

/// Whose a data directory is. Frozen: version 2 of the identity file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The node.
    pub node_id: NodeId,
    /// Drawn at random for this directory: another directory of the same node has another.
    pub incarnation: u64,
    /// It was made for a cluster of several nodes: it never founds one by itself alone.
    pub several: bool,
    /// The cluster, once the node belongs to one.
    pub belonging: Option<Belonging>,
}

/// Version 1, of single nodes alone. Frozen; no longer written.
#[derive(Serialize, Deserialize)]
struct IdentityV1 {
    cluster_id: ClusterId,
    node_id: NodeId,
    incarnation: u64,
    founded_wall_ms: u64,
}

impl From<IdentityV1> for Identity {
    fn from(old: IdentityV1) -> Self {
        let belonging =
            Belonging { cluster: old.cluster_id, founded_wall_ms: old.founded_wall_ms, founder: true, admitted_at: 0 };
        Self { node_id: old.node_id, incarnation: old.incarnation, several: false, belonging: Some(belonging) }
    }
}

impl Identity {
    /// The cluster id as 32 hexadecimal digits; empty while there is none.
    #[must_use]
    pub fn cluster_id_hex(&self) -> String {
        self.belonging.map_or_else(String::new, |belonging| hex(&belonging.cluster))
    }

    /// "node 2 of cluster 00ff…", for people.
    #[must_use]
    pub fn name(&self) -> String {
        match self.belonging {
            Some(belonging) => format!("node {} of cluster {}", self.node_id, hex(&belonging.cluster)),
            None => format!("node {} of a cluster that is not founded yet", self.node_id),
        }
    }

    /// How to go on when the node's data is damaged.
    #[must_use]
    pub fn remedy(&self) -> Remedy {
        if self.several { Remedy::Replace(self.node_id) } else { Remedy::Backup }
    }

    pub(crate) fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        codec::encode(Kind::Identity, VERSION, self)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (version, body) = codec::open(Kind::Identity, VERSION, bytes)?;
        match version {
            1 => codec::decode_body::<IdentityV1>(Kind::Identity, body).map(Into::into),
            _ => codec::decode_body(Kind::Identity, body),
        }
    }
}
