//! What a node does, as long as it takes part, to stay in touch: it tells the cluster where it is itself when the
//! membership says otherwise and, while it leads, gives a replaced member its vote back.
//!
//! Everything is done again until it is so: with a growing pause up to [`PAUSE_MAX`], and at once when the membership or
//! the leader changes.

use std::sync::Arc;
use std::time::Duration;

use openraft::ChangeMembers;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::async_runtime::{Instant, Select2};
use openraft::type_config::TypeConfigExt;
use openraft::type_config::alias::InstantOf;

use super::doorman::Register;
use super::run::ask_peer;
use crate::error::StopReason;
use crate::peer::{AdmitV1, AdmittedV1, PeerRequestV1};
use crate::raft::{AsyncRuntime, Member, NodeId, Raft, TypeConfig};
use crate::standing::ServerWatch;
use crate::stop::Stop;
use crate::timekeeper::Timekeeper;
use crate::transport::{Peer, Transport};

/// How often the node looks after what has no event of its own: a peer's first words.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Least and greatest pause before the node says again where it is.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How long a change of the membership may stand between its two steps.
const HALF_WAY_MAX: Duration = Duration::from_secs(2);
/// Entries that a member without a vote may be behind when it gets one.
const LAG_MAX: u64 = 100;

/// See the module's head.
pub struct Attendance<RT: AsyncRuntime> {
    /// This node.
    pub node: NodeId,
    /// This node as a member.
    pub member: Member,
    /// Replication.
    pub raft: Raft<RT>,
    /// For the membership and the leader.
    pub server: ServerWatch<RT>,
    /// Whether this node leads.
    pub time: Arc<Timekeeper<RT>>,
    /// The way to the peers.
    pub transport: Arc<dyn Transport>,
    /// How the node stops when the cluster has replaced it.
    pub stop: Arc<Stop>,
    /// How long a change of the membership may take.
    pub request_timeout: Duration,
}

impl<RT: AsyncRuntime> Attendance<RT> {
    /// Runs until it is dropped.
    pub async fn run(mut self) {
        let (mut pause, mut half_way) = (PAUSE_MIN, None);
        loop {
            let now = {
                let server = self.server.borrow_and_update();
                Register(Arc::clone(&server.committed_membership_config))
            };
            let is_settled = self.announce(&now).await;
            self.finish_change(&mut half_way).await;
            self.promote(&now).await;
            let after = if is_settled {
                pause = PAUSE_MIN;
                LOOK_EVERY
            } else {
                let after = pause;
                pause = (pause * 2).min(PAUSE_MAX);
                after
            };
            let changed = async { self.server.changed().await.is_ok() };
            let next = TypeConfig::<RT>::select2(changed, TypeConfig::<RT>::sleep(after)).await;
            if let Select2::First(false) = next {
                return;
            }
        }
    }

    /// Says where this node is, if the membership says otherwise. `true`: nothing is left to be said.
    async fn announce(&self, register: &Register) -> bool {
        let Some(known) = register.get(self.node) else { return true };
        if *known == self.member {
            return true;
        }
        let Member { client, peer, incarnation } = self.member.clone();
        if self.time.lead().is_some() && [0, incarnation].contains(&known.incarnation) {
            let moved = ChangeMembers::SetNodes([(self.node, self.member.clone())].into());
            let change = self.raft.change_membership(moved, true);
            return matches!(TypeConfig::<RT>::timeout(self.request_timeout, change).await, Ok(Ok(_)));
        }
        let admit = AdmitV1 { node: self.node, incarnation, client, peer };
        for peer in self.whom_to_tell(register) {
            match ask_peer::<RT>(&*self.transport, peer, PeerRequestV1::Admit(admit.clone())).await {
                Ok(AdmittedV1::Yes { .. }) => return true,
                Ok(AdmittedV1::Later(_)) | Err(_) => {}
                Ok(AdmittedV1::No(line)) => {
                    self.stop.stop(StopReason::Refused(line));
                    return true;
                }
            }
        }
        false
    }

    /// The leader, if one is known; else every member that can be reached, each of which passes on what it is told: a
    /// leader that does not know where this node is cannot tell it that it leads.
    fn whom_to_tell(&self, register: &Register) -> Vec<Peer> {
        let leader = self.server.borrow_watched().current_leader.filter(|leader| *leader != self.node);
        let links = self.transport.links();
        let is_asked = |id: NodeId| match leader {
            Some(leader) => id == leader,
            None => id != self.node && links.get(&id).is_some_and(|link| link.connected),
        };
        let asked = register.members().filter(|(id, _)| is_asked(*id));
        asked.map(|(id, member)| Peer { id, member: member.clone(), hints: Vec::new() }).collect()
    }

    /// Ends a change of the membership whose leader went away between its two steps: until then both the old and the
    /// new voters must agree to everything.
    async fn finish_change(&self, since: &mut Option<InstantOf<TypeConfig<RT>>>) {
        let is_half_way = {
            let server = self.server.borrow_watched();
            let (known, committed) = (&server.membership_config, &server.committed_membership_config);
            known.membership().get_joint_config().len() > 1 && known.log_id() == committed.log_id()
        };
        if self.time.lead().is_none() || !is_half_way {
            *since = None;
            return;
        }
        // Whoever makes the change now takes its second step at once.
        let now = TypeConfig::<RT>::now();
        if now.saturating_duration_since(*since.get_or_insert(now)) < HALF_WAY_MAX {
            return;
        }
        let change = self.raft.change_membership(ChangeMembers::AddVoterIds([].into()), true);
        match TypeConfig::<RT>::timeout(self.request_timeout, change).await {
            Ok(Ok(_)) => tracing::info!("a change of the membership that was left half-way is ended"),
            Ok(Err(error)) => tracing::debug!("a change of the membership was not ended: {error}"),
            Err(_) => tracing::debug!("a change of the membership was not ended in time"),
        }
    }

    /// Gives a vote to a member without one, once it is there as the membership knows it and has caught up.
    async fn promote(&self, register: &Register) {
        if self.time.lead().is_none() {
            return;
        }
        let ready = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let last = metrics.last_log_index.unwrap_or(0);
            let has = |id: NodeId| metrics.replication.as_ref()?.get(&id)?.as_ref().map(|id| id.index);
            let voters: Vec<NodeId> = metrics.membership_config.membership().voter_ids().collect();
            let links = self.transport.links();
            let is_there = |id: NodeId, member: &Member| {
                let hello = links.get(&id).filter(|link| link.connected).and_then(|link| link.hello.as_ref());
                hello.is_some_and(|hello| hello.cluster.is_some() && hello.incarnation == member.incarnation)
            };
            let waiting = register.members().filter(|(id, _)| !voters.contains(id));
            let mut ready = waiting.filter(|(id, member)| {
                member.incarnation != 0 && is_there(*id, member) && has(*id).is_some_and(|has| has + LAG_MAX >= last)
            });
            ready.next().map(|(id, _)| id)
        };
        let Some(id) = ready else { return };
        let change = self.raft.change_membership(ChangeMembers::AddVoterIds([id].into()), true);
        match TypeConfig::<RT>::timeout(self.request_timeout, change).await {
            Ok(Ok(_)) => tracing::info!("node {id} has caught up and votes now"),
            Ok(Err(error)) => tracing::debug!("node {id} was not given its vote: {error}"),
            Err(_) => tracing::debug!("node {id} was not given its vote in time"),
        }
    }
}
