//! A node's state, for people and probes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::metrics::RaftMetrics;

use crate::cluster::Node;
use crate::machine::Stamp;
use crate::raft::{AsyncRuntime, NodeId, TypeConfig};
use crate::standing::Standing;
use crate::transport::LinkState;

/// A node's part in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Orders the commands.
    Leader,
    /// Follows a leader.
    Follower,
    /// Asks for votes.
    Candidate,
    /// Receives the log without a vote.
    Learner,
    /// Stopped.
    Stopped,
}

/// A node's state, for people and probes.
#[derive(Clone, Debug)]
pub struct Status {
    /// This cluster's id: 32 hexadecimal digits.
    pub cluster_id: String,
    /// This node's id.
    pub node_id: NodeId,
    /// Its part.
    pub role: Role,
    /// The current term.
    pub term: u64,
    /// The leader this node knows of, if any.
    pub leader: Option<NodeId>,
    /// Voters and learners: id and addresses.
    pub members: Vec<(NodeId, crate::raft::Member)>,
    /// Those of them that vote.
    pub voters: BTreeSet<NodeId>,
    /// Last log index on this node.
    pub last_index: u64,
    /// Last index known to be committed.
    pub committed_index: u64,
    /// Last applied index.
    pub applied_index: u64,
    /// The last applied stamp.
    pub clock: Stamp,
    /// Index up to which the last snapshot reaches, its size and its age since it was taken or opened.
    pub snapshot: Option<(u64, u64, Duration)>,
    /// The cluster's feature level, as far as this node has applied.
    pub feature_level: u16,
    /// Bytes of log segments on disk, the spare included.
    pub log_bytes: u64,
    /// The ways to the other members, by id.
    pub links: BTreeMap<NodeId, LinkState>,
    /// On a leader: how many entries of its log each other member lacks, by id.
    pub lag: BTreeMap<NodeId, u64>,
    /// Why this node cannot commit right now: `no_leader` (a follower says so too when its leader is not connected),
    /// `no_quorum`, `disk_full`, `disk_slow`, `recovering` (also without a vote); `None` when it can.
    pub not_ready: Option<&'static str>,
}

impl<RT: AsyncRuntime> Node<RT> {
    /// The node's state now.
    pub(crate) fn status(&self) -> Status {
        let metrics = self.raft.metrics().borrow_watched().clone();
        let mark = *self.mark.borrow();
        let members = metrics.membership_config.membership().nodes();
        Status {
            cluster_id: self.cluster_id.clone(),
            node_id: self.node_id,
            role: self.role(metrics.state),
            term: metrics.current_term,
            leader: metrics.current_leader,
            members: members.map(|(id, member)| (*id, member.clone())).collect(),
            voters: metrics.membership_config.membership().voter_ids().collect(),
            last_index: metrics.last_log_index.unwrap_or(0),
            committed_index: metrics.local_committed.map_or(0, |id| id.index),
            applied_index: mark.index(),
            clock: mark.stamp,
            snapshot: self.snapshots.get(),
            feature_level: mark.feature_level,
            log_bytes: self.log.disk_bytes(),
            links: self.transport.links(),
            lag: lag(&metrics),
            not_ready: self.not_ready(),
        }
    }

    fn role(&self, state: ServerState) -> Role {
        match state {
            _ if self.stop.is_stopping() => Role::Stopped,
            ServerState::Leader => Role::Leader,
            ServerState::Follower => Role::Follower,
            ServerState::Candidate => Role::Candidate,
            ServerState::Learner => Role::Learner,
            ServerState::Shutdown => Role::Stopped,
        }
    }

    /// Does it vote? One that was replaced does not until it has caught up.
    fn is_voter(&self) -> bool {
        let server = self.standings.server().borrow_watched();
        server.membership_config.membership().voter_ids().any(|voter| voter == self.node_id)
    }

    /// Why the node cannot commit now; `None` when it can.
    pub(crate) fn not_ready(&self) -> Option<&'static str> {
        if self.stop.is_stopping() {
            return Some("no_leader");
        }
        if self.log.disk_full() {
            return Some("disk_full");
        }
        match self.standings.now() {
            Standing::Elected => Some("recovering"),
            Standing::Leads(_) if self.time.quorum_age().is_none_or(|age| age >= self.limit) => Some("no_quorum"),
            Standing::Leads(_) if self.time.is_stuck() => Some("disk_slow"),
            Standing::Leads(_) => None,
            Standing::Follows(followed) => {
                let links = self.transport.links();
                let connected = links.get(&followed.leader).is_some_and(|link| link.connected);
                match (connected, self.is_current() && self.is_voter()) {
                    (false, _) => Some("no_leader"),
                    (true, false) => Some("recovering"),
                    (true, true) => None,
                }
            }
            Standing::Leaderless => Some("no_leader"),
        }
    }
}

/// How many entries each other member lacks, as a leader knows; empty on others.
fn lag<RT: AsyncRuntime>(metrics: &RaftMetrics<TypeConfig<RT>>) -> BTreeMap<NodeId, u64> {
    let last = metrics.last_log_index.unwrap_or(0);
    let known = metrics.replication.iter().flatten().filter(|(id, _)| **id != metrics.id);
    known.map(|(id, matched)| (*id, last.saturating_sub(matched.as_ref().map_or(0, |id| id.index)))).collect()
}
