//! Linearizable reads on every node, by ReadIndex alone: nothing here trusts a timer to prove who leads.
//!
//! Model: a read joins the next *round*. A round of a leader asks replication for a read index (which proves that this
//! node still leads) and only then takes the leader's stamp; a round of a follower asks its leader for the result of one
//! of the leader's. All reads that wait share a round's result, and the next starts for those that came meanwhile. A read
//! then waits until the index is applied here and reads a view. If its answer hangs on time that is not in the log, it
//! has the leader make a tick (`tick.rs`), waits for its own state to reach that stamp, and reads again: what it shows
//! as expired has expired in the log, on every node.
//!
//! Invariants: what was acknowledged anywhere before a read began is seen by it. A round is used only while this node
//! stands where it stood: with another leader, and with it another clock, a new round is asked for.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use openraft::async_runtime::Select2;
use openraft::raft::linearizable_read::LinearizerOption;
use openraft::type_config::TypeConfigExt;
use tokio::sync::{mpsc, oneshot};

use crate::cluster::Node;
use crate::machine::{NeedsTick, ReadAt, Stamp, StateMachine};
use crate::peer::{PeerAnswerV1, PeerRequestV1};
use crate::planted::{self, Bug};
use crate::raft::{AsyncRuntime, NodeId, Raft, TypeConfig};
use crate::replica::{Mark, Replica, View};
use crate::standing::{Followed, Standing, Standings};
use crate::tick::Wanted;
use crate::timekeeper::{Lead, Timekeeper};
use crate::transport::Transport;

/// Reads that may wait for a round.
const WAITING_MAX: usize = 65_536;
/// Pause before a round is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(10);

/// A leadership, by term and node as replication orders them (a term may have several), and a stamp of its clock.
type Wish = (u64, NodeId, Stamp);

/// A tick that is asked for. If it is not heard, or the read goes away meanwhile, the next read asks again.
struct Asking<'a> {
    asked: &'a Mutex<Wish>,
    wish: Wish,
    is_heard: bool,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_heard && *asked == self.wish {
            *asked = Default::default();
        }
    }
}

/// What a round found.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Everything up to this index must be applied.
    pub index: u64,
    /// Term of the leadership that was proved.
    pub term: u64,
    /// Its stamp, taken after the proof.
    pub now: Stamp,
    /// Where this node stood.
    pub standing: Standing,
}

/// Takes a round's result to one read.
pub type Waiting = oneshot::Sender<Round>;

/// Waits for the next round; `None` when the node stops.
pub async fn join(rounds: &mpsc::Sender<Waiting>) -> Option<Round> {
    let (waiting, round) = oneshot::channel();
    rounds.send(waiting).await.ok()?;
    round.await.ok()
}

/// Does the rounds.
pub struct Rounds<RT: AsyncRuntime> {
    /// Replication.
    pub raft: Raft<RT>,
    /// The clock.
    pub time: Arc<Timekeeper<RT>>,
    /// Who leads.
    pub standings: Standings<RT>,
    /// The way to the leader.
    pub transport: Arc<dyn Transport>,
    /// How long the proof may take.
    pub timeout: Duration,
}

/// The way into the rounds, and the reads that wait for one.
pub fn channel() -> (mpsc::Sender<Waiting>, mpsc::Receiver<Waiting>) {
    mpsc::channel(WAITING_MAX)
}

