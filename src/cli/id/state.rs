//! The state file of an identity in a pool: the token, so that a restart of the process is the same holder.
//!
//! # Model
//! One file for pool and identity, versioned JSON, mode 0600. It is replaced as a whole (a new file, synced, renamed, its
//! directory synced), so a crash leaves the old or the new one. A token is written before it is first sent: whatever was
//! granted to it can be found again.
//!
//! Two locks beside it, both of the kernel and gone with their processes, however these end:
//! - `FILE.lock`: by whoever works with the file, for its process's life; its text is the process's number;
//! - `FILE.job`: by the guard of `tenure id run`, as long as anything of the job is there. A client that is killed leaves
//!   a job that its guard still has to end: nobody may be given its id meanwhile, not even its own next run.
//!
//! # Not promised
//! A file system without flock (some of the network) locks nothing.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tenure_client::Token;
use tenure_cluster::FileLock;
use thiserror::Error;

/// Of the file's format.
const VERSION: u64 = 1;
/// Greatest file that is read.
const BYTES_MAX: u64 = 64 << 10;
/// Longest readable part of a default file's name, of pool and identity each.
const NAME_BYTES_MAX: usize = 60;

/// What is remembered. Fields that are not known yet are null.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remembered {
    version: u64,
    /// The pool's key.
    pub pool: String,
    /// The identity.
    pub identity: String,
    /// The holder's secret; null once it was given back or has been of no use.
    pub token: Option<Token>,
    /// A RELEASE with the token was sent, and its answer is not known: it may come late.
    pub leaving: bool,
    /// The id that was granted to it, or that was held last.
    pub id: Option<u32>,
    /// That grant's fence.
    pub fence: Option<u64>,
    /// What was granted at the last ACQUIRE or RENEW: a job that was left alone is gone after that.
    pub ttl_ms: Option<u64>,
    /// The pool's own identity: another means another pool of that name.
    pub pool_uuid: Option<String>,
    /// The cluster's id.
    pub cluster: Option<String>,
}

/// The file, locked.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    /// What stands in it.
    pub remembered: Remembered,
    _lock: FileLock,
}

/// Why the file cannot be worked with.
#[derive(Debug, Error)]
pub enum StateError {
    /// Another process works with it.
    #[error(
        "{path} is in use by {by}: one identity is one process. For one more on this host give --slot 1 (2, 3, …), or an --identity of its own",
        path = path.display(), by = pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
    )]
    InUse {
        /// The file.
        path: PathBuf,
        /// Whose it is, if it can be read.
        pid: Option<u32>,
    },
    /// What an earlier run left is still being ended.
    #[error("the job of an earlier run with {path} is still being ended: wait for it", path = path.display())]
    JobAlive {
        /// The file.
        path: PathBuf,
    },
    /// Of something else.
    #[error("{path} is the state of {what} {theirs:?}, not of {ours:?}: give another --state", path = path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Pool or identity.
        what: &'static str,
        /// As it stands in the file.
        theirs: String,
        /// As it was asked for.
        ours: String,
    },
    /// Not to be read.
    #[error("{path} is no state file of this version: {why}. If nothing lives that used it, remove it", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// In one line.
        why: String,
    },
    /// The operating system.
    #[error("cannot {doing} {path}: {error}; --state FILE keeps the state elsewhere", path = path.display())]
    System {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// What came of it.
        error: io::Error,
    },
    /// There is no default place.
    #[error("no place for the state file is known (neither XDG_STATE_HOME nor HOME is set): give --state FILE")]
    NoPlace,
}

impl StateFile {
    /// Locks the file and reads it; makes what is missing.
    pub fn open(path: PathBuf, pool: &str, identity: &str) -> Result<Self, StateError> {
        let directory = directory_of(&path);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(system("make the directory", directory))?;
        let path = followed(path)?;
        let lock = lock(&path)?;
        let remembered = match read(&path)? {
            None => Remembered::nothing(pool, identity),
            Some(remembered) => remembered,
        };
        for (what, theirs, ours) in [("pool", &remembered.pool, pool), ("identity", &remembered.identity, identity)] {
            if theirs != ours {
                return Err(StateError::Foreign { path, what, theirs: theirs.clone(), ours: ours.to_owned() });
            }
        }
        Ok(Self { path, remembered, _lock: lock })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The lock of the job: for the guard.
    pub fn job_lock(&self) -> PathBuf {
        beside(&self.path, "job")
    }

    /// Whether something of an earlier run's job is left.
    pub fn job_is_alive(&self) -> Result<bool, StateError> {
        let path = self.job_lock();
        let open = lock_options().write(true).create(true).truncate(false).open(&path);
        let file = open.map_err(system("open", &path))?;
        match FileLock::try_of(file) {
            Ok(_ours_for_a_moment) => Ok(false),
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(error)) => Err(system("lock", &path)(error)),
        }
    }

    /// The refusal of whoever does not wait for such a job.
    pub fn without_job(self) -> Result<Self, StateError> {
        if self.job_is_alive()? { Err(StateError::JobAlive { path: self.path }) } else { Ok(self) }
    }

