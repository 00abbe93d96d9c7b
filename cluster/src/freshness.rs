//! How old a follower's state may be. Pure: instants come in as arguments (a [`Duration`] since any fixed origin on a
//! monotonic clock).
//!
//! Model: with each append a leader says what is committed, and how long ago a quorum last followed it. All that anybody
//! was told as done before that instant is in what it calls committed, if it has committed an entry of its own
//! leadership (before that it may not know of all). So once a follower has applied that much, its state is as fresh as
//! that instant, however the entries came.
//!
//! Not promised: the time a message was on its way is not counted.

use std::collections::VecDeque;
use std::time::Duration;

/// Words of leaders that wait until their entries are applied. Beyond it the newest replaces the one before it, which
/// makes the state look older, never younger.
const TOLD_MAX: usize = 64;

/// See the module's head.
#[derive(Debug, Default)]
pub struct Freshness {
    /// The state was complete then.
    fresh_at: Duration,
    /// What leaders said that is not applied yet, oldest first: index and instant.
    told: VecDeque<(u64, Duration)>,
}

impl Freshness {
    /// A leader says that at the instant `at` all was committed that stands up to `committed`.
    pub fn hear(&mut self, committed: u64, at: Duration) {
        if self.told.back().is_some_and(|(last, _)| *last >= committed) || self.told.len() >= TOLD_MAX {
            // The greater index of the two: what is complete up to there is complete up to the lesser.
            if let Some((last, when)) = self.told.back_mut() {
                *last = committed.max(*last);
                *when = at.max(*when);
            }
        } else {
            self.told.push_back((committed, at));
        }
    }

    /// The last instant at which a state that is applied up to `applied` was surely complete; the origin before the first.
    pub fn fresh_at(&mut self, applied: u64) -> Duration {
        while let Some((_, at)) = self.told.pop_front_if(|(committed, _)| *committed <= applied) {
            self.fresh_at = self.fresh_at.max(at);
        }
        self.fresh_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_state_is_as_fresh_as_the_last_word_it_lives_up_to() {
        let mut freshness = Freshness::default();
        assert_eq!(freshness.fresh_at(0), s(0), "nobody was heard");
        freshness.hear(10, s(1));
        assert_eq!(freshness.fresh_at(9), s(0), "not applied yet");
        freshness.hear(12, s(2));
        assert_eq!(freshness.fresh_at(11), s(1));
        freshness.hear(12, s(3));
        freshness.hear(12, s(4));
        assert_eq!(freshness.fresh_at(12), s(4), "heartbeats keep it fresh");
        freshness.hear(12, s(3));
        assert_eq!(freshness.fresh_at(12), s(4), "an old word takes nothing away");
    }

    #[test]
    fn a_state_that_lags_far_behind_never_looks_younger_than_it_is() {
        let mut freshness = Freshness::default();
        for at in 1..=1_000 {
            freshness.hear(at, s(at));
        }
        assert!(freshness.told.len() <= TOLD_MAX);
        for applied in 0..=1_000 {
            assert!(freshness.fresh_at(applied) <= s(applied));
        }
        assert_eq!(freshness.fresh_at(1_000), s(1_000));
    }
}
