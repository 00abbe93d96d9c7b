//! When surely no majority worked together. Pure.
//!
//! Model: two nodes worked together in a span of time only if both ran in it and each way between them was open in it, at
//! whatever moments: a request may wait at a host that stands still, and its answer go back when the way there is cut
//! again. A span in which no node worked together with enough others to be a majority is an **outage**: of no request that
//! was sent in it there is a quorum's answer before its end. When one more host or way makes a majority possible it is
//! over, and another begins at that instant if none is possible as things stand then.
//!
//! Not promised: every outage. Messages may be lost, late or refused besides.

use std::collections::BTreeSet;

use crate::plan::Way;

/// Who ran, and which ways were open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) ran: BTreeSet<u64>,
    pub(super) open: BTreeSet<Way>,
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Majority {
    /// A majority of all nodes.
    count: usize,
    /// What was seen since the outage began; without one, at the last look.
    seen: Seen,
    since_ns: Option<u64>,
}

impl Seen {
    fn allows(&self, count: usize) -> bool {
        let together = |one: u64, other: u64| {
            let ways = [Way { from: one, to: other }, Way { from: other, to: one }];
            one == other || ways.iter().all(|way| self.open.contains(way))
        };
        self.ran.iter().any(|one| self.ran.iter().filter(|other| together(*one, **other)).count() >= count)
    }
}

impl Majority {
    /// Of so many nodes, none of which runs.
    pub(super) fn of(nodes: u64) -> Self {
        let count = usize::try_from(nodes / 2 + 1).unwrap_or(usize::MAX);
        Self { count, seen: Seen::default(), since_ns: None }
    }

    /// Takes in how things stand from `now_ns` on: after each change of a host or a way. Tells an outage that is over: from
    /// when until when.
    pub(super) fn look(&mut self, now_ns: u64, now: Seen) -> Option<(u64, u64)> {
        self.seen.ran.extend(&now.ran);
        self.seen.open.extend(&now.open);
        if !self.seen.allows(self.count) {
            self.since_ns.get_or_insert(now_ns);
            return None;
        }
        let over = self.since_ns.take().map(|since_ns| (since_ns, now_ns));
        self.since_ns = (!now.allows(self.count)).then_some(now_ns);
        self.seen = now;
        over.filter(|(from, until)| from < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All ways between those that run, but these.
    fn seen(ran: &[u64], cut: &[(u64, u64)]) -> Seen {
        let pairs = ran.iter().flat_map(|from| ran.iter().map(|to| (*from, *to)));
        let open = pairs.filter(|(from, to)| from != to && !cut.contains(&(*from, *to)));
        Seen { ran: ran.iter().copied().collect(), open: open.map(|(from, to)| Way { from, to }).collect() }
    }

    fn looked(nodes: u64, looks: &[(u64, Seen)]) -> Vec<(u64, u64)> {
        let mut majority = Majority::of(nodes);
        looks.iter().filter_map(|(at, now)| majority.look(*at, now.clone())).collect()
    }

    #[test]
    fn an_outage_is_as_long_as_nobody_has_a_majority() {
        let all = seen(&[1, 2, 3], &[]);
        let looks = [(0, all.clone()), (10, seen(&[1, 2], &[])), (20, seen(&[1], &[])), (30, all.clone())];
        assert_eq!(looked(3, &looks), [(20, 30)]);
        let alone = seen(&[1, 2, 3], &[(1, 2), (2, 3), (3, 1)]);
        assert_eq!(looked(3, &[(5, all.clone()), (10, alone), (40, all.clone())]), [(10, 40)]);
        let one_way = seen(&[1, 2, 3], &[(1, 2), (2, 3)]);
        assert_eq!(looked(3, &[(5, all.clone()), (10, one_way), (40, all.clone())]).len(), 0, "3 and 1 work together");
        // Two pairs of five are none; a star is one.
        let pairs = [(1, 3), (1, 4), (1, 5), (2, 3), (2, 4), (2, 5), (3, 5), (4, 5)];
        let five = seen(&[1, 2, 3, 4, 5], &[]);
        assert_eq!(looked(5, &[(5, five.clone()), (10, seen(&[1, 2, 3, 4, 5], &pairs)), (40, five)]), [(10, 40)]);
    }

    #[test]
    fn what_comes_one_after_the_other_may_be_a_majority() {
        let all = seen(&[1, 2, 3], &[]);
        // There while the one way is open, and back while the other is.
        let there = seen(&[1, 2], &[(2, 1)]);
        let back = seen(&[1, 2], &[(1, 2)]);
        assert_eq!(looked(3, &[(5, all.clone()), (10, there), (20, back), (30, all)]), [(10, 20), (20, 30)]);
    }
}
