//! Acts put together so that they make sense: what is killed is started again, what is paused runs on, a full disk has room
//! again. An episode is such a whole; each tells when it is over. This file has those of nodes and their disks and clocks.
//!
//! What would go right again after the fault phase is left to the healing.

use std::ops::RangeInclusive;

use checker::Dice;

use super::{Act, Shape, Timed};

/// Millionths: bands in which any two clocks, and each and the clients' true one, part by less than 1 %.
const RATES_PPM: [RangeInclusive<u64>; 3] = [995_100..=1_004_900, 1_000_000..=1_009_900, 990_200..=1_000_000];
/// How far a wall clock jumps.
const WALL_JUMP_MS: u64 = 6 * 3_600_000;

/// Acts as they are put together, in any order.
pub(super) struct Schedule<'a> {
    pub dice: Dice,
    pub shape: &'a Shape,
    /// Millionths: where this plan's clocks are.
    rates_ppm: RangeInclusive<u64>,
    acts: Vec<Timed>,
    /// Nodes whose log was damaged; never more than a minority.
    damaged: Vec<u64>,
}

impl<'a> Schedule<'a> {
    pub(super) fn new(mut dice: Dice, shape: &'a Shape) -> Self {
        let band = usize::try_from(dice.in_range(0..=2)).unwrap();
        Self { dice, shape, rates_ppm: RATES_PPM[band].clone(), acts: Vec::new(), damaged: Vec::new() }
    }

    /// All acts, in order of time; of one instant, in the order in which they were put in.
    pub(super) fn finish(mut self) -> Vec<Timed> {
        self.acts.sort_by_key(|timed| timed.at_ms);
        self.acts
    }

    pub(super) fn put(&mut self, at_ms: u64, act: Act) {
        if at_ms < self.shape.fault_ms {
            self.acts.push(Timed { at_ms, act });
        }
    }

    pub(super) fn node(&mut self) -> u64 {
        self.dice.in_range(1..=self.shape.nodes)
    }

    /// So many nodes, each once.
    pub(super) fn some_nodes(&mut self, count: u64) -> Vec<u64> {
        let mut all: Vec<u64> = (1..=self.shape.nodes).collect();
        (0..count.min(self.shape.nodes))
            .map(|_| {
                let last = u64::try_from(all.len() - 1).unwrap();
                all.remove(usize::try_from(self.dice.in_range(0..=last)).unwrap())
            })
            .collect()
    }

    pub(super) fn majority(&mut self) -> Vec<u64> {
        self.some_nodes(self.shape.minority() + 1)
    }

    /// Shorter than an election, or about as long.
    pub(super) fn short_ms(&mut self) -> u64 {
        self.dice.in_range(20..=self.shape.longest_election_ms())
    }

    /// Longer than T and than many lifetimes; now and then than any.
    pub(super) fn long_ms(&mut self) -> u64 {
        let least = self.shape.longest_election_ms() + 200;
        let most = if self.dice.percent(30) { least + self.shape.ttl_ms.1 } else { 2 * least };
        self.dice.in_range(least..=most)
    }

    /// Longer than T and than any lifetime.
    pub(super) fn outlasting_ms(&mut self) -> u64 {
        let longest = self.shape.longest_election_ms() + self.shape.ttl_ms.1;
        self.dice.in_range(longest + 200..=longest + 1_500)
    }

    pub(super) fn span_ms(&mut self) -> u64 {
        if self.dice.percent(50) { self.short_ms() } else { self.long_ms() }
    }

    /// `nodes` die within a moment, by `kill -9` or without power, and are back within another.
    pub(super) fn crash(&mut self, at_ms: u64, nodes: &[u64], power: bool, down_ms: u64) -> u64 {
        let spread_ms = if self.dice.percent(50) { 0 } else { self.dice.in_range(1..=60) };
        for node in nodes.iter().copied() {
            let down_at = at_ms + self.dice.in_range(0..=spread_ms);
            self.put(down_at, if power { Act::PowerCut { node } } else { Act::Kill { node } });
            let up_at = down_at + down_ms + self.dice.in_range(0..=spread_ms * 4);
            self.put(up_at, Act::Start { node });
        }
        at_ms + down_ms + spread_ms * 5
    }

    /// One after the other dies, faster than elections: whoever was just elected is hit too.
    pub(super) fn cascade(&mut self, at_ms: u64, power: bool) -> u64 {
        let step_ms = self.dice.in_range(10..=self.shape.longest_election_ms() + 100);
        let down_ms = step_ms / 2 + self.dice.in_range(5..=200);
        let rounds = self.dice.in_range(2..=2 * self.shape.nodes);
        for round in 0..rounds {
            let node = round % self.shape.nodes + 1;
            self.put(at_ms + round * step_ms, if power { Act::PowerCut { node } } else { Act::Kill { node } });
            self.put(at_ms + round * step_ms + down_ms, Act::Start { node });
        }
        at_ms + rounds * step_ms + down_ms
    }

    /// The world stops for these nodes.
    pub(super) fn pause(&mut self, at_ms: u64, nodes: &[u64], for_ms: u64) -> u64 {
        for node in nodes.iter().copied() {
            self.put(at_ms, Act::Pause { node });
            let late_ms = self.dice.in_range(0..=30);
            self.put(at_ms + for_ms + late_ms, Act::Resume { node });
        }
        at_ms + for_ms + 30
    }

