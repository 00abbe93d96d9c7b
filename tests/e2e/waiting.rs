//! Waiting in line on one node: order, what ends a wait, clients and a node that go away.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Fresh, Node, SOON, STAMP, eventually, pass};
use crate::line::{Waiting, request};
use crate::sse::Stream;

/// How long a place is kept for whoever went away.
const KEPT: Duration = Duration::from_secs(5);

/// A live waiter behind dead ones holds within it, on the cluster clock. FR-48 says a second, which a loaded machine may take
/// by itself; that nobody waited for a dead one shows as long as this is less than what its place is kept for.
const NOT_KEPT_MS: u64 = 4_000;

/// The key is held by `holder` from now on; its fence.
fn hold(node: &Node, key: &str) -> u64 {
    let args = json!({"owner": "holder", "token": "holder", "ttl_ms": 600_000, "create": true});
    let answer = node.op(key, "ACQUIRE", &args);
    assert_eq!(answer["result"], true, "{answer}");
    answer["fence"].as_u64().unwrap()
}

fn release(node: &Node, key: &str, token: &str) {
    let answer = node.op(key, "RELEASE", &json!({"token": token}));
    assert_eq!(answer["result"], true, "{token}: {answer}");
}

fn waiters(node: &Node, key: &str) -> u64 {
    node.get(key)["waiters"].as_u64().unwrap()
}

/// Awaits that so many stand in line.
fn in_line(node: &Node, key: &str, count: u64) {
    eventually(&format!("{count} wait for {key}"), || (waiters(node, key) == count).then_some(()));
}

/// Awaits that so many requests wait on the node.
pub fn requests_wait(node: &Node, count: u64) {
    let line = format!("tenure_waiting_requests {count}");
    let waiting = || {
        let page = node.http().send("GET", "/metrics", &[], "").unwrap().body;
        page.lines().any(|found| found == line).then_some(())
    };
    eventually(&line, waiting);
}

/// Puts one more in line, behind those that stand there.
fn join(node: &Node, key: &str, token: &str, change: &Value) -> Waiting {
    let waiting = Waiting::ask_with(node.addr, key, token, change, "");
    let stands = || (node.op(key, "HELD", &json!({"token": token}))["reason"] == "queued").then_some(());
    eventually(&format!("{token} stands in line"), stands);
    waiting
}

#[test]
fn twenty_are_served_in_order() {
    let Fresh { node, dir: _dir } = Fresh::start();
    let mut fence = hold(&node, "k");
    let mut line: Vec<_> = (0..20).map(|n| join(&node, "k", &format!("t{n}"), &json!({}))).collect();
    let mut before = "holder".to_owned();
    for (n, waiting) in line.iter_mut().enumerate() {
        release(&node, "k", &before);
        let granted = waiting.granted();
        // Nobody was granted between the two.
        assert_eq!(granted, fence + 1, "waiter {n}");
        assert_eq!(waiters(&node, "k"), 19 - n as u64);
        (fence, before) = (granted, waiting.token.clone());
    }
}

/// The holder gives the key back, and the live one has it before a dead one's place would have gone; its fence.
fn holds_soon(node: &Node, fence: u64, live: &mut Waiting) -> u64 {
    let mut watch = Stream::open(node.addr, "?key=k&list=false", None);
    release(node, "k", "holder");
    let granted = live.granted();
    let released_ms = watch.clock_ms("released", fence);
    let took_ms = watch.clock_ms("granted", granted) - released_ms;
    assert!(took_ms < NOT_KEPT_MS, "{took_ms} ms");
    granted
}

/// FR-48.
#[test]
fn dead_waiters_hold_nobody_up_and_leave_nothing_behind() {
    let Fresh { node, dir: _dir } = Fresh::start();
    let held = hold(&node, "k");
    let mut line: Vec<_> = (0..20).map(|n| (n, join(&node, "k", &format!("t{n}"), &wait_of(n)))).collect();
    // Each second one dies, each fourth waits for too short; the live ones stand behind one of both.
    let (dead, rest): (Vec<_>, Vec<_>) = line.drain(..).partition(|(n, _)| n % 2 == 0);
    let (timed_out, mut live): (Vec<_>, Vec<_>) = rest.into_iter().partition(|(n, _)| n % 4 == 1);
    for (_, mut waiting) in timed_out {
        assert_eq!(waiting.refused(), "wait_timeout");
    }
    drop(dead);
    requests_wait(&node, live.len() as u64);
    let mut fence = holds_soon(&node, held, &mut live[0].1);
    for at in 1..live.len() {
        let before = live[at - 1].1.token.clone();
        release(&node, "k", &before);
        let granted = live[at].1.granted();
        assert_eq!(granted, fence + 1);
        fence = granted;
    }
    in_line(&node, "k", 0);
    let page = node.http().send("GET", "/metrics", &[], "").unwrap().body;
    for line in [
        "tenure_waiters 0",
        "tenure_waiting_requests 0",
        "tenure_waits_total{outcome=\"granted\"} 5",
        "tenure_waits_total{outcome=\"wait_timeout\"} 5",
        "tenure_waits_total{outcome=\"closed\"} 10",
        "tenure_waited_seconds_count 20",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} in\n{page}");
    }
}

