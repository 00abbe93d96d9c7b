//! What is asked of a pool, and asking until there is an answer to go by.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::attempt::{Asked, Attempt};
use super::error::{AcquireError, NotAcquired};
use super::grant::Grant;
use crate::asking::{Ask, Asking, may_pass};
use crate::client::{Backoff, CallError, Client};
use crate::lease::default_owner;
use crate::time::WallClock;
use crate::wire::{AcquireArgs, AcquireSlotArgs, Code, Op, TTL_MS_DEFAULT, Token, reason};

/// Whom a slot is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Nobody in particular: one of a semaphore.
    Nobody {
        /// Who holds, readable. Default: `host:pid`.
        owner: Option<String>,
    },
    /// An identity: at most one live slot each, and the same one again where it can be.
    Identity {
        /// 1..=256 bytes.
        identity: String,
        /// Not this id: somebody else seems to use it. It is put in quarantine.
        avoid: Option<u32>,
    },
}

/// How to acquire a slot.
#[derive(Clone, Debug)]
pub struct Acquire {
    /// The pool's key.
    pub pool: String,
    /// Whom it is for.
    pub whose: Whose,
    /// Lifetime of the grant and of each renewal. Default 30 000; a pool may give more.
    pub ttl_ms: u64,
    /// How long to wait in line while none is free. Default zero: ask once.
    pub wait: Duration,
    /// Free text for operators.
    pub note: Option<String>,
    /// Default: a fresh random one. One that holds a slot renews it.
    pub token: Option<Token>,
    /// Refuse a token whose grant ended (`token_used`), instead of granting with it anew. Default true: a copy of the
    /// question that arrives late finds nothing to do.
    pub once: bool,
    /// For an identity: told with each ACQUIRE and RENEW, so that the slot's next holder knows how far this one's
    /// timestamps may have got. Default: not told.
    pub wall: Option<Arc<dyn WallClock>>,
}

impl Acquire {
    /// With defaults.
    pub fn new(pool: impl Into<String>, whose: Whose) -> Acquire {
        Acquire {
            pool: pool.into(),
            whose,
            ttl_ms: TTL_MS_DEFAULT,
            wait: Duration::ZERO,
            note: None,
            token: None,
            once: true,
            wall: None,
        }
    }
}

impl Grant {
    /// Acquires a slot without renewing it afterwards. The floor of its clock is the caller's to keep
    /// ([`Grant::wait_for_floor`]).
    ///
    /// # Errors
    /// [`NotAcquired`]. Where any try of the attempt is in doubt, the error is
    /// [`CallError::OutcomeUnknown`], whatever the last one came to.
    pub async fn acquire(client: &Client, acquire: &Acquire) -> Result<Grant, NotAcquired> {
        let token = match &acquire.token {
            Some(token) => token.clone(),
            None => Token::random().map_err(AcquireError::from)?,
        };
        let ttl_ms = Some(i64::try_from(acquire.ttl_ms).unwrap_or(i64::MAX));
        let note = acquire.note.clone();
        match &acquire.whose {
            Whose::Nobody { owner } => {
                let args = AcquireArgs {
                    owner: owner.clone().unwrap_or_else(default_owner),
                    token,
                    ttl_ms,
                    wait_ms: None,
                    create: None,
                    note,
                    min_hold_ms: None,
                    delay_ms: None,
                    once: acquire.once.then_some(true),
                };
                until_answered(client, acquire, args).await
            }
            Whose::Identity { identity, avoid } => {
                let args = AcquireSlotArgs {
                    identity: identity.clone(),
                    token,
                    ttl_ms,
                    avoid: *avoid,
                    unix_ms: None,
                    wait_ms: None,
                    note,
                    once: acquire.once.then_some(true),
                };
                until_answered(client, acquire, args).await
            }
        }
    }
}

async fn until_answered<A: Ask>(client: &Client, acquire: &Acquire, args: A) -> Result<Grant, NotAcquired> {
    let started = Instant::now();
    let left = || acquire.wait.saturating_sub(started.elapsed());
    let own = acquire.token.is_none();
    let op = Op::new(acquire.pool.clone(), args);
    let mut attempt = Attempt::new(Asking::new(client, op, acquire.wall.clone(), own), acquire);
    let mut pauses = Backoff::default();
    loop {
        let why = match attempt.ask(left()).await {
            Ok(Asked::Held(grant)) => return Ok(*grant),
            // A used-up token says nothing of the pool: the question is still open.
            Ok(Asked::Again) => continue,
            Err(why) => why,
        };
        // Where there is no line for it now, or no answer at all: while there is time it asks again.
        let passes = match &why {
            AcquireError::Exhausted { .. } => true,
            AcquireError::Refused(refused) => refused.reason == reason::KEY_EXPIRED,
            AcquireError::Client(CallError::Refused(problem)) => problem.is(Code::RateLimited),
            AcquireError::Client(error) => may_pass(error),
            _ => false,
        };
        let pause = pauses.next();
        if !passes || pause >= left() {
            return Err(attempt.not_acquired(why));
        }
        tokio::time::sleep(pause).await;
    }
}
