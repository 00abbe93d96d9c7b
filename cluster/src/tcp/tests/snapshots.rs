//! Snapshots on their way: whole or not at all, bounded in memory and in number.

use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use tokio::sync::{Notify, watch};

use super::super::keys::TAG_BYTES;
use super::super::limits::{CHUNK_BYTES, SNAPSHOTS_IN_MAX};
use super::super::message;
use super::super::{OfferV2, SnapshotHeadV2};
use super::proxy::{Fate, Proxy, Rule, Way};
use super::*;
use crate::persisted::{LogIdV1, MemberV2, MembershipV2, VoteV1};
use crate::snapshot::Head;

const MIB: u64 = 1024 * 1024;
const VOTE: VoteV1 = VoteV1 { term: 3, node: Some(1), committed: true };

fn head() -> Head {
    Head {
        last: LogIdV1 { term: 3, node: 1, index: 77 },
        ordinal: 3,
        membership_at: None,
        membership: MembershipV2 { configs: vec![vec![1, 2]], nodes: vec![(1, MemberV2::default())] },
        stamp_ms: 5,
        feature_level: 1,
        format_version: 1,
    }
}

fn offer(bytes: u64, source: impl Read + Send + 'static) -> SnapshotOffer {
    SnapshotOffer { vote: VOTE, head: head(), bytes, source: Box::new(source) }
}

/// Bytes that are told apart, and how many were read.
struct Pattern {
    at: u64,
    end: u64,
    read: Arc<AtomicU64>,
}

impl Pattern {
    fn of(end: u64) -> (Self, Arc<AtomicU64>) {
        let read = Arc::new(AtomicU64::new(0));
        (Self { at: 0, end, read: Arc::clone(&read) }, read)
    }

    fn byte(at: u64) -> u8 {
        (at ^ (at >> 8) ^ (at >> 16)) as u8
    }
}

impl Read for Pattern {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = into.len().min((self.end - self.at) as usize);
        for byte in &mut into[..length] {
            *byte = Self::byte(self.at);
            self.at += 1;
        }
        self.read.store(self.at, Ordering::Relaxed);
        Ok(length)
    }
}

/// Stores on a thread with `store`; its result goes to the receiver, and the answer to the sender.
fn storing<T: Send + 'static>(
    store: impl Fn(SnapshotOffer) -> T + Send + Sync + 'static,
) -> (Arc<Node>, mpsc::Receiver<T>) {
    let (results, received) = mpsc::sync_channel(16);
    let store = Arc::new(store);
    let node = Node::storing(Box::new(move |offer| {
        let (results, store) = (results.clone(), Arc::clone(&store));
        let work = tokio::task::spawn_blocking(move || results.send(store(offer)).unwrap());
        async move {
            work.await.unwrap();
            PeerAnswerV1::Snapshot(VOTE)
        }
        .boxed()
    }));
    (node, received)
}

fn read_all(mut offer: SnapshotOffer) -> (Head, VoteV1, u64, io::Result<Vec<u8>>) {
    let mut all = Vec::new();
    let read = offer.source.read_to_end(&mut all);
    (offer.head, offer.vote, offer.bytes, read.map(|_| all))
}

/// Waits on a thread that may block.
async fn next<T: Send + 'static>(received: mpsc::Receiver<T>) -> (T, mpsc::Receiver<T>) {
    tokio::task::spawn_blocking(move || (received.recv_timeout(LIMIT).unwrap(), received)).await.unwrap()
}

async fn send(a: &TcpPeers, to: SocketAddr, offer: SnapshotOffer) -> Result<PeerAnswerV1, TransportError> {
    timeout(LIMIT, a.transport().send_snapshot(at(2, to), offer)).await.unwrap()
}

#[tokio::test]
async fn a_snapshot_arrives_whole() {
    let (node, mut received) = storing(read_all);
    let (a, b) = (start(1, &Node::echo()), start(2, &node));
    for bytes in [0, 1, CHUNK_BYTES as u64 - 1, CHUNK_BYTES as u64, CHUNK_BYTES as u64 + 1, 3 * MIB + 17] {
        let answer = send(&a, b.address(), offer(bytes, Pattern::of(bytes).0)).await;
        assert_eq!(answer, Ok(PeerAnswerV1::Snapshot(VOTE)));
        let ((head_got, vote, length, all), rest) = next(received).await;
        received = rest;
        assert_eq!((head_got, vote, length), (head(), VOTE, bytes));
        let all = all.unwrap();
        assert_eq!(all.len() as u64, bytes);
        assert!(all.iter().zip(0..).all(|(byte, at)| *byte == Pattern::byte(at)));
    }
    // Nobody there: surely not sent.
    let address = b.address();
    b.close().await;
    let error = send(&a, address, offer(1, Pattern::of(1).0)).await.unwrap_err();
    assert!(matches!(error, TransportError::Unreachable { id: 2, .. }), "{error}");
}

