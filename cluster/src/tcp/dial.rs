//! From a `host:port` to a connection.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::limits::ADDRESSES_MAX;

/// What it means that there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Means {
    /// Every address was tried, and each host said that nobody listens there.
    Nobody,
    /// A connection was there, and was reset at once: whoever listens may be just about to end.
    Cut,
    /// Anything else: nothing follows.
    Nothing,
}

/// No connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NoWay {
    /// What it means.
    pub means: Means,
    /// Why, one line.
    pub why: String,
}

/// The addresses of `name`, `host:port`.
///
/// # Errors
/// One line.
pub(super) async fn look_up(name: &str, within: Duration) -> Result<Vec<SocketAddr>, String> {
    match timeout(within, tokio::net::lookup_host(name)).await {
        Err(_) => Err(format!("{name}: the name was not found within {} ms", within.as_millis())),
        Ok(Err(error)) => Err(format!("{name}: cannot be looked up: {error}")),
        Ok(Ok(found)) => {
            let found: Vec<SocketAddr> = found.take(ADDRESSES_MAX).collect();
            if found.is_empty() { Err(format!("{name}: the name has no address")) } else { Ok(found) }
        }
    }
}

/// Connects to the first of `addresses` that answers.
///
/// # Errors
/// [`NoWay`].
pub(super) async fn connect(addresses: &[SocketAddr], within: Duration) -> Result<TcpStream, NoWay> {
    let mut no_way = NoWay { means: Means::Nothing, why: "there is no address".to_owned() };
    for (at, address) in addresses.iter().enumerate() {
        let (means, why) = match timeout(within, TcpStream::connect(address)).await {
            // A port of the ephemeral range may meet itself: then nobody listens there.
            Ok(Ok(stream)) if is_its_own_end(&stream) => (Means::Nobody, "connection refused".to_owned()),
            Ok(Ok(stream)) => match tune(&stream) {
                Ok(()) => return Ok(stream),
                Err(error) => (Means::Cut, error.to_string()),
            },
            Ok(Err(error)) => (meaning(&error), error.to_string()),
            Err(_) => (Means::Nothing, format!("no connection within {} ms", within.as_millis())),
        };
        let means = if at == 0 || means == no_way.means { means } else { Means::Nothing };
        no_way = NoWay { means, why: format!("{address}: {why}") };
    }
    Err(no_way)
}

fn meaning(error: &io::Error) -> Means {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Means::Nobody,
        io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted => Means::Cut,
        _ => Means::Nothing,
    }
}

fn is_its_own_end(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(own), Ok(other)) if own == other)
}

/// No delay, and keepalive: a host that vanished is noticed also by a connection that has nothing to say.
///
/// # Errors
/// What the system says.
pub(super) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive =
        TcpKeepalive::new().with_time(Duration::from_secs(2)).with_interval(Duration::from_secs(1)).with_retries(3);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}
