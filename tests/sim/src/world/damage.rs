//! Damage to a stored log: a byte is flipped, and what must come of it is worked out beforehand, on copies of the disk.
//!
//! Exact for each byte, and cheap: the log is opened on a copy with the flip. If it is refused, the node itself must be
//! refused. If it opens with all that it held, the byte did not matter (zeros, or nothing that is needed). If it lost
//! something, that may be its last write group alone, which cannot be told from a torn write: what is left when that
//! group's last byte is flipped is all that may be left; then the flip is not done, since nobody promised to notice it.
//! Anything else is damage that was taken for a torn write.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tenure_cluster::OpenError;
use tenure_cluster::config::Unobserved;
use tenure_cluster::log::{LogOptions, LogStore};
use tenure_cluster::simdisk::SimDisk;

use super::stored::Stored;
use crate::runtime::Rt;

/// Where a node's log is on its disk.
pub(super) const LOG_DIR: &str = "/log";

/// What flipping a byte must lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    /// The node must not start.
    Refused,
    /// The byte does not matter.
    Harmless,
    /// It was the last write group's: not to be told from a torn write, so not done.
    LastGroup,
    /// Something else was lost, and the log opens all the same.
    Unnoticed(String),
}

/// A byte of a stored log.
pub(super) struct Byte {
    pub(super) path: PathBuf,
    pub(super) offset: usize,
}

/// The byte that is so many thousandths through the bytes in use of the log's segments, and the last one in use.
fn byte_at(disk: &SimDisk, per_mille: u64) -> Option<(Byte, Byte)> {
    let dir = Path::new(LOG_DIR);
    let used = |path: PathBuf| {
        let bytes = disk.bytes_of(&path)?;
        let used = bytes.iter().rposition(|byte| *byte != 0)? + 1;
        Some((path, used))
    };
    let names = disk.names_in(dir).into_iter().filter(|name| name.ends_with(".log"));
    let segments: Vec<(PathBuf, usize)> = names.filter_map(|name| used(dir.join(name))).collect();
    let (last, end) = segments.last().cloned()?;
    let all: usize = segments.iter().map(|(_, used)| used).sum();
    let mut offset = (all as u64 * per_mille.min(999) / 1_000) as usize;
    for (path, used) in segments {
        if offset < used {
            return Some((Byte { path, offset }, Byte { path: last, offset: end - 1 }));
        }
        offset -= used;
    }
    None
}

/// What the log on a copy of `disk` holds when `byte` is flipped.
fn opened(disk: &SimDisk, options: &LogOptions, byte: &Byte) -> Result<Stored, OpenError> {
    let copy = disk.copy();
    flip(&copy, byte);
    opened_on(&copy, options)
}

fn opened_on(disk: &SimDisk, options: &LogOptions) -> Result<Stored, OpenError> {
    let options = LogOptions { must_exist: true, ..options.clone() };
    let (log, _writer) =
        LogStore::<Rt>::open_stepped(disk.mount(), PathBuf::from(LOG_DIR), options, Arc::new(Unobserved))?;
    Ok(Stored::of(&log))
}

/// Flips a bit of `byte`, durably.
pub(super) fn flip(disk: &SimDisk, byte: &Byte) {
    disk.corrupt(&byte.path, byte.offset, 0x10);
}

/// The byte that is so many thousandths through the log on `disk`, and what flipping it does; `None` when the log opens in
/// no case.
pub(super) fn foresee(disk: &SimDisk, options: &LogOptions, per_mille: u64) -> Option<(Byte, Damage)> {
    // Bytes are chosen of what a start would keep: a torn write behind it is nobody's.
    let kept = disk.copy();
    let whole = opened_on(&kept, options).ok()?;
    let (byte, end) = byte_at(&kept, per_mille)?;
    let damage = match opened(disk, options, &byte) {
        Err(_) => Damage::Refused,
        Ok(left) if left == whole => Damage::Harmless,
        Ok(left) => match opened(&kept, options, &end) {
            Ok(least) if left == least => Damage::LastGroup,
            least => Damage::Unnoticed(format!(
                "{} byte {}: the log had {whole:?}, opens with {left:?}, may lose no more than to {least:?}",
                byte.path.display(),
                byte.offset
            )),
        },
    };
    Some((byte, damage))
}
