//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::tenure::LockWait;
use crate::work::Pin;

/// Load generator for lease and lock stores. Prints one JSON line per result
#[derive(Parser)]
#[command(version)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// tenure over HTTP/1.1 and JSON
    Tenure(Store),
    /// etcd v3 over gRPC
    Etcd(Store),
    /// ZooKeeper
    Zk(Store),
    /// One Redis
    Redis(Store),
    /// Redlock on several Redis
    Redlock(Store),
    /// The machine itself: disk and TCP
    Raw {
        #[command(flatten)]
        windows: Windows,
        #[command(subcommand)]
        limit: Limit,
    },
    /// Draws the results in DIR/*.jsonl and prints their tables as markdown
    Report {
        dir: PathBuf,
        /// Where the pictures go
        #[arg(long, default_value = "docs/plots")]
        plots: PathBuf,
    },
}

#[derive(Args)]
pub struct Store {
    /// host:port of each node, comma separated; loopback only
    #[arg(long, value_delimiter = ',', required = true)]
    pub endpoints: Vec<String>,
    /// Directory with node1.pid, node2.pid, ... in endpoint order: adds the servers' CPU, memory, writes
    #[arg(long)]
    pub dir: Option<PathBuf>,
    #[command(flatten)]
    pub windows: Windows,
    #[command(subcommand)]
    pub work: Work,
}

#[derive(Args)]
pub struct Windows {
    /// Measured windows; with more than one a line of medians follows
    #[arg(long, default_value_t = 3)]
    pub repeat: usize,
    /// A window with more than this many cores of other work on the host is run again ...
    #[arg(long, default_value_t = 0.3)]
    pub quiet: f64,
    /// ... up to this many windows in all
    #[arg(long, default_value_t = 5)]
    pub tries: usize,
}

#[derive(Subcommand)]
pub enum Limit {
    /// Append and fdatasync
    Disk {
        #[arg(long)]
        file: PathBuf,
        #[arg(long, default_value_t = 4096)]
        block: usize,
        #[arg(long, default_value_t = 5.0)]
        secs: f64,
        #[arg(long)]
        prealloc: bool,
    },
    /// Loopback echo
    Tcp {
        #[arg(long, default_value_t = 5.0)]
        secs: f64,
    },
}

#[derive(Subcommand)]
pub enum Work {
    /// Lock cycle on a key of one's own
    W1 {
        #[arg(long, default_value_t = 64)]
        clients: usize,
        #[arg(long, default_value_t = 5.0)]
        secs: f64,
        /// Open and close a lease in each cycle
        #[arg(long)]
        full: bool,
        #[arg(long, value_enum, default_value = "any")]
        pin: Pin,
    },
    /// Renewals of held leases
    W2 {
        #[arg(long, default_value_t = 1000)]
        leases: usize,
        /// Renewals in flight
        #[arg(long, default_value_t = 64)]
        workers: usize,
        #[arg(long, default_value_t = 16)]
        conns: usize,
        #[arg(long, default_value_t = 5.0)]
        secs: f64,
        #[arg(long, value_enum, default_value = "any")]
        pin: Pin,
        /// Seconds
        #[arg(long, default_value_t = 600)]
        ttl: u64,
    },
    /// One contended lock
    W3 {
        #[arg(long, default_value_t = 64)]
        clients: usize,
        #[arg(long, default_value_t = 5.0)]
        secs: f64,
        #[arg(long, value_enum, default_value = "any")]
        pin: Pin,
        /// How a client of tenure waits; others have one way
        #[arg(long, value_enum, default_value = "line")]
        wait: LockWait,
    },
    /// Reads of a lock's holder
    W4 {
        #[arg(long, default_value_t = 64)]
        clients: usize,
        #[arg(long, default_value_t = 5.0)]
        secs: f64,
        #[arg(long, value_enum, default_value = "any")]
        pin: Pin,
        /// Reads that may be stale instead of linearizable ones
        #[arg(long)]
        stale_ok: bool,
    },
    /// SIGKILL the leader under load (needs --dir). One kill per call
    W5 {
        /// Acquires a second
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
        rate: u64,
        /// Seconds of load before the kill
        #[arg(long, default_value_t = 3.0)]
        before: f64,
        /// A try is given up after this long and sent to the next endpoint
        #[arg(long, default_value_t = 1000)]
        attempt_ms: u64,
        /// A new connection (and session) for each try
        #[arg(long)]
        fresh: bool,
    },
    /// Mass expiry
    W6 {
        #[arg(long, default_value_t = 10_000)]
        leases: usize,
        /// Seconds
        #[arg(long, default_value_t = 5)]
        ttl: u64,
        #[arg(long, default_value_t = 16)]
        conns: usize,
        #[arg(long, default_value_t = 500)]
        sample: usize,
    },
    /// Memory and restart
    W7 {
        #[arg(long, default_value_t = 100_000)]
        keys: usize,
        #[arg(long, default_value_t = 1)]
        per_lease: usize,
        #[arg(long, default_value_t = 16)]
        conns: usize,
        /// Seconds
        #[arg(long, default_value_t = 3600)]
        ttl: u64,
        /// Starts the nodes again after each kill of all
        #[arg(long)]
        restart_cmd: Option<String>,
        #[arg(long, default_value_t = 3)]
        restarts: usize,
    },
}
