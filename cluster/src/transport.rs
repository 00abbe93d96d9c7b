//! How a node reaches its peers, as replication sees it. The one-voter cluster has no peer: [`NoPeers`].
//!
//! A transport carries one request and brings its answer, or fails; it never makes an answer up. Above all a vote that
//! could not be asked for is never one that was granted. Order among requests to one peer, retries and timeouts are the
//! caller's business ([`crate::network`] ends each call at its time); a call that is dropped may still arrive.

use std::io::Read;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::peer::{PeerAnswerV1, PeerRequestV1};
use crate::persisted::VoteV1;
use crate::raft::{Member, NodeId};
use crate::snapshot::Head;

/// A peer and where it is reached, as of now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its id.
    pub id: NodeId,
    /// Where it is reached: looked up in the membership at each call, so that a changed address is used at once.
    pub member: Member,
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

/// The way to the peers.
pub trait Transport: Send + Sync + 'static {
    /// Carries `request` and brings its answer.
    fn call(&self, to: Peer, request: PeerRequestV1) -> BoxFuture<'static, Result<PeerAnswerV1, TransportError>>;

    /// Carries a whole snapshot, apart from the requests, which it must not delay.
    fn send_snapshot(&self, to: Peer, offer: SnapshotOffer)
    -> BoxFuture<'static, Result<PeerAnswerV1, TransportError>>;
}

/// A transport for a cluster without peers: every peer is unreachable.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPeers;

impl NoPeers {
    /// For a node.
    #[must_use]
    pub fn shared() -> Arc<dyn Transport> {
        Arc::new(Self)
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
}
