//! Calls that come again, late, twice or from the wrong side: what a lost answer makes clients do.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Fresh, Node, pass};

fn acquire(node: &Node, key: &str, token: &str, ttl_ms: u64) -> Value {
    node.op(key, "ACQUIRE", &json!({"owner": "o", "token": token, "ttl_ms": ttl_ms, "create": true}))
}

/// FR-20: the late copy of a RELEASE must not touch the same owner's next grant.
#[test]
fn a_late_release_touches_no_newer_grant() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    let first = acquire(node, "k", "t1", 60_000);
    assert_eq!(node.op("k", "RELEASE", &json!({"token": "t1"}))["result"], true);
    let second = acquire(node, "k", "t2", 60_000);
    assert_eq!(node.op("k", "RELEASE", &json!({"token": "t1"}))["result"], false);
    assert_eq!(node.get("k")["fence"], second["fence"]);
    // With one token for both, the fence keeps them apart.
    assert_eq!(node.op("k", "RELEASE", &json!({"token": "t2"}))["result"], true);
    let third = acquire(node, "k", "t1", 60_000);
    let late = json!({"token": "t1", "fence": first["fence"]});
    assert_eq!(node.op("k", "RELEASE", &late)["result"], false);
    assert_eq!(node.op("k", "RENEW", &late)["result"], false);
    let deleted = node.call("DEL", &json!({"keys": ["k"], "fence": first["fence"]}));
    assert_eq!(deleted["result"], 0);
    assert_eq!(node.get("k")["fence"], third["fence"]);
}

/// A repeated ACQUIRE, its answer lost, finds itself: one grant, one fence.
#[test]
fn a_repeated_acquire_finds_its_grant() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    let first = acquire(node, "k", "t", 60_000);
    for _ in 0..5 {
        let again = acquire(node, "k", "t", 60_000);
        assert_eq!((&again["result"], &again["yours"]), (&json!(false), &json!(true)), "{again}");
        assert_eq!(again["fence"], first["fence"]);
    }
    let next = acquire(node, "other", "t", 60_000)["fence"].as_u64().unwrap();
    assert_eq!(next, first["fence"].as_u64().unwrap() + 1, "the fence grew by one per real grant");
}

/// FR-28: the same owner with another token is another holder.
#[test]
fn an_owner_is_not_a_token() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    let first = acquire(node, "k", "t1", 60_000);
    let second = acquire(node, "k", "t2", 60_000);
    assert_eq!((&second["result"], &second["reason"]), (&json!(false), &json!("held")));
    assert_eq!(second["fence"], first["fence"]);
    assert!(second.get("yours").is_none(), "{second}");
    node.op("k", "RELEASE", &json!({"token": "t1"}));
    assert_eq!(acquire(node, "k", "t2", 60_000)["result"], true);
}

/// FR-18: an ended lease of a dead owner is taken at the first try, at once and later.
#[test]
fn an_expired_lease_is_taken_at_the_first_try() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    let mut fence = 0;
    for (key, after_ms) in [("soon", 0), ("later", 1_200)] {
        let granted = acquire(node, key, "dead", 100);
        node.await_free(key);
        pass(Duration::from_millis(after_ms));
        let taken = acquire(node, key, "next", 60_000);
        assert_eq!(taken["result"], true, "{key}: {taken}");
        assert!(taken["fence"].as_u64() > granted["fence"].as_u64() && taken["fence"].as_u64() > Some(fence));
        fence = taken["fence"].as_u64().unwrap();
    }
}

