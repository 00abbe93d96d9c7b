//! Nodes as child processes: `tenure serve`, each in a process group of its own (a terminal's Ctrl-C is for CMD alone),
//! with a stdin that ends with us.
//!
//! Nodes of several must know each other's ports before any of them runs. Free ones are found by binding them and letting
//! go; if somebody takes one in between, that node says so and all start again on others.

use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures_util::future::{join_all, try_join_all};
use tenure_client::{Client, HostClock, Options, Uri};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::directory::{Directory, Home};

/// How long a node may take until it serves, and then the cluster until it can commit.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a killed node may take to be gone.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// How often ports are looked for.
const PORTS_TRIES: usize = 5;
/// Between two questions whether a node is ready.
const READY_PAUSE: Duration = Duration::from_millis(20);
/// Between two starts on a port that is taken.
const TAKEN_PAUSE: Duration = Duration::from_millis(250);
/// How a node says that a port is taken, and that one for peers is.
const PORT_TAKEN: &str = "cannot listen";
const PEER_PORT_TAKEN: &str = "cannot listen for peers";
const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// All nodes, by id from 1.
pub struct Nodes(Vec<Node>);

impl Nodes {
    /// Starts `count` nodes and waits until they can commit.
    pub async fn start(count: usize, directory: &Directory) -> Result<Self> {
        let mut tries = 0;
        loop {
            tries += 1;
            let mut nodes = Self(spawn(count, directory)?);
            match nodes.serving().await {
                Ok(()) => return Ok(nodes),
                Err(error) if tries < PORTS_TRIES && format!("{error:#}").contains(PEER_PORT_TAKEN) => {
                    nodes.end().await;
                    for node in &nodes.0 {
                        node.home.clear()?;
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn serving(&mut self) -> Result<()> {
        try_join_all(self.0.iter_mut().map(Node::serving)).await?;
        let ready = join_all(self.0.iter().map(|node| ready(node.address)));
        match tokio::time::timeout(START_TIMEOUT, ready).await {
            Ok(_) => Ok(()),
            Err(_) => {
                let said = self.joined("; ", |node| format!("node {}: {}", node.id, node.home.last_line()));
                bail!("the nodes serve and cannot commit after {} s: {said}", START_TIMEOUT.as_secs())
            }
        }
    }

    /// Starts node `id`, which has ended, once more; its new pid.
    pub async fn restart(&mut self, id: usize) -> Result<u32> {
        let node = id.checked_sub(1).and_then(|at| self.0.get_mut(at));
        let node = node.with_context(|| format!("there is no node {id}"))?;
        if tokio::time::timeout(END_TIMEOUT, node.process.child.wait()).await.is_err() {
            bail!("node {id} is running; kill it first");
        }
        let until = Instant::now() + START_TIMEOUT;
        loop {
            node.process = Process::spawn(&node.home, node.address, &node.arguments)?;
            match node.serving().await {
                Ok(()) => return Ok(node.process.pid),
                // The system may have given its ports to connections that go out: they have them for a moment.
                Err(error) if Instant::now() < until && format!("{error:#}").contains(PORT_TAKEN) => {
                    tokio::time::sleep(TAKEN_PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Kills all nodes and waits until they are gone.
    pub async fn end(&mut self) {
        for node in &mut self.0 {
            // It may have ended by itself.
            let _ = node.process.child.kill().await;
        }
    }

    /// How many.
    pub const fn count(&self) -> usize {
        self.0.len()
    }

    /// `tenure://` with all addresses.
    pub fn uri(&self) -> String {
        format!("tenure://{}", self.joined(",", |node| node.address.to_string()))
    }

    /// Their pids in order, with spaces between.
    pub fn pids(&self) -> String {
        self.joined(" ", |node| node.process.pid.to_string())
    }

    /// The first node's address.
    pub fn first_address(&self) -> String {
        self.0.first().map(|node| node.address.to_string()).unwrap_or_default()
    }

    fn joined(&self, between: &str, text: impl Fn(&Node) -> String) -> String {
        self.0.iter().map(text).collect::<Vec<_>>().join(between)
    }
}

/// All nodes' processes.
fn spawn(count: usize, directory: &Directory) -> Result<Vec<Node>> {
    let peers = match count {
        1 => None,
        _ => Some(free_ports(count)?),
    };
    let all = peers.iter().flatten().zip(1..).map(|(address, id)| format!("{id}={address}")).collect::<Vec<_>>();
    let mut nodes = Vec::new();
    for id in 1..=count {
        let home = directory.home(id)?;
        let mut arguments = Vec::<OsString>::new();
        if let Some(own) = peers.as_ref().and_then(|peers| peers.get(id - 1)) {
            arguments.extend(["--node-id".into(), id.to_string().into()]);
            arguments.extend(["--peers".into(), all.join(",").into()]);
            arguments.extend(["--peer-listen".into(), own.to_string().into()]);
            arguments.extend(["--cluster-secret-file".into(), directory.secret()?.into()]);
        }
        let process = Process::spawn(&home, ANY_PORT, &arguments).with_context(|| format!("node {id}"))?;
        nodes.push(Node { id, home, address: ANY_PORT, arguments, process });
    }
    Ok(nodes)
}

/// Ports that were free a moment ago, all different.
fn free_ports(count: usize) -> Result<Vec<SocketAddr>> {
    let bound: std::io::Result<Vec<_>> = (0..count).map(|_| TcpListener::bind(ANY_PORT)).collect();
    let addresses: std::io::Result<Vec<_>> = bound.and_then(|all| all.iter().map(TcpListener::local_addr).collect());
    addresses.context("no free ports")
}

/// Returns once the node can commit.
async fn ready(address: SocketAddr) {
    let Ok(uri) = format!("tenure://{address}").parse::<Uri>() else { return };
    let client = Client::with(&uri, Options::default(), Arc::new(HostClock));
    while !client.status().await.is_ok_and(|status| status["ready"] == true) {
        tokio::time::sleep(READY_PAUSE).await;
    }
}

struct Node {
    id: usize,
    home: Home,
    /// For clients; known once it serves, and kept from then on.
    address: SocketAddr,
    /// Beyond those that every node gets.
    arguments: Vec<OsString>,
    process: Process,
}

impl Node {
    async fn serving(&mut self) -> Result<()> {
        self.address = self.process.serving(&self.home).await.with_context(|| format!("node {}", self.id))?;
        Ok(())
    }
}

struct Process {
    child: Child,
    pid: u32,
    /// Closes when this process ends, however it ends; then the node ends.
    _stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a node.
    fn spawn(home: &Home, listen: SocketAddr, arguments: &[OsString]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
        for (name, _) in std::env::vars_os() {
            // A throw-away node is not the one the environment configures, nor the service that runs `dev`.
            let name_bytes = name.as_encoded_bytes();
            if name_bytes.starts_with(b"TENURE_") || name == "NOTIFY_SOCKET" || name_bytes.starts_with(b"WATCHDOG_") {
                command.env_remove(name);
            }
        }
        command.args(["serve", "--listen", &listen.to_string(), "--data"]).arg(home.data());
        command.args(arguments).arg("--throw-away").arg(home.root());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(home.open_log()?);
        let mut child = command.process_group(0).kill_on_drop(true).spawn().context("cannot start a node")?;
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().context("a node without stdout")?);
        let pid = child.id().context("the node ended at once")?;
        home.write_pid(pid)?;
        Ok(Self { child, pid, _stdin: stdin, stdout })
    }

    /// Where it serves, once it does.
    async fn serving(&mut self, home: &Home) -> Result<SocketAddr> {
        let mut line = String::new();
        match tokio::time::timeout(START_TIMEOUT, self.stdout.read_line(&mut line)).await {
            Ok(read) => read.context("cannot read from the node")?,
            Err(_) => bail!("does not serve after {} s: {}", START_TIMEOUT.as_secs(), home.last_line()),
        };
        let address = line.trim_end().strip_prefix("tenure://").and_then(|address| address.parse().ok());
        address.with_context(|| format!("did not start: {}", home.last_line()))
    }
}
