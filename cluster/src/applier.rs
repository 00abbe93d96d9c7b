//! Applies committed entries: replication's state machine over a [`Host`].
//!
//! An entry that does not decode, or a snapshot that does not load, stops the node with one line: going on would let
//! this node differ from the others.

use std::io;
use std::sync::Arc;

use futures_util::{Stream, StreamExt};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend};

use crate::error::StopReason;
use crate::executor;
use crate::host::Host;
use crate::persisted::LogIdV1;
use crate::raft::{AsyncRuntime, PlainLogId, PlainMembership, Replies, SnapshotMeta, TypeConfig};
use crate::snapshot::Stored;
use crate::snapshotter::{self, Latest, Snapshot, Snapshotter, Surroundings};

/// See the module's head.
pub struct Applier<RT: AsyncRuntime> {
    /// The machine.
    pub host: Arc<dyn Host>,
    /// Snapshots, and how a fault stops the node.
    pub around: Arc<Surroundings>,
    /// The newest snapshot.
    pub latest: Arc<Latest<RT>>,
}

impl<RT: AsyncRuntime> Applier<RT> {
    fn fault(&self, what: String) -> io::Error {
        self.around.fault(StopReason::Replication(what))
    }

    /// An entry that was left out would make this node differ from the others for ever.
    fn check_next(&self, id: LogIdV1) -> io::Result<()> {
        let applied = self.host.last().map(|last| last.index);
        let next = applied.map_or(0, |last| last.saturating_add(1));
        if id.index == next {
            return Ok(());
        }
        Err(self.fault(format!("entry {} follows entry {applied:?} in the log: entries are missing", id.index)))
    }

    fn apply_entry(
        &self,
        id: LogIdV1,
        payload: EntryPayload<crate::raft::Batch, crate::raft::NodeId, crate::raft::Member>,
        is_awaited: bool,
    ) -> io::Result<Replies> {
        match payload {
            EntryPayload::Normal(batch) => self
                .host
                .apply(id, &batch, is_awaited)
                .map_err(|error| self.fault(format!("entry {} cannot be applied: {error}", id.index))),
            EntryPayload::Blank => Ok(self.host.pass(id, None)),
            EntryPayload::Membership(membership) => {
                Ok(self.host.pass(id, Some(PlainMembership::new(Some(id.into()), membership))))
            }
        }
    }
}

impl<RT: AsyncRuntime> RaftStateMachine<TypeConfig<RT>> for Applier<RT> {
    type SnapshotData = Stored;
    type SnapshotBuilder = Snapshotter<RT>;

    async fn applied_state(&mut self) -> Result<(Option<PlainLogId>, PlainMembership), io::Error> {
        let (last, membership) = self.host.applied();
        Ok((last.map(Into::into), membership))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig<RT>>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some(next) = entries.next().await {
            let (entry, responder) = next?;
            let id = LogIdV1::from(&entry.log_id);
            self.check_next(id)?;
            let replies = self.apply_entry(id, entry.payload, responder.is_some())?;
            if let Some(responder) = responder {
                responder.send(replies);
            }
        }
        Ok(())
    }

    async fn try_create_snapshot_builder(&mut self, _force: bool) -> Option<Self::SnapshotBuilder> {
        let frozen = self.host.freeze()?;
        Some(Snapshotter::new(Some(frozen), Arc::clone(&self.around), Arc::clone(&self.latest)))
    }

    async fn get_snapshot_builder(&mut self) -> Self::SnapshotBuilder {
        // Replication calls `try_create_snapshot_builder` alone; this old form cannot refuse.
        Snapshotter::new(None, Arc::clone(&self.around), Arc::clone(&self.latest))
    }

    /// Called with a leader's snapshot, and at each start with this node's own. Installing what the state already
    /// contains changes nothing.
    async fn install_snapshot(&mut self, meta: &SnapshotMeta<RT>, stored: Stored) -> Result<(), io::Error> {
        let last = stored.head.last;
        if self.host.last() >= Some(last) {
            return Ok(());
        }
        let (host, around, membership) =
            (Arc::clone(&self.host), Arc::clone(&self.around), meta.last_membership.clone());
        let installed = executor::run(&self.around.executor, "snapshot-load", move || {
            host.install(&*around.snapshots, &stored, membership)
        })
        .await?;
        let replaced = installed
            .map_err(|error| self.fault(format!("snapshot of index {} cannot be loaded: {error}", last.index)))?;
        executor::run(&self.around.executor, "state-drop", move || drop(replaced)).await
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        let around = Arc::clone(&self.around);
        let newest = executor::run(&self.around.executor, "snapshot-look", move || around.snapshots.newest()).await?;
        let newest = newest.map_err(|error| self.around.fault(StopReason::Storage(error.to_string())))?;
        newest.iter().for_each(|stored| self.latest.set(stored));
        newest.map(snapshotter::of_stored).transpose()
    }
}