impl<RT: AsyncRuntime> Rounds<RT> {
    /// Does rounds for those in `queue` until no reader is left.
    pub async fn run(self, mut queue: mpsc::Receiver<Waiting>) {
        while let Some(first) = queue.recv().await {
            let mut waiting = vec![first];
            loop {
                while waiting.len() < WAITING_MAX {
                    let Ok(next) = queue.try_recv() else { break };
                    waiting.push(next);
                }
                let standing = self.standings.now();
                if let Some(round) = self.round(standing).await {
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
                TypeConfig::<RT>::select2(self.standings.leaves(standing), TypeConfig::<RT>::sleep(RETRY_AFTER)).await;
            }
        }
    }

    async fn round(&self, standing: Standing) -> Option<Round> {
        match standing {
            Standing::Leads(lead) => self.prove(lead).await,
            Standing::Follows(followed) if planted::has(Bug::StaleFollowerRead) => {
                Some(Round { index: 0, term: followed.term, now: Stamp::default(), standing })
            }
            Standing::Follows(followed) => {
                match TypeConfig::<RT>::select2(self.ask(followed), self.standings.leaves(standing)).await {
                    Select2::First(round) => round,
                    Select2::Second(()) => None,
                }
            }
            Standing::Elected | Standing::Leaderless => None,
        }
    }

    async fn prove(&self, lead: Lead) -> Option<Round> {
        let by_index = LinearizerOption::new(Some(Duration::ZERO), true).with_wait_timeout(self.timeout);
        let proof = self.raft.get_read_linearizer(by_index).await.ok()?;
        let id = proof.read_log_id();
        if id.committed_leader_id().term != lead.term {
            return None;
        }
        let now = self.time.read(lead)?;
        Some(Round { index: id.index(), term: lead.term, now, standing: Standing::Leads(lead) })
    }

    async fn ask(&self, followed: Followed) -> Option<Round> {
        let leader = self.standings.peer(followed.leader)?;
        let called = self.transport.call(leader, PeerRequestV1::ReadIndex);
        match TypeConfig::<RT>::timeout(self.timeout, called).await {
            Ok(Ok(PeerAnswerV1::ReadIndex(read))) if read.term == followed.term => Some(Round {
                index: read.index,
                term: read.term,
                now: Stamp(read.now_ms),
                standing: Standing::Follows(followed),
            }),
            _ => None,
        }
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
    standings: Standings<RT>,
    transport: Arc<dyn Transport>,
    wanted: Arc<Wanted>,
    /// The greatest stamp that the latest leader was asked a tick for.
    asked: Mutex<Wish>,
    /// T: after it a wait for a tick is given up, and a new round begins.
    limit: Duration,
}

impl<M: StateMachine, RT: AsyncRuntime> Reads<M, RT> {
    /// Reads of `replica`.
    pub fn new(node: &Node<RT>, replica: Arc<Replica<M>>) -> Self {
        Self {
            rounds: node.rounds.clone(),
            replica,
            standings: node.standings.clone(),
            transport: Arc::clone(&node.transport),
            wanted: Arc::clone(&node.wanted),
            asked: Mutex::default(),
            limit: node.limit,
        }
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
            let round = join(&self.rounds).await.ok_or(Unreadable::Stopped)?;
            self.wait(|mark| mark.index() >= round.index).await?;
            while self.standings.now() == round.standing {
                let view = self.replica.view();
                let mut at = ReadAt { applied: view.stamp, now: round.now.max(view.stamp) };
                if planted::has(Bug::NoTickBeforeExpiredRead) {
                    at.applied = at.now;
                }
                if let Ok(value) = read(&view.machine, at) {
                    return Ok(ReadDone { value, at, term: round.term, view });
                }
                if at.now == at.applied {
                    return Err(Unreadable::AsksForEver);
                }
                if !self.has_passed(&round, at.now).await? {
                    break;
                }
                if planted::has(Bug::OldStateAfterTick) {
                    at.applied = at.now;
                    if let Ok(value) = read(&view.machine, at) {
                        return Ok(ReadDone { value, at, term: round.term, view });
                    }
                }
            }
        }
    }

    /// Has the leader of `round` make a tick and waits until `stamp` is applied here; false when that is given up: with
    /// another leader, whose clock may not reach the stamp for long, or when the tick was lost.
    async fn has_passed(&self, round: &Round, stamp: Stamp) -> Result<bool, Unreadable> {
        let lost = async {
            match round.standing {
                Standing::Leads(lead) => self.wanted.want(lead, stamp),
                Standing::Follows(followed) if !self.ask(followed, stamp).await => return,
                Standing::Follows(_) | Standing::Elected | Standing::Leaderless => {}
            }
            std::future::pending().await
        };
        tokio::select! { biased;
            passed = self.wait(|mark| mark.stamp >= stamp) => passed.map(|()| true),
            () = lost => Ok(false),
            () = self.standings.leaves(round.standing) => Ok(false),
            () = TypeConfig::<RT>::sleep(self.limit) => Ok(false),
        }
    }

    /// Asks the leader for a tick, once for all reads that want the same; false when it surely or maybe was not heard.
    async fn ask(&self, followed: Followed, stamp: Stamp) -> bool {
        let Some(leader) = self.standings.peer(followed.leader) else { return false };
        let wish = (followed.term, followed.leader, stamp);
        {
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            if *asked >= wish {
                return true;
            }
            *asked = wish;
        }
        let mut asking = Asking { asked: &self.asked, wish, is_heard: false };
        let called = self.transport.call(leader, PeerRequestV1::Tick { term: followed.term, stamp_ms: stamp.0 });
        let answer = TypeConfig::<RT>::timeout(self.limit, called).await;
        asking.is_heard = matches!(answer, Ok(Ok(PeerAnswerV1::Tick)));
        asking.is_heard
    }

    async fn wait(&self, until: impl Fn(&Mark) -> bool) -> Result<(), Unreadable> {
        self.replica.mark().wait_for(until).await.map(drop).map_err(|_| Unreadable::Stopped)
    }
}
