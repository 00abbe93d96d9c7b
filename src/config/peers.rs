//! What a node of several is told: its peers, where it hears them, and the secret they share. All or nothing: without
//! `peers` there is no peer listener, and none of the other settings means anything.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use tenure_cluster::{PeerConfig, Secret};
use tracing::warn;

use super::{Settings, addresses, check_address};

/// The default port for peers.
pub const PEER_PORT: u16 = 13_379;
/// More voters only make each command wait for more disks.
const PEERS_MAX: usize = 9;

/// What `settings` say of peers; `None`: a single node.
///
/// # Errors
/// The first setting that breaks a rule, named, and what to do.
pub fn check(settings: &Settings) -> Result<Option<PeerConfig>> {
    let Some(text) = &settings.peers else { return without_peers(settings).map(|()| None) };
    let peers = parse(text)?;
    let node_id = settings.node_id.context(
        "peers needs node_id: say which of them this node is with --node-id; without --peers it is a single node",
    )?;
    let ids = || peers.keys().map(u64::to_string).collect::<Vec<_>>().join(", ");
    let Some(own) = peers.get(&node_id) else {
        bail!("peers must list this node too: node_id is {node_id}, and the list has {}", ids());
    };
    let path = settings.cluster_secret_file.as_deref().context(
        "peers needs cluster_secret_file: a file with the same 16..=4096 random bytes for all nodes, \
         e.g. from `head -c 32 /dev/urandom | base64 > cluster.secret`",
    )?;
    let secret = secret(path).with_context(|| format!("cluster_secret_file {}", path.display()))?;
    if let Some(advertise) = &settings.peer_advertise {
        check_address("peer_advertise", advertise)?;
    }
    let told = settings.peer_advertise.as_deref().unwrap_or(own);
    let listen = listen(settings.peer_listen.as_deref(), told)?;
    warn_of_the_unwise(&peers, listen, told);
    if settings.peer_listen.is_some() && settings.peer_advertise.is_none() && is_elsewhere(listen, own) {
        warn!(
            peer_listen = %listen,
            own,
            "peers are told the address of this node in --peers, and it listens on another: \
             correct its own entry there, or say --peer-advertise HOST:PORT"
        );
    }
    Ok(Some(PeerConfig {
        listen,
        advertise: settings.peer_advertise.clone(),
        peers,
        secret,
        bootstrap_majority: settings.bootstrap_majority.unwrap_or(false),
    }))
}

/// A setting that means nothing is a setting that somebody believes in.
fn without_peers(settings: &Settings) -> Result<()> {
    let given = [
        ("peer_listen", settings.peer_listen.is_some()),
        ("peer_advertise", settings.peer_advertise.is_some()),
        ("cluster_secret_file", settings.cluster_secret_file.is_some()),
        ("bootstrap_majority", settings.bootstrap_majority == Some(true)),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((name, _)) => bail!("{name} is for a node of several: say --peers and --node-id too, or leave it out"),
    }
}

/// `1=host:port,2=host:port`.
fn parse(text: &str) -> Result<BTreeMap<u64, String>> {
    const FORM: &str = "peers must be ID=HOST:PORT,… e.g. 1=a:13379,2=b:13379,3=c:13379";
    let mut peers = BTreeMap::<u64, String>::new();
    for item in text.split(',') {
        let (id, address) = item.split_once('=').with_context(|| format!("{FORM}; got {item:?}"))?;
        let number = Some(id).filter(|id| id.bytes().all(|byte| byte.is_ascii_digit())).and_then(|id| id.parse().ok());
        let id = match number {
            Some(id @ 1..) => id,
            _ => bail!("{FORM}; an id is a number from 1, got {id:?}"),
        };
        check_address(&format!("peers: the address of node {id}"), address)?;
        if let Some((other, _)) = peers.iter().find(|(_, known)| *known == address) {
            bail!("peers: nodes {other} and {id} have the same address {address}; each needs its own");
        }
        ensure!(peers.insert(id, address.to_owned()).is_none(), "peers: node {id} is listed twice");
        ensure!(peers.len() <= PEERS_MAX, "peers: at most {PEERS_MAX} nodes");
    }
    Ok(peers)
}

