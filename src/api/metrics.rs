//! What this node counts and measures, and `GET /metrics` (OpenMetrics text).
//!
//! Counters of leases count what this node applied since it started; entries applied again after a restart are not
//! counted. Gauges are read from the node's state when the page is asked for. No metric carries an owner, an identity or a
//! token, nor a key but those of pools, and of these at most 100.

use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Response, header};
use axum::response::IntoResponse;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use tenure_cluster::raft::NodeId;
use tenure_cluster::{Observer, Role, Status};

use super::Api;
use super::latency::Recent;
use super::pool_gauges::Pools;
use super::problem::{Code, Problem};
use super::status::{self, Disk};
use crate::keyspace::{Event, EventKind, Keyspace, Reason, Reply};

type Labels<const N: usize> = [(&'static str, &'static str); N];

/// The node's counters and histograms. Clones share them.
pub struct Metrics {
    registry: Registry,
    commands: Family<Labels<2>, Counter>,
    grants: Counter,
    renewals: Counter,
    ended: Family<Labels<1>, Counter>,
    takeovers: Counter,
    identity_conflicts: Counter,
    answered: Histogram,
    synced: Histogram,
    /// The syncs of the last minute or so: for `/v1/status`.
    pub(super) fsync: Recent,
    batch_commands: Histogram,
    batch_bytes: Histogram,
    snapshots: Histogram,
    /// Client connections that are open.
    pub connections: Gauge,
    /// Client connections refused because too many were open.
    pub connections_refused: Counter,
    /// Requests that waited in line, by how that ended.
    pub(super) waits: Family<Labels<1>, Counter>,
    /// How long they waited.
    pub(super) waited: Histogram,
    /// Who watches.
    pub watchers: Gauge,
    /// Events told to those who watch.
    pub watch_events: Counter,
    /// Watches that this node ended, by reason.
    pub watch_cuts: Family<Labels<1>, Counter>,
    /// Expiries that were counted but not logged, because the log was slower than they came.
    pub expiries_unlogged: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("tenure");
        // 50 us to 6.5 s in steps of two.
        let seconds = || Histogram::new(exponential_buckets(0.000_05, 2.0, 18));
        let metrics = Self {
            registry: Registry::default(),
            commands: Family::default(),
            grants: Counter::default(),
            renewals: Counter::default(),
            ended: Family::default(),
            takeovers: Counter::default(),
            identity_conflicts: Counter::default(),
            answered: seconds(),
            synced: seconds(),
            fsync: Recent::default(),
            batch_commands: Histogram::new(exponential_buckets(1.0, 2.0, 13)),
            batch_bytes: Histogram::new(exponential_buckets(64.0, 4.0, 8)),
            // 10 ms to 82 s in steps of two.
            snapshots: Histogram::new(exponential_buckets(0.01, 2.0, 14)),
            connections: Gauge::default(),
            connections_refused: Counter::default(),
            waits: Family::default(),
            // 1 ms to 18 hours in steps of four.
            waited: Histogram::new(exponential_buckets(0.001, 4.0, 14)),
            watchers: Gauge::default(),
            watch_events: Counter::default(),
            watch_cuts: Family::default(),
            expiries_unlogged: Counter::default(),
        };
        metrics.register(&mut registry);
        Self { registry, ..metrics }
    }
}

