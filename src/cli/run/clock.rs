//! The clock of a run.

use tenure_client::{Clock as _, HostClock};

use super::times::to_ms;

/// Milliseconds on `CLOCK_BOOTTIME`: never set, and it runs while the machine sleeps. The same for all processes of a host.
pub fn boottime_ms() -> u64 {
    to_ms(HostClock.now())
}
