//! A simulated disk: for tests, and for whoever simulates whole nodes.
//!
//! Model: bytes written are in memory until a sync of their file; names (created, renamed, removed, directories) until a
//! sync of their directory. [`SimDisk::power_cut`] keeps of each file's unsynced sectors (512 bytes) a random subset, and
//! of each directory's unsynced operations a random subset, each whole. [`SimDisk::process_crash`] loses nothing. Either
//! makes every handle from before useless: a process that is dead writes no more.
//!
//! Faults: the n-th operation fails with an input/output error, or is the last one before the machine stops; a failed
//! sync loses its sectors as Linux does: they read back as written, no later sync makes them durable, writing them again
//! does. A full disk by capacity in bytes. Only operations that change something are counted.
//!
//! All randomness comes from the seeds given: the same calls give the same disk.

mod content;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::files::{Disk, DiskFile};

use content::{Chance, Content, Directory, Naming};
pub use content::{Losses, SECTOR};

/// What happens at an operation that was chosen to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails with an input/output error; it may have happened in part.
    Error,
    /// The machine stops in the middle of it: it and all that follow fail, until the disk is mounted anew.
    Stop,
}

#[derive(Default)]
struct State {
    directories: BTreeMap<PathBuf, Directory>,
    files: BTreeMap<u64, Content>,
    next_file: u64,
    /// Handles of an older epoch are dead.
    epoch: u64,
    stopped: bool,
    operations: u64,
    faults: BTreeMap<u64, Fault>,
    capacity: Option<u64>,
}

/// See the module's head. Clones are the same disk.
#[derive(Clone, Default)]
pub struct SimDisk(Arc<Mutex<State>>);

/// A disk as one process sees it, until the next crash.
struct Mount {
    disk: SimDisk,
    epoch: u64,
}

struct Handle {
    disk: SimDisk,
    epoch: u64,
    file: u64,
}

impl SimDisk {
    /// An empty disk with `/` on it.
    #[must_use]
    pub fn new() -> Self {
        let disk = Self::default();
        disk.lock().directories.insert(PathBuf::from("/"), Directory { synced: true, ..Directory::default() });
        disk
    }

    /// The disk for a process that starts now.
    #[must_use]
    pub fn mount(&self) -> Arc<dyn Disk> {
        let mut state = self.lock();
        state.stopped = false;
        Arc::new(Mount { disk: self.clone(), epoch: state.epoch })
    }

    /// Another disk that holds the same, and shares nothing with this one.
    #[must_use]
    pub fn copy(&self) -> Self {
        let state = self.lock();
        let (directories, files, next_file) = (state.directories.clone(), state.files.clone(), state.next_file);
        Self(Arc::new(Mutex::new(State { directories, files, next_file, ..State::default() })))
    }

    /// Cuts the power: of what is not synced, a subset chosen by `seed` survives. Returns what does not.
    pub fn power_cut(&self, seed: u64) -> Losses {
        let mut losses = Losses::default();
        let mut state = self.lock();
        let mut chance = Chance(seed);
        state.epoch += 1;
        state.directories.retain(|_, directory| directory.synced || chance.coin());
        for directory in state.directories.values_mut() {
            directory.cut(&mut chance, &mut losses);
        }
        let named: BTreeSet<u64> = state.directories.values().flat_map(|d| d.names.values().copied()).collect();
        state.files.retain(|file, _| named.contains(file));
        for content in state.files.values_mut() {
            content.cut(&mut chance, &mut losses);
        }
        state.faults.clear();
        losses
    }

    /// Kills the process: what it wrote stays, synced or not.
    pub fn process_crash(&self) {
        let mut state = self.lock();
        state.epoch += 1;
        state.faults.clear();
    }

    /// Operations so far.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// Operation number `operation` (the first is 1) will fail. Forgotten at a crash.
    pub fn fail_at(&self, operation: u64, fault: Fault) {
        self.lock().faults.insert(operation, fault);
    }

