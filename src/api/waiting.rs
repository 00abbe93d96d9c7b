//! OP ACQUIRE that waits: the request stays open until the edge has its answer, the client closes, or the node leaves.

use std::time::{Duration, Instant};

use super::Api;
use super::command::{Answered, Failed};
use super::metrics::Metrics;
use super::patience::Patience;
use super::problem::{Code, Problem};
use super::socket::Peer;
use crate::edge::Ask;
use crate::keyspace::{OpReply, Reason, Reply};

/// What to do when this node cannot say what became of a request in line.
const ASK_ELSEWHERE: &str = "this node cannot say what became of the request: ask again with the same token, at another node; \
     its place in line is kept for some seconds, and a grant made meanwhile is answered as yours";

/// Counts a wait when it is over, however it ends.
struct Counted<'a> {
    metrics: &'a Metrics,
    since: Instant,
    outcome: &'static str,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.metrics.waited(self.outcome, self.since.elapsed());
    }
}

impl Api {
    /// Waits; the client is `peer`, where there is a socket.
    pub(super) async fn wait(
        &self,
        ask: Ask,
        wait_ms: u64,
        patience: Patience,
        peer: Option<Peer>,
    ) -> Result<Answered, Failed> {
        let since = Instant::now();
        if let Ask::Identity(ask) = &ask {
            self.shared.pace.admit(&ask.key, &ask.identity, since)?;
        }
        // As it stays if this future is dropped.
        let mut counted = Counted { metrics: &self.shared.metrics, since, outcome: "closed" };
        let timeout = patience.left(since);
        let closed = async {
            match peer {
                Some(peer) => peer.closed().await,
                None => std::future::pending().await,
            }
        };
        let waited = tokio::select! { biased;
            // First: who has closed by now would not read the answer, and its grant is returned.
            () = closed => return Err(Problem::new(Code::OutcomeUnknown, ASK_ELSEWHERE).into()),
            waited = self.shared.edge.wait(ask, wait_ms, timeout) => waited,
        };
        match waited {
            Ok(applied) => {
                counted.outcome = outcome(&applied.reply);
                self.answered(&applied)
            }
            Err(error) => {
                let mut problem = Problem::from(error);
                counted.outcome = problem.code.as_str();
                if problem.code == Code::OutcomeUnknown {
                    problem.detail = ASK_ELSEWHERE.to_owned();
                }
                Err(problem.into())
            }
        }
    }
}

/// How a wait ended, in a word.
fn outcome(reply: &Reply) -> &'static str {
    let (granted, yours, reason) = match reply {
        Reply::Op(OpReply { result, yours, reason, .. }) => (*result, *yours, *reason),
        Reply::Slot(slot) => (slot.grant().is_some() && !slot.yours, slot.yours, slot.reason),
        _ => return "refused",
    };
    match reason {
        _ if granted => "granted",
        _ if yours => "yours",
        Some(Reason::WaitTimeout) => "wait_timeout",
        Some(Reason::Superseded) => "superseded",
        Some(Reason::CancelledWait) => "cancelled_wait",
        Some(Reason::QueueFull) => "queue_full",
        Some(Reason::MinHold) => "min_hold",
        Some(Reason::Deleted) => "deleted",
        Some(Reason::KeyExpired) => "key_expired",
        _ => "refused",
    }
}

impl Metrics {
    fn waited(&self, outcome: &'static str, time: Duration) {
        self.waits.get_or_create(&[("outcome", outcome)]).inc();
        self.waited.observe(time.as_secs_f64());
    }
}
