//! What is told of a run that broke a law: one line that replays it, and all that is needed to understand it.
//!
//! First it is run again, alone: if that is another run, the harness is at fault and nothing else is worth a look. Then its
//! plan is shrunk and kept.

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use sim::judge::Violation;
use sim::plan::Plan;
use sim::plan::shrink::candidates;
use sim::run::Options;

use super::saved::{self, Kept};
use super::shrink::{Shrunk, shrink};
use super::sweep::{Failed, Job, Origin};
use super::trial::{DETERMINISTIC, ENDS, Trial, Tried};

/// Shrinking is given up after so many runs.
const TRIES_MAX: u64 = 1_000;

/// How failures are reported.
#[derive(Clone, Debug)]
pub struct Reporter<'a> {
    /// How a run is run.
    pub trial: Trial,
    /// Which sources.
    pub commit: &'a str,
    /// Where plans are kept.
    pub keep: &'a Path,
    /// For how long they are shrunk.
    pub shrink_max: Duration,
}

/// What is known of a failure.
#[derive(Debug)]
pub struct Report {
    /// The law that is named.
    law: String,
    seed: u64,
    commit: String,
    origin: Origin,
    /// Where its plan is kept, if it could be.
    plan: Result<PathBuf>,
    violations: Vec<Violation>,
    shrunk: Shrunk<Plan>,
    acts: usize,
    trace: Vec<String>,
}

impl Reporter<'_> {
    /// Runs `failed` again, shrinks and keeps its plan.
    pub fn report(&self, failed: &Failed) -> Report {
        let Job { origin, plan, .. } = &failed.job;
        let mut violations = failed.tried.outcome.violations.clone();
        // Whoever stops us before the end knows that much.
        eprintln!("seed {:#x} broke {}; running it again, shrinking it", plan.seed, failed.tried.laws().join(", "));
        let again = self.trial.alone(plan, &Options::default());
        if let Some(detail) = difference(&failed.tried, &again) {
            violations.insert(0, Violation { law: DETERMINISTIC.to_owned(), detail });
        }
        let law = violations.first().map_or_else(String::new, |violation| violation.law.clone());
        let shrunk = if !self.shrink_max.is_zero() && law != DETERMINISTIC && law != ENDS {
            self.shrunk(plan, &law)
        } else {
            Shrunk { case: plan.clone(), steps: 0, tries: 0 }
        };
        let trace =
            if shrunk.steps > 0 { self.trial.alone(&shrunk.case, &Options::default()) } else { again }.outcome.trace;
        let cause = violations.first().map_or_else(String::new, |violation| violation.detail.clone());
        let cause = if cause.trim().is_empty() { law.clone() } else { cause };
        let (commit, seed) = (self.commit.to_owned(), plan.seed);
        let kept = Kept { cause, law, commit, plan: shrunk.case.clone() };
        let path = saved::keep(self.keep, &kept);
        let (law, commit, origin, acts) = (kept.law, kept.commit, origin.clone(), plan.acts.len());
        Report { law, seed, commit, origin, plan: path, violations, shrunk, acts, trace }
    }

    fn shrunk(&self, plan: &Plan, law: &str) -> Shrunk<Plan> {
        let until = Instant::now() + self.shrink_max;
        let fails = |plan: &Plan| self.trial.alone(plan, &Options::default()).laws().contains(&law);
        shrink(
            plan.clone(),
            |plan| Box::new(candidates(plan)),
            fails,
            |tries| tries < TRIES_MAX && Instant::now() < until,
        )
    }
}

/// How the same plan ran otherwise. A run that does not end has no hash.
fn difference(first: &Tried, again: &Tried) -> Option<String> {
    if first.laws() == [ENDS] && again.laws() == [ENDS] {
        return None;
    }
    let (one, other) = (first.outcome.trace_hash, again.outcome.trace_hash);
    if one != other {
        return Some(format!("trace {one:#x} in the sweep, {other:#x} alone"));
    }
    let laws =
        |tried: &Tried| tried.laws().into_iter().filter(|law| *law != DETERMINISTIC).collect::<Vec<_>>().join(" ");
    (laws(first) != laws(again)).then(|| format!("broken in the sweep: {}; alone: {}", laws(first), laws(again)))
}

impl Report {
    /// The one line that replays it.
    pub fn line(&self) -> String {
        let Self { law, seed, commit, plan, .. } = self;
        let what = match &self.origin {
            Origin::Seed => format!("--seed {seed:#x}"),
            Origin::File(path) => format!("--plan {}", path.display()),
        };
        let plan = match plan {
            Ok(path) => path.display().to_string(),
            Err(error) => format!("none ({error:#})"),
        };
        let harness = if law == DETERMINISTIC { " (nondeterministic harness)" } else { "" };
        format!(
            "FAIL seed={seed:#x} law={law}{harness} commit={commit} plan={plan} \
             replay: cargo run -p sim --release --locked -- {what} --trace"
        )
    }
}

