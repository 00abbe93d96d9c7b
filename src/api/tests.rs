//! The router on a real node, called in process: each line of the command protocol, and each way to be refused.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_cluster::{Cluster, Config};
use tower::ServiceExt;

use super::Api;
use super::metrics::Metrics;
use crate::edge::history::History;
use crate::edge::{Edge, Requests};
use crate::events::{self, Ears};
use crate::keyspace::EdgeId;

pub(super) struct Face {
    router: Router,
    api: Api,
    _dir: TempDir,
}

pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) json: Value,
    pub(super) text: String,
}

impl Face {
    pub(super) async fn open() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let metrics = Arc::new(Metrics::default());
        let config = Config { observer: Arc::clone(&metrics) as _, ..Config::single(dir.path().join("data")) };
        let (requests, history) = (Arc::<Requests>::default(), Arc::<History>::default());
        let ears =
            Ears { metrics: Arc::clone(&metrics), requests: Arc::clone(&requests), history: Arc::clone(&history) };
        let cluster = Cluster::open(config, events::sink(ears).unwrap()).await.unwrap();
        let edge = Edge::new(EdgeId { node: 1, incarnation: 1 }, cluster.clone(), requests);
        let api = Api::new(cluster, edge, history, metrics, dir.path().to_owned(), Duration::from_secs(5), 9);
        Self { router: api.router(), api, _dir: dir }
    }

    async fn call(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let text = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
        let json = serde_json::from_str(&text).unwrap_or(Value::Null);
        Answer { status: parts.status, headers: parts.headers, json, text }
    }

    pub(super) async fn post(&self, path: &str, body: impl Into<Body>) -> Answer {
        let request = Request::post(path).header("content-type", "application/json").body(body.into()).unwrap();
        self.call(request).await
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.call(Request::get(path).body(Body::empty()).unwrap()).await
    }

    /// The answer to a command that is served.
    pub(super) async fn ask(&self, command: &str, body: Value) -> Value {
        let answer = self.post(&format!("/v1/{command}"), body.to_string()).await;
        assert_eq!(answer.status, StatusCode::OK, "{command} {body}: {}", answer.text);
        assert_eq!(answer.headers["content-type"], "application/json");
        let position = answer.headers["tenure-position"].to_str().unwrap();
        assert!(
            position.split_once('.').is_some_and(|(index, n)| index.parse::<u64>().is_ok() && n.parse::<u32>().is_ok())
        );
        assert!(answer.headers["tenure-clock"].to_str().unwrap().parse::<u64>().unwrap() > 0);
        assert_eq!(answer.headers["tenure-term"], "1");
        assert_eq!(answer.headers["tenure-cluster"].len(), 32);
        answer.json
    }

    pub(super) async fn op(&self, key: &str, operation: &str, args: Value) -> Value {
        self.ask("OP", json!({"key": key, "operation": operation, "args": args})).await
    }
}

impl Answer {
    /// Checks that this is a problem in the wire's form; its detail.
    pub(super) fn problem(&self, status: u16, code: &str) -> &str {
        assert_eq!(
            (self.status.as_u16(), self.headers["content-type"].to_str().unwrap()),
            (status, "application/problem+json"),
            "{}",
            self.text
        );
        assert_eq!(self.json["code"], code, "{}", self.text);
        assert_eq!(self.json["status"], status);
        assert_eq!(self.json["type"], format!("/problems/{code}"));
        assert!(self.json["title"].is_string());
        self.json["detail"].as_str().unwrap()
    }
}

fn holder(token: &str) -> Value {
    json!({"owner": "o", "token": token, "ttl_ms": 60_000})
}

