//! Watching keys: what happens to them, as it happens, from whichever node is there.
//!
//! # Model
//! A watch is one stream of events that outlives its connections. A task reads from one node; when that one goes silent
//! ([`SILENCE`] without a heartbeat), closes, or says that it leaves, the next endpoint is asked, with the id of what was
//! read last. So each event is told once and in the order of the log, or a [`Notice::Reset`] says that some may be missing,
//! with the keys as they stand.
//!
//! Whoever reads slowly slows the task, and in the end the node ends the connection; then the watch resumes where it
//! was, by a reset if that is too long ago.
//!
//! # Not promised
//! `renewed` events: they are told while they happen, and lost between two connections. That an event is told within any
//! time while no node can be reached: [`Watch::trouble`] says so. An expiry may stand in a reset's keys and be told as an
//! event after it.
//!
//! # Limits
//! A message: [`Options::answer_bytes_max`](crate::Options). A reset: [`RESET_BYTES_MAX`]. Notices that wait for their
//! reader: [`WAITING_MAX`].

mod follower;
mod sse;
#[cfg(test)]
mod tests;

use std::time::Duration;

use tokio::sync::{mpsc, watch};

use crate::client::Client;
use crate::wire::{Event, Problem, Snapshot};
use follower::Follower;

/// So long without a byte, and the node is taken for dead: it sends a heartbeat every 5 s.
pub const SILENCE: Duration = Duration::from_secs(15);
/// Greatest reset, bytes of JSON: a few hundred thousand keys.
pub const RESET_BYTES_MAX: usize = 256 << 20;
/// Notices that may wait for their reader.
pub const WAITING_MAX: usize = 64;
/// Longest id.
pub const ID_BYTES_MAX: usize = 128;

/// What to watch: keys, or all with a prefix, or (neither) all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// These keys, at most 100. They need not exist.
    pub keys: Vec<String>,
    /// Keys that start so; not together with `keys`.
    pub prefix: Option<String>,
    /// Tell renewals too.
    pub renewed: bool,
    /// A reset brings the keys as they stand.
    pub list: bool,
}

impl Selection {
    /// One key, and how it stands at first.
    pub fn of_key(key: impl Into<String>) -> Selection {
        Selection { keys: vec![key.into()], list: true, ..Selection::default() }
    }
}

/// What a watch tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A beginning: events from here on. All that was known before may have changed without an event.
    Reset {
        /// `start`, `too_old`, `other_cluster` or `jumped`.
        reason: String,
        /// The watched keys that exist; `None`: not asked for.
        keys: Option<Vec<Snapshot>>,
        /// Resumes here.
        id: String,
    },
    /// Something happened.
    Event(Event),
}

impl Notice {
    /// A watch that is begun after this id goes on from here.
    pub fn id(&self) -> &str {
        match self {
            Notice::Reset { id, .. } => id,
            Notice::Event(event) => &event.id,
        }
    }
}

/// Why a watch cannot go on, wherever it is tried.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    /// The nodes refuse it.
    #[error("{0}")]
    Refused(Box<Problem>),
    /// What was given to resume after is no id.
    #[error("{0:?} is no id to resume after: 1 to {ID_BYTES_MAX} visible ASCII characters")]
    Id(String),
    /// More keys than a reader should keep.
    #[error("the keys take more than {RESET_BYTES_MAX} bytes: watch fewer, or without a list")]
    TooLarge,
    /// What answers there does not speak tenure.
    #[error("{endpoint} tells nothing that can be understood: {detail}")]
    Protocol {
        /// Who.
        endpoint: String,
        /// What came instead.
        detail: String,
    },
}

/// A watch. It begins with the first [`Watch::next`] and ends when it is dropped.
#[derive(Debug)]
pub struct Watch {
    state: State,
    trouble: watch::Receiver<Option<String>>,
}

#[derive(Debug)]
enum State {
    New(Box<Follower>),
    Running(mpsc::Receiver<Result<Notice, WatchError>>),
    Over(WatchError),
}

impl Watch {
    /// From now on; the first notice is a reset.
    pub fn new(client: &Client, selection: Selection) -> Watch {
        Watch::begin(client, selection, None)
    }

    /// From the event after `id`, which another watch (of any client, on any node) told.
    pub fn after(client: &Client, selection: Selection, id: impl Into<String>) -> Watch {
        Watch::begin(client, selection, Some(id.into()))
    }

    fn begin(client: &Client, selection: Selection, after: Option<String>) -> Watch {
        let (told, trouble) = watch::channel(None);
        Watch { state: State::New(Box::new(Follower::new(client.clone(), &selection, after, told))), trouble }
    }

    /// The next notice. May be given up and called again: nothing is lost. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`WatchError`], then and at every further call: it does not pass by waiting.
    pub async fn next(&mut self) -> Result<Notice, WatchError> {
        loop {
            match &mut self.state {
                State::Running(notices) => match notices.recv().await {
                    Some(Ok(notice)) => return Ok(notice),
                    Some(Err(error)) => self.state = State::Over(error),
                    // The task ends only after an error, or with its runtime.
                    None => std::future::pending().await,
                },
                State::Over(error) => return Err(error.clone()),
                State::New(_) => {
                    let (notices, receiver) = mpsc::channel(WAITING_MAX);
                    if let State::New(follower) = std::mem::replace(&mut self.state, State::Running(receiver)) {
                        tokio::spawn(follower.run(notices));
                    }
                }
            }
        }
    }

    /// Why nothing is heard now; `None` while a node tells, and before the first [`Watch::next`].
    pub fn trouble(&self) -> Option<String> {
        self.trouble.borrow().clone()
    }

    /// Follows [`Watch::trouble`].
    pub fn troubles(&self) -> watch::Receiver<Option<String>> {
        self.trouble.clone()
    }
}
