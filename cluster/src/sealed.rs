//! Small files that are believed whole or not at all: an envelope followed by its CRC32C (little endian), written
//! aside, synced, renamed into place, its directory synced. After a crash the file is the old one or the new one.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

/// The largest file taken for one of ours, bytes.
const SIZE_MAX: u64 = 4 * 1024 * 1024;
/// Length of the checksum behind the envelope.
const CRC_LEN: usize = 4;

/// Writes `envelope` to `path`, which is replaced in one step. `path` must have a parent directory.
///
/// # Errors
/// What the system says; `path` is then as it was.
pub(crate) fn write(path: &Path, envelope: &[u8]) -> io::Result<()> {
    let aside = path.with_extension("tmp");
    let mut file = File::create(&aside)?;
    file.write_all(envelope)?;
    file.write_all(&crc32c::crc32c(envelope).to_le_bytes())?;
    file.sync_all()?;
    fs::rename(&aside, path)?;
    sync_parent(path)
}

/// Reads what [`write()`] wrote and returns the envelope.
///
/// # Errors
/// What the system says, and `InvalidData` when length or checksum is wrong.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(SIZE_MAX + 1).read_to_end(&mut bytes)?;
    let damaged = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    if bytes.len() as u64 > SIZE_MAX {
        return Err(damaged(format!("file is larger than {SIZE_MAX} bytes")));
    }
    let Some((envelope, crc)) = bytes.split_last_chunk::<CRC_LEN>() else {
        return Err(damaged(format!("file has only {} bytes", bytes.len())));
    };
    if crc32c::crc32c(envelope) != u32::from_le_bytes(*crc) {
        return Err(damaged("file does not match its checksum".to_owned()));
    }
    let envelope_len = envelope.len();
    bytes.truncate(envelope_len);
    Ok(bytes)
}

/// Makes the entries of directory `path` durable.
pub(crate) fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Makes the directory entry of `path` durable.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => sync_dir(Path::new(".")),
        Some(parent) => sync_dir(parent),
        None => Ok(()),
    }
}
