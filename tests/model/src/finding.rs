//! A search of a variant, what it found, and the table of all findings.

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model};

use crate::actions::Action;
use crate::model::Protocol;
use crate::variants::{Bounds, Variant, Verdict};

/// What a search found.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The variant's name.
    pub name: &'static str,
    /// How far it was searched.
    pub bounds: Bounds,
    /// Different states seen.
    pub states: usize,
    /// How long it took.
    pub took: Duration,
    /// Broken properties, each with the steps that break it.
    pub broken: Vec<(&'static str, Vec<Action>)>,
    /// What should have been possible, and was not seen.
    pub unseen: Vec<&'static str>,
}

/// Searches `variant` with so many threads, breadth first: to the end, or until what it must break is broken.
#[must_use]
pub fn search(variant: &Variant, threads: usize) -> Finding {
    let protocol = Protocol { rules: variant.rules, bounds: variant.bounds, forgets: true };
    let (threads, until) = match variant.verdict {
        Verdict::Holds { .. } => (threads, HasDiscoveries::AnyFailures),
        // One thread finds the shortest way, and always the same.
        Verdict::Breaks { property, .. } => (1, HasDiscoveries::AllOf(BTreeSet::from([property]))),
    };
    let start = Instant::now();
    let mut checker = protocol.checker().threads(threads).finish_when(until.clone()).spawn_bfs().join();
    if let Verdict::Breaks { property, .. } = variant.verdict {
        // The search ends at a block of states, and tells the last way in it: look for one that is shorter.
        while let Some(path) = checker.discovery(property) {
            let states = path.into_states().len();
            let shorter = protocol.checker().target_max_depth(states).finish_when(until.clone()).spawn_bfs().join();
            if shorter.discovery(property).is_none() {
                break;
            }
            checker = shorter;
        }
    }
    let took = start.elapsed();
    let mut found = checker.discoveries();
    let (mut broken, mut unseen) = (Vec::new(), Vec::new());
    for property in protocol.properties() {
        match (property.expectation.discovery_is_failure(), found.remove(property.name)) {
            (true, Some(path)) => broken.push((property.name, path.into_actions())),
            (false, None) => unseen.push(property.name),
            (true, None) | (false, Some(_)) => {}
        }
    }
    Finding { name: variant.name, bounds: variant.bounds, states: checker.unique_state_count(), took, broken, unseen }
}

impl Finding {
    /// Is it what `variant` asks for? Says why not.
    ///
    /// # Errors
    /// What is wrong.
    pub fn meets(&self, verdict: Verdict) -> Result<(), String> {
        match verdict {
            Verdict::Holds { states_min } => {
                if !self.broken.is_empty() {
                    return Err(format!("{}: a property is broken\n{self:#}", self.name));
                }
                if !self.unseen.is_empty() {
                    return Err(format!("{}: never happened: {}", self.name, self.unseen.join(", ")));
                }
                if self.states < states_min {
                    return Err(format!("{}: {} states, at least {states_min} expected", self.name, self.states));
                }
            }
            Verdict::Breaks { property, steps } => {
                let Some((_, actions)) = self.broken.iter().find(|(name, _)| *name == property) else {
                    return Err(format!("{}: `{property}` was not broken\n{self:#}", self.name));
                };
                if actions.len() != steps {
                    return Err(format!("{}: {} steps, {steps} expected\n{self:#}", self.name, actions.len()));
                }
            }
        }
        Ok(())
    }
}

/// A row of the table; with `{:#}` the steps of each counterexample too.
impl Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bounds { horizon, terms, outages, clients } = self.bounds;
        let broken: Vec<_> =
            self.broken.iter().map(|(name, steps)| format!("{name} ({} steps)", steps.len())).collect();
        let result = if broken.is_empty() { "none".to_owned() } else { broken.join(", ") };
        let bounds = format!("{horizon}/{terms}/{outages}/{clients}");
        write!(f, "{:<34}  {bounds:<7} {:>10} {:>7.1} s  {result}", self.name, self.states, self.took.as_secs_f64())?;
        if f.alternate() {
            for (name, steps) in &self.broken {
                write!(f, "\n  {name}:")?;
                for (number, step) in steps.iter().enumerate() {
                    write!(f, "\n    {:>2}. {step:?}", number + 1)?;
                }
            }
        }
        Ok(())
    }
}

/// The table of `findings`.
#[must_use]
pub fn table(findings: &[Finding]) -> String {
    let head = format!("{:<34}  {:<7} {:>10} {:>9}  violations", "variant", "h/t/o/c", "states", "time");
    let rows = findings.iter().map(Finding::to_string);
    std::iter::once(head).chain(rows).collect::<Vec<_>>().join("\n")
}
