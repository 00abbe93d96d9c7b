//! A lease held by this process: renewed in the background, lost at the latest at its own deadline.
//!
//! # Model
//! [`Lease`] is a grant plus a task that sends RENEW every third of the ttl and, when that fails, again and again in
//! what is left. Its [`State`] goes from `Held` to `Lost` or `Released`, once, and never back.
//!
//! # Invariants
//! - Lost means proof or time: a node said that the grant is over (RENEW false, or the key is gone), or the own deadline
//!   (see [`crate::time`]) passed without a renewal. An election, a timeout, a refused connection are retried and are no
//!   loss.
//! - The own deadline lies before the node's. An answer that comes after it changes nothing: lost stays lost.
//! - A grant that came by repetition (`yours`) proves nothing; only a RENEW makes it count (see [`Grant::acquire`]); so does one that came by waiting.
//! - The own deadline is judged by whoever looks: [`Lease::state`] and [`Lease::lost`] need no task to be alive.
//!
//! # Not promised
//! Nobody can stop the caller's work for it: after [`Lease::lost`] that is the caller's duty, and what the work writes
//! to should check the fence. `Drop` gives the lease back in the background, as far as the runtime lives long enough;
//! [`Lease::release`] waits for it. A lease that was lost by time is not given back, since its work may still run.

use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

use crate::client::{CallError, Client};
use crate::renewal::Renewal;
use crate::standing::Standing;
use crate::time::Boottime;
use crate::wire::{Op, ReleaseArgs, Token, reason};

mod attempt;
mod grant;
mod several;

pub use crate::asking::give_back;
pub use grant::{Acquire, AcquireError, Acquired, Grant, NotHeld, default_owner};
pub use several::{AcquiredAll, Leases};

/// How a lease stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Held until then at least, by the own clock.
    Held {
        /// The own deadline.
        deadline: Boottime,
        /// What kept the last renewal from getting through; it is retried.
        trouble: Option<String>,
    },
    /// No longer held: stop.
    Lost(Lost),
    /// Given back.
    Released,
}

/// A loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// How it is known.
    pub by: LostBy,
    /// The own deadline as it stood: nobody else holds the lease before it, unless it was broken or deleted.
    pub deadline: Boottime,
}

impl Lost {
    /// A node said so, and not the clock.
    pub(crate) fn is_told(&self) -> bool {
        matches!(self.by, LostBy::Node { .. })
    }
}

/// How a loss is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LostBy {
    /// The own deadline passed.
    Deadline {
        /// What kept the last renewal from getting through.
        trouble: Option<String>,
    },
    /// A node said so.
    Node {
        /// One of [`reason`].
        reason: String,
        /// The operator's text of a BREAK.
        detail: Option<String>,
    },
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.by {
            LostBy::Deadline { trouble: None } => write!(f, "lease lost: no renewal before its own deadline"),
            LostBy::Deadline { trouble: Some(trouble) } => {
                write!(f, "lease lost: no renewal before its own deadline ({trouble})")
            }
            LostBy::Node { reason, detail: Some(detail) } => write!(f, "lease lost: {reason}: {detail}"),
            LostBy::Node { reason, detail: None } => write!(f, "lease lost: {reason}"),
        }
    }
}

/// A held lease that renews itself. See the module.
#[derive(Debug)]
pub struct Lease {
    client: Client,
    grant: Grant,
    standing: Standing,
    renewal: tokio::task::AbortHandle,
}

impl Lease {
    /// Acquires and keeps renewing. Needs a tokio runtime with time and I/O.
    ///
    /// # Errors
    /// [`AcquireError`]; that somebody else holds the lease is none.
    pub async fn acquire(client: &Client, key: &str, acquire: Acquire) -> Result<Acquired<Lease>, AcquireError> {
        Ok(match Grant::acquire(client, key, acquire).await? {
            Acquired::Held(grant) => Acquired::Held(Lease::keep(client, grant)),
            Acquired::NotHeld(not_held) => Acquired::NotHeld(not_held),
        })
    }

    /// Keeps renewing a grant that stands.
    pub fn keep(client: &Client, grant: Grant) -> Lease {
        let standing = Standing::new(grant.deadline, Arc::clone(client.clock()));
        let renewal = Renewal::new(client.clone(), grant.clone(), standing.clone());
        let renewal = tokio::spawn(renewal.run()).abort_handle();
        Lease { client: client.clone(), grant, standing, renewal }
    }

    /// The key.
    pub fn key(&self) -> &str {
        &self.grant.key
    }

    /// The grant's fence: hand it to whatever the work writes to.
    pub fn fence(&self) -> u64 {
        self.grant.fence
    }

    /// The holder's secret.
    pub fn token(&self) -> &Token {
        &self.grant.token
    }

    /// How it stands now, by the own clock.
    pub fn state(&self) -> State {
        self.standing.now()
    }

    /// Is it held now? Ask before each step that must not be done by two.
    pub fn is_held(&self) -> bool {
        matches!(self.state(), State::Held { .. })
    }

    /// Follows the state: each renewal moves the deadline. A deadline that passed is [`State::Lost`] within 200 ms here,
    /// at once in [`Lease::state`].
    pub fn watch(&self) -> watch::Receiver<State> {
        self.standing.subscribe()
    }

    /// Returns when the lease is lost; never while it is held. Any number of callers, each told once and the same.
    pub async fn lost(&self) -> Lost {
        self.standing.lost().await
    }

    /// How it was lost, if it was.
    fn known_lost(&self) -> Option<Lost> {
        match self.state() {
            State::Lost(lost) => Some(lost),
            State::Held { .. } | State::Released => None,
        }
    }

    /// The grant as it stands, no longer renewed here; `None` if it is lost.
    fn into_grant(self) -> Option<Grant> {
        let State::Held { deadline, .. } = self.state() else { return None };
        self.standing.release().then(|| Grant { deadline, ..self.grant.clone() })
    }

    /// The grant to be given back, no longer renewed here; `None` if a node said that it has ended.
    fn into_released(self) -> Option<Grant> {
        // By time only: the grant may stand yet, and the caller says that its work is over.
        if self.known_lost().is_some_and(|lost| lost.is_told()) {
            return None;
        }
        self.standing.release();
        Some(self.grant.clone())
    }

    /// Gives the lease back. `false`: it had ended before.
    ///
    /// # Errors
    /// [`CallError`]: it then ends by its ttl.
    pub async fn release(self) -> Result<bool, CallError> {
        let client = self.client.clone();
        let Some(grant) = self.into_released() else { return Ok(false) };
        let answered = client.call(&release(&grant)).await?;
        // A repetition is told `not_held` because the first copy did its work.
        Ok(answered.answer.is_true() || (answered.repeated && answered.answer.reason() == Some(reason::NOT_HELD)))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.renewal.abort();
        if !self.standing.release() {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (client, release) = (self.client.clone(), release(&self.grant));
        runtime.spawn(async move {
            if let Err(error) = client.call(&release).await {
                tracing::warn!(key = release.key, %error, "lease not given back, it ends by its ttl");
            }
        });
    }
}

fn release(grant: &Grant) -> Op<ReleaseArgs> {
    Op::new(grant.key.clone(), ReleaseArgs { token: grant.token.clone(), fence: Some(grant.fence) })
}

#[cfg(test)]
mod several_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod waiting_tests;
