//! Nodes cut off from their peers, in silence, while clients reach every node.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Cluster, Plan, rounds};
use crate::history::History;
use crate::leader_killed::summary;
use crate::load::Load;
use crate::network::Network;
use crate::probe::first_grant_ms;
use crate::process::{eventually, pass};

/// How long a node is cut off: several times as long as an election takes.
const CUT: Duration = Duration::from_secs(5);
/// Shorter than the cut, so that requests come to their end within it.
const REQUEST_TIMEOUT: &str = "1s";

/// A cluster, each node in a network of its own; `None`: skipped, and why is said. The network outlives the cluster if
/// it is bound first.
fn networked(nodes: u64) -> Option<(Network, Cluster)> {
    let network = match Network::build(nodes) {
        Ok(network) => network,
        Err(why) => {
            eprintln!("skipped: {why}");
            return None;
        }
    };
    let cluster = start_in(&network, nodes);
    Some((network, cluster))
}

/// A cluster of which each node is in its own network of that.
pub fn start_in(network: &Network, nodes: u64) -> Cluster {
    let mut plan = Plan::of(nodes);
    plan.flags.extend(["--request-timeout", REQUEST_TIMEOUT].map(str::to_owned));
    Cluster::start_seated(plan, |seat| network.place(seat))
}

fn op(operation: &str, args: &Value) -> (&'static str, Value) {
    ("OP", json!({"key": "k", "operation": operation, "args": args}))
}

/// Everything that a leader would answer; the cut-off node must answer nothing of it.
fn leads_nobody(cluster: &Cluster, cut_off: u64) {
    let calls = [
        op("HELD", &json!({})),
        op("HELD", &json!({"token": "a"})),
        op("RENEW", &json!({"token": "a"})),
        op("ACQUIRE", &json!({"owner": "c", "token": "c"})),
        ("GET", json!({"key": "k"})),
        ("TTL", json!({"key": "k"})),
        ("EXISTS", json!({"key": "k"})),
    ];
    for (command, body) in calls {
        if let Ok(answer) = cluster.ask(cut_off, command, &body, CUT) {
            assert!(answer.status >= 500, "cut off, it answers {command} {body}: {answer:?}");
        }
    }
}

/// Cuts the leader off, lets the others give its lease to another, and heals. How long the first grant took, ms.
fn cut_the_leader(cluster: &mut Cluster, network: &Network, history: &History) -> u64 {
    let leader = cluster.leader();
    let a = json!({"owner": "a", "token": "a", "ttl_ms": 60_000, "create": true});
    assert_eq!(cluster.op(leader, "k", "ACQUIRE", &a)["result"], true);
    network.cut(leader);
    let cut = Instant::now();
    let first_ms = first_grant_ms(cluster, leader, history);
    let next = eventually("another node leads", || {
        cluster
            .others(leader)
            .into_iter()
            .find(|id| cluster.status(*id).is_some_and(|status| status["role"] == "leader"))
    });
    let taken = |operation: &str, args: &Value| cluster.op(next, "k", operation, args);
    assert_eq!(taken("RELEASE", &json!({"token": "a"}))["result"], true);
    let b = taken("ACQUIRE", &json!({"owner": "b", "token": "b", "ttl_ms": 60_000}));
    assert_eq!(b["result"], true, "{b}");
    leads_nobody(cluster, leader);
    pass(CUT.saturating_sub(cut.elapsed()));
    network.heal(leader);
    cluster.await_ready(leader);
    // FR-27: who was away for long is told that it lost, by the node it always asked.
    let renewed = cluster.op(leader, "k", "RENEW", &json!({"token": "a"}));
    assert_eq!((&renewed["result"], &renewed["fence"]), (&json!(false), &b["fence"]), "{renewed}");
    assert_eq!(cluster.op(leader, "k", "HELD", &json!({"token": "a"}))["result"], false);
    assert_eq!(cluster.op(leader, "k", "RELEASE", &json!({"token": "b"}))["result"], true);
    first_ms
}

/// FR-32, FR-27: the leader alone on one side answers no read and no write as if it led. The time to the first grant is
/// that of a link gone silent.
#[test]
fn a_leader_in_the_minority_leads_nobody() {
    let Some((network, mut cluster)) = networked(3) else { return };
    let history = History::default();
    let load = Load { holders: 6, readers: 2, ..Load::default() };
    let times_ms = load.run(&mut cluster, &history, |cluster, running| {
        (0..rounds(1))
            .map(|_| {
                running.await_calls(100);
                cut_the_leader(cluster, &network, running.history)
            })
            .collect::<Vec<_>>()
    });
    eprintln!("leader cut off, first grant after: {}", summary(times_ms));
    let tally = history.judge("leader-cut-off");
    assert!(tally.grants > 10 && tally.reads > 10, "the load did little: {tally:?}");
    cluster.states_are_equal();
}

/// Who leads, and its term.
fn leads(cluster: &Cluster) -> (u64, Value) {
    let leader = cluster.leader();
    let status = eventually("the leader's status", || cluster.status(leader));
    (leader, status["term"].clone())
}

/// A follower that was cut off and comes back disturbs nobody: the same leader, the same term.
#[test]
fn a_follower_that_comes_back_disturbs_nobody() {
    let Some((network, mut cluster)) = networked(3) else { return };
    for round in 0..rounds(1).min(2) {
        // A machine that stands still may make an election of its own, but not each time.
        let undisturbed = (0..3).any(|_| {
            let before = leads(&cluster);
            let follower = cluster.others(before.0)[round];
            network.cut(follower);
            pass(CUT);
            network.heal(follower);
            cluster.ids().into_iter().for_each(|id| cluster.await_ready(id));
            let after = leads(&cluster);
            eprintln!("a follower away and back: {before:?}, then {after:?}");
            before == after
        });
        assert!(undisturbed, "each return of a follower made an election");
    }
    cluster.states_are_equal();
}

/// Whoever is cut off from peers is still reached by clients: else the tests above would show nothing.
#[test]
fn clients_reach_a_node_that_is_cut_off() {
    let Some((network, mut cluster)) = networked(1) else { return };
    network.cut(1);
    let acquire = json!({"owner": "a", "token": "a", "create": true});
    assert_eq!(cluster.op(1, "k", "ACQUIRE", &acquire)["result"], true);
    network.heal(1);
    cluster.kill(1);
    cluster.restart(1);
    assert_eq!(cluster.op(1, "k", "HELD", &json!({"token": "a"}))["result"], true);
}
