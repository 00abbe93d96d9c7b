//! A proxy between two nodes that passes bytes on, changes them, or cuts the connection.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the dialler to the listener.
    There,
    /// From the listener to the dialler.
    Back,
}

/// What becomes of the bytes that were read.
pub enum Fate {
    /// They go on.
    Pass,
    /// They go on, then both ends are closed.
    Cut,
    /// They vanish.
    Swallow,
}

/// Given the way, the number of bytes that went this way before, and bytes, says what becomes of them.
pub type Rule = Arc<dyn Fn(Way, usize, &mut Vec<u8>) -> Fate + Send + Sync>;

/// A proxy; gone when dropped.
pub struct Proxy {
    pub address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Proxy {
    pub async fn start(target: SocketAddr, rule: Rule) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((dialler, _)) = listener.accept().await {
                let rule = Arc::clone(&rule);
                connections.spawn(async move {
                    let Ok(listener) = TcpStream::connect(target).await else { return };
                    let ((from, to), (back, forth)) = (dialler.into_split(), listener.into_split());
                    // The first end of either way ends both.
                    tokio::select! {
                        () = pump(Way::There, from, forth, &rule) => {}
                        () = pump(Way::Back, back, to, &rule) => {}
                    }
                });
            }
        });
        Self { address, _tasks: tasks }
    }

    /// Cuts each connection after `bytes` bytes on the way `cut`.
    pub async fn cutting(target: SocketAddr, cut: Way, bytes: usize) -> Self {
        let rule: Rule = Arc::new(move |way, before, now| {
            if way != cut || before + now.len() < bytes {
                return Fate::Pass;
            }
            now.truncate(bytes - before);
            Fate::Cut
        });
        Self::start(target, rule).await
    }
}

async fn pump(
    way: Way,
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    rule: &Rule,
) {
    let (mut buffer, mut before) = (vec![0; 64 * 1024], 0);
    if matches!(rule(way, 0, &mut Vec::new()), Fate::Cut) {
        return;
    }
    while let Ok(1..) = from.read(&mut buffer).await.inspect(|read| buffer.truncate(*read)) {
        let fate = rule(way, before, &mut buffer);
        before += buffer.len();
        if matches!(fate, Fate::Pass | Fate::Cut) && to.write_all(&buffer).await.is_err() {
            return;
        }
        if matches!(fate, Fate::Cut) {
            return;
        }
        buffer.resize(64 * 1024, 0);
    }
}
