//! The one task that orders commands: it stamps, batches and hands entries to replication.
//!
//! Model: one entry is in flight. While it is, the next gathers in the queue; when its answer is there, all that waits
//! (up to an entry's bounds) goes as the next entry. A lone command therefore goes at once, and a loaded node writes
//! few, large entries, without a timer and without a setting.
//!
//! Invariants: a stamp is taken at the hand-off, under the leadership the append is conditional on (`with_leader`): an
//! entry is either appended under the leadership that stamped it, or not at all. What was surely not appended is stamped
//! anew; what may have been is never proposed again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use openraft::async_runtime::Select2;
use openraft::errors::ClientWriteError;
use openraft::impls::ProgressResponder;
use openraft::raft::ClientWriteResult;
use openraft::type_config::TypeConfigExt;
use tokio::sync::{mpsc, watch};

use crate::config::Observer;
use crate::entry::{self, BATCH_BYTES_MAX, COMMANDS_MAX, HEAD_BYTES_MAX, PREFIX_BYTES_MAX};
use crate::error::StopReason;
use crate::machine::{Position, Stamp};
use crate::proposal::{Answer, Proposal};
use crate::raft::{AsyncRuntime, Batch, LeaderId, NodeId, Raft, Replies, TypeConfig};
use crate::stop::Stop;
use crate::timekeeper::{Lead, Timekeeper};

/// Pause before an entry is proposed again that replication did not take.
const RETRY_AFTER: Duration = Duration::from_millis(10);

/// What became of an entry.
enum Fate {
    /// It was applied.
    Applied(Replies),
    /// It was surely not appended.
    NotAppended,
    /// It may or may not take effect.
    Unknown,
}

/// See the module's head.
pub struct Proposer<RT: AsyncRuntime> {
    /// This node.
    pub node: NodeId,
    /// Replication.
    pub raft: Raft<RT>,
    /// The clock.
    pub time: Arc<Timekeeper<RT>>,
    /// Whether this node leads.
    pub leading: watch::Receiver<Option<Lead>>,
    /// What waits.
    pub queue: mpsc::UnboundedReceiver<Proposal>,
    /// First in line: taken from the queue, but not in an entry yet.
    pub ahead: VecDeque<Proposal>,
    /// Told of each entry.
    pub observer: Arc<dyn Observer>,
    /// Why the node stops.
    pub stop: Arc<Stop>,
    /// How long an entry in flight is waited for when the node shuts down.
    pub drain_timeout: Duration,
}

impl<RT: AsyncRuntime> Proposer<RT> {
    /// Runs until the node stops; what is in flight then is still answered, if that takes no longer than a request may.
    /// What is queued is dropped, which tells its submitters.
    pub async fn run(mut self) {
        let stop = Arc::clone(&self.stop);
        while let Select2::Second(Some(lead)) = TypeConfig::<RT>::select2(stop.stopping(), self.next_turn()).await {
            let batch = self.gather();
            if batch.is_empty() {
                continue;
            }
            let patience = async {
                if stop.stopping().await == StopReason::Shutdown {
                    TypeConfig::<RT>::sleep(self.drain_timeout).await;
                }
            };
            let commands = batch.iter().filter_map(|proposal| proposal.command.clone()).collect();
            match TypeConfig::<RT>::select2(self.commit(lead, commands), patience).await {
                Select2::First(Fate::Applied(replies)) => answer(batch, lead, replies),
                Select2::First(Fate::NotAppended) => self.take_back(batch).await,
                // Dropping a proposal that was handed off says so.
                Select2::First(Fate::Unknown) | Select2::Second(()) => drop(batch),
            }
        }
    }

    /// Resolves when something waits and this node leads; `None` when nothing can come any more.
    async fn next_turn(&mut self) -> Option<Lead> {
        if !self.wait_for_work().await {
            return None;
        }
        self.leading.wait_for(Option::is_some).await.ok().and_then(|lead| *lead)
    }

    /// Resolves when a proposal is first in line; false when none can come any more.
    async fn wait_for_work(&mut self) -> bool {
        if self.ahead.is_empty() {
            match self.queue.recv().await {
                Some(proposal) => self.ahead.push_back(proposal),
                None => return false,
            }
        }
        true
    }

    /// Takes what waits, up to an entry's bounds, and marks it as handed off.
    fn gather(&mut self) -> Vec<Proposal> {
        let mut batch = Vec::with_capacity(self.queue.len().min(COMMANDS_MAX) + self.ahead.len());
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

    /// Stamps `commands`, hands them to replication as one entry, and waits for what becomes of it.
    async fn commit(&self, lead: Lead, commands: Vec<Bytes>) -> Fate {
        let Some(stamp) = self.time.hand_off(lead) else { return Fate::NotAppended };
        let bytes = match entry::encode(stamp, self.time.wall_ms(), &commands) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.stop.stop(StopReason::Replication(error.to_string()));
                return Fate::NotAppended;
            }
        };
        self.observer.proposed(commands.len(), bytes.len());
        drop(commands);
        let leader = LeaderId::<RT> { term: lead.term, node_id: self.node };
        let (responder, result) = ProgressResponder::<_, ClientWriteResult<TypeConfig<RT>>>::complete_only();
        let sent = self.raft.write(Batch(bytes)).with_leader(leader).responder(responder).await;
        let result = match sent {
            Ok(()) => result.await.ok(),
            Err(_) => None,
        };
        self.time.settled(lead);
        match result {
            Some(Ok(response)) => Fate::Applied(response.data),
            // Given before the append, never after: the proof that nothing was appended.
            Some(Err(ClientWriteError::ForwardToLeader(_))) => Fate::NotAppended,
            // Truncated, purged, or replication is gone: it may have been committed.
            Some(Err(_)) | None => Fate::Unknown,
        }
    }

    /// Puts a batch that was surely not appended first in line again, and lets the leadership settle.
    async fn take_back(&mut self, batch: Vec<Proposal>) {
        for proposal in batch.into_iter().rev() {
            if let Some(proposal) = proposal.take_back() {
                self.ahead.push_front(proposal);
            }
        }
        TypeConfig::<RT>::select2(self.leading.changed(), TypeConfig::<RT>::sleep(RETRY_AFTER)).await;
    }
}

/// Answers each proposal of a batch with its reply.
fn answer(batch: Vec<Proposal>, lead: Lead, replies: Replies) {
    let clock = Stamp(replies.clock);
    let mut encoded = replies.replies.into_iter();
    let mut ordinal = 0;
    for proposal in batch {
        let position = Position { index: replies.index, ordinal };
        let reply = if proposal.command.is_some() {
            ordinal += 1;
            encoded.next()
        } else {
            Some(Bytes::new())
        };
        // The applier answers each command of an entry; without its reply a proposal is dropped, hence unknown.
        if let Some(reply) = reply {
            proposal.answer(Answer { reply, position, clock, term: lead.term });
        }
    }
}
