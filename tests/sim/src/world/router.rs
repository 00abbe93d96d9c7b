//! The transport of one life of a node: every message goes through its encoded form.
//!
//! What TCP may deliver once, for the product sends it once, is delivered once: forwards, transfers, what changes the
//! membership, snapshots. `Act::Duplicate` repeats the rest, which replication may send again itself.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Cursor, Read};
use std::sync::Weak;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tenure_cluster::FEATURE_LEVEL;
use tenure_cluster::codec::{self, Kind};
use tenure_cluster::hello::{HelloV1, PurposeV1};
use tenure_cluster::peer::{PeerAnswerV1, PeerRequestV1};
use tenure_cluster::raft::NodeId;
use tenure_cluster::transport::{LinkState, Peer, SnapshotOffer, Transport, TransportError};
use tokio::sync::watch;

use super::exchange::{Failure, Sent};
use super::site::Node;
use super::{Inner, World};
use crate::plan::Way;

/// Bytes a second that a snapshot takes where its way has no limit of its own.
const SNAPSHOT_BYTES_PER_SECOND: u64 = 50_000_000;

/// See the module's head.
pub(super) struct Router {
    pub(super) from: NodeId,
    pub(super) life: u64,
    /// Not held: nodes hold their routers.
    pub(super) world: Weak<Inner>,
}

fn unreachable(id: NodeId) -> TransportError {
    TransportError::Unreachable { id, why: "no connection".to_owned() }
}

fn failed(id: NodeId, failure: Failure) -> TransportError {
    match failure {
        Failure::NotSent => unreachable(id),
        Failure::Broken => TransportError::Broken { id, why: "reset".to_owned() },
    }
}

/// What every node says of itself: the simulated nodes are all of this build.
fn said(node: NodeId) -> HelloV1 {
    HelloV1 {
        protocol_min: 1,
        protocol_max: 1,
        group: 0,
        cluster: None,
        node,
        incarnation: 0,
        empty: false,
        admitted_at: 0,
        client: String::new(),
        peer: String::new(),
        feature_level: FEATURE_LEVEL,
        build: String::new(),
        purpose: PurposeV1::Requests,
    }
}

fn may_be_repeated(request: &PeerRequestV1) -> bool {
    match request {
        PeerRequestV1::Append(_)
        | PeerRequestV1::Vote(_)
        | PeerRequestV1::PreVote(_)
        | PeerRequestV1::ReadIndex
        | PeerRequestV1::Tick { .. }
        | PeerRequestV1::LeaderGone(_) => true,
        PeerRequestV1::Transfer(_)
        | PeerRequestV1::Forward(_)
        | PeerRequestV1::Found(_)
        | PeerRequestV1::Admit(_)
        | PeerRequestV1::Replace(_) => false,
    }
}

/// What `to` answers to a request, both as they travel.
async fn answer(world: World, node: Node, to: NodeId, request: Bytes) -> Vec<u8> {
    let request: PeerRequestV1 = codec::decode(Kind::PeerRequest, 1, &request).unwrap();
    let asked = match &request {
        PeerRequestV1::Vote(asked) => Some(asked.vote),
        _ => None,
    };
    let answer = node.answer_peer(request).await;
    world.answers(to, asked, &answer);
    codec::encode(Kind::PeerAnswer, 1, &answer).unwrap()
}

async fn call(
    world: World,
    from: NodeId,
    life: u64,
    to: NodeId,
    request: PeerRequestV1,
) -> Result<PeerAnswerV1, TransportError> {
    world.asks(from, life, &request);
    let bytes = Bytes::from(codec::encode(Kind::PeerRequest, 1, &request).unwrap());
    let sent = Sent { way: Way { from, to }, life, bytes: bytes.len() as u64 };
    if may_be_repeated(&request) && world.repeats() {
        world.0.coverage.fired("message_duplicated");
        let (copy, its_world) = (bytes.clone(), world.clone());
        world.repeat(sent, move |node| async move { drop(answer(its_world, node, to, copy).await) });
    }
    drop(request);
    let its_world = world.clone();
    let answered = world.exchange(sent, move |node| answer(its_world, node, to, bytes), |bytes| bytes.len() as u64);
    let bytes = answered.await.map_err(|failure| failed(to, failure))?;
    Ok(codec::decode(Kind::PeerAnswer, 1, &bytes).unwrap())
}

