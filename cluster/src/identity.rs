//! A node's data directory: whose it is, and that nobody else has it open.
//!
//! Model: `LOCK` is held by the process that has the directory open. `log/` and `snapshots/` hold the data. `identity`
//! is written last when a directory is made, so from then on all three are there or something was lost. A directory
//! with less, and nothing of anybody else's, counts as empty: a start that was cut short is simply repeated. A single
//! node's directory belongs to its cluster from the start; that of a node of several from [`DataDir::belongs_to`] on.
//! `founded` says that a log was made here: from then on none at all is a loss and not a beginning.
//!
//! Invariants: a directory that is refused was not changed; one of another node or with foreign files is never adopted;
//! an incarnation is drawn once per directory, so a wiped node is told apart from the one before; a directory goes from
//! one cluster to another only while its node is the founder of the first and nothing was ever written to that.
//!
//! Not promised: protection from a copy of the directory started elsewhere.

mod format;
#[cfg(test)]
mod tests;

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

pub use format::{Belonging, ClusterId, Identity, hex};

use crate::codec::DecodeError;
use crate::error::{OpenError, Remedy};
use crate::file_lock::FileLock;
use crate::raft::NodeId;
use crate::sealed;

const LOCK: &str = "LOCK";
const IDENTITY: &str = "identity";
const IDENTITY_ASIDE: &str = "identity.tmp";
const LOG: &str = "log";
const SNAPSHOTS: &str = "snapshots";
const FOUNDED: &str = "founded";
/// What a fresh file system brings along.
const LOST_AND_FOUND: &str = "lost+found";
/// Foreign names shown in a refusal.
const NAMES_SHOWN: usize = 3;
/// The id of a single node that was not given one.
const FIRST_NODE: NodeId = 1;

/// What a new directory is made with.
pub struct Founding<'a> {
    /// The wall clock now, Unix milliseconds.
    pub wall_ms: u64,
    /// It is for a node of several, which belongs to no cluster yet.
    pub several: bool,
    /// Fills a buffer with random bytes fit to tell clusters apart.
    pub random: &'a mut dyn FnMut(&mut [u8]) -> io::Result<()>,
}

/// An open data directory. Unlocked when dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    identity: Mutex<Identity>,
    is_new: bool,
    _lock: FileLock,
}

impl DataDir {
    /// Opens the data directory `path` of node `node_id` (`None`: whose it is, or node 1 if it is new), and makes it if
    /// it is absent or empty.
    ///
    /// # Errors
    /// [`OpenError`], one line each: in use, foreign, of another node, damaged, not readable or writable.
    pub fn open(path: &Path, node_id: Option<NodeId>, founding: Founding<'_>) -> Result<Self, OpenError> {
        if node_id == Some(0) {
            return Err(OpenError::Config("node id is 0: ids start at 1".to_owned()));
        }
        if node_id.is_none() && founding.several {
            return Err(OpenError::Config("a node of several needs --node-id".to_owned()));
        }
        make(path)?;
        survey(path)?;
        let lock = lock(path)?;
        // What was there before the lock may have been another process at founding it.
        let found = survey(path)?;
        let identity = if found.identity { load(path, node_id)? } else { make_new(path, node_id, founding)? };
        Ok(Self { path: path.to_path_buf(), identity: Mutex::new(identity), is_new: !found.identity, _lock: lock })
    }

