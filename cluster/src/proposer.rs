//! The one task that decides what becomes of the commands of this node: who orders them, and which go together.
//!
//! Model: commands wait in one queue. While this node leads, one entry is in flight (`ordering.rs`) and the next gathers
//! meanwhile; while another leads, the same batches go to it (`forward.rs`), a few at a time. When the answer is there,
//! all that waits (up to an entry's bounds) goes next: a lone command goes at once, a loaded node sends few, large
//! batches, without a timer and without a setting. While nobody leads they wait, each until its submitter's time is up.
//!
//! Invariants: what was surely not ordered is first in line again; what may have been is never proposed again. While this
//! node does not lead, ticks and what peers forwarded are let go of at once: nothing is forwarded twice. An entry or
//! batch whose leadership is over is waited for by a task of its own and holds up nothing; it keeps its room in the
//! queue. Nothing is proposed while leadership is handed over, nor more than [`UNSYNCED_BYTES_MAX`] onto a full disk;
//! nobody can renew then, so the clock is told.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::Select2;
use openraft::type_config::TypeConfigExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use crate::cluster::Node;
use crate::entry::{BATCH_BYTES_MAX, COMMANDS_MAX, HEAD_BYTES_MAX, PREFIX_BYTES_MAX};
use crate::error::StopReason;
use crate::forward::Forwarder;
use crate::log_gauge::LogGauge;
use crate::ordering::Orderer;
use crate::proposal::Proposal;
use crate::raft::{AsyncRuntime, TypeConfig};
use crate::rest::Rest;
use crate::standing::{Followed, Standing, Standings};
use crate::stop::Stop;
use crate::timekeeper::{Lead, Timekeeper};

/// Batches on their way to one leader at a time.
const FORWARDS_MAX: usize = 4;
/// Unsynced bytes at which nothing more is proposed while the disk is full: an entry more must fit below the log's own
/// bound, or replication itself would wait for the disk.
const UNSYNCED_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// How often is looked whether a full disk has room, and who of those that wait has gone away.
const LOOK_AFTER: Duration = Duration::from_millis(100);

/// What comes back from a batch: surely not ordered, in order.
type Returned<RT> = Vec<Proposal<RT>>;

/// What is to be done with what waits.
enum Turn {
    /// To order it here.
    Order(Lead),
    /// To send it to the leader.
    Forward(Followed, OwnedSemaphorePermit),
}

/// What there was to do at a look.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Something waits.
    work: bool,
    /// What came back is not tried again yet.
    resting: bool,
}

/// See the module's head.
pub struct Proposer<RT: AsyncRuntime> {
    queue: mpsc::UnboundedReceiver<Proposal<RT>>,
    /// First in line: taken from the queue, but in no batch yet.
    ahead: VecDeque<Proposal<RT>>,
    standings: Standings<RT>,
    /// Where this node stood when it was looked last.
    standing: Standing,
    time: Arc<Timekeeper<RT>>,
    orderer: Arc<Orderer<RT>>,
    forwarder: Arc<Forwarder<RT>>,
    /// Batches that may go to the leader beside those on their way.
    slots: Arc<Semaphore>,
    /// Before what came back is tried again.
    rest: Rest<RT>,
    /// Where batches come back. One for each task, at most, is waited for.
    back: mpsc::Sender<Returned<RT>>,
    returned: mpsc::Receiver<Returned<RT>>,
    /// Leadership is being handed over.
    handing_over: watch::Receiver<bool>,
    log: Arc<dyn LogGauge>,
    /// Nothing is proposed, although this node leads.
    held: bool,
    stop: Arc<Stop>,
    /// How long what is in flight is waited for when the node shuts down.
    drain_timeout: Duration,
}

impl<RT: AsyncRuntime> Proposer<RT> {
    /// The proposer of `node`.
    pub(crate) fn new(node: &Node<RT>, queue: mpsc::UnboundedReceiver<Proposal<RT>>) -> Self {
        let standings = node.standings.clone();
        let forwarder = Forwarder { transport: Arc::clone(&node.transport), standings: standings.clone() };
        let (back, returned) = mpsc::channel(FORWARDS_MAX);
        Self {
            queue,
            ahead: VecDeque::new(),
            standings,
            standing: Standing::Leaderless,
            time: Arc::clone(&node.time),
            orderer: Arc::new(Orderer::of(node)),
            forwarder: Arc::new(forwarder),
            slots: Arc::new(Semaphore::new(FORWARDS_MAX)),
            rest: Rest::default(),
            back,
            returned,
            handing_over: node.handing_over.subscribe(),
            log: Arc::clone(&node.log),
            held: false,
            stop: Arc::clone(&node.stop),
            drain_timeout: node.request_timeout,
        }
    }

