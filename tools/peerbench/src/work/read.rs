//! W4: reads of who holds a lock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::json;

use super::{Ctx, Pin, closed};
use crate::stats::obj;

/// W4: read who holds a lock.
pub async fn w4(ctx: &Ctx, clients: usize, secs: f64, pin: Pin, stale_ok: bool) -> Result<()> {
    let ttl = Duration::from_secs(30);
    let owner = ctx.conns(1, Pin::Any, ttl, false).await?.remove(0);
    let lease = owner.lease_open(Duration::from_secs(120)).await?;
    for k in 0..1000 {
        if !owner.acquire(&lease, &format!("w4-{}-{k}", ctx.tag)).await? {
            bail!("w4: key is held");
        }
    }
    let conns = Arc::new(ctx.conns(clients, pin, ttl, false).await?);
    let mut rep = ctx.report(obj(json!({"work":"w4","clients":clients,"pin":format!("{pin:?}"),
        "read":if stale_ok {"stale-ok"} else {"linearizable"}})));
    while rep.more() {
        let (c, tag) = (conns.clone(), ctx.tag.clone());
        let row = closed(ctx, clients, 1.0, secs, move |w, i| {
            let (c, key) = (c[w].clone(), format!("w4-{tag}-{}", (w as u64 * 37 + i * 7) % 1000));
            async move {
                let t = Instant::now();
                if c.read(&key, stale_ok).await?.is_none() {
                    bail!("holder is missing");
                }
                Ok(vec![("read", t.elapsed())])
            }
        })
        .await?;
        rep.row(row);
    }
    rep.finish();
    Ok(())
}
