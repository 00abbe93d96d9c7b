//! openraft's types as this crate uses them: the only file that composes the type config. Generic over the runtime, so
//! that the same code runs on tokio and in the simulator.

use std::fmt;
use std::marker::PhantomData;

use bytes::Bytes;
use openraft::RaftTypeConfig;
use openraft::type_config::alias;
use openraft::vote::RaftLeaderId;

pub use openraft::AsyncRuntime;
pub use openraft_rt_tokio::TokioRuntime;

/// A node's id: 1 and up, unique in the cluster for ever.
pub type NodeId = u64;

/// One entry's payload: an encoded batch (see `entry.rs`). Bytes only: openraft knows nothing of the machine.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Batch(pub Bytes);

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({} bytes)", self.0.len())
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What applying an entry answers: one encoded reply per command, in order, and the clock after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replies {
    /// Log index of the entry.
    pub index: u64,
    /// The last applied stamp after the entry, cluster milliseconds.
    pub clock: u64,
    /// Encoded replies, one per command.
    pub replies: Vec<Bytes>,
}

/// A member: where it is reached, and which of its data directories takes part. Part of the membership, so that leader
/// hints carry the addresses and every node knows a wiped member from the one before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// `host:port` for clients.
    pub client: String,
    /// `host:port` for peers; empty while the node has no peer listener.
    pub peer: String,
    /// Its data directory's incarnation; 0 while it is not known.
    pub incarnation: u64,
}

/// The type config over a runtime.
pub struct TypeConfig<RT>(PhantomData<fn() -> RT>);

impl<RT> Clone for TypeConfig<RT> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<RT> Copy for TypeConfig<RT> {}
impl<RT> Default for TypeConfig<RT> {
    fn default() -> Self {
        Self(PhantomData)
    }
}
impl<RT> fmt::Debug for TypeConfig<RT> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TypeConfig")
    }
}
impl<RT> PartialEq for TypeConfig<RT> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl<RT> Eq for TypeConfig<RT> {}
impl<RT> PartialOrd for TypeConfig<RT> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<RT> Ord for TypeConfig<RT> {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

impl<RT: AsyncRuntime> RaftTypeConfig for TypeConfig<RT> {
    type D = Batch;
    type R = Replies;
    type NodeId = NodeId;
    type Node = Member;
    type Term = u64;
    type LeaderId = openraft::impls::leader_id_adv::LeaderId<u64, NodeId>;
    type Vote = openraft::impls::Vote<Self::LeaderId>;
    type Payload = openraft::EntryPayload<Batch, NodeId, Member>;
    type Entry = openraft::Entry<<Self::LeaderId as RaftLeaderId>::Committed, Self::Payload>;
    type AsyncRuntime = RT;
    type Responder<T>
        = openraft::impls::ProgressResponder<Self, T>
    where
        T: openraft::OptionalSend + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: openraft::OptionalSend + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

/// Replication of a node.
pub type Raft<RT> = openraft::Raft<TypeConfig<RT>, crate::applier::Applier<RT>>;
/// [`LeaderId`] whatever the runtime.
pub type PlainLeaderId = openraft::impls::leader_id_adv::LeaderId<u64, NodeId>;
/// [`LogId`] whatever the runtime.
pub type PlainLogId = openraft::LogId<PlainLeaderId>;
/// [`StoredMembership`] whatever the runtime.
pub type PlainMembership = openraft::StoredMembership<PlainLeaderId, NodeId, Member>;
/// `(term, node)` of a leader, as it stands in log ids.
pub type LeaderId<RT> = alias::CommittedLeaderIdOf<TypeConfig<RT>>;
/// A log id.
pub type LogId<RT> = alias::LogIdOf<TypeConfig<RT>>;
/// A vote.
pub type Vote<RT> = alias::VoteOf<TypeConfig<RT>>;
/// An entry.
pub type Entry<RT> = alias::EntryOf<TypeConfig<RT>>;
/// A membership with the log id that set it.
pub type StoredMembership<RT> = alias::StoredMembershipOf<TypeConfig<RT>>;
/// A snapshot's metadata.
pub type SnapshotMeta<RT> = alias::SnapshotMetaOf<TypeConfig<RT>>;