/// The first address to listen on. Whoever connects is told who this node is (ids, addresses, build), and
/// nothing more without the secret: any host may reach it.
fn listen(given: Option<&str>, told: &str) -> Result<SocketAddr> {
    let default = SocketAddr::from(([127, 0, 0, 1], PEER_PORT));
    let Some(text) = given else {
        // No look-up: a default must not hang on a name server.
        let own = told.replace("localhost:", "127.0.0.1:").parse::<SocketAddr>();
        return Ok(own.ok().filter(|own| own.ip().is_loopback()).unwrap_or(default));
    };
    let found = addresses("peer_listen", text, PEER_PORT)?;
    found.first().copied().with_context(|| format!("peer_listen: {text:?} has no address"))
}

/// The file's bytes with one newline at their end removed.
fn secret(path: &Path) -> Result<Secret> {
    let file = std::fs::File::open(path).context("cannot be opened")?;
    let metadata = file.metadata().context("cannot be read")?;
    ensure!(!metadata.is_dir(), "is a directory: name the file with the secret");
    let mut bytes = Vec::new();
    let most = u64::try_from(Secret::BYTES_MAX).unwrap_or(u64::MAX).saturating_add(2);
    file.take(most).read_to_end(&mut bytes).context("cannot be read")?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    let Some(secret) = Secret::new(bytes) else {
        bail!("must hold {}..={} bytes: put a long random text there", Secret::BYTES_MIN, Secret::BYTES_MAX);
    };
    if metadata.permissions().mode() & 0o004 != 0 {
        warn!(path = %path.display(), "every user of this host can read the cluster's secret: chmod o-r it");
    }
    Ok(secret)
}

/// Is `own` another literal address than the specific one to listen on? A name, or `0.0.0.0`, says nothing of that.
fn is_elsewhere(listen: SocketAddr, own: &str) -> bool {
    let own = own.parse::<SocketAddr>().ok();
    own.is_some_and(|own| if listen.ip().is_unspecified() { own.port() != listen.port() } else { own != listen })
}

