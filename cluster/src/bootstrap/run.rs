//! Brings a node to take part: founds, is founded, or is admitted, and goes on from wherever the last start was cut
//! short. It returns at once for a node that belongs to a cluster.
//!
//! Each round looks at the links, decides (`roll`), and acts. There is no event for "a peer has said hello", so a round
//! comes every [`LOOK_EVERY`], and at once when the ledger changed. All that is asked may be asked twice.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future;
use openraft::type_config::TypeConfigExt;
use tokio::sync::watch;

use super::candidate::{Candidate, Waiting};
use super::roll::{Call, Canvass, Consents};
use super::{Reception, by_hint, hello};
use crate::error::OpenError;
use crate::identity::{Belonging, Identity};
use crate::peer::{AdmitV1, AdmittedV1, FoundV1, PeerAnswerV1, PeerRequestV1};
use crate::peer_config::Startup;
use crate::raft::{AsyncRuntime, Member, NodeId, TypeConfig};
use crate::timekeeper::WallClock;
use crate::transport::Peer;

/// Pause between two rounds.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a peer may take to answer, its disk's sync included.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Greatest pause between two requests for admission; the first is [`LOOK_EVERY`], and each is twice the one before.
const ASK_PAUSE_MAX: Duration = Duration::from_secs(2);

/// Fills a buffer with random bytes.
pub type Random = Box<dyn FnMut(&mut [u8]) -> io::Result<()> + Send + Sync>;

/// See the module's head.
pub struct Bootstrap {
    /// This node's answers.
    pub candidate: Arc<Candidate>,
    /// Its end of the transport.
    pub reception: Arc<dyn Reception>,
    /// This node as a member.
    pub member: Member,
    /// Its build's feature level.
    pub feature_level: u16,
    /// Its log holds nothing.
    pub is_blank: bool,
    /// For the cluster's id.
    pub random: Random,
    /// For the time of founding.
    pub wall: WallClock,
    /// Told what is waited for.
    pub startup: watch::Sender<Startup>,
}

/// How a round ended.
enum Round {
    /// The node takes part; a founder begins with these voters.
    Done(Option<BTreeMap<NodeId, Member>>),
    /// The next one comes after so long.
    Again(Duration),
}

impl Bootstrap {
    /// Returns once the node belongs to a cluster that is begun, or is to be begun by it with the voters returned.
    ///
    /// # Errors
    /// [`OpenError`]: it is refused, its peers contradict each other, or its directory cannot be written.
    pub async fn run<RT: AsyncRuntime>(mut self) -> Result<Option<BTreeMap<NodeId, Member>>, OpenError> {
        let roll = self.candidate.roll.clone();
        self.introduce();
        self.reception.handle(Arc::new(Waiting(Arc::clone(&self.candidate))));
        self.candidate.transport.know(by_hint(roll.me, &roll.peers));
        let mut changed = self.candidate.changed.subscribe();
        let (mut consents, mut pause) = (Consents::new(), LOOK_EVERY);
        loop {
            if let Some(fault) = self.candidate.take_fault() {
                return Err(fault);
            }
            match self.round::<RT>(&mut consents, &mut pause).await? {
                Round::Done(voters) => return Ok(voters),
                Round::Again(after) => {
                    // The candidate is here, so its sender is.
                    let changed = async { drop(changed.changed().await) };
                    TypeConfig::<RT>::select2(changed, TypeConfig::<RT>::sleep(after)).await;
                }
            }
        }
    }

    fn introduce(&self) {
        let identity = self.candidate.ledger.identity();
        self.reception.introduce(hello(&identity, &self.member, self.feature_level, true));
    }

    async fn round<RT: AsyncRuntime>(
        &mut self,
        consents: &mut Consents,
        pause: &mut Duration,
    ) -> Result<Round, OpenError> {
        let identity = self.candidate.ledger.identity();
        let links = self.candidate.transport.links();
        let roll = &self.candidate.roll;
        match identity.belonging {
            Some(belonging) if belonging.founder && self.is_blank && identity.several => {
                match roll.canvass(&belonging.cluster, &self.member, &links, consents) {
                    Canvass::Begin(voters) => Ok(Round::Done(Some(voters))),
                    Canvass::Ask(ids) => self.ask::<RT>(&identity, &ids, pause).await,
                    Canvass::Tell(ids, missing) => {
                        self.wait(Startup::WaitingForPeers(missing));
                        self.tell::<RT>(&belonging, ids, consents).await
                    }
                }
            }
            Some(_) => Ok(Round::Done(None)),
            None => match roll.call(&links) {
                Call::Refuse(line) => Err(OpenError::Refused(line)),
                Call::Ask(ids) => self.ask::<RT>(&identity, &ids, pause).await,
                Call::Found => self.found().await,
                Call::Wait(missing) => {
                    self.wait(Startup::WaitingForPeers(missing));
                    Ok(Round::Again(LOOK_EVERY))
                }
                Call::Listen(founder) => {
                    let line = "founds the cluster and has not told this node yet".to_owned();
                    self.wait(Startup::WaitingForPeers(vec![(founder, line)]));
                    Ok(Round::Again(LOOK_EVERY))
                }
            },
        }
    }

