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
use std::time::Duration;

use tokio::sync::watch;

use crate::client::{CallError, Client};
use crate::time::{Boottime, Clock};
use crate::wire::{Op, ReleaseArgs, Token, reason};

mod attempt;
mod grant;
mod renewal;
mod several;

pub use attempt::give_back;
pub use grant::{Acquire, AcquireError, Acquired, Grant, NotHeld, default_owner};
use renewal::Renewal;
pub use several::{AcquiredAll, Leases};

/// The clock is read at least that often while something waits for it: timers of the runtime stand still while the host
/// is suspended, the clock does not.
const CLOCK_READ_EVERY: Duration = Duration::from_millis(200);

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
        let renewal = Renewal::new(client.clone(), &grant, standing.clone());
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
        self.standing.state.subscribe()
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
        if let State::Lost(Lost { by: LostBy::Node { .. }, .. }) = self.state() {
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

/// The state and its only transitions: `Held` to `Held` later, `Lost` or `Released`; the others stay.
#[derive(Clone)]
struct Standing {
    state: Arc<watch::Sender<State>>,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.borrow().fmt(f)
    }
}

impl Standing {
    fn new(deadline: Boottime, clock: Arc<dyn Clock>) -> Standing {
        Standing { state: Arc::new(watch::Sender::new(State::Held { deadline, trouble: None })), clock }
    }

    /// The state by the clock.
    fn now(&self) -> State {
        self.change(|_| None);
        self.state.borrow().clone()
    }

    /// A renewal's deadline. RENEW never shortens, so neither does this.
    fn extend(&self, to: Boottime) {
        self.change(|deadline| Some(State::Held { deadline: deadline.max(to), trouble: None }));
    }

    /// A renewal did not get through.
    fn trouble(&self, trouble: String) {
        self.change(|deadline| Some(State::Held { deadline, trouble: Some(trouble) }));
    }

    /// A node's word.
    fn lose(&self, reason: &str, detail: Option<&str>) {
        let by = LostBy::Node { reason: reason.to_owned(), detail: detail.map(str::to_owned) };
        self.change(|deadline| Some(State::Lost(Lost { by, deadline })));
    }

    /// The holder's word; says whether the lease was held.
    fn release(&self) -> bool {
        self.change(|_| Some(State::Released))
    }

    /// The one place of transitions, so that the own deadline goes before whatever comes after it. Says whether the
    /// lease was held and `to` named its next state.
    fn change(&self, to: impl FnOnce(Boottime) -> Option<State>) -> bool {
        let mut asked = false;
        self.state.send_if_modified(|state| {
            let State::Held { deadline, trouble } = state else { return false };
            let next = if self.clock.now() >= *deadline {
                let by = LostBy::Deadline { trouble: trouble.take() };
                Some(State::Lost(Lost { by, deadline: *deadline }))
            } else {
                let next = to(*deadline);
                asked = next.is_some();
                next
            };
            match next {
                Some(next) => {
                    *state = next;
                    true
                }
                None => false,
            }
        });
        asked
    }

    async fn lost(&self) -> Lost {
        let mut changes = self.state.subscribe();
        loop {
            match self.now() {
                State::Lost(lost) => return lost,
                State::Released => return std::future::pending().await,
                State::Held { deadline, .. } => {
                    tokio::select! {
                        // The sender lives in self: an error cannot come.
                        _ = changes.changed() => {}
                        () = until(&*self.clock, deadline) => {}
                    }
                }
            }
        }
    }
}

/// Returns when the clock has reached that time.
async fn until(clock: &dyn Clock, time: Boottime) {
    loop {
        let left = clock.now().until(time);
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(CLOCK_READ_EVERY)).await;
    }
}

#[cfg(test)]
mod several_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod waiting_tests;