    /// No operation will fail any more.
    pub fn forget_faults(&self) {
        self.lock().faults.clear();
    }

    /// Files may have so many bytes in all; `None` for no limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.lock().capacity = bytes;
    }

    /// Bytes of all files.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.lock().used()
    }

    /// Names of the files in a directory, sorted.
    #[must_use]
    pub fn names_in(&self, dir: &Path) -> Vec<String> {
        self.lock().directories.get(dir).map(|dir| dir.names.keys().cloned().collect()).unwrap_or_default()
    }

    /// A file's bytes as read.
    #[must_use]
    pub fn bytes_of(&self, path: &Path) -> Option<Vec<u8>> {
        let state = self.lock();
        let file = state.find(path).ok()?;
        state.files.get(&file).map(|content| content.bytes.clone())
    }

    /// Changes a byte of a file behind everybody's back, durably.
    pub fn corrupt(&self, path: &Path, offset: usize, flip: u8) {
        let mut state = self.lock();
        let Ok(file) = state.find(path) else { return };
        let Some(content) = state.files.get_mut(&file) else { return };
        for bytes in [&mut content.bytes, &mut content.synced] {
            if let Some(byte) = bytes.get_mut(offset) {
                *byte ^= flip;
            }
        }
    }

    /// Loses a name behind everybody's back, durably.
    pub fn lose(&self, path: &Path) {
        let mut state = self.lock();
        let Ok((directory, name)) = state.directory(path) else { return };
        directory.names.remove(&name);
        directory.durable.remove(&name);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn absent(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{} does not exist", path.display()))
}

fn failed() -> io::Error {
    io::Error::other("simulated input/output error")
}

impl State {
    fn check(&self, epoch: u64) -> io::Result<()> {
        if self.epoch != epoch || self.stopped {
            Err(io::Error::other("the simulated machine stopped"))
        } else {
            Ok(())
        }
    }

    /// Counts an operation; the fault chosen for it, if any.
    fn operation(&mut self, epoch: u64) -> io::Result<Option<Fault>> {
        self.check(epoch)?;
        self.operations += 1;
        let fault = self.faults.get(&self.operations).copied();
        self.stopped |= fault == Some(Fault::Stop);
        Ok(fault)
    }

    fn directory(&mut self, path: &Path) -> io::Result<(&mut Directory, String)> {
        let parent = path.parent().ok_or_else(|| absent(path))?;
        let name = path.file_name().ok_or_else(|| absent(path))?.to_string_lossy().into_owned();
        let directory = self.directories.get_mut(parent).ok_or_else(|| absent(parent))?;
        Ok((directory, name))
    }

    fn find(&self, path: &Path) -> io::Result<u64> {
        let parent = path.parent().and_then(|parent| self.directories.get(parent)).ok_or_else(|| absent(path))?;
        let name = path.file_name().ok_or_else(|| absent(path))?.to_string_lossy();
        parent.names.get(name.as_ref()).copied().ok_or_else(|| absent(path))
    }

    fn used(&self) -> u64 {
        let named: BTreeSet<u64> = self.directories.values().flat_map(|d| d.names.values().copied()).collect();
        named.iter().filter_map(|file| self.files.get(file)).map(|content| content.bytes.len() as u64).sum()
    }

    fn write(&mut self, file: u64, bytes: &[u8], offset: u64) -> io::Result<()> {
        let room = self.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(self.used()));
        let content = self.files.get_mut(&file).ok_or_else(failed)?;
        let offset = offset as usize;
        let growth = (offset + bytes.len()).saturating_sub(content.bytes.len()) as u64;
        if growth > room {
            let fits = bytes.len() - (growth - room) as usize;
            content.write(&bytes[..fits], offset);
            return Err(io::Error::new(io::ErrorKind::StorageFull, "simulated disk is full"));
        }
        content.write(bytes, offset);
        Ok(())
    }
}