    /// An operator who is root leaves the file to the user whose process it is of.
    fn keep_owner(&self, new: &File) -> io::Result<()> {
        match std::fs::metadata(&self.path) {
            Ok(old) if rustix::process::geteuid().is_root() => fchown(new, Some(old.uid()), Some(old.gid())),
            _ => Ok(()),
        }
    }

    /// Writes what is remembered now: it is on the disk when this returns.
    pub fn write(&self) -> Result<(), StateError> {
        let new = beside(&self.path, "new");
        let text = serde_json::to_vec_pretty(&self.remembered).map_err(io::Error::from);
        let text = text.map_err(system("write", &new))?;
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(system("remove", &new)(error)),
            _ => {}
        }
        // Anew, so that it is nobody else's and its mode is ours.
        let mut file = private().write(true).create_new(true).open(&new).map_err(system("make", &new))?;
        self.keep_owner(&file).map_err(system("give its owner to", &new))?;
        file.write_all(&text).and_then(|()| file.sync_all()).map_err(system("write", &new))?;
        std::fs::rename(&new, &self.path).map_err(system("replace", &self.path))?;
        let directory = directory_of(&self.path);
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(system("sync", directory))
    }
}

impl Remembered {
    /// Of a process that was never here.
    fn nothing(pool: &str, identity: &str) -> Self {
        Self {
            version: VERSION,
            pool: pool.to_owned(),
            identity: identity.to_owned(),
            token: None,
            leaving: false,
            id: None,
            fence: None,
            ttl_ms: None,
            pool_uuid: None,
            cluster: None,
        }
    }
}

/// The default file of a pool and an identity: one place for each user.
pub fn default_path(pool: &str, identity: &str) -> Result<PathBuf, StateError> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || set("HOME").map(|home| home.join(".local/state/tenure"));
    let is_root = rustix::process::getuid().is_root();
    // Its standard has it absolute, and anything else of no account: two directories would be two places.
    let base = match set("XDG_STATE_HOME").filter(|path| path.is_absolute()) {
        Some(state_home) => state_home.join("tenure"),
        // Not below /var/lib/tenure: that is a node's data on such a host, whose user may be another, and which may be
        // emptied to replace the node.
        None if is_root => PathBuf::from("/var/lib/tenure-id"),
        None => home().ok_or(StateError::NoPlace)?,
    };
    Ok(base.join("id").join(file_name(pool, identity)))
}

/// Readable, and of that pool and identity alone.
fn file_name(pool: &str, identity: &str) -> String {
    let mut hash = Sha256::new();
    for part in [pool, identity] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    let digits: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let readable = |text: &str| -> String {
        let kept = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
        text.chars().take(NAME_BYTES_MAX).map(kept).collect()
    };
    format!("{}-{}-{digits}.json", readable(pool), readable(identity))
}

/// Where a link leads: the locks stand beside the file itself, whatever name it is called by, and a link is not replaced.
fn followed(path: PathBuf) -> Result<PathBuf, StateError> {
    match std::fs::symlink_metadata(&path) {
        Ok(found) if found.is_symlink() => std::fs::canonicalize(&path).map_err(system("follow the link", &path)),
        _ => Ok(path),
    }
}

/// The lock of whoever works with the file.
fn lock(path: &Path) -> Result<FileLock, StateError> {
    let lock_path = beside(path, "lock");
    let open = || lock_options().read(true).write(true).create(true).truncate(false).open(&lock_path);
    let mut lock = match FileLock::try_of(open().map_err(system("open", &lock_path))?) {
        Ok(lock) => lock,
        Err(TryLockError::WouldBlock) => {
            return Err(StateError::InUse { path: path.to_owned(), pid: open().ok().and_then(noted) });
        }
        Err(TryLockError::Error(error)) => return Err(system("lock", &lock_path)(error)),
    };
    let file = lock.file();
    file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(system("write", &lock_path))?;
    Ok(lock)
}

/// The process that noted its number when it locked the file.
fn noted(lock: File) -> Option<u32> {
    let mut text = String::new();
    lock.take(20).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// What stands in the file; `None`: there is none.
fn read(path: &Path) -> Result<Option<Remembered>, StateError> {
    // A pipe in its place is empty then, instead of keeping us.
    let file = match OpenOptions::new().read(true).custom_flags(flags(OFlags::NONBLOCK)).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(system("read", path))?,
    };
    let mut text = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut text).map_err(system("read", path))?;
    let damaged = |why: String| StateError::Damaged { path: path.to_owned(), why };
    let value: serde_json::Value = serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
    match value["version"].as_u64() {
        Some(VERSION) => {}
        Some(version) => return Err(damaged(format!("its version is {version}, known is {VERSION}"))),
        None => return Err(damaged("it has no version".to_owned())),
    }
    serde_json::from_value(value).map(Some).map_err(|error| damaged(error.to_string()))
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// Of a lock, which is written to: a link that somebody put there leads to nobody's file, and a pipe does not keep us.
fn lock_options() -> OpenOptions {
    let mut options = private();
    options.custom_flags(flags(OFlags::NOFOLLOW | OFlags::NONBLOCK));
    options
}

