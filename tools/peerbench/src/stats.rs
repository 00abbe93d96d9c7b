//! Histograms, process counters and the JSON lines.
//!
//! Counters come from /proc, so Linux alone. A server that cannot be read counts as idle: its numbers are then zero.

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use rustix::param::clock_ticks_per_second;
use rustix::process::Pid;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub type Obj = Map<String, Value>;

pub fn obj(value: Value) -> Obj {
    match value {
        Value::Object(object) => object,
        _ => Obj::new(),
    }
}

/// Latencies in microseconds, up to 10 minutes, three digits.
#[derive(Clone)]
pub struct Lat(Histogram<u64>);

impl Default for Lat {
    #[expect(clippy::expect_used, reason = "constants that the crate accepts")]
    fn default() -> Self {
        Lat(Histogram::new_with_bounds(1, 600_000_000, 3).expect("1 us to 10 min, three digits"))
    }
}

impl Lat {
    pub fn add(&mut self, d: Duration) {
        self.0.saturating_record((d.as_micros() as u64).max(1));
    }
    pub fn merge(&mut self, o: &Lat) {
        // Fails only where the bounds differ; all are made by `default`.
        let _ = self.0.add(&o.0);
    }
    pub fn count(&self) -> u64 {
        self.0.len()
    }
    /// Adds NAME_p50_ms and so on.
    pub fn put(&self, name: &str, out: &mut Obj) {
        for (n, q) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)] {
            out.insert(format!("{name}_{n}_ms"), json!(self.0.value_at_quantile(q) as f64 / 1e3));
        }
        out.insert(format!("{name}_max_ms"), json!(self.0.max() as f64 / 1e3));
    }
}

#[derive(Clone, Default, Debug)]
struct Proc {
    cpu: f64,
    rss_kib: u64,
    written: u64,
}

fn read_proc(pid: &str) -> Option<Proc> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after = stat.rsplit_once(')')?.1;
    let f: Vec<&str> = after.split_whitespace().collect();
    let hz = clock_ticks_per_second() as f64;
    let cpu = (f.get(11)?.parse::<f64>().ok()? + f.get(12)?.parse::<f64>().ok()?) / hz;
    let field = |file: &str, name: &str| -> u64 {
        std::fs::read_to_string(format!("/proc/{pid}/{file}"))
            .ok()
            .and_then(|s| {
                s.lines()
                    .find(|l| l.starts_with(name))
                    .and_then(|l| l.split_whitespace().nth(1).and_then(|v| v.parse().ok()))
            })
            .unwrap_or(0)
    };
    Some(Proc { cpu, rss_kib: field("status", "VmRSS:"), written: field("io", "write_bytes:") })
}

fn host_busy() -> (f64, f64) {
    // user+nice+system+irq+softirq (steal apart), seconds over all cores
    let hz = clock_ticks_per_second() as f64;
    let s = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let v: Vec<f64> =
        s.lines().next().unwrap_or("").split_whitespace().skip(1).filter_map(|x| x.parse().ok()).collect();
    let g = |i: usize| v.get(i).copied().unwrap_or(0.0) / hz;
    (g(0) + g(1) + g(2) + g(5) + g(6), g(7))
}

/// The servers' pid files: DIR/node1.pid, DIR/node2.pid, ...
#[derive(Clone, Default)]
pub struct Servers(pub Option<PathBuf>);

impl Servers {
    pub fn pids(&self) -> Vec<String> {
        let Some(dir) = &self.0 else { return vec![] };
        (1..10)
            .map_while(|i| std::fs::read_to_string(dir.join(format!("node{i}.pid"))).ok())
            .map(|s| s.trim().to_string())
            .collect()
    }
    pub fn rss_mib(&self) -> Vec<f64> {
        self.pids().iter().map(|p| read_proc(p).unwrap_or_default().rss_kib as f64 / 1024.0).collect()
    }
}

/// Counters at the start of a window; `put` adds the differences.
pub struct Meter {
    servers: Servers,
    before: Vec<Proc>,
    me: Proc,
    host: (f64, f64),
    t0: Instant,
}

