//! Calls: their answers, their order, their bounds, and what is said of those that fail.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::StreamExt;
use futures_util::stream::{self, FuturesUnordered};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};

use super::super::limits::{FRAME_BYTES_MAX, IN_FLIGHT_MAX};
use super::super::message::Message;
use super::proxy::{Proxy, Way};
use super::*;
use crate::codec::{self, Kind};

fn two() -> Peer {
    Peer { id: 2, ..Peer::default() }
}

#[tokio::test]
async fn answers_come_back_both_ways() {
    let (first, second) = (Node::echo(), Node::echo());
    let (a, b) = pair(&first, &second).await;
    b.transport().know(vec![at(1, a.address())]);
    connected(&b, 1).await;
    call(&a, 2, "to b").await.unwrap();
    call(&b, 1, "to a").await.unwrap();
    call(&a, 2, vec![7; FRAME_BYTES_MAX - 100]).await.unwrap();
    assert_eq!((first.seen().len(), second.seen().len()), (1, 2));
    let traffic = a.meter().read()[&2];
    assert!(traffic.sent_frames >= 3 && traffic.sent_bytes > FRAME_BYTES_MAX as u64, "{traffic:?}");
    assert!(traffic.received_frames >= 3 && traffic.received_bytes > FRAME_BYTES_MAX as u64, "{traffic:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_calls_are_answered_out_of_order() {
    // Every even command waits for the odd one that comes after it.
    let waiting: Arc<Mutex<BTreeMap<u32, oneshot::Sender<()>>>> = Arc::default();
    let overtaken = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&overtaken);
    let second = Node::answering(Box::new(move |command| {
        let number = u32::from_le_bytes(command[..].try_into().unwrap());
        if number % 2 == 1 {
            let earlier = waiting.lock().unwrap().remove(&(number - 1)).expect("called in order");
            earlier.send(()).unwrap();
            return std::future::ready(echoed(command)).boxed();
        }
        let (done, later) = oneshot::channel();
        waiting.lock().unwrap().insert(number, done);
        let counted = Arc::clone(&counted);
        async move {
            later.await.unwrap();
            counted.fetch_add(1, Ordering::Relaxed);
            echoed(command)
        }
        .boxed()
    }));
    let (a, _b) = pair(&Node::echo(), &second).await;
    let calls = stream::iter(0..10_000_u32).map(|number| call(&a, 2, number.to_le_bytes().to_vec()));
    let answers: Vec<_> = calls.buffered(IN_FLIGHT_MAX).collect().await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(overtaken.load(Ordering::Relaxed), 5_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_begin_in_the_order_of_the_calls() {
    let begun: Arc<Mutex<Vec<Bytes>>> = Arc::default();
    let noted = Arc::clone(&begun);
    let second = Node::answering(Box::new(move |command| {
        let noted = Arc::clone(&noted);
        // Noted when first polled, answered later.
        async move {
            noted.lock().unwrap().push(command.clone());
            tokio::task::yield_now().await;
            echoed(command)
        }
        .boxed()
    }));
    let (a, _b) = pair(&Node::echo(), &second).await;
    let transport = a.transport();
    let commands: Vec<Bytes> = (0..IN_FLIGHT_MAX).map(|n| Bytes::from(n.to_string())).collect();
    // The order of the calls counts, not that of their polls.
    let calls: Vec<_> = commands.iter().map(|command| transport.call(two(), forward(command.clone()))).collect();
    let answers: Vec<_> = calls.into_iter().rev().collect::<FuturesUnordered<_>>().collect().await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(*begun.lock().unwrap(), commands);
}

#[tokio::test]
async fn without_a_connection_a_call_fails_at_once() {
    let a = start(1, &Node::echo());
    let unknown = call(&a, 2, "x").await.unwrap_err();
    assert!(matches!(&unknown, TransportError::Unreachable { id: 2, why } if why.contains("none of the peers")));
    let (_kept, address) = closed();
    a.transport().know(vec![at(2, address)]);
    trouble(&a, 2, "refused").await;
    let refused = call(&a, 2, "x").await.unwrap_err();
    assert!(matches!(&refused, TransportError::Unreachable { id: 2, why } if why.contains("refused")), "{refused}");
}

#[tokio::test]
async fn calls_in_flight_are_bounded_and_dropped_ones_free_their_place() {
    let (open, gate) = watch::channel(false);
    let second = Node::answering(Box::new(move |command| {
        let mut gate = gate.clone();
        async move {
            gate.wait_for(|open| *open).await.unwrap();
            echoed(command)
        }
        .boxed()
    }));
    let (a, _b) = pair(&Node::echo(), &second).await;
    let transport = a.transport();
    let mut calls: Vec<_> = (0..IN_FLIGHT_MAX).map(|_| transport.call(two(), forward("held"))).collect();
    let full = call(&a, 2, "one more").await.unwrap_err();
    assert!(matches!(&full, TransportError::Unreachable { why, .. } if why.contains("wait for its answers")), "{full}");
    let kept = calls.split_off(IN_FLIGHT_MAX / 2);
    drop(calls);
    let after = transport.call(two(), forward("after"));
    open.send_replace(true);
    assert_eq!(after.await.unwrap(), echoed("after".into()));
    for call in kept {
        assert_eq!(call.await.unwrap(), echoed("held".into()));
    }
    assert!(!second.seen().contains(&Bytes::from("one more")));
}

#[tokio::test]
async fn a_request_too_long_for_a_frame_is_not_sent() {
    let second = Node::echo();
    let (a, _b) = pair(&Node::echo(), &second).await;
    let error = call(&a, 2, vec![0; FRAME_BYTES_MAX]).await.unwrap_err();
    assert!(matches!(&error, TransportError::Unreachable { why, .. } if why.contains("bytes, at most")), "{error}");
    call(&a, 2, "the connection stands").await.unwrap();
    assert_eq!(second.seen().len(), 1);
}

#[tokio::test]
async fn an_answer_too_long_for_a_frame_leaves_the_outcome_open() {
    let second = Node::answering(Box::new(|_| std::future::ready(echoed(vec![0; FRAME_BYTES_MAX].into())).boxed()));
    let (a, _b) = pair(&Node::echo(), &second).await;
    let error = call(&a, 2, "x").await.unwrap_err();
    assert!(matches!(error, TransportError::Broken { .. }), "{error}");
    assert_eq!(second.seen().len(), 1);
}

/// A peer that stops reading: what was being written may have arrived, what waited behind it surely has not, and the
/// queue is bounded. Then the peer reads what came: none of the latter is among it.
#[tokio::test]
async fn what_waited_behind_a_stuck_write_is_surely_not_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let a = start(1, &Node::echo());
    a.transport().know(vec![at(2, listener.local_addr().unwrap())]);
    let mut ends = fakes::accepted(&listener).await;
    connected(&a, 2).await;
    let transport = a.transport();
    let mut calls = Vec::new();
    // More than the sockets and the queue hold together.
    for number in 0..40_u8 {
        calls.push(transport.call(two(), forward(vec![number; 2 * 1024 * 1024])));
        tokio::task::yield_now().await;
    }
    transport.know(Vec::new());
    let (mut unsent, mut open, mut full) = (BTreeSet::new(), 0, 0);
    for (number, call) in (0..40_u8).zip(calls) {
        match timeout(LIMIT, call).await.unwrap().unwrap_err() {
            TransportError::Unreachable { why, .. } => {
                full += usize::from(why.contains("wait to be sent"));
                unsent.insert(number);
            }
            TransportError::Broken { .. } => open += 1,
        }
    }
    let mut arrived = BTreeSet::new();
    while let Ok(frame) = ends.reader.next().await {
        if let Message::Request(_, envelope) = Message::parse(frame).unwrap() {
            let request = codec::decode(Kind::PeerRequest, 1, &envelope).unwrap();
            let PeerRequestV1::Forward(commands) = request else { panic!("another request") };
            arrived.insert(commands[0].command[0]);
        }
    }
    assert!(open > 0 && full > 0 && unsent.len() > full, "{open} open, {full} of {} not queued", unsent.len());
    assert!(arrived.is_disjoint(&unsent), "{arrived:?} arrived, {unsent:?} were surely not sent");
}

#[tokio::test]
async fn closing_answers_every_call() {
    let second = Node::answering(Box::new(|_| std::future::pending().boxed()));
    let (a, b) = pair(&Node::echo(), &second).await;
    let transport = a.transport();
    let held: Vec<_> = (0..10).map(|_| transport.call(two(), forward("held"))).collect();
    link(&a, 2, |state| state.connected).await;
    b.close().await;
    for call in held {
        assert!(timeout(LIMIT, call).await.unwrap().is_err());
    }
    link(&a, 2, |state| !state.connected).await;
    a.close().await;
    assert!(matches!(transport.call(two(), forward("x")).await, Err(TransportError::Unreachable { .. })));
    assert!(transport.links().is_empty());
}

/// Cuts a greeting and one call at every byte, each way. Whatever is said to be surely not sent was never seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_at_any_byte_never_lies() {
    let second = Node::echo();
    let b = start(2, &second);
    let mut outcomes = BTreeMap::new();
    let mut unsent = BTreeSet::new();
    for way in [Way::There, Way::Back] {
        let mut answered = 0;
        for bytes in 0.. {
            let command = Bytes::from(format!("{way:?} {bytes:04}"));
            let proxy = Proxy::cutting(b.address(), way, bytes).await;
            let a = start(1, &Node::echo());
            a.transport().know(vec![at(2, proxy.address)]);
            link(&a, 2, |state| state.connected || state.trouble.is_some()).await;
            let outcome = match call(&a, 2, command.clone()).await {
                Ok(()) => "answered",
                Err(TransportError::Unreachable { .. }) => "unreachable",
                Err(TransportError::Broken { .. }) => "broken",
            };
            a.close().await;
            *outcomes.entry((way == Way::There, outcome)).or_insert(0) += 1;
            if outcome == "unreachable" {
                unsent.insert(command);
            }
            answered += usize::from(outcome == "answered");
            if answered == 5 {
                break;
            }
        }
    }
    b.close().await;
    let seen = second.seen();
    let seen_once: BTreeSet<Bytes> = seen.iter().cloned().collect();
    assert_eq!(seen.len(), seen_once.len(), "nothing arrives twice");
    assert!(seen_once.is_disjoint(&unsent), "seen, and said to be surely not sent");
    assert!(outcomes[&(true, "unreachable")] > 100 && outcomes[&(false, "unreachable")] > 100, "{outcomes:?}");
    assert!(outcomes[&(true, "broken")] > 10 && outcomes[&(false, "broken")] > 10, "{outcomes:?}");
}
