//! The peer transport over TCP: authentic, in order, pipelined, bounded. See `DESIGN.md`, "The peer protocol".
//!
//! Model: each node dials each peer that it knows, and its requests travel on that connection alone, so that there are
//! two between a pair; a snapshot has one of its own. A keeper task per peer dials, greets, carries, and dials again. A
//! listener task greets whoever connects and hands requests to the [`PeerHandler`].
//!
//! Invariants: a call fails as `Unreachable` only if no byte of it was written, and it fails at once when there is no
//! connection; a peer is in `gone` only while its host refuses connections after one to it was closed or reset; nothing a
//! stranger says is believed, shown or kept.
//!
//! Not promised: secrecy of what is said; delivery; that a call that is dropped, or that ends as `Broken`, did not arrive.

mod answering;
mod calls;
mod dial;
mod frame;
mod greeting;
mod handler;
mod journal;
mod keeper;
mod keys;
mod limits;
mod link;
mod listener;
mod message;
mod pauses;
pub(crate) mod reading;
mod requests;
mod shared;
mod snapshot_in;
mod snapshot_out;
mod snapshot_wire;
mod strangers;
#[cfg(test)]
mod tests;
mod traffic;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::watch;

use self::calls::Failed;
use self::limits::{FRAME_BYTES_MAX, Pace};
use self::link::Link;
use self::shared::{Kept, Shared};
use crate::codec::{self, Kind};
use crate::hello::HelloV1;
use crate::peer::{PeerAnswerV1, PeerRequestV1};
use crate::peer_config::Secret;
use crate::raft::NodeId;
use crate::transport::{LinkState, Peer, SnapshotOffer, Transport, TransportError};

pub use handler::PeerHandler;
pub use limits::{PROTOCOL_MAX, PROTOCOL_MIN};
pub use snapshot_wire::{OfferV2, SnapshotHeadV2};
pub use traffic::Traffic;

/// A node's peer transport. Dropping it ends all its tasks and connections.
pub struct TcpPeers {
    shared: Arc<Shared>,
    address: SocketAddr,
}

/// Reads the traffic of the known peers, for metrics.
#[derive(Clone)]
pub struct TrafficMeter(Arc<Shared>);

impl TcpPeers {
    /// Listens on `listen` (port 0 takes a free one). Whoever connects waits until [`TcpPeers::introduce`], and is told
    /// that this node is still starting until [`TcpPeers::handle`].
    ///
    /// # Errors
    /// When the address is not to be had, or outside of a runtime.
    pub fn bind(listen: SocketAddr, secret: Secret) -> io::Result<Self> {
        Self::bind_at(listen, secret, Pace::default())
    }

