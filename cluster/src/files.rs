//! The file operations the log is made of, and nothing more: so that tests and the simulator drive the very same code on
//! a disk that tears, loses, fills up and fails ([`crate::simdisk`]).
//!
//! What callers may lean on: a write is durable after [`DiskFile::sync_data`] returned Ok; a name (created, renamed,
//! removed) is durable after [`Disk::sync_dir`] of its directory returned Ok; a sector rewritten with bytes that start
//! with what was synced there keeps that beginning, whatever happens. Nothing else, in particular no order among
//! unsynced writes. After a failed sync nothing is known of any write since the last good one.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// A file system.
pub trait Disk: Send + Sync + 'static {
    /// Makes a directory if it is absent (its parent must exist). Durable after the parent was synced.
    ///
    /// # Errors
    /// As of the system.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    /// Names of the files in a directory, sorted.
    ///
    /// # Errors
    /// As of the system.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Opens an existing file for reading and writing.
    ///
    /// # Errors
    /// As of the system.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Creates a file that must not exist.
    ///
    /// # Errors
    /// As of the system.
    fn create_new(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Renames a file atomically, replacing what bears the new name.
    ///
    /// # Errors
    /// As of the system.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    ///
    /// # Errors
    /// As of the system.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// As of the system.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
}

/// An open file.
pub trait DiskFile: Send + Sync + 'static {
    /// Fills `bytes` from `offset` on.
    ///
    /// # Errors
    /// As of the system; `UnexpectedEof` when the file ends before.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all of `bytes` at `offset`, extending the file if needed.
    ///
    /// # Errors
    /// As of the system; any part may have been written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// The same for bytes that grow the file and will be overwritten a little at a time: in small pieces.
    ///
    /// # Errors
    /// As of [`DiskFile::write_at`].
    fn grow_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(bytes, offset)
    }
    /// Makes the file's bytes and length durable (fdatasync).
    ///
    /// # Errors
    /// As of the system. An error is final: what was written since the last good sync is in an unknown state.
    fn sync_data(&self) -> io::Result<()>;
    /// Length in bytes.
    ///
    /// # Errors
    /// As of the system.
    fn len(&self) -> io::Result<u64>;
    /// Has it no bytes?
    ///
    /// # Errors
    /// As of the system.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// Is this the disk (or a quota) being full? Not a fault: space may come back.
#[must_use]
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The error of a failed sync: never [`is_full`], since a sync is not repeated.
#[must_use]
pub fn sync_failed(error: &io::Error) -> io::Error {
    io::Error::other(format!("sync failed: {error}"))
}

/// The operating system's files.
#[derive(Clone, Default)]
pub struct OsDisk {
    _lock: Option<Arc<dyn Send + Sync>>,
}

impl OsDisk {
    /// Files under `lock`, which is let go of when the last that uses this disk has ended: threads that still write
    /// when their node was dropped without a shutdown must not meet the next node on the same files.
    pub fn under(lock: Arc<dyn Send + Sync>) -> Self {
        Self { _lock: Some(lock) }
    }
}

impl Disk for OsDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        match fs::create_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
            made => made,
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(OsFile(fs::OpenOptions::new().read(true).write(true).open(path)?)))
    }

    fn create_new(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(OsFile(fs::OpenOptions::new().read(true).write(true).create_new(true).open(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        fs::File::open(dir)?.sync_all()
    }
}

struct OsFile(fs::File);

/// Least piece that the kernel caches.
const PAGE: usize = 4096;

impl DiskFile for OsFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.0, bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(&self.0, bytes, offset)
    }

    /// Page by page. The kernel may cache what one call writes as one piece, and later writes all of that piece to the
    /// disk for each record in it: a megabyte for a hundred bytes (seen on ext4, Linux 6.18).
    fn grow_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        for (page, at) in bytes.chunks(PAGE).zip((offset..).step_by(PAGE)) {
            self.write_at(page, at)?;
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}
