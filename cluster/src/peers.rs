//! The other end: what this node answers to its peers' requests.

use std::sync::Arc;

use openraft::errors::RaftError;

use crate::cluster::{Cluster, Node};
use crate::machine::StateMachine;
use crate::network;
use crate::peer::{AppendedV1, PeerAnswerV1, PeerRequestV1, TransferAnswerV1, VoteAnswerV1};
use crate::persisted::Foreign;
use crate::raft::AsyncRuntime;
use crate::snapshotter;
use crate::transport::SnapshotOffer;

impl<M: StateMachine, RT: AsyncRuntime> Cluster<M, RT> {
    /// Answers a peer's request. Who may ask, and that it is a member of this cluster, is the transport's to know.
    pub async fn answer_peer(&self, request: PeerRequestV1) -> PeerAnswerV1 {
        self.node().answer_peer(request).await
    }

    /// Takes in a whole snapshot from a leader: stored first, then installed.
    pub async fn receive_snapshot(&self, offer: SnapshotOffer) -> PeerAnswerV1 {
        self.node().receive_snapshot(offer).await
    }
}

impl<RT: AsyncRuntime> Node<RT> {
    /// This node, as its handles call it.
    fn node(&self) -> &Self {
        self
    }

    /// Answers a peer's request. Who may ask, and that it is a member of this cluster, is the transport's to know.
    pub async fn answer_peer(&self, request: PeerRequestV1) -> PeerAnswerV1 {
        self.try_answer_peer(request).await.unwrap_or_else(PeerAnswerV1::Refused)
    }

    async fn try_answer_peer(&self, request: PeerRequestV1) -> Result<PeerAnswerV1, String> {
        let raft = &self.node().raft;
        let senseless = |error: Foreign| error.to_string();
        match request {
            PeerRequestV1::Append(append) => {
                let answer = raft.append_entries(append.plain::<RT>().map_err(senseless)?).await;
                answer.map(|answer| PeerAnswerV1::Append(AppendedV1::of::<RT>(&answer))).map_err(dead)
            }
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
            PeerRequestV1::Forward(_)
            | PeerRequestV1::ReadIndex
            | PeerRequestV1::Tick { .. }
            | PeerRequestV1::LeaderGone(_)
            | PeerRequestV1::Found(_)
            | PeerRequestV1::Admit(_) => Err("not understood".to_owned()),
        }
    }

    /// Takes in a whole snapshot from a leader: stored first, then installed.
    pub async fn receive_snapshot(&self, offer: SnapshotOffer) -> PeerAnswerV1 {
        self.try_receive_snapshot(offer).await.unwrap_or_else(PeerAnswerV1::Refused)
    }

    async fn try_receive_snapshot(&self, offer: SnapshotOffer) -> Result<PeerAnswerV1, String> {
        let node = self.node();
        let vote = offer.vote.try_into().map_err(|error: Foreign| error.to_string())?;
        let snapshots = Arc::clone(&node.around.snapshots);
        let stored = network::store(snapshots, &node.around.executor, offer).await;
        let stored = stored.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        node.snapshots.set(&stored);
        let snapshot = snapshotter::of_stored(stored).map_err(|error| error.to_string())?;
        let answer = node.raft.install_full_snapshot(vote, snapshot).await.map_err(|error| error.to_string())?;
        Ok(PeerAnswerV1::Snapshot((&answer.vote).into()))
    }
}

fn dead<RT: AsyncRuntime>(error: RaftError<crate::raft::TypeConfig<RT>>) -> String {
    error.to_string()
}
