//! One line in the log when the node can commit no more, with the reason, and one when it can again: what `/readyz` says
//! is gone by the time somebody asks why.
//!
//! It is looked at twice a second and told when two looks agree, so that an election of moments writes nothing and a node
//! that flaps writes at most a line a second.

use std::convert::Infallible;
use std::time::Duration;

use tenure_cluster::Cluster;
use tracing::{info, warn};

use crate::keyspace::Keyspace;

const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What was told, and what was seen since.
#[derive(Default)]
struct Told {
    told: Option<&'static str>,
    seen: Option<&'static str>,
}

impl Told {
    /// The reason at a look; `Some` if it is to be told now, as what to tell.
    fn look(&mut self, reason: Option<&'static str>) -> Option<Option<&'static str>> {
        let again = self.seen == reason;
        self.seen = reason;
        if !again || self.told == reason {
            return None;
        }
        self.told = reason;
        Some(reason)
    }
}

/// Tells it for as long as it is polled.
pub async fn tell(cluster: &Cluster<Keyspace>) -> Infallible {
    let mut told = Told::default();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        match told.look(cluster.status().not_ready) {
            Some(Some(reason)) => warn!(reason, "not ready: cannot commit"),
            Some(None) => info!("ready again"),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_is_told_once_and_what_passes_is_not() {
        let mut told = Told::default();
        let looks = [
            (None, None),
            (Some("no_leader"), None),
            (None, None),
            (Some("no_leader"), None),
            (Some("no_quorum"), None),
            (Some("no_quorum"), Some(Some("no_quorum"))),
            (Some("no_quorum"), None),
            (None, None),
            (None, Some(None)),
            (None, None),
        ];
        for (at, (reason, expected)) in looks.into_iter().enumerate() {
            assert_eq!(told.look(reason), expected, "look {at}");
        }
    }
}
