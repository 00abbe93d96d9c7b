//! Linearizable reads by ReadIndex alone: nothing here trusts a timer to prove who leads.
//!
//! Model: a read joins the next *round*. A round asks replication for a read index (which proves that this node still
//! leads) and only then takes the leader's stamp; all reads that wait share its result, and the next round starts for
//! those that came meanwhile. A read then waits until the index is applied and reads a view. If its answer hangs on time
//! that is not in the log, it waits for a tick at or after its stamp and reads again: what it shows as expired has
//! expired in the log, on every node.

use std::sync::Arc;
use std::time::Duration;

use openraft::raft::linearizable_read::LinearizerOption;
use openraft::type_config::TypeConfigExt;
use tokio::sync::{mpsc, oneshot};

use crate::cluster::Node;
use crate::machine::{NeedsTick, ReadAt, Stamp, StateMachine};
use crate::raft::{AsyncRuntime, Raft, TypeConfig};
use crate::replica::{Mark, Replica, View};
use crate::tick::Wanted;
use crate::timekeeper::{Lead, Timekeeper};

/// Reads that may wait for a round.
const WAITING_MAX: usize = 65_536;
/// Pause before a round is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(10);

/// What a round found.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Everything up to this index must be applied.
    index: u64,
    /// The leadership that was proved.
    lead: Lead,
    /// Its stamp, taken after the proof.
    now: Stamp,
}

/// Takes a round's result to one read.
pub type Waiting = oneshot::Sender<Round>;

/// Does the rounds.
pub struct Rounds<RT: AsyncRuntime> {
    raft: Raft<RT>,
    time: Arc<Timekeeper<RT>>,
    queue: mpsc::Receiver<Waiting>,
    /// How long replication may take to prove the leadership.
    timeout: Duration,
}

impl<RT: AsyncRuntime> Rounds<RT> {
    /// Runs until no reader is left.
    pub async fn run(mut self) {
        while let Some(first) = self.queue.recv().await {
            let mut waiting = vec![first];
            loop {
                while waiting.len() < WAITING_MAX {
                    let Ok(next) = self.queue.try_recv() else { break };
                    waiting.push(next);
                }
                if let Some(round) = self.round().await {
                    for read in waiting {
                        // A reader whose time was up is gone.
                        let _ = read.send(round);
                    }
                    break;
                }
                waiting.retain(|read| !read.is_closed());
                if waiting.is_empty() {
                    break;
                }
                TypeConfig::<RT>::sleep(RETRY_AFTER).await;
            }
        }
    }

    async fn round(&self) -> Option<Round> {
        let lead = self.time.lead()?;
        let by_index = LinearizerOption::new(Some(Duration::ZERO), true).with_wait_timeout(self.timeout);
        let proof = self.raft.get_read_linearizer(by_index).await.ok()?;
        let id = proof.read_log_id();
        if id.committed_leader_id().term != lead.term {
            return None;
        }
        Some(Round { index: id.index(), lead, now: self.time.read(lead)? })
    }
}

/// A read's value and what it leaned on.
pub struct ReadDone<R, M> {
    /// What the reader returned.
    pub value: R,
    /// What it was judged by.
    pub at: ReadAt,
    /// Term of the leader that ordered it.
    pub term: u64,
    /// What it was read from.
    pub view: Arc<View<M>>,
}

/// A read that will never be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// The node stops.
    Stopped,
    /// The reader asks for a tick where none can help: its own mistake.
    AsksForEver,
}

/// Reads of this node.
pub struct Reads<M: StateMachine, RT: AsyncRuntime> {
    rounds: mpsc::Sender<Waiting>,
    replica: Arc<Replica<M>>,
    time: Arc<Timekeeper<RT>>,
    wanted: Arc<Wanted>,
}

impl<RT: AsyncRuntime> Rounds<RT> {
    /// The task that does the rounds, and the way into them.
    pub fn new(raft: Raft<RT>, time: Arc<Timekeeper<RT>>, timeout: Duration) -> (mpsc::Sender<Waiting>, Self) {
        let (rounds, queue) = mpsc::channel(WAITING_MAX);
        (rounds, Self { raft, time, queue, timeout })
    }
}

impl<M: StateMachine, RT: AsyncRuntime> Reads<M, RT> {
    /// Reads of `replica`.
    pub fn new(node: &Node<RT>, replica: Arc<Replica<M>>) -> Self {
        let (rounds, time, wanted) = (node.rounds.clone(), Arc::clone(&node.time), Arc::clone(&node.wanted));
        Self { rounds, replica, time, wanted }
    }

    /// Reads linearizably; waits as long as it takes.
    ///
    /// # Errors
    /// [`Unreadable`] when no waiting helps.
    pub async fn read<R>(
        &self,
        read: &impl Fn(&M, ReadAt) -> Result<R, NeedsTick>,
    ) -> Result<ReadDone<R, M>, Unreadable> {
        loop {
            let round = self.join_round().await?;
            self.wait(|mark| mark.index() >= round.index).await?;
            while self.time.lead() == Some(round.lead) {
                let view = self.replica.view();
                let at = ReadAt { applied: view.stamp, now: round.now.max(view.stamp) };
                if let Ok(value) = read(&view.machine, at) {
                    return Ok(ReadDone { value, at, term: round.lead.term, view });
                }
                if at.now == at.applied {
                    return Err(Unreadable::AsksForEver);
                }
                self.wanted.want(round.lead, at.now);
                let mut leading = self.time.leading();
                let deposed = async { drop(leading.wait_for(|lead| *lead != Some(round.lead)).await) };
                // Another leader's clock may not reach the stamp for long: then a new round is asked for.
                TypeConfig::<RT>::select2(self.wait(|mark| mark.stamp >= at.now), deposed).await;
            }
        }
    }

    async fn join_round(&self) -> Result<Round, Unreadable> {
        let (waiting, round) = oneshot::channel();
        self.rounds.send(waiting).await.map_err(|_| Unreadable::Stopped)?;
        round.await.map_err(|_| Unreadable::Stopped)
    }

    async fn wait(&self, until: impl Fn(&Mark) -> bool) -> Result<(), Unreadable> {
        self.replica.mark().wait_for(until).await.map(drop).map_err(|_| Unreadable::Stopped)
    }
}
