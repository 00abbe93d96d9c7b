//! One node: the keyspace, replicated by the cluster, behind the HTTP face. Composition only.
//!
//! Its life: [`Node::bind`] takes the ports, so that a second start on them touches no data, and answers `/livez` from
//! then on; [`Bound::open`] reads the data and returns once the node takes part: a single node, once it leads; one of
//! several, once replication runs, for which it may have to wait for its peers; [`Node::run`] serves until it is told to
//! stop, hands leadership over, and drains. A fault of storage or replication ends it at once: after that the process
//! must not go on with this node. A node that is dropped stops.
//!
//! All give boxed futures, so that the machinery below is compiled once, here, and not in each program that awaits it.

mod among;
mod readiness;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tenure_cluster::raft::Member;
use tenure_cluster::{Cluster, Config, OpenError, Startup, StopReason};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use self::among::PeerPort;
use crate::api::face::Face;
use crate::api::metrics::Metrics;
use crate::api::server::{self, Limits};
use crate::api::starting::Starting;
use crate::api::{Api, WATCHERS_MAX};
use crate::config::NodeConfig;
use crate::edge::history::History;
use crate::edge::{Edge, Requests, WAITING_MAX};
use crate::events::{self, Ears};
use crate::keyspace::{EdgeId, Keyspace};

/// How long a request's head may take, and how long an idle connection is kept.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);
/// Beyond the request timeout, for answers to reach their sockets.
const DRAIN_MARGIN: Duration = Duration::from_secs(1);
/// File descriptors for everything but client connections.
const DESCRIPTORS_RESERVED: u64 = 256;

/// A node that takes part.
pub struct Node {
    address: SocketAddr,
    cluster: Cluster<Keyspace>,
    edge: Open,
    face: Face,
    api: Api,
    serving: Serving,
}

/// The edge of a node that is there, and who watches: neither requests that wait nor watches keep one that is dropped.
struct Open(Edge<Keyspace>, Arc<History>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.leave();
        self.1.leave();
    }
}

/// A node whose ports are bound, and which serves what can be said before its data is read.
pub struct Bound {
    config: NodeConfig,
    address: SocketAddr,
    peer_port: Option<PeerPort>,
    startup: watch::Sender<Startup>,
    starting: Starting,
    face: Face,
    metrics: Arc<Metrics>,
    /// Those who wait (three quarters) and those who watch (an eighth) leave room for those who hold.
    connections_max: usize,
    serving: Serving,
}

/// The serving task.
struct Serving {
    task: JoinHandle<()>,
    /// Dropped, it drains.
    _until: oneshot::Sender<Infallible>,
}

impl Serving {
    fn start(listener: TcpListener, face: Face, limits: Limits, metrics: Arc<Metrics>) -> Self {
        let (_until, dropped) = oneshot::channel();
        let drain = async {
            let _ = dropped.await;
        };
        Self { task: tokio::spawn(server::serve(listener, face, limits, metrics, drain)), _until }
    }

    /// Answers what is in flight.
    async fn drain(self) {
        drop(self._until);
        // It neither panics nor is it aborted.
        let _ = self.task.await;
    }
}

/// A node did not start. Each text is one line that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The port cannot be bound.
    #[error("cannot listen on {address}: {source}; stop what uses it, or choose another --listen")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The port for peers cannot be bound.
    #[error("cannot listen for peers on {address}: {source}; stop what uses it, or choose another --peer-listen")]
    BindPeers {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The system gives no thread or no address.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
    /// The data directory, or replication on it.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl Bound {
    fn new(listener: TcpListener, config: NodeConfig) -> Result<Self, StartError> {
        let address = listener.local_addr()?;
        let bind_peers = |peers| {
            let address = config.peers.as_ref().map_or(address, |peers| peers.listen);
            PeerPort::bind(peers).map_err(|source| StartError::BindPeers { address, source })
        };
        let peer_port = config.peers.as_ref().map(bind_peers).transpose()?;
        let (startup, watched) = watch::channel(Startup::Opening);
        let peers = config.peers.as_ref().map(|peers| peers.peers.clone()).unwrap_or_default();
        let starting = Starting::new(watched, config.node_id, peers, config.data_dir.clone());
        let face = Face::new(starting.router());
        let metrics = Arc::new(Metrics::default());
        let connections_max = allowed_connections(config.connections_max);
        let limits = Limits {
            connections_max,
            head_timeout: HEAD_TIMEOUT,
            drain_timeout: config.request_timeout + DRAIN_MARGIN,
        };
        let serving = Serving::start(listener, face.clone(), limits, Arc::clone(&metrics));
        Ok(Self { config, address, peer_port, startup, starting, face, metrics, connections_max, serving })
    }

    /// Where it listens, with the real port.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Follows what it waits for.
    #[must_use]
    pub fn starting(&self) -> Starting {
        self.starting.clone()
    }

    /// Reads the data and takes part.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn open(self) -> BoxFuture<'static, Result<Node, StartError>> {
        Box::pin(self.take_part())
    }

    async fn take_part(self) -> Result<Node, StartError> {
        let Self { config, address, peer_port, startup, face, metrics, connections_max, serving, .. } = self;
        let client = config.advertise.unwrap_or_else(|| address.to_string());
        if address.ip().is_unspecified() && client == address.to_string() {
            warn!(address = client, "clients on other hosts cannot be told this address: say --advertise HOST:PORT");
        }
        let peers = config.peers.zip(peer_port);
        let peer = match &peers {
            None => String::new(),
            Some((peers, port)) => {
                let listed = || config.node_id.and_then(|id| peers.peers.get(&id)).cloned();
                let told = peers.advertise.clone().or_else(listed);
                told.unwrap_or_else(|| port.address().to_string())
            }
        };
        let cluster_config = Config {
            node_id: config.node_id,
            member: Member { client, peer, ..Member::default() },
            request_timeout: config.request_timeout,
            election_timeout: config.election_timeout,
            observer: Arc::clone(&metrics) as _,
            ..Config::single(&config.data_dir)
        };
        let requests = Arc::new(Requests::with_max(WAITING_MAX.min(connections_max / 4 * 3)));
        let history = Arc::<History>::default();
        let (to_requests, to_history) = (Arc::clone(&requests), Arc::clone(&history));
        let ears = Ears { metrics: Arc::clone(&metrics), requests: to_requests, history: to_history };
        let events = events::sink(ears)?;
        let cluster = off_the_workers(among::open(cluster_config, peers, startup, events)).await??;
        let data = config.data_dir.clone();
        let id = EdgeId { node: cluster.status().node_id, incarnation: incarnation()? };
        let edge = Edge::new(id, cluster.clone(), requests);
        let open = Open(edge.clone(), Arc::clone(&history));
        let (data_dir, timeout) = (config.data_dir, config.request_timeout);
        let watchers_max = WATCHERS_MAX.min(connections_max / 8);
        let api = Api::new(cluster.clone(), edge, history, metrics, data_dir, timeout, watchers_max);
        face.serve(api.router());
        let status = cluster.status();
        info!(
            %address,
            data = %data.display(),
            cluster = status.cluster_id,
            node = status.node_id,
            version = env!("CARGO_PKG_VERSION"),
            "serving"
        );
        Ok(Node { address, cluster, edge: open, face, api, serving })
    }
}

