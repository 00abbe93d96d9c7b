//! A slot of a pool under a run: for an identity (a machine ID), or an anonymous one (a counting semaphore).
//!
//! The client comes by it, and waits in line while the pool is exhausted. What else passes, another process that has the
//! identity yet, has no line: it is asked for again while there is time.

use std::time::Duration;

use tenure_client::slot::{Acquire, AcquireError, Grant, NotAcquired};
use tenure_client::wire::{Code, reason};
use tenure_client::{CallError, Client};
use tokio::time::Instant;

use super::clock::boottime_ms;
use super::grants::Grants;
use super::times::{OnLost, Plan, PlanError, Schedule, to_ms};
use crate::cli::duration::{millis, shown};

/// Pause before asking again for what has no line.
const PAUSE: Duration = Duration::from_millis(500);

/// Asks until a slot is held, refused for good, or the wait is over.
pub async fn ask(client: &Client, acquire: &Acquire) -> Result<Grant, NotAcquired> {
    let started = Instant::now();
    let mut in_doubt = false;
    loop {
        let left = acquire.wait.saturating_sub(started.elapsed());
        let not = match Grant::acquire(client, &Acquire { wait: left, ..acquire.clone() }).await {
            Ok(grant) => return Ok(grant),
            Err(not) => not,
        };
        in_doubt |= not.in_doubt;
        let pause = pause(&not.why);
        match pause {
            Some(pause) if pause < acquire.wait.saturating_sub(started.elapsed()) => tokio::time::sleep(pause).await,
            _ => return Err(NotAcquired { in_doubt, ..not }),
        }
    }
}

/// How long to pause before asking again, for what passes and has no line.
pub fn pause(why: &AcquireError) -> Option<Duration> {
    match why {
        // Not a conflict: whoever waits for the end of that goes on with it.
        AcquireError::InUse { retry_after, .. } => {
            Some(retry_after.map_or(PAUSE, |after| after.clamp(Duration::from_millis(10), PAUSE)))
        }
        AcquireError::Client(CallError::Refused(problem)) if problem.is(Code::RateLimited) => Some(PAUSE),
        _ => None,
    }
}

/// As a run keeps it, with the lengths that go with the ttl that was given.
pub fn held(grant: Grant, grace: Option<Duration>, on_lost: OnLost) -> Result<(Grants, Schedule), PlanError> {
    let plan = Plan::new(Duration::from_millis(grant.ttl_ms), grace, on_lost)?;
    let mut schedule = Schedule::granted(plan, to_ms(grant.deadline));
    // Where an earlier start left more than was asked for, it is renewed as often all the same.
    let first_ms = boottime_ms() + plan.renew_every_ms();
    if schedule.renew_at_ms().is_some_and(|at_ms| at_ms > first_ms) {
        schedule.renew_now(first_ms);
    }
    Ok((Grants::of_slot(grant), schedule))
}

/// A refusal of a pool: no error, and nothing is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// One of [`reason`].
    pub reason: String,
    /// When asking again may help.
    pub retry_after_ms: Option<u64>,
    /// An operator's text.
    pub detail: Option<String>,
}

impl Refusal {
    /// What a pool said, if it was that.
    pub fn of(why: &AcquireError) -> Option<Self> {
        let (reason, retry_after, detail) = match why {
            AcquireError::Exhausted { retry_after } => (reason::EXHAUSTED, retry_after, None),
            AcquireError::InUse { retry_after, .. } => (reason::IDENTITY_IN_USE, retry_after, None),
            AcquireError::Conflict { retry_after, .. } => (reason::IDENTITY_CONFLICT, retry_after, None),
            AcquireError::Refused(refused) => (refused.reason.as_str(), &refused.retry_after, refused.detail.clone()),
            _ => return None,
        };
        Some(Self { reason: reason.to_owned(), retry_after_ms: retry_after.map(millis), detail })
    }

