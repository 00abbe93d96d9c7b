//! W2: renewals of held leases, and the filling that other workloads begin with too.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use futures::stream::{self, StreamExt, TryStreamExt};
use serde_json::json;

use super::{Ctx, Pin, closed};
use crate::stats::obj;
use crate::target::{Conn, Lease};

pub struct Held {
    pub conn: Arc<dyn Conn>,
    pub lease: Lease,
    pub key: String,
}

/// Opens `n` leases, each with one key, at most 512 at a time.
pub async fn fill(ctx: &Ctx, n: usize, per_lease: usize, nconns: usize, ttl: Duration, pin: Pin) -> Result<Vec<Held>> {
    let single = ctx.target.lease_is_connection();
    let light = single && per_lease == 1;
    let groups = n.div_ceil(per_lease);
    let conns = if light { vec![] } else { ctx.conns(if single { groups } else { nconns }, pin, ttl, false).await? };
    let at = ctx.places(pin).await?;
    let held: Vec<Vec<Held>> = stream::iter(0..groups)
        .map(|g| {
            let conn = if light { None } else { Some(conns[g % conns.len()].clone()) };
            let (t, ep, tag) = (ctx.target.clone(), at[g % at.len()], ctx.tag.clone());
            async move {
                let conn = match conn {
                    Some(c) => c,
                    None => t.connect_light(ep, ttl).await?,
                };
                let lease = conn.lease_open(ttl).await?;
                let mut out = vec![];
                for j in 0..per_lease {
                    if g * per_lease + j >= n {
                        break;
                    }
                    let key = format!("h-{tag}-{g}-{j}");
                    if !conn.acquire(&lease, &key).await? {
                        bail!("fill: {key} is held");
                    }
                    out.push(Held { conn: conn.clone(), lease: lease.clone(), key });
                }
                Ok(out)
            }
        })
        .buffer_unordered(512)
        .try_collect()
        .await?;
    Ok(held.into_iter().flatten().collect())
}

/// W2: renew held leases, `workers` at a time.
pub async fn w2(ctx: &Ctx, n: usize, workers: usize, nconns: usize, secs: f64, pin: Pin, ttl: u64) -> Result<()> {
    let t0 = Instant::now();
    let held = Arc::new(fill(ctx, n, 1, nconns, Duration::from_secs(ttl), pin).await?);
    let fill_s = t0.elapsed().as_secs_f64();
    let workers = workers.min(n);
    let mut rep = ctx.report(obj(json!({"work":"w2","leases":n,"workers":workers,"conns":nconns,
        "pin":format!("{pin:?}"),"ttl_s":held[0].lease.ttl.as_secs(),"fill_per_s":(n as f64/fill_s).round()})));
    while rep.more() {
        let h = held.clone();
        let row = closed(ctx, workers, 0.5, secs, move |w, i| {
            let (h, at) = (h.clone(), (w + i as usize * workers) % n);
            async move {
                let x = &h[at];
                let t = Instant::now();
                x.conn.renew(&x.lease, &x.key).await?;
                Ok(vec![("renew", t.elapsed())])
            }
        })
        .await?;
        rep.row(row);
    }
    rep.finish();
    Ok(())
}
