//! The files of a snapshot directory: their checksums, their syncs, and the moment sled lets go of them.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::SnapshotError;
use super::manifest::FileSumV1;

/// The manifest's name: the one file that has no checksum in it.
pub(super) const MANIFEST: &str = "manifest";
/// sled's data file, which it holds locked.
const SLED_DATA: &str = "db";
/// How long sled's own threads may take to finish after it was closed: bounded by one device write each.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(60);
/// A file is read in pieces of so many bytes.
const PIECE_BYTES: usize = 256 * 1024;

pub(super) fn io_error(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> SnapshotError {
    let path = path.to_path_buf();
    move |source| SnapshotError::Io { path, what, source }
}

/// Length and checksum of every file below `dir` but the manifest, by name.
pub(super) fn sums(dir: &Path) -> Result<Vec<FileSumV1>, SnapshotError> {
    let mut found = Vec::new();
    for name in names(dir)?.files.into_iter().filter(|name| name != MANIFEST) {
        let path = dir.join(&name);
        let (bytes, crc32c) = sum(&path).map_err(io_error(&path, "read"))?;
        found.push(FileSumV1 { name, bytes, crc32c });
    }
    Ok(found)
}

fn sum(path: &Path) -> io::Result<(u64, u32)> {
    let mut file = File::open(path)?;
    let mut piece = vec![0; PIECE_BYTES];
    let (mut bytes, mut crc) = (0, 0);
    loop {
        let length = file.read(&mut piece)?;
        if length == 0 {
            return Ok((bytes, crc));
        }
        bytes += length as u64;
        crc = crc32c::crc32c_append(crc, &piece[..length]);
    }
}

/// Compares the files below `dir` with what the manifest says: none missing, changed or added.
pub(super) fn check(dir: &Path, expected: &[FileSumV1]) -> Result<(), SnapshotError> {
    let found = sums(dir)?;
    let damaged = |name: &str, what: &str| SnapshotError::Damaged { path: dir.join(name), what: what.to_owned() };
    for file in expected {
        match found.iter().find(|other| other.name == file.name) {
            None => return Err(damaged(&file.name, "file is missing")),
            Some(other) if other.bytes != file.bytes => return Err(damaged(&file.name, "file has another length")),
            Some(other) if other.crc32c != file.crc32c => {
                return Err(damaged(&file.name, "file does not match its checksum"));
            }
            Some(_) => {}
        }
    }
    match found.iter().find(|other| expected.iter().all(|file| file.name != other.name)) {
        Some(added) => Err(damaged(&added.name, "file does not belong here")),
        None => Ok(()),
    }
}

/// Syncs every file and directory below `dir`, and `dir` itself; `after` is called after each.
pub(super) fn sync_all(dir: &Path, after: &dyn Fn() -> Result<(), SnapshotError>) -> Result<(), SnapshotError> {
    let names = names(dir)?;
    let below = names.files.iter().chain(names.dirs.iter().rev()).map(|name| dir.join(name));
    for path in below.chain([dir.to_path_buf()]) {
        File::open(&path).and_then(|file| file.sync_all()).map_err(io_error(&path, "sync"))?;
        after()?;
    }
    Ok(())
}

/// Names below a directory, sorted.
struct Names {
    files: Vec<String>,
    dirs: Vec<String>,
}

fn names(dir: &Path) -> Result<Names, SnapshotError> {
    let mut names = Names { files: Vec::new(), dirs: Vec::new() };
    let mut open = vec![String::new()];
    while let Some(parent) = open.pop() {
        let path = dir.join(&parent);
        for entry in fs::read_dir(&path).map_err(io_error(&path, "list"))? {
            let entry = entry.map_err(io_error(&path, "list"))?;
            let own = entry.file_name().to_string_lossy().into_owned();
            let name = if parent.is_empty() { own } else { format!("{parent}/{own}") };
            if entry.file_type().map_err(io_error(&path, "list"))?.is_dir() {
                names.dirs.push(name.clone());
                open.push(name);
            } else {
                names.files.push(name);
            }
        }
    }
    names.files.sort();
    names.dirs.sort();
    Ok(names)
}

/// Waits until sled has let go of the database in `dir`, which was closed before.
///
/// sled's pool threads hold the database for a moment after its last handle is gone, and may still write. They hold it
/// by its file lock; so the lock is what is waited for.
pub(super) fn wait_released(dir: &Path) -> Result<(), SnapshotError> {
    let path = dir.join(SLED_DATA);
    wait_unlocked(&path).map_err(io_error(&path, "take the lock that the store held"))
}

#[expect(clippy::disallowed_methods, reason = "it is unlocked before it is closed")]
fn wait_unlocked(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    match file.try_lock() {
        Ok(()) => return file.unlock(),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let (done, locked) = mpsc::sync_channel(1);
    thread::Builder::new().name("snapshot-lock".to_owned()).spawn(move || {
        // Unlocked before it is told: whoever waits opens the file next. Nobody listens after the timeout.
        drop(done.send(file.lock().and_then(|()| file.unlock())));
    })?;
    locked.recv_timeout(RELEASE_TIMEOUT).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::file_lock::FileLock;

    #[test]
    fn the_lock_is_waited_for() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join(SLED_DATA);
        let holder = FileLock::try_of(File::create(&path).unwrap()).unwrap();
        let let_go = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                wait_released(dir.path()).unwrap();
                assert!(let_go.load(Ordering::SeqCst), "returned while it was held");
                // And it is free for whoever comes next.
                FileLock::try_of(File::open(&path).unwrap()).unwrap();
            });
            let_go.store(true, Ordering::SeqCst);
            drop(holder);
        });
    }
}
