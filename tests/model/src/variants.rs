//! The protocol as designed, and each way to get it wrong.
//!
//! A variant says what must come of it: a positive one is searched to the end and must hold every property; a
//! negative one must break the one it names, else that property would be proof of nothing.

use crate::properties::{EARLY_EXPIRY, OUTAGE_COUNTED, SEEN_EXPIRED};
use crate::state::CLIENTS;

/// TTL of every grant, cluster units.
pub const TTL: u8 = 2;
/// T: after so long without a quorum the clock stands.
pub const T: u8 = 1;

/// Where it is checked that an entry's stamp was taken under the leadership that appends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// At the append: as designed.
    AtAppend,
    /// When the entry is applied.
    AtApply,
    /// Nowhere: whoever leads appends what it once stamped.
    Nowhere,
}

/// Where a new leader's clock starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// At the last stamp of its log, uncommitted entries included: as designed.
    Log,
    /// At the clock of the applied state.
    Applied,
}

/// What a read does about an expiry that is not in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// It has a tick made, and answers from the state after it: as designed.
    InLog,
    /// It shows what is expired by the leader's clock.
    ByClock,
    /// It has a tick made, and shows the expiry that it saw before.
    Remembered,
}

/// What stamps are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamps {
    /// Anchor plus time of the leadership: as designed.
    Anchored,
    /// The node's wall clock; node 1's is ahead by so much.
    Wall {
        /// Units ahead.
        ahead: u8,
    },
}

/// The rules of a variant.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// See [`Check`].
    pub check: Check,
    /// See [`Anchor`].
    pub anchor: Anchor,
    /// See [`Reading`].
    pub reading: Reading,
    /// See [`Stamps`].
    pub stamps: Stamps,
    /// Time without a quorum counts beyond T.
    pub counts_gaps: bool,
    /// A holder counts from the answer, not from before it sent.
    pub from_answer: bool,
    /// How long a holder acts, by its own clock.
    pub acts_for: u8,
    /// Nodes' clocks may run at twice the holders' rate.
    pub may_run_double: bool,
}

/// The protocol as designed.
const DESIGNED: Rules = Rules {
    check: Check::AtAppend,
    anchor: Anchor::Log,
    reading: Reading::InLog,
    stamps: Stamps::Anchored,
    counts_gaps: false,
    from_answer: false,
    acts_for: TTL,
    may_run_double: false,
};

/// How far a search goes.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Units of real time.
    pub horizon: u8,
    /// Terms.
    pub terms: u8,
    /// Outages of the quorum.
    pub outages: u8,
    /// Clients.
    pub clients: u8,
}

/// What must come of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All properties hold, and the search saw at least so many different states.
    Holds {
        /// Fewer would mean that the model lost a part.
        states_min: usize,
    },
    /// This property is broken, in as many steps at least.
    Breaks {
        /// Its name.
        property: &'static str,
        /// Length of the shortest counterexample.
        steps: usize,
    },
}

/// A protocol, how far it is searched, and what must come of it.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// Its name in the table.
    pub name: &'static str,
    /// Its rules.
    pub rules: Rules,
    /// Bounds of its search.
    pub bounds: Bounds,
    /// What must come of it.
    pub verdict: Verdict,
}

const fn within(horizon: u8, terms: u8, outages: u8) -> Bounds {
    Bounds { horizon, terms, outages, clients: CLIENTS }
}

const fn holds(name: &'static str, rules: Rules, bounds: Bounds, states_min: usize) -> Variant {
    Variant { name, rules, bounds, verdict: Verdict::Holds { states_min } }
}

const fn breaks(name: &'static str, rules: Rules, bounds: Bounds, property: &'static str, steps: usize) -> Variant {
    Variant { name, rules, bounds, verdict: Verdict::Breaks { property, steps } }
}

/// All of them. The bounds of those that hold contain the bounds of those that break.
pub const VARIANTS: &[Variant] = &[
    holds("as designed", DESIGNED, within(3, 3, 0), 5_000_000),
    holds("as designed, quorum lost", DESIGNED, within(2, 2, 1), 1_500_000),
    holds("anchor = applied clock", Rules { anchor: Anchor::Applied, ..DESIGNED }, within(2, 3, 0), 1_300_000),
    holds(
        "leader 2x, holder acts for ttl/2",
        Rules { may_run_double: true, acts_for: TTL / 2, ..DESIGNED },
        within(2, 2, 0),
        1_600_000,
    ),
    breaks("no term check", Rules { check: Check::Nowhere, ..DESIGNED }, within(2, 2, 0), EARLY_EXPIRY, 9),
    breaks(
        "term check at apply only",
        Rules { check: Check::AtApply, ..DESIGNED },
        Bounds { clients: 1, ..within(2, 3, 0) },
        EARLY_EXPIRY,
        12,
    ),
    breaks(
        "no tick before an expired read",
        Rules { reading: Reading::ByClock, ..DESIGNED },
        within(2, 2, 0),
        SEEN_EXPIRED,
        11,
    ),
    breaks(
        "tick made, old state shown",
        Rules { reading: Reading::Remembered, ..DESIGNED },
        within(2, 2, 0),
        SEEN_EXPIRED,
        13,
    ),
    breaks("holder counts from the answer", Rules { from_answer: true, ..DESIGNED }, within(2, 2, 0), EARLY_EXPIRY, 8),
    breaks(
        "wall-clock stamps, 3 ahead",
        Rules { stamps: Stamps::Wall { ahead: 3 }, ..DESIGNED },
        within(2, 2, 0),
        EARLY_EXPIRY,
        6,
    ),
    breaks("leader 2x, no guard", Rules { may_run_double: true, ..DESIGNED }, within(2, 2, 0), EARLY_EXPIRY, 6),
    breaks("quorum gap counted", Rules { counts_gaps: true, ..DESIGNED }, within(2, 2, 1), OUTAGE_COUNTED, 9),
];
