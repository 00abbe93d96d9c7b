//! A single durable node on a data directory: the real parts, put together.

use std::io;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::watch;

use crate::cluster::{Cluster, EventSink, Node};
use crate::config::Config;
use crate::error::OpenError;
use crate::executor::Threads;
use crate::files::OsDisk;
use crate::host::{Host, Hosted};
use crate::identity::{DataDir, Founding};
use crate::log::{LogOptions, LogStore};
use crate::machine::StateMachine;
use crate::raft::TokioRuntime;
use crate::replica::{Mark, Replica};
use crate::snapshot::SledSnapshots;
use crate::start::Parts;
use crate::timekeeper::system_wall_clock;
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
    let mut random = |bytes: &mut [u8]| getrandom::fill(bytes).map_err(|error| io::Error::other(error.to_string()));
    let founding = Founding { wall_ms: wall(), several: false, random: &mut random };
    let dir = Arc::new(DataDir::open(&config.data_dir, config.node_id, founding)?);
    let identity = dir.identity();
    config.member.incarnation = identity.incarnation;
    let snapshots = Arc::new(SledSnapshots::open(dir.snapshot_dir())?);
    let options =
        LogOptions { segment_bytes: config.segment_bytes, must_exist: dir.has_log(), ..LogOptions::default() };
    let disk = Arc::new(OsDisk::under(Arc::clone(&dir) as _));
    let log = LogStore::open(disk, dir.log_dir(), options, Arc::clone(&config.observer))?;
    dir.note_log()?;
    let parts = Parts {
        cluster_id: identity.cluster_id_hex(),
        node_id: identity.node_id,
        gauge: Arc::new(log.clone()),
        log,
        snapshots,
        executor: Arc::new(Threads),
        wall,
        transport: NoPeers::shared(),
        keep: Box::new(dir),
    };
    let node = Node::start(&config, parts, host, mark).await?;
    node.lead_alone(&config).await?;
    Ok(node)
}
