//! One entry on its way through replication: stamped, appended under the leadership that stamped it, answered.
//!
//! Invariants: a stamp is taken at the hand-off, under the leadership the append is conditional on (`with_leader`): an
//! entry is either appended under the leadership that stamped it, or not at all. What was surely not appended comes back,
//! to be stamped anew; what may have been is never proposed again: it is dropped, which says so.

use std::sync::Arc;

use bytes::Bytes;
use openraft::errors::ClientWriteError;
use openraft::impls::ProgressResponder;
use openraft::raft::ClientWriteResult;

use crate::cluster::Node;
use crate::config::Observer;
use crate::entry;
use crate::error::StopReason;
use crate::machine::{Position, Stamp};
use crate::planted::{self, Bug};
use crate::proposal::{Answer, Proposal};
use crate::raft::{AsyncRuntime, Batch, LeaderId, NodeId, Raft, Replies, TypeConfig};
use crate::stop::Stop;
use crate::timekeeper::{Lead, Timekeeper};

/// What became of an entry.
#[derive(Debug)]
pub(crate) enum Fate {
    /// It was applied.
    Applied(Replies),
    /// It was surely not appended.
    NotAppended,
    /// It may or may not take effect.
    Unknown,
}

/// See the module's head.
pub struct Orderer<RT: AsyncRuntime> {
    node: NodeId,
    raft: Raft<RT>,
    time: Arc<Timekeeper<RT>>,
    observer: Arc<dyn Observer>,
    stop: Arc<Stop>,
}

impl<RT: AsyncRuntime> Orderer<RT> {
    /// Orders the proposals of `node`.
    pub(crate) fn of(node: &Node<RT>) -> Self {
        Self {
            node: node.node_id,
            raft: node.raft.clone(),
            time: Arc::clone(&node.time),
            observer: Arc::clone(&node.observer),
            stop: Arc::clone(&node.stop),
        }
    }

    /// Orders `batch`, which is handed off, as one entry, and answers it. Returns what was surely not appended, in order.
    pub async fn order(self: Arc<Self>, lead: Lead, batch: Vec<Proposal<RT>>) -> Vec<Proposal<RT>> {
        let commands = batch.iter().filter_map(|proposal| proposal.command.clone()).collect();
        let fate = match self.stamp(lead, commands) {
            Some(entry) => self.append(lead, entry).await,
            None => Fate::NotAppended,
        };
        match fate {
            Fate::Applied(replies) => answer(batch, lead, replies),
            // Dropping a proposal that was handed off says so.
            Fate::Unknown if !planted::has(Bug::UnknownRetried) => drop(batch),
            Fate::NotAppended | Fate::Unknown => {
                return batch.into_iter().filter_map(Proposal::take_back).collect();
            }
        }
        Vec::new()
    }

    /// Stamps `commands` under `lead`; `None` when that is over. An entry that is stamped is to be appended, or given up.
    pub(crate) fn stamp(&self, lead: Lead, commands: Vec<Bytes>) -> Option<Batch> {
        let stamp = self.time.hand_off(lead)?;
        let bytes = entry::encode(stamp, self.time.wall_ms(), &commands);
        let bytes = bytes.map_err(|error| self.stop.stop(StopReason::Replication(error.to_string()))).ok()?;
        self.observer.proposed(commands.len(), bytes.len());
        Some(Batch(bytes))
    }

    /// Hands an entry that was stamped under `lead` to replication, and waits for what becomes of it.
    pub(crate) async fn append(&self, lead: Lead, entry: Batch) -> Fate {
        let leader = LeaderId::<RT> { term: lead.term, node_id: self.node };
        let (responder, result) = ProgressResponder::<_, ClientWriteResult<TypeConfig<RT>>>::complete_only();
        #[cfg(feature = "planted")]
        planted::breath().await;
        let write = self.raft.write(entry);
        let write = if planted::has(Bug::NoLeadershipAtAppend) { write } else { write.with_leader(leader) };
        let sent = write.responder(responder).await;
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
}

/// Answers each proposal of a batch with its reply.
fn answer<RT: AsyncRuntime>(batch: Vec<Proposal<RT>>, lead: Lead, replies: Replies) {
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
            proposal.answer(Ok(Answer { reply, position, clock, term: lead.term }));
        }
    }
}
