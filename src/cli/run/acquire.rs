//! From the command line to grants that are proved and leave time to work.
//!
//! The token is ours from the start and the same for all keys, so that whatever was granted, or waits in a line, can be
//! given back when we stop asking.
//!
//! Several keys are asked for in one step where nothing is waited for. Else in the order of their bytes, and those that are
//! held are renewed meanwhile: two runs that want the same keys meet at the first, and neither waits for what the other
//! holds; in the end all of them count from one RENEW. It is not the client's own way to wait for several, which gives
//! back by RELEASE: a minimum hold would keep others out after a run that never was.

use std::time::Duration;

use tenure_client::wire::reason;
use tenure_client::{Acquire, AcquireError, Acquired, AcquiredAll, CallError, Client, Grant, NotHeld, Token};
use tokio::signal::unix::SignalKind;
use tokio::time::Instant;

use super::clock::boottime_ms;
use super::each::Within;
use super::grants::{Grants, Renewed, leave};
use super::signals::Signals;
use super::times::{Plan, Schedule, to_ms};

/// Tokens whose grant came and went unseen before we give up: each costs a whole ttl, so more would be odd.
const TOKENS_MAX: u32 = 3;
/// For giving back what may have been granted.
pub const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after a RENEW without an answer while others are waited for.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// How asking ended.
#[derive(Debug)]
pub enum Asked {
    /// All held, with time to work.
    Held(Grants, Schedule),
    /// Somebody else holds one, or this period's run was already. Nothing is held.
    NotHeld(String, NotHeld),
    /// A signal came first.
    Interrupted(SignalKind),
}

/// Acquires all of `keys`, at least one; waits in line until `acquire.wait` is over.
pub async fn ask(
    client: &Client,
    keys: &[String],
    acquire: &Acquire,
    plan: Plan,
    signals: &mut Signals,
) -> Result<Asked, AcquireError> {
    let started = Instant::now();
    let window = acquire.min_hold_ms.is_some_and(|ms| ms > 0);
    let mut tokens_left = TOKENS_MAX;
    loop {
        let token = Token::random().map_err(|error| AcquireError::Randomness(error.to_string()))?;
        let wait = acquire.wait.saturating_sub(started.elapsed());
        let mut asking = Asking {
            client,
            plan,
            acquire: Acquire { token: Some(token.clone()), wait, ..acquire.clone() },
            in_doubt: false,
        };
        let outcome = tokio::select! {
            outcome = asking.hold(keys) => outcome,
            signal = signals.next() => {
                // What cannot be told ends by itself: a grant by its ttl, a place in line with its socket.
                let _ends_by_itself = leave(client, keys, &token, window, LEAVE_TIMEOUT).await;
                return Ok(Asked::Interrupted(signal));
            }
        };
        tokens_left -= 1;
        if asking.in_doubt {
            let _ends_by_itself = leave(client, keys, &token, window, LEAVE_TIMEOUT).await;
        }
        match outcome {
            Ok(Asked::NotHeld(_, not)) if not.reason == reason::TOKEN_USED && tokens_left > 0 => {}
            outcome => return outcome,
        }
    }
}

/// One token's attempt.
struct Asking<'a> {
    client: &'a Client,
    plan: Plan,
    acquire: Acquire,
    /// Something may be held, or waited for, that nobody will use.
    in_doubt: bool,
}

