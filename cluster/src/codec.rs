//! The only file that names the serializer (bincode 2 `standard()` through serde).
//!
//! Every persisted or wire value is an envelope: `kind: u8 | version: u16 little endian | body`. A decoder takes the
//! exact kind, a version it knows, the whole input and not a byte more, and allocates within a limit. Frozen types: a
//! type that was ever written is never edited; a change is a new version with its own type.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Bytes that a decoder may be made to claim: above the largest legal entry (1 MiB batch) with room. A length is claimed,
/// and room for it made, before what it announces is looked for; a short value may announce only little. No field claims
/// more than 8 times the bytes it was read from: a number or length below 251 is one byte and claims eight. (A `u128` would
/// claim 16: no format has one.)
const DECODE_LIMIT: usize = 8 * 1024 * 1024;
/// The same of a value of at most [`SHORT`] bytes: a greeting, among others, which strangers may send.
const SHORT_LIMIT: usize = 8 * SHORT;
const SHORT: usize = 4 * 1024;
/// The same of one of at most [`MIDDLE`] bytes.
const MIDDLE_LIMIT: usize = 8 * MIDDLE;
const MIDDLE: usize = 128 * 1024;
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
    /// It says another format than its content needs.
    #[error("{kind:?} says that it has format {says}, but what it holds needs {needs}")]
    Format {
        /// The kind read.
        kind: Kind,
        /// The format it says.
        says: u16,
        /// The format it needs.
        needs: u16,
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
    decode_borrowed(kind, version, bytes)
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
    read(kind, body)
}

/// Decodes a body that [`open`] returned.
///
/// # Errors
/// [`DecodeError::Body`] or [`DecodeError::Trailing`].
pub fn decode_body<T: DeserializeOwned>(kind: Kind, body: &[u8]) -> Result<T, DecodeError> {
    read(kind, body)
}

fn read<'a, T: Deserialize<'a>>(kind: Kind, body: &'a [u8]) -> Result<T, DecodeError> {
    let config = bincode::config::standard();
    let decoded = if body.len() <= SHORT {
        bincode::serde::borrow_decode_from_slice::<T, _>(body, config.with_limit::<SHORT_LIMIT>())
    } else if body.len() <= MIDDLE {
        bincode::serde::borrow_decode_from_slice::<T, _>(body, config.with_limit::<MIDDLE_LIMIT>())
    } else {
        bincode::serde::borrow_decode_from_slice::<T, _>(body, config.with_limit::<DECODE_LIMIT>())
    };
    let (value, read) = decoded.map_err(|source| DecodeError::Body { kind, source })?;
    if read == body.len() { Ok(value) } else { Err(DecodeError::Trailing { kind, left: body.len() - read }) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_short_value_announces_only_little() {
        // A text of 1 MiB is announced, and not there: refused for the announcement, before room is made.
        let bytes = [&[Kind::Command as u8, 1, 0][..], &[252, 0, 0, 16, 0], b"abc"].concat();
        let error = decode::<String>(Kind::Command, 1, &bytes).unwrap_err();
        assert!(
            matches!(error, DecodeError::Body { source: bincode::error::DecodeError::LimitExceeded, .. }),
            "{error}"
        );
    }

    #[test]
    fn what_claims_most_for_its_length_fits() {
        for numbers in [10, SHORT - 1, SHORT - 8, MIDDLE - 8, MIDDLE, 900_000] {
            let value = vec![1_u64; numbers];
            let bytes = encode(Kind::Command, 1, &value).unwrap();
            assert_eq!(decode::<Vec<u64>>(Kind::Command, 1, &bytes).unwrap().len(), numbers);
            let ends: (Vec<u64>, Vec<u32>) = (value, vec![0; 3]);
            let bytes = encode(Kind::Command, 1, &ends).unwrap();
            assert_eq!(decode_borrowed::<(Vec<u64>, Vec<u32>)>(Kind::Command, 1, &bytes).unwrap(), ends);
        }
    }
}
