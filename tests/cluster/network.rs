//! A network of its own for each node: a namespace with two links, one to a bridge where the peers meet, one to this
//! process. So a node can be cut off from its peers, in silence, and still be asked.
//!
//! Needs root and `ip`; where they are missing the tests are skipped. Everything is taken down when it is dropped.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::harness::Seat;

/// Networks of this process.
static MADE: AtomicU32 = AtomicU32::new(0);

/// See the module's head.
pub struct Network {
    tag: String,
    subnet: u32,
    nodes: Vec<u64>,
}

impl Network {
    /// For nodes 1..=`nodes`; why not, if not.
    pub fn build(nodes: u64) -> Result<Self, String> {
        let unique = std::process::id().wrapping_mul(4).wrapping_add(MADE.fetch_add(1, Ordering::Relaxed));
        // Names of links have at most 15 bytes.
        let network =
            Self { tag: format!("tq{}", unique % 1_000_000), subnet: unique % 250, nodes: (1..=nodes).collect() };
        network.make().map_err(|why| format!("network namespaces (needs root and ip): {why}"))?;
        Ok(network)
    }

    fn make(&self) -> Result<(), String> {
        let bridge = self.bridge();
        ip(&format!("link add {bridge} type bridge"))?;
        ip(&format!("link set {bridge} up"))?;
        for id in &self.nodes {
            let (space, peers, clients) = (self.space(*id), self.peer_link(*id), self.client_link(*id));
            let (peer, client, here) = (self.peer_host(*id), self.client_host(*id), self.here(*id));
            ip(&format!("netns add {space}"))?;
            ip(&format!("link add {peers} type veth peer name peers netns {space}"))?;
            ip(&format!("link add {clients} type veth peer name clients netns {space}"))?;
            ip(&format!("link set {peers} master {bridge} up"))?;
            ip(&format!("addr add {here}/30 dev {clients}"))?;
            ip(&format!("link set {clients} up"))?;
            ip(&format!("-n {space} addr add {peer}/24 dev peers"))?;
            ip(&format!("-n {space} addr add {client}/30 dev clients"))?;
            for link in ["lo", "peers", "clients"] {
                ip(&format!("-n {space} link set {link} up"))?;
            }
        }
        Ok(())
    }

    /// Puts a seat into its node's network.
    pub fn place(&self, seat: &mut Seat) {
        let at = |host: String, port: u16| SocketAddr::new(host.parse().unwrap(), port);
        seat.client = at(self.client_host(seat.id), 13_378);
        seat.peer = at(self.peer_host(seat.id), 13_379);
        seat.launcher = ["ip", "netns", "exec", &self.space(seat.id)].map(str::to_owned).to_vec();
        seat.flags.push("--insecure".to_owned());
    }

    /// From now on nothing reaches the node from its peers, nor them from it; no connection is reset.
    pub fn cut(&self, id: u64) {
        ip(&format!("link set {} nomaster", self.peer_link(id))).unwrap();
    }

    /// Undoes [`Network::cut`].
    pub fn heal(&self, id: u64) {
        ip(&format!("link set {} master {}", self.peer_link(id), self.bridge())).unwrap();
    }

    fn bridge(&self) -> String {
        format!("{}b", self.tag)
    }

    fn space(&self, id: u64) -> String {
        format!("{}n{id}", self.tag)
    }

    fn peer_link(&self, id: u64) -> String {
        format!("{}p{id}", self.tag)
    }

    fn client_link(&self, id: u64) -> String {
        format!("{}c{id}", self.tag)
    }

    fn peer_host(&self, id: u64) -> String {
        format!("10.213.{}.{id}", self.subnet)
    }

    fn client_host(&self, id: u64) -> String {
        format!("10.214.{}.{}", self.subnet, id * 4 + 2)
    }

    fn here(&self, id: u64) -> String {
        format!("10.214.{}.{}", self.subnet, id * 4 + 1)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // What was never made cannot be removed: no matter. Links go with their namespaces, at a time of the kernel's.
        for id in &self.nodes {
            let _ = ip(&format!("link del {}", self.peer_link(*id)));
            let _ = ip(&format!("link del {}", self.client_link(*id)));
            let _ = ip(&format!("netns del {}", self.space(*id)));
        }
        let _ = ip(&format!("link del {}", self.bridge()));
    }
}

fn ip(words: &str) -> Result<(), String> {
    let done = Command::new("ip").args(words.split(' ')).output().map_err(|error| format!("ip {words}: {error}"))?;
    match done.status.success() {
        true => Ok(()),
        false => Err(format!("ip {words}: {}", String::from_utf8_lossy(&done.stderr).trim())),
    }
}
