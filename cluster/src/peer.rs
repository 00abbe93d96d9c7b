//! What nodes say to each other: frozen twins of replication's requests and answers, mapped here and nowhere else.
//! Encoded with `codec` (kinds `PeerRequest` and `PeerAnswer`).

use bytes::Bytes;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, TransferLeaderError, TransferLeaderRequest, TransferLeaderResponse,
    VoteRequest, VoteResponse,
};
use serde::{Deserialize, Serialize};

use crate::persisted::{EntryV2, Foreign, LogIdV1, PayloadV2, VoteV1};
use crate::raft::{AsyncRuntime, NodeId, TypeConfig};

/// Entries from a leader; none is a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppendV1 {
    /// The leader.
    pub vote: VoteV1,
    /// The entry before the first.
    pub previous: Option<LogIdV1>,
    /// In order.
    pub entries: Vec<EntryV2>,
    /// Committed, as the leader knows.
    pub committed: Option<LogIdV1>,
    /// How long ago, milliseconds, a quorum last followed the leader: what is committed was complete then.
    pub quorum_age_ms: u32,
}

/// What a follower says to [`AppendV1`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AppendedV1 {
    /// All entries are synced.
    All,
    /// Entries up to here are synced.
    UpTo(Option<LogIdV1>),
    /// It has another entry before the first.
    Conflict,
    /// It knows of a higher vote.
    Outvoted(VoteV1),
}

/// A candidate asks for a vote, or whether it would be given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoteRequestV1 {
    /// The vote asked for.
    pub vote: VoteV1,
    /// The candidate's last entry.
    pub last: Option<LogIdV1>,
    /// The old leader itself asked the candidate to take over: that it was heard lately is no reason to refuse.
    pub by_transfer: bool,
}

/// What a voter says to [`VoteRequestV1`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoteAnswerV1 {
    /// Its vote after the request.
    pub vote: VoteV1,
    /// Given.
    pub granted: bool,
    /// Its own last entry.
    pub last: Option<LogIdV1>,
}

/// A leader asks a node to take over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferV1 {
    /// The leader that hands over.
    pub from: VoteV1,
    /// Who is to take over; all others only learn that the old leader goes.
    pub to: NodeId,
    /// What the successor must have synced.
    pub last: Option<LogIdV1>,
}

/// What a node says to [`TransferV1`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TransferAnswerV1 {
    /// It will.
    Accepted,
    /// It knows of another leader.
    VoteChanged {
        /// The leader that asked.
        expected: VoteV1,
        /// What this node knows.
        actual: VoteV1,
    },
    /// It has not synced enough.
    NotSynced {
        /// What was asked for.
        expected: Option<LogIdV1>,
        /// What it has.
        actual: Option<LogIdV1>,
    },
}

/// One command on its way to the leader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardedV1 {
    /// The encoded command.
    pub command: Bytes,
    /// Bytes that its reply may take.
    pub reply_bytes: u64,
    /// How long it may wait for its turn, milliseconds; after that it is surely not ordered.
    pub patience_ms: u32,
}

/// What became of a [`ForwardedV1`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OrderedV1 {
    /// It was applied.
    Applied {
        /// The encoded reply.
        reply: Bytes,
        /// Index of its entry.
        index: u64,
        /// Its ordinal in the entry.
        ordinal: u32,
        /// The clock after the entry, cluster milliseconds.
        clock: u64,
        /// Term of the leader that ordered it.
        term: u64,
    },
    /// It was surely not appended: safe to send again.
    NotOrdered,
    /// It may or may not take effect.
    Unknown,
    /// It was surely not appended and never will be: no node could apply it. One line. Said as of feature level 2, which
    /// every member's build knows; before that such a command is [`OrderedV1::NotOrdered`].
    Refused(String),
}

/// A read index: what a follower's linearizable read must have applied, and the leader's clock after the proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadIndexV1 {
    /// Everything up to this index.
    pub index: u64,
    /// The leadership that was proved.
    pub term: u64,
    /// Its stamp, taken after the proof.
    pub now_ms: u64,
}

/// A follower whose leader's process is surely gone asks whether the others see the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderGoneV1 {
    /// The leader that is gone.
    pub leader: VoteV1,
    /// Who wants to take over.
    pub candidate: NodeId,
    /// Its last synced entry.
    pub last: Option<LogIdV1>,
}

/// The founder of a cluster tells an empty peer what it becomes part of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundV1 {
    /// The new cluster.
    pub cluster: [u8; 16],
    /// When it was founded, Unix milliseconds.
    pub founded_wall_ms: u64,
    /// The incarnation of the peer as the founder knows it.
    pub incarnation: u64,
    /// The founder's `--peers`: both must have been told the same.
    pub peers: Vec<(NodeId, String)>,
}

