//! A durable node on a real directory and the real runtime: opened, stopped, killed and opened again.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use tenure_cluster::counter::{Command, Counter};
use tenure_cluster::raft::Member;
use tenure_cluster::{Cluster, Config, OpenError, StopReason};
use tokio::runtime::Runtime;

async fn open(dir: &Path) -> Result<Cluster<Counter>, OpenError> {
    Cluster::open(Config::single(dir), Arc::new(|_| {})).await
}

async fn sum(cluster: &Cluster<Counter>) -> u64 {
    cluster.read(|counter, at| counter.sum(at)).await.unwrap().value
}

/// Sends `count` commands from each of eight tasks.
async fn load(cluster: &Cluster<Counter>, count: u64) {
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let cluster = cluster.clone();
            tokio::spawn(async move {
                for _ in 0..count {
                    cluster.submit(Command::Add(1)).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_remembers_over_an_orderly_stop() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = open(dir.path()).await.unwrap();
    let id = cluster.cluster_id().to_owned();
    assert_eq!(id.len(), 32);
    load(&cluster, 50).await;
    let last = cluster.submit(Command::Add(1)).await.unwrap().witness;
    cluster.shutdown().await;
    assert_eq!(cluster.stopped().await, StopReason::Shutdown);

    let cluster = open(dir.path()).await.unwrap();
    assert_eq!(cluster.cluster_id(), id);
    assert_eq!(sum(&cluster).await, 401);
    let next = cluster.submit(Command::Add(1)).await.unwrap().witness;
    assert!(next.position > last.position && next.clock >= last.clock && next.term > last.term);
    cluster.shutdown().await;
}

#[test]
fn a_node_remembers_what_it_answered_when_it_is_dropped_at_once() {
    let dir = tempfile::tempdir().unwrap();
    for round in 1..=5 {
        let runtime = Runtime::new().unwrap();
        let cluster = runtime.block_on(async {
            // The lock of the round before goes with its last task.
            loop {
                match open(dir.path()).await {
                    Ok(cluster) => break cluster,
                    Err(OpenError::Locked { .. }) => tokio::task::yield_now().await,
                    Err(error) => panic!("{error}"),
                }
            }
        });
        runtime.block_on(load(&cluster, 20));
        runtime.shutdown_background();
        assert_eq!(cluster.read_stale(|counter, at| counter.sum(at)).value, Ok(round * 160));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_serves_one_node_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = open(dir.path()).await.unwrap();
    let Err(second) = open(dir.path()).await else { panic!("opened twice") };
    assert!(matches!(second, OpenError::Locked { .. }), "{second}");
    assert_eq!(cluster.submit(Command::Add(1)).await.unwrap().reply, 1, "the first is not disturbed");
    cluster.shutdown().await;
    open(dir.path()).await.unwrap().shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_log_is_never_taken_for_a_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = open(dir.path()).await.unwrap();
    cluster.submit(Command::Add(1)).await.unwrap();
    cluster.shutdown().await;
    for file in fs::read_dir(dir.path().join("log")).unwrap() {
        fs::remove_file(file.unwrap().path()).unwrap();
    }
    let Err(refused) = open(dir.path()).await else { panic!("an empty log was taken for a new one") };
    assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_address_is_taken_into_the_membership() {
    let dir = tempfile::tempdir().unwrap();
    for client in ["first:13378", "second:13378"] {
        let mut config = Config::single(dir.path());
        config.member = Member { client: client.to_owned(), ..Member::default() };
        let cluster = Cluster::<Counter>::open(config, Arc::new(|_| {})).await.unwrap();
        let members = cluster.status().members;
        assert_eq!(members.iter().map(|(_, member)| member.client.as_str()).collect::<Vec<_>>(), [client]);
        cluster.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_keep_the_directory_small_and_are_started_from() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::single(dir.path());
    config.segment_bytes = 256 * 1024;
    config.snapshot_log_bytes = 1024 * 1024;
    config.log_margin_bytes = 256 * 1024;
    let cluster = Cluster::<Counter>::open(config.clone(), Arc::new(|_| {})).await.unwrap();
    let mut count = 0;
    while cluster.status().snapshot.is_none() || cluster.status().log_bytes > 2 * 1024 * 1024 || count < 3_000 {
        cluster.submit(Command::Padded(vec![7; 2_000])).await.unwrap();
        count += 1;
        assert!(cluster.status().log_bytes < 64 * 1024 * 1024, "the log is never shortened");
    }
    cluster.shutdown().await;
    let cluster = Cluster::<Counter>::open(config.clone(), Arc::new(|_| {})).await.unwrap();
    assert!(cluster.status().snapshot.is_some());
    assert_eq!(sum(&cluster).await, count);
    cluster.shutdown().await;

    for snapshot in fs::read_dir(dir.path().join("snapshots")).unwrap() {
        fs::remove_dir_all(snapshot.unwrap().path()).unwrap();
    }
    let Err(refused) = Cluster::<Counter>::open(config, Arc::new(|_| {})).await else {
        panic!("a log without its beginning was taken for a whole one")
    };
    assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
}
