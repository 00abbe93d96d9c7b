//! Time on a real node: deadlines while it runs, while it is stopped, and over restarts. The bounds are those of
//! `docs/semantics.md`: an outage of length d with r left at its start leaves between r - T and r + 1 s.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Fresh, Node, STAMP, eventually, pass};

/// The greatest election timeout by default: at most so much of an outage counts against a holder.
const T: Duration = Duration::from_millis(1_500);
/// At most so much is given on top of an outage: the time since the last tick.
const TICK: Duration = Duration::from_secs(1);
/// What a loaded machine may add between an event and our measuring it, or by a node that stands still, whose time is given
/// back: a stall of 3 s and an fsync of 2 s. Never taken off the side that protects a holder.
const SLACK: Duration = Duration::from_secs(6);

fn acquire(node: &Node, key: &str, ttl: Duration) -> Value {
    let args = json!({"owner": "o", "token": "t", "ttl_ms": ms(ttl), "create": true});
    let granted = node.op(key, "ACQUIRE", &args);
    assert_eq!(granted["result"], true, "{granted}");
    granted
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap()
}

/// What is left of a grant; `None` once it ended.
fn left(node: &Node, key: &str) -> Option<Duration> {
    node.get(key)["ttl_ms"].as_u64().map(Duration::from_millis)
}

/// Asks again and again until the grant has ended, checking on the way that the remaining time only falls and is never
/// below 1 ms; returns when it was first seen ended.
fn watch_the_end(node: &Node, key: &str) -> Instant {
    let mut http = node.http();
    let mut before = u64::MAX;
    let get = json!({"key": key}).to_string();
    let held = json!({"key": key, "operation": "HELD"}).to_string();
    loop {
        let snapshot = http.post("GET", &get).unwrap().json()["result"].take();
        let seen = Instant::now();
        let held = http.post("OP", &held).unwrap().json();
        match snapshot["ttl_ms"].as_u64() {
            Some(left) => {
                assert!((1..=before).contains(&left), "{left} ms left after {before}");
                before = left;
            }
            None => {
                assert_eq!(snapshot["held"], false);
                assert_eq!(held["result"], false, "what was seen expired never comes back");
                return seen;
            }
        }
        pass(Duration::from_millis(5));
    }
}

/// FR-10, FR-16, FR-03: a grant that is not renewed ends at its deadline, for whoever asks.
#[test]
fn a_grant_ends_at_its_deadline() {
    let fresh = Fresh::start();
    let ttl = Duration::from_secs(2);
    let sent = Instant::now();
    acquire(&fresh.node, "k", ttl);
    let answered = Instant::now();
    let ended = watch_the_end(&fresh.node, "k");
    assert!(ended + STAMP > sent + ttl, "not early: {:?}", ended - sent);
    assert!(ended <= answered + ttl + TICK + SLACK, "nor late: {:?}", ended - answered);
}

/// FR-16: many at once, none early, all within the bound.
#[test]
fn fifty_grants_end_within_the_bound() {
    let fresh = Fresh::start();
    let ttl = Duration::from_secs(2);
    let sent = Instant::now();
    for n in 0..50 {
        acquire(&fresh.node, &format!("k{n}"), ttl);
    }
    let answered = Instant::now();
    pass(ttl.saturating_sub(sent.elapsed()).saturating_sub(Duration::from_millis(200)));
    let held = fresh.node.scan().iter().filter(|key| key["held"] == true).count();
    if sent.elapsed() < ttl {
        assert_eq!(held, 50, "none ends early");
    }
    let ended = eventually("all have ended", || {
        let asked = Instant::now();
        fresh.node.scan().iter().all(|key| key["held"] == false).then_some(asked)
    });
    assert!(ended <= answered + ttl + TICK + SLACK, "the last ended after {:?}", ended - answered);
}

