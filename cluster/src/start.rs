//! Puts a node together and starts it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use openraft::async_runtime::Select2;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::storage::RaftLogStorage;
use openraft::type_config::TypeConfigExt;
use openraft::{ChangeMembers, RaftState, RaftTypeConfig};
use tokio::sync::{mpsc, watch};

use crate::applier::Applier;
use crate::cluster::{Cluster, EventSink, Node};
use crate::compaction::Compactor;
use crate::config::Config;
use crate::crash::CrashWatch;
use crate::error::{OpenError, Remedy, StopReason};
use crate::executor::{self, Executor};
use crate::host::{Host, Hosted};
use crate::known::keep_known;
use crate::level::Raiser;
use crate::log_gauge::LogGauge;
use crate::machine::StateMachine;
use crate::network::{Members, Network};
use crate::proposal::{self, Proposal};
use crate::proposer::Proposer;
use crate::raft::{AsyncRuntime, Member, NodeId, Raft, TypeConfig};
use crate::raft_config;
use crate::reads::{self, Rounds, Waiting};
use crate::replica::{Mark, Replica};
use crate::snapshot::SnapshotStore;
use crate::snapshotter::{Latest, Surroundings};
use crate::standing::Standings;
use crate::stop::Stop;
use crate::supervisor::Supervisor;
use crate::tick::{Ticker, Wanted};
use crate::timekeeper::Timekeeper;
use crate::transfer::Transfer;
use crate::transport::Transport;
use crate::warnings::Warnings;

pub use crate::bootstrap::Peers;
pub use crate::timekeeper::WallClock;

/// The clock is looked at so many times in T.
const LOOKS_PER_LIMIT: u32 = 8;

/// What a node stands on.
pub struct Parts<L> {
    /// This cluster's id.
    pub cluster_id: String,
    /// This node's id.
    pub node_id: NodeId,
    /// The log.
    pub log: L,
    /// The same log, measured.
    pub gauge: Arc<dyn LogGauge>,
    /// Where snapshots are kept.
    pub snapshots: Arc<dyn SnapshotStore>,
    /// Where blocking work runs.
    pub executor: Arc<dyn Executor>,
    /// Wall time.
    pub wall: WallClock,
    /// The way to the peers.
    pub transport: Arc<dyn Transport>,
    /// Where members may be beside what the membership says: `--peers`. Empty for a node alone.
    pub peers: Peers,
    /// How to go on when the data is damaged.
    pub remedy: Remedy,
    /// What is let go of when the node has stopped: the lock on its data directory.
    pub keep: Box<dyn Send>,
}

impl<M: StateMachine, RT: AsyncRuntime> Cluster<M, RT> {
    /// Starts a node on `parts`. It founds nothing and waits for no leader.
    ///
    /// # Errors
    /// [`OpenError`] when its log or snapshot cannot be used, or `config` contradicts itself.
    pub async fn start<L>(config: &Config, parts: Parts<L>, events: EventSink<M::Event>) -> Result<Self, OpenError>
    where
        L: RaftLogStorage<TypeConfig<RT>>,
    {
        let replica = Arc::new(Replica::<M>::default());
        let host = Arc::new(Hosted::new(Arc::clone(&replica), events));
        let node = Node::start(config, parts, host, replica.mark()).await?;
        Ok(Self::of(Arc::new(node), replica))
    }

    /// Founds a cluster of `voters`, unless this node is a member of one. To be called on one node only, and only while
    /// all of them are empty.
    ///
    /// # Errors
    /// [`OpenError::Raft`] when replication refuses.
    pub async fn found(&self, voters: BTreeMap<NodeId, Member>) -> Result<(), OpenError> {
        self.node().found(voters).await
    }

    /// Makes the node the sole voter of a new cluster, unless it is a member of one, and waits until it leads.
    ///
    /// # Errors
    /// [`OpenError::Raft`] when the node stopped meanwhile.
    pub async fn lead_alone(&self, config: &Config) -> Result<(), OpenError> {
        self.node().lead_alone(config).await
    }
}

