//! Clients at work: they acquire, renew, release, break, delete and read through any node, keep to the rules of the real
//! client, and write down every call and what they believed to hold.
//!
//! ```text
//! roles (what each does) -> holding, waiting (the real client's rules) -> client (one try, written down) -> service (a world)
//!                     board (keys in use) ┘      notes (calls, beliefs) -> beliefs::overlaps, and the checker
//! ```
//!
//! Invariants: a client's clock is true; every try is in the notes, with the times before it and after it; no two tries of
//! a run have one command; a belief is the real client's, without the margin it takes off. Calls are limited per key and
//! per run.
//!
//! Not promised: that any call succeeds while things go wrong, or that a rule was tried: count.

pub mod beliefs;
mod board;
mod client;
mod convert;
mod counted;
mod crowd;
mod finish;
mod holding;
mod lodgers;
mod odd;
mod pools;
mod roles;
mod service;
mod siege;
mod tenants;
mod waiting;
mod warden;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex};

use checker::Call;
use tenure::keyspace::{Command, Key, Reply};
use tenure_cluster::{Applied, Witness};
use tokio::sync::mpsc;

use crate::judge::Shown;
use crate::plan::Shape;
use crate::runtime::{self, WORLD};
use crate::world::World;

pub use convert::token_of;
pub use counted::counted;

use board::Board;
use client::Client;
use service::Service;

/// From when to when a client believed to hold, by its own deadline; true time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Belief {
    /// Who.
    pub client: u32,
    /// What.
    pub key: String,
    /// Which grant.
    pub fence: u64,
    /// When that was asked for which proved the grant.
    pub sent_ns: u64,
    /// From the proof that it holds,
    pub from_ns: u64,
    /// until its own deadline, or until it gave the lease back.
    pub until_ns: u64,
}

/// A command, and what it was answered.
pub type Told = (Command, Applied<Reply>);

/// What clients wrote down. Clones are handles to the same.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    /// Calls, in order of their returns.
    pub calls: Arc<Mutex<Vec<Call>>>,
    /// What was believed.
    pub beliefs: Arc<Mutex<Vec<Belief>>>,
    /// Commands that surely had no effect, as the clients were told: none may stand in the log.
    pub without_effect: Arc<Mutex<Vec<Command>>>,
    /// What clients of pools were answered.
    pub told: Arc<Mutex<Vec<Told>>>,
    /// What readers of pools were shown.
    pub shown: Arc<Mutex<Vec<(Key, Shown, Witness)>>>,
    /// Answers that no answer may be, a line each: [`Clients::finish`] tells them.
    pub nonsense: Arc<Mutex<Vec<String>>>,
}

/// Clients at work until [`Clients::stop`]. Clones are handles to the same.
#[derive(Clone, Debug)]
pub struct Clients {
    /// What they wrote down so far.
    pub notes: Notes,
    board: Board,
    shape: Shape,
    /// Ends when the last of them has ended.
    working: Arc<tokio::sync::Mutex<mpsc::Receiver<()>>>,
}

impl Clients {
    /// Starts them.
    #[must_use]
    pub fn start(world: &World, shape: &Shape, seed: u64) -> Self {
        Self::start_at(world, shape, seed)
    }

    fn start_at<S: Service>(service: &S, shape: &Shape, seed: u64) -> Self {
        let (notes, board) = (Notes::default(), Board::new(shape.keys));
        let (work, working) = mpsc::channel::<()>(1);
        for number in 1..=shape.clients {
            let client = Client::new(number, service, &board, &notes, shape, seed);
            let at_work = work.clone();
            runtime::spawn_on(WORLD, async move {
                client.work().await;
                drop(at_work);
            });
        }
        Self { notes, board, shape: shape.clone(), working: Arc::new(tokio::sync::Mutex::new(working)) }
    }

    /// They begin nothing new; resolves when all have ended.
    pub async fn stop(&self) {
        self.board.stop();
        // Nothing is ever sent: it ends with the last sender.
        while self.working.lock().await.recv().await.is_some() {}
    }

    /// After all is healed: every key that was used is read, then acquired once more (each must be granted within the
    /// longest lifetime and a while), and read on every node. Returns what did not come to be, a line each.
    pub async fn finish(&self, world: &World) -> Vec<String> {
        self.finish_at(world).await
    }

    async fn finish_at<S: Service>(&self, service: &S) -> Vec<String> {
        let mut lines = self.notes.nonsense.lock().unwrap().clone();
        lines.extend(finish::finish(service, &self.board, &self.notes, &self.shape).await);
        lines
    }
}
