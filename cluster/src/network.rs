//! Replication's network over a [`Transport`], and what a node does with its peers' requests. The one place where the
//! two meet.

use std::future::Future;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::async_runtime::{Instant, Select2};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::metrics::RaftMetrics;
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, TransferLeaderResponse,
    VoteRequest, VoteResponse,
};
use openraft::type_config::TypeConfigExt;
use openraft::type_config::alias::WatchReceiverOf;
use openraft::{AnyError, OptionalSend, RaftNetworkFactory, RaftNetworkV2};

use crate::executor::{self, Executor};
use crate::peer::{AppendV1, PeerAnswerV1, PeerRequestV1, TransferV1, VoteRequestV1};
use crate::raft::{AsyncRuntime, Member, NodeId, PlainLogId, TypeConfig, Vote};
use crate::snapshot::{SnapshotError, SnapshotStore, Stored};
use crate::snapshotter::Snapshot;
use crate::transport::{Peer, SnapshotOffer, Transport, TransportError};

/// Bytes of entries that a peer must be able to take in and sync a second. A heartbeat's budget is for what has none:
/// a follower far behind is sent some MiB at once, and given up too early they would be sent again and again, each time
/// behind the last try, so that it never catches up.
const APPEND_BYTES_PER_SECOND: u64 = 1024 * 1024;

/// What replication says of the members and of its quorum, once it runs.
pub type Members<RT> = Arc<OnceLock<WatchReceiverOf<TypeConfig<RT>, RaftMetrics<TypeConfig<RT>>>>>;

/// Makes the connections of a node.
pub struct Network<RT: AsyncRuntime> {
    /// The way to the peers.
    pub transport: Arc<dyn Transport>,
    /// Where they are.
    pub members: Members<RT>,
    /// Where the snapshots are that followers may need.
    pub snapshots: Arc<dyn SnapshotStore>,
    /// Where snapshots are opened.
    pub executor: Arc<dyn Executor>,
}

/// One peer, as replication calls it.
pub struct Link<RT: AsyncRuntime> {
    id: NodeId,
    /// Where it was when the link was made.
    member: Member,
    transport: Arc<dyn Transport>,
    members: Members<RT>,
    snapshots: Arc<dyn SnapshotStore>,
    executor: Arc<dyn Executor>,
}

/// What an append may take whose entries have so many bytes, when one without any may take `heartbeat`. A peer that is
/// silent is given up before by the transport.
fn append_within(heartbeat: Duration, bytes: u64) -> Duration {
    heartbeat + Duration::from_micros(bytes.saturating_mul(1_000_000) / APPEND_BYTES_PER_SECOND)
}

/// An error of replication's that a transport's stands for.
fn rpc_error<RT: AsyncRuntime>(error: &TransportError) -> RPCError<TypeConfig<RT>> {
    let text = AnyError::error(error.to_string());
    match error {
        TransportError::Unreachable { .. } => RPCError::Unreachable(Unreachable::new(&text)),
        TransportError::Broken { .. } => RPCError::Network(NetworkError::new(&text)),
    }
}

impl<RT: AsyncRuntime> Link<RT> {
    fn peer(&self) -> Peer {
        let now = self.members.get().and_then(|members| {
            let members = members.borrow_watched();
            members.membership_config.membership().get_node(&self.id).cloned()
        });
        Peer { id: self.id, member: now.unwrap_or_else(|| self.member.clone()), hints: Vec::new() }
    }

    /// How long ago a quorum last followed this leader, milliseconds, to be said with what it calls `committed`; for
    /// ever if more is committed by now: the request waited, and of that it says nothing.
    fn quorum_age_ms(&self, committed: Option<&PlainLogId>) -> u32 {
        let acked = self.members.get().and_then(|metrics| {
            let metrics = metrics.borrow_watched();
            metrics.last_quorum_acked.filter(|_| committed >= metrics.cluster_committed.as_ref())
        });
        let age = acked.map(|acked| TypeConfig::<RT>::now().saturating_duration_since(acked.into_inner()));
        age.and_then(|age| u32::try_from(age.as_millis()).ok()).unwrap_or(u32::MAX)
    }

    /// An answer that is no answer to the question.
    fn senseless(&self, what: &dyn std::fmt::Display) -> RPCError<TypeConfig<RT>> {
        rpc_error(&TransportError::Broken { id: self.id, why: what.to_string() })
    }

    /// Calls the peer, within `budget`. `take` picks the answer out.
    async fn call<A, T, E: std::fmt::Display>(
        &self,
        request: PeerRequestV1,
        budget: Duration,
        take: impl FnOnce(PeerAnswerV1) -> Result<A, PeerAnswerV1>,
        plain: impl FnOnce(A) -> Result<T, E>,
    ) -> Result<T, RPCError<TypeConfig<RT>>> {
        let answer = match TypeConfig::<RT>::timeout(budget, self.transport.call(self.peer(), request)).await {
            Ok(answer) => answer.map_err(|error| rpc_error(&error))?,
            Err(_) => return Err(self.senseless(&format_args!("none within {} ms", budget.as_millis()))),
        };
        match take(answer) {
            Ok(answer) => plain(answer).map_err(|error| self.senseless(&error)),
            Err(PeerAnswerV1::Refused(why)) => Err(self.senseless(&why)),
            Err(_) => Err(self.senseless(&"another kind of answer")),
        }
    }

