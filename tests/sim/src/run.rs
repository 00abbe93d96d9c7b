//! One run of a plan: found, let clients work while things go wrong, heal, and judge.
//!
//! ```text
//! found -> clients start -> acts, each at its time -> heal -> clients stop, and look at every key -> all nodes alike?
//!       -> a while in which nothing goes wrong: prompt, and on time?
//! ```
//! Whatever did not come to be after the heal, though there was time, breaks the law `Recovers`. Not judged: how long
//! anything takes while things go wrong.

use std::collections::BTreeMap;
use std::time::Duration;

use checker::Outcome as Came;

use crate::clients::{Clients, beliefs, counted};
use crate::coverage::Coverage;
use crate::judge::{Ledger, Violation};
use crate::plan::Plan;
use crate::runtime;
use crate::world::World;

/// In what time after the heal all nodes are alike.
const SETTLES_WITHIN: Duration = Duration::from_secs(60);

/// Lines of the trace that are kept.
const TRACE_LINES: usize = 400;

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What was broken; empty is good.
    pub violations: Vec<Violation>,
    /// Equal for equal runs.
    pub trace_hash: u64,
    /// Effects of faults.
    pub coverage: BTreeMap<&'static str, u64>,
    /// Virtual milliseconds that passed.
    pub simulated_ms: u64,
    /// Calls that were answered.
    pub answered: u64,
    /// Calls in doubt.
    pub unknown: u64,
    /// The last lines of the trace, when one was asked for.
    pub trace: Vec<String>,
}

/// What to keep of a run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Print each line of the trace.
    pub trace: bool,
}

/// Runs `plan` to its end.
pub fn run(plan: &Plan, options: &Options) -> Outcome {
    let kept = runtime::Options { trace_print: options.trace, trace_lines: TRACE_LINES, ..runtime::Options::default() };
    let ledger = Ledger::default();
    let installed = ledger.install();
    let mut outcome = runtime::simulate_with(plan.seed, kept, played(plan, &ledger));
    drop(installed);
    outcome.trace = runtime::take_trace();
    outcome
}

async fn played(plan: &Plan, ledger: &Ledger) -> Outcome {
    let coverage = Coverage::default();
    let world = World::new(plan, ledger, &coverage);
    world.found().await;
    let clients = Clients::start(&world, &plan.shape, plan.seed);
    go_wrong(plan, &world).await;
    world.heal().await;
    clients.stop().await;
    let mut late = clients.finish(&world).await;
    late.extend(world.settle(SETTLES_WITHIN).await);
    late.extend(world.be_quiet().await);

    let calls = clients.notes.calls.lock().unwrap().clone();
    ledger.acknowledged(&calls);
    ledger.told(&clients.notes.told.lock().unwrap());
    ledger.shown(&clients.notes.shown.lock().unwrap());
    ledger.without_effect(&clients.notes.without_effect.lock().unwrap());
    calls.iter().filter_map(counted).for_each(|what| coverage.fired(what));
    ledger.timed(&calls, plan.shape.longest_election_ms());
    let mut violations = ledger.violations();
    let of_history = |found: checker::Violation| Violation { law: format!("{:?}", found.rule), detail: found.detail };
    violations.extend(checker::check(&calls).into_iter().map(of_history));
    let crossed = checker::cross_check(&calls);
    violations.extend(crossed.violations.into_iter().map(of_history));
    coverage.add("keys_cross_checked", crossed.judged as u64);
    coverage.add("keys_too_long", crossed.too_long as u64);
    let broken = |(law, detail): (&str, String)| Violation { law: law.to_owned(), detail };
    violations.extend(beliefs::overlaps(&clients.notes, &ledger.overridden()).into_iter().map(broken));
    violations.extend(late.into_iter().map(|line| ("Recovers", line)).map(broken));
    for (what, times) in ledger.counts().into_iter().chain([("stalled", runtime::stalls())]) {
        if times > 0 {
            coverage.add(what, times);
        }
    }
    Outcome {
        violations,
        trace_hash: runtime::trace_hash(),
        coverage: coverage.counts(),
        simulated_ms: runtime::now_ns() / 1_000_000,
        answered: calls.iter().filter(|call| call.answered().is_some()).count() as u64,
        unknown: calls.iter().filter(|call| matches!(call.outcome, Came::Unknown)).count() as u64,
        trace: Vec::new(),
    }
}

/// Does each act at its time, counted from now, until the phase of faults is over.
async fn go_wrong(plan: &Plan, world: &World) {
    let began_ns = runtime::now_ns();
    let until = |at_ms: u64| {
        let at_ns = began_ns + at_ms * 1_000_000;
        runtime::sleep(Duration::from_nanos(at_ns.saturating_sub(runtime::now_ns())))
    };
    for timed in &plan.acts {
        until(timed.at_ms.min(plan.shape.fault_ms)).await;
        world.act(&timed.act).await;
    }
    until(plan.shape.fault_ms).await;
}
