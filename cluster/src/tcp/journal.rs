//! Log lines about peers, not too many: a node that is gone for days must not fill the log.
//!
//! A line about one node and one cause appears at most once in [`EVERY`]; the next that appears says how many did not.
//! After a line that a node is not reached the next that it is always appears: else the log would end with what is past.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::raft::NodeId;

/// At most one line of a node and a cause in this time.
const EVERY: Duration = Duration::from_secs(30);
/// Nodes times causes that are remembered.
const REMEMBERED_MAX: usize = 1024;

/// What a line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    /// A connection stands.
    Connected,
    /// One ended.
    Lost,
    /// None can be had.
    NoWay,
    /// One side refused the other.
    Refused,
    /// Someone connected who is no peer.
    Stranger,
    /// The listener has trouble.
    Listener,
    /// A snapshot.
    Snapshot,
}

#[derive(Default)]
struct Last {
    at: Option<Instant>,
    suppressed: u64,
}

/// Decides which lines appear.
#[derive(Default)]
pub(super) struct Journal {
    last: Mutex<BTreeMap<(Option<NodeId>, Cause), Last>>,
}

impl Journal {
    /// May a line appear now? Then how many did not since the last.
    fn admit(&self, node: Option<NodeId>, cause: Cause, now: Instant) -> Option<u64> {
        let mut lines = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() >= REMEMBERED_MAX {
            lines.clear();
        }
        let last = lines.entry((node, cause)).or_default();
        if last.at.is_some_and(|at| now.duration_since(at) < EVERY) {
            last.suppressed += 1;
            return None;
        }
        last.at = Some(now);
        let suppressed = std::mem::take(&mut last.suppressed);
        if let (Cause::Lost | Cause::NoWay | Cause::Refused, Some(connected)) =
            (cause, lines.get_mut(&(node, Cause::Connected)))
        {
            connected.at = None;
        }
        Some(suppressed)
    }

    /// Logs that all is well.
    pub(super) fn info(&self, node: Option<NodeId>, cause: Cause, line: &str) {
        if let Some(suppressed) = self.admit(node, cause, Instant::now()) {
            tracing::info!("{line}{}", more(suppressed));
        }
    }

    /// Logs trouble.
    pub(super) fn warn(&self, node: Option<NodeId>, cause: Cause, line: &str) {
        if let Some(suppressed) = self.admit(node, cause, Instant::now()) {
            tracing::warn!("{line}{}", more(suppressed));
        }
    }
}

fn more(suppressed: u64) -> String {
    if suppressed == 0 { String::new() } else { format!(" (and {suppressed} more such lines)") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_node_and_cause() {
        let (journal, start) = (Journal::default(), Instant::now());
        let admit = |node, cause, seconds| journal.admit(node, cause, start + Duration::from_secs(seconds));
        assert_eq!(admit(Some(2), Cause::NoWay, 0), Some(0));
        for second in 1..30 {
            assert_eq!(admit(Some(2), Cause::NoWay, second), None);
        }
        assert_eq!(admit(Some(2), Cause::Lost, 1), Some(0), "another cause");
        assert_eq!(admit(Some(3), Cause::NoWay, 1), Some(0), "another node");
        assert_eq!(admit(Some(2), Cause::NoWay, 30), Some(29));
        assert_eq!(admit(Some(2), Cause::NoWay, 60), Some(0));
    }

    #[test]
    fn a_log_does_not_end_with_trouble_that_is_over() {
        let (journal, start) = (Journal::default(), Instant::now());
        let admit = |cause, seconds| journal.admit(Some(2), cause, start + Duration::from_secs(seconds));
        assert_eq!(admit(Cause::Connected, 0), Some(0));
        assert_eq!(admit(Cause::Lost, 1), Some(0));
        assert_eq!(admit(Cause::Connected, 2), Some(0), "it is over");
        assert_eq!(admit(Cause::Lost, 3), None);
        assert_eq!(admit(Cause::Connected, 4), None, "nobody was told of more trouble");
        assert_eq!(admit(Cause::Lost, 31), Some(1));
        assert_eq!(admit(Cause::Connected, 32), Some(1));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (journal, start) = (Journal::default(), Instant::now());
        for node in 0..3000 {
            journal.admit(Some(node), Cause::NoWay, start);
        }
        assert!(journal.last.lock().unwrap().len() <= REMEMBERED_MAX);
    }
}
