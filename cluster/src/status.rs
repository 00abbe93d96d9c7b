//! A node's state, for people and probes.

use std::time::Duration;

use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;

use crate::cluster::Node;
use crate::machine::Stamp;
use crate::raft::{AsyncRuntime, NodeId};

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
    /// Bytes of log segments on disk, the spare included.
    pub log_bytes: u64,
    /// Why this node cannot commit right now: `no_leader`, `no_quorum`, `disk_full`, `disk_slow`, `recovering`; `None` when it can.
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
            last_index: metrics.last_log_index.unwrap_or(0),
            committed_index: metrics.local_committed.map_or(0, |id| id.index),
            applied_index: mark.index(),
            clock: mark.stamp,
            snapshot: self.snapshots.get(),
            log_bytes: self.log.disk_bytes(),
            not_ready: self.not_ready(),
        }
    }

    /// The cluster's feature level, as far as this node has applied.
    pub(crate) fn feature_level(&self) -> u16 {
        self.mark.borrow().feature_level
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

    /// Why the node cannot commit now; `None` when it can.
    pub(crate) fn not_ready(&self) -> Option<&'static str> {
        if self.stop.is_stopping() {
            return Some("no_leader");
        }
        if self.log.disk_full() {
            return Some("disk_full");
        }
        let (state, leader) = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            (metrics.state, metrics.current_leader)
        };
        match (state, leader) {
            (ServerState::Leader, _) if self.time.lead().is_none() => Some("recovering"),
            (ServerState::Leader, _) if self.time.quorum_age() >= self.limit => Some("no_quorum"),
            (ServerState::Leader, _) if self.time.is_stuck() => Some("disk_slow"),
            (ServerState::Leader, _) | (_, Some(_)) => None,
            (_, None) => Some("no_leader"),
        }
    }
}
