//! Why a slot was not acquired, and how one was lost: each text says what to do next.

use std::fmt;
use std::time::Duration;

use crate::client::CallError;
use crate::lease::{self, LostBy};
use crate::time::Boottime;
use crate::wire::reason;

/// Why no slot is held.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// No slot is free.
    #[error("no slot of the pool is free{}: wait in line, ask again, or RESIZE the pool", earliest(*retry_after))]
    Exhausted {
        /// When one can be free at the earliest.
        retry_after: Option<Duration>,
    },
    /// The identity has a live slot, and the pool allows no takeover.
    #[error(
        "the identity {identity:?} is in use{}: end the process that uses it, or use another identity",
        at_most(*retry_after)
    )]
    InUse {
        /// Which.
        identity: String,
        /// What the other's grant has left.
        retry_after: Option<Duration>,
    },
    /// The identity changed hands too often.
    #[error(
        "two processes use the identity {identity:?} and take its slot from each other: give each one of its own{}",
        again(*retry_after)
    )]
    Conflict {
        /// Which.
        identity: String,
        /// When takeovers are allowed again.
        retry_after: Option<Duration>,
    },
    /// The wall clock is behind what earlier holders of the slot may have used. The slot was given back.
    #[error(
        "the wall clock is {} behind the clocks of earlier holders of the slot: set it right, then ask again",
        seconds(*by)
    )]
    ClockBehind {
        /// By how much.
        by: Duration,
    },
    /// The answers come so late that nothing of the ttl is left.
    #[error("a ttl of {ttl_ms} ms is over before its answer is here: ask for a longer one")]
    TooSlow {
        /// What was granted.
        ttl_ms: u64,
    },
    /// The pool said no for another reason.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The cluster gave no answer to build on.
    #[error(transparent)]
    Client(#[from] CallError),
    /// No token could be made.
    #[error("no randomness for a token: {0}")]
    Randomness(String),
}

impl From<getrandom::Error> for AcquireError {
    fn from(error: getrandom::Error) -> AcquireError {
        AcquireError::Randomness(error.to_string())
    }
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// One of [`reason`].
    pub reason: String,
    /// When trying again may help.
    pub retry_after: Option<Duration>,
    /// The operator's text of a BREAK.
    pub detail: Option<String>,
}

impl std::error::Error for Refused {}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no slot: {}", self.reason)?;
        if let Some(detail) = &self.detail {
            write!(f, " ({detail})")?;
        }
        match self.reason.as_str() {
            reason::TOKEN_USED | reason::EXPIRED | reason::NOT_HELD => {
                write!(f, ": the grant of this token is over, ask with a fresh one")
            }
            reason::TAKEN_OVER => {
                write!(
                    f,
                    ": another process holds the slot of this identity now, and this token never gets it back; "
                )?;
                write!(f, "ask with a fresh one only if that process is to stop")
            }
            reason::BROKEN => write!(f, ": an operator ended the grant of this token, ask with a fresh one later"),
            reason::KEY_EXPIRED => write!(f, ": the lifetime of the pool is over, PERSIST it or wait until it is gone"),
            reason::DELETED => write!(f, ": the pool was deleted, CREATE it first"),
            reason::TTL_NOT_POSITIVE => write!(f, ": ask for a ttl of at least 1 ms"),
            reason::SUPERSEDED => write!(f, ": a newer call with the same token waits instead"),
            reason::CANCELLED_WAIT => write!(f, ": the wait was ended by a RELEASE, ask again"),
            _ => Ok(()),
        }
    }
}

/// Why an attempt ended without a slot, and what it leaves behind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct NotAcquired {
    /// Why.
    pub why: AcquireError,
    /// A try got no answer: a copy of it that is still under way may be granted yet. [`crate::lease::give_back`] if the
    /// token is not to be used again; an attempt with a token of its own does it by itself.
    pub in_doubt: bool,
}

impl From<AcquireError> for NotAcquired {
    fn from(why: AcquireError) -> NotAcquired {
        NotAcquired { why, in_doubt: false }
    }
}

impl From<NotAcquired> for AcquireError {
    fn from(not: NotAcquired) -> AcquireError {
        not.why
    }
}

/// A loss: the slot must not be used any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// How it is known.
    pub by: LostBy,
    /// The own deadline as it stood: nobody else has the slot before it, unless it was taken over, broken or deleted.
    pub deadline: Boottime,
}

impl Lost {
    pub(super) fn released(deadline: Boottime) -> Lost {
        Lost { by: LostBy::Node { reason: reason::RELEASED.to_owned(), detail: None }, deadline }
    }
}

impl From<lease::Lost> for Lost {
    fn from(lease::Lost { by, deadline }: lease::Lost) -> Lost {
        Lost { by, deadline }
    }
}

impl std::error::Error for Lost {}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (reason, detail) = match &self.by {
            LostBy::Deadline { trouble } => ("no renewal before its own deadline", trouble),
            LostBy::Node { reason, detail } => (reason.as_str(), detail),
        };
        write!(f, "slot lost: {reason}")?;
        if let Some(detail) = detail {
            write!(f, " ({detail})")?;
        }
        match reason {
            reason::TAKEN_OVER => {
                write!(f, ": another process uses the same identity; stop, and give each process one of its own")
            }
            _ => write!(f, ": stop using its id, then acquire again"),
        }
    }
}

fn seconds(duration: Duration) -> String {
    format!("{}.{} s", duration.as_secs(), duration.subsec_millis() / 100)
}

fn earliest(retry_after: Option<Duration>) -> String {
    retry_after.map(|after| format!(", in {} at the earliest", seconds(after))).unwrap_or_default()
}

fn at_most(retry_after: Option<Duration>) -> String {
    retry_after.map(|after| format!(" for {} unless renewed", seconds(after))).unwrap_or_default()
}

fn again(retry_after: Option<Duration>) -> String {
    retry_after.map(|after| format!("; refused for another {}", seconds(after))).unwrap_or_default()
}
