//! From the command line to a grant that is proved and leaves time to work.
//!
//! The token is ours from the start, so that a grant whose answer never came can be given back when we stop asking.

use std::time::Duration;

use tenure_client::wire::{Op, RenewArgs, reason};
use tenure_client::{Acquire, AcquireError, Acquired, CallError, Client, Grant, NotHeld, Token};
use tokio::signal::unix::SignalKind;
use tokio::time::Instant;

use super::clock::boottime_ms;
use super::signals::Signals;
use super::times::{Plan, Schedule, own_deadline_ms, to_ms};

/// Tokens whose grant came and went unseen before we give up: each costs a whole ttl, so more would be odd.
const TOKENS_MAX: u32 = 3;
/// For giving back what may have been granted.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// How asking ended.
#[derive(Debug)]
pub enum Asked {
    /// Held, with time to work.
    Held(Grant, Schedule),
    /// Somebody else holds it, or this period's run was already.
    NotHeld(NotHeld),
    /// A signal came first.
    Interrupted(SignalKind),
}

/// Acquires `key`; asks again until `acquire.wait` is over.
pub async fn ask(
    client: &Client,
    key: &str,
    acquire: Acquire,
    plan: Plan,
    signals: &mut Signals,
) -> Result<Asked, AcquireError> {
    let started = Instant::now();
    let mut tokens_left = TOKENS_MAX;
    loop {
        let token = Token::random().map_err(|error| AcquireError::Randomness(error.to_string()))?;
        let wait = acquire.wait.saturating_sub(started.elapsed());
        let one = Acquire { token: Some(token.clone()), wait, ..acquire.clone() };
        let outcome = tokio::select! {
            outcome = hold(client, key, one, plan) => outcome,
            signal = signals.next() => {
                give_back(client, key, &token, None, RELEASE_TIMEOUT).await;
                return Ok(Asked::Interrupted(signal));
            }
        };
        tokens_left -= 1;
        match outcome {
            Ok(Asked::NotHeld(not)) if not.reason == reason::TOKEN_USED && tokens_left > 0 => {}
            Ok(Asked::NotHeld(not)) if not.in_doubt => {
                give_back(client, key, &token, None, RELEASE_TIMEOUT).await;
                return Ok(Asked::NotHeld(not));
            }
            Err(error) if may_hold(&error) => {
                give_back(client, key, &token, None, RELEASE_TIMEOUT).await;
                return Err(error);
            }
            outcome => return outcome,
        }
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

/// One token's grant, renewed if its answer took so long that the first renewal is due.
async fn hold(client: &Client, key: &str, acquire: Acquire, plan: Plan) -> Result<Asked, AcquireError> {
    let grant = match Grant::acquire(client, key, acquire).await? {
        Acquired::Held(grant) => grant,
        Acquired::NotHeld(not) => return Ok(Asked::NotHeld(not)),
    };
    let mut schedule = Schedule::granted(plan, to_ms(grant.deadline));
    if schedule.may_start(boottime_ms()) {
        return Ok(Asked::Held(grant, schedule));
    }
    let answered = match client.call(&renew(&grant)).await {
        Ok(answered) => answered,
        Err(error) => {
            give_back(client, key, &grant.token, Some(grant.fence), RELEASE_TIMEOUT).await;
            return Err(error.into());
        }
    };
    let Some(deadline_ms) = own_deadline_ms(&answered) else {
        let reason = answered.answer.reason().unwrap_or(reason::NOT_HELD).to_owned();
        return Ok(Asked::NotHeld(NotHeld { reason, ..NotHeld::default() }));
    };
    schedule = Schedule::granted(plan, deadline_ms);
    if schedule.may_start(boottime_ms()) {
        return Ok(Asked::Held(grant, schedule));
    }
    give_back(client, key, &grant.token, Some(grant.fence), RELEASE_TIMEOUT).await;
    Err(AcquireError::TooSlow { ttl_ms: plan.ttl_ms })
}

/// RENEW of that grant.
pub fn renew(grant: &Grant) -> Op<RenewArgs> {
    let ttl_ms = i64::try_from(grant.ttl_ms).ok();
    Op::new(grant.key.clone(), RenewArgs { token: grant.token.clone(), ttl_ms, fence: Some(grant.fence) })
}

/// RELEASE. True if a grant ended by it; without an answer it ends by itself.
pub async fn give_back(client: &Client, key: &str, token: &Token, fence: Option<u64>, timeout: Duration) -> bool {
    let answered = tenure_client::lease::give_back(client, key, token, fence, timeout).await;
    answered.is_ok_and(|answered| answered.answer.is_true())
}
