//! A slot that is the caller's, and what can be done with it: renew it, wait for its floor, give it back.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::error::{AcquireError, NotAcquired, Refused};
use crate::client::{CallError, Client, Options};
use crate::renewal::{Outcome, Renew, Renewed};
use crate::time::{Boottime, WallClock, own_deadline};
use crate::wire::pool::TTL_MS_MIN_DEFAULT;
use crate::wire::{Code, Op, ReleaseArgs, RenewSlotArgs, SlotGrant, SlotRenewal, Token, TookOver, reason};

/// Up to so far behind the floor a clock is waited for.
pub const FLOOR_WAIT_MAX: Duration = Duration::from_secs(2);
/// The wall clock is read at least that often meanwhile: it may be set.
const WALL_READ_EVERY: Duration = Duration::from_millis(200);

/// A slot that was granted. Its deadline and [`Grant::next`] are those of the grant; a renewal tells new ones.
#[derive(Clone, Debug)]
pub struct Grant {
    /// The pool's key.
    pub key: String,
    /// The holder's secret.
    pub token: Token,
    /// The lifetime that each RENEW asks for: what was asked for, or what the pool raised that to, as far as it is known.
    pub ttl_ms: u64,
    /// The own deadline.
    pub deadline: Boottime,
    /// When to renew: a third of the ttl after the grant.
    pub next: Boottime,
    /// As it was granted.
    pub slot: SlotGrant,
    /// Less than the pool's least ttl was asked for, and that was given.
    pub ttl_raised: bool,
    /// The token had held it before, and renewed it by asking.
    pub yours: bool,
    /// It was taken from another token of the identity, by this grant or one before it, and that one may not know it.
    pub took_over: Option<TookOver>,
    /// Told with each renewal.
    pub wall: Option<Arc<dyn WallClock>>,
}

impl Grant {
    /// RENEW, within so long for the whole call and for one try. A copy that arrives twice does no harm.
    pub async fn renew(&self, client: &Client, call: Duration, one_try: Duration) -> Outcome {
        let (key, token, fence) = (self.key.clone(), self.token.clone(), self.slot.fence);
        let (ttl_ms, wall) = (i64::try_from(self.ttl_ms).ok(), self.wall.clone());
        let renew = move || {
            let unix_ms = wall.as_ref().map(|wall| wall.unix_ms());
            Op::new(key.clone(), RenewSlotArgs { token: token.clone(), ttl_ms, fence: Some(fence), unix_ms })
        };
        let answered = match client.call_afresh(renew, call, one_try).await {
            Ok(answered) => answered,
            // An OP needs its key: the grant went with it.
            Err(CallError::Refused(problem)) if problem.is(Code::NoSuchKey) || problem.is(Code::WrongType) => {
                // How to make one again is no news to a holder.
                let detail = problem.is(Code::WrongType).then_some(problem.detail);
                return Outcome::Lost { reason: reason::DELETED.to_owned(), detail };
            }
            Err(error) => return Outcome::Retry { trouble: error.to_string() },
        };
        let answer = &answered.answer;
        match answer.slot_renewal() {
            Some(SlotRenewal::Renewed(slot)) if (slot.id, slot.fence) == (self.slot.id, fence) => {
                let ttl_raised = answer.ttl_raised();
                let next = next(answered.sent, slot.ttl_ms, self.ttl_ms, ttl_raised);
                let (deadline, floor_unix_ms) = (own_deadline(answered.sent, slot.ttl_ms), slot.floor_unix_ms);
                Outcome::Ok(Renewed { deadline, next, ttl_raised, floor_unix_ms })
            }
            Some(SlotRenewal::Lost) => {
                let reason = answer.reason().unwrap_or(reason::NOT_HELD).to_owned();
                Outcome::Lost { reason, detail: answer.detail().map(str::to_owned) }
            }
            Some(SlotRenewal::Renewed(_)) => {
                Outcome::Retry { trouble: format!("{} renewed another grant", answered.endpoint) }
            }
            None => match answer.reason() {
                Some(reason) => Outcome::Retry { trouble: format!("not renewed: {reason}") },
                None => Outcome::Retry { trouble: format!("{} gave no answer to RENEW of a slot", answered.endpoint) },
            },
        }
    }

