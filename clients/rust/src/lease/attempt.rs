//! One attempt to hold a lease: one token, asked with as often as it takes.
//!
//! # Model
//! Each ACQUIRE of the attempt carries its token, so a lost answer is resolved by asking again: granted by the first
//! copy, the second is told `yours`; waiting by the first copy, the second takes its place in the line. A `yours`, and a
//! `true` that came by waiting or too late, is proved by a RENEW before it counts: the answer may have been under way for
//! as long as the grant lasts. `once` is always set: a token whose grant came and went unseen is refused as used, and the
//! attempt goes on with a fresh one.
//!
//! An attempt given up while an ACQUIRE is in doubt, a waiting one included (error, or the future dropped), sends a
//! RELEASE in the background, so that neither a grant nobody knows of nor a place in the line keeps others waiting.

use std::time::Duration;

use super::grant::{Acquire, AcquireError, Grant, NotHeld, default_owner};
use super::renewal::renew;
use crate::client::{Answered, CallError, Client};
use crate::time::own_deadline;
use crate::wire::{AcquireArgs, Code, Op, ReleaseArgs, Repeat, Request, Token, reason};

/// Fresh tokens an attempt takes at most after its own were used up unseen.
const FRESH_TOKENS_MAX: u32 = 3;

/// What a question came to.
pub(super) enum Asked {
    Held(Grant),
    NotHeld(NotHeld),
    /// The token is used up; there is a fresh one.
    Again,
}

/// See the module.
pub(super) struct Attempt {
    client: Client,
    op: Op<AcquireArgs>,
    ttl_ms: u64,
    /// Tokens are the attempt's own.
    own: bool,
    fresh_left: u32,
    /// A grant may stand that nobody knows of.
    pub in_doubt: bool,
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
        Ok(Attempt {
            client: client.clone(),
            op: Op::new(key, args),
            ttl_ms: acquire.ttl_ms,
            own: acquire.token.is_none(),
            fresh_left: FRESH_TOKENS_MAX,
            in_doubt: false,
        })
    }

    /// The ACQUIRE, without waiting.
    pub fn op(&self) -> &Op<AcquireArgs> {
        &self.op
    }

    /// Asks once, and waits in line for so long.
    pub async fn ask(&mut self, wait: Duration) -> Result<Asked, AcquireError> {
        // While it is under way; what an earlier one left in doubt stays so, whatever this one comes to.
        let doubt = std::mem::replace(&mut self.in_doubt, true);
        let answered = if wait.is_zero() {
            self.client.call(&self.op).await
        } else {
            let op = |wait_ms| Op {
                args: AcquireArgs { wait_ms: Some(wait_ms), ..self.op.args.clone() },
                ..self.op.clone()
            };
            self.client.call_waiting(wait, op).await
        };
        let answered = match answered {
            Ok(answered) => answered,
            Err(error) => {
                self.in_doubt = doubt || matches!(error, CallError::OutcomeUnknown { .. } | CallError::Protocol { .. });
                return Err(error.into());
            }
        };
        let answer = &answered.answer;
        if answer.is_true() || answer.yours() {
            return self.granted(&answered, !wait.is_zero()).await;
        }
        // A first copy that is still under way may be granted when the other's grant has ended.
        self.in_doubt = doubt || answered.repeated;
        if self.own && answer.reason() == Some(reason::TOKEN_USED) && self.fresh_left > 0 {
            return self.start_over();
        }
        Ok(Asked::NotHeld(NotHeld::of(answer)))
    }

    async fn granted(&mut self, answered: &Answered, waited: bool) -> Result<Asked, AcquireError> {
        let (Some(fence), Some(ttl_ms)) = (answered.answer.fence(), answered.answer.ttl_ms()) else {
            return Err(incomplete(answered));
        };
        let mut grant = Grant {
            key: self.op.key.clone(),
            token: self.op.args.token.clone(),
            fence,
            ttl_ms: self.ttl_ms,
            deadline: own_deadline(answered.sent, ttl_ms),
        };
        if waited || answered.answer.yours() || self.client.clock().now() >= grant.deadline {
            let proof = match self.client.call(&renew(&grant)).await {
                // An OP needs its key: the grant went with it.
                Err(CallError::Refused(problem)) if problem.is(Code::NoSuchKey) || problem.is(Code::WrongType) => {
                    self.in_doubt = false;
                    return Ok(Asked::NotHeld(NotHeld { reason: reason::DELETED.to_owned(), ..NotHeld::default() }));
                }
                proof => proof?,
            };
            if !proof.answer.is_true() {
                // It came and went, and its token is used up.
                self.in_doubt = false;
                if self.own && self.fresh_left > 0 {
                    return self.start_over();
                }
                return Ok(Asked::NotHeld(NotHeld::of(&proof.answer)));
            }
            let ttl_ms = proof.answer.ttl_ms().ok_or_else(|| incomplete(&proof))?;
            grant.deadline = own_deadline(proof.sent, ttl_ms);
        }
        if self.client.clock().now() >= grant.deadline {
            return Err(AcquireError::TooSlow { ttl_ms: self.ttl_ms });
        }
        self.in_doubt = false;
        Ok(Asked::Held(grant))
    }

    fn start_over(&mut self) -> Result<Asked, AcquireError> {
        self.fresh_left -= 1;
        self.op.args.token = fresh_token()?;
        self.in_doubt = false;
        Ok(Asked::Again)
    }
}

impl Attempt {
    /// `error`, unless an earlier try may have been granted: that is what the caller must know then.
    pub fn doubtful(&self, error: AcquireError) -> AcquireError {
        use CallError::{Refused, Unavailable, Unreachable};
        match error {
            AcquireError::Call(call @ (Unavailable { .. } | Unreachable { .. } | Refused(_))) if self.in_doubt => {
                CallError::OutcomeUnknown { detail: format!("an earlier try may have been granted; the last: {call}") }
                    .into()
            }
            error => error,
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.in_doubt || !self.own {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (client, key, token) = (self.client.clone(), self.op.key.clone(), self.op.args.token.clone());
        runtime.spawn(async move {
            let timeout = client.options().call_timeout;
            if let Err(error) = give_back(&client, &key, &token, None, timeout).await {
                tracing::debug!(key, %error, "a grant in doubt was not given back");
            }
        });
    }
}

/// RELEASE of whatever `token` holds, for the owner of a token that served one attempt only: nothing acquires with it
/// after this, so it is repeated without an answer, also where no `fence` is known.
///
/// # Errors
/// [`CallError`]; without an answer the grant ends by itself.
pub async fn give_back(
    client: &Client,
    key: &str,
    token: &Token,
    fence: Option<u64>,
    timeout: Duration,
) -> Result<Answered, CallError> {
    let release = GiveBack(Op::new(key, ReleaseArgs { token: token.clone(), fence }));
    client.call_within(&release, timeout, timeout.min(client.options().try_timeout)).await
}

/// A RELEASE that may be repeated.
#[derive(serde::Serialize)]
#[serde(transparent)]
struct GiveBack(Op<ReleaseArgs>);

impl Request for GiveBack {
    const COMMAND: &'static str = <Op<ReleaseArgs> as Request>::COMMAND;

    fn repeat(&self) -> Repeat {
        Repeat::ByToken
    }
}

pub(super) fn incomplete(answered: &Answered) -> AcquireError {
    let detail = "a grant without fence and ttl_ms".to_owned();
    CallError::Protocol { endpoint: answered.endpoint.clone(), detail }.into()
}

pub(super) fn fresh_token() -> Result<Token, AcquireError> {
    Token::random().map_err(|error| AcquireError::Randomness(error.to_string()))
}
