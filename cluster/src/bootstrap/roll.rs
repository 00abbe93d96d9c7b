//! The roll call: what a node that takes part in nothing yet makes of what its peers say of themselves. Pure.
//!
//! A peer has answered while a connection with it stands. Silence is never taken for emptiness: a node with data that
//! is merely down must not be founded anew beside itself.

use std::collections::BTreeMap;

use super::{Peers, at, shown};
use crate::hello::HelloV1;
use crate::identity::{ClusterId, hex};
use crate::peer::FoundV1;
use crate::raft::{Member, NodeId};
use crate::transport::LinkState;

/// What a node does next that belongs to no cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Waits: these have not answered, each with why.
    Wait(Vec<(NodeId, String)>),
    /// Waits to be told by this peer, which founds the cluster.
    Listen(NodeId),
    /// Asks these for admission: they take part in a cluster.
    Ask(Vec<NodeId>),
    /// Founds the cluster.
    Found,
    /// Gives up, for this reason: its peers are of different clusters.
    Refuse(String),
}

/// What the founder of a cluster does next that is not begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Canvass {
    /// Asks these for admission: a cluster is there already.
    Ask(Vec<NodeId>),
    /// Tells these what they become part of; no answer is awaited from the others, each with why.
    Tell(Vec<(NodeId, u64)>, Vec<(NodeId, String)>),
    /// Begins: these are the voters.
    Begin(BTreeMap<NodeId, Member>),
}

/// Who answered yes, as they were then.
pub type Consents = BTreeMap<NodeId, HelloV1>;

/// Who is to be there.
#[derive(Clone, Debug)]
pub struct Roll {
    /// This node.
    pub me: NodeId,
    /// All nodes, this one among them.
    pub peers: Peers,
    /// A majority will do.
    pub majority: bool,
}

/// What peers said of themselves whose connections stand.
fn present(links: &BTreeMap<NodeId, LinkState>) -> BTreeMap<NodeId, &HelloV1> {
    let connected = links.iter().filter(|(_, link)| link.connected);
    connected.filter_map(|(id, link)| Some((*id, link.hello.as_ref()?))).collect()
}

impl Roll {
    fn others(&self) -> impl Iterator<Item = NodeId> {
        self.peers.keys().copied().filter(|id| *id != self.me)
    }

    fn suffices(&self, present: usize) -> bool {
        let all = self.peers.len();
        if self.majority { present * 2 > all } else { present == all }
    }

    /// Those of the others that `is_there` does not hold for, each with why.
    fn missing(&self, links: &BTreeMap<NodeId, LinkState>, is_there: impl Fn(NodeId) -> bool) -> Vec<(NodeId, String)> {
        let why = |id: NodeId| {
            let trouble = links.get(&id).and_then(|link| link.trouble.clone());
            let address = self.peers.get(&id).map_or("", String::as_str);
            trouble.unwrap_or_else(|| format!("{address} has not answered yet"))
        };
        self.others().filter(|id| !is_there(*id)).map(|id| (id, why(id))).collect()
    }

    /// What to do while this node belongs to no cluster.
    pub fn call(&self, links: &BTreeMap<NodeId, LinkState>) -> Call {
        let present = present(links);
        let begun = |hello: &HelloV1| hello.cluster.filter(|_| !hello.empty);
        let mut clusters: BTreeMap<ClusterId, Vec<NodeId>> = BTreeMap::new();
        for (id, hello) in &present {
            if let Some(cluster) = begun(hello) {
                clusters.entry(cluster).or_default().push(*id);
            }
        }
        if clusters.len() > 1 {
            let each = clusters.iter().map(|(cluster, ids)| format!("node {} is of cluster {}", ids[0], hex(cluster)));
            let each: Vec<String> = each.collect();
            let what = "correct --peers, or the data directory of the one that is wrong";
            return Call::Refuse(format!(
                "the nodes in --peers are of different clusters ({}): {what}",
                each.join(", ")
            ));
        }
        if let Some(ids) = clusters.into_values().next() {
            return Call::Ask(ids);
        }
        if let Some((id, _)) = present.iter().find(|(_, hello)| hello.cluster.is_some()) {
            return Call::Listen(*id);
        }
        let here: Vec<NodeId> = self.others().filter(|id| present.contains_key(id)).collect();
        if !self.suffices(here.len() + 1) {
            return Call::Wait(self.missing(links, |id| present.contains_key(&id)));
        }
        match here.into_iter().find(|id| *id < self.me) {
            Some(lower) => Call::Listen(lower),
            None => Call::Found,
        }
    }

