//! The log as openraft sees it. Only `save_vote` waits for the disk; an append waits only while too many bytes are not
//! synced. Everything here is generic over the runtime; nothing below it knows of one.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ops::{Bound, Range, RangeBounds};
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::{Stream, stream};
use openraft::async_runtime::OneshotSender;
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use openraft::{LogState, OptionalSend, RaftLogReader};

use super::index::Source;
use super::record::Change;
use super::spare::Making;
use super::{LogOptions, Open, Writer};
use crate::config::Observer;
use crate::error::OpenError;
use crate::files::Disk;
use crate::persisted::{EntryV2, LogIdV1, VoteV1};
use crate::raft::{AsyncRuntime, Entry, LogId, TypeConfig, Vote};

/// Bytes of entries read at once for a peer.
const READ_BYTES: u64 = 4 * 1024 * 1024;

/// A handle to one open log. Clones are handles to the same log; the last to go closes it.
pub struct LogStore<RT> {
    open: Arc<Open>,
    _runtime: PhantomData<fn() -> RT>,
}

impl<RT> Clone for LogStore<RT> {
    fn clone(&self) -> Self {
        Self { open: Arc::clone(&self.open), _runtime: PhantomData }
    }
}

impl<RT> fmt::Debug for LogStore<RT> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogStore")
    }
}

impl<RT: AsyncRuntime> LogStore<RT> {
    /// Opens (or founds) the log in `dir`, whose parent must exist, and starts its writer on a thread of its own.
    ///
    /// # Errors
    /// [`OpenError`]: `Damaged` names file and byte and says how to go on; a refused log is unchanged on disk.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        options: LogOptions,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, OpenError> {
        let (open, writer) = Open::new(disk, dir, options, observer, Making::Behind)?;
        Ok(Self { open: Arc::new(open.start(writer)?), _runtime: PhantomData })
    }

    /// As [`LogStore::open`], but without threads: the caller drives the writer, by hand or from a task.
    ///
    /// # Errors
    /// As [`LogStore::open`].
    pub fn open_stepped(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        options: LogOptions,
        observer: Arc<dyn Observer>,
    ) -> Result<(Self, Writer), OpenError> {
        let (open, writer) = Open::new(disk, dir, options, observer, Making::Inline)?;
        Ok((Self { open: Arc::new(open), _runtime: PhantomData }, writer))
    }

    /// Bytes of segments on disk, spares included.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        self.open.queue.lock().disk_bytes
    }

    /// Log bytes of the entries with a greater index.
    #[must_use]
    pub fn bytes_after(&self, index: u64) -> u64 {
        self.open.queue.lock().index.bytes_after(index)
    }

    /// The greatest index that may be purged so that at least `bytes` of entries remain; `None` when there are not so many.
    #[must_use]
    pub fn index_with_tail_of(&self, bytes: u64) -> Option<u64> {
        self.open.queue.lock().index.index_with_tail_of(bytes)
    }

    /// Do requests wait because the disk is full? Ends by itself once there is space.
    #[must_use]
    pub fn disk_full(&self) -> bool {
        self.open.queue.lock().full
    }

    /// Bytes of accepted records that are not synced.
    #[must_use]
    pub fn unsynced_bytes(&self) -> u64 {
        self.open.queue.unsynced_bytes()
    }

    /// The first failed write or sync, one line. After it nothing is accepted, and the node must stop.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        self.open.queue.lock().fault.clone()
    }

    /// Accepts nothing more; returns when everything submitted is synced (or refused, on a full disk) and the writer's
    /// thread has ended. Blocks.
    pub fn close(&self) {
        self.open.close();
    }

    fn sources(&self, range: Range<u64>, limit: u64) -> io::Result<Vec<Source>> {
        self.open.queue.lock().index.sources(range, limit)
    }

    async fn wait_for_room(&self, bytes: u64) {
        loop {
            let (woken, waiting) = TypeConfig::<RT>::oneshot::<()>();
            let wake = move || {
                // Nobody waits any more when the caller was dropped.
                let _ = woken.send(());
            };
            if self.open.queue.has_room(bytes, self.open.options.unsynced_bytes_max, wake) {
                return;
            }
            // A dropped sender asks again just as well.
            let _ = waiting.await;
        }
    }
}

