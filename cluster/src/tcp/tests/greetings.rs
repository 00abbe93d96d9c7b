//! Who is let in, who is not, and what both sides are told.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::super::limits::{HELLO_BYTES_MAX, STRANGERS_MAX};
use super::*;

/// Node 1, as `hello` says, dials `b`, and is in trouble that says `part`.
async fn dials_in_vain(hello: HelloV1, node: &Arc<Node>, b: &TcpPeers, part: &str) -> String {
    let a = start_as(hello, node, Pace::default());
    a.transport().know(vec![at(2, b.address())]);
    let line = trouble(&a, 2, part).await;
    assert!(!line.contains('\n'));
    assert!(matches!(call(&a, 2, "x").await, Err(TransportError::Unreachable { .. })));
    line
}

#[tokio::test]
async fn another_secret_is_refused_on_both_sides() {
    let b = TcpPeers::bind(SocketAddr::from(([127, 0, 0, 1], 0)), Secret::new("quite another secret").unwrap());
    let (b, second) = (b.unwrap(), Node::echo());
    b.introduce(hello(2));
    b.handle(Arc::clone(&second) as Arc<dyn PeerHandler>);
    let a = start(1, &Node::echo());
    a.transport().know(vec![at(2, b.address())]);
    b.transport().know(vec![at(1, a.address())]);
    trouble(&a, 2, "the other side has another cluster secret").await;
    trouble(&b, 1, "the other side has another cluster secret").await;
    assert!(second.seen().is_empty());
}

#[tokio::test]
async fn versions_without_overlap_are_refused_and_both_named() {
    let newer = HelloV1 { protocol_min: 3, protocol_max: 4, ..hello(2) };
    let b = start_as(newer, &Node::echo(), Pace::default());
    let line = dials_in_vain(hello(1), &Node::echo(), &b, "version").await;
    assert!(line.contains("3..=4") && line.contains("1..=2"), "{line}");
    let overlapping = HelloV1 { protocol_min: 1, protocol_max: 9, ..hello(2) };
    b.introduce(overlapping);
    let a = start(1, &Node::echo());
    a.transport().know(vec![at(2, b.address())]);
    connected(&a, 2).await;
}

#[tokio::test]
async fn another_group_is_refused() {
    let b = start(2, &Node::echo());
    let other = HelloV1 { group: 5, ..hello(1) };
    let line = dials_in_vain(other, &Node::echo(), &b, "group").await;
    assert!(line.contains("group 0") && line.contains("group 5"), "{line}");
}

#[tokio::test]
async fn another_cluster_is_refused_and_none_is_not() {
    let b = start(2, &Node::echo());
    let other = HelloV1 { cluster: Some([0xab; 16]), ..hello(1) };
    let line = dials_in_vain(other, &Node::echo(), &b, "belongs to cluster").await;
    assert!(line.contains(&"ab".repeat(16)) && line.contains(&"07".repeat(16)), "{line}");
    let a = start_as(HelloV1 { cluster: None, empty: true, ..hello(1) }, &Node::echo(), Pace::default());
    a.transport().know(vec![at(2, b.address())]);
    assert_eq!(connected(&a, 2).await.hello.unwrap().cluster, Some([7; 16]));
}

#[tokio::test]
async fn another_node_than_the_dialled_one_is_refused() {
    let b = start(3, &Node::echo());
    let line = dials_in_vain(hello(1), &Node::echo(), &b, "answers at the address of node 2").await;
    assert!(line.starts_with("node 3 "), "{line}");
}

#[tokio::test]
async fn a_node_does_not_talk_to_itself() {
    let a = start(1, &Node::echo());
    a.transport().know(vec![at(1, a.address())]);
    assert!(a.transport().links().is_empty(), "itself is no peer");
    a.transport().know(vec![at(2, a.address())]);
    trouble(&a, 2, "both sides are node 1").await;
}

#[tokio::test]
async fn the_handlers_refusal_is_told_to_the_other_side() {
    // The listener refuses.
    let second = Node::refusing("node 1 was replaced:\nuse another id");
    let b = start(2, &second);
    let line = dials_in_vain(hello(1), &Node::echo(), &b, "replaced").await;
    assert_eq!(line, "node 1 was replaced: use another id");
    // The dialler refuses: the listener shows it too.
    let (a, c) = (start(1, &Node::refusing("no dealings with you")), start(3, &Node::echo()));
    // Where node 3 dials in vain, so that it is in no trouble by itself.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    c.transport().know(vec![at(1, silent.local_addr().unwrap())]);
    a.transport().know(vec![at(3, c.address())]);
    assert_eq!(trouble(&a, 3, "no dealings").await, "no dealings with you");
    let state = link(&c, 1, |state| state.hello.is_some()).await;
    assert_eq!(state.hello.map(|hello| hello.node), Some(1));
    assert_eq!(trouble(&c, 1, "no dealings").await, "no dealings with you");
    assert!(second.seen().is_empty());
}

