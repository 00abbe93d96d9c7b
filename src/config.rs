//! What a node is told at its start: flags, then environment, then a TOML file, then defaults. Checked as a whole before
//! any port is bound or any file is touched; the secret's file is read. What a node of several needs: [`peers`].

mod peers;

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use serde::Deserialize;
use tenure_client::wire::PORT;
use tenure_cluster::PeerConfig;

/// Settings of a node as they are given; each may be absent. The names of the TOML file's keys are the fields' names.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Where clients connect [default: 127.0.0.1:13378]; port 0 takes a free one
    #[arg(long, env = "TENURE_LISTEN", value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// Under which address clients reach this node, if not --listen
    #[arg(long, env = "TENURE_ADVERTISE", value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// The node's data directory, made if absent [default: ./tenure-data]
    #[arg(long, env = "TENURE_DATA", value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// This node's id; required with --peers [default: what the data directory says, 1 for a new one]
    #[arg(long, env = "TENURE_NODE_ID", value_name = "N")]
    pub node_id: Option<u64>,
    /// All voters of a new cluster, this node included, by id and peer address: 1=a:13379,2=b:13379,3=c:13379.
    /// Once the cluster is founded, a hint where they may be
    #[arg(long, env = "TENURE_PEERS", value_name = "ID=HOST:PORT,…")]
    pub peers: Option<String>,
    /// Where the other nodes connect. Their traffic is authenticated with the cluster's secret, and not encrypted
    /// [default: this node's address in --peers if that is on loopback, else 127.0.0.1:13379]
    #[arg(long, env = "TENURE_PEER_LISTEN", value_name = "HOST:PORT")]
    pub peer_listen: Option<String>,
    /// Under which address the other nodes reach this one [default: what --peers says]
    #[arg(long, env = "TENURE_PEER_ADVERTISE", value_name = "HOST:PORT")]
    pub peer_advertise: Option<String>,
    /// File with the secret that all nodes of the cluster share, 16 to 4096 bytes; a newline at its end does not count
    #[arg(long, env = "TENURE_CLUSTER_SECRET_FILE", value_name = "FILE")]
    pub cluster_secret_file: Option<PathBuf>,
    /// Found the cluster once a majority of --peers has answered, instead of all: only if the others are surely new
    #[arg(long, env = "TENURE_BOOTSTRAP_MAJORITY", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub bootstrap_majority: Option<bool>,
    /// How long a command or read may take inside the node [default: 5s]
    #[arg(long, env = "TENURE_REQUEST_TIMEOUT", value_name = "DURATION")]
    pub request_timeout: Option<String>,
    /// Least time without a leader before an election [default: 750ms]
    #[arg(long, env = "TENURE_ELECTION_TIMEOUT", value_name = "DURATION")]
    pub election_timeout: Option<String>,
    /// Open client connections at most [default: 16384]
    #[arg(long, env = "TENURE_CONNECTIONS_MAX", value_name = "N")]
    pub connections_max: Option<usize>,
    /// Serve beyond this host although nothing is encrypted and nobody is authenticated
    #[arg(long, env = "TENURE_INSECURE", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    pub insecure: Option<bool>,
}

/// A node's configuration, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// Where clients connect; port 0 takes a free one.
    pub listen: SocketAddr,
    /// `host:port` under which clients reach this node; `None`: where it listens.
    pub advertise: Option<String>,
    /// The data directory, made if absent.
    pub data_dir: PathBuf,
    /// This node's id, 1 and up; `None`: what the data directory says, or 1 for a new one.
    pub node_id: Option<u64>,
    /// How long a command or read may take inside the node; also the time for a request's body.
    pub request_timeout: Duration,
    /// The least election timeout.
    pub election_timeout: Duration,
    /// Open client connections at most.
    pub connections_max: usize,
    /// The others of the cluster; `None`: a single node, without a port for peers.
    pub peers: Option<PeerConfig>,
}

