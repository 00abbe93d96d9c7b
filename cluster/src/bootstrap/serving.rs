//! A node that takes part: what it answers to whom, and how it lets others in.
//!
//! Only the leader lets in, since only it can change the membership; the others carry the question to it. Without a
//! leader a node still says no to a wiped one, so that this hears why the cluster has none; but not while there may be
//! a leader, which may know of its replacement.

use std::sync::{Arc, Weak};

use futures_util::future::{self, BoxFuture};
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

    /// Answers what is not replication's to answer.
    async fn host(self, from: HelloV1, request: PeerRequestV1) -> Result<PeerAnswerV1, PeerAnswerV1> {
        let node = self.node()?;
        match request {
            PeerRequestV1::Found(found) => Ok(PeerAnswerV1::Admitted(found_again(&self.ledger.identity(), &found))),
            PeerRequestV1::Admit(ask) => Ok(PeerAnswerV1::Admitted(self.admit(&node, &from, ask).await)),
            PeerRequestV1::Replace(id) => {
                self.belongs(&from)?;
                Ok(PeerAnswerV1::Replaced(match node.replace_here(id).await {
                    Ok(()) => ReplacedV1::Done,
                    Err(ReplaceError::Refused(line)) => ReplacedV1::No(line),
                    Err(ReplaceError::Unavailable(line)) => ReplacedV1::Later(line),
                }))
            }
            other => Ok(node.answer_peer(other).await),
        }
    }

    async fn admit(&self, node: &Node<RT>, from: &HelloV1, ask: AdmitV1) -> AdmittedV1 {
        let Some(belonging) = self.ledger.identity().belonging else {
            return AdmittedV1::Later("this node belongs to no cluster".to_owned());
        };
        let register = register::<RT>(&self.server);
        let asker = ask.node;
        let verdict = admission::judge(&belonging.cluster, &register, &self.peers, &ask);
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
            Some(leader) => {
                let answer = ask_peer::<RT>(&*self.transport, leader, PeerRequestV1::Admit(ask)).await;
                answer.unwrap_or_else(AdmittedV1::Later)
            }
            None if register.is_empty() && belonging.admitted_at == 0 => {
                AdmittedV1::Later(admission::not_begun(&belonging.cluster, node.node_id))
            }
            None => AdmittedV1::Later(format!("node {} knows of no leader that could answer", node.node_id)),
        };
        match (answer, verdict) {
            (AdmittedV1::Later(why), Verdict::Wiped(line)) if self.may_be_led(node.node_id, asker, &register) => {
                AdmittedV1::Later(format!("{why}; as node {} knows it, {line}", node.node_id))
            }
            (AdmittedV1::Later(_), Verdict::Wiped(line)) => AdmittedV1::No(line),
            (answer, _) => answer,
        }
    }

    /// May there be a leader, which may know of a replacement that this node has not heard of yet? Not if the one that
    /// it followed has said since that it has another data directory, nor if it knows of none while no majority is
    /// there to elect one.
    fn may_be_led(&self, me: NodeId, asker: NodeId, register: &Register) -> bool {
        let links = self.transport.links();
        let is_as_known = |id: NodeId, hello: &HelloV1| {
            let known = register.get(id).map_or(0, |member| member.incarnation);
            let is_newer = hello.admitted_at > register.at();
            hello.cluster.is_some() && (is_newer || [0, hello.incarnation].contains(&known))
        };
        if let Some(leader) = self.leader(me, asker, register) {
            // Silence says nothing.
            let said = links.get(&leader.id).and_then(|link| link.hello.as_ref());
            return said.is_none_or(|hello| is_as_known(leader.id, hello));
        }
        let is_there = |id: NodeId| {
            let link = links.get(&id).filter(|link| link.connected);
            id == me || link.and_then(|link| link.hello.as_ref()).is_some_and(|hello| is_as_known(id, hello))
        };
        let voters: Vec<NodeId> = register.0.membership().voter_ids().collect();
        voters.iter().filter(|id| is_there(**id)).count() * 2 > voters.len()
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
        match request {
            PeerRequestV1::Found(_) | PeerRequestV1::Admit(_) | PeerRequestV1::Replace(_) => {
                let answer = self.clone().host(from.clone(), request);
                Box::pin(async move { answer.await.unwrap_or_else(|refused| refused) })
            }
            PeerRequestV1::LeaderGone(ref asked) if asked.candidate != from.node => {
                let line = format!("node {} asks for node {}", from.node, asked.candidate);
                Box::pin(future::ready(PeerAnswerV1::Refused(line)))
            }
            // The many: nothing is copied for them.
            _ => match self.belongs(from).and_then(|()| self.node()) {
                Ok(node) => Box::pin(async move { node.answer_peer(request).await }),
                Err(refused) => Box::pin(future::ready(refused)),
            },
        }
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
