//! A place in a cluster under test: id, data, addresses, flags. A process comes and goes in it.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::process::Process;

/// How a cluster is set up.
#[derive(Clone)]
pub struct Plan {
    /// Ids are 1..=nodes.
    pub nodes: u64,
    /// For every node.
    pub flags: Vec<String>,
}

impl Plan {
    /// So many nodes with the product's defaults; one has no peers.
    pub fn of(nodes: u64) -> Self {
        Self { nodes, flags: Vec::new() }
    }

    /// Three nodes with the product's defaults.
    pub fn three() -> Self {
        Self::of(3)
    }
}

/// A node's place in the cluster.
pub struct Seat {
    /// Its id.
    pub id: u64,
    /// Its data directory.
    pub data: PathBuf,
    /// Where clients reach it.
    pub client: SocketAddr,
    /// Where peers reach it.
    pub peer: SocketAddr,
    /// What is put before the command: another network, for example.
    pub launcher: Vec<String>,
    /// Flags of this node alone.
    pub flags: Vec<String>,
    /// Environment of this node alone.
    pub environment: Vec<(String, String)>,
    pub(super) process: Option<Process>,
    pub(super) stopped: bool,
}

impl Seat {
    pub(super) fn is_up(&self) -> bool {
        self.process.is_some() && !self.stopped
    }
}
