//! W1: each client acquires and releases a key of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::json;
use tokio::time::sleep;

use super::{Ctx, Pin, closed};
use crate::stats::obj;
use crate::target::{Conn, Lease};

/// W1: acquire and release a key of one's own. `full` opens and closes a
/// lease around each cycle (where a lease is a connection: a new session).
pub async fn w1(ctx: &Ctx, clients: usize, secs: f64, full: bool, pin: Pin) -> Result<()> {
    let ttl = Duration::from_secs(30);
    let conns = Arc::new(ctx.conns(clients, pin, ttl, false).await?);
    let mut leases = vec![];
    for c in conns.iter() {
        leases.push(c.lease_open(ttl).await?);
    }
    let keep = spawn_keepers(ctx, conns.clone(), &leases);
    let leases = Arc::new(leases);
    let session = ctx.target.lease_is_connection();
    let at = Arc::new(ctx.places(pin).await?);
    let mut rep = ctx.report(obj(json!({"work":"w1","mode":if full {"full"} else {"held-lease"},
        "clients":clients,"pin":format!("{pin:?}")})));
    while rep.more() {
        let (c, l, tag) = (conns.clone(), leases.clone(), ctx.tag.clone());
        let (t, at) = (ctx.target.clone(), at.clone());
        let row = closed(ctx, clients, 1.0, secs, move |w, _| {
            let (c, lease, key) = (c[w].clone(), l[w].clone(), format!("w1-{tag}-{w}"));
            let (t, at) = (t.clone(), at[w % at.len()]);
            async move {
                let t0 = Instant::now();
                let c = if full && session { t.connect_light(at, ttl).await? } else { c };
                let lease = if full { c.lease_open(ttl).await? } else { lease };
                let ta = Instant::now();
                if !c.acquire(&lease, &key).await? {
                    bail!("key of one's own is held");
                }
                let tb = Instant::now();
                if full {
                    c.lease_close(&lease).await?; // deletes the key
                } else {
                    c.release(&lease, &key).await?;
                }
                let t1 = Instant::now();
                Ok(vec![("cycle", t1 - t0), ("acquire", tb - if full { t0 } else { ta }), ("release", t1 - tb)])
            }
        })
        .await?;
        rep.row(row);
    }
    keep.store(false, Relaxed);
    rep.finish();
    Ok(())
}

/// Renews held leases in the background every ttl/3, where a client must.
pub fn spawn_keepers(ctx: &Ctx, conns: Arc<Vec<Arc<dyn Conn>>>, leases: &[Lease]) -> Arc<AtomicBool> {
    let on = Arc::new(AtomicBool::new(true));
    if !ctx.target.needs_keeper() {
        return on;
    }
    let (go, leases) = (on.clone(), leases.to_vec());
    tokio::spawn(async move {
        while go.load(Relaxed) {
            sleep(Duration::from_secs(9)).await;
            for (c, l) in conns.iter().zip(&leases) {
                let _ = c.renew(l, "").await;
            }
        }
    });
    on
}