    /// Runs until the node stops; what is in flight then is still answered, if that takes no longer than a request may.
    /// What is queued is dropped, which tells its submitters.
    pub async fn run(mut self) {
        let stop = Arc::clone(&self.stop);
        while let Select2::Second(Some(turn)) = TypeConfig::<RT>::select2(stop.stopping(), self.next_turn()).await {
            match turn {
                Turn::Order(lead) => self.order(lead).await,
                Turn::Forward(followed, slot) => self.forward(followed, slot),
            }
        }
        if stop.reason().is_none_or(|reason| reason == StopReason::Shutdown) {
            let Self { queue, ahead, back, mut returned, drain_timeout, .. } = self;
            drop((queue, ahead, back));
            let drained = async { while returned.recv().await.is_some() {} };
            // What is not answered by then has an unknown outcome, and says so.
            let _ = TypeConfig::<RT>::timeout(drain_timeout, drained).await;
        }
    }

    /// Resolves when something waits and somebody is there to order it; `None` when nothing can come any more.
    async fn next_turn(&mut self) -> Option<Turn> {
        loop {
            while let Ok(returned) = self.returned.try_recv() {
                self.take_back(returned);
            }
            let seen = self.look();
            if let Some(turn) = self.turn(seen) {
                return Some(turn);
            }
            if !self.wait(seen).await {
                return None;
            }
        }
    }

    /// Looks where this node stands and what there is to do, and lets go of what only a leader may order.
    fn look(&mut self) -> Seen {
        let standing = self.standings.now();
        let changed = standing != self.standing;
        if changed {
            self.standing = standing;
            // Another leadership's clock has not been told.
            self.held = false;
            self.rest.end();
            // Batches to a leader that is none any more do not hold up those to the next.
            self.slots = Arc::new(Semaphore::new(FORWARDS_MAX));
        }
        if matches!(standing, Standing::Follows(_) | Standing::Leaderless) {
            if changed {
                self.ahead.retain(Proposal::may_be_forwarded);
            }
            while let Ok(next) = self.queue.try_recv() {
                if next.may_be_forwarded() {
                    self.ahead.push_back(next);
                }
            }
        }
        self.hold();
        Seen { work: !self.ahead.is_empty() || !self.queue.is_empty(), resting: self.rest.is_on() }
    }

    /// What is to be done now; `None`: nothing before something of what was seen changes.
    fn turn(&self, seen: Seen) -> Option<Turn> {
        if self.held || seen.resting || !seen.work {
            return None;
        }
        match self.standing {
            Standing::Leads(lead) => Some(Turn::Order(lead)),
            Standing::Follows(followed) => {
                let slot = Arc::clone(&self.slots).try_acquire_owned().ok()?;
                Some(Turn::Forward(followed, slot))
            }
            Standing::Elected | Standing::Leaderless => None,
        }
    }

    /// Looks whether nothing may be proposed here, and tells the clock: an outstanding entry of this node's own makes it
    /// stop after T, and so does a proposer that takes none.
    fn hold(&mut self) {
        let Standing::Leads(lead) = self.standing else {
            self.held = false;
            return;
        };
        let full = || self.log.disk_full() && self.log.unsynced_bytes() > UNSYNCED_BYTES_MAX;
        let held = *self.handing_over.borrow() || full();
        if held && !self.held {
            // The stamp is for no entry.
            let _ = self.time.hand_off(lead);
        } else if !held && self.held {
            self.time.settled(lead);
        }
        self.held = held;
    }

    /// Waits until something may have changed since it was `seen`; false when nothing can come any more. Nothing is
    /// looked at anew here: what has changed meanwhile must resolve one of these at once, or nothing would ever.
    async fn wait(&mut self, Seen { work, resting }: Seen) -> bool {
        let leads = matches!(self.standing, Standing::Leads(_) | Standing::Elected);
        let crowded = matches!(self.standing, Standing::Follows(_)) && !resting;
        let slow = self.held || (work && !leads);
        tokio::select! { biased;
            () = self.standings.leaves(self.standing) => {}
            Ok(()) = self.handing_over.changed() => {}
            Some(left) = self.returned.recv() => self.take_back(left),
            () = async { drop(self.slots.acquire().await) }, if crowded && work => {}
            () = self.rest.over(), if resting && work => {}
            next = self.queue.recv(), if !work || !leads => match next {
                Some(next) if leads || next.may_be_forwarded() => self.ahead.push_back(next),
                Some(_) => {}
                None => return false,
            },
            () = TypeConfig::<RT>::sleep(LOOK_AFTER), if slow => self.ahead.retain(Proposal::is_wanted),
        }
        true
    }

