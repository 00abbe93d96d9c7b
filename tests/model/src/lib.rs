//! The stamp protocol as a model, searched exhaustively within small bounds.
//!
//! What is modelled: the leader's clock (`cluster/src/clock.rs`, `timekeeper.rs`: anchor at the last stamp of the
//! log, runs with the node's own clock, stands once no quorum has acknowledged it for T), the order of an entry
//! (`ordering.rs`: stamped under a leadership, stalled for any time, appended only under that leadership), ticks
//! (`tick.rs`), linearizable reads that have a tick made before they show an expiry (`reads.rs`), the expiry rule of
//! a lease (`src/keyspace`: expired when `now >= deadline`, judged at each entry; RENEW never shortens and is false
//! once expired), and holders that stop by their own clocks. Two nodes, two clients with two operations each, one
//! lease, a TTL of 2 units, T = 1 unit.
//!
//! What is abstracted. *Raft*: one committed machine, and the leader's uncommitted suffix of at most two entries. An
//! election makes either node leader and keeps any prefix of that suffix; what a deposed leader appends to its own
//! log is left out, for a leadership that commits nothing is seen by nobody and may as well have come later. A
//! deposed leader goes on to stamp, and never has to notice. A term is a leadership here, which replication tells by
//! term and node. A quorum is there or not, for all. *Messages*: an answer may take any time or never come, and a
//! client may go on without it. An operation is sent and stamped in one step:
//! time between the two only makes the holder stop sooner. A tick for a timer is stamped and appended in one step;
//! one for a read may stall. *Time* passes in whole units, on all clocks at once, unless a variant says otherwise.
//!
//! What is not covered: RELEASE, BREAK, waiters, pools, membership, several voters' logs, snapshots, a sole voter,
//! the part of the clock's rule about an entry that stays uncommitted (a stuck disk), more than one outage, and
//! whatever needs more time, terms or operations than a run's bounds. A pass says: no violation within these bounds,
//! no more. The simulator (`tests/sim`) drives the real code through the rest.
//!
//! States that differ only in what can no longer matter are one (`reduction.rs`, with its own test).
//!
//! [`Protocol`] is the model, [`Variant`] the protocol as designed and what it must not be, [`Finding`] what a search
//! found.

mod actions;
mod finding;
mod machine;
mod model;
mod properties;
mod reduction;
mod state;
mod variants;

pub use actions::Action;
pub use finding::{Finding, search, table};
pub use model::Protocol;
pub use properties::{CLOCK_AHEAD, EARLY_EXPIRY, OUTAGE_COUNTED, SEEN_EXPIRED, TWO_HOLDERS};
pub use state::State;
pub use variants::{Bounds, Rules, VARIANTS, Variant, Verdict};
