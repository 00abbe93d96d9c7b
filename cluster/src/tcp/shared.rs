//! What the tasks of a node's peer transport share.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};

use super::greeting::Side;
use super::handler::PeerHandler;
use super::journal::Journal;
use super::limits::{ACCEPTED_MAX, Pace, SNAPSHOTS_IN_MAX, SNAPSHOTS_OUT_MAX};
use super::link::{Gone, Link};
use super::strangers::Strangers;
use crate::hello::{HelloV1, PurposeV1};
use crate::peer_config::Secret;
use crate::raft::NodeId;

/// A known peer, and the task that keeps a connection to it.
pub(super) struct Kept {
    /// The peer.
    pub link: Arc<Link>,
    /// Its keeper.
    pub keeper: AbortHandle,
}

/// Bounds on connections and snapshots.
pub(super) struct Permits {
    /// Accepted and authenticated.
    pub accepted: Arc<Semaphore>,
    /// Snapshots taken in.
    pub snapshots_in: Arc<Semaphore>,
    /// Snapshots sent.
    pub snapshots_out: Arc<Semaphore>,
}

/// The latest requests connection that each node has dialled.
#[derive(Default)]
struct Latest {
    /// The last serial number given.
    serial: u64,
    /// Its serial number, and what ends it when dropped.
    of: BTreeMap<NodeId, (u64, oneshot::Sender<()>)>,
}

/// What the tasks share.
pub(super) struct Shared {
    /// The cluster's secret.
    pub secret: Secret,
    /// How long things may take.
    pub pace: Pace,
    /// Where the tasks run.
    pub runtime: Handle,
    /// What this node says of itself.
    pub own: watch::Sender<Option<HelloV1>>,
    /// Who answers.
    pub handler: RwLock<Option<Arc<dyn PeerHandler>>>,
    /// The known peers.
    pub peers: Mutex<BTreeMap<NodeId, Kept>>,
    /// Those that are gone.
    pub gone: Gone,
    /// Counts the changes of the links.
    pub changes: watch::Sender<u64>,
    /// The log's lines.
    pub journal: Journal,
    /// Bounds.
    pub permits: Permits,
    /// Accepted, not authenticated.
    pub strangers: Arc<Strangers>,
    /// The transport is closed.
    pub closed: watch::Sender<bool>,
    latest: Mutex<Latest>,
    /// `None` once closed.
    tasks: Mutex<Option<JoinSet<()>>>,
}

impl Shared {
    /// Without peers, handler or hello.
    pub(super) fn new(secret: Secret, pace: Pace, runtime: Handle) -> Self {
        Self {
            secret,
            pace,
            runtime,
            own: watch::channel(None).0,
            handler: RwLock::default(),
            peers: Mutex::default(),
            gone: watch::Sender::default(),
            changes: watch::channel(0).0,
            journal: Journal::default(),
            permits: Permits {
                accepted: Arc::new(Semaphore::new(ACCEPTED_MAX)),
                snapshots_in: Arc::new(Semaphore::new(SNAPSHOTS_IN_MAX)),
                snapshots_out: Arc::new(Semaphore::new(SNAPSHOTS_OUT_MAX)),
            },
            strangers: Arc::default(),
            closed: watch::channel(false).0,
            latest: Mutex::default(),
            tasks: Mutex::new(Some(JoinSet::new())),
        }
    }

    /// The known peers.
    pub(super) fn peers(&self) -> MutexGuard<'_, BTreeMap<NodeId, Kept>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A known peer.
    pub(super) fn link(&self, id: NodeId) -> Option<Arc<Link>> {
        self.peers().get(&id).map(|kept| Arc::clone(&kept.link))
    }

    /// The handler as of now.
    pub(super) fn handler(&self) -> Option<Arc<dyn PeerHandler>> {
        self.handler.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// This node, for a greeting.
    pub(super) fn side(&self, own: HelloV1, purpose: PurposeV1) -> Side {
        Side {
            own: HelloV1 { purpose, ..own },
            secret: self.secret.clone(),
            handler: self.handler(),
            linger: self.pace.linger,
        }
    }

    /// Runs `task` until it ends or the transport is closed; `None` when it is closed already.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Option<AbortHandle> {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let tasks = tasks.as_mut()?;
        // Those that have ended are let go of here.
        while tasks.try_join_next().is_some() {}
        Some(tasks.spawn_on(task, &self.runtime))
    }

    /// Ends all tasks, and lets no new one begin.
    pub(super) fn end(&self) -> Option<JoinSet<()>> {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.closed.send_replace(true);
        let peers = std::mem::take(&mut *self.peers());
        for kept in peers.into_values() {
            kept.keeper.abort();
            kept.link.retire(&self.gone, "this node's peer listener is closed");
        }
        tasks.map(|mut tasks| {
            tasks.abort_all();
            tasks
        })
    }

    /// A node has dialled a new requests connection: any older one of its ends. Resolves when this one is to end.
    pub(super) fn succeed(&self, node: NodeId) -> (u64, oneshot::Receiver<()>) {
        let (end, ended) = oneshot::channel();
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.serial += 1;
        let serial = latest.serial;
        latest.of.insert(node, (serial, end));
        (serial, ended)
    }

    /// That connection has ended by itself.
    pub(super) fn leave(&self, node: NodeId, serial: u64) {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if latest.of.get(&node).is_some_and(|(last, _)| *last == serial) {
            latest.of.remove(&node);
        }
    }
}
