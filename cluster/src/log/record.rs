//! Records: what a segment holds behind its header, one after the other.
//!
//! ```text
//! crc32c u32 | length u32 | kind u8 | flags u8 | 0 u16 | group u64 | index u64 | payload (length bytes)
//! ```
//! Little endian. The CRC covers the segment's sequence number, the record's offset and all that follows the CRC: a
//! record checks out only where it was written, so neither stale bytes nor a payload that looks like a record can be
//! taken for one. Each record belongs to a write group, synced as one; the group's last record says so.

use crate::persisted::old::EntryV1;
use crate::persisted::{EntryV2, LogIdV1, VoteV1};
use crate::{codec, codec::Kind};

/// Bytes before the payload.
pub const HEAD: usize = 28;
/// The longest payload: what the decoder would take.
pub const PAYLOAD_MAX: usize = 8 * 1024 * 1024;
/// The version of every payload written here, but for entries.
const VERSION: u16 = 1;
/// The version of an entry.
const ENTRY_VERSION: u16 = 2;
const LAST: u8 = 1;

/// What a record says. Numbers are persisted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// The vote is now this.
    Vote = 1,
    /// The committed log id is now this.
    Committed = 2,
    /// One more entry; `index` is its index.
    Append = 3,
    /// Entries after this log id are gone.
    Truncate = 4,
    /// Entries up to this log id are gone.
    Purge = 5,
    /// The log goes on in the segment whose sequence number is `index`.
    Roll = 6,
}

impl RecordKind {
    /// The kind of that number.
    #[must_use]
    pub fn of(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Vote,
            2 => Self::Committed,
            3 => Self::Append,
            4 => Self::Truncate,
            5 => Self::Purge,
            6 => Self::Roll,
            _ => return None,
        })
    }
}

/// A record's content, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// See [`RecordKind::Vote`].
    Vote(VoteV1),
    /// See [`RecordKind::Committed`].
    Committed(Option<LogIdV1>),
    /// See [`RecordKind::Append`].
    Append(EntryV2),
    /// See [`RecordKind::Truncate`].
    Truncate(Option<LogIdV1>),
    /// See [`RecordKind::Purge`].
    Purge(LogIdV1),
    /// See [`RecordKind::Roll`].
    Roll(u64),
}

impl Change {
    /// Its record's kind, index and payload.
    ///
    /// # Errors
    /// [`codec::EncodeError`], which does not happen for these types.
    pub fn encode(&self) -> Result<(RecordKind, u64, Vec<u8>), codec::EncodeError> {
        let index_of = |id: &Option<LogIdV1>| id.map_or(0, |id| id.index);
        Ok(match self {
            Self::Vote(vote) => (RecordKind::Vote, 0, codec::encode(Kind::Vote, VERSION, vote)?),
            Self::Committed(id) => (RecordKind::Committed, index_of(id), codec::encode(Kind::LogId, VERSION, id)?),
            Self::Append(entry) => {
                (RecordKind::Append, entry.id.index, codec::encode(Kind::Entry, ENTRY_VERSION, entry)?)
            }
            Self::Truncate(id) => (RecordKind::Truncate, index_of(id), codec::encode(Kind::LogId, VERSION, id)?),
            Self::Purge(id) => (RecordKind::Purge, id.index, codec::encode(Kind::LogId, VERSION, &Some(*id))?),
            Self::Roll(sequence) => (RecordKind::Roll, *sequence, Vec::new()),
        })
    }

    /// The content of a record that checked out.
    ///
    /// # Errors
    /// [`codec::DecodeError`] when a newer build wrote it, or when it is not what `encode` writes.
    pub fn decode(kind: RecordKind, index: u64, payload: &[u8]) -> Result<Self, codec::DecodeError> {
        Ok(match kind {
            RecordKind::Vote => Self::Vote(codec::decode(Kind::Vote, VERSION, payload)?),
            RecordKind::Committed => Self::Committed(codec::decode(Kind::LogId, VERSION, payload)?),
            RecordKind::Append => Self::Append(entry(payload)?),
            RecordKind::Truncate => Self::Truncate(codec::decode(Kind::LogId, VERSION, payload)?),
            RecordKind::Purge => match codec::decode(Kind::LogId, VERSION, payload)? {
                Some(id) => Self::Purge(id),
                None => return Err(codec::DecodeError::Short(0)),
            },
            RecordKind::Roll => Self::Roll(index),
        })
    }
}

