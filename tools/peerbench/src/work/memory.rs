//! W7: memory with many leases, and the time a restart of all nodes takes.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use serde_json::json;
use tokio::time::{sleep, timeout};

use rustix::process::{Signal, kill_process};

use super::renew::fill;
use super::{Ctx, Pin};
use crate::stats::{Meter, obj, pid};

/// W7: memory with `n` leases held, then SIGKILL all nodes, start them again
/// with `restart_cmd`, and time the first linearizable read of a held key.
pub async fn w7(
    ctx: &Ctx,
    n: usize,
    per_lease: usize,
    nconns: usize,
    ttl_s: u64,
    restart_cmd: Option<String>,
    restarts: usize,
) -> Result<()> {
    let rss0 = ctx.servers.rss_mib();
    let meter = Meter::start(&ctx.servers);
    let t0 = Instant::now();
    let held = fill(ctx, n, per_lease, nconns, Duration::from_secs(ttl_s), Pin::Any).await?;
    let fill_s = t0.elapsed().as_secs_f64();
    let mut row = obj(json!({"keys": n, "per_lease": per_lease, "fill_per_s": (n as f64/fill_s).round()}));
    meter.put(&mut row);
    sleep(Duration::from_secs(2)).await;
    let rss1 = ctx.servers.rss_mib();
    row.insert("rss_before_mib".into(), json!(rss0.iter().map(|x| x.round()).collect::<Vec<_>>()));
    row.insert("rss_after_mib".into(), json!(rss1.iter().map(|x| x.round()).collect::<Vec<_>>()));
    if let Some(cmd) = restart_cmd {
        let key = held[n / 2].key.clone();
        let (mut times, mut alive) = (vec![], true);
        for _ in 0..restarts {
            let (secs, found) = restart_once(ctx, &cmd, &key).await?;
            times.push((secs * 1e3).round() / 1e3);
            alive &= found;
        }
        row.insert("restart_first_read_s".into(), json!(times));
        row.insert("key_survived".into(), json!(alive));
        let rss2 = ctx.servers.rss_mib();
        row.insert("rss_restarted_mib".into(), json!(rss2.iter().map(|x| x.round()).collect::<Vec<_>>()));
    }
    let mut rep = ctx.report(obj(json!({"work":"w7"})));
    rep.row(row);
    Ok(())
}

async fn restart_once(ctx: &Ctx, cmd: &str, key: &str) -> Result<(f64, bool)> {
    for p in ctx.servers.pids() {
        kill_process(pid(&p)?, Signal::KILL)?;
    }
    sleep(Duration::from_millis(500)).await;
    let t = Instant::now();
    let mut child =
        tokio::process::Command::new("sh").arg("-c").arg(cmd).stdout(std::process::Stdio::null()).spawn()?;
    let n = ctx.target.endpoints().len();
    for i in 0.. {
        let go = async {
            let c = ctx.target.connect_ha(i % n, Duration::from_secs(10)).await?;
            c.read(key, false).await
        };
        if let Ok(Ok(v)) = timeout(Duration::from_millis(1000), go).await {
            let secs = t.elapsed().as_secs_f64();
            let _ = child.wait().await;
            sleep(Duration::from_secs(2)).await;
            return Ok((secs, v.is_some()));
        }
        if t.elapsed() > Duration::from_secs(40) {
            break;
        }
        sleep(Duration::from_millis(10)).await;
    }
    Err(anyhow!("no read within 40 s after the restart"))
}
