//! What one log entry carries: a batch of encoded commands under one stamp.
//!
//! Model: the task that submits a command encodes it ([`encode_command`]), many at a time on many threads; the proposer
//! only puts the bytes one after another behind the stamp ([`encode`]). A batch without commands is a tick. Beside the
//! batches, the cluster has orders of its own ([`ControlV1`]), which no machine sees and which carry no time.
//!
//! Invariants: a batch holds at most [`COMMANDS_MAX`] commands and [`BATCH_BYTES_MAX`] bytes; the bytes of a version
//! never change (golden test below).

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::codec::{self, DecodeError, EncodeError, Kind};
use crate::machine::{Stamp, StateMachine};

/// Most commands in one entry.
pub const COMMANDS_MAX: usize = 4_096;
/// Most bytes of one entry.
pub const BATCH_BYTES_MAX: usize = 1024 * 1024;
/// Most bytes of one encoded command, so that it fits an entry of its own.
pub const COMMAND_BYTES_MAX: usize = BATCH_BYTES_MAX - HEAD_BYTES_MAX - PREFIX_BYTES_MAX;

/// Most bytes before the first command: envelope, stamp, wall time, number of commands.
pub(crate) const HEAD_BYTES_MAX: usize = 32;
/// Most bytes of a command's length prefix.
pub(crate) const PREFIX_BYTES_MAX: usize = 5;

/// The version of the batch this build writes, and the highest it reads.
const VERSION: u16 = 1;

/// A batch as it is written. The same bytes as [`BatchV1`].
#[derive(Serialize)]
struct BatchOutV1<'a> {
    stamp: Stamp,
    wall_ms: u64,
    commands: &'a [Bytes],
}

/// A batch as it is read: commands are borrowed from the entry. Frozen.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub struct BatchV1<'a> {
    /// The leader's stamp.
    pub stamp: Stamp,
    /// The leader's wall clock, Unix milliseconds; for display only.
    pub wall_ms: u64,
    /// Encoded commands, in order.
    #[serde(borrow)]
    pub commands: Vec<&'a [u8]>,
}

/// The version of control entries this build writes, and the highest it reads.
const CONTROL_VERSION: u16 = 1;

/// What the cluster orders about itself. Frozen: variants are only ever appended, each under a feature level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlV1 {
    /// From here on entries may need this feature level. A lower one than before changes nothing.
    RaiseFeatureLevel(u16),
}

/// What an entry is.
#[derive(Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// Commands under a stamp.
    Batch(BatchV1<'a>),
    /// An order of the cluster's own.
    Control(ControlV1),
}

/// Encodes a control entry.
///
/// # Errors
/// [`EncodeError`], never in practice.
pub fn encode_control(control: &ControlV1) -> Result<Bytes, EncodeError> {
    codec::encode(Kind::Control, CONTROL_VERSION, control).map(Bytes::from)
}

/// Decodes what an entry carries.
///
/// # Errors
/// [`DecodeError`] when it is of no kind and version that this build knows.
pub fn content(bytes: &[u8]) -> Result<Content<'_>, DecodeError> {
    if bytes.first() == Some(&(Kind::Control as u8)) {
        return codec::decode(Kind::Control, CONTROL_VERSION, bytes).map(Content::Control);
    }
    decode(bytes).map(Content::Batch)
}

/// Encodes a batch.
///
/// # Errors
/// [`EncodeError`], never in practice.
pub fn encode(stamp: Stamp, wall_ms: u64, commands: &[Bytes]) -> Result<Bytes, EncodeError> {
    codec::encode(Kind::Batch, VERSION, &BatchOutV1 { stamp, wall_ms, commands }).map(Bytes::from)
}

/// Decodes a batch.
///
/// # Errors
/// [`DecodeError`] when the bytes are no batch of a version this build knows.
pub fn decode(bytes: &[u8]) -> Result<BatchV1<'_>, DecodeError> {
    codec::decode_borrowed(Kind::Batch, VERSION, bytes)
}

/// Encodes one command, in the format that it needs.
///
/// # Errors
/// [`EncodeError`] when serde refuses it.
pub fn encode_command<M: StateMachine>(command: &M::Command) -> Result<Bytes, EncodeError> {
    codec::encode(Kind::Command, M::command_format(command), command).map(Bytes::from)
}

/// Decodes one command.
///
/// # Errors
/// [`DecodeError`] when the bytes are no command that this build of the machine reads, or do not say the very format
/// that the command needs: an older build would take them for something else than this one does.
pub fn decode_command<M: StateMachine>(bytes: &[u8]) -> Result<M::Command, DecodeError> {
    let (says, body) = codec::open(Kind::Command, M::FORMAT_VERSION, bytes)?;
    let command = codec::decode_body(Kind::Command, body)?;
    let needs = M::command_format(&command);
    if says == needs { Ok(command) } else { Err(DecodeError::Format { kind: Kind::Command, says, needs }) }
}

