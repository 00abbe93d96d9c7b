//! What a node of several is told at its start.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use crate::raft::NodeId;

/// The cluster's shared secret. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Least length, bytes.
    pub const BYTES_MIN: usize = 16;
    /// Greatest length, bytes.
    pub const BYTES_MAX: usize = 4096;

    /// The secret, `None` unless it has [`Secret::BYTES_MIN`]..=[`Secret::BYTES_MAX`] bytes.
    #[must_use]
    pub fn new(bytes: impl Into<Vec<u8>>) -> Option<Self> {
        let bytes = bytes.into();
        (Self::BYTES_MIN..=Self::BYTES_MAX).contains(&bytes.len()).then_some(Self(bytes))
    }

    /// For the transport's MAC alone.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// What a node of several is told at its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    /// Where peers connect; port 0 takes a free one.
    pub listen: SocketAddr,
    /// `host:port` under which peers reach this node; `None`: what `peers` says of it, else where it listens.
    pub advertise: Option<String>,
    /// All voters of the first start, this node among them, by id: `host:port` for peers. From the second start on a
    /// hint where they may be.
    pub peers: BTreeMap<NodeId, String>,
    /// The cluster's secret.
    pub secret: Secret,
    /// Found the cluster when a majority has answered, instead of all.
    pub bootstrap_majority: bool,
}

/// What a node that starts is waiting for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Startup {
    /// Its own data.
    #[default]
    Opening,
    /// These peers have not answered yet (each with why, one line), and without them no cluster is founded.
    WaitingForPeers(Vec<(NodeId, String)>),
    /// A cluster is there, and does not answer yet whether this node may take part. One line.
    AskingAdmission(String),
    /// Nothing: it takes part.
    Started,
}
