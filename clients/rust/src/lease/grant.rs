//! How a grant is come by: once, or by waiting in line.
//!
//! # Model
//! An attempt ([`super::attempt`]) asks until it is held, told a final no, or its `wait` is over. Waiting is done by the
//! cluster: the ACQUIRE stands in the key's line, first come first served, at whichever node there is. Only where a node
//! has no line for it (the queue is full, the key is about to go) it asks again after a growing, jittered pause of at
//! most a second.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use super::attempt::{Asked, Attempt, renew};
use crate::asking::may_pass;
use crate::client::{Backoff, CallError, Client};
use crate::renewal::{Outcome, Renew, Renewed};
use crate::time::{Boottime, own_deadline};
use crate::wire::{Answer, Code, TTL_MS_DEFAULT, Token, reason};

/// How to acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquire {
    /// Who holds, readable. Default: `host:pid`.
    pub owner: Option<String>,
    /// Lifetime of the grant and of each renewal. Default 30 000.
    pub ttl_ms: u64,
    /// Make the lease if the key is absent. Default true.
    pub create: bool,
    /// Free text for operators.
    pub note: Option<String>,
    /// Overrides the key's option for this grant.
    pub min_hold_ms: Option<u64>,
    /// Overrides the key's option for this grant.
    pub delay_ms: Option<u64>,
    /// How long to wait in line while somebody else holds it. Default zero: ask once.
    pub wait: Duration,
    /// Default: a fresh random one, and that is the right one.
    pub token: Option<Token>,
}

impl Default for Acquire {
    fn default() -> Acquire {
        Acquire {
            owner: None,
            ttl_ms: TTL_MS_DEFAULT,
            create: true,
            note: None,
            min_hold_ms: None,
            delay_ms: None,
            wait: Duration::ZERO,
            token: None,
        }
    }
}

/// Held or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired<T> {
    /// The caller's now.
    Held(T),
    /// Not, and why.
    NotHeld(NotHeld),
}

/// A grant, proved to be the caller's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The key.
    pub key: String,
    /// The holder's secret.
    pub token: Token,
    /// Its fence.
    pub fence: u64,
    /// The lifetime that was asked for.
    pub ttl_ms: u64,
    /// The own deadline.
    pub deadline: Boottime,
}

/// Why the lease was not acquired.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NotHeld {
    /// One of [`reason`].
    pub reason: String,
    /// Who holds it.
    pub owner: Option<String>,
    /// The holder's fence.
    pub fence: Option<u64>,
    /// The holder's remaining time.
    pub ttl_ms: Option<u64>,
    /// When trying again may help.
    pub retry_after_ms: Option<u64>,
    /// A try of this attempt got no answer: a copy of it that is still under way may be granted yet. Give back with
    /// [`give_back`](super::give_back) if the token is not to be used again; an attempt with a token of its own does it by itself.
    pub in_doubt: bool,
}

impl NotHeld {
    pub(super) fn of(answer: &Answer) -> NotHeld {
        NotHeld {
            reason: answer.reason().unwrap_or(reason::HELD).to_owned(),
            owner: answer.owner().map(str::to_owned),
            fence: answer.fence(),
            ttl_ms: answer.ttl_ms(),
            retry_after_ms: answer.retry_after_ms(),
            in_doubt: false,
        }
    }
}

impl fmt::Display for NotHeld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not acquired: {}", self.reason)?;
        if let Some(owner) = &self.owner {
            write!(f, " by {owner}")?;
        }
        if let Some(fence) = self.fence {
            write!(f, ", fence {fence}")?;
        }
        if let Some(ttl_ms) = self.ttl_ms {
            write!(f, ", expires in {}.{} s unless renewed", ttl_ms / 1000, ttl_ms % 1000 / 100)?;
        }
        Ok(())
    }
}

/// Why nothing is known to be held.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// The cluster gave no answer to build on.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The answers come so late that nothing of the ttl is left.
    #[error("a ttl of {ttl_ms} ms is over before its answer is here: ask for a longer one")]
    TooSlow {
        /// What was asked for.
        ttl_ms: u64,
    },
    /// No token could be made.
    #[error("no randomness for a token: {0}")]
    Randomness(String),
}

