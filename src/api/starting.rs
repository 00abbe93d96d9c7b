//! What a node serves while it does not take part yet: it lives, it is not ready, and it says what it waits for.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use axum::routing::get;
use serde::Serialize;
use tenure_cluster::Startup;
use tenure_cluster::raft::NodeId;
use tokio::sync::watch;

use super::health;
use super::metrics;
use super::problem::{Code, Problem};
use super::status::{self, Disk, ms};

/// A node that starts.
#[derive(Clone)]
pub struct Starting {
    startup: watch::Receiver<Startup>,
    known: Arc<Known>,
}

struct Known {
    node_id: Option<NodeId>,
    data_dir: PathBuf,
    peers: BTreeMap<NodeId, String>,
    started: Instant,
}

/// What is known of a node before it takes part: the beginning of what `/v1/status` says later.
#[derive(Serialize)]
struct Report<'a> {
    version: &'static str,
    node_id: Option<NodeId>,
    role: &'static str,
    ready: bool,
    not_ready: &'static str,
    startup: &'static str,
    detail: String,
    waiting_for: Vec<Awaited<'a>>,
    disk: Option<Disk>,
    uptime_ms: u64,
}

#[derive(Serialize)]
struct Awaited<'a> {
    node_id: NodeId,
    peer_address: Option<&'a str>,
    trouble: &'a str,
}

impl Starting {
    /// A node with that id, if it is told one, and those peers.
    pub fn new(
        startup: watch::Receiver<Startup>,
        node_id: Option<NodeId>,
        peers: BTreeMap<NodeId, String>,
        data_dir: PathBuf,
    ) -> Self {
        Self { startup, known: Arc::new(Known { node_id, data_dir, peers, started: Instant::now() }) }
    }

    /// All paths.
    pub fn router(&self) -> Router {
        Router::new()
            .route("/livez", get(health::livez))
            .route("/v1/status", get(status))
            .route("/metrics", get(page))
            .fallback(unavailable)
            .method_not_allowed_fallback(unavailable)
            .with_state(self.clone())
    }

    /// One line: the reason's name, and whom or what it waits for.
    pub fn reason(&self) -> String {
        let startup = self.startup.borrow();
        format!("{}: {}", name(&startup), self.detail(&startup))
    }

    /// The next reason; never once there is none.
    pub async fn changed(&mut self) -> String {
        if self.startup.changed().await.is_err() || *self.startup.borrow() == Startup::Started {
            return std::future::pending().await;
        }
        self.reason()
    }

    fn awaited<'a>(&'a self, (node_id, why): &'a (NodeId, String)) -> Awaited<'a> {
        Awaited { node_id: *node_id, peer_address: self.known.peers.get(node_id).map(String::as_str), trouble: why }
    }

    fn detail(&self, startup: &Startup) -> String {
        match startup {
            Startup::Opening => "the node reads its own data".to_owned(),
            Startup::WaitingForPeers(awaited) if awaited.is_empty() => "all nodes are there: it is founded".to_owned(),
            Startup::WaitingForPeers(awaited) => {
                let one = |(id, why): &(NodeId, String)| match self.known.peers.get(id) {
                    Some(address) => format!("node {id} at {address} ({why})"),
                    None => format!("node {id} ({why})"),
                };
                let all: Vec<String> = awaited.iter().map(one).collect();
                format!("no cluster is founded without {}", all.join(", "))
            }
            Startup::AskingAdmission(line) => line.clone(),
            Startup::Started => "about to serve".to_owned(),
        }
    }
}

/// A reason's fixed name.
const fn name(startup: &Startup) -> &'static str {
    match startup {
        Startup::Opening | Startup::Started => "recovering",
        Startup::WaitingForPeers(_) => "waiting_for_peers",
        Startup::AskingAdmission(_) => "asking_admission",
    }
}

async fn unavailable(State(starting): State<Starting>) -> Problem {
    Problem::new(Code::Unavailable, starting.reason())
}

async fn page(State(starting): State<Starting>) -> Response<Body> {
    let known = &starting.known;
    metrics::starting_page(known.started.elapsed(), status::disk(&known.data_dir))
}

