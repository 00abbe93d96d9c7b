//! Snapshots on disk: a fresh sled directory for each, believed only through its manifest.
//!
//! Model: `snap-<term>-<index>` was durable and verified before it got that name; `….tmp` is being made or unmade, and
//! removed at the next start. Writing one: chunks into sled, closed, opened and read back, every file and directory
//! synced by us (sled's `flush` is no fsync), the manifest with every file's checksum, the rename, the parent's sync;
//! only then is the previous one removed.
//!
//! sled answers some damage with a panic. So no sled file is opened unless it matches the manifest.
//!
//! Invariants: one writer at a time; one sled handle per directory, shared by its readers; a directory is removed only
//! while none is being opened.
//!
//! Not promised: that the disk holds what it said it synced. The read-back sees the page cache; the checksums tell at
//! the next start.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::chunks::{ChunkReader, Totals};
use super::files::{self, MANIFEST, io_error};
use super::manifest::ManifestV3;
use super::names::{self, Id, aside};
use super::{Head, SnapshotError, SnapshotStore, Stored, database};
use crate::codec::DecodeError;
use crate::persisted::LogIdV1;
use crate::sealed;

/// A step of a write that is done. After each, a crash leaves the old snapshot or the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The directory `….tmp` is there, empty.
    Created,
    /// All chunks are in sled, flushed.
    Written,
    /// sled has let go of its files.
    Closed,
    /// Opened again and read back; the files no longer change.
    Verified,
    /// One more file or directory is synced.
    Synced,
    /// The manifest is there, durable.
    Sealed,
    /// The directory has its final name.
    Renamed,
    /// The name is durable: from here on it is the newest.
    Durable,
    /// The previous one is removed.
    Replaced,
    /// The write failed and `….tmp` is about to be removed.
    Failed,
}

/// Called after each step; an error stops the write there, as a crash would.
pub type StepHook = Arc<dyn Fn(Step) -> io::Result<()> + Send + Sync>;

/// Keeps the newest snapshot below a directory.
pub struct SledSnapshots {
    dir: PathBuf,
    hook: StepHook,
    newest: Mutex<Option<Kept>>,
    /// Held while a snapshot is written.
    writing: Mutex<()>,
    /// Held while one is opened or removed.
    reading: Mutex<Option<Shared>>,
}

/// The newest snapshot, its manifest and place.
#[derive(Clone)]
struct Kept {
    stored: Stored,
    totals: Totals,
    path: PathBuf,
}

/// A handle that readers share, while there are any.
struct Shared {
    last: LogIdV1,
    totals: Totals,
    db: Weak<sled::Db>,
}

impl SledSnapshots {
    /// Opens the store below `dir`, which is made if absent; checks the newest snapshot and removes what is left over.
    ///
    /// # Errors
    /// [`SnapshotError::Damaged`] when the newest snapshot is not whole: then nothing was changed.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, SnapshotError> {
        let dir = dir.into();
        match fs::create_dir(&dir) {
            Ok(()) => sealed::sync_parent(&dir).map_err(io_error(&dir, "sync the parent of"))?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(io_error(&dir, "make")(error)),
        }
        let newest = names::list(&dir)?.finished.pop().map(|(id, path)| check(id, &path)).transpose()?;
        let store = Self {
            dir,
            hook: Arc::new(|_| Ok(())),
            newest: Mutex::new(newest),
            writing: Mutex::new(()),
            reading: Mutex::new(None),
        };
        store.remove_leftovers()?;
        Ok(store)
    }

    /// The same store with a hook for each step of a write: for tests that crash it there.
    #[must_use]
    pub fn with_hook(mut self, hook: StepHook) -> Self {
        self.hook = hook;
        self
    }

    fn step(&self, step: Step) -> Result<(), SnapshotError> {
        (self.hook)(step).map_err(io_error(&self.dir, "go on writing"))
    }

    fn kept(&self) -> Option<Kept> {
        lock(&self.newest).clone()
    }

    /// Makes the directory `tmp` with a whole snapshot in it, durable but for its name.
    fn build(
        &self,
        tmp: &Path,
        head: Head,
        save: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> Result<Kept, SnapshotError> {
        fs::create_dir(tmp).map_err(io_error(tmp, "make"))?;
        self.step(Step::Created)?;
        let db = database::open(tmp)?;
        let totals = database::write(tmp, &db, save)?;
        self.step(Step::Written)?;
        drop(db);
        files::wait_released(tmp)?;
        self.step(Step::Closed)?;
        let sums = database::verify(tmp, totals)?;
        self.step(Step::Verified)?;
        files::sync_all(tmp, &|| self.step(Step::Synced))?;
        let manifest = ManifestV3 {
            last: head.last,
            ordinal: head.ordinal,
            membership_at: head.membership_at,
            membership: head.membership,
            stamp_ms: head.stamp_ms,
            feature_level: head.feature_level,
            format_version: head.format_version,
            chunks: totals.chunks,
            bytes: totals.bytes,
            crc32c: totals.crc32c,
            files: sums,
        };
        let path = tmp.join(MANIFEST);
        let envelope = manifest.encode().map_err(|error| io_error(&path, "encode")(io::Error::other(error)))?;
        sealed::write(&path, &envelope).map_err(io_error(&path, "write"))?;
        self.step(Step::Sealed)?;
        Ok(kept(&manifest, envelope.len(), tmp.to_path_buf()))
    }

    /// Gives the snapshot in `kept` its final name, durably.
    fn publish(&self, kept: &mut Kept, path: PathBuf) -> Result<(), SnapshotError> {
        if path.exists() {
            self.remove(&path)?;
        }
        fs::rename(&kept.path, &path).map_err(io_error(&path, "give the finished snapshot the name"))?;
        self.step(Step::Renamed)?;
        sealed::sync_dir(&self.dir).map_err(io_error(&self.dir, "sync"))?;
        kept.path = path;
        *lock(&self.newest) = Some(kept.clone());
        self.step(Step::Durable)
    }

    /// Removes everything of ours but the newest snapshot.
    fn remove_leftovers(&self) -> Result<(), SnapshotError> {
        let newest = self.kept().map(|kept| kept.path);
        let listing = names::list(&self.dir)?;
        for (_, path) in listing.finished {
            if newest.as_deref() != Some(path.as_path()) {
                self.remove(&path)?;
            }
        }
        listing.unfinished.iter().try_for_each(|path| clear(path))
    }

    /// Removes a finished snapshot: renamed first, so that what has a final name is always whole.
    fn remove(&self, path: &Path) -> Result<(), SnapshotError> {
        let _opening = lock(&self.reading);
        let tmp = aside(path);
        clear(&tmp)?;
        fs::rename(path, &tmp).map_err(io_error(path, "rename"))?;
        clear(&tmp)
    }
}

