//! What the cluster's callers get: answers with their witness, and events.

use std::sync::Arc;

use crate::machine::{Position, Stamp};

/// What an answer leans on; travels in the answer's headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Witness {
    /// Where the command stands in the log, or up to where the read saw it.
    pub position: Position,
    /// The cluster clock the answer was judged by.
    pub clock: Stamp,
    /// The term of the leader that ordered it.
    pub term: u64,
}

/// A command's reply and its witness.
#[derive(Clone, Debug)]
pub struct Applied<R> {
    /// What the machine answered.
    pub reply: R,
    /// Where and when it was applied.
    pub witness: Witness,
}

/// A read's result and its witness.
#[derive(Clone, Debug)]
pub struct Seen<R> {
    /// What the reader returned.
    pub value: R,
    /// What it was read from.
    pub witness: Witness,
    /// For stale reads: how old the state may be, milliseconds; 0 for linearizable ones.
    pub age_ms: u64,
}

/// Where an event happened. Equal on every node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventAt {
    /// The command (or, with ordinal 0 of a tick, the entry) that caused it.
    pub position: Position,
    /// Which of the events of that position, from 0.
    pub nth: u32,
    /// The stamp it was applied at.
    pub stamp: Stamp,
    /// The leader's wall clock when it made the entry, Unix milliseconds. For display only.
    pub wall_ms: u64,
    /// Term of the leader that ordered it.
    pub term: u64,
    /// Applied again after a restart from what was already committed before it.
    pub replay: bool,
}

/// What a listener is told, in log order.
#[derive(Debug)]
pub enum Heard<'a, E> {
    /// Something happened.
    Event(EventAt, &'a E),
    /// The state was replaced by a snapshot's, which stands at this position: what happened up to there is not told.
    Jump(Position),
}

// By hand: a derived one would ask it of the event, which is only pointed to.
impl<E> Clone for Heard<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for Heard<'_, E> {}

/// Told of every event, in log order, inside apply: must be cheap and must not block. What a node takes in by snapshot,
/// at its start or from a leader, is not told again: only that it was.
pub type EventSink<E> = Arc<dyn Fn(Heard<'_, E>) + Send + Sync>;
