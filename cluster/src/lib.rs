//! Replicates **any** deterministic machine: openraft for consensus, an own segmented log, sled snapshots, a leader
//! clock whose stamps ride in every entry, linearizable reads, and the identity of nodes. See `DESIGN.md` beside this
//! crate for the life of an entry, the clock's rules and the trade-offs.

mod answer;
mod applier;
mod bootstrap;
mod clock;
pub mod cluster;
pub mod codec;
mod compaction;
pub mod config;
pub mod counter;
mod crash;
#[cfg(test)]
mod disk_tests;
pub mod entry;
pub mod error;
pub mod executor;
mod file_lock;
pub mod files;
mod forward;
mod forwarded;
mod freshness;
pub mod hello;
mod host;
pub mod identity;
mod known;
mod level;
pub mod log;
pub mod log_gauge;
pub mod machine;
#[cfg(test)]
mod memory_log;
mod network;
#[cfg(test)]
mod node_tests;
#[cfg(test)]
mod old_data_tests;
mod open;
mod ordering;
pub mod peer;
pub mod peer_config;
mod peers;
pub mod persisted;
pub mod planted;
mod proposal;
mod proposer;
pub mod raft;
mod raft_config;
#[doc(hidden)]
pub mod reading;
mod reads;
mod replica;
mod rest;
mod sealed;
pub mod simdisk;
pub mod snapshot;
mod snapshotter;
mod standing;
pub mod start;
mod status;
mod stop;
mod supervisor;
pub mod tcp;
#[cfg(test)]
mod tests;
mod tick;
pub mod time;
mod timekeeper;
mod transfer;
pub mod transport;
mod warnings;

/// For a log's filter: replication calls it an error that a node has stopped. Why it did the node says itself.
pub const QUIET: &str = "openraft::raft::raft_inner=off";

pub use answer::Heard;
pub use cluster::{AGE_UNKNOWN, Applied, Cluster, EventAt, Role, Seen, Status, Witness};
pub use config::{Config, Observer};
pub use error::{OpenError, ReadError, Remedy, ReplaceError, StopReason, SubmitError};
pub use file_lock::FileLock;
pub use level::FEATURE_LEVEL;
pub use machine::{LoadError, Moment, NeedsTick, Position, ReadAt, Stamp, StateMachine};
pub use peer_config::{PeerConfig, Secret, Startup};
pub use standing::Leadership;
pub use transfer::NoTarget;
