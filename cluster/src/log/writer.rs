//! The writer: takes what waits, writes it as one group, syncs, and only then tells anybody.
//!
//! A synchronous step machine over the disk, driven by one thread in production and by hand or by a task in tests and
//! in the simulator. Invariants: group n + 1 is written after group n's sync returned Ok; a group lies in one segment; a
//! segment is begun only when all before it is synced, and holds its first group only when the roll record that names it
//! is synced; a segment is removed, oldest first and one by one, only when no entry in it is needed and a younger
//! header is synced. After the first fault nothing is written any more.
//!
//! A full disk is no fault: entries that need a new segment wait, while anything else that is queued (a vote, a
//! truncation, a purge) may use the last spare, together with all that was queued before it: order is never changed,
//! since replication takes a synced vote as proof that everything before it is synced.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::LogOptions;
use super::queue::{Batch, Committed, Queue, Request};
use super::record::{self, Change, Place, RecordKind};
use super::recovery::Recovered;
use super::segment::{self, Segment};
use super::spare::{Spares, Stock};
use super::state::State;
use crate::config::Observer;
use crate::files::{self, Disk};
use crate::persisted::SegmentHeaderV1;
use crate::planted::{self, Bug};

/// Most bytes of a group, but for a single larger request.
const GROUP_BYTES: u64 = 4 * 1024 * 1024;
/// Room kept in each segment for the committed log id that rides in a group and for the roll record.
pub const RESERVE: u64 = 128;
/// How often a full disk is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Wrote and synced a group: step again.
    Wrote,
    /// Nothing waits.
    Idle,
    /// The next segment is being made: step again when woken.
    Coming,
    /// The disk is full, requests wait: step again with `retry` after a while.
    Full,
    /// A fault, or closed: it will not write again.
    Stopped,
}

/// A group whose requests were taken, until it is synced.
struct Group {
    requests: Vec<Request>,
    offsets: Vec<u64>,
    committed: Option<Committed>,
    bytes: Vec<u8>,
}

/// See the module's head.
pub struct Writer {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    options: LogOptions,
    observer: Arc<dyn Observer>,
    queue: Arc<Queue>,
    spares: Spares,
    /// The disk was full when last tried.
    full: bool,
    segment: Arc<Segment>,
    offset: u64,
    /// Number of the next group.
    group: u64,
    /// The log as written and synced.
    state: State,
    /// The segment after this one, whose roll record is not synced yet.
    next: Option<Arc<Segment>>,
    /// A group for which there was no space.
    carried: Option<Group>,
}

enum Gathered {
    Group(Group),
    Not(Step),
}

impl Writer {
    /// A writer that goes on where recovery ended.
    pub fn new(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        options: LogOptions,
        observer: Arc<dyn Observer>,
        queue: Arc<Queue>,
        spares: Spares,
        recovered: Recovered,
    ) -> Self {
        let Recovered { segment, offset, group, state, .. } = recovered;
        let (full, next, carried) = (false, None, None);
        let writer =
            Self { disk, dir, options, observer, queue, spares, full, segment, offset, group, state, next, carried };
        writer.publish(Step::Idle);
        writer
    }

    /// Steps until closed and drained, or a fault.
    pub fn run(mut self) {
        let mut retry = true;
        let mut tried = Instant::now();
        loop {
            let seen = self.queue.wakeups();
            let step = self.step(retry);
            if retry {
                tried = Instant::now();
            }
            match step {
                Step::Wrote => {}
                Step::Stopped => break,
                Step::Idle | Step::Coming | Step::Full => {
                    let patience = self.full.then(|| RETRY.saturating_sub(tried.elapsed()));
                    self.queue.wait(seen, patience);
                }
            }
            retry = self.full && tried.elapsed() >= RETRY;
        }
        self.spares.close();
    }

    /// Resolves when something was submitted, closed or made since `seen` ([`Writer::wakeups`]).
    pub fn woken(&self, seen: u64) -> impl Future<Output = ()> + Send + use<> {
        let queue = Arc::clone(&self.queue);
        std::future::poll_fn(move |context| queue.poll_wait(seen, context))
    }

    /// How often the writer was woken so far: take it before a step, give it to [`Writer::woken`] after.
    #[must_use]
    pub fn wakeups(&self) -> u64 {
        self.queue.wakeups()
    }

    /// Writes and syncs the next group, if anything waits. `retry`: try to get space again although the disk was full.
    pub fn step(&mut self, retry: bool) -> Step {
        if self.queue.lock().fault.is_some() {
            return Step::Stopped;
        }
        self.full &= !retry;
        // Looked at before the queue is: what was submitted before the close is still found in it.
        let closing = self.queue.lock().closing;
        let step = match self.try_step() {
            Ok(Step::Full) if closing => self.stop("the log was closed while the disk was full"),
            Ok(Step::Idle) if closing => Step::Stopped,
            Ok(step) => step,
            Err(error) => self.stop(&format!("log in {}: {error}", self.dir.display())),
        };
        self.publish(step);
        step
    }

