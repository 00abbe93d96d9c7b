//! A durable node on a data directory, alone or one of several: the real parts, put together.

use std::io;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::watch;

use crate::bootstrap::candidate::Away;
use crate::bootstrap::joining::{self, Joining};
use crate::cluster::{Cluster, EventSink, Node};
use crate::config::Config;
use crate::error::OpenError;
use crate::executor::Threads;
use crate::files::OsDisk;
use crate::host::{Host, Hosted};
use crate::identity::{DataDir, Founding};
use crate::log::{LogOptions, LogStore};
use crate::machine::StateMachine;
use crate::peer_config::{PeerConfig, Startup};
use crate::raft::TokioRuntime;
use crate::replica::{Mark, Replica};
use crate::snapshot::SledSnapshots;
use crate::start::Parts;
use crate::tcp::TcpPeers;
use crate::timekeeper::{WallClock, system_wall_clock};
use crate::transport::NoPeers;

impl<M: StateMachine> Cluster<M, TokioRuntime> {
    /// Opens (or founds) the node on its data directory and returns once it serves: for a single node, once it leads.
    ///
    /// # Errors
    /// [`OpenError`]; nothing was changed on disk unless the directory was new.
    pub async fn open(config: Config, events: EventSink<M::Event>) -> Result<Self, OpenError> {
        let replica = Arc::new(Replica::<M>::default());
        let host = Arc::new(Hosted::new(Arc::clone(&replica), events));
        Ok(Self::of(Arc::new(opened(config, host, replica.mark()).await?), replica))
    }
}

impl<M: StateMachine> Cluster<M, TokioRuntime> {
    /// Opens (or makes) a node of several on its data directory and returns once it takes part; no leader is waited for.
    /// Until then `startup` tells what it waits for. A node that was part of the cluster before waits for nobody.
    ///
    /// # Errors
    /// [`OpenError`]: a refusal names both sides; a directory that is refused was not changed.
    pub async fn open_among(
        config: Config,
        peers: PeerConfig,
        tcp: TcpPeers,
        startup: watch::Sender<Startup>,
        events: EventSink<M::Event>,
    ) -> Result<Self, OpenError> {
        let replica = Arc::new(Replica::<M>::default());
        let host = Arc::new(Hosted::new(Arc::clone(&replica), events));
        let node: OpenedAmong = Box::pin(open_among(config, peers, tcp, startup, host, replica.mark()));
        Ok(Self::of(node.await?, replica))
    }
}

type OpenedAmong = Pin<Box<dyn Future<Output = Result<Arc<Node<TokioRuntime>>, OpenError>> + Send>>;

/// What a node of several lets go of when it has stopped: its listener first, then its directory. The transport's
/// handler holds the transport and the directory, so it is taken out of the circle.
struct Kept {
    tcp: Arc<TcpPeers>,
    _dir: Arc<DataDir>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.tcp.handle(Arc::new(Away));
    }
}

fn random(bytes: &mut [u8]) -> io::Result<()> {
    getrandom::fill(bytes).map_err(|error| io::Error::other(error.to_string()))
}

async fn open_among(
    mut config: Config,
    peers: PeerConfig,
    tcp: TcpPeers,
    startup: watch::Sender<Startup>,
    host: Arc<dyn Host>,
    mark: watch::Receiver<Mark>,
) -> Result<Arc<Node<TokioRuntime>>, OpenError> {
    let Some(node_id) = config.node_id else {
        return Err(OpenError::Config("--peers needs --node-id: say which of them this node is".to_owned()));
    };
    joining::check(node_id, &peers)?;
    let wall = system_wall_clock();
    let founding = Founding { wall_ms: wall(), several: true, random: &mut random };
    let dir = Arc::new(DataDir::open(&config.data_dir, config.node_id, founding)?);
    let address = peers.advertise.clone().or_else(|| peers.peers.get(&node_id).cloned());
    config.member.peer = address.unwrap_or_else(|| tcp.address().to_string());
    config.member.incarnation = dir.identity().incarnation;
    let tcp = Arc::new(tcp);
    let keep = Kept { tcp: Arc::clone(&tcp), _dir: Arc::clone(&dir) };
    let joining = Joining {
        parts: parts(&config, &dir, wall, Box::new(keep))?,
        ledger: dir,
        reception: tcp,
        random: Box::new(random),
        startup,
    };
    joining.take_part::<TokioRuntime>(&config, &peers, host, mark).await
}

/// What a node stands on in its data directory. Its transport reaches nobody.
fn parts(
    config: &Config,
    dir: &Arc<DataDir>,
    wall: WallClock,
    keep: Box<dyn Send>,
) -> Result<Parts<LogStore<TokioRuntime>>, OpenError> {
    let identity = dir.identity();
    let remedy = identity.remedy();
    let snapshots = SledSnapshots::open(dir.snapshot_dir()).map_err(|error| error.at_opening(remedy))?;
    let (segment_bytes, must_exist) = (config.segment_bytes, dir.has_log());
    let options = LogOptions { segment_bytes, must_exist, remedy, ..LogOptions::default() };
    let disk = Arc::new(OsDisk::under(Arc::clone(dir) as _));
    let log = LogStore::open(disk, dir.log_dir(), options, Arc::clone(&config.observer))?;
    Ok(Parts {
        cluster_id: identity.cluster_id_hex(),
        node_id: identity.node_id,
        gauge: Arc::new(log.clone()),
        log,
        snapshots: Arc::new(snapshots),
        executor: Arc::new(Threads),
        wall,
        transport: NoPeers::shared(),
        peers: crate::bootstrap::Peers::new(),
        remedy,
        keep,
    })
}

/// [`open_node`] as a value: replication is so compiled here, once, and not again wherever a machine is named.
fn opened(config: Config, host: Arc<dyn Host>, mark: watch::Receiver<Mark>) -> Opened {
    Box::pin(open_node(config, host, mark))
}

type Opened = Pin<Box<dyn Future<Output = Result<Node<TokioRuntime>, OpenError>> + Send>>;

async fn open_node(
    mut config: Config,
    host: Arc<dyn Host>,
    mark: watch::Receiver<Mark>,
) -> Result<Node<TokioRuntime>, OpenError> {
    let wall = system_wall_clock();
    let founding = Founding { wall_ms: wall(), several: false, random: &mut random };
    let dir = Arc::new(DataDir::open(&config.data_dir, config.node_id, founding)?);
    let identity = dir.identity();
    config.member.incarnation = identity.incarnation;
    let mut parts = parts(&config, &dir, wall, Box::new(Arc::clone(&dir)))?;
    if identity.several && joining::is_blank(&mut parts.log).await? {
        let what = format!("belongs to {}, one of several: start it with --peers", identity.name());
        return Err(OpenError::Foreign { path: config.data_dir, what });
    }
    dir.note_log()?;
    let node = Node::start(&config, parts, host, mark).await?;
    node.lead_alone(&config).await?;
    Ok(node)
}
