//! What a node may grow to: memory and disk under traffic that leaves nothing behind, and a start from a snapshot.

use serde_json::{Value, json};

use crate::crash::{TTL_MS, a_thousand_leases, by_key};
use crate::harness::{Fresh, Node, disk_bytes, eventually};
use crate::machine_id::{furnish, stands};

/// A BATCH of OPs on `key`, which must be answered one by one.
fn batch(node: &Node, commands: Vec<Value>) -> Vec<Value> {
    let mut answer = node.call("BATCH", &json!({"commands": commands}));
    match answer["result"].take() {
        Value::Array(items) => items,
        other => panic!("no array: {other}"),
    }
}

fn op(key: &str, operation: &str, args: &Value) -> Value {
    json!({"command": "OP", "key": key, "operation": operation, "args": args})
}

/// A gauge of `/metrics`.
fn gauge(node: &Node, name: &str) -> u64 {
    let page = node.http().send("GET", "/metrics", &[], "").unwrap().body;
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in {page}")).parse().unwrap()
}

/// Resident memory of a process in KiB.
fn resident_kib(node: &Node) -> u64 {
    let pid = node.process.pid().as_raw_nonzero();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// FR-49, small: a hundred thousand refused ACQUIREs with fresh tokens leave nothing behind.
#[test]
fn refused_acquires_leave_nothing_behind() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    let args = json!({"owner": "o", "token": "t", "ttl_ms": TTL_MS, "create": true});
    node.op("k", "ACQUIRE", &args);
    let refuse = |round: usize| {
        let args = |n: usize| json!({"owner": "o", "token": format!("token {round} {n}")});
        let items = batch(node, (0..1000).map(|n| op("k", "ACQUIRE", &args(n))).collect());
        assert!(items.iter().all(|item| item["reason"] == "held"));
    };
    let before = node.get("k");
    (0..30).for_each(refuse);
    let warm_kib = resident_kib(node);
    (30..130).for_each(refuse);
    let grown_kib = resident_kib(node).saturating_sub(warm_kib);
    // An allocator keeps some; 100 000 remembered tokens and owners would be well over this.
    assert!(grown_kib < 24 * 1024, "{grown_kib} KiB grown over 100 000 refusals");
    assert!(disk_bytes(&fresh.data()) < 256 << 20, "{} bytes on disk", disk_bytes(&fresh.data()));
    let after = node.get("k");
    assert_eq!((&after["version"], &after["fence"]), (&before["version"], &before["fence"]));
    assert_eq!(node.scan().len(), 1);
}

/// FR-45: a million RENEWs on ten keys.
#[test]
fn a_million_renewals_keep_the_directory_small() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    for key in 0..10 {
        let args = json!({"owner": "o", "token": "t", "ttl_ms": TTL_MS, "create": true});
        node.op(&format!("k{key}"), "ACQUIRE", &args);
    }
    let renewals: Vec<Value> =
        (0..1000).map(|n| op(&format!("k{}", n % 10), "RENEW", &json!({"token": "t", "ttl_ms": TTL_MS}))).collect();
    for round in 0..1000 {
        let items = batch(node, renewals.clone());
        assert!(items.iter().all(|item| item["result"] == true), "round {round}");
        if round % 50 == 0 {
            let bytes = disk_bytes(&fresh.data());
            assert!(bytes < 512 << 20, "round {round}: {bytes} bytes on disk");
        }
    }
}

/// Enough log for snapshots and purges; then `kill -9`, and a start from the snapshot.
#[test]
fn a_start_from_a_snapshot_loses_nothing() {
    let fresh = Fresh::start();
    let base = a_thousand_leases(&fresh.node);
    let pool = furnish(&fresh.node);
    // Refused, but logged: 700 notes of 1 KiB an entry, past the snapshot's 64 MiB of log more than twice.
    let note = "n".repeat(1024);
    let args = json!({"owner": "other", "token": "other", "note": note});
    let refused: Vec<Value> = (0..700).map(|n| op(&format!("base-{n:04}"), "ACQUIRE", &args)).collect();
    for _ in 0..250 {
        let items = batch(&fresh.node, refused.clone());
        assert!(items.iter().all(|item| item["reason"] == "held"));
    }
    eventually("a snapshot is taken", || (gauge(&fresh.node, "tenure_snapshot_index") > 0).then_some(()));
    eventually("the log behind it is purged", || (disk_bytes(&fresh.data()) < 256 << 20).then_some(()));
    let last = fresh.node.op("last", "ACQUIRE", &json!({"owner": "o", "token": "t", "ttl_ms": TTL_MS, "create": true}));
    let fresh = fresh.restart();
    let there = by_key(&fresh.node);
    assert_eq!(there.len(), base.len() + 2);
    assert_eq!(there["last"]["fence"], last["fence"]);
    for (key, fence) in &base {
        assert_eq!((&there[key]["held"], &there[key]["fence"]), (&json!(true), fence), "{key}");
    }
    let args = json!({"token": "t7", "fence": base["base-0007"]});
    assert_eq!(fresh.node.op("base-0007", "RENEW", &args)["result"], true, "token hashes are in the snapshot");
    stands(&fresh.node, &pool);
}
