//! Hands leadership over, through one gate.
//!
//! Why a gate: replication checks nothing of who is to take over, refuses commands from then on and falls silent, and
//! cannot be called back. With a successor that cannot be reached, or lacks entries, that is an outage of an election
//! timeout and more. So a leader stays unless a voter is connected, answered a heartbeat just now, and has the whole log.
//!
//! Model: the gate is a pure function of what the leader knows. While leadership is handed over nothing new is proposed
//! (`proposer.rs`): what waits goes to the successor, and no submitter notices.
//!
//! Not promised: that the chosen one wins. If it dies at that moment, an election takes its time, as after any crash.

use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::Instant;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::type_config::TypeConfigExt;
use tokio::sync::watch;

use crate::cluster::Node;
use crate::log_gauge::LogGauge;
use crate::raft::{AsyncRuntime, NodeId, Raft, TypeConfig};
use crate::standing::{Standing, Standings};
use crate::transport::Transport;

/// Entries that a successor may lack when it is chosen; it gets them before it is asked.
const REACH_ENTRIES: u64 = 256;
/// Pause between two tries of a leader whose disk is full.
const FULL_DISK_AFTER: Duration = Duration::from_secs(1);

/// Leadership was not handed over. One line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTarget {
    /// There is nothing to hand over.
    #[error("this node does not lead")]
    NotLeader,
    /// One at a time.
    #[error("leadership is being handed over already")]
    UnderWay,
    /// Nobody else votes.
    #[error("this node is the only voter")]
    Alone,
    /// It is the leader.
    #[error("node {0} leads already")]
    Itself(NodeId),
    /// It does not vote.
    #[error("node {0} is no voter of this cluster")]
    NotAVoter(NodeId),
    /// It cannot be reached.
    #[error("node {0} is not connected; try again when it is")]
    NotConnected(NodeId),
    /// Its disk or its link is too slow, or it stands still.
    #[error("node {0} has not answered the last heartbeats; try again when it does")]
    Silent(NodeId),
    /// It would not be elected.
    #[error("node {0} lacks entries of the log; try again when it has caught up")]
    Behind(NodeId),
    /// Nobody was named, and nobody is fit.
    #[error("no other voter is connected, answers and has the whole log")]
    NobodyFit,
    /// It was asked; an election decides who leads.
    #[error("node {0} did not take over in time; an election decides")]
    NotTaken(NodeId),
}

/// What a leader knows of another voter.
#[derive(Clone, Debug)]
struct Candidate {
    id: NodeId,
    is_connected: bool,
    /// Since the last heartbeat was sent that it answered.
    heartbeat_age: Option<Duration>,
    /// Entries of the log that it lacks.
    lag: u64,
}

impl Candidate {
    /// May it take over, if it lacks at most `reach` entries?
    fn check(&self, heartbeat: Duration, reach: u64) -> Result<(), NoTarget> {
        if !self.is_connected {
            Err(NoTarget::NotConnected(self.id))
        } else if self.heartbeat_age.is_none_or(|age| age >= heartbeat * 2) {
            Err(NoTarget::Silent(self.id))
        } else if self.lag > reach {
            Err(NoTarget::Behind(self.id))
        } else {
            Ok(())
        }
    }
}

/// Who is to take over: the wanted one, else the one that lacks least, the lowest id among equals.
fn target(
    node: NodeId,
    others: &[Candidate],
    wanted: Option<NodeId>,
    heartbeat: Duration,
    reach: u64,
) -> Result<NodeId, NoTarget> {
    if wanted == Some(node) {
        return Err(NoTarget::Itself(node));
    }
    if let Some(id) = wanted {
        let wanted = others.iter().find(|other| other.id == id).ok_or(NoTarget::NotAVoter(id))?;
        return wanted.check(heartbeat, reach).map(|()| id);
    }
    if others.is_empty() {
        return Err(NoTarget::Alone);
    }
    let fit = others.iter().filter(|other| other.check(heartbeat, reach).is_ok());
    fit.min_by_key(|other| (other.lag, other.id)).map(|other| other.id).ok_or(NoTarget::NobodyFit)
}

/// See the module's head.
pub struct Transfer<RT: AsyncRuntime> {
    raft: Raft<RT>,
    standings: Standings<RT>,
    transport: Arc<dyn Transport>,
    handing_over: watch::Sender<bool>,
    /// The heartbeats' distance.
    heartbeat: Duration,
    /// T.
    limit: Duration,
}

/// While it lives nothing new is proposed.
struct Hold<'a>(&'a watch::Sender<bool>);

impl<'a> Hold<'a> {
    fn begin(handing_over: &'a watch::Sender<bool>) -> Result<Self, NoTarget> {
        let first = handing_over.send_if_modified(|is_on| !std::mem::replace(is_on, true));
        if first { Ok(Self(handing_over)) } else { Err(NoTarget::UnderWay) }
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.send_replace(false);
    }
}

impl<RT: AsyncRuntime> Transfer<RT> {
    /// The gate of `node`.
    pub(crate) fn new(node: &Node<RT>) -> Self {
        Self {
            raft: node.raft.clone(),
            standings: node.standings.clone(),
            transport: Arc::clone(&node.transport),
            handing_over: node.handing_over.clone(),
            heartbeat: Duration::from_millis(node.raft.config().heartbeat_interval),
            limit: node.limit,
        }
    }

