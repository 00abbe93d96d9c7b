//! A client's socket, shared between the HTTP machinery that reads and writes it and a request that waits for long.
//!
//! Why: while a request is served hyper notices that the client closed, unless bytes of a next request have come already:
//! then it does not look. Whoever waits for minutes looks for itself, by [`Peer::closed`].

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// Of this interest tokio tells the closing alone: a TCP socket is not registered for more.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOSING: Interest = Interest::PRIORITY;
/// Elsewhere a pipelining client's closing is noticed when it is written to.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOSING: Interest = Interest::ERROR;

/// What reads and writes it.
pub struct Socket(Arc<TcpStream>, Arc<Written>);

/// Who looks whether it is still open, and how much it took. Travels in a request's extensions.
#[derive(Clone)]
pub struct Peer(Arc<TcpStream>, Arc<Written>);

/// What the system took of all that was to be sent.
#[derive(Default)]
struct Written {
    bytes: AtomicU64,
    more: Notify,
}

impl Socket {
    /// Of a connection.
    pub fn new(stream: TcpStream) -> Self {
        Self(Arc::new(stream), Arc::default())
    }

    /// The other view of it.
    pub fn peer(&self) -> Peer {
        Peer(Arc::clone(&self.0), Arc::clone(&self.1))
    }
}

impl Peer {
    /// Resolves when the client has closed its side, or the connection is broken.
    pub async fn closed(&self) {
        match self.0.ready(CLOSING).await {
            Ok(ready) if ready.is_read_closed() || ready.is_error() => {}
            // Nothing else is asked for.
            Ok(_) => std::future::pending().await,
            Err(_) => {}
        }
    }
}

impl Peer {
    /// Bytes that the system took so far. The machinery between here and there keeps whatever it is given: who hands
    /// much over must look how much of it has left.
    pub fn written(&self) -> u64 {
        self.1.bytes.load(Ordering::Acquire)
    }

    /// Resolves once there are more than `bytes` of them.
    pub async fn written_beyond(&self, bytes: u64) {
        loop {
            let more = self.1.more.notified();
            tokio::pin!(more);
            more.as_mut().enable();
            if self.written() > bytes {
                return;
            }
            more.await;
        }
    }

    /// Ends the connection if it stands after so long, also where bytes wait that the client does not take.
    pub async fn hang_up_after(self, time: Duration) {
        let stream = Arc::downgrade(&self.0);
        // It must not stay open for this.
        drop(self);
        tokio::time::sleep(time).await;
        if let Some(stream) = stream.upgrade() {
            // Closed already: fine.
            let _ = SockRef::from(&*stream).shutdown(Shutdown::Both);
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            match self.0.try_read_buf(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read.map(drop)),
            }
        }
    }
}

impl Socket {
    fn poll_write_by(
        &self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match write(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => {
                    let bytes = written.as_ref().map_or(0, |bytes| *bytes);
                    self.1.bytes.fetch_add(u64::try_from(bytes).unwrap_or(0), Ordering::AcqRel);
                    self.1.more.notify_waiters();
                    return Poll::Ready(written);
                }
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_by(cx, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_by(cx, |stream| stream.try_write_vectored(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Nothing is kept back here.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&*self.0).shutdown(Shutdown::Write))
    }
}
