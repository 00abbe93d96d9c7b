//! When a run renews, ends its job and kills it: pure, time is an argument.
//!
//! All times are milliseconds on `CLOCK_BOOTTIME`, which also runs while the machine sleeps. The deadline is the holder's
//! own ([`tenure_client::time::own_deadline`]): before the server's, whatever the network and the two clocks do.
//!
//! ```text
//! sent   + ttl/6 or /3      term_at        kill_at      own deadline      server's deadline
//!  |---------renew------------|----grace-----|---margin---|------------------|
//! ```
//! Invariants (tests below):
//! - `term_at <= kill_at <= deadline - margin`;
//! - only a RENEW answered true moves the deadline, only forward, and not once `kill_at` has passed or the grant is lost.

use std::time::Duration;

use tenure_client::Boottime;
use tenure_client::time::own_deadline;
use thiserror::Error;

use crate::cli::duration::millis;

/// The least time between KILL and the deadline: what killing and reaping may take.
const MARGIN_MS_MIN: u64 = 200;
/// The grace where none is given, at most.
const GRACE_MS_DEFAULT: u64 = 10_000;
/// The least time that must stay between the first renewal and TERM: a slow answer must not end the job.
const RENEW_SLACK_MS: u64 = 100;
/// From this ttl on it is renewed at a third, as everybody expects. A shorter one would not outlast the election of a new
/// leader that way, and is renewed at a sixth.
const TTL_MS_LONG: u64 = 15_000;
/// Not more often, except where a third of the ttl is less.
const RENEW_MS_MIN: u64 = 200;
/// Pause between renewals that got no answer.
const RETRY_MS: (u64, u64) = (100, 1_000);

/// Why `--ttl` and `--grace` do not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// There would be no time to renew before the job must be ended.
    #[error(
        "--ttl {ttl_ms}ms is too short: the job is ended {lead_ms}ms before the lease may be gone, which leaves no time to renew; the least here is {least_ms}ms"
    )]
    TtlTooShort {
        /// As given.
        ttl_ms: u64,
        /// From TERM to the end of the lease.
        lead_ms: u64,
        /// What would be accepted with this grace.
        least_ms: u64,
    },
    /// More than half of the ttl.
    #[error("--grace {grace_ms}ms is too long: at most half of --ttl, {most_ms}ms")]
    GraceTooLong {
        /// As given.
        grace_ms: u64,
        /// Half of the ttl.
        most_ms: u64,
    },
}

/// What the loss of the lease does to the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OnLost {
    /// TERM, and after the grace KILL: before the lease may be gone, or as soon as it is known to be
    Term,
    /// KILL at once: the job may work a grace longer, and is told nothing
    Kill,
}

/// The fixed lengths of a run, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Asked of the server with each RENEW.
    pub ttl_ms: u64,
    /// From TERM to KILL.
    pub grace_ms: u64,
    /// How a job ends whose lease is lost.
    pub on_lost: OnLost,
}

impl Plan {
    /// Checks that a job can be renewed in time; `grace` defaults to the lesser of 10 s and a quarter of `ttl`.
    pub fn new(ttl: Duration, grace: Option<Duration>, on_lost: OnLost) -> Result<Self, PlanError> {
        let ttl_ms = millis(ttl);
        let grace_ms = grace.map_or_else(|| GRACE_MS_DEFAULT.min(ttl_ms / 4), millis);
        let plan = Self { ttl_ms, grace_ms, on_lost };
        if plan.leaves_time_to_renew() && grace_ms <= ttl_ms / 2 {
            return Ok(plan);
        }
        if grace_ms > ttl_ms / 2 {
            return Err(PlanError::GraceTooLong { grace_ms, most_ms: ttl_ms / 2 });
        }
        let least_ms = Self::least_ttl_ms(grace.map(millis), on_lost);
        Err(PlanError::TtlTooShort { ttl_ms, lead_ms: plan.margin_ms() + plan.lost_grace_ms(), least_ms })
    }

    /// The least ttl that goes with this grace, in steps of 100 ms.
    fn least_ttl_ms(grace_ms: Option<u64>, on_lost: OnLost) -> u64 {
        let fits = |ttl_ms: &u64| {
            let grace_ms = grace_ms.unwrap_or(GRACE_MS_DEFAULT.min(ttl_ms / 4));
            grace_ms <= ttl_ms / 2 && Self { ttl_ms: *ttl_ms, grace_ms, on_lost }.leaves_time_to_renew()
        };
        // Ends: with `grace <= ttl / 2` more than 0.14 ttl is left for the slack, at the latest at four times the grace.
        (1..).map(|step| step * 100).find(fits).unwrap_or(u64::MAX)
    }

