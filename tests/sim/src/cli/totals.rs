//! What many runs came to.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::faults::{self, Count, FAULTS};
use super::trial::Tried;

/// Sums over runs; of a size that the number of runs does not change.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Runs that ended.
    pub runs: u64,
    /// Of them, those that broke a law.
    pub failed: u64,
    /// Calls with an answer.
    pub answered: u64,
    /// Calls in doubt.
    pub unknown: u64,
    /// Virtual time.
    pub simulated_ms: u64,
    /// Processor time.
    pub cpu: Duration,
    /// Real time.
    pub wall: Duration,
    /// Effects of faults.
    pub counts: BTreeMap<&'static str, Count>,
}

/// The same, for programs.
#[derive(Debug, Serialize)]
struct Summary<'a> {
    runs: u64,
    failed: u64,
    runs_per_minute: f64,
    simulated_s: f64,
    cpu_s: f64,
    wall_s: f64,
    simulated_s_per_cpu_s: f64,
    answered: u64,
    unknown: u64,
    coverage: BTreeMap<&'a str, u64>,
    never: Vec<&'static str>,
}

impl Totals {
    /// One more run.
    pub fn add(&mut self, tried: &Tried) {
        let outcome = &tried.outcome;
        self.runs += 1;
        self.failed += u64::from(!outcome.violations.is_empty());
        self.answered += outcome.answered;
        self.unknown += outcome.unknown;
        self.simulated_ms += outcome.simulated_ms;
        self.cpu += tried.cpu;
        for (what, times) in &outcome.coverage {
            let count = self.counts.entry(what).or_default();
            count.times += times;
            count.runs += u64::from(*times > 0);
        }
    }

    /// Runs a minute of real time.
    pub fn runs_per_minute(&self) -> f64 {
        ratio(self.runs as f64 * 60.0, self.wall.as_secs_f64())
    }

    /// Simulated seconds that a second of one processor makes.
    pub fn speed(&self) -> f64 {
        ratio(self.simulated_s(), self.cpu.as_secs_f64())
    }

    /// Virtual seconds.
    pub fn simulated_s(&self) -> f64 {
        self.simulated_ms as f64 / 1e3
    }

    /// How much was run, in a line.
    pub fn work(&self) -> String {
        let (wall_s, cpu_s) = (self.wall.as_secs_f64(), self.cpu.as_secs_f64());
        let Self { runs, failed, answered, unknown, .. } = self;
        let (rate, simulated_s, speed) = (self.runs_per_minute(), self.simulated_s(), self.speed());
        format!(
            "{runs} seeds in {wall_s:.1} s ({rate:.0}/min), {simulated_s:.0} s simulated in {cpu_s:.1} CPU s \
             ({speed:.0} to 1), {answered} calls answered, {unknown} unknown, {failed} failed"
        )
    }

    /// What happened how often, in a line.
    pub fn happened(&self) -> String {
        let happened = self.counts.iter().filter(|(_, count)| count.times > 0);
        happened.map(|(what, count)| format!("{what} {}", count.times)).collect::<Vec<_>>().join(", ")
    }

    /// One line of JSON.
    pub fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string(&Summary {
            runs: self.runs,
            failed: self.failed,
            runs_per_minute: self.runs_per_minute(),
            simulated_s: self.simulated_s(),
            cpu_s: self.cpu.as_secs_f64(),
            wall_s: self.wall.as_secs_f64(),
            simulated_s_per_cpu_s: self.speed(),
            answered: self.answered,
            unknown: self.unknown,
            coverage: self.counts.iter().map(|(what, count)| (*what, count.times)).collect(),
            never: faults::holes(&self.counts),
        })
    }
}

fn ratio(of: f64, to: f64) -> f64 {
    if to > 0.0 { of / to } else { 0.0 }
}

impl fmt::Display for Totals {
    /// The summary at the end: what happened how often, then how much was run.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<20} {:>14} {:>10}", "what happened", "times", "in runs")?;
        let known: BTreeSet<_> = FAULTS.into_iter().collect();
        let more = self.counts.keys().copied().filter(|what| !known.contains(what));
        for what in FAULTS.into_iter().chain(more) {
            let count = self.counts.get(what).copied().unwrap_or_default();
            let never = if count.times == 0 && known.contains(what) { "  NEVER" } else { "" };
            writeln!(f, "{what:<20} {:>14} {:>10}{never}", count.times, count.runs)?;
        }
        writeln!(f, "{}", self.work())
    }
}

#[cfg(test)]
mod tests {
    use sim::judge::Violation;
    use sim::run::Outcome;

    use super::*;

    fn tried(paused: u64, failed: bool) -> Tried {
        let violations = vec![Violation { law: "NotEarly".to_owned(), detail: String::new() }; usize::from(failed)];
        let coverage = [("paused", paused), ("odd", 2)].into();
        let outcome =
            Outcome { violations, coverage, simulated_ms: 60_000, answered: 10, unknown: 1, ..Outcome::default() };
        Tried { outcome, cpu: Duration::from_millis(500) }
    }

    #[test]
    fn runs_add_up() {
        let mut totals = Totals::default();
        for next in [tried(3, false), tried(0, true), tried(1, false)] {
            totals.add(&next);
        }
        totals.wall = Duration::from_secs(2);
        assert_eq!((totals.runs, totals.failed, totals.answered, totals.unknown), (3, 1, 30, 3));
        assert_eq!(totals.counts["paused"], Count { times: 4, runs: 2 });
        assert_eq!((totals.runs_per_minute(), totals.speed()), (90.0, 120.0));
        assert_eq!(totals.happened(), "odd 6, paused 4");
        let text = totals.to_string();
        assert!(text.contains("paused                            4          2\n"), "{text}");
        assert!(text.contains("killed                            0          0  NEVER\n"), "{text}");
        assert!(text.contains("odd                               6          3\n"), "{text}");
        let json: serde_json::Value = serde_json::from_str(&totals.json().unwrap()).unwrap();
        assert_eq!(json["coverage"]["paused"], 4);
        assert_eq!(json["never"].as_array().unwrap().len(), FAULTS.len() - 1);
    }

    #[test]
    fn nothing_run_is_no_speed() {
        assert_eq!((Totals::default().runs_per_minute(), Totals::default().speed()), (0.0, 0.0));
    }
}
