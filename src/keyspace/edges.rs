//! The edges whose requests wait, and whether they are still there.
//!
//! Model: an edge that has attached waiters says so once a second (PRESENCE); one that has not for [`LAPSE_MS`] of
//! cluster time is taken for gone. An edge is known here exactly while it has attached waiters.
//!
//! Invariants: `waiters` holds exactly the attached waiters of all queues; `known` has every edge of these, no other,
//! with their number; `lapses` one entry for each of `known`. Whoever attaches or takes away a waiter says so here. Only
//! when an edge was seen is part of a snapshot; the rest follows from the queues.

use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use tenure_cluster::Stamp;

use super::{Attach, EdgeId, Key};

/// Without a sign of an edge for so long its waiters are detached, cluster milliseconds.
pub(super) const LAPSE_MS: u64 = 3_000;

#[derive(Clone, Copy, Debug)]
struct Known {
    seen: Stamp,
    waiters: usize,
}

impl Known {
    fn lapses_at(&self) -> Stamp {
        self.seen.plus_ms(LAPSE_MS)
    }
}

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub(super) struct Edges {
    known: OrdMap<EdgeId, Known>,
    /// Edge, ticket, and the key whose line it stands in.
    waiters: OrdSet<(EdgeId, u64, Key)>,
    lapses: OrdSet<(Stamp, EdgeId)>,
}

impl Edges {
    /// All known edges in order, and when each was seen.
    pub fn iter(&self) -> impl Iterator<Item = (EdgeId, Stamp)> {
        self.known.iter().map(|(edge, known)| (*edge, known.seen))
    }

    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// When the next edge lapses.
    pub fn wake(&self) -> Option<Stamp> {
        self.lapses.get_min().map(|(lapse, _)| *lapse)
    }

    /// An edge that has lapsed.
    pub fn lapsed(&self, now: Stamp) -> Option<EdgeId> {
        self.lapses.get_min().filter(|(lapse, _)| *lapse <= now).map(|(_, edge)| *edge)
    }

    /// Known lives of the same node but this.
    pub fn other_lives(&self, edge: EdgeId) -> Vec<EdgeId> {
        let life = |incarnation| EdgeId { incarnation, ..edge };
        self.known.range(life(0)..=life(u64::MAX)).map(|(other, _)| *other).filter(|other| *other != edge).collect()
    }

    /// A waiter of a known or new edge, which is there at `now`.
    pub fn attach(&mut self, attach: Attach, ticket: u64, key: &Key, now: Stamp) {
        let edge = attach.edge;
        let added = self.waiters.insert((edge, ticket, Arc::clone(key))).is_none();
        let waiters = self.known.get(&edge).map_or(0, |known| known.waiters) + usize::from(added);
        self.set(edge, Some(Known { seen: now, waiters }));
    }

    /// A waiter is attached no more.
    pub fn leave(&mut self, attach: Attach, ticket: u64, key: &Key) {
        let edge = attach.edge;
        let removed = self.waiters.remove(&(edge, ticket, Arc::clone(key))).is_some();
        if let Some(known) = self.known.get(&edge).copied().filter(|_| removed) {
            let waiters = known.waiters - 1;
            self.set(edge, (waiters > 0).then_some(Known { waiters, ..known }));
        }
    }

    /// An edge is there at `now`. Is it known?
    pub fn see(&mut self, edge: EdgeId, now: Stamp) -> bool {
        let Some(known) = self.known.get(&edge).copied() else { return false };
        self.set(edge, Some(Known { seen: now, ..known }));
        true
    }

    /// Forgets an edge: the tickets and keys of its waiters, in order of tickets.
    pub fn take(&mut self, edge: EdgeId) -> Vec<(u64, Key)> {
        let waiters: Vec<_> = self
            .waiters
            .range((edge, 0, Key::from(""))..)
            .take_while(|(of, ..)| *of == edge)
            .map(|(_, ticket, key)| (*ticket, Arc::clone(key)))
            .collect();
        for (ticket, key) in &waiters {
            self.waiters.remove(&(edge, *ticket, Arc::clone(key)));
        }
        self.set(edge, None);
        waiters
    }

    fn set(&mut self, edge: EdgeId, known: Option<Known>) {
        let old = self.known.get(&edge).map(Known::lapses_at);
        let new = known.as_ref().map(Known::lapses_at);
        if let Some(known) = known {
            self.known.insert(edge, known);
        } else {
            self.known.remove(&edge);
        }
        if old != new {
            old.map(|lapse| self.lapses.remove(&(lapse, edge)));
            new.map(|lapse| self.lapses.insert((lapse, edge)));
        }
    }
}
