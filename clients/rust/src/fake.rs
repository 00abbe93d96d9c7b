//! A scripted node for tests: HTTP on port 0, one act per request, in order.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::Notify;

use crate::time::{Boottime, Clock, WallClock};
use crate::uri::Uri;

/// What the node does with a request.
#[derive(Clone, Debug)]
pub enum Act {
    /// Answers with that status and body.
    Answer(u16, String),
    /// Reads the request and never answers.
    Hang,
    /// Answers `unavailable` shortly before the time is up that the request names: a node without a leader.
    Leaderless,
    /// Reads the request and closes the connection.
    Close,
    /// Answers 200 with that body, as the last on its connection.
    Last(String),
    /// Answers with those server-sent events, each its id, its kind and its data; then the stream ends.
    Events(Vec<(&'static str, &'static str, String)>),
    /// Answers 200 with that body once it is told to.
    When(Arc<Notify>, String),
}

impl Act {
    pub fn ok(body: &str) -> Act {
        Act::Answer(200, body.to_owned())
    }

    /// `unavailable`, and the leader is there.
    pub fn led_by(leader: &str) -> Act {
        Act::Answer(
            503,
            format!(
                r#"{{"type":"/problems/unavailable","title":"t","status":503,"code":"unavailable","detail":"no_leader","leader":"{leader}"}}"#
            ),
        )
    }

    pub fn problem(status: u16, code: &str) -> Act {
        Act::Answer(
            status,
            format!(
                r#"{{"type":"/problems/{code}","title":"t","status":{status},"code":"{code}","detail":"told so"}}"#
            ),
        )
    }
}

/// A request as the node saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub path: String,
    pub body: Value,
    /// How long the answer is waited for, as the request says it.
    pub timeout_ms: Option<u64>,
}

#[derive(Clone)]
pub struct Fake {
    pub address: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    arrived: Arc<Notify>,
    /// `/livez` gets no answer.
    mute: Arc<AtomicBool>,
    /// How often it was asked.
    probes: Arc<AtomicUsize>,
    /// What GET is answered, if that is no act.
    view: Arc<Mutex<Option<String>>>,
}

