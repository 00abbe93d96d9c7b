//! One node: the keyspace, replicated by the cluster, behind the HTTP face. Composition only.
//!
//! [`Node::start`] binds the port first, so that a second start on it touches no data, and returns once the node
//! serves: for a single node, once it leads. [`Node::run`] serves until it is told to stop, and then drains. A fault of
//! storage or replication ends it at once: after that the process must not go on with this node.
//!
//! Both give boxed futures, so that the machinery below is compiled once, here, and not in each program that awaits it.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tenure_cluster::raft::Member;
use tenure_cluster::{Cluster, Config, OpenError, StopReason};
use tokio::net::TcpListener;
use tracing::{info, warn};

use crate::api::Api;
use crate::api::metrics::Metrics;
use crate::api::server::{self, Limits};
use crate::config::NodeConfig;
use crate::events;
use crate::keyspace::Keyspace;

/// How long a request's head may take, and how long an idle connection is kept.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);
/// Beyond the request timeout, for answers to reach their sockets.
const DRAIN_MARGIN: Duration = Duration::from_secs(1);
/// File descriptors for everything but client connections.
const DESCRIPTORS_RESERVED: u64 = 256;

/// A node that has started.
pub struct Node {
    listener: TcpListener,
    address: SocketAddr,
    cluster: Cluster<Keyspace>,
    api: Api,
    metrics: Arc<Metrics>,
    limits: Limits,
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
    /// The system gives no thread or no address.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
    /// The data directory, or replication on it.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl Node {
    /// Starts a node.
    ///
    /// # Errors
    /// [`StartError`]; if the port cannot be bound, the data directory was not touched.
    pub fn start(config: NodeConfig) -> BoxFuture<'static, Result<Self, StartError>> {
        Box::pin(async move {
            let address = config.listen;
            let listener = server::bind(address).map_err(|source| StartError::Bind { address, source })?;
            Self::open(listener, config).await
        })
    }

    /// Starts a node on a listener that is already bound.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_on(listener: TcpListener, config: NodeConfig) -> BoxFuture<'static, Result<Self, StartError>> {
        Box::pin(Self::open(listener, config))
    }

    async fn open(listener: TcpListener, config: NodeConfig) -> Result<Self, StartError> {
        let address = listener.local_addr()?;
        let client = config.advertise.unwrap_or_else(|| address.to_string());
        if address.ip().is_unspecified() && client == address.to_string() {
            warn!(address = client, "clients on other hosts cannot be told this address: say --advertise HOST:PORT");
        }
        let metrics = Arc::new(Metrics::default());
        let cluster_config = Config {
            node_id: config.node_id,
            member: Member { client, ..Member::default() },
            request_timeout: config.request_timeout,
            election_timeout: config.election_timeout,
            observer: Arc::clone(&metrics) as _,
            ..Config::single(&config.data_dir)
        };
        let cluster = Cluster::open(cluster_config, events::sink(Arc::clone(&metrics))?).await?;
        let status = cluster.status();
        info!(
            %address,
            data = %config.data_dir.display(),
            cluster = status.cluster_id,
            node = status.node_id,
            version = env!("CARGO_PKG_VERSION"),
            "serving"
        );
        let limits = Limits {
            connections_max: allowed_connections(config.connections_max),
            head_timeout: HEAD_TIMEOUT,
            drain_timeout: config.request_timeout + DRAIN_MARGIN,
        };
        let api = Api::new(cluster.clone(), Arc::clone(&metrics), config.data_dir, config.request_timeout);
        Ok(Self { listener, address, cluster, api, metrics, limits })
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

    /// Serves until `shutdown`, answers what is in flight, and stops the node.
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
        let Self { listener, cluster, api, metrics, limits, .. } = self;
        let draining = async {
            shutdown.await;
            info!("draining");
            api.drain();
        };
        tokio::select! {
            reason = cluster.stopped() => return if reason == StopReason::Shutdown { Ok(()) } else { Err(reason) },
            () = server::serve(listener, api.router(), limits, metrics, draining) => {}
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
