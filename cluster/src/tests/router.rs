//! The simulated transport of one node's life.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use openraft::type_config::TypeConfigExt;
use tokio::sync::watch;

use super::{C, Fate, Net, Node};
use crate::bootstrap::sim_net::greeting;
use crate::codec::{self, Kind};
use crate::peer::{PeerAnswerV1, PeerRequestV1};
use crate::raft::NodeId;
use crate::transport::{LinkState, Peer, SnapshotOffer, Transport, TransportError};

/// One way of a message.
const HOP: Duration = Duration::from_millis(1);

pub struct Router {
    from: NodeId,
    life: u64,
    net: Arc<Mutex<Net>>,
}

/// A node that is reached now, and word of the end of its life.
struct Reached {
    node: Node,
    life: watch::Receiver<u64>,
}

fn what(request: &PeerRequestV1) -> &'static str {
    match request {
        PeerRequestV1::Append(_) => "append",
        PeerRequestV1::Vote(_) => "vote",
        PeerRequestV1::PreVote(_) => "pre-vote",
        PeerRequestV1::Transfer(_) => "transfer",
        PeerRequestV1::Forward(_) => "forward",
        PeerRequestV1::ReadIndex => "read-index",
        PeerRequestV1::Tick { .. } => "tick",
        PeerRequestV1::LeaderGone(_) => "leader-gone",
        PeerRequestV1::Found(_) | PeerRequestV1::Admit(_) | PeerRequestV1::Replace(_) => "bootstrap",
    }
}

fn unreachable(id: NodeId) -> TransportError {
    TransportError::Unreachable { id, why: "cut".to_owned() }
}

fn broken(id: NodeId) -> TransportError {
    TransportError::Broken { id, why: "reset".to_owned() }
}

impl Router {
    pub fn new(from: NodeId, life: u64, net: Arc<Mutex<Net>>) -> Self {
        Self { from, life, net }
    }

    /// The way from this life to `to`, as of now.
    fn way(from: NodeId, life: u64, net: &Mutex<Net>, to: NodeId) -> Option<Reached> {
        let net = net.lock().unwrap();
        let own = &net.hosts[&from];
        if *own.life.borrow() != life || net.cut.contains(&from) || net.cut.contains(&to) {
            return None;
        }
        let host = net.hosts.get(&to)?;
        Some(Reached { node: host.node.clone()?, life: host.life.subscribe() })
    }

    /// How long so many bytes are on their way.
    fn carriage(net: &Mutex<Net>, bytes: u64) -> Duration {
        let pace = net.lock().unwrap().bytes_per_second;
        pace.map_or(Duration::ZERO, |pace| Duration::from_micros(bytes * 1_000_000 / pace))
    }

    fn fate(net: &Mutex<Net>, from: NodeId, to: NodeId, what: &'static str) -> Fate {
        let mut net = net.lock().unwrap();
        let fate = net.filter.as_ref().map_or(Fate::Arrives, |filter| filter(from, to, what));
        *net.delivered.entry(what).or_default() += usize::from(fate != Fate::Refused);
        fate
    }
}

impl Transport for Router {
    fn call(&self, to: Peer, request: PeerRequestV1) -> BoxFuture<'static, Result<PeerAnswerV1, TransportError>> {
        assert_eq!(to.member.peer, format!("peer-{}", to.id), "the address comes from the membership");
        let (from, life, net, id) = (self.from, self.life, Arc::clone(&self.net), to.id);
        Box::pin(async move {
            C::sleep(HOP).await;
            let bytes = codec::encode(Kind::PeerRequest, 1, &request).unwrap();
            C::sleep(Self::carriage(&net, bytes.len() as u64)).await;
            let Reached { node, life: mut its_life } = Self::way(from, life, &net, id).ok_or(unreachable(id))?;
            let fate = Self::fate(&net, from, id, what(&request));
            if fate == Fate::Refused {
                return Err(unreachable(id));
            }
            let answering = node.node().answer_peer(codec::decode(Kind::PeerRequest, 1, &bytes).unwrap());
            let answer = tokio::select! { biased;
                answer = answering => answer,
                _ = its_life.changed() => return Err(broken(id)),
            };
            drop(node);
            let bytes = codec::encode(Kind::PeerAnswer, 1, &answer).unwrap();
            C::sleep(HOP).await;
            if fate == Fate::AnswerLost || Self::way(from, life, &net, id).is_none() {
                return Err(broken(id));
            }
            Ok(codec::decode(Kind::PeerAnswer, 1, &bytes).unwrap())
        })
    }

    fn send_snapshot(
        &self,
        to: Peer,
        offer: SnapshotOffer,
    ) -> BoxFuture<'static, Result<PeerAnswerV1, TransportError>> {
        let (from, life, net) = (self.from, self.life, Arc::clone(&self.net));
        Box::pin(async move {
            C::sleep(HOP).await;
            let reached = Self::way(from, life, &net, to.id).ok_or(unreachable(to.id))?;
            net.lock().unwrap().snapshots_sent += 1;
            Ok(reached.node.node().receive_snapshot(offer).await)
        })
    }

    fn know(&self, peers: Vec<Peer>) {
        let mut net = self.net.lock().unwrap();
        let host = net.hosts.get_mut(&self.from).unwrap();
        host.known = peers.into_iter().map(|peer| (peer.id, peer.member)).collect();
    }

    fn gone(&self) -> watch::Receiver<BTreeSet<NodeId>> {
        self.net.lock().unwrap().hosts[&self.from].gone.subscribe()
    }

    fn links(&self) -> BTreeMap<NodeId, LinkState> {
        let (known, down): (Vec<NodeId>, BTreeSet<NodeId>) = {
            let net = self.net.lock().unwrap();
            (net.hosts[&self.from].known.keys().copied().collect(), net.unlinked.clone())
        };
        let stands = |id| !down.contains(&id) && Self::way(self.from, self.life, &self.net, id).is_some();
        let link = |id| LinkState { connected: stands(id), hello: Some(greeting(id)), trouble: None };
        known.into_iter().map(|id| (id, link(id))).collect()
    }
}
