//! The requests that wait on this node, by number, and what came of each.
//!
//! Model: a request that is put in line gets a number, which is never used twice in a life of the node. Events of the
//! machine name it. What an event says of a number is told to whoever registered it, once; a number that is not
//! registered is not asked for.
//!
//! [`Requests::hear`] is called inside apply: it looks a number up and hands a small value over, and blocks for nobody.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tenure_cluster::{Applied, EventAt, Heard, Witness};
use tokio::sync::{oneshot, watch};

use crate::keyspace::{Attach, EdgeId, Event, EventKind, OpReply, Reason, Reply, SlotReply};

/// Requests that wait on one node at most, unless told otherwise.
pub const WAITING_MAX: usize = 20_000;

/// What came of a request.
#[derive(Clone, Debug)]
pub(super) enum Told {
    /// It was granted.
    Granted(Applied<Reply>),
    /// It left the line without a grant.
    Ended(Reason),
    /// It may not be in line any more, though nobody ended it: to be put there again.
    Again,
    /// This node cannot answer for it any more.
    Forsaken,
}

/// All requests that wait on this node.
#[derive(Debug)]
pub struct Requests {
    /// Known once the node takes part: before that nothing is registered.
    edge: OnceLock<EdgeId>,
    table: Mutex<Table>,
    /// How many wait, with those that are cleaned up after.
    count: watch::Sender<usize>,
    max: usize,
}

#[derive(Debug, Default)]
struct Table {
    last: u64,
    open: BTreeMap<u64, oneshot::Sender<Told>>,
    leaving: bool,
}

impl Default for Requests {
    fn default() -> Self {
        Self::with_max(WAITING_MAX)
    }
}

/// Why a request may not wait here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turned {
    /// The node leaves.
    Leaving,
    /// So many wait already.
    Full(usize),
}

impl Requests {
    /// With room for `max` requests.
    #[must_use]
    pub fn with_max(max: usize) -> Self {
        Self { edge: OnceLock::new(), table: Mutex::default(), count: watch::Sender::new(0), max }
    }

    /// Takes in what the machine did, in log order.
    pub fn hear(&self, heard: Heard<'_, Event>) {
        match heard {
            Heard::Event(at, event) => {
                let Some(attach) = event.attach.filter(|attach| self.edge.get() == Some(&attach.edge)) else { return };
                let Some(told) = told(at, event) else { return };
                let listener = self.table().open.remove(&attach.request);
                if let Some(listener) = listener {
                    // It may have gone away in this moment.
                    let _ = listener.send(told);
                }
            }
            // What became of them is not told: they ask.
            Heard::Jump(_) => self.tell_all(&Told::Again),
        }
    }

    /// How many requests wait here.
    #[must_use]
    pub fn waiting(&self) -> usize {
        *self.count.borrow()
    }

    /// From now on they are `edge`'s.
    pub(super) fn belong_to(&self, edge: EdgeId) {
        // A node has one edge in its life.
        let _ = self.edge.set(edge);
    }

    /// Takes a place among those that wait here.
    pub(super) fn enter(self: &Arc<Self>) -> Result<Entered, Turned> {
        if self.table().leaving {
            return Err(Turned::Leaving);
        }
        let entered = self.count.send_if_modified(|count| {
            let room = *count < self.max;
            *count += usize::from(room);
            room
        });
        if entered { Ok(Entered(Arc::clone(self))) } else { Err(Turned::Full(self.max)) }
    }

    /// Ends all that waits, as nothing this node can answer for.
    pub(super) fn forsake(&self) {
        self.tell_all(&Told::Forsaken);
    }

    /// The same, for good: nothing waits here from now on.
    pub(super) fn leave(&self) {
        self.table().leaving = true;
        self.forsake();
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.table().leaving
    }

    /// Resolves once nothing waits here, and nothing is cleaned up.
    pub(super) async fn none(&self) {
        // The sender is here: it does not fail.
        let _ = self.count.subscribe().wait_for(|count| *count == 0).await;
    }

    fn tell_all(&self, told: &Told) {
        let all = std::mem::take(&mut self.table().open);
        for listener in all.into_values() {
            let _ = listener.send(told.clone());
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request's place among those that wait on this node; given back when it is dropped.
pub(super) struct Entered(Arc<Requests>);

impl Entered {
    /// A fresh number, which is listened to from now on.
    pub fn register(&self) -> Result<Number, Turned> {
        let (told, listens) = oneshot::channel();
        let mut table = self.0.table();
        let (Some(edge), false) = (self.0.edge.get(), table.leaving) else { return Err(Turned::Leaving) };
        table.last += 1;
        let attach = Attach { edge: *edge, request: table.last };
        table.open.insert(attach.request, told);
        drop(table);
        Ok(Number { requests: Arc::clone(&self.0), attach, told: listens })
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.count.send_modify(|count| *count -= 1);
    }
}

/// A registered number.
pub(super) struct Number {
    requests: Arc<Requests>,
    /// What the machine knows it by.
    pub attach: Attach,
    told: oneshot::Receiver<Told>,
}

impl Number {
    /// What is told of it; the sender goes only with the node.
    pub async fn told(&mut self) -> Told {
        (&mut self.told).await.unwrap_or(Told::Forsaken)
    }

    /// What was told of it so far.
    pub fn told_yet(&mut self) -> Option<Told> {
        self.told.try_recv().ok()
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        self.requests.table().open.remove(&self.attach.request);
    }
}

/// What an event says of the request it names.
fn told(at: EventAt, event: &Event) -> Option<Told> {
    match event.kind {
        EventKind::Granted => {
            let reply = granted(event);
            let witness = Witness { position: at.position, clock: at.stamp, term: at.term };
            Some(Told::Granted(Applied { reply, witness }))
        }
        EventKind::WaitEnded => event.reason.map(Told::Ended),
        EventKind::Detached => Some(Told::Again),
        _ => None,
    }
}

/// The answer to whoever waited for what was granted.
fn granted(event: &Event) -> Reply {
    if let Some(answer) = event.slot.as_ref().and_then(|slot| slot.answer.as_ref()) {
        return Reply::Slot(Box::new(SlotReply::clone(answer)));
    }
    let (fence, ttl_ms, owner) = (event.fence, event.ttl_ms, event.owner.clone());
    Reply::Op(OpReply { result: true, fence, ttl_ms, owner, ..OpReply::default() })
}
