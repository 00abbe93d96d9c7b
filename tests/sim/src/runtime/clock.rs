//! A host's monotonic clock: a line of true time, in pieces.
//!
//! Invariants: it never jumps and never goes back; [`Clock::true_ns`] is the very first nanosecond of true time at which
//! the clock shows what was asked for, so a timer never fires early by its own clock.

const PPM: u128 = 1_000_000;

/// A clock that ran at one rate since its last change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    changed_true_ns: u64,
    changed_local_ns: u64,
    rate_ppm: u64,
}

impl Clock {
    /// A true clock that shows `local_ns` at the true time `now_ns`.
    pub(super) fn new(now_ns: u64, local_ns: u64) -> Self {
        Self { changed_true_ns: now_ns, changed_local_ns: local_ns, rate_ppm: 1_000_000 }
    }

    /// What it shows at the true time `now_ns`, which is not before its last change.
    pub(super) fn local_ns(&self, now_ns: u64) -> u64 {
        let since = now_ns - self.changed_true_ns;
        let local = if self.rate_ppm == 1_000_000 {
            since
        } else {
            u64::try_from(u128::from(since) * u128::from(self.rate_ppm) / PPM).unwrap_or(u64::MAX)
        };
        self.changed_local_ns.saturating_add(local)
    }

    /// The first true time at which it shows `local_ns` or more, if its rate stays.
    pub(super) fn true_ns(&self, local_ns: u64) -> u64 {
        let until = local_ns.saturating_sub(self.changed_local_ns);
        let truly = if self.rate_ppm == 1_000_000 {
            until
        } else {
            u64::try_from((u128::from(until) * PPM).div_ceil(u128::from(self.rate_ppm))).unwrap_or(u64::MAX)
        };
        self.changed_true_ns.saturating_add(truly)
    }

    /// Runs at another rate from the true time `now_ns` on.
    pub(super) fn set_rate(&mut self, now_ns: u64, rate_ppm: u64) {
        assert!((1..=1_000_000_000).contains(&rate_ppm), "a clock runs forward, at most a thousand times too fast");
        self.changed_local_ns = self.local_ns(now_ns);
        self.changed_true_ns = now_ns;
        self.rate_ppm = rate_ppm;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_true_instant_is_exact() {
        for rate_ppm in [1, 999_999, 1_000_000, 1_000_001, 1_010_000, 990_000, 7_777_777] {
            let mut clock = Clock::new(5, 1_000);
            clock.set_rate(9, rate_ppm);
            for local in [1_004, 1_005, 1_017, 2_000, 1_000_003] {
                let at = clock.true_ns(local);
                assert!(clock.local_ns(at) >= local, "{rate_ppm}: not early");
                assert!(at == 9 || clock.local_ns(at - 1) < local, "{rate_ppm}: not late");
            }
        }
    }

    #[test]
    fn a_change_of_rate_is_no_jump() {
        let mut clock = Clock::new(0, 10);
        let mut last = clock.local_ns(0);
        for step in 1..1_000_u64 {
            clock.set_rate(step * 1_000, 900_000 + step * 317 % 200_000);
            let now = clock.local_ns(step * 1_000);
            assert!((899..=1_101).contains(&(now - last)), "{}", now - last);
            last = now;
        }
    }
}
