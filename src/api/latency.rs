//! How long something takes, over the last half to whole minute: two histograms in turn, of fixed size. Pure: the time
//! comes in.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;

/// How long one histogram takes in.
const TURN: Duration = Duration::from_secs(30);
/// What is longer counts as this long.
const LONGEST_US: u64 = 60_000_000;
/// Values are right to 1 %.
const DIGITS: u8 = 2;

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// How many.
    pub count: u64,
    /// Half took no longer.
    pub p50_us: u64,
    /// All but one in a hundred took no longer.
    pub p99_us: u64,
    /// The longest.
    pub max_us: u64,
}

/// Measures. One thread records, any number read.
#[derive(Default)]
pub struct Recent(Mutex<Turns>);

/// The running histogram and the one before it.
#[derive(Default)]
struct Turns {
    now: Option<Turn>,
    before: Option<Turn>,
}

struct Turn {
    since: Instant,
    histogram: Histogram<u32>,
}

impl Recent {
    /// Something took so long, and ended `now`.
    pub fn record(&self, now: Instant, took: Duration) {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        turns.turn(now);
        let us = u64::try_from(took.as_micros()).unwrap_or(LONGEST_US).clamp(1, LONGEST_US);
        if let Some(turn) = &mut turns.now {
            turn.histogram.saturating_record(us);
        }
    }

    /// `None`: nothing was measured lately.
    pub fn latency(&self, now: Instant) -> Option<Latency> {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        turns.turn(now);
        let mut sum = empty()?;
        for turn in [&turns.now, &turns.before].into_iter().flatten() {
            sum.add(&turn.histogram).ok()?;
        }
        let at = |quantile| sum.value_at_quantile(quantile);
        (!sum.is_empty()).then(|| Latency { count: sum.len(), p50_us: at(0.5), p99_us: at(0.99), max_us: sum.max() })
    }
}

impl Turns {
    fn turn(&mut self, now: Instant) {
        let age = |turn: &Option<Turn>| turn.as_ref().map(|turn| now.saturating_duration_since(turn.since));
        if age(&self.now).is_none_or(|age| age >= TURN) {
            self.before = self.now.take();
            self.now = empty().map(|histogram| Turn { since: now, histogram });
        }
        if age(&self.before).is_some_and(|age| age >= 2 * TURN) {
            self.before = None;
        }
    }
}

/// The bounds are constants: there is always one.
fn empty() -> Option<Histogram<u32>> {
    Histogram::new_with_bounds(1, LONGEST_US, DIGITS).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn percentiles_within_a_percent() {
        let (recent, now) = (Recent::default(), Instant::now());
        assert_eq!(recent.latency(now), None);
        for n in 1..=100 {
            recent.record(now, ms(n));
        }
        let latency = recent.latency(now).unwrap();
        let near = |us: u64, wanted: u64| us.abs_diff(wanted) * 100 <= wanted;
        assert_eq!(latency.count, 100);
        assert!(near(latency.p50_us, 50_000) && near(latency.p99_us, 99_000) && near(latency.max_us, 100_000));
    }

    #[test]
    fn what_is_old_is_forgotten() {
        let (recent, start) = (Recent::default(), Instant::now());
        recent.record(start, ms(500));
        recent.record(start + TURN, ms(1));
        assert_eq!(recent.latency(start + TURN).unwrap().count, 2);
        assert_eq!(recent.latency(start + 2 * TURN).unwrap().count, 1);
        assert_eq!(recent.latency(start + 4 * TURN), None);
    }

    #[test]
    fn extremes_are_counted_at_the_ends() {
        let (recent, now) = (Recent::default(), Instant::now());
        recent.record(now, Duration::ZERO);
        recent.record(now, Duration::MAX);
        let latency = recent.latency(now).unwrap();
        assert!(latency.count == 2 && latency.p50_us == 1 && latency.max_us >= LONGEST_US);
    }
}
