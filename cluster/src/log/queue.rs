//! What the log's users and its writer share: the index, and the requests on their way to disk, in one order.
//!
//! Every request is seen by readers at once and written in the order it came. `committed` alone is not queued: it is told
//! before every apply, so only the newest is kept, and it rides in the next group that has all it refers to.

use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::index::Index;
use super::record::{self, Change, RecordKind};
use crate::persisted::{LogIdV1, VoteV1};

/// Told once what became of a request.
pub type Done = Box<dyn FnOnce(io::Result<()>) + Send>;

/// A change on its way to disk.
pub struct Request {
    /// What changes.
    pub change: Change,
    /// Its record.
    pub kind: RecordKind,
    /// Its record.
    pub index: u64,
    /// Its record.
    pub payload: Vec<u8>,
    /// Counts requests from 1.
    pub number: u64,
    /// `end` of the last entry after it: see [`Index`].
    pub end: u64,
    /// Told when it is synced.
    pub done: Option<Done>,
}

impl Request {
    /// Bytes it takes in a segment.
    pub fn len(&self) -> u64 {
        (record::HEAD + self.payload.len()) as u64
    }

    fn is_append(&self) -> bool {
        self.kind == RecordKind::Append
    }
}

/// Encodes changes.
///
/// # Errors
/// `InvalidInput` for entries that are not consecutive or a record that is too large.
pub fn prepare(changes: impl IntoIterator<Item = Change>) -> io::Result<Vec<Request>> {
    let mut requests: Vec<Request> = Vec::new();
    for change in changes {
        let (kind, index, payload) = change.encode().map_err(io::Error::other)?;
        let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
        if payload.len() > record::PAYLOAD_MAX {
            let (bytes, max) = (payload.len(), record::PAYLOAD_MAX);
            return Err(invalid(format!("a log record of {bytes} bytes; at most {max} fit")));
        }
        if requests.last().is_some_and(|last| last.index.saturating_add(1) != index) {
            return Err(invalid(format!("entry {index} of an append does not follow the one before it")));
        }
        requests.push(Request { change, kind, index, payload, number: 0, end: 0, done: None });
    }
    Ok(requests)
}

/// A committed log id not written yet, and the number of the request before it.
pub type Committed = (u64, Option<LogIdV1>);

/// What the writer takes for one group.
#[derive(Default)]
pub struct Batch {
    /// In order.
    pub requests: Vec<Request>,
    /// To be written after them.
    pub committed: Option<Committed>,
    /// Bytes of the request that did not fit, when it is the first.
    pub blocked_bytes: Option<u64>,
    /// Something other than appends waits.
    pub urgent: bool,
}

/// See the module's head.
pub struct Inner {
    /// What readers see.
    pub index: Index,
    /// The last vote that is synced.
    pub vote: Option<VoteV1>,
    /// Number of the last synced request.
    pub synced: u64,
    /// Appends wait for space.
    pub full: bool,
    /// Bytes of segments and spares.
    pub disk_bytes: u64,
    /// The first fault, one line.
    pub fault: Option<String>,
    /// Nothing more is accepted; the writer ends when all is written.
    pub closing: bool,
    queue: VecDeque<Request>,
    committed: Option<Committed>,
    submitted: u64,
    urgent: usize,
    unsynced_bytes: u64,
    waiting: Vec<Box<dyn FnOnce() + Send>>,
    wakeups: u64,
    waker: Option<Waker>,
}

/// See the module's head.
pub struct Queue {
    inner: Mutex<Inner>,
    changed: Condvar,
}

impl Queue {
    /// An empty queue over what recovery found.
    pub fn new(index: Index) -> Self {
        let inner = Inner {
            vote: index.state.vote,
            index,
            synced: 0,
            full: false,
            disk_bytes: 0,
            fault: None,
            closing: false,
            queue: VecDeque::new(),
            committed: None,
            submitted: 0,
            urgent: 0,
            unsynced_bytes: 0,
            waiting: Vec::new(),
            wakeups: 0,
            waker: None,
        };
        Self { inner: Mutex::new(inner), changed: Condvar::new() }
    }

