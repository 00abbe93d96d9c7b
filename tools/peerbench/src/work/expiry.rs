//! W6: many leases abandoned at once, and how late each becomes free.
//!
//! Lateness counts from the answer to the last renewal plus the ttl; free before the sending of it plus the ttl is early.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::stream::{self, StreamExt, TryStreamExt};
use serde_json::json;
use tokio::time::{sleep, sleep_until, timeout};

use super::renew::{Held, fill};
use super::{Ctx, Pin};
use crate::stats::{Lat, Meter, obj};
use crate::target::{Conn, Gone};

/// Keys that are made between two rounds of renewals, so that none ends while others are still made.
const CHUNK: usize = 1000;
/// How long after the ttl a key may still be waited for.
const LATE_MAX: Duration = Duration::from_secs(40);

/// When the last renewal of each key was sent and answered.
type Renewed = HashMap<String, (Instant, Instant)>;

#[derive(Default)]
struct Freed {
    late: Lat,
    early: u64,
    seen: usize,
}

pub async fn w6(ctx: &Ctx, n: usize, ttl_s: u64, nconns: usize, sample: usize) -> Result<()> {
    let ttl = Duration::from_secs(ttl_s);
    let watcher = ctx.target.connect_ha(0, Duration::from_secs(30)).await?;
    let gone = watcher.watch_gone().await?;
    let t0 = Instant::now();
    let held = fill_renewing(ctx, n, nconns, ttl).await?;
    let fill_s = t0.elapsed().as_secs_f64();
    let renewed = renew_all(&held).await?;
    let last = renewed.iter().map(|(_, answered)| *answered).max().context("no lease to abandon")?;
    let first = renewed.iter().map(|(sent, _)| *sent).min().context("no lease to abandon")?;
    let meter = Meter::start(&ctx.servers);
    let keys: Renewed = held.iter().zip(&renewed).map(|(h, times)| (h.key.clone(), *times)).collect();
    let real_ttl = held[0].lease.ttl;
    let (method, freed) = match gone {
        Some(gone) => ("watch: delete event of every key", watched(gone, &keys, real_ttl).await),
        None => ("probe: one try every 2 ms on a sample of keys", probed(&watcher, &keys, real_ttl, n, sample).await?),
    };
    let mut row = obj(json!({"leases": n, "seen": freed.seen, "early": freed.early,
        "real_ttl_s": real_ttl.as_secs_f64(), "method": method, "fill_s": (fill_s * 10.0).round() / 10.0,
        "last_renewal_spread_ms": (last - first).as_millis() as u64}));
    freed.late.put("late", &mut row);
    meter.put(&mut row);
    let mut report = ctx.report(obj(json!({"work": "w6", "ttl_s": ttl_s})));
    report.row(row);
    Ok(())
}

async fn fill_renewing(ctx: &Ctx, n: usize, nconns: usize, ttl: Duration) -> Result<Vec<Held>> {
    let mut held: Vec<Held> = vec![];
    while held.len() < n {
        let chunk = Ctx {
            target: ctx.target.clone(),
            servers: ctx.servers.clone(),
            plan: ctx.plan,
            head: ctx.head.clone(),
            tag: format!("{}-{}", ctx.tag, held.len()),
        };
        held.extend(fill(&chunk, CHUNK.min(n - held.len()), 1, nconns, ttl, Pin::Any).await?);
        renew_all(&held).await?;
    }
    Ok(held)
}

/// Renews every lease; returns when each renewal was sent and answered.
async fn renew_all(held: &[Held]) -> Result<Vec<(Instant, Instant)>> {
    stream::iter(held.iter())
        .map(|h| async move {
            let sent = Instant::now();
            h.conn.renew(&h.lease, &h.key).await?;
            Ok::<_, anyhow::Error>((sent, Instant::now()))
        })
        .buffered(256)
        .try_collect()
        .await
}

async fn watched(mut gone: Gone, keys: &Renewed, ttl: Duration) -> Freed {
    let mut freed = Freed::default();
    let limit = Instant::now() + ttl + LATE_MAX;
    while freed.seen < keys.len() {
        let Ok(Some((key, at))) = timeout(limit.saturating_duration_since(Instant::now()), gone.recv()).await else {
            break;
        };
        if let Some((sent, answered)) = keys.get(&key) {
            freed.seen += 1;
            freed.early += u64::from(at < *sent + ttl);
            freed.late.add(at.saturating_duration_since(*answered + ttl));
        }
    }
    freed
}

async fn probed(
    conn: &std::sync::Arc<dyn Conn>,
    keys: &Renewed,
    ttl: Duration,
    n: usize,
    sample: usize,
) -> Result<Freed> {
    let every = (n / sample.max(1)).max(1);
    let mut probes = vec![];
    for (key, (sent, answered)) in keys.iter().step_by(every) {
        let (key, sent, answered, conn) = (key.clone(), *sent, *answered, conn.clone());
        probes.push(tokio::spawn(async move {
            sleep_until((sent + ttl - Duration::from_millis(20)).into()).await;
            while !conn.probe(&key).await? {
                sleep(Duration::from_millis(2)).await;
            }
            let at = Instant::now();
            Ok::<_, anyhow::Error>((at < sent + ttl, at.saturating_duration_since(answered + ttl)))
        }));
    }
    let mut freed = Freed::default();
    for probe in probes {
        let (early, late) = probe.await??;
        freed.seen += 1;
        freed.early += u64::from(early);
        freed.late.add(late);
    }
    Ok(freed)
}
