//! Writes one snapshot of the machine: an O(1) clone, saved and dropped off the apply path.
//!
//! A full disk is no fault: the write is tried again each second until there is room or the node stops. Any other
//! failure stops the node, since the log could never be shortened again.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use openraft::RaftSnapshotBuilder;
use openraft::async_runtime::Instant;
use openraft::type_config::TypeConfigExt;
use openraft::type_config::alias::InstantOf;

use crate::config::Observer;
use crate::error::StopReason;
use crate::executor::{self, Executor};
use crate::host::Save;
use crate::raft::{AsyncRuntime, Member, NodeId, PlainLeaderId, PlainMembership, TypeConfig};
use crate::snapshot::{Head, SnapshotError, SnapshotStore, Stored};
use crate::stop::Stop;

/// Pause before a snapshot is tried again for which the disk had no room.
const RETRY_FULL_AFTER: Duration = Duration::from_secs(1);

/// A snapshot as replication holds it.
pub type Snapshot = openraft::Snapshot<PlainLeaderId, NodeId, Member, Stored>;

/// What the applier and its snapshots work with.
pub struct Surroundings {
    /// Where snapshots are kept.
    pub snapshots: Arc<dyn SnapshotStore>,
    /// Where blocking work runs.
    pub executor: Arc<dyn Executor>,
    /// Told of snapshots.
    pub observer: Arc<dyn Observer>,
    /// How a fault stops the node.
    pub stop: Arc<Stop>,
}

impl Surroundings {
    /// Stops the node for `why`, and says so to replication.
    pub fn fault(&self, why: StopReason) -> io::Error {
        self.stop.stop(why.clone());
        io::Error::other(why)
    }
}

/// Replication's form of a stored snapshot.
///
/// # Errors
/// When its membership is none.
pub fn of_stored(stored: Stored) -> io::Result<Snapshot> {
    reaching(&stored.head.clone(), stored)
}

/// Says of a stored snapshot that it reaches to `head`, as far as this node's state does. The stored one may reach
/// further: one that a leader sent is stored before it is installed. Replication must not hear of more than the state
/// has: it would take what the leader sends next for known.
fn reaching(head: &Head, stored: Stored) -> io::Result<Snapshot> {
    let membership = head.membership.clone().try_into().map_err(io::Error::other)?;
    let meta = openraft::SnapshotMeta {
        last_log_id: Some(head.last.into()),
        last_membership: PlainMembership::new(head.membership_at.map(Into::into), membership),
    };
    Ok(Snapshot { meta, snapshot: stored })
}

/// The newest snapshot of this node, for its status.
pub struct Latest<RT: AsyncRuntime>(Mutex<Option<Taken<RT>>>);

/// Index, bytes on disk, and when it was taken.
type Taken<RT> = (u64, u64, InstantOf<TypeConfig<RT>>);

impl<RT: AsyncRuntime> Default for Latest<RT> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<RT: AsyncRuntime> Latest<RT> {
    /// `stored` is the newest now.
    pub fn set(&self, stored: &Stored) {
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if latest.is_none_or(|(index, _, _)| index < stored.head.last.index) {
            *latest = Some((stored.head.last.index, stored.disk_bytes, TypeConfig::<RT>::now()));
        }
    }

    /// Index, bytes on disk and age of the newest snapshot.
    pub fn get(&self) -> Option<(u64, u64, Duration)> {
        let latest = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        latest.map(|(index, bytes, taken)| (index, bytes, TypeConfig::<RT>::now().saturating_duration_since(taken)))
    }
}

/// See the module's head.
pub struct Snapshotter<RT: AsyncRuntime> {
    frozen: Option<(Head, Save)>,
    around: Arc<Surroundings>,
    latest: Arc<Latest<RT>>,
}

impl<RT: AsyncRuntime> Snapshotter<RT> {
    /// Will write what was frozen; of nothing, it will refuse to.
    pub fn new(frozen: Option<(Head, Save)>, around: Arc<Surroundings>, latest: Arc<Latest<RT>>) -> Self {
        Self { frozen, around, latest }
    }

    async fn write(&self, save: &Arc<Save>, head: &Head) -> io::Result<Result<Stored, SnapshotError>> {
        let (save, head, around) = (Arc::clone(save), head.clone(), Arc::clone(&self.around));
        executor::run(&self.around.executor, "snapshot", move || around.snapshots.write(head, &mut |sink| save(sink)))
            .await
    }
}

impl<RT: AsyncRuntime> RaftSnapshotBuilder<TypeConfig<RT>> for Snapshotter<RT> {
    type SnapshotData = Stored;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        let Some((head, save)) = self.frozen.take() else {
            return Err(io::Error::other("there is no state to write a snapshot of"));
        };
        let save = Arc::new(save);
        let started = TypeConfig::<RT>::now();
        let stored = loop {
            match self.write(&save, &head).await? {
                Ok(stored) => break stored,
                Err(error) if error.is_disk_full() && !self.around.stop.is_stopping() => {
                    tracing::warn!("snapshot of index {} waits for room on the disk: {error}", head.last.index);
                    TypeConfig::<RT>::sleep(RETRY_FULL_AFTER).await;
                }
                Err(error) => return Err(self.around.fault(StopReason::Storage(error.to_string()))),
            }
        };
        executor::run(&self.around.executor, "state-drop", move || drop(save)).await?;
        let elapsed = TypeConfig::<RT>::now().saturating_duration_since(started);
        self.latest.set(&stored);
        self.around.observer.snapshot_taken(stored.bytes, elapsed);
        reaching(&head, stored)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use openraft::AsyncRuntime as _;
    use openraft_rt_sim::SimRuntime;

    use super::*;
    use crate::config::Unobserved;
    use crate::executor::Inline;
    use crate::persisted::LogIdV1;
    use crate::snapshot::MemorySnapshots;

    fn head(index: u64) -> Head {
        let last = LogIdV1 { term: 1, node: 1, index };
        let membership = Default::default();
        Head { last, ordinal: 0, membership_at: None, membership, stamp_ms: 5, feature_level: 1, format_version: 1 }
    }

    #[test]
    fn of_a_snapshot_that_is_ahead_of_the_state_no_more_is_told_than_the_state_has() {
        SimRuntime::with_seed(1).block_on(async {
            let snapshots = Arc::new(MemorySnapshots::default());
            snapshots.write(head(1_000), &mut |sink| sink.write_all(b"received, not installed")).unwrap();
            let around = Surroundings {
                snapshots,
                executor: Arc::new(Inline),
                observer: Arc::new(Unobserved),
                stop: Arc::new(Stop::default()),
            };
            let save: Save = Box::new(|sink| sink.write_all(b"frozen"));
            let frozen = Some((head(500), save));
            let mut builder = Snapshotter::<SimRuntime>::new(frozen, Arc::new(around), Arc::new(Latest::default()));
            let built = builder.build_snapshot().await.unwrap();
            assert_eq!(built.meta.last_log_id.map(|id| id.index), Some(500));
            assert_eq!(built.snapshot.head.last.index, 1_000, "the store keeps the newest");
        });
    }
}