#[tokio::test]
async fn a_lease_from_creation_to_deletion() {
    let face = Face::open().await;
    assert_eq!(face.ask("CREATE", json!({"key": "k", "type": "lease", "options": {}})).await, json!({"result": true}));
    assert_eq!(face.op("k", "HELD", json!({})).await["result"], false);

    let acquired = face.op("k", "ACQUIRE", holder("t")).await;
    assert_eq!(
        (&acquired["result"], &acquired["fence"], &acquired["ttl_ms"]),
        (&json!(true), &json!(1), &json!(60_000))
    );
    let again = face.op("k", "ACQUIRE", holder("t")).await;
    assert_eq!((&again["result"], &again["yours"], &again["fence"]), (&json!(false), &json!(true), &json!(1)));
    let other = face.op("k", "ACQUIRE", holder("u")).await;
    assert_eq!((&other["result"], &other["reason"], &other["owner"]), (&json!(false), &json!("held"), &json!("o")));
    assert!(other["retry_after_ms"].as_u64().is_some_and(|ms| ms <= 60_000));

    assert_eq!(face.op("k", "HELD", json!({"token": "t"})).await["result"], true);
    assert_eq!(face.op("k", "HELD", json!({"token": "u"})).await["result"], false);
    assert_eq!(face.op("k", "CHECK", json!({"fence": 1})).await["result"], true);
    assert_eq!(face.op("k", "CHECK", json!({"fence": 2})).await["result"], false);
    assert_eq!(face.op("k", "RENEW", json!({"token": "t", "ttl_ms": 90_000})).await["result"], true);
    assert_eq!(face.op("k", "RENEW", json!({"token": "t", "ttl_ms": 0})).await["reason"], "ttl_not_positive");
    let lease = face.ask("GET", json!({"key": "k"})).await["result"].take();
    assert_eq!((&lease["held"], &lease["owner"], &lease["type"]), (&json!(true), &json!("o"), &json!("lease")));
    assert!(lease["acquired_at"].as_str().is_some_and(|at| at.ends_with('Z')));

    assert_eq!(face.op("k", "RELEASE", json!({"token": "t", "fence": 1})).await["result"], true);
    assert_eq!(face.op("k", "RELEASE", json!({"token": "t"})).await["reason"], "not_held");
    let lease = face.ask("GET", json!({"key": "k"})).await["result"].take();
    assert_eq!((&lease["last"]["reason"], &lease["last"]["fence"]), (&json!("released"), &json!(1)));

    assert_eq!(face.ask("DEL", json!({"keys": ["k", "absent"]})).await["result"], 1);
    assert_eq!(face.ask("GET", json!({"key": "k"})).await, json!({"result": null}));
}

#[tokio::test]
async fn keys_and_their_lifetimes() {
    let face = Face::open().await;
    for key in ["a", "a/b", "/a", "a/", "a//b", "A"] {
        assert_eq!(face.ask("CREATE", json!({"key": key, "type": "lease"})).await["result"], true);
    }
    assert_eq!(face.ask("TYPE", json!({"key": "a"})).await["result"], "lease");
    assert_eq!(face.ask("TYPE", json!({"key": "x"})).await["result"], Value::Null);
    assert_eq!(face.ask("EXISTS", json!({"key": "a/"})).await["result"], true);
    assert_eq!(face.ask("EXISTS", json!({"key": "x"})).await["result"], false);
    assert_eq!(face.ask("TTL", json!({"key": "x"})).await["result"], -2);
    assert_eq!(face.ask("TTL", json!({"key": "a"})).await["result"], -1);
    assert_eq!(face.ask("EXPIRE", json!({"key": "x", "ttl_ms": 1000})).await["result"], false);
    assert_eq!(face.ask("EXPIRE", json!({"key": "a", "ttl_ms": 60_000})).await["result"], true);
    let ttl = face.ask("TTL", json!({"key": "a"})).await["result"].as_u64().unwrap();
    assert!((1..=60_000).contains(&ttl), "{ttl}");
    assert_eq!(face.ask("PERSIST", json!({"key": "a"})).await["result"], true);
    assert_eq!(face.ask("TTL", json!({"key": "a"})).await["result"], -1);

    let keys = |page: &Value| page["keys"].as_array().unwrap().iter().map(|k| k["key"].clone()).collect::<Vec<_>>();
    let first = face.ask("SCAN", json!({"prefix": "a", "limit": 3})).await["result"].take();
    assert_eq!(keys(&first), ["a", "a/", "a//b"]);
    let cursor = first["cursor"].clone();
    let rest = face.ask("SCAN", json!({"prefix": "a", "limit": 3, "cursor": cursor})).await["result"].take();
    assert_eq!((keys(&rest), &rest["cursor"]), (vec![json!("a/b")], &Value::Null));
}

