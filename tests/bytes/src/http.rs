//! HTTP: a connection's bytes against the real router on a real node, and bodies against what makes commands of them.
//!
//! `WIRE`: head, query, headers and body as they come off a socket, by way of hyper to the axum router on one durable
//! node. Every answer is JSON (or a page of text), every error a problem with a known code, none of them `internal`. The
//! node lives through the whole campaign, so an answer may hang on the mutants before.
//!
//! `BODY`: the first line names a command, the rest is its body. What is accepted goes through the log's encoding as it is.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tempfile::TempDir;
use tenure::api::Api;
use tenure::api::convert::{self, Kind};
use tenure::api::metrics::Metrics;
use tenure::edge::{Edge, Requests};
use tenure::keyspace::{Attach, Command, EdgeId, Event, Keyspace, PoolOptions, PoolUuid};
use tenure_client::wire::Problem;
use tenure_cluster::{Cluster, Config, Heard, entry};
use tokio::runtime::Runtime;
use tower::ServiceExt;

use crate::mutate::Form;
use crate::{Heap, MIB, Sample, Target, Verdict};

/// See the module's head. hyper, the router and the node's own threads (log, applier) take their part of the heap; a body
/// is there up to four times (read, collected, parsed, encoded).
pub const WIRE: Target = Target {
    name: "http-wire",
    read: wire,
    samples: wire_samples,
    form: Form::Json,
    mend: Some(mend_length),
    heap: Heap { per_byte: 96, besides: 8 * MIB },
    least: 200,
};

/// See the module's head. A JSON value of one or two bytes (`0,`) takes a node of 64 bytes in a vector that doubles.
pub const BODY: Target = Target {
    name: "http-body",
    read: body,
    samples: body_samples,
    form: Form::Json,
    mend: None,
    heap: Heap { per_byte: 128, besides: 64 * crate::KIB },
    least: 2_000,
};

/// One node, and what drives it.
struct Node {
    runtime: Runtime,
    router: Router,
    _dir: TempDir,
}

impl Node {
    fn open() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let metrics = Arc::new(Metrics::default());
        let config = Config {
            observer: Arc::clone(&metrics) as _,
            segment_bytes: 4 * MIB as u64,
            request_timeout: Duration::from_secs(60),
            ..Config::single(dir.path().join("data"))
        };
        let requests = Arc::<Requests>::default();
        let heard = Arc::clone(&requests);
        let events = Arc::new(move |event: Heard<'_, Event>| heard.hear(event));
        let (cluster, edge) = runtime.block_on(async {
            let cluster = Cluster::<Keyspace>::open(config, events).await.unwrap();
            let edge = Edge::new(EdgeId { node: 1, incarnation: 1 }, cluster.clone(), requests);
            (cluster, edge)
        });
        // It begins tasks.
        let entered = runtime.enter();
        let router =
            Api::new(cluster, edge, Arc::default(), metrics, dir.path().to_owned(), Duration::from_secs(60), 9)
                .router();
        drop(entered);
        Self { runtime, router, _dir: dir }
    }
}

thread_local! {
    static NODE: OnceCell<Node> = const { OnceCell::new() };
}

fn wire(bytes: &[u8]) -> Verdict {
    NODE.with(|node| {
        let node = node.get_or_init(Node::open);
        node.runtime.block_on(connection(&node.router, bytes))
    })
}

/// Serves the connection to its end. Accepted: some request was answered well.
async fn connection(router: &Router, bytes: &[u8]) -> Verdict {
    let good = std::cell::Cell::new(false);
    let service = service_fn(|request: Request<hyper::body::Incoming>| {
        let (router, good) = (router.clone(), &good);
        async move {
            let answer = router.oneshot(request.map(Body::new)).await.unwrap();
            let (parts, body) = answer.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let status = parts.status.as_u16();
            let content = parts.headers.get("content-type").map_or("", |value| value.to_str().unwrap());
            judge(status, content, &body);
            good.set(good.get() || parts.status.is_success());
            Ok::<_, std::convert::Infallible>(Response::from_parts(parts, Full::new(body)))
        }
    });
    // The other side's end of the connection comes with its last byte, while it still waits for answers.
    let stream = TokioIo::new(tokio::io::join(bytes, tokio::io::sink()));
    let served = http1::Builder::new().half_close(true).pipeline_flush(true).serve_connection(stream, service).await;
    Verdict::of(good.get() && served.is_ok())
}