impl Grant {
    /// Acquires `key` without renewing it afterwards.
    ///
    /// # Errors
    /// [`AcquireError`]; that somebody else holds the lease is none. Where any try of the attempt is in doubt, the error is
    /// [`CallError::OutcomeUnknown`], whatever the last one came to.
    pub async fn acquire(client: &Client, key: &str, acquire: Acquire) -> Result<Acquired<Grant>, AcquireError> {
        let started = Instant::now();
        let mut attempt = Attempt::new(client, key, &acquire)?;
        let mut pauses = Backoff::default();
        loop {
            let outcome = attempt.ask(acquire.wait.saturating_sub(started.elapsed())).await;
            let pause = match &outcome {
                Ok(Asked::Held(_) | Asked::Again) | Err(_) => None,
                Ok(Asked::NotHeld(not_held)) => pause(not_held, &acquire, &mut pauses),
            };
            let left = acquire.wait.saturating_sub(started.elapsed());
            match (outcome, pause) {
                // A used-up token says nothing of the lease: the question is still open.
                (Ok(Asked::Again), _) => {}
                (Ok(Asked::Held(grant)), _) => return Ok(Acquired::Held(grant)),
                (Ok(Asked::NotHeld(_)), Some(pause)) if pause < left => tokio::time::sleep(pause).await,
                (Ok(Asked::NotHeld(not_held)), _) => {
                    return Ok(Acquired::NotHeld(NotHeld { in_doubt: attempt.in_doubt(), ..not_held }));
                }
                // No proof of a grant: while there is time, asking again says what became of it.
                (Err(AcquireError::Call(error)), _) if may_pass(&error) && !left.is_zero() => {
                    tokio::time::sleep(pauses.next().min(left)).await;
                }
                (Err(error), _) => return Err(attempt.doubtful(error)),
            }
        }
    }
}

/// How long to pause before asking again, where a node has no line for the asker now; `None`: it has said all.
fn pause(not_held: &NotHeld, acquire: &Acquire, pauses: &mut Backoff) -> Option<Duration> {
    match not_held.reason.as_str() {
        reason::TTL_NOT_POSITIVE | reason::TOKEN_USED => None,
        // Who waited was sent away.
        reason::DELETED | reason::CANCELLED_WAIT | reason::SUPERSEDED => None,
        // Who asks for a minimum hold wants one run a period: somebody had it.
        reason::MIN_HOLD if acquire.min_hold_ms.is_some_and(|ms| ms > 0) => None,
        _ => {
            let hint = not_held.retry_after_ms.map_or(Duration::MAX, |ms| Duration::from_millis(ms.max(10)));
            Some(pauses.next().min(hint))
        }
    }
}

impl Renew for Grant {
    async fn renew(&self, client: &Client, call: Duration, one_try: Duration) -> Outcome {
        let trouble = match client.call_within(&renew(self), call, one_try).await {
            Ok(answered) if answered.answer.is_true() => match answered.answer.ttl_ms() {
                Some(ttl_ms) => {
                    let next = answered.sent.after(Duration::from_millis(self.ttl_ms / 3));
                    let deadline = own_deadline(answered.sent, ttl_ms);
                    return Outcome::Ok(Renewed { deadline, next, ttl_raised: false, floor_unix_ms: None });
                }
                None => format!("{} renewed without saying ttl_ms", answered.endpoint),
            },
            Ok(answered) => {
                let reason = answered.answer.reason().unwrap_or(reason::NOT_HELD).to_owned();
                return Outcome::Lost { reason, detail: answered.answer.detail().map(str::to_owned) };
            }
            // An OP needs its key: the grant went with it.
            Err(CallError::Refused(problem)) if problem.is(Code::NoSuchKey) || problem.is(Code::WrongType) => {
                return Outcome::Lost { reason: reason::DELETED.to_owned(), detail: Some(problem.detail) };
            }
            Err(error) => error.to_string(),
        };
        Outcome::Retry { trouble }
    }

    fn named(&self) -> (&str, u64) {
        (&self.key, self.fence)
    }

    fn first(&self) -> Boottime {
        // From the deadline, not from now: a grant may have waited for being kept.
        self.deadline.before(2 * Duration::from_millis(self.ttl_ms / 3))
    }
}

/// `host:pid`.
pub fn default_owner() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = match host.trim() {
        "" => std::env::var("HOSTNAME").unwrap_or_else(|_| "localhost".to_owned()),
        host => host.to_owned(),
    };
    format!("{host}:{}", std::process::id())
}
