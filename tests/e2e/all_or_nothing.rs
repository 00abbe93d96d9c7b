//! BATCH `all_or_nothing`: several leases at once, or none.

use serde_json::{Value, json};

use crate::harness::{Fresh, Node};

/// An item of a BATCH.
fn op(key: &str, operation: &str, args: &Value) -> Value {
    json!({"command": "OP", "key": key, "operation": operation, "args": args})
}

fn acquire(key: &str, token: &str) -> Value {
    op(key, "ACQUIRE", &json!({"owner": token, "token": token, "ttl_ms": 60_000, "create": true}))
}

fn all(node: &Node, items: &[Value]) -> Value {
    node.call("BATCH", &json!({"commands": items, "all_or_nothing": true}))
}

/// Every key as SCAN shows it, without what passes by itself.
fn state(node: &Node) -> Vec<Value> {
    let mut keys = node.scan();
    for key in &mut keys {
        for passing in ["ttl_ms", "held_for_ms", "acquirable_in_ms"] {
            key[passing].take();
        }
    }
    keys
}

#[test]
fn all_are_had_or_none() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    let response = node.post(
        "BATCH",
        &json!({"all_or_nothing": true,
        "commands": [acquire("a", "t"), acquire("b", "t"), acquire("c", "t")]}),
    );
    assert_eq!(response.status, 200, "{response:?}");
    let mut answer = response.json();
    let Value::Array(items) = answer["result"].take() else { panic!("{answer}") };
    let fences: Vec<u64> = items.iter().map(|item| item["fence"].as_u64().unwrap()).collect();
    assert!(items.iter().all(|item| item["result"] == true) && fences.is_sorted(), "{items:?}");
    // One entry: one position for all of it.
    let versions: Vec<Value> = node.scan().into_iter().map(|mut key| key["version"].take()).collect();
    assert!(versions.iter().all(|version| *version == versions[0]), "{versions:?}");

    let before = state(node);
    // Two that could be had, and one that another holds: nothing is done, no key made, no fence used.
    let refused = all(node, &[acquire("d", "u"), acquire("e", "u"), acquire("b", "u"), acquire("a", "u")]);
    assert_eq!((&refused["result"], &refused["index"]), (&json!(false), &json!(2)), "{refused}");
    assert_eq!((&refused["reason"], &refused["owner"]), (&json!("held"), &json!("t")), "{refused}");
    assert_eq!(refused["fence"], json!(fences[1]));
    assert!(refused["retry_after_ms"].as_u64().unwrap() > 0, "{refused}");
    assert_eq!(state(node), before);
    let next = node.op("next", "ACQUIRE", &json!({"owner": "o", "token": "t", "create": true}));
    assert_eq!(next["fence"], json!(fences[2] + 1), "no fence was used up");
}

#[test]
fn what_is_held_already_counts_as_done() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    assert_eq!(all(node, &[acquire("a", "t")])["result"][0]["result"], true);
    let again = all(node, &[acquire("a", "t"), acquire("b", "t")]);
    assert_eq!((&again["result"][0]["yours"], &again["result"][1]["result"]), (&json!(true), &json!(true)), "{again}");
    let kept = all(
        node,
        &[
            op("a", "RENEW", &json!({"token": "t", "ttl_ms": 90_000})),
            op("b", "RENEW", &json!({"token": "t", "ttl_ms": 90_000})),
        ],
    );
    assert_eq!(kept["result"].as_array().unwrap().len(), 2, "{kept}");
    // One that is not held any more: neither is given back.
    let token = json!({"token": "t"});
    let release = |key: &str| op(key, "RELEASE", &token);
    assert_eq!(node.op("b", "RELEASE", &token)["result"], true);
    let refused = all(node, &[release("a"), release("b")]);
    assert_eq!((&refused["index"], &refused["reason"]), (&json!(1), &json!("not_held")), "{refused}");
    assert_eq!(node.op("a", "HELD", &token)["result"], true);
    // Items see what those before them did: a lease is handed over in one step.
    let handed = all(node, &[release("a"), acquire("a", "u")]);
    assert_eq!(handed["result"][1]["result"], true, "{handed}");
    assert_eq!(node.get("a")["owner"], "u");
}

#[test]
fn an_error_of_an_item_is_the_answer() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    let before = state(node);
    let missing = op("missing", "RENEW", &json!({"token": "t"}));
    for (bad, status, code, field) in [
        (missing, 404, "no_such_key", Value::Null),
        (json!({"command": "GET", "key": "k"}), 400, "invalid_argument", json!("command")),
        (op("k", "BREAK", &json!({"reason": "r"})), 400, "invalid_argument", json!("operation")),
        (op("k", "HELD", &json!({})), 400, "invalid_argument", json!("operation")),
        (
            op("k", "ACQUIRE", &json!({"owner": "o", "token": "t", "wait_ms": 1})),
            400,
            "invalid_argument",
            json!("args.wait_ms"),
        ),
    ] {
        let body = json!({"commands": [acquire("k", "t"), bad], "all_or_nothing": true});
        let response = node.post("BATCH", &body);
        let problem = response.json();
        assert_eq!(response.headers["content-type"], "application/problem+json");
        assert_eq!(
            (response.status, &problem["code"], &problem["index"]),
            (status, &json!(code), &json!(1)),
            "{problem}"
        );
        assert_eq!(problem["field"], field, "{problem}");
        assert_eq!(state(node), before, "{body}");
    }
    // The key's own limit is known to the store alone.
    node.call("CREATE", &json!({"key": "short", "type": "lease", "options": {"ttl_ms_max": 1000}}));
    let response = node.post("BATCH", &json!({"all_or_nothing": true, "commands": [acquire("short", "t")]}));
    let problem = response.json();
    assert_eq!((&problem["field"], &problem["index"]), (&json!("args.ttl_ms"), &json!(0)), "{problem}");
}
