//! When a cluster grants again: asked all the time, at every node that can answer, with little patience.
//!
//! A load's clients do not tell that: all may be waiting for a node that will never answer.

use std::time::{Duration, Instant};

use crate::harness::Cluster;
use crate::history::History;
use crate::load::first_token;
use crate::process::{SOON, pass};
use crate::session::Session;
use checker::{Answer, Operation, Outcome};

/// How long a try waits for its answer.
const PATIENCE: Duration = Duration::from_millis(250);
const EVERY: Duration = Duration::from_millis(10);
/// Over before the next fault.
const TTL_MS: u64 = 1_000;
/// Apart from any client of a load.
const CLIENT: u32 = 900;

/// Asks the nodes but `but` in turn for fresh keys until one is granted; how long that took, ms.
pub fn first_grant_ms(cluster: &Cluster, but: u64, history: &History) -> u64 {
    let began = Instant::now();
    let nodes: Vec<_> = cluster.endpoints().into_iter().filter(|(id, _)| *id != but).collect();
    let mut session = Session::new(CLIENT, nodes, PATIENCE, history);
    let token = first_token(CLIENT);
    for n in 0.. {
        session.go_to(usize::try_from(n).unwrap());
        let acquire = Operation::Acquire { token: token + n, ttl_ms: TTL_MS };
        if let Outcome::Answered(_, Answer::Granted(_)) = session.call(&format!("probe-{n}"), acquire) {
            break;
        }
        assert!(began.elapsed() < SOON, "no grant within {SOON:?}");
        pass(EVERY);
    }
    u64::try_from(began.elapsed().as_millis()).unwrap()
}
