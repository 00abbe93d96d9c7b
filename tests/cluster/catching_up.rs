//! A follower that was away for long.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::asker::Asker;
use crate::harness::{Cluster, Plan};
use crate::process::{SOON, disk_bytes, eventually};

/// Beyond the log bytes at which a snapshot is taken (64 MiB), so that what the follower misses is purged (all but the
/// last 32 MiB).
const MISSED_BYTES: usize = 72 << 20;
/// Keys, each in every BATCH, and bytes of a key and of a note: below the greatest body, 1 MiB.
const KEYS: usize = 400;
const TEXT_BYTES: usize = 1_000;
/// Of the log: before the purge it has two spare ones beside what was written, then at least one less in all.
const SEGMENT_BYTES: u64 = 16 << 20;
const CAUGHT_UP_WITHIN: Duration = Duration::from_secs(60);

/// The `n`th BATCH. All keys are held from the first on; each later one frees one key and asks for all of them, so one
/// is granted, and the many bytes of the others change nothing.
fn batch(n: usize) -> Value {
    let text = |head: String| format!("{head:-<TEXT_BYTES$}");
    let key = |item: usize| text(format!("big-{item}"));
    let op = |item: usize, operation: &str, args: Value| json!({"command": "OP", "key": key(item), "operation": operation, "args": args});
    let freed = (n > 0).then(|| op(n, "RELEASE", json!({"token": "t0"})));
    let token = format!("t{n}");
    let note = text(format!("by {token}"));
    let args = json!({"owner": "o", "token": token, "ttl_ms": 3_600_000, "create": true, "note": note});
    let asked = (0..KEYS).map(|item| op(item, "ACQUIRE", args.clone()));
    json!({"commands": freed.into_iter().chain(asked).collect::<Vec<_>>()})
}

/// Writes so much; how much it was.
fn write(cluster: &Cluster, leader: u64) -> usize {
    let mut written = 0;
    for n in 0..KEYS {
        let (batch, mut tries) = (batch(n), 0);
        let answer = eventually("the batch is written", || {
            tries += 1;
            let response = cluster.ask(leader, "BATCH", &batch, SOON).unwrap();
            (response.status == 200).then(|| response.json())
        });
        let answers = answer["result"].as_array().unwrap();
        let done = answers.iter().filter(|answer| answer["result"] == true).count();
        // A repetition, over an election, may find that the first one did it.
        assert!(done == if n == 0 { KEYS } else { 2 } || tries > 1, "batch {n}: {done}, {}", answers[0]);
        written += KEYS * TEXT_BYTES * 2;
        if written >= MISSED_BYTES {
            return written;
        }
    }
    panic!("{KEYS} batches are {written} bytes");
}

/// FR-44: it gets a snapshot, since the log no longer has what it missed; within a minute its state is the others'.
#[test]
fn a_follower_catches_up_by_snapshot() {
    let mut cluster = Cluster::start(Plan::three());
    let leader = cluster.leader();
    let away = cluster.others(leader)[0];
    let args = json!({"owner": "o", "token": "t", "ttl_ms": 3_600_000, "create": true});
    Asker::new(&cluster, 0).insist("before", "ACQUIRE", &args);
    cluster.kill(away);
    let had = disk_bytes(&cluster.seat(away).data);
    let began = Instant::now();
    let written = write(&cluster, leader);
    eprintln!("{} MiB written in {} ms", written >> 20, began.elapsed().as_millis());
    let snapshot = eventually("the leader has a snapshot", || cluster.status(leader)?["snapshot"]["index"].as_u64());
    // With its spare segments the log has more than was written, until what the snapshot covers is purged.
    eventually("the leader's log is purged", || {
        cluster.status(leader)?["log_bytes"].as_u64().filter(|bytes| *bytes < written as u64 + SEGMENT_BYTES)
    });
    let started = Instant::now();
    cluster.restart(away);
    let serving = started.elapsed();
    let last = cluster.status(leader).unwrap()["committed_index"].as_u64().unwrap();
    let until = started + CAUGHT_UP_WITHIN;
    while cluster.status(away).is_none_or(|status| status["applied_index"].as_u64() < Some(last)) {
        assert!(Instant::now() < until, "not caught up within {CAUGHT_UP_WITHIN:?}");
        crate::process::pass(Duration::from_millis(50));
    }
    eprintln!(
        "{} MiB behind (it had {had} bytes): serving after {} ms, caught up after {} ms",
        written >> 20,
        serving.as_millis(),
        started.elapsed().as_millis()
    );
    let installed = cluster.status(away).unwrap()["snapshot"]["index"].as_u64();
    assert!(installed >= Some(snapshot), "it came by snapshot {snapshot}, not by log: {installed:?}");
    assert_eq!(cluster.states_are_equal(), KEYS + 1);
}
