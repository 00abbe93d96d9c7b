//! A pool as machine ids, over HTTP on one node: whose an id is, for how long it is kept from others, and what whoever
//! lost it is told.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Fresh, Node, STAMP, eventually};
use crate::line::Waiting;
use crate::pools::{create, given, refused};

/// At most so late does an end in time take effect.
const TICK: Duration = Duration::from_secs(1);
/// What a loaded machine may add to our measuring. Never taken off the side that protects a holder.
const SLACK: Duration = Duration::from_secs(3);

fn acquire(node: &Node, identity: &str, token: &str, ttl_ms: u64) -> Value {
    node.op("ids", "ACQUIRE", &json!({"identity": identity, "token": token, "ttl_ms": ttl_ms}))
}

/// RENEW's word.
fn renew(node: &Node, token: &str) -> (Value, Value) {
    let mut answer = node.op("ids", "RENEW", &json!({"token": token, "ttl_ms": 60_000}));
    (answer["result"]["status"].take(), answer["reason"].take())
}

fn lost(reason: &str) -> (Value, Value) {
    (json!("lost"), json!(reason))
}

fn renewed() -> (Value, Value) {
    (json!("renewed"), Value::Null)
}

fn await_end(node: &Node, token: &str) {
    let held = || node.op("ids", "HELD", &json!({"token": token}))["result"] == true;
    eventually("the grant ends", || (!held()).then_some(()));
}

/// FR-63: an id whose holder fell silent is kept back, one that was given back is not, and both come after those never
/// used.
#[test]
fn a_silent_holders_id_is_kept_back() {
    const TTL: Duration = Duration::from_millis(300);
    // Not over before all have asked, also on a loaded machine.
    const QUARANTINE_MS: u64 = 12_000;
    const QUARANTINE: Duration = Duration::from_millis(QUARANTINE_MS);
    let Fresh { node, dir: _dir } = Fresh::start();
    create(&node, "ids", &json!({"size": 3, "quarantine_ms": QUARANTINE_MS, "ttl_ms_min": 1}));
    let sent = Instant::now();
    assert_eq!(given(&acquire(&node, "silent", "silent", 300)).0, 0);
    let answered = Instant::now();
    assert_eq!(given(&acquire(&node, "leaves", "leaves", 60_000)).0, 1);
    assert_eq!(node.op("ids", "RELEASE", &json!({"token": "leaves"}))["result"], true);
    assert_eq!(given(&acquire(&node, "a", "a", 60_000)).0, 2, "never used goes before given back");
    assert_eq!(given(&acquire(&node, "b", "b", 60_000)).0, 1, "given back is free at once");
    let told = acquire(&node, "c", "c", 60_000);
    let left = Duration::from_millis(refused(&told, "exhausted"));
    assert!(left <= TTL + QUARANTINE && left + sent.elapsed() + STAMP >= TTL + QUARANTINE, "{told}");
    let waiting = json!({"identity": "c", "token": "c", "ttl_ms": 60_000, "wait_ms": 30_000});
    assert_eq!(given(&node.op("ids", "ACQUIRE", &waiting)).0, 0);
    let taken = Instant::now();
    assert!(taken + STAMP > sent + TTL + QUARANTINE, "in the quarantine: after {:?}", taken - sent);
    assert!(taken <= answered + TTL + QUARANTINE + TICK + SLACK, "late: after {:?}", taken - sent);
    assert_eq!((renew(&node, "silent"), renew(&node, "leaves")), (lost("expired"), lost("not_held")));
}

