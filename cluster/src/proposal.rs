//! A command on its way to the log, and the bounded queue before the proposer.
//!
//! Model: whoever submits holds one end of a proposal, the proposer the other. It is *queued* until the proposer hands
//! it to replication or to the leader, *handed off* from then on; a proof that it was not appended makes it queued
//! again. When the submitter's time is up, or it goes away, a queued proposal is *withdrawn*: it will never be appended,
//! so "unavailable" is a safe answer. The states change by compare-and-swap, so exactly one side wins. A proposer that
//! drops a queued proposal says the same: it will never be appended.
//!
//! Invariants: proposals that wait or are in flight hold at most [`ROOM_BYTES`] bytes and `queue_max` pieces together,
//! those of peers included.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use bytes::Bytes;
use openraft::async_runtime::Instant;
use openraft::type_config::TypeConfigExt;
use openraft::type_config::alias::InstantOf;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::machine::{Position, Stamp};
use crate::raft::{AsyncRuntime, TypeConfig};

/// Bytes that proposals may hold together.
const ROOM_BYTES: usize = 64 * 1024 * 1024;

/// With less time left than this, what was not ordered is not tried again: its answer would come too late, and leave a
/// submitter in doubt who may be told for sure.
const WORTH_A_TRY: Duration = Duration::from_millis(10);

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// Surely not appended: there was no room in the queue in time.
    NoRoom,
    /// Surely not appended: it was still queued when its time was up.
    Withdrawn,
    /// Surely not appended: the proposer let go of it, since the node stops or it does not lead any more.
    Stopped,
    /// Surely not appended, and never will be: the leader says why.
    Refused(String),
    /// Handed to replication; it may take effect.
    Unknown,
}

/// Whose proposal it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A submitter on this node.
    Here,
    /// A follower that forwarded it: it goes no further.
    Peer,
}

/// The proposer's end.
pub struct Proposal<RT: AsyncRuntime> {
    /// The encoded command; `None` for a tick.
    pub command: Option<Bytes>,
    /// Bytes its reply may take.
    pub reply_bytes: usize,
    /// Until when it waits for its turn.
    deadline: InstantOf<TypeConfig<RT>>,
    origin: Origin,
    state: Arc<AtomicU8>,
    answer: oneshot::Sender<Result<Answer, String>>,
    _room: OwnedSemaphorePermit,
}

impl<RT: AsyncRuntime> Proposal<RT> {
    /// Bytes it takes in a batch, its length prefix aside, or that its reply may take beside.
    pub fn weight(&self) -> usize {
        weight(self.command.as_ref(), self.reply_bytes)
    }

    /// How long it still waits for its turn.
    pub fn patience(&self) -> Duration {
        self.deadline.saturating_duration_since(TypeConfig::<RT>::now())
    }

    /// May another node order it? Not a tick, which is this leader's time, nor what was forwarded once.
    pub fn may_be_forwarded(&self) -> bool {
        self.command.is_some() && self.origin == Origin::Here
    }

    /// Does its submitter still wait for it?
    pub fn is_wanted(&self) -> bool {
        !self.answer.is_closed() && self.state.load(Ordering::Acquire) != WITHDRAWN
    }

    /// Marks it as handed off; false if it was withdrawn and is to be dropped.
    pub fn hand_off(&self) -> bool {
        self.state.compare_exchange(QUEUED, HANDED_OFF, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// It was surely not appended: queued again, unless its time is as good as up or nobody waits for it any more.
    pub fn take_back(self) -> Option<Self> {
        // Stored first: dropped in this state it says that it was not appended.
        self.state.store(QUEUED, Ordering::Release);
        if self.answer.is_closed() || self.patience() < WORTH_A_TRY { None } else { Some(self) }
    }

    /// Answers it, or says why it will never be ordered. Nobody may be listening any more.
    pub fn answer(self, answer: Result<Answer, String>) {
        let _ = self.answer.send(answer);
    }
}

fn weight(command: Option<&Bytes>, reply_bytes: usize) -> usize {
    command.map_or(0, Bytes::len).saturating_add(reply_bytes)
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

/// The submitter's end of a proposal.
pub struct Waiter<RT: AsyncRuntime> {
    /// Until when it waits for its turn.
    pub deadline: InstantOf<TypeConfig<RT>>,
    ticket: Ticket,
    answered: oneshot::Receiver<Result<Answer, String>>,
}

impl<RT: AsyncRuntime> Waiter<RT> {
    /// The answer, if it comes until `deadline`; `None` when that passes.
    pub async fn answered_until(&mut self, deadline: InstantOf<TypeConfig<RT>>) -> Option<Result<Answer, NoAnswer>> {
        let answered = TypeConfig::<RT>::timeout_at(deadline, &mut self.answered).await.ok()?;
        Some(match answered {
            Ok(answer) => answer.map_err(NoAnswer::Refused),
            // The proposer let go of it: while it was queued, or with an unknown outcome.
            Err(_) if self.withdraw() => Err(NoAnswer::Stopped),
            Err(_) => Err(NoAnswer::Unknown),
        })
    }

    /// Withdraws the proposal; false if it is handed off.
    pub fn withdraw(&self) -> bool {
        self.ticket.withdraw()
    }
}

/// Where proposals are put in.
pub struct Intake<RT: AsyncRuntime> {
    queue: mpsc::UnboundedSender<Proposal<RT>>,
    room: Arc<Semaphore>,
    /// Room that the smallest proposal takes: bounds their number.
    least: usize,
}

impl<RT: AsyncRuntime> Clone for Intake<RT> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), room: Arc::clone(&self.room), least: self.least }
    }
}

