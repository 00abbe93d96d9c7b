//! Nodes of several on real directories, real sockets and the real runtime.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tenure_cluster::counter::{Command, Counter};
use tenure_cluster::raft::{Member, NodeId};
use tenure_cluster::tcp::TcpPeers;
use tenure_cluster::{Cluster, Config, OpenError, PeerConfig, ReplaceError, Role, Secret, Startup, SubmitError};
use tokio::sync::watch;

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Ports on which nodes listened once, let go of: they are told to others before they are bound.
struct Rig {
    dirs: BTreeMap<NodeId, TempDir>,
    addresses: BTreeMap<NodeId, SocketAddr>,
}

impl Rig {
    fn new(count: u64) -> Self {
        let dirs = (1..=count).map(|id| (id, tempfile::tempdir().unwrap())).collect();
        Self { dirs, addresses: addresses(count) }
    }

    fn path(&self, id: NodeId) -> &Path {
        self.dirs[&id].path()
    }

    fn config(&self, id: NodeId) -> Config {
        let mut config = Config::single(self.path(id));
        config.node_id = Some(id);
        config.member = Member { client: format!("client-{id}:1"), ..Member::default() };
        config.request_timeout = Duration::from_secs(20);
        config
    }

    fn peers(&self, id: NodeId) -> PeerConfig {
        PeerConfig {
            listen: self.addresses[&id],
            advertise: None,
            peers: self.addresses.iter().map(|(id, address)| (*id, address.to_string())).collect(),
            secret: Secret::new(*b"a secret of 24 bytes, ok").unwrap(),
            bootstrap_majority: false,
        }
    }

    async fn open(&self, id: NodeId) -> Result<Cluster<Counter>, OpenError> {
        let peers = self.peers(id);
        let tcp = bind(&peers).await;
        let startup = watch::Sender::new(Startup::default());
        let opened = Cluster::open_among(self.config(id), peers, tcp, startup, Arc::new(|_| {}));
        tokio::time::timeout(PATIENCE, opened).await.unwrap()
    }

    async fn open_all(&self) -> Vec<Cluster<Counter>> {
        let opened = futures_util::future::join_all(self.dirs.keys().map(|id| self.open(*id))).await;
        opened.into_iter().map(Result::unwrap).collect()
    }
}