impl Asking<'_> {
    async fn hold(&mut self, keys: &[String]) -> Result<Asked, AcquireError> {
        let outcome = match keys {
            [key] => self.one(key).await,
            keys if self.acquire.wait.is_zero() => self.at_once(keys).await,
            keys => self.in_turn(keys).await,
        };
        self.in_doubt |= match &outcome {
            Ok(Asked::Held(..)) => false,
            Ok(Asked::NotHeld(_, not)) => not.in_doubt,
            Ok(Asked::Interrupted(_)) => true,
            Err(error) => may_hold(error),
        };
        outcome
    }

    /// Renewed if the answer took so long that the first renewal is due.
    async fn one(&mut self, key: &str) -> Result<Asked, AcquireError> {
        let grant = match Grant::acquire(self.client, key, self.acquire.clone()).await? {
            Acquired::Held(grant) => grant,
            Acquired::NotHeld(not) => return Ok(Asked::NotHeld(key.to_owned(), not)),
        };
        let schedule = Schedule::granted(self.plan, to_ms(grant.deadline));
        if schedule.may_start(boottime_ms()) {
            return Ok(Asked::Held(Grants::one(grant), schedule));
        }
        self.prove(Grants::one(grant)).await
    }

    async fn at_once(&mut self, keys: &[String]) -> Result<Asked, AcquireError> {
        let grants = match Grant::acquire_all(self.client, keys, self.acquire.clone()).await? {
            AcquiredAll::Held(grants) => grants,
            AcquiredAll::NotHeld { key, why } => return Ok(Asked::NotHeld(key, why)),
        };
        let deadline_ms = grants.iter().map(|grant| to_ms(grant.deadline)).min().unwrap_or(0);
        let schedule = Schedule::granted(self.plan, deadline_ms);
        match Grants::new(grants) {
            Some(grants) if schedule.may_start(boottime_ms()) => Ok(Asked::Held(grants, schedule)),
            Some(grants) => self.prove(grants).await,
            None => Err(self.too_slow()),
        }
    }

    async fn in_turn(&mut self, keys: &[String]) -> Result<Asked, AcquireError> {
        let started = Instant::now();
        let wait = self.acquire.wait;
        let mut in_order: Vec<&String> = keys.iter().collect();
        in_order.sort();
        let mut grants: Vec<Grant> = Vec::new();
        for key in in_order {
            self.acquire.wait = wait.saturating_sub(started.elapsed());
            let next = Grant::acquire(self.client, key, self.acquire.clone());
            let outcome = tokio::select! {
                outcome = next => outcome,
                (lost, not) = self.keep(&grants) => {
                    self.in_doubt = true;
                    return Ok(Asked::NotHeld(lost, not));
                }
            };
            self.in_doubt |= !grants.is_empty();
            match outcome? {
                Acquired::Held(grant) => grants.push(grant),
                Acquired::NotHeld(not) => return Ok(Asked::NotHeld(key.clone(), not)),
            }
        }
        grants.sort_by_key(|grant| keys.iter().position(|key| *key == grant.key));
        match Grants::new(grants) {
            Some(grants) => self.prove(grants).await,
            None => Err(self.too_slow()),
        }
    }

    /// Renews what is held already; returns when one of it is lost.
    async fn keep(&self, grants: &[Grant]) -> (String, NotHeld) {
        let Some(grants) = Grants::new(grants.to_vec()) else { return std::future::pending().await };
        let every = Duration::from_millis(self.plan.renew_every_ms());
        loop {
            match grants.renew(self.client, Within::of(self.client, every)).await {
                Ok(Renewed::Held { .. }) => tokio::time::sleep(every).await,
                Ok(Renewed::Lost { key, reason, .. }) => return (key, NotHeld { reason, ..NotHeld::default() }),
                Ok(Renewed::Odd(_)) | Err(_) => tokio::time::sleep(RETRY_PAUSE.min(every)).await,
            }
        }
    }

    /// The RENEW from which all of them count.
    async fn prove(&mut self, grants: Grants) -> Result<Asked, AcquireError> {
        let timeout = self.client.options().call_timeout;
        self.in_doubt = true;
        match grants.renew(self.client, Within::of(self.client, timeout)).await? {
            Renewed::Held { deadline_ms } => {
                let schedule = Schedule::granted(self.plan, deadline_ms);
                if !schedule.may_start(boottime_ms()) {
                    return Err(self.too_slow());
                }
                self.in_doubt = false;
                Ok(Asked::Held(grants, schedule))
            }
            Renewed::Lost { key, reason, .. } => Ok(Asked::NotHeld(key, NotHeld { reason, ..NotHeld::default() })),
            Renewed::Odd(detail) => Err(CallError::Protocol { endpoint: "a node".to_owned(), detail }.into()),
        }
    }

    fn too_slow(&self) -> AcquireError {
        AcquireError::TooSlow { ttl_ms: self.plan.ttl_ms }
    }
}

/// Whether any try may have been granted: the error of an attempt says so of all its tries.
fn may_hold(error: &AcquireError) -> bool {
    use CallError::{Refused, Unavailable, Unreachable};
    !matches!(
        error,
        AcquireError::Randomness(_) | AcquireError::Call(Unreachable { .. } | Unavailable { .. } | Refused(_))
    )
}