/// A node asks to take part in the cluster: at its first start, or to say where it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmitV1 {
    /// Its id.
    pub node: NodeId,
    /// Its data directory's incarnation.
    pub incarnation: u64,
    /// `host:port` for clients.
    pub client: String,
    /// `host:port` for peers.
    pub peer: String,
}

/// What a node says to [`FoundV1`] and [`AdmitV1`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AdmittedV1 {
    /// It is part of this cluster.
    Yes {
        /// The cluster.
        cluster: [u8; 16],
        /// When it was founded, Unix milliseconds.
        founded_wall_ms: u64,
        /// Index of an entry whose membership has its incarnation; 0 while the cluster is being founded.
        at: u64,
    },
    /// Never like this. One line that says what to do.
    No(String),
    /// Not now: ask again. One line.
    Later(String),
}

/// What a leader says to [`PeerRequestV1::Replace`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplacedV1 {
    /// An empty data directory may take the voter's place.
    Done,
    /// Never like this. One line.
    No(String),
    /// Not now, or not yet: ask again. One line.
    Later(String),
}

/// A request to a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerRequestV1 {
    /// Entries.
    Append(AppendV1),
    /// A vote.
    Vote(VoteRequestV1),
    /// Whether a vote would be given.
    PreVote(VoteRequestV1),
    /// To take over.
    Transfer(TransferV1),
    /// To order these commands, in this order.
    Forward(Vec<ForwardedV1>),
    /// For a read index.
    ReadIndex,
    /// To have an entry of this stamp or later under this leadership: a read waits for it.
    Tick {
        /// Term of the leadership that the stamp is of.
        term: u64,
        /// Cluster milliseconds.
        stamp_ms: u64,
    },
    /// Whether the leader is gone.
    LeaderGone(LeaderGoneV1),
    /// To become part of a new cluster.
    Found(FoundV1),
    /// To take part in a cluster.
    Admit(AdmitV1),
    /// To let an empty data directory take the place of the one that this voter has lost.
    Replace(NodeId),
}

/// A peer's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerAnswerV1 {
    /// To [`PeerRequestV1::Append`].
    Append(AppendedV1),
    /// To [`PeerRequestV1::Vote`] and [`PeerRequestV1::PreVote`].
    Vote(VoteAnswerV1),
    /// To [`PeerRequestV1::Transfer`].
    Transfer(TransferAnswerV1),
    /// To a whole snapshot: the receiver's vote.
    Snapshot(VoteV1),
    /// To [`PeerRequestV1::Forward`]: one for each, in order.
    Forward(Vec<OrderedV1>),
    /// To [`PeerRequestV1::ReadIndex`].
    ReadIndex(ReadIndexV1),
    /// To [`PeerRequestV1::Tick`]: it is noted.
    Tick,
    /// To [`PeerRequestV1::LeaderGone`]: this node sees the same, and the candidate lacks nothing that it has.
    LeaderGone(bool),
    /// To [`PeerRequestV1::Found`] and [`PeerRequestV1::Admit`].
    Admitted(AdmittedV1),
    /// To [`PeerRequestV1::Replace`].
    Replaced(ReplacedV1),
    /// It does not lead; this is the leader it knows of. Nothing happened.
    NotLeader(Option<NodeId>),
    /// It cannot: it stops, or the request makes no sense. One line.
    Refused(String),
}

fn plain(id: Option<LogIdV1>) -> Option<crate::raft::PlainLogId> {
    id.map(Into::into)
}

fn twin(id: Option<&crate::raft::PlainLogId>) -> Option<LogIdV1> {
    id.map(Into::into)
}

impl AppendV1 {
    /// Of its entries' batches: what makes it long.
    pub fn bytes(&self) -> u64 {
        let bytes = |entry: &EntryV2| match &entry.payload {
            PayloadV2::Batch(bytes) => bytes.len() as u64,
            PayloadV2::Blank | PayloadV2::Membership(_) => 0,
        };
        self.entries.iter().map(bytes).sum()
    }

    /// From replication.
    pub fn of<RT: AsyncRuntime>(request: &AppendEntriesRequest<TypeConfig<RT>>, quorum_age_ms: u32) -> Self {
        Self {
            vote: (&request.vote).into(),
            previous: twin(request.prev_log_id.as_ref()),
            entries: request.entries.iter().map(Into::into).collect(),
            committed: twin(request.leader_commit.as_ref()),
            quorum_age_ms,
        }
    }

