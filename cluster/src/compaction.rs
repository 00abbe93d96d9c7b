//! Keeps the log short: a snapshot by log bytes, then a purge behind it that leaves a margin for slow followers.
//!
//! Replication's own policies count entries and are off: an entry may have ten bytes or a million. The log is bounded by
//! `snapshot_log_bytes`, what is written while the snapshot is built, and the margin, whatever a follower does.

use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::type_config::TypeConfigExt;
use tokio::sync::watch;

use crate::log_gauge::LogGauge;
use crate::raft::{AsyncRuntime, Raft, TypeConfig};
use crate::replica::Mark;

/// Least time between two looks at the log's size.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// See the module's head.
pub struct Compactor<RT: AsyncRuntime> {
    /// Replication.
    pub raft: Raft<RT>,
    /// The log.
    pub log: Arc<dyn LogGauge>,
    /// How far the state is.
    pub mark: watch::Receiver<Mark>,
    /// Log bytes since the last snapshot at which the next is taken.
    pub snapshot_log_bytes: u64,
    /// Log bytes kept behind a snapshot.
    pub log_margin_bytes: u64,
}

impl<RT: AsyncRuntime> Compactor<RT> {
    /// Runs until the node stops.
    pub async fn run(mut self) {
        while self.mark.changed().await.is_ok() {
            let snapshot = self.raft.metrics().borrow_watched().snapshot.map_or(0, |id| id.index);
            let grown = self.log.bytes_after(snapshot) >= self.snapshot_log_bytes;
            if grown && !self.take_snapshot().await {
                return;
            }
            TypeConfig::<RT>::sleep(LOOK_EVERY).await;
        }
    }

    /// Takes a snapshot and shortens the log; false when replication is gone.
    async fn take_snapshot(&self) -> bool {
        let before = self.raft.metrics().borrow_watched().snapshot;
        if self.raft.trigger().snapshot().await.is_err() {
            return false;
        }
        let mut metrics = self.raft.metrics();
        let taken = metrics.wait_until(|metrics| metrics.snapshot > before || metrics.running_state.is_err()).await;
        let Ok(metrics) = taken else { return false };
        let Some(snapshot) = metrics.snapshot else { return false };
        let beyond_margin = self.log.index_with_tail_of(self.log_margin_bytes).unwrap_or(0);
        let purge_to = snapshot.index.min(beyond_margin);
        let purged = metrics.purged.map_or(0, |id| id.index);
        purge_to <= purged || self.raft.trigger().purge_log(purge_to).await.is_ok()
    }
}
