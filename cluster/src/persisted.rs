//! Frozen twins of openraft's types: what touches the disk or the wire, mapped here and nowhere else.

pub mod old;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::raft::{Batch, Member, NodeId};

/// A log id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LogIdV1 {
    /// Term of the leader that made the entry.
    pub term: u64,
    /// That leader.
    pub node: NodeId,
    /// The entry's index.
    pub index: u64,
}

/// A vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoteV1 {
    /// The term voted in.
    pub term: u64,
    /// The candidate or leader voted for; `None` where the vote names nobody.
    pub node: Option<NodeId>,
    /// Granted by a quorum.
    pub committed: bool,
}

/// A member: where it is reached, and which of its data directories takes part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberV2 {
    /// `host:port` for clients.
    pub client: String,
    /// `host:port` for peers.
    pub peer: String,
    /// Its data directory's incarnation; 0 while it is not known.
    pub incarnation: u64,
}

/// A membership: joint configs (one when uniform) and every member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembershipV2 {
    /// Voter sets; two while a change is under way.
    pub configs: Vec<Vec<NodeId>>,
    /// Every voter and learner.
    pub nodes: Vec<(NodeId, MemberV2)>,
}

/// What an entry carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PayloadV2 {
    /// Nothing: a new leader's first entry.
    Blank,
    /// A batch of commands, encoded.
    Batch(Bytes),
    /// A membership change.
    Membership(MembershipV2),
}

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryV2 {
    /// Its log id.
    pub id: LogIdV1,
    /// What it carries.
    pub payload: PayloadV2,
}

/// What the log's records up to a point add up to: restated in every segment's header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogStateV1 {
    /// The last vote.
    pub vote: Option<VoteV1>,
    /// Committed, as far as told.
    pub committed: Option<LogIdV1>,
    /// Everything up to here was purged.
    pub purged: Option<LogIdV1>,
    /// The last entry, or `purged` when there is none.
    pub last: Option<LogIdV1>,
    /// Index of the first entry; of the next one while there is none.
    pub first: u64,
}

/// A log segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentHeaderV1 {
    /// The segment's number: 1 for a log's first, then one more each.
    pub sequence: u64,
    /// Where the previous segment's last write group ends, its roll record excluded; 0 for the first segment.
    pub previous_end: u64,
    /// Number of the first write group in this segment.
    pub group: u64,
    /// The log before this segment's first record.
    pub state: LogStateV1,
}

type LeaderId = openraft::impls::leader_id_adv::LeaderId<u64, NodeId>;
type RaftPayload = openraft::EntryPayload<Batch, NodeId, Member>;
type RaftMembership = openraft::Membership<NodeId, Member>;
type RaftEntry = openraft::Entry<LeaderId, RaftPayload>;

/// A persisted value that openraft has no place for: a foreign or damaged file that checks out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("persisted value is not one of replication's: {0}")]
pub struct Foreign(String);

impl From<&openraft::LogId<LeaderId>> for LogIdV1 {
    fn from(id: &openraft::LogId<LeaderId>) -> Self {
        Self { term: id.leader_id.term, node: id.leader_id.node_id, index: id.index }
    }
}

impl From<LogIdV1> for openraft::LogId<LeaderId> {
    fn from(id: LogIdV1) -> Self {
        Self { leader_id: LeaderId { term: id.term, node_id: id.node }, index: id.index }
    }
}

impl From<&openraft::Vote<LeaderId>> for VoteV1 {
    fn from(vote: &openraft::Vote<LeaderId>) -> Self {
        Self { term: vote.leader_id.term, node: Some(vote.leader_id.node_id), committed: vote.committed }
    }
}

impl TryFrom<VoteV1> for openraft::Vote<LeaderId> {
    type Error = Foreign;

    /// A vote here always names a node (`leader_id_adv`).
    fn try_from(vote: VoteV1) -> Result<Self, Foreign> {
        let node_id = vote.node.ok_or_else(|| Foreign("a vote without a node".to_owned()))?;
        Ok(Self { leader_id: LeaderId { term: vote.term, node_id }, committed: vote.committed })
    }
}

impl From<&Member> for MemberV2 {
    fn from(member: &Member) -> Self {
        Self { client: member.client.clone(), peer: member.peer.clone(), incarnation: member.incarnation }
    }
}

impl From<MemberV2> for Member {
    fn from(member: MemberV2) -> Self {
        Self { client: member.client, peer: member.peer, incarnation: member.incarnation }
    }
}

impl From<&RaftMembership> for MembershipV2 {
    fn from(membership: &RaftMembership) -> Self {
        Self {
            configs: membership.get_joint_config().iter().map(|voters| voters.iter().copied().collect()).collect(),
            nodes: membership.nodes().map(|(id, member)| (*id, member.into())).collect(),
        }
    }
}

impl TryFrom<MembershipV2> for RaftMembership {
    type Error = Foreign;

    /// Every voter needs a node.
    fn try_from(membership: MembershipV2) -> Result<Self, Foreign> {
        let configs = membership.configs.into_iter().map(BTreeSet::from_iter).collect();
        let nodes: BTreeMap<NodeId, Member> =
            membership.nodes.into_iter().map(|(id, member)| (id, member.into())).collect();
        Self::new(configs, nodes).map_err(|error| Foreign(error.to_string()))
    }
}

impl From<&RaftEntry> for EntryV2 {
    fn from(entry: &RaftEntry) -> Self {
        let payload = match &entry.payload {
            RaftPayload::Blank => PayloadV2::Blank,
            RaftPayload::Normal(batch) => PayloadV2::Batch(batch.0.clone()),
            RaftPayload::Membership(membership) => PayloadV2::Membership(membership.into()),
        };
        Self { id: LogIdV1::from(&entry.log_id), payload }
    }
}

impl TryFrom<EntryV2> for RaftEntry {
    type Error = Foreign;

    fn try_from(entry: EntryV2) -> Result<Self, Foreign> {
        let payload = match entry.payload {
            PayloadV2::Blank => RaftPayload::Blank,
            PayloadV2::Batch(bytes) => RaftPayload::Normal(Batch(bytes)),
            PayloadV2::Membership(membership) => RaftPayload::Membership(membership.try_into()?),
        };
        Ok(Self { log_id: entry.id.into(), payload })
    }
}
