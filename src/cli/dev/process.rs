//! Nodes as child processes: `tenure serve`, each in a process group of its own (a terminal's Ctrl-C is for CMD alone),
//! with a stdin that ends with us.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::directory::{Directory, Home};

/// How long a node may take until it serves.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a killed node may take to be gone.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// All nodes, by id from 1.
pub struct Nodes(Vec<Node>);

impl Nodes {
    /// Starts `count` nodes.
    pub async fn start(count: usize, directory: &Directory) -> Result<Self> {
        let mut nodes = Vec::new();
        for id in 1..=count {
            let home = directory.home(id)?;
            let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
            let process = Process::start(&home, any_port).await.with_context(|| format!("node {id}"))?;
            nodes.push(Node { home, address: process.address, process });
        }
        Ok(Self(nodes))
    }

    /// Starts node `id`, which has ended, once more; its new pid.
    pub async fn restart(&mut self, id: usize) -> Result<u32> {
        let node = id.checked_sub(1).and_then(|at| self.0.get_mut(at));
        let node = node.with_context(|| format!("there is no node {id}"))?;
        if tokio::time::timeout(END_TIMEOUT, node.process.child.wait()).await.is_err() {
            bail!("node {id} is running; kill it first");
        }
        node.process = Process::start(&node.home, node.address).await.with_context(|| format!("node {id}"))?;
        Ok(node.process.pid)
    }

    /// Kills all nodes and waits until they are gone.
    pub async fn end(&mut self) {
        for node in &mut self.0 {
            // It may have ended by itself.
            let _ = node.process.child.kill().await;
        }
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

struct Node {
    home: Home,
    address: SocketAddr,
    process: Process,
}

struct Process {
    child: Child,
    pid: u32,
    address: SocketAddr,
    /// Closes when this process ends, however it ends; then the node ends.
    _stdin: Option<ChildStdin>,
    _stdout: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a node and waits until it serves.
    async fn start(home: &Home, listen: SocketAddr) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
        for (name, _) in std::env::vars_os() {
            // A throw-away node is not the one the environment configures.
            if name.as_encoded_bytes().starts_with(b"TENURE_") {
                command.env_remove(name);
            }
        }
        command.args(["serve", "--listen", &listen.to_string(), "--data"]).arg(home.data());
        command.arg("--throw-away").arg(home.root());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(home.open_log()?);
        let mut child = command.process_group(0).kill_on_drop(true).spawn().context("cannot start a node")?;
        let stdin = child.stdin.take();
        let mut stdout = BufReader::new(child.stdout.take().context("a node without stdout")?);
        let mut line = String::new();
        match tokio::time::timeout(START_TIMEOUT, stdout.read_line(&mut line)).await {
            Ok(read) => read.context("cannot read from the node")?,
            Err(_) => bail!("did not serve within {} s: see {}", START_TIMEOUT.as_secs(), home.log().display()),
        };
        let address = line.trim_end().strip_prefix("tenure://").and_then(|address| address.parse().ok());
        let Some(address) = address else { bail!("did not start: {}", last_line(home)) };
        let pid = child.id().context("the node ended at once")?;
        home.write_pid(pid)?;
        Ok(Self { child, pid, address, _stdin: stdin, _stdout: stdout })
    }
}

/// The last thing a node said.
fn last_line(home: &Home) -> String {
    let log = std::fs::read_to_string(home.log()).unwrap_or_default();
    log.lines().last().unwrap_or("it said nothing").to_owned()
}