fn wait_of(n: u64) -> Value {
    // Not over before its place was seen, also on a loaded machine.
    if n % 4 == 1 { json!({"wait_ms": 5_000}) } else { json!({}) }
}

#[test]
fn a_client_that_closes_is_passed_over() {
    let Fresh { node, dir: _dir } = Fresh::start();
    let fence = hold(&node, "k");
    let first = join(&node, "k", "first", &json!({}));
    let mut pipelines = join(&node, "k", "pipelines", &json!({}));
    let mut live = join(&node, "k", "live", &json!({}));
    pipelines.send_bytes(request("k", "next", &json!({"wait_ms": 0}), "").as_bytes());
    drop((first, pipelines));
    requests_wait(&node, 1);
    holds_soon(&node, fence, &mut live);
    let held = node.op("k", "HELD", &json!({"token": "live"}));
    assert_eq!(held["result"], true, "{held}");
}

#[test]
fn a_newer_call_takes_the_place_over() {
    let Fresh { node, dir: _dir } = Fresh::start();
    hold(&node, "k");
    let mut old = join(&node, "k", "a", &json!({}));
    let mut behind = join(&node, "k", "b", &json!({}));
    let mut new = Waiting::ask(node.addr, "k", "a");
    assert_eq!(old.refused(), "superseded");
    assert_eq!(waiters(&node, "k"), 2);
    // The end of the old connection does not touch the new one.
    drop(old);
    release(&node, "k", "holder");
    let fence = new.granted();
    release(&node, "k", "a");
    assert_eq!(behind.granted(), fence + 1);
}

#[test]
fn a_wait_ends_in_its_time() {
    let Fresh { node, dir: _dir } = Fresh::start();
    let fence = hold(&node, "k");
    let started = Instant::now();
    let mut waiting = Waiting::ask_with(node.addr, "k", "t", &json!({"wait_ms": 400}), "");
    let answer = waiting.answer();
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(399) && took < SOON, "{took:?}");
    assert_eq!(
        (&answer["result"], &answer["reason"], &answer["fence"], &answer["owner"]),
        (&json!(false), &json!("wait_timeout"), &json!(fence), &json!("holder"))
    );
    // Whoever does not listen for so long is answered at the end of the time that it says, not at that of its wait.
    let started = Instant::now();
    let mut waiting = Waiting::ask_with(node.addr, "k", "t", &json!({}), "Tenure-Timeout-Ms: 1500\r\n");
    let response = waiting.response();
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    let answer = response.json();
    // A node that stood still through that time does not know how the wait ended, and says so.
    let told = (response.status, answer["reason"].as_str(), answer["code"].as_str());
    assert!(matches!(told, (200, Some("wait_timeout"), _) | (504, _, Some("outcome_unknown"))), "{response:?}");
    in_line(&node, "k", 0);
}

#[test]
fn the_line_stands_over_a_restart() {
    let mut fresh = Fresh::start();
    hold(&fresh.node, "k");
    let line: Vec<_> = ["a", "b", "c"].map(|token| join(&fresh.node, "k", token, &json!({}))).into();
    fresh = fresh.restart();
    drop(line);
    let node = &fresh.node;
    assert_eq!(waiters(node, "k"), 3);
    // The last comes back first, and keeps its place.
    let mut back = ["c", "a", "b"].map(|token| Waiting::ask(node.addr, "k", token));
    requests_wait(node, 3);
    // A place that nobody came back to is gone by then.
    pass(KEPT + Duration::from_secs(1));
    assert_eq!(waiters(node, "k"), 3);
    let newcomer = join(node, "k", "d", &json!({}));
    release(node, "k", "holder");
    let a = back[1].granted();
    release(node, "k", "a");
    assert_eq!(back[2].granted(), a + 1);
    release(node, "k", "b");
    assert_eq!(back[0].granted(), a + 2);
    drop(newcomer);
}

#[test]
fn what_operators_do_reaches_the_line() {
    let Fresh { node, dir: _dir } = Fresh::start();
    let fence = hold(&node, "k");
    let mut first = join(&node, "k", "first", &json!({}));
    let mut second = join(&node, "k", "second", &json!({}));
    let broken = node.op("k", "BREAK", &json!({"reason": "stuck", "fence": fence}));
    assert_eq!(broken["result"], true, "{broken}");
    assert_eq!(first.granted(), fence + 1);
    let mut third = join(&node, "k", "third", &json!({}));
    node.call("DEL", &json!({"keys": ["k"]}));
    assert_eq!([second.refused(), third.refused()], ["deleted", "deleted"]);

    hold(&node, "m");
    let mut waiting = join(&node, "m", "waits", &json!({}));
    assert_eq!(node.call("EXPIRE", &json!({"key": "m", "ttl_ms": 300}))["result"], true);
    assert_eq!(waiting.refused(), "key_expired");
}

