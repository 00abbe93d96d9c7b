//! Snapshots in memory, for the simulator: clones share them, so they outlive a node that "crashes".

use std::io::{self, Cursor, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Head, SnapshotError, SnapshotStore, Stored};

type Kept = Option<(Stored, Arc<[u8]>)>;

/// Keeps the newest snapshot in memory. Durable at once: a write that fails leaves no trace.
#[derive(Clone, Debug, Default)]
pub struct MemorySnapshots {
    newest: Arc<Mutex<Kept>>,
}

impl MemorySnapshots {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SnapshotStore for MemorySnapshots {
    fn write(
        &self,
        head: Head,
        save: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> Result<Stored, SnapshotError> {
        let mut newest = self.lock();
        if let Some((stored, _)) = newest.as_ref().filter(|(stored, _)| stored.head.reaches(&head)) {
            return Ok(stored.clone());
        }
        let mut bytes = Vec::new();
        save(&mut bytes).map_err(SnapshotError::Save)?;
        let length = bytes.len() as u64;
        let stored = Stored { head, bytes: length, disk_bytes: length };
        *newest = Some((stored.clone(), bytes.into()));
        Ok(stored)
    }

    fn newest(&self) -> Result<Option<Stored>, SnapshotError> {
        Ok(self.lock().as_ref().map(|(stored, _)| stored.clone()))
    }

    fn open(&self, stored: &Stored) -> Result<Box<dyn Read + Send>, SnapshotError> {
        match self.lock().as_ref() {
            Some((newest, bytes)) if newest.head.last == stored.head.last => Ok(Box::new(Cursor::new(bytes.clone()))),
            _ => Err(stored.gone()),
        }
    }
}