    /// Hands leadership over and returns who leads then.
    ///
    /// # Errors
    /// [`NoTarget`]: this node leads on, unless it is `NotLeader` or `NotTaken`.
    pub async fn hand_over(&self, wanted: Option<NodeId>) -> Result<NodeId, NoTarget> {
        let standing = self.standings.now();
        let Standing::Leads(_) = standing else { return Err(NoTarget::NotLeader) };
        let mut to = self.target(wanted, REACH_ENTRIES)?;
        let _hold = Hold::begin(&self.handing_over)?;
        // Nothing is proposed any more: what is in flight arrives, and the successor lacks nothing.
        let caught_up = TypeConfig::<RT>::timeout(self.limit / 2, self.caught_up(to)).await;
        if caught_up.is_err() {
            to = self.target(wanted, 0)?;
        }
        if self.standings.now() != standing {
            return Err(NoTarget::NotLeader);
        }
        self.raft.trigger().transfer_leader(to).await.map_err(|_| NoTarget::NotLeader)?;
        let taken = TypeConfig::<RT>::timeout(self.limit * 2, self.next_leader(standing)).await;
        taken.map_err(|_| NoTarget::NotTaken(to))
    }

    /// Resolves when `to` may take over at this moment.
    async fn caught_up(&self, to: NodeId) {
        let mut metrics = self.raft.metrics();
        loop {
            drop(metrics.borrow_and_update());
            if self.target(Some(to), 0).is_ok() {
                return;
            }
            if metrics.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Who leads after `standing`, this node itself included.
    async fn next_leader(&self, mut standing: Standing) -> NodeId {
        loop {
            self.standings.leaves(standing).await;
            standing = self.standings.now();
            match standing {
                Standing::Leads(_) => return self.standings.node(),
                Standing::Follows(followed) => return followed.leader,
                Standing::Elected | Standing::Leaderless => {}
            }
        }
    }

    /// Who is to take over, by what this leader knows now.
    fn target(&self, wanted: Option<NodeId>, reach: u64) -> Result<NodeId, NoTarget> {
        let node = self.standings.node();
        target(node, &self.others(node), wanted, self.heartbeat, reach)
    }

    /// The other voters.
    fn others(&self, node: NodeId) -> Vec<Candidate> {
        let links = self.transport.links();
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let last = metrics.last_log_index.unwrap_or(0);
        let now = TypeConfig::<RT>::now();
        let candidate = |id: NodeId| {
            let matched = metrics.replication.as_ref().and_then(|all| all.get(&id)?.as_ref());
            let answered = metrics.heartbeat.as_ref().and_then(|all| *all.get(&id)?);
            Candidate {
                id,
                is_connected: links.get(&id).is_some_and(|link| link.connected),
                heartbeat_age: answered.map(|sent| now.saturating_duration_since(sent.into_inner())),
                lag: last.saturating_sub(matched.map_or(0, |id| id.index)),
            }
        };
        let voters = metrics.membership_config.membership().voter_ids();
        voters.filter(|id| *id != node).map(candidate).collect()
    }

    /// Hands over while the disk is full, as soon as there is somebody to hand over to; runs until the node stops.
    pub async fn leave_full_disk(self, log: Arc<dyn LogGauge>) {
        loop {
            TypeConfig::<RT>::sleep(FULL_DISK_AFTER).await;
            if log.disk_full() && matches!(self.standings.now(), Standing::Leads(_)) {
                // Without a target it leads on, and tries again.
                let _ = self.hand_over(None).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(id: NodeId) -> Candidate {
        Candidate { id, is_connected: true, heartbeat_age: Some(Duration::from_millis(90)), lag: 0 }
    }

    #[test]
    fn only_a_voter_that_can_win_at_once_takes_over() {
        let others = [
            Candidate { lag: 2, ..fit(2) },
            fit(3),
            fit(4),
            Candidate { is_connected: false, ..fit(5) },
            Candidate { heartbeat_age: Some(Duration::from_millis(200)), ..fit(6) },
            Candidate { heartbeat_age: None, ..fit(7) },
            Candidate { lag: 300, ..fit(8) },
        ];
        let cases = [
            (None, Ok(3)),
            (Some(2), Ok(2)),
            (Some(4), Ok(4)),
            (Some(1), Err(NoTarget::Itself(1))),
            (Some(5), Err(NoTarget::NotConnected(5))),
            (Some(6), Err(NoTarget::Silent(6))),
            (Some(7), Err(NoTarget::Silent(7))),
            (Some(8), Err(NoTarget::Behind(8))),
            (Some(9), Err(NoTarget::NotAVoter(9))),
        ];
        let heartbeat = Duration::from_millis(100);
        for (wanted, expected) in cases {
            assert_eq!(target(1, &others, wanted, heartbeat, REACH_ENTRIES), expected, "{wanted:?}");
        }
        assert_eq!(target(1, &[], None, heartbeat, 0), Err(NoTarget::Alone));
        assert_eq!(target(1, &others[3..], None, heartbeat, 0), Err(NoTarget::NobodyFit));
        assert_eq!(target(1, &others[..1], Some(2), heartbeat, 0), Err(NoTarget::Behind(2)));
    }
}