impl Meter {
    pub fn start(servers: &Servers) -> Self {
        Meter {
            servers: servers.clone(),
            before: servers.pids().iter().map(|p| read_proc(p).unwrap_or_default()).collect(),
            me: read_proc("self").unwrap_or_default(),
            host: host_busy(),
            t0: Instant::now(),
        }
    }
    pub fn put(&self, out: &mut Obj) {
        let secs = self.t0.elapsed().as_secs_f64();
        let after: Vec<Proc> = self.servers.pids().iter().map(|p| read_proc(p).unwrap_or_default()).collect();
        let r2 = |x: f64| (x * 100.0).round() / 100.0;
        let cpu: Vec<f64> = after.iter().zip(&self.before).map(|(a, b)| r2((a.cpu - b.cpu) / secs)).collect();
        let wr: f64 = after.iter().zip(&self.before).map(|(a, b)| a.written.saturating_sub(b.written) as f64).sum();
        out.insert("server_cores".into(), json!(r2(cpu.iter().sum())));
        out.insert("server_cores_each".into(), json!(cpu));
        let me = read_proc("self").unwrap_or_default();
        out.insert("client_cores".into(), json!(r2((me.cpu - self.me.cpu) / secs)));
        let h = host_busy();
        let host = (h.0 - self.host.0) / secs;
        out.insert("host_cores".into(), json!(r2(host)));
        // What neither the servers nor this program used: other work on the host.
        let ours = cpu.iter().sum::<f64>() + (me.cpu - self.me.cpu) / secs;
        out.insert("other_cores".into(), json!(r2((host - ours).max(0.0))));
        out.insert("steal_cores".into(), json!(r2((h.1 - self.host.1) / secs)));
        out.insert("server_mib_written_s".into(), json!(r2(wr / 1048576.0 / secs)));
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let l1: f64 = load.split(' ').next().and_then(|s| s.parse().ok()).unwrap_or(0.0);
        out.insert("load1".into(), json!(l1));
    }
}

/// One line per window, then one of per-field medians. A window during which
/// other work on the host used more than `quiet` cores is run again, up to
/// `tries` windows in all; the medians are over the first `repeat` quiet
/// windows or, if there are too few, over the quietest.
pub struct Report {
    head: Obj,
    rows: Vec<Obj>,
    plan: Plan,
}

#[derive(Clone, Copy)]
pub struct Plan {
    pub repeat: usize,
    pub quiet: f64,
    pub tries: usize,
}

fn other(row: &Obj) -> f64 {
    row.get("other_cores").and_then(Value::as_f64).unwrap_or(0.0)
}

impl Report {
    pub fn new(head: Obj, plan: Plan) -> Self {
        Report { head, rows: vec![], plan }
    }
    fn quiet(&self) -> usize {
        self.rows.iter().filter(|r| other(r) <= self.plan.quiet).count()
    }
    pub fn more(&self) -> bool {
        self.quiet() < self.plan.repeat && self.rows.len() < self.plan.tries.max(self.plan.repeat)
    }
    pub fn row(&mut self, row: Obj) {
        let mut line = self.head.clone();
        line.insert("rep".into(), json!(self.rows.len() + 1));
        line.extend(row.clone());
        println!("{}", Value::Object(line));
        self.rows.push(row);
    }
    pub fn finish(&self) {
        if self.plan.repeat < 2 {
            return;
        }
        let mut rows: Vec<&Obj> = self.rows.iter().collect();
        let quiet = self.quiet();
        if quiet >= self.plan.repeat {
            rows.retain(|r| other(r) <= self.plan.quiet);
        } else {
            rows.sort_by(|a, b| other(a).total_cmp(&other(b)));
        }
        rows.truncate(self.plan.repeat);
        let mut line = self.head.clone();
        line.insert("rep".into(), json!(format!("median of {}", rows.len())));
        line.insert("quiet_windows".into(), json!(quiet.min(rows.len())));
        line.insert("windows".into(), json!(self.rows.len()));
        for (k, v) in rows[0] {
            if !v.is_number() {
                continue;
            }
            let mut xs: Vec<f64> = rows.iter().filter_map(|r| r.get(k).and_then(Value::as_f64)).collect();
            xs.sort_by(f64::total_cmp);
            if k == "ops_s" {
                line.insert("ops_s_min".into(), json!(xs[0]));
                line.insert("ops_s_max".into(), json!(xs[xs.len() - 1]));
            }
            let m = xs[xs.len() / 2];
            let m = if xs.len().is_multiple_of(2) { (m + xs[xs.len() / 2 - 1]) / 2.0 } else { m };
            line.insert(k.clone(), json!((m * 1000.0).round() / 1000.0));
        }
        println!("{}", Value::Object(line));
    }
}

/// A pid file's text as the process it names.
pub fn pid(text: &str) -> Result<Pid> {
    let raw: i32 = text.trim().parse().with_context(|| format!("{text:?} is no pid"))?;
    Pid::from_raw(raw).filter(|pid| pid.as_raw_nonzero().get() > 0).with_context(|| format!("{text:?} is no pid"))
}
