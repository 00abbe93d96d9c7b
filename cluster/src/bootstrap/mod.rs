//! Who takes part: how the nodes of a new cluster find together, how a node is let into one that is there, and whom a
//! node has nothing to do with. See "Who takes part" in `DESIGN.md`.
//!
//! Model: what a node belongs to stands in its data directory's identity and is written there before anybody is told.
//! Pure parts decide (`roll`, `doorman`, `admission`, and the plan in `replacing`); around them are the node
//! before it takes part (`candidate`, `run`, `joining`) and the node that does (`serving`, `attendance`).
//!
//! Invariants: a cluster is begun by one node alone, its founder, and only after all (or a majority) of the nodes in
//! `--peers` have durably become part of it while they were empty; a node becomes part of one cluster only; a node whose
//! incarnation is not the member's never votes.
//!
//! Not promised: that a cluster begins while a peer is down (unless a majority may begin it), and that it does after
//! the founder lost its data directory half-way.

pub mod admission;
pub mod attendance;
pub mod candidate;
pub mod doorman;
pub mod hinted;
pub mod joining;
#[cfg(test)]
mod pure_tests;
mod replacing;
pub mod roll;
pub mod run;
pub mod serving;
#[cfg(test)]
mod sim_later_tests;
#[cfg(test)]
pub mod sim_net;
#[cfg(test)]
mod sim_tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::OpenError;
use crate::hello::{HelloV1, PurposeV1};
use crate::identity::{Belonging, DataDir, Identity};
use crate::raft::{Member, NodeId};
use crate::tcp::{PROTOCOL_MAX, PROTOCOL_MIN, PeerHandler, TcpPeers};
use crate::transport::{Peer, Transport};

/// The nodes of a cluster as `--peers` names them: `host:port` for peers, by id.
pub type Peers = BTreeMap<NodeId, String>;

/// A node's own end of the transport: what it says of itself, and who answers.
pub trait Reception: Send + Sync {
    /// Says `hello` from now on; standing connections are greeted anew.
    fn introduce(&self, hello: HelloV1);
    /// `handler` answers from now on.
    fn handle(&self, handler: Arc<dyn PeerHandler>);
    /// The way to the peers.
    fn transport(&self) -> Arc<dyn Transport>;
}

impl Reception for TcpPeers {
    fn introduce(&self, hello: HelloV1) {
        Self::introduce(self, hello);
    }

    fn handle(&self, handler: Arc<dyn PeerHandler>) {
        Self::handle(self, handler);
    }

    fn transport(&self) -> Arc<dyn Transport> {
        Self::transport(self)
    }
}

/// Where it is written what a node belongs to.
pub trait Ledger: Send + Sync + 'static {
    /// What is written.
    fn identity(&self) -> Identity;
    /// See [`DataDir::belongs_to`]. Blocks.
    ///
    /// # Errors
    /// As [`DataDir::belongs_to`].
    fn belongs_to(&self, belonging: Belonging) -> Result<Identity, OpenError>;
    /// See [`DataDir::note_log`]. Blocks.
    ///
    /// # Errors
    /// As [`DataDir::note_log`].
    fn note_log(&self) -> Result<(), OpenError>;
}

impl Ledger for DataDir {
    fn identity(&self) -> Identity {
        Self::identity(self)
    }

    fn belongs_to(&self, belonging: Belonging) -> Result<Identity, OpenError> {
        Self::belongs_to(self, belonging)
    }

    fn note_log(&self) -> Result<(), OpenError> {
        Self::note_log(self)
    }
}

/// What a node says of itself. `empty`: it has no data of a cluster.
pub fn hello(identity: &Identity, member: &Member, feature_level: u16, empty: bool) -> HelloV1 {
    HelloV1 {
        protocol_min: PROTOCOL_MIN,
        protocol_max: PROTOCOL_MAX,
        group: 0,
        cluster: identity.belonging.map(|belonging| belonging.cluster),
        node: identity.node_id,
        incarnation: identity.incarnation,
        empty,
        admitted_at: identity.belonging.map_or(0, |belonging| belonging.admitted_at),
        client: member.client.clone(),
        peer: member.peer.clone(),
        feature_level,
        build: env!("CARGO_PKG_VERSION").to_owned(),
        purpose: PurposeV1::Requests,
    }
}

/// `1=a:13379,2=b:13379`, as it was given.
pub fn shown(peers: impl IntoIterator<Item = (NodeId, String)>) -> String {
    let each: Vec<String> = peers.into_iter().map(|(id, address)| format!("{id}={address}")).collect();
    each.join(",")
}

/// The peers of node `me` before any membership is known.
pub fn by_hint(me: NodeId, peers: &Peers) -> Vec<Peer> {
    let others = peers.iter().filter(|(id, _)| **id != me);
    others.map(|(id, peer)| Peer { id: *id, member: at(peer), hints: Vec::new() }).collect()
}

/// A member of which only the peer address is known.
pub fn at(peer: &str) -> Member {
    Member { peer: peer.to_owned(), ..Member::default() }
}
