//! Every line of the contract over raw HTTP: results, extras, reasons, headers. Bad input stands in `input.rs`.

use serde_json::{Value, json};

use crate::harness::{Fresh, Node, eventually};

fn create(node: &Node, key: &str, options: &Value) {
    assert_eq!(node.call("CREATE", &json!({"key": key, "type": "lease", "options": options}))["result"], true);
}

fn acquire(node: &Node, key: &str, token: &str, ttl_ms: i64) -> Value {
    node.op(key, "ACQUIRE", &json!({"owner": format!("owner of {token}"), "token": token, "ttl_ms": ttl_ms}))
}

/// The answer is `false` for that reason.
fn assert_refused(answer: &Value, reason: &str) {
    assert_eq!((&answer["result"], &answer["reason"]), (&json!(false), &json!(reason)), "{answer}");
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

#[test]
fn a_lease_from_create_to_del() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    create(node, "k", &json!({}));
    let again = node.post("CREATE", &json!({"key": "k", "type": "lease"}));
    assert_eq!((again.status, &again.json()["code"]), (409, &json!("already_exists")));

    let granted = acquire(node, "k", "t1", 30_000);
    assert_eq!((&granted["result"], &granted["owner"]), (&json!(true), &json!("owner of t1")));
    assert!((29_000..=30_000).contains(&number(&granted["ttl_ms"])), "{granted}");
    let fence = number(&granted["fence"]);
    assert_eq!(node.op("k", "HELD", &json!({}))["result"], true);
    assert_eq!(node.op("k", "HELD", &json!({"token": "t1"}))["result"], true);
    assert_eq!(node.op("k", "HELD", &json!({"token": "t2"}))["result"], false);
    assert_eq!(node.op("k", "CHECK", &json!({"fence": fence}))["result"], true);
    assert_eq!(node.op("k", "CHECK", &json!({"fence": fence + 1}))["result"], false);

    let other = acquire(node, "k", "t2", 30_000);
    assert_refused(&other, "held");
    assert_eq!((&other["fence"], &other["owner"]), (&json!(fence), &json!("owner of t1")));
    assert!(number(&other["retry_after_ms"]) <= 30_000, "{other}");
    let mine = acquire(node, "k", "t1", 5);
    assert_eq!((&mine["result"], &mine["yours"], &mine["fence"]), (&json!(false), &json!(true), &json!(fence)));

    let renewed = node.op("k", "RENEW", &json!({"token": "t1", "ttl_ms": 60_000, "fence": fence}));
    assert_eq!((&renewed["result"], &renewed["fence"]), (&json!(true), &json!(fence)));
    assert!(number(&renewed["ttl_ms"]) > 55_000, "{renewed}");
    let shorter = node.op("k", "RENEW", &json!({"token": "t1", "ttl_ms": 1_000}));
    assert!(number(&shorter["ttl_ms"]) > 50_000, "RENEW never shortens: {shorter}");
    assert_refused(&node.op("k", "RENEW", &json!({"token": "t2"})), "not_held");
    assert_refused(&node.op("k", "RENEW", &json!({"token": "t1", "fence": fence + 1})), "not_held");
    assert_refused(&node.op("k", "RELEASE", &json!({"token": "t2"})), "not_held");
    assert_eq!(node.op("k", "RELEASE", &json!({"token": "t1", "fence": fence}))["result"], true);
    assert_refused(&node.op("k", "RELEASE", &json!({"token": "t1"})), "not_held");
    assert_eq!(node.op("k", "HELD", &json!({}))["result"], false);

    let next = acquire(node, "k", "t3", 30_000);
    assert!(number(&next["fence"]) > fence, "fences grow: {next}");
    assert_eq!(node.call("DEL", &json!({"keys": ["k", "absent"]}))["result"], 1);
    create(node, "k", &json!({}));
    let after = acquire(node, "k", "t4", 30_000);
    assert!(number(&after["fence"]) > number(&next["fence"]), "DEL and CREATE reset nothing: {after}");
}

