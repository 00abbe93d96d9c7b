//! Requests and their answers, between nodes and from clients.
//!
//! Model: a request is carried by a task of the host that it goes to, so it waits while that host stands still and ends
//! with the host's process; it arrives whether or not its sender still waits. The sender waits for the answer, or for word
//! that the connection broke, and for [`SILENCE_NS`] when something was lost. A request is carried once: TCP delivers no
//! request twice. Repeating those that may be repeated is the router's matter.

use std::time::Duration;

use tokio::sync::oneshot;

use super::World;
use super::links::{Presence, SILENCE_NS};
use super::site::Node;
use super::ways::Fate;
use crate::plan::Way;
use crate::runtime;

/// A request has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// It was surely not sent.
    NotSent,
    /// The connection broke: it may have arrived.
    Broken,
}

/// A call under way, until its caller stops waiting.
pub(super) struct Call {
    pub(super) way: Way,
    /// Dropped when the connection breaks.
    pub(super) _stands: oneshot::Sender<()>,
}

/// Takes the call off the list.
struct Waiting {
    world: World,
    call: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let call = self.world.state().calls.remove(&self.call);
        drop(call);
    }
}

/// An answer on its way: when it arrives; `None` when it is lost.
struct Answer<T>(Option<(u64, T)>);

/// A request, addressed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) way: Way,
    /// The life of the process that sends it.
    pub(super) life: u64,
    /// How long it is.
    pub(super) bytes: u64,
}

/// What was decided when it was sent.
struct Sending {
    to_life: u64,
    fate: Fate,
    broken: oneshot::Receiver<()>,
    waiting: Waiting,
}

/// Waits until this instant of true time.
pub(super) async fn until(at_ns: u64) {
    let left = at_ns.saturating_sub(runtime::now_ns());
    if left > 0 {
        runtime::sleep(Duration::from_nanos(left)).await;
    }
}

impl World {
    /// Sends a request, has `work` done for it by a task of the host that it goes to, and brings back what came of it;
    /// `weigh` says how many bytes that has.
    pub(super) async fn exchange<T, F>(
        &self,
        sent: Sent,
        work: impl FnOnce(Node) -> F + Send + 'static,
        weigh: fn(&T) -> u64,
    ) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let Some(mut sending) = self.send(sent) else {
            // It takes a moment to be refused.
            let hop_ns = self.hop_ns();
            runtime::sleep(Duration::from_nanos(2 * hop_ns)).await;
            return Err(Failure::NotSent);
        };
        let _waiting = sending.waiting;
        let Fate::Arrives(at_ns) = sending.fate else { return silence(&mut sending.broken).await };
        let (answer, answered) = oneshot::channel();
        let (world, way, to_life) = (self.clone(), sent.way, sending.to_life);
        runtime::spawn_on(way.to, async move {
            until(at_ns).await;
            let Some(node) = world.node(way.to, to_life) else { return };
            let value = work(node).await;
            let back = Way { from: way.to, to: way.from };
            let arrives = world.sent(back, weigh(&value));
            if arrives.is_none() {
                world.0.coverage.fired("answer_lost");
            }
            // Nobody may wait any more.
            let _ = answer.send(Answer(arrives.map(|at_ns| (at_ns, value))));
        });
        let answer = tokio::select! { biased;
            answer = answered => answer.unwrap_or(Answer(None)),
            _ = &mut sending.broken => return Err(Failure::Broken),
        };
        let Answer(Some((at_ns, value))) = answer else { return silence(&mut sending.broken).await };
        until(at_ns).await;
        Ok(value)
    }

    /// Has a request done by the host that it goes to, without anybody waiting for an answer: a repetition.
    pub(super) fn repeat<F: Future<Output = ()> + Send + 'static>(
        &self,
        sent: Sent,
        work: impl FnOnce(Node) -> F + Send + 'static,
    ) {
        let Some(at_ns) = self.sent(sent.way, sent.bytes) else { return };
        let (world, to, life) = (self.clone(), sent.way.to, self.life(sent.way.to));
        runtime::spawn_on(to, async move {
            until(at_ns).await;
            if let Some(node) = world.node(to, life) {
                work(node).await;
            }
        });
    }

    /// Decides what becomes of a request; `None` when it cannot be sent.
    fn send(&self, sent: Sent) -> Option<Sending> {
        let mut state = self.state();
        let Way { from, to } = sent.way;
        let peer = state.sites.get(&to)?;
        let (to_life, presence) = (peer.life, peer.presence());
        let is_connected = match state.sites.get(&from) {
            Some(own) => own.life == sent.life && state.links.stands(from, to),
            // Clients dial anew whenever they must.
            None => presence != Presence::Dead || state.ways.is_cut(from, to) || state.ways.is_cut(to, from),
        };
        if !is_connected {
            if presence == Presence::Dead {
                self.0.coverage.fired("refused");
            }
            return None;
        }
        let is_down = state.sites[&to].running.is_none();
        let fate = match state.send(sent.way, sent.bytes, &self.0.coverage) {
            Fate::NoRoom => return None,
            Fate::Arrives(_) if is_down => Fate::Lost,
            fate => fate,
        };
        let (stands, broken) = oneshot::channel();
        let call = state.next_call;
        state.next_call += 1;
        state.calls.insert(call, Call { way: sent.way, _stands: stands });
        Some(Sending { to_life, fate, broken, waiting: Waiting { world: self.clone(), call } })
    }

    /// Sends a message for whose loss nobody is to be told: when it arrives.
    fn sent(&self, way: Way, bytes: u64) -> Option<u64> {
        match self.state().send(way, bytes, &self.0.coverage) {
            Fate::Arrives(at_ns) => Some(at_ns),
            Fate::Lost | Fate::NoRoom => None,
        }
    }
}

/// Nothing comes any more: until the connection breaks, or is given up.
async fn silence<T>(broken: &mut oneshot::Receiver<()>) -> Result<T, Failure> {
    tokio::select! { biased;
        _ = broken => {}
        () = runtime::sleep(Duration::from_nanos(SILENCE_NS)) => {}
    }
    Err(Failure::Broken)
}
