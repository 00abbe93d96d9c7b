//! A node that takes part: what it answers to whom, and how it lets others in.
//!
//! Only the leader lets in, since only it can change the membership; the others carry the question to it. Without a
//! leader a node still says no to a wiped one, so that this hears why the cluster has none.

use std::sync::{Arc, Weak};

use futures_util::future::BoxFuture;
use openraft::ChangeMembers;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::type_config::TypeConfigExt;

use super::admission::{self, Verdict};
use super::candidate::found_again;
use super::doorman::{self, Register};
use super::run::ask_peer;
use super::{Ledger, Peers};
use crate::cluster::Node;
use crate::error::ReplaceError;
use crate::hello::HelloV1;
use crate::peer::{AdmitV1, AdmittedV1, PeerAnswerV1, PeerRequestV1, ReplacedV1};
use crate::raft::{AsyncRuntime, Member, NodeId, TypeConfig};
use crate::standing::ServerWatch;
use crate::tcp::PeerHandler;
use crate::transport::{Peer, SnapshotOffer, Transport};

/// The committed membership now.
pub fn register<RT: AsyncRuntime>(server: &ServerWatch<RT>) -> Register {
    Register(Arc::clone(&server.borrow_watched().committed_membership_config))
}

/// See the module's head.
pub struct Serving<RT: AsyncRuntime> {
    /// The node, while somebody has its handle.
    pub node: Weak<Node<RT>>,
    /// What it belongs to.
    pub ledger: Arc<dyn Ledger>,
    /// `--peers`.
    pub peers: Peers,
    /// The way to the leader.
    pub transport: Arc<dyn Transport>,
    /// For the membership and the leader.
    pub server: ServerWatch<RT>,
}

impl<RT: AsyncRuntime> Clone for Serving<RT> {
    fn clone(&self) -> Self {
        Self {
            node: Weak::clone(&self.node),
            ledger: Arc::clone(&self.ledger),
            peers: self.peers.clone(),
            transport: Arc::clone(&self.transport),
            server: self.server.clone(),
        }
    }
}

impl<RT: AsyncRuntime> Serving<RT> {
    fn node(&self) -> Result<Arc<Node<RT>>, PeerAnswerV1> {
        let node = self.node.upgrade().filter(|node| !node.stop.is_stopping());
        node.ok_or_else(|| PeerAnswerV1::Refused("the node is stopping".to_owned()))
    }

    /// Is `from` one whose entries and votes count here?
    fn belongs(&self, from: &HelloV1) -> Result<(), PeerAnswerV1> {
        let mine = self.ledger.identity().belonging.map(|belonging| belonging.cluster);
        if from.cluster.is_none() || from.cluster != mine {
            let line = format!("node {} does not belong to the cluster: it may ask for admission", from.node);
            return Err(PeerAnswerV1::Refused(line));
        }
        self.refuse(from).map_or(Ok(()), |line| Err(PeerAnswerV1::Refused(line)))
    }

    async fn answer(self, from: HelloV1, request: PeerRequestV1) -> Result<PeerAnswerV1, PeerAnswerV1> {
        let node = self.node()?;
        match request {
            PeerRequestV1::Found(found) => Ok(PeerAnswerV1::Admitted(found_again(&self.ledger.identity(), &found))),
            PeerRequestV1::Admit(ask) => Ok(PeerAnswerV1::Admitted(self.admit(&node, &from, ask).await)),
            PeerRequestV1::Replace(id) => {
                self.belongs(&from)?;
                Ok(PeerAnswerV1::Replaced(match node.replace_here(id, &self.peers).await {
                    Ok(()) => ReplacedV1::Done,
                    Err(ReplaceError::Refused(line)) => ReplacedV1::No(line),
                    Err(ReplaceError::Unavailable(line)) => ReplacedV1::Later(line),
                }))
            }
            other => {
                self.belongs(&from)?;
                Ok(node.answer_peer(other).await)
            }
        }
    }

    async fn admit(&self, node: &Node<RT>, from: &HelloV1, ask: AdmitV1) -> AdmittedV1 {
        let Some(belonging) = self.ledger.identity().belonging else {
            return AdmittedV1::Later("this node belongs to no cluster".to_owned());
        };
        let register = register::<RT>(&self.server);
        let verdict = admission::judge(&belonging.cluster, &register, &ask);
        let yes = |at| AdmittedV1::Yes { cluster: belonging.cluster, founded_wall_ms: belonging.founded_wall_ms, at };
        if node.time.lead().is_some() {
            return match verdict {
                Verdict::Yes => yes(register.at()),
                Verdict::Stranger(line) | Verdict::Wiped(line) => AdmittedV1::No(line),
                Verdict::Record(member) => match record::<RT>(node, ask.node, member).await {
                    Ok(at) => yes(at),
                    Err(line) => AdmittedV1::Later(line),
                },
            };
        }
        // Whoever speaks for another has asked on its behalf: once is enough.
        let leader = if from.node == ask.node { self.leader(node.node_id, ask.node, &register) } else { None };
        let answer = match leader {
            Some(leader) => ask_peer::<RT>(&*self.transport, leader, PeerRequestV1::Admit(ask)).await,
            None => AdmittedV1::Later(format!("node {} knows of no leader that could answer", node.node_id)),
        };
        match (answer, verdict) {
            (AdmittedV1::Later(_), Verdict::Wiped(line)) => AdmittedV1::No(line),
            (answer, _) => answer,
        }
    }

    /// The leader that replication names, unless it is this node or the one that asks.
    fn leader(&self, me: NodeId, asker: NodeId, register: &Register) -> Option<Peer> {
        let leader = self.server.borrow_watched().current_leader.filter(|leader| ![me, asker].contains(leader))?;
        Some(Peer { id: leader, member: register.get(leader)?.clone(), hints: Vec::new() })
    }
}

/// Puts into the membership what is known of `id` now, and returns the entry's index.
///
/// # Errors
/// Why it could not, in one line.
pub async fn record<RT: AsyncRuntime>(node: &Node<RT>, id: NodeId, member: Member) -> Result<u64, String> {
    let change = node.raft.change_membership(ChangeMembers::SetNodes([(id, member)].into()), true);
    match TypeConfig::<RT>::timeout(node.request_timeout, change).await {
        Ok(Ok(done)) => Ok(done.log_id.index),
        Ok(Err(error)) => Err(format!("the membership cannot be changed now: {error}")),
        Err(_) => Err("the membership could not be changed in time".to_owned()),
    }
}

impl<RT: AsyncRuntime> PeerHandler for Serving<RT> {
    fn answer(&self, from: &HelloV1, request: PeerRequestV1) -> BoxFuture<'static, PeerAnswerV1> {
        let answer = self.clone().answer(from.clone(), request);
        Box::pin(async move { answer.await.unwrap_or_else(|refused| refused) })
    }

    fn snapshot(&self, from: &HelloV1, offer: SnapshotOffer) -> BoxFuture<'static, PeerAnswerV1> {
        let node = self.belongs(from).and_then(|()| self.node());
        Box::pin(async move {
            match node {
                Ok(node) => node.receive_snapshot(offer).await,
                Err(refused) => refused,
            }
        })
    }

    fn refuse(&self, from: &HelloV1) -> Option<String> {
        let identity = self.ledger.identity();
        let belonging = identity.belonging?;
        doorman::refuse(&identity, &belonging, &self.peers, &register::<RT>(&self.server), from)
    }
}
