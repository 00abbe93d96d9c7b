//! Pools through the router on a real node: each operation, and each way to be refused.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::{Value, json};

use super::tests::Face;

async fn pool(options: Value) -> Face {
    let face = Face::open().await;
    assert_eq!(
        face.ask("CREATE", json!({"key": "ids", "type": "pool", "options": options})).await,
        json!({"result": true})
    );
    face
}

fn by_identity(identity: &str, token: &str) -> Value {
    json!({"identity": identity, "token": token, "ttl_ms": 60_000})
}

fn by_owner(owner: &str) -> Value {
    json!({"owner": owner, "token": owner, "ttl_ms": 60_000})
}

#[tokio::test]
async fn an_id_from_creation_to_deletion() {
    let face = pool(json!({"size": 3, "first": 10})).await;
    assert_eq!(face.ask("TYPE", json!({"key": "ids"})).await, json!({"result": "pool"}));
    assert_eq!(face.ask("EXISTS", json!({"key": "ids"})).await, json!({"result": true}));
    let shown = face.ask("GET", json!({"key": "ids"})).await["result"].clone();
    assert_eq!(shown["slots"], json!({"held": 0, "quarantined": 0, "free": 3}));
    let uuid = shown["pool"].as_str().unwrap().to_owned();
    // As RFC 9562 writes a random one.
    assert!(uuid.len() == 36 && &uuid[14..15] == "4" && "89ab".contains(&uuid[19..20]), "{uuid}");

    let granted = face.op("ids", "ACQUIRE", by_identity("pod-1", "t")).await;
    let expected = json!({"id": 10, "fence": 1, "ttl_ms": 60_000, "identity": "pod-1", "pool": uuid, "first": 10,
        "size": 3, "floor_unix_ms": null});
    assert_eq!(granted, json!({"result": expected}));
    let again = face.op("ids", "ACQUIRE", by_identity("pod-1", "t")).await;
    assert_eq!(
        (&again["result"]["id"], &again["result"]["fence"], &again["yours"]),
        (&json!(10), &json!(1), &json!(true))
    );
    let renewed = face.op("ids", "RENEW", json!({"token": "t", "ttl_ms": 90_000, "fence": 1, "unix_ms": 5})).await;
    assert_eq!((&renewed["result"]["status"], &renewed["result"]["ttl_ms"]), (&json!("renewed"), &json!(90_000)));
    let held = face.op("ids", "HELD", json!({"token": "t"})).await;
    assert_eq!((&held["result"], &held["id"], &held["owner"]), (&json!(true), &json!(10), &json!("pod-1")));
    let checked = face.op("ids", "CHECK", json!({"fence": 1})).await;
    assert_eq!((&checked["result"], &checked["id"]), (&json!(true), &json!(10)));

    let page = face.op("ids", "HOLDERS", json!({})).await["result"].clone();
    let holder = &page["holders"][0];
    assert_eq!((&holder["id"], &holder["held"], &holder["identity"]), (&json!(10), &json!(true), &json!("pod-1")));
    assert_eq!((page["holders"].as_array().unwrap().len(), &page["cursor"]), (1, &Value::Null));
    let scanned = face.ask("SCAN", json!({})).await["result"]["keys"][0].clone();
    assert_eq!((&scanned["type"], &scanned["slots"]["held"]), (&json!("pool"), &json!(1)));

    assert_eq!(face.op("ids", "RELEASE", json!({"token": "t"})).await["result"], true);
    let again = face.op("ids", "RELEASE", json!({"token": "t"})).await;
    assert_eq!((&again["result"], &again["reason"]), (&json!(false), &json!("not_held")));
    let lost = face.op("ids", "RENEW", json!({"token": "t"})).await;
    assert_eq!((&lost["result"], &lost["reason"]), (&json!({"status": "lost"}), &json!("not_held")));
    assert_eq!(face.op("ids", "HOLDERS", json!({})).await["result"]["holders"], json!([]));
    let kept = face.op("ids", "HOLDERS", json!({"id": 10})).await["result"]["holders"][0].clone();
    assert_eq!(
        (&kept["held"], &kept["identity"], &kept["last"]["reason"]),
        (&json!(false), &json!("pod-1"), &json!("released"))
    );
    assert_eq!(face.ask("DEL", json!({"keys": ["ids"]})).await, json!({"result": 1}));
    assert_eq!(face.ask("TYPE", json!({"key": "ids"})).await, json!({"result": null}));
}

