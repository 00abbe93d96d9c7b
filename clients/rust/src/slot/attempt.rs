//! One attempt to hold a slot, its answers judged. The questions are [`Asking`]'s.

use std::time::Duration;

use super::acquire::{Acquire, Whose};
use super::error::{AcquireError, NotAcquired, Refused};
use super::grant::{Grant, next};
use crate::asking::{Ask, Asking, give_back};
use crate::client::{Answered, CallError};
use crate::renewal::Outcome;
use crate::time::own_deadline;
use crate::wire::{Code, Problem, SlotGrant, reason};

/// What a question came to.
pub(super) enum Asked {
    Held(Box<Grant>),
    /// The token is used up; there is a fresh one.
    Again,
}

/// See the module.
pub(super) struct Attempt<'a, A: Ask> {
    asking: Asking<A>,
    acquire: &'a Acquire,
}

impl<'a, A: Ask> Attempt<'a, A> {
    pub fn new(asking: Asking<A>, acquire: &'a Acquire) -> Attempt<'a, A> {
        Attempt { asking, acquire }
    }

    /// Asks once, and waits in line for so long.
    pub async fn ask(&mut self, wait: Duration) -> Result<Asked, AcquireError> {
        let answered = self.asking.ask(wait).await?;
        if let Some(slot) = answered.answer.slot() {
            return self.granted(&answered, slot, !wait.is_zero()).await;
        }
        self.asking.refused(&answered);
        if answered.answer.result.is_boolean() {
            return Err(self.no_pool(&answered).await);
        }
        if !answered.answer.result.is_null() {
            let detail = "an ACQUIRE of a slot that is neither a grant nor null".to_owned();
            return Err(CallError::Protocol { endpoint: answered.endpoint, detail }.into());
        }
        if answered.answer.reason() == Some(reason::TOKEN_USED) && self.asking.start_over()? {
            return Ok(Asked::Again);
        }
        Err(self.refusal(&answered))
    }

    async fn granted(&mut self, answered: &Answered, slot: SlotGrant, waited: bool) -> Result<Asked, AcquireError> {
        let client = self.asking.client.clone();
        let (ttl_raised, yours) = (answered.answer.ttl_raised(), answered.answer.yours());
        // A kept token may have more than the pool's least, of a former life.
        let is_least = ttl_raised && (self.asking.own || !yours);
        let ttl_ms = if is_least { slot.ttl_ms } else { self.acquire.ttl_ms };
        let mut grant = Grant {
            key: self.acquire.pool.clone(),
            token: self.asking.token(),
            ttl_ms,
            deadline: own_deadline(answered.sent, slot.ttl_ms),
            next: next(answered.sent, slot.ttl_ms, ttl_ms, ttl_raised),
            slot,
            ttl_raised,
            yours,
            took_over: answered.answer.took_over(),
            wall: self.acquire.wall.clone(),
        };
        if waited || client.clock().now() >= grant.deadline {
            let (call, one_try) = (client.options().call_timeout, client.options().try_timeout);
            match grant.renew(&client, call, one_try).await {
                Outcome::Ok(renewed) => {
                    (grant.deadline, grant.next) = (renewed.deadline, renewed.next);
                    // Both count: the first is older, and only it knows of the token's own former life.
                    grant.slot.floor_unix_ms = grant.slot.floor_unix_ms.max(renewed.floor_unix_ms);
                }
                Outcome::Lost { reason, detail } => {
                    // It came and went, and its token is used up.
                    self.asking.settled();
                    let is_taken_over = reason == reason::TAKEN_OVER;
                    // Not if another process has the slot: a fresh token would take it back from that one.
                    if !is_taken_over && self.asking.start_over()? {
                        return Ok(Asked::Again);
                    }
                    return Err(Refused { reason, retry_after: None, detail }.into());
                }
                Outcome::Retry { trouble } => {
                    let detail = format!("a slot was granted, and no RENEW proved it: {trouble}");
                    return Err(CallError::OutcomeUnknown { detail }.into());
                }
            }
        }
        if client.clock().now() >= grant.deadline {
            return Err(AcquireError::TooSlow { ttl_ms: grant.slot.ttl_ms });
        }
        self.asking.settled();
        Ok(Asked::Held(Box::new(grant)))
    }

    /// A lease is asked for as an anonymous slot is. What it gave is given back.
    async fn no_pool(&mut self, answered: &Answered) -> AcquireError {
        let client = &self.asking.client;
        if answered.answer.grants() {
            let (pool, token, timeout) = (&self.acquire.pool, self.asking.token(), client.options().call_timeout);
            if let Err(error) = give_back(client, pool, &token, answered.answer.fence(), timeout).await {
                tracing::warn!(key = pool, %error, "a lease that was taken for a pool ends by its ttl");
            }
        }
        let detail = format!("{} is a lease, not a pool: acquire it as one, or name a pool", self.acquire.pool);
        CallError::Refused(Box::new(Problem::new(Code::WrongType, detail))).into()
    }

    fn refusal(&self, answered: &Answered) -> AcquireError {
        let answer = &answered.answer;
        let retry_after = answer.retry_after_ms().map(Duration::from_millis);
        let identity = || match &self.acquire.whose {
            Whose::Identity { identity, .. } => identity.clone(),
            Whose::Nobody { .. } => String::new(),
        };
        match answer.reason() {
            Some(reason::EXHAUSTED | reason::WAIT_TIMEOUT | reason::QUEUE_FULL) => {
                AcquireError::Exhausted { retry_after }
            }
            Some(reason::IDENTITY_IN_USE) => AcquireError::InUse { identity: identity(), retry_after },
            Some(reason::IDENTITY_CONFLICT) => AcquireError::Conflict { identity: identity(), retry_after },
            reason => {
                let reason = reason.unwrap_or("no reason given").to_owned();
                Refused { reason, retry_after, detail: answer.detail().map(str::to_owned) }.into()
            }
        }
    }

    /// How it ended, with what is known of the tries before.
    pub fn not_acquired(&self, why: AcquireError) -> NotAcquired {
        let why = match why {
            AcquireError::Client(error) => self.asking.doubtful(error).into(),
            why => why,
        };
        NotAcquired { why, in_doubt: self.asking.in_doubt }
    }
}
