//! Is all well again? One leader that can commit, and every node with the same state.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_cluster::{Role, StateMachine};

use super::World;
use super::site::Node;
use crate::runtime;

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What all nodes have applied, and their states' bytes.
struct Together {
    applied: BTreeSet<u64>,
    states: BTreeSet<Vec<u8>>,
}

impl World {
    /// The leader, once it can commit.
    pub(super) fn leader(&self) -> Option<(u64, Node)> {
        self.nodes().into_iter().find(|(_, node)| {
            let status = node.status();
            status.role == Role::Leader && status.not_ready.is_none()
        })
    }

    /// Waits until every node that is not damaged has applied all that the leader has, and compares their states. A
    /// line for each thing that did not come to be `within` this time.
    pub async fn settle(&self, within: Duration) -> Vec<String> {
        let until_ns = runtime::now_ns() + u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
        loop {
            let why = match self.together() {
                Ok(together) if together.states.len() == 1 => return Vec::new(),
                Ok(together) => {
                    let detail = format!("nodes that applied {:?} have different states", together.applied);
                    self.0.ledger.violated("ReplicasAgree", detail);
                    return Vec::new();
                }
                Err(why) => why,
            };
            if runtime::now_ns() >= until_ns {
                return vec![format!("{why}, {} s after the end of all faults", within.as_secs())];
            }
            runtime::sleep(LOOK_EVERY).await;
        }
    }

    /// All nodes at one index, and what they hold there; or what is missing.
    fn together(&self) -> Result<Together, String> {
        let nodes = self.nodes();
        let whole = self.state().sites.values().filter(|site| !site.damaged).count();
        if nodes.len() < whole {
            return Err(format!("{} of {whole} nodes run", nodes.len()));
        }
        let Some((_, leader)) = self.leader() else { return Err("no node can commit".to_owned()) };
        let mut applied: BTreeSet<u64> = nodes.iter().map(|(_, node)| node.status().applied_index).collect();
        applied.insert(leader.status().last_index);
        if applied.len() > 1 {
            return Err(format!("the nodes do not come together: applied {applied:?}"));
        }
        let states = nodes.iter().map(|(_, node)| state(node)).collect();
        Ok(Together { applied, states })
    }
}

/// The machine's bytes.
fn state(node: &Node) -> Vec<u8> {
    let save = |machine: &crate::judge::Watched| {
        let mut bytes = Vec::new();
        machine.save(&mut bytes).unwrap();
        bytes
    };
    node.read_stale(|machine, _| save(machine)).value
}
