//! The leader's clock: how much time may pass on the cluster clock. Pure: instants come in as arguments (a [`Duration`]
//! since any fixed origin on a monotonic clock); nothing here reads a clock.
//!
//! Model: under one leadership the clock starts at the greatest stamp of the log and is moved on by **observations**.
//! An observation adds the time since the one before it if, and only if, both were *sound* and they lie less than T
//! apart. Sound means that somebody could have renewed: a quorum acknowledged the leader less than T ago (a sole voter
//! needs nobody), and the oldest entry of its own that is not committed is younger than T. Else the interval is cut out
//! for good: a lost quorum, a stuck disk, a stopped process cost nobody his time.
//!
//! Invariants (`tests` below): within a leadership the clock never goes back; it never runs ahead of the monotonic time
//! since its start; of an outage at most T is counted, at its beginning. Wall clocks have no part in it.
//!
//! Not promised: that the clock keeps up with real time. Whatever is cut out is never made up for. Nor that of an outage
//! shorter than 2 T only T counts: if the leader stood still in it too, and what it asked for before is answered after it,
//! all of it may (whoever renewed when that was asked would have been heard as well).

use std::time::Duration;

use crate::machine::Stamp;
use crate::planted::{self, Bug};

/// What the leader knows at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// The instant.
    pub now: Duration,
    /// The last proof that a quorum follows.
    pub quorum: Quorum,
}

/// The last proof that a quorum follows the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quorum {
    /// The leader is the only voter.
    Sole,
    /// When the last message was sent that a quorum acknowledged; `None` before the first.
    Acked(Option<Duration>),
}

/// The clock. Without a leadership it gives no stamps.
#[derive(Clone, Debug)]
pub struct LeaderClock {
    /// T: the greatest election timeout.
    limit: Duration,
    led: Option<Led>,
}

/// One leadership.
#[derive(Clone, Debug)]
struct Led {
    term: u64,
    /// The cluster clock, finer than a stamp.
    reading: Duration,
    seen_at: Duration,
    sound: bool,
    quorum: Quorum,
    /// When the oldest own entry that is not committed was handed off.
    handed_at: Option<Duration>,
}

impl LeaderClock {
    /// A clock that nobody leads by. `limit` is T.
    #[must_use]
    pub const fn new(limit: Duration) -> Self {
        Self { limit, led: None }
    }

    /// A leadership begins: `anchor` is the greatest stamp in the leader's log, uncommitted entries included.
    pub fn lead(&mut self, term: u64, anchor: Stamp, at: Evidence) {
        let mut led = Led {
            term,
            reading: Duration::from_millis(anchor.0),
            seen_at: at.now,
            sound: true,
            quorum: at.quorum,
            handed_at: None,
        };
        led.sound = led.is_sound(at, self.limit);
        self.led = Some(led);
    }

    /// The leadership is over.
    pub fn follow(&mut self) {
        self.led = None;
    }

    /// Moves the clock to `at`. To be called more often than every T: a longer silence is cut out.
    pub fn observe(&mut self, at: Evidence) {
        let limit = self.limit;
        if let Some(led) = &mut self.led {
            led.observe(at, limit);
        }
    }

    /// The clock at `at`, for a read ordered under the leadership of `term`; `None` when that is over.
    pub fn read(&mut self, term: u64, at: Evidence) -> Option<Stamp> {
        self.observe(at);
        self.led.as_ref().filter(|led| led.term == term).map(Led::stamp)
    }

    /// The stamp of an entry that is handed off at `at`; from now until [`LeaderClock::settled`] it is uncommitted.
    /// `None` when the leadership of `term` is over.
    pub fn hand_off(&mut self, term: u64, at: Evidence) -> Option<Stamp> {
        self.observe(at);
        let led = self.led.as_mut().filter(|led| led.term == term)?;
        led.handed_at.get_or_insert(at.now);
        Some(led.stamp())
    }

    /// No own entry of `term` is uncommitted any more.
    pub fn settled(&mut self, term: u64, at: Evidence) {
        self.observe(at);
        if let Some(led) = self.led.as_mut().filter(|led| led.term == term) {
            led.handed_at = None;
        }
    }

    /// Does time pass? Not in a gap, not without a leadership.
    #[cfg(test)]
    pub fn runs(&self) -> bool {
        self.led.as_ref().is_some_and(|led| led.sound)
    }

    /// How long the oldest own entry has been uncommitted.
    #[must_use]
    pub fn uncommitted_for(&self, now: Duration) -> Option<Duration> {
        self.led.as_ref()?.handed_at.map(|handed| now.saturating_sub(handed))
    }
}

impl Led {
    fn observe(&mut self, at: Evidence, limit: Duration) {
        let gap = at.now.saturating_sub(self.seen_at);
        let sound = self.is_sound(at, limit);
        if sound && self.sound && gap < limit {
            self.reading = self.reading.saturating_add(gap);
        }
        self.seen_at = self.seen_at.max(at.now);
        self.sound = sound;
        self.quorum = at.quorum;
    }

    /// Could somebody have renewed between the last observation and `at`? An ack that came after a silence of T or more
    /// does not prove it for the silence: that is seen in the distance of two acks.
    fn is_sound(&self, at: Evidence, limit: Duration) -> bool {
        let acked = match (at.quorum, self.quorum) {
            (Quorum::Sole, _) => true,
            (Quorum::Acked(None), _) => false,
            (Quorum::Acked(Some(acked)), before) => {
                let silence = match before {
                    Quorum::Acked(Some(before)) => acked.saturating_sub(before),
                    Quorum::Acked(None) | Quorum::Sole => Duration::ZERO,
                };
                silence < limit && at.now.saturating_sub(acked) < limit
            }
        };
        let settles = self.handed_at.is_none_or(|handed| at.now.saturating_sub(handed) < limit);
        (acked || planted::has(Bug::QuorumGapCounts)) && (settles || planted::has(Bug::StuckDiskGapCounts))
    }

    fn stamp(&self) -> Stamp {
        Stamp(u64::try_from(self.reading.as_millis()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
#[path = "clock_tests.rs"]
mod tests;
