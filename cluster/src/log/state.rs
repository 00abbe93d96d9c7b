//! What the log's records add up to. One transition function, used when records are submitted, written and replayed:
//! so that what a reader sees, what a segment's header restates and what a restart finds cannot differ.

use super::record::Change;
use crate::persisted::LogIdV1;
pub use crate::persisted::LogStateV1 as State;
use crate::planted::{self, Bug};

/// A record that cannot follow what came before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry {index} does not follow {last}: it would leave a hole in the log")]
pub struct Hole {
    index: u64,
    last: u64,
}

impl State {
    /// The index after the last entry.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.last.map_or(self.first, |last| last.index.saturating_add(1))
    }

    /// Are there no entries?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first >= self.next()
    }

    /// Applies one change.
    ///
    /// # Errors
    /// [`Hole`] for an entry that is not the next one; nothing changed.
    pub fn apply(&mut self, change: &Change) -> Result<(), Hole> {
        match change {
            Change::Vote(vote) => self.vote = Some(*vote),
            Change::Committed(id) => self.committed = *id,
            Change::Append(entry) => return self.append(entry.id),
            Change::Truncate(after) => self.truncate(*after),
            Change::Purge(upto) => self.purge(*upto),
            Change::Roll(_) => {}
        }
        Ok(())
    }

    /// Committed is written after all it refers to, so it never is ahead of the log. Were it, replication would refuse to
    /// start: so it is held back to the last entry, which the committed one follows.
    pub fn clamp_committed(&mut self) {
        if self.committed.is_some_and(|committed| self.last.is_none_or(|last| last.index < committed.index)) {
            self.committed = self.last;
        }
    }

    /// A log that never held an entry may begin at any index.
    fn append(&mut self, id: LogIdV1) -> Result<(), Hole> {
        match self.last {
            Some(last) if id.index != last.index.saturating_add(1) => {
                return Err(Hole { index: id.index, last: last.index });
            }
            Some(_) => {}
            None => self.first = id.index,
        }
        self.last = Some(id);
        Ok(())
    }

    fn truncate(&mut self, after: Option<LogIdV1>) {
        if after.map_or(0, |after| after.index.saturating_add(1)) >= self.next() {
            return;
        }
        self.last = after.filter(|after| after.index >= self.first).or(self.purged);
    }

    fn purge(&mut self, upto: LogIdV1) {
        if self.purged.is_some_and(|purged| purged.index >= upto.index) {
            return;
        }
        if self.next() <= upto.index.saturating_add(1) {
            self.last = Some(upto);
        }
        if planted::has(Bug::VoteLostByPurge) {
            self.vote = None;
        }
        self.purged = Some(upto);
        self.first = upto.index.saturating_add(1);
    }
}
