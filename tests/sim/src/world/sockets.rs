//! Clients that wait in line, each on a socket of its own.
//!
//! Model: the node drops what waits for a client when it sees the client's socket closed: a moment after the client went, or,
//! where nothing of it arrives, when the probes of an idle connection have had no answer for [`PROBED_NS`]. A client that
//! waits on while the ways to its node are cut loses it in the same time.

use std::time::Duration;

use tenure::edge::Ask;
use tenure::keyspace::Reply;
use tenure_cluster::{Applied, SubmitError};
use tokio::sync::oneshot;

use super::site::Node;
use super::{NoReply, World};
use crate::plan::Way;
use crate::runtime::{self, WORLD};

/// Probes after 2 s, each second, 3 of them.
const PROBED_NS: u64 = 5_000_000_000;
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// A client's end of its socket. Dropped, it is closed.
struct Socket {
    world: World,
    node: u64,
    closed: Option<oneshot::Sender<()>>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        let Some(closed) = self.closed.take().filter(|closed| !closed.is_closed()) else { return };
        let (world, node) = (self.world.clone(), self.node);
        if !runtime::running() {
            return;
        }
        runtime::spawn_on(WORLD, async move {
            // It is sent until it arrives; the probes find the rest.
            while world.is_cut_from_clients(node) {
                runtime::sleep(PROBE_EVERY).await;
                if closed.is_closed() {
                    return;
                }
            }
            runtime::sleep(Duration::from_nanos(world.hop_ns())).await;
            let _ = closed.send(());
        });
    }
}

impl World {
    /// Sends an ACQUIRE that waits to `node`, as a client that has `patience` does. Dropped, the client is gone.
    ///
    /// # Errors
    /// [`NoReply`]
    pub async fn wait(
        &self,
        node: u64,
        ask: impl Into<Ask>,
        wait_ms: u64,
        patience: Duration,
    ) -> Result<Applied<Reply>, NoReply> {
        let (ask, (closed, gone)) = (ask.into(), oneshot::channel());
        let socket = Socket { world: self.clone(), node, closed: Some(closed) };
        let world = self.clone();
        let work = move |_: Node| async move { world.waits(node, ask, wait_ms, patience, gone).await };
        let answer = self.ask(node, patience, work).await;
        drop(socket);
        answer?.map_err(|error| match error {
            SubmitError::OutcomeUnknown => NoReply::Unknown,
            SubmitError::Unavailable(_) | SubmitError::TooLarge { .. } | SubmitError::Internal(_) => NoReply::Nothing,
        })
    }

    /// What the node does for it.
    async fn waits(
        &self,
        node: u64,
        ask: Ask,
        wait_ms: u64,
        patience: Duration,
        gone: oneshot::Receiver<()>,
    ) -> Result<Applied<Reply>, SubmitError> {
        let edge = self.state().sites.get(&node).and_then(|site| Some(site.running.as_ref()?.edge.clone()));
        let Some(edge) = edge else { return Err(SubmitError::OutcomeUnknown) };
        let answer = tokio::select! { biased;
            answer = edge.wait(ask.clone(), wait_ms, patience) => answer,
            _ = gone => {
                self.0.coverage.fired("waiting_client_gone");
                return Err(SubmitError::OutcomeUnknown);
            }
            () = self.probed(node) => {
                self.0.coverage.fired("waiting_client_silent");
                return Err(SubmitError::OutcomeUnknown);
            }
        };
        match &answer {
            Ok(applied) => self.0.ledger.waited(node, &ask, applied),
            Err(SubmitError::OutcomeUnknown) => self.0.coverage.fired("wait_in_doubt"),
            Err(_) => self.0.ledger.not_asked(ask),
        }
        answer
    }

    /// Resolves when no probe of the client's connection was answered for a while.
    async fn probed(&self, node: u64) {
        let mut heard_ns = runtime::now_ns();
        loop {
            runtime::sleep(PROBE_EVERY).await;
            let now_ns = runtime::now_ns();
            if !self.is_cut_from_clients(node) {
                heard_ns = now_ns;
            } else if now_ns - heard_ns >= PROBED_NS {
                return;
            }
        }
    }

    fn is_cut_from_clients(&self, node: u64) -> bool {
        let state = self.state();
        [Way { from: WORLD, to: node }, Way { from: node, to: WORLD }]
            .iter()
            .any(|way| state.ways.is_cut(way.from, way.to))
    }
}