    /// Draws the cluster's id. It is written down before anybody is told.
    async fn found(&mut self) -> Result<Round, OpenError> {
        let agreed = Arc::clone(&self.candidate.agreed).lock_owned().await;
        if self.candidate.ledger.identity().belonging.is_some() {
            // Another founder was faster: the next round sees it.
            return Ok(Round::Again(Duration::ZERO));
        }
        let mut cluster = [0; 16];
        (self.random)(&mut cluster).map_err(|error| OpenError::Raft(format!("no random numbers: {error}")))?;
        let belonging = Belonging { cluster, founded_wall_ms: (self.wall)(), founder: true, admitted_at: 0 };
        self.candidate.belongs_to(belonging, agreed).await?;
        self.introduce();
        Ok(Round::Again(Duration::ZERO))
    }

    /// Tells `ids` what they become part of, and keeps who agreed.
    async fn tell<RT: AsyncRuntime>(
        &self,
        belonging: &Belonging,
        ids: Vec<(NodeId, u64)>,
        consents: &mut Consents,
    ) -> Result<Round, OpenError> {
        let links = self.candidate.transport.links();
        {
            let mut agreed = self.candidate.agreed.lock().await;
            if self.candidate.ledger.identity().belonging != Some(*belonging) {
                // It gave way to another founder: the next round sees it.
                return Ok(Round::Again(Duration::ZERO));
            }
            agreed.extend(ids.iter().map(|(id, _)| *id));
        }
        let told = ids.into_iter().map(|(id, incarnation)| async move {
            let found = FoundV1 {
                cluster: belonging.cluster,
                founded_wall_ms: belonging.founded_wall_ms,
                incarnation,
                peers: self.candidate.roll.peers.clone().into_iter().collect(),
            };
            (id, incarnation, self.call::<RT>(id, PeerRequestV1::Found(found)).await)
        });
        let (mut after, mut declined) = (LOOK_EVERY, BTreeSet::new());
        for (id, incarnation, answer) in future::join_all(told).await {
            match answer {
                Ok(AdmittedV1::Yes { .. }) => {
                    let hello = links.get(&id).and_then(|link| link.hello.clone());
                    consents.extend(hello.filter(|hello| hello.incarnation == incarnation).map(|hello| (id, hello)));
                    after = Duration::ZERO;
                }
                Ok(AdmittedV1::No(line)) => return Err(OpenError::Refused(line)),
                Ok(AdmittedV1::Later(_)) => drop(declined.insert(id)),
                // It may have agreed all the same.
                Err(_) => {}
            }
        }
        self.candidate.agreed.lock().await.retain(|id| !declined.contains(id));
        Ok(Round::Again(after))
    }

    /// Asks for admission, one after the other, until one says yes or no.
    async fn ask<RT: AsyncRuntime>(
        &self,
        identity: &Identity,
        ids: &[NodeId],
        pause: &mut Duration,
    ) -> Result<Round, OpenError> {
        let mut answers = Vec::new();
        for id in ids {
            let admit = AdmitV1 {
                node: identity.node_id,
                incarnation: identity.incarnation,
                client: self.member.client.clone(),
                peer: self.member.peer.clone(),
            };
            match self.call::<RT>(*id, PeerRequestV1::Admit(admit)).await {
                Ok(AdmittedV1::Yes { cluster, founded_wall_ms, at }) => {
                    let belonging = Belonging { cluster, founded_wall_ms, founder: false, admitted_at: at };
                    let agreed = Arc::clone(&self.candidate.agreed).lock_owned().await;
                    self.candidate.belongs_to(belonging, agreed).await?;
                    return Ok(Round::Done(None));
                }
                Ok(AdmittedV1::No(line)) => return Err(OpenError::Refused(line)),
                Ok(AdmittedV1::Later(line)) | Err(line) => answers.push(format!("node {id}: {line}")),
            }
        }
        self.wait(Startup::AskingAdmission(answers.join("; ")));
        let after = *pause;
        *pause = (after * 2).min(ASK_PAUSE_MAX);
        Ok(Round::Again(after))
    }

    /// Tells what is waited for, if that is something else than before.
    fn wait(&self, now: Startup) {
        self.startup.send_if_modified(|told| {
            let is_other = *told != now;
            *told = now;
            is_other
        });
    }

    async fn call<RT: AsyncRuntime>(&self, id: NodeId, request: PeerRequestV1) -> Result<AdmittedV1, String> {
        ask_peer::<RT>(&*self.candidate.transport, self.peer(id), request).await
    }

    fn peer(&self, id: NodeId) -> Peer {
        let hinted = self.candidate.roll.peers.get(&id).map_or("", String::as_str);
        Peer { id, member: super::at(hinted), hints: Vec::new() }
    }
}

/// Asks a peer about taking part.
///
/// # Errors
/// Why there is no answer, in one line; what was asked for may have been done.
pub async fn ask_peer<RT: AsyncRuntime>(
    transport: &dyn crate::transport::Transport,
    peer: Peer,
    request: PeerRequestV1,
) -> Result<AdmittedV1, String> {
    let id = peer.id;
    match TypeConfig::<RT>::timeout(ANSWER_WITHIN, transport.call(peer, request)).await {
        Ok(Ok(PeerAnswerV1::Admitted(answer))) => Ok(answer),
        Ok(Ok(PeerAnswerV1::Refused(line))) => Err(line),
        Ok(Ok(_)) => Err(format!("node {id} gave another kind of answer")),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer from node {id} within {} s", ANSWER_WITHIN.as_secs())),
    }
}
