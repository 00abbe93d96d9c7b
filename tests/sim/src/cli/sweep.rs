//! Many runs, several at a time, until one fails.
//!
//! Invariants: runs begin in the order of their plans, and every run that began is waited for. So the first of the
//! failures, in that order, is the same however many run at one time. Memory does not grow with the number of runs.
//!
//! Not promised: that a run which does not end is waited for longer than `run_max`; its thread stays.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use sim::judge::Violation;
use sim::plan::Plan;
use sim::run::Options;

use super::progress::Progress;
use super::totals::Totals;
use super::trial::{DETERMINISTIC, Trial, Tried};

/// Between two looks at the clock.
const LOOK: Duration = Duration::from_millis(100);

/// Where a plan comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Its seed.
    Seed,
    /// A kept plan.
    File(PathBuf),
}

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Job {
    /// Where the plan comes from.
    pub origin: Origin,
    /// The plan.
    pub plan: Plan,
    /// The trace's hash of the same plan, run before.
    pub hash: Option<u64>,
}

impl Job {
    /// The run of a seed.
    pub fn seed(seed: u64) -> Self {
        Self { origin: Origin::Seed, plan: Plan::from_seed(seed), hash: None }
    }
}

/// A run that broke a law.
#[derive(Clone, Debug)]
pub struct Failed {
    /// Its place in the order of plans, from 0.
    pub place: u64,
    /// What was run.
    pub job: Job,
    /// How it ended.
    pub tried: Tried,
}

impl Failed {
    /// Did it break one of these, where any is named?
    pub fn is_named(&self, laws: &[&str]) -> bool {
        laws.is_empty() || self.tried.laws().iter().any(|law| laws.contains(law))
    }
}

/// How a sweep is run.
#[derive(Clone, Copy, Debug)]
pub struct Sweep {
    /// A single run.
    pub trial: Trial,
    /// Runs at one time.
    pub jobs: usize,
    /// Begin no run after so many have failed,
    pub failures_max: usize,
    /// by one of these laws; where none is named, by any.
    pub laws: &'static [&'static str],
    /// Begin no run after this instant,
    pub until: Option<Instant>,
    /// but for the first so many.
    pub at_least: u64,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Swept {
    /// Of all runs.
    pub totals: Totals,
    /// In the order of plans.
    pub failed: Vec<Failed>,
    /// Of them, those that broke one of the laws that were looked for.
    pub named: usize,
    /// There were more plans than time.
    pub out_of_time: bool,
}

impl Sweep {
    /// Runs the plans of `jobs`, of which there are `of`, if that is known.
    pub fn run(&self, mut jobs: impl Iterator<Item = Job>, of: Option<u64>) -> Swept {
        let from = Instant::now();
        let mut progress = Progress::new(of);
        let mut swept = Swept::default();
        let mut running: BTreeMap<u64, (Job, Instant)> = BTreeMap::new();
        let (done, ended) = sync_channel::<(u64, Tried)>(self.jobs);
        let mut begun = 0;
        loop {
            while running.len() < self.jobs && swept.named < self.failures_max && !swept.out_of_time {
                let Some(job) = jobs.next() else { break };
                if begun >= self.at_least && self.until.is_some_and(|until| Instant::now() >= until) {
                    swept.out_of_time = true;
                    break;
                }
                let (place, done) = (begun, done.clone());
                // Nobody waits for a run that was given up.
                let then = move |tried| drop(done.send((place, tried)));
                self.trial.start(job.plan.clone(), Options::default(), then);
                running.insert(place, (job, Instant::now()));
                begun += 1;
            }
            if running.is_empty() {
                break;
            }
            let over = match ended.recv_timeout(LOOK) {
                Ok(ended) => Some(ended),
                Err(_) => self.endless(&running).map(|place| (place, Tried::endless(self.trial.run_max))),
            };
            swept.totals.wall = from.elapsed();
            // A run may end after it was given up: then it is not among the running.
            if let Some((place, tried)) = over
                && let Some((job, _)) = running.remove(&place)
            {
                swept.take(place, job, tried, self.laws);
            }
            progress.tell(&swept.totals);
        }
        progress.end();
        swept.failed.sort_by_key(|failed| failed.place);
        swept
    }

    fn endless(&self, running: &BTreeMap<u64, (Job, Instant)>) -> Option<u64> {
        let over = |since: &Instant| since.elapsed() > self.trial.run_max;
        running.iter().find(|(_, (_, since))| over(since)).map(|(place, _)| *place)
    }
}