async fn status(State(starting): State<Starting>) -> Response<Body> {
    let startup = starting.startup.borrow().clone();
    let known = &starting.known;
    let waiting_for = match &startup {
        Startup::WaitingForPeers(awaited) => awaited.as_slice(),
        _ => &[],
    };
    status::json(&Report {
        version: env!("CARGO_PKG_VERSION"),
        node_id: known.node_id,
        role: "starting",
        ready: false,
        not_ready: name(&startup),
        startup: name(&startup),
        detail: starting.detail(&startup),
        waiting_for: waiting_for.iter().map(|awaited| starting.awaited(awaited)).collect(),
        disk: status::disk(&known.data_dir),
        uptime_ms: ms(known.started.elapsed()),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use axum::http::Request;
    use http_body_util::BodyExt;
    use serde_json::{Value, json};
    use tower::ServiceExt;

    use super::*;

    fn starting() -> (watch::Sender<Startup>, Starting) {
        let (told, startup) = watch::channel(Startup::Opening);
        let peers = BTreeMap::from([(1, "a:1".to_owned()), (2, "b:2".to_owned())]);
        (told, Starting::new(startup, Some(1), peers, PathBuf::from(".")))
    }

    async fn ask(starting: &Starting, request: Request<Body>) -> (u16, Value) {
        let response = starting.router().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    fn get(path: &str) -> Request<Body> {
        Request::get(path).body(Body::empty()).unwrap()
    }

    #[tokio::test]
    async fn it_lives_is_not_ready_and_says_why() {
        let (told, starting) = starting();
        told.send_replace(Startup::WaitingForPeers(vec![(2, "connection refused".into()), (3, "silent".into())]));
        assert_eq!(ask(&starting, get("/livez")).await.0, 200);
        let why =
            "waiting_for_peers: no cluster is founded without node 2 at b:2 (connection refused), node 3 (silent)";
        let command = || Request::post("/v1/OP").body(Body::from("{}")).unwrap();
        for request in [get("/readyz"), get("/nowhere"), command(), Request::put("/livez").body(Body::empty()).unwrap()]
        {
            let path = request.uri().path().to_owned();
            let (status, problem) = ask(&starting, request).await;
            assert_eq!(
                (status, &problem["code"], &problem["detail"]),
                (503, &json!("unavailable"), &json!(why)),
                "{path}"
            );
        }
    }

    #[tokio::test]
    async fn an_alarm_on_readiness_hears_it() {
        let (_told, starting) = starting();
        let response = starting.router().oneshot(get("/metrics")).await.unwrap();
        assert_eq!(response.status(), 200);
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        assert!(text.lines().any(|line| line == "tenure_ready 0") && text.ends_with("# EOF\n"), "{text}");
    }

    #[tokio::test]
    async fn status_says_what_is_known() {
        let (told, starting) = starting();
        let (status, report) = ask(&starting, get("/v1/status")).await;
        assert_eq!((status, &report["not_ready"], &report["waiting_for"]), (200, &json!("recovering"), &json!([])));
        told.send_replace(Startup::WaitingForPeers(vec![(2, "refused".into())]));
        let report = ask(&starting, get("/v1/status")).await.1;
        let awaited = json!([{"node_id": 2, "peer_address": "b:2", "trouble": "refused"}]);
        assert_eq!(
            (&report["waiting_for"], &report["node_id"], &report["role"]),
            (&awaited, &json!(1), &json!("starting"))
        );
        told.send_replace(Startup::AskingAdmission("node 2 does not answer yet".into()));
        let report = ask(&starting, get("/v1/status")).await.1;
        assert_eq!((&report["startup"], &report["ready"]), (&json!("asking_admission"), &json!(false)));
        assert_eq!(report["detail"], "node 2 does not answer yet");
    }

    #[tokio::test]
    async fn changes_are_told_until_it_takes_part() {
        let (told, mut starting) = starting();
        told.send_replace(Startup::AskingAdmission("x".into()));
        assert_eq!(starting.changed().await, "asking_admission: x");
        told.send_replace(Startup::Started);
        let mut changed = next_change(starting);
        assert!(futures_util::poll!(&mut changed).is_pending());
        drop(told);
        assert!(futures_util::poll!(&mut changed).is_pending(), "also when nobody tells any more");
    }

    fn next_change(mut starting: Starting) -> futures_util::future::BoxFuture<'static, String> {
        Box::pin(async move { starting.changed().await })
    }
}
