//! Five nodes: any two may be gone.

use std::time::Instant;

use serde_json::{Value, json};

use crate::harness::{Cluster, Killed, Plan, rounds};
use crate::history::History;
use crate::leader_killed::summary;
use crate::load::Load;
use crate::process::{SOON, eventually};

/// The leader and a follower, `kill -9` at once under load: the three that are left serve, and nothing is lost.
#[test]
fn the_leader_and_a_follower_killed_at_once() {
    let mut cluster = Cluster::start(Plan::of(5));
    let history = History::default();
    let times_ms = Load::default().run(&mut cluster, &history, |cluster, running| {
        let mut times_ms = Vec::new();
        for round in 0..rounds(2) {
            running.await_calls(100 + round * 37 % 200);
            let leader = cluster.leader();
            let follower = cluster.others(leader)[round % 4];
            let Killed { sent_ns, dead_ns } = cluster.kill_these(&[leader, follower]);
            let first_ns = eventually("a grant after the kill", || running.history.first_grant_from(dead_ns));
            times_ms.push((first_ns - sent_ns) / 1_000_000);
            running.await_calls(100);
            for id in [leader, follower] {
                cluster.restart(id);
                cluster.await_ready(id);
            }
        }
        times_ms
    });
    eprintln!("leader and a follower of five killed, first grant after: {}", summary(times_ms.clone()));
    let tally = history.judge("two-of-five-killed");
    assert!(tally.grants > 10 && tally.renewals > 10 && tally.reads > 10, "the load did little: {tally:?}");
    assert!(cluster.states_are_equal() > 0);
    assert!(times_ms.iter().all(|time| u128::from(*time) < SOON.as_millis() / 3), "{times_ms:?}");
}

/// Ids of the voters, by node `id`.
fn voters(cluster: &Cluster, id: u64) -> Option<Vec<u64>> {
    let status = cluster.status(id)?;
    let voters = status["members"].as_array()?.iter().filter(|member| member["voter"] == true);
    voters.map(|member| member["node_id"].as_u64()).collect()
}

/// `--bootstrap-majority`: three of five found the cluster. The other two, empty, come later with the same flags and
/// take part: with them, two of the first may go.
#[test]
fn a_majority_founds_and_the_others_join_later() {
    for _ in 0..rounds(1) {
        found_by_majority();
    }
}

fn found_by_majority() {
    let mut plan = Plan::of(5);
    plan.flags.push("--bootstrap-majority".to_owned());
    let mut cluster = Cluster::seated(plan);
    let (first, later) = ([1, 2, 4], [3, 5]);
    let started = Instant::now();
    first.into_iter().for_each(|id| cluster.spawn(id));
    first.into_iter().for_each(|id| cluster.await_ready(id));
    eprintln!("3 of 5 founded by majority, all three ready after {} ms", started.elapsed().as_millis());
    let args = json!({"owner": "o", "token": "t", "ttl_ms": 3_600_000, "create": true});
    let acquire = |cluster: &Cluster, node: u64| -> Value {
        let granted = cluster.op(node, &format!("by-{node}"), "ACQUIRE", &args);
        assert_eq!(granted["result"], true, "{granted}");
        granted["fence"].clone()
    };
    let fences = first.map(|id| acquire(&cluster, id));
    let cluster_id = |cluster: &Cluster, id: u64| cluster.status(id).unwrap()["cluster_id"].clone();
    let founded = cluster_id(&cluster, 1);
    let joined = Instant::now();
    later.into_iter().for_each(|id| cluster.spawn(id));
    for id in later {
        cluster.await_ready(id);
        assert_eq!(cluster_id(&cluster, id), founded, "node {id} is of another cluster");
    }
    eprintln!("2 of 5 came later, ready after {} ms", joined.elapsed().as_millis());
    for id in cluster.ids() {
        let all = || (voters(&cluster, id)? == [1, 2, 3, 4, 5]).then_some(());
        eventually(&format!("node {id} knows five voters"), all);
    }
    assert_eq!(cluster.states_are_equal(), 3);
    // A quorum only with both of those that came later.
    cluster.kill_these(&first[..2]);
    cluster.leader();
    for id in later {
        acquire(&cluster, id);
        for (node, fence) in first.iter().zip(&fences) {
            assert_eq!(cluster.get(id, &format!("by-{node}"))["fence"], *fence);
        }
    }
}
