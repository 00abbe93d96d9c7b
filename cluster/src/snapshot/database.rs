//! The sled database of one snapshot: how it is opened, filled, and brought to rest.
//!
//! sled writes to its files also when it is opened, when it is read (pages of many pieces are rewritten) and, by its
//! threads, for a moment after it was closed. Checksums over its files hold only once all that has come to rest: after
//! a whole cycle of opening, reading and closing that was seen to leave every file byte for byte as it was. From then
//! on opening it again, reading any part of it, or a crash meanwhile, changes nothing.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use super::SnapshotError;
use super::chunks::{ChunkReader, ChunkWriter, Totals};
use super::files::{self, io_error};
use super::manifest::FileSumV1;

/// sled's page cache, bytes: a snapshot is written once and read once, in order.
const CACHE_BYTES: u64 = 8 * 1024 * 1024;
/// How often a new snapshot is read back until sled leaves its files alone. Mostly once; three times where reading made
/// sled rewrite a page of many pieces, since the next opening tidies up after that.
const SETTLE_ROUNDS: usize = 8;

/// Opens the database in `dir`. Only for a new directory, or one whose files match its manifest.
pub(super) fn open(dir: &Path) -> Result<sled::Db, SnapshotError> {
    sled::Config::new()
        .path(dir)
        .cache_capacity(CACHE_BYTES)
        .mode(sled::Mode::HighThroughput)
        .flush_every_ms(None)
        .open()
        .map_err(|error| io_error(dir, "open the store in")(error.into()))
}

/// Writes what `save` writes as chunks, and flushes them to the system.
pub(super) fn write(
    dir: &Path,
    db: &sled::Db,
    save: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
) -> Result<Totals, SnapshotError> {
    let fault = |error: sled::Error| io_error(dir, "write to the store in")(error.into());
    let mut writer = ChunkWriter::new(db);
    let saved = save(&mut writer);
    let totals = writer.finish().map_err(fault)?;
    saved.map_err(SnapshotError::Save)?;
    db.flush().map_err(fault)?;
    Ok(totals)
}

/// Reads everything back and returns the checksums of files that opening, reading and closing do not change.
pub(super) fn verify(dir: &Path, totals: Totals) -> Result<Vec<FileSumV1>, SnapshotError> {
    // The first opening after a write tidies up: it zeroes the tail of the last segment and notes where it ended.
    drop(open(dir)?);
    files::wait_released(dir)?;
    let mut before = files::sums(dir)?;
    for _ in 0..SETTLE_ROUNDS {
        let mut reader = ChunkReader::new(Arc::new(open(dir)?), totals);
        io::copy(&mut reader, &mut io::sink()).map_err(io_error(dir, "read back the store in"))?;
        drop(reader);
        files::wait_released(dir)?;
        let after = files::sums(dir)?;
        if after == before {
            return Ok(after);
        }
        before = after;
    }
    Err(io_error(dir, "finish the snapshot in")(io::Error::other("the store changes its files each time it is read")))
}
