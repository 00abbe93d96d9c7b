//! No wall clock decides anything: neither a node's, however wrong, nor a client's.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use serde_json::json;
use tempfile::TempDir;

use crate::asker::Asker;
use crate::harness::{Cluster, Plan, ms, rounds};
use crate::history::{History, now_ns};
use crate::load::Load;
use crate::process::{STAMP, eventually, pass, tenure};
use crate::wall_clock::WallClock;

const HOUR: i64 = 3_600;
const TICK: Duration = Duration::from_secs(1);
/// What a loaded machine may add: heartbeats late, or a node that stands still, and that time is given back.
const SLACK: Duration = Duration::from_secs(3);

/// Nodes 1, 2, 3 an hour behind, right, and an hour ahead, or the first of them; `None`: skipped, and why is said. The
/// files outlive the cluster if they are bound first.
fn shifted(nodes: u64) -> Option<(TempDir, WallClock, Cluster)> {
    let dir = TempDir::new().unwrap();
    let clock = match WallClock::build(dir.path()) {
        Ok(clock) => clock,
        Err(why) => {
            eprintln!("skipped: {why}");
            return None;
        }
    };
    let cluster = Cluster::start_seated(Plan::of(nodes), |seat| {
        let who = format!("node-{}", seat.id);
        clock.shift(&who, HOUR * (i64::try_from(seat.id).unwrap() - 2));
        seat.environment = clock.environment(&who);
    });
    Some((dir, clock, cluster))
}

/// Who leads, and when its wall clock says that the grant of a fresh key was.
fn acquired_at(cluster: &Cluster) -> (u64, SystemTime) {
    loop {
        let (leader, key) = (cluster.leader(), format!("at-{}", now_ns()));
        Asker::new(cluster, 0).insist(&key, "ACQUIRE", &json!({"owner": "o", "token": "t", "create": true}));
        let seen = cluster.get(leader, &key);
        // A stall may make an election of its own: then it may be another's word.
        if cluster.leader() == leader {
            return (leader, humantime::parse_rfc3339(seen["acquired_at"].as_str().unwrap()).unwrap());
        }
    }
}

/// From one to the other, rounded.
fn hours(from: SystemTime, to: SystemTime) -> i64 {
    let seconds =
        |time: SystemTime| i64::try_from(time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()).unwrap();
    (seconds(to) - seconds(from) + HOUR / 2).div_euclid(HOUR)
}

/// FR-14: a load under leaders whose clocks are hours apart; all states are equal, and nobody's time jumped. That the
/// shift is there shows in `acquired_at`, which is for people.
#[test]
fn nodes_hours_apart_are_of_one_state() {
    let Some((_dir, _clock, mut cluster)) = shifted(3) else { return };
    let history = History::default();
    let load = Load { holders: 6, readers: 2, ..Load::default() };
    load.run(&mut cluster, &history, |cluster, running| {
        for _ in 0..rounds(2) {
            running.await_calls(200);
            let (leader, before) = acquired_at(cluster);
            cluster.kill(leader);
            let (next, after) = acquired_at(cluster);
            let apart = i64::try_from(next).unwrap() - i64::try_from(leader).unwrap();
            assert_eq!(hours(before, after), apart, "the clocks are not shifted");
            cluster.restart(leader);
            cluster.await_ready(leader);
        }
    });
    history.judge("wall-clocks");
    cluster.states_are_equal();
}

/// FR-09: the leader's wall clock jumps an hour ahead, two back and one ahead. A lease that is renewed is never lost;
/// one that is not ends at its ttl.
#[test]
fn a_jump_of_the_wall_clock_ends_nothing() {
    let Some((_dir, clock, cluster)) = shifted(3) else { return };
    jumps(&cluster, &clock);
}

/// The same on the default single node.
#[test]
fn a_jump_of_a_single_nodes_wall_clock_ends_nothing() {
    let Some((_dir, clock, cluster)) = shifted(1) else { return };
    jumps(&cluster, &clock);
}

/// The leader's wall clock jumps, each of which stands where `hours_off` says; who leads. Where it is another than before
/// (a stall may make an election of its own), that one's jumps too.
fn jump(cluster: &Cluster, clock: &WallClock, hours_off: &mut BTreeMap<u64, i64>, to: i64) -> u64 {
    loop {
        let (leader, before) = acquired_at(cluster);
        clock.shift(&format!("node-{leader}"), HOUR * to);
        let from = hours_off.insert(leader, to).unwrap();
        let (next, after) = acquired_at(cluster);
        if next == leader {
            assert_eq!(hours(before, after), to - from, "the clock did not jump");
            return leader;
        }
    }
}

fn jumps(cluster: &Cluster, clock: &WallClock) {
    let mut hours_off = cluster.ids().into_iter().map(|id| (id, i64::try_from(id).unwrap() - 2)).collect();
    // Longer than the machine may keep us from the next renewal.
    let ttl = Duration::from_secs(6);
    let args = |token: &str| json!({"owner": "o", "token": token, "ttl_ms": ms(ttl), "create": true});
    let acquire = |key: &str| {
        let answer = Asker::new(cluster, 0).insist(key, "ACQUIRE", &args("t"));
        assert!(answer["result"] == true || answer["yours"] == true, "{answer}");
    };
    acquire("renewed");
    for shift in [1, -1, 0] {
        let key = format!("left{shift}");
        let sent = Instant::now();
        acquire(&key);
        let answered = Instant::now();
        let leader = jump(cluster, clock, &mut hours_off, shift);
        let ended = eventually("the lease that nobody renews ends", || {
            let renewed = cluster.op(leader, "renewed", "RENEW", &json!({"token": "t", "ttl_ms": ms(ttl)}));
            assert_eq!(renewed["result"], true, "lost by a jump to {shift}: {renewed}");
            let left = cluster.get(leader, &key);
            (left["held"] == false).then(Instant::now)
        });
        assert!(ended + STAMP > sent + ttl, "early, by a jump to {shift}: after {:?}", ended - sent);
        assert!(ended <= answered + ttl + TICK + SLACK, "late, by a jump to {shift}: after {:?}", ended - answered);
        pass(Duration::from_millis(10));
    }
}

/// FR-15: a client whose clock is three minutes ahead, or behind, is refused a held lease: its request has no time in it.
#[test]
fn a_clients_wall_clock_is_of_no_account() {
    let Some((_dir, clock, cluster)) = shifted(3) else { return };
    cluster.op(1, "k", "ACQUIRE", &json!({"owner": "o", "token": "t", "ttl_ms": 120_000, "create": true}));
    for shift in [180, -180] {
        clock.shift("client", shift);
        let body = r#"{"key":"k","operation":"ACQUIRE","args":{"owner":"p","token":"u","ttl_ms":1000}}"#;
        let mut command = tenure();
        command.arg("--uri").arg(cluster.uri()).args(["--json", "OP", body]).envs(clock.environment("client"));
        let said = command.output().unwrap();
        let answer: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap_or_else(|_| panic!("{said:?}"));
        assert_eq!((&answer["result"], &answer["reason"]), (&json!(false), &json!("held")), "{answer}");
    }
}