    fn stop(&mut self, fault: &str) -> Step {
        self.queue.fail(fault);
        let requests = self.carried.take().map(|group| group.requests).unwrap_or_default();
        for done in requests.into_iter().filter_map(|request| request.done) {
            done(Err(io::Error::other(fault.to_owned())));
        }
        Step::Stopped
    }

    fn publish(&self, step: Step) {
        let mut inner = self.queue.lock();
        // While a spare is tried again nobody knows yet whether there is space.
        let full = step == Step::Full || (step == Step::Coming && inner.full);
        match (inner.full, full) {
            (false, true) => tracing::warn!("disk full under {}: writes wait until there is space", self.dir.display()),
            (true, false) => tracing::info!("space again under {}: writes go on", self.dir.display()),
            _ => {}
        }
        inner.full = full;
        let segments: u64 = inner.index.segments.iter().map(|segment| segment.capacity).sum();
        inner.disk_bytes = segments + self.spares.disk_bytes() + self.next.as_ref().map_or(0, |next| next.capacity);
    }

    fn try_step(&mut self) -> io::Result<Step> {
        // A second spare well before this segment is full: the last one is not for entries.
        let wanted = if self.offset > self.segment.capacity / 2 { 2 } else { 1 };
        self.stock(wanted)?;
        if self.carried.is_none() {
            match self.gather()? {
                Gathered::Group(group) => self.carried = Some(group),
                Gathered::Not(step) => return Ok(step),
            }
        }
        self.write_carried()
    }

    fn stock(&mut self, wanted: usize) -> io::Result<Stock> {
        if self.full {
            return Ok(Stock::Full);
        }
        let stock = self.spares.stock(wanted).map_err(|error| context("making a spare segment", &error))?;
        self.full = stock == Stock::Full;
        Ok(stock)
    }

    /// Takes requests that fit the current segment; begins the next one when the first does not.
    fn gather(&mut self) -> io::Result<Gathered> {
        loop {
            let room = self.segment.capacity.saturating_sub(self.offset + RESERVE);
            let batch = self.queue.take(room, GROUP_BYTES);
            match batch.blocked_bytes {
                Some(bytes) => match self.roll(bytes, batch.urgent)? {
                    Step::Wrote => {}
                    waits => return Ok(Gathered::Not(waits)),
                },
                None if batch.requests.is_empty() && batch.committed.is_none() => return Ok(Gathered::Not(Step::Idle)),
                None => return Ok(Gathered::Group(self.compose(batch)?)),
            }
        }
    }

    fn compose(&self, batch: Batch) -> io::Result<Group> {
        let Batch { requests, committed, .. } = batch;
        let mut bytes = Vec::with_capacity(requests.iter().map(|request| request.len() as usize).sum::<usize>() + 128);
        let mut offsets = Vec::with_capacity(requests.len());
        let count = requests.len();
        for (at, request) in requests.iter().enumerate() {
            let place = self.place(bytes.len());
            let last = committed.is_none() && at + 1 == count;
            offsets.push(place.offset);
            record::put(&mut bytes, place, request.kind, self.group, last, request.index, &request.payload);
        }
        if let Some((_, id)) = committed {
            let (kind, index, payload) = Change::Committed(id).encode().map_err(io::Error::other)?;
            let place = self.place(bytes.len());
            record::put(&mut bytes, place, kind, self.group, true, index, &payload);
        }
        Ok(Group { requests, offsets, committed, bytes })
    }

    fn place(&self, ahead: usize) -> Place {
        Place { sequence: self.segment.sequence, offset: self.offset + ahead as u64 }
    }

    /// Nothing of the group is told, and nothing after it is written, before its sync returned Ok.
    fn write_carried(&mut self) -> io::Result<Step> {
        let Some(group) = &self.carried else { return Ok(Step::Idle) };
        let name = segment::file_name(self.segment.sequence);
        let began = Instant::now();
        let synced_late = planted::has(Bug::AckBeforeSync);
        if synced_late {
            self.sync(&name)?; // the group before, which was told long ago
        }
        match self.segment.file.write_at(&group.bytes, self.offset) {
            Err(error) if files::is_full(&error) => {
                self.full = true;
                return Ok(Step::Full);
            }
            written => written.map_err(|error| context(&format!("writing {name}"), &error))?,
        }
        if !synced_late {
            self.sync(&name)?;
        }
        self.observer.synced(began.elapsed());
        let Some(group) = self.carried.take() else { return Ok(Step::Idle) };
        self.offset += group.bytes.len() as u64;
        self.group += 1;
        self.settle(group)?;
        Ok(Step::Wrote)
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        self.segment.file.sync_data().map_err(|error| context(&format!("syncing {name}"), &error))
    }

