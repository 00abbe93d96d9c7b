//! The handle of one node: submit, read, watch its state, shut down.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use openraft::async_runtime::{Instant, Select2};
use openraft::type_config::TypeConfigExt;
use tokio::sync::{mpsc, watch};

pub use crate::answer::{Applied, EventAt, EventSink, Seen, Witness};
pub use crate::status::{Role, Status};

use crate::config::Observer;
use crate::entry::{self, COMMAND_BYTES_MAX};
use crate::error::{ReadError, StopReason, SubmitError};
use crate::freshness::Freshness;
use crate::host::Host;
use crate::level::FIRST_FEATURE_LEVEL;
use crate::log_gauge::LogGauge;
use crate::machine::{NeedsTick, ReadAt, StateMachine};
use crate::peer::{PeerAnswerV1, PeerRequestV1};
use crate::proposal::{Intake, NoAnswer};
use crate::raft::{AsyncRuntime, NodeId, Raft, TokioRuntime, TypeConfig};
use crate::reads::{Reads, Unreadable, Waiting};
use crate::replica::{Mark, Replica};
use crate::snapshotter::{Latest, Surroundings};
use crate::standing::{Leadership, Standings};
use crate::stop::Stop;
use crate::tick::Wanted;
use crate::timekeeper::Timekeeper;
use crate::transfer::{NoTarget, Transfer};
use crate::transport::{SnapshotOffer, Transport};
use crate::warnings::Warnings;

/// The age of a state of which nothing is known: 2^53 - 1 ms, the greatest number that every JSON tool reads exactly.
pub const AGE_UNKNOWN: Duration = Duration::from_millis((1 << 53) - 1);

/// One node. Clones are handles to the same node; when the last is dropped, the node stops.
pub struct Cluster<M: StateMachine, RT: AsyncRuntime = TokioRuntime> {
    node: Arc<Node<RT>>,
    replica: Arc<Replica<M>>,
    reads: Arc<Reads<M, RT>>,
}

/// What the handles share, whatever the machine.
pub(crate) struct Node<RT: AsyncRuntime> {
    pub cluster_id: String,
    pub node_id: NodeId,
    pub host: Arc<dyn Host>,
    pub peers: crate::bootstrap::Peers,
    pub raft: Raft<RT>,
    pub time: Arc<Timekeeper<RT>>,
    pub standings: Standings<RT>,
    pub transport: Arc<dyn Transport>,
    /// Leadership is being handed over: nothing new is proposed here.
    pub handing_over: watch::Sender<bool>,
    pub mark: watch::Receiver<Mark>,
    /// How old this node's state may be while it follows.
    pub freshness: Mutex<Freshness>,
    pub intake: Intake<RT>,
    /// Of what peers forwarded and must not be ordered.
    pub unfit: Warnings<RT>,
    pub rounds: mpsc::Sender<Waiting>,
    pub wanted: Arc<Wanted>,
    pub log: Arc<dyn LogGauge>,
    pub snapshots: Arc<Latest<RT>>,
    pub around: Arc<Surroundings>,
    pub observer: Arc<dyn Observer>,
    pub stop: Arc<Stop>,
    pub request_timeout: Duration,
    /// T.
    pub limit: Duration,
}

impl<RT: AsyncRuntime> Drop for Node<RT> {
    fn drop(&mut self) {
        self.stop.stop(StopReason::Shutdown);
    }
}

impl<M: StateMachine, RT: AsyncRuntime> Clone for Cluster<M, RT> {
    fn clone(&self) -> Self {
        Self { node: Arc::clone(&self.node), replica: Arc::clone(&self.replica), reads: Arc::clone(&self.reads) }
    }
}

impl<M: StateMachine, RT: AsyncRuntime> Cluster<M, RT> {
    pub(crate) fn of(node: Arc<Node<RT>>, replica: Arc<Replica<M>>) -> Self {
        let reads = Arc::new(Reads::new(&node, Arc::clone(&replica)));
        Self { node, replica, reads }
    }

    pub(crate) fn node(&self) -> &Node<RT> {
        &self.node
    }

    /// Orders `command` and returns what the machine answered. A command of a format that the cluster's feature level has
    /// not reached waits for that.
    ///
    /// # Errors
    /// [`SubmitError`]: `Unavailable` is safe to retry, `OutcomeUnknown` is not.
    pub async fn submit(&self, command: M::Command) -> Result<Applied<M::Reply>, SubmitError> {
        self.submit_within(command, self.node.request_timeout).await
    }