#[test]
fn a_missing_key() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    for (operation, args) in [
        ("ACQUIRE", json!({"owner": "o", "token": "t"})),
        ("RENEW", json!({"token": "t"})),
        ("RELEASE", json!({"token": "t"})),
        ("HELD", json!({})),
        ("BREAK", json!({"reason": "r"})),
        ("CHECK", json!({"fence": 1})),
    ] {
        let answer = node.post("OP", &json!({"key": "absent", "operation": operation, "args": args}));
        assert_eq!((answer.status, &answer.json()["code"]), (404, &json!("no_such_key")), "{operation}");
    }
    assert_eq!(node.get("absent"), Value::Null);
    for (command, body, result) in [
        ("TYPE", json!({"key": "absent"}), json!(null)),
        ("EXISTS", json!({"key": "absent"}), json!(false)),
        ("TTL", json!({"key": "absent"}), json!(-2)),
        ("EXPIRE", json!({"key": "absent", "ttl_ms": 1000}), json!(false)),
        ("PERSIST", json!({"key": "absent"}), json!(false)),
        ("DEL", json!({"keys": ["absent"]}), json!(0)),
    ] {
        assert_eq!(node.call(command, &body)["result"], result, "{command}");
    }
    assert!(node.scan().is_empty(), "nothing of this made a key");
    let made = node.op("made", "ACQUIRE", &json!({"owner": "o", "token": "t", "create": true}));
    assert_eq!(made["result"], true);
    assert_eq!(node.call("TYPE", &json!({"key": "made"}))["result"], "lease");
    assert_eq!(node.call("EXISTS", &json!({"key": "made"}))["result"], true);
}

#[test]
fn zero_and_negative_ttls_are_refusals_that_change_nothing() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    create(node, "k", &json!({}));
    for ttl_ms in [0, -1, i64::MIN] {
        assert_refused(&acquire(node, "k", "t", ttl_ms), "ttl_not_positive");
        let made = json!({"owner": "o", "token": "t", "ttl_ms": ttl_ms, "create": true});
        assert_refused(&node.op("made", "ACQUIRE", &made), "ttl_not_positive");
    }
    assert_eq!(node.get("made"), Value::Null);
    assert_eq!(node.get("k")["held"], false);
    acquire(node, "k", "t", 30_000);
    let before = node.get("k");
    for ttl_ms in [0, -1] {
        assert_refused(&node.op("k", "RENEW", &json!({"token": "t", "ttl_ms": ttl_ms})), "ttl_not_positive");
    }
    let after = node.get("k");
    assert_eq!(after["version"], before["version"]);
    assert!(number(&after["ttl_ms"]) <= number(&before["ttl_ms"]), "the old deadline stays");
}

#[test]
fn get_shows_all_but_the_token() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    create(node, "k", &json!({"delay_ms": 7, "min_hold_ms": 0, "ttl_ms_max": 40_000}));
    let free = node.get("k");
    assert_eq!((&free["held"], &free["type"], &free["acquirable_in_ms"]), (&json!(false), &json!("lease"), &json!(0)));
    assert_eq!(free["options"], json!({"delay_ms": 7, "min_hold_ms": 0, "ttl_ms_max": 40_000}));
    let args = json!({"owner": "me", "token": "very secret", "ttl_ms": 40_000, "note": "ünïcode note"});
    let granted = node.op("k", "ACQUIRE", &args);
    let held = node.get("k");
    assert_eq!((&held["held"], &held["owner"], &held["fence"]), (&json!(true), &json!("me"), &granted["fence"]));
    assert_eq!((&held["note"], &held["waiters"], &held["last"]), (&json!("ünïcode note"), &json!(0), &json!(null)));
    assert!(number(&held["ttl_ms"]) <= 40_000 && number(&held["held_for_ms"]) < 40_000, "{held}");
    assert!(held["acquired_at"].as_str().is_some_and(|at| at.starts_with("20") && at.ends_with('Z')), "{held}");
    assert_ne!(held["version"], free["version"], "a grant is a change");
    node.op("k", "RELEASE", &json!({"token": "very secret"}));
    let last = node.get("k")["last"].take();
    assert_eq!(
        (&last["fence"], &last["owner"], &last["reason"]),
        (&granted["fence"], &json!("me"), &json!("released"))
    );
    let above = node.post(
        "OP",
        &json!({"key": "k", "operation": "ACQUIRE",
        "args": {"owner": "o", "token": "t", "ttl_ms": 40_001}}),
    );
    assert_eq!((above.status, &above.json()["code"]), (400, &json!("invalid_argument")), "above the key's ttl_ms_max");
}

