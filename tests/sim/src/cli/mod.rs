//! What a call of the program does: sweeps over seeds, replays of one run, and the search for planted bugs.
//!
//! ```text
//! args -> sweep of (saved, fresh) jobs -> trial, a thread each -> totals; failed -> failure: again, shrunk, kept, told
//!      \-> replay of one job             \-> planted: a sweep for each bug
//! ```
//!
//! Nothing in here decides anything within a run. Time and threads are real.

mod args;
mod failure;
mod faults;
mod planted;
mod progress;
mod replay;
mod saved;
mod seed;
mod selfcheck;
mod shrink;
mod survey;
mod sweep;
mod totals;
mod trial;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use args::Args;

/// 0: all promises held. 1: not so. 2: nothing was run, the command line or a file it names is wrong.
pub fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("sim: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<bool> {
    match (&args.planted, args.seed, &args.plan) {
        (Some(bug), ..) => planted::run(args, bug),
        (None, Some(seed), _) => replay::seed(args, seed),
        (None, None, Some(path)) => replay::file(args, path),
        (None, None, None) => survey::run(args),
    }
}
