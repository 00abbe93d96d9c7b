//! What happened lately, kept for those who watch: a bounded ring of events, in the order of the log.
//!
//! # Model
//! The applier pushes each event as it happens (also those it applies again after a restart: so the history of a node
//! that was away fills by itself). A reader keeps nothing here but a cursor, the id of what it had last, and pulls what
//! comes after it: there is no queue for each reader, and a slow one costs the others nothing. When the ring is full the
//! oldest goes; a reader whose cursor lies before that is told so, and must begin anew.
//!
//! Renewals are many and seldom asked for. They live in a second, smaller ring, and push nothing out of the first.
//!
//! # Invariants
//! Ids grow. What is pulled after a cursor is everything that the ring's log holds after it but renewals, or
//! [`Missed`] says that it cannot be. Pushing takes one short lock and wakes one task, however many read.
//!
//! # Not promised
//! Renewals: those that fell out of their ring are skipped without a word. Anything from before the snapshot that this
//! node last took in. No token is ever here: events have none.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tenure_cluster::raft::AsyncRuntime;
use tenure_cluster::time::{sleep, spawn};
use tenure_cluster::{EventAt, Heard, Position};
use tokio::sync::{Notify, watch};

use crate::keyspace::{Event, EventKind, SlotReply, Slotted};

/// Bytes after which no event more is pulled at once: thousands of readers may hold what they pulled.
const PULLED_BYTES: usize = 64 * 1024;

/// Readers are woken at most so often: under load they find many events at once.
const WAKE_EVERY: Duration = Duration::from_millis(5);

/// The place of an event in the log of its cluster: equal on every node. `n.m.k`, or `n.m` for the end of a position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId {
    /// Where it happened.
    pub position: Position,
    /// Which of the events there; [`u32::MAX`]: all of them.
    pub nth: u32,
}

impl EventId {
    /// After everything that happened at `position`.
    #[must_use]
    pub const fn end_of(position: Position) -> Self {
        Self { position, nth: u32::MAX }
    }
}

impl From<&EventAt> for EventId {
    fn from(at: &EventAt) -> Self {
        Self { position: at.position, nth: at.nth }
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.nth {
            u32::MAX => self.position.fmt(f),
            nth => write!(f, "{}.{nth}", self.position),
        }
    }
}

/// A text is no id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not of the form index.n or index.n.k")]
pub struct NoId;

impl FromStr for EventId {
    type Err = NoId;

    fn from_str(text: &str) -> Result<Self, NoId> {
        // `parse` would take a sign.
        if !text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
            return Err(NoId);
        }
        let mut parts = text.split('.');
        let index = parts.next().and_then(|part| part.parse().ok()).ok_or(NoId)?;
        let ordinal = parts.next().and_then(|part| part.parse().ok()).ok_or(NoId)?;
        let nth = parts.next().map_or(Ok(u32::MAX), |part| part.parse().map_err(|_| NoId))?;
        if parts.next().is_some() {
            return Err(NoId);
        }
        Ok(Self { position: Position { index, ordinal }, nth })
    }
}

/// An event and where it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Where.
    pub at: EventAt,
    /// What.
    pub event: Event,
}

impl Told {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> EventId {
        EventId::from(&self.at)
    }

    /// Memory that it takes, about.
    fn bytes(&self) -> usize {
        let text = |text: &Option<Arc<str>>| text.as_ref().map_or(0, |text| text.len());
        let own = size_of::<Self>() + self.event.key.len() + text(&self.event.owner) + text(&self.event.detail);
        own + self.event.slot.as_ref().map_or(0, |slot| text(&slot.identity) + answer_bytes(slot))
    }
}

/// Memory of the answer that was told to whoever acquired a slot.
fn answer_bytes(slot: &Slotted) -> usize {
    let Some(answer) = &slot.answer else { return 0 };
    let text = |text: Option<&Arc<str>>| text.map_or(0, |text| text.len());
    size_of::<SlotReply>()
        + text(answer.detail.as_ref())
        + text(answer.grant().and_then(|grant| grant.identity.as_ref()))
}

/// What a history keeps at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Events.
    pub events_max: usize,
    /// Their memory.
    pub bytes_max: usize,
    /// Renewals.
    pub renewals_max: usize,
    /// Their memory.
    pub renewal_bytes_max: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { events_max: 10_000, bytes_max: 16 << 20, renewals_max: 1_000, renewal_bytes_max: 2 << 20 }
    }
}

/// What comes after a cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// In order.
    pub events: Vec<Arc<Told>>,
    /// Everything up to here was looked at.
    pub cursor: EventId,
    /// There is more.
    pub more: bool,
}

/// Why what comes after a cursor is not known as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// It was, but the ring has moved on.
    FellOut,
    /// The state was replaced by a snapshot's.
    Jumped,
}

/// What readers are woken by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pulse {
    /// Something was pushed since the last.
    beats: u64,
    /// The node goes away: all have to go.
    pub leaving: bool,
}

/// The history of one node.
#[derive(Debug)]
pub struct History {
    past: Mutex<Past>,
    pushed: Arc<Notify>,
    pulse: watch::Sender<Pulse>,
}