#[tokio::test]
async fn a_takeover_and_a_rejection() {
    let face = pool(json!({})).await;
    face.op("ids", "ACQUIRE", by_identity("pod-1", "old")).await;
    let newer = face.op("ids", "ACQUIRE", by_identity("pod-1", "new")).await;
    assert_eq!(
        (&newer["result"]["id"], &newer["took_over"], &newer["prior_fence"]),
        (&json!(0), &json!(true), &json!(1))
    );
    assert!(newer["prior_ttl_ms"].as_u64().is_some_and(|ms| ms <= 60_000), "{newer}");
    let lost = face.op("ids", "RENEW", json!({"token": "old"})).await;
    assert_eq!((&lost["result"]["status"], &lost["reason"]), (&json!("lost"), &json!("taken_over")));
    let page = face.get("/metrics").await.text;
    assert!(page.contains("tenure_pool_takeovers_total 1\n"), "{page}");

    let options = json!({"on_conflict": "reject"});
    face.ask("CREATE", json!({"key": "strict", "type": "pool", "options": options})).await;
    face.op("strict", "ACQUIRE", by_identity("pod-1", "old")).await;
    let rejected = face.op("strict", "ACQUIRE", by_identity("pod-1", "new")).await;
    assert_eq!((&rejected["result"], &rejected["reason"]), (&Value::Null, &json!("identity_in_use")));
}

#[tokio::test]
async fn a_semaphore_and_its_line() {
    let face = pool(json!({"size": 2})).await;
    for owner in ["a", "b"] {
        let granted = face.op("ids", "ACQUIRE", by_owner(owner)).await;
        assert_eq!(granted["result"]["identity"], Value::Null, "{granted}");
    }
    let none = face.op("ids", "ACQUIRE", by_owner("c")).await;
    assert_eq!((&none["result"], &none["reason"]), (&Value::Null, &json!("exhausted")));
    assert!(none["retry_after_ms"].as_u64().is_some_and(|ms| ms > 0), "{none}");
    let mut args = by_owner("c");
    args["wait_ms"] = json!(60_000);
    let (granted, _) = tokio::join!(face.op("ids", "ACQUIRE", args), async {
        while face.ask("GET", json!({"key": "ids"})).await["result"]["waiters"] != 1 {
            tokio::task::yield_now().await;
        }
        face.op("ids", "RELEASE", json!({"token": "a"})).await
    });
    assert_eq!((&granted["result"]["id"], &granted["result"]["ttl_ms"]), (&json!(0), &json!(60_000)));
    let page = face.get("/metrics").await.text;
    for line in [
        "tenure_waits_total{outcome=\"granted\"} 1",
        "tenure_pool_slots{pool=\"ids\",state=\"held\"} 2",
        "tenure_pool_slots{pool=\"ids\",state=\"free\"} 0",
        "tenure_pools 1",
        "tenure_pools_omitted 0",
    ] {
        assert!(page.lines().any(|l| l == line), "{line} in\n{page}");
    }
}

#[tokio::test]
async fn an_operator_s_acts() {
    let face = pool(json!({"size": 2})).await;
    face.op("ids", "ACQUIRE", by_identity("pod-1", "t")).await;
    let broken = face.op("ids", "BREAK", json!({"id": 0, "reason": "why"})).await;
    assert_eq!(broken["result"], true, "{broken}");
    let lost = face.op("ids", "RENEW", json!({"token": "t"})).await;
    let expected = json!({"result": {"status": "lost"}, "reason": "broken", "detail": "why"});
    assert_eq!(lost, expected);
    assert_eq!(face.op("ids", "RESIZE", json!({"size": 1})).await, json!({"result": true}));
    let none = face.op("ids", "ACQUIRE", by_identity("pod-1", "u")).await;
    assert_eq!(none["reason"], "exhausted", "its claim is gone, and nothing else is left: {none}");
    assert_eq!(face.op("ids", "RESIZE", json!({"size": 2})).await, json!({"result": true}));
    assert_eq!(face.op("ids", "ACQUIRE", by_identity("pod-1", "u")).await["result"]["id"], 1);
}