#[tokio::test]
async fn a_batch_is_one_entry_and_sees_itself() {
    let face = Face::open().await;
    let acquire = json!({"command": "OP", "key": "k", "operation": "ACQUIRE", "args": holder("t")});
    let items = json!([
        {"command": "CREATE", "key": "k", "type": "lease"},
        {"command": "CREATE", "key": "k", "type": "lease"},
        acquire,
        {"command": "OP", "key": "k", "operation": "CHECK", "args": {"fence": 1}},
        {"command": "GET", "key": "k"},
    ]);
    let answer = face.ask("BATCH", json!({"commands": items})).await["result"].take();
    assert_eq!(answer[0], json!({"result": true}));
    assert_eq!(answer[1]["error"]["code"], "already_exists");
    assert_eq!((&answer[2]["result"], &answer[3]["result"]), (&json!(true), &json!(true)));
    assert_eq!(answer[4]["result"]["fence"], 1);

    let items = json!([{"command": "CREATE", "key": "new", "type": "lease"}, {"command": "CREATE", "key": "", "type": "lease"}]);
    let answer = face.post("/v1/BATCH", json!({"commands": items}).to_string()).await;
    answer.problem(400, "invalid_argument");
    assert_eq!((&answer.json["index"], &answer.json["field"]), (&json!(1), &json!("key")));
    assert_eq!(face.ask("EXISTS", json!({"key": "new"})).await["result"], false);
}

#[tokio::test]
async fn refusals_by_the_state_carry_the_witness() {
    let face = Face::open().await;
    let create = json!({"key": "k", "type": "lease", "options": {"ttl_ms_max": 1000}}).to_string();
    face.post("/v1/CREATE", create.clone()).await;
    let answer = face.post("/v1/CREATE", create).await;
    answer.problem(409, "already_exists");
    assert!(answer.headers.contains_key("tenure-position"));

    let op =
        |key: &str, operation: &str, args: Value| json!({"key": key, "operation": operation, "args": args}).to_string();
    let answer = face.post("/v1/OP", op("k", "ACQUIRE", holder("t"))).await;
    assert!(answer.problem(400, "invalid_argument").contains("1000"));
    assert_eq!(answer.json["field"], "args.ttl_ms");
    for (operation, args) in [("ACQUIRE", holder("t")), ("HELD", json!({})), ("CHECK", json!({"fence": 1}))] {
        let answer = face.post("/v1/OP", op("absent", operation, args)).await;
        answer.problem(404, "no_such_key");
        assert!(answer.headers.contains_key("tenure-position"), "{operation}");
    }
}

