//! What can go wrong, as the cluster's callers see it. A machine's refusal is no error: it is a reply.

use std::path::PathBuf;

use crate::raft::NodeId;

/// A command has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// It was surely not appended: safe to retry. The text says why.
    #[error("{0}")]
    Unavailable(String),
    /// It was handed to replication and no answer came: it may still take effect. Never retried blindly.
    #[error("the command was handed to replication but no answer came in time; it may have taken effect")]
    OutcomeUnknown,
    /// The encoded command is larger than an entry may be.
    #[error("the encoded command has {bytes} bytes; at most {max} fit an entry")]
    TooLarge {
        /// Its size in bytes.
        bytes: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// It was not ordered and never will be: it does not encode, or no node could read it. Cannot happen in practice.
    #[error("{0}")]
    Internal(String),
}

/// A read has no answer; it changed nothing and may be repeated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// No proof in time that the state is current. The text says why.
    #[error("{0}")]
    Unavailable(String),
}

/// A voter was not replaced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplaceError {
    /// It is not to be replaced. The text says why.
    #[error("{0}")]
    Refused(String),
    /// It could not be done, or not to the end; to be repeated. The text says why.
    #[error("{0}")]
    Unavailable(String),
}

/// How to go on from damaged data. An older copy is no way on for one of several nodes: it has forgotten votes and entries
/// that the others count on, and would help to lose what was acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, thiserror::Error)]
pub enum Remedy {
    /// The node is alone: nobody else has its data.
    #[error("restore the directory from a backup")]
    Backup,
    /// This node is one of several, which have its data.
    #[error(
        "run `tenure cluster replace {0}` on a node that serves, then start this one with an empty --data; never bring \
         back an older copy of its data"
    )]
    Replace(NodeId),
    /// It cannot be told whether the node is alone.
    #[default]
    #[error(
        "restore the directory from a backup only if the node is alone; if it is one of several, run `tenure cluster \
         replace` with its id on a node that serves, then start it with an empty --data"
    )]
    Unknown,
}

/// A node cannot start. Each text is one line that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The data directory is in use by another process.
    #[error("data directory {path} is in use by another process: stop it, or choose another --data")]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// The data directory belongs to something else, or another node or cluster.
    #[error("data directory {path} {what}")]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// What was found and what was expected, both named.
        what: String,
    },
    /// The data is damaged. Nothing was changed.
    #[error("data directory {path} is damaged: {what}. Nothing was changed. To go on: {remedy}")]
    Damaged {
        /// The directory.
        path: PathBuf,
        /// Where and how.
        what: String,
        /// How to go on.
        remedy: Remedy,
    },
    /// The directory cannot be read or written.
    #[error("data directory {path}: {what}: {source}")]
    Io {
        /// The directory or file.
        path: PathBuf,
        /// What was tried.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The configuration contradicts itself.
    #[error("{0}")]
    Config(String),
    /// The cluster, or a peer, does not let this node take part.
    #[error("{0}")]
    Refused(String),
    /// openraft refused to start.
    #[error("replication did not start: {0}")]
    Raft(String),
}

/// Why a node stopped by itself. One line, for the log and the exit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopReason {
    /// It was asked to.
    #[error("shut down")]
    Shutdown,
    /// A write or sync of the log failed: nothing that follows could be trusted.
    #[error("storage fault: {0}")]
    Storage(String),
    /// The cluster does not let this node take part any more. The line says what to do.
    #[error("{0}")]
    Refused(String),
    /// An entry or snapshot does not decode, or replication itself failed.
    #[error("replication stopped: {0}")]
    Replication(String),
}
