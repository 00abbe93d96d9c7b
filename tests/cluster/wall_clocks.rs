//! No wall clock decides anything: neither a node's, however wrong, nor a client's.

use std::time::{Duration, Instant, SystemTime};

use serde_json::json;
use tempfile::TempDir;

use crate::harness::{Cluster, Plan, ms, rounds};
use crate::history::History;
use crate::load::Load;
use crate::process::{STAMP, eventually, pass, tenure};
use crate::wall_clock::WallClock;

const HOUR: i64 = 3_600;
const TICK: Duration = Duration::from_secs(1);
/// What a loaded machine may add: a heartbeat late, and the time without one is given back.
const SLACK: Duration = Duration::from_secs(1);

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

/// When the leader's wall clock says that the grant of a fresh key was.
fn acquired_at(cluster: &Cluster, key: &str) -> SystemTime {
    let leader = cluster.leader();
    cluster.op(leader, key, "ACQUIRE", &json!({"owner": "o", "token": "t", "create": true}));
    let seen = cluster.get(leader, key);
    humantime::parse_rfc3339(seen["acquired_at"].as_str().unwrap()).unwrap()
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
        for round in 0..rounds(2) {
            running.await_calls(200);
            let leader = cluster.leader();
            let before = acquired_at(cluster, &format!("before-{round}"));
            cluster.kill(leader);
            let next = cluster.leader_but(leader);
            let after = acquired_at(cluster, &format!("after-{round}"));
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

fn jumps(cluster: &Cluster, clock: &WallClock) {
    let leader = cluster.leader();
    let ttl = Duration::from_secs(3);
    let args = |token: &str| json!({"owner": "o", "token": token, "ttl_ms": ms(ttl), "create": true});
    assert_eq!(cluster.op(leader, "renewed", "ACQUIRE", &args("t"))["result"], true);
    let mut shifted = HOUR * (i64::try_from(leader).unwrap() - 2);
    for shift in [HOUR, -HOUR, 0] {
        let key = format!("left{shift}");
        let sent = Instant::now();
        assert_eq!(cluster.op(leader, &key, "ACQUIRE", &args("t"))["result"], true);
        let answered = Instant::now();
        let before = acquired_at(cluster, &format!("before{shift}"));
        clock.shift(&format!("node-{leader}"), shift);
        let after = acquired_at(cluster, &format!("after{shift}"));
        assert_eq!(hours(before, after), (shift - shifted) / HOUR, "the clock did not jump");
        shifted = shift;
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