/// A snapshot as it arrived: whole, or up to where its connection broke.
struct Arrived {
    bytes: Cursor<Vec<u8>>,
    whole: bool,
}

impl Read for Arrived {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.bytes.read(into)? {
            0 if !self.whole && !into.is_empty() => Err(io::ErrorKind::ConnectionReset.into()),
            read => Ok(read),
        }
    }
}

async fn send_snapshot(
    world: World,
    from: NodeId,
    life: u64,
    to: NodeId,
    mut offer: SnapshotOffer,
) -> Result<PeerAnswerV1, TransportError> {
    let mut bytes = Vec::new();
    let read = offer.source.read_to_end(&mut bytes);
    read.map_err(|error| TransportError::Broken { id: to, why: error.to_string() })?;
    let way = Way { from, to };
    // It has a connection of its own and delays no request: so it is not weighed as one.
    let took_ns = world.state().ways.carriage_ns(way, bytes.len() as u64)
        + bytes.len() as u64 * 1_000_000_000 / SNAPSHOT_BYTES_PER_SECOND;
    let began = world.connection(way);
    let its_world = world.clone();
    let receive = move |node: Node| async move {
        crate::runtime::sleep(std::time::Duration::from_nanos(took_ns)).await;
        let whole = its_world.connection(way) == began && began.is_some();
        if !whole {
            let half = its_world.below(bytes.len() as u64 + 1) as usize;
            bytes.truncate(half.min(bytes.len().saturating_sub(1)));
            its_world.0.coverage.fired("snapshot_broken");
        }
        let source = Box::new(Arrived { bytes: Cursor::new(bytes), whole });
        let answer = node.receive_snapshot(SnapshotOffer { source, ..offer }).await;
        if matches!(answer, PeerAnswerV1::Snapshot(_)) {
            its_world.0.coverage.fired("snapshot_installed");
        }
        codec::encode(Kind::PeerAnswer, 1, &answer).unwrap()
    };
    let answered = world.exchange(Sent { way, life, bytes: 0 }, receive, |bytes| bytes.len() as u64);
    let bytes = answered.await.map_err(|failure| failed(to, failure))?;
    Ok(codec::decode(Kind::PeerAnswer, 1, &bytes).unwrap())
}

impl Transport for Router {
    fn call(&self, to: Peer, request: PeerRequestV1) -> BoxFuture<'static, Result<PeerAnswerV1, TransportError>> {
        let Some(world) = World::of(&self.world) else { return Box::pin(std::future::pending()) };
        let (from, life) = (self.from, self.life);
        Box::pin(call(world, from, life, to.id, request))
    }

    fn send_snapshot(
        &self,
        to: Peer,
        offer: SnapshotOffer,
    ) -> BoxFuture<'static, Result<PeerAnswerV1, TransportError>> {
        let Some(world) = World::of(&self.world) else { return Box::pin(std::future::pending()) };
        let (from, life) = (self.from, self.life);
        Box::pin(send_snapshot(world, from, life, to.id, offer))
    }

    fn know(&self, peers: Vec<Peer>) {
        let Some(world) = World::of(&self.world) else { return };
        let mut state = world.state();
        if let Some(site) = state.sites.get_mut(&self.from).filter(|site| site.life == self.life) {
            site.known = peers.into_iter().map(|peer| peer.id).collect();
        }
    }

    fn gone(&self) -> watch::Receiver<BTreeSet<NodeId>> {
        match World::of(&self.world) {
            Some(world) => world.state().sites[&self.from].gone.subscribe(),
            None => watch::channel(BTreeSet::new()).1,
        }
    }

    fn links(&self) -> BTreeMap<NodeId, LinkState> {
        let Some(world) = World::of(&self.world) else { return BTreeMap::new() };
        let state = world.state();
        let site = &state.sites[&self.from];
        let stands = |id| site.life == self.life && state.links.stands(self.from, id);
        let link = |id: &NodeId| (*id, LinkState { connected: stands(*id), hello: Some(said(*id)), trouble: None });
        site.known.iter().map(link).collect()
    }
}