#[tokio::test]
async fn a_snapshot_cut_on_the_way_is_never_short() {
    let (node, mut received) = storing(|offer| {
        // As the store reads it: no further than it was offered.
        let bytes = offer.bytes;
        io::copy(&mut offer.source.take(bytes), &mut io::sink()).map(|copied| (copied, bytes))
    });
    // Its own life is not to be said in between: that would be counted too.
    let a = start_as(hello(1), &Node::echo(), Pace { alive: LIMIT, ..Pace::default() });
    let b = start(2, &node);
    let bytes = MIB;
    let passed = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&passed);
    let rule: Rule = Arc::new(move |way, _, now| {
        counted.fetch_add(if way == Way::There { now.len() as u64 } else { 0 }, Ordering::Relaxed);
        Fate::Pass
    });
    let proxy = Proxy::start(b.address(), rule).await;
    assert!(send(&a, proxy.address, offer(bytes, Pattern::of(bytes).0)).await.is_ok());
    let (whole, rest) = next(received).await;
    received = rest;
    assert_eq!(whole.unwrap(), (bytes, bytes));
    let total = passed.load(Ordering::Relaxed) as usize;
    // The last two: all but the end came, and all but its last byte.
    for cut in [1_000, CHUNK_BYTES, total / 2, total - 4 - 13 - TAG_BYTES, total - 1] {
        let proxy = Proxy::cutting(b.address(), Way::There, cut).await;
        let error = send(&a, proxy.address, offer(bytes, Pattern::of(bytes).0)).await.unwrap_err();
        assert!(matches!(error, TransportError::Broken { id: 2, .. }), "{error}");
        let (read, rest) = next(received).await;
        received = rest;
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::UnexpectedEof, "cut after {cut}");
    }
}

#[tokio::test]
async fn who_speaks_the_older_protocol_is_told_no_ordinal() {
    let (node, received) = storing(read_all);
    let older = HelloV1 { protocol_max: 1, ..hello(2) };
    let (a, b) = (start(1, &Node::echo()), start_as(older, &node, Pace::default()));
    send(&a, b.address(), offer(5, Pattern::of(5).0)).await.unwrap();
    let ((head_got, ..), _) = next(received).await;
    assert_eq!(head_got, Head { ordinal: 0, ..head() });
}

/// What a sender may do wrong, byte for byte authentic.
#[tokio::test]
async fn wrong_lengths_and_sums_are_errors_of_the_reader() {
    let (node, mut received) = storing(|offer| read_all(offer).3.map(|all| all.len()));
    let b = start(2, &node);
    let body = vec![9; 1000];
    let sum = crc32c::crc32c(&body);
    for (offered, end) in [(999, (1000, sum)), (1000, (1000, sum ^ 1)), (1000, (999, sum)), (1001, (1001, sum))] {
        let mut ends = fakes::dialled(&b, PurposeV1::Snapshot).await;
        let head = OfferV2 { vote: VOTE, head: SnapshotHeadV2::from(&head()), bytes: offered };
        ends.writer.put(&message::offer(&head.encode(2).unwrap()));
        ends.writer.put(&message::chunk(&body));
        ends.writer.put(&message::end(end.0, end.1));
        ends.writer.flush().await.unwrap();
        let (read, rest) = next(received).await;
        received = rest;
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::UnexpectedEof, "offered {offered}, ended {end:?}");
        while ends.reader.next().await.is_ok() {}
    }
}

