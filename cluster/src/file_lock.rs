//! A file that one holder at a time has locked, by flock: one process among others, one part of a process among its own.
//!
//! Model: the kernel's lock belongs to the open file, not to who opened it, and lasts until it is undone or the last
//! copy of the handle is closed. A process that another thread is just starting has copies of all handles until it is a
//! program of its own: closing alone would leave the file locked for that long. So the end of a [`FileLock`] undoes it.
//! A process that ends in any way lets go of its locks.
//!
//! Not promised: anything on a file system without flock (some of the network).

use std::fs::{File, TryLockError};

/// A locked file; unlocked when dropped.
#[derive(Debug)]
pub struct FileLock(File);

impl FileLock {
    /// Locks the file, at once or not at all.
    ///
    /// # Errors
    /// `WouldBlock`: another has it; else what the system says.
    pub fn try_of(file: File) -> Result<Self, TryLockError> {
        #[expect(clippy::disallowed_methods, reason = "here it is undone")]
        file.try_lock()?;
        Ok(Self(file))
    }

    /// The file, to be written while it is locked.
    pub fn file(&mut self) -> &mut File {
        &mut self.0
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // It fails for a file that is not locked, if at all.
        drop(self.0.unlock());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn its_end_is_the_lock_s_also_where_a_copy_of_the_handle_lives_on() {
        let dir = tempfile::TempDir::new().unwrap();
        let open = || File::create(dir.path().join("LOCK")).unwrap();
        let held = FileLock::try_of(open()).unwrap();
        // What a process that is being started has of it.
        let copy = held.0.try_clone().unwrap();
        assert!(matches!(FileLock::try_of(open()), Err(TryLockError::WouldBlock)));
        drop(held);
        drop(FileLock::try_of(open()).unwrap());
        drop(copy);
    }
}
