//! Says once a second that this edge is there, while requests wait on it; and judges whether that is of any use.
//!
//! Proof of it is a PRESENCE that was ordered and that this node itself has applied: then the grants of that time have
//! been told here too. A node without such a proof for [`FORSAKEN_AFTER`] cannot answer for those who wait on it; their
//! places are given up by the machine, or will be. They are told to ask elsewhere.

use std::sync::Weak;
use std::time::Duration;

use tenure_cluster::raft::AsyncRuntime;
use tenure_cluster::time::{Instant, now, sleep};

use super::{Shared, Waitable};
use crate::keyspace::Command;

/// Between two words of presence. The machine forgets an edge after three of them.
const EVERY: Duration = Duration::from_secs(1);
/// Without a proof for so long, what waits here is ended.
const FORSAKEN_AFTER: Duration = Duration::from_secs(4);

/// What is known of this edge's standing.
struct Proof<RT: AsyncRuntime> {
    /// The machine knew this edge then, and what it did up to then was told here.
    proved: Instant<RT>,
    /// Ordered, and not yet applied here: when it was sent, and where it stands in the log.
    ordered: Option<(Instant<RT>, u64)>,
}

impl<RT: AsyncRuntime> Proof<RT> {
    fn at(now: Instant<RT>) -> Self {
        Self { proved: now, ordered: None }
    }

    /// A PRESENCE sent then stands at this index. The oldest that is not applied counts: one a second comes, and an
    /// applier that is behind would never reach the newest.
    fn ordered(&mut self, sent: Instant<RT>, index: u64) {
        self.ordered.get_or_insert((sent, index));
    }

    /// This node has applied up to `index`.
    fn applied(&mut self, index: u64) {
        if let Some((sent, _)) = self.ordered.take_if(|(_, ordered)| *ordered <= index) {
            self.proved = sent;
        }
    }
}

/// Says it for as long as the edge is there.
pub(super) async fn told<M: Waitable, RT: AsyncRuntime>(edge: Weak<Shared<M, RT>>) {
    let mut proof = None;
    let mut next = now::<RT>() + EVERY;
    loop {
        sleep::<RT>(next.max(now::<RT>()) - now::<RT>()).await;
        let Some(edge) = edge.upgrade() else { return };
        let sent = now::<RT>();
        next = sent + EVERY;
        if edge.requests.waiting() == 0 {
            proof = None;
            continue;
        }
        // From the first look that finds somebody: a node that stood still between two looks has not failed who came since.
        let proof = proof.get_or_insert_with(|| Proof::<RT>::at(sent));
        let presence = Command::Presence { edge: edge.id };
        if let Ok(applied) = edge.cluster.submit_within(presence, EVERY).await {
            proof.ordered(sent, applied.witness.position.index);
        }
        proof.applied(edge.cluster.read_stale(|_, _| ()).witness.position.index);
        if now::<RT>() - proof.proved >= FORSAKEN_AFTER {
            edge.requests.forsake();
            *proof = Proof::at(now::<RT>());
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure_cluster::raft::TokioRuntime;

    use super::*;

    #[test]
    fn the_oldest_word_that_is_not_applied_here_is_what_proves() {
        let begun = now::<TokioRuntime>();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut proof = Proof::<TokioRuntime>::at(begun);
        proof.ordered(at(1), 10);
        proof.ordered(at(2), 20);
        proof.applied(9);
        assert_eq!(proof.proved, begun, "ordered, and not applied here");
        proof.applied(10);
        assert_eq!(proof.proved, at(1), "when it was sent, not when it was seen");
        proof.applied(30);
        assert_eq!(proof.proved, at(1), "one word proves once");
        proof.ordered(at(3), 30);
        proof.applied(30);
        assert_eq!(proof.proved, at(3));
    }
}
