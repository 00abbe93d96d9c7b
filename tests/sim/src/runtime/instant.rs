//! A point on a host's monotonic clock.
//!
//! Saturates where the system's own would not fail: subtracting more than there is gives the earliest instant.

use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::time::Duration;

use super::run::with;

/// Nanoseconds of the clock of the host that asked; means nothing on another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub(super) u64);

/// The nanoseconds of a duration; 584 years and more are the same.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, more: Duration) -> Self {
        Self(self.0.saturating_add(nanos(more)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, more: Duration) {
        *self = *self + more;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, less: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(less)))
    }
}

impl SubAssign<Duration> for Instant {
    fn sub_assign(&mut self, less: Duration) {
        *self = *self - less;
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl openraft::Instant for Instant {
    fn now() -> Self {
        Self(with(|state| state.local_now_ns()))
    }
}