    /// Takes what waits, up to an entry's bounds, and marks it as handed off.
    fn gather(&mut self) -> Vec<Proposal<RT>> {
        let mut batch = Vec::with_capacity((self.queue.len() + self.ahead.len()).min(COMMANDS_MAX));
        let mut bytes = HEAD_BYTES_MAX;
        while batch.len() < COMMANDS_MAX {
            let Some(next) = self.ahead.pop_front().or_else(|| self.queue.try_recv().ok()) else { break };
            let size = next.weight() + PREFIX_BYTES_MAX;
            if bytes + size > BATCH_BYTES_MAX && !batch.is_empty() {
                self.ahead.push_front(next);
                break;
            }
            if next.hand_off() {
                bytes += size;
                batch.push(next);
            }
        }
        batch
    }

    /// Orders what waits as one entry, and waits for it while this node leads.
    async fn order(&mut self, lead: Lead) {
        let batch = self.gather();
        if batch.is_empty() {
            return;
        }
        let mut entry = Box::pin(Arc::clone(&self.orderer).order(lead, batch));
        let over = TypeConfig::<RT>::select2(self.stop.stopping(), self.standings.leaves(Standing::Leads(lead)));
        let left = tokio::select! { biased;
            left = &mut entry => left,
            _ = over => return self.wait_aside(entry, None),
        };
        self.take_back(left);
    }

    /// Sends what waits to the leader.
    fn forward(&mut self, followed: Followed, slot: OwnedSemaphorePermit) {
        let batch = self.gather();
        if !batch.is_empty() {
            self.wait_aside(Box::pin(Arc::clone(&self.forwarder).forward(followed, batch)), Some(slot));
        }
    }

    /// Waits for a batch in a task of its own, which gives back what was not ordered.
    fn wait_aside(
        &self,
        batch: impl Future<Output = Returned<RT>> + Send + Unpin + 'static,
        slot: Option<OwnedSemaphorePermit>,
    ) {
        let back = self.back.clone();
        // Detached: it ends with its batch.
        drop(TypeConfig::<RT>::spawn(async move {
            let left = batch.await;
            drop(slot);
            // An error says that the node has stopped: then dropping them tells their submitters.
            let _ = back.send(left).await;
        }));
    }

    /// Puts what was surely not ordered first in line again, and lets the leadership settle.
    fn take_back(&mut self, left: Returned<RT>) {
        if left.is_empty() {
            return self.rest.shorten();
        }
        self.rest.begin();
        let leads = matches!(self.standing, Standing::Leads(_) | Standing::Elected);
        for proposal in left.into_iter().rev().filter(|proposal| leads || proposal.may_be_forwarded()) {
            self.ahead.push_front(proposal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proposal::{self, Intake};
    use crate::tests::{C, Rt, World, simulated, sleep};

    /// Time goes on, and others run, between a look and the wait that follows it: has the wait an end then?
    fn wakes_after(meanwhile: impl AsyncFnOnce(&mut Proposer<Rt>, &Intake<Rt>)) {
        simulated(31, async {
            let world = World::of(1).await;
            let (_, node) = world.leader().await;
            let (intake, queue) = proposal::channel(100);
            let mut proposer = Proposer::new(node.node(), queue);
            proposer.look();
            meanwhile(&mut proposer, &intake).await;
            let seen = proposer.look();
            assert!(proposer.turn(seen).is_some(), "there is something to do");
        });
    }

    async fn woken(proposer: &mut Proposer<Rt>, seen: Seen) {
        let woken = C::timeout(Duration::from_secs(1), proposer.wait(seen)).await;
        assert!(matches!(woken, Ok(true)), "it waits for what has happened already");
    }

    /// A tick that waits in the queue.
    async fn queued(intake: &Intake<Rt>) {
        let intake = intake.clone();
        // Nobody waits for its answer.
        drop(C::spawn(async move { drop(intake.propose(None, 0, Duration::from_secs(5)).await) }));
        sleep(1).await;
    }

    #[test]
    fn a_pause_that_ended_after_the_look_is_not_waited_for() {
        wakes_after(async |proposer, intake| {
            queued(intake).await;
            proposer.rest.begin();
            let seen = proposer.look();
            assert!(proposer.turn(seen).is_none(), "it rests");
            sleep(1_000).await;
            woken(proposer, seen).await;
        });
    }

    #[test]
    fn work_that_came_after_the_look_is_not_waited_for() {
        wakes_after(async |proposer, intake| {
            let seen = proposer.look();
            assert!(proposer.turn(seen).is_none(), "nothing is to be done");
            queued(intake).await;
            woken(proposer, seen).await;
        });
    }
}
