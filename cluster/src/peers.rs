//! The other end: what this node answers to its peers' requests.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use openraft::async_runtime::Select2;
use openraft::errors::RaftError;
use openraft::type_config::TypeConfigExt;

use crate::cluster::Node;
use crate::forwarded::{self, Fitness};
use crate::machine::Stamp;
use crate::network;
use crate::peer::{
    AppendV1, AppendedV1, ForwardedV1, PeerAnswerV1, PeerRequestV1, ReadIndexV1, TransferAnswerV1, VoteAnswerV1,
};
use crate::persisted::Foreign;
use crate::raft::{AsyncRuntime, TypeConfig};
use crate::reads::{self, Round};
use crate::snapshotter;
use crate::standing::Standing;
use crate::transport::SnapshotOffer;

impl<RT: AsyncRuntime> Node<RT> {
    /// Answers a peer's request. Who may ask, and that it is a member of this cluster, is the transport's to know.
    pub async fn answer_peer(&self, request: PeerRequestV1) -> PeerAnswerV1 {
        self.try_answer_peer(request).await.unwrap_or_else(PeerAnswerV1::Refused)
    }

    async fn try_answer_peer(&self, request: PeerRequestV1) -> Result<PeerAnswerV1, String> {
        let raft = &self.raft;
        let senseless = |error: Foreign| error.to_string();
        match request {
            PeerRequestV1::Append(append) => self.append(append).await,
            PeerRequestV1::Vote(vote) => {
                let answer = raft.vote(vote.plain::<RT>().map_err(senseless)?).await;
                answer.map(|answer| PeerAnswerV1::Vote(VoteAnswerV1::of::<RT>(&answer))).map_err(dead)
            }
            PeerRequestV1::PreVote(vote) => {
                let answer = raft.pre_vote(vote.plain::<RT>().map_err(senseless)?).await;
                answer.map(|answer| PeerAnswerV1::Vote(VoteAnswerV1::of::<RT>(&answer))).map_err(dead)
            }
            PeerRequestV1::Transfer(transfer) => {
                let answer = raft.handle_transfer_leader(transfer.plain::<RT>().map_err(senseless)?).await;
                let answer = answer.map_err(|error| error.to_string())?;
                Ok(PeerAnswerV1::Transfer(TransferAnswerV1::of::<RT>(&answer)))
            }
            PeerRequestV1::Forward(commands) => self.order_forwarded(commands).await,
            PeerRequestV1::ReadIndex => self.read_index().await,
            PeerRequestV1::Tick { term, stamp_ms } => self.tick(term, Stamp(stamp_ms)),
            PeerRequestV1::LeaderGone(asked) => self.confirm_gone(asked).await,
            // Who may take part is not asked of replication: `bootstrap::serving` answers.
            PeerRequestV1::Found(_) | PeerRequestV1::Admit(_) | PeerRequestV1::Replace(_) => {
                Err("not understood".to_owned())
            }
        }
    }

    /// Takes in a whole snapshot from a leader: stored first, then installed.
    pub async fn receive_snapshot(&self, offer: SnapshotOffer) -> PeerAnswerV1 {
        self.try_receive_snapshot(offer).await.unwrap_or_else(PeerAnswerV1::Refused)
    }

    async fn try_receive_snapshot(&self, offer: SnapshotOffer) -> Result<PeerAnswerV1, String> {
        let vote = offer.vote.try_into().map_err(|error: Foreign| error.to_string())?;
        let snapshots = Arc::clone(&self.around.snapshots);
        let stored = network::store(snapshots, &self.around.executor, offer).await;
        let stored = stored.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        self.snapshots.set(&stored);
        let snapshot = snapshotter::of_stored(stored).map_err(|error| error.to_string())?;
        let answer = self.raft.install_full_snapshot(vote, snapshot).await.map_err(|error| error.to_string())?;
        Ok(PeerAnswerV1::Snapshot((&answer.vote).into()))
    }
}

impl<RT: AsyncRuntime> Node<RT> {
    async fn append(&self, append: AppendV1) -> Result<PeerAnswerV1, String> {
        let quorum_at = self.time.elapsed().saturating_sub(Duration::from_millis(append.quorum_age_ms.into()));
        // A leader knows all that was committed before it once it has committed an entry of its own.
        let committed =
            append.committed.filter(|last| (last.term, Some(last.node)) == (append.vote.term, append.vote.node));
        let append = append.plain::<RT>().map_err(|error| error.to_string())?;
        let answer = AppendedV1::of::<RT>(&self.raft.append_entries(append).await.map_err(dead)?);
        if let (Some(committed), false) = (committed, matches!(answer, AppendedV1::Outvoted(_))) {
            let mut freshness = self.freshness.lock().unwrap_or_else(PoisonError::into_inner);
            // What is applied makes place first: nobody may have asked for long.
            freshness.fresh_at(self.mark.borrow().index());
            freshness.hear(committed.index, quorum_at);
        }
        Ok(PeerAnswerV1::Append(answer))
    }

    /// Orders what a follower forwarded, if this node leads; it forwards nothing itself.
    async fn order_forwarded(&self, commands: Vec<ForwardedV1>) -> Result<PeerAnswerV1, String> {
        match self.standings.now() {
            Standing::Leads(_) | Standing::Elected => {
                let fitness = Fitness { host: &*self.host, warnings: &self.unfit };
                let outcomes = forwarded::order(&self.intake, &fitness, commands, self.request_timeout).await?;
                Ok(PeerAnswerV1::Forward(outcomes))
            }
            other => Ok(PeerAnswerV1::NotLeader(other.hint())),
        }
    }

    /// A round for a follower's reads, shared with this node's own.
    async fn read_index(&self) -> Result<PeerAnswerV1, String> {
        let standing = self.standings.now();
        let Standing::Leads(_) = standing else { return Ok(PeerAnswerV1::NotLeader(standing.hint())) };
        let joined = TypeConfig::<RT>::timeout(self.limit, reads::join(&self.rounds));
        let joined = TypeConfig::<RT>::select2(joined, self.standings.leaves(standing)).await;
        match joined {
            Select2::First(Ok(Some(Round { index, term, now, standing: proved }))) if proved == standing => {
                Ok(PeerAnswerV1::ReadIndex(ReadIndexV1 { index, term, now_ms: now.0 }))
            }
            Select2::First(Ok(None) | Err(_)) => Err("it cannot prove now that it leads".to_owned()),
            Select2::First(_) | Select2::Second(()) => Ok(PeerAnswerV1::NotLeader(self.standings.now().hint())),
        }
    }

    /// A follower's read waits for `stamp`, which it has from this leader's clock: that is past it.
    fn tick(&self, term: u64, stamp: Stamp) -> Result<PeerAnswerV1, String> {
        match self.standings.now() {
            Standing::Leads(lead) if lead.term == term => {
                if self.time.read(lead).is_none_or(|now| now < stamp) {
                    return Err(format!("the stamp {} is ahead of this leader's clock", stamp.0));
                }
                self.wanted.want(lead, stamp);
                Ok(PeerAnswerV1::Tick)
            }
            other => Ok(PeerAnswerV1::NotLeader(other.hint())),
        }
    }
}

fn dead<RT: AsyncRuntime>(error: RaftError<TypeConfig<RT>>) -> String {
    error.to_string()
}
