//! Brings a node of several to take part and keeps it there: everything of this module, put together around one node.

use std::sync::Arc;

use openraft::storage::RaftLogStorage;
use tokio::sync::watch;

use super::attendance::Attendance;
use super::candidate::Candidate;
use super::hinted::Hinted;
use super::roll::Roll;
use super::run::{Bootstrap, Random};
use super::serving::Serving;
use super::{Ledger, Reception, hello, shown};
use crate::cluster::Node;
use crate::config::Config;
use crate::error::{OpenError, StopReason};
use crate::executor;
use crate::host::Host;
use crate::identity::Identity;
use crate::peer_config::{PeerConfig, Startup};
use crate::raft::{AsyncRuntime, NodeId, TypeConfig};
use crate::replica::Mark;
use crate::start::{Parts, run_until_stop};
use crate::transport::Transport;

/// Most nodes in `--peers`: more only make each commit slower.
const PEERS_MAX: usize = 9;

/// See the module's head.
pub struct Joining<L> {
    /// What the node stands on. Its transport is the one of `reception`.
    pub parts: Parts<L>,
    /// What it belongs to.
    pub ledger: Arc<dyn Ledger>,
    /// Its end of the transport.
    pub reception: Arc<dyn Reception>,
    /// For the cluster's id.
    pub random: Random,
    /// Told what is waited for.
    pub startup: watch::Sender<Startup>,
}

/// Does `peers` make sense for node `me`?
///
/// # Errors
/// [`OpenError::Config`].
pub fn check(me: NodeId, peers: &PeerConfig) -> Result<(), OpenError> {
    let list = || shown(peers.peers.clone());
    if !peers.peers.contains_key(&me) {
        let line = format!("--peers {} does not name this node, {me}: list every node, this one too", list());
        return Err(OpenError::Config(line));
    }
    if peers.peers.contains_key(&0) {
        return Err(OpenError::Config(format!("--peers {} names a node 0: ids start at 1", list())));
    }
    let count = peers.peers.len();
    if count > PEERS_MAX {
        return Err(OpenError::Config(format!("--peers names {count} nodes: at most {PEERS_MAX}")));
    }
    Ok(())
}

impl<L> Joining<L> {
    /// Returns once the node takes part: replication runs. No leader is waited for.
    ///
    /// # Errors
    /// [`OpenError`]; see [`Bootstrap::run`] and [`Node::start`].
    pub async fn take_part<RT: AsyncRuntime>(
        mut self,
        config: &Config,
        peers: &PeerConfig,
        host: Arc<dyn Host>,
        mark: watch::Receiver<Mark>,
    ) -> Result<Arc<Node<RT>>, OpenError>
    where
        L: RaftLogStorage<TypeConfig<RT>>,
    {
        check(self.parts.node_id, peers)?;
        let transport: Arc<dyn Transport> =
            Arc::new(Hinted { transport: self.reception.transport(), peers: peers.peers.clone() });
        let is_blank = is_blank::<RT, L>(&mut self.parts.log).await?;
        let found = self.ledger.identity();
        // Before anything is written.
        if !found.several && (is_blank || peers.peers.len() > 1) {
            return Err(alone(config, &found, peers));
        }
        let roll = Roll { me: self.parts.node_id, peers: peers.peers.clone(), majority: peers.bootstrap_majority };
        let executor = Arc::clone(&self.parts.executor);
        let bootstrap = Bootstrap {
            candidate: Candidate::new(Arc::clone(&self.ledger), roll, Arc::clone(&transport), Arc::clone(&executor)),
            reception: Arc::clone(&self.reception),
            member: config.member.clone(),
            feature_level: host.supports(),
            is_blank,
            random: self.random,
            wall: Arc::clone(&self.parts.wall),
            startup: self.startup.clone(),
        };
        let voters = bootstrap.run::<RT>().await?;
        let noting = Arc::clone(&self.ledger);
        let noted = executor::run(&executor, "note-log", move || noting.note_log()).await;
        noted.map_err(|error| OpenError::Raft(error.to_string()))??;

        let identity = self.ledger.identity();
        self.parts.cluster_id = identity.cluster_id_hex();
        self.parts.transport = Arc::clone(&transport);
        self.parts.peers = peers.peers.clone();
        self.reception.introduce(hello(&identity, &config.member, host.supports(), false));
        let node = Arc::new(Node::start(config, self.parts, host, mark).await?);
        // The only one of a list of one, now given a longer list.
        if peers.peers.len() > 1 && node.voters().await? == [node.node_id] {
            node.stop.stop(StopReason::Shutdown);
            node.stop.stopped().await;
            return Err(alone(config, &identity, peers));
        }
        self.reception.handle(Arc::new(Serving {
            node: Arc::downgrade(&node),
            ledger: self.ledger,
            peers: peers.peers.clone(),
            transport: Arc::clone(&transport),
            server: node.raft.server_metrics(),
        }));
        if let Some(voters) = voters {
            node.found(voters).await?;
        }
        attend(&node, config, transport);
        self.startup.send_replace(Startup::Started);
        Ok(node)
    }
}

/// Starts what keeps the node in touch.
fn attend<RT: AsyncRuntime>(node: &Node<RT>, config: &Config, transport: Arc<dyn Transport>) {
    let attendance = Attendance::<RT> {
        node: node.node_id,
        member: config.member.clone(),
        raft: node.raft.clone(),
        server: node.raft.server_metrics(),
        time: Arc::clone(&node.time),
        transport,
        stop: Arc::clone(&node.stop),
        request_timeout: config.request_timeout,
    };
    run_until_stop::<RT>(&node.stop, attendance.run());
}

/// Has nothing ever been written to the log, no vote either?
pub async fn is_blank<RT: AsyncRuntime, L: RaftLogStorage<TypeConfig<RT>>>(log: &mut L) -> Result<bool, OpenError> {
    let unreadable = |error: std::io::Error| OpenError::Raft(error.to_string());
    let state = log.get_log_state().await.map_err(unreadable)?;
    let vote = openraft::RaftLogReader::read_vote(&mut log.get_log_reader().await).await.map_err(unreadable)?;
    Ok(state.last_log_id.is_none() && state.last_purged_log_id.is_none() && vote.is_none())
}

/// The directory of a single node was given to one of several.
fn alone(config: &Config, identity: &Identity, peers: &PeerConfig) -> OpenError {
    let what = format!(
        "belongs to the single {}, and not to one of the cluster of --peers {}: start it without --peers, or choose an \
         empty --data",
        identity.name(),
        shown(peers.peers.clone())
    );
    OpenError::Foreign { path: config.data_dir.clone(), what }
}
