//! Replaces a voter whose data directory was lost, so that an empty one may take its place.
//!
//! Two changes of the membership: the voter is removed, altogether, so that nothing is left of how far its log was; and
//! the node is added again without a vote and without an incarnation. Then an empty directory is admitted under its id
//! (see `admission`), and gets its vote back when its log has caught up (see `attendance`). Each step may be cut short
//! and the command repeated. What the lost voter had promised can no longer be asked for: from the first change on no
//! majority counts it, and that change is committed by the others alone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use openraft::ChangeMembers;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::type_config::TypeConfigExt;

use super::doorman::Register;
use super::{Peers, at};
use crate::cluster::{Cluster, Node};
use crate::error::ReplaceError;
use crate::machine::StateMachine;
use crate::peer::{PeerAnswerV1, PeerRequestV1, ReplacedV1};
use crate::raft::{AsyncRuntime, Member, NodeId, TypeConfig};
use crate::transport::LinkState;

/// How long the two changes may take.
const CHANGE_WITHIN: Duration = Duration::from_secs(20);

/// What the leader knows of its cluster.
pub struct Scene<'a> {
    /// The leader.
    pub me: NodeId,
    /// Voter sets: two while a change is under way.
    pub voters: Vec<BTreeSet<NodeId>>,
    /// The membership.
    pub register: &'a Register,
    /// The links.
    pub links: BTreeMap<NodeId, LinkState>,
    /// `--peers`.
    pub peers: &'a Peers,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The member must be removed first.
    pub remove: bool,
    /// What is added then.
    pub add: Member,
}

/// Plans the replacement of `id`.
///
/// # Errors
/// Why it is not to be replaced, in one line.
pub fn plan(scene: &Scene<'_>, id: NodeId) -> Result<Plan, String> {
    if id == scene.me {
        return Err(format!("node {id} leads, so it has its data: there is nothing to replace"));
    }
    let Some(member) = scene.register.get(id) else {
        let address = scene.peers.get(&id).ok_or_else(|| format!("node {id} is not a member, nor in --peers"))?;
        return Ok(Plan { remove: false, add: at(address) });
    };
    let link = scene.links.get(&id).filter(|link| link.connected);
    if link.and_then(|link| link.hello.as_ref()).is_some_and(|hello| hello.incarnation == member.incarnation) {
        return Err(format!("node {id} is there with the data directory it always had: there is nothing to replace"));
    }
    let is_voter = scene.voters.iter().any(|set| set.contains(&id));
    let here = |voter: &NodeId| *voter == scene.me || scene.links.get(voter).is_some_and(|link| link.connected);
    for set in &scene.voters {
        let rest: BTreeSet<NodeId> = set.iter().copied().filter(|voter| *voter != id).collect();
        let there = rest.iter().filter(|voter| here(voter)).count();
        if there * 2 <= set.len() || there * 2 <= rest.len() {
            return Err(format!(
                "only {there} of the other {} voters answer: without a majority of all {} nothing can be decided; start \
                 them first",
                rest.len(),
                set.len()
            ));
        }
    }
    let unknown = member.incarnation == 0 && !is_voter;
    Ok(Plan { remove: !unknown, add: Member { incarnation: 0, ..member.clone() } })
}

impl<M: StateMachine, RT: AsyncRuntime> Cluster<M, RT> {
    /// Lets an empty data directory take the place of the one that voter `id` has lost. Returns once it may be started;
    /// it gets its vote back by itself when it has caught up. To be repeated when it is cut short.
    ///
    /// # Errors
    /// [`ReplaceError`]: refused, or no leader could be asked.
    pub async fn replace(&self, id: NodeId) -> Result<(), ReplaceError> {
        let node = self.node();
        let Some(leader) = node.standings.now().hint().and_then(|leader| node.standings.peer(leader)) else {
            return node.replace_here(id).await;
        };
        let asked = node.transport.call(leader, PeerRequestV1::Replace(id));
        match TypeConfig::<RT>::timeout(CHANGE_WITHIN * 2, asked).await {
            Ok(Ok(PeerAnswerV1::Replaced(ReplacedV1::Done))) => Ok(()),
            Ok(Ok(PeerAnswerV1::Replaced(ReplacedV1::No(line)))) => Err(ReplaceError::Refused(line)),
            Ok(Ok(PeerAnswerV1::Replaced(ReplacedV1::Later(line)) | PeerAnswerV1::Refused(line))) => {
                Err(ReplaceError::Unavailable(line))
            }
            Ok(Ok(_)) => Err(ReplaceError::Unavailable("the leader gave another kind of answer".to_owned())),
            Ok(Err(error)) => Err(ReplaceError::Unavailable(error.to_string())),
            Err(_) => Err(ReplaceError::Unavailable("the leader did not answer in time".to_owned())),
        }
    }
}

