//! What the guard has to do at a given time: pure, time is an argument (milliseconds on `CLOCK_BOOTTIME`).
//!
//! TERM once, KILL from `kill_at` on. The job is ending from the first of: TERM's time, an order to end, the closed pipe,
//! the end of its first process. An order to kill is KILL at once. Ending starts a grace which no later extension of the lease lengthens; only after a
//! closed pipe the job has until `kill_at`, since the lease is still its own up to then.

use crate::cli::run::times::Limits;

/// The next thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Send TERM, once.
    Term,
    /// Send KILL, again and again until nothing is left.
    Kill,
    /// Nothing before this time.
    Wait(u64),
}

/// The guard's orders so far.
#[derive(Clone, Debug)]
pub struct Orders {
    limits: Limits,
    grace_ms: u64,
    /// Set once the job is ending: KILL is due here at the latest (and never after `limits.kill_at_ms`).
    ending_until_ms: Option<u64>,
    term_sent: bool,
    unrenewed: bool,
}

impl Orders {
    /// A job under these limits.
    pub fn new(limits: Limits, grace_ms: u64) -> Self {
        Self { limits, grace_ms, ending_until_ms: None, term_sent: false, unrenewed: false }
    }

    /// The client renewed. Ignored if KILL is already due, or if the limits do not grow.
    pub fn extend(&mut self, limits: Limits, now_ms: u64) {
        if now_ms < self.kill_at_ms() && limits.kill_at_ms > self.limits.kill_at_ms {
            self.limits = limits;
        }
    }

    /// End the job: TERM now, KILL after the grace. Also when its first process has ended and left others behind.
    pub fn end(&mut self, now_ms: u64) {
        self.end_until(now_ms.saturating_add(self.grace_ms));
    }

    /// Kill the job: KILL now, whatever grace there was.
    pub fn kill(&mut self, now_ms: u64) {
        self.end_until(now_ms);
    }

    /// The client is gone: TERM now, KILL at the limit of the lease.
    pub fn orphaned(&mut self) {
        self.end_until(u64::MAX);
    }

    /// What to do now. Answers `Term` exactly once.
    pub fn due(&mut self, now_ms: u64) -> Due {
        self.unrenewed |= now_ms >= self.limits.term_at_ms;
        if now_ms >= self.kill_at_ms() {
            return Due::Kill;
        }
        if now_ms >= self.limits.term_at_ms {
            // From TERM's own time, not from now: the grace then ends exactly at `kill_at`.
            self.end_until(self.limits.term_at_ms.saturating_add(self.grace_ms));
        }
        if self.ending_until_ms.is_some() && !self.term_sent {
            self.term_sent = true;
            return Due::Term;
        }
        Due::Wait(if self.term_sent { self.kill_at_ms() } else { self.limits.term_at_ms })
    }

    /// Whether TERM's time of the lease has come: the job is not ended for its own sake.
    pub fn unrenewed(&self) -> bool {
        self.unrenewed
    }

    fn end_until(&mut self, until_ms: u64) {
        self.ending_until_ms = Some(self.ending_until_ms.unwrap_or(u64::MAX).min(until_ms));
    }

    fn kill_at_ms(&self) -> u64 {
        self.limits.kill_at_ms.min(self.ending_until_ms.unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn orders() -> Orders {
        Orders::new(Limits { term_at_ms: 700, kill_at_ms: 900 }, 200)
    }

    #[test]
    fn unrenewed_term_then_kill() {
        let mut orders = orders();
        assert_eq!(orders.due(0), Due::Wait(700));
        assert_eq!(orders.due(699), Due::Wait(700));
        assert!(!orders.unrenewed());
        assert_eq!(orders.due(700), Due::Term);
        assert!(orders.unrenewed());
        assert_eq!(orders.due(701), Due::Wait(900));
        assert_eq!(orders.due(900), Due::Kill);
        assert_eq!(orders.due(901), Due::Kill);
    }

    #[test]
    fn a_late_wake_up_kills_at_once() {
        assert_eq!(orders().due(5_000), Due::Kill);
    }

    #[test]
    fn renewed_in_time_nothing_happens() {
        let mut orders = orders();
        orders.extend(Limits { term_at_ms: 1_700, kill_at_ms: 1_900 }, 300);
        assert_eq!(orders.due(900), Due::Wait(1_700));
    }

    #[test]
    fn an_extension_never_shortens_and_never_comes_too_late() {
        let mut orders = orders();
        orders.extend(Limits { term_at_ms: 100, kill_at_ms: 300 }, 300);
        assert_eq!(orders.due(300), Due::Wait(700));
        orders.extend(Limits { term_at_ms: 1_700, kill_at_ms: 1_900 }, 900);
        assert_eq!(orders.due(900), Due::Kill);
    }

    #[test]
    fn ending_has_its_grace_while_renewals_go_on() {
        let mut orders = orders();
        orders.end(100);
        assert_eq!(orders.due(100), Due::Term);
        orders.extend(Limits { term_at_ms: 1_700, kill_at_ms: 1_900 }, 150);
        assert_eq!(orders.due(299), Due::Wait(300));
        assert_eq!(orders.due(300), Due::Kill);
    }

    #[test]
    fn ending_late_never_outlives_the_lease() {
        let mut orders = orders();
        orders.end(850);
        assert_eq!(orders.due(850), Due::Term);
        assert_eq!(orders.due(899), Due::Wait(900));
        assert_eq!(orders.due(900), Due::Kill);
    }

    #[test]
    fn an_order_to_kill_leaves_no_grace() {
        let mut orders = orders();
        orders.end(100);
        assert_eq!(orders.due(100), Due::Term);
        orders.kill(150);
        orders.extend(Limits { term_at_ms: 1_700, kill_at_ms: 1_900 }, 150);
        assert_eq!(orders.due(150), Due::Kill);
        assert!(!orders.unrenewed());
    }

    #[test]
    fn an_orphan_has_until_the_end_of_the_lease() {
        let mut orders = orders();
        orders.orphaned();
        assert_eq!(orders.due(100), Due::Term);
        assert_eq!(orders.due(699), Due::Wait(900));
        assert_eq!(orders.due(900), Due::Kill);
    }

    proptest! {
        /// Whatever comes in, KILL is due at the last accepted limit, and TERM is said once.
        #[test]
        fn kill_is_never_after_the_limit(
            events in prop::collection::vec((0..4u8, 0..500u64, 0..5_000u64), 0..50),
        ) {
            let mut orders = orders();
            let mut now_ms = 0;
            let mut greatest_ms = 900;
            let mut terms = 0;
            for (kind, step_ms, ahead_ms) in events {
                now_ms += step_ms;
                match kind {
                    0 => {
                        let limits = Limits { term_at_ms: now_ms + ahead_ms, kill_at_ms: now_ms + ahead_ms + 200 };
                        if now_ms < greatest_ms {
                            greatest_ms = greatest_ms.max(limits.kill_at_ms);
                        }
                        orders.extend(limits, now_ms);
                    }
                    1 => orders.end(now_ms),
                    2 => orders.kill(now_ms),
                    _ => orders.orphaned(),
                }
                match orders.due(now_ms) {
                    Due::Term => terms += 1,
                    Due::Wait(until_ms) => prop_assert!(until_ms <= greatest_ms && until_ms > now_ms),
                    Due::Kill => {}
                }
                prop_assert!(now_ms < greatest_ms || orders.due(now_ms) == Due::Kill);
            }
            prop_assert!(terms <= 1);
        }
    }
}