fn flags(flags: OFlags) -> i32 {
    flags.bits().cast_signed()
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn beside(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}

fn system(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateError {
    let path = path.to_owned();
    move |error| StateError::System { doing, path, error }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt as _;

    use tempfile::TempDir;

    use super::*;

    fn place() -> (TempDir, PathBuf) {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("made/for/it/ids.json");
        (dir, path)
    }

    #[test]
    fn what_is_written_is_read_by_the_next() {
        let (_dir, path) = place();
        let mut state = StateFile::open(path.clone(), "ids", "me").unwrap();
        assert_eq!(state.remembered, Remembered::nothing("ids", "me"));
        state.remembered.token = Some("secret".into());
        state.remembered.id = Some(7);
        state.write().unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let wanted = state.remembered.clone();
        drop(state);
        assert_eq!(StateFile::open(path, "ids", "me").unwrap().remembered, wanted);
    }

    #[test]
    fn it_is_one_process_only() {
        let (_dir, path) = place();
        let first = StateFile::open(path.clone(), "ids", "me").unwrap();
        let refusal = StateFile::open(path.clone(), "ids", "me").unwrap_err().to_string();
        let pid = std::process::id().to_string();
        for part in [&pid, "--slot 1", "ids.json"] {
            assert!(refusal.contains(part), "{refusal}");
        }
        drop(first);
        StateFile::open(path, "ids", "me").unwrap();
    }

    #[test]
    fn a_job_that_is_left_is_seen() {
        let (_dir, path) = place();
        let state = StateFile::open(path.clone(), "ids", "me").unwrap();
        assert!(!state.job_is_alive().unwrap());
        let guard = FileLock::try_of(File::create(state.job_lock()).unwrap()).unwrap();
        assert!(state.job_is_alive().unwrap());
        assert!(matches!(state.without_job(), Err(StateError::JobAlive { .. })));
        drop(guard);
        StateFile::open(path, "ids", "me").unwrap().without_job().unwrap();
    }

    #[test]
    fn a_foreign_or_damaged_file_is_left_alone() {
        let (_dir, path) = place();
        StateFile::open(path.clone(), "ids", "me").unwrap().write().unwrap();
        let refusal =
            |pool: &str, identity: &str| StateFile::open(path.clone(), pool, identity).unwrap_err().to_string();
        assert!(refusal("ids", "you").contains("identity \"me\", not of \"you\""));
        assert!(refusal("others", "me").contains("pool \"ids\", not of \"others\""));
        for (text, wanted) in [
            ("", "remove it"),
            ("{}", "no version"),
            ("{\"version\": 2}", "its version is 2"),
            ("{\"version\": 1}", "missing field"),
        ] {
            std::fs::write(&path, text).unwrap();
            let said = refusal("ids", "me");
            assert!(said.contains(wanted), "{text}: {said}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn what_is_no_file_of_ours_is_neither_followed_nor_waited_for() {
        let (dir, path) = place();
        drop(StateFile::open(path.clone(), "ids", "me").unwrap());
        let precious = dir.path().join("precious");
        std::fs::write(&precious, "precious").unwrap();
        let lock = beside(&path, "lock");
        std::fs::remove_file(&lock).unwrap();
        std::os::unix::fs::symlink(&precious, &lock).unwrap();
        assert!(matches!(StateFile::open(path.clone(), "ids", "me"), Err(StateError::System { .. })));
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
        std::fs::remove_file(&lock).unwrap();

        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(matches!(StateFile::open(path.clone(), "ids", "me"), Err(StateError::Damaged { .. })));
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, [0xFF, 0xFE]).unwrap();
        assert!(matches!(StateFile::open(path, "ids", "me"), Err(StateError::Damaged { .. })));
    }

    #[test]
    fn a_file_is_one_by_whatever_name() {
        let (dir, path) = place();
        StateFile::open(path.clone(), "ids", "me").unwrap().write().unwrap();
        let link = dir.path().join("link.json");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let by_link = StateFile::open(link.clone(), "ids", "me").unwrap();
        assert!(matches!(StateFile::open(path.clone(), "ids", "me"), Err(StateError::InUse { .. })));
        by_link.write().unwrap();
        drop(by_link);
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        std::fs::remove_file(&path).unwrap();
        let leads_nowhere = StateFile::open(link, "ids", "me").unwrap_err().to_string();
        assert!(leads_nowhere.contains("follow the link"), "{leads_nowhere}");
    }

    #[test]
    fn names_of_files_tell_apart_what_reads_alike() {
        let name = file_name("ids", "host/0");
        assert!(name.starts_with("ids-host_0-") && name.ends_with(".json"), "{name}");
        assert_ne!(file_name("ids", "host_0"), name);
        assert_ne!(file_name("a-b", "c"), file_name("a", "b-c"));
        assert!(file_name(&"ключ/".repeat(300), &"x".repeat(256)).len() < 200);
    }
}
