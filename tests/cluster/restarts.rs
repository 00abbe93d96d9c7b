//! Whole clusters and single nodes go down and come back.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::asker::Asker;
use crate::harness::{Cluster, Plan, rounds};
use crate::history::History;
use crate::load::Load;
use crate::ports;
use crate::process::{Process, STAMP, eventually};

/// FR-30, FR-29, FR-31: all three killed at once, started within the ttl: the same tokens, fences and deadlines, within
/// seconds; clients go on with the same addresses.
#[test]
fn all_nodes_killed_at_once() {
    let mut cluster = Cluster::start(Plan::three());
    let history = History::default();
    let (ttl_ms, long_ms) = (6_000, 3_600_000);
    let granted = Instant::now();
    let args = json!({"owner": "o", "token": "t", "ttl_ms": long_ms, "create": true});
    // On a loaded machine there may be an election: who asks on is told the same fence.
    let mut asker = Asker::new(&cluster, 0);
    let fences: Vec<Value> =
        (0..100).map(|n| asker.insist(&format!("base-{n}"), "ACQUIRE", &args)["fence"].clone()).collect();
    let load = Load { holders: 4, readers: 1, ..Load::default() };
    load.run(&mut cluster, &history, |cluster, running| {
        for _ in 0..rounds(2) {
            running.await_calls(100);
            let short_sent = Instant::now();
            let short = json!({"owner": "o", "token": "short", "ttl_ms": ttl_ms, "create": true});
            let fence = asker.insist("short", "ACQUIRE", &short)["fence"].clone();
            cluster.kill_all();
            let started = Instant::now();
            cluster.restart_all();
            let serving = started.elapsed();
            eprintln!("all killed, all ready after {} ms", serving.as_millis());
            // The holder came back within its ttl: its token is good; another's is not until the deadline.
            let renew = json!({"token": "short", "fence": fence, "ttl_ms": 1});
            assert_eq!(cluster.op(1, "short", "RENEW", &renew)["result"], true);
            let other = json!({"owner": "p", "token": "other", "ttl_ms": 60_000});
            let refused = asker.insist("short", "ACQUIRE", &other);
            assert_eq!((&refused["result"], &refused["reason"]), (&json!(false), &json!("held")), "{refused}");
            let taken = eventually("the lease is free at its deadline", || {
                let answer = asker.insist("short", "ACQUIRE", &other);
                (answer["result"] == true || answer["yours"] == true).then(Instant::now)
            });
            assert!(taken + STAMP > short_sent + Duration::from_millis(ttl_ms), "not early");
            let outage = Duration::from_secs(1) + serving;
            let late = short_sent + Duration::from_millis(ttl_ms) + outage + Duration::from_secs(3);
            assert!(taken <= late, "taken {:?} after its deadline", taken - short_sent);
            let freed = asker.insist("short", "RELEASE", &json!({"token": "other"}));
            assert!(freed["result"] == true || freed["reason"] == "not_held", "{freed}");
        }
    });
    for (n, fence) in fences.iter().enumerate() {
        let seen = cluster.get(1 + u64::try_from(n).unwrap() % 3, &format!("base-{n}"));
        assert_eq!((&seen["held"], &seen["fence"]), (&json!(true), fence), "base-{n}: {seen}");
        let left = seen["ttl_ms"].as_u64().unwrap();
        let ran = u64::try_from(granted.elapsed().as_millis()).unwrap();
        assert!((long_ms - ran..=long_ms).contains(&left), "base-{n}: {left} ms left after {ran}");
    }
    history.judge("all-killed");
    cluster.states_are_equal();
}

/// FR-17: a lease ends, the whole cluster is stopped and started: the first ACQUIRE that is answered is granted.
#[test]
fn what_had_ended_is_free_at_once() {
    let mut cluster = Cluster::start(Plan::three());
    let args = |token: &str, ttl_ms: u64| json!({"owner": "o", "token": token, "ttl_ms": ttl_ms, "create": true});
    cluster.op(1, "k", "ACQUIRE", &args("t", 200));
    eventually("the lease has ended", || (cluster.op(2, "k", "HELD", &json!({}))["result"] == false).then_some(()));
    cluster.ids().into_iter().for_each(|id| cluster.terminate(id));
    cluster.ids().into_iter().for_each(|id| assert!(cluster.end(id).success(), "node {id} drains"));
    cluster.restart_all();
    let granted = cluster.op(3, "k", "ACQUIRE", &args("t2", 1000));
    assert_eq!(granted["result"], true, "{granted}");
}

/// FR-41: stopped and started without a pause, again and again; a second process on the same directory ends at once and
/// says why.
#[test]
fn stopped_and_started_without_a_pause() {
    let mut cluster = Cluster::start(Plan::three());
    let node = cluster.others(cluster.leader())[0];
    for _ in 0..rounds(5) {
        cluster.terminate(node);
        assert!(cluster.end(node).success());
        cluster.restart(node);
    }
    cluster.await_ready(node);
    // On ports of its own, so that the directory alone is in the way.
    let seat = cluster.seat_mut(node);
    let own = (seat.client, seat.peer);
    (seat.client, seat.peer) = (ports::free(), ports::free());
    let second = cluster.command(node);
    let seat = cluster.seat_mut(node);
    (seat.client, seat.peer) = own;
    let started = Instant::now();
    let mut second = Process::start(second);
    assert!(!second.end().success());
    // One that waited for the directory would wait for ever.
    assert!(started.elapsed() < Duration::from_secs(15), "it took {:?}", started.elapsed());
    let said = second.rest();
    let data = cluster.seat(node).data.display().to_string();
    assert!(said.contains(&data), "it names the directory: {said}");
    assert_eq!(cluster.op(node, "k", "ACQUIRE", &json!({"owner": "o", "token": "t", "create": true}))["result"], true);
}

/// FR-39: the same command at the first start and the tenth, former leaders included.
#[test]
fn the_same_flags_always_work() {
    let mut cluster = Cluster::start(Plan::three());
    for round in 0..rounds(10).min(10) {
        let leader = cluster.leader();
        let killed = if round % 2 == 0 { leader } else { cluster.others(leader)[round / 2 % 2] };
        cluster.kill(killed);
        cluster.restart(killed);
        cluster.await_ready(killed);
    }
    let members = cluster.status(1).unwrap()["members"].as_array().map(Vec::len);
    assert_eq!(members, Some(3));
}
