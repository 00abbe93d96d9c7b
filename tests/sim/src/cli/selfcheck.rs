//! Is the same seed the same run? A few seeds are run alone first; the sweep, in which others run beside them and ran
//! before them, must come to the same traces.

use std::collections::BTreeMap;

use sim::plan::Plan;
use sim::run::Options;

use super::sweep::Job;
use super::trial::Trial;

/// So many seeds are run twice,
pub const SEEDS: u64 = 5;
/// after so many others.
pub const AFTER: u64 = 5;

/// The traces' hashes by seed.
#[derive(Clone, Debug)]
pub struct Alone(BTreeMap<u64, u64>);

impl Alone {
    /// Runs those of the seeds from `base` that are run twice. One that does not end has no trace to compare; the sweep
    /// will tell of it.
    pub fn run(trial: Trial, base: u64) -> Self {
        let seeds = (AFTER..AFTER + SEEDS).map(|n| base.wrapping_add(n));
        let hash = |seed| trial.alone(&Plan::from_seed(seed), &Options::default()).outcome.trace_hash;
        Self(seeds.map(|seed| (seed, hash(seed))).collect())
    }

    /// Whether the hashes tell runs apart at all: different seeds do not all come to one.
    pub fn tell(&self) -> bool {
        self.0.values().any(|hash| Some(hash) != self.0.values().next())
    }

    /// None.
    pub fn none() -> Self {
        Self(BTreeMap::new())
    }

    /// The run of a seed in the sweep.
    pub fn job(&self, seed: u64) -> Job {
        Job { hash: self.0.get(&seed).copied(), ..Job::seed(seed) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sim::run::Outcome;

    use super::*;

    fn alone(run: fn(&Plan, &Options) -> Outcome) -> Alone {
        Alone::run(Trial { run, bug: None, run_max: Duration::from_secs(60) }, 100)
    }

    #[test]
    fn equal_hashes_of_different_seeds_tell_nothing() {
        assert!(!alone(|_, _| Outcome { trace_hash: 7, ..Outcome::default() }).tell());
        assert!(alone(|plan, _| Outcome { trace_hash: plan.seed / 107, ..Outcome::default() }).tell());
    }

    #[test]
    fn five_of_the_first_ten_have_a_hash() {
        let alone = alone(|plan, _| Outcome { trace_hash: plan.seed + 1, ..Outcome::default() });
        let hashes: Vec<_> = (100..112).map(|seed| alone.job(seed).hash).collect();
        assert_eq!(hashes[..5], [None; 5]);
        assert_eq!(hashes[5..10], [106, 107, 108, 109, 110].map(Some));
        assert_eq!(hashes[10..], [None; 2]);
    }
}
