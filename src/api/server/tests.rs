//! Real sockets, a handler that waits to be told.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use axum::routing::get;
use axum::{Extension, Router};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

use super::super::socket::Peer;
use super::*;

struct Server {
    address: SocketAddr,
    /// A request ended without an answer, or its client was seen to close.
    abandoned: Arc<Notify>,
    /// A request reached the handler.
    entered: Arc<Notify>,
    /// Lets the handler answer.
    answer: Arc<Notify>,
    stop: oneshot::Sender<()>,
    served: JoinHandle<()>,
}

/// Tells of a request that was not answered.
struct Abandoned(Option<Arc<Notify>>);

impl Drop for Abandoned {
    fn drop(&mut self) {
        if let Some(abandoned) = self.0.take() {
            abandoned.notify_one();
        }
    }
}

fn start(limits: Limits) -> Server {
    let listener = bind(([127, 0, 0, 1], 0).into()).unwrap();
    let address = listener.local_addr().unwrap();
    let [entered, answer, abandoned] = std::array::from_fn(|_| Arc::new(Notify::new()));
    let handler = {
        let [entered, answer, abandoned] = [&entered, &answer, &abandoned].map(Arc::clone);
        move |Extension(peer): Extension<Peer>| async move {
            entered.notify_one();
            let mut abandoned = Abandoned(Some(abandoned));
            tokio::select! {
                () = answer.notified() => drop(abandoned.0.take()),
                () = peer.closed() => {}
            }
            "done"
        }
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let face = Face::new(Router::new().route("/", get(handler)));
    let shutdown = async { drop(stopped.await) };
    let served = tokio::spawn(serve(listener, face, limits, Arc::new(Metrics::default()), shutdown));
    Server { address, abandoned, entered, answer, stop, served }
}

const LIMITS: Limits =
    Limits { connections_max: 1, head_timeout: Duration::from_secs(60), drain_timeout: Duration::from_secs(60) };

async fn ask(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    stream
}

async fn all(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn a_drain_answers_what_is_in_flight() {
    let server = start(LIMITS);
    let stream = ask(server.address).await;
    server.entered.notified().await;
    server.stop.send(()).unwrap();
    // Refused as soon as the listener is gone; until then it would be accepted by the system alone.
    while TcpStream::connect(server.address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(!server.served.is_finished());
    server.answer.notify_one();
    let text = all(stream).await;
    assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("done"), "{text}");
    server.served.await.unwrap();
}

#[tokio::test]
async fn a_drain_is_bounded() {
    let server = start(Limits { drain_timeout: Duration::from_millis(1), ..LIMITS });
    let _stream = ask(server.address).await;
    server.entered.notified().await;
    server.stop.send(()).unwrap();
    server.served.await.unwrap();
}

#[tokio::test]
async fn one_connection_too_many_is_told_so() {
    let server = start(LIMITS);
    let first = ask(server.address).await;
    server.entered.notified().await;
    let refused = all(TcpStream::connect(server.address).await.unwrap()).await;
    let (head, body) = refused.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 503") && head.contains("application/problem+json"), "{head}");
    let problem: tenure_client::wire::Problem = serde_json::from_str(body).unwrap();
    assert_eq!((problem.code.as_str(), problem.status), ("unavailable", 503));
    drop(first);
}

#[tokio::test]
async fn a_head_that_does_not_come_ends_the_connection() {
    let server = start(Limits { head_timeout: Duration::from_millis(1), ..LIMITS });
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"GET / HT").await.unwrap();
    assert_eq!(all(stream).await, "");
}

/// Whoever asks while the node leaves is answered, on a standing connection and on a new one, and told to go elsewhere.
#[tokio::test]
async fn clients_are_sent_away_before_the_drain() {
    let server = start(Limits { connections_max: 2, ..LIMITS });
    let mut stands = ask(server.address).await;
    server.entered.notified().await;
    server.answer.notify_one();
    let mut first = Vec::new();
    while !first.ends_with(b"done") {
        assert_ne!(stands.read_buf(&mut first).await.unwrap(), 0, "it stays open");
    }
    server.stop.send(()).unwrap();
    let mut comes = TcpStream::connect(server.address).await.unwrap();
    for stream in [&mut stands, &mut comes] {
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        server.entered.notified().await;
        server.answer.notify_one();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let text = text.to_ascii_lowercase();
        assert!(text.starts_with("http/1.1 200") && text.contains("connection: close"), "{text}");
    }
    server.served.await.unwrap();
}

#[tokio::test]
async fn a_client_that_closes_is_noticed_while_it_waits() {
    let server = start(LIMITS);
    let stream = ask(server.address).await;
    server.entered.notified().await;
    drop(stream);
    server.abandoned.notified().await;
}

/// hyper does not look whether a client is there once it has bytes of its next request.
#[tokio::test]
async fn a_client_that_closes_is_noticed_behind_its_next_request() {
    let server = start(LIMITS);
    let mut stream = ask(server.address).await;
    server.entered.notified().await;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let unnoticed = server.abandoned.notified();
    assert!(tokio::time::timeout(Duration::from_millis(50), unnoticed).await.is_err(), "it has not closed");
    drop(stream);
    server.abandoned.notified().await;
}

/// Half a connection is none: who says that it sends no more is taken for gone.
#[tokio::test]
async fn a_client_that_closes_its_side_is_noticed_while_it_waits() {
    let server = start(LIMITS);
    let mut stream = ask(server.address).await;
    server.entered.notified().await;
    stream.shutdown().await.unwrap();
    server.abandoned.notified().await;
}

#[tokio::test]
async fn a_request_may_take_longer_than_a_head() {
    let server = start(Limits { head_timeout: Duration::from_millis(20), ..LIMITS });
    let mut stream = ask(server.address).await;
    server.entered.notified().await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.answer.notify_one();
    let mut text = Vec::new();
    while !text.ends_with(b"done") {
        assert_ne!(stream.read_buf(&mut text).await.unwrap(), 0, "closed while it waited");
    }
    drop(server);
}