impl<RT: AsyncRuntime> Node<RT> {
    /// Replaces voter `id`, if this node leads.
    ///
    /// # Errors
    /// [`ReplaceError`].
    pub(crate) async fn replace_here(&self, id: NodeId) -> Result<(), ReplaceError> {
        let no_leader = || ReplaceError::Unavailable("no leader is known: without one nothing is decided".to_owned());
        self.time.lead().ok_or_else(no_leader)?;
        let known = self.standings.server().borrow_watched().membership_config.clone();
        let voters = known.membership().get_joint_config().to_vec();
        let register = Register(known);
        let scene =
            Scene { me: self.node_id, voters, register: &register, links: self.transport.links(), peers: &self.peers };
        let Plan { remove, add } = plan(&scene, id).map_err(ReplaceError::Refused)?;
        let is_voter = scene.voters.iter().any(|set| set.contains(&id));
        if remove {
            let gone = if is_voter {
                ChangeMembers::RemoveVoters([id].into())
            } else {
                ChangeMembers::RemoveNodes([id].into())
            };
            self.change(gone, false).await?;
        }
        self.change(ChangeMembers::SetNodes([(id, add)].into()), true).await?;
        tracing::info!("node {id} is replaced: an empty data directory is admitted in its place");
        Ok(())
    }

    async fn change(&self, change: ChangeMembers<NodeId, Member>, retain: bool) -> Result<(), ReplaceError> {
        match TypeConfig::<RT>::timeout(CHANGE_WITHIN, self.raft.change_membership(change, retain)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => {
                Err(ReplaceError::Unavailable(format!("the membership cannot be changed now, try again: {error}")))
            }
            Err(_) => Err(ReplaceError::Unavailable("the membership was not changed in time, try again".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use super::*;
    use crate::bootstrap::sim_net::greeting;
    use crate::raft::PlainMembership;

    /// Node 1 leads 1, 2 and 3, of which 2 answers with its own incarnation and 3 with another.
    fn with_scene<T>(change: impl FnOnce(&mut Scene<'_>), look: impl FnOnce(&Scene<'_>) -> T) -> T {
        let voters: BTreeSet<NodeId> = [1, 2, 3].into();
        let member = |id: NodeId| (id, Member { incarnation: id * 100, ..at(&format!("peer-{id}")) });
        let nodes: BTreeMap<NodeId, Member> = voters.iter().map(|id| member(*id)).collect();
        let membership = openraft::Membership::new(vec![voters.clone()], nodes).unwrap();
        let register = Register(Arc::new(PlainMembership::new(None, membership)));
        let link = |hello| LinkState { connected: true, hello: Some(hello), trouble: None };
        let links = [(2, link(greeting(2))), (3, link(crate::hello::HelloV1 { incarnation: 7, ..greeting(3) }))].into();
        let peers = [(4, "peer-4".to_owned())].into();
        let mut scene = Scene { me: 1, voters: vec![voters], register: &register, links, peers: &peers };
        change(&mut scene);
        look(&scene)
    }

    #[test]
    fn only_a_voter_that_lost_its_data_is_replaced_and_only_by_a_majority() {
        let add = Member { incarnation: 0, ..at("peer-3") };
        let planned = with_scene(|_| {}, |scene| plan(scene, 3));
        assert_eq!(planned, Ok(Plan { remove: true, add: add.clone() }));
        let away = with_scene(|scene| drop(scene.links.remove(&3)), |scene| plan(scene, 3));
        assert_eq!(away, Ok(Plan { remove: true, add }), "one that is away may have lost it too");
        let line = with_scene(|_| {}, |scene| plan(scene, 2)).unwrap_err();
        assert!(line.contains("nothing to replace"), "{line}");
        let line = with_scene(|_| {}, |scene| plan(scene, 1)).unwrap_err();
        assert!(line.contains("node 1 leads"), "{line}");
        let line = with_scene(|scene| scene.links.clear(), |scene| plan(scene, 3)).unwrap_err();
        assert!(line.contains("only 1 of the other 2 voters"), "{line}");
        let line = with_scene(|_| {}, |scene| plan(scene, 5)).unwrap_err();
        assert!(line.contains("not a member"), "{line}");
        let again = with_scene(|_| {}, |scene| plan(scene, 4));
        assert_eq!(
            again,
            Ok(Plan { remove: false, add: at("peer-4") }),
            "removed, and not added when it was cut short"
        );
    }
}
