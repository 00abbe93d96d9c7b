//! The replicated state on this node, as everybody but the applier sees it.
//!
//! Model: one lock around the machine. The applier holds it for one entry at a time. A reader holds it only to take a
//! [`View`]: an O(1) clone that all readers share until the next entry; it then reads without any lock. So a long read
//! never delays an entry, a writing load without readers pays for no clone, and a view is one consistent state.
//!
//! After each entry a [`Mark`] is published: how far the state is and when it next wants time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::level::FIRST_FEATURE_LEVEL;
use crate::machine::{Position, Stamp, StateMachine};
use crate::persisted::LogIdV1;
use crate::raft::PlainMembership;

/// How far the state is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// The last applied entry.
    pub last: Option<LogIdV1>,
    /// The last applied stamp.
    pub stamp: Stamp,
    /// When the machine next has work to do by itself.
    pub wake: Option<Stamp>,
    /// The cluster's feature level; 0 before the first entry.
    pub feature_level: u16,
}

impl Mark {
    /// Index of the last applied entry, 0 before the first.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.last.map_or(0, |last| last.index)
    }
}

/// A state to read from.
#[derive(Debug)]
pub struct View<M> {
    /// The machine.
    pub machine: M,
    /// The last applied stamp.
    pub stamp: Stamp,
    /// The last applied command, or entry.
    pub position: Position,
    /// Term of the last applied entry.
    pub term: u64,
}

/// What the applier changes.
#[derive(Debug, Default)]
pub(crate) struct State<M> {
    pub machine: M,
    pub stamp: Stamp,
    pub last: Option<LogIdV1>,
    /// The last command of the last entry.
    pub ordinal: u32,
    pub membership: PlainMembership,
    /// The cluster's feature level: entries may need it.
    pub feature_level: u16,
    view: Option<Arc<View<M>>>,
}

/// See the module's head.
#[derive(Debug)]
pub struct Replica<M> {
    state: Mutex<State<M>>,
    mark: watch::Sender<Mark>,
}

impl<M: StateMachine> Default for Replica<M> {
    fn default() -> Self {
        let state = State {
            machine: M::default(),
            stamp: Stamp::default(),
            last: None,
            ordinal: 0,
            membership: PlainMembership::default(),
            feature_level: FIRST_FEATURE_LEVEL,
            view: None,
        };
        Self { state: Mutex::new(state), mark: watch::Sender::new(Mark::default()) }
    }
}

impl<M: StateMachine> Replica<M> {
    fn lock(&self) -> MutexGuard<'_, State<M>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state now. All views between two entries are one.
    pub fn view(&self) -> Arc<View<M>> {
        let mut state = self.lock();
        if let Some(view) = &state.view {
            return Arc::clone(view);
        }
        let position = Position { index: state.last.map_or(0, |last| last.index), ordinal: state.ordinal };
        let term = state.last.map_or(0, |last| last.term);
        let view = Arc::new(View { machine: state.machine.clone(), stamp: state.stamp, position, term });
        state.view = Some(Arc::clone(&view));
        view
    }

    /// Looks at the state without keeping it.
    pub(crate) fn peek<R>(&self, look: impl FnOnce(&State<M>) -> R) -> R {
        look(&self.lock())
    }

    /// Changes the state and publishes how far it is. The shared view goes first: nobody else holds it then, and the
    /// machine is changed in place.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut State<M>) -> R) -> R {
        let mut state = self.lock();
        state.view = None;
        let result = change(&mut state);
        let wake = state.machine.wake();
        let mark = Mark { last: state.last, stamp: state.stamp, wake, feature_level: state.feature_level };
        drop(state);
        self.mark.send_replace(mark);
        result
    }

    /// The cluster's feature level; 0 before the first entry.
    pub fn level(&self) -> u16 {
        self.mark.borrow().feature_level
    }

    /// How far the state is, now and from now on.
    pub fn mark(&self) -> watch::Receiver<Mark> {
        self.mark.subscribe()
    }
}