/// An entry of any version.
fn entry(payload: &[u8]) -> Result<EntryV2, codec::DecodeError> {
    let (version, body) = codec::open(Kind::Entry, ENTRY_VERSION, payload)?;
    match version {
        1 => codec::decode_body::<EntryV1>(Kind::Entry, body).map(Into::into),
        _ => codec::decode_body(Kind::Entry, body),
    }
}

/// Where a record stands: mixed into its CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The segment's sequence number.
    pub sequence: u64,
    /// The record's offset in the segment's file.
    pub offset: u64,
}

/// Appends the record to `bytes`, which will be written so that the record begins at `place`.
pub fn put(bytes: &mut Vec<u8>, place: Place, kind: RecordKind, group: u64, last: bool, index: u64, payload: &[u8]) {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; 4]);
    // A payload is at most PAYLOAD_MAX, checked where it is submitted.
    bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&[kind as u8, if last { LAST } else { 0 }, 0, 0]);
    bytes.extend_from_slice(&group.to_le_bytes());
    bytes.extend_from_slice(&index.to_le_bytes());
    bytes.extend_from_slice(payload);
    let crc = checksum(place, &bytes[start + 4..]);
    bytes[start..start + 4].copy_from_slice(&crc.to_le_bytes());
}

/// A record found in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found<'a> {
    /// What it says.
    pub kind: RecordKind,
    /// Its write group.
    pub group: u64,
    /// It ends its group.
    pub last: bool,
    /// See [`RecordKind`].
    pub index: u64,
    /// Its encoded content.
    pub payload: &'a [u8],
}

impl Found<'_> {
    /// Bytes it takes in the segment.
    #[must_use]
    pub fn len(&self) -> usize {
        HEAD + self.payload.len()
    }
}

/// The record at the start of `bytes`, if one checks out there.
#[must_use]
pub fn parse(bytes: &[u8], place: Place) -> Option<Found<'_>> {
    let head = bytes.first_chunk::<HEAD>()?;
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let kind = RecordKind::of(head[8])?;
    if head[9] & !LAST != 0 || head[10] != 0 || head[11] != 0 {
        return None;
    }
    let length = word(4) as usize;
    let payload = if length <= PAYLOAD_MAX { bytes.get(HEAD..HEAD + length)? } else { return None };
    if checksum(place, &bytes[4..HEAD + length]) != word(0) {
        return None;
    }
    Some(Found { kind, group: long(12), last: head[9] == LAST, index: long(20), payload })
}

