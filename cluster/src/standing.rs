//! Where this node stands: it leads, it follows a leader it knows, or it knows of none.
//!
//! Model: one pure value made of what replication says and of whether the log is applied up to this node's own first
//! entry. Everything that depends on who orders commands (proposer, reads, peers' requests) asks here, so that all of
//! them mean the same. A leader named by a vote that no quorum gave, or by a hint in an answer, is none.
//!
//! Not promised: that a leader which is followed still leads. Only a read index or a commit proves that.

use std::sync::Arc;

use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::metrics::RaftServerMetrics;
use openraft::type_config::alias::WatchReceiverOf;

use crate::persisted::VoteV1;
use crate::raft::{AsyncRuntime, NodeId, TypeConfig};
use crate::timekeeper::{Lead, Timekeeper};
use crate::transport::Peer;

/// What replication says of the vote, the leader and the members.
pub type ServerWatch<RT> = WatchReceiverOf<TypeConfig<RT>, RaftServerMetrics<TypeConfig<RT>>>;

/// Where a node stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It leads.
    Leads(Lead),
    /// It is elected, and its own first entry is not applied yet: a matter of moments.
    Elected,
    /// It follows.
    Follows(Followed),
    /// It knows of no leader.
    Leaderless,
}

/// A leadership of another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Followed {
    /// Who leads.
    pub leader: NodeId,
    /// Its term.
    pub term: u64,
}

impl Standing {
    /// Judges what replication says.
    fn of(node: NodeId, lead: Option<Lead>, state: ServerState, vote: VoteV1) -> Self {
        match (lead, state, vote) {
            (Some(lead), ..) => Self::Leads(lead),
            (None, ServerState::Leader, _) => Self::Elected,
            // A node that led before it was restarted still holds its own committed vote: nobody leads by that.
            (None, _, VoteV1 { term, node: Some(leader), committed: true }) if leader != node => {
                Self::Follows(Followed { leader, term })
            }
            _ => Self::Leaderless,
        }
    }

    /// The leader, as far as this node knows; for hints.
    #[must_use]
    pub fn hint(self) -> Option<NodeId> {
        match self {
            Self::Follows(followed) => Some(followed.leader),
            Self::Leads(_) | Self::Elected | Self::Leaderless => None,
        }
    }
}

/// Tells where this node stands, now and when that changes.
pub struct Standings<RT: AsyncRuntime> {
    node: NodeId,
    time: Arc<Timekeeper<RT>>,
    server: ServerWatch<RT>,
}

impl<RT: AsyncRuntime> Clone for Standings<RT> {
    fn clone(&self) -> Self {
        Self { node: self.node, time: Arc::clone(&self.time), server: self.server.clone() }
    }
}

impl<RT: AsyncRuntime> Standings<RT> {
    /// Of `node`, whose replication says `server`.
    pub fn new(node: NodeId, time: Arc<Timekeeper<RT>>, server: ServerWatch<RT>) -> Self {
        Self { node, time, server }
    }

    /// This node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// What replication says.
    pub fn server(&self) -> &ServerWatch<RT> {
        &self.server
    }

    /// Now.
    pub fn now(&self) -> Standing {
        let (state, vote) = {
            let server = self.server.borrow_watched();
            (server.state, VoteV1::from(&server.vote))
        };
        Standing::of(self.node, self.time.lead(), state, vote)
    }

    /// Resolves when this node no longer stands at `was`; never after replication has ended, which the supervisor sees.
    pub async fn leaves(&self, was: Standing) {
        let (mut leading, mut server) = (self.time.leading(), self.server.clone());
        loop {
            leading.mark_unchanged();
            drop(server.borrow_and_update());
            if self.now() != was {
                return;
            }
            let alive = tokio::select! { biased;
                led = leading.changed() => led.is_ok(),
                said = server.changed() => said.is_ok(),
            };
            if !alive {
                return std::future::pending().await;
            }
        }
    }

    /// Where `id` is reached, by the membership as of now; `None` for a stranger.
    pub fn peer(&self, id: NodeId) -> Option<Peer> {
        let server = self.server.borrow_watched();
        let member = server.membership_config.membership().get_node(&id)?;
        Some(Peer { id, member: member.clone(), hints: Vec::new() })
    }
}

/// Tells whether this node leads, now and when that changes. Does not keep the node running.
pub struct Leadership<RT: AsyncRuntime>(Standings<RT>);

impl<RT: AsyncRuntime> Leadership<RT> {
    pub(crate) fn of(standings: &Standings<RT>) -> Self {
        Self(standings.clone())
    }

    /// Does it lead, with all applied that was committed before?
    #[must_use]
    pub fn leads(&self) -> bool {
        matches!(self.0.now(), Standing::Leads(_))
    }

    /// Resolves when that is no longer as it `was`; never after replication has ended.
    pub async fn changed(&self, was: bool) {
        loop {
            let standing = self.0.now();
            if matches!(standing, Standing::Leads(_)) != was {
                return;
            }
            self.0.leaves(standing).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_quorums_vote_for_another_makes_a_leader_to_follow() {
        let vote = |term, node, committed| VoteV1 { term, node: Some(node), committed };
        let lead = Lead { term: 7 };
        let cases = [
            ("it leads", Some(lead), ServerState::Leader, vote(7, 1, true), Standing::Leads(lead)),
            ("elected just now", None, ServerState::Leader, vote(7, 1, true), Standing::Elected),
            (
                "it follows",
                None,
                ServerState::Follower,
                vote(7, 2, true),
                Standing::Follows(Followed { leader: 2, term: 7 }),
            ),
            ("a candidate asks", None, ServerState::Follower, vote(8, 2, false), Standing::Leaderless),
            ("it asks itself", None, ServerState::Candidate, vote(8, 1, false), Standing::Leaderless),
            ("it led before its restart", None, ServerState::Follower, vote(7, 1, true), Standing::Leaderless),
        ];
        for (name, lead, state, vote, expected) in cases {
            assert_eq!(Standing::of(1, lead, state, vote), expected, "{name}");
        }
    }
}
