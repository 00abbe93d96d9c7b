//! Segments: pre-zeroed files that hold the records. `00000000000000000001.log`, numbered from 1 without a gap.
//!
//! ```text
//! magic 8 | crc32c u32 (of all that follows in the header) | length u16 | header envelope | zeros up to 512 | records | zeros
//! ```
//! A header restates the log's state before the segment's first record, so that older segments are needed for entries
//! alone. It is written and synced under another name, then renamed: a segment that exists has a whole header.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::codec::{self, Kind};
use crate::files::{Disk, DiskFile, sync_failed};
use crate::persisted::SegmentHeaderV1;

/// Bytes before the first record: one sector.
pub const HEADER: u64 = 512;
const HEADER_VERSION: u16 = 1;
const MAGIC: [u8; 8] = *b"raft-log";
const FIXED: usize = 14;

/// One segment, open. Its bytes before the writer's offset never change.
pub struct Segment {
    /// Its number.
    pub sequence: u64,
    /// Its file.
    pub file: Arc<dyn DiskFile>,
    /// The file's length in bytes.
    pub capacity: u64,
}

/// A segment's file name.
#[must_use]
pub fn file_name(sequence: u64) -> String {
    format!("{sequence:020}.log")
}

/// A segment's path.
#[must_use]
pub fn path(dir: &Path, sequence: u64) -> PathBuf {
    dir.join(file_name(sequence))
}

/// The number in a segment's file name; `None` for other files.
#[must_use]
pub fn sequence_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".log")?;
    if digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit()) { digits.parse().ok() } else { None }
}

/// Why a header is refused.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    /// Not ours, or damaged.
    #[error("its header does not check out")]
    Damaged,
    /// Another format.
    #[error(transparent)]
    Decode(#[from] codec::DecodeError),
}

/// The header's bytes.
///
/// # Errors
/// [`io::Error`] when it does not fit, which does not happen.
pub fn encode_header(header: &SegmentHeaderV1) -> io::Result<Vec<u8>> {
    let envelope = codec::encode(Kind::SegmentHeader, HEADER_VERSION, header).map_err(io::Error::other)?;
    let mut bytes = Vec::with_capacity(HEADER as usize);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&[0; 4]);
    let length = u16::try_from(envelope.len()).map_err(io::Error::other)?;
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&envelope);
    if bytes.len() > HEADER as usize {
        return Err(io::Error::other("a segment header does not fit its sector"));
    }
    bytes.resize(HEADER as usize, 0);
    let crc = crc32c::crc32c(&bytes[12..]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    Ok(bytes)
}

/// What the bytes of a header say.
///
/// # Errors
/// [`HeaderError`].
pub fn decode_header(bytes: &[u8]) -> Result<SegmentHeaderV1, HeaderError> {
    let Some(bytes) = bytes.first_chunk::<{ HEADER as usize }>() else { return Err(HeaderError::Damaged) };
    let crc = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
    if bytes[..8] != MAGIC || crc != crc32c::crc32c(&bytes[12..]) {
        return Err(HeaderError::Damaged);
    }
    let length = usize::from(u16::from_le_bytes([bytes[12], bytes[13]]));
    let envelope = bytes.get(FIXED..FIXED + length).ok_or(HeaderError::Damaged)?;
    Ok(codec::decode(Kind::SegmentHeader, HEADER_VERSION, envelope)?)
}

/// Turns a spare file into the segment of `header`: header written and synced, renamed, directory synced. May be called
/// again after it failed for want of space.
///
/// # Errors
/// As of the disk.
pub fn found(disk: &dyn Disk, dir: &Path, spare: &Path, header: &SegmentHeaderV1) -> io::Result<Segment> {
    let file = disk.open(spare)?;
    file.write_at(&encode_header(header)?, 0)?;
    file.sync_data().map_err(|error| sync_failed(&error))?;
    disk.rename(spare, &path(dir, header.sequence))?;
    disk.sync_dir(dir).map_err(|error| sync_failed(&error))?;
    let capacity = file.len()?;
    Ok(Segment { sequence: header.sequence, file, capacity })
}
