//! The doorman: with whom a node has nothing to do, judged by the first words on a connection, and later before each
//! request. Pure.
//!
//! A node may not know yet what others know: a membership of before a member was admitted does not judge that member.

use std::sync::Arc;

use super::{Peers, admission, shown};
use crate::hello::HelloV1;
use crate::identity::{Belonging, Identity, hex};
use crate::raft::{Member, NodeId, PlainMembership};

/// The committed membership as a node knows it.
#[derive(Clone, Debug, Default)]
pub struct Register(pub Arc<PlainMembership>);

impl Register {
    /// Index of the entry that set it.
    pub fn at(&self) -> u64 {
        self.0.log_id().as_ref().map_or(0, |id| id.index)
    }

    /// Voters and learners.
    pub fn members(&self) -> impl Iterator<Item = (NodeId, &Member)> {
        self.0.membership().nodes().map(|(id, member)| (*id, member))
    }

    /// One of them.
    pub fn get(&self, id: NodeId) -> Option<&Member> {
        self.0.membership().get_node(&id)
    }

    /// Is none known yet?
    pub fn is_empty(&self) -> bool {
        self.members().next().is_none()
    }
}

/// What a node that takes part in nothing yet has against `from`, in one line.
pub fn refuse_before(me: &Identity, peers: &Peers, from: &HelloV1) -> Option<String> {
    namesake(me, from).or_else(|| (!peers.contains_key(&from.node)).then(|| unlisted(me, peers, from)))
}

/// What a node of a cluster has against `from`, in one line. One that takes part in nothing yet may come: it hears what
/// is against it when it asks for admission.
pub fn refuse(me: &Identity, mine: &Belonging, peers: &Peers, register: &Register, from: &HelloV1) -> Option<String> {
    if let Some(line) = namesake(me, from) {
        return Some(line);
    }
    let theirs = from.cluster.filter(|theirs| *theirs == mine.cluster || !from.empty)?;
    if theirs != mine.cluster {
        return Some(format!(
            "node {} belongs to cluster {} and {} to another: correct --peers or --data of one of them",
            from.node,
            hex(&theirs),
            me.name()
        ));
    }
    if register.is_empty() {
        return (!peers.contains_key(&from.node)).then(|| unlisted(me, peers, from));
    }
    match register.get(from.node) {
        _ if from.admitted_at > register.at() => None,
        None => Some(admission::stranger(&theirs, from.node, register, peers)),
        Some(member) if ![0, from.incarnation].contains(&member.incarnation) => {
            Some(admission::wiped(&theirs, from.node))
        }
        Some(_) => None,
    }
}

fn namesake(me: &Identity, from: &HelloV1) -> Option<String> {
    let line = || format!("both are node {}: give each node its own --node-id", me.node_id);
    (from.node == me.node_id).then(line)
}

fn unlisted(me: &Identity, peers: &Peers, from: &HelloV1) -> String {
    format!(
        "node {} was started with --peers {}, where node {} is not: start all nodes with the same list",
        me.node_id,
        shown(peers.clone()),
        from.node
    )
}
