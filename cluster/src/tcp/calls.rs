//! The calls of one connection: queued, written, answered.
//!
//! The promise that users' data hangs on: a call fails as *surely not sent* only while the writer has not taken it. From
//! then on it fails as *may have arrived*, whether a byte went out or not. The writer takes a call under the same lock
//! under which the connection's end is told, so that there is nothing between.
//!
//! Invariants: at most [`IN_FLIGHT_MAX`] calls wait, with at most [`QUEUED_BYTES_MAX`] not written; calls go in the order
//! in which they were pushed; a call that is dropped leaves nothing behind, and is not sent if it can be helped.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

use super::limits::{IN_FLIGHT_MAX, QUEUED_BYTES_MAX, WRITE_BYTES};
use super::message;
use crate::peer::PeerAnswerV1;

/// A call has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// No byte of it was written.
    NotSent(String),
    /// It may have arrived.
    MaybeSent(String),
}

struct Waiting {
    /// The writer has it.
    taken: bool,
    answer: oneshot::Sender<Result<PeerAnswerV1, Failed>>,
}

#[derive(Default)]
struct State {
    /// The last number given.
    number: u64,
    /// Not written yet, by number.
    queue: VecDeque<(u64, Vec<u8>)>,
    queued_bytes: usize,
    waiting: HashMap<u64, Waiting>,
    /// Why the connection ended.
    closed: Option<String>,
}

/// The calls of one connection.
#[derive(Default)]
pub(super) struct Calls {
    state: Mutex<State>,
    /// Something is queued.
    queued: Notify,
}

/// A call that waits for its answer.
pub(super) struct Call {
    calls: Arc<Calls>,
    number: u64,
    answer: oneshot::Receiver<Result<PeerAnswerV1, Failed>>,
}

impl Calls {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a request's body.
    ///
    /// # Errors
    /// Why it is surely not sent.
    pub(super) fn push(self: &Arc<Self>, mut body: Vec<u8>) -> Result<Call, String> {
        let mut state = self.state();
        if let Some(why) = &state.closed {
            return Err(why.clone());
        }
        if state.waiting.len() >= IN_FLIGHT_MAX {
            return Err(format!("{IN_FLIGHT_MAX} requests wait for its answers already"));
        }
        if state.queued_bytes + body.len() > QUEUED_BYTES_MAX {
            return Err(format!("{QUEUED_BYTES_MAX} bytes wait to be sent to it already"));
        }
        state.number += 1;
        let number = state.number;
        message::set_number(&mut body, number);
        state.queued_bytes += body.len();
        state.queue.push_back((number, body));
        let (done, answer) = oneshot::channel();
        state.waiting.insert(number, Waiting { taken: false, answer: done });
        drop(state);
        self.queued.notify_one();
        Ok(Call { calls: Arc::clone(self), number, answer })
    }

    /// Takes what the next write carries: waits until there is something. For the one writer.
    pub(super) async fn take(&self) -> Vec<Vec<u8>> {
        loop {
            let batch = self.take_now();
            if !batch.is_empty() {
                return batch;
            }
            self.queued.notified().await;
        }
    }

    fn take_now(&self) -> Vec<Vec<u8>> {
        let mut state = self.state();
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while bytes < WRITE_BYTES && state.closed.is_none() {
            let Some((number, body)) = state.queue.pop_front() else { break };
            state.queued_bytes -= body.len();
            if let Some(waiting) = state.waiting.get_mut(&number) {
                waiting.taken = true;
                bytes += body.len();
                batch.push(body);
            }
        }
        batch
    }

    /// The answer to a call has come. A number that nobody waits for is of a call that was dropped.
    pub(super) fn answered(&self, number: u64, answer: Result<PeerAnswerV1, Failed>) {
        let waiting = self.state().waiting.remove(&number);
        if let Some(waiting) = waiting {
            // Dropped at this very moment: nobody asks any more.
            let _ = waiting.answer.send(answer);
        }
    }

