//! Frames: `length u32 little endian | body | tag`. The length is the body's; the tag is there once both sides are
//! authenticated.
//!
//! Invariants: a length beyond the limit ends the connection before anything is allocated for it; memory grows with the
//! bytes that came, not with the length that was claimed; a frame whose tag is wrong is never handed out, and nothing
//! after it is read.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::keys::{TAG_BYTES, Tags};
use super::limits::WRITE_BYTES;
use super::traffic::Counters;

const LENGTH_BYTES: usize = 4;
/// What one read takes.
const READ_BYTES: usize = 64 * 1024;
/// A frame of so many bytes keeps a thread for long enough that timers would be late after some of them.
const BUSY_BYTES: usize = 64 * 1024;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Cut {
    /// The other side closed it.
    #[error("the other side closed the connection")]
    Closed,
    /// The system says so.
    #[error("the connection broke: {0}")]
    Broke(#[from] io::Error),
    /// Not a byte came.
    #[error("nothing was heard for {} ms", .0.as_millis())]
    Silent(Duration),
    /// Not a byte went.
    #[error("nothing could be sent for {} ms", .0.as_millis())]
    Stalled(Duration),
    /// A length beyond the limit.
    #[error("a frame of {length} bytes was announced, at most {limit} are allowed")]
    TooLong {
        /// The length.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// A wrong tag: changed, repeated, reordered, or from elsewhere.
    #[error("a frame is not authentic")]
    Forged,
    /// An authentic frame that makes no sense here.
    #[error("a frame makes no sense: {0}")]
    Senseless(&'static str),
    /// This side wanted so.
    #[error("{0}")]
    Wanted(&'static str),
}

impl Cut {
    /// Closed or reset by the other side's host: what a process that dies leaves behind.
    pub(super) fn is_end(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        match self {
            Self::Closed => true,
            Self::Broke(error) => {
                matches!(error.kind(), ConnectionReset | ConnectionAborted | BrokenPipe | UnexpectedEof)
            }
            _ => false,
        }
    }
}

/// Takes the next whole frame (its body, and a tag of `tag_bytes`) off `buffer`; `None` while it is not whole.
///
/// # Errors
/// [`Cut::TooLong`].
pub(super) fn split(buffer: &mut BytesMut, limit: usize, tag_bytes: usize) -> Result<Option<BytesMut>, Cut> {
    let Some(length) = buffer.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length > limit {
        return Err(Cut::TooLong { length, limit });
    }
    if buffer.len() < LENGTH_BYTES + length + tag_bytes {
        return Ok(None);
    }
    buffer.advance(LENGTH_BYTES);
    Ok(Some(buffer.split_to(length + tag_bytes)))
}

/// Reads frames.
pub(super) struct FrameReader<R> {
    from: R,
    buffer: BytesMut,
    /// Of the other side's frames; `None` before the greeting is done.
    tags: Option<Tags>,
    limit: usize,
    silence: Duration,
    traffic: Arc<Counters>,
    /// The last frame was a big one, which took its time to check: let others have a turn before the next.
    busy: bool,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Frames in clear of at most `limit` bytes.
    pub(super) fn new(from: R, limit: usize, silence: Duration) -> Self {
        Self { from, buffer: BytesMut::new(), tags: None, limit, silence, traffic: Arc::default(), busy: false }
    }

    /// From now on frames have tags.
    pub(super) fn authenticate(&mut self, tags: Tags) {
        self.tags = Some(tags);
    }

    /// From now on these limits hold, and what comes is counted.
    pub(super) fn widen(&mut self, limit: usize, silence: Duration, traffic: Arc<Counters>) {
        (self.limit, self.silence, self.traffic) = (limit, silence, traffic);
    }

    /// The next frame's body. May be dropped and called again.
    ///
    /// # Errors
    /// [`Cut`]; then nothing more is to be read.
    pub(super) async fn next(&mut self) -> Result<Bytes, Cut> {
        if std::mem::take(&mut self.busy) {
            tokio::task::yield_now().await;
        }
        loop {
            let tag_bytes = if self.tags.is_some() { TAG_BYTES } else { 0 };
            if let Some(mut frame) = split(&mut self.buffer, self.limit, tag_bytes)? {
                let tag = frame.split_off(frame.len() - tag_bytes);
                if self.tags.as_mut().is_some_and(|tags| !tags.check(&frame, &tag)) {
                    return Err(Cut::Forged);
                }
                self.busy = frame.len() >= BUSY_BYTES;
                self.traffic.received_frame();
                return Ok(frame.freeze());
            }
            self.buffer.reserve(READ_BYTES.min(self.limit));
            match tokio::time::timeout(self.silence, self.from.read_buf(&mut self.buffer)).await {
                Ok(Ok(0)) => return Err(Cut::Closed),
                Ok(Ok(bytes)) => self.traffic.received_bytes(bytes),
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => return Err(Cut::Silent(self.silence)),
            }
        }
    }

    /// Waits until the other side has closed, and throws away what it still says.
    pub(super) async fn drain(&mut self) {
        loop {
            self.buffer.clear();
            self.buffer.reserve(READ_BYTES.min(self.limit));
            match tokio::time::timeout(self.silence, self.from.read_buf(&mut self.buffer)).await {
                Ok(Ok(1..)) => {}
                Ok(Ok(0) | Err(_)) | Err(_) => return,
            }
        }
    }
}

/// Writes frames: gathered first, then written at once.
pub(super) struct FrameWriter<W> {
    to: W,
    buffer: Vec<u8>,
    tags: Option<Tags>,
    stall: Duration,
    traffic: Arc<Counters>,
}

impl<W: AsyncWrite + Unpin> FrameWriter<W> {
    /// Frames in clear.
    pub(super) fn new(to: W) -> Self {
        Self { to, buffer: Vec::new(), tags: None, stall: Duration::MAX, traffic: Arc::default() }
    }

    /// From now on frames have tags.
    pub(super) fn authenticate(&mut self, tags: Tags) {
        self.tags = Some(tags);
    }

    /// From now on a write that makes no progress for `stall` fails, and what goes is counted.
    pub(super) fn count(&mut self, stall: Duration, traffic: Arc<Counters>) {
        (self.stall, self.traffic) = (stall, traffic);
    }

    /// Gathers a frame. `body` is within the limit: whoever made it saw to that.
    pub(super) fn put(&mut self, body: &[u8]) {
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        self.buffer.extend_from_slice(&length.to_le_bytes());
        self.buffer.extend_from_slice(body);
        if let Some(tags) = &mut self.tags {
            self.buffer.extend_from_slice(&tags.seal(body));
        }
        self.traffic.sent_frame();
    }

    /// Is as much gathered as one write takes?
    pub(super) fn is_full(&self) -> bool {
        self.buffer.len() >= WRITE_BYTES
    }

    /// Writes what is gathered.
    ///
    /// # Errors
    /// [`Cut::Broke`] or [`Cut::Stalled`].
    pub(super) async fn flush(&mut self) -> Result<(), Cut> {
        if self.buffer.len() >= BUSY_BYTES {
            tokio::task::yield_now().await;
        }
        let mut written = 0;
        while written < self.buffer.len() {
            match tokio::time::timeout(self.stall, self.to.write(&self.buffer[written..])).await {
                Ok(Ok(0)) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Ok(Ok(bytes)) => written += bytes,
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => return Err(Cut::Stalled(self.stall)),
            }
        }
        self.traffic.sent_bytes(written);
        self.buffer.clear();
        // One big frame is no reason to keep its room for good.
        self.buffer.shrink_to(2 * WRITE_BYTES);
        Ok(())
    }

    /// Writes one frame at once.
    ///
    /// # Errors
    /// As [`FrameWriter::flush`].
    pub(super) async fn send(&mut self, body: &[u8]) -> Result<(), Cut> {
        self.put(body);
        self.flush().await
    }

    /// Says that nothing more comes.
    pub(super) async fn finish(&mut self) {
        // It is over either way.
        let _ = self.to.shutdown().await;
    }
}
