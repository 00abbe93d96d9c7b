//! The transport's readers over bytes at hand, with a session's keys that never change: see `crate::reading`.
//!
//! The real reader of frames, the real messages and the real intake of a snapshot; only the socket is a slice.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::sync::mpsc;

use super::frame::{Cut, FrameReader, FrameWriter, split};
use super::greeting::read_greeting;
use super::keys::{Role, Session, TAG_BYTES, Tags};
use super::limits::{CHUNKS_WAITING_MAX, FRAME_BYTES_MAX};
use super::message::Message;
use super::snapshot_in::{self, Piece};
use crate::hello::HelloV1;
use crate::peer_config::Secret;

/// Nothing here is waited for.
const SILENCE: Duration = Duration::from_secs(3_600);

fn tags() -> Option<Tags> {
    let secret = Secret::new("a secret that is known to all")?;
    Some(Session::new(&secret, b"dialler", b"listener").tags(Role::Dialler))
}

fn reader(stream: &[u8]) -> Option<FrameReader<&[u8]>> {
    let mut reader = FrameReader::new(stream, FRAME_BYTES_MAX, SILENCE);
    reader.authenticate(tags()?);
    reader.widen(FRAME_BYTES_MAX, SILENCE, Arc::default());
    Some(reader)
}

/// What the other side says first.
#[must_use]
pub fn greeting(body: &[u8]) -> Option<HelloV1> {
    read_greeting(body).ok()
}

/// Reads authentic frames to the stream's end: the envelope in each, or what else it says. `None`: the connection is cut.
pub async fn frames(stream: &[u8]) -> Option<Vec<(u8, Vec<u8>)>> {
    let mut reader = reader(stream)?;
    let mut said = Vec::new();
    loop {
        let message = match reader.next().await {
            Ok(body) => Message::parse(body).ok()?,
            Err(Cut::Closed) => return Some(said),
            Err(_) => return None,
        };
        said.push(match message {
            Message::Request(_, envelope) => (1, envelope.to_vec()),
            Message::Answer(_, envelope) => (2, envelope.to_vec()),
            Message::Alive => (3, Vec::new()),
            Message::Welcome => (4, Vec::new()),
            Message::Refused(why) => (5, why.into_bytes()),
            Message::Offer(envelope) => (6, envelope.to_vec()),
            Message::Chunk(bytes) => (7, bytes.to_vec()),
            Message::End { bytes, .. } => (8, bytes.to_le_bytes().to_vec()),
        });
    }
}

/// Takes in a snapshot of which `bytes` were offered. `None`: the connection is cut before its end.
pub async fn snapshot(stream: &[u8], bytes: u64) -> Option<Vec<u8>> {
    let mut reader = reader(stream)?;
    let (pieces, mut waiting) = mpsc::channel(CHUNKS_WAITING_MAX);
    let taking = async {
        let mut whole = Vec::new();
        loop {
            match waiting.recv().await? {
                Piece::Bytes(bytes) => whole.extend_from_slice(&bytes),
                Piece::End => return Some(whole),
            }
        }
    };
    let (fed, taken) = futures_util::join!(snapshot_in::feed(&mut reader, pieces, bytes), taking);
    fed.ok().and(taken)
}

/// Those bodies as a stream of authentic frames.
pub async fn sealed(bodies: &[Vec<u8>]) -> Vec<u8> {
    let mut stream = Vec::new();
    let mut writer = FrameWriter::new(&mut stream);
    if let Some(tags) = tags() {
        writer.authenticate(tags);
    }
    for body in bodies {
        writer.put(body);
    }
    // Into memory: it does not fail.
    let _ = writer.flush().await;
    drop(writer);
    stream
}

/// The same stream, its whole frames made authentic again; the rest as it is.
pub async fn resealed(stream: &[u8]) -> Vec<u8> {
    let mut rest = BytesMut::from(stream);
    let mut bodies = Vec::new();
    while let Ok(Some(mut frame)) = split(&mut rest, FRAME_BYTES_MAX, TAG_BYTES) {
        frame.truncate(frame.len() - TAG_BYTES);
        bodies.push(frame.to_vec());
    }
    let mut stream = sealed(&bodies).await;
    stream.extend_from_slice(rest.chunk());
    stream
}