impl SnapshotStore for SledSnapshots {
    fn write(
        &self,
        head: Head,
        save: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> Result<Stored, SnapshotError> {
        let _one_at_a_time = lock(&self.writing);
        if let Some(kept) = self.kept().filter(|kept| kept.stored.head.reaches(&head)) {
            return Ok(kept.stored);
        }
        let path = Id::from(&head.last).path(&self.dir);
        let tmp = aside(&path);
        clear(&tmp)?;
        let mut kept = match self.build(&tmp, head, save) {
            Ok(kept) => kept,
            Err(error) => {
                if self.step(Step::Failed).is_ok() {
                    // Gives the space back; if that fails too, the next start removes it. The first error counts.
                    drop(clear(&tmp));
                }
                return Err(error);
            }
        };
        self.publish(&mut kept, path)?;
        if let Err(error) = self.remove_leftovers() {
            tracing::warn!(%error, "the previous snapshot could not be removed; tried again with the next");
        }
        self.step(Step::Replaced)?;
        Ok(kept.stored)
    }

    fn newest(&self) -> Result<Option<Stored>, SnapshotError> {
        Ok(self.kept().map(|kept| kept.stored))
    }

    fn open(&self, stored: &Stored) -> Result<Box<dyn Read + Send>, SnapshotError> {
        let last = stored.head.last;
        let mut shared = lock(&self.reading);
        if let Some(shared) = shared.as_ref().filter(|shared| shared.last == last)
            && let Some(db) = shared.db.upgrade()
        {
            return Ok(Box::new(ChunkReader::new(db, shared.totals)));
        }
        let Some(kept) = self.kept().filter(|kept| kept.stored.head.last == last) else {
            return Err(stored.gone());
        };
        files::wait_released(&kept.path)?;
        check(Id::from(&last), &kept.path)?;
        let db = Arc::new(database::open(&kept.path)?);
        *shared = Some(Shared { last, totals: kept.totals, db: Arc::downgrade(&db) });
        Ok(Box::new(ChunkReader::new(db, kept.totals)))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the directory `path` if it is there.
fn clear(path: &Path) -> Result<(), SnapshotError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error(path, "remove")(error)),
        _ => Ok(()),
    }
}

/// Checks the finished snapshot in `path` against its manifest, without opening sled.
fn check(id: Id, path: &Path) -> Result<Kept, SnapshotError> {
    let manifest_path = path.join(MANIFEST);
    let damaged = |what: String| SnapshotError::Damaged { path: manifest_path.clone(), what };
    let envelope = sealed::read(&manifest_path).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => damaged(error.to_string()),
        io::ErrorKind::NotFound => damaged("file is missing".to_owned()),
        _ => io_error(&manifest_path, "read")(error),
    })?;
    let manifest = ManifestV3::decode(&envelope).map_err(|error| match error {
        DecodeError::Version { .. } => SnapshotError::Newer { path: manifest_path.clone(), what: error.to_string() },
        _ => damaged(error.to_string()),
    })?;
    if Id::from(&manifest.last) != id {
        return Err(damaged(format!("it is of term {}, index {}", manifest.last.term, manifest.last.index)));
    }
    files::check(path, &manifest.files)?;
    Ok(kept(&manifest, envelope.len(), path.to_path_buf()))
}

fn kept(manifest: &ManifestV3, manifest_len: usize, path: PathBuf) -> Kept {
    let files: u64 = manifest.files.iter().map(|file| file.bytes).sum();
    let totals = Totals { chunks: manifest.chunks, bytes: manifest.bytes, crc32c: manifest.crc32c };
    let stored = Stored { head: manifest.head(), bytes: manifest.bytes, disk_bytes: files + manifest_len as u64 };
    Kept { stored, totals, path }
}
