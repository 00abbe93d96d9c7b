//! What a node does for the clients on its sockets while they wait.
//!
//! Model: the machine keeps the line, the edge keeps the sockets. A request that waits is put in line by a command that
//! names the edge and a number; the node that applies the entry which grants it, or ends its wait, finds the number in
//! [`Requests`] and answers. Nothing is sent from node to node for it: each edge hears the log.
//!
//! - `ask`: what is waited for.
//! - `requests`: the table of numbers, fed inside apply.
//! - `attendance`: the life of one request, from its command to its answer, and what is cleaned up after.
//! - `presence`: says once a second that this edge is there, and gives up what it cannot answer for.
//! - `away`: the leader's duty to tell the machine of edges whose process is gone.
//! - [`history`]: what happened lately, and [`watch`]: the stream of it that one watcher is told.
//!
//! Invariants: a request gets one answer. What is answered true was granted to this request. A client that went away is
//! told to the machine (DETACH); one that was given its answer is not. A grant that cannot be handed over is returned.
//! Every task ends with the node, or some seconds after its request.
//!
//! Not promised: that a client reads what it was answered. `outcome_unknown` means: ask again with the same token, at
//! another node; the place is kept for a while, and a grant made meanwhile is found by `yours`.
//!
//! Generic over machine and runtime, so that the simulator drives this very code in its own time.

mod ask;
mod attendance;
mod away;
pub mod history;
#[cfg(test)]
mod pool_tests;
mod presence;
mod requests;
#[cfg(test)]
mod tests;
pub mod watch;

use std::sync::Arc;
use std::time::Duration;

use tenure_cluster::raft::{AsyncRuntime, TokioRuntime};
use tenure_cluster::time::{self, timeout};
use tenure_cluster::{Applied, Cluster, StateMachine, SubmitError};
use tokio::sync::oneshot;

pub use ask::Ask;
pub use requests::{Requests, WAITING_MAX};

use crate::keyspace::{Command, EdgeId, Event, Keyspace, Reply};
use attendance::Attendance;
use requests::Turned;

/// A machine whose leases and pools can be waited for.
pub trait Waitable: StateMachine<Command = Command, Reply = Reply, Event = Event> + AsRef<Keyspace> {}

impl<M: StateMachine<Command = Command, Reply = Reply, Event = Event> + AsRef<Keyspace>> Waitable for M {}

/// The edge of one node. Clones are handles to the same edge.
pub struct Edge<M: Waitable, RT: AsyncRuntime = TokioRuntime> {
    shared: Arc<Shared<M, RT>>,
}

impl<M: Waitable, RT: AsyncRuntime> Clone for Edge<M, RT> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

/// What its tasks share.
struct Shared<M: Waitable, RT: AsyncRuntime> {
    id: EdgeId,
    cluster: Cluster<M, RT>,
    requests: Arc<Requests>,
}

impl<M: Waitable, RT: AsyncRuntime> Edge<M, RT> {
    /// The edge `id` of the node behind `cluster`. `requests` has to hear that node's events from its start on; the
    /// incarnation in `id` has to be drawn anew for each start of the process.
    pub fn new(id: EdgeId, cluster: Cluster<M, RT>, requests: Arc<Requests>) -> Self {
        requests.belong_to(id);
        let (gone, leadership) = (cluster.gone(), cluster.leadership());
        let shared = Arc::new(Shared { id, cluster, requests });
        time::spawn::<RT>(presence::told(Arc::downgrade(&shared)));
        time::spawn::<RT>(away::told(Arc::downgrade(&shared), gone, leadership));
        Self { shared }
    }

    /// Who it is.
    #[must_use]
    pub fn id(&self) -> EdgeId {
        self.shared.id
    }

    /// How many requests wait here.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.requests.waiting()
    }

    /// OP ACQUIRE that waits in line for `wait_ms` at most (1..=86 400 000: what is beyond counts as that), and gives its
    /// caller an answer within `timeout`; what is shorter counts. Dropped, it leaves the line; a grant that came meanwhile is returned.
    ///
    /// # Errors
    /// [`SubmitError`]: `Unavailable` if it was surely not put in line. `OutcomeUnknown` if this node cannot say what
    /// became of it: to be asked again with the same token, at another node.
    pub async fn wait(
        &self,
        ask: impl Into<Ask>,
        wait_ms: u64,
        timeout: Duration,
    ) -> Result<Applied<Reply>, SubmitError> {
        let entered = self.shared.requests.enter().map_err(turned)?;
        let (answer, answered) = oneshot::channel();
        let attendance = Attendance::new(Arc::clone(&self.shared), entered, ask.into(), wait_ms, timeout);
        time::spawn::<RT>(attendance.attend(answer));
        // It answers always, unless the runtime ends.
        let (outcome, taken) = answered.await.map_err(|_| SubmitError::OutcomeUnknown)?;
        // From here on the caller has it. The other end may not care.
        let _ = taken.send(());
        outcome
    }

    /// The node leaves: what waits here is answered `OutcomeUnknown` at once, so that clients move on to another node,
    /// and nothing new waits.
    pub fn leave(&self) {
        self.shared.requests.leave();
    }

    /// After [`Edge::leave`]: resolves once the machine was told of all that waited here, or after `within`.
    pub async fn left(&self, within: Duration) {
        let requests = Arc::clone(&self.shared.requests);
        let _ = timeout::<RT, _>(within, async move { requests.none().await }).await;
    }
}

fn turned(turned: Turned) -> SubmitError {
    SubmitError::Unavailable(match turned {
        Turned::Leaving => "the node is leaving: wait at another node".to_owned(),
        Turned::Full(max) => format!("{max} requests wait on this node, its limit: wait at another node"),
    })
}
