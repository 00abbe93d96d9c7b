//! Commands of this node on their way to the leader: one batch, one request, once.
//!
//! What comes back decides. Surely not appended (the leader could not be reached, does not lead, refused the batch, or
//! says so of a command): taken back, to be tried again until its submitter's time is up; but what the leader says no
//! node could apply is refused for good. Anything else without an
//! answer (the connection broke, no answer in time, an answer that makes no sense): unknown, and never sent again.
//!
//! A command is forwarded once: a node that gets it and does not lead says so, and forwards nothing.

use std::sync::Arc;
use std::time::Duration;

use openraft::type_config::TypeConfigExt;

use crate::machine::{Position, Stamp};
use crate::peer::{ForwardedV1, OrderedV1, PeerAnswerV1, PeerRequestV1};
use crate::planted::{self, Bug};
use crate::proposal::{Answer, Proposal};
use crate::raft::{AsyncRuntime, TypeConfig};
use crate::standing::{Followed, Standings};
use crate::transport::{Transport, TransportError};

/// What is kept of a command's time for the answer's way back, so that "not ordered" arrives and not nothing; at most
/// a quarter of it.
const MARGIN: Duration = Duration::from_millis(50);

/// See the module's head.
pub struct Forwarder<RT: AsyncRuntime> {
    /// The way to the leader.
    pub transport: Arc<dyn Transport>,
    /// Where it is.
    pub standings: Standings<RT>,
}

/// How long a command may wait for its turn at the leader when its submitter waits for `left`.
fn patience_ms(left: Duration) -> u32 {
    let patience = left.saturating_sub(MARGIN.min(left / 4));
    u32::try_from(patience.as_millis()).unwrap_or(u32::MAX)
}

/// The proposals' commands as they travel. Each has one: ticks are not forwarded.
fn request<RT: AsyncRuntime>(batch: &[Proposal<RT>]) -> PeerRequestV1 {
    let forwarded = batch.iter().filter_map(|proposal| {
        Some(ForwardedV1 {
            command: proposal.command.clone()?,
            reply_bytes: proposal.reply_bytes as u64,
            patience_ms: patience_ms(proposal.patience()),
        })
    });
    PeerRequestV1::Forward(forwarded.collect())
}

impl<RT: AsyncRuntime> Forwarder<RT> {
    /// Sends `batch`, which is handed off, to the leader and answers it. Returns what was surely not appended, in order.
    pub async fn forward(self: Arc<Self>, followed: Followed, batch: Vec<Proposal<RT>>) -> Vec<Proposal<RT>> {
        let Some(peer) = self.standings.peer(followed.leader) else { return take_back(batch) };
        let longest = batch.iter().map(Proposal::patience).max().unwrap_or_default();
        let called = self.transport.call(peer, request(&batch));
        match TypeConfig::<RT>::timeout(longest, called).await {
            Ok(Ok(PeerAnswerV1::Forward(outcomes))) if outcomes.len() == batch.len() => settle(batch, outcomes),
            Ok(Ok(PeerAnswerV1::NotLeader(_) | PeerAnswerV1::Refused(_)))
            | Ok(Err(TransportError::Unreachable { .. })) => take_back(batch),
            Ok(Err(TransportError::Broken { .. })) if planted::has(Bug::UnknownRetried) => take_back(batch),
            // Dropping a proposal that was handed off says that its outcome is unknown.
            Ok(Ok(_) | Err(TransportError::Broken { .. })) | Err(_) => Vec::new(),
        }
    }
}

fn take_back<RT: AsyncRuntime>(batch: Vec<Proposal<RT>>) -> Vec<Proposal<RT>> {
    batch.into_iter().filter_map(Proposal::take_back).collect()
}

fn settle<RT: AsyncRuntime>(batch: Vec<Proposal<RT>>, outcomes: Vec<OrderedV1>) -> Vec<Proposal<RT>> {
    let mut left = Vec::new();
    for (proposal, outcome) in batch.into_iter().zip(outcomes) {
        match outcome {
            OrderedV1::Applied { reply, index, ordinal, clock, term } => {
                let position = Position { index, ordinal };
                proposal.answer(Ok(Answer { reply, position, clock: Stamp(clock), term }));
            }
            OrderedV1::NotOrdered => left.extend(proposal.take_back()),
            OrderedV1::Refused(line) => proposal.answer(Err(line)),
            OrderedV1::Unknown => drop(proposal),
        }
    }
    left
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::codec::{self, Kind};

    #[test]
    fn the_bytes_of_a_refusal_never_change() {
        let bytes =
            codec::encode(Kind::PeerAnswer, 1, &PeerAnswerV1::Forward(vec![OrderedV1::Refused("no".to_owned())]));
        assert_eq!(bytes.unwrap(), [12, 1, 0, 4, 1, 3, 2, b'n', b'o'], "kind, version, variant, one, variant, text");
    }

    #[test]
    fn the_leader_gives_up_before_the_submitter_does() {
        for (left_ms, expected) in [(5_000, 4_950), (200, 150), (100, 75), (4, 3), (0, 0)] {
            assert_eq!(patience_ms(Duration::from_millis(left_ms)), expected, "{left_ms}");
        }
        assert_eq!(patience_ms(Duration::MAX), u32::MAX);
    }
}