#[tokio::test]
async fn bad_requests_change_nothing() {
    let face = Face::open().await;
    let index = face.api.shared.cluster.status().last_index;
    let ttl = |ttl: &str| {
        format!(
            r#"{{"key":"k","operation":"ACQUIRE","args":{{"owner":"o","token":"t","create":true,"ttl_ms":{ttl}}}}}"#
        )
    };
    for bad in ["123.45", "\"30000\"", "null", "true", "NaN", "31536000001"] {
        let answer = face.post("/v1/OP", ttl(bad)).await;
        answer.problem(400, "invalid_argument");
        assert!(!answer.headers.contains_key("tenure-position"));
    }
    let answer = face.post("/v1/CREATE?consistency=stale", r#"{"key":"k","type":"lease"}"#).await;
    assert!(answer.problem(400, "invalid_argument").contains("reads"));
    let answer = face.post("/v1/CREATE?dry_run=1", r#"{"key":"k","type":"lease"}"#).await;
    assert!(answer.problem(400, "invalid_argument").contains("dry_run"));
    face.post("/v1/CREATE", vec![b' '; 1024 * 1024 + 1]).await.problem(413, "too_large");
    let bare = Request::post("/v1/CREATE").body(Body::from(r#"{"key":"k","type":"lease"}"#)).unwrap();
    assert!(face.call(bare).await.problem(415, "unsupported_media_type").contains("curl --json"));
    assert_eq!(face.api.shared.cluster.status().last_index, index);
    assert_eq!(face.ask("EXISTS", json!({"key": "k"})).await["result"], false);
}

#[tokio::test]
async fn every_path_answers_with_a_problem() {
    let face = Face::open().await;
    for path in ["/", "/v2/GET", "/v1", "/v1/", "/v1/GET/", "/v1/GET/x", "/health"] {
        face.get(path).await.problem(404, "not_found");
    }
    assert!(face.post("/v1/ACQUIRE", "{}").await.problem(404, "not_found").contains("POST /v1/OP"));
    assert!(face.post("/v1/get", "{}").await.problem(404, "not_found").contains("POST /v1/GET"));
    assert!(face.post("/v1/NOPE", "{}").await.problem(404, "not_found").contains("CREATE, OP, GET"));
    face.get("/v1/NOPE").await.problem(404, "not_found");
    for (method, path, allow) in [
        (Method::GET, "/v1/GET", "POST"),
        (Method::DELETE, "/v1/OP", "POST"),
        (Method::POST, "/v1/status", "GET,HEAD"),
        (Method::PUT, "/livez", "GET,HEAD"),
        (Method::POST, "/metrics", "GET,HEAD"),
    ] {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        let answer = face.call(request).await;
        answer.problem(405, "method_not_allowed");
        assert_eq!(answer.headers["allow"], allow, "{path}");
    }
}

#[tokio::test]
async fn stale_reads_tell_their_age() {
    let face = Face::open().await;
    face.ask("CREATE", json!({"key": "k", "type": "lease"})).await;
    let answer = face.post("/v1/EXISTS?consistency=stale", r#"{"key":"k"}"#).await;
    assert_eq!((&answer.json, answer.status), (&json!({"result": true}), StatusCode::OK));
    assert!(answer.headers["tenure-age-ms"].to_str().unwrap().parse::<u64>().is_ok());
    let answer = face.post("/v1/EXISTS?consistency=linearizable", r#"{"key":"k"}"#).await;
    assert!(!answer.headers.contains_key("tenure-age-ms"));
    face.post("/v1/EXISTS?consistency=weak", r#"{"key":"k"}"#).await.problem(400, "invalid_argument");
}

#[tokio::test]
async fn probes_status_and_metrics() {
    let face = Face::open().await;
    face.op("k", "ACQUIRE", json!({"owner": "o", "token": "secret", "create": true})).await;
    face.op("k", "RENEW", json!({"token": "secret"})).await;
    face.post("/v1/OP", "{}").await.problem(400, "invalid_argument");
    assert_eq!(face.get("/livez").await.text, "ok\n");
    assert_eq!(face.get("/readyz").await.text, "ok\n");
    let status = face.get("/v1/status").await.json;
    assert_eq!((&status["role"], &status["leader"], &status["rho"]), (&json!("leader"), &json!(1), &json!(0.01)));
    assert_eq!((&status["keys"], &status["leases_held"], &status["ready"]), (&json!(1), &json!(1), &json!(true)));
    let page = face.get("/metrics").await;
    for line in [
        "tenure_commands_total{command=\"ACQUIRE\",result=\"true\"} 1",
        "tenure_commands_total{command=\"RENEW\",result=\"true\"} 1",
        "tenure_commands_total{command=\"OP\",result=\"invalid_argument\"} 1",
        "tenure_grants_total 1",
        "tenure_renewals_total 1",
        "tenure_leases_held 1",
        "tenure_keys 1",
        "tenure_raft_role{role=\"leader\"} 1",
        "tenure_ready 1",
        "# EOF",
    ] {
        assert!(page.text.lines().any(|l| l == line), "{line} in\n{}", page.text);
    }
    assert!(!page.text.contains("secret"));
    face.api.drain();
    assert_eq!(face.get("/readyz").await.problem(503, "unavailable"), "draining");
    assert_eq!(face.get("/livez").await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_body_that_does_not_come_is_a_timeout() {
    let stuck = Body::from_stream(futures_util::stream::pending::<Result<&str, std::io::Error>>());
    let problem = super::body::read(stuck, Duration::from_millis(1)).await.unwrap_err();
    assert_eq!(problem.code, super::problem::Code::RequestTimeout);
}