/// What must hold of every answer.
fn judge(status: u16, content: &str, body: &Bytes) {
    match (status, content) {
        // HEAD on a page, and a body that nobody asked for.
        (_, _) if body.is_empty() => {}
        (200..=299, "application/json") => drop(serde_json::from_slice::<Value>(body).unwrap()),
        (200..=299, _) => drop(std::str::from_utf8(body).unwrap()),
        (_, "application/problem+json") => {
            let problem: Problem = serde_json::from_slice(body).unwrap();
            assert_eq!(problem.status, status, "{problem}");
            assert_ne!(problem.code, "internal", "{problem}");
        }
        _ => panic!("status {status} with content type {content:?}"),
    }
}

fn request(path: &str, extra: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n{extra}Content-Length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

fn wire_samples() -> Vec<Sample> {
    let acquire = json!({"key": "k", "operation": "ACQUIRE", "args":
        {"owner": "o", "token": "t", "ttl_ms": 30_000, "create": true, "note": "n"}});
    let batch = json!({"commands": [{"command": "OP", "key": "b", "operation": "ACQUIRE",
        "args": {"owner": "o", "token": "t", "create": true}}, {"command": "GET", "key": "b"}]});
    let pool = json!({"commands": [{"command": "CREATE", "key": "p", "type": "pool", "options": {"size": 9}},
        {"command": "OP", "key": "p", "operation": "ACQUIRE", "args": {"identity": "i", "token": "t", "unix_ms": 7}},
        {"command": "OP", "key": "p", "operation": "RENEW", "args": {"token": "t", "unix_ms": 8}},
        {"command": "OP", "key": "p", "operation": "BREAK", "args": {"id": 0, "reason": "r"}},
        {"command": "GET", "key": "p"}]});
    vec![
        ("acquire", request("/v1/OP", "", &acquire.to_string())),
        ("batch", request("/v1/BATCH", "Tenure-Timeout-Ms: 60000\r\n", &batch.to_string())),
        ("scan-stale", request("/v1/SCAN?consistency=stale", "", r#"{"prefix":"k","limit":10}"#)),
        ("exists", request("/v1/EXISTS?consistency=linearizable", "Tenure-Timeout-Ms: 60000\r\n", r#"{"key":"k"}"#)),
        (
            "pool",
            [
                request("/v1/BATCH", "", &pool.to_string()),
                request("/v1/OP", "", r#"{"key":"p","operation":"HOLDERS","args":{"all":true,"limit":9}}"#),
            ]
            .concat(),
        ),
        ("status", b"GET /v1/status HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()),
        (
            "chunked",
            b"POST /v1/GET HTTP/1.1\r\nHost: a\r\nContent-Type: application/json; charset=utf-8\r\n\
              Transfer-Encoding: chunked\r\n\r\n5\r\n{\"key\r\n6\r\n\":\"k\"}\r\n0\r\n\r\n"
                .to_vec(),
        ),
        (
            "pipelined",
            [request("/v1/TTL", "", r#"{"key":"k"}"#), request("/v1/DEL", "", r#"{"keys":["k","b"],"fence":1}"#)]
                .concat(),
        ),
    ]
}

/// The first request's length is said as it is, if that can be told.
fn mend_length(bytes: &mut Vec<u8>) {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4) else { return };
    let length = bytes.len() - end;
    let Some(said) = bytes[..end].windows(16).position(|name| name == b"Content-Length: ").map(|at| at + 16) else {
        return;
    };
    let digits = bytes[said..end].iter().position(|byte| *byte == b'\r').unwrap_or(0);
    bytes.splice(said..said + digits, length.to_string().into_bytes());
}

fn body(bytes: &[u8]) -> Verdict {
    let at = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (name, body) = (&bytes[..at], bytes.get(at + 1..).unwrap_or_default());
    if name == b"replace" {
        return Verdict::of(convert::node_id(body).is_ok());
    }
    let Some(kind) = std::str::from_utf8(name).ok().and_then(Kind::named) else { return Verdict::Refused };
    match convert::request(kind, body, PoolUuid([0xff; 16])) {
        Ok(convert::Request::Write(command)) => logged(command),
        Ok(convert::Request::Wait { ask, wait_ms }) => logged(ask.waiting(wait_ms, Attach::default())),
        Ok(convert::Request::Read(_)) => Verdict::Accepted,
        Err(invalid) => {
            assert!(!invalid.detail.is_empty());
            Verdict::Refused
        }
    }
}

fn logged(command: Command) -> Verdict {
    keeps_the_rules(&command);
    let encoded = entry::encode_command::<Keyspace>(&command).unwrap();
    assert_eq!(entry::decode_command::<Keyspace>(&encoded).unwrap(), command);
    Verdict::Accepted
}

/// What the keyspace leaves to the edge.
fn keeps_the_rules(command: &Command) {
    let key = |key: &str| assert!((1..=1024).contains(&key.len()) && !key.contains(char::is_control), "key {key:?}");
    let fence = |fence: &Option<u64>| assert!(fence.is_none_or(|fence| (1..1 << 53).contains(&fence)), "{fence:?}");
    match command {
        Command::Wait(wait) => {
            key(&wait.ask.key);
            assert!((1..=86_400_000).contains(&wait.wait_ms));
        }
        Command::WaitSlot(wait) => {
            keeps_the_rules(&Command::AcquireSlot(wait.ask.clone()));
            assert!((1..=86_400_000).contains(&wait.wait_ms));
        }
        Command::AcquireSlot(ask) => {
            key(&ask.key);
            assert!((1..=256).contains(&ask.identity.len()) && ask.ttl_ms <= 31_536_000_000);
            assert!(ask.unix_ms.is_none_or(|unix_ms| unix_ms < 1 << 53));
        }
        Command::CreatePool { key: own, options, uuid } => {
            key(own);
            assert_ne!(*uuid, PoolUuid::default(), "drawn");
            let PoolOptions { size, first, quarantine_ms, release_quarantine_ms, ttl_ms_min, ttl_ms_max, .. } =
                *options;
            assert!((1..=65_536).contains(&size) && u64::from(first) + u64::from(size) <= 1 << 32);
            assert!(quarantine_ms <= 86_400_000 && release_quarantine_ms <= 86_400_000);
            assert!(1 <= ttl_ms_min && ttl_ms_min <= ttl_ms_max && ttl_ms_max <= 31_536_000_000);
        }
        Command::RenewSlot { key: own, fence: of, ttl_ms, unix_ms, .. } => {
            key(own);
            fence(of);
            assert!(*ttl_ms <= 31_536_000_000 && *unix_ms < 1 << 53);
        }
        Command::BreakSlot { key: own, reason, fence: of, .. } => {
            key(own);
            fence(of);
            assert!((1..=1024).contains(&reason.len()));
        }
        Command::Resize { key: own, size } => {
            key(own);
            assert!((1..=65_536).contains(size));
        }
        Command::AllOrNothing(commands) => {
            assert!((1..=1000).contains(&commands.len()));
            commands.iter().for_each(keeps_the_rules);
        }
        Command::Detach { .. } | Command::Cancel { .. } | Command::Presence { .. } | Command::Away { .. } => {
            panic!("no client asks for {command:?}");
        }
        Command::Create { key: own, options } => {
            key(own);
            assert!(options.delay_ms < 1 << 53 && options.min_hold_ms < 1 << 53 && options.ttl_ms_max != Some(0));
        }
        Command::Acquire(acquire) => {
            key(&acquire.key);
            assert!((1..=256).contains(&acquire.owner.len()) && acquire.ttl_ms <= 31_536_000_000);
        }
        Command::Renew { key: own, fence: of, .. } | Command::Release { key: own, fence: of, .. } => {
            key(own);
            fence(of);
        }
        Command::Break { key: own, reason, fence: of, .. } => {
            key(own);
            fence(of);
            assert!((1..=1024).contains(&reason.len()));
        }
        Command::Expire { key: own, ttl_ms } => {
            key(own);
            assert!((1..=31_536_000_000).contains(ttl_ms));
        }
        Command::Del { keys, fence: of } => {
            assert!((1..=1000).contains(&keys.len()));
            keys.iter().for_each(|own| key(own));
            fence(of);
        }
        Command::Batch(commands) => {
            assert!((1..=1000).contains(&commands.len()));
            for command in commands {
                assert!(!matches!(command, Command::Batch(_)), "nested");
                keeps_the_rules(command);
            }
        }
        Command::Persist { key: own }
        | Command::Get { key: own }
        | Command::Held { key: own, .. }
        | Command::Check { key: own, .. } => key(own),
    }
}

fn body_samples() -> Vec<Sample> {
    let op =
        |operation: &str, args: Value| format!("OP\n{}", json!({"key": "k", "operation": operation, "args": args}));
    let items = json!({"commands": [
        {"command": "CREATE", "key": "a", "type": "lease", "options": {"delay_ms": 5, "min_hold_ms": 6, "ttl_ms_max": 7}},
        {"command": "OP", "key": "a", "operation": "CHECK", "args": {"fence": 1}},
        {"command": "DEL", "keys": ["a"]},
    ]});
    let all = json!({"owner": "o", "token": "t", "ttl_ms": 30_000, "wait_ms": 0, "create": true, "note": "n",
        "min_hold_ms": 1, "delay_ms": 2, "once": true});
    let options = json!({"size": 65_536, "first": 4_294_901_760_u64, "quarantine_ms": 0, "release_quarantine_ms": 5,
        "ttl_ms_min": 1, "ttl_ms_max": 31_536_000_000_u64, "on_conflict": "reject"});
    let slot = json!({"identity": "é", "token": "t", "ttl_ms": 30_000, "avoid": 3, "unix_ms": 1_796_000_000_000_u64,
        "wait_ms": 5, "note": "n", "once": true});
    let pools = json!({"commands": [
        {"command": "CREATE", "key": "a", "type": "pool"},
        {"command": "CREATE", "key": "b", "type": "pool", "options": {"size": 1}},
        {"command": "OP", "key": "a", "operation": "ACQUIRE", "args": {"identity": "i", "token": "t"}},
        {"command": "OP", "key": "a", "operation": "BREAK", "args": {"id": 0, "reason": "r"}},
    ]});
    [
        (
            "create",
            r#"CREATE
{"key":"k","type":"lease","options":{"ttl_ms_max":60000}}"#
                .to_owned(),
        ),
        ("acquire", op("ACQUIRE", all)),
        ("renew", op("RENEW", json!({"token": "t", "ttl_ms": -1, "fence": 7}))),
        ("release", op("RELEASE", json!({"token": "t", "fence": 7}))),
        ("break", op("BREAK", json!({"reason": "é", "grace_ms": 10}))),
        ("held", op("HELD", json!({}))),
        ("expire", "EXPIRE\n{\"key\":\"k\",\"ttl_ms\":31536000000}".to_owned()),
        ("del", "DEL\n{\"keys\":[\"a\",\"b\\u00e9\"],\"fence\":9007199254740991}".to_owned()),
        ("scan", "SCAN\n{\"prefix\":\"a\",\"limit\":1000,\"cursor\":\"ab\"}".to_owned()),
        ("batch", format!("BATCH\n{items}")),
        ("replace", "replace\n{\"node_id\":3}".to_owned()),
        ("create-pool", format!("CREATE\n{}", json!({"key": "k", "type": "pool", "options": options}))),
        ("acquire-slot", op("ACQUIRE", slot)),
        ("renew-slot", op("RENEW", json!({"token": "t", "ttl_ms": 40_000, "unix_ms": 1_796_000_000_000_u64}))),
        ("break-slot", op("BREAK", json!({"id": 3, "reason": "é"}))),
        ("resize", op("RESIZE", json!({"size": 65_536}))),
        ("holders", op("HOLDERS", json!({"id": 3, "all": true, "limit": 1_000, "cursor": 2}))),
        ("batch-pools", format!("BATCH\n{pools}")),
    ]
    .into_iter()
    .map(|(name, text)| (name, text.into_bytes()))
    .collect()
}