    /// What to do while this node founds `cluster`, which is not begun. `me` is this node as a voter.
    pub fn canvass(
        &self,
        cluster: &ClusterId,
        me: &Member,
        links: &BTreeMap<NodeId, LinkState>,
        consents: &Consents,
    ) -> Canvass {
        let present = present(links);
        let elsewhere =
            present.iter().filter(|(_, hello)| hello.cluster.is_some_and(|other| other != *cluster) && !hello.empty);
        let elsewhere: Vec<NodeId> = elsewhere.map(|(id, _)| *id).collect();
        if !elsewhere.is_empty() {
            return Canvass::Ask(elsewhere);
        }
        // One that was wiped since it said yes has to be asked again.
        let consents = |id: NodeId| {
            let consent = consents.get(&id)?;
            let since = present.get(&id).is_none_or(|hello| hello.incarnation == consent.incarnation);
            since.then_some(consent)
        };
        let agreed: Vec<NodeId> = self.others().filter(|id| consents(*id).is_some()).collect();
        if self.suffices(agreed.len() + 1) {
            let voter = |id: NodeId| match consents(id).or_else(|| present.get(&id).copied()) {
                _ if id == self.me => me.clone(),
                Some(hello) => {
                    Member { client: hello.client.clone(), peer: hello.peer.clone(), incarnation: hello.incarnation }
                }
                None => at(self.peers.get(&id).map_or("", String::as_str)),
            };
            return Canvass::Begin(self.peers.keys().map(|id| (*id, voter(*id))).collect());
        }
        let asked = self.others().filter(|id| consents(*id).is_none());
        let told = asked.filter_map(|id| present.get(&id).map(|hello| (id, hello.incarnation))).collect();
        Canvass::Tell(told, self.missing(links, |id| present.contains_key(&id)))
    }

    /// What this node, of `incarnation` and of no cluster, has against becoming part of what `from` founds.
    ///
    /// # Errors
    /// The line that says so, and whether asking again may help.
    pub fn judge(
        &self,
        incarnation: u64,
        from: &HelloV1,
        found: &FoundV1,
        links: &BTreeMap<NodeId, LinkState>,
    ) -> Result<(), Unwilling> {
        let me = self.me;
        if found.incarnation != incarnation {
            return Err(Unwilling::Now(format!("node {me} is not the one that node {} has seen", from.node)));
        }
        if !found.peers.iter().map(|(id, _)| id).eq(self.peers.keys()) {
            return Err(Unwilling::Ever(format!(
                "node {} was started with --peers {} and node {me} with --peers {}: start all nodes with the same list",
                from.node,
                shown(found.peers.clone()),
                shown(self.peers.clone()),
            )));
        }
        let lower_founds = |(id, hello): (&NodeId, &&HelloV1)| {
            (*id < from.node && hello.empty && hello.cluster.is_some()).then_some(*id)
        };
        match present(links).iter().find_map(lower_founds) {
            Some(lower) => Err(Unwilling::Now(format!("node {lower} founds too, and its id is lower"))),
            None if !self.majority && self.peers.keys().next() != Some(&from.node) => Err(Unwilling::Ever(format!(
                "node {} founds by majority, but node {me} was started without --bootstrap-majority: start all nodes \
                 with the same flags",
                from.node
            ))),
            None => Ok(()),
        }
    }
}

/// Why a node does not become part of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unwilling {
    /// Asking again may help.
    Now(String),
    /// It will not.
    Ever(String),
}
