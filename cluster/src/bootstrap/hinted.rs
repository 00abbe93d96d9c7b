//! A transport that knows where else a node may be: what the operator says in `--peers` counts beside the membership, so
//! that nodes which all moved at once find each other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::watch;

use super::Peers;
use crate::peer::{PeerAnswerV1, PeerRequestV1};
use crate::raft::NodeId;
use crate::transport::{LinkState, Peer, SnapshotOffer, Transport, TransportError};

/// See the module's head.
pub struct Hinted {
    /// The transport.
    pub transport: Arc<dyn Transport>,
    /// `--peers`.
    pub peers: Peers,
}

impl Hinted {
    fn hint(&self, mut to: Peer) -> Peer {
        let hint = self.peers.get(&to.id).filter(|hint| **hint != to.member.peer && !to.hints.contains(hint));
        to.hints.extend(hint.cloned());
        to
    }
}

impl Transport for Hinted {
    fn call(&self, to: Peer, request: PeerRequestV1) -> BoxFuture<'static, Result<PeerAnswerV1, TransportError>> {
        self.transport.call(self.hint(to), request)
    }

    fn send_snapshot(
        &self,
        to: Peer,
        offer: SnapshotOffer,
    ) -> BoxFuture<'static, Result<PeerAnswerV1, TransportError>> {
        self.transport.send_snapshot(self.hint(to), offer)
    }

    fn know(&self, peers: Vec<Peer>) {
        self.transport.know(peers.into_iter().map(|peer| self.hint(peer)).collect());
    }

    fn gone(&self) -> watch::Receiver<BTreeSet<NodeId>> {
        self.transport.gone()
    }

    fn links(&self) -> BTreeMap<NodeId, LinkState> {
        self.transport.links()
    }
}
