//! Brings a node of several to take part and keeps it there: everything of this module, put together around one node.

use std::sync::Arc;

use openraft::RaftState;
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
    /// This build's feature level.
    pub feature_level: u16,
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
    if count % 2 == 0 {
        tracing::warn!("--peers names {count} nodes: {} survive no more failures than {}", count, count - 1);
    }
    Ok(())
}

impl<L> Joining<L> {
    /// Returns once the node takes part: replication runs. No leader is waited for.
    ///
    /// # Errors
    /// [`OpenError`]; see [`Bootstrap::run`] and [`Node::start`].
    pub async fn take_part<RT: AsyncRuntime>(
        self,
        config: &Config,
        peers: &PeerConfig,
        host: Arc<dyn Host>,
        mark: watch::Receiver<Mark>,
    ) -> Result<Arc<Node<RT>>, OpenError>
    where
        L: RaftLogStorage<TypeConfig<RT>>,
    {
        let Self { mut parts, ledger, reception, random, startup, feature_level } = self;
        check(parts.node_id, peers)?;
        let is_blank = is_blank::<RT, L>(&mut parts.log).await?;
        let identity = ledger.identity();
        if !identity.several && is_blank {
            return Err(alone(config, &identity, peers));
        }
        let transport: Arc<dyn Transport> =
            Arc::new(Hinted { transport: reception.transport(), peers: peers.peers.clone() });
        let roll = Roll { me: parts.node_id, peers: peers.peers.clone(), majority: peers.bootstrap_majority };
        let executor = Arc::clone(&parts.executor);
        let bootstrap = Bootstrap {
            candidate: Candidate::new(Arc::clone(&ledger), roll, Arc::clone(&transport), Arc::clone(&executor)),
            reception: Arc::clone(&reception),
            member: config.member.clone(),
            feature_level,
            is_blank,
            random,
            wall: Arc::clone(&parts.wall),
            startup: startup.clone(),
        };
        let voters = bootstrap.run::<RT>().await?;
        let noting = Arc::clone(&ledger);
        let noted = executor::run(&executor, "note-log", move || noting.note_log()).await;
        noted.map_err(|error| OpenError::Raft(error.to_string()))??;

        let identity = ledger.identity();
        parts.cluster_id = identity.cluster_id_hex();
        parts.transport = Arc::clone(&transport);
        reception.introduce(hello(&identity, &config.member, feature_level, false));
        let feature_mark = mark.clone();
        let node = Arc::new(Node::start(config, parts, host, mark).await?);
        let server = node.raft.server_metrics();
        let voters_now = |state: &RaftState<TypeConfig<RT>>| {
            state.membership_state.effective().membership().voter_ids().collect::<Vec<NodeId>>()
        };
        let known = node.raft.with_raft_state(voters_now).await.map_err(|error| OpenError::Raft(error.to_string()))?;
        if known == [node.node_id] && peers.peers.len() > 1 {
            node.stop.stop(StopReason::Shutdown);
            node.stop.stopped().await;
            return Err(alone(config, &identity, peers));
        }
        reception.handle(Arc::new(Serving {
            node: Arc::downgrade(&node),
            ledger,
            peers: peers.peers.clone(),
            transport: Arc::clone(&transport),
            server: server.clone(),
        }));
        if let Some(voters) = voters {
            node.found(voters).await?;
        }
        let attendance = Attendance::<RT> {
            node: node.node_id,
            member: config.member.clone(),
            feature_level,
            raft: node.raft.clone(),
            server,
            time: Arc::clone(&node.time),
            mark: feature_mark,
            transport,
            stop: Arc::clone(&node.stop),
            request_timeout: config.request_timeout,
        };
        run_until_stop::<RT>(&node.stop, attendance.run());
        startup.send_replace(Startup::Started);
        Ok(node)
    }
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