#[test]
fn a_place_is_seen_and_given_up() {
    let Fresh { node, dir: _dir } = Fresh::start();
    let fence = hold(&node, "k");
    let mut line: Vec<_> = ["a", "b", "c"].map(|token| join(&node, "k", token, &json!({}))).into();
    let held = node.op("k", "HELD", &json!({"token": "b"}));
    assert_eq!(
        (&held["result"], &held["reason"], &held["ahead"], &held["waiters"]),
        (&json!(false), &json!("queued"), &json!(1), &json!(3)),
    );
    // Not waiting, it is told its place and keeps it.
    let asked = node.op("k", "ACQUIRE", &json!({"owner": "c", "token": "c", "ttl_ms": 1000}));
    assert_eq!(
        (&asked["reason"], &asked["ahead"], &asked["waiters"], &asked["fence"]),
        (&json!("queued"), &json!(2), &json!(3), &json!(fence))
    );
    let released = node.op("k", "RELEASE", &json!({"token": "b"}));
    assert_eq!((&released["result"], &released["reason"]), (&json!(false), &json!("cancelled_wait")));
    assert_eq!(line[1].refused(), "cancelled_wait");
    release(&node, "k", "holder");
    let a = line[0].granted();
    release(&node, "k", "a");
    assert_eq!(line[2].granted(), a + 1);
}

/// Who is granted by waiting and is gone before the answer: the grant is given on.
#[test]
fn a_client_killed_while_it_is_granted_holds_nobody_up() {
    let Fresh { node, dir: _dir } = Fresh::start();
    let mut given_on = 0;
    for round in 0..20 {
        let key = format!("k{round}");
        hold(&node, &key);
        let first = join(&node, &key, "first", &json!({}));
        let mut second = join(&node, &key, "second", &json!({}));
        let (mut http, body) = (node.http(), json!({"key": key, "operation": "RELEASE", "args": {"token": "holder"}}));
        let closes = std::thread::spawn(move || drop(first));
        http.post("OP", &body.to_string()).unwrap();
        closes.join().unwrap();
        // Either the first had gone, or its grant could not be handed over; or its answer was under way when it closed:
        // then the lease is its own until it runs out, which nobody can tell from a client that lives.
        let whose = eventually("somebody holds it", || {
            let view = node.get(&key);
            view["owner"].as_str().map(str::to_owned)
        });
        if whose == "second" {
            second.granted();
            given_on += 1;
        }
    }
    assert!(given_on > 0, "whoever is gone holds it each time");
}

#[test]
fn a_node_that_leaves_sends_its_waiters_away() {
    let Fresh { node, dir: _dir } = Fresh::start();
    hold(&node, "k");
    let mut waiting = join(&node, "k", "t", &json!({}));
    let started = Instant::now();
    let Node { mut process, .. } = node;
    process.signal(Signal::TERM);
    let response = waiting.response();
    assert_eq!((response.status, &response.json()["code"]), (504, &json!("outcome_unknown")), "{response:?}");
    let detail = response.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("same token"), "{detail}");
    assert_eq!(response.headers.get("connection").map(String::as_str), Some("close"));
    assert!(process.end().success());
    assert!(started.elapsed() < SOON / 3, "{:?}", started.elapsed());
}

/// A window is waited for, but not by whoever has its work done in it.
#[test]
fn a_window_is_waited_for() {
    // Not over before all have come, also on a loaded machine.
    const MIN_HOLD: Duration = Duration::from_secs(5);
    const MIN_HOLD_MS: u64 = MIN_HOLD.as_secs() * 1_000;
    let Fresh { node, dir: _dir } = Fresh::start();
    let args = json!({"owner": "o", "token": "once", "ttl_ms": 60_000, "create": true, "min_hold_ms": MIN_HOLD_MS});
    let started = Instant::now();
    let fence = node.op("k", "ACQUIRE", &args)["fence"].as_u64().unwrap();
    let mut periodic = join(&node, "k", "periodic", &json!({"min_hold_ms": MIN_HOLD_MS}));
    let mut patient = join(&node, "k", "patient", &json!({}));
    release(&node, "k", "once");
    let answer = periodic.answer();
    assert_eq!((&answer["result"], &answer["reason"]), (&json!(false), &json!("min_hold")));
    assert!(answer["retry_after_ms"].as_u64().is_some_and(|ms| ms > 0 && ms <= MIN_HOLD_MS), "{answer}");
    assert_eq!(patient.granted(), fence + 1);
    assert!(started.elapsed() + STAMP > MIN_HOLD, "{:?}", started.elapsed());
}
