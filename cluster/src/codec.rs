//! The only file that names the serializer (bincode 2 `standard()` through serde).
//!
//! Every persisted or wire value is an envelope: `kind: u8 | version: u16 little endian | body`. A decoder takes the
//! exact kind, a version it knows, the whole input and not a byte more, and allocates within a limit. Frozen types: a
//! type that was ever written is never edited; a change is a new version with its own type.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Bytes that a decoder may be made to allocate: above the largest legal entry (1 MiB batch) with room.
const DECODE_LIMIT: usize = 8 * 1024 * 1024;
/// Length of the envelope's head: kind and version.
pub const ENVELOPE_LEN: usize = 3;

/// What a value is. Numbers are persisted: never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A raft entry (`persisted::EntryV2`).
    Entry = 1,
    /// A batch of commands inside an entry (`entry.rs`).
    Batch = 2,
    /// One command of the replicated machine.
    Command = 3,
    /// One reply of the replicated machine.
    Reply = 4,
    /// A vote.
    Vote = 5,
    /// A log id.
    LogId = 6,
    /// A snapshot's manifest.
    Manifest = 7,
    /// A log segment's header.
    SegmentHeader = 8,
    /// A data directory's identity.
    Identity = 9,
    /// A whole small machine (`counter.rs`).
    Machine = 10,
    /// A request to a peer (`peer::PeerRequestV1`).
    PeerRequest = 11,
    /// A peer's answer (`peer::PeerAnswerV1`).
    PeerAnswer = 12,
    /// The first words on a connection between nodes (`hello::HelloV1`).
    Hello = 13,
    /// The head of a snapshot on its way (`tcp::snapshot_wire::OfferV1`).
    SnapshotOffer = 14,
    /// An order of the cluster's own inside an entry (`entry::ControlV1`).
    Control = 15,
}

/// Bytes that are not what they should be.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Fewer bytes than an envelope has.
    #[error("value is cut short ({0} bytes)")]
    Short(usize),
    /// Another kind of value.
    #[error("value of kind {found}, expected {expected:?}")]
    Kind {
        /// The kind asked for.
        expected: Kind,
        /// The kind found.
        found: u8,
    },
    /// Written by a newer (or foreign) build.
    #[error("{kind:?} of version {found}, this build reads up to {known}")]
    Version {
        /// The kind read.
        kind: Kind,
        /// The highest version known.
        known: u16,
        /// The version found.
        found: u16,
    },
    /// The body does not decode.
    #[error("{kind:?} does not decode: {source}")]
    Body {
        /// The kind read.
        kind: Kind,
        /// What the serializer said.
        source: bincode::error::DecodeError,
    },
    /// Bytes are left over.
    #[error("{kind:?} has {left} bytes left over")]
    Trailing {
        /// The kind read.
        kind: Kind,
        /// How many.
        left: usize,
    },
}

/// A value that cannot be written (a map without a length, an I/O error of a sink): never happens for our own types.
#[derive(Debug, thiserror::Error)]
#[error("value does not encode: {0}")]
pub struct EncodeError(#[from] bincode::error::EncodeError);

/// Encodes `value` as an envelope.
///
/// # Errors
/// [`EncodeError`] when serde refuses the value.
pub fn encode<T: Serialize>(kind: Kind, version: u16, value: &T) -> Result<Vec<u8>, EncodeError> {
    let mut bytes = Vec::with_capacity(64);
    encode_into(kind, version, value, &mut bytes)?;
    Ok(bytes)
}

/// Appends `value` as an envelope to `bytes`.
///
/// # Errors
/// [`EncodeError`] when serde refuses the value.
pub fn encode_into<T: Serialize>(kind: Kind, version: u16, value: &T, bytes: &mut Vec<u8>) -> Result<(), EncodeError> {
    bytes.push(kind as u8);
    bytes.extend_from_slice(&version.to_le_bytes());
    bincode::serde::encode_into_std_write(value, bytes, bincode::config::standard())?;
    Ok(())
}

/// The version of an envelope of `kind`, at most `known`, and its body.
///
/// # Errors
/// [`DecodeError`] for a short, foreign or newer value.
pub fn open(kind: Kind, known: u16, bytes: &[u8]) -> Result<(u16, &[u8]), DecodeError> {
    let Some((head, body)) = bytes.split_first_chunk::<ENVELOPE_LEN>() else {
        return Err(DecodeError::Short(bytes.len()));
    };
    if head[0] != kind as u8 {
        return Err(DecodeError::Kind { expected: kind, found: head[0] });
    }
    let version = u16::from_le_bytes([head[1], head[2]]);
    if version == 0 || version > known {
        return Err(DecodeError::Version { kind, known, found: version });
    }
    Ok((version, body))
}

/// Decodes an envelope of `kind` that has exactly `version`.
///
/// # Errors
/// [`DecodeError`]; never panics and never allocates beyond the limit, whatever the bytes.
pub fn decode<T: DeserializeOwned>(kind: Kind, version: u16, bytes: &[u8]) -> Result<T, DecodeError> {
    let (found, body) = open(kind, version, bytes)?;
    if found != version {
        return Err(DecodeError::Version { kind, known: version, found });
    }
    decode_body(kind, body)
}

/// Decodes an envelope like [`decode`] into a value that borrows from it.
///
/// # Errors
/// As [`decode`].
pub fn decode_borrowed<'a, T: Deserialize<'a>>(kind: Kind, version: u16, bytes: &'a [u8]) -> Result<T, DecodeError> {
    let (found, body) = open(kind, version, bytes)?;
    if found != version {
        return Err(DecodeError::Version { kind, known: version, found });
    }
    let config = bincode::config::standard().with_limit::<DECODE_LIMIT>();
    let (value, read) = bincode::serde::borrow_decode_from_slice::<T, _>(body, config)
        .map_err(|source| DecodeError::Body { kind, source })?;
    if read == body.len() { Ok(value) } else { Err(DecodeError::Trailing { kind, left: body.len() - read }) }
}

/// Decodes a body that [`open`] returned.
///
/// # Errors
/// [`DecodeError::Body`] or [`DecodeError::Trailing`].
pub fn decode_body<T: DeserializeOwned>(kind: Kind, body: &[u8]) -> Result<T, DecodeError> {
    let config = bincode::config::standard().with_limit::<DECODE_LIMIT>();
    let (value, read) =
        bincode::serde::decode_from_slice::<T, _>(body, config).map_err(|source| DecodeError::Body { kind, source })?;
    if read == body.len() { Ok(value) } else { Err(DecodeError::Trailing { kind, left: body.len() - read }) }
}