impl History {
    /// An empty one. It has to hear a node's events from its start on.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self { past: Mutex::new(Past::new(bounds)), pushed: Arc::default(), pulse: watch::Sender::default() }
    }

    /// From now on readers are woken, by a task on the runtime that ends with the history.
    pub fn start<RT: AsyncRuntime>(self: &Arc<Self>) {
        spawn::<RT>(wake::<RT>(Arc::downgrade(self), Arc::clone(&self.pushed)));
    }

    fn past(&self) -> MutexGuard<'_, Past> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what is told inside apply.
    pub fn hear(&self, heard: Heard<'_, Event>) {
        match heard {
            Heard::Event(at, event) => self.past().push(at, event),
            Heard::Jump(position) => self.past().jump(position),
        }
        self.pushed.notify_one();
    }

    /// At most `max` of what comes after `cursor`, with renewals or without.
    ///
    /// # Errors
    /// [`Missed`]: some of it is not known here.
    pub fn pull(&self, cursor: EventId, renewed: bool, max: usize) -> Result<Pulled, Missed> {
        self.past().pull(cursor, renewed, max)
    }

    /// The id of what was heard last, whatever it was.
    #[must_use]
    pub fn newest(&self) -> EventId {
        self.past().newest
    }

    /// Events that are kept, renewals apart.
    #[must_use]
    pub fn len(&self) -> usize {
        self.past().events.told.len()
    }

    /// Is none kept?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Wakes a reader when there may be more.
    #[must_use]
    pub fn pulse(&self) -> watch::Receiver<Pulse> {
        self.pulse.subscribe()
    }

    /// All readers have to go, and none may begin.
    pub fn leave(&self) {
        self.pulse.send_modify(|pulse| pulse.leaving = true);
    }
}

impl Default for History {
    fn default() -> Self {
        Self::new(Bounds::default())
    }
}

impl Drop for History {
    fn drop(&mut self) {
        // The task that wakes ends too.
        self.pushed.notify_one();
    }
}

/// Wakes the readers, so that the applier need not.
async fn wake<RT: AsyncRuntime>(history: Weak<History>, pushed: Arc<Notify>) {
    loop {
        pushed.notified().await;
        let Some(history) = history.upgrade() else { return };
        history.pulse.send_modify(|pulse| pulse.beats += 1);
        drop(history);
        sleep::<RT>(WAKE_EVERY).await;
    }
}

/// Events in order, bounded.
#[derive(Debug, Default)]
struct Ring {
    told: VecDeque<Arc<Told>>,
    bytes: usize,
}

impl Ring {
    /// Adds one and gives the id of the last that had to go for it.
    fn push(&mut self, told: Told, events_max: usize, bytes_max: usize) -> Option<EventId> {
        self.bytes += told.bytes();
        self.told.push_back(Arc::new(told));
        let mut gone = None;
        while self.told.len() > events_max || self.bytes > bytes_max {
            let Some(oldest) = self.told.pop_front() else { break };
            self.bytes -= oldest.bytes();
            gone = Some(oldest.id());
        }
        gone
    }

    fn after(&self, cursor: EventId) -> impl Iterator<Item = &Arc<Told>> {
        let first = self.told.partition_point(|told| told.id() <= cursor);
        self.told.range(first..)
    }
}

#[derive(Debug)]
struct Past {
    bounds: Bounds,
    events: Ring,
    renewals: Ring,
    /// All that was heard lies up to here.
    newest: EventId,
    /// What lies after it is known.
    known_after: EventId,
    /// Up to here it is not known because of a snapshot.
    jumped_to: EventId,
}

impl Past {
    fn new(bounds: Bounds) -> Self {
        let start = EventId::default();
        let (events, renewals) = (Ring::default(), Ring::default());
        Self { bounds, events, renewals, newest: start, known_after: start, jumped_to: start }
    }

    fn push(&mut self, at: EventAt, event: &Event) {
        let bounds = self.bounds;
        let told = Told { at, event: event.clone() };
        self.newest = told.id();
        match event.kind {
            kind if kind.is_of_waiter() => {}
            EventKind::Renewed => {
                self.renewals.push(told, bounds.renewals_max, bounds.renewal_bytes_max);
            }
            _ => {
                let gone = self.events.push(told, bounds.events_max, bounds.bytes_max);
                self.known_after = gone.unwrap_or(self.known_after);
            }
        }
    }

    fn jump(&mut self, position: Position) {
        let to = EventId::end_of(position);
        self.events = Ring::default();
        self.renewals = Ring::default();
        self.newest = self.newest.max(to);
        self.known_after = self.newest;
        self.jumped_to = self.newest;
    }

    fn pull(&self, cursor: EventId, renewed: bool, max: usize) -> Result<Pulled, Missed> {
        if cursor < self.jumped_to {
            return Err(Missed::Jumped);
        }
        if cursor < self.known_after {
            return Err(Missed::FellOut);
        }
        let mut events = self.events.after(cursor).peekable();
        let mut renewals = self.renewals.after(cursor).filter(|_| renewed).peekable();
        let (mut pulled, mut bytes) = (Vec::new(), 0);
        while pulled.len() < max && bytes < PULLED_BYTES {
            let next = match (events.peek(), renewals.peek()) {
                (Some(event), Some(renewal)) if renewal.id() < event.id() => renewals.next(),
                (Some(_), _) => events.next(),
                (None, _) => renewals.next(),
            };
            let Some(next) = next else { break };
            bytes += next.bytes();
            pulled.push(Arc::clone(next));
        }
        let more = events.peek().is_some() || renewals.peek().is_some();
        let last = pulled.last().map(|told| told.id());
        let reached = if more { last.unwrap_or(cursor) } else { self.newest };
        Ok(Pulled { events: pulled, cursor: cursor.max(reached), more })
    }
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
