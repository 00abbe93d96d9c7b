//! A sweep as people and CI call it: what was saved, then fresh seeds; the verdict and what was covered.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::args::Args;
use super::failure::Reporter;
use super::faults;
use super::saved;
use super::seed;
use super::selfcheck::{self, Alone};
use super::sweep::{Job, Origin, Sweep, Swept};
use super::trial::{DETERMINISTIC, Trial};

/// `--ci` begins no run after so long: the last ones must end within four minutes.
const CI: Duration = Duration::from_secs(225);

/// Runs it; whether all promises held.
pub fn run(args: &Args) -> Result<bool> {
    let until = args.budget().or(args.ci.then_some(CI)).and_then(|budget| Instant::now().checked_add(budget));
    let commit = seed::commit();
    let base = args.from.unwrap_or_else(|| seed::base(commit.as_deref(), env!("CARGO_PKG_VERSION")));
    let commit = commit.unwrap_or_else(|| "unknown".to_owned());
    let (trial, jobs) = (Trial::new(), args.jobs());
    let saved = if args.ci { saved()? } else { Vec::new() };
    println!("commit {commit}, {} saved, fresh seeds from {base:#x}, {jobs} at a time", saved.len());

    let checked = args.ci || args.fresh().is_none_or(|seeds| seeds >= faults::SEEDS_MIN);
    let alone = if checked { Alone::run(trial, base) } else { Alone::none() };
    if checked && !alone.tell() {
        println!("FAIL law={DETERMINISTIC} commit={commit}: different seeds have one trace hash; it tells nothing");
        return Ok(false);
    }
    // The self-check is done however slow the machine is.
    let at_least = saved.len() as u64 + if checked { selfcheck::AFTER + selfcheck::SEEDS } else { 0 };
    let of = args.fresh().map(|fresh| fresh + saved.len() as u64);
    let fresh = (0..args.fresh().unwrap_or(u64::MAX)).map(|n| alone.job(base.wrapping_add(n)));
    let sweep = Sweep { trial, jobs, failures_max: args.failures.get(), laws: &[], until, at_least };
    let swept = sweep.run(saved.into_iter().chain(fresh), of);

    let reporter = Reporter { trial, commit: &commit, keep: &args.keep, shrink_max: args.shrink_max() };
    tell(&swept, &reporter, args.failures.get());
    print!("{}", swept.totals);
    if swept.out_of_time && args.seeds.is_some() {
        println!("time is up: {} seeds of {} were run", swept.totals.runs, args.seeds.unwrap_or_default());
    }
    let covered = covered(args, &swept);
    if args.json {
        println!("{}", swept.totals.json()?);
    }
    Ok(swept.failed.is_empty() && covered)
}

/// What was saved as runs.
fn saved() -> Result<Vec<Job>> {
    let seeds = saved::seeds(&saved::folder().join("seeds.txt"))?;
    let plans = saved::schedules(&saved::folder().join("schedules"))?;
    let plans = plans.into_iter().map(|(path, kept)| Job { origin: Origin::File(path), plan: kept.plan, hash: None });
    Ok(seeds.into_iter().map(|saved| Job::seed(saved.seed)).chain(plans).collect())
}

/// Reports the first `whole` failures; a line for those that ran beside them.
fn tell(swept: &Swept, reporter: &Reporter<'_>, whole: usize) {
    for (at, failed) in swept.failed.iter().enumerate() {
        if at < whole {
            println!("{}", reporter.report(failed));
        } else {
            println!("{}", Reporter { shrink_max: Duration::ZERO, ..reporter.clone() }.report(failed).line());
        }
    }
}

/// Whether everything happened that must.
fn covered(args: &Args, swept: &Swept) -> bool {
    let holes = faults::holes(&swept.totals.counts);
    let judged = args.ci || swept.totals.runs >= faults::SEEDS_MIN;
    if judged && !holes.is_empty() {
        println!("FAIL coverage: never happened: {}", holes.join(", "));
    } else if !judged {
        println!("coverage is judged from {} seeds on", faults::SEEDS_MIN);
    }
    holes.is_empty() || !judged
}