#[test]
fn break_tells_the_holder_why() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    create(node, "k", &json!({"delay_ms": 60_000}));
    let reason = json!({"reason": "host is gone"});
    assert_refused(&node.op("k", "BREAK", &reason), "not_held");
    let fence = number(&acquire(node, "k", "t", 30_000)["fence"]);
    assert_refused(&node.op("k", "BREAK", &json!({"reason": "x", "fence": fence + 1})), "not_held");

    let graced = node.op("k", "BREAK", &json!({"reason": "soon", "grace_ms": 20_000, "fence": fence}));
    assert_eq!(graced["result"], true);
    let renew = node.op("k", "RENEW", &json!({"token": "t"}));
    assert_refused(&renew, "broken");
    assert_eq!(renew["detail"], "soon");
    assert_eq!(node.op("k", "HELD", &json!({}))["result"], true, "the grace is the holder's");
    assert!(number(&node.get("k")["ttl_ms"]) <= 20_000);

    assert_eq!(node.op("k", "BREAK", &reason)["result"], true);
    assert_eq!(node.op("k", "HELD", &json!({}))["result"], false);
    let renew = node.op("k", "RENEW", &json!({"token": "t"}));
    assert_refused(&renew, "broken");
    assert_eq!(renew["detail"], "host is gone");
    assert_refused(&acquire(node, "k", "t2", 30_000), "delay");
    let overridden = node.op("k", "ACQUIRE", &json!({"owner": "o", "token": "t2", "delay_ms": 0}));
    assert_refused(&overridden, "delay");
}

#[test]
fn minimum_hold_and_once() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    create(node, "k", &json!({"min_hold_ms": 60_000}));
    acquire(node, "k", "t1", 30_000);
    assert_eq!(node.op("k", "RELEASE", &json!({"token": "t1"}))["result"], true);
    assert_eq!(node.op("k", "HELD", &json!({}))["result"], false);
    assert_refused(&acquire(node, "k", "t2", 30_000), "min_hold");
    let open_in = number(&node.get("k")["acquirable_in_ms"]);
    assert!((50_000..=60_000).contains(&open_in), "{open_in}");

    // An explicit 0 is zero, not "the default".
    create(node, "zero", &json!({"min_hold_ms": 60_000}));
    let args = json!({"owner": "o", "token": "t1", "min_hold_ms": 0});
    assert_eq!(node.op("zero", "ACQUIRE", &args)["result"], true);
    assert_eq!(node.op("zero", "RELEASE", &json!({"token": "t1"}))["result"], true);
    let again = json!({"owner": "o", "token": "t1", "min_hold_ms": 0, "once": true});
    assert_refused(&node.op("zero", "ACQUIRE", &again), "token_used");
    assert_eq!(node.op("zero", "ACQUIRE", &json!({"owner": "o", "token": "t1", "once": false}))["result"], true);
}