/// A stopped process gives the time back: what was left is still left, but for T.
#[test]
fn a_stopped_node_gives_the_time_back() {
    let fresh = Fresh::start();
    let (ttl, stopped) = (Duration::from_secs(7), Duration::from_secs(8));
    let sent = Instant::now();
    acquire(&fresh.node, "k", ttl);
    let answered = Instant::now();
    pass(Duration::from_secs(1));
    let at_most = ttl - answered.elapsed();
    fresh.node.process.signal(Signal::STOP);
    let at_least = ttl - sent.elapsed();
    pass(stopped);
    let resuming = Instant::now();
    fresh.node.process.signal(Signal::CONT);
    let resumed = Instant::now();
    let left = left(&fresh.node, "k").expect("longer stopped than the ttl, and nobody could renew: still held");
    assert!(left + resuming.elapsed() + T >= at_least, "{left:?} left of {at_least:?}: more than T was taken");
    assert!(left <= at_most + TICK + SLACK, "{left:?} left of {at_most:?}: more than was there");
    assert_eq!(fresh.node.op("k", "RENEW", &json!({"token": "t", "ttl_ms": 1}))["result"], true);
    let ended = watch_the_end(&fresh.node, "k");
    assert!(ended <= resumed + at_most + TICK + SLACK, "it ends as if the stop had not been");
}

/// SIGKILL and a pause: the same deadline, the pause given back, never a whole ttl.
#[test]
fn a_restart_keeps_deadlines() {
    let Fresh { node, dir } = Fresh::start();
    let ttl = Duration::from_secs(13);
    let sent = Instant::now();
    let fence = acquire(&node, "k", ttl)["fence"].clone();
    let answered = Instant::now();
    // So late that a new ttl would be longer than what may be left; and down for longer than what is.
    pass(Duration::from_secs(8));
    let at_most = ttl - answered.elapsed();
    node.kill();
    let at_least = ttl - sent.elapsed();
    pass(Duration::from_secs(6));
    let starting = Instant::now();
    let node = Node::start(&dir.path().join("data"));
    let left = left(&node, "k").expect("nobody could renew while the node was down");
    assert!(left <= at_most + TICK + SLACK, "{left:?} left of {at_most:?}: a restart is no new ttl");
    let given_back = left + starting.elapsed() + T >= at_least;
    assert!(given_back, "{left:?} left of {at_least:?}: the pause was not given back");
    assert_eq!(node.get("k")["fence"], fence);
    let again = node.op("k", "ACQUIRE", &json!({"owner": "o", "token": "t2", "ttl_ms": 1000}));
    assert_eq!((&again["result"], &again["reason"]), (&json!(false), &json!("held")));
    let started = Instant::now();
    let ended = watch_the_end(&node, "k");
    assert!(ended <= started + left + TICK + SLACK, "it ends in its own time");
}

/// FR-17: what had ended before an outage is free right after it.
#[test]
fn what_ended_before_an_outage_is_free_after_it() {
    let Fresh { node, dir } = Fresh::start();
    acquire(&node, "k", Duration::from_millis(100));
    node.await_free("k");
    node.kill();
    let node = Node::start(&dir.path().join("data"));
    let next = node.op("k", "ACQUIRE", &json!({"owner": "o", "token": "t2", "ttl_ms": 1000}));
    assert_eq!(next["result"], true, "{next}");
}

/// An idle node writes nothing: no timer is outstanding, no tick is due.
#[test]
fn an_idle_node_writes_nothing() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    node.call("CREATE", &json!({"key": "k", "type": "lease"}));
    // The entry that raises the feature level may come after that.
    let level = || node.http().send("GET", "/v1/status", &[], "").unwrap().json()["feature_level"].take();
    eventually("the feature level is up", || (level() == tenure_cluster::FEATURE_LEVEL).then_some(()));
    let position = || node.post("GET", &json!({"key": "k"})).headers["tenure-position"].clone();
    let before = position();
    pass(Duration::from_millis(2_500));
    assert_eq!(position(), before);
}