    fn leaves_time_to_renew(&self) -> bool {
        let lead_ms = self.margin_ms() + self.lost_grace_ms();
        own_ttl_ms(self.ttl_ms) >= lead_ms + self.renew_every_ms() + RENEW_SLACK_MS
    }

    /// From TERM to KILL for want of a renewal.
    fn lost_grace_ms(&self) -> u64 {
        match self.on_lost {
            OnLost::Term => self.grace_ms,
            OnLost::Kill => 0,
        }
    }

    /// From KILL to the deadline: 2 % of the ttl, at least 200 ms.
    fn margin_ms(&self) -> u64 {
        MARGIN_MS_MIN.max(self.ttl_ms / 50)
    }

    /// From a renewal's sending to the next one.
    pub fn renew_every_ms(&self) -> u64 {
        let third_ms = self.ttl_ms / 3;
        if self.ttl_ms >= TTL_MS_LONG { third_ms } else { (self.ttl_ms / 6).max(RENEW_MS_MIN).min(third_ms) }
    }

    /// Pause after a RENEW without an answer; `jitter` in 0..=1.
    fn retry_ms(&self, jitter: f64) -> u64 {
        let pause_ms = (self.ttl_ms / 20).clamp(RETRY_MS.0, RETRY_MS.1);
        pause_ms / 2 + (pause_ms as f64 / 2.0 * jitter.clamp(0.0, 1.0)) as u64
    }
}

/// When the job is told to end, and when it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// TERM.
    pub term_at_ms: u64,
    /// KILL.
    pub kill_at_ms: u64,
}

/// The moving times of one grant.
#[derive(Clone, Debug)]
pub struct Schedule {
    plan: Plan,
    deadline_ms: u64,
    renew_at_ms: u64,
    lost: bool,
}

impl Schedule {
    /// A grant with this own deadline.
    pub fn granted(plan: Plan, deadline_ms: u64) -> Self {
        Self { plan, deadline_ms, renew_at_ms: Self::renewal_before(plan, deadline_ms), lost: false }
    }

    /// RENEW answered true at `now_ms`, which makes this the own deadline. True if that moved anything: an answer that
    /// comes when the job must already be dead, or after the grant was lost, moves nothing.
    pub fn renewed(&mut self, deadline_ms: u64, now_ms: u64) -> bool {
        let moves = !self.lost && now_ms < self.limits().kill_at_ms && deadline_ms > self.deadline_ms;
        if moves {
            self.deadline_ms = deadline_ms;
        }
        // Also when it moved nothing: while a killed job will not die, its lease is kept.
        let every_ms = self.plan.renew_every_ms();
        self.renew_at_ms =
            Self::renewal_before(self.plan, deadline_ms).clamp(now_ms + RENEW_SLACK_MS, now_ms + every_ms);
        moves
    }

    /// That part of the ttl after the sending that led to this deadline.
    fn renewal_before(plan: Plan, deadline_ms: u64) -> u64 {
        deadline_ms.saturating_sub(own_ttl_ms(plan.ttl_ms).saturating_sub(plan.renew_every_ms()))
    }

    /// RENEW got no answer, or one that says "try again".
    pub fn unanswered(&mut self, now_ms: u64, jitter: f64) {
        self.renew_at_ms = now_ms.saturating_add(self.plan.retry_ms(jitter));
    }

    /// There is news of the grant: ask at once.
    pub fn renew_now(&mut self, now_ms: u64) {
        self.renew_at_ms = now_ms;
    }

    /// The server said that the grant is over: nothing extends it any more.
    pub fn lose(&mut self) {
        self.lost = true;
    }

    /// The lengths it goes by.
    pub fn plan(&self) -> Plan {
        self.plan
    }

    /// When the next RENEW is due; `None` once the grant is lost.
    pub fn renew_at_ms(&self) -> Option<u64> {
        (!self.lost).then_some(self.renew_at_ms)
    }

    /// Whether a job may be started now: the first renewal must not be overdue.
    pub fn may_start(&self, now_ms: u64) -> bool {
        !self.lost && now_ms < self.renew_at_ms && now_ms < self.limits().term_at_ms
    }

    /// When the job is ended and killed if no RENEW comes through.
    pub fn limits(&self) -> Limits {
        let kill_at_ms = self.deadline_ms.saturating_sub(self.plan.margin_ms());
        Limits { term_at_ms: kill_at_ms.saturating_sub(self.plan.lost_grace_ms()), kill_at_ms }
    }

    /// The time up to which this holder may believe that it holds.
    pub fn deadline_ms(&self) -> u64 {
        self.deadline_ms
    }
}

/// From sending to the own deadline.
fn own_ttl_ms(ttl_ms: u64) -> u64 {
    to_ms(own_deadline(Boottime { ns: 0 }, ttl_ms))
}