#[test]
fn the_keys_lifetime_never_ends_a_grant() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    create(node, "k", &json!({}));
    assert_eq!(node.call("TTL", &json!({"key": "k"}))["result"], -1);
    assert_eq!(node.call("EXPIRE", &json!({"key": "k", "ttl_ms": 60_000}))["result"], true);
    let left = number(&node.call("TTL", &json!({"key": "k"}))["result"]);
    assert!((50_000..=60_000).contains(&left), "{left}");
    assert_eq!(node.call("PERSIST", &json!({"key": "k"}))["result"], true);
    assert_eq!(node.call("TTL", &json!({"key": "k"}))["result"], -1);

    acquire(node, "k", "t", 60_000);
    assert_eq!(node.call("EXPIRE", &json!({"key": "k", "ttl_ms": 1}))["result"], true);
    eventually("the key's lifetime is over", || (node.call("TTL", &json!({"key": "k"}))["result"] == 0).then_some(()));
    assert_eq!(node.op("k", "HELD", &json!({"token": "t"}))["result"], true);
    assert_refused(&node.op("k", "RENEW", &json!({"token": "t"})), "key_expired");
    assert_refused(&acquire(node, "k", "t2", 30_000), "key_expired");
    assert_eq!(node.op("k", "RELEASE", &json!({"token": "t"}))["result"], true);
    assert_eq!(node.call("EXISTS", &json!({"key": "k"}))["result"], false, "the key goes with its grant");
}

#[test]
fn del_can_be_exact() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    create(node, "k", &json!({}));
    let fence = number(&acquire(node, "k", "t", 60_000)["fence"]);
    assert_eq!(node.call("DEL", &json!({"keys": ["k"], "fence": fence + 1}))["result"], 0);
    assert_eq!(node.call("DEL", &json!({"keys": ["k"], "fence": fence}))["result"], 1);
    let gone = node.post("OP", &json!({"key": "k", "operation": "RENEW", "args": {"token": "t"}}));
    assert_eq!((gone.status, &gone.json()["code"]), (404, &json!("no_such_key")));
}

#[test]
fn scan_pages_in_byte_order() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    // FR-08: look-alike keys are keys of their own, and none stands in another's way.
    let mut keys = vec!["a", "a/b", "/a", "a/", "a//b", "A", "ä", "日本", "z z"];
    for key in &keys {
        assert_eq!(acquire_made(node, key)["result"], true, "{key}");
    }
    keys.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
    let names = |page: &Value| -> Vec<String> {
        page["keys"].as_array().unwrap().iter().map(|key| key["key"].as_str().unwrap().to_owned()).collect()
    };
    let first = node.call("SCAN", &json!({"limit": 4}))["result"].take();
    assert_eq!(names(&first), keys[..4]);
    let rest = node.call("SCAN", &json!({"cursor": first["cursor"]}))["result"].take();
    assert_eq!(names(&rest), keys[4..]);
    assert_eq!(rest["cursor"], Value::Null);
    let under = node.call("SCAN", &json!({"prefix": "a/"}))["result"].take();
    assert_eq!(names(&under), ["a/", "a//b", "a/b"]);
    assert_eq!(under["keys"][0], node_snapshot(node, "a/", &under["keys"][0]));
}

fn acquire_made(node: &Node, key: &str) -> Value {
    node.op(key, "ACQUIRE", &json!({"owner": "o", "token": format!("token of {key}"), "create": true}))
}

/// GET's snapshot with the moving times of `like`, so that the rest can be compared.
fn node_snapshot(node: &Node, key: &str, like: &Value) -> Value {
    let mut snapshot = node.get(key);
    for name in ["ttl_ms", "held_for_ms", "acquirable_in_ms"] {
        snapshot[name] = like[name].clone();
    }
    snapshot
}

