//! The task that keeps a lease: RENEW every third of the ttl, retried inside the time that is left.

use std::time::Duration;

use super::{Grant, Standing, State, until};
use crate::client::{Answered, Backoff, CallError, Client};
use crate::time::{Boottime, own_deadline};
use crate::wire::{Code, Op, RenewArgs, reason};

pub(super) struct Renewal {
    client: Client,
    renew: Op<RenewArgs>,
    standing: Standing,
    interval: Duration,
    /// When to send the first.
    first: Boottime,
    backoff: Backoff,
}

impl Renewal {
    pub fn new(client: Client, grant: &Grant, standing: Standing) -> Renewal {
        let interval = Duration::from_millis(grant.ttl_ms / 3);
        // From the deadline, not from now: a grant may have waited for being kept.
        let first = grant.deadline.before(2 * interval);
        let renew = renew(grant);
        Renewal { client, renew, standing, interval, first, backoff: Backoff::default() }
    }

    /// Ends when the lease is no longer held.
    pub async fn run(mut self) {
        let clock = std::sync::Arc::clone(self.client.clock());
        let mut due = self.first;
        while let State::Held { deadline, .. } = self.standing.now() {
            until(&*clock, due.min(deadline)).await;
            let left = clock.now().until(deadline);
            // A third: with one node out of reach there is time for the others.
            let one_try = (left / 3).min(self.client.options().try_timeout);
            tokio::select! {
                biased;
                () = until(&*clock, deadline) => {}
                outcome = self.client.call_within(&self.renew, left, one_try) => due = self.take(outcome, clock.now()),
            }
        }
    }

    /// When to renew next.
    fn take(&mut self, outcome: Result<Answered, CallError>, now: Boottime) -> Boottime {
        let trouble = match outcome {
            Ok(answered) if answered.answer.is_true() => match answered.answer.ttl_ms() {
                Some(ttl_ms) => {
                    self.standing.extend(own_deadline(answered.sent, ttl_ms));
                    self.backoff = Backoff::default();
                    return answered.sent.after(self.interval);
                }
                None => format!("{} renewed without saying ttl_ms", answered.endpoint),
            },
            Ok(answered) => {
                let reason = answered.answer.reason().unwrap_or(reason::NOT_HELD);
                self.standing.lose(reason, answered.answer.detail());
                return now;
            }
            // An OP needs its key: the grant went with it.
            Err(CallError::Refused(problem)) if problem.is(Code::NoSuchKey) || problem.is(Code::WrongType) => {
                self.standing.lose(reason::DELETED, Some(&problem.detail));
                return now;
            }
            Err(error) => error.to_string(),
        };
        tracing::warn!(key = self.renew.key, fence = self.renew.args.fence, trouble, "renewal failed, retry");
        self.standing.trouble(trouble);
        now.after(self.backoff.next().min(self.interval / 4))
    }
}

/// RENEW of that grant.
pub(super) fn renew(grant: &Grant) -> Op<RenewArgs> {
    let ttl_ms = i64::try_from(grant.ttl_ms).ok();
    Op::new(grant.key.clone(), RenewArgs { token: grant.token.clone(), ttl_ms, fence: Some(grant.fence) })
}