impl Metrics {
    fn register(&self, registry: &mut Registry) {
        registry.register("commands", "Commands answered, by kind and result", self.commands.clone());
        registry.register("grants", "Grants begun", self.grants.clone());
        registry.register("renewals", "Grants renewed", self.renewals.clone());
        registry.register("grants_ended", "Grants ended, by reason", self.ended.clone());
        let help = "Slots of pools that an identity took over from an older token of its own";
        registry.register("pool_takeovers", help, self.takeovers.clone());
        let help = "ACQUIRE answered identity_conflict by this node: two processes fight for one identity";
        registry.register("pool_identity_conflicts", help, self.identity_conflicts.clone());
        let unit = || Unit::Seconds;
        registry.register_with_unit("answer", "From submit to answer of a command", unit(), self.answered.clone());
        registry.register_with_unit("fsync", "One sync of the log", unit(), self.synced.clone());
        registry.register("batch_commands", "Commands in one entry", self.batch_commands.clone());
        registry.register_with_unit("batch", "Encoded size of one entry", Unit::Bytes, self.batch_bytes.clone());
        registry.register_with_unit("snapshot_duration", "Making one snapshot", unit(), self.snapshots.clone());
        registry.register("connections", "Open client connections", self.connections.clone());
        let help = "Client connections refused: too many were open";
        registry.register("connections_refused", help, self.connections_refused.clone());
        registry.register("waits", "Requests that waited in line on this node, by how that ended", self.waits.clone());
        let help = "From the request to its end, for those that waited in line on this node";
        registry.register_with_unit("waited", help, unit(), self.waited.clone());
        registry.register("watchers", "Open watches", self.watchers.clone());
        registry.register("watch_events", "Events told to those who watch", self.watch_events.clone());
        registry.register("watch_cuts", "Watches that this node ended, by reason", self.watch_cuts.clone());
        let help = "Expiries counted but not logged: they came faster than the log takes them";
        registry.register("expiries_unlogged", help, self.expiries_unlogged.clone());
    }

    /// A command was answered: `result` is `true`, `false`, `ok` or an error's code.
    pub fn command(&self, command: &'static str, result: &'static str) {
        self.commands.get_or_create(&[("command", command), ("result", result)]).inc();
    }

    /// A command's reply went out.
    pub(super) fn reply(&self, reply: &Reply) {
        match reply {
            Reply::Slot(slot) if slot.reason == Some(Reason::IdentityConflict) => {
                self.identity_conflicts.inc();
            }
            Reply::NotAll { why: Ok(op), .. } if op.reason == Some(Reason::IdentityConflict) => {
                self.identity_conflicts.inc();
            }
            Reply::Batch(replies) => replies.iter().for_each(|reply| self.reply(reply)),
            _ => {}
        }
    }

    /// Something happened to a key, for the first time.
    pub fn event(&self, event: &Event) {
        let reason = match event.kind {
            EventKind::Granted => {
                self.grants.inc();
                return;
            }
            EventKind::Renewed => {
                self.renewals.inc();
                return;
            }
            EventKind::Released if event.reason == Some(Reason::TakenOver) => {
                self.takeovers.inc();
                "taken_over"
            }
            EventKind::Released => "released",
            EventKind::Expired => "expired",
            EventKind::Broken => "broken",
            EventKind::Deleted if event.fence.is_some() => "deleted",
            EventKind::Deleted | EventKind::Created => return,
            EventKind::Waiting | EventKind::WaitEnded | EventKind::Detached => return,
        };
        self.ended.get_or_create(&[("reason", reason)]).inc();
    }
}

impl Observer for Metrics {
    fn answered(&self, elapsed: Duration) {
        self.answered.observe(elapsed.as_secs_f64());
    }
    fn proposed(&self, commands: usize, bytes: usize) {
        self.batch_commands.observe(count(commands));
        self.batch_bytes.observe(count(bytes));
    }
    fn synced(&self, elapsed: Duration) {
        self.synced.observe(elapsed.as_secs_f64());
        self.fsync.record(Instant::now(), elapsed);
    }
    fn snapshot_taken(&self, _bytes: u64, elapsed: Duration) {
        self.snapshots.observe(elapsed.as_secs_f64());
    }
}

/// Counts here are far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts are small")]
const fn count(n: usize) -> f64 {
    n as f64
}

/// `GET /metrics`.
pub async fn page(State(api): State<Api>) -> Response<Body> {
    let mut out = String::new();
    let gauges = gauges(&api);
    let written = text::encode_registry(&mut out, &api.shared.metrics.registry)
        .and_then(|()| text::encode_registry(&mut out, &gauges))
        .and_then(|()| text::encode_eof(&mut out));
    written_page(out, written)
}

/// `GET /metrics` of a node that does not take part yet: that it is not ready, so that an alarm on it is heard.
pub fn starting_page(uptime: Duration, disk: Option<Disk>) -> Response<Body> {
    let mut registry = Registry::with_prefix("tenure");
    common(&mut registry, false, uptime, disk);
    let mut out = String::new();
    let written = text::encode_registry(&mut out, &registry).and_then(|()| text::encode_eof(&mut out));
    written_page(out, written)
}