/// FR-21: RELEASE after the end answers, quickly, why it is false; and so does the next.
#[test]
fn a_release_after_the_end_is_told_so() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    acquire(node, "k", "t", 50);
    node.await_free("k");
    let started = Instant::now();
    for _ in 0..2 {
        let late = node.op("k", "RELEASE", &json!({"token": "t"}));
        assert_eq!((&late["result"], &late["reason"]), (&json!(false), &json!("expired")));
    }
    // As far from a call that waits for its connection's end as a loaded machine needs.
    assert!(started.elapsed() < Duration::from_secs(15), "it did not wait for anything: {:?}", started.elapsed());
    let cli = node.cli(&["OP", r#"{"key":"k","operation":"RELEASE","args":{"token":"t"}}"#]);
    assert_eq!(cli.status.code(), Some(0), "a refusal is an answer");
}

/// FR-47: a thousand late, double and unknown RELEASEs from ten clients; others are served.
#[test]
fn a_storm_of_useless_releases() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    let kept = acquire(node, "kept", "t", 600_000);
    acquire(node, "late", "t", 50);
    acquire(node, "double", "t", 600_000);
    node.op("double", "RELEASE", &json!({"token": "t"}));
    acquire(node, "foreign", "t", 600_000);
    node.await_free("late");
    thread::scope(|scope| {
        for client in 0..10 {
            scope.spawn(move || {
                let mut http = node.http();
                for round in 0..100 {
                    let key = ["late", "double", "foreign"][(client + round) % 3];
                    let token = if key == "foreign" { "unknown" } else { "t" };
                    let body = json!({"key": key, "operation": "RELEASE", "args": {"token": token}});
                    let answer = http.post("OP", &body.to_string()).unwrap();
                    assert_eq!((answer.status, &answer.json()["result"]), (200, &json!(false)), "{key}: {answer:?}");
                }
            });
        }
    });
    assert_eq!(node.get("kept")["fence"], kept["fence"]);
    assert_eq!(node.op("foreign", "HELD", &json!({"token": "t"}))["result"], true);
    assert!(!node.process.lines.text().contains("panic"), "no panic in the log");
}

/// FR-29: a holder comes back with its node inside the ttl.
#[test]
fn a_holder_comes_back_with_its_node() {
    let fresh = Fresh::start();
    let mine = acquire(&fresh.node, "mine", "t", 60_000);
    acquire(&fresh.node, "theirs", "old", 1_500);
    let fresh = fresh.restart();
    let node = &fresh.node;
    let renewed = node.op("mine", "RENEW", &json!({"token": "t", "fence": mine["fence"]}));
    assert_eq!(renewed["result"], true, "the same token goes on: {renewed}");
    let refused = acquire(node, "theirs", "new", 60_000);
    if refused["result"] == false {
        assert_eq!(refused["reason"], "held");
        // No later than the deadline: what is left of the ttl, asked of the node itself.
        pass(Duration::from_millis(refused["ttl_ms"].as_u64().unwrap() + 1));
        assert_eq!(acquire(node, "theirs", "new", 60_000)["result"], true, "a new token is granted at the deadline");
    }
}

/// FR-24, small: RENEW races RELEASE and DEL; after the removal was answered no RENEW is true.
#[test]
fn no_renewal_after_the_end() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    for round in 0..50 {
        let key = format!("k{round}");
        let fence = acquire(node, &key, "t", 60_000)["fence"].clone();
        let renew = json!({"key": key, "operation": "RENEW", "args": {"token": "t", "fence": fence}}).to_string();
        thread::scope(|scope| {
            let renewer = scope.spawn(|| {
                let mut http = node.http();
                let mut last_true_sent = None;
                loop {
                    let sent = Instant::now();
                    let answer = http.post("OP", &renew).unwrap();
                    if answer.status != 200 || answer.json()["result"] == false {
                        return last_true_sent;
                    }
                    last_true_sent = Some(sent);
                }
            });
            if round % 2 == 0 {
                assert_eq!(node.op(&key, "RELEASE", &json!({"token": "t"}))["result"], true);
            } else {
                assert_eq!(node.call("DEL", &json!({"keys": [key]}))["result"], 1);
            }
            let ended = Instant::now();
            let last_true_sent = renewer.join().unwrap();
            assert!(last_true_sent.is_none_or(|sent| sent < ended), "a RENEW sent after the end was true");
        });
    }
}
