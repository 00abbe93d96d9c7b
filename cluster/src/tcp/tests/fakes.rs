//! An end of a connection in the test's own hands.

use std::time::Duration;

use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use super::super::greeting::{Greeted, Side};
use super::super::limits::FRAME_BYTES_MAX;
use super::*;

pub type Ends = Greeted<OwnedReadHalf, OwnedWriteHalf>;

pub fn side(hello: HelloV1) -> Side {
    Side { own: hello, secret: secret(), handler: Some(Node::echo()), linger: Duration::from_millis(500) }
}

/// Waits for `dialler` to connect, and greets it as node 2.
pub async fn accepted(listener: &TcpListener) -> Ends {
    let (stream, _) = listener.accept().await.unwrap();
    widened(side(hello(2)).accept(stream.into_split()).await.unwrap())
}

/// Connects to `peers`, node 2, as node 1.
pub async fn dialled(peers: &TcpPeers, purpose: PurposeV1) -> Ends {
    let stream = TcpStream::connect(peers.address()).await.unwrap();
    widened(side(HelloV1 { purpose, ..hello(1) }).dial(stream.into_split(), 2).await.unwrap())
}

fn widened(mut ends: Ends) -> Ends {
    ends.reader.widen(FRAME_BYTES_MAX, LIMIT, Arc::default());
    ends
}