impl NodeConfig {
    /// A node with the product's defaults on `data_dir`, on a free port of this host: for embedding.
    #[must_use]
    pub fn local(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise: None,
            data_dir: data_dir.into(),
            node_id: None,
            request_timeout: Duration::from_secs(5),
            election_timeout: Duration::from_millis(750),
            connections_max: 16_384,
            peers: None,
        }
    }
}

impl Settings {
    /// Reads a TOML file.
    ///
    /// # Errors
    /// When it cannot be read, is no TOML, or has a key that is unknown or of the wrong type: named, with its line.
    pub fn from_file(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read --config {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("--config {}", path.display()))
    }

    /// Reads the text of a TOML file.
    ///
    /// # Errors
    /// When it is no TOML, or has a key that is unknown or of the wrong type: named, with its line.
    pub fn parse(text: &str) -> Result<Self> {
        toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            anyhow!("line {}: {}", before.matches('\n').count() + 1, error.message())
        })
    }

    /// These settings, and what they do not say from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            listen: self.listen.or(other.listen),
            advertise: self.advertise.or(other.advertise),
            data: self.data.or(other.data),
            node_id: self.node_id.or(other.node_id),
            peers: self.peers.or(other.peers),
            peer_listen: self.peer_listen.or(other.peer_listen),
            peer_advertise: self.peer_advertise.or(other.peer_advertise),
            cluster_secret_file: self.cluster_secret_file.or(other.cluster_secret_file),
            bootstrap_majority: self.bootstrap_majority.or(other.bootstrap_majority),
            request_timeout: self.request_timeout.or(other.request_timeout),
            election_timeout: self.election_timeout.or(other.election_timeout),
            connections_max: self.connections_max.or(other.connections_max),
            insecure: self.insecure.or(other.insecure),
        }
    }

    /// Checks them and fills in the defaults.
    ///
    /// # Errors
    /// The first setting that breaks a rule, named.
    pub fn check(self) -> Result<NodeConfig> {
        const CONNECTIONS_MAX: usize = 1_000_000;
        let peers = peers::check(&self)?;
        let defaults = NodeConfig::local(self.data.unwrap_or_else(|| PathBuf::from("tenure-data")));
        let listen = self.listen.unwrap_or_else(|| format!("127.0.0.1:{PORT}"));
        let config = NodeConfig {
            listen: resolve(&listen, self.insecure.unwrap_or(false))?,
            advertise: self.advertise,
            node_id: self.node_id,
            request_timeout: duration("request_timeout", self.request_timeout, defaults.request_timeout)?,
            election_timeout: duration("election_timeout", self.election_timeout, defaults.election_timeout)?,
            connections_max: self.connections_max.unwrap_or(defaults.connections_max),
            peers,
            ..defaults
        };
        ensure!(!config.data_dir.as_os_str().is_empty(), "data must name a directory");
        ensure!(config.node_id != Some(0), "node_id must be 1 or more");
        ensure!(
            (1..=CONNECTIONS_MAX).contains(&config.connections_max),
            "connections_max must be in 1..={CONNECTIONS_MAX}; got {}",
            config.connections_max
        );
        if let Some(advertise) = &config.advertise {
            check_address("advertise", advertise)?;
        }
        ensure!(
            config.listen.port() == 0 || config.peers.as_ref().is_none_or(|peers| peers.listen != config.listen),
            "peer_listen must differ from listen: clients and peers need a port each; got {} for both",
            config.listen
        );
        Ok(config)
    }
}

/// The first address `listen` stands for. Beyond this host only with `insecure`.
fn resolve(listen: &str, insecure: bool) -> Result<SocketAddr> {
    let addresses = addresses("listen", listen, PORT)?;
    if !insecure && let Some(open) = addresses.iter().find(|address| !address.ip().is_loopback()) {
        bail!(
            "listen: {open} can be reached from other hosts, and this version neither encrypts nor authenticates: \
             whoever reaches it can break every lease; say --insecure if the network is trusted"
        );
    }
    addresses.first().copied().with_context(|| format!("listen: {listen:?} has no address"))
}

