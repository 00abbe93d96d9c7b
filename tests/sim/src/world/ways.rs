//! What the network does to one message: pure, but for the dice.
//!
//! Model: between two hosts there is a way in each direction. What goes one way arrives in the order in which it was sent,
//! after a hop, unless `Act::Delay` picks it: then it takes its own time and others overtake it. A way that carries so
//! many bytes a second carries one message after the other. A message on a cut way, or lost by `Act::Loss`, is lost
//! silently and for ever: harsher than TCP, which sends again.

use std::collections::{BTreeMap, BTreeSet};

use checker::Dice;

use crate::coverage::Coverage;
use crate::plan::Way;

const NS_PER_MS: u64 = 1_000_000;
/// Beyond so much that waits for a slow way nothing more is taken.
const BACKLOG_NS: u64 = 3_500 * NS_PER_MS;

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It arrives at this instant of true time.
    Arrives(u64),
    /// It does not, and nobody is told.
    Lost,
    /// There is no room for it; the sender knows.
    NoRoom,
}

/// All ways, and what goes wrong on them.
pub(super) struct Ways {
    hop_us: (u64, u64),
    cut: BTreeSet<Way>,
    slow: BTreeMap<Way, u64>,
    loss_per_mille: u64,
    duplicate_per_mille: u64,
    delay: (u64, u64),
    /// Until when a slow way is busy.
    busy_until: BTreeMap<Way, u64>,
    /// When the last message in order arrives; and the last of all.
    last: BTreeMap<Way, (u64, u64)>,
}

impl Ways {
    pub(super) fn new(hop_us: (u64, u64)) -> Self {
        Self {
            hop_us,
            cut: BTreeSet::new(),
            slow: BTreeMap::new(),
            loss_per_mille: 0,
            duplicate_per_mille: 0,
            delay: (0, 0),
            busy_until: BTreeMap::new(),
            last: BTreeMap::new(),
        }
    }

    /// As at the beginning.
    pub(super) fn heal(&mut self) {
        *self = Self { last: std::mem::take(&mut self.last), ..Self::new(self.hop_us) };
    }

    pub(super) fn cut(&mut self, way: Way) {
        self.cut.insert(way);
    }

    pub(super) fn mend(&mut self, way: Way) {
        self.cut.remove(&way);
    }

    pub(super) fn is_cut(&self, from: u64, to: u64) -> bool {
        self.cut.contains(&Way { from, to })
    }

    pub(super) fn set_loss(&mut self, per_mille: u32) {
        self.loss_per_mille = per_mille.into();
    }

    pub(super) fn set_duplicate(&mut self, per_mille: u32) {
        self.duplicate_per_mille = per_mille.into();
    }

    pub(super) fn set_delay(&mut self, per_mille: u32, most_ms: u64) {
        self.delay = (per_mille.into(), most_ms);
    }

    pub(super) fn set_slow(&mut self, way: Way, bytes_per_second: u64) {
        match bytes_per_second {
            0 => drop(self.slow.remove(&way)),
            pace => drop(self.slow.insert(way, pace)),
        }
    }

    /// How long so many bytes keep a way busy.
    pub(super) fn carriage_ns(&self, way: Way, bytes: u64) -> u64 {
        self.slow.get(&way).map_or(0, |pace| bytes.saturating_mul(1_000 * NS_PER_MS) / pace)
    }

    /// Is a message that may be repeated sent twice?
    pub(super) fn repeats(&self, dice: &mut Dice) -> bool {
        per_mille(dice, self.duplicate_per_mille)
    }

    /// How long a hop takes now.
    pub(super) fn hop_ns(&self, dice: &mut Dice) -> u64 {
        dice.in_range(self.hop_us.0..=self.hop_us.1.max(self.hop_us.0)) * 1_000
    }

    /// Sends so many bytes on `way` at `now_ns`.
    pub(super) fn send(&mut self, way: Way, bytes: u64, now_ns: u64, dice: &mut Dice, coverage: &Coverage) -> Fate {
        if self.cut.contains(&way) {
            coverage.fired(if self.is_cut(way.to, way.from) { "way_cut" } else { "one_way_cut" });
            return Fate::Lost;
        }
        if per_mille(dice, self.loss_per_mille) {
            coverage.fired("message_lost");
            return Fate::Lost;
        }
        let carriage = self.carriage_ns(way, bytes);
        let mut sent_ns = now_ns;
        if carriage > 0 {
            let busy_until = self.busy_until.entry(way).or_default();
            let begins = now_ns.max(*busy_until);
            if begins - now_ns > BACKLOG_NS {
                return Fate::NoRoom;
            }
            coverage.fired("link_slow");
            *busy_until = begins + carriage;
            sent_ns = *busy_until;
        }
        let arrives = sent_ns + self.hop_ns(dice);
        let (in_order, of_all) = self.last.get(&way).copied().unwrap_or_default();
        if per_mille(dice, self.delay.0) {
            coverage.fired("message_delayed");
            let arrives = arrives + dice.in_range(0..=self.delay.1) * NS_PER_MS;
            self.last.insert(way, (in_order, of_all.max(arrives)));
            return Fate::Arrives(arrives);
        }
        let arrives = arrives.max(in_order);
        if arrives < of_all {
            coverage.fired("message_overtaken");
        }
        self.last.insert(way, (arrives, of_all.max(arrives)));
        Fate::Arrives(arrives)
    }
}

fn per_mille(dice: &mut Dice, of_thousand: u64) -> bool {
    of_thousand > 0 && dice.in_range(0..=999) < of_thousand
}
