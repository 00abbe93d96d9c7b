//! openraft's own store suite, on a real directory, with a state machine that does no more than the suite asks for.

use std::io;
use std::sync::{Arc, Mutex};

use futures_util::{Stream, TryStreamExt};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::type_config::TypeConfigExt;
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder, StorageError};
use tenure_cluster::config::Unobserved;
use tenure_cluster::files::OsDisk;
use tenure_cluster::log::{LogOptions, LogStore};
use tenure_cluster::raft::{LogId, Replies, SnapshotMeta, StoredMembership, TokioRuntime, TypeConfig};

type Types = TypeConfig<TokioRuntime>;

#[derive(Clone, Default)]
struct Machine(Arc<Mutex<Inner>>);

#[derive(Clone, Default)]
struct Inner {
    applied: Option<LogId<TokioRuntime>>,
    membership: StoredMembership<TokioRuntime>,
    snapshot: Option<SnapshotMeta<TokioRuntime>>,
}

type Taken = openraft::type_config::alias::SnapshotOf<Types, ()>;

impl RaftSnapshotBuilder<Types> for Machine {
    type SnapshotData = ();

    async fn build_snapshot(&mut self) -> io::Result<Taken> {
        let mut inner = self.0.lock().unwrap();
        let (last_log_id, last_membership) = (inner.applied, inner.membership.clone());
        let meta = SnapshotMeta::<TokioRuntime> { last_log_id, last_membership };
        inner.snapshot = Some(meta.clone());
        Ok(Taken { meta, snapshot: () })
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotData = ();
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId<TokioRuntime>>, StoredMembership<TokioRuntime>)> {
        let inner = self.0.lock().unwrap();
        Ok((inner.applied, inner.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let mut inner = self.0.lock().unwrap();
            inner.applied = Some(entry.log_id);
            if let EntryPayload::Membership(membership) = entry.payload {
                inner.membership = StoredMembership::<TokioRuntime>::new(inner.applied, membership);
            }
            if let Some(responder) = responder {
                responder.send(Replies::default());
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta<TokioRuntime>, (): ()) -> io::Result<()> {
        let mut inner = self.0.lock().unwrap();
        inner.applied = meta.last_log_id;
        inner.membership = meta.last_membership.clone();
        inner.snapshot = Some(meta.clone());
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Taken>> {
        let inner = self.0.lock().unwrap();
        Ok(inner.snapshot.clone().map(|meta| Taken { meta, snapshot: () }))
    }
}

struct Builder;

impl StoreBuilder<Types, LogStore<TokioRuntime>, Machine, tempfile::TempDir> for Builder {
    async fn build(&self) -> Result<(tempfile::TempDir, LogStore<TokioRuntime>, Machine), StorageError<Types>> {
        let dir = tempfile::tempdir().unwrap();
        let options = LogOptions { segment_bytes: 4096, ..LogOptions::default() };
        let log =
            LogStore::open(Arc::new(OsDisk::default()), dir.path().join("log"), options, Arc::new(Unobserved)).unwrap();
        Ok((dir, log, Machine::default()))
    }
}

#[test]
fn openraft_accepts_the_log() {
    <Types as TypeConfigExt>::run(async { Suite::test_all(Builder).await.unwrap() });
}