    /// The same for somebody who waits for `timeout` only: then the request timeout, if that is longer, does not hold.
    ///
    /// # Errors
    /// As [`Cluster::submit`].
    pub async fn submit_within(
        &self,
        command: M::Command,
        timeout: Duration,
    ) -> Result<Applied<M::Reply>, SubmitError> {
        let node = &*self.node;
        let timeout = timeout.min(node.request_timeout);
        let started = TypeConfig::<RT>::now();
        let internal = |error: &dyn std::fmt::Display| SubmitError::Internal(error.to_string());
        let bytes = entry::encode_command::<M>(&command).map_err(|error| internal(&error))?;
        let (format, reply_bytes) = (M::command_format(&command), M::reply_bytes_max(&command));
        drop(command);
        if bytes.len() > COMMAND_BYTES_MAX {
            return Err(SubmitError::TooLarge { bytes: bytes.len(), max: COMMAND_BYTES_MAX });
        }
        let left = node.reach_level(format, timeout).await?;
        let answer = node.intake.propose(Some(bytes), reply_bytes, left).await;
        let answer = answer.map_err(|no| node.refuse(no, timeout))?;
        let reply = entry::decode_reply::<M>(&answer.reply).map_err(|error| internal(&error))?;
        node.observer.answered(TypeConfig::<RT>::now().saturating_duration_since(started));
        Ok(Applied { reply, witness: Witness { position: answer.position, clock: answer.clock, term: answer.term } })
    }

    /// Reads linearizably. `read` may be called more than once: it answers [`NeedsTick`] when its result hangs on time
    /// that is not in the log; then a tick is committed and it is called again on the state after that.
    ///
    /// # Errors
    /// [`ReadError`] when the node cannot prove within the request timeout that its state is current.
    pub async fn read<R: Send>(
        &self,
        read: impl Fn(&M, ReadAt) -> Result<R, NeedsTick> + Send + Sync,
    ) -> Result<Seen<R>, ReadError> {
        self.read_within(read, self.node.request_timeout).await
    }

    /// The same for somebody who waits for `timeout` only: then the request timeout, if that is longer, does not hold.
    ///
    /// # Errors
    /// As [`Cluster::read`].
    pub async fn read_within<R: Send>(
        &self,
        read: impl Fn(&M, ReadAt) -> Result<R, NeedsTick> + Send + Sync,
        timeout: Duration,
    ) -> Result<Seen<R>, ReadError> {
        let node = &*self.node;
        let timeout = timeout.min(node.request_timeout);
        match TypeConfig::<RT>::timeout(timeout, self.reads.read(&read)).await {
            Ok(Ok(done)) => {
                let witness = Witness { position: done.view.position, clock: done.at.now, term: done.term };
                Ok(Seen { value: done.value, witness, age_ms: 0 })
            }
            Ok(Err(Unreadable::Stopped)) => Err(ReadError::Unavailable("the node is stopping".to_owned())),
            Ok(Err(Unreadable::AsksForEver)) => {
                Err(ReadError::Unavailable("the reader asks for a tick at every time".to_owned()))
            }
            Err(_) => Err(ReadError::Unavailable(node.too_late("the state could not be proved current", timeout))),
        }
    }

    /// Reads this node's state at once, as old as it may be. Time is judged by the last applied stamp; while timers are
    /// outstanding that is at most about a second behind the entries.
    pub fn read_stale<R>(&self, read: impl Fn(&M, ReadAt) -> R) -> Seen<R> {
        let view = self.replica.view();
        let time = &self.node.time;
        // Without a timer nothing hangs on time that is not in the log.
        let lead = time.lead().filter(|_| view.machine.wake().is_some());
        let unlogged_ms = lead.and_then(|lead| time.read(lead)).map_or(0, |now| now.ms_since(view.stamp));
        let age = self.node.state_age(view.position.index).max(Duration::from_millis(unlogged_ms));
        let at = ReadAt { applied: view.stamp, now: view.stamp };
        let value = read(&view.machine, at);
        let witness = Witness { position: view.position, clock: view.stamp, term: view.term };
        Seen { value, witness, age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX) }
    }

    /// Hands leadership over to `to`, or to the voter that is fit best, and returns who leads then. What waits here goes
    /// to the successor.
    ///
    /// # Errors
    /// [`NoTarget`]: nobody may take over now, and this node leads on; or it does not lead.
    pub async fn hand_over(&self, to: Option<NodeId>) -> Result<NodeId, NoTarget> {
        Transfer::new(&self.node).hand_over(to).await
    }

    /// Answers a peer's request, for a [`Transport`] that is not this crate's.
    pub async fn answer_peer(&self, request: PeerRequestV1) -> PeerAnswerV1 {
        self.node.answer_peer(request).await
    }

    /// Takes in a snapshot that a peer offers, for a [`Transport`] that is not this crate's.
    pub async fn receive_snapshot(&self, offer: SnapshotOffer) -> PeerAnswerV1 {
        self.node.receive_snapshot(offer).await
    }

    /// The peers whose process is surely gone, as far as this node sees: see [`Transport::gone`].
    pub fn gone(&self) -> watch::Receiver<BTreeSet<NodeId>> {
        self.node.transport.gone()
    }

    /// Tells whether this node leads, and when that changes.
    pub fn leadership(&self) -> Leadership<RT> {
        Leadership::of(&self.node.standings)
    }

    /// The node's state now.
    pub fn status(&self) -> Status {
        self.node.status()
    }

    /// This cluster's id: 32 hexadecimal digits.
    pub fn cluster_id(&self) -> &str {
        &self.node.cluster_id
    }

    /// Resolves when the node has stopped, by [`Cluster::shutdown`] or by a fault. After a fault the process must exit.
    pub async fn stopped(&self) -> StopReason {
        self.node.stop.stopped().await
    }

    /// Stops the node: no new commands, the log synced, the data directory unlocked.
    pub async fn shutdown(&self) {
        self.node.stop.stop(StopReason::Shutdown);
        self.node.stop.stopped().await;
    }
}

