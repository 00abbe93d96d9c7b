//! Episodes of the network: splits, quiet outages, one-way cuts, flapping, loss, delay, slow ways.

use super::schedule::Schedule;
use super::{Act, Way};

/// Longer than the silence of an edge that is gone, and than that of a client.
const FORSAKEN_MS: std::ops::RangeInclusive<u64> = 5_500..=7_500;

impl Schedule<'_> {
    /// Cut, one way, and mended.
    pub(super) fn cut(&mut self, at_ms: u64, way: Way, for_ms: u64) {
        self.put(at_ms, Act::Cut { way });
        self.put(at_ms + for_ms, Act::Mend { way });
    }

    /// Some nodes are cut off from all others, and not from the clients.
    pub(super) fn split(&mut self, at_ms: u64, left: Vec<u64>, for_ms: u64) -> u64 {
        self.put(at_ms, Act::Split { left });
        self.put(at_ms + for_ms, Act::HealNetwork);
        at_ms + for_ms
    }

    /// Each node in turn is cut off: so the leader is, whoever it is.
    pub(super) fn split_in_turn(&mut self, mut at_ms: u64) -> u64 {
        for node in 1..=self.shape.nodes {
            let for_ms = self.long_ms();
            at_ms = self.split(at_ms, vec![node], for_ms) + self.dice.in_range(50..=800);
        }
        at_ms
    }

    /// The clients go silent, then each node is alone, and all is healed at once. Nobody else can be elected meanwhile, so
    /// whoever led goes on in its term; and what it must not count no entry under way hides, if the grants have ended or
    /// the next tick is far.
    pub(super) fn quiet_outage(&mut self, at_ms: u64) -> u64 {
        for node in 1..=self.shape.nodes {
            self.put(at_ms, Act::Cut { way: Way { from: 0, to: node } });
            self.put(at_ms, Act::Cut { way: Way { from: node, to: 0 } });
        }
        let ended_ms = self.shape.ttl_ms.1 + self.shape.longest_election_ms();
        let quiet_ms = if self.dice.percent(50) { self.dice.in_range(5..=150) } else { ended_ms };
        let alone_ms = 2 * self.shape.longest_election_ms() + self.dice.in_range(400..=2_000);
        for node in 1..=self.shape.nodes {
            self.put(at_ms + quiet_ms, Act::Split { left: vec![node] });
        }
        self.put(at_ms + quiet_ms + alone_ms, Act::HealNetwork);
        at_ms + quiet_ms + alone_ms
    }

    /// A leader that was idle stamps an entry and is held up before it appends it; meanwhile another leads, and it leads
    /// again: what it stamped belongs to a leadership that is over.
    pub(super) fn stale_stamp(&mut self, at_ms: u64) -> u64 {
        let (node, limit_ms) = (self.node(), self.shape.longest_election_ms());
        self.put(at_ms, Act::HandOver { to: node });
        let quiet_at = at_ms + self.dice.in_range(100..=400);
        for other in 1..=self.shape.nodes {
            self.put(quiet_at, Act::Cut { way: Way { from: 0, to: other } });
        }
        // Almost until the tick that is due a second after the last entry.
        let stamped_at = quiet_at + self.dice.in_range(500..=950);
        for other in 1..=self.shape.nodes {
            self.put(stamped_at, Act::Mend { way: Way { from: 0, to: other } });
        }
        let longest_ms = 3 * limit_ms + 1_500;
        self.put(stamped_at, Act::Stall { node, every: 48, longest_ms });
        self.put(stamped_at + 60, Act::Split { left: vec![node] });
        self.put(stamped_at + 80, Act::Stall { node, every: 0, longest_ms: 0 });
        let alone_ms = limit_ms + self.dice.in_range(100..=400);
        self.put(stamped_at + 60 + alone_ms, Act::HealNetwork);
        for again_ms in [50, 150, 300, 500] {
            self.put(stamped_at + 60 + alone_ms + again_ms, Act::HandOver { to: node });
        }
        stamped_at + 60 + alone_ms + longest_ms
    }

    /// The network falls into parts one after the other, without being whole between them: majorities that overlap.
    pub(super) fn shifting_splits(&mut self, mut at_ms: u64) -> u64 {
        for _ in 0..self.dice.in_range(2..=5) {
            self.put(at_ms, Act::HealNetwork);
            let count = self.dice.in_range(1..=self.shape.minority());
            let left = self.some_nodes(count);
            self.put(at_ms, Act::Split { left });
            at_ms += self.dice.in_range(self.shape.election_timeout_ms..=3 * self.shape.election_timeout_ms);
        }
        self.put(at_ms, Act::HealNetwork);
        at_ms
    }

    /// A node is not heard, or does not hear: by the others, or by one of them, or by clients.
    pub(super) fn one_way(&mut self, at_ms: u64, for_ms: u64) -> u64 {
        let node = self.node();
        let (deaf, clients) = (self.dice.percent(50), self.dice.percent(20));
        let others: Vec<u64> = if clients {
            vec![0]
        } else if self.dice.percent(60) {
            (1..=self.shape.nodes).filter(|other| *other != node).collect()
        } else {
            self.some_nodes(1).into_iter().filter(|other| *other != node).collect()
        };
        for other in others {
            let way = if deaf { Way { from: other, to: node } } else { Way { from: node, to: other } };
            self.cut(at_ms, way, for_ms);
        }
        at_ms + for_ms
    }

    /// Two nodes are out of reach for so long that they are given up for it, though their processes live: one is not reached
    /// by its peers, so that its edge lapses; one not by the clients, who seem to be gone.
    pub(super) fn forsaken(&mut self, at_ms: u64) -> u64 {
        let pair = self.some_nodes(2);
        let (from_peers_ms, from_clients_ms) = (self.dice.in_range(FORSAKEN_MS), self.dice.in_range(FORSAKEN_MS));
        for other in (1..=self.shape.nodes).filter(|other| *other != pair[0]) {
            self.cut(at_ms, Way { from: pair[0], to: other }, from_peers_ms);
            self.cut(at_ms, Way { from: other, to: pair[0] }, from_peers_ms);
        }
        self.cut(at_ms, Way { from: 0, to: pair[1] }, from_clients_ms);
        self.cut(at_ms, Way { from: pair[1], to: 0 }, from_clients_ms);
        at_ms + from_peers_ms.max(from_clients_ms)
    }

    /// Each node in turn is heard by nobody.
    pub(super) fn mute_in_turn(&mut self, mut at_ms: u64) -> u64 {
        for node in 1..=self.shape.nodes {
            let for_ms = self.long_ms();
            for other in (1..=self.shape.nodes).filter(|other| *other != node) {
                self.cut(at_ms, Way { from: node, to: other }, for_ms);
            }
            at_ms += for_ms + self.dice.in_range(50..=600);
        }
        at_ms
    }

    /// Resets and cuts shorter than an election, again and again.
    pub(super) fn flapping(&mut self, at_ms: u64, for_ms: u64) -> u64 {
        let mut now_ms = at_ms;
        while now_ms < at_ms + for_ms {
            let pair = self.some_nodes(2);
            let (one, other) = (pair[0], pair[1]);
            if self.dice.percent(50) {
                let other = if self.dice.percent(25) { 0 } else { other };
                self.put(now_ms, Act::Reset { one, other });
            } else {
                let cut_ms = self.dice.in_range(5..=self.shape.election_timeout_ms);
                self.cut(now_ms, Way { from: one, to: other }, cut_ms);
                if self.dice.percent(70) {
                    self.cut(now_ms, Way { from: other, to: one }, cut_ms);
                }
            }
            now_ms += self.dice.in_range(30..=300);
        }
        now_ms
    }

    /// Messages are lost, come twice, late or in another order.
    pub(super) fn bad_weather(&mut self, at_ms: u64, for_ms: u64) -> u64 {
        let per_mille = |dice: &mut checker::Dice, most: u64| u32::try_from(dice.in_range(1..=most)).unwrap();
        if self.dice.percent(60) {
            let lost = per_mille(&mut self.dice, 80);
            self.put(at_ms, Act::Loss { per_mille: lost });
        }
        if self.dice.percent(60) {
            let twice = per_mille(&mut self.dice, 300);
            self.put(at_ms, Act::Duplicate { per_mille: twice });
        }
        if self.dice.percent(70) {
            let late = per_mille(&mut self.dice, 300);
            let most_ms = self.dice.in_range(2..=self.shape.longest_election_ms());
            self.put(at_ms, Act::Delay { per_mille: late, most_ms });
        }
        self.put(at_ms + for_ms, Act::HealNetwork);
        at_ms + for_ms
    }

    /// Ways that carry little: to or from one node.
    pub(super) fn slow_ways(&mut self, at_ms: u64, for_ms: u64) -> u64 {
        let node = self.node();
        let out = self.dice.percent(50);
        for other in (1..=self.shape.nodes).filter(|other| *other != node) {
            let way = if out { Way { from: node, to: other } } else { Way { from: other, to: node } };
            let bytes_per_second = self.dice.in_range(5_000..=200_000);
            self.put(at_ms, Act::Slow { way, bytes_per_second });
            self.put(at_ms + for_ms, Act::Slow { way, bytes_per_second: 0 });
        }
        at_ms + for_ms
    }
}