/// The addresses that setting stands for.
fn addresses(name: &str, text: &str, port: u16) -> Result<Vec<SocketAddr>> {
    let addresses = text
        .to_socket_addrs()
        .with_context(|| format!("{name} must be HOST:PORT, e.g. 127.0.0.1:{port}; got {text:?}"))?
        .collect::<Vec<_>>();
    ensure!(!addresses.is_empty(), "{name}: {text:?} has no address");
    Ok(addresses)
}

/// `HOST:PORT` as others are told it: not looked up, since its name may mean something to them alone.
fn check_address(name: &str, text: &str) -> Result<()> {
    const HOST_BYTES_MAX: usize = 253;
    let parts = text.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>()));
    let host = |host: &str| match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').is_some_and(|inner| inner.parse::<std::net::Ipv6Addr>().is_ok()),
        None => {
            (1..=HOST_BYTES_MAX).contains(&host.len())
                && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
        }
    };
    let well_formed = parts.is_some_and(|(name, port)| host(name) && matches!(port, Ok(1..)));
    ensure!(well_formed, "{name} must be HOST:PORT with a port in 1..=65535; got {text:?}");
    Ok(())
}

fn duration(name: &str, given: Option<String>, default: Duration) -> Result<Duration> {
    const LEAST: Duration = Duration::from_millis(100);
    const GREATEST: Duration = Duration::from_secs(60);
    let Some(text) = given else { return Ok(default) };
    let duration = humantime::parse_duration(&text)
        .with_context(|| format!("{name} must be a duration with a unit, e.g. 5s or 750ms; got {text:?}"))?;
    ensure!((LEAST..=GREATEST).contains(&duration), "{name} must be in 100ms..=60s; got {text:?}");
    Ok(duration)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    fn settings(toml: &str) -> Settings {
        Settings::parse(toml).unwrap()
    }

    #[test]
    fn defaults() {
        let config = Settings::default().check().unwrap();
        assert_eq!(config, NodeConfig { listen: ([127, 0, 0, 1], PORT).into(), ..NodeConfig::local("tenure-data") });
    }

    #[test]
    fn flags_win_over_the_file() {
        let flags = Settings { data: Some("flag".into()), ..Settings::default() };
        let file = settings("data = \"file\"\nrequest_timeout = \"2s\"");
        let config = flags.or(file).check().unwrap();
        assert_eq!((config.data_dir, config.request_timeout), ("flag".into(), Duration::from_secs(2)));
    }

    #[test]
    fn unknown_keys_are_named() {
        let error = Settings::parse("data = \"x\"\nlisen = \"y\"").unwrap_err().to_string();
        assert!(error.starts_with("line 2: unknown field `lisen`"), "{error}");
        let error = Settings::parse("node_id = \"1\"").unwrap_err().to_string();
        assert!(error.starts_with("line 1: invalid type"), "{error}");
    }

    #[test]
    fn refusals_name_the_setting() {
        for (toml, expected) in [
            ("request_timeout = \"5\"", "request_timeout must be a duration with a unit"),
            ("election_timeout = \"1ms\"", "election_timeout must be in 100ms..=60s"),
            ("node_id = 0", "node_id must be 1 or more"),
            ("listen = \"13378\"", "listen must be HOST:PORT"),
            ("listen = \"0.0.0.0:1\"", "say --insecure"),
            ("listen = \"[::]:1\"", "say --insecure"),
            ("advertise = \"host\"", "advertise must be HOST:PORT"),
            ("advertise = \"host:0\"", "advertise must be HOST:PORT"),
            ("connections_max = 0", "connections_max must be in 1..=1000000"),
            ("data = \"\"", "data must name a directory"),
        ] {
            let error = settings(toml).check().unwrap_err().to_string();
            assert!(error.contains(expected), "{toml}: {error}");
        }
    }

    #[test]
    fn insecure_opens_the_host() {
        let config = settings("listen = \"0.0.0.0:0\"\ninsecure = true").check().unwrap();
        assert!(config.listen.ip().is_unspecified());
    }
}
