//! The clock a holder measures its own deadline with, and that deadline.
//!
//! # Model
//! A node judges a grant by the cluster clock, the holder by a clock of its own. The holder must stop first. So it counts
//! from BEFORE it sent the request (the grant or renewal began later), takes the `ttl_ms` of the ANSWER, lets the leader's
//! clock run faster than its own by `rho`, and takes off a margin in which to notice.
//!
//! The clock runs while the host is suspended (`CLOCK_BOOTTIME`): a laptop that slept through its ttl has lost the lease.
//! No wall clock decides that. It is only told and compared: the holders of a pool's slot may make timestamps of theirs,
//! so the next one must not lag behind the last ([`WallClock`]).

use std::time::Duration;

/// By how much a leader's clock may run faster than the holder's, in parts per million: 1 %.
pub const RHO_PPM: u64 = 10_000;

/// Time since the host started, suspension included. Comparable between the processes of one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Boottime {
    /// Nanoseconds.
    pub ns: u64,
}

impl Boottime {
    /// So much later.
    #[must_use]
    pub fn after(self, duration: Duration) -> Boottime {
        Boottime { ns: self.ns.saturating_add(nanos(duration)) }
    }

    /// So much earlier, not before the start of the host.
    #[must_use]
    pub fn before(self, duration: Duration) -> Boottime {
        Boottime { ns: self.ns.saturating_sub(nanos(duration)) }
    }

    /// From here until `later`; zero if that is past.
    pub fn until(self, later: Boottime) -> Duration {
        Duration::from_nanos(later.ns.saturating_sub(self.ns))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Reads the time. Passed in, so that a test is its master.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Boottime;
}

/// The host's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostClock;

impl Clock for HostClock {
    fn now(&self) -> Boottime {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let id = rustix::time::ClockId::Boottime;
        // Where there is no CLOCK_BOOTTIME, the monotonic clock is the nearest: on macOS it counts suspension too.
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let id = rustix::time::ClockId::Monotonic;
        let time = rustix::time::clock_gettime(id);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or(0);
        Boottime { ns: seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds) }
    }
}

/// Reads the wall clock. Passed in, so that a test is its master.
pub trait WallClock: std::fmt::Debug + Send + Sync + 'static {
    /// Now, Unix milliseconds.
    fn unix_ms(&self) -> u64;
}

/// The host's wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostWallClock;

impl WallClock for HostWallClock {
    fn unix_ms(&self) -> u64 {
        #[expect(clippy::disallowed_methods, reason = "told to the cluster and compared, no deadline hangs on it")]
        let now = std::time::SystemTime::now();
        let since = now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

/// Until when a holder may act on a grant: `sent + ttl / (1 + rho) - margin`.
///
/// `sent` is the time before the request was sent, `ttl_ms` the remaining time of the answer. The result may lie before
/// `sent` where the ttl is shorter than the margin: such a grant cannot be used.
pub fn own_deadline(sent: Boottime, ttl_ms: u64) -> Boottime {
    sent.after(usable(ttl_ms)).before(margin(ttl_ms))
}

/// `ttl / (1 + rho)`, rounded down.
fn usable(ttl_ms: u64) -> Duration {
    let ns = u128::from(ttl_ms) * 1_000_000 * 1_000_000 / u128::from(1_000_000 + RHO_PPM);
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}

/// What is taken off for noticing in time: max(50 ms, 1 % of the ttl). 50 ms, because a timer of a busy host fires that
/// late without anything being wrong.
pub fn margin(ttl_ms: u64) -> Duration {
    Duration::from_millis((ttl_ms / 100).max(50))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_counts_from_sending_and_leaves_rho_and_margin() {
        let sent = Boottime { ns: 5_000_000_000 };
        // 30.3 s at 1 % faster is 30 s of ours, less 303 ms.
        assert_eq!(own_deadline(sent, 30_300).ns, 5_000_000_000 + 30_000_000_000 - 303_000_000);
        // The least margin is 50 ms.
        assert_eq!(own_deadline(sent, 1_010).ns, 5_000_000_000 + 1_000_000_000 - 50_000_000);
    }

    #[test]
    fn a_ttl_shorter_than_the_margin_is_over_before_it_began() {
        let sent = Boottime { ns: 5_000_000_000 };
        assert!(own_deadline(sent, 1) < sent);
        assert_eq!(own_deadline(Boottime { ns: 0 }, 1), Boottime { ns: 0 });
    }

    #[test]
    fn extremes_saturate() {
        let late = Boottime { ns: u64::MAX - 5 };
        assert!(own_deadline(late, crate::wire::TTL_MS_MAX) <= Boottime { ns: u64::MAX });
        assert_eq!(late.until(Boottime { ns: 3 }), Duration::ZERO);
    }

    #[test]
    fn the_host_clock_runs() {
        let first = HostClock.now();
        assert!(first.ns > 0);
        assert!(HostClock.now() >= first);
    }
}
