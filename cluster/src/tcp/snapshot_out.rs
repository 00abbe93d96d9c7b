//! Sends a snapshot, on a connection of its own: the offer, its bytes in pieces, the end with their sum.
//!
//! The source blocks, so a thread of its own reads it, at most [`CHUNKS_WAITING_MAX`] pieces ahead. The receiver says
//! that it is alive while it stores; when it says nothing for long, the connection is broken. It may answer before all
//! was sent: then the rest is not.

use std::convert::Infallible;
use std::io::{self, Read};
use std::sync::Arc;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::dial;
use super::frame::{Cut, FrameReader, FrameWriter};
use super::keeper::{self, Dialled};
use super::limits::{CHUNK_BYTES, CHUNKS_WAITING_MAX, FRAME_BYTES_MAX, NAMES_MAX, Pace};
use super::link;
use super::message::{self, Message};
use super::shared::Shared;
use super::snapshot_wire::OfferV2;
use crate::codec::{self, Kind};
use crate::executor::{Executor, Threads};
use crate::hello::PurposeV1;
use crate::peer::PeerAnswerV1;
use crate::transport::{Peer, SnapshotOffer, TransportError};

/// What the reading thread hands over.
enum Piece {
    /// The next bytes, as a frame's body.
    Chunk(BytesMut),
    /// All were read: their length and sum.
    End(u64, u32),
    /// They cannot be read.
    Failed(io::Error),
}

/// Carries a snapshot.
///
/// # Errors
/// [`TransportError`].
pub(super) async fn send(shared: Arc<Shared>, to: Peer, offer: SnapshotOffer) -> Result<PeerAnswerV1, TransportError> {
    let mut closed = shared.closed.subscribe();
    tokio::select! {
        answer = send_whole(&shared, &to, offer) => answer,
        // Also when the transport itself is gone.
        _ = closed.wait_for(|closed| *closed) => {
            Err(TransportError::Broken { id: to.id, why: "this node's peer listener is closed".to_owned() })
        }
    }
}

async fn send_whole(shared: &Shared, to: &Peer, offer: SnapshotOffer) -> Result<PeerAnswerV1, TransportError> {
    let unreachable = |why: String| TransportError::Unreachable { id: to.id, why };
    // Waits a little: what read the last one may not have noticed its end yet.
    let permit = timeout(shared.pace.connect, Arc::clone(&shared.permits.snapshots_out).acquire_owned()).await;
    let Ok(Ok(permit)) = permit else {
        return Err(unreachable("too many snapshots are being sent already".to_owned()));
    };
    let mut greeted = reach(shared, to).await.map_err(unreachable)?;
    let head = OfferV2 { vote: offer.vote, head: (&offer.head).into(), bytes: offer.bytes };
    let head = head.encode(greeted.hello.protocol_max).map_err(|error| unreachable(error.to_string()))?;
    let pace = &shared.pace;
    greeted.reader.widen(FRAME_BYTES_MAX, pace.snapshot_silence, Arc::default());
    let (pieces, waiting) = mpsc::channel(CHUNKS_WAITING_MAX);
    let (mut source, bytes) = (offer.source, offer.bytes);
    let reading = Box::new(move || {
        read_all(&mut *source, bytes, &pieces);
        // A source that hangs counts for as long as it does.
        drop(permit);
    });
    Threads.start("snapshot-read", reading).map_err(|error| unreachable(error.to_string()))?;
    let carried = tokio::select! {
        answer = read_answer(greeted.reader) => answer,
        ended = write_all(greeted.writer, &head, waiting, pace) => match ended {
            Ok(never) => match never {},
            Err(cut) => Err(cut),
        },
    };
    carried.map_err(|cut| TransportError::Broken { id: to.id, why: cut.to_string() })
}

/// A connection to the peer, wherever it is.
async fn reach(shared: &Shared, to: &Peer) -> Result<Dialled, String> {
    let own = shared.own.borrow().clone().ok_or("this node has not said who it is")?;
    let mut names = link::names(to);
    if let Some(link) = shared.link(to.id) {
        let known = link.names().borrow().clone();
        names.extend(known.into_iter().filter(|name| !names.contains(name)).collect::<Vec<_>>());
    }
    let mut trouble = None;
    for name in names.into_iter().take(NAMES_MAX) {
        let way = match dial::look_up(&name, shared.pace.connect).await {
            Ok(addresses) => dial::connect(&addresses, shared.pace.connect).await.map_err(|no_way| no_way.why),
            Err(why) => Err(why),
        };
        match way {
            Ok(stream) => match keeper::greet(shared, stream, &own, PurposeV1::Snapshot, to.id).await {
                Ok(greeted) => return Ok(greeted),
                Err(error) => trouble = Some(error.to_string()),
            },
            Err(why) => trouble = trouble.or(Some(why)),
        }
    }
    Err(trouble.unwrap_or_else(|| "its address is not known".to_owned()))
}

/// Reads `source` to its end, on a thread of its own.
fn read_all(source: &mut dyn Read, bytes: u64, pieces: &mpsc::Sender<Piece>) {
    let (mut sum, mut length) = (0, 0);
    loop {
        let mut chunk = vec![0; CHUNK_BYTES];
        let piece = match fill(source, &mut chunk) {
            Ok(0) if length == bytes => Piece::End(length, sum),
            Ok(0) => Piece::Failed(io::Error::other(format!("the snapshot has {length} bytes and not {bytes}"))),
            Ok(read) => {
                let read = &chunk[..read];
                sum = crc32c::crc32c_append(sum, read);
                length += read.len() as u64;
                Piece::Chunk(message::chunk(read))
            }
            Err(error) => Piece::Failed(error),
        };
        let last = !matches!(piece, Piece::Chunk(_));
        // Nobody takes it: the sending has ended.
        if pieces.blocking_send(piece).is_err() || last {
            return;
        }
    }
}

/// Fills `chunk` as far as `source` goes.
fn fill(source: &mut dyn Read, chunk: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < chunk.len() {
        match source.read(&mut chunk[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

async fn write_all<W: AsyncWrite + Unpin>(
    mut writer: FrameWriter<W>,
    head: &[u8],
    mut pieces: mpsc::Receiver<Piece>,
    pace: &Pace,
) -> Result<Infallible, Cut> {
    writer.send(&message::offer(head)).await?;
    loop {
        match timeout(pace.alive, pieces.recv()).await {
            Ok(Some(Piece::Chunk(body))) => writer.send(&body).await?,
            Ok(Some(Piece::End(bytes, crc32c))) => {
                writer.send(&message::end(bytes, crc32c)).await?;
                break;
            }
            Ok(Some(Piece::Failed(error))) => return Err(error.into()),
            Ok(None) => return Err(Cut::Wanted("the snapshot could not be read")),
            Err(_) => writer.send(&message::alive()).await?,
        }
    }
    loop {
        tokio::time::sleep(pace.alive).await;
        writer.send(&message::alive()).await?;
    }
}

async fn read_answer<R: AsyncRead + Unpin>(mut reader: FrameReader<R>) -> Result<PeerAnswerV1, Cut> {
    loop {
        match Message::parse(reader.next().await?)? {
            Message::Answer(_, envelope) => {
                let answer = codec::decode(Kind::PeerAnswer, 1, &envelope);
                return answer.map_err(|_| Cut::Senseless("it is no answer that this node understands"));
            }
            Message::Alive => {}
            _ => return Err(Cut::Senseless("it is no answer")),
        }
    }
}