    /// RELEASE. `false`: it had ended before.
    ///
    /// # Errors
    /// [`CallError`]: it then ends by its ttl.
    pub async fn release(&self, client: &Client, timeout: Duration) -> Result<bool, CallError> {
        let args = ReleaseArgs { token: self.token.clone(), fence: Some(self.slot.fence) };
        let release = Op::new(self.key.clone(), args);
        let one_try = timeout.min(client.options().try_timeout);
        let answered = client.call_within(&release, timeout, one_try).await?;
        // A repetition is told `not_held` because the first copy did its work.
        Ok(answered.answer.is_true() || (answered.repeated && answered.answer.reason() == Some(reason::NOT_HELD)))
    }

    /// The grant, once `wall` is past its floor, renewed if that took so long. Further behind the slot is given back.
    ///
    /// # Errors
    /// [`AcquireError::ClockBehind`]; or the grant was lost meanwhile.
    pub async fn above_floor(mut self, client: &Client, wall: &dyn WallClock) -> Result<Grant, NotAcquired> {
        let Options { call_timeout, try_timeout, .. } = *client.options();
        match self.wait_for_floor(wall).await {
            Ok(()) if client.clock().now() < self.next => Ok(self),
            Ok(()) => match self.renew(client, call_timeout, try_timeout).await {
                Outcome::Ok(renewed) => {
                    (self.deadline, self.next) = (renewed.deadline, renewed.next);
                    Ok(self)
                }
                Outcome::Lost { reason, detail } => {
                    Err(AcquireError::from(Refused { reason, retry_after: None, detail }).into())
                }
                // It stands as it stood.
                Outcome::Retry { .. } if client.clock().now() < self.deadline => Ok(self),
                Outcome::Retry { trouble } => {
                    let why = CallError::OutcomeUnknown { detail: trouble }.into();
                    Err(NotAcquired { why, in_doubt: true })
                }
            },
            Err(by) => {
                let released = self.release(client, call_timeout).await;
                if let Err(error) = &released {
                    tracing::warn!(pool = self.key, %error, "slot not given back, it ends by its ttl");
                }
                Err(NotAcquired { why: AcquireError::ClockBehind { by }, in_doubt: released.is_err() })
            }
        }
    }

    /// Returns once `wall` is past the clocks of the slot's earlier holders, so that no timestamp of theirs is made again.
    ///
    /// # Errors
    /// By how much it is behind, if that is more than [`FLOOR_WAIT_MAX`], or it does not run.
    pub async fn wait_for_floor(&self, wall: &dyn WallClock) -> Result<(), Duration> {
        let Some(floor_unix_ms) = self.slot.floor_unix_ms else { return Ok(()) };
        let started = Instant::now();
        loop {
            let now_unix_ms = wall.unix_ms();
            if now_unix_ms > floor_unix_ms {
                return Ok(());
            }
            let behind = Duration::from_millis(floor_unix_ms - now_unix_ms);
            // Twice: a clock that is slewed runs slower than time.
            if behind > FLOOR_WAIT_MAX || started.elapsed() > 2 * FLOOR_WAIT_MAX {
                return Err(behind);
            }
            // To the millisecond after it.
            tokio::time::sleep((behind + Duration::from_millis(1)).min(WALL_READ_EVERY)).await;
        }
    }
}

impl Renew for Grant {
    fn renew(&self, client: &Client, call: Duration, one_try: Duration) -> impl Future<Output = Outcome> + Send {
        Grant::renew(self, client, call, one_try)
    }

    fn named(&self) -> (&str, u64) {
        (&self.key, self.slot.fence)
    }

    fn first(&self) -> Boottime {
        self.next
    }
}

/// When to renew: after a third of what the grant has from then on. Of a grant that has more than was asked for, because
/// it was longer before, a third of what was asked for: the holder is to hear soon that it is lost. What the pool raised that
/// to may not be known then; no more than the default is assumed.
pub(super) fn next(sent: Boottime, left_ms: u64, asked_ms: u64, ttl_raised: bool) -> Boottime {
    let asked_ms = if ttl_raised { asked_ms.max(TTL_MS_MIN_DEFAULT) } else { asked_ms };
    sent.after(Duration::from_millis(left_ms.min(asked_ms) / 3))
}
