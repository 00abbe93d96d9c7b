//! The durable log: entries, vote, committed and purge mark in one ordered stream over segment files.
//!
//! ```text
//! LogStore (openraft's traits) -> Queue (what readers see, what waits) -> Writer (one thread: group, sync, tell) -> files
//! ```
//! Invariants: what was told to be synced survives any crash; after a crash the log is exactly what some prefix of the
//! submitted changes adds up to, at least all that was told; nothing is told after a fault. A full disk is no fault.
//!
//! Not promised: that damage to the last write group is told apart from a torn write of it, nor anything on a disk that
//! lies about syncs. Reads of old entries touch the disk on the caller's thread.

mod index;
#[cfg(all(test, feature = "planted"))]
mod planted_tests;
mod queue;
pub(crate) mod record;
mod recovery;
pub(crate) mod segment;
mod spare;
mod state;
mod store;
mod writer;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

pub use self::store::LogStore;
pub use self::writer::{Step, Writer};
use crate::config::Observer;
use crate::error::{OpenError, Remedy};
use crate::files::Disk;
use queue::Queue;
use spare::{Making, Spares};

/// How a log is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// Size of a segment, bytes: 4 KiB up to 1 GiB.
    pub segment_bytes: u64,
    /// Bytes of entries that may wait for their sync; beyond it an append waits. A vote on a full disk takes what waits
    /// before it into the last spare: keep it well below `segment_bytes`.
    pub unsynced_bytes_max: u64,
    /// Bytes of the newest entries kept in memory, beside those that are not synced.
    pub cached_bytes_max: u64,
    /// A log was here before: an empty directory is damage, not a new log.
    pub must_exist: bool,
    /// How to go on when it is damaged.
    pub remedy: Remedy,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            segment_bytes: 16 * 1024 * 1024,
            unsynced_bytes_max: 6 * 1024 * 1024,
            cached_bytes_max: 16 * 1024 * 1024,
            must_exist: false,
            remedy: Remedy::default(),
        }
    }
}

impl LogOptions {
    fn check(&self) -> Result<(), OpenError> {
        if (4096..=1024 * 1024 * 1024).contains(&self.segment_bytes) {
            return Ok(());
        }
        Err(OpenError::Config(format!("segment_bytes is {}: it must be 4096..=1073741824", self.segment_bytes)))
    }
}

/// One open log; the last handle to go ends its thread.
struct Open {
    queue: Arc<Queue>,
    options: LogOptions,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

impl Open {
    /// Recovers the log and makes its writer.
    fn new(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        options: LogOptions,
        observer: Arc<dyn Observer>,
        making: Making,
    ) -> Result<(Self, Writer), OpenError> {
        options.check()?;
        let mut recovered = recovery::recover(&*disk, &dir, &options)?;
        let queue = Arc::new(Queue::new(std::mem::take(&mut recovered.index)));
        let notify = {
            let queue = Arc::clone(&queue);
            Arc::new(move || queue.notify())
        };
        let (bytes, numbers) = (options.segment_bytes, &recovered.spares);
        let spares = Spares::new(Arc::clone(&disk), dir.clone(), bytes, making, numbers, notify);
        let mut writer =
            Writer::new(disk, dir.clone(), options.clone(), observer, Arc::clone(&queue), spares, recovered);
        writer.remove_unneeded().map_err(|source| OpenError::Io {
            path: dir,
            what: "removing old log segments".to_owned(),
            source,
        })?;
        Ok((Self { queue, options, thread: Mutex::new(None) }, writer))
    }

    /// Starts the thread that drives the writer.
    fn start(self, writer: Writer) -> Result<Self, OpenError> {
        let path = writer.dir().to_owned();
        let thread = thread::Builder::new()
            .name("log-writer".to_owned())
            .spawn(move || writer.run())
            .map_err(|source| OpenError::Io { path, what: "starting the log's writer".to_owned(), source })?;
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(self)
    }

    /// Accepts nothing more, and waits until all is written and the writer has ended.
    fn close(&self) {
        self.queue.close();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The last handle may go inside a callback on the writer's own thread, which cannot wait for itself.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id()) {
            // A panic of the writer was reported where it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.close();
    }
}
