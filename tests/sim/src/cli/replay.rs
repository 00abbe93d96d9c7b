//! One run, alone: of a seed or of a kept plan.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use sim::run::Options;

use super::args::Args;
use super::failure::{Reporter, broken};
use super::saved;
use super::seed;
use super::sweep::{Failed, Job, Origin};
use super::totals::Totals;
use super::trial::Trial;

/// Runs the plan of `seed`.
pub fn seed(args: &Args, seed: u64) -> Result<bool> {
    run(args, Job::seed(seed))
}

/// Runs the plan that is kept at `path`.
pub fn file(args: &Args, path: &Path) -> Result<bool> {
    let kept = saved::plan(path)?;
    println!("kept for {}, commit {}: {}", kept.law, kept.commit, kept.cause);
    run(args, Job { origin: Origin::File(path.to_owned()), plan: kept.plan, hash: None })
}

fn run(args: &Args, job: Job) -> Result<bool> {
    let trial = Trial::new();
    let from = Instant::now();
    let tried = trial.alone(&job.plan, &Options { trace: args.trace });
    let mut totals = Totals { wall: from.elapsed(), ..Totals::default() };
    totals.add(&tried);
    let (shape, hash) = (&job.plan.shape, tried.outcome.trace_hash);
    let (seed, acts) = (job.plan.seed, job.plan.acts.len());
    println!("seed {seed:#x}, {} nodes, {}, {acts} acts: trace {hash:#x}", shape.nodes, shape.profile);
    println!("{}", totals.happened());
    println!("{}", totals.work());
    let held = tried.outcome.violations.is_empty();
    if args.trace {
        // Whoever wants the trace has seen it above, and has the plan.
        print!("{}", broken(&tried.outcome.violations));
    } else if !held {
        let commit = seed::commit().unwrap_or_else(|| "unknown".to_owned());
        let reporter = Reporter { trial, commit: &commit, keep: &args.keep, shrink_max: args.shrink_max() };
        print!("{}", reporter.report(&Failed { place: 0, job, tried }));
    }
    if args.json {
        println!("{}", totals.json()?);
    }
    Ok(held)
}