/// The operation happened, or it was chosen to fail: after a stop it may have happened all the same.
fn outcome(fault: Option<Fault>) -> io::Result<()> {
    if fault.is_some() { Err(failed()) } else { Ok(()) }
}

impl Disk for Mount {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.disk.lock();
        state.check(self.epoch)?;
        if state.directories.contains_key(dir) {
            return Ok(());
        }
        if !dir.parent().is_some_and(|parent| state.directories.contains_key(parent)) {
            return Err(absent(dir));
        }
        let fault = state.operation(self.epoch)?;
        if fault != Some(Fault::Error) {
            state.directories.insert(dir.to_owned(), Directory::default());
        }
        outcome(fault)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let state = self.disk.lock();
        state.check(self.epoch)?;
        Ok(state.directories.get(dir).ok_or_else(|| absent(dir))?.names.keys().cloned().collect())
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let state = self.disk.lock();
        state.check(self.epoch)?;
        let file = state.find(path)?;
        Ok(Arc::new(Handle { disk: self.disk.clone(), epoch: self.epoch, file }))
    }

    fn create_new(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.disk.lock();
        let fault = state.operation(self.epoch)?;
        if state.find(path).is_ok() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{} exists", path.display())));
        }
        let file = state.next_file;
        if fault != Some(Fault::Error) {
            let (directory, name) = state.directory(path)?;
            directory.change(Naming::Create(name, file));
            state.next_file += 1;
            state.files.insert(file, Content::default());
        }
        outcome(fault)?;
        Ok(Arc::new(Handle { disk: self.disk.clone(), epoch: self.epoch, file }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.disk.lock();
        let fault = state.operation(self.epoch)?;
        state.find(from)?;
        if from.parent() != to.parent() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "a rename stays in its directory"));
        }
        if fault != Some(Fault::Error) {
            let (_, new) = state.directory(to)?;
            let (directory, old) = state.directory(from)?;
            directory.change(Naming::Rename(old, new));
        }
        outcome(fault)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.disk.lock();
        let fault = state.operation(self.epoch)?;
        state.find(path)?;
        if fault != Some(Fault::Error) {
            let (directory, name) = state.directory(path)?;
            directory.change(Naming::Remove(name));
        }
        outcome(fault)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.disk.lock();
        let fault = state.operation(self.epoch)?;
        if fault.is_none() {
            state.directories.get_mut(dir).ok_or_else(|| absent(dir))?.sync();
            for (path, directory) in &mut state.directories {
                directory.synced |= path.parent() == Some(dir);
            }
        }
        outcome(fault)
    }
}

impl DiskFile for Handle {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let state = self.disk.lock();
        state.check(self.epoch)?;
        let content = state.files.get(&self.file).ok_or_else(failed)?;
        let range = offset as usize..offset as usize + bytes.len();
        let found = content.bytes.get(range).ok_or(io::ErrorKind::UnexpectedEof)?;
        bytes.copy_from_slice(found);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.disk.lock();
        let fault = state.operation(self.epoch)?;
        match fault {
            Some(Fault::Error) => state.write(self.file, &bytes[..bytes.len() / 2], offset)?,
            _ => state.write(self.file, bytes, offset)?,
        }
        outcome(fault)
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.disk.lock();
        let fault = state.operation(self.epoch)?;
        let content = state.files.get_mut(&self.file).ok_or_else(failed)?;
        match fault {
            None => content.sync(),
            // The pages are clean now, and were never written.
            Some(Fault::Error) => content.dirty.clear(),
            Some(Fault::Stop) => {}
        }
        outcome(fault)
    }

    fn len(&self) -> io::Result<u64> {
        let state = self.disk.lock();
        state.check(self.epoch)?;
        Ok(state.files.get(&self.file).ok_or_else(failed)?.bytes.len() as u64)
    }
}
