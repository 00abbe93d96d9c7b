//! `kill -9` of the leader under load.

use crate::harness::{Cluster, Plan, rounds};
use crate::history::History;
use crate::load::Load;
use crate::process::{SOON, eventually};

/// Median and greatest, for people.
pub fn summary(mut times_ms: Vec<u64>) -> String {
    times_ms.sort_unstable();
    let median = times_ms.get(times_ms.len() / 2);
    format!("median {} ms, max {} ms of {times_ms:?}", median.unwrap_or(&0), times_ms.last().unwrap_or(&0))
}

/// The nodes that are left see at once that the leader's process is gone, and one of them asks for votes without
/// waiting for a timeout. Prints the time from the kill to the answer of the first ACQUIRE that was sent after it.
#[test]
fn a_killed_leader_is_replaced_and_nothing_is_lost() {
    let mut cluster = Cluster::start(Plan::three());
    let history = History::default();
    let times_ms = Load::default().run(&mut cluster, &history, |cluster, running| {
        let mut times_ms = Vec::new();
        for round in 0..rounds(4) {
            running.await_calls(100 + round * 37 % 200);
            let leader = cluster.leader();
            let killed = cluster.kill(leader);
            let first_ns = eventually("a grant after the kill", || running.history.first_grant_from(killed.dead_ns));
            times_ms.push((first_ns - killed.sent_ns) / 1_000_000);
            cluster.leader_but(leader);
            cluster.restart(leader);
            cluster.await_ready(leader);
        }
        times_ms
    });
    eprintln!("leader killed, first grant after: {}", summary(times_ms.clone()));
    let tally = history.judge("leader-killed");
    assert!(tally.grants > 10 && tally.renewals > 10 && tally.reads > 10, "the load did little: {tally:?}");
    assert!(cluster.states_are_equal() > 0);
    // Far beyond any election: the figure itself is for docs, measured on a quiet machine.
    assert!(times_ms.iter().all(|time| u128::from(*time) < SOON.as_millis() / 3), "{times_ms:?}");
}

/// FR-40: one node of three, `kill -9` again and again under writes: it starts each time, and no acknowledged grant is
/// gone.
#[test]
fn a_killed_node_starts_each_time() {
    let mut cluster = Cluster::start(Plan::three());
    let history = History::default();
    let node = cluster.others(cluster.leader())[0];
    Load::default().run(&mut cluster, &history, |cluster, running| {
        for round in 0..rounds(6) {
            running.await_calls(20 + round * 53 % 100);
            cluster.kill(node);
            running.await_calls(10);
            cluster.restart(node);
            cluster.await_ready(node);
        }
    });
    let tally = history.judge("node-killed");
    assert!(tally.grants > 10, "the load did little: {tally:?}");
    cluster.states_are_equal();
}

/// The same load and the same rules on the default single node, killed under it.
#[test]
fn a_single_node_killed_loses_nothing() {
    let mut cluster = Cluster::start(Plan::of(1));
    let history = History::default();
    Load::default().run(&mut cluster, &history, |cluster, running| {
        for _ in 0..rounds(2) {
            running.await_calls(300);
            cluster.kill(1);
            cluster.restart(1);
            cluster.await_ready(1);
        }
        running.await_calls(300);
    });
    let tally = history.judge("single-node-killed");
    assert!(tally.grants > 10 && tally.renewals > 10 && tally.reads > 10, "the load did little: {tally:?}");
}
