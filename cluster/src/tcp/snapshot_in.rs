//! Takes a snapshot in: streams it to the handler, never the whole in memory.
//!
//! Invariants: at most [`SNAPSHOTS_IN_MAX`](super::limits::SNAPSHOTS_IN_MAX) at once, each with a few pieces waiting for
//! the thread that stores them. The last piece is handed out only once the end has come and length and sum are right: who
//! has read as many bytes as were offered has the whole, and whoever sees the end sees no short one.

use std::future::Future;
use std::io::{self, Read};
use std::pin::pin;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{interval, timeout};

use super::frame::{Cut, FrameReader, FrameWriter};
use super::greeting::Greeted;
use super::limits::{CHUNK_BYTES, CHUNKS_WAITING_MAX, Pace};
use super::message::{self, Message};
use super::shared::Shared;
use super::snapshot_wire::OfferV2;
use crate::codec::{self, Kind};
use crate::peer::PeerAnswerV1;
use crate::transport::SnapshotOffer;

/// What goes to the thread that stores.
pub(super) enum Piece {
    /// The next bytes.
    Bytes(Bytes),
    /// All was right.
    End,
}

/// What the handler reads.
struct Source {
    pieces: mpsc::Receiver<Piece>,
    now: Bytes,
    ended: bool,
    /// The snapshot counts until its reader is done with it too, also when the connection is long gone.
    _permit: Arc<OwnedSemaphorePermit>,
}

impl Read for Source {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.now.is_empty() && !self.ended {
            match self.pieces.blocking_recv() {
                Some(Piece::Bytes(bytes)) => self.now = bytes,
                Some(Piece::End) => self.ended = true,
                None => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the snapshot broke off on its way")),
            }
        }
        let length = into.len().min(self.now.len());
        into[..length].copy_from_slice(&self.now[..length]);
        self.now.advance(length);
        Ok(length)
    }
}

/// Takes one snapshot in and answers.
///
/// # Errors
/// Why it was not taken in.
pub(super) async fn receive<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    shared: &Shared,
    greeted: Greeted<R, W>,
) -> Result<(), Cut> {
    let Greeted { hello, mut reader, mut writer } = greeted;
    let offer = match Message::parse(reader.next().await?)? {
        Message::Offer(envelope) => OfferV2::decode(&envelope),
        _ => return Err(Cut::Senseless("it is no snapshot")),
    };
    let permit = Arc::clone(&shared.permits.snapshots_in).try_acquire_owned();
    let refused = |why: &str| PeerAnswerV1::Refused(why.to_owned());
    let answer = match (offer, permit, shared.handler()) {
        (Err(error), _, _) => refused(&format!("the snapshot is not understood: {error}")),
        (_, Err(_), _) => refused("the node takes in other snapshots already"),
        (_, _, None) => refused("the node is still starting"),
        (Ok(offer), Ok(permit), Some(handler)) => {
            let permit = Arc::new(permit);
            let (pieces, waiting) = mpsc::channel(CHUNKS_WAITING_MAX);
            let source =
                Box::new(Source { pieces: waiting, now: Bytes::new(), ended: false, _permit: Arc::clone(&permit) });
            let OfferV2 { vote, head, bytes } = offer;
            let answering = handler.snapshot(&hello, SnapshotOffer { vote, head: head.into(), bytes, source });
            answer_while_fed(answering, feed(&mut reader, pieces, bytes), &mut writer, &shared.pace).await?
            // Here the permit ends, unless the reader still has it.
        }
    };
    let body = message::answer(0, |body| {
        // Into memory: what does not encode is answered by nothing, and the other side takes it for broken.
        let _ = codec::encode_into(Kind::PeerAnswer, 1, &answer, body);
    });
    writer.send(&body).await?;
    // What is still on its way must be read, or the answer is lost with the connection.
    let _ = timeout(shared.pace.greet_accepted, reader.drain()).await;
    Ok(())
}

async fn answer_while_fed<W: AsyncWrite + Unpin>(
    mut answering: impl Future<Output = PeerAnswerV1> + Unpin,
    feeding: impl Future<Output = Result<(), Cut>>,
    writer: &mut FrameWriter<W>,
    pace: &Pace,
) -> Result<PeerAnswerV1, Cut> {
    let mut feeding = pin!(feeding);
    let mut fed = false;
    let mut alive = interval(pace.alive);
    loop {
        tokio::select! {
            answer = &mut answering => return Ok(answer),
            ended = &mut feeding, if !fed => {
                ended?;
                fed = true;
            }
            _ = alive.tick() => writer.send(&message::alive()).await?,
        }
    }
}

/// Passes the snapshot's bytes on, until its end or until nobody wants more.
pub(super) async fn feed<R: AsyncRead + Unpin>(
    reader: &mut FrameReader<R>,
    pieces: mpsc::Sender<Piece>,
    bytes: u64,
) -> Result<(), Cut> {
    let (mut held, mut sum, mut length) = (None, 0, 0);
    loop {
        let (passed, last) = match Message::parse(reader.next().await?)? {
            Message::Chunk(chunk) if chunk.len() <= CHUNK_BYTES => {
                sum = crc32c::crc32c_append(sum, &chunk);
                length += chunk.len() as u64;
                if length > bytes {
                    return Err(Cut::Senseless("the snapshot is longer than it was said to be"));
                }
                (held.replace(chunk), false)
            }
            Message::End { bytes: said, crc32c } => {
                if (said, said, crc32c) != (bytes, length, sum) {
                    return Err(Cut::Senseless("the snapshot's length or sum is wrong"));
                }
                (held.take(), true)
            }
            Message::Alive => continue,
            _ => return Err(Cut::Senseless("it is no part of a snapshot")),
        };
        let pass = passed.map(Piece::Bytes).into_iter().chain(last.then_some(Piece::End));
        for piece in pass {
            if pieces.send(piece).await.is_err() {
                // The handler has dropped the source: it will answer without.
                return Ok(());
            }
        }
        if last {
            return Ok(());
        }
    }
}
