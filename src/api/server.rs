//! Sockets: accepts connections within a limit, serves HTTP/1.1 on them within time limits, and drains.
//!
//! Before it drains it goes on for at most [`LEAVE_TIME`], and every answer closes its connection. Bytes of a request may
//! lie unread in the system when an idle connection is closed, and connections wait to be accepted: a client could not
//! know what became of either. Busy clients are gone by the end; it ends early once no connection is open.
//!
//! Limits: so many connections (one more is told 503 and closed), so long for a request's head (which is also how long
//! an idle connection is kept), a body's size and time (`body`), so long for a drain. Not limited here: the time inside
//! the cluster, which has its own request timeout.

#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::future::Future;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tracing::{debug, warn};

use super::face::Face;
use super::metrics::Metrics;
use super::problem::{Code, Problem};
use super::socket::Socket;

/// Limits on connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Open connections at most.
    pub connections_max: usize,
    /// Time for a request's head, and for an idle connection: hyper has one timer for both, which starts when it waits
    /// for a head and not with the head's first byte. It must outlast the clients' pools, so a half-sent head may hold
    /// its connection for so long; `connections_max` bounds what that costs.
    pub head_timeout: Duration,
    /// How long a drain waits for requests in flight.
    pub drain_timeout: Duration,
}

/// How long clients have to leave: a busy one asks again within it, and is sent away with the answer.
pub const LEAVE_TIME: Duration = Duration::from_secs(1);
/// So long no connection is open and none comes before a node that leaves believes that nobody is on the way.
const QUIET: Duration = Duration::from_millis(50);
const BACKLOG: u32 = 4096;
/// After a failure to accept (mostly: no file descriptors left), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Binds `address`; port 0 takes a free one.
///
/// # Errors
/// What the system says, e.g. that the address is in use.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restart must not wait for the last process's connections to time out.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves `face` on `listener` until `shutdown`, sends clients away, answers what is in flight and returns.
pub async fn serve(
    listener: TcpListener,
    face: Face,
    limits: Limits,
    metrics: Arc<Metrics>,
    shutdown: impl Future<Output = ()>,
) {
    let connections = Connections {
        face: face.clone(),
        permits: Arc::new(Semaphore::new(limits.connections_max)),
        head_timeout: limits.head_timeout,
        open: watch::Sender::new(0),
        drain: GracefulShutdown::new(),
        metrics,
    };
    tokio::select! {
        biased;
        () = shutdown => {}
        never = connections.accept(&listener) => match never {},
    }
    face.leave();
    tokio::select! {
        () = connections.quiet() => {}
        () = tokio::time::sleep(LEAVE_TIME) => {}
        never = connections.accept(&listener) => match never {},
    }
    connections.take_the_last(listener);
    // What was just accepted is read at once if it is there.
    let _ = tokio::time::timeout(QUIET, connections.none_open()).await;
    if tokio::time::timeout(limits.drain_timeout, connections.drain.shutdown()).await.is_err() {
        warn!(timeout_ms = limits.drain_timeout.as_millis(), "requests were still in flight when the drain timed out");
    }
}

/// All connections.
struct Connections {
    face: Face,
    permits: Arc<Semaphore>,
    head_timeout: Duration,
    /// How many are open.
    open: watch::Sender<usize>,
    drain: GracefulShutdown,
    metrics: Arc<Metrics>,
}

impl Connections {
    /// Accepts and serves.
    async fn accept(&self, listener: &TcpListener) -> Infallible {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => self.serve(stream),
                Err(error) if of_one_connection(&error) => {}
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Accepts what the system has taken already, and no more.
    fn take_the_last(&self, listener: TcpListener) {
        // Not through the runtime, which may not have seen yet that somebody is there.
        let Ok(listener) = listener.into_std() else { return };
        for _ in 0..BACKLOG {
            let Ok((stream, _)) = listener.accept() else { return };
            if stream.set_nonblocking(true).is_ok()
                && let Ok(stream) = TcpStream::from_std(stream)
            {
                self.serve(stream);
            }
        }
    }

    fn serve(&self, stream: TcpStream) {
        match Arc::clone(&self.permits).try_acquire_owned() {
            Ok(permit) => {
                let open = Open::new(permit, self.open.clone(), Arc::clone(&self.metrics));
                let face = self.face.clone();
                tokio::spawn(connection(stream, face, self.head_timeout, self.drain.watcher(), open));
            }
            Err(_) => {
                self.metrics.connections_refused.inc();
                refuse(stream);
            }
        }
    }

    async fn none_open(&self) {
        // The sender is here: it does not fail.
        let _ = self.open.subscribe().wait_for(|open| *open == 0).await;
    }

    /// Returns once no connection was open for [`QUIET`].
    async fn quiet(&self) {
        let mut open = self.open.subscribe();
        loop {
            if open.wait_for(|open| *open == 0).await.is_err() {
                return;
            }
            if tokio::time::timeout(QUIET, open.changed()).await.is_err() {
                return;
            }
        }
    }
}

/// A connection's place among the open ones.
struct Open {
    metrics: Arc<Metrics>,
    count: watch::Sender<usize>,
    _permit: OwnedSemaphorePermit,
}

impl Open {
    fn new(permit: OwnedSemaphorePermit, count: watch::Sender<usize>, metrics: Arc<Metrics>) -> Self {
        metrics.connections.inc();
        count.send_modify(|count| *count += 1);
        Self { metrics, count, _permit: permit }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.metrics.connections.dec();
        self.count.send_modify(|count| *count -= 1);
    }
}

async fn connection(stream: TcpStream, face: Face, head_timeout: Duration, drain: Watcher, _open: Open) {
    if let Err(error) = tune(&stream) {
        debug!(%error, "cannot set socket options");
    }
    let socket = Socket::new(stream);
    let service = TowerToHyperService::new(face.of(socket.peer()));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .pipeline_flush(true)
        .serve_connection(TokioIo::new(socket), service);
    if let Err(error) = drain.watch(connection).await {
        debug!(%error, "connection ended");
    }
}

/// Answers go out at once, and a vanished peer is noticed within five seconds.
fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive =
        TcpKeepalive::new().with_time(Duration::from_secs(2)).with_interval(Duration::from_secs(1)).with_retries(3);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// Tells one connection too many why, as far as one write goes, and closes it.
fn refuse(stream: TcpStream) {
    let problem = Problem::new(Code::Unavailable, "too many connections are open on this node").to_wire();
    let json = serde_json::to_string(&problem).unwrap_or_default();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{json}",
        json.len()
    );
    // The socket is non-blocking: a client that cannot take these bytes at once goes without.
    if let Err(error) = stream.into_std().and_then(|mut stream| stream.write_all(answer.as_bytes())) {
        debug!(%error, "connection refused without an answer");
    }
}

/// Errors of accept that concern the one connection only.
fn of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
