//! How a node reaches its peers, as replication sees it. The one-voter cluster has no peer: [`NoPeers`].
//!
//! A transport carries one request and brings its answer, or fails; it never makes an answer up. Above all a vote that
//! could not be asked for is never one that was granted. Order among requests to one peer, retries and timeouts are the
//! caller's business ([`crate::network`] ends each call at its time); a call that is dropped may still arrive.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::watch;

use crate::hello::HelloV1;
use crate::peer::{PeerAnswerV1, PeerRequestV1};
use crate::persisted::VoteV1;
use crate::raft::{Member, NodeId};
use crate::snapshot::Head;

/// A peer and where it is reached, as of now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Its id.
    pub id: NodeId,
    /// Where it is reached: looked up in the membership at each call, so that a changed address is used at once.
    pub member: Member,
    /// Other `host:port`s to try when it does not answer there.
    pub hints: Vec<String>,
}

/// A snapshot on its way to a peer.
pub struct SnapshotOffer {
    /// The leader that sends it.
    pub vote: VoteV1,
    /// What it says of itself.
    pub head: Head,
    /// How many bytes `source` has.
    pub bytes: u64,
    /// The state. Reading blocks.
    pub source: Box<dyn Read + Send>,
}

/// A request did not get its answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// The peer cannot be reached at all: worth a pause before the next try. The text says why.
    #[error("node {id} is unreachable: {why}")]
    Unreachable {
        /// The peer.
        id: NodeId,
        /// Why.
        why: String,
    },
    /// The connection broke; the request may have arrived. Worth a try at once. The text says why.
    #[error("no answer from node {id}: {why}")]
    Broken {
        /// The peer.
        id: NodeId,
        /// Why.
        why: String,
    },
}

/// What is known of the way to a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkState {
    /// A connection stands, its hello done.
    pub connected: bool,
    /// The peer's last hello; `None` before the first.
    pub hello: Option<HelloV1>,
    /// Why there is no connection, one line; `None` while there is one or before the first try.
    pub trouble: Option<String>,
}

/// The way to the peers.
pub trait Transport: Send + Sync + 'static {
    /// Carries `request` and brings its answer.
    fn call(&self, to: Peer, request: PeerRequestV1) -> BoxFuture<'static, Result<PeerAnswerV1, TransportError>>;

    /// Carries a whole snapshot, apart from the requests, which it must not delay.
    fn send_snapshot(&self, to: Peer, offer: SnapshotOffer)
    -> BoxFuture<'static, Result<PeerAnswerV1, TransportError>>;

    /// Keeps a connection to each of `peers` from now on, and to no others. Calls to them then find one standing, and a
    /// process that dies is noticed at once.
    fn know(&self, peers: Vec<Peer>);

    /// The peers whose process is surely gone at this moment: their connection was closed or reset **and** a new one
    /// was refused by their host. Silence, a timeout or an unreachable host never puts a peer here.
    fn gone(&self) -> watch::Receiver<BTreeSet<NodeId>>;

    /// The known peers' links, as of now.
    fn links(&self) -> BTreeMap<NodeId, LinkState>;
}

/// A transport for a cluster without peers: every peer is unreachable.
#[derive(Clone, Debug)]
pub struct NoPeers {
    gone: watch::Receiver<BTreeSet<NodeId>>,
}

impl NoPeers {
    /// For a node.
    #[must_use]
    pub fn shared() -> Arc<dyn Transport> {
        Arc::new(Self { gone: watch::channel(BTreeSet::new()).1 })
    }

    fn unreachable(to: &Peer) -> BoxFuture<'static, Result<PeerAnswerV1, TransportError>> {
        let unreachable = TransportError::Unreachable { id: to.id, why: "this node has no peer listener".to_owned() };
        Box::pin(std::future::ready(Err(unreachable)))
    }
}

impl Transport for NoPeers {
    fn call(&self, to: Peer, _request: PeerRequestV1) -> BoxFuture<'static, Result<PeerAnswerV1, TransportError>> {
        Self::unreachable(&to)
    }

    fn send_snapshot(
        &self,
        to: Peer,
        _offer: SnapshotOffer,
    ) -> BoxFuture<'static, Result<PeerAnswerV1, TransportError>> {
        Self::unreachable(&to)
    }

    fn know(&self, _peers: Vec<Peer>) {}

    fn gone(&self) -> watch::Receiver<BTreeSet<NodeId>> {
        self.gone.clone()
    }

    fn links(&self) -> BTreeMap<NodeId, LinkState> {
        BTreeMap::new()
    }
}
