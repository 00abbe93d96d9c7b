//! Sockets: accepts connections within a limit, serves HTTP/1.1 on them within time limits, and drains.
//!
//! Limits: so many connections (one more is told 503 and closed), so long for a request's head (which is also how long
//! an idle connection is kept), a body's size and time (`body`), so long for a drain. Not limited here: the time inside
//! the cluster, which has its own request timeout.

#[cfg(test)]
mod tests;

use std::future::Future;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::{debug, warn};

use super::metrics::Metrics;
use super::problem::{Code, Problem};

/// Limits on connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Open connections at most.
    pub connections_max: usize,
    /// Time for a request's head, and for an idle connection.
    pub head_timeout: Duration,
    /// How long a drain waits for requests in flight.
    pub drain_timeout: Duration,
}

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

/// Serves `router` on `listener` until `shutdown`, then answers what is in flight and returns.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    metrics: Arc<Metrics>,
    shutdown: impl Future<Output = ()>,
) {
    let drain = GracefulShutdown::new();
    let permits = Arc::new(Semaphore::new(limits.connections_max));
    let service = TowerToHyperService::new(router);
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                if !of_one_connection(&error) {
                    warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
                continue;
            }
        };
        match Arc::clone(&permits).try_acquire_owned() {
            Ok(permit) => {
                let open = Open::new(permit, Arc::clone(&metrics));
                tokio::spawn(connection(stream, service.clone(), limits.head_timeout, drain.watcher(), open));
            }
            Err(_) => {
                metrics.connections_refused.inc();
                refuse(stream);
            }
        }
    }
    drop(listener);
    if tokio::time::timeout(limits.drain_timeout, drain.shutdown()).await.is_err() {
        warn!(timeout_ms = limits.drain_timeout.as_millis(), "requests were still in flight when the drain timed out");
    }
}

/// A connection's place among the open ones.
struct Open {
    metrics: Arc<Metrics>,
    _permit: OwnedSemaphorePermit,
}

impl Open {
    fn new(permit: OwnedSemaphorePermit, metrics: Arc<Metrics>) -> Self {
        metrics.connections.inc();
        Self { metrics, _permit: permit }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.metrics.connections.dec();
    }
}

async fn connection(
    stream: TcpStream,
    service: TowerToHyperService<Router>,
    head_timeout: Duration,
    drain: Watcher,
    _open: Open,
) {
    if let Err(error) = tune(&stream) {
        debug!(%error, "cannot set socket options");
    }
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .pipeline_flush(true)
        .serve_connection(TokioIo::new(stream), service);
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
