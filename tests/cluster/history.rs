//! Where clients write down what they do, and how it is judged.
//!
//! Bounded: loads end before [`CALLS_MAX`] calls. A history that breaks a promise is saved, and its path printed.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tenure_client::{Clock, HostClock};

use checker::{self, Answer, Call, Operation, Outcome};

/// About 250 bytes each.
const CALLS_MAX: usize = 1_000_000;
/// For whatever is asked after the load.
const CALLS_RESERVED: usize = 50_000;

/// Nanoseconds of the clock that holders use.
pub fn now_ns() -> u64 {
    HostClock.now().ns
}

/// A history being written. Clones are one history.
#[derive(Clone, Default)]
pub struct History(Arc<Mutex<Vec<Call>>>);

/// How much a history tries: a verdict over nothing says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub grants: usize,
    pub renewals: usize,
    pub releases: usize,
    pub refusals: usize,
    pub reads: usize,
    pub lifetimes: usize,
    pub without_effect: usize,
    pub unknown: usize,
}

impl History {
    /// Takes in a call. None may be left out: what follows could not be judged.
    pub fn record(&self, call: Call) {
        let mut calls = self.0.lock().unwrap();
        assert!(calls.len() < CALLS_MAX, "the history is full: fewer rounds");
        calls.push(call);
    }

    /// A load must end now.
    pub fn is_full(&self) -> bool {
        self.len() + CALLS_RESERVED >= CALLS_MAX
    }

    /// All calls so far.
    pub fn calls(&self) -> Vec<Call> {
        self.0.lock().unwrap().clone()
    }

    /// How many calls so far.
    pub fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// All keys so far, each once.
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.0.lock().unwrap().iter().map(|call| call.key.clone()).collect();
        keys.sort();
        keys.dedup();
        keys
    }

    /// When the first grant was answered that was asked for at `from_ns` or later.
    pub fn first_grant_from(&self, from_ns: u64) -> Option<u64> {
        let calls = self.0.lock().unwrap();
        // Nearly in the order of their returns: the newest are enough.
        let late = calls.iter().rev().take_while(|call| call.returned_ns >= from_ns.saturating_sub(1_000_000_000));
        let grants = late.filter(|call| call.invoked_ns >= from_ns && is_grant(call));
        grants.map(|call| call.returned_ns).min()
    }

    /// How much there is of each.
    pub fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for call in self.0.lock().unwrap().iter() {
            let count = match (&call.outcome, call.operation) {
                (Outcome::Nothing, _) => &mut tally.without_effect,
                (Outcome::Unknown, _) => &mut tally.unknown,
                (_, Operation::Get) => &mut tally.reads,
                (Outcome::Answered(_, Answer::Refused { .. }), _) => &mut tally.refusals,
                (_, Operation::Acquire { .. } | Operation::Wait { .. }) => &mut tally.grants,
                (_, Operation::Renew { .. } | Operation::Trespass { .. }) => &mut tally.renewals,
                (_, Operation::Release { .. } | Operation::Break | Operation::Delete) => &mut tally.releases,
                (_, Operation::Expire { .. } | Operation::Persist) => &mut tally.lifetimes,
            };
            *count += 1;
        }
        tally
    }

    /// Fails, with the history saved, if it breaks a promise. Prints what was tried.
    pub fn judge(&self, scenario: &str) -> Tally {
        let calls = self.calls();
        let mut violations = checker::check(&calls);
        let crossed = checker::cross_check(&calls);
        violations.extend(crossed.violations);
        if !violations.is_empty() {
            let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("history-{scenario}-{}", now_ns()));
            checker::save(&calls, &path).unwrap();
            let list: Vec<String> = violations.iter().map(ToString::to_string).collect();
            panic!("{scenario}: saved in {}, {} violations:\n  {}", path.display(), list.len(), list.join("\n  "));
        }
        let tally = self.tally();
        let (judged, too_long) = (crossed.judged, crossed.too_long);
        eprintln!("{scenario}: {tally:?}; in some order: {judged} keys, {too_long} too long to say");
        tally
    }
}

fn is_grant(call: &Call) -> bool {
    let granted = matches!(call.outcome, Outcome::Answered(_, Answer::Granted(_)));
    granted && matches!(call.operation, Operation::Acquire { .. } | Operation::Wait { .. })
}
