//! Somebody on the way who changes, repeats, reorders or sends back what nodes say.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use super::super::frame::split;
use super::super::keys::TAG_BYTES;
use super::super::limits::FRAME_BYTES_MAX;
use super::proxy::{Fate, Proxy, Rule, Way};
use super::*;

/// Flips a bit of that byte of a greeting and one call: whether the call was answered, and how often the byte came by.
async fn flip(b: &TcpPeers, second: &Node, way: Way, at_byte: usize, command: Bytes) -> (bool, usize) {
    let flipped = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&flipped);
    let rule: Rule = Arc::new(move |now, before, bytes| {
        if now == way && (before..before + bytes.len()).contains(&at_byte) {
            bytes[at_byte - before] ^= 0x10;
            counted.fetch_add(1, Ordering::Relaxed);
        }
        Fate::Pass
    });
    let proxy = Proxy::start(b.address(), rule).await;
    // No word but the call's: what comes after it is not counted.
    let a = start_as(hello(1), &Node::echo(), Pace { alive: LIMIT, ..hasty() });
    a.transport().know(vec![at(2, proxy.address)]);
    link(&a, 2, |state| state.connected || state.trouble.is_some()).await;
    let answered = call(&a, 2, command.clone()).await.is_ok();
    a.close().await;
    let seen = second.seen().iter().filter(|seen| **seen == command).count();
    assert!(seen <= 1 && (!answered || seen == 1));
    (answered, flipped.load(Ordering::Relaxed))
}

/// Flips a bit of each byte of a greeting and one call in turn, each way: nobody ever believes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_byte_is_never_believed() {
    let second = Node::echo();
    let b = start_as(hello(2), &second, hasty());
    for way in [Way::There, Way::Back] {
        for at_byte in 0.. {
            let mut tries = 1..=10;
            let (answered, flipped) = loop {
                let again = tries.next().expect("no call is answered, though nothing was changed");
                let command = Bytes::from(format!("{way:?} {at_byte} {again}"));
                let came = flip(&b, &second, way, at_byte, command).await;
                // Else a connection was given up before the byte came: on a loaded machine the hasty do so.
                if came != (false, 0) {
                    break came;
                }
            };
            if flipped == 0 {
                assert!(answered && at_byte > 150, "byte {at_byte}");
                break;
            }
            // Flipped is what came before the answer, or the listener's word that it is alive.
            assert!(!answered || way == Way::Back, "byte {at_byte} was changed, and the call answered");
        }
    }
    let whole = |command: &Bytes| command.starts_with(b"There ") || command.starts_with(b"Back ");
    assert!(second.seen().iter().all(whole), "a changed command was seen");
}

/// Frames as they stand on the wire.
struct Raw {
    from: OwnedReadHalf,
    buffer: BytesMut,
}

impl Raw {
    /// The next frame, length and tag included; `None` at the end.
    async fn next(&mut self, tag_bytes: usize) -> Option<Vec<u8>> {
        loop {
            if let Some(frame) = split(&mut self.buffer, FRAME_BYTES_MAX, tag_bytes).unwrap() {
                let length = u32::try_from(frame.len() - tag_bytes).unwrap();
                return Some([&length.to_le_bytes()[..], &frame].concat());
            }
            match timeout(LIMIT, self.from.read_buf(&mut self.buffer)).await.unwrap() {
                Ok(1..) => {}
                Ok(0) | Err(_) => return None,
            }
        }
    }
}

/// A wire with a real dialler at one end and the listener of `b` at the other, the greeting done: the listener's end, and
/// the frames of three requests.
async fn three_requests(b: &TcpPeers) -> (Raw, OwnedWriteHalf, Vec<Vec<u8>>) {
    let wire = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let a = start(1, &Node::echo());
    a.transport().know(vec![at(2, wire.local_addr().unwrap())]);
    let (from, mut to_dialler) = wire.accept().await.unwrap().0.into_split();
    let mut there = Raw { from, buffer: BytesMut::new() };
    let (from, mut to_listener) = TcpStream::connect(b.address()).await.unwrap().into_split();
    let mut back = Raw { from, buffer: BytesMut::new() };
    // Hellos and proofs, in clear; then both verdicts, sealed, the listener's first.
    for _ in 0..2 {
        to_listener.write_all(&there.next(0).await.unwrap()).await.unwrap();
        to_dialler.write_all(&back.next(0).await.unwrap()).await.unwrap();
    }
    to_dialler.write_all(&back.next(TAG_BYTES).await.unwrap()).await.unwrap();
    to_listener.write_all(&there.next(TAG_BYTES).await.unwrap()).await.unwrap();
    connected(&a, 2).await;
    let mut frames = Vec::new();
    for command in ["one", "two", "three"] {
        let call = a.transport().call(Peer { id: 2, ..Peer::default() }, forward(command));
        frames.push(there.next(TAG_BYTES).await.unwrap());
        drop(call);
    }
    (back, to_listener, frames)
}

/// What the listener makes of the three frames in this order.
async fn seen_of(order: &[usize]) -> Vec<Bytes> {
    let second = Node::echo();
    let b = start(2, &second);
    let (mut back, mut to, frames) = three_requests(&b).await;
    for frame in order {
        // Where it is refused the connection is closed.
        let _ = to.write_all(&frames[*frame]).await;
    }
    let _ = to.shutdown().await;
    while back.next(TAG_BYTES).await.is_some() {}
    second.seen()
}

#[tokio::test]
async fn frames_in_order_are_taken_and_no_others() {
    assert_eq!(seen_of(&[0, 1, 2]).await, ["one", "two", "three"]);
    assert_eq!(seen_of(&[0, 0, 1]).await, ["one"], "repeated");
    assert!(seen_of(&[1, 0, 2]).await.is_empty(), "reordered");
    assert_eq!(seen_of(&[0, 2]).await, ["one"], "one left out");
    assert_eq!(seen_of(&[0, 1, 0]).await, ["one", "two"], "repeated later");
}

/// Whoever sends a node's own words back to it learns and gets nothing.
#[tokio::test]
async fn words_sent_back_are_refused() {
    let mirror = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let a = start_as(hello(1), &Node::echo(), hasty());
    a.transport().know(vec![at(2, mirror.local_addr().unwrap())]);
    let reflecting = async {
        loop {
            let (stream, _) = mirror.accept().await.unwrap();
            let (mut from, mut to) = stream.into_split();
            // Until the node has had enough of itself.
            let _ = tokio::io::copy(&mut from, &mut to).await;
        }
    };
    tokio::select! {
        () = reflecting => {}
        // On a busy machine a first greeting may be too slow for another reason to be told.
        line = trouble(&a, 2, "proof is none") => assert!(line.contains("greeting"), "{line}"),
    }
}