impl Fake {
    /// Acts in order; the last one is for all that follow.
    pub async fn start(acts: impl IntoIterator<Item = Act>) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let fake = Fake {
            address,
            seen: Arc::default(),
            arrived: Arc::default(),
            mute: Arc::default(),
            probes: Arc::default(),
            view: Arc::default(),
        };
        let acts = Arc::new(Mutex::new(acts.into_iter().collect::<VecDeque<Act>>()));
        tokio::spawn(fake.clone().serve(listener, acts));
        fake
    }

    async fn serve(self, listener: TcpListener, acts: Arc<Mutex<VecDeque<Act>>>) {
        while let Ok((stream, _)) = listener.accept().await {
            let (fake, acts) = (self.clone(), Arc::clone(&acts));
            tokio::spawn(async move {
                let service = service_fn(move |request| fake.clone().act(request, Arc::clone(&acts)));
                // An act that closes ends the connection with an error: wanted.
                let _ =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }
    }

    async fn act(
        self,
        request: Request<Incoming>,
        acts: Arc<Mutex<VecDeque<Act>>>,
    ) -> Result<Response<Full<Bytes>>, std::io::Error> {
        let path = request.uri().path().to_owned();
        if path == "/livez" {
            self.probes.fetch_add(1, Ordering::SeqCst);
            self.arrived.notify_waiters();
            if self.mute.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            return Ok(Response::new(Full::new(Bytes::from_static(b"ok"))));
        }
        let timeout_ms = request.headers().get("tenure-timeout-ms").map(|ms| ms.to_str().unwrap().parse().unwrap());
        if let ("/v1/GET", Some(view)) = (&*path, self.view.lock().unwrap().clone()) {
            return Ok(Response::new(Full::new(Bytes::from(view))));
        }
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let act = {
            let mut acts = acts.lock().unwrap();
            if acts.len() > 1 { acts.pop_front().unwrap() } else { acts[0].clone() }
        };
        self.seen.lock().unwrap().push(Seen { path, body, timeout_ms });
        self.arrived.notify_waiters();
        let answer = |status: u16, body: String| {
            Response::builder()
                .status(status)
                .header("tenure-position", "7.0")
                .header("tenure-clock", "123")
                .header("tenure-term", "2")
                .header("tenure-cluster", "c1")
                .body(Full::new(Bytes::from(body)))
                .unwrap()
        };
        match act {
            Act::Answer(status, body) => Ok(answer(status, body)),
            Act::Last(body) => {
                let mut answer = answer(200, body);
                answer.headers_mut().insert("connection", "close".parse().unwrap());
                Ok(answer)
            }
            Act::Events(events) => {
                let text =
                    |(id, kind, data): (&str, &str, String)| format!("id: {id}\nevent: {kind}\ndata: {data}\n\n");
                let mut answer = answer(200, events.into_iter().map(text).collect());
                answer.headers_mut().insert("content-type", "text/event-stream".parse().unwrap());
                Ok(answer)
            }
            Act::When(told, body) => {
                told.notified().await;
                Ok(answer(200, body))
            }
            Act::Leaderless => {
                let wait = std::time::Duration::from_millis(timeout_ms.unwrap());
                // Of less, a quarter is no margin on a busy machine.
                if wait >= std::time::Duration::from_secs(1) {
                    tokio::time::sleep(wait - wait / 4).await;
                }
                let Act::Answer(status, body) = Act::problem(503, "unavailable") else { unreachable!() };
                Ok(answer(status, body))
            }
            Act::Hang => std::future::pending::<Result<_, Infallible>>().await.map_err(|never| match never {}),
            Act::Close => Err(std::io::Error::other("closed")),
        }
    }

    pub fn uri(&self) -> Uri {
        uri(&[&self.address])
    }

    /// From now on it gives no sign of life.
    pub fn fall_silent(&self) {
        self.mute.store(true, Ordering::SeqCst);
    }

    /// From now on GET is answered so.
    pub fn shows(&self, view: &str) {
        *self.view.lock().unwrap() = Some(view.to_owned());
    }

    /// All requests so far, but for those whether it lives.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The operations (or commands) so far.
    pub fn operations(&self) -> Vec<String> {
        let name = |seen: &Seen| seen.body["operation"].as_str().unwrap_or(&seen.path).to_owned();
        self.seen().iter().map(name).collect()
    }

    /// Returns once so many requests arrived.
    pub async fn arrived(&self, count: usize) {
        self.until(|| self.seen.lock().unwrap().len() >= count).await;
    }

    /// Returns once it was asked so often whether it lives.
    pub async fn probed(&self, count: usize) {
        self.until(|| self.probes.load(Ordering::SeqCst) >= count).await;
    }

    async fn until(&self, is_so: impl Fn() -> bool) {
        loop {
            let arrived = self.arrived.notified();
            tokio::pin!(arrived);
            arrived.as_mut().enable();
            if is_so() {
                return;
            }
            arrived.await;
        }
    }
}

/// A clock that moves when told to.
#[derive(Default)]
pub struct HandClock(pub AtomicU64);

impl HandClock {
    pub fn advance(&self, ms: u64) {
        self.0.fetch_add(ms * 1_000_000, Ordering::SeqCst);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Boottime {
        Boottime { ns: self.0.load(Ordering::SeqCst) }
    }
}

/// A wall clock that is set by hand, Unix milliseconds.
#[derive(Debug)]
pub struct HandWall {
    unix_ms: AtomicU64,
    /// How often it was read.
    reads: tokio::sync::watch::Sender<usize>,
}

impl HandWall {
    pub fn at(unix_ms: u64) -> Arc<HandWall> {
        Arc::new(HandWall { unix_ms: AtomicU64::new(unix_ms), reads: tokio::sync::watch::Sender::new(0) })
    }

    pub fn set(&self, unix_ms: u64) {
        self.unix_ms.store(unix_ms, Ordering::SeqCst);
    }

    /// Returns once it was read once more.
    pub async fn read_again(&self) {
        self.reads.subscribe().changed().await.unwrap();
    }
}

impl WallClock for HandWall {
    fn unix_ms(&self) -> u64 {
        let unix_ms = self.unix_ms.load(Ordering::SeqCst);
        self.reads.send_modify(|reads| *reads += 1);
        unix_ms
    }
}

pub fn uri(addresses: &[&str]) -> Uri {
    format!("tenure://{}", addresses.join(",")).parse().unwrap()
}

/// An address where nothing listens. It stays bound, so that no other test gets it.
pub fn nowhere() -> String {
    static BOUND: Mutex<Vec<TcpSocket>> = Mutex::new(Vec::new());
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap().to_string();
    BOUND.lock().unwrap().push(socket);
    address
}

/// An endpoint that accepts no connection and refuses none: its queue is full. Lasts as long as what it gives.
pub async fn black_hole() -> (String, Vec<tokio::net::TcpStream>, TcpListener) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    // Nobody accepts: once the queue is full, the system drops what comes.
    let patience = std::time::Duration::from_millis(200);
    while let Ok(Ok(stream)) = tokio::time::timeout(patience, tokio::net::TcpStream::connect(address)).await {
        waiting.push(stream);
    }
    (address.to_string(), waiting, listener)
}