    /// To replication.
    ///
    /// # Errors
    /// [`Foreign`] when it holds what replication has no place for.
    pub fn plain<RT: AsyncRuntime>(self) -> Result<AppendEntriesRequest<TypeConfig<RT>>, Foreign> {
        Ok(AppendEntriesRequest {
            vote: self.vote.try_into()?,
            prev_log_id: plain(self.previous),
            entries: self.entries.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?,
            leader_commit: plain(self.committed),
        })
    }
}

impl AppendedV1 {
    /// From replication.
    pub fn of<RT: AsyncRuntime>(answer: &AppendEntriesResponse<TypeConfig<RT>>) -> Self {
        match answer {
            AppendEntriesResponse::Success => Self::All,
            AppendEntriesResponse::PartialSuccess(id) => Self::UpTo(twin(id.as_ref())),
            AppendEntriesResponse::Conflict => Self::Conflict,
            AppendEntriesResponse::HigherVote(vote) => Self::Outvoted(vote.into()),
        }
    }

    /// To replication.
    ///
    /// # Errors
    /// As [`AppendV1::plain`].
    pub fn plain<RT: AsyncRuntime>(self) -> Result<AppendEntriesResponse<TypeConfig<RT>>, Foreign> {
        Ok(match self {
            Self::All => AppendEntriesResponse::Success,
            Self::UpTo(id) => AppendEntriesResponse::PartialSuccess(plain(id)),
            Self::Conflict => AppendEntriesResponse::Conflict,
            Self::Outvoted(vote) => AppendEntriesResponse::HigherVote(vote.try_into()?),
        })
    }
}

impl VoteRequestV1 {
    /// From replication.
    pub fn of<RT: AsyncRuntime>(request: &VoteRequest<TypeConfig<RT>>) -> Self {
        let last = twin(request.last_log_id.as_ref());
        Self { vote: (&request.vote).into(), last, by_transfer: request.leadership_transfer }
    }

    /// To replication.
    ///
    /// # Errors
    /// As [`AppendV1::plain`].
    pub fn plain<RT: AsyncRuntime>(self) -> Result<VoteRequest<TypeConfig<RT>>, Foreign> {
        let last_log_id = plain(self.last);
        Ok(VoteRequest { vote: self.vote.try_into()?, last_log_id, leadership_transfer: self.by_transfer })
    }
}

impl VoteAnswerV1 {
    /// From replication.
    pub fn of<RT: AsyncRuntime>(answer: &VoteResponse<TypeConfig<RT>>) -> Self {
        let last = twin(answer.last_log_id.as_ref());
        Self { vote: (&answer.vote).into(), granted: answer.vote_granted, last }
    }

    /// To replication.
    ///
    /// # Errors
    /// As [`AppendV1::plain`].
    pub fn plain<RT: AsyncRuntime>(self) -> Result<VoteResponse<TypeConfig<RT>>, Foreign> {
        Ok(VoteResponse { vote: self.vote.try_into()?, vote_granted: self.granted, last_log_id: plain(self.last) })
    }
}

impl TransferV1 {
    /// From replication.
    pub fn of<RT: AsyncRuntime>(request: &TransferLeaderRequest<TypeConfig<RT>>) -> Self {
        let last = twin(request.last_log_id());
        Self { from: request.from_leader().into(), to: *request.to_node_id(), last }
    }

    /// To replication.
    ///
    /// # Errors
    /// As [`AppendV1::plain`].
    pub fn plain<RT: AsyncRuntime>(self) -> Result<TransferLeaderRequest<TypeConfig<RT>>, Foreign> {
        Ok(TransferLeaderRequest::new(self.from.try_into()?, self.to, plain(self.last)))
    }
}

impl TransferAnswerV1 {
    /// From replication.
    pub fn of<RT: AsyncRuntime>(answer: &TransferLeaderResponse<TypeConfig<RT>>) -> Self {
        match answer {
            Ok(()) => Self::Accepted,
            Err(TransferLeaderError::VoteChanged { expected, actual }) => {
                Self::VoteChanged { expected: expected.into(), actual: actual.into() }
            }
            Err(TransferLeaderError::LogNotFlushed { expected, actual }) => {
                Self::NotSynced { expected: twin(expected.as_ref()), actual: twin(actual.as_ref()) }
            }
        }
    }

    /// To replication.
    ///
    /// # Errors
    /// As [`AppendV1::plain`].
    pub fn plain<RT: AsyncRuntime>(self) -> Result<TransferLeaderResponse<TypeConfig<RT>>, Foreign> {
        Ok(match self {
            Self::Accepted => Ok(()),
            Self::VoteChanged { expected, actual } => {
                Err(TransferLeaderError::VoteChanged { expected: expected.try_into()?, actual: actual.try_into()? })
            }
            Self::NotSynced { expected, actual } => {
                Err(TransferLeaderError::LogNotFlushed { expected: plain(expected), actual: plain(actual) })
            }
        })
    }
}