#[tokio::test]
async fn what_is_for_the_other_type_is_refused_by_name() {
    let face = pool(json!({})).await;
    face.ask("CREATE", json!({"key": "k", "type": "lease"})).await;
    let op =
        |key: &str, operation: &str, args: Value| json!({"key": key, "operation": operation, "args": args}).to_string();
    for (body, field) in [
        (op("ids", "ACQUIRE", json!({"owner": "o", "token": "t", "min_hold_ms": 0})), "args.min_hold_ms"),
        (op("ids", "ACQUIRE", json!({"owner": "o", "token": "t", "delay_ms": 0})), "args.delay_ms"),
        (op("ids", "BREAK", json!({"reason": "r"})), "args.id"),
        (op("ids", "ACQUIRE", json!({"identity": "i", "token": "t", "ttl_ms": 86_400_001})), "args.ttl_ms"),
    ] {
        let answer = face.post("/v1/OP", body.clone()).await;
        let detail = answer.problem(400, "invalid_argument");
        assert!(detail.starts_with(field), "{detail}");
        assert_eq!(answer.json["field"], field, "{body}");
    }
    for body in [
        op("k", "ACQUIRE", by_identity("i", "t")),
        op("k", "RENEW", json!({"token": "t", "unix_ms": 1})),
        op("k", "BREAK", json!({"id": 0, "reason": "r"})),
        op("k", "RESIZE", json!({"size": 1})),
        op("k", "HOLDERS", json!({})),
    ] {
        let answer = face.post("/v1/OP", body).await;
        assert!(answer.problem(409, "wrong_type").contains("is a lease"), "{}", answer.text);
    }
    let answer = face.post("/v1/OP", op("nowhere", "HOLDERS", json!({}))).await;
    answer.problem(404, "no_such_key");
    let answer = face.post("/v1/HOLDERS", "{}").await;
    assert!(answer.problem(404, "not_found").contains("POST /v1/OP"), "{}", answer.text);
}

#[tokio::test]
async fn pools_in_batches() {
    let face = pool(json!({"size": 1})).await;
    let op =
        |operation: &str, args: Value| json!({"command": "OP", "key": "ids", "operation": operation, "args": args});
    let items = json!([
        {"command": "CREATE", "key": "other", "type": "pool"},
        op("ACQUIRE", by_identity("pod-1", "t")),
        op("ACQUIRE", by_owner("o")),
        op("HELD", json!({"token": "t"})),
        op("BREAK", json!({"reason": "r"})),
        {"command": "GET", "key": "ids"},
    ]);
    let answer = face.ask("BATCH", json!({"commands": items})).await["result"].clone();
    assert_eq!(answer[0], json!({"result": true}));
    assert_eq!((&answer[1]["result"]["id"], &answer[2]["reason"]), (&json!(0), &json!("exhausted")));
    assert_eq!((&answer[3]["result"], &answer[3]["id"]), (&json!(true), &json!(0)));
    assert_eq!(answer[4]["error"]["code"], "invalid_argument");
    assert_eq!(answer[5]["result"]["type"], "pool");
    let uuid = |key: &'static str| face.ask("GET", json!({"key": key}));
    assert_ne!(uuid("ids").await["result"]["pool"], uuid("other").await["result"]["pool"]);

    let items = json!([{"command": "OP", "key": "other", "operation": "ACQUIRE", "args": by_identity("i", "t")},
        op("ACQUIRE", by_owner("o"))]);
    let answer = face.ask("BATCH", json!({"commands": items, "all_or_nothing": true})).await;
    let told = (&answer["result"], &answer["reason"], &answer["index"]);
    assert_eq!(told, (&json!(false), &json!("exhausted"), &json!(1)));
    assert_eq!(face.ask("GET", json!({"key": "other"})).await["result"]["slots"]["held"], 0);
}

#[tokio::test]
async fn a_hot_loop_is_told_to_slow_down() {
    let face = pool(json!({})).await;
    let body = json!({"key": "ids", "operation": "ACQUIRE", "args": by_identity("pod-1", "t")}).to_string();
    let mut limited = None;
    // Within the two seconds that would make its allowance whole again, on any machine that serves ten a second.
    for _ in 0..200 {
        let answer = face.post("/v1/OP", body.clone()).await;
        if answer.status != 200 {
            limited = Some(answer);
            break;
        }
    }
    let limited = limited.expect("so many were let through");
    assert!(limited.problem(429, "rate_limited").contains("asks too often"), "{}", limited.text);
    assert_eq!(limited.headers["retry-after"], "1");
    assert!(face.op("ids", "ACQUIRE", by_identity("pod-2", "u")).await["result"]["id"].is_u64());
    assert_eq!(face.op("ids", "RENEW", json!({"token": "t"})).await["result"]["status"], "renewed");
}
