//! Where a node keeps the machine's last whole state.
//!
//! Model: a store holds at most one snapshot, the newest, named by the log id it reaches to. A write replaces it in one
//! step: a crash at any point leaves the old one or the new one, whole. A store never goes back: writing what it
//! already has, or something older, changes nothing.
//!
//! All calls block (run them off the async threads). Memory is bounded: bytes stream in and out.
//!
//! Not promised: how long a read lasts beyond its reader; a snapshot replaced meanwhile stays readable to its readers.

mod chunks;
mod database;
mod files;
mod manifest;
mod memory;
mod names;
pub(crate) mod reading;
mod sled_store;
#[cfg(test)]
mod tests;

use std::io::{self, Read, Write};
use std::path::PathBuf;

use crate::error::{OpenError, Remedy};
use crate::persisted::{LogIdV1, MembershipV2};

pub use memory::MemorySnapshots;
pub use sled_store::{SledSnapshots, Step, StepHook};

/// What a snapshot says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The last entry that the state contains.
    pub last: LogIdV1,
    /// The last command in that entry: with it a state's position is exact. 0 in what was written before it was kept.
    pub ordinal: u32,
    /// The entry that set the membership; `None` before the first.
    pub membership_at: Option<LogIdV1>,
    /// The membership as of `last`.
    pub membership: MembershipV2,
    /// The last applied stamp, cluster milliseconds.
    pub stamp_ms: u64,
    /// The cluster's feature level as of `last`.
    pub feature_level: u16,
    /// The machine's format version that wrote the bytes.
    pub format_version: u16,
}

impl Head {
    /// Does this one contain all that `other` does?
    fn reaches(&self, other: &Self) -> bool {
        names::Id::from(&self.last) >= names::Id::from(&other.last)
    }
}

/// A finished snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// What it says of itself.
    pub head: Head,
    /// Length of what [`SnapshotStore::open`] yields, bytes.
    pub bytes: u64,
    /// What it takes on disk, bytes.
    pub disk_bytes: u64,
}

impl Stored {
    fn gone(&self) -> SnapshotError {
        SnapshotError::Gone { term: self.head.last.term, index: self.head.last.index }
    }
}

/// Keeps the newest snapshot.
pub trait SnapshotStore: Send + Sync + 'static {
    /// Writes what `save` writes as the snapshot of `head`, and returns it once it is durable and verified.
    /// If the store already holds one that reaches as far, `save` is not called and that one is returned.
    ///
    /// # Errors
    /// [`SnapshotError`]; the store then holds what it held before. Whoever gets one that is not
    /// [`SnapshotError::is_disk_full`] or [`SnapshotError::Save`] must not trust the disk any longer.
    fn write(
        &self,
        head: Head,
        save: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> Result<Stored, SnapshotError>;

    /// The newest whole snapshot, `None` before the first.
    ///
    /// # Errors
    /// [`SnapshotError`] when it can no longer be told.
    fn newest(&self) -> Result<Option<Stored>, SnapshotError>;

    /// Reads `stored` from its first byte. Each chunk is checked before a byte of it is handed out; a chunk that is
    /// wrong or missing is an `InvalidData` error of the reader.
    ///
    /// # Errors
    /// [`SnapshotError::Gone`] when a newer one has replaced it, [`SnapshotError::Damaged`] when its files have
    /// changed.
    fn open(&self, stored: &Stored) -> Result<Box<dyn Read + Send>, SnapshotError>;
}

/// A snapshot cannot be written or read. Each text is one line.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The bytes on disk are not what was written. Nothing was changed.
    #[error("{path}: snapshot is damaged: {what}", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// How.
        what: String,
    },
    /// The snapshot has a form that this build does not know. Nothing was changed.
    #[error("{path}: snapshot was written by a newer build: {what}; start that build again", path = path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// What is newer.
        what: String,
    },
    /// A newer snapshot has taken its place.
    #[error("snapshot of term {term}, index {index} was replaced by a newer one")]
    Gone {
        /// Term of its log id.
        term: u64,
        /// Index of its log id.
        index: u64,
    },
    /// The system refused a file operation.
    #[error("{path}: cannot {what}: {source}", path = path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The state could not be written out: `save` failed.
    #[error("the state could not be written out: {0}")]
    Save(#[source] io::Error),
}

impl SnapshotError {
    /// Is the disk full? Then the old snapshot stands, and the write may be tried again later.
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        match self {
            Self::Io { source, .. } | Self::Save(source) => {
                matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            Self::Damaged { .. } | Self::Newer { .. } | Self::Gone { .. } => false,
        }
    }
}

impl SnapshotError {
    /// Why a node does not start that goes on from damage by `remedy`.
    #[must_use]
    pub fn at_opening(self, remedy: Remedy) -> OpenError {
        match self {
            Self::Io { path, what, source } => OpenError::Io { path, what: format!("cannot {what}"), source },
            Self::Damaged { path, what } => {
                let what = format!("the snapshot: {what}; the log before it may be gone");
                OpenError::Damaged { path, what, remedy }
            }
            Self::Newer { path, what } => {
                let what = format!("was written by a newer build ({what}): start that build again");
                OpenError::Foreign { path, what }
            }
            Self::Gone { .. } | Self::Save(_) => OpenError::Raft(self.to_string()),
        }
    }
}
