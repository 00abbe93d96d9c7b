//! A slot of a pool held by this process: renewed in the background, lost at the latest at its own deadline.
//!
//! # Model
//! A pool whose slots are for nobody in particular is a counting semaphore: [`Slots`] asks for one, [`Slot`] holds it. For
//! an identity see [`crate::machine_id`]; below both, [`Grant`] is a slot that nobody renews.
//!
//! A renewal is ok, lost or to be retried ([`crate::Outcome`]). Lost is the word of a node, `status: lost` or that the pool
//! is gone; a timeout, a refused connection, an error of a proxy or a node are retried at all endpoints until the own
//! deadline, which counts from before the request was sent (see [`crate::time`]).
//!
//! # Invariants
//! - [`Slot::id`] reads the clock each time: it fails before a node can give the slot to others.
//! - ACQUIRE by the token that holds the slot renews it, so a repetition after a lost answer counts from itself. What came
//!   by waiting, or too late, is proved by a RENEW.
//!
//! # Not promised
//! As for a lease ([`crate::lease`]): nobody stops the caller's work for it. `Drop` of a [`Slot`] gives it back in the
//! background, as far as the runtime lives long enough.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::client::{CallError, Client};
use crate::lease::State;
use crate::renewal::Renewal;
use crate::standing::Standing;
use crate::time::Boottime;
use crate::wire::Token;

mod acquire;
mod attempt;
mod error;
mod grant;

pub use acquire::{Acquire, Whose};
pub use error::{AcquireError, Lost, NotAcquired, Refused};
pub use grant::{FLOOR_WAIT_MAX, Grant};

/// Asks for slots of a pool that are for nobody in particular: a counting semaphore.
///
/// ```no_run
/// # async fn example(client: tenure_client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tenure_client::Slots;
///
/// let slot = Slots::new(client, "builds").wait(Duration::from_secs(600)).acquire().await?;
/// tokio::select! {
///     () = build(slot.id()?) => { slot.release().await?; }
///     lost = slot.lost() => eprintln!("stop now: {lost}"),
/// }
/// # Ok(()) }
/// # async fn build(slot: u32) {}
/// ```
#[derive(Clone, Debug)]
pub struct Slots {
    client: Client,
    acquire: Acquire,
}

impl Slots {
    /// Of that pool, which has to exist.
    pub fn new(client: Client, pool: impl Into<String>) -> Slots {
        Slots { client, acquire: Acquire::new(pool, Whose::Nobody { owner: None }) }
    }

    /// Who holds, readable. Default: `host:pid`.
    #[must_use]
    pub fn owner(mut self, owner: impl Into<String>) -> Slots {
        self.acquire.whose = Whose::Nobody { owner: Some(owner.into()) };
        self
    }

    /// Lifetime of the grant and of each renewal. Default 30 s; a pool may give more.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Slots {
        self.acquire.ttl_ms = millis(ttl);
        self
    }

    /// How long to wait in line while none is free. Default zero: ask once.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Slots {
        self.acquire.wait = wait;
        self
    }

    /// Free text for operators.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Slots {
        self.acquire.note = Some(note.into());
        self
    }

    /// Acquires a slot and keeps renewing it. Needs a tokio runtime with time and I/O.
    ///
    /// # Errors
    /// [`AcquireError`].
    pub async fn acquire(&self) -> Result<Slot, AcquireError> {
        let grant = Grant::acquire(&self.client, &self.acquire).await?;
        Ok(Slot::keep(&self.client, grant))
    }
}

/// A held slot that renews itself. See the module.
#[derive(Debug)]
pub struct Slot {
    kept: Kept,
}

impl Slot {
    /// Keeps renewing a grant that stands.
    pub fn keep(client: &Client, grant: Grant) -> Slot {
        Slot { kept: Kept::new(client, grant) }
    }

    /// The slot, if it is held now. Ask before each step that must not be done by too many.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn id(&self) -> Result<u32, Lost> {
        self.kept.id()
    }

    /// The grant as it was given: the pool's uuid and range, and what came with it.
    pub fn grant(&self) -> &Grant {
        &self.kept.grant
    }

    /// The grant's fence: hand it to whatever the work writes to.
    pub fn fence(&self) -> u64 {
        self.kept.grant.slot.fence
    }

    /// The holder's secret.
    pub fn token(&self) -> &Token {
        &self.kept.grant.token
    }

    /// The uuid of the pool.
    pub fn pool_uuid(&self) -> &str {
        &self.kept.grant.slot.pool
    }

    /// Until when it is held at least, by the own clock.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn deadline(&self) -> Result<Boottime, Lost> {
        self.kept.deadline()
    }

    /// Follows the state: each renewal moves the deadline. A deadline that passed is seen within 200 ms here, at once in
    /// [`Slot::id`].
    pub fn watch(&self) -> watch::Receiver<State> {
        self.kept.standing.subscribe()
    }

    /// Returns when the slot is lost; never while it is held. Any number of callers, each told once and the same.
    pub async fn lost(&self) -> Lost {
        self.kept.standing.lost().await.into()
    }

    /// Gives the slot back. `false`: it had ended before.
    ///
    /// # Errors
    /// [`CallError`]: it then ends by its ttl.
    pub async fn release(self) -> Result<bool, CallError> {
        self.kept.release().await
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.kept.release_in_background();
    }
}

/// A grant and the task that renews it. Dropped, it is renewed no more, and nobody is told.
#[derive(Debug)]
pub(crate) struct Kept {
    client: Client,
    pub grant: Grant,
    pub standing: Standing,
    renewal: tokio::task::AbortHandle,
}

impl Kept {
    pub fn new(client: &Client, grant: Grant) -> Kept {
        let standing = Standing::new(grant.deadline, Arc::clone(client.clock()));
        let renewal = Renewal::new(client.clone(), grant.clone(), standing.clone());
        let renewal = tokio::spawn(renewal.run()).abort_handle();
        Kept { client: client.clone(), grant, standing, renewal }
    }

    pub fn id(&self) -> Result<u32, Lost> {
        self.deadline().map(|_| self.grant.slot.id)
    }

    pub fn deadline(&self) -> Result<Boottime, Lost> {
        match self.standing.now() {
            State::Held { deadline, .. } => Ok(deadline),
            State::Lost(lost) => Err(lost.into()),
            // Only while it is given back, when nobody can ask.
            State::Released => Err(Lost::released(self.grant.deadline)),
        }
    }

    pub async fn release(&self) -> Result<bool, CallError> {
        // By time only: the grant may stand yet, and the caller says that its work is over.
        if let State::Lost(lost) = self.standing.now()
            && lost.is_told()
        {
            return Ok(false);
        }
        self.renewal.abort();
        self.standing.release();
        self.grant.release(&self.client, self.client.options().call_timeout).await
    }

    fn release_in_background(&self) {
        self.renewal.abort();
        if !self.standing.release() {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (client, grant) = (self.client.clone(), self.grant.clone());
        runtime.spawn(async move {
            if let Err(error) = grant.release(&client, client.options().call_timeout).await {
                tracing::warn!(pool = grant.key, %error, "slot not given back, it ends by its ttl");
            }
        });
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.renewal.abort();
    }
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