fn written_page(out: String, written: std::fmt::Result) -> Response<Body> {
    if let Err(error) = written {
        return Problem::new(Code::Internal, format!("the metrics could not be written: {error}")).into_response();
    }
    const TYPE: HeaderValue = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    let mut response = Response::new(Body::from(out));
    response.headers_mut().insert(header::CONTENT_TYPE, TYPE);
    response
}

/// The node's state now, as gauges.
fn gauges(api: &Api) -> Registry {
    let shared = &api.shared;
    let status = shared.cluster.status();
    let read = |machine: &Keyspace, _| (machine.grants(), machine.keys(), machine.waiters(), Pools::of(machine));
    let (leases, keys, waiters, pools) = shared.cluster.read_stale(read).value;
    let mut registry = Registry::with_prefix("tenure");
    let mut gauge = |name: &str, help: &str, value: u64| {
        let gauge = Gauge::<u64, AtomicU64>::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    };
    gauge("leases_held", "Live grants, of leases and of pools' slots", wide(leases));
    gauge("keys", "Keys", wide(keys));
    gauge("waiters", "Places in line, of all keys and nodes", wide(waiters));
    gauge("waiting_requests", "Requests that wait in line on this node", wide(shared.edge.waiting()));
    gauge("raft_term", "Current term", status.term);
    gauge("raft_leader", "The leader's node id; 0: none is known", status.leader.unwrap_or(0));
    gauge("raft_last_index", "Last log index", status.last_index);
    gauge("raft_committed_index", "Last committed log index", status.committed_index);
    gauge("raft_applied_index", "Last applied log index", status.applied_index);
    gauge("raft_members", "Voters and learners", wide(status.members.len()));
    gauge("clock_milliseconds", "The cluster clock", status.clock.0);
    gauge("log_bytes", "Log segments on disk", status.log_bytes);
    let snapshot = status.snapshot.unwrap_or_default();
    gauge("snapshot_index", "Log index the last snapshot reaches", snapshot.0);
    gauge("snapshot_bytes", "Size of the last snapshot", snapshot.1);
    gauge("snapshot_age_seconds", "Since the last snapshot; 0: none", snapshot.2.as_secs());
    let ready = api.not_ready(&status).is_none();
    common(&mut registry, ready, shared.started.elapsed(), status::disk(&shared.data_dir));
    let roles = Family::<Labels<1>, Gauge>::default();
    for role in [Role::Leader, Role::Follower, Role::Candidate, Role::Learner, Role::Stopped] {
        roles.get_or_create(&[("role", status::role(role))]).set(i64::from(role == status.role));
    }
    registry.register("raft_role", "1 for this node's role", roles);
    pools.register(&mut registry);
    peers(&mut registry, &status);
    registry
}

/// What every node says, also one that starts.
fn common(registry: &mut Registry, ready: bool, uptime: Duration, disk: Option<Disk>) {
    let mut gauge = |name: &str, help: &str, value: u64| {
        let gauge = Gauge::<u64, AtomicU64>::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    };
    gauge("ready", "1 if this node can commit and is not draining", u64::from(ready));
    if let Some(Disk { free_bytes, total_bytes }) = disk {
        gauge("disk_free_bytes", "Free space where the data lies", free_bytes);
        gauge("disk_total_bytes", "Size of the filesystem where the data lies", total_bytes);
    }
    gauge("uptime_seconds", "Since this node started", uptime.as_secs());
    let build = Family::<Labels<1>, Gauge>::default();
    build.get_or_create(&[("version", env!("CARGO_PKG_VERSION"))]).set(1);
    registry.register("build", "1, with this build's version", build);
}

/// The ways to the other nodes.
fn peers(registry: &mut Registry, status: &Status) {
    let label = |id: NodeId| [("peer", id.to_string())];
    let connected = Family::<[(&'static str, String); 1], Gauge>::default();
    for (id, link) in &status.links {
        connected.get_or_create(&label(*id)).set(i64::from(link.connected));
    }
    registry.register("peer_connected", "1 while a connection to that node stands", connected);
    let lag = Family::<[(&'static str, String); 1], Gauge<u64, AtomicU64>>::default();
    for (id, entries) in &status.lag {
        lag.get_or_create(&label(*id)).set(*entries);
    }
    registry.register("peer_lag_entries", "On the leader: entries that node is behind", lag);
}

fn wide(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}