impl<RT: AsyncRuntime> fmt::Debug for Intake<RT> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Intake")
    }
}

/// An intake for at most `queue_max` proposals, and the queue behind it.
#[expect(clippy::disallowed_methods, reason = "the semaphore bounds the queue, by bytes and by number")]
pub fn channel<RT: AsyncRuntime>(queue_max: usize) -> (Intake<RT>, mpsc::UnboundedReceiver<Proposal<RT>>) {
    let (queue, proposals) = mpsc::unbounded_channel();
    let least = ROOM_BYTES.div_ceil(queue_max.clamp(1, ROOM_BYTES));
    (Intake { queue, room: Arc::new(Semaphore::new(ROOM_BYTES)), least }, proposals)
}

/// A command to be put in: encoded, with the bytes its reply may take and how long it waits for its turn.
pub type Offered = (Bytes, usize, Duration);

impl<RT: AsyncRuntime> Intake<RT> {
    /// Has `command` (or a tick) ordered and applied within `timeout`.
    ///
    /// # Errors
    /// [`NoAnswer`], which says whether it may still take effect.
    pub async fn propose(
        &self,
        command: Option<Bytes>,
        reply_bytes: usize,
        timeout: Duration,
    ) -> Result<Answer, NoAnswer> {
        let deadline = TypeConfig::<RT>::now() + timeout;
        let room = self.room(self.size(weight(command.as_ref(), reply_bytes)), deadline).await?;
        let mut waiter = self.put(command, reply_bytes, deadline, Origin::Here, room);
        match waiter.answered_until(deadline).await {
            Some(answer) => answer,
            None if waiter.withdraw() => Err(NoAnswer::Withdrawn),
            None => Err(NoAnswer::Unknown),
        }
    }

    /// Puts in what a follower forwarded, all at once and in order, when there is room for all of it.
    ///
    /// # Errors
    /// [`NoAnswer`]: nothing was put in.
    pub async fn put_forwarded(&self, commands: Vec<Offered>) -> Result<Vec<Waiter<RT>>, NoAnswer> {
        let size = |(command, reply_bytes, _): &Offered| self.size(weight(Some(command), *reply_bytes));
        let now = TypeConfig::<RT>::now();
        let patience = commands.iter().map(|(_, _, patience)| *patience).max().unwrap_or_default();
        let total = commands.iter().map(size).fold(0, usize::saturating_add);
        if total > ROOM_BYTES {
            return Err(NoAnswer::NoRoom);
        }
        let mut room = self.room(total, now + patience).await?;
        // Never short: the sum of the sizes was taken. And before the first is put in: from then on there is no going
        // back, since that one may be ordered at once.
        let parts: Option<Vec<_>> = commands.iter().map(|offered| room.split(size(offered))).collect();
        let put = |((command, reply_bytes, patience), part)| {
            self.put(Some(command), reply_bytes, now + patience, Origin::Peer, part)
        };
        Ok(commands.into_iter().zip(parts.ok_or(NoAnswer::NoRoom)?).map(put).collect())
    }

    /// Puts a proposal in. If nobody takes it any more, its waiter hears so.
    fn put(
        &self,
        command: Option<Bytes>,
        reply_bytes: usize,
        deadline: InstantOf<TypeConfig<RT>>,
        origin: Origin,
        room: OwnedSemaphorePermit,
    ) -> Waiter<RT> {
        let state = Arc::new(AtomicU8::new(QUEUED));
        let ticket = Ticket(Arc::clone(&state));
        let (answer, answered) = oneshot::channel();
        let proposal = Proposal { command, reply_bytes, deadline, origin, state, answer, _room: room };
        // Without a proposer it is dropped here, queued: surely not ordered, and it alone.
        let _ = self.queue.send(proposal);
        Waiter { deadline, ticket, answered }
    }

    /// Room that a proposal of `weight` takes.
    fn size(&self, weight: usize) -> usize {
        weight.clamp(self.least, ROOM_BYTES)
    }

    async fn room(&self, size: usize, deadline: InstantOf<TypeConfig<RT>>) -> Result<OwnedSemaphorePermit, NoAnswer> {
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
