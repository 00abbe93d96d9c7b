//! Spare segments: zeroed and synced ahead of need, so that appends neither wait for zeroing nor find the disk full in
//! the middle of a record. A spare that bears its name is whole; one in the making has another name and is thrown away
//! at a restart.
//!
//! At least one is always kept back from appends: on a full disk it takes the votes.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::files::{self, Disk};

/// Zeros are written and synced in slices of this many bytes.
const ZEROS: usize = 1024 * 1024;

/// The path of spare `number`.
pub fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("spare-{number}.zero"))
}

/// The number in a spare's file name; `None` for other files.
#[must_use]
pub fn number_of(name: &str) -> Option<u64> {
    name.strip_prefix("spare-")?.strip_suffix(".zero")?.parse().ok()
}

/// Is this a spare that was never finished?
#[must_use]
pub fn is_unfinished(name: &str) -> bool {
    name.starts_with("spare-") && name.ends_with(".tmp")
}

/// How spares are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Making {
    /// On a thread of their own.
    Behind,
    /// By the caller, at once: for whoever drives the writer step by step.
    Inline,
}

type Made = Arc<Mutex<Option<io::Result<PathBuf>>>>;

/// What asking for spares came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stock {
    /// As many as asked for are there.
    Enough,
    /// One is being made.
    Coming,
    /// The disk is full.
    Full,
}

/// The spares of one log.
pub struct Spares {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    bytes: u64,
    making: Making,
    ready: Vec<PathBuf>,
    next_number: u64,
    behind: Option<(Made, thread::JoinHandle<()>)>,
    notify: Arc<dyn Fn() + Send + Sync>,
}

impl Spares {
    /// Spares of `bytes` in `dir`, with those that `numbers` says are there. `notify` is called when one was made behind.
    pub fn new(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        bytes: u64,
        making: Making,
        numbers: &[u64],
        notify: Arc<dyn Fn() + Send + Sync>,
    ) -> Self {
        let ready = numbers.iter().map(|number| path(&dir, *number)).collect();
        let next_number = numbers.iter().max().map_or(1, |number| number + 1);
        Self { disk, dir, bytes, making, ready, next_number, behind: None, notify }
    }

    /// Their bytes on disk.
    pub fn disk_bytes(&self) -> u64 {
        self.bytes * self.ready.len() as u64
    }

    /// How many are there.
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Takes one, if more than `keep` are there.
    pub fn take(&mut self, keep: usize) -> Option<PathBuf> {
        if self.ready.len() > keep { self.ready.pop() } else { None }
    }

    /// Gives one back.
    pub fn give_back(&mut self, spare: PathBuf) {
        self.ready.push(spare);
    }

    /// Makes one of an unusual size, at once; `None` when the disk is full.
    ///
    /// # Errors
    /// A fault of the disk other than being full.
    pub fn make_sized(&mut self, bytes: u64) -> io::Result<Option<PathBuf>> {
        let number = self.next_number;
        self.next_number += 1;
        match make(&*self.disk, &self.dir, bytes, number) {
            Err(error) if files::is_full(&error) => Ok(None),
            made => made.map(Some),
        }
    }

    /// Sees to it that `wanted` are there or coming.
    ///
    /// # Errors
    /// A fault of the disk other than being full.
    pub fn stock(&mut self, wanted: usize) -> io::Result<Stock> {
        let collected = self.collect();
        match collected {
            Err(error) if files::is_full(&error) => return Ok(Stock::Full),
            other => other?,
        }
        while self.ready.len() < wanted {
            if self.behind.is_some() {
                return Ok(Stock::Coming);
            }
            let number = self.next_number;
            self.next_number += 1;
            let (disk, dir, bytes) = (Arc::clone(&self.disk), self.dir.clone(), self.bytes);
            match self.making {
                Making::Inline => match make(&*disk, &dir, bytes, number) {
                    Ok(spare) => self.ready.push(spare),
                    Err(error) if files::is_full(&error) => return Ok(Stock::Full),
                    Err(error) => return Err(error),
                },
                Making::Behind => {
                    let made = Made::default();
                    let (theirs, notify) = (Arc::clone(&made), Arc::clone(&self.notify));
                    let thread = thread::Builder::new().name("log-spare".to_owned()).spawn(move || {
                        let result = make(&*disk, &dir, bytes, number);
                        *theirs.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                        notify();
                    })?;
                    self.behind = Some((made, thread));
                }
            }
        }
        Ok(Stock::Enough)
    }

    /// Takes in what was made behind.
    fn collect(&mut self) -> io::Result<()> {
        let Some((made, _)) = &self.behind else { return Ok(()) };
        let Some(result) = made.lock().unwrap_or_else(PoisonError::into_inner).take() else { return Ok(()) };
        self.behind = None;
        self.ready.push(result?);
        Ok(())
    }

    /// Waits for what is being made: nothing of this log touches the disk afterwards.
    pub fn close(&mut self) {
        if let Some((_, thread)) = self.behind.take() {
            // It has no panicking path; were it to die, there is nothing to take in.
            let _ = thread.join();
        }
    }
}

/// Makes spare `number`.
///
/// # Errors
/// As of the disk; nothing is left of it.
pub fn make(disk: &dyn Disk, dir: &Path, bytes: u64, number: u64) -> io::Result<PathBuf> {
    let (making, spare) = (dir.join(format!("spare-{number}.tmp")), path(dir, number));
    let made = zeroed(disk, &making, bytes)
        .and_then(|()| disk.rename(&making, &spare))
        .and_then(|()| disk.sync_dir(dir).map_err(|error| files::sync_failed(&error)));
    if let Err(error) = made {
        // Its blocks may be just what others wait for. What went wrong first is what is told.
        let _ = disk.remove(&making);
        return Err(error);
    }
    Ok(spare)
}

/// Synced slice by slice, so that the log's own syncs never queue behind a whole segment of zeros.
fn zeroed(disk: &dyn Disk, path: &Path, bytes: u64) -> io::Result<()> {
    let file = disk.create_new(path)?;
    let zeros = vec![0; ZEROS];
    let mut offset = 0;
    while offset < bytes {
        let slice = (bytes - offset).min(ZEROS as u64);
        file.grow_at(&zeros[..slice as usize], offset)?;
        file.sync_data()?;
        offset += slice;
    }
    Ok(())
}
