//! A node before it takes part: what it answers. It becomes part of a new cluster when its founder says so; all else
//! it leaves alone, above all entries and votes.
//!
//! Founding and being founded exclude each other: whoever changes what this node belongs to holds [`Agreed`] until that
//! is written. A founder may give way to another only while it knows that nobody has agreed with it: one that had would
//! wait for a cluster that nobody begins.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::{self, BoxFuture};
use tokio::sync::{OwnedMutexGuard, watch};

use super::roll::{Roll, Unwilling};
use super::{Ledger, doorman};
use crate::error::OpenError;
use crate::executor::{self, Executor};
use crate::hello::HelloV1;
use crate::identity::{Belonging, Identity, hex};
use crate::peer::{AdmittedV1, FoundV1, PeerAnswerV1, PeerRequestV1};
use crate::raft::NodeId;
use crate::tcp::PeerHandler;
use crate::transport::{SnapshotOffer, Transport};

/// Who may have agreed to be part of what this node founds: all that were told and did not decline.
pub type Agreed = BTreeSet<NodeId>;

/// See the module's head.
pub struct Candidate {
    pub ledger: Arc<dyn Ledger>,
    pub roll: Roll,
    pub transport: Arc<dyn Transport>,
    pub executor: Arc<dyn Executor>,
    /// Who may have agreed.
    pub agreed: Arc<tokio::sync::Mutex<Agreed>>,
    /// Raised when the ledger has changed.
    pub changed: watch::Sender<()>,
    /// A ledger that could not be written: the node cannot go on.
    pub fault: Mutex<Option<OpenError>>,
}

impl Candidate {
    /// Of a node with this ledger.
    pub fn new(
        ledger: Arc<dyn Ledger>,
        roll: Roll,
        transport: Arc<dyn Transport>,
        executor: Arc<dyn Executor>,
    ) -> Arc<Self> {
        // Of a start before this one nothing is known but that it founded.
        let founds = ledger.identity().belonging.is_some_and(|belonging| belonging.founder);
        let others = roll.peers.keys().copied().filter(|id| founds && *id != roll.me);
        let agreed = Arc::new(tokio::sync::Mutex::new(others.collect()));
        let (changed, fault) = (watch::Sender::new(()), Mutex::default());
        Arc::new(Self { ledger, roll, transport, executor, agreed, changed, fault })
    }

    /// Writes down, durably, that this node belongs to a cluster. `held` is let go of when that is done, even if nobody
    /// waits for it any more.
    ///
    /// # Errors
    /// [`OpenError`]: it belongs to another one meanwhile, or its directory cannot be written.
    pub async fn belongs_to(&self, belonging: Belonging, held: OwnedMutexGuard<Agreed>) -> Result<Identity, OpenError> {
        let ledger = Arc::clone(&self.ledger);
        let write = move || {
            let _held = held;
            ledger.belongs_to(belonging)
        };
        let written = executor::run(&self.executor, "identity", write).await;
        let written = written.map_err(|error| OpenError::Raft(error.to_string()))?;
        self.changed.send_replace(());
        written
    }

    /// Why the node cannot go on, if a request came upon it.
    pub fn take_fault(&self) -> Option<OpenError> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    async fn found(&self, from: &HelloV1, found: FoundV1) -> AdmittedV1 {
        let agreed = Arc::clone(&self.agreed).lock_owned().await;
        let identity = self.ledger.identity();
        let FoundV1 { cluster, founded_wall_ms, .. } = found;
        match identity.belonging {
            Some(mine) if mine.cluster == cluster || !mine.founder => return found_again(&identity, &found),
            Some(_) if from.node > identity.node_id || !agreed.is_empty() => {
                return AdmittedV1::Later(format!("node {} founds a cluster itself", identity.node_id));
            }
            Some(_) | None => {}
        }
        match self.roll.judge(identity.incarnation, from, &found, &self.transport.links()) {
            Err(Unwilling::Now(line)) => return AdmittedV1::Later(line),
            Err(Unwilling::Ever(line)) => return AdmittedV1::No(line),
            Ok(()) => {}
        }
        let belonging = Belonging { cluster, founded_wall_ms, founder: false, admitted_at: 0 };
        match self.belongs_to(belonging, agreed).await {
            Ok(identity) => found_again(&identity, &found),
            Err(OpenError::Foreign { .. }) => found_again(&self.ledger.identity(), &found),
            Err(error) => {
                let line = error.to_string();
                *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                self.changed.send_replace(());
                AdmittedV1::Later(line)
            }
        }
    }
}

/// The answer of a node that belongs to a cluster. It may have been asked before, and its answer lost. Anything else
/// means that one of the two sees the other as it was: the founder looks again.
pub fn found_again(identity: &Identity, found: &FoundV1) -> AdmittedV1 {
    let (cluster, founded_wall_ms) = (found.cluster, found.founded_wall_ms);
    let is_mine = identity.belonging.is_some_and(|belonging| belonging.cluster == cluster);
    if is_mine && found.incarnation == identity.incarnation {
        return AdmittedV1::Yes { cluster, founded_wall_ms, at: 0 };
    }
    AdmittedV1::Later(format!("{} is not to be part of cluster {}", identity.name(), hex(&cluster)))
}

/// The handler that a transport knows.
pub struct Waiting(pub Arc<Candidate>);

impl PeerHandler for Waiting {
    fn answer(&self, from: &HelloV1, request: PeerRequestV1) -> BoxFuture<'static, PeerAnswerV1> {
        let (candidate, from) = (Arc::clone(&self.0), from.clone());
        Box::pin(async move {
            match request {
                PeerRequestV1::Found(found) => PeerAnswerV1::Admitted(candidate.found(&from, found).await),
                PeerRequestV1::Admit(_) => {
                    let name = candidate.ledger.identity().name();
                    PeerAnswerV1::Admitted(AdmittedV1::Later(format!("{name} waits for its own peers")))
                }
                _ => not_yet(),
            }
        })
    }

    fn snapshot(&self, _from: &HelloV1, _offer: SnapshotOffer) -> BoxFuture<'static, PeerAnswerV1> {
        Box::pin(future::ready(not_yet()))
    }

    fn refuse(&self, from: &HelloV1) -> Option<String> {
        doorman::refuse_before(&self.0.ledger.identity(), &self.0.roll.peers, from)
    }
}

/// The handler of a node that takes part no more. It holds on to nothing.
pub struct Away;

impl PeerHandler for Away {
    fn answer(&self, _from: &HelloV1, _request: PeerRequestV1) -> BoxFuture<'static, PeerAnswerV1> {
        Box::pin(future::ready(PeerAnswerV1::Refused("this node has stopped".to_owned())))
    }

    fn snapshot(&self, _from: &HelloV1, _offer: SnapshotOffer) -> BoxFuture<'static, PeerAnswerV1> {
        Box::pin(future::ready(PeerAnswerV1::Refused("this node has stopped".to_owned())))
    }

    fn refuse(&self, _from: &HelloV1) -> Option<String> {
        Some("this node has stopped".to_owned())
    }
}

fn not_yet() -> PeerAnswerV1 {
    PeerAnswerV1::Refused("this node does not take part yet".to_owned())
}