    /// Whether it is the token that is refused, and a fresh one is another matter.
    pub fn is_of_token(&self) -> bool {
        [reason::TOKEN_USED, reason::EXPIRED, reason::NOT_HELD].contains(&self.reason.as_str())
    }

    /// The same. Of a token that was there before we asked also, if another process took over from it.
    pub fn may_be_passed(&self, is_earlier_token: bool) -> bool {
        self.is_of_token() || (is_earlier_token && self.reason == reason::TAKEN_OVER)
    }

    /// Whether waiting may help, and the token surely holds nothing.
    pub fn is_waited_for(&self) -> bool {
        [reason::EXHAUSTED, reason::IDENTITY_IN_USE, reason::QUEUED].contains(&self.reason.as_str())
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "not acquired: {}", self.reason)?;
        if let Some(detail) = &self.detail {
            write!(f, ": {detail}")?;
        }
        f.write_str(match self.reason.as_str() {
            reason::EXHAUSTED => ": all slots are held or kept back",
            reason::IDENTITY_IN_USE => {
                ": another process has this identity. Give each its own --identity or --slot, or wait for its end"
            }
            reason::IDENTITY_CONFLICT => {
                ": processes of this identity took it from each other in turn. Give each its own --identity or --slot"
            }
            reason::TAKEN_OVER => {
                ": another process of this identity has its id now. Give each its own --identity or --slot"
            }
            _ => "",
        })?;
        match self.retry_after_ms {
            Some(ms) => write!(f, "; try again in {}", shown(ms)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tenure_client::Boottime;
    use tenure_client::time::own_deadline;
    use tenure_client::wire::SlotGrant;

    use super::*;

    fn grant(asked_ms: u64, left_ms: u64, ttl_raised: bool) -> Grant {
        let now = Boottime { ns: boottime_ms() * 1_000_000 };
        Grant {
            key: "ids".to_owned(),
            token: "t".into(),
            ttl_ms: asked_ms,
            deadline: own_deadline(now, left_ms),
            next: now,
            slot: SlotGrant { ttl_ms: left_ms, ..SlotGrant::default() },
            ttl_raised,
            yours: false,
            took_over: None,
            wall: None,
        }
    }

    /// The grace and the renewals go with the ttl that is given, which the grant has, not with a shorter one that was asked for.
    #[test]
    fn a_raised_ttl_is_the_one_that_counts() {
        let (_, schedule) = held(grant(30_000, 30_000, true), None, OnLost::Term).unwrap();
        assert_eq!((schedule.plan().ttl_ms, schedule.plan().grace_ms), (30_000, 7_500));
    }

    #[test]
    fn what_an_earlier_start_left_is_renewed_as_often_as_any() {
        let (_, schedule) = held(grant(30_000, 3_600_000, false), None, OnLost::Term).unwrap();
        assert_eq!(schedule.plan().ttl_ms, 30_000);
        let (renew_at_ms, now_ms) = (schedule.renew_at_ms().unwrap(), boottime_ms());
        assert!(renew_at_ms <= now_ms + 10_000, "{renew_at_ms} {now_ms}");
        assert!(schedule.limits().term_at_ms > now_ms + 3_000_000, "it stands all the same");
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let after = Some(Duration::from_secs(7));
        let identity = || "me".to_owned();
        for (why, wanted) in [
            (
                AcquireError::Exhausted { retry_after: after },
                "exhausted: all slots are held or kept back; try again in 7s",
            ),
            (
                AcquireError::InUse { identity: identity(), retry_after: after },
                "--slot, or wait for its end; try again in 7s",
            ),
            (
                AcquireError::Conflict { identity: identity(), retry_after: None },
                "Give each its own --identity or --slot",
            ),
        ] {
            let said = Refusal::of(&why).map(|refusal| refusal.to_string()).unwrap_or_default();
            assert!(said.contains(wanted), "{said}");
        }
        assert_eq!(Refusal::of(&AcquireError::TooSlow { ttl_ms: 7 }), None, "no word of the pool");
    }
}
