//! The transport over real loopback sockets. Here: what the tests share.

mod calls;
mod fakes;
mod gone;
mod greetings;
mod peers;
mod proxy;
mod snapshots;
mod tampering;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::timeout;

use super::limits::Pace;
use super::{PROTOCOL_MAX, PROTOCOL_MIN, PeerHandler, TcpPeers};
use crate::hello::{HelloV1, PurposeV1};
use crate::peer::{ForwardedV1, OrderedV1, PeerAnswerV1, PeerRequestV1};
use crate::peer_config::Secret;
use crate::raft::{Member, NodeId};
use crate::transport::{LinkState, Peer, SnapshotOffer, TransportError};

/// No test waits longer for anything.
const LIMIT: Duration = Duration::from_secs(60);

/// A port that nobody listens on, for as long as this lives it is not given to others.
fn closed() -> (tokio::net::TcpSocket, SocketAddr) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

fn secret() -> Secret {
    Secret::new("what all nodes of a cluster know").unwrap()
}

fn hello(node: NodeId) -> HelloV1 {
    HelloV1 {
        protocol_min: PROTOCOL_MIN,
        protocol_max: PROTOCOL_MAX,
        group: 0,
        cluster: Some([7; 16]),
        node,
        incarnation: 1,
        empty: false,
        admitted_at: 0,
        client: String::new(),
        peer: String::new(),
        feature_level: 1,
        build: "test".to_owned(),
        purpose: PurposeV1::Requests,
    }
}

/// Silences are short, so that tests are.
fn hasty() -> Pace {
    Pace {
        greet: Duration::from_millis(400),
        greet_accepted: Duration::from_millis(400),
        alive: Duration::from_millis(50),
        silence: Duration::from_millis(300),
        snapshot_silence: Duration::from_millis(600),
        ..Pace::default()
    }
}

type Answering = Box<dyn Fn(Bytes) -> BoxFuture<'static, PeerAnswerV1> + Send + Sync>;
type Storing = Box<dyn Fn(SnapshotOffer) -> BoxFuture<'static, PeerAnswerV1> + Send + Sync>;

/// A node that notes the commands forwarded to it, and answers as the test wants.
struct Node {
    seen: Mutex<Vec<Bytes>>,
    answering: Answering,
    storing: Storing,
    refuse: Mutex<Option<String>>,
}

impl Node {
    /// Answers each command with itself.
    fn echo() -> Arc<Self> {
        Self::answering(Box::new(|command| std::future::ready(echoed(command)).boxed()))
    }

    fn answering(answering: Answering) -> Arc<Self> {
        let storing: Storing = Box::new(|_| std::future::ready(PeerAnswerV1::Tick).boxed());
        Arc::new(Self { seen: Mutex::default(), answering, storing, refuse: Mutex::default() })
    }

    fn storing(storing: Storing) -> Arc<Self> {
        let answering: Answering = Box::new(|command| std::future::ready(echoed(command)).boxed());
        Arc::new(Self { seen: Mutex::default(), answering, storing, refuse: Mutex::default() })
    }

    fn refusing(line: &str) -> Arc<Self> {
        let node = Self::echo();
        *node.refuse.lock().unwrap() = Some(line.to_owned());
        node
    }

    fn seen(&self) -> Vec<Bytes> {
        self.seen.lock().unwrap().clone()
    }
}

impl PeerHandler for Node {
    fn answer(&self, _from: &HelloV1, request: PeerRequestV1) -> BoxFuture<'static, PeerAnswerV1> {
        let PeerRequestV1::Forward(mut commands) = request else { panic!("only commands are sent here") };
        let command = commands.pop().unwrap().command;
        self.seen.lock().unwrap().push(command.clone());
        (self.answering)(command)
    }

    fn snapshot(&self, _from: &HelloV1, offer: SnapshotOffer) -> BoxFuture<'static, PeerAnswerV1> {
        (self.storing)(offer)
    }

    fn refuse(&self, _from: &HelloV1) -> Option<String> {
        self.refuse.lock().unwrap().clone()
    }
}

fn forward(command: impl Into<Bytes>) -> PeerRequestV1 {
    PeerRequestV1::Forward(vec![ForwardedV1 { command: command.into(), reply_bytes: 0, patience_ms: 0 }])
}

fn echoed(reply: Bytes) -> PeerAnswerV1 {
    PeerAnswerV1::Forward(vec![OrderedV1::Applied { reply, index: 1, ordinal: 0, clock: 0, term: 1 }])
}

/// A node's transport, introduced and with a handler.
fn start(id: NodeId, node: &Arc<Node>) -> TcpPeers {
    start_as(hello(id), node, Pace::default())
}

fn start_as(hello: HelloV1, node: &Arc<Node>, pace: Pace) -> TcpPeers {
    let peers = TcpPeers::bind_at(SocketAddr::from(([127, 0, 0, 1], 0)), secret(), pace).unwrap();
    peers.introduce(hello);
    peers.handle(Arc::clone(node) as Arc<dyn PeerHandler>);
    peers
}

fn at(id: NodeId, address: SocketAddr) -> Peer {
    Peer { id, member: Member { peer: address.to_string(), ..Member::default() }, hints: Vec::new() }
}

/// Waits until the link to `id` is as wanted.
async fn link(peers: &TcpPeers, id: NodeId, wanted: impl Fn(&LinkState) -> bool) -> LinkState {
    let (mut changes, transport) = (peers.changes(), peers.transport());
    let found = async {
        loop {
            changes.borrow_and_update();
            if let Some(state) = transport.links().remove(&id).filter(|state| wanted(state)) {
                return state;
            }
            changes.changed().await.unwrap();
        }
    };
    match timeout(LIMIT, found).await {
        Ok(state) => state,
        Err(_) => panic!("the link stays as {:?}", transport.links().get(&id)),
    }
}

async fn connected(peers: &TcpPeers, id: NodeId) -> LinkState {
    link(peers, id, |state| state.connected).await
}

/// Waits for trouble with `id` whose text has `part`.
async fn trouble(peers: &TcpPeers, id: NodeId, part: &str) -> String {
    let state = link(peers, id, |state| state.trouble.as_ref().is_some_and(|line| line.contains(part))).await;
    assert!(!state.connected);
    state.trouble.unwrap()
}

/// Calls node `id` with a command; the answer must be the command.
async fn call(peers: &TcpPeers, id: NodeId, command: impl Into<Bytes>) -> Result<(), TransportError> {
    let command = command.into();
    let peer = Peer { id, ..Peer::default() };
    let answer = timeout(LIMIT, peers.transport().call(peer, forward(command.clone()))).await.unwrap()?;
    assert_eq!(answer, echoed(command), "another call's answer");
    Ok(())
}

/// Two nodes, the first knows the second.
async fn pair(first: &Arc<Node>, second: &Arc<Node>) -> (TcpPeers, TcpPeers) {
    let (a, b) = (start(1, first), start(2, second));
    a.transport().know(vec![at(2, b.address())]);
    connected(&a, 2).await;
    (a, b)
}
