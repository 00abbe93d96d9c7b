//! HTTP/JSON: the command endpoint, probes, status and metrics. The only module that knows axum.
//!
//! Every path answers, and every error is `application/problem+json`. A command's life here: `command` finds its name,
//! `body` reads it within its limits, `convert` turns it into a domain request, the cluster orders or reads, `convert`
//! writes the answer, `command` adds the witness headers. Nothing here keeps state of its own but counters and the
//! `pace` of identities. Until the node
//! takes part, `starting` answers; `face` is where the one gives way to the other.

mod body;
mod cluster;
mod command;
pub mod convert;
pub mod face;
mod health;
mod latency;
pub mod metrics;
mod openapi;
mod pace;
mod patience;
mod pool_gauges;
#[cfg(test)]
mod pool_tests;
pub mod problem;
mod reach;
pub mod server;
mod socket;
pub mod starting;
mod status;
#[cfg(test)]
mod tests;
mod waiting;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Response};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use tenure_cluster::{Cluster, Status};

use self::metrics::Metrics;
use self::pace::Pace;
use self::problem::{Code, Problem};
pub use self::watch::WATCHERS_MAX;
use self::watch::Watchers;
use crate::edge::Edge;
use crate::edge::history::History;
use crate::keyspace::Keyspace;

/// What the handlers share. Clones are handles.
#[derive(Clone)]
pub struct Api {
    shared: Arc<Shared>,
}

struct Shared {
    cluster: Cluster<Keyspace>,
    edge: Edge<Keyspace>,
    watchers: Watchers,
    pace: Pace,
    cluster_id: HeaderValue,
    metrics: Arc<Metrics>,
    data_dir: PathBuf,
    body_timeout: Duration,
    started: Instant,
    draining: AtomicBool,
}

impl Api {
    /// The face of `cluster`, whose data lies in `data_dir`. A body has to arrive within `body_timeout`; at most
    /// `watchers_max` watch.
    pub fn new(
        cluster: Cluster<Keyspace>,
        edge: Edge<Keyspace>,
        history: Arc<History>,
        metrics: Arc<Metrics>,
        data_dir: PathBuf,
        body_timeout: Duration,
        watchers_max: usize,
    ) -> Self {
        // The id is hexadecimal: it always makes a header.
        let cluster_id = HeaderValue::from_str(cluster.cluster_id()).unwrap_or(HeaderValue::from_static("unknown"));
        let (started, draining) = (Instant::now(), AtomicBool::new(false));
        let (watchers, pace) = (Watchers::new(history, watchers_max), Pace::default());
        let shared =
            Shared { cluster, edge, watchers, pace, cluster_id, metrics, data_dir, body_timeout, started, draining };
        Self { shared: Arc::new(shared) }
    }

    /// From now on `/readyz` says that this node goes away. Those who watch are sent away at once.
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::Release);
        self.shared.watchers.leave();
    }

    /// Why this node should be sent no work; `None`: it can commit.
    fn not_ready(&self, status: &Status) -> Option<&'static str> {
        let draining = self.shared.draining.load(Ordering::Acquire).then_some("draining");
        draining.or(status.not_ready)
    }

    /// All paths.
    pub fn router(&self) -> Router {
        Router::new()
            .route("/v1/status", get(status::status))
            .route("/v1/openapi.json", get(openapi::document))
            .route("/v1/watch", get(watch::watch))
            .route("/v1/{command}", post(command::command))
            .route("/v1/cluster/replace", post(cluster::replace))
            .route("/livez", get(health::livez))
            .route("/readyz", get(health::readyz))
            .route("/metrics", get(metrics::page))
            .fallback(not_found)
            .method_not_allowed_fallback(method_not_allowed)
            .with_state(self.clone())
    }
}

async fn not_found(request: Request) -> Problem {
    let detail = format!("no such path: {} (commands are POST /v1/{{COMMAND}})", request.uri().path());
    Problem::new(Code::NotFound, detail)
}

/// Of what stands beside the commands.
fn is_page(name: &str) -> bool {
    matches!(name, "status" | "watch" | "openapi.json")
}

/// axum adds the `Allow` header.
async fn method_not_allowed(request: Request) -> Response<Body> {
    let path = request.uri().path();
    match command::name(path) {
        // A name that is no command is unknown whatever the method.
        Some(name) if !is_page(name) && convert::Kind::named(name).is_none() => command::unknown(name).into_response(),
        Some(name) if !is_page(name) => {
            let detail = format!("{name} is a command: POST {path} with a JSON body");
            Problem::new(Code::MethodNotAllowed, detail).into_response()
        }
        None if path.starts_with("/v1/cluster/") => {
            Problem::new(Code::MethodNotAllowed, format!("POST {path} with a JSON body")).into_response()
        }
        _ => {
            let detail = format!("{path} is read with GET, not {}", request.method());
            Problem::new(Code::MethodNotAllowed, detail).into_response()
        }
    }
}