/// Encodes the replies to a batch into one buffer, and shares it out.
///
/// # Errors
/// [`EncodeError`] when serde refuses a reply.
pub fn encode_replies<M: StateMachine>(replies: &[M::Reply]) -> Result<Vec<Bytes>, EncodeError> {
    let mut buffer = Vec::with_capacity(replies.len() * 48);
    let mut ends = Vec::with_capacity(replies.len());
    for reply in replies {
        codec::encode_into(Kind::Reply, M::reply_format(reply), reply, &mut buffer)?;
        ends.push(buffer.len());
    }
    let mut rest = Bytes::from(buffer);
    let mut start = 0;
    let mut cut = |end: usize| {
        let reply = rest.split_to(end - start);
        start = end;
        reply
    };
    Ok(ends.into_iter().map(&mut cut).collect())
}

/// Decodes one reply.
///
/// # Errors
/// [`DecodeError`] when the bytes are no reply that this build of the machine reads, or do not say the format it needs.
pub fn decode_reply<M: StateMachine>(bytes: &[u8]) -> Result<M::Reply, DecodeError> {
    let (says, body) = codec::open(Kind::Reply, M::FORMAT_VERSION, bytes)?;
    let reply = codec::decode_body(Kind::Reply, body)?;
    let needs = M::reply_format(&reply);
    if says == needs { Ok(reply) } else { Err(DecodeError::Format { kind: Kind::Reply, says, needs }) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::counter::{Command, Counter};

    #[test]
    fn the_bytes_of_a_batch_never_change() {
        let add = encode_command::<Counter>(&Command::Add(300)).unwrap();
        assert_eq!(add.as_ref(), [3, 1, 0, 0, 251, 44, 1], "kind, version, variant, 300");
        let bytes = encode(Stamp(1_700_000_000_000), 7, &[add.clone(), Bytes::new()]).unwrap();
        let golden: &[u8] = &[
            2, 1, 0, // kind, version
            253, 0, 104, 229, 207, 139, 1, 0, 0, // stamp
            7, // wall time
            2, // commands
            7, 3, 1, 0, 0, 251, 44, 1, // the first, behind its length
            0, // the second is empty
        ];
        assert_eq!(bytes.as_ref(), golden);
        let batch = decode(&bytes).unwrap();
        assert_eq!(batch, BatchV1 { stamp: Stamp(1_700_000_000_000), wall_ms: 7, commands: vec![add.as_ref(), &[]] });
    }

    #[test]
    fn the_bytes_of_a_control_entry_never_change() {
        let bytes = encode_control(&ControlV1::RaiseFeatureLevel(300)).unwrap();
        assert_eq!(bytes.as_ref(), [15, 1, 0, 0, 251, 44, 1], "kind, version, variant, 300");
        assert_eq!(content(&bytes).unwrap(), Content::Control(ControlV1::RaiseFeatureLevel(300)));
        let batch = encode(Stamp(5), 7, &[]).unwrap();
        assert!(matches!(content(&batch).unwrap(), Content::Batch(_)));
        for length in 0..bytes.len() {
            assert!(content(&bytes[..length]).is_err(), "cut at {length}");
        }
    }

    #[test]
    fn a_full_batch_keeps_its_bound() {
        let command = Bytes::from(vec![7; COMMAND_BYTES_MAX]);
        let bytes = encode(Stamp(u64::MAX), u64::MAX, &[command]).unwrap();
        assert!(bytes.len() <= BATCH_BYTES_MAX);
        let commands = vec![Bytes::from_static(&[1; 200]); COMMANDS_MAX];
        let bytes = encode(Stamp(u64::MAX), u64::MAX, &commands).unwrap();
        assert!(bytes.len() <= HEAD_BYTES_MAX + COMMANDS_MAX * (200 + PREFIX_BYTES_MAX));
        assert_eq!(decode(&bytes).unwrap().commands.len(), COMMANDS_MAX);
    }

    #[test]
    fn what_is_no_batch_is_refused() {
        let bytes = encode(Stamp(5), 7, &[Bytes::from_static(b"abc")]).unwrap();
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length]).is_err(), "cut at {length}");
        }
        let mut longer = bytes.to_vec();
        longer.push(0);
        assert!(matches!(decode(&longer), Err(DecodeError::Trailing { left: 1, .. })));
        let mut newer = bytes.to_vec();
        newer[1] = 2;
        assert!(matches!(decode(&newer), Err(DecodeError::Version { found: 2, .. })));
    }

    #[test]
    fn replies_come_apart_as_they_were_put_together() {
        let replies = encode_replies::<Counter>(&[1, 300, 70_000]).unwrap();
        let back: Vec<u64> = replies.iter().map(|reply| decode_reply::<Counter>(reply).unwrap()).collect();
        assert_eq!(back, [1, 300, 70_000]);
    }
}