impl<RT: AsyncRuntime> Node<RT> {
    /// Starts a node that replicates `host`'s machine; `mark` tells how far that is.
    ///
    /// # Errors
    /// [`OpenError`] when its log or snapshot cannot be used, or `config` contradicts itself.
    pub(crate) async fn start<L>(
        config: &Config,
        parts: Parts<L>,
        host: Arc<dyn Host>,
        mark: watch::Receiver<Mark>,
    ) -> Result<Self, OpenError>
    where
        L: RaftLogStorage<TypeConfig<RT>>,
    {
        let Parts { cluster_id, node_id, mut log, gauge, snapshots, executor, wall, transport, peers, remedy, keep } =
            parts;
        let raft_config = Arc::new(raft_config::map(config, &cluster_id)?);
        let limit = raft_config::greatest_election_timeout(config);
        let stop = Arc::new(Stop::default());
        let latest = Arc::new(Latest::<RT>::default());
        let observer = Arc::clone(&config.observer);
        let around = Arc::new(Surroundings { snapshots, executor, observer, stop: Arc::clone(&stop) });
        let committed = log.read_committed().await.map_err(|error| OpenError::Raft(error.to_string()))?;
        host.committed_before(committed.map_or(0, |id| id.index));
        check_joint(&mut log, &around, config, remedy).await?;
        let applier = Applier { host: Arc::clone(&host), around: Arc::clone(&around), latest: Arc::clone(&latest) };
        let members = Members::<RT>::default();
        let network = Network {
            transport: Arc::clone(&transport),
            members: Arc::clone(&members),
            snapshots: Arc::clone(&around.snapshots),
            executor: Arc::clone(&around.executor),
        };
        let raft = Raft::<RT>::new(node_id, raft_config, network, log, applier)
            .await
            .map_err(|error| failed(&stop, &*gauge, &error.to_string()))?;
        // Set once: nobody else has this cell.
        let _ = members.set(raft.metrics());
        let time = Arc::new(Timekeeper::new(node_id, limit, raft.metrics(), wall));
        let standings = Standings::new(node_id, Arc::clone(&time), raft.server_metrics());
        let (intake, queue) = proposal::channel(config.queue_max);
        let (rounds, reads) = reads::channel();
        let node = Self {
            cluster_id,
            host,
            peers,
            node_id,
            raft,
            time,
            standings,
            transport,
            handing_over: watch::Sender::new(false),
            mark,
            freshness: Mutex::default(),
            intake,
            unfit: Warnings::default(),
            rounds,
            wanted: Arc::new(Wanted::default()),
            log: gauge,
            snapshots: latest,
            around,
            observer: Arc::clone(&config.observer),
            stop,
            request_timeout: config.request_timeout,
            limit,
        };
        node.start_tasks(config, queue, reads, keep);
        Ok(node)
    }

    pub(crate) async fn found(&self, voters: BTreeMap<NodeId, Member>) -> Result<(), OpenError> {
        if !self.raft.is_initialized().await.map_err(|error| refused(&error))? {
            self.raft.initialize(voters).await.map_err(|error| refused(&error))?;
        }
        Ok(())
    }

    /// The voters that this node knows of.
    pub(crate) async fn voters(&self) -> Result<Vec<NodeId>, OpenError> {
        let voters = |state: &RaftState<TypeConfig<RT>>| {
            state.membership_state.effective().membership().voter_ids().collect::<Vec<NodeId>>()
        };
        self.raft.with_raft_state(voters).await.map_err(|error| refused(&error))
    }

    pub(crate) async fn lead_alone(&self, config: &Config) -> Result<(), OpenError> {
        self.found([(self.node_id, config.member.clone())].into()).await?;
        let voters = self.voters().await?;
        if voters != [self.node_id] {
            return Err(refused(&format!(
                "its data is that of one of several (voters known: {voters:?}), not of a single node: start it with \
                 --peers"
            )));
        }
        let mut leading = self.time.leading();
        let led = async { drop(leading.wait_for(Option::is_some).await) };
        if let Select2::First(reason) = TypeConfig::<RT>::select2(self.stop.stopping(), led).await {
            return Err(refused(&reason));
        }
        let known = self.raft.server_metrics().borrow_watched().membership_config.clone();
        if known.get_node(&self.node_id) != Some(&config.member) {
            let moved = ChangeMembers::SetNodes([(self.node_id, config.member.clone())].into());
            self.raft.change_membership(moved, true).await.map_err(|error| refused(&error))?;
            // The answer may come before the metrics, which the node's status is read from.
            let mut metrics = self.raft.metrics();
            while metrics.borrow_and_update().membership_config.membership().get_node(&self.node_id)
                != Some(&config.member)
            {
                metrics.changed().await.map_err(|error| refused(&error))?;
            }
        }
        Ok(())
    }
}