/// Binds the port once whoever had it has let it go, which takes its runtime a moment.
async fn bind(peers: &PeerConfig) -> TcpPeers {
    let bound = async {
        loop {
            match TcpPeers::bind(peers.listen, peers.secret.clone()) {
                Ok(bound) => return bound,
                Err(error) if error.kind() == ErrorKind::AddrInUse => tokio::task::yield_now().await,
                Err(error) => panic!("{error}"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, bound).await.unwrap()
}

fn addresses(count: u64) -> BTreeMap<NodeId, SocketAddr> {
    let listeners: Vec<_> = (1..=count).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    (1..).zip(listeners.iter().map(|listener| listener.local_addr().unwrap())).collect()
}

/// Adds one, or two when a leader was lost over the first, and returns the sum.
async fn add(node: &Cluster<Counter>) -> u64 {
    let added = async {
        loop {
            match node.submit(Command::Add(1)).await {
                Ok(applied) => return applied.reply,
                Err(SubmitError::Unavailable(_) | SubmitError::OutcomeUnknown) => {}
                Err(error) => panic!("{error}"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, added).await.unwrap()
}

/// Replaces a voter, however often the leader changes meanwhile.
async fn replace(node: &Cluster<Counter>, lost: NodeId) {
    let replaced = async {
        while let Err(error) = node.replace(lost).await {
            assert!(matches!(error, ReplaceError::Unavailable(_)), "{error}");
        }
    };
    tokio::time::timeout(PATIENCE, replaced).await.unwrap();
}

async fn stop(nodes: Vec<Cluster<Counter>>) {
    for node in nodes {
        node.shutdown().await;
    }
}

fn refused(opened: Result<Cluster<Counter>, OpenError>) -> String {
    let Err(error) = opened else { panic!("it was opened") };
    let line = error.to_string();
    assert!(!line.contains('\n'), "{line}");
    line
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_are_founded_stopped_moved_and_wiped() {
    let mut rig = Rig::new(3);
    let nodes = rig.open_all().await;
    let cluster = nodes[0].cluster_id().to_owned();
    assert_eq!(cluster.len(), 32);
    let mut sum = 0;
    for node in &nodes {
        assert_eq!(node.cluster_id(), cluster);
        let added = add(node).await;
        assert!(added > sum, "{added} after {sum}");
        sum = added;
    }
    stop(nodes).await;

    // The same flags; then all on new ports.
    let nodes = rig.open_all().await;
    assert!(add(&nodes[2]).await > sum);
    stop(nodes).await;
    rig.addresses = addresses(3);
    let nodes = rig.open_all().await;
    assert!(add(&nodes[0]).await > sum + 1);
    let moved = || {
        let members = nodes[1].status().members;
        members.len() == 3 && members.iter().all(|(id, member)| member.peer == rig.addresses[id].to_string())
    };
    tokio::time::timeout(PATIENCE, async {
        while !moved() {
            add(&nodes[0]).await;
        }
    })
    .await
    .unwrap();

    nodes[2].shutdown().await;
    rig.dirs.insert(3, tempfile::tempdir().unwrap());
    let line = refused(rig.open(3).await);
    assert!(line.contains("tenure cluster replace 3") && line.contains(&cluster), "{line}");
    let sum = add(&nodes[0]).await;

    replace(&nodes[1], 3).await;
    let third = rig.open(3).await.unwrap();
    assert!(add(&third).await > sum);
    tokio::time::timeout(PATIENCE, async {
        while third.status().role == Role::Learner {
            add(&nodes[0]).await;
        }
    })
    .await
    .unwrap();
    // Its vote may still be on its way, for which both of the others are needed: so none of them is stopped first.
    assert!(add(&third).await > sum + 1);
    nodes[0].shutdown().await;
    nodes[1].shutdown().await;
    third.shutdown().await;
}

/// The files below `path`, with their bytes.
fn contents(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.insert(path.clone(), std::fs::read(&path).unwrap());
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_is_of_a_single_node_or_of_one_of_several() {
    let rig = Rig::new(2);
    let single = Cluster::<Counter>::open(rig.config(1), Arc::new(|_| {})).await.unwrap();
    let id = single.cluster_id().to_owned();
    single.shutdown().await;
    let before = contents(rig.path(1));
    let line = refused(rig.open(1).await);
    assert!(contents(rig.path(1)) == before, "a directory that is refused was changed");
    assert!(line.contains("single node 1 of cluster") && line.contains(&id) && line.contains("--peers 1="), "{line}");
    let single = Cluster::<Counter>::open(rig.config(1), Arc::new(|_| {})).await.unwrap();
    assert_eq!(add(&single).await, 1);
    single.shutdown().await;

    let mut rig = Rig::new(2);
    let waiting = tokio::time::timeout(Duration::from_millis(300), rig.open(1)).await;
    assert!(waiting.is_err(), "node 2 is not there");
    let line = refused(Cluster::<Counter>::open(rig.config(1), Arc::new(|_| {})).await);
    assert!(line.contains("not founded yet") && line.contains("--peers"), "{line}");
    stop(rig.open_all().await).await;
    let line = refused(Cluster::<Counter>::open(rig.config(2), Arc::new(|_| {})).await);
    assert!(line.contains("several") || line.contains("voters"), "{line}");

    let other = rig.dirs.remove(&1).unwrap();
    rig.dirs.insert(2, other);
    let line = refused(rig.open(2).await);
    assert!(line.contains("belongs to node 1 of cluster") && line.contains("not to node 2"), "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_in_the_list_is_a_cluster_too() {
    let rig = Rig::new(1);
    for sum in 1..=3 {
        let node = rig.open(1).await.unwrap();
        assert_eq!(add(&node).await, sum);
        node.shutdown().await;
    }
}
