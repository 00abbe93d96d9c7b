//! Tells the machine of edges that are gone for sure, so that nobody waits behind them for the time in which their silence
//! would show it. Every node knows that its own former lives are over; the leader speaks for all others, whose processes
//! its transport saw end.
//!
//! It is looked at whenever a process comes or goes and whenever this node begins to lead, and each second beside that:
//! a command may get lost, and who waits where may be applied only later.

use std::collections::BTreeSet;
use std::sync::Weak;
use std::time::Duration;

use tenure_cluster::Leadership;
use tenure_cluster::raft::{AsyncRuntime, NodeId};
use tenure_cluster::time::sleep;
use tokio::sync::watch;

use super::{Shared, Waitable};
use crate::keyspace::{Command, EdgeId};

const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Tells it for as long as the edge is there.
pub(super) async fn told<M: Waitable, RT: AsyncRuntime>(
    edge: Weak<Shared<M, RT>>,
    mut gone: watch::Receiver<BTreeSet<NodeId>>,
    leadership: Leadership<RT>,
) {
    let nobody = BTreeSet::new();
    loop {
        let leads = leadership.leads();
        let absent = gone.borrow_and_update().clone();
        {
            let Some(edge) = edge.upgrade() else { return };
            edge.tell_of(if leads { &absent } else { &nobody }).await;
        }
        tokio::select! { biased;
            () = leadership.changed(leads) => {}
            Ok(()) = gone.changed() => {}
            () = sleep::<RT>(LOOK_EVERY) => {}
        }
    }
}

impl<M: Waitable, RT: AsyncRuntime> Shared<M, RT> {
    async fn tell_of(&self, absent: &BTreeSet<NodeId>) {
        let is_gone = |edge: &EdgeId| {
            let former_life = edge.node == self.id.node && *edge != self.id;
            former_life || (absent.contains(&edge.node) && edge.node != self.id.node)
        };
        let edges: Vec<EdgeId> =
            self.cluster.read_stale(|machine, _| machine.as_ref().edges().filter(is_gone).collect()).value;
        for edge in edges {
            // What is not ordered now is seen at the next look.
            let _ = self.cluster.submit_within(Command::Away { edge }, LOOK_EVERY).await;
        }
    }
}
