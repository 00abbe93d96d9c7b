//! How long to wait between tries: twice as long each time, up to a limit, and never in step with others.

use std::time::Duration;

use super::limits::Pace;

/// The pauses between tries.
pub(super) struct Pauses {
    first: Duration,
    max: Duration,
    next: Duration,
}

impl Pauses {
    /// From the shortest.
    pub(super) fn new(pace: &Pace) -> Self {
        Self { first: pace.retry_first, max: pace.retry_max, next: pace.retry_first }
    }

    /// From the shortest again.
    pub(super) fn restart(&mut self) {
        self.next = self.first;
    }

    /// The next pause: `random` takes up to a quarter off.
    pub(super) fn next(&mut self, random: u32) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.max);
        pause - (pause / 4).mul_f64(f64::from(random) / f64::from(u32::MAX))
    }
}

/// For [`Pauses::next`]. Without randomness nodes may try in step, which does no harm.
pub(super) fn random() -> u32 {
    getrandom::u32().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_limit() {
        let mut pauses = Pauses::new(&Pace::default());
        let ms: Vec<u128> = (0..8).map(|_| pauses.next(0).as_millis()).collect();
        assert_eq!(ms, [20, 40, 80, 160, 320, 640, 1000, 1000]);
        pauses.restart();
        assert_eq!(pauses.next(u32::MAX).as_millis(), 15);
    }
}