fn load<RT: AsyncRuntime>(source: Source) -> io::Result<Entry<RT>> {
    Entry::<RT>::try_from(source.load()?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn indexes(range: &impl RangeBounds<u64>) -> Range<u64> {
    let start = match range.start_bound() {
        Bound::Included(index) => *index,
        Bound::Excluded(index) => index.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(index) => index.saturating_add(1),
        Bound::Excluded(index) => *index,
        Bound::Unbounded => u64::MAX,
    };
    start..end
}

impl<RT: AsyncRuntime> RaftLogReader<TypeConfig<RT>> for LogStore<RT> {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + fmt::Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry<RT>>, io::Error> {
        self.sources(indexes(&range), u64::MAX)?.into_iter().map(load::<RT>).collect()
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<RT>>, io::Error> {
        let vote = self.open.queue.lock().vote;
        vote.map(Vote::<RT>::try_from).transpose().map_err(io::Error::other)
    }

    /// At most about 4 MiB. Empty when `start` was purged meanwhile: replication takes that as a heartbeat, while an answer
    /// that began later would leave a hole in the peer's log.
    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry<RT>>, io::Error> {
        let sources = {
            let inner = self.open.queue.lock();
            if start < inner.index.state.first { Vec::new() } else { inner.index.sources(start..end, READ_BYTES)? }
        };
        sources.into_iter().map(load::<RT>).collect()
    }

    /// Which entries there are is decided at once; each is read when it is asked for.
    async fn entries_stream<RB>(&mut self, range: RB) -> impl Stream<Item = Result<Entry<RT>, io::Error>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + fmt::Debug + OptionalSend,
    {
        let items: Vec<io::Result<Source>> = match self.sources(indexes(&range), u64::MAX) {
            Ok(sources) => sources.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        };
        stream::iter(items.into_iter().map(|source| source.and_then(load::<RT>)))
    }
}

impl<RT: AsyncRuntime> RaftLogStorage<TypeConfig<RT>> for LogStore<RT> {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig<RT>>, io::Error> {
        let state = self.open.queue.lock().index.state;
        let id = |id: Option<LogIdV1>| id.map(LogId::<RT>::from);
        Ok(LogState { last_purged_log_id: id(state.purged), last_log_id: id(state.last) })
    }

    async fn get_log_reader(&mut self) -> Self::LogReader {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<RT>) -> Result<(), io::Error> {
        let (told, result) = TypeConfig::<RT>::oneshot::<io::Result<()>>();
        let done = move |synced| {
            // Nobody waits any more when the caller was dropped.
            let _ = told.send(synced);
        };
        self.open.queue.submit(Change::Vote(VoteV1::from(vote)), Some(Box::new(done)))?;
        result.await.map_err(|_| io::Error::other("the log's writer ended"))?
    }

    async fn save_committed(&mut self, committed: Option<LogId<RT>>) -> Result<(), io::Error> {
        self.open.queue.committed(committed.as_ref().map(LogIdV1::from))
    }

    async fn read_committed(&mut self) -> Result<Option<LogId<RT>>, io::Error> {
        Ok(self.open.queue.lock().index.state.committed.map(LogId::<RT>::from))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig<RT>>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry<RT>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let requests = super::queue::prepare(entries.into_iter().map(|entry| Change::Append(EntryV2::from(&entry))))?;
        self.wait_for_room(requests.iter().map(super::queue::Request::len).sum()).await;
        self.open.queue.submit_prepared(requests, Some(Box::new(move |synced| callback.io_completed(synced))))
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId<RT>>) -> Result<(), io::Error> {
        self.open.queue.submit(Change::Truncate(last_log_id.as_ref().map(LogIdV1::from)), None)
    }

    async fn purge(&mut self, log_id: LogId<RT>) -> Result<(), io::Error> {
        self.open.queue.submit(Change::Purge(LogIdV1::from(&log_id)), None)
    }
}
