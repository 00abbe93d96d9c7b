//! Versions of persisted types that this build reads and no longer writes. Frozen; each knows only how to become the
//! next version.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{EntryV2, LogIdV1, MemberV2, MembershipV2, PayloadV2};
use crate::raft::NodeId;

/// A membership before members had an incarnation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembershipV1 {
    /// Voter sets; two while a change is under way.
    pub configs: Vec<Vec<NodeId>>,
    /// Every voter and learner: id, client address, peer address.
    pub nodes: Vec<(NodeId, String, String)>,
}

/// What an entry carries, with [`MembershipV1`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PayloadV1 {
    /// Nothing: a new leader's first entry.
    Blank,
    /// A batch of commands, encoded.
    Batch(Bytes),
    /// A membership change.
    Membership(MembershipV1),
}

/// An entry with [`PayloadV1`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryV1 {
    /// Its log id.
    pub id: LogIdV1,
    /// What it carries.
    pub payload: PayloadV1,
}

impl From<MembershipV1> for MembershipV2 {
    /// Nobody's incarnation is known yet.
    fn from(old: MembershipV1) -> Self {
        let member = |(id, client, peer)| (id, MemberV2 { client, peer, incarnation: 0 });
        Self { configs: old.configs, nodes: old.nodes.into_iter().map(member).collect() }
    }
}

impl From<EntryV1> for EntryV2 {
    fn from(old: EntryV1) -> Self {
        let payload = match old.payload {
            PayloadV1::Blank => PayloadV2::Blank,
            PayloadV1::Batch(bytes) => PayloadV2::Batch(bytes),
            PayloadV1::Membership(membership) => PayloadV2::Membership(membership.into()),
        };
        Self { id: old.id, payload }
    }
}