    /// Whose it is.
    #[must_use]
    pub fn identity(&self) -> Identity {
        *self.identity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Was it made by this very call to [`DataDir::open`]?
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// The directory belongs to a cluster from now on, also after a crash. Blocks.
    ///
    /// # Errors
    /// [`OpenError`]: it belongs to another cluster, or cannot be written. It is then as it was.
    pub fn belongs_to(&self, belonging: Belonging) -> Result<Identity, OpenError> {
        let mut held = self.identity.lock().unwrap_or_else(PoisonError::into_inner);
        let other = held.belonging.filter(|held| held.cluster != belonging.cluster);
        if other.is_some_and(|other| !other.founder || self.has_log()) {
            let what = format!("belongs to {}, not to cluster {}", held.name(), hex(&belonging.cluster));
            return Err(OpenError::Foreign { path: self.path.clone(), what });
        }
        let identity = Identity { belonging: Some(belonging), ..*held };
        write(&self.path, &identity)?;
        *held = identity;
        Ok(identity)
    }

    /// Was a log made here?
    #[must_use]
    pub fn has_log(&self) -> bool {
        self.path.join(FOUNDED).exists()
    }

    /// A log was made here: said durably, before anything is written to it that others rely on. Blocks.
    ///
    /// # Errors
    /// [`OpenError::Io`].
    pub fn note_log(&self) -> Result<(), OpenError> {
        if self.has_log() {
            return Ok(());
        }
        let founded = self.path.join(FOUNDED);
        let noted = File::create(&founded).and_then(|_| sealed::sync_parent(&founded));
        noted.map_err(io_error(&self.path, NOT_WRITABLE))
    }

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The log's directory.
    #[must_use]
    pub fn log_dir(&self) -> PathBuf {
        self.path.join(LOG)
    }

    /// The snapshots' directory.
    #[must_use]
    pub fn snapshot_dir(&self) -> PathBuf {
        self.path.join(SNAPSHOTS)
    }
}

fn io_error(path: &Path, what: &str) -> impl FnOnce(io::Error) -> OpenError {
    let (path, what) = (path.to_path_buf(), what.to_owned());
    move |source| OpenError::Io { path, what, source }
}

const NOT_READABLE: &str = "cannot be read (let this user read it, or choose another --data)";
const NOT_WRITABLE: &str = "cannot be written (let this user write to it, or choose another --data)";

/// Makes the directory and the parents it lacks, each durably.
fn make(path: &Path) -> Result<(), OpenError> {
    let unmakeable = || io_error(path, "cannot be made (make it by hand, or choose another --data)");
    let mut missing = Vec::new();
    for ancestor in path.ancestors().filter(|ancestor| !ancestor.as_os_str().is_empty()) {
        match fs::metadata(ancestor) {
            Ok(found) if found.is_dir() => break,
            Ok(_) if missing.is_empty() => {
                let what = "is not a directory: choose another --data".to_owned();
                return Err(OpenError::Foreign { path: path.to_path_buf(), what });
            }
            Ok(_) => return Err(unmakeable()(io::ErrorKind::NotADirectory.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(ancestor),
            Err(error) if missing.is_empty() && error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(io_error(path, NOT_READABLE)(error));
            }
            Err(error) => return Err(unmakeable()(error)),
        }
    }
    for dir in missing.into_iter().rev() {
        make_dir(dir).map_err(unmakeable())?;
    }
    Ok(())
}

/// Makes one directory, or finds it made, and makes its entry durable.
fn make_dir(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => sealed::sync_parent(path),
    }
}

/// What a directory holds that is or could be ours.
struct Survey {
    identity: bool,
}

/// Looks whether the directory is ours, or empty enough to become ours. Changes nothing.
fn survey(path: &Path) -> Result<Survey, OpenError> {
    let names = names(path)?;
    let has = |name: &str| names.iter().any(|other| other == name);
    let damaged = |what: String, remedy| Err(OpenError::Damaged { path: path.to_path_buf(), what, remedy });
    if has(IDENTITY) {
        return match [LOG, SNAPSHOTS].into_iter().find(|name| !has(name)) {
            Some(lost) => {
                let remedy = load(path, None).map_or(Remedy::Unknown, |identity| identity.remedy());
                damaged(format!("{lost}/ is missing"), remedy)
            }
            None => Ok(Survey { identity: true }),
        };
    }
    let ours = [LOCK, IDENTITY_ASIDE, LOG, SNAPSHOTS, LOST_AND_FOUND];
    let mut foreign: Vec<_> = names.iter().filter(|name| !ours.contains(&name.as_str())).map(String::as_str).collect();
    if !foreign.is_empty() {
        foreign.sort_unstable();
        let more = if foreign.len() > NAMES_SHOWN { ", …" } else { "" };
        let shown = foreign[..foreign.len().min(NAMES_SHOWN)].join(", ");
        let what = format!("is not empty and not of this program (found {shown}{more}): choose an empty directory");
        return Err(OpenError::Foreign { path: path.to_path_buf(), what });
    }
    for name in [LOG, SNAPSHOTS].into_iter().filter(|name| has(name)) {
        if !self::names(&path.join(name))?.is_empty() {
            return damaged(format!("{name}/ holds data but the identity file is missing"), Remedy::Unknown);
        }
    }
    Ok(Survey { identity: false })
}

fn names(path: &Path) -> Result<Vec<String>, OpenError> {
    let entries = fs::read_dir(path).map_err(io_error(path, NOT_READABLE))?;
    let names = entries.map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()));
    names.collect::<io::Result<_>>().map_err(io_error(path, NOT_READABLE))
}