#[tokio::test]
async fn a_source_that_fails_or_is_short_breaks_the_snapshot() {
    struct Failing;
    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("the chunk is damaged"))
        }
    }
    let (node, received) = storing(|offer| read_all(offer).3.map(|all| all.len()));
    let (a, b) = (start(1, &Node::echo()), start(2, &node));
    let error = send(&a, b.address(), offer(2000, Pattern::of(1000).0.chain(Failing))).await.unwrap_err();
    assert!(error.to_string().contains("the chunk is damaged"), "{error}");
    let (read, received) = next(received).await;
    assert!(read.is_err());
    let error = send(&a, b.address(), offer(2000, Pattern::of(1000).0)).await.unwrap_err();
    assert!(error.to_string().contains("1000 bytes and not 2000"), "{error}");
    assert!(next(received).await.0.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_store_holds_the_sender_back() {
    // Longer than its sender would bear silence, which is longer than a loaded machine keeps somebody silent who is not.
    const HELD: Duration = Duration::from_secs(6);
    let pace = || Pace { snapshot_silence: Duration::from_secs(4), alive: hasty().alive, ..Pace::default() };
    let total = 48 * MIB;
    let (source, read) = Pattern::of(total);
    let (far, too_far) = mpsc::sync_channel::<()>(1);
    let too_far = Mutex::new(too_far);
    let (node, received) = storing(move |mut offer| {
        let mut first = [0; 1];
        offer.source.read_exact(&mut first).unwrap();
        // The sender must not go on while nothing is taken.
        let ran_ahead = too_far.lock().unwrap().recv_timeout(HELD).is_ok();
        let copied = io::copy(&mut offer.source, &mut io::sink()).unwrap();
        (ran_ahead, copied + 1)
    });
    // It says that it is alive meanwhile.
    let (a, b) = (start_as(hello(1), &Node::echo(), pace()), start_as(hello(2), &node, pace()));
    let watching = std::thread::spawn(move || {
        while read.load(Ordering::Relaxed) < 24 * MIB {
            std::thread::yield_now();
        }
        let _ = far.send(());
    });
    let answer = send(&a, b.address(), offer(total, source)).await;
    assert_eq!(answer, Ok(PeerAnswerV1::Snapshot(VOTE)));
    let (ran_ahead, copied) = next(received).await.0;
    assert!(!ran_ahead, "24 MiB were read ahead of a store that took one byte");
    assert_eq!(copied, total);
    watching.join().unwrap();
}

#[tokio::test]
async fn an_answer_may_come_before_the_end() {
    let node = Node::storing(Box::new(|_| std::future::ready(PeerAnswerV1::Refused("have it".to_owned())).boxed()));
    let (a, b) = (start(1, &Node::echo()), start(2, &node));
    for _ in 0..20 {
        let answer = send(&a, b.address(), offer(64 * MIB, Pattern::of(64 * MIB).0)).await;
        assert_eq!(answer, Ok(PeerAnswerV1::Refused("have it".to_owned())));
    }
}

#[tokio::test]
async fn two_snapshots_are_taken_in_at_once_and_no_third() {
    let (open, gate) = watch::channel(false);
    let begun = Arc::new(Notify::new());
    let noted = Arc::clone(&begun);
    let node = Node::storing(Box::new(move |offer| {
        let mut gate = gate.clone();
        noted.notify_one();
        async move {
            gate.wait_for(|open| *open).await.unwrap();
            let read = tokio::task::spawn_blocking(move || read_all(offer)).await.unwrap().3.unwrap();
            assert_eq!(read.len() as u64, MIB);
            PeerAnswerV1::Snapshot(VOTE)
        }
        .boxed()
    }));
    let (a, b) = (start(1, &Node::echo()), start(2, &node));
    let mut sending = tokio::task::JoinSet::new();
    for _ in 0..SNAPSHOTS_IN_MAX {
        sending.spawn(a.transport().send_snapshot(at(2, b.address()), offer(MIB, Pattern::of(MIB).0)));
        timeout(LIMIT, begun.notified()).await.unwrap();
    }
    let third = send(&a, b.address(), offer(MIB, Pattern::of(MIB).0)).await;
    assert!(matches!(&third, Ok(PeerAnswerV1::Refused(why)) if why.contains("other snapshots")), "{third:?}");
    open.send_replace(true);
    while let Some(sent) = sending.join_next().await {
        assert_eq!(sent.unwrap(), Ok(PeerAnswerV1::Snapshot(VOTE)));
    }
}

#[tokio::test]
async fn closing_ends_a_snapshot_on_its_way() {
    let begun = Arc::new(Notify::new());
    let noted = Arc::clone(&begun);
    let node = Node::storing(Box::new(move |offer| {
        noted.notify_one();
        async move {
            let _kept = offer;
            std::future::pending().await
        }
        .boxed()
    }));
    let (a, b) = (start(1, &Node::echo()), start(2, &node));
    let sending = tokio::spawn(a.transport().send_snapshot(at(2, b.address()), offer(MIB, Pattern::of(MIB).0)));
    begun.notified().await;
    a.close().await;
    let error = timeout(LIMIT, sending).await.unwrap().unwrap().unwrap_err();
    assert!(matches!(error, TransportError::Broken { .. }), "{error}");
}
