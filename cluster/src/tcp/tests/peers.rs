//! Which peers are known, where they are looked for, and what becomes of those that are not known any more.

use super::*;

#[tokio::test]
async fn a_changed_address_is_dialled_anew() {
    let (first, second) = (Node::echo(), Node::echo());
    let (old, new) = (start(2, &first), start_as(HelloV1 { incarnation: 5, ..hello(2) }, &second, Pace::default()));
    let a = start(1, &Node::echo());
    a.transport().know(vec![at(2, old.address())]);
    connected(&a, 2).await;
    call(&a, 2, "old").await.unwrap();
    a.transport().know(vec![at(2, new.address())]);
    link(&a, 2, |state| state.connected && state.hello.as_ref().is_some_and(|hello| hello.incarnation == 5)).await;
    call(&a, 2, "new").await.unwrap();
    assert_eq!((first.seen(), second.seen()), (vec!["old".into()], vec!["new".into()]));
}

#[tokio::test]
async fn hints_are_tried_and_the_right_node_is_believed() {
    let (_kept, dead) = closed();
    let (other, second) = (start(3, &Node::echo()), Node::echo());
    let b = start_as(hello(2), &second, Pace { silence: LIMIT, ..Pace::default() });
    // Its own life is not to be said in between: those would be frames too.
    let a = start_as(hello(1), &Node::echo(), Pace { alive: LIMIT, ..Pace::default() });
    let mut peer = at(2, dead);
    peer.hints = vec!["no-port".to_owned(), other.address().to_string(), format!("localhost:{}", b.address().port())];
    a.transport().know(vec![peer.clone()]);
    connected(&a, 2).await;
    call(&a, 2, "found").await.unwrap();
    assert_eq!(second.seen().len(), 1);
    // Hints that change leave a standing connection alone.
    let frames = a.meter().read()[&2].sent_frames;
    peer.hints.truncate(1);
    a.transport().know(vec![peer]);
    call(&a, 2, "still there").await.unwrap();
    assert_eq!(a.meter().read()[&2].sent_frames, frames + 1);
}

#[tokio::test]
async fn a_name_that_does_not_exist_is_trouble() {
    let a = start(1, &Node::echo());
    a.transport().know(vec![Peer {
        id: 2,
        member: Member { peer: "nowhere.invalid:13379".to_owned(), ..Member::default() },
        hints: Vec::new(),
    }]);
    let line = trouble(&a, 2, "nowhere.invalid:13379").await;
    assert!(line.contains("looked up") || line.contains("not found"), "{line}");
    a.transport().know(vec![Peer { id: 3, ..Peer::default() }]);
    trouble(&a, 3, "address is not known").await;
}

#[tokio::test]
async fn whoever_is_no_peer_any_more_is_left_alone() {
    let (a, b) = pair(&Node::echo(), &Node::answering(Box::new(|_| std::future::pending().boxed()))).await;
    let transport = a.transport();
    let held = transport.call(Peer { id: 2, ..Peer::default() }, forward("held"));
    transport.know(Vec::new());
    assert!(timeout(LIMIT, held).await.unwrap().is_err());
    assert!(transport.links().is_empty() && a.meter().read().is_empty());
    transport.know(vec![at(2, b.address())]);
    connected(&a, 2).await;
}

#[tokio::test]
async fn a_peer_that_was_down_is_reached_when_it_dials_itself() {
    let (_kept, dead) = closed();
    // Pauses so long that only the nudge ends them in time.
    let slow = Pace { retry_first: LIMIT, retry_max: LIMIT, ..Pace::default() };
    let a = start_as(hello(1), &Node::echo(), slow);
    a.transport().know(vec![at(2, dead)]);
    trouble(&a, 2, "refused").await;
    let b = TcpPeers::bind_at(SocketAddr::from(([127, 0, 0, 1], 0)), secret(), Pace::default()).unwrap();
    a.transport().know(vec![Peer { hints: vec![b.address().to_string()], ..at(2, dead) }]);
    b.introduce(hello(2));
    b.handle(Node::echo());
    b.transport().know(vec![at(1, a.address())]);
    connected(&b, 1).await;
    connected(&a, 2).await;
}

#[tokio::test]
async fn a_peer_that_moved_is_dialled_where_it_says_it_is() {
    let (_kept, dead) = closed();
    let slow = Pace { retry_first: LIMIT, retry_max: LIMIT, ..Pace::default() };
    let a = start_as(hello(1), &Node::echo(), slow);
    a.transport().know(vec![at(2, dead)]);
    trouble(&a, 2, "refused").await;
    let moved = |peers: &TcpPeers, incarnation| HelloV1 { peer: peers.address().to_string(), incarnation, ..hello(2) };
    let bound = || TcpPeers::bind(SocketAddr::from(([127, 0, 0, 1], 0)), secret()).unwrap();
    for incarnation in [1, 2] {
        let b = bound();
        b.introduce(moved(&b, incarnation));
        b.handle(Node::echo());
        b.transport().know(vec![at(1, a.address())]);
        let is_it = |hello: &HelloV1| hello.incarnation == incarnation;
        link(&a, 2, |state| state.connected && state.hello.as_ref().is_some_and(is_it)).await;
        // What this node is given says nothing of what the peer said.
        a.transport().know(vec![at(2, dead)]);
        call(&a, 2, "found").await.unwrap();
        b.close().await;
        link(&a, 2, |state| !state.connected).await;
    }
}

#[tokio::test]
async fn a_node_has_one_requests_connection_here() {
    let b = start(2, &Node::echo());
    let mut first = fakes::dialled(&b, PurposeV1::Requests).await;
    let mut second = fakes::dialled(&b, PurposeV1::Requests).await;
    // The older ends; the newer stands, and is told every second that the node is alive.
    while first.reader.next().await.is_ok() {}
    assert!(second.reader.next().await.is_ok());
}

#[tokio::test]
async fn dropping_ends_all() {
    let (a, b) = pair(&Node::echo(), &Node::echo()).await;
    let (transport, address) = (a.transport(), a.address());
    drop(a);
    assert!(transport.links().is_empty());
    let call = transport.call(Peer { id: 2, ..Peer::default() }, forward("x"));
    assert!(matches!(call.await, Err(TransportError::Unreachable { .. })));
    // Its address is free again as soon as its tasks have ended.
    while TcpPeers::bind(address, secret()).is_err() {
        tokio::task::yield_now().await;
    }
    b.close().await;
}
