//! How a grant is come by.
//!
//! # Model
//! One attempt to hold has one token. Each ACQUIRE of the attempt carries it, so a lost answer is resolved by asking
//! again: granted by the first copy, the second is told `yours`. That, and a `true` that came too late, is proved by a
//! RENEW before it counts. `once` is always set: a token whose grant came and went unseen is refused as used, and the
//! attempt goes on with a fresh one.
//!
//! Waiting is polling, with growing and jittered pauses of at most a second, until `wait` is over.
//!
//! An attempt given up while an ACQUIRE is in doubt (error, or the future dropped) sends a RELEASE in the background, so
//! that a grant nobody knows of does not block others for its ttl.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use super::renewal::renew;
use crate::client::{Answered, Backoff, CallError, Client};
use crate::time::{Boottime, own_deadline};
use crate::wire::{AcquireArgs, Answer, Op, ReleaseArgs, Repeat, Request, TTL_MS_DEFAULT, Token, reason};

/// Fresh tokens an attempt takes at most after its own were used up unseen.
const FRESH_TOKENS_MAX: u32 = 3;

/// The least time a call of the wait has: a question asked at its very end still gets its answer.
const LAST_CALL: Duration = Duration::from_secs(1);

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
    /// How long to go on asking while somebody else holds it. Default zero: ask once.
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
    /// [`give_back`] if the token is not to be used again; an attempt with a token of its own does it by itself.
    pub in_doubt: bool,
}

impl NotHeld {
    fn of(answer: &Answer) -> NotHeld {
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
        let mut call_timeout = client.options().call_timeout;
        loop {
            let outcome = attempt.ask(call_timeout).await;
            let pause = match &outcome {
                Ok(Asked::Held(_)) => None,
                Ok(Asked::Again) => Some(Duration::ZERO),
                Ok(Asked::NotHeld(not_held)) => pause(not_held, &acquire, &mut pauses),
                Err(AcquireError::Call(error)) if may_pass(error) => Some(pauses.next()),
                Err(_) => None,
            };
            let left = acquire.wait.saturating_sub(started.elapsed());
            match (outcome, pause) {
                // A used-up token says nothing of the lease: the question is still open.
                (Ok(Asked::Again), _) => continue,
                (Ok(Asked::Held(grant)), _) => return Ok(Acquired::Held(grant)),
                (_, Some(pause)) if pause < left => {
                    tokio::time::sleep(pause).await;
                    call_timeout = client.options().call_timeout.min((left - pause).max(LAST_CALL));
                }
                (Ok(Asked::NotHeld(not_held)), _) => {
                    return Ok(Acquired::NotHeld(NotHeld { in_doubt: attempt.in_doubt, ..not_held }));
                }
                (Err(error), _) => return Err(attempt.doubtful(error)),
            }
        }
    }
}

/// How long to wait before asking again; `None`: that does not pass by waiting.
fn pause(not_held: &NotHeld, acquire: &Acquire, pauses: &mut Backoff) -> Option<Duration> {
    match not_held.reason.as_str() {
        reason::TTL_NOT_POSITIVE | reason::TOKEN_USED => None,
        // Who asks for a minimum hold wants one run a period: somebody had it.
        reason::MIN_HOLD if acquire.min_hold_ms.is_some_and(|ms| ms > 0) => None,
        _ => {
            let hint = not_held.retry_after_ms.map_or(Duration::MAX, |ms| Duration::from_millis(ms.max(10)));
            Some(pauses.next().min(hint))
        }
    }
}

fn may_pass(error: &CallError) -> bool {
    matches!(error, CallError::Unreachable { .. } | CallError::Unavailable { .. } | CallError::OutcomeUnknown { .. })
}

enum Asked {
    Held(Grant),
    NotHeld(NotHeld),
    /// The token is used up; there is a fresh one.
    Again,
}

/// One attempt to hold.
struct Attempt {
    client: Client,
    op: Op<AcquireArgs>,
    ttl_ms: u64,
    /// Tokens are the attempt's own.
    own: bool,
    fresh_left: u32,
    /// A grant may stand that nobody knows of.
    in_doubt: bool,
}

impl Attempt {
    fn new(client: &Client, key: &str, acquire: &Acquire) -> Result<Attempt, AcquireError> {
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

    async fn ask(&mut self, call_timeout: Duration) -> Result<Asked, AcquireError> {
        // While it is under way; what an earlier one left in doubt stays so, whatever this one comes to.
        let doubt = std::mem::replace(&mut self.in_doubt, true);
        let try_timeout = self.client.options().try_timeout;
        let answered = match self.client.call_within(&self.op, call_timeout, try_timeout).await {
            Ok(answered) => answered,
            Err(error) => {
                self.in_doubt = doubt || matches!(error, CallError::OutcomeUnknown { .. } | CallError::Protocol { .. });
                return Err(error.into());
            }
        };
        let answer = &answered.answer;
        if answer.is_true() || answer.yours() {
            return self.granted(&answered).await;
        }
        // A first copy that is still under way may be granted when the other's grant has ended.
        self.in_doubt = doubt || answered.repeated;
        if self.own && answer.reason() == Some(reason::TOKEN_USED) && self.fresh_left > 0 {
            return self.start_over();
        }
        Ok(Asked::NotHeld(NotHeld::of(answer)))
    }

    async fn granted(&mut self, answered: &Answered) -> Result<Asked, AcquireError> {
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
        if answered.answer.yours() || self.client.clock().now() >= grant.deadline {
            let proof = self.client.call(&renew(&grant)).await?;
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
    fn doubtful(&self, error: AcquireError) -> AcquireError {
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

fn incomplete(answered: &Answered) -> AcquireError {
    let detail = "a grant without fence and ttl_ms".to_owned();
    CallError::Protocol { endpoint: answered.endpoint.clone(), detail }.into()
}

fn fresh_token() -> Result<Token, AcquireError> {
    Token::random().map_err(|error| AcquireError::Randomness(error.to_string()))
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
