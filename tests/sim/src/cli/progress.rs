//! How far a sweep is: a bar for people, a line now and then for a log.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::totals::Totals;

/// Between two lines of a log.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// See the module's head. Goes to standard error.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    of: Option<u64>,
    told: Instant,
}

impl Progress {
    /// Of so many runs, if that is known.
    pub fn new(of: Option<u64>) -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let template = if of.is_some() { "{wide_bar} {msg} ({eta} left)" } else { "{spinner} {elapsed} {msg}" };
            let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
            of.map_or_else(ProgressBar::new_spinner, ProgressBar::new).with_style(style)
        });
        Self { bar, of, told: Instant::now() }
    }

    /// Tells what was reached, when it is time to.
    pub fn tell(&mut self, totals: &Totals) {
        if let Some(bar) = &self.bar {
            bar.set_position(totals.runs);
            bar.set_message(line(totals, self.of));
            bar.tick();
        } else if self.told.elapsed() >= LINE_INTERVAL {
            self.told = Instant::now();
            eprintln!("{}", line(totals, self.of));
        }
    }

    /// Nothing more will be told.
    pub fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

fn line(totals: &Totals, of: Option<u64>) -> String {
    let of = of.map_or_else(String::new, |of| format!(" of {of}"));
    let (runs, rate, speed, failed) = (totals.runs, totals.runs_per_minute(), totals.speed(), totals.failed);
    format!("{runs}{of} seeds, {rate:.0}/min, {speed:.0} simulated s per CPU s, {failed} failed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far() {
        let totals = Totals { runs: 30, wall: Duration::from_secs(20), ..Totals::default() };
        assert_eq!(line(&totals, Some(100)), "30 of 100 seeds, 90/min, 0 simulated s per CPU s, 0 failed");
        assert_eq!(line(&totals, None), "30 seeds, 90/min, 0 simulated s per CPU s, 0 failed");
    }
}
