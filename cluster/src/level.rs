//! The cluster's feature level: what its entries may need of every node that applies them.
//!
//! Level `n` means: every member reads a machine's formats up to `n` ([`StateMachine::FORMAT_VERSION`]), and what the
//! nodes say to each other as of that level. A command is ordered only at a level that has reached its format.
//!
//! It goes up only, one entry at a time, once every member's build supports more; and never because a member is away: a
//! node that comes back must be able to read what was written meanwhile. The rule is pure ([`raise`]); its shell
//! ([`Raiser`]) looks as soon as this node leads and then every [`LOOK_EVERY`], and ends when this build's level is reached.
//!
//! [`StateMachine::FORMAT_VERSION`]: crate::machine::StateMachine::FORMAT_VERSION

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::type_config::TypeConfigExt;
use tokio::sync::watch;

use crate::cluster::Node;
use crate::entry::{self, ControlV1};
use crate::raft::{AsyncRuntime, Batch, NodeId, Raft, TypeConfig};
use crate::replica::Mark;
use crate::standing::ServerWatch;
use crate::timekeeper::Timekeeper;
use crate::transport::{LinkState, Transport};

/// The highest feature level this build supports.
pub const FEATURE_LEVEL: u16 = 3;
/// The feature level that every cluster begins with.
pub const FIRST_FEATURE_LEVEL: u16 = 1;
/// From this level on every node knows [`OrderedV1::Refused`](crate::peer::OrderedV1::Refused).
pub const REFUSALS_SINCE: u16 = 2;

/// How often a leader looks whether every member supports more: a peer's first words have no event of their own.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The level to raise the cluster to, if it is time: `now` is its level, `own` what this build supports, `others` the
/// other members.
pub fn raise(
    now: u16,
    own: u16,
    others: impl IntoIterator<Item = NodeId>,
    links: &BTreeMap<NodeId, LinkState>,
) -> Option<u16> {
    // What a member said on an earlier connection proves nothing: an older build may have been started since.
    let of = |id: NodeId| {
        let link = links.get(&id).filter(|link| link.connected);
        link.and_then(|link| link.hello.as_ref()).map_or(0, |hello| hello.feature_level)
    };
    let least = others.into_iter().map(of).fold(own, u16::min);
    (least > now).then_some(least)
}

/// Raises the cluster's level while this node leads.
pub struct Raiser<RT: AsyncRuntime> {
    node: NodeId,
    own: u16,
    raft: Raft<RT>,
    server: ServerWatch<RT>,
    time: Arc<Timekeeper<RT>>,
    mark: watch::Receiver<Mark>,
    transport: Arc<dyn Transport>,
    request_timeout: Duration,
}

impl<RT: AsyncRuntime> Raiser<RT> {
    /// For `node`, whose build supports levels up to `own`.
    pub(crate) fn of(node: &Node<RT>, own: u16) -> Self {
        Self {
            node: node.node_id,
            own,
            raft: node.raft.clone(),
            server: node.raft.server_metrics(),
            time: Arc::clone(&node.time),
            mark: node.mark.clone(),
            transport: Arc::clone(&node.transport),
            request_timeout: node.request_timeout,
        }
    }

    /// Runs until the cluster has reached this build's level, which no build lowers.
    pub async fn run(mut self) {
        let mut leading = self.time.leading();
        loop {
            let led = tokio::select! { biased;
                // An error says that the node is gone.
                () = async { drop(self.mark.wait_for(|mark| mark.feature_level >= self.own).await) } => return,
                led = async { leading.wait_for(Option::is_some).await.is_ok() } => led,
            };
            if !led {
                return;
            }
            self.look().await;
            TypeConfig::<RT>::sleep(LOOK_EVERY).await;
        }
    }

    async fn look(&self) {
        let now = self.mark.borrow().feature_level;
        let others: Vec<NodeId> = {
            let server = self.server.borrow_watched();
            let members = server.committed_membership_config.membership().nodes();
            members.map(|(id, _)| *id).filter(|id| *id != self.node).collect()
        };
        let Some(level) = raise(now, self.own, others, &self.transport.links()) else { return };
        // It does not fail; and if it did, the next look would try again, as it does when nobody commits the entry.
        let Ok(order) = entry::encode_control(&ControlV1::RaiseFeatureLevel(level)) else { return };
        let write = self.raft.client_write(Batch(order));
        match TypeConfig::<RT>::timeout(self.request_timeout, write).await {
            Ok(Ok(_)) => tracing::info!("the cluster's feature level is {level} now"),
            Ok(Err(error)) => tracing::debug!("the feature level was not raised to {level}: {error}"),
            Err(_) => tracing::debug!("the feature level was not raised to {level} in time"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::bootstrap::sim_net::greeting;

    fn links(levels: &[(NodeId, u16, bool)]) -> BTreeMap<NodeId, LinkState> {
        let link = |id, feature_level, connected| {
            let hello = Some(crate::hello::HelloV1 { feature_level, ..greeting(id) });
            LinkState { connected, hello, trouble: None }
        };
        levels.iter().map(|(id, level, connected)| (*id, link(*id, *level, *connected))).collect()
    }

    #[test]
    fn the_level_follows_the_oldest_member_that_is_there() {
        let up = |own, levels: &[(NodeId, u16, bool)]| raise(1, own, [2, 3], &links(levels));
        assert_eq!(up(2, &[(2, 2, true), (3, 2, true)]), Some(2));
        assert_eq!(up(3, &[(2, 2, true), (3, 3, true)]), Some(2));
        assert_eq!(up(2, &[(2, 2, true), (3, 1, true)]), None, "an old build");
        assert_eq!(up(2, &[(2, 2, true), (3, 2, false)]), None, "a member that is away");
        assert_eq!(up(2, &[(2, 2, true)]), None, "a member that was never heard");
        assert_eq!(up(1, &[(2, 2, true), (3, 2, true)]), None, "this build itself");
        assert_eq!(raise(2, 1, [2], &links(&[(2, 1, true)])), None, "never lowered");
        assert_eq!(raise(1, 2, [], &links(&[])), Some(2), "alone");
    }
}
