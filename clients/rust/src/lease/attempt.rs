//! One attempt to hold a lease, its answers judged. The questions are [`Asking`]'s.
//!
//! A `yours`, and a `true` that came by waiting or too late, is proved by a RENEW before it counts: the answer may have
//! been under way for as long as the grant lasts.

use std::time::Duration;

use super::grant::{Acquire, AcquireError, Grant, NotHeld, default_owner};
use crate::asking::{Asking, give_back};
use crate::client::{Answered, CallError, Client};
use crate::time::own_deadline;
use crate::wire::{AcquireArgs, Code, Op, Problem, RenewArgs, Token, reason};

/// What a question came to.
pub(super) enum Asked {
    Held(Grant),
    NotHeld(NotHeld),
    /// The token is used up; there is a fresh one.
    Again,
}

/// See the module.
pub(super) struct Attempt {
    asking: Asking<AcquireArgs>,
    ttl_ms: u64,
}

impl Attempt {
    pub fn new(client: &Client, key: &str, acquire: &Acquire) -> Result<Attempt, AcquireError> {
        let token = match &acquire.token {
            Some(token) => token.clone(),
            None => fresh_token()?,
        };
        let args = AcquireArgs {
            owner: acquire.owner.clone().unwrap_or_else(default_owner),
            token,
            ttl_ms: Some(i64::try_from(acquire.ttl_ms).unwrap_or(i64::MAX)),
            wait_ms: None,
            create: acquire.create.then_some(true),
            note: acquire.note.clone(),
            min_hold_ms: acquire.min_hold_ms,
            delay_ms: acquire.delay_ms,
            once: Some(true),
        };
        let asking = Asking::new(client, Op::new(key, args), None, acquire.token.is_none());
        Ok(Attempt { asking, ttl_ms: acquire.ttl_ms })
    }

    /// The ACQUIRE, without waiting.
    pub fn op(&self) -> &Op<AcquireArgs> {
        self.asking.op()
    }

    /// A grant may stand that nobody knows of.
    pub fn in_doubt(&self) -> bool {
        self.asking.in_doubt
    }

    /// Asks once, and waits in line for so long.
    pub async fn ask(&mut self, wait: Duration) -> Result<Asked, AcquireError> {
        let answered = self.asking.ask(wait).await?;
        let answer = &answered.answer;
        if answer.of_pool() {
            return Err(self.no_lease(&answered).await);
        }
        if answer.is_true() || answer.yours() {
            return self.granted(&answered, !wait.is_zero()).await;
        }
        self.asking.refused(&answered);
        if answer.reason() == Some(reason::TOKEN_USED) && self.start_over()? {
            return Ok(Asked::Again);
        }
        Ok(Asked::NotHeld(NotHeld::of(answer)))
    }

    async fn granted(&mut self, answered: &Answered, waited: bool) -> Result<Asked, AcquireError> {
        let (Some(fence), Some(ttl_ms)) = (answered.answer.fence(), answered.answer.ttl_ms()) else {
            return Err(incomplete(answered));
        };
        let client = self.asking.client.clone();
        let mut grant = Grant {
            key: self.op().key.clone(),
            token: self.asking.token(),
            fence,
            ttl_ms: self.ttl_ms,
            deadline: own_deadline(answered.sent, ttl_ms),
        };
        if waited || answered.answer.yours() || client.clock().now() >= grant.deadline {
            let proof = match client.call(&renew(&grant)).await {
                // An OP needs its key: the grant went with it.
                Err(CallError::Refused(problem)) if problem.is(Code::NoSuchKey) || problem.is(Code::WrongType) => {
                    self.asking.settled();
                    return Ok(Asked::NotHeld(NotHeld { reason: reason::DELETED.to_owned(), ..NotHeld::default() }));
                }
                proof => proof?,
            };
            if !proof.answer.is_true() {
                // It came and went, and its token is used up.
                self.asking.settled();
                if self.start_over()? {
                    return Ok(Asked::Again);
                }
                return Ok(Asked::NotHeld(NotHeld::of(&proof.answer)));
            }
            let ttl_ms = proof.answer.ttl_ms().ok_or_else(|| incomplete(&proof))?;
            grant.deadline = own_deadline(proof.sent, ttl_ms);
        }
        if client.clock().now() >= grant.deadline {
            return Err(AcquireError::TooSlow { ttl_ms: self.ttl_ms });
        }
        self.asking.settled();
        Ok(Asked::Held(grant))
    }

    /// Any slot of a pool is asked for as a lease is. What it gave is given back, unless its token had it before.
    async fn no_lease(&mut self, answered: &Answered) -> AcquireError {
        self.asking.refused(answered);
        let answer = &answered.answer;
        if answer.result.is_object() && (self.asking.own || !answer.yours()) {
            let (client, token) = (&self.asking.client, self.asking.token());
            if let Err(error) = give_back(client, &self.op().key, &token, None, client.options().call_timeout).await {
                tracing::warn!(key = self.op().key, %error, "a slot that was taken for a lease ends by its ttl");
            }
        }
        no_lease(&self.op().key)
    }

    fn start_over(&mut self) -> Result<bool, AcquireError> {
        self.asking.start_over().map_err(|error| AcquireError::Randomness(error.to_string()))
    }

    /// `error`, unless an earlier try may have been granted.
    pub fn doubtful(&self, error: AcquireError) -> AcquireError {
        match error {
            AcquireError::Call(error) => self.asking.doubtful(error).into(),
            error => error,
        }
    }
}

/// RENEW of that grant.
pub(super) fn renew(grant: &Grant) -> Op<RenewArgs> {
    let ttl_ms = i64::try_from(grant.ttl_ms).ok();
    Op::new(grant.key.clone(), RenewArgs { token: grant.token.clone(), ttl_ms, fence: Some(grant.fence) })
}

pub(super) fn incomplete(answered: &Answered) -> AcquireError {
    let detail = "a grant without fence and ttl_ms".to_owned();
    CallError::Protocol { endpoint: answered.endpoint.clone(), detail }.into()
}

/// The refusal of a key that is a pool.
pub(super) fn no_lease(key: &str) -> AcquireError {
    let detail = format!("{key} is a pool, not a lease: acquire a slot of it, or name a lease");
    CallError::Refused(Box::new(Problem::new(Code::WrongType, detail))).into()
}

pub(super) fn fresh_token() -> Result<Token, AcquireError> {
    Token::random().map_err(|error| AcquireError::Randomness(error.to_string()))
}
