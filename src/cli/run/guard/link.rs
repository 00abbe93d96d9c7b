//! The socket between client and guard: a local stream of [`Frame`]s.
//!
//! The client listens at an abstract name of 128 random bits and takes only the process that it started (peer
//! credentials), so that no descriptor has to be inherited: the job gets exactly the descriptors of the caller.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener as StdListener, UnixStream as StdStream};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

use super::frame::{Frame, LENGTH};

/// How long a frame may wait for room in the socket: it holds thousands, so a full one means a stopped guard.
const SEND_TIMEOUT: Duration = Duration::from_millis(100);

/// One end of the socket.
#[derive(Debug)]
pub struct Link {
    stream: UnixStream,
    buffer: [u8; LENGTH],
    filled: usize,
}

impl Link {
    /// The guard's side: connects to the client that started it.
    pub fn connect(name: &str) -> io::Result<Self> {
        let stream = StdStream::connect_addr(&address(name)?)?;
        stream.set_nonblocking(true)?;
        Ok(Self::new(UnixStream::from_std(stream)?))
    }

    fn new(stream: UnixStream) -> Self {
        Self { stream, buffer: [0; LENGTH], filled: 0 }
    }

    /// The next frame; `None` once the other end is gone or talks nonsense. Nothing is lost if it is cancelled.
    pub async fn next(&mut self) -> Option<Frame> {
        while self.filled < LENGTH {
            match self.stream.read(&mut self.buffer[self.filled..]).await {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.filled += count,
            }
        }
        self.filled = 0;
        Frame::decode(&self.buffer).ok()
    }

    /// Sends a frame.
    pub async fn send(&mut self, frame: Frame) -> io::Result<()> {
        let bytes = frame.encode();
        match tokio::time::timeout(SEND_TIMEOUT, self.stream.write_all(&bytes)).await {
            Ok(result) => result,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

/// The client's side before the guard has connected.
pub struct Door {
    listener: UnixListener,
    name: String,
}

impl Door {
    /// Listens at a new name.
    pub fn open() -> io::Result<Self> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
        let name = format!("tenure-run-{:032x}", u128::from_le_bytes(random));
        let listener = StdListener::bind_addr(&address(&name)?)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener: UnixListener::from_std(listener)?, name })
    }

    /// The name to hand to the guard.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits for the process `pid`; others that connect are dropped.
    pub async fn admit(self, pid: u32) -> io::Result<Link> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            if stream.peer_cred()?.pid().and_then(|peer| u32::try_from(peer).ok()) == Some(pid) {
                return Ok(Link::new(stream));
            }
        }
    }
}

fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name)
}