fn checksum(place: Place, covered: &[u8]) -> u32 {
    let mut seed = [0; 16];
    seed[..8].copy_from_slice(&place.sequence.to_le_bytes());
    seed[8..].copy_from_slice(&place.offset.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&seed), covered)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use bytes::Bytes;

    use super::*;
    use crate::log::segment;
    use crate::persisted::{LogStateV1, MemberV2, MembershipV2, PayloadV2, SegmentHeaderV1};

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn id(index: u64) -> LogIdV1 {
        LogIdV1 { term: 3, node: 2, index }
    }

    fn entry(payload: PayloadV2) -> Change {
        Change::Append(EntryV2 { id: id(300), payload })
    }

    fn member(client: &str, peer: &str, incarnation: u64) -> MemberV2 {
        MemberV2 { client: client.to_owned(), peer: peer.to_owned(), incarnation }
    }

    /// Each kind of record: what it says, and its payload's bytes for ever.
    fn golden() -> Vec<(Change, &'static str)> {
        let membership = MembershipV2 {
            configs: vec![vec![1, 2], vec![1]],
            nodes: vec![(1, member("a:1", "a:2", 77)), (2, member("b:1", "", 0))],
        };
        vec![
            (Change::Vote(VoteV1 { term: 7, node: Some(2), committed: true }), "05010007010201"),
            (Change::Committed(Some(id(5))), "06010001030205"),
            (Change::Committed(None), "06010000"),
            (entry(PayloadV2::Blank), "0102000302fb2c0100"),
            (entry(PayloadV2::Batch(Bytes::from_static(b"abc"))), "0102000302fb2c010103616263"),
            (
                entry(PayloadV2::Membership(membership)),
                "0102000302fb2c0102020201020101020103613a3103613a324d0203623a310000",
            ),
            (Change::Truncate(Some(id(4))), "06010001030204"),
            (Change::Truncate(None), "06010000"),
            (Change::Purge(id(4)), "06010001030204"),
            (Change::Roll(9), ""),
        ]
    }

    #[test]
    fn payloads_have_these_bytes_for_ever() {
        for (change, bytes) in golden() {
            let (kind, index, payload) = change.encode().unwrap();
            assert_eq!(hex(&payload), bytes, "{change:?}");
            assert_eq!(Change::decode(kind, index, &payload).unwrap(), change);
        }
    }

    #[test]
    fn entries_of_version_1_are_read_for_ever() {
        let membership = MembershipV2 {
            configs: vec![vec![1, 2], vec![1]],
            nodes: vec![(1, member("a:1", "a:2", 0)), (2, member("b:1", "", 0))],
        };
        let old = [
            (PayloadV2::Blank, "0101000302fb2c0100"),
            (PayloadV2::Batch(Bytes::from_static(b"abc")), "0101000302fb2c010103616263"),
            (PayloadV2::Membership(membership), "0101000302fb2c0102020201020101020103613a3103613a320203623a3100"),
        ];
        for (payload, golden) in old {
            let bytes: Vec<u8> =
                (0..golden.len()).step_by(2).map(|at| u8::from_str_radix(&golden[at..at + 2], 16).unwrap()).collect();
            assert_eq!(Change::decode(RecordKind::Append, 300, &bytes).unwrap(), entry(payload), "{golden}");
        }
    }

    #[test]
    fn a_record_has_these_bytes_for_ever_and_counts_only_where_it_was_written() {
        let place = Place { sequence: 2, offset: 512 };
        let mut bytes = Vec::new();
        let (kind, index, payload) = entry(PayloadV2::Blank).encode().unwrap();
        put(&mut bytes, place, kind, 11, true, index, &payload);
        assert_eq!(hex(&bytes), "06d3041109000000030100000b000000000000002c010000000000000102000302fb2c0100");
        let found = parse(&bytes, place).unwrap();
        assert_eq!(
            found,
            Found { kind: RecordKind::Append, group: 11, last: true, index: 300, payload: &bytes[HEAD..] }
        );
        assert_eq!(parse(&bytes, Place { sequence: 3, offset: 512 }), None);
        assert_eq!(parse(&bytes, Place { sequence: 2, offset: 513 }), None);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 8;
            assert_eq!(parse(&damaged, place), None, "byte {at}");
            assert_eq!(parse(&bytes[..at], place), None, "cut at {at}");
        }
    }

    #[test]
    fn a_header_has_these_bytes_for_ever() {
        let state = LogStateV1 {
            vote: Some(VoteV1 { term: 7, node: Some(2), committed: false }),
            committed: Some(id(290)),
            purged: Some(id(100)),
            last: Some(id(300)),
            first: 101,
        };
        let header = SegmentHeaderV1 { sequence: 4, previous_end: 16_000_000, group: 77, state };
        let bytes = segment::encode_header(&header).unwrap();
        let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        assert_eq!(
            (hex(&bytes[..used]).as_str(), bytes.len()),
            ("726166742d6c6f6771a51752200008010004fc0024f4004d0107010200010302fb220101030264010302fb2c0165", 512)
        );
        assert_eq!(segment::decode_header(&bytes).unwrap(), header);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 2;
            assert!(segment::decode_header(&damaged).is_err(), "byte {at}");
        }
    }

    #[test]
    fn what_rides_along_fits_the_reserve() {
        let most = LogIdV1 { term: u64::MAX, node: u64::MAX, index: u64::MAX };
        let (_, _, payload) = Change::Committed(Some(most)).encode().unwrap();
        assert!((HEAD + payload.len() + HEAD) as u64 <= crate::log::writer::RESERVE);
    }
}