impl<RT: AsyncRuntime> Node<RT> {
    /// How old a state may be that is applied up to `applied`: since a quorum followed this node, or its leader, so far.
    /// [`AGE_UNKNOWN`] if that was never since its start: it may have been down for any time.
    fn state_age(&self, applied: u64) -> Duration {
        let fresh_at = self.freshness.lock().unwrap_or_else(PoisonError::into_inner).fresh_at(applied);
        let followed = (!fresh_at.is_zero()).then(|| self.time.elapsed().saturating_sub(fresh_at));
        self.time.quorum_age().into_iter().chain(followed).min().unwrap_or(AGE_UNKNOWN)
    }

    /// Has this node, which follows, lately applied all that its leader called committed? Else its linearizable reads
    /// would wait long: it has just started, or catches up.
    pub(crate) fn is_current(&self) -> bool {
        let applied = self.mark.borrow().index();
        let fresh_at = self.freshness.lock().unwrap_or_else(PoisonError::into_inner).fresh_at(applied);
        !fresh_at.is_zero() && self.time.elapsed().saturating_sub(fresh_at) < self.limit * 2
    }

    /// Waits until the cluster's feature level has reached `format`; returns what is left of `timeout`.
    async fn reach_level(&self, format: u16, timeout: Duration) -> Result<Duration, SubmitError> {
        if format <= FIRST_FEATURE_LEVEL {
            return Ok(timeout);
        }
        let deadline = TypeConfig::<RT>::now() + timeout;
        let mut mark = self.mark.clone();
        let reached = async { mark.wait_for(|mark| mark.feature_level >= format).await.is_ok() };
        let reached = TypeConfig::<RT>::select2(self.stop.stopping(), TypeConfig::<RT>::timeout_at(deadline, reached));
        match reached.await {
            Select2::Second(Ok(true)) => Ok(deadline.saturating_duration_since(TypeConfig::<RT>::now())),
            Select2::Second(Err(_)) => Err(SubmitError::Unavailable(self.below(format, timeout))),
            Select2::First(_) | Select2::Second(Ok(false)) => Err(self.refuse(NoAnswer::Stopped, timeout)),
        }
    }

    /// Why the cluster's feature level is still below `format`.
    fn below(&self, format: u16, timeout: Duration) -> String {
        if self.not_ready().is_some() {
            return self.too_late("the command was not ordered", timeout);
        }
        let level = self.host.level();
        format!(
            "the cluster still works at feature level {level}, and the command needs {format}: a member runs an older \
             build, or was not heard yet; the command was not ordered"
        )
    }

    fn refuse(&self, no: NoAnswer, timeout: Duration) -> SubmitError {
        SubmitError::Unavailable(match no {
            NoAnswer::Unknown => return SubmitError::OutcomeUnknown,
            NoAnswer::Refused(why) => {
                return SubmitError::Internal(format!("the leader does not order the command: {why}"));
            }
            NoAnswer::Stopped if self.stop.is_stopping() => {
                "the node is stopping; the command was not ordered".to_owned()
            }
            NoAnswer::NoRoom => self.too_late("too many commands wait; this one was not ordered", timeout),
            NoAnswer::Withdrawn | NoAnswer::Stopped => self.too_late("the command was not ordered", timeout),
        })
    }

    fn too_late(&self, what: &str, timeout: Duration) -> String {
        let why = self.not_ready().unwrap_or("overloaded");
        format!("{what} within {} ms: {why}", timeout.as_millis())
    }
}