/// Rounded down: a deadline never gets later.
pub fn to_ms(time: Boottime) -> u64 {
    time.ns / 1_000_000
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use proptest::prelude::*;

    use super::*;

    /// The own deadline of a RENEW (or ACQUIRE) sent then.
    fn deadline(sent_ms: u64, ttl_ms: u64) -> u64 {
        to_ms(own_deadline(Boottime { ns: sent_ms * 1_000_000 }, ttl_ms))
    }

    /// When a leader's clock that is faster by `rho` has run `ttl_ms` from that sending on: the earliest end of the lease.
    fn server_end(sent_ms: u64, ttl_ms: u64) -> u64 {
        sent_ms + ttl_ms * 100 / 101
    }

    fn plan(ttl_ms: u64, grace_ms: Option<u64>) -> Result<Plan, PlanError> {
        Plan::new(Duration::from_millis(ttl_ms), grace_ms.map(Duration::from_millis), OnLost::Term)
    }

    #[test]
    fn a_job_that_is_killed_has_the_grace_to_work() {
        let plan = Plan::new(Duration::from_secs(30), None, OnLost::Kill).unwrap();
        let schedule = Schedule::granted(plan, deadline(0, 30_000));
        assert_eq!(schedule.limits(), Limits { term_at_ms: 28_802, kill_at_ms: 28_802 });
        assert_eq!(plan.grace_ms, 7_500, "for a job that is ended for another reason");
        // The greatest grace would leave no time to renew such a short ttl; here it takes none.
        let grace = Some(Duration::from_millis(450));
        assert!(Plan::new(Duration::from_millis(900), grace, OnLost::Term).is_err());
        assert!(Plan::new(Duration::from_millis(900), grace, OnLost::Kill).is_ok());
    }

    #[test]
    fn table_of_limits() {
        // ttl, grace asked, grace, TERM, KILL, own deadline: all counted from the moment before sending.
        let rows = [
            (30_000, None, 7_500, 21_302, 28_802, 29_402),
            (30_000, Some(0), 0, 28_802, 28_802, 29_402),
            (30_000, Some(15_000), 15_000, 13_802, 28_802, 29_402),
            (60_000, None, 10_000, 47_605, 57_605, 58_805),
            (5_000, None, 1_250, 3_450, 4_700, 4_900),
            (1_000, None, 250, 490, 740, 940),
        ];
        for (ttl_ms, asked, grace_ms, term, kill, own) in rows {
            let plan = plan(ttl_ms, asked).unwrap();
            assert_eq!(plan.grace_ms, grace_ms, "{ttl_ms} {asked:?}");
            let schedule = Schedule::granted(plan, deadline(1_000_000, ttl_ms));
            assert_eq!(
                schedule.limits(),
                Limits { term_at_ms: 1_000_000 + term, kill_at_ms: 1_000_000 + kill },
                "{ttl_ms} {asked:?}"
            );
            assert_eq!(schedule.deadline_ms(), 1_000_000 + own);
            let renew_ms = if ttl_ms >= 15_000 { ttl_ms / 3 } else { (ttl_ms / 6).max(200) };
            assert_eq!(schedule.renew_at_ms(), Some(1_000_000 + renew_ms));
        }
    }

    /// What `--help` and the manual promise: an outage that begins just before a renewal and ends so much later leaves
    /// time for a retry before TERM, with the default grace.
    #[test]
    fn outages_that_a_ttl_survives() {
        for (ttl_ms, outage_ms) in [(6_000, 2_800), (10_000, 4_900), (15_000, 4_900), (30_000, 10_300)] {
            let plan = plan(ttl_ms, None).unwrap();
            let schedule = Schedule::granted(plan, deadline(0, ttl_ms));
            let end_ms = schedule.renew_at_ms().unwrap() + outage_ms + plan.retry_ms(1.0);
            assert!(end_ms <= schedule.limits().term_at_ms, "{ttl_ms}: {end_ms} {:?}", schedule.limits());
        }
    }

    #[test]
    fn refusals_name_the_least() {
        assert_eq!(plan(1, None), Err(PlanError::TtlTooShort { ttl_ms: 1, lead_ms: 200, least_ms: 800 }));
        assert!(plan(800, None).is_ok());
        assert_eq!(plan(10_000, Some(5_001)), Err(PlanError::GraceTooLong { grace_ms: 5_001, most_ms: 5_000 }));
        let error = plan(900, Some(450)).unwrap_err();
        let PlanError::TtlTooShort { least_ms, .. } = error else { panic!("{error}") };
        assert!(plan(least_ms, Some(450)).is_ok());
        assert!(plan(least_ms - 100, Some(450)).is_err());
    }

    #[test]
    fn a_late_answer_moves_nothing() {
        let mut schedule = Schedule::granted(plan(30_000, None).unwrap(), deadline(0, 30_000));
        let before = schedule.limits();
        assert!(!schedule.renewed(deadline(20_000, 30_000), before.kill_at_ms));
        assert_eq!(schedule.limits(), before);
        assert!(schedule.renew_at_ms() > Some(before.kill_at_ms), "renewals go on, but not one after the other");
        assert!(schedule.renewed(deadline(20_000, 30_000), before.kill_at_ms - 1));
        assert_eq!(schedule.limits().kill_at_ms, before.kill_at_ms + 20_000);
    }

    #[test]
    fn an_older_answer_never_shortens() {
        let mut schedule = Schedule::granted(plan(30_000, None).unwrap(), deadline(10_000, 30_000));
        let before = schedule.limits();
        assert!(!schedule.renewed(deadline(5_000, 30_000), 11_000));
        assert_eq!(schedule.limits(), before);
    }

    #[test]
    fn a_lost_grant_is_never_extended() {
        let mut schedule = Schedule::granted(plan(30_000, None).unwrap(), deadline(0, 30_000));
        let before = schedule.limits();
        schedule.lose();
        assert!(!schedule.renewed(deadline(10_000, 30_000), 10_001));
        assert_eq!(schedule.limits(), before);
        assert_eq!(schedule.renew_at_ms(), None);
        assert!(!schedule.may_start(1));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Answer { took_ms: u64, ttl_ms: u64 },
        Silence { took_ms: u64 },
        Lost,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0..40_000u64, 1..60_000u64).prop_map(|(took_ms, ttl_ms)| Step::Answer { took_ms, ttl_ms }),
            4 => (0..40_000u64).prop_map(|took_ms| Step::Silence { took_ms }),
            1 => Just(Step::Lost),
        ]
    }

    proptest! {
        /// KILL is never after the end of the lease as the server sees it, for a leader's clock that runs faster by
        /// `rho` and a server that starts counting at the very moment of sending.
        #[test]
        fn kill_is_before_the_end_of_the_lease(ttl_ms in 1_000..120_000u64, steps in prop::collection::vec(step(), 0..40)) {
            let plan = plan(ttl_ms, None).unwrap();
            let mut now_ms = 1_000_000;
            let mut schedule = Schedule::granted(plan, deadline(now_ms, ttl_ms));
            // The server's own deadlines, of every grant and renewal it has made so far, on our clock.
            let mut server_end_ms = server_end(now_ms, ttl_ms);
            let mut lost = false;
            for step in steps {
                let before = schedule.limits();
                let sent_ms = now_ms;
                match step {
                    Step::Answer { took_ms, ttl_ms } => {
                        now_ms += took_ms;
                        server_end_ms = server_end_ms.max(server_end(sent_ms, ttl_ms));
                        let moved = schedule.renewed(deadline(sent_ms, ttl_ms), now_ms);
                        prop_assert!(!moved || (!lost && now_ms < before.kill_at_ms));
                        prop_assert_eq!(moved, schedule.limits() != before);
                    }
                    Step::Silence { took_ms } => {
                        now_ms += took_ms;
                        schedule.unanswered(now_ms, 0.5);
                        prop_assert_eq!(schedule.limits(), before);
                    }
                    Step::Lost => {
                        lost = true;
                        schedule.lose();
                        prop_assert_eq!(schedule.limits(), before);
                    }
                }
                let limits = schedule.limits();
                prop_assert!(limits.term_at_ms <= limits.kill_at_ms);
                prop_assert!(limits.kill_at_ms >= before.kill_at_ms);
                prop_assert!(limits.kill_at_ms + plan.margin_ms() <= schedule.deadline_ms());
                prop_assert!(schedule.deadline_ms() <= server_end_ms);
            }
        }

        /// Every accepted plan can renew at least once before TERM; every refusal names a least that is accepted.
        #[test]
        fn plans_leave_time_to_renew(ttl_ms in 1..200_000u64, grace_ms in prop::option::of(0..100_000u64)) {
            match plan(ttl_ms, grace_ms) {
                Ok(plan) => {
                    let schedule = Schedule::granted(plan, deadline(0, ttl_ms));
                    prop_assert!(schedule.renew_at_ms().unwrap() + RENEW_SLACK_MS <= schedule.limits().term_at_ms);
                }
                Err(PlanError::TtlTooShort { least_ms, .. }) => {
                    prop_assert!(least_ms > ttl_ms);
                    prop_assert!(plan(least_ms, grace_ms).is_ok());
                }
                Err(PlanError::GraceTooLong { most_ms, .. }) => prop_assert!(most_ms < grace_ms.unwrap()),
            }
        }
    }
}
