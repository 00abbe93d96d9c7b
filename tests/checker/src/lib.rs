//! Does a recorded history obey what tenure promises? Pure: calls in, violations out. No processes, no runtime, no
//! clock, so that tests on real processes and a simulator check by the same rules.
//!
//! # What an empty verdict shows of a history
//! - `holders`: no two clients believed to hold one key at one instant, each by its own deadline;
//! - `order`: positions, clocks and terms grow together and with real time; no position was used twice; nobody was shown
//!   less than what had been answered before he asked (no stale read); fences grow; the clock did not outrun real time;
//! - `lineage`: per key, in the order of the log: no grant ended, was seen ended, or was given to another before its
//!   deadline on the cluster clock; none was renewed or seen after its end; what was acknowledged is in every later
//!   state, so also in the last one read (the caller reads each key once more at the end); no key went before its
//!   lifetime was over, or under a live grant; no token but the holder's moved anything.
//!
//! Beside it, [`cross_check`] trusts no witness: see `wgl`.
//!
//! # Doubt
//! A call whose outcome is unknown may act at any later position, never or late. It excuses what it could explain, and
//! nothing else: an unknown RELEASE of a grant excuses the early end of that grant, not of another.
//!
//! # Waiting in line
//! A wait that was granted has the position of whatever made the lease free, which another's call may have too; order at one
//! position follows from the fences. A grant of a waiting call that nobody answered may go back (`undelivered`) until its
//! token is heard of. A wait without a grant is judged as a read.
//!
//! # What it does not show
//! - That who came first was granted first: no answer tells a client its place. The simulator's judge reads the log.
//! - It judges what was recorded: a rule that no call came near is not tried. Count calls before trusting a verdict.
//! - [`check`] trusts positions to order calls, and checks that they agree with real time. It searches no other order.
//! - Nothing is "late": that a grant ends soon after its deadline, or that calls succeed, is for the caller to measure.
//! - Real time is one clock: all calls of a history come from one process.
//! - Stale reads, CREATE, options of keys, BREAK with a grace are not in its model: do not record them. Neither is the
//!   end by idling, 24 h after a grant ended.
//!
//! Time: sorting, then passes that are linear in the calls (but for BREAK and DEL against the holders of their key).

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking"))]

mod blackbox;
mod dice;
mod doubt;
mod history;
mod holders;
mod lineage;
mod order;
mod state;
mod wgl;

#[cfg(test)]
mod faulty;
#[cfg(test)]
mod planted;
#[cfg(test)]
mod random;
#[cfg(test)]
mod store;
#[cfg(test)]
mod waited;
#[cfg(test)]
mod wgl_tests;

pub use dice::Dice;
pub use history::{Answer, Call, Live, Operation, Outcome, Position, Sight, Witness, load, save};

pub use wgl::{CrossCheck, cross_check};

use std::fmt;

/// Of each rule; more tell nothing new.
const VIOLATIONS_MAX: usize = 5;

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub rule: Rule,
    /// What was recorded against it.
    pub detail: String,
}

/// The promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule {
    /// Two believed to hold one key.
    OneHolder,
    /// Each grant's fence is greater than all before it.
    FencesGrow,
    /// One position is one command.
    PositionsAreUnique,
    /// The clock and the term never fall along the log.
    ClockGrows,
    /// The clock is not faster than real time by more than rho.
    ClockKeepsPace,
    /// Whoever asks after an answer sees at least what it saw.
    NeverStale,
    /// No grant ends before its deadline but by its holder, BREAK or DEL.
    NotEarly,
    /// What has ended stays so.
    EndedStaysEnded,
    /// A deadline moves by RENEW alone, and never back.
    DeadlinesStand,
    /// What was acknowledged is there.
    NothingIsLost,
    /// What is there was asked for.
    NothingFromNowhere,
    /// ACQUIRE of a free key is granted.
    FreeIsGranted,
    /// A grant obeys its token alone, not its owner's name or its fence.
    TokensOnly,
    /// A key goes, and refuses with `key_expired`, when its lifetime is over and not before.
    LifetimesStand,
    /// Some order of the calls that real time allows explains every answer: [`cross_check`], not [`check`].
    Linearizable,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.detail)
    }
}

/// Collects violations up to each rule's greatest number.
#[derive(Default)]
struct Verdict(Vec<Violation>);

impl Verdict {
    fn add(&mut self, rule: Rule, detail: impl FnOnce() -> String) {
        if self.0.iter().filter(|violation| violation.rule == rule).count() < VIOLATIONS_MAX {
            self.0.push(Violation { rule, detail: detail() });
        }
    }
}

/// Everything in `history` that breaks a promise, up to five times each.
pub fn check(history: &[Call]) -> Vec<Violation> {
    let mut verdict = Verdict::default();
    holders::check(history, &mut verdict);
    order::check(history, &mut verdict);
    lineage::check(history, &mut verdict);
    verdict.0
}
