//! W5: SIGKILL of the leader under a steady open-loop acquire load.
//!
//! The load does not wait for answers: acquires begin at their times, whatever the store does. Each goes on, from
//! endpoint to endpoint, until it succeeded. The number is the time from the kill to the first success of an acquire
//! that began after it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Signal, kill_process};
use serde_json::json;
use tokio::time::{interval, sleep, timeout};

use super::Ctx;
use crate::stats::{Lat, Obj, obj, pid};
use crate::target::{Conn, Lease, Target, locked};

const TTL: Duration = Duration::from_secs(10);
/// A store that has not come back by then never does.
const BACK_MAX: Duration = Duration::from_secs(45);
/// Load that goes on after the first success.
const AFTER: Duration = Duration::from_secs(4);
/// Between two tries of one acquire.
const PAUSE: Duration = Duration::from_millis(10);

/// What all acquires share.
struct Load {
    target: Arc<dyn Target>,
    conns: Vec<(Arc<dyn Conn>, Lease)>,
    tag: String,
    attempt: Duration,
    fresh: bool,
    /// When each acquire that succeeded began and ended.
    log: Mutex<Vec<(Instant, Instant)>>,
    failed: AtomicU64,
    stop: AtomicBool,
}

impl Load {
    async fn new(ctx: &Ctx, attempt_ms: u64, fresh: bool) -> Result<Self> {
        let mut conns = vec![];
        for i in 0..ctx.target.endpoints().len() {
            let conn = ctx.target.connect_ha(i, TTL).await?;
            let lease = conn.lease_open(Duration::from_secs(60)).await?;
            conns.push((conn, lease));
        }
        Ok(Load {
            target: ctx.target.clone(),
            conns,
            tag: ctx.tag.clone(),
            attempt: Duration::from_millis(attempt_ms),
            fresh,
            log: Mutex::default(),
            failed: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        })
    }

    async fn once(&self, at: usize, key: &str) -> Result<bool> {
        if !self.fresh {
            let (conn, lease) = &self.conns[at];
            return conn.acquire(lease, key).await;
        }
        let conn = self.target.connect_light(at, TTL).await?;
        let lease = conn.lease_open(TTL).await?;
        let got = conn.acquire(&lease, key).await?;
        conn.lease_close(&lease).await?;
        Ok(got)
    }

    /// The `i`th acquire, until it succeeded or the load ends.
    async fn acquire(&self, i: usize) {
        let key = format!("w5-{}-{i}", self.tag);
        let begin = Instant::now();
        for tries in 0.. {
            if self.stop.load(Relaxed) {
                return;
            }
            let at = (i + tries) % self.conns.len();
            match timeout(self.attempt, self.once(at, &key)).await {
                Ok(Ok(true)) => break,
                // An earlier try had gone through.
                Ok(Ok(false)) if tries > 0 => break,
                _ => {
                    self.failed.fetch_add(1, Relaxed);
                    sleep(PAUSE).await;
                }
            }
        }
        locked(&self.log).push((begin, Instant::now()));
    }

    async fn drive(self: Arc<Self>, rate: u64) {
        let mut tick = interval(Duration::from_micros(1_000_000 / rate));
        let mut acquires = vec![];
        for i in 0usize.. {
            if self.stop.load(Relaxed) {
                break;
            }
            tick.tick().await;
            let load = self.clone();
            acquires.push(tokio::spawn(async move { load.acquire(i).await }));
        }
        for acquire in acquires {
            let _ = acquire.await;
        }
    }

    async fn first_after(&self, kill: Instant) -> Result<Instant> {
        loop {
            sleep(Duration::from_millis(5)).await;
            let first = locked(&self.log).iter().filter(|(begin, _)| *begin > kill).map(|(_, end)| *end).min();
            if let Some(end) = first {
                return Ok(end);
            }
            if kill.elapsed() > BACK_MAX {
                self.stop.store(true, Relaxed);
                bail!("no acquire succeeded within {} s after the kill", BACK_MAX.as_secs());
            }
        }
    }
}

/// One kill. With `fresh`, each try is a new connection (and session), so that no client library's reconnect pause is
/// in the number.
pub async fn w5(ctx: &Ctx, rate: u64, before: f64, attempt_ms: u64, fresh: bool) -> Result<()> {
    let lead = ctx.target.leader().await?.context("no leader to kill")?;
    let victim = pid(ctx.servers.pids().get(lead).context("w5 needs --dir")?)?;
    let load = Arc::new(Load::new(ctx, attempt_ms, fresh).await?);
    let driver = tokio::spawn(load.clone().drive(rate));
    sleep(Duration::from_secs_f64(before)).await;
    let failed_before = load.failed.load(Relaxed);
    let kill = Instant::now();
    kill_process(victim, Signal::KILL)?;
    let first = load.first_after(kill).await?;
    sleep(AFTER).await;
    load.stop.store(true, Relaxed);
    let _ = timeout(Duration::from_secs(15), driver).await;
    let mut row = obj(json!({"first_acquire_ms": ms(first - kill)}));
    row.extend(around(&locked(&load.log), kill));
    row.insert("failed_attempts".into(), json!(load.failed.load(Relaxed) - failed_before));
    let mut report = ctx.report(obj(json!({"work": "w5", "rate": rate, "fresh": fresh, "attempt_ms": attempt_ms})));
    report.row(row);
    Ok(())
}

/// What the acquires before, over and after the kill went through.
fn around(log: &[(Instant, Instant)], kill: Instant) -> Obj {
    let mut steady = Lat::default();
    for (begin, end) in log.iter().filter(|(_, end)| *end < kill) {
        steady.add(*end - *begin);
    }
    let worst = log.iter().filter(|(_, end)| *end >= kill).map(|(begin, end)| *end - *begin).max().unwrap_or_default();
    let in_flight = log.iter().filter(|(begin, end)| *begin < kill && *end > kill).count();
    // Longest stretch after the kill in which nothing finished.
    let mut ends: Vec<Instant> = log.iter().map(|(_, end)| *end).filter(|end| *end > kill).collect();
    ends.sort();
    let starts = [kill].into_iter().chain(ends.iter().copied());
    let silence = starts.zip(&ends).map(|(from, to)| *to - from).max().unwrap_or_default();
    let mut row =
        obj(json!({"longest_silence_ms": ms(silence), "worst_op_ms": ms(worst), "in_flight_at_kill": in_flight}));
    steady.put("steady", &mut row);
    row
}

fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e4).round() / 10.0
}
