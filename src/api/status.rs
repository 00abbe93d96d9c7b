//! `GET /v1/status`: the node and its cluster, for people and tools.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Response, header};
use axum::response::IntoResponse;
use serde::Serialize;
use tenure_cluster::{Role, Status};

use super::Api;
use super::latency::Latency;
use super::problem::{Code, Problem};
use super::reach::{self, LinkReport};
use crate::keyspace::Keyspace;

/// How much faster than real time a leader's clock may run: holders shorten their own deadlines by it.
const RHO: f64 = 0.01;

#[derive(Serialize)]
struct Report<'a> {
    version: &'static str,
    cluster_id: &'a str,
    node_id: u64,
    role: &'static str,
    term: u64,
    leader: Option<u64>,
    members: Vec<MemberReport>,
    ready: bool,
    not_ready: Option<&'static str>,
    startup: &'static str,
    feature_level: u16,
    links: Vec<LinkReport>,
    lag: BTreeMap<u64, u64>,
    fsync: Option<Latency>,
    last_index: u64,
    committed_index: u64,
    applied_index: u64,
    clock_ms: u64,
    rho: f64,
    keys: usize,
    leases_held: usize,
    waiters: usize,
    waiting_requests: usize,
    snapshot: Option<SnapshotReport>,
    log_bytes: u64,
    disk: Option<Disk>,
    uptime_ms: u64,
}

#[derive(Serialize)]
struct MemberReport {
    node_id: u64,
    address: String,
    peer_address: Option<String>,
    voter: bool,
}

#[derive(Serialize)]
struct SnapshotReport {
    index: u64,
    bytes: u64,
    age_ms: u64,
}

/// The filesystem where the data lies.
#[derive(Clone, Copy, Serialize)]
pub struct Disk {
    /// Bytes an unprivileged process may still write.
    pub free_bytes: u64,
    /// All bytes.
    pub total_bytes: u64,
}

/// Asks the system; `None` if it does not say.
pub fn disk(data_dir: &Path) -> Option<Disk> {
    let stat = rustix::fs::statvfs(data_dir).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    Some(Disk { free_bytes: bytes(stat.f_bavail), total_bytes: bytes(stat.f_blocks) })
}

/// A role's name.
pub const fn role(role: Role) -> &'static str {
    match role {
        Role::Leader => "leader",
        Role::Follower => "follower",
        Role::Candidate => "candidate",
        Role::Learner => "learner",
        Role::Stopped => "stopped",
    }
}

/// The handler.
pub async fn status(State(api): State<Api>) -> Response<Body> {
    let shared = &api.shared;
    let status = shared.cluster.status();
    let read = |machine: &Keyspace, _| (machine.grants(), machine.keys(), machine.waiters());
    let (leases_held, keys, waiters) = shared.cluster.read_stale(read).value;
    let not_ready = api.not_ready(&status);
    json(&Report {
        version: env!("CARGO_PKG_VERSION"),
        cluster_id: &status.cluster_id,
        node_id: status.node_id,
        role: role(status.role),
        term: status.term,
        leader: status.leader,
        members: members(&status),
        ready: not_ready.is_none(),
        not_ready,
        startup: "started",
        feature_level: status.feature_level,
        links: reach::links(&status),
        lag: status.lag.clone(),
        fsync: shared.metrics.fsync.latency(Instant::now()),
        last_index: status.last_index,
        committed_index: status.committed_index,
        applied_index: status.applied_index,
        clock_ms: status.clock.0,
        rho: RHO,
        keys,
        leases_held,
        waiters,
        waiting_requests: shared.edge.waiting(),
        snapshot: status.snapshot.map(|(index, bytes, age)| SnapshotReport { index, bytes, age_ms: ms(age) }),
        log_bytes: status.log_bytes,
        disk: disk(&shared.data_dir),
        uptime_ms: ms(shared.started.elapsed()),
    })
}

fn members(status: &Status) -> Vec<MemberReport> {
    let report = |(node_id, member): &(u64, tenure_cluster::raft::Member)| MemberReport {
        node_id: *node_id,
        address: member.client.clone(),
        peer_address: Some(member.peer.clone()).filter(|address| !address.is_empty()),
        voter: status.voters.contains(node_id),
    };
    status.members.iter().map(report).collect()
}

/// A page of JSON.
pub fn json(report: &impl Serialize) -> Response<Body> {
    match serde_json::to_vec(report) {
        Ok(json) => {
            let mut response = Response::new(Body::from(json));
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        Err(error) => Problem::new(Code::Internal, error.to_string()).into_response(),
    }
}

/// Whole milliseconds.
pub fn ms(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
