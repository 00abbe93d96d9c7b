//! A log in memory with a stuck and a failing disk, for tests that care about time and not about files.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};

use crate::entry;
use crate::log_gauge::LogGauge;
use crate::raft::{AsyncRuntime, Batch, Entry, LogId, PlainLogId, TypeConfig, Vote};

/// What outlives a crash, and the switches. Clones share it.
pub struct MemoryLog<RT: AsyncRuntime>(Arc<Mutex<Inner<RT>>>);

struct Inner<RT: AsyncRuntime> {
    entries: BTreeMap<u64, Entry<RT>>,
    vote: Option<Vote<RT>>,
    committed: Option<LogId<RT>>,
    purged: Option<LogId<RT>>,
    stuck: bool,
    waiting: Vec<IOFlushed<TypeConfig<RT>>>,
    /// Bytes of entries whose confirmation is held back.
    unsynced: u64,
    fault: Option<String>,
    full: bool,
}

impl<RT: AsyncRuntime> Clone for MemoryLog<RT> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<RT: AsyncRuntime> Default for MemoryLog<RT> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Inner {
            entries: BTreeMap::new(),
            vote: None,
            committed: None,
            purged: None,
            stuck: false,
            waiting: Vec::new(),
            unsynced: 0,
            fault: None,
            full: false,
        })))
    }
}

impl<RT: AsyncRuntime> MemoryLog<RT> {
    fn lock(&self) -> MutexGuard<'_, Inner<RT>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of what is stored, cut off from whoever still writes to this one.
    pub fn crash(&self) -> Self {
        let inner = self.lock();
        Self(Arc::new(Mutex::new(Inner {
            entries: inner.entries.clone(),
            vote: inner.vote,
            committed: inner.committed,
            purged: inner.purged,
            stuck: false,
            waiting: Vec::new(),
            unsynced: 0,
            fault: None,
            full: false,
        })))
    }

    /// Holds back (or lets go) every confirmation of a write.
    pub fn set_stuck(&self, stuck: bool) {
        let waiting = {
            let mut inner = self.lock();
            inner.stuck = stuck;
            if stuck {
                Vec::new()
            } else {
                inner.unsynced = 0;
                std::mem::take(&mut inner.waiting)
            }
        };
        waiting.into_iter().for_each(|flushed| flushed.io_completed(Ok(())));
    }

    /// Says that the disk is full; appends wait.
    pub fn set_full(&self, full: bool) {
        self.lock().full = full;
        self.set_stuck(full);
    }

    /// Every further append fails.
    pub fn break_down(&self, what: &str) {
        self.lock().fault = Some(what.to_owned());
    }

    /// The stored batches, in order.
    pub fn batches(&self) -> Vec<Batch> {
        let inner = self.lock();
        let batches = inner.entries.values().filter_map(|entry| entry.payload.as_normal().cloned());
        // Not the orders of the cluster's own.
        batches.filter(|batch| entry::decode(&batch.0).is_ok()).collect()
    }

    /// Replaces the batch at the log's end.
    pub fn damage_last(&self, bytes: &'static [u8]) {
        let mut inner = self.lock();
        if let Some(mut last) = inner.entries.last_entry() {
            last.get_mut().payload = openraft::EntryPayload::Normal(Batch(bytes::Bytes::from_static(bytes)));
        }
    }

    fn size(entry: &Entry<RT>) -> u64 {
        entry.payload.as_normal().map_or(0, |batch| batch.0.len() as u64) + 32
    }
}

trait AsNormal {
    fn as_normal(&self) -> Option<&Batch>;
}

impl AsNormal for openraft::EntryPayload<Batch, u64, crate::raft::Member> {
    fn as_normal(&self) -> Option<&Batch> {
        match self {
            Self::Normal(batch) => Some(batch),
            Self::Blank | Self::Membership(_) => None,
        }
    }
}

impl<RT: AsyncRuntime> LogGauge for MemoryLog<RT> {
    fn disk_bytes(&self) -> u64 {
        self.bytes_after(0)
    }

    fn bytes_after(&self, index: u64) -> u64 {
        self.lock().entries.range(index + 1..).map(|(_, entry)| Self::size(entry)).sum()
    }

    fn index_with_tail_of(&self, bytes: u64) -> Option<u64> {
        let mut tail = 0;
        self.lock().entries.iter().rev().find_map(|(index, entry)| {
            tail += Self::size(entry);
            (tail >= bytes).then(|| index.saturating_sub(1))
        })
    }

    fn disk_full(&self) -> bool {
        self.lock().full
    }

    fn unsynced_bytes(&self) -> u64 {
        self.lock().unsynced
    }

    fn fault(&self) -> Option<String> {
        self.lock().fault.clone()
    }

    fn close(&self) {}
}

impl<RT: AsyncRuntime> RaftLogReader<TypeConfig<RT>> for MemoryLog<RT> {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry<RT>>, io::Error> {
        Ok(self.lock().entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<RT>>, io::Error> {
        Ok(self.lock().vote)
    }
}

impl<RT: AsyncRuntime> RaftLogStorage<TypeConfig<RT>> for MemoryLog<RT> {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig<RT>>, io::Error> {
        let inner = self.lock();
        let last = inner.entries.values().next_back().map(|entry| entry.log_id).or(inner.purged);
        Ok(LogState { last_purged_log_id: inner.purged, last_log_id: last })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<RT>) -> Result<(), io::Error> {
        self.lock().vote = Some(*vote);
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<PlainLogId>) -> Result<(), io::Error> {
        self.lock().committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<PlainLogId>, io::Error> {
        Ok(self.lock().committed)
    }

    async fn append<I>(&mut self, entries: I, flushed: IOFlushed<TypeConfig<RT>>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry<RT>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut inner = self.lock();
        if let Some(fault) = &inner.fault {
            return Err(io::Error::other(fault.clone()));
        }
        let before = inner.entries.last_key_value().map_or(0, |(index, _)| *index);
        inner.entries.extend(entries.into_iter().map(|entry| (entry.log_id.index, entry)));
        if inner.stuck {
            inner.unsynced += inner.entries.range(before + 1..).map(|(_, entry)| Self::size(entry)).sum::<u64>();
            inner.waiting.push(flushed);
        } else {
            drop(inner);
            flushed.io_completed(Ok(()));
        }
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<PlainLogId>) -> Result<(), io::Error> {
        self.lock().entries.split_off(&last.map_or(0, |id| id.index + 1));
        Ok(())
    }

    async fn purge(&mut self, upto: PlainLogId) -> Result<(), io::Error> {
        let mut inner = self.lock();
        inner.entries = inner.entries.split_off(&(upto.index + 1));
        inner.purged = Some(upto);
        Ok(())
    }
}
