//! How many commands one durable node orders, in process and closed loop: each submitter sends its next command when the
//! last is answered. `cargo bench -p tenure-cluster --bench throughput -- [seconds] [data directory]`
#![allow(clippy::print_stdout, clippy::expect_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_cluster::counter::{Command, Counter};
use tenure_cluster::{Cluster, Config};

/// Bytes a command carries along: about those of a small real one.
const PADDING: usize = 100;

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let seconds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(3);
    let temporary = tempfile::tempdir().expect("a temporary directory");
    let dir = arguments.next().map_or_else(|| temporary.path().join("node"), Into::into);
    let cluster = Cluster::<Counter>::open(Config::single(dir), Arc::new(|_| {})).await.expect("the node opens");
    println!("{:>6} {:>10} {:>12} {:>9} {:>9} {:>9}", "", "submitters", "per second", "p50 ms", "p99 ms", "max ms");
    for submitters in [1, 16, 64, 256] {
        measure(&cluster, "write", submitters, Duration::from_secs(seconds)).await;
    }
    for readers in [1, 64, 256] {
        measure(&cluster, "read", readers, Duration::from_secs(seconds)).await;
    }
    cluster.shutdown().await;
}

async fn measure(cluster: &Cluster<Counter>, what: &'static str, tasks: usize, time: Duration) {
    let started = Instant::now();
    let tasks: Vec<_> = (0..tasks)
        .map(|_| {
            let cluster = cluster.clone();
            tokio::spawn(async move {
                let mut latencies = Vec::new();
                while started.elapsed() < time {
                    let sent = Instant::now();
                    if what == "write" {
                        cluster.submit(Command::Padded(vec![7; PADDING])).await.expect("a command is ordered");
                    } else {
                        cluster.read(|counter, at| counter.sum(at)).await.expect("a read is answered");
                    }
                    latencies.push(sent.elapsed());
                }
                latencies
            })
        })
        .collect();
    let count = tasks.len();
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await.expect("a submitter ends"));
    }
    let elapsed = started.elapsed();
    latencies.sort_unstable();
    let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    let rate = latencies.len() as f64 / elapsed.as_secs_f64();
    println!("{what:>6} {count:>10} {rate:>12.0} {:>9.3} {:>9.3} {:>9.3}", at(0.5), at(0.99), at(1.0));
}
