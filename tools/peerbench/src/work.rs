//! The workloads, one per file, and what they share: connections spread over the nodes, and the closed loop.
//!
//! Each prints one JSON line per window and one of medians. Only operations that began and ended inside the window
//! count; an operation that fails counts as an error, never as a fast one.

mod contend;
mod cycle;
mod expiry;
mod kill;
mod memory;
mod read;
mod renew;

pub use contend::w3;
pub use cycle::w1;
pub use expiry::w6;
pub use kill::w5;
pub use memory::w7;
pub use read::w4;
pub use renew::w2;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::stream::{self, StreamExt, TryStreamExt};
use serde_json::json;
use tokio::time::{sleep, sleep_until, timeout};

use crate::stats::{Lat, Meter, Obj, Plan, Report, Servers};
use crate::target::{Conn, Target};

#[derive(Clone, Copy, PartialEq, Debug, clap::ValueEnum)]
pub enum Pin {
    /// Round robin over all endpoints.
    Any,
    Leader,
    Follower,
}

pub struct Ctx {
    pub target: Arc<dyn Target>,
    pub servers: Servers,
    pub plan: Plan,
    pub head: Obj,
    pub tag: String, // makes keys of this run unique
}

impl Ctx {
    fn report(&self, extra: Obj) -> Report {
        let mut h = self.head.clone();
        h.extend(extra);
        Report::new(h, self.plan)
    }

    async fn places(&self, pin: Pin) -> Result<Vec<usize>> {
        let n = self.target.endpoints().len();
        if pin == Pin::Any {
            return Ok((0..n).collect());
        }
        let lead = self.target.leader().await?.context("this target has no leader")?;
        Ok((0..n).filter(|i| (*i == lead) == (pin == Pin::Leader)).collect())
    }

    async fn conns(&self, n: usize, pin: Pin, ttl: Duration, light: bool) -> Result<Vec<Arc<dyn Conn>>> {
        let at = self.places(pin).await?;
        stream::iter(0..n)
            .map(|i| {
                let (t, ep) = (self.target.clone(), at[i % at.len()]);
                async move { if light { t.connect_light(ep, ttl).await } else { t.connect(ep, ttl).await } }
            })
            .buffered(64)
            .try_collect()
            .await
    }
}

/// What one worker saw inside the window.
#[derive(Default)]
pub struct Seen {
    lats: Vec<(&'static str, Lat)>,
    done: u64,
    errors: u64,
    first_error: Option<String>,
}

impl Seen {
    fn lat(&mut self, name: &'static str, d: Duration) {
        if let Some((_, l)) = self.lats.iter_mut().find(|(n, _)| *n == name) {
            return l.add(d);
        }
        let mut l = Lat::default();
        l.add(d);
        self.lats.push((name, l));
    }
    fn merge(&mut self, o: Seen) {
        self.done += o.done;
        self.errors += o.errors;
        if self.first_error.is_none() {
            self.first_error = o.first_error;
        }
        for (n, l) in o.lats {
            match self.lats.iter_mut().find(|(m, _)| *m == n) {
                Some((_, mine)) => mine.merge(&l),
                None => self.lats.push((n, l)),
            }
        }
    }
}

/// Steps of one operation with their durations; all or an error.
type Steps = Vec<(&'static str, Duration)>;

/// Runs `workers` closed loops of `op` for `warm + secs` and counts the
/// operations that both began and ended inside the last `secs`.
async fn closed<F, Fut>(ctx: &Ctx, workers: usize, warm: f64, secs: f64, op: F) -> Result<Obj>
where
    F: Fn(usize, u64) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Steps>> + Send,
{
    let op = Arc::new(op);
    let t0 = Instant::now() + Duration::from_secs_f64(warm);
    let t1 = t0 + Duration::from_secs_f64(secs);
    let tasks: Vec<_> = (0..workers)
        .map(|w| {
            let op = op.clone();
            tokio::spawn(async move {
                let mut seen = Seen::default();
                let mut i = 0u64;
                while Instant::now() < t1 {
                    let begin = Instant::now();
                    let r = op(w, i).await;
                    let end = Instant::now();
                    i += 1;
                    match r {
                        Ok(steps) => {
                            if begin >= t0 && end <= t1 {
                                seen.done += 1;
                                for (n, d) in steps {
                                    seen.lat(n, d);
                                }
                            }
                        }
                        Err(e) => {
                            seen.errors += 1;
                            seen.first_error.get_or_insert(format!("{e:#}"));
                            sleep(Duration::from_millis(5)).await;
                        }
                    }
                }
                seen
            })
        })
        .collect();
    sleep_until(t0.into()).await;
    let meter = Meter::start(&ctx.servers);
    sleep_until(t1.into()).await;
    let mut out = Obj::new();
    meter.put(&mut out);
    let mut all = Seen::default();
    for t in tasks {
        all.merge(timeout(Duration::from_secs(20), t).await.context("worker hangs")??);
    }
    let mut row = Obj::new();
    row.insert("ops_s".into(), json!((all.done as f64 / secs * 10.0).round() / 10.0));
    for (n, l) in &all.lats {
        l.put(n, &mut row);
    }
    row.insert("errors".into(), json!(all.errors));
    if let Some(e) = all.first_error {
        row.insert("first_error".into(), json!(e));
    }
    row.extend(out);
    Ok(row)
}
