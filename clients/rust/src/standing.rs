//! How something that is held stands, by the holder's own clock.
//!
//! # Invariants
//! - The only transitions are `Held` to `Held` until later, to `Lost` or to `Released`; the others stay.
//! - All go through one place that looks at the clock first: what comes after the own deadline changes nothing.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::lease::{Lost, LostBy, State};
use crate::time::{Boottime, Clock};

/// The clock is read at least that often while something waits for it: timers of the runtime stand still while the host
/// is suspended, the clock does not.
const CLOCK_READ_EVERY: Duration = Duration::from_millis(200);

/// See the module.
#[derive(Clone)]
pub(crate) struct Standing {
    state: Arc<watch::Sender<State>>,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.borrow().fmt(f)
    }
}

impl Standing {
    pub fn new(deadline: Boottime, clock: Arc<dyn Clock>) -> Standing {
        Standing { state: Arc::new(watch::Sender::new(State::Held { deadline, trouble: None })), clock }
    }

    /// Follows the state.
    pub fn subscribe(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// The state by the clock.
    pub fn now(&self) -> State {
        self.change(|_| None);
        self.state.borrow().clone()
    }

    /// A renewal's deadline. RENEW never shortens, so neither does this.
    pub fn extend(&self, to: Boottime) {
        self.change(|deadline| Some(State::Held { deadline: deadline.max(to), trouble: None }));
    }

    /// A renewal did not get through.
    pub fn trouble(&self, trouble: String) {
        self.change(|deadline| Some(State::Held { deadline, trouble: Some(trouble) }));
    }

    /// A node's word.
    pub fn lose(&self, reason: &str, detail: Option<&str>) {
        let by = LostBy::Node { reason: reason.to_owned(), detail: detail.map(str::to_owned) };
        self.change(|deadline| Some(State::Lost(Lost { by, deadline })));
    }

    /// The holder's word; says whether it was held.
    pub fn release(&self) -> bool {
        self.change(|_| Some(State::Released))
    }

    /// The one place of transitions, so that the own deadline goes before whatever comes after it. Says whether
    /// it was held and `to` named its next state.
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

    /// Returns when it is lost; never while it is held, or when it was given back.
    pub async fn lost(&self) -> Lost {
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
pub(crate) async fn until(clock: &dyn Clock, time: Boottime) {
    loop {
        let left = clock.now().until(time);
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(CLOCK_READ_EVERY)).await;
    }
}