/// Which of its lives the process is in: drawn anew at each start, never 0.
fn incarnation() -> io::Result<u64> {
    getrandom::u64().map(|drawn| drawn.max(1)).map_err(|error| io::Error::other(error.to_string()))
}

/// Reading a log holds its thread for seconds: on one of the runtime's own, probes would go unanswered meanwhile. Ends
/// with the future that is given, or as soon as nobody waits for it.
async fn off_the_workers<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> io::Result<T> {
    let (_wanted, unwanted) = oneshot::channel::<Infallible>();
    let runtime = Handle::current();
    let until_unwanted = async {
        tokio::select! {
            done = future => Some(done),
            _ = unwanted => None,
        }
    };
    let done = tokio::task::spawn_blocking(move || runtime.block_on(until_unwanted)).await;
    done.ok().flatten().ok_or_else(|| io::Error::other("the thread that opens the data ended"))
}

impl Node {
    /// Takes the ports of a node. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`StartError`]; no data was touched.
    pub fn bind(config: NodeConfig) -> Result<Bound, StartError> {
        let address = config.listen;
        let listener = server::bind(address).map_err(|source| StartError::Bind { address, source })?;
        Bound::new(listener, config)
    }

    /// Starts a node.
    ///
    /// # Errors
    /// [`StartError`]; if a port cannot be bound, the data directory was not touched.
    pub fn start(config: NodeConfig) -> BoxFuture<'static, Result<Self, StartError>> {
        Box::pin(async move { Self::bind(config)?.take_part().await })
    }

    /// Starts a node on a listener that is already bound.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_on(listener: TcpListener, config: NodeConfig) -> BoxFuture<'static, Result<Self, StartError>> {
        Box::pin(async move { Bound::new(listener, config)?.take_part().await })
    }

    /// Where it listens, with the real port.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The in-process API: submit commands and read without HTTP.
    #[must_use]
    pub const fn cluster(&self) -> &Cluster<Keyspace> {
        &self.cluster
    }

    /// Waiting in line without HTTP.
    #[must_use]
    pub const fn edge(&self) -> &Edge<Keyspace> {
        &self.edge.0
    }

    /// Serves until `shutdown`, hands leadership over, answers what is in flight, and stops the node.
    ///
    /// # Errors
    /// [`StopReason`] when the node stopped by a fault: the process must exit.
    pub fn run(
        self,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> BoxFuture<'static, Result<(), StopReason>> {
        Box::pin(self.serve(Box::pin(shutdown)))
    }

    async fn serve(self, shutdown: BoxFuture<'static, ()>) -> Result<(), StopReason> {
        let Self { cluster, edge, face, api, serving, .. } = self;
        let drained = async {
            shutdown.await;
            info!("draining");
            api.drain();
            // While clients are still answered: they then wait for the next leader, and not for an election.
            among::hand_over(&cluster).await;
            // Whoever waits in line is sent to another node now: with the answer its connection ends.
            face.leave();
            edge.0.leave();
            serving.drain().await;
            edge.0.left(DRAIN_MARGIN).await;
        };
        tokio::select! {
            reason = cluster.stopped() => return if reason == StopReason::Shutdown { Ok(()) } else { Err(reason) },
            () = drained => {}
            never = readiness::tell(&cluster) => match never {},
        }
        cluster.shutdown().await;
        info!("stopped");
        Ok(())
    }
}

/// Raises the process's limit of file descriptors as far as it goes, and keeps connections below it.
fn allowed_connections(wanted: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted_descriptors = u64::try_from(wanted).unwrap_or(u64::MAX).saturating_add(DESCRIPTORS_RESERVED);
    let raised = maximum.unwrap_or(u64::MAX).min(wanted_descriptors);
    let Some(current) = current else { return wanted };
    let limit = if current >= raised || setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum }).is_err()
    {
        current
    } else {
        raised
    };
    let allowed = usize::try_from(limit.saturating_sub(DESCRIPTORS_RESERVED)).unwrap_or(usize::MAX).clamp(1, wanted);
    if allowed < wanted {
        warn!(allowed, wanted, "the limit on open files allows fewer connections: raise it (ulimit -n)");
    }
    allowed
}
