//! A node among others: its port for peers, its way into the cluster, and handing leadership over.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tenure_cluster::cluster::EventSink;
use tenure_cluster::tcp::TcpPeers;
use tenure_cluster::{Cluster, Config, NoTarget, OpenError, PeerConfig, Startup};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::keyspace::{Event, Keyspace};

/// How long a node that ends waits until another leads.
const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(5);

/// The bound port for peers.
pub struct PeerPort(TcpPeers);

impl PeerPort {
    /// Binds it, before any data is touched.
    pub fn bind(peers: &PeerConfig) -> io::Result<Self> {
        TcpPeers::bind(peers.listen, peers.secret.clone()).map(Self)
    }

    /// Where it listens, with the real port.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }
}

/// Opens the node on its data and returns once it takes part. What it waits for meanwhile is told to `startup`.
pub async fn open(
    config: Config,
    peers: Option<(PeerConfig, PeerPort)>,
    startup: watch::Sender<Startup>,
    events: EventSink<Event>,
) -> Result<Cluster<Keyspace>, OpenError> {
    match peers {
        None => {
            let opened = Cluster::open(config, events).await?;
            startup.send_replace(Startup::Started);
            Ok(opened)
        }
        Some((peers, port)) => Cluster::open_among(config, peers, port.0, startup, events).await,
    }
}

/// Lets another lead, if this node does and there is one to take over.
pub async fn hand_over(cluster: &Cluster<Keyspace>) {
    match tokio::time::timeout(HAND_OVER_TIMEOUT, cluster.hand_over(None)).await {
        Ok(Ok(to)) => info!(to, "handed leadership over"),
        // A follower, or a node alone: nobody misses it.
        Ok(Err(NoTarget::NotLeader | NoTarget::Alone)) => {}
        Ok(Err(error)) => warn!(%error, "leadership is not handed over: the others will elect"),
        Err(_) => warn!(timeout_ms = HAND_OVER_TIMEOUT.as_millis(), "leadership is not handed over in time"),
    }
}
