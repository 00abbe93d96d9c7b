//! Both followers stopped: nobody can renew, so nobody's time runs out.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_client::{Acquire, Acquired, Lease, State};

use crate::harness::{Cluster, Plan, ms, rounds};
use crate::process::pass;

/// Longer than a stall may keep us from stopping the followers, and by T more.
const TTL: Duration = Duration::from_secs(5);
/// The greatest election timeout by default: at most so much of an outage counts against a holder.
const T: Duration = Duration::from_millis(1_500);
/// At most so much is given on top of an outage: the time since the last tick.
const TICK: Duration = Duration::from_secs(1);
/// What a loaded machine may add between an event and our measuring it, an election after the outage included. Never
/// taken off the side that protects a holder.
const SLACK: Duration = Duration::from_secs(3);

/// All in one entry, so that on a busy machine the first is not half over before the last is had. Their fences.
fn acquire(cluster: &Cluster, node: u64, keys: &[String]) -> Vec<Value> {
    let ask = |key: &String| {
        let args = json!({"owner": "o", "token": format!("t-{key}"), "ttl_ms": ms(TTL), "create": true});
        json!({"command": "OP", "key": key, "operation": "ACQUIRE", "args": args})
    };
    let commands: Vec<Value> = keys.iter().map(ask).collect();
    let answer = cluster.call(node, "BATCH", &json!({"commands": commands}));
    let granted = answer["result"].as_array().unwrap().iter();
    assert!(granted.clone().all(|item| item["result"] == true), "{answer}");
    granted.map(|item| item["fence"].clone()).collect()
}

/// Must not be true: for as long as nobody answers for the followers.
fn is_not_granted(cluster: &Cluster, node: u64, key: &str) {
    let operation = json!({"key": key, "operation": "ACQUIRE",
        "args": {"owner": "thief", "token": "thief", "ttl_ms": 60_000, "create": true}});
    if let Ok(answer) = cluster.ask(node, "OP", &operation, Duration::from_millis(500)) {
        assert!(answer.status != 200, "an answer without a quorum: {answer:?}");
    }
}

/// FR-13: ten leases, no quorum for twice their ttl; each RENEW after it is true. Ten others are not renewed: what was
/// left of them at the stop is left after it, to the documented bounds, so the grace is not longer than the outage.
#[test]
fn nobody_loses_a_lease_that_nobody_could_renew() {
    let mut cluster = Cluster::start(Plan::three());
    for round in 0..rounds(1) {
        let leader = cluster.leader();
        let followers = cluster.others(leader);
        let granted = Instant::now();
        let keys = |kind: &str| (0..10).map(|n| format!("{kind}-{round}-{n}")).collect::<Vec<_>>();
        let fences = acquire(&cluster, leader, &[keys("renewed"), keys("left")].concat());
        let last_granted = Instant::now();
        let stopped = Instant::now();
        followers.iter().for_each(|id| cluster.stop(*id));
        let both_stopped = Instant::now();
        is_not_granted(&cluster, leader, &keys("left")[0]);
        pass((TTL * 2).saturating_sub(stopped.elapsed()));
        let resumed = Instant::now();
        followers.iter().for_each(|id| cluster.resume(*id));
        for (key, fence) in keys("renewed").iter().zip(&fences) {
            let args = json!({"token": format!("t-{key}"), "fence": fence, "ttl_ms": 60_000});
            let renewed = cluster.op(leader, key, "RENEW", &args);
            assert_eq!(renewed["result"], true, "{key}: {renewed}");
        }
        // Until the last of those that nobody renewed has ended.
        let first_left = TTL.saturating_sub(both_stopped - granted).saturating_sub(T);
        let all_left = TTL.saturating_sub(stopped - last_granted) + TICK + SLACK;
        let mut held = keys("left");
        while !held.is_empty() {
            held.retain(|key| cluster.get(leader, key)["held"] == true);
            let now = Instant::now();
            assert!(held.len() == 10 || now >= resumed + first_left, "ended after {:?}", now - resumed);
            assert!(held.is_empty() || now < resumed + all_left, "held {:?} after the outage", now - resumed);
            pass(Duration::from_millis(20));
        }
    }
    cluster.states_are_equal();
}

/// FR-22 at the library's guard: no leader for a third of the ttl and more is no loss; the renewal gets through once
/// there is one again.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_lives_over_the_outage() {
    let mut cluster = Cluster::start(Plan::three());
    // Renewed at a third.
    let (ttl, outage) = (Duration::from_secs(14), Duration::from_secs(5));
    let acquire = Acquire { ttl_ms: ms(ttl), ..Acquire::default() };
    let Acquired::Held(lease) = Lease::acquire(&cluster.client(), "guarded", acquire).await.unwrap() else {
        panic!("a fresh key is held");
    };
    let State::Held { deadline: before, .. } = lease.state() else { panic!("lost at once") };
    let followers = cluster.others(cluster.leader());
    followers.iter().for_each(|id| cluster.stop(*id));
    tokio::time::sleep(outage).await;
    assert!(lease.is_held(), "{:?}", lease.state());
    followers.iter().for_each(|id| cluster.resume(*id));
    let mut states = lease.watch();
    let renewed = states.wait_for(|state| {
        !matches!(state, State::Held { deadline, trouble: None } if *deadline <= before)
            && !matches!(state, State::Held { trouble: Some(_), .. })
    });
    let state = tokio::time::timeout(ttl, renewed).await.expect("no renewal and no loss").unwrap().clone();
    assert!(matches!(state, State::Held { .. }), "{state:?}");
    assert!(lease.release().await.unwrap());
}