fn lock(path: &Path) -> Result<FileLock, OpenError> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true);
    let file = options.open(path.join(LOCK)).map_err(io_error(path, NOT_WRITABLE))?;
    FileLock::try_of(file).map_err(|error| match error {
        TryLockError::WouldBlock => OpenError::Locked { path: path.to_path_buf() },
        TryLockError::Error(error) => io_error(path, "cannot be locked")(error),
    })
}

fn load(path: &Path, node_id: Option<NodeId>) -> Result<Identity, OpenError> {
    let damaged = |what: String| OpenError::Damaged {
        path: path.to_path_buf(),
        what: format!("{IDENTITY}: {what}"),
        remedy: Remedy::Unknown,
    };
    let envelope = sealed::read(&path.join(IDENTITY)).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => damaged(error.to_string()),
        _ => io_error(path, NOT_READABLE)(error),
    })?;
    let identity = Identity::decode(&envelope).map_err(|error| match error {
        DecodeError::Version { .. } => OpenError::Foreign {
            path: path.to_path_buf(),
            what: format!("was written by a newer build ({error}): start that build again"),
        },
        _ => damaged(error.to_string()),
    })?;
    match node_id {
        Some(expected) if expected != identity.node_id => {
            let what = format!("belongs to {}, not to node {expected}: correct --node-id or --data", identity.name());
            Err(OpenError::Foreign { path: path.to_path_buf(), what })
        }
        _ => Ok(identity),
    }
}

fn make_new(path: &Path, node_id: Option<NodeId>, founding: Founding<'_>) -> Result<Identity, OpenError> {
    let (mut cluster, mut incarnation) = ([0; 16], [0; 8]);
    (founding.random)(&mut cluster)
        .and_then(|()| (founding.random)(&mut incarnation))
        .map_err(io_error(path, "no random numbers for a new directory"))?;
    let (several, founded_wall_ms) = (founding.several, founding.wall_ms);
    let alone = Belonging { cluster, founded_wall_ms, founder: true, admitted_at: 0 };
    let identity = Identity {
        node_id: node_id.unwrap_or(FIRST_NODE),
        incarnation: u64::from_le_bytes(incarnation).max(1),
        several,
        belonging: (!several).then_some(alone),
    };
    make_dir(&path.join(LOG)).and_then(|()| make_dir(&path.join(SNAPSHOTS))).map_err(io_error(path, NOT_WRITABLE))?;
    write(path, &identity)?;
    Ok(identity)
}

fn write(path: &Path, identity: &Identity) -> Result<(), OpenError> {
    let envelope = identity.encode().map_err(|error| io_error(path, "identity")(io::Error::other(error)))?;
    sealed::write(&path.join(IDENTITY), &envelope).map_err(io_error(path, NOT_WRITABLE))
}
