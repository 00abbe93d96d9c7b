//! Calls to a peer over loopback TCP, greeted and authentic, as a ratio to a bare TCP echo of as many bytes.
//! `cargo bench -p tenure-cluster --bench peer_calls -- [calls]`
#![allow(clippy::print_stdout, clippy::expect_used)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use tenure_cluster::Secret;
use tenure_cluster::hello::{HelloV1, PurposeV1};
use tenure_cluster::peer::{ForwardedV1, OrderedV1, PeerAnswerV1, PeerRequestV1};
use tenure_cluster::raft::Member;
use tenure_cluster::tcp::{PROTOCOL_MAX, PROTOCOL_MIN, PeerHandler, TcpPeers};
use tenure_cluster::transport::{Peer, SnapshotOffer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Bytes of a command: about those of a small real one.
const BYTES: usize = 100;
/// Calls that wait for their answers at any time.
const IN_FLIGHT: usize = 64;
const LOOPBACK: [u8; 4] = [127, 0, 0, 1];

struct Echo;

impl PeerHandler for Echo {
    fn answer(&self, _from: &HelloV1, request: PeerRequestV1) -> BoxFuture<'static, PeerAnswerV1> {
        let answer = match request {
            PeerRequestV1::Forward(commands) => PeerAnswerV1::Forward(commands.into_iter().map(echoed).collect()),
            _ => PeerAnswerV1::Tick,
        };
        std::future::ready(answer).boxed()
    }

    fn snapshot(&self, _from: &HelloV1, _offer: SnapshotOffer) -> BoxFuture<'static, PeerAnswerV1> {
        std::future::ready(PeerAnswerV1::Tick).boxed()
    }

    fn refuse(&self, _from: &HelloV1) -> Option<String> {
        None
    }
}

fn echoed(command: ForwardedV1) -> OrderedV1 {
    OrderedV1::Applied { reply: command.command, index: 1, ordinal: 0, clock: 0, term: 1 }
}

fn start(node: u64) -> TcpPeers {
    let secret = Secret::new("what all nodes of a cluster know").expect("long enough");
    let peers = TcpPeers::bind(SocketAddr::from((LOOPBACK, 0)), secret).expect("a free port");
    peers.introduce(HelloV1 {
        protocol_min: PROTOCOL_MIN,
        protocol_max: PROTOCOL_MAX,
        group: 0,
        cluster: None,
        node,
        incarnation: 1,
        empty: true,
        admitted_at: 0,
        client: String::new(),
        peer: String::new(),
        feature_level: 1,
        build: String::new(),
        purpose: PurposeV1::Requests,
    });
    peers.handle(Arc::new(Echo));
    peers
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let calls = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(200_000);
    let bare = bare_echo(calls).await;
    let ours = peer_calls(calls).await;
    println!(
        "{IN_FLIGHT} in flight, {BYTES} bytes: {ours:.0} calls/s, a bare echo {bare:.0}/s: {:.2} of it",
        ours / bare
    );
}

async fn peer_calls(calls: usize) -> f64 {
    let (a, b) = (start(1), start(2));
    let member = Member { peer: b.address().to_string(), ..Member::default() };
    let peer = Peer { id: 2, member, hints: Vec::new() };
    let (transport, mut changes) = (a.transport(), a.changes());
    transport.know(vec![peer.clone()]);
    while !transport.links().get(&2).is_some_and(|link| link.connected) {
        changes.changed().await.expect("the transport lives");
    }
    let command = Bytes::from(vec![7; BYTES]);
    let started = Instant::now();
    let all = stream::iter(0..calls).map(|_| {
        let forwarded = ForwardedV1 { command: command.clone(), reply_bytes: 0, patience_ms: 0 };
        transport.call(peer.clone(), PeerRequestV1::Forward(vec![forwarded]))
    });
    let mut answers = all.buffer_unordered(IN_FLIGHT);
    while let Some(answer) = answers.next().await {
        answer.expect("an answer");
    }
    calls as f64 / started.elapsed().as_secs_f64()
}

/// As many messages, as many on their way, on one connection: what a transport could do at best that writes each alone.
async fn bare_echo(calls: usize) -> f64 {
    let listener = TcpListener::bind(SocketAddr::from((LOOPBACK, 0))).await.expect("a free port");
    let address = listener.local_addr().expect("it has one");
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        stream.set_nodelay(true).expect("a socket");
        let mut message = [0; BYTES];
        while stream.read_exact(&mut message).await.is_ok() && stream.write_all(&message).await.is_ok() {}
    });
    let stream = TcpStream::connect(address).await.expect("a connection");
    stream.set_nodelay(true).expect("a socket");
    let (mut from, mut to) = stream.into_split();
    let started = Instant::now();
    let (permits, mut returned) = tokio::sync::mpsc::channel(IN_FLIGHT);
    let reading = tokio::spawn(async move {
        let mut message = [0; BYTES];
        for _ in 0..calls {
            from.read_exact(&mut message).await.expect("an echo");
            returned.recv().await.expect("one was sent");
        }
    });
    for _ in 0..calls {
        permits.send(()).await.expect("it is read");
        to.write_all(&[7; BYTES]).await.expect("a connection");
    }
    reading.await.expect("all are read");
    calls as f64 / started.elapsed().as_secs_f64()
}