    /// Each node in turn stops: so the leader does, whoever it is.
    pub(super) fn pause_in_turn(&mut self, mut at_ms: u64) -> u64 {
        for node in 1..=self.shape.nodes {
            let for_ms = self.long_ms();
            at_ms = self.pause(at_ms, &[node], for_ms) + self.dice.in_range(50..=600);
        }
        at_ms
    }

    /// Threads lose their processor: many for moments, or few for longer than an election.
    pub(super) fn stall(&mut self, at_ms: u64, nodes: &[u64], for_ms: u64) -> u64 {
        for node in nodes.iter().copied() {
            let (every, longest_ms) = if self.dice.percent(50) {
                (self.dice.in_range(300..=4_000), self.dice.in_range(1..=60))
            } else {
                let longest_ms = self.shape.longest_election_ms();
                (self.dice.in_range(3_000..=40_000), self.dice.in_range(longest_ms / 4..=longest_ms * 5 / 4))
            };
            self.put(at_ms, Act::Stall { node, every: u32::try_from(every).unwrap(), longest_ms });
            self.put(at_ms + for_ms, Act::Stall { node, every: 0, longest_ms: 0 });
        }
        at_ms + for_ms
    }

    /// Clocks run at other rates from now on.
    pub(super) fn change_rates(&mut self, at_ms: u64) {
        for node in 1..=self.shape.nodes {
            let (least, most) = (*self.rates_ppm.start(), *self.rates_ppm.end());
            let ppm = match self.dice.in_range(0..=3) {
                0 => least,
                1 => most,
                _ => self.dice.in_range(least..=most),
            };
            self.put(at_ms, Act::Rate { node, ppm });
        }
    }

    pub(super) fn wall_jump(&mut self, at_ms: u64) {
        let most_ms = if self.dice.percent(50) { WALL_JUMP_MS } else { self.shape.ttl_ms.1 };
        let by_ms = i64::try_from(self.dice.in_range(0..=2 * most_ms)).unwrap() - i64::try_from(most_ms).unwrap();
        let node = self.node();
        self.put(at_ms, Act::WallJump { node, by_ms });
    }

    pub(super) fn slow_disk(&mut self, at_ms: u64, nodes: &[u64], sync_ms: u64, for_ms: u64) -> u64 {
        for node in nodes.iter().copied() {
            self.put(at_ms, Act::SlowDisk { node, sync_ms });
            self.put(at_ms + for_ms, Act::SlowDisk { node, sync_ms: 0 });
        }
        at_ms + for_ms
    }

    /// Syncs hang for longer than T and than any lifetime, at some nodes or at so many that nothing commits.
    pub(super) fn stuck_disk(&mut self, at_ms: u64) -> u64 {
        let nodes = if self.dice.percent(40) { self.majority() } else { vec![self.node()] };
        let (sync_ms, span_ms) = (self.outlasting_ms(), self.dice.in_range(50..=500));
        self.slow_disk(at_ms, &nodes, sync_ms, span_ms);
        at_ms + sync_ms + span_ms
    }

    /// Every sync takes several T, at so many nodes that nothing commits sooner; the leader is heard all the while.
    pub(super) fn crawling_disks(&mut self, at_ms: u64) -> u64 {
        let nodes = if self.dice.percent(50) { self.some_nodes(self.shape.nodes) } else { self.majority() };
        let limit_ms = self.shape.longest_election_ms();
        let sync_ms = self.dice.in_range(limit_ms + 100..=3 * limit_ms);
        let span_ms = self.dice.in_range(50..=2 * sync_ms);
        self.slow_disk(at_ms, &nodes, sync_ms, span_ms);
        at_ms + span_ms + sync_ms
    }

    pub(super) fn full_disk(&mut self, at_ms: u64, nodes: &[u64], for_ms: u64) -> u64 {
        for node in nodes.iter().copied() {
            let left_bytes = self.dice.in_range(0..=2 * self.shape.segment_bytes);
            self.put(at_ms, Act::FullDisk { node, left_bytes });
            self.put(at_ms + for_ms, Act::RoomyDisk { node });
        }
        at_ms + for_ms
    }

    /// The disk fails, the node stops by itself, and is started again; twice, for nobody knows when it stops.
    pub(super) fn failing_disk(&mut self, at_ms: u64) -> u64 {
        let (node, after) = (self.node(), self.dice.in_range(0..=150));
        self.put(at_ms, Act::FailDisk { node, after });
        let first_ms = self.long_ms();
        self.put(at_ms + first_ms, Act::Start { node });
        self.put(at_ms + 2 * first_ms, Act::Start { node });
        at_ms + 2 * first_ms
    }

    /// A node is down, and comes back to a log with a flipped byte; unless so many are damaged already that one more would
    /// be no minority.
    pub(super) fn damage(&mut self, at_ms: u64) -> u64 {
        let node = self.node();
        let room = u64::try_from(self.damaged.len()).unwrap() < self.shape.minority();
        if !room || self.damaged.contains(&node) {
            return at_ms;
        }
        self.damaged.push(node);
        let (power, down_ms) = (self.dice.percent(50), self.span_ms());
        self.put(at_ms, if power { Act::PowerCut { node } } else { Act::Kill { node } });
        // Not the very end, where damage is taken for a write that was torn.
        let per_mille = u32::try_from(self.dice.in_range(0..=900)).unwrap();
        self.put(at_ms + down_ms / 2 + 1, Act::Corrupt { node, per_mille });
        self.put(at_ms + down_ms + 2, Act::Start { node });
        at_ms + down_ms + 2
    }

    pub(super) fn hand_over(&mut self, at_ms: u64) {
        let to = self.node();
        self.put(at_ms, Act::HandOver { to });
    }
}