    /// The connection has ended: all calls fail, and none is taken any more. The first reason stands.
    pub(super) fn close(&self, why: &str) {
        let mut state = self.state();
        state.closed.get_or_insert_with(|| why.to_owned());
        state.queue.clear();
        state.queued_bytes = 0;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for (_, Waiting { taken, answer }) in waiting {
            let failed = if taken { Failed::MaybeSent(why.to_owned()) } else { Failed::NotSent(why.to_owned()) };
            // As above.
            let _ = answer.send(Err(failed));
        }
    }

    /// The call was dropped.
    fn forget(&self, number: u64) {
        let mut state = self.state();
        let Some(Waiting { taken: false, .. }) = state.waiting.remove(&number) else { return };
        if let Ok(at) = state.queue.binary_search_by_key(&number, |(number, _)| *number)
            && let Some((_, body)) = state.queue.remove(at)
        {
            state.queued_bytes -= body.len();
        }
    }

    /// Calls that wait, and bytes that are queued.
    #[cfg(test)]
    pub(super) fn load(&self) -> (usize, usize) {
        let state = self.state();
        (state.waiting.len(), state.queued_bytes)
    }
}

impl Call {
    /// The answer.
    ///
    /// # Errors
    /// [`Failed`].
    pub(super) async fn wait(mut self) -> Result<PeerAnswerV1, Failed> {
        let gone = || Err(Failed::MaybeSent("the connection is gone".to_owned()));
        (&mut self.answer).await.unwrap_or_else(|_| gone())
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.calls.forget(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(bytes: usize) -> Vec<u8> {
        message::request(|body| body.resize(body.len() + bytes, 7))
    }

    #[tokio::test]
    async fn what_the_writer_has_not_taken_is_surely_not_sent() {
        let calls = Arc::new(Calls::default());
        let taken = calls.push(body(WRITE_BYTES)).unwrap();
        let queued = calls.push(body(9)).unwrap();
        assert_eq!(calls.take().await.len(), 1, "one write carries no more");
        calls.close("cut");
        assert_eq!(taken.wait().await, Err(Failed::MaybeSent("cut".to_owned())));
        assert_eq!(queued.wait().await, Err(Failed::NotSent("cut".to_owned())));
        assert!(calls.take_now().is_empty(), "nothing is sent after the end was told");
        assert_eq!(calls.push(body(9)).err().as_deref(), Some("cut"));
        assert_eq!(calls.load(), (0, 0));
    }

    #[tokio::test]
    async fn a_dropped_call_leaves_nothing_behind() {
        let calls = Arc::new(Calls::default());
        let kept = calls.push(body(1)).unwrap();
        drop(calls.push(body(1)).unwrap());
        let taken = calls.push(body(1)).unwrap();
        assert_eq!(calls.take().await.len(), 2, "the dropped one is not sent");
        drop(taken);
        assert_eq!(calls.load(), (1, 0));
        calls.answered(3, Ok(PeerAnswerV1::Tick));
        calls.answered(77, Ok(PeerAnswerV1::Tick));
        calls.answered(1, Ok(PeerAnswerV1::Tick));
        assert_eq!(kept.wait().await, Ok(PeerAnswerV1::Tick));
        assert_eq!(calls.load(), (0, 0));
    }

    #[test]
    fn calls_and_bytes_are_bounded() {
        let calls = Arc::new(Calls::default());
        let many: Vec<Call> = (0..IN_FLIGHT_MAX).map(|_| calls.push(body(1)).unwrap()).collect();
        assert!(calls.push(body(1)).err().unwrap().contains("1024 requests"));
        drop(many);
        let big: Vec<Call> = (0..3).map(|_| calls.push(body(QUEUED_BYTES_MAX / 4)).unwrap()).collect();
        assert!(calls.push(body(QUEUED_BYTES_MAX / 4)).err().unwrap().contains("bytes wait"));
        drop(big);
        assert_eq!(calls.load(), (0, 0));
    }
}
