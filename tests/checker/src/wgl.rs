//! Is there an order of a key's calls that real time allows and that explains every answer? Wing and Gong's search with
//! Lowe's memory of what was tried. It trusts no witness: no position, no clock, no term; so it judges the judge too.
//!
//! # Model
//! Each call acts at an instant between its invocation and its return; one whose outcome is unknown, at any later one or
//! never. The search takes, from the calls that nothing outstanding precedes, one after the other, over the states of
//! `blackbox`. It remembers (what was taken, state): from there everything has been tried.
//!
//! # Shortcuts, none of which changes the verdict
//! - A call that can act now and changes nothing does so at once: it can only be in the way of others later.
//! - Unknown calls that could only make time permit less (RENEW, PERSIST) explain nothing, and are left out.
//!
//! A waiting call may be asked of the machine more than once: its node asks again when it has lost sight of it, and what
//! was asked first may have had its grant meanwhile. So a key that has no order is searched once more, with a try in doubt
//! beside each waiting call.
//!
//! # What it does not show
//! - Keys of more than [`CALLS_MAX`] calls, or whose search takes more than [`STATES_MAX`] states, are not judged but
//!   counted: to refute costs 2^(unknown calls).
//! - Time only permits an end; whether something ended late, or how much was left of it, is not looked at.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasherDefault, DefaultHasher};

use super::blackbox::{Spec, Step};
use super::history::{Answer, Call, Operation, Outcome};
use super::{Rule, Verdict, Violation};

/// Of one key, tries in doubt included.
const CALLS_MAX: usize = 256;
/// Searched of one key.
const STATES_MAX: usize = 20_000;

/// What a search came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Search {
    /// There is such an order.
    Linearizable,
    /// There is none.
    NotLinearizable,
    /// It was given up.
    TooLong,
}

/// What [`cross_check`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CrossCheck {
    /// A key each, up to five.
    pub violations: Vec<Violation>,
    /// Keys with a verdict.
    pub judged: usize,
    /// Keys without one.
    pub too_long: usize,
}

/// Searches an order of each key's calls; see the module's head.
pub fn cross_check(history: &[Call]) -> CrossCheck {
    let mut keys: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
    for call in history {
        keys.entry(&call.key).or_default().push(call);
    }
    let (mut verdict, mut found) = (Verdict::default(), CrossCheck::default());
    for (key, calls) in keys {
        match search(&calls) {
            Search::Linearizable => found.judged += 1,
            Search::NotLinearizable => {
                found.judged += 1;
                verdict.add(Rule::Linearizable, || format!("no order of the {} calls of {key}", calls.len()));
            }
            Search::TooLong => found.too_long += 1,
        }
    }
    found.violations = verdict.0;
    found
}

/// A call to be put in order.
struct Item<'a> {
    call: &'a Call,
    /// `u64::MAX`: it may act at any time, or never.
    until_ns: u64,
}

/// Which items were taken.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Taken([u64; CALLS_MAX / 64]);

impl Taken {
    fn has(self, at: usize) -> bool {
        self.0[at / 64] & (1 << (at % 64)) != 0
    }

    fn with(mut self, at: usize) -> Self {
        self.0[at / 64] |= 1 << (at % 64);
        self
    }
}

/// The calls of one key, in order of their invocations. A call that was repeated is two: the try that was answered, and
/// one in doubt.
fn items<'a>(calls: &[&'a Call], waits_twice: bool) -> Vec<Item<'a>> {
    let mut items = Vec::with_capacity(calls.len());
    for call in calls {
        let explains = !matches!(
            call.operation,
            Operation::Renew { .. } | Operation::Persist | Operation::Trespass { .. } | Operation::Get
        );
        if (call.is_doubtful() && explains) || (waits_twice && call.is_wait() && call.answered().is_some()) {
            items.push(Item { call, until_ns: u64::MAX });
        }
        if matches!(call.outcome, Outcome::Answered(..)) && !tells_of_two_times(call) {
            items.push(Item { call, until_ns: call.returned_ns });
        }
    }
    items.sort_by_key(|item| (item.call.invoked_ns, item.until_ns));
    items
}

/// A wait that ended with its key's lifetime tells the end and, beside it, who holds the key that was made since: no one
/// instant has both.
fn tells_of_two_times(call: &Call) -> bool {
    let Some((_, Answer::Refused { reason, live: Some(_), .. })) = call.answered() else { return false };
    call.is_wait() && reason == "key_expired"
}

pub(super) fn search(calls: &[&Call]) -> Search {
    match search_once(calls, false) {
        Search::NotLinearizable if calls.iter().any(|call| call.is_wait()) => search_once(calls, true),
        found => found,
    }
}

fn search_once(calls: &[&Call], waits_twice: bool) -> Search {
    let items = items(calls, waits_twice);
    if items.len() > CALLS_MAX {
        return Search::TooLong;
    }
    let mut tried: HashSet<(Taken, Spec), BuildHasherDefault<DefaultHasher>> = HashSet::default();
    let mut open = vec![(Taken::default(), 0, Spec::default())];
    while let Some((taken, mut first, spec)) = open.pop() {
        while first < items.len() && taken.has(first) {
            first += 1;
        }
        let left = || (first..items.len()).filter(|at| !taken.has(*at));
        // Whatever acts next does so before the first return that is outstanding.
        let until_ns = least_return(&items, left());
        if until_ns == u64::MAX {
            return Search::Linearizable;
        }
        if tried.len() >= STATES_MAX {
            return Search::TooLong;
        }
        let mut next: Vec<(Taken, usize, Spec)> = Vec::new();
        for at in left().take_while(|at| items[*at].call.invoked_ns <= until_ns) {
            let in_doubt = items[at].until_ns == u64::MAX;
            let after = spec.after(&Step { call: items[at].call, in_doubt, until_ns });
            if !in_doubt && after.contains(&spec) {
                next = vec![(taken.with(at), first, spec.clone())];
                break;
            }
            next.extend(after.into_iter().filter(|after| *after != spec).map(|after| (taken.with(at), first, after)));
        }
        open.extend(next.into_iter().rev().filter(|(taken, _, spec)| tried.insert((*taken, spec.clone()))));
    }
    Search::NotLinearizable
}

fn least_return(items: &[Item<'_>], left: impl Iterator<Item = usize>) -> u64 {
    let mut least = u64::MAX;
    for at in left {
        // In order of invocations: nobody later can have returned before.
        if items[at].call.invoked_ns > least {
            break;
        }
        least = least.min(items[at].until_ns);
    }
    least
}
