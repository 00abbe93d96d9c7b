//! A node's port over its life, on real sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

/// One request on a connection that stays open: status line and body.
async fn ask(stream: &mut TcpStream, request: &str) -> (String, String) {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    loop {
        let mut bytes = [0; 4096];
        let read = stream.read(&mut bytes).await.unwrap();
        assert!(read > 0, "closed after: {text}");
        text.push_str(std::str::from_utf8(&bytes[..read]).unwrap());
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if body.len() == length.parse::<usize>().unwrap() {
            return (head.lines().next().unwrap().to_owned(), body.to_owned());
        }
    }
}

const LIVEZ: &str = "GET /livez HTTP/1.1\r\nhost: x\r\n\r\n";
const READYZ: &str = "GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n";
const EXISTS: &str = "POST /v1/EXISTS HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
                      content-length: 11\r\n\r\n{\"key\":\"k\"}";

#[tokio::test]
async fn probes_are_answered_before_the_data_is_read_and_the_same_connection_serves_after() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let bound = Node::bind(NodeConfig::local(&data)).unwrap();
    let mut stream = TcpStream::connect(bound.address()).await.unwrap();
    assert_eq!(ask(&mut stream, LIVEZ).await.0, "HTTP/1.1 200 OK");
    let (status, problem) = ask(&mut stream, READYZ).await;
    assert!(status.contains("503") && problem.contains("recovering"), "{status} {problem}");
    let (status, problem) = ask(&mut stream, EXISTS).await;
    assert!(status.contains("503") && problem.contains("\"unavailable\""), "{status} {problem}");
    assert!(!data.exists());
    let node = bound.open().await.unwrap();
    assert_eq!(ask(&mut stream, READYZ).await.0, "HTTP/1.1 200 OK");
    assert_eq!(ask(&mut stream, EXISTS).await.1, "{\"result\":false}");
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(node.run(async { drop(stopped.await) }));
    drop(stop);
    running.await.unwrap().unwrap();
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0, "an idle connection is closed");
}

#[tokio::test]
async fn a_second_start_on_a_port_touches_no_data() {
    let dir = tempfile::tempdir().unwrap();
    let first = Node::bind(NodeConfig::local(dir.path().join("a"))).unwrap();
    let config = NodeConfig { listen: first.address(), ..NodeConfig::local(dir.path().join("b")) };
    assert!(matches!(Node::start(config).await, Err(StartError::Bind { .. })));
    assert!(!dir.path().join("b").exists());
}

#[tokio::test]
async fn a_peer_port_in_use_touches_no_data_and_frees_the_other() {
    use tenure_cluster::{PeerConfig, Secret};
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let peers = PeerConfig {
        listen: taken.local_addr().unwrap(),
        advertise: None,
        peers: [(1, "a:1".to_owned()), (2, "b:1".to_owned()), (3, "c:1".to_owned())].into(),
        secret: Secret::new(*b"0123456789abcdef").unwrap(),
        bootstrap_majority: false,
    };
    let config = NodeConfig { node_id: Some(1), peers: Some(peers), ..NodeConfig::local(dir.path().join("data")) };
    let error = Node::bind(config).err().unwrap().to_string();
    assert!(error.contains("--peer-listen") && error.contains(&taken.local_addr().unwrap().to_string()), "{error}");
    assert!(!dir.path().join("data").exists());
}

/// On this test's only thread it would block for ever.
#[tokio::test]
async fn what_blocks_is_off_the_workers() {
    let (tell, told) = std::sync::mpsc::sync_channel::<u8>(1);
    let blocks = off_the_workers(async move { told.recv().unwrap() });
    let (got, ()) = tokio::join!(blocks, async { tell.send(7).unwrap() });
    assert_eq!(got.unwrap(), 7);
}

#[tokio::test]
async fn a_start_that_nobody_waits_for_ends() {
    let (held, released) = oneshot::channel::<()>();
    let never = off_the_workers(async move {
        let _held = held;
        std::future::pending::<()>().await;
    });
    let mut never = Box::pin(never);
    assert!(futures_util::poll!(&mut never).is_pending());
    drop(never);
    assert!(released.await.is_err());
}

#[tokio::test]
async fn neither_a_request_that_waits_nor_a_watch_keeps_a_node_that_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let node = Node::start(NodeConfig::local(&data)).await.unwrap();
    let acquire = |token: &str| {
        let args = format!(r#"{{"owner":"o","token":"{token}","create":true,"wait_ms":60000}}"#);
        let body = format!(r#"{{"key":"k","operation":"ACQUIRE","args":{args}}}"#);
        let head = "POST /v1/OP HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
        format!("{head}content-length: {}\r\n\r\n{body}", body.len())
    };
    let mut streams =
        [TcpStream::connect(node.address()).await.unwrap(), TcpStream::connect(node.address()).await.unwrap()];
    assert!(ask(&mut streams[0], &acquire("a")).await.1.contains("true"));
    streams[1].write_all(acquire("b").as_bytes()).await.unwrap();
    while node.cluster().read_stale(|machine, _| machine.waiters()).value == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut watch = TcpStream::connect(node.address()).await.unwrap();
    watch.write_all(b"GET /v1/watch HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut told = Vec::new();
    while !String::from_utf8_lossy(&told).contains("event: reset") {
        assert!(watch.read_buf(&mut told).await.unwrap() > 0);
    }
    drop(node);
    let (status, problem) = ask(&mut streams[1], "").await;
    assert!(status.contains("504") && problem.contains("outcome_unknown"), "{status} {problem}");
    // As long as the old one has the data, the new one is refused.
    let next = async {
        while Node::start(NodeConfig::local(&data)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), next).await.expect("the data is free again");
    let since = tokio::time::Instant::now();
    watch.read_to_end(&mut told).await.unwrap();
    assert!(since.elapsed() < Duration::from_secs(5), "its stream has ended");
    let told = String::from_utf8(told).unwrap();
    // Not broken off: that would look like a fault of the network.
    assert!(told.ends_with("event: cut\ndata: {\"reason\":\"leaving\"}\n\n\r\n0\r\n\r\n"), "{told}");
}