fn warn_of_the_unwise(peers: &BTreeMap<u64, String>, listen: SocketAddr, told: &str) {
    let voters = peers.len();
    if voters.is_multiple_of(2) {
        let fewer = voters - 1;
        warn!(
            voters,
            "an even number of voters survives no more failures than {fewer} would: add one, or leave one out"
        );
    }
    let far = |address: &str| {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let ip = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        host != "localhost" && !ip.is_ok_and(|ip| ip.is_loopback())
    };
    if listen.ip().is_loopback() && far(told) {
        warn!(%listen, told, "other hosts cannot reach this node where it listens for them: say --peer-listen HOST:PORT");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::io::Write;

    use tempfile::NamedTempFile;

    use super::*;

    const THREE: &str = "1=127.0.0.1:7001,2=b:7002,3=[::1]:7003";

    fn secret_file(bytes: &[u8]) -> NamedTempFile {
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn settings(peers: &str, secret: &NamedTempFile) -> Settings {
        Settings {
            peers: Some(peers.to_owned()),
            node_id: Some(1),
            cluster_secret_file: Some(secret.path().to_owned()),
            ..Settings::default()
        }
    }

    fn error(settings: &Settings) -> String {
        format!("{:#}", check(settings).unwrap_err())
    }

    #[test]
    fn three_nodes() {
        let file = secret_file(b"0123456789abcdef\n");
        let peers = check(&settings(THREE, &file)).unwrap().unwrap();
        assert_eq!(peers.listen, ([127, 0, 0, 1], 7001).into(), "its own address, which is on loopback");
        assert_eq!(peers.peers.into_iter().collect::<Vec<_>>()[1], (2, "b:7002".to_owned()));
        assert_eq!(peers.secret, Secret::new(*b"0123456789abcdef").unwrap(), "without the newline");
        assert!(!peers.bootstrap_majority);
    }

    #[test]
    fn a_node_that_others_reach_by_a_name_listens_where_it_is_told() {
        let file = secret_file(&[7; 32]);
        let node = Settings { node_id: Some(2), ..settings(THREE, &file) };
        assert_eq!(check(&node).unwrap().unwrap().listen, ([127, 0, 0, 1], PEER_PORT).into());
        let open = Settings { peer_listen: Some("0.0.0.0:1".into()), bootstrap_majority: Some(true), ..node };
        let open = check(&open).unwrap().unwrap();
        assert!(open.listen.ip().is_unspecified() && open.bootstrap_majority, "the secret authenticates");
    }

    #[test]
    fn an_own_entry_that_peers_would_dial_in_vain() {
        for (listen, own, elsewhere) in [
            ("10.0.0.1:1", "10.0.0.1:1", false),
            ("10.0.0.2:1", "10.0.0.1:1", true),
            ("10.0.0.1:2", "10.0.0.1:1", true),
            ("0.0.0.0:1", "10.0.0.1:1", false),
            ("0.0.0.0:2", "10.0.0.1:1", true),
            ("10.0.0.2:1", "a:1", false),
        ] {
            assert_eq!(is_elsewhere(listen.parse().unwrap(), own), elsewhere, "{listen} {own}");
        }
    }

    #[test]
    fn a_single_node_has_no_peers_and_no_settings_of_them() {
        assert_eq!(check(&Settings { node_id: Some(3), ..Settings::default() }).unwrap(), None);
        let none = Settings::default;
        for (name, settings) in [
            ("peer_listen", Settings { peer_listen: Some("127.0.0.1:1".into()), ..none() }),
            ("peer_advertise", Settings { peer_advertise: Some("a:1".into()), ..none() }),
            ("cluster_secret_file", Settings { cluster_secret_file: Some("x".into()), ..none() }),
            ("bootstrap_majority", Settings { bootstrap_majority: Some(true), ..none() }),
        ] {
            let error = error(&settings);
            assert!(error.starts_with(name) && error.contains("--peers"), "{error}");
        }
    }

    #[test]
    fn lists_that_break_a_rule() {
        let file = secret_file(&[7; 16]);
        for (peers, part) in [
            ("", "got \"\""),
            ("a:1,b:2", "ID=HOST:PORT"),
            ("1=a:1,", "got \"\""),
            ("0=a:1", "a number from 1"),
            ("+1=a:1", "a number from 1"),
            ("1=a", "the address of node 1 must be HOST:PORT"),
            ("1=a:0", "the address of node 1 must be HOST:PORT"),
            ("1=::1:7", "the address of node 1 must be HOST:PORT"),
            ("1=a b:7", "the address of node 1 must be HOST:PORT"),
            ("1=a:1,2=a:1", "nodes 1 and 2 have the same address a:1"),
            ("1=a:1,1=b:1", "node 1 is listed twice"),
            ("2=a:1,3=b:1", "node_id is 1, and the list has 2, 3"),
            ("1=a:1,2=a:2,3=a:3,4=a:4,5=a:5,6=a:6,7=a:7,8=a:8,9=a:9,10=a:10", "at most 9"),
        ] {
            let error = error(&settings(peers, &file));
            assert!(error.starts_with("peers") && error.contains(part), "{peers}: {error}");
        }
    }

    #[test]
    fn what_a_list_needs() {
        let file = secret_file(&[7; 16]);
        let whole = || settings(THREE, &file);
        let without = Settings { node_id: None, ..whole() };
        assert!(error(&without).contains("say which of them this node is with --node-id"));
        let without = Settings { cluster_secret_file: None, ..whole() };
        assert!(error(&without).contains("peers needs cluster_secret_file"));
        let wrong = Settings { peer_listen: Some("7001".into()), ..whole() };
        assert!(error(&wrong).starts_with("peer_listen must be HOST:PORT"));
        let one = || Some("127.0.0.1:7001".to_owned());
        let both = Settings { listen: one(), peer_listen: one(), ..whole() }.check().unwrap_err().to_string();
        assert!(both.starts_with("peer_listen must differ from listen"), "{both}");
        let wrong = Settings { peer_advertise: Some("a".into()), ..whole() };
        assert!(error(&wrong).starts_with("peer_advertise must be HOST:PORT"));
    }

    #[test]
    fn secrets_that_are_none() {
        for bytes in [&[7; 15][..], b"0123456789abcde\n", &[7; 4097], &[7; 5000]] {
            let file = secret_file(bytes);
            let error = error(&settings(THREE, &file));
            assert!(error.starts_with("cluster_secret_file") && error.contains("16..=4096 bytes"), "{error}");
        }
        assert!(check(&settings(THREE, &secret_file(&[b'\n'; 4097]))).is_ok(), "one newline, not all");
        let absent =
            Settings { cluster_secret_file: Some("/nowhere/secret".into()), ..settings(THREE, &secret_file(b"")) };
        assert!(error(&absent).contains("cannot be opened"));
        let directory = Settings { cluster_secret_file: Some("/".into()), ..settings(THREE, &secret_file(b"")) };
        assert!(error(&directory).contains("is a directory"));
    }
}
