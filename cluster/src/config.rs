//! What a node of the cluster is told at its start, and whom it tells of its work.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::raft::{Member, NodeId};

/// Configuration of one node. No `Default`: whoever opens a cluster says each value (see [`Config::single`]).
#[derive(Clone)]
pub struct Config {
    /// The node's data directory; made if absent.
    pub data_dir: PathBuf,
    /// This node's id, 1 and up. `None`: what the data directory says, or 1 for a new one.
    pub node_id: Option<NodeId>,
    /// Where this node is reached; goes into the membership. Its incarnation is filled in from the data directory.
    pub member: Member,
    /// How long a submit or a read may take inside the node, retries included.
    pub request_timeout: Duration,
    /// The least election timeout; the greatest, T, is twice that. The heartbeat is a third of it.
    pub election_timeout: Duration,
    /// Size of a log segment in bytes.
    pub segment_bytes: u64,
    /// Log bytes since the last snapshot at which the next one is taken.
    pub snapshot_log_bytes: u64,
    /// Log bytes kept behind a snapshot for slow followers.
    pub log_margin_bytes: u64,
    /// Commands that may wait for the proposer; beyond it a submit waits, within its timeout.
    pub queue_max: usize,
    /// Told of each measured event. Cheap and non-blocking.
    pub observer: Arc<dyn Observer>,
}

impl Config {
    /// A single durable node on `data_dir` with the product's defaults and nobody observing.
    #[must_use]
    pub fn single(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            node_id: None,
            member: Member::default(),
            request_timeout: Duration::from_millis(5_000),
            election_timeout: Duration::from_millis(750),
            segment_bytes: 16 * 1024 * 1024,
            snapshot_log_bytes: 64 * 1024 * 1024,
            log_margin_bytes: 32 * 1024 * 1024,
            queue_max: 65_536,
            observer: Arc::new(Unobserved),
        }
    }
}

/// Told of the work a node does: for histograms and counters. Called on hot paths.
pub trait Observer: Send + Sync + 'static {
    /// A command was answered so long after it was submitted.
    fn answered(&self, _elapsed: Duration) {}
    /// An entry with so many commands and bytes was proposed.
    fn proposed(&self, _commands: usize, _bytes: usize) {}
    /// A write group of the log was synced in so long.
    fn synced(&self, _elapsed: Duration) {}
    /// A snapshot of so many bytes was finished in so long.
    fn snapshot_taken(&self, _bytes: u64, _elapsed: Duration) {}
}

/// Nobody looks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unobserved;

impl Observer for Unobserved {}