/// FR-64: copies with one identity. The last to come has the id, the one before is told, and goes; who had to go does not
/// come back; and when they begin to take turns the newcomer is refused.
#[test]
fn one_identity_has_one_user() {
    let Fresh { node, dir: _dir } = Fresh::start();
    create(&node, "ids", &json!({"first": 100}));
    let (id, first) = given(&acquire(&node, "pod", "t1", 60_000));
    let answer = acquire(&node, "pod", "t2", 60_000);
    let (same, second) = given(&answer);
    assert!(same == id && second > first, "{answer}");
    assert_eq!((&answer["took_over"], &answer["prior_fence"]), (&json!(true), &json!(first)), "{answer}");
    assert!(answer["prior_ttl_ms"].as_u64().is_some_and(|ms| (1..=60_000).contains(&ms)), "{answer}");

    assert_eq!(renew(&node, "t1"), lost("taken_over"));
    refused(&acquire(&node, "pod", "t1", 60_000), "taken_over");
    let released = node.op("ids", "RELEASE", &json!({"token": "t1"}));
    assert_eq!((&released["result"], &released["reason"]), (&json!(false), &json!("taken_over")));
    for (fence, live) in [(first, false), (second, true)] {
        assert_eq!(node.op("ids", "CHECK", &json!({"fence": fence}))["result"], live, "fence {fence}");
    }
    assert_eq!(node.op("ids", "HELD", &json!({"token": "t1"}))["result"], false);
    let held = node.op("ids", "HELD", &json!({"token": "t2"}));
    assert_eq!((&held["result"], &held["id"], &held["fence"]), (&json!(true), &json!(id), &json!(second)), "{held}");

    for token in ["t3", "t4"] {
        assert_eq!(given(&acquire(&node, "pod", token, 60_000)).0, id);
    }
    let retry_after_ms = refused(&acquire(&node, "pod", "t5", 60_000), "identity_conflict");
    assert!((1..=60_000).contains(&retry_after_ms), "{retry_after_ms}");
    assert_eq!((renew(&node, "t4"), renew(&node, "t1")), (renewed(), lost("taken_over")));
}

/// FR-64, where copies must not push each other out; and an id that somebody else seems to use.
#[test]
fn a_second_user_of_an_identity_may_be_refused() {
    let Fresh { node, dir: _dir } = Fresh::start();
    create(&node, "ids", &json!({"on_conflict": "reject", "quarantine_ms": 600_000}));
    let had = given(&acquire(&node, "pod", "t1", 60_000));
    let retry_after_ms = refused(&acquire(&node, "pod", "t2", 60_000), "identity_in_use");
    assert!((1..=60_000).contains(&retry_after_ms), "{retry_after_ms}");
    let again = acquire(&node, "pod", "t1", 60_000);
    assert_eq!((given(&again), &again["yours"]), (had, &json!(true)));

    let avoid = |token: &str| {
        let args = json!({"identity": "pod", "token": token, "ttl_ms": 60_000, "avoid": had.0});
        node.op("ids", "ACQUIRE", &args)
    };
    refused(&avoid("t2"), "identity_in_use");
    let other = given(&avoid("t1"));
    assert!(other.0 != had.0 && other.1 > had.1, "{other:?}");
    assert_eq!(node.get("ids")["slots"], json!({"held": 1, "quarantined": 1, "free": 510}));
    let now = node.op("ids", "RENEW", &json!({"token": "t1"}));
    assert_eq!(given(&now), other, "{now}");
}

/// FR-65: a client that takes less than 30 s for lost is never given less; and an end stays one, though nobody came.
#[test]
fn a_short_ttl_is_raised_and_an_end_stays() {
    let Fresh { node, dir: _dir } = Fresh::start();
    create(&node, "ids", &json!({}));
    let answer = acquire(&node, "pod", "t", 5_000);
    assert_eq!((&answer["result"]["ttl_ms"], &answer["ttl_raised"]), (&json!(30_000), &json!(true)), "{answer}");
    let answer = node.op("ids", "RENEW", &json!({"token": "t", "ttl_ms": 5_000}));
    assert_eq!((&answer["result"]["ttl_ms"], &answer["ttl_raised"]), (&json!(30_000), &json!(true)), "{answer}");
    let answer = node.op("ids", "RENEW", &json!({"token": "t", "ttl_ms": 30_000}));
    assert_eq!((&answer["result"]["status"], &answer["ttl_raised"]), (&json!("renewed"), &Value::Null), "{answer}");
    for ttl_ms in [0, -1] {
        let nothing = node.op("ids", "RENEW", &json!({"token": "t", "ttl_ms": ttl_ms}));
        assert_eq!((&nothing["result"], &nothing["reason"]), (&Value::Null, &json!("ttl_not_positive")));
    }
    let too_long =
        json!({"key": "ids", "operation": "ACQUIRE", "args": {"identity": "p", "token": "p", "ttl_ms": 86_400_001}});
    let problem = node.post("OP", &too_long);
    assert_eq!((problem.status, &problem.json()["field"]), (400, &json!("args.ttl_ms")), "{problem:?}");

    node.call("DEL", &json!({"keys": ["ids"]}));
    create(&node, "ids", &json!({"ttl_ms_min": 1}));
    let had = given(&acquire(&node, "pod", "t", 200));
    await_end(&node, "t");
    assert_eq!(renew(&node, "t"), lost("expired"));
    let now = given(&acquire(&node, "pod", "u", 60_000));
    assert!(now.0 == had.0 && now.1 > had.1, "its own again, as a new grant: {had:?}, {now:?}");
}

