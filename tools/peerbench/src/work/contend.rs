//! W3: one lock that everybody wants.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;

use super::cycle::spawn_keepers;
use super::{Ctx, Pin, closed};
use crate::stats::obj;

/// W3: all clients want one lock and give it back at once. A hand-over runs
/// from the moment the holder begins to release until the next one has it. The
/// turns of the client that had the fewest and of the one that had the most,
/// the time before the window included, tell how fair that was.
pub async fn w3(ctx: &Ctx, clients: usize, secs: f64, pin: Pin) -> Result<()> {
    let ttl = Duration::from_secs(30);
    let conns = Arc::new(ctx.conns(clients, pin, ttl, false).await?);
    let mut leases = vec![];
    for c in conns.iter() {
        leases.push(c.lease_open(ttl).await?);
    }
    let keep = spawn_keepers(ctx, conns.clone(), &leases);
    let leases = Arc::new(leases);
    let base = Instant::now();
    let freed = Arc::new(AtomicU64::new(0));
    let holders = Arc::new(AtomicU64::new(0));
    let overlaps = Arc::new(AtomicU64::new(0));
    let turns: Arc<Vec<AtomicU64>> = Arc::new((0..clients).map(|_| AtomicU64::new(0)).collect());
    let name = format!("w3-{}", ctx.tag);
    let mut rep = ctx.report(obj(json!({"work":"w3","clients":clients,"pin":format!("{pin:?}")})));
    while rep.more() {
        let (c, l, name) = (conns.clone(), leases.clone(), name.clone());
        let (freed, holders, over) = (freed.clone(), holders.clone(), overlaps.clone());
        turns.iter().for_each(|turns| turns.store(0, Relaxed));
        let had = turns.clone();
        let mut row = closed(ctx, clients, 1.0, secs, move |w, _| {
            let (c, lease, name) = (c[w].clone(), l[w].clone(), name.clone());
            let (freed, holders, over, had) = (freed.clone(), holders.clone(), over.clone(), had.clone());
            async move {
                let t0 = Instant::now();
                let token = c.lock_wait(&lease, &name).await?;
                let got = Instant::now();
                had[w].fetch_add(1, Relaxed);
                if holders.fetch_add(1, Relaxed) != 0 {
                    over.fetch_add(1, Relaxed);
                }
                let was = freed.swap(0, Relaxed);
                let now = base.elapsed();
                holders.fetch_sub(1, Relaxed);
                freed.store(now.as_nanos() as u64, Relaxed);
                c.unlock(&lease, &token).await?;
                let mut out = vec![("wait", got - t0)];
                if was != 0 {
                    out.push(("handover", (got - base).saturating_sub(Duration::from_nanos(was))));
                }
                Ok(out)
            }
        })
        .await?;
        row.insert("overlaps".into(), json!(overlaps.load(Relaxed)));
        // Where all wait in one line, no client has more turns than another, but for the one that is on.
        let had = || turns.iter().map(|turns| turns.load(Relaxed));
        row.insert("turns_least".into(), json!(had().min()));
        row.insert("turns_most".into(), json!(had().max()));
        rep.row(row);
    }
    keep.store(false, Relaxed);
    rep.finish();
    Ok(())
}
