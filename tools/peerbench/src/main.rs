//! peerbench: one load generator for lease and lock stores, to compare them under the same conditions.
//!
//! Model: a store is a `Target` that gives `Conn`s; the workloads know no store. It measures on this host alone (only
//! loopback endpoints are accepted) and says with each result how busy servers, generator and everything else were.
//! It does not check what a store promises: W3 counts overlapping holders, nothing more.

mod args;
mod etcd;
mod raw;
mod rds;
mod report;
mod stats;
mod target;
mod tenure;
mod work;
mod zk;

use std::sync::Arc;

use anyhow::{Result, ensure};
use args::{Cli, Command, Limit, Store, Windows, Work};
use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use stats::{Obj, Plan, Report, obj};
use target::Target;
use work::Ctx;

#[tokio::main]
async fn main() -> Result<()> {
    raise_fd_limit();
    match Cli::parse().command {
        Command::Tenure(store) => {
            let wait = match store.work {
                Work::W3 { wait, .. } => wait,
                _ => tenure::LockWait::Line,
            };
            run("tenure", Arc::new(tenure::Tenure::new(loopback(&store)?, wait)), store).await
        }
        Command::Etcd(store) => run("etcd", Arc::new(etcd::Etcd::new(loopback(&store)?)), store).await,
        Command::Zk(store) => run("zk", Arc::new(zk::Zk::new(loopback(&store)?)), store).await,
        Command::Redis(store) => run("redis", Arc::new(rds::Redis::new(loopback(&store)?, false)), store).await,
        Command::Redlock(store) => run("redlock", Arc::new(rds::Redis::new(loopback(&store)?, true)), store).await,
        Command::Raw { windows, limit } => raw(windows, limit),
        Command::Report { dir, plots } => report::report(&dir, &plots),
    }
}

/// Thousands of connections need more than the usual 1,024 open files. What the system refuses shows in the errors.
fn raise_fd_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

fn loopback(store: &Store) -> Result<Vec<String>> {
    for endpoint in &store.endpoints {
        let host = endpoint.rsplit_once(':').map_or(endpoint.as_str(), |(host, _)| host);
        ensure!(["127.0.0.1", "localhost", "[::1]"].contains(&host), "{endpoint}: only loopback endpoints");
    }
    Ok(store.endpoints.clone())
}

fn plan(windows: &Windows) -> Plan {
    Plan { repeat: windows.repeat, quiet: windows.quiet, tries: windows.tries }
}

fn head(name: &str) -> Obj {
    obj(json!({ "target": name }))
}

async fn run(name: &str, target: Arc<dyn Target>, store: Store) -> Result<()> {
    target.prepare().await?;
    // Makes the keys of this run its own.
    let tag = format!("{:08x}", rand::random::<u32>());
    let (servers, plan) = (stats::Servers(store.dir), plan(&store.windows));
    let ctx = Ctx { target, servers, plan, head: head(name), tag };
    match store.work {
        Work::W1 { clients, secs, full, pin } => work::w1(&ctx, clients, secs, full, pin).await,
        Work::W2 { leases, workers, conns, secs, pin, ttl } => {
            work::w2(&ctx, leases, workers, conns, secs, pin, ttl).await
        }
        Work::W3 { clients, secs, pin, wait } => {
            let mut ctx = ctx;
            if name == "tenure" {
                ctx.head.extend(obj(json!({"wait": format!("{wait:?}")})));
            }
            work::w3(&ctx, clients, secs, pin).await
        }
        Work::W4 { clients, secs, pin, stale_ok } => work::w4(&ctx, clients, secs, pin, stale_ok).await,
        Work::W5 { rate, before, attempt_ms, fresh } => work::w5(&ctx, rate, before, attempt_ms, fresh).await,
        Work::W6 { leases, ttl, conns, sample } => work::w6(&ctx, leases, ttl, conns, sample).await,
        Work::W7 { keys, per_lease, conns, ttl, restart_cmd, restarts } => {
            work::w7(&ctx, keys, per_lease, conns, ttl, restart_cmd, restarts).await
        }
    }
}

fn raw(windows: Windows, limit: Limit) -> Result<()> {
    let mut head = head("raw");
    match &limit {
        Limit::Disk { block, prealloc, .. } => {
            head.extend(obj(json!({"work": "disk", "block": block, "prealloc": prealloc})));
        }
        Limit::Tcp { .. } => head.extend(obj(json!({"work": "tcp"}))),
    }
    let mut report = Report::new(head, plan(&windows));
    while report.more() {
        report.row(match &limit {
            Limit::Disk { file, block, secs, prealloc } => raw::disk(file, *block, *secs, *prealloc)?,
            Limit::Tcp { secs } => raw::tcp(*secs)?,
        });
    }
    report.finish();
    Ok(())
}
