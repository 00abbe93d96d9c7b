//! Whole clusters in one process and in virtual time: nodes over a simulated transport that can be cut, delayed, made to
//! lose answers, and whose nodes can be killed. Every message goes through its encoded form.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod clock;
mod crash;
mod forwarding;
mod reads;
mod replication;
mod router;
mod transfer;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use openraft::AsyncRuntime;
use openraft::async_runtime::Instant;
use openraft::type_config::TypeConfigExt;
use openraft::type_config::alias::InstantOf;
use openraft_rt_sim::SimRuntime;
use tokio::sync::watch;

use crate::cluster::{Cluster, Role};
use crate::config::Config;
use crate::counter::Counter;
use crate::executor::Inline;
use crate::memory_log::MemoryLog;
use crate::raft::{Member, NodeId, TypeConfig};
use crate::snapshot::MemorySnapshots;
use crate::start::Parts;

pub type Rt = SimRuntime;
pub type C = TypeConfig<Rt>;
pub type Node = Cluster<Counter, Rt>;

pub const WALL_MS: u64 = 1_700_000_000_000;

/// Longer than any election takes.
const LEADER_WITHIN_MS: u64 = 60_000;

/// Decides what becomes of a message (from, to, what it is); answers are not asked for.
pub type Filter = Box<dyn Fn(NodeId, NodeId, &'static str) -> Fate + Send>;

/// What becomes of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Arrives,
    /// Surely not delivered, and the sender knows.
    Refused,
    /// The request arrives, its answer does not: the sender sees the connection break.
    AnswerLost,
}

/// One node and what outlives it.
pub struct Host {
    pub node: Option<Node>,
    pub log: MemoryLog<Rt>,
    snapshots: MemorySnapshots,
    /// Counts its starts; a message of an earlier life goes nowhere.
    life: watch::Sender<u64>,
    /// Whose processes it sees gone.
    pub gone: watch::Sender<BTreeSet<NodeId>>,
    /// Whom it was told to know.
    pub known: BTreeMap<NodeId, Member>,
    wall_ms: u64,
}

#[derive(Default)]
pub struct Net {
    pub hosts: BTreeMap<NodeId, Host>,
    /// Cut off from all others.
    pub cut: BTreeSet<NodeId>,
    /// Their links are said to be down, whatever arrives.
    pub unlinked: BTreeSet<NodeId>,
    pub filter: Option<Filter>,
    /// How much a link carries a second, if there is a limit.
    pub bytes_per_second: Option<u64>,
    pub snapshots_sent: usize,
    /// Requests delivered, by what they are.
    pub delivered: BTreeMap<&'static str, usize>,
}

/// A cluster. Clones are handles to the same.
#[derive(Clone)]
pub struct World {
    net: Arc<Mutex<Net>>,
    pub config: Config,
}

pub fn simulated<T>(seed: u64, test: impl Future<Output = T>) -> T {
    SimRuntime::with_seed(seed).block_on(test)
}

pub async fn sleep(ms: u64) {
    C::sleep(Duration::from_millis(ms)).await;
}

pub fn now() -> InstantOf<C> {
    C::now()
}

pub fn ms_since(then: InstantOf<C>) -> u64 {
    u64::try_from(C::now().saturating_duration_since(then).as_millis()).unwrap()
}

pub fn config() -> Config {
    let mut config = Config::single("unused");
    config.election_timeout = Duration::from_millis(300);
    config.snapshot_log_bytes = 50_000;
    config.log_margin_bytes = 10_000;
    config
}

impl World {
    /// `size` voters, started and founded.
    pub async fn of(size: NodeId) -> Self {
        Self::with(size, config()).await
    }

    pub async fn with(size: NodeId, config: Config) -> Self {
        Self::with_walls(size, config, |_| WALL_MS).await
    }

    /// `size` voters, each with a wall clock that stands at what `wall_ms` says of its id.
    pub async fn with_walls(size: NodeId, config: Config, wall_ms: impl Fn(NodeId) -> u64) -> Self {
        let world = Self { net: Arc::default(), config };
        for id in 1..=size {
            let host = Host {
                node: None,
                log: MemoryLog::default(),
                snapshots: MemorySnapshots::default(),
                life: watch::Sender::new(0),
                gone: watch::Sender::default(),
                known: BTreeMap::new(),
                wall_ms: wall_ms(id),
            };
            world.net().hosts.insert(id, host);
        }
        for id in 1..=size {
            world.start(id).await;
        }
        let voters = (1..=size).map(|id| (id, member(id))).collect();
        world.node(1).found(voters).await.unwrap();
        world
    }