impl Swept {
    fn take(&mut self, place: u64, job: Job, mut tried: Tried, laws: &[&str]) {
        if let Some(hash) = job.hash.filter(|hash| *hash != tried.outcome.trace_hash) {
            let detail = format!("trace {hash:#x} alone, {:#x} in the sweep", tried.outcome.trace_hash);
            tried.outcome.violations.insert(0, Violation { law: DETERMINISTIC.to_owned(), detail });
        }
        self.totals.add(&tried);
        if !tried.outcome.violations.is_empty() {
            let failed = Failed { place, job, tried };
            self.named += usize::from(failed.is_named(laws));
            self.failed.push(failed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;
    use std::thread;

    use sim::run::Outcome;

    use super::super::trial::{ENDS, NO_PANIC};
    use super::*;

    fn outcome(plan: &Plan, law: Option<&str>) -> Outcome {
        let violations = law.map(|law| Violation { law: law.to_owned(), detail: String::new() });
        Outcome { violations: violations.into_iter().collect(), trace_hash: plan.seed * 10, ..Outcome::default() }
    }

    fn sweep(run: fn(&Plan, &Options) -> Outcome) -> Sweep {
        let trial = Trial { run, bug: None, run_max: Duration::from_secs(60) };
        Sweep { trial, jobs: 4, failures_max: 1, laws: &[], until: None, at_least: 0 }
    }

    fn places(swept: &Swept) -> Vec<u64> {
        swept.failed.iter().map(|failed| failed.place).collect()
    }

    #[test]
    fn all_are_run() {
        let swept = sweep(|plan, _| outcome(plan, None)).run((0..100).map(Job::seed), Some(100));
        assert_eq!((swept.totals.runs, swept.totals.failed, swept.out_of_time), (100, 0, false));
    }

    #[test]
    fn the_first_failure_stops_it_and_is_the_first() {
        // Both fail; the first one not before the later one has begun.
        static LATER: OnceLock<()> = OnceLock::new();
        let sweep = sweep(|plan, _| {
            match plan.seed {
                20 => drop(LATER.wait()),
                22 => drop(LATER.set(())),
                _ => {}
            }
            outcome(plan, matches!(plan.seed, 20 | 22).then_some("NotEarly"))
        });
        // There is no end of them: that it returns says that it stopped.
        let swept = sweep.run((0..).map(Job::seed), None);
        assert_eq!(places(&swept), [20, 22]);
    }

    #[test]
    fn it_goes_on_to_so_many_failures() {
        let sweep = Sweep {
            failures_max: 3,
            jobs: 1,
            ..sweep(|plan, _| {
                assert!(plan.seed % 5 != 0, "a fifth panics");
                outcome(plan, None)
            })
        };
        let swept = sweep.run((1..).map(Job::seed), None);
        assert_eq!(places(&swept), [4, 9, 14]);
        assert!(swept.failed.iter().all(|failed| failed.tried.laws() == [NO_PANIC]));
    }

    #[test]
    fn only_what_is_looked_for_stops_it() {
        let sweep = Sweep {
            laws: &["NotEarly", "OneHolder"],
            jobs: 1,
            ..sweep(|plan, _| outcome(plan, [Some("AckedIsLogged"), None, Some("OneHolder")][plan.seed as usize / 3]))
        };
        let swept = sweep.run((0..9).map(Job::seed), None);
        assert_eq!((places(&swept), swept.named, swept.totals.runs), (vec![0, 1, 2, 6], 1, 7));
    }

    #[test]
    fn it_ends_in_time_but_not_before_so_many() {
        let sweep = Sweep { until: Some(Instant::now()), at_least: 7, ..sweep(|plan, _| outcome(plan, None)) };
        let swept = sweep.run((0..).map(Job::seed), None);
        assert_eq!((swept.totals.runs, swept.out_of_time), (7, true));
        let exactly = sweep.run((0..7).map(Job::seed), None);
        assert_eq!((exactly.totals.runs, exactly.out_of_time), (7, false));
    }

    #[test]
    fn another_hash_than_alone_is_told() {
        let jobs = |hash: u64| {
            (0..10).map(Job::seed).map(move |job| Job { hash: (job.plan.seed == 3).then_some(hash), ..job })
        };
        let sweep = sweep(|plan, _| outcome(plan, None));
        assert!(sweep.run(jobs(30), None).failed.is_empty());
        let swept = sweep.run(jobs(31), None);
        assert_eq!((places(&swept), swept.failed[0].tried.laws()), (vec![3], vec![DETERMINISTIC]));
    }

    #[test]
    fn a_run_without_end_is_given_up() {
        let mut sweep = sweep(|plan, _| {
            if plan.seed != 5 {
                return outcome(plan, None);
            }
            loop {
                thread::park();
            }
        });
        sweep.trial.run_max = Duration::from_secs(2);
        let swept = sweep.run((0..10).map(Job::seed), Some(10));
        assert_eq!((places(&swept), swept.failed[0].tried.laws()), (vec![5], vec![ENDS]));
    }
}
