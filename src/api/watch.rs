//! `GET /v1/watch`: what happens to keys, as server-sent events. The stream itself is `edge::watch`; here it meets HTTP.
//!
//! A watch has a task that pulls from its stream, writes the events, and hands them to the connection piece by piece, the
//! next only once the system has taken nearly all of what was handed over before. So what waits for a slow reader is
//! bounded: [`BUFFERED_MAX`] and a piece or two here, and what the system keeps for a socket. A reader of whose socket nothing
//! is taken for [`UNREAD_MAX`] loses its connection: it could not read a farewell either.
//!
//! Limits: [`WATCHERS_MAX`] watches on a node, fewer where it serves few connections; [`KEYS_MAX`] keys of one.

pub(super) mod query;
pub(super) mod text;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Response, Version, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use futures_util::stream;
use tenure_cluster::Cluster;
use tenure_cluster::raft::TokioRuntime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use self::query::Query;
use super::Api;
use super::metrics::Metrics;
use super::problem::{Code, Problem};
use super::socket::Peer;
use crate::edge::history::History;
use crate::edge::watch::{Cut, Item, Stream};
use crate::keyspace::Keyspace;

/// Watches of one node at most.
pub const WATCHERS_MAX: usize = 4_096;
/// Keys that one watch may name.
const KEYS_MAX: usize = 100;
/// A reader that takes nothing for so long is cut.
const UNREAD_MAX: Duration = Duration::from_secs(10);

/// Of what was handed to a connection at most so much waits for the system to take it, and one piece.
const BUFFERED_MAX: u64 = 64 << 10;
/// What is left to read gets so long when the node goes away.
const FAREWELL: Duration = Duration::from_secs(1);

const STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
/// Proxies must pass on what comes as it comes.
const BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
const CLUSTER: HeaderName = HeaderName::from_static("tenure-cluster");

/// Who watches on this node.
pub struct Watchers {
    history: Arc<History>,
    permits: Arc<Semaphore>,
    max: usize,
}

impl Watchers {
    /// Of what `history` hears; at most `max`.
    pub fn new(history: Arc<History>, max: usize) -> Self {
        history.start::<TokioRuntime>();
        Self { history, permits: Arc::new(Semaphore::new(max)), max }
    }

    /// All are sent away.
    pub fn leave(&self) {
        self.history.leave();
    }

    fn admit(&self, metrics: &Arc<Metrics>) -> Result<Admitted, Problem> {
        if self.history.pulse().borrow().leaving {
            return Err(Problem::new(Code::Unavailable, "draining: this node goes away, watch at another node"));
        }
        let permit = Arc::clone(&self.permits).try_acquire_owned().map_err(|_| {
            let detail = format!("{} watches are open on this node, its limit: watch at another node", self.max);
            Problem::new(Code::Unavailable, detail)
        })?;
        metrics.watchers.inc();
        Ok(Admitted { metrics: Arc::clone(metrics), _permit: permit })
    }
}

/// A watch's place among the open ones.
struct Admitted {
    metrics: Arc<Metrics>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.metrics.watchers.dec();
    }
}

/// The handler.
pub async fn watch(State(api): State<Api>, request: Request) -> Result<Response<Body>, Response<Body>> {
    let query = request.uri().query().unwrap_or_default();
    let query = Query::of(query, request.headers(), api.shared.cluster.cluster_id());
    let (peer, version) = (request.extensions().get::<Peer>().cloned(), request.version());
    drop(request);
    let begun = match query {
        Ok(query) => begin(&api, query).await,
        Err(problem) => Err(problem),
    };
    let (admitted, stream) = begun.map_err(|mut problem| {
        if problem.code == Code::Unavailable {
            problem.leader = api.leader_elsewhere();
        }
        problem.into_response()
    })?;
    // One piece: the next is made when the connection takes it.
    let (pieces, mut taken) = mpsc::channel::<Bytes>(1);
    let (history, metrics) = (Arc::clone(&api.shared.watchers.history), Arc::clone(&api.shared.metrics));
    let cluster = api.shared.cluster.cluster_id().to_owned();
    let handed = peer.as_ref().map_or(0, Peer::written);
    tokio::spawn(attend(Telling { cluster, stream, pieces, peer, version, handed, history, metrics }, admitted));
    let body = stream::poll_fn(move |cx| taken.poll_recv(cx).map(|piece| piece.map(Ok::<_, Infallible>)));
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, STREAM);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(BUFFERING, HeaderValue::from_static("no"));
    headers.insert(CLUSTER, api.shared.cluster_id.clone());
    // So that a connection whose reader is cut can be ended without harm to another request.
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    Ok(response)
}

async fn begin(api: &Api, query: Query) -> Result<(Admitted, Stream<Cluster<Keyspace>, TokioRuntime>), Problem> {
    let Watchers { history, .. } = &api.shared.watchers;
    let admitted = api.shared.watchers.admit(&api.shared.metrics)?;
    let stream = Stream::begin(api.shared.cluster.clone(), Arc::clone(history), query.selection, query.begin).await?;
    Ok((admitted, stream))
}

/// One watch.
struct Telling {
    cluster: String,
    stream: Stream<Cluster<Keyspace>, TokioRuntime>,
    pieces: mpsc::Sender<Bytes>,
    peer: Option<Peer>,
    version: Version,
    /// Bytes that were handed to the connection, with what frames them, so that they compare with what the system took
    /// of it: a count that fell behind would let a watch that is open for days keep ever more for its reader.
    handed: u64,
    history: Arc<History>,
    metrics: Arc<Metrics>,
}

/// A watch that this node ends.
struct Ended {
    why: Cut,
    /// The connection is given so long to pass on what it holds.
    farewell: Duration,
}