/// Requirement 8: one that asks in a loop is slowed down, the others are not.
#[test]
fn a_hot_loop_is_slowed_down() {
    // Twenty at once are let through, and a few more while they come.
    const TRIES: usize = 60;
    let Fresh { node, dir: _dir } = Fresh::start();
    create(&node, "ids", &json!({}));
    let ask = json!({"identity": "hot", "owner": null, "create": null, "wait_ms": null});
    let mut hot: Vec<Waiting> = (0..TRIES).map(|_| Waiting::ask_with(node.addr, "ids", "t", &ask, "")).collect();
    let answers: Vec<_> = hot.iter_mut().map(Waiting::response).collect();
    let (served, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.status == 200);
    assert!(served.len() >= 20 && !refused.is_empty(), "{} served", served.len());
    for answer in refused {
        assert_eq!((answer.status, &answer.json()["code"]), (429, &json!("rate_limited")), "{answer:?}");
    }
    assert_eq!(given(&acquire(&node, "calm", "calm", 60_000)).0, 1);
    assert_eq!(renew(&node, "t"), renewed(), "who holds is heard");
}

/// The wall clock that a holder told, far ahead of ours.
const TOLD_UNIX_MS: u64 = 4_000_000_000_000;

/// A pool of four: 10 taken over, 11 expired, 12 broken, 13 given back, by holders of which one told its clock. As GET and
/// HOLDERS show it.
pub fn furnish(node: &Node) -> Value {
    create(node, "ids", &json!({"size": 4, "first": 10, "quarantine_ms": 600_000, "ttl_ms_min": 1}));
    acquire(node, "a", "a1", 600_000);
    assert_eq!(given(&acquire(node, "a", "a2", 600_000)).0, 10);
    assert_eq!(given(&acquire(node, "b", "b", 1)).0, 11);
    assert_eq!(given(&acquire(node, "c", "c", 600_000)).0, 12);
    let broken = node.op("ids", "BREAK", &json!({"id": 12, "reason": "host 7 is gone"}));
    assert_eq!(broken["result"], true, "{broken}");
    let args = json!({"identity": "d", "token": "d", "ttl_ms": 600_000, "unix_ms": TOLD_UNIX_MS});
    assert_eq!(given(&node.op("ids", "ACQUIRE", &args)).0, 13);
    assert_eq!(node.op("ids", "RELEASE", &json!({"token": "d"}))["result"], true);
    await_end(node, "b");
    shown(node)
}

/// GET and HOLDERS, without what passes by itself.
fn shown(node: &Node) -> Value {
    let holders = node.op("ids", "HOLDERS", &json!({"all": true}))["result"]["holders"].take();
    let mut shown = json!({"pool": node.get("ids"), "holders": holders});
    shown["pool"]["acquirable_in_ms"].take();
    for slot in shown["holders"].as_array_mut().unwrap() {
        for passing in ["ttl_ms", "held_for_ms", "free_in_ms"] {
            slot[passing].take();
        }
        if slot["last"].is_object() {
            slot["last"]["ended_ms_ago"].take();
        }
    }
    shown
}

/// It is what it was, for those who look and for those who hold.
pub fn stands(node: &Node, before: &Value) {
    assert_eq!(shown(node), *before);
    assert_eq!((renew(node, "a1"), renew(node, "a2")), (lost("taken_over"), renewed()));
    assert_eq!((renew(node, "b"), renew(node, "c")), (lost("expired"), lost("broken")));
    let next = acquire(node, "e", "e", 600_000);
    let (floor, told) = (next["result"]["floor_unix_ms"].as_u64(), TOLD_UNIX_MS..TOLD_UNIX_MS + 60_000);
    assert_eq!(given(&next).0, 13, "the one that was given back is free: {next}");
    assert!(floor.is_some_and(|ms| told.contains(&ms)), "where its holder's clock was: {next}");
    let retry_after_ms = refused(&acquire(node, "c", "c2", 600_000), "exhausted");
    assert!((1..=600_000).contains(&retry_after_ms), "a broken one is kept back from its own too: {retry_after_ms}");
    assert_eq!(given(&acquire(node, "b", "b2", 600_000)).0, 11, "an expired one is not");
}

/// `kill -9`: ids, quarantines, who was taken over, clocks, the pool's own identity.
#[test]
fn a_pool_is_the_same_after_a_restart() {
    let fresh = Fresh::start();
    let before = furnish(&fresh.node);
    let fresh = fresh.restart();
    stands(&fresh.node, &before);
}
