//! This crate's settings, in replication's terms.

use std::time::Duration;

use openraft::SnapshotPolicy;

use crate::config::Config;
use crate::error::OpenError;

/// Entries sent to a follower at once; an entry has up to 1 MiB, and the log ends a read at about 4 MiB.
const PAYLOAD_ENTRIES_MAX: u64 = 64;
/// What a leader may take to send a whole snapshot, milliseconds.
const SNAPSHOT_TIMEOUT_MS: u64 = 10 * 60 * 1_000;

/// T, the greatest election timeout: twice the least.
#[must_use]
pub fn greatest_election_timeout(config: &Config) -> Duration {
    config.election_timeout * 2
}

/// Maps `config`.
///
/// # Errors
/// [`OpenError::Config`] when the timeouts make no sense.
pub fn map(config: &Config, cluster_id: &str) -> Result<openraft::Config, OpenError> {
    let least = u64::try_from(config.election_timeout.as_millis()).unwrap_or(u64::MAX);
    if !(30..=60_000).contains(&least) {
        return Err(OpenError::Config(format!("election_timeout is {least} ms; it must be 30 ms to 60 s")));
    }
    let greatest = least * 2;
    let raft = openraft::Config {
        cluster_name: cluster_id.to_owned(),
        election_timeout_min: least,
        election_timeout_max: greatest,
        // A heartbeat's whole budget is its interval, the follower's sync included.
        heartbeat_interval: least / 3,
        enable_pre_vote: Some(true),
        // A restarted leader is elected anew: its state may lag behind what it has answered.
        enable_leader_restore: Some(false),
        // A leader that no quorum answers falls silent after a while, so that others may be elected.
        quorum_loss_probe_interval: Some(greatest * 2 + least),
        max_payload_entries: PAYLOAD_ENTRIES_MAX,
        install_snapshot_timeout: SNAPSHOT_TIMEOUT_MS,
        // Snapshots and purges go by bytes: `compaction.rs`.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        replication_lag_threshold: u64::MAX,
        ..openraft::Config::default()
    };
    raft.validate().map_err(|error| OpenError::Config(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratios_hold_whatever_the_election_timeout() {
        for least in [30, 300, 750, 60_000] {
            let mut config = Config::single("unused");
            config.election_timeout = Duration::from_millis(least);
            let raft = map(&config, "test").unwrap_or_else(|error| panic!("{least}: {error}"));
            assert_eq!((raft.election_timeout_min, raft.election_timeout_max), (least, least * 2));
            assert_eq!(raft.heartbeat_interval, least / 3, "250 ms by default: a round trip and a sync");
            assert!(raft.quorum_loss_probe_interval.is_some_and(|silence| silence >= least * 4), "at least 2 T");
            assert_eq!((raft.enable_pre_vote, raft.enable_leader_restore), (Some(true), Some(false)));
            assert_eq!(raft.max_payload_entries, 64);
        }
        for senseless in [29, 60_001] {
            let mut config = Config::single("unused");
            config.election_timeout = Duration::from_millis(senseless);
            assert!(map(&config, "test").is_err(), "{senseless}");
        }
    }
}