/// From its first word to the end of its connection.
async fn attend(mut telling: Telling, admitted: Admitted) {
    let ended = telling.run().await;
    // All of it goes now: with its pieces the answer ends, and a reader that takes it waits for nothing.
    let Telling { peer, metrics, pieces, stream, .. } = telling;
    drop((pieces, stream, admitted));
    if let Some(Ended { why, farewell }) = ended {
        metrics.watch_cuts.get_or_create(&[("reason", why.as_str())]).inc();
        if let Some(peer) = peer {
            peer.hang_up_after(farewell).await;
        }
    }
}

impl Telling {
    /// Tells until the reader is gone (`None`), or is cut.
    async fn run(&mut self) -> Option<Ended> {
        loop {
            let items = tokio::select! {
                items = self.stream.next() => items?,
                () = self.pieces.closed() => return None,
            };
            let mut piece = String::new();
            for item in &items {
                text::write(&mut piece, item, &self.cluster);
            }
            if let Err(ended) = self.hand_over(piece.into()).await {
                return ended;
            }
            let events = items.iter().filter(|item| matches!(item, Item::Event(_)));
            self.metrics.watch_events.inc_by(events.count() as u64);
            if let Some(Item::Cut(why)) = items.last() {
                let farewell = if *why == Cut::Leaving { FAREWELL } else { UNREAD_MAX };
                return Some(Ended { why: *why, farewell });
            }
        }
    }

    /// Gives one piece to the connection. Who does not take it gets no farewell: it would not be read either.
    async fn hand_over(&mut self, piece: Bytes) -> Result<(), Option<Ended>> {
        let framed = framed(piece.len(), self.version);
        let mut pulse = self.history.pulse();
        let left = async {
            // Its sender is in the history, which is here.
            let _ = pulse.wait_for(|pulse| pulse.leaving).await;
            tokio::time::sleep(FAREWELL).await;
        };
        let kept_for = self.stream.kept_for();
        let kept_too_long = async {
            match kept_for {
                Some(time) => tokio::time::sleep(time).await,
                None => std::future::pending().await,
            }
        };
        if let Some(peer) = &self.peer {
            // The head of the answer is not counted, but it has left by now.
            self.handed = self.handed.max(peer.written());
        }
        let passed = tokio::select! { biased;
            passed = self.pass_on(piece) => passed,
            () = self.pieces.closed() => Err(None),
            () = left => Err(Some(Cut::Leaving)),
            () = kept_too_long => Err(Some(Cut::TooSlow)),
        };
        self.handed += framed;
        passed.map_err(|why| why.map(|why| Ended { why, farewell: Duration::ZERO }))
    }

    async fn pass_on(&self, piece: Bytes) -> Result<(), Option<Cut>> {
        if let Some(peer) = &self.peer {
            // hyper takes all that it is given while it may still flush it together with a next answer.
            let mut written = peer.written();
            while self.handed.saturating_sub(written) > BUFFERED_MAX {
                let more = tokio::time::timeout(UNREAD_MAX, peer.written_beyond(written));
                more.await.map_err(|_| Some(Cut::TooSlow))?;
                written = peer.written();
            }
        }
        match tokio::time::timeout(UNREAD_MAX, self.pieces.send(piece)).await {
            Ok(sent) => sent.map_err(|_| None),
            Err(_) => Err(Some(Cut::TooSlow)),
        }
    }
}

/// What so many bytes of a body take on the wire: a chunk since HTTP/1.1, and before that just themselves.
fn framed(bytes: usize, version: Version) -> u64 {
    let chunk = if version < Version::HTTP_11 { 0 } else { format!("{bytes:x}").len() + 4 };
    (bytes + chunk) as u64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// What the machinery below makes of it, byte for byte.
    #[tokio::test]
    async fn what_is_handed_over_is_counted_as_it_is_sent() {
        use hyper::server::conn::http1;
        use hyper_util::rt::TokioIo;
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        const SIZES: [usize; 7] = [1, 9, 15, 16, 255, 256, 70_000];
        for (version, name) in [(Version::HTTP_10, "HTTP/1.0"), (Version::HTTP_11, "HTTP/1.1")] {
            let (mut client, server) = tokio::io::duplex(1 << 20);
            let service = hyper::service::service_fn(|_| async {
                let pieces = SIZES.map(|size| Ok::<_, Infallible>(Bytes::from(vec![b'x'; size])));
                Ok::<_, Infallible>(Response::new(Body::from_stream(stream::iter(pieces))))
            });
            client.write_all(format!("GET / {name}\r\nconnection: close\r\n\r\n").as_bytes()).await.unwrap();
            http1::Builder::new().serve_connection(TokioIo::new(server), service).await.unwrap();
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            let head = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
            let end = if version == Version::HTTP_11 { "0\r\n\r\n".len() } else { 0 };
            let counted: u64 = SIZES.iter().map(|size| framed(*size, version)).sum();
            assert_eq!((answer.len() - head - end) as u64, counted, "{name}");
        }
    }

    #[tokio::test]
    async fn a_node_has_a_limit_of_watches_and_none_when_it_leaves() {
        let (watchers, metrics) = (Watchers::new(Arc::default(), 7), Arc::new(Metrics::default()));
        let mut admitted: Vec<_> = (0..7).map(|_| watchers.admit(&metrics).ok().unwrap()).collect();
        let refused = watchers.admit(&metrics).err().unwrap();
        assert!(refused.code == Code::Unavailable && refused.detail.contains("7 watches"), "{refused:?}");
        drop(admitted.pop());
        assert!(watchers.admit(&metrics).is_ok());
        assert_eq!(metrics.watchers.get(), 6);
        watchers.leave();
        assert!(watchers.admit(&metrics).err().unwrap().detail.contains("draining"));
    }
}
