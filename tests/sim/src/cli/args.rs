//! The command line as people type it.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use clap::Parser;

use super::seed;

/// Fresh seeds when nobody says how many.
const SEEDS: u64 = 100;

/// Runs whole clusters in virtual time, each decided by a seed, and judges them. Exit code: 0 when all promises held,
/// 1 when one was broken or a fault never happened, 2 for a wrong command line.
#[derive(Clone, Debug, Parser)]
#[command(name = "sim")]
pub struct Args {
    /// So many fresh seeds [default: 100, or as many as the time allows].
    #[arg(long, value_name = "N", conflicts_with_all = ["seed", "plan", "ci", "planted"])]
    pub seeds: Option<u64>,
    /// The first of them [default: from the commit].
    #[arg(long, value_name = "SEED", value_parser = seed::parse, conflicts_with_all = ["seed", "plan"])]
    pub from: Option<u64>,
    /// This seed alone.
    #[arg(long, value_name = "SEED", value_parser = seed::parse, conflicts_with_all = ["plan", "ci", "planted"])]
    pub seed: Option<u64>,
    /// This kept plan alone.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ci", "planted"])]
    pub plan: Option<PathBuf>,
    /// Print each line of the trace; with --seed or --plan.
    #[arg(long, conflicts_with_all = ["seeds", "ci", "planted"])]
    pub trace: bool,
    /// Saved seeds and plans, then fresh ones for the rest of four minutes; every fault must have happened.
    #[arg(long, conflicts_with = "planted")]
    pub ci: bool,
    /// Put in this bug, or each in turn, until it is found. Needs `--features sim/planted`.
    #[arg(long, value_name = "BUG", num_args = 0..=1, default_missing_value = "all")]
    pub planted: Option<String>,
    /// So many seeds without a bug before --planted looks for any [default: 100].
    #[arg(long, value_name = "N", requires = "planted")]
    pub silent: Option<u64>,
    /// Runs at one time [default: one for each processor].
    #[arg(long, value_name = "N")]
    pub jobs: Option<NonZeroUsize>,
    /// Begin no run after so long.
    #[arg(long, value_name = "M", conflicts_with = "seconds")]
    pub minutes: Option<u64>,
    /// Begin no run after so long.
    #[arg(long, value_name = "S")]
    pub seconds: Option<u64>,
    /// Where plans that failed are written to.
    #[arg(long, value_name = "DIR", default_value = "target/sim")]
    pub keep: PathBuf,
    /// Keep a plan that failed as it is.
    #[arg(long)]
    pub no_shrink: bool,
    /// Begin no run after so many have failed.
    #[arg(long, value_name = "N", default_value = "1")]
    pub failures: NonZeroUsize,
    /// Print the summary as JSON too, in the last line.
    #[arg(long)]
    pub json: bool,
}

impl Args {
    /// How many runs at one time.
    pub fn jobs(&self) -> usize {
        self.jobs.or_else(|| thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get)
    }

    /// For how long runs are begun, when the command line says so.
    pub fn budget(&self) -> Option<Duration> {
        let seconds = self.seconds.or_else(|| self.minutes.map(|minutes| minutes.saturating_mul(60)));
        seconds.map(Duration::from_secs)
    }

    /// For how long a plan that failed is shrunk.
    pub fn shrink_max(&self) -> Duration {
        Duration::from_secs(if self.no_shrink {
            0
        } else if self.ci {
            60
        } else {
            300
        })
    }

    /// How many fresh seeds; `None` for as many as the time allows.
    pub fn fresh(&self) -> Option<u64> {
        self.seeds.or(if self.budget().is_some() || self.ci { None } else { Some(SEEDS) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Result<Args, clap::Error> {
        Args::try_parse_from(format!("sim {line}").split_whitespace())
    }

    #[test]
    fn a_run_has_an_end() {
        assert_eq!(args("").unwrap().fresh(), Some(SEEDS));
        assert_eq!(args("--seeds 7").unwrap().fresh(), Some(7));
        let timed = args("--minutes 2").unwrap();
        assert_eq!((timed.fresh(), timed.budget()), (None, Some(Duration::from_secs(120))));
        let both = args("--seconds 5 --seeds 7").unwrap();
        assert_eq!((both.fresh(), both.budget()), (Some(7), Some(Duration::from_secs(5))));
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        for line in [
            "--seed 1 --seeds 2",
            "--seed 1 --plan x",
            "--ci --planted",
            "--ci --seed 1",
            "--seed one",
            "--trace --ci",
            "--minutes 1 --seconds 1",
            "--jobs 0",
            "--failures 0",
            "--from 1 --seed 2",
        ] {
            assert_eq!(args(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn planted_takes_a_name_or_none() {
        assert_eq!(args("--planted").unwrap().planted.as_deref(), Some("all"));
        assert_eq!(args("--planted DamageCut --jobs 1").unwrap().planted.as_deref(), Some("DamageCut"));
        assert_eq!(args("--planted --json").unwrap().planted.as_deref(), Some("all"));
    }
}
