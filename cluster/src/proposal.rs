//! A command on its way to the log, and the bounded queue before the proposer.
//!
//! Model: whoever submits holds one end of a proposal, the proposer the other. It is *queued* until the proposer hands
//! it to replication, *handed off* from then on; replication may prove that it was not appended, which makes it queued
//! again. When the submitter's time is up, or it goes away, a queued proposal is *withdrawn*: it will never be appended,
//! so "unavailable" is a safe answer. The states change by compare-and-swap, so exactly one side wins.
//!
//! Invariants: proposals that wait or are in flight hold at most [`ROOM_BYTES`] bytes and `queue_max` pieces together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use bytes::Bytes;
use openraft::type_config::TypeConfigExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::machine::{Position, Stamp};
use crate::raft::{AsyncRuntime, TypeConfig};

/// Bytes that proposals may hold together.
const ROOM_BYTES: usize = 64 * 1024 * 1024;

const QUEUED: u8 = 0;
const HANDED_OFF: u8 = 1;
const WITHDRAWN: u8 = 2;

/// What became of a command that was applied.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The encoded reply; empty for a tick.
    pub reply: Bytes,
    /// Where the command stands.
    pub position: Position,
    /// The cluster clock after its entry.
    pub clock: Stamp,
    /// Term of the leader that ordered it.
    pub term: u64,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// Surely not appended: there was no room in the queue in time.
    NoRoom,
    /// Surely not appended: it was still queued when its time was up.
    Withdrawn,
    /// Surely not appended: the node stops.
    Stopped,
    /// Handed to replication; it may take effect.
    Unknown,
}

/// The proposer's end.
#[derive(Debug)]
pub struct Proposal {
    /// The encoded command; `None` for a tick.
    pub command: Option<Bytes>,
    weight: usize,
    state: Arc<AtomicU8>,
    answer: oneshot::Sender<Answer>,
    _room: OwnedSemaphorePermit,
}

impl Proposal {
    /// Bytes it takes in a batch, its length prefix aside, or that its reply may take beside.
    pub const fn weight(&self) -> usize {
        self.weight
    }

    /// Marks it as handed off; false if it was withdrawn and is to be dropped.
    pub fn hand_off(&self) -> bool {
        self.state.compare_exchange(QUEUED, HANDED_OFF, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// It was surely not appended: queued again, unless nobody waits for it any more.
    pub fn take_back(self) -> Option<Self> {
        if self.answer.is_closed() {
            return None;
        }
        self.state.store(QUEUED, Ordering::Release);
        Some(self)
    }

    /// Answers it. Nobody may be listening any more.
    pub fn answer(self, answer: Answer) {
        let _ = self.answer.send(answer);
    }
}

/// The submitter's end: withdraws the proposal when it is dropped.
struct Ticket(Arc<AtomicU8>);

impl Ticket {
    /// Withdraws the proposal; false if it is handed off.
    fn withdraw(&self) -> bool {
        self.0.compare_exchange(QUEUED, WITHDRAWN, Ordering::AcqRel, Ordering::Acquire) != Err(HANDED_OFF)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.withdraw();
    }
}

/// Where proposals are put in.
#[derive(Clone, Debug)]
pub struct Intake {
    queue: mpsc::UnboundedSender<Proposal>,
    room: Arc<Semaphore>,
    /// Room that the smallest proposal takes: bounds their number.
    least: usize,
}

/// An intake for at most `queue_max` proposals, and the queue behind it.
#[expect(clippy::disallowed_methods, reason = "the semaphore bounds the queue, by bytes and by number")]
pub fn channel(queue_max: usize) -> (Intake, mpsc::UnboundedReceiver<Proposal>) {
    let (queue, proposals) = mpsc::unbounded_channel();
    let least = ROOM_BYTES.div_ceil(queue_max.clamp(1, ROOM_BYTES));
    (Intake { queue, room: Arc::new(Semaphore::new(ROOM_BYTES)), least }, proposals)
}

impl Intake {
    /// Has `command` (or a tick) ordered and applied within `timeout`.
    ///
    /// # Errors
    /// [`NoAnswer`], which says whether it may still take effect.
    pub async fn propose<RT: AsyncRuntime>(
        &self,
        command: Option<Bytes>,
        reply_bytes: usize,
        timeout: Duration,
    ) -> Result<Answer, NoAnswer> {
        let deadline = TypeConfig::<RT>::now() + timeout;
        let weight = command.as_ref().map_or(0, Bytes::len).saturating_add(reply_bytes);
        let size = weight.clamp(self.least, ROOM_BYTES);
        let room = self.room::<RT>(size, deadline).await?;
        let state = Arc::new(AtomicU8::new(QUEUED));
        let ticket = Ticket(Arc::clone(&state));
        let (answer, mut answered) = oneshot::channel();
        if self.queue.send(Proposal { command, weight, state, answer, _room: room }).is_err() {
            return Err(NoAnswer::Stopped);
        }
        match TypeConfig::<RT>::timeout_at(deadline, &mut answered).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) if ticket.withdraw() => Err(NoAnswer::Stopped),
            Err(_) if ticket.withdraw() => Err(NoAnswer::Withdrawn),
            Ok(Err(_)) | Err(_) => Err(NoAnswer::Unknown),
        }
    }

    async fn room<RT: AsyncRuntime>(
        &self,
        size: usize,
        deadline: openraft::type_config::alias::InstantOf<TypeConfig<RT>>,
    ) -> Result<OwnedSemaphorePermit, NoAnswer> {
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        if let Ok(room) = Arc::clone(&self.room).try_acquire_many_owned(size) {
            return Ok(room);
        }
        let waiting = Arc::clone(&self.room).acquire_many_owned(size);
        match TypeConfig::<RT>::timeout_at(deadline, waiting).await {
            Ok(Ok(room)) => Ok(room),
            Ok(Err(_)) => Err(NoAnswer::Stopped),
            Err(_) => Err(NoAnswer::NoRoom),
        }
    }
}
