//! The task that keeps a grant: RENEW every third of the ttl, retried inside the time that is left.
//!
//! # Model
//! A renewal has three outcomes ([`Outcome`]). Only the word of a node is a loss; whatever else keeps an answer away is
//! retried, at the next endpoint first, until the own deadline: then the grant is lost by time, and nobody has to say so.

use std::time::Duration;

use crate::client::{Backoff, Client};
use crate::lease::State;
use crate::standing::{Standing, until};
use crate::time::Boottime;

/// What one renewal came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The grant stands, until then at least.
    Ok(Renewed),
    /// A node said that the grant is the caller's no more.
    Lost {
        /// One of [`crate::wire::reason`].
        reason: String,
        /// The operator's text of a BREAK.
        detail: Option<String>,
    },
    /// Nothing is known: ask again. Until the own deadline the grant stands.
    Retry {
        /// What happened.
        trouble: String,
    },
}

/// A grant that was renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// The own deadline.
    pub deadline: Boottime,
    /// When to renew again.
    pub next: Boottime,
    /// Less than the pool's least ttl was asked for, and that was given.
    pub ttl_raised: bool,
    /// A slot: where the clocks of earlier holders stood, as its RENEW is told it.
    pub floor_unix_ms: Option<u64>,
}

/// A grant that can be renewed.
pub(crate) trait Renew: Send + Sync + 'static {
    /// RENEW, within so long for the call and for one try.
    fn renew(&self, client: &Client, call: Duration, one_try: Duration) -> impl Future<Output = Outcome> + Send;

    /// Its key and its fence, for the log.
    fn named(&self) -> (&str, u64);

    /// When to send the first RENEW.
    fn first(&self) -> Boottime;
}

pub(crate) struct Renewal<G> {
    client: Client,
    grant: G,
    standing: Standing,
    backoff: Backoff,
}

impl<G: Renew> Renewal<G> {
    pub fn new(client: Client, grant: G, standing: Standing) -> Renewal<G> {
        Renewal { client, grant, standing, backoff: Backoff::default() }
    }

    /// Ends when the grant is no longer held.
    pub async fn run(mut self) {
        let clock = std::sync::Arc::clone(self.client.clock());
        let mut due = self.grant.first();
        while let State::Held { deadline, .. } = self.standing.now() {
            until(&*clock, due.min(deadline)).await;
            let left = clock.now().until(deadline);
            // A third: with one node out of reach there is time for the others.
            let one_try = (left / 3).min(self.client.options().try_timeout);
            tokio::select! {
                biased;
                () = until(&*clock, deadline) => {}
                outcome = self.grant.renew(&self.client, left, one_try) => {
                    let now = clock.now();
                    due = self.take(outcome, now, now.until(deadline));
                }
            }
        }
    }

    /// When to renew next; `left` of the deadline as it was.
    fn take(&mut self, outcome: Outcome, now: Boottime, left: Duration) -> Boottime {
        let trouble = match outcome {
            Outcome::Ok(renewed) => {
                self.standing.extend(renewed.deadline);
                self.backoff = Backoff::default();
                return renewed.next;
            }
            Outcome::Lost { reason, detail } => {
                self.standing.lose(&reason, detail.as_deref());
                return now;
            }
            Outcome::Retry { trouble } => trouble,
        };
        let (key, fence) = self.grant.named();
        tracing::warn!(key, fence, trouble, "renewal failed, retry");
        self.standing.trouble(trouble);
        // Of a short ttl the pauses are short.
        now.after(self.backoff.next().min((left / 8).max(PAUSE_MIN)))
    }
}

/// Shortest pause between renewals that failed.
const PAUSE_MIN: Duration = Duration::from_millis(10);