    async fn offer(&self, vote: &Vote<RT>, stored: Stored) -> io::Result<SnapshotOffer> {
        let (snapshots, vote) = (Arc::clone(&self.snapshots), vote.into());
        let opened = executor::run(&self.executor, "snapshot-send", move || {
            snapshots.open(&stored).map(|source| (source, stored))
        });
        let (source, stored) = opened.await?.map_err(io::Error::other)?;
        Ok(SnapshotOffer { vote, head: stored.head, bytes: stored.bytes, source })
    }
}

impl<RT: AsyncRuntime> RaftNetworkFactory<TypeConfig<RT>> for Network<RT> {
    type Network = Link<RT>;

    async fn new_client(&mut self, target: NodeId, node: &Member) -> Link<RT> {
        Link {
            id: target,
            member: node.clone(),
            transport: Arc::clone(&self.transport),
            members: Arc::clone(&self.members),
            snapshots: Arc::clone(&self.snapshots),
            executor: Arc::clone(&self.executor),
        }
    }
}

fn as_vote(answer: PeerAnswerV1) -> Result<crate::peer::VoteAnswerV1, PeerAnswerV1> {
    match answer {
        PeerAnswerV1::Vote(answer) => Ok(answer),
        other => Err(other),
    }
}

impl<RT: AsyncRuntime> RaftNetworkV2<TypeConfig<RT>> for Link<RT> {
    type SnapshotData = Stored;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig<RT>>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig<RT>>, RPCError<TypeConfig<RT>>> {
        let take = |answer| match answer {
            PeerAnswerV1::Append(answer) => Ok(answer),
            other => Err(other),
        };
        let append = AppendV1::of::<RT>(&rpc, self.quorum_age_ms(rpc.leader_commit.as_ref()));
        let within = append_within(option.hard_ttl(), append.bytes());
        self.call(PeerRequestV1::Append(append), within, take, |answer| answer.plain::<RT>()).await
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<TypeConfig<RT>>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig<RT>>, RPCError<TypeConfig<RT>>> {
        let request = PeerRequestV1::Vote(VoteRequestV1::of::<RT>(&rpc));
        self.call(request, option.hard_ttl(), as_vote, |answer| answer.plain::<RT>()).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig<RT>>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig<RT>>, RPCError<TypeConfig<RT>>> {
        let request = PeerRequestV1::PreVote(VoteRequestV1::of::<RT>(&rpc));
        self.call(request, option.hard_ttl(), as_vote, |answer| answer.plain::<RT>()).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote<RT>,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig<RT>>, StreamingError<TypeConfig<RT>>> {
        let broken = |why: &dyn std::fmt::Display| {
            StreamingError::Network(NetworkError::new(&AnyError::error(format!("node {}: {why}", self.id))))
        };
        let offer = self.offer(&vote, snapshot.snapshot).await.map_err(|error| broken(&error))?;
        let sent = TypeConfig::<RT>::timeout(option.hard_ttl(), self.transport.send_snapshot(self.peer(), offer));
        let answer = match TypeConfig::<RT>::select2(cancel, sent).await {
            Select2::First(closed) => return Err(StreamingError::Closed(closed)),
            Select2::Second(Err(_)) => return Err(broken(&"the snapshot took too long")),
            Select2::Second(Ok(answer)) => answer,
        };
        match answer {
            Ok(PeerAnswerV1::Snapshot(vote)) => {
                Ok(SnapshotResponse::new(vote.try_into().map_err(|error| broken(&error))?))
            }
            Ok(PeerAnswerV1::Refused(why)) => Err(broken(&why)),
            Ok(_) => Err(broken(&"another kind of answer")),
            Err(TransportError::Unreachable { why, .. }) => {
                Err(StreamingError::Unreachable(Unreachable::new(&AnyError::error(why))))
            }
            Err(error) => Err(broken(&error)),
        }
    }

    async fn transfer_leader(
        &mut self,
        rpc: TransferLeaderRequest<TypeConfig<RT>>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig<RT>>, RPCError<TypeConfig<RT>>> {
        let take = |answer| match answer {
            PeerAnswerV1::Transfer(answer) => Ok(answer),
            other => Err(other),
        };
        let request = PeerRequestV1::Transfer(TransferV1::of::<RT>(&rpc));
        self.call(request, option.hard_ttl(), take, |answer| answer.plain::<RT>()).await
    }
}

/// Stores a snapshot that a leader sends.
///
/// # Errors
/// [`SnapshotError`] when the source ends early or the disk refuses.
pub async fn store(
    snapshots: Arc<dyn SnapshotStore>,
    executor: &Arc<dyn Executor>,
    offer: SnapshotOffer,
) -> io::Result<Result<Stored, SnapshotError>> {
    executor::run(executor, "snapshot-receive", move || {
        let mut source = io::Read::take(offer.source, offer.bytes);
        snapshots.write(offer.head, &mut |sink| {
            let copied = io::copy(&mut source, &mut io::BufWriter::new(sink))?;
            if copied == offer.bytes { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
        })
    })
    .await
}
