//! The connections between nodes: which stand, and whose process is surely gone. Pure.
//!
//! Model: as `tcp/` of the product keeps them. A connection to a peer stands from when the peer's process can be reached
//! both ways. It ends when that process ends on a host that answers (then the peer is **gone**, since a new try is
//! refused), or after [`SILENCE_NS`] without a word (then it is not: silence proves nothing). Where a way is cut, a host
//! is down or a process stands still, there is silence. A connection that is silent and still stands learns, when the
//! silence ends, that the process it led to has died.

use std::collections::{BTreeMap, BTreeSet};

/// So long without a byte, and a connection is given up.
pub(super) const SILENCE_NS: u64 = 3_500_000_000;

/// What a host is to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// Its process runs.
    Alive,
    /// Its process is dead; the host refuses connections.
    Dead,
    /// Nothing answers: the machine is down, or the process stands still.
    Silent,
}

#[derive(Clone, Copy, Debug, Default)]
struct Link {
    stands: bool,
    /// Counts the connections that there were.
    number: u64,
    /// Since when nothing is heard; `None` while something is.
    silent_since_ns: Option<u64>,
}

/// What changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// (who, whom): the first saw the other's connection end and a new one refused.
    pub(super) gone: Vec<(u64, u64)>,
    /// (who, whom): no longer seen gone.
    pub(super) not_gone: Vec<(u64, u64)>,
    /// Connections, both ways, that ended: calls under way on them break.
    pub(super) broken: BTreeSet<(u64, u64)>,
    /// Something fell silent: to be looked at again after [`SILENCE_NS`].
    pub(super) fell_silent: bool,
}

/// All connections, by (who, whom).
#[derive(Default)]
pub(super) struct Links(BTreeMap<(u64, u64), Link>);

impl Links {
    /// Does the connection of `from` to `to` stand?
    pub(super) fn stands(&self, from: u64, to: u64) -> bool {
        self.0.get(&(from, to)).is_some_and(|link| link.stands)
    }

    /// Which connection of `from` to `to` carries bytes now.
    pub(super) fn connection(&self, from: u64, to: u64) -> Option<u64> {
        let link = self.0.get(&(from, to))?;
        (link.stands && link.silent_since_ns.is_none()).then_some(link.number)
    }

    /// The connections between the two are others now.
    pub(super) fn reset(&mut self, one: u64, other: u64) {
        for pair in [(one, other), (other, one)] {
            if let Some(link) = self.0.get_mut(&pair) {
                link.number += 1;
            }
        }
    }

    /// The process of `id` ended, and its own connections with it.
    pub(super) fn end(&mut self, id: u64) {
        for link in self.0.iter_mut().filter(|((from, _), _)| *from == id).map(|(_, link)| link) {
            link.stands = false;
        }
    }

    /// The process of `id` is another one than before: connections to and from the old one are none of its.
    pub(super) fn forget(&mut self, id: u64) {
        for link in self.0.iter_mut().filter(|((from, to), _)| *from == id || *to == id).map(|(_, link)| link) {
            link.stands = false;
        }
    }

    /// Looks at all pairs again. `is_cut(from, to)` says of each way whether it is.
    pub(super) fn look(
        &mut self,
        now_ns: u64,
        hosts: &BTreeMap<u64, Presence>,
        is_cut: impl Fn(u64, u64) -> bool,
    ) -> Changes {
        let mut changes = Changes::default();
        for (from, own) in hosts {
            for (to, peer) in hosts.iter().filter(|(to, _)| *to != from) {
                let is_silent =
                    *own == Presence::Silent || *peer == Presence::Silent || is_cut(*from, *to) || is_cut(*to, *from);
                let link = self.0.entry((*from, *to)).or_default();
                link.look(now_ns, (*from, *to), is_silent, (*own, *peer), &mut changes);
            }
        }
        changes
    }
}

impl Link {
    fn look(
        &mut self,
        now_ns: u64,
        pair: (u64, u64),
        is_silent: bool,
        (own, peer): (Presence, Presence),
        changes: &mut Changes,
    ) {
        if is_silent {
            let since = *self.silent_since_ns.get_or_insert_with(|| {
                changes.fell_silent = true;
                // A try that ends otherwise than refused.
                changes.not_gone.push(pair);
                now_ns
            });
            if self.stands && now_ns.saturating_sub(since) >= SILENCE_NS {
                self.stands = false;
                changes.broken.insert(pair);
            }
            return;
        }
        self.silent_since_ns = None;
        match peer {
            Presence::Dead if self.stands => {
                self.stands = false;
                changes.broken.insert(pair);
                if own == Presence::Alive {
                    changes.gone.push(pair);
                }
            }
            Presence::Alive if !self.stands && own == Presence::Alive => {
                self.stands = true;
                self.number += 1;
                changes.not_gone.push(pair);
            }
            Presence::Alive | Presence::Dead | Presence::Silent => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(two: Presence) -> BTreeMap<u64, Presence> {
        [(1, Presence::Alive), (2, two)].into()
    }

    #[test]
    fn gone_is_who_is_dead_on_a_host_that_answers() {
        let mut links = Links::default();
        links.look(0, &hosts(Presence::Alive), |_, _| false);
        assert!(links.stands(1, 2) && links.stands(2, 1));
        assert_eq!(links.look(1, &hosts(Presence::Dead), |_, _| false).gone, [(1, 2)]);
        assert!(!links.stands(1, 2));
    }

    #[test]
    fn silence_makes_nobody_gone() {
        let mut links = Links::default();
        links.look(0, &hosts(Presence::Alive), |_, _| false);
        let changes = links.look(1, &hosts(Presence::Silent), |_, _| false);
        assert!(changes.gone.is_empty() && changes.fell_silent && links.stands(1, 2));
        let changes = links.look(1 + SILENCE_NS, &hosts(Presence::Silent), |_, _| false);
        assert!(changes.gone.is_empty() && changes.broken.contains(&(1, 2)) && !links.stands(1, 2));
        assert!(links.look(2 + SILENCE_NS, &hosts(Presence::Dead), |_, _| false).gone.is_empty(), "a first try");
    }

    #[test]
    fn who_dies_behind_a_short_cut_is_gone_after_it() {
        let mut links = Links::default();
        links.look(0, &hosts(Presence::Alive), |_, _| false);
        links.look(1, &hosts(Presence::Alive), |from, _| from == 2);
        assert!(links.look(2, &hosts(Presence::Dead), |from, _| from == 2).gone.is_empty());
        assert_eq!(links.look(3, &hosts(Presence::Dead), |_, _| false).gone, [(1, 2)]);
    }
}