    /// No code panics while it holds the lock; were it to, what it guards is still in order.
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Queue::submit_prepared`].
    ///
    /// # Errors
    /// As [`Queue::submit_prepared`] and [`prepare`].
    pub fn submit(&self, change: Change, done: Option<Done>) -> io::Result<()> {
        self.submit_prepared(prepare([change])?, done)
    }

    /// Submits requests, in order; `done` is told when the last, an entry or a vote, is synced.
    ///
    /// # Errors
    /// After a fault, after closing, for an entry that would leave a hole. Nothing was submitted then.
    pub fn submit_prepared(&self, mut requests: Vec<Request>, done: Option<Done>) -> io::Result<()> {
        match requests.last_mut() {
            Some(last) => last.done = done,
            None => done.into_iter().for_each(|done| done(Ok(()))),
        }
        let mut inner = self.lock();
        inner.refusal()?;
        for request in requests {
            inner.enqueue(request)?;
        }
        self.wake(inner);
        Ok(())
    }

    /// Keeps the newest committed log id for the next group.
    ///
    /// # Errors
    /// After a fault or closing.
    pub fn committed(&self, id: Option<LogIdV1>) -> io::Result<()> {
        let mut inner = self.lock();
        inner.refusal()?;
        if inner.index.state.committed != id {
            inner.index.state.committed = id;
            inner.committed = Some((inner.submitted, id));
        }
        Ok(())
    }

    /// May `bytes` more be submitted, or are too many unsynced? Then `wake` is called when to ask again.
    pub fn has_room(&self, bytes: u64, max: u64, wake: impl FnOnce() + Send + 'static) -> bool {
        let mut inner = self.lock();
        if inner.unsynced_bytes == 0 || inner.unsynced_bytes + bytes <= max || inner.refusal().is_err() {
            return true;
        }
        inner.waiting.push(Box::new(wake));
        false
    }

    /// Bytes of requests that are not synced.
    pub fn unsynced_bytes(&self) -> u64 {
        self.lock().unsynced_bytes
    }

    /// Takes the next requests that fit in `room` bytes, at most `most` unless one alone is larger.
    pub fn take(&self, room: u64, most: u64) -> Batch {
        let mut inner = self.lock();
        let mut batch = Batch { urgent: inner.urgent > 0, ..Batch::default() };
        let mut bytes = 0;
        while let Some(request) = inner.queue.front() {
            let length = request.len();
            if bytes + length > room || (bytes > 0 && bytes + length > most) {
                batch.blocked_bytes = Some(length).filter(|_| bytes == 0);
                break;
            }
            bytes += length;
            let Some(request) = inner.queue.pop_front() else { break };
            inner.urgent -= usize::from(!request.is_append());
            batch.requests.push(request);
        }
        let taken = batch.requests.last().map_or(inner.synced, |request| request.number);
        let worth_a_group = !batch.requests.is_empty() || (inner.closing && batch.blocked_bytes.is_none());
        if worth_a_group && inner.committed.is_some_and(|(after, _)| after <= taken) {
            batch.committed = inner.committed.take();
        }
        batch
    }

    /// The requests up to `number`, `bytes` in all, are synced: lets those go on who waited for room.
    pub fn release(&self, number: Option<u64>, bytes: u64, keep_bytes: u64) -> Vec<Box<dyn FnOnce() + Send>> {
        let mut inner = self.lock();
        inner.synced = number.unwrap_or(inner.synced);
        inner.unsynced_bytes -= bytes;
        inner.full = false;
        let synced = inner.synced;
        inner.index.evict(synced, keep_bytes);
        std::mem::take(&mut inner.waiting)
    }

    /// Remembers the first fault, and tells all who wait that nothing more will be written.
    pub fn fail(&self, fault: &str) {
        let mut inner = self.lock();
        let fault = inner.fault.get_or_insert_with(|| fault.to_owned()).clone();
        let (queue, waiting) = (std::mem::take(&mut inner.queue), std::mem::take(&mut inner.waiting));
        inner.urgent = 0;
        self.wake(inner);
        queue
            .into_iter()
            .filter_map(|request| request.done)
            .for_each(|done| done(Err(io::Error::other(fault.clone()))));
        waiting.into_iter().for_each(|wake| wake());
    }

    /// Accepts nothing more.
    pub fn close(&self) {
        let mut inner = self.lock();
        inner.closing = true;
        let waiting = std::mem::take(&mut inner.waiting);
        self.wake(inner);
        waiting.into_iter().for_each(|wake| wake());
    }

    /// Lets the writer look again.
    pub fn notify(&self) {
        self.wake(self.lock());
    }

    fn wake(&self, mut inner: MutexGuard<'_, Inner>) {
        inner.wakeups += 1;
        let waker = inner.waker.take();
        drop(inner);
        self.changed.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// How often the writer was woken: taken before it looks, given to [`Queue::wait`] after.
    pub fn wakeups(&self) -> u64 {
        self.lock().wakeups
    }

    /// Blocks until woken since `seen`, or for `timeout`.
    pub fn wait(&self, seen: u64, timeout: Option<Duration>) {
        let inner = self.lock();
        let asleep = |inner: &mut Inner| inner.wakeups == seen;
        match timeout {
            None => drop(self.changed.wait_while(inner, asleep)),
            Some(timeout) => drop(self.changed.wait_timeout_while(inner, timeout, asleep)),
        }
    }

    /// As [`Queue::wait`], for a task: ready once woken since `seen`.
    pub fn poll_wait(&self, seen: u64, context: &Context<'_>) -> Poll<()> {
        let mut inner = self.lock();
        if inner.wakeups != seen {
            return Poll::Ready(());
        }
        inner.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Inner {
    /// A truncation or purge that changes nothing is not written.
    fn enqueue(&mut self, mut request: Request) -> io::Result<()> {
        let before = self.index.state;
        request.number = self.submitted + 1;
        let end = self.index.submit(&request.change, request.len(), request.number);
        request.end = end.map_err(|hole| io::Error::new(io::ErrorKind::InvalidInput, hole))?;
        if self.index.state == before && matches!(request.kind, RecordKind::Truncate | RecordKind::Purge) {
            return Ok(());
        }
        self.submitted = request.number;
        self.unsynced_bytes += request.len();
        self.urgent += usize::from(!request.is_append());
        self.queue.push_back(request);
        Ok(())
    }

    fn refusal(&self) -> io::Result<()> {
        match &self.fault {
            Some(fault) => Err(io::Error::other(fault.clone())),
            None if self.closing => Err(io::Error::other("the log is closed")),
            None => Ok(()),
        }
    }
}