#[test]
fn batch_is_one_entry_in_order() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    let op = |operation: &str, args: Value| json!({"command": "OP", "key": "k", "operation": operation, "args": args});
    let commands = json!([
        {"command": "CREATE", "key": "k", "type": "lease"},
        {"command": "CREATE", "key": "k", "type": "lease"},
        op("ACQUIRE", json!({"owner": "me", "token": "t"})),
        op("HELD", json!({"token": "t"})),
        {"command": "GET", "key": "k"},
        op("RELEASE", json!({"token": "t"})),
        {"command": "EXPIRE", "key": "k", "ttl_ms": 1000},
        {"command": "PERSIST", "key": "k"},
        {"command": "DEL", "keys": ["k"]},
        {"command": "GET", "key": "k"},
    ]);
    let answer = node.call("BATCH", &json!({"commands": commands}));
    let items = answer["result"].as_array().unwrap();
    assert_eq!(items.len(), 10);
    assert_eq!(items[0]["result"], true);
    assert_eq!(items[1]["error"]["code"], "already_exists", "an item's error does not undo the others");
    assert_eq!((&items[2]["result"], &items[3]["result"]), (&json!(true), &json!(true)));
    assert_eq!((&items[4]["result"]["owner"], &items[5]["result"]), (&json!("me"), &json!(true)));
    assert_eq!((&items[6]["result"], &items[7]["result"]), (&json!(true), &json!(true)));
    assert_eq!((&items[8]["result"], &items[9]["result"]), (&json!(1), &json!(null)));
    assert!(node.scan().is_empty());
}

#[test]
fn every_answer_has_its_witness() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    let position = |headers: &std::collections::BTreeMap<String, String>| {
        let (index, ordinal) = headers["tenure-position"].split_once('.').expect("index.n");
        (index.parse::<u64>().unwrap(), ordinal.parse::<u32>().unwrap())
    };
    let write = node.post("CREATE", &json!({"key": "k", "type": "lease"}));
    let read = node.post("GET", &json!({"key": "k"}));
    assert!(position(&read.headers) >= position(&write.headers), "{read:?} {write:?}");
    for response in [&write, &read] {
        assert_eq!(response.headers["tenure-cluster"].len(), 32);
        assert!(response.headers["tenure-clock"].parse::<u64>().unwrap() > 0);
        assert!(response.headers["tenure-term"].parse::<u64>().unwrap() > 0);
        assert!(!response.headers.contains_key("tenure-age-ms"));
    }
    assert_eq!(read.json()["result"]["version"], write.headers["tenure-position"].as_str());
    let mut http = node.http();
    let json_type = [("Content-Type", "application/json")];
    let stale = http.send("POST", "/v1/GET?consistency=stale", &json_type, r#"{"key":"k"}"#).unwrap();
    assert_eq!(stale.status, 200);
    assert!(stale.headers["tenure-age-ms"].parse::<u64>().is_ok());
    let wrong = http.send("POST", "/v1/GET?consistency=maybe", &json_type, r#"{"key":"k"}"#).unwrap();
    assert_eq!((wrong.status, &wrong.json()["code"]), (400, &json!("invalid_argument")));
    assert!(!wrong.headers.contains_key("tenure-position"), "nothing was applied or read");
}

#[test]
fn an_expired_grant_is_told_as_such() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    create(node, "k", &json!({"delay_ms": 60_000}));
    let fence = number(&acquire(node, "k", "t", 50)["fence"]);
    node.await_free("k");
    assert_refused(&node.op("k", "RENEW", &json!({"token": "t"})), "expired");
    assert_refused(&node.op("k", "RELEASE", &json!({"token": "t", "fence": fence})), "expired");
    assert_refused(&acquire(node, "k", "t2", 30_000), "delay");
    let last = node.get("k")["last"].take();
    assert_eq!((&last["fence"], &last["reason"]), (&json!(fence), &json!("expired")));
}

#[test]
fn probes_status_and_metrics() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    acquire_made(node, "k");
    let mut http = node.http();
    for path in ["/livez", "/readyz", "/v1/status", "/metrics"] {
        assert_eq!(http.send("GET", path, &[], "").unwrap().status, 200, "{path}");
    }
    let metrics = http.send("GET", "/metrics", &[], "").unwrap().body;
    assert!(metrics.lines().any(|line| line.starts_with("tenure_") && line.ends_with(" 1")), "{metrics}");
    assert!(!metrics.contains("token of k"), "no token in metrics");
}