    /// A group is synced: lets readers find it on disk, and tells who waits, in order.
    fn settle(&mut self, group: Group) -> io::Result<()> {
        let mut inner = self.queue.lock();
        let (mut bytes, mut number, mut shrunk) = (0, None, false);
        for (request, offset) in group.requests.iter().zip(&group.offsets) {
            self.state.apply(&request.change).map_err(io::Error::other)?;
            (bytes, number) = (bytes + request.len(), Some(request.number));
            match &request.change {
                Change::Append(_) => {
                    let place = Place { sequence: self.segment.sequence, offset: *offset };
                    inner.index.written(request.index, place, request.len(), request.end);
                }
                Change::Vote(vote) => inner.vote = Some(*vote),
                Change::Truncate(_) | Change::Purge(_) => {
                    inner.index.shrunk(&self.state);
                    shrunk = true;
                }
                Change::Committed(_) | Change::Roll(_) => {}
            }
        }
        drop(inner);
        if let Some((_, id)) = group.committed {
            self.state.committed = id;
        }
        let waiting = self.queue.release(number, bytes, self.options.cached_bytes_max);
        group.requests.into_iter().filter_map(|request| request.done).for_each(|done| done(Ok(())));
        waiting.into_iter().for_each(|wake| wake());
        if shrunk { self.remove_unneeded() } else { Ok(()) }
    }

    /// Begins the next segment, for a request of so many bytes; see the module's head for who may have the last spare.
    fn roll(&mut self, bytes: u64, urgent: bool) -> io::Result<Step> {
        if self.next.is_none() {
            let keep = usize::from(!urgent);
            if self.stock(keep + 1)? == Stock::Coming && (self.spares.ready() <= keep) {
                return Ok(Step::Coming);
            }
            let Some(spare) = self.spare(keep, segment::HEADER + bytes + RESERVE)? else { return Ok(Step::Full) };
            let header = SegmentHeaderV1 {
                sequence: self.segment.sequence + 1,
                previous_end: self.offset,
                group: self.group + 1,
                state: self.state,
            };
            match segment::found(&*self.disk, &self.dir, &spare, &header) {
                Ok(next) => self.next = Some(Arc::new(next)),
                Err(error) if files::is_full(&error) => {
                    self.full = true;
                    self.spares.give_back(spare);
                    return Ok(Step::Full);
                }
                Err(error) => return Err(context("beginning a segment", &error)),
            }
        }
        self.write_roll()
    }

    /// A spare of at least `bytes`, if one is left beyond `keep`: a request larger than a segment gets one of its own.
    fn spare(&mut self, keep: usize, bytes: u64) -> io::Result<Option<PathBuf>> {
        if bytes <= self.options.segment_bytes {
            return Ok(self.spares.take(keep));
        }
        if self.full {
            return Ok(None);
        }
        let made = self.spares.make_sized(bytes).map_err(|error| context("making a large segment", &error))?;
        self.full = made.is_none();
        Ok(made)
    }

    /// The roll record is a group of its own, the segment's last.
    fn write_roll(&mut self) -> io::Result<Step> {
        let Some(next) = &self.next else { return Ok(Step::Idle) };
        let mut bytes = Vec::new();
        record::put(&mut bytes, self.place(0), RecordKind::Roll, self.group, true, next.sequence, &[]);
        match self.segment.file.write_at(&bytes, self.offset) {
            Err(error) if files::is_full(&error) => {
                self.full = true;
                return Ok(Step::Full);
            }
            written => written.map_err(|error| context("writing a roll record", &error))?,
        }
        self.segment.file.sync_data().map_err(|error| context("syncing a roll record", &error))?;
        let Some(next) = self.next.take() else { return Ok(Step::Idle) };
        self.queue.lock().index.segments.push_back(Arc::clone(&next));
        self.segment = next;
        self.offset = segment::HEADER;
        self.group += 1;
        Ok(Step::Wrote)
    }

    /// Removes segments without a needed entry, oldest first, each durably before the next: a crash leaves no gap.
    ///
    /// # Errors
    /// As of the disk.
    pub fn remove_unneeded(&mut self) -> io::Result<()> {
        loop {
            let mut inner = self.queue.lock();
            let needed = inner.index.oldest_needed().unwrap_or(self.segment.sequence);
            let Some(oldest) = inner.index.segments.front().filter(|oldest| oldest.sequence < needed) else {
                return Ok(());
            };
            let sequence = oldest.sequence;
            inner.index.segments.pop_front();
            drop(inner);
            self.disk
                .remove(&segment::path(&self.dir, sequence))
                .and_then(|()| self.disk.sync_dir(&self.dir))
                .map_err(|error| context(&format!("removing {}", segment::file_name(sequence)), &error))?;
            self.full = false;
        }
    }

    /// Where the log is.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

/// Says what failed; a full disk stays one only for callers that wait for space.
fn context(what: &str, error: &io::Error) -> io::Error {
    io::Error::other(format!("{what} failed: {error}; the node must stop"))
}