impl fmt::Display for Report {
    /// The line, the end of the trace, and what was broken.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.line())?;
        let smaller = if self.shrunk.steps > 0 { ", of the shrunk plan" } else { "" };
        writeln!(f, "the last {} lines of the trace{smaller}:", self.trace.len())?;
        for line in &self.trace {
            writeln!(f, "  {line}")?;
        }
        let left = self.shrunk.case.acts.len();
        writeln!(f, "plan: {left} of {} acts left after {} tries to shrink it", self.acts, self.shrunk.tries)?;
        f.write_str(&broken(&self.violations))
    }
}

/// A line for each violation.
pub fn broken(violations: &[Violation]) -> String {
    violations.iter().fold(String::new(), |mut text, Violation { law, detail }| {
        // A string takes all.
        let _ = writeln!(text, "  {law}: {detail}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::atomic::{AtomicU64, Ordering};

    use sim::plan::{Act, Timed};
    use sim::run::Outcome;

    use super::*;

    fn violation(law: &str) -> Violation {
        Violation { law: law.to_owned(), detail: format!("{law} was broken") }
    }

    fn plan(acts: u64) -> Plan {
        let acts = (0..acts).map(|at| Timed { at_ms: at, act: Act::Kill { node: at } });
        Plan { acts: acts.collect(), ..Plan::from_seed(0x2a) }
    }

    fn report(run: fn(&Plan, &Options) -> Outcome, origin: Origin, name: &str) -> Report {
        let keep = std::env::temp_dir().join(format!("sim-{name}-{}", std::process::id()));
        let trial = Trial { run, bug: None, run_max: Duration::from_secs(60) };
        let job = Job { origin, plan: plan(40), hash: None };
        let tried = trial.alone(&job.plan, &Options::default());
        let reporter = Reporter { trial, commit: "e7000e25", keep: &keep, shrink_max: Duration::from_secs(60) };
        let report = reporter.report(&Failed { place: 0, job, tried });
        let kept = saved::plan(report.plan.as_ref().unwrap()).unwrap();
        assert_eq!((&kept.law, &kept.plan), (&report.law, &report.shrunk.case));
        fs::remove_dir_all(&keep).unwrap();
        report
    }

    /// Breaks a law if nodes 7 and 30 are both killed, another with fewer than 20 acts.
    fn two_kills(plan: &Plan, _: &Options) -> Outcome {
        let killed = |node| plan.acts.iter().any(|timed| timed.act == Act::Kill { node });
        let mut violations = Vec::new();
        if killed(7) && killed(30) {
            violations.push(violation("NotEarly"));
        }
        if plan.acts.len() < 20 {
            violations.push(violation("NeverStale"));
        }
        let trace = (0..plan.acts.len()).map(|line| format!("line {line}")).collect();
        Outcome { violations, trace, trace_hash: 1, ..Outcome::default() }
    }

    #[test]
    fn the_same_law_is_shrunk_and_kept() {
        let report = report(two_kills, Origin::Seed, "shrunk");
        assert_eq!(report.law, "NotEarly");
        assert_eq!(report.shrunk.case.acts.iter().map(|timed| timed.at_ms).collect::<Vec<_>>(), [7, 30]);
        let line = report.line();
        assert!(line.starts_with("FAIL seed=0x2a law=NotEarly commit=e7000e25 plan="), "{line}");
        assert!(line.ends_with(" replay: cargo run -p sim --release --locked -- --seed 0x2a --trace"), "{line}");
        let text = report.to_string();
        assert!(text.contains("the last 2 lines of the trace, of the shrunk plan:\n  line 0\n"), "{text}");
        assert!(text.ends_with("  NotEarly: NotEarly was broken\n"), "{text}");
        assert!(text.contains("plan: 2 of 40 acts left"), "{text}");
    }

    #[test]
    fn a_kept_plan_is_replayed_from_its_file() {
        let line = report(two_kills, Origin::File("some/plan.json".into()), "file").line();
        assert!(line.ends_with("-- --plan some/plan.json --trace"), "{line}");
    }

    #[test]
    fn another_run_of_the_same_plan_is_the_harness_fault() {
        static RUNS: AtomicU64 = AtomicU64::new(0);
        let report = report(
            |plan, options| Outcome { trace_hash: RUNS.fetch_add(1, Ordering::Relaxed), ..two_kills(plan, options) },
            Origin::Seed,
            "other",
        );
        assert_eq!((report.law.as_str(), report.shrunk.tries), (DETERMINISTIC, 0));
        assert!(report.line().contains("law=Deterministic (nondeterministic harness) "), "{}", report.line());
        assert!(report.to_string().contains("trace 0x0 in the sweep, 0x1 alone"), "{report}");
    }

    #[test]
    fn a_panic_is_shrunk_as_any_other() {
        let panics: fn(&Plan, &Options) -> Outcome = |plan, _| match plan.acts.iter().find(|timed| timed.at_ms == 9) {
            Some(_) => panic!("nine"),
            None => Outcome::default(),
        };
        let report = report(panics, Origin::Seed, "panic");
        assert_eq!((report.law.as_str(), report.shrunk.case.acts.len()), ("NoPanic", 1));
        assert!(report.to_string().contains("  NoPanic: nine at "), "{report}");
    }
}
