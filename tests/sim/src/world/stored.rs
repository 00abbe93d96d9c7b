//! What a log holds, as far as two states of it are told apart.

use futures_util::FutureExt;
use openraft::RaftLogReader;
use openraft::storage::RaftLogStorage;
use tenure_cluster::log::LogStore;
use tenure_cluster::persisted::{LogIdV1, VoteV1};

use crate::runtime::Rt;

/// See the module's head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) vote: Option<VoteV1>,
    purged: Option<LogIdV1>,
    pub(super) last: Option<LogIdV1>,
    committed: Option<LogIdV1>,
}

impl Stored {
    /// Of an open log. None of its calls waits.
    pub(super) fn of(log: &LogStore<Rt>) -> Self {
        let mut log = log.clone();
        let vote = log.read_vote().now_or_never().and_then(Result::ok).flatten();
        let state = log.get_log_state().now_or_never().and_then(Result::ok).unwrap_or_default();
        let committed = log.read_committed().now_or_never().and_then(Result::ok).flatten();
        Self {
            vote: vote.as_ref().map(VoteV1::from),
            purged: state.last_purged_log_id.as_ref().map(LogIdV1::from),
            last: state.last_log_id.as_ref().map(LogIdV1::from),
            committed: committed.as_ref().map(LogIdV1::from),
        }
    }
}