    fn bind_at(listen: SocketAddr, secret: Secret, pace: Pace) -> io::Result<Self> {
        let runtime = Handle::try_current().map_err(io::Error::other)?;
        let listener = std::net::TcpListener::bind(listen)?;
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::new(secret, pace, runtime));
        shared.spawn(listener::listen(Arc::clone(&shared), listener));
        Ok(Self { shared, address })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets what this node says of itself (the purpose is set by the transport, the protocol versions are
    /// [`PROTOCOL_MIN`] and [`PROTOCOL_MAX`]). A change closes all requests connections, so that they are greeted anew.
    pub fn introduce(&self, hello: HelloV1) {
        self.shared.own.send_if_modified(|own| {
            let changed = own.as_ref() != Some(&hello);
            *own = Some(hello);
            changed
        });
    }

    /// Sets who answers, from the next request on.
    pub fn handle(&self, handler: Arc<dyn PeerHandler>) {
        *self.shared.handler.write().unwrap_or_else(PoisonError::into_inner) = Some(handler);
    }

    /// The way to the peers.
    #[must_use]
    pub fn transport(&self) -> Arc<dyn Transport> {
        Arc::new(TcpTransport(Arc::clone(&self.shared)))
    }

    /// Changes whenever [`Transport::links`] does.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// For metrics.
    #[must_use]
    pub fn meter(&self) -> TrafficMeter {
        TrafficMeter(Arc::clone(&self.shared))
    }

    /// Ends all tasks and connections, and returns when they have ended.
    pub async fn close(&self) {
        if let Some(mut tasks) = self.shared.end() {
            tasks.shutdown().await;
        }
    }
}

impl Drop for TcpPeers {
    fn drop(&mut self) {
        drop(self.shared.end());
    }
}

impl TrafficMeter {
    /// The traffic of each known peer.
    #[must_use]
    pub fn read(&self) -> BTreeMap<NodeId, Traffic> {
        self.0.peers().iter().map(|(id, kept)| (*id, kept.link.traffic.read())).collect()
    }
}

/// [`Transport`] over TCP.
struct TcpTransport(Arc<Shared>);

fn encode(request: &PeerRequestV1) -> Result<Vec<u8>, String> {
    let mut encoded = Ok(());
    let body = message::request(|body| encoded = codec::encode_into(Kind::PeerRequest, 1, request, body));
    encoded.map_err(|error| error.to_string())?;
    if body.len() > FRAME_BYTES_MAX {
        return Err(format!("the request has {} bytes, at most {FRAME_BYTES_MAX} are sent", body.len()));
    }
    Ok(body)
}

impl Transport for TcpTransport {
    /// Queued at once, so that the order of the calls is the order on the wire.
    fn call(&self, to: Peer, request: PeerRequestV1) -> BoxFuture<'static, Result<PeerAnswerV1, TransportError>> {
        let id = to.id;
        let pushed = match self.0.link(id) {
            Some(link) => link.push(|| encode(&request)),
            None => Err("it is none of the peers that this node keeps a connection to".to_owned()),
        };
        Box::pin(async move {
            match pushed {
                Ok(call) => call.wait().await.map_err(|failed| match failed {
                    Failed::NotSent(why) => TransportError::Unreachable { id, why },
                    Failed::MaybeSent(why) => TransportError::Broken { id, why },
                }),
                Err(why) => Err(TransportError::Unreachable { id, why }),
            }
        })
    }

    fn send_snapshot(
        &self,
        to: Peer,
        offer: SnapshotOffer,
    ) -> BoxFuture<'static, Result<PeerAnswerV1, TransportError>> {
        Box::pin(snapshot_out::send(Arc::clone(&self.0), to, offer))
    }

    fn know(&self, peers: Vec<Peer>) {
        let shared = &self.0;
        let own = shared.own.borrow().as_ref().map(|own| own.node);
        let mut kept = shared.peers();
        let mut unknown: BTreeSet<NodeId> = kept.keys().copied().collect();
        for peer in peers.iter().filter(|peer| Some(peer.id) != own) {
            unknown.remove(&peer.id);
            if let Some(known) = kept.get(&peer.id) {
                known.link.rename(peer);
                continue;
            }
            let link = Arc::new(Link::new(peer, shared.changes.clone()));
            if let Some(keeper) = shared.spawn(keeper::keep(Arc::clone(shared), Arc::clone(&link))) {
                kept.insert(peer.id, Kept { link, keeper });
            }
        }
        let retired: Vec<Kept> = unknown.iter().filter_map(|id| kept.remove(id)).collect();
        // Whoever looks at who is gone may look at the links meanwhile: never the one lock under the other.
        drop(kept);
        for Kept { link, keeper } in retired {
            keeper.abort();
            link.retire(&shared.gone, "it is no peer any more");
        }
    }

    fn gone(&self) -> watch::Receiver<BTreeSet<NodeId>> {
        self.0.gone.subscribe()
    }

    fn links(&self) -> BTreeMap<NodeId, LinkState> {
        self.0.peers().iter().map(|(id, kept)| (*id, kept.link.state())).collect()
    }
}