#[tokio::test]
async fn a_node_that_starts_lets_nobody_in_until_it_has_a_handler() {
    let b = TcpPeers::bind(SocketAddr::from(([127, 0, 0, 1], 0)), secret()).unwrap();
    let a = start(1, &Node::echo());
    a.transport().know(vec![at(2, b.address())]);
    // It has not said who it is: the greeting waits for that.
    b.introduce(hello(2));
    trouble(&a, 2, "node 2 is still starting").await;
    b.handle(Node::echo());
    connected(&a, 2).await;
    call(&a, 2, "now").await.unwrap();
}

#[tokio::test]
async fn a_changed_hello_is_heard_at_once() {
    let (a, b) = pair(&Node::echo(), &Node::echo()).await;
    b.introduce(HelloV1 { incarnation: 2, ..hello(2) });
    link(&a, 2, |state| state.connected && state.hello.as_ref().is_some_and(|hello| hello.incarnation == 2)).await;
    call(&a, 2, "again").await.unwrap();
    // The dialler's change is heard by the listener, which has its say anew.
    b.handle(Node::refusing("not any more"));
    a.introduce(HelloV1 { incarnation: 9, ..hello(1) });
    trouble(&a, 2, "not any more").await;
}

#[tokio::test]
async fn garbage_and_long_frames_close_the_connection() {
    let second = Node::echo();
    // So long that nobody who greets is too slow for it on a loaded machine.
    let b = start_as(hello(2), &second, Pace { greet_accepted: Duration::from_secs(3), ..hasty() });
    let long = (HELLO_BYTES_MAX as u32 + 1).to_le_bytes();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &long, &[0xff; 64], &[0; 64], &[4, 0, 0, 0, 1, 2, 3, 4], &[]] {
        let mut stream = TcpStream::connect(b.address()).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        // Closed or reset, at the latest when the greeting's time is up; and nothing was said.
        let _ = timeout(LIMIT, stream.read_to_end(&mut answer)).await.unwrap();
        assert!(answer.is_empty(), "{bytes:?} was answered");
    }
    let mut ends = fakes::dialled(&b, PurposeV1::Requests).await;
    ends.writer.put(&[99, 1, 2]);
    ends.writer.flush().await.unwrap();
    while ends.reader.next().await.is_ok() {}
    // Not even a node that knows the secret may announce too much.
    let mut ends = fakes::dialled(&b, PurposeV1::Requests).await;
    let _ = ends.writer.send(&vec![1; 7 * 1024 * 1024]).await;
    while ends.reader.next().await.is_ok() {}
    assert!(second.seen().is_empty());
}

#[tokio::test]
async fn strangers_are_few_and_do_not_stay() {
    let b = start_as(hello(2), &Node::echo(), hasty());
    let mut strangers = Vec::new();
    for _ in 0..STRANGERS_MAX + 8 {
        strangers.push(TcpStream::connect(b.address()).await.unwrap());
    }
    // All are closed when the greeting's time is up, those too many before; then there is room for a peer.
    for mut stranger in strangers {
        let ended = timeout(LIMIT, stranger.read(&mut [0; 8])).await.unwrap();
        assert!(!matches!(ended, Ok(1..)));
    }
    let a = start(1, &Node::echo());
    a.transport().know(vec![at(2, b.address())]);
    connected(&a, 2).await;
}

#[tokio::test]
async fn strangers_who_say_nothing_shut_no_peer_out() {
    // So long that nobody's time is up.
    let b = start_as(hello(2), &Node::echo(), Pace { greet_accepted: LIMIT * 60, ..Pace::default() });
    let mut strangers = Vec::new();
    for _ in 0..STRANGERS_MAX * 2 {
        strangers.push(TcpStream::connect(b.address()).await.unwrap());
    }
    let a = start(1, &Node::echo());
    a.transport().know(vec![at(2, b.address())]);
    connected(&a, 2).await;
    let ended = timeout(LIMIT, strangers[0].read(&mut [0; 8])).await.unwrap();
    assert!(!matches!(ended, Ok(1..)), "the oldest made room");
}