    pub fn net(&self) -> MutexGuard<'_, Net> {
        self.net.lock().unwrap()
    }

    /// Starts a node on what is stored.
    pub async fn start(&self, id: NodeId) {
        let (log, snapshots, life, wall_ms) = {
            let mut net = self.net();
            for host in net.hosts.values() {
                host.gone.send_if_modified(|gone| gone.remove(&id));
            }
            let host = net.hosts.get_mut(&id).unwrap();
            host.life.send_modify(|life| *life += 1);
            let life = *host.life.borrow();
            (host.log.clone(), host.snapshots.clone(), life, host.wall_ms)
        };
        let parts = Parts {
            cluster_id: "0".repeat(32),
            node_id: id,
            gauge: Arc::new(log.clone()),
            log,
            snapshots: Arc::new(snapshots),
            executor: Arc::new(Inline),
            wall: Arc::new(move || wall_ms),
            transport: Arc::new(router::Router::new(id, life, Arc::clone(&self.net))),
            peers: BTreeMap::new(),
            remedy: crate::Remedy::default(),
            keep: Box::new(()),
        };
        let node = Cluster::start(&self.config, parts, Arc::new(|_| {})).await.unwrap();
        self.net().hosts.get_mut(&id).unwrap().node = Some(node);
    }

    /// Ends a node's process at this instant: what it still says goes nowhere, and those that reach its host see it.
    pub fn kill(&self, id: NodeId) {
        let dead = {
            let mut net = self.net();
            let host = net.hosts.get_mut(&id).unwrap();
            host.log = host.log.crash();
            host.life.send_modify(|life| *life += 1);
            let dead = host.node.take();
            let cut = net.cut.clone();
            for (other, host) in net.hosts.iter().filter(|(other, _)| **other != id) {
                if !cut.contains(other) && !cut.contains(&id) {
                    host.gone.send_if_modified(|gone| gone.insert(id));
                }
            }
            dead
        };
        drop(dead);
    }

    /// Has `id` see (or no longer see) the process of `other` gone.
    pub fn set_gone(&self, id: NodeId, other: NodeId, is_gone: bool) {
        let gone = &self.net().hosts[&id].gone;
        gone.send_if_modified(|gone| if is_gone { gone.insert(other) } else { gone.remove(&other) });
    }

    /// The node `id`, which lives.
    pub fn node(&self, id: NodeId) -> Node {
        self.net().hosts[&id].node.clone().unwrap()
    }

    /// The nodes that live.
    pub fn nodes(&self) -> Vec<(NodeId, Node)> {
        self.net().hosts.iter().filter_map(|(id, host)| Some((*id, host.node.clone()?))).collect()
    }

    /// The leader among the nodes that are not cut off, once it can commit.
    pub async fn leader(&self) -> (NodeId, Node) {
        let before = now();
        loop {
            assert!(ms_since(before) < LEADER_WITHIN_MS, "no node can commit");
            let cut = self.net().cut.clone();
            let ready = self.nodes().into_iter().filter(|(id, _)| !cut.contains(id)).find(|(_, node)| {
                let status = node.status();
                status.role == Role::Leader && status.not_ready.is_none()
            });
            if let Some(ready) = ready {
                return ready;
            }
            sleep(5).await;
        }
    }

    /// A node that lives, is not cut off, and follows.
    pub async fn follower(&self) -> (NodeId, Node) {
        let (leader, _) = self.leader().await;
        let cut = self.net().cut.clone();
        self.nodes().into_iter().find(|(id, _)| *id != leader && !cut.contains(id)).unwrap()
    }

    /// Waits until all nodes that live have applied the same, and returns the sum.
    pub async fn settled(&self) -> u64 {
        let before = now();
        loop {
            assert!(ms_since(before) < LEADER_WITHIN_MS, "the nodes do not come together");
            let leader = self.leader().await.1;
            let applied: BTreeSet<u64> = self.nodes().iter().map(|(_, node)| node.status().applied_index).collect();
            if applied == [leader.status().last_index].into() {
                let states: BTreeSet<Vec<u8>> = self.nodes().iter().map(|(_, node)| state(node)).collect();
                assert_eq!(states.len(), 1, "equal logs give equal states");
                return leader.read_stale(|counter, at| counter.sum(at)).value.unwrap();
            }
            sleep(20).await;
        }
    }
}

/// The machine's bytes.
pub fn state(node: &Node) -> Vec<u8> {
    use crate::machine::StateMachine;
    node.read_stale(|counter, _| {
        let mut bytes = Vec::new();
        counter.save(&mut bytes).unwrap();
        bytes
    })
    .value
}

pub fn member(id: NodeId) -> Member {
    Member { peer: format!("peer-{id}"), ..Member::default() }
}
