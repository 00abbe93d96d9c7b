//! What every answer swears by: the place in the log and the clock it was true at.

use hyper::HeaderMap;

use crate::wire::{HEADER_CLOCK, HEADER_CLUSTER, HEADER_POSITION, HEADER_TERM};

/// The witness headers of an answer; absent where nothing was applied or read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Witness {
    /// Position in the log, `index.n`.
    pub position: Option<String>,
    /// The cluster clock, milliseconds.
    pub clock_ms: Option<u64>,
    /// The Raft term.
    pub term: Option<u64>,
    /// The cluster's id.
    pub cluster: Option<String>,
}

impl Witness {
    pub(super) fn of(headers: &HeaderMap) -> Witness {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let number = |name: &str| text(name).and_then(|value| value.parse().ok());
        Witness {
            position: text(HEADER_POSITION),
            clock_ms: number(HEADER_CLOCK),
            term: number(HEADER_TERM),
            cluster: text(HEADER_CLUSTER),
        }
    }
}