impl<RT: AsyncRuntime> Node<RT> {
    /// Starts what runs beside the handles. Each task holds only what it needs: the node ends when its handles go.
    fn start_tasks(
        &self,
        config: &Config,
        queue: mpsc::UnboundedReceiver<Proposal<RT>>,
        reads: mpsc::Receiver<Waiting>,
        keep: Box<dyn Send>,
    ) {
        let proposer = Proposer::new(self, queue);
        let rounds = Rounds {
            raft: self.raft.clone(),
            time: Arc::clone(&self.time),
            standings: self.standings.clone(),
            transport: Arc::clone(&self.transport),
            timeout: self.limit,
        };
        let ticker = Ticker {
            time: Arc::clone(&self.time),
            intake: self.intake.clone(),
            mark: self.mark.clone(),
            wanted: Arc::clone(&self.wanted),
            request_timeout: self.request_timeout,
        };
        let compactor = Compactor {
            raft: self.raft.clone(),
            log: Arc::clone(&self.log),
            mark: self.mark.clone(),
            snapshot_log_bytes: config.snapshot_log_bytes,
            log_margin_bytes: config.log_margin_bytes,
        };
        let supervisor = Supervisor {
            node: self.node_id,
            raft: self.raft.clone(),
            time: Arc::clone(&self.time),
            mark: self.mark.clone(),
            log: Arc::clone(&self.log),
            executor: Arc::clone(&self.around.executor),
            stop: Arc::clone(&self.stop),
            observe_every: self.limit / LOOKS_PER_LIMIT,
            proposer: TypeConfig::<RT>::spawn(proposer.run()),
            keep,
        };
        let crash = CrashWatch {
            raft: self.raft.clone(),
            standings: self.standings.clone(),
            transport: Arc::clone(&self.transport),
        };
        run_until_stop::<RT>(&self.stop, keep_known(self.standings.clone(), Arc::clone(&self.transport)));
        run_until_stop::<RT>(&self.stop, Raiser::of(self, self.host.supports()).run());
        run_until_stop::<RT>(&self.stop, crash.run());
        run_until_stop::<RT>(&self.stop, Transfer::new(self).leave_full_disk(Arc::clone(&self.log)));
        run_until_stop::<RT>(&self.stop, rounds.run(reads));
        run_until_stop::<RT>(&self.stop, ticker.run());
        run_until_stop::<RT>(&self.stop, compactor.run());
        // Detached: it ends the node and then itself.
        drop(TypeConfig::<RT>::spawn(supervisor.run()));
    }
}

/// The log and the newest snapshot must meet: replication would otherwise begin with an empty machine.
async fn check_joint<C: RaftTypeConfig, L: RaftLogStorage<C>>(
    log: &mut L,
    around: &Arc<Surroundings>,
    config: &Config,
    remedy: Remedy,
) -> Result<(), OpenError> {
    let state = log.get_log_state().await.map_err(|error| OpenError::Raft(error.to_string()))?;
    let purged = state.last_purged_log_id.map_or(0, |id| id.index());
    let store = Arc::clone(&around.snapshots);
    let newest = executor::run(&around.executor, "snapshot-look", move || store.newest()).await;
    let newest =
        newest.map_err(|error| OpenError::Raft(error.to_string()))?.map_err(|error| error.at_opening(remedy))?;
    let reached = newest.map_or(0, |stored| stored.head.last.index);
    if reached >= purged {
        return Ok(());
    }
    let what = match reached {
        0 => format!("its log begins after entry {purged}, and the snapshot that goes before it is missing"),
        _ => format!("its log begins after entry {purged}, but its newest snapshot ends at entry {reached}"),
    };
    Err(OpenError::Damaged { path: config.data_dir.clone(), what, remedy })
}

fn refused(error: &dyn std::fmt::Display) -> OpenError {
    OpenError::Raft(error.to_string())
}

/// Why the node did not start: the fault that was noted first, else what replication says.
fn failed(stop: &Stop, log: &dyn LogGauge, what: &str) -> OpenError {
    OpenError::Raft(match (log.fault(), stop.reason()) {
        (Some(fault), _) => fault,
        (None, Some(StopReason::Storage(fault) | StopReason::Replication(fault) | StopReason::Refused(fault))) => fault,
        (None, _) => what.to_owned(),
    })
}

pub(crate) fn run_until_stop<RT: AsyncRuntime>(stop: &Arc<Stop>, task: impl Future<Output = ()> + Send + 'static) {
    let stop = Arc::clone(stop);
    // Detached: it ends with the node.
    drop(TypeConfig::<RT>::spawn(async move {
        TypeConfig::<RT>::select2(stop.stopping(), task).await;
    }));
}
