//! What the node asks of its log beside replication's own store trait.

use crate::log::LogStore;
use crate::raft::AsyncRuntime;

/// A log's state and end.
pub trait LogGauge: Send + Sync + 'static {
    /// Bytes of segments on disk, the spare included.
    fn disk_bytes(&self) -> u64;
    /// Bytes of the entries after `index`.
    fn bytes_after(&self, index: u64) -> u64;
    /// The greatest index that may be purged so that at least `bytes` of entries remain; `None` when there are not so many.
    fn index_with_tail_of(&self, bytes: u64) -> Option<u64>;
    /// Do appends wait for room on the disk?
    fn disk_full(&self) -> bool;
    /// Bytes of accepted records that are not synced.
    fn unsynced_bytes(&self) -> u64;
    /// Why the log failed, if it did: one line.
    fn fault(&self) -> Option<String>;
    /// Ends the log: returns when what was accepted is written and synced. Blocks.
    fn close(&self);
}

impl<RT: AsyncRuntime> LogGauge for LogStore<RT> {
    fn disk_bytes(&self) -> u64 {
        self.disk_bytes()
    }

    fn bytes_after(&self, index: u64) -> u64 {
        self.bytes_after(index)
    }

    fn index_with_tail_of(&self, bytes: u64) -> Option<u64> {
        self.index_with_tail_of(bytes)
    }

    fn disk_full(&self) -> bool {
        self.disk_full()
    }

    fn unsynced_bytes(&self) -> u64 {
        self.unsynced_bytes()
    }

    fn fault(&self) -> Option<String> {
        self.fault()
    }

    fn close(&self) {
        self.close();
    }
}
