//! Slots of a semaphore, and grants that their holder renews, against scripted nodes.

#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::client::Options;
use crate::fake::{Act, Fake, HandClock, nowhere, uri};
use crate::renewal::Outcome;
use crate::time::{HostClock, own_deadline};

const SLOT: &str = r#""id":2,"fence":7,"identity":null,"pool":"u-1","first":0,"size":4,"floor_unix_ms":null"#;

fn granted(ttl_ms: u64) -> Act {
    Act::ok(&format!(r#"{{"result":{{{SLOT},"ttl_ms":{ttl_ms}}}}}"#))
}

fn renewed(ttl_ms: u64) -> Act {
    Act::ok(&format!(r#"{{"result":{{"status":"renewed",{SLOT},"ttl_ms":{ttl_ms}}}}}"#))
}

fn lost(reason: &str) -> Act {
    Act::ok(&format!(r#"{{"result":{{"status":"lost"}},"reason":"{reason}"}}"#))
}

fn no(reason: &str) -> Act {
    Act::ok(&format!(r#"{{"result":null,"reason":"{reason}"}}"#))
}

fn released() -> Act {
    Act::ok(r#"{"result":true}"#)
}

fn slots(node: &Fake) -> Slots {
    Slots::new(Client::new(&node.uri()), "builds")
}

fn nobody() -> Acquire {
    Acquire::new("builds", Whose::Nobody { owner: None })
}

const WAIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_slot_is_asked_for_as_a_lease_is() {
    let node = Fake::start([granted(30_000), released()]).await;
    let slot = slots(&node).owner("ci").note("n").acquire().await.unwrap();
    assert_eq!((slot.id(), slot.fence(), slot.pool_uuid()), (Ok(2), 7, "u-1"));
    let args = &node.seen()[0].body["args"];
    assert_eq!((&args["owner"], &args["once"], &args["note"]), (&"ci".into(), &true.into(), &"n".into()));
    for name in ["identity", "unix_ms", "create", "wait_ms", "min_hold_ms"] {
        assert_eq!(args.get(name), None, "{name}");
    }
    assert!(slot.release().await.unwrap());
    assert_eq!(node.operations(), ["ACQUIRE", "RELEASE"]);
}

#[tokio::test]
async fn a_dropped_slot_is_given_back() {
    let node = Fake::start([granted(30_000), released()]).await;
    drop(slots(&node).acquire().await.unwrap());
    node.arrived(2).await;
    assert_eq!(node.operations(), ["ACQUIRE", "RELEASE"]);
}

#[tokio::test]
async fn one_acquire_waits_and_a_renew_proves_what_came_of_it() {
    let node = Fake::start([granted(30_000), renewed(30_000)]).await;
    let slot = slots(&node).wait(WAIT).acquire().await.unwrap();
    assert_eq!((slot.id(), node.operations()), (Ok(2), vec!["ACQUIRE".to_owned(), "RENEW".to_owned()]));
    let wait_ms = node.seen()[0].body["args"]["wait_ms"].as_u64().unwrap();
    assert!((59_000..=60_000).contains(&wait_ms), "{wait_ms}");
}

/// What came and went unseen is asked for once more. But not from a process that took over since: that one has it.
#[tokio::test]
async fn who_was_taken_over_is_told_and_asks_no_more() {
    let node = Fake::start([granted(30_000), lost("expired"), granted(30_000), renewed(30_000)]).await;
    assert_eq!(slots(&node).wait(WAIT).acquire().await.unwrap().id(), Ok(2));
    let node = Fake::start([granted(30_000), lost("taken_over")]).await;
    let error = slots(&node).wait(WAIT).acquire().await.unwrap_err();
    assert!(matches!(&error, AcquireError::Refused(refused) if refused.reason == "taken_over"), "{error:?}");
    assert_eq!(node.operations(), ["ACQUIRE", "RENEW"]);
}

#[tokio::test]
async fn a_wait_outlasts_full_lines_and_trouble() {
    let acts =
        [no("queue_full"), Act::problem(429, "rate_limited"), no("key_expired"), granted(30_000), renewed(30_000)];
    let node = Fake::start(acts).await;
    assert_eq!(slots(&node).wait(WAIT).acquire().await.unwrap().id(), Ok(2));
    let seen = node.seen();
    assert_eq!(seen[0].body["args"]["token"], seen[3].body["args"]["token"], "one attempt, one token");
}

#[tokio::test]
async fn a_wait_that_is_over_was_for_a_free_slot() {
    let node = Fake::start([no("wait_timeout")]).await;
    let error = slots(&node).wait(Duration::from_millis(20)).acquire().await.unwrap_err();
    assert_eq!(error, AcquireError::Exhausted { retry_after: None });
}

#[tokio::test]
async fn a_silent_node_is_left_and_its_slot_still_counts() {
    let told = Arc::new(tokio::sync::Notify::new());
    let Act::Answer(_, body) = granted(30_000) else { panic!() };
    let silent = Fake::start([Act::When(Arc::clone(&told), body), renewed(30_000)]).await;
    let other = Fake::start([Act::Hang]).await;
    let options = Options { probe_every: Duration::from_millis(50), ..Options::default() };
    let client = Client::with(&uri(&[&silent.address, &other.address]), options, Arc::new(HostClock));
    let slots = Slots::new(client, "builds").wait(WAIT);
    let acquired = tokio::spawn(async move { slots.acquire().await });
    silent.arrived(1).await;
    silent.fall_silent();
    other.arrived(1).await;
    told.notify_one();
    // The RENEW goes to the node that hangs no longer than a try's share.
    assert_eq!(acquired.await.unwrap().unwrap().id(), Ok(2));
}

/// It answers as to any ACQUIRE: what it gave is not kept.
#[tokio::test]
async fn a_lease_is_no_pool() {
    let cases = [
        (Act::ok(r#"{"result":true,"fence":7,"ttl_ms":30000}"#), vec!["ACQUIRE", "RELEASE"]),
        (Act::ok(r#"{"result":false,"reason":"held","owner":"b","fence":6,"ttl_ms":900}"#), vec!["ACQUIRE"]),
    ];
    for (act, asked) in cases {
        let node = Fake::start([act, released()]).await;
        let error = slots(&node).acquire().await.unwrap_err();
        assert_eq!(error.to_string(), "wrong_type: builds is a lease, not a pool: acquire it as one, or name a pool");
        assert_eq!(node.operations(), asked);
    }
}

/// What a supervisor goes by that sends its renewals itself.
#[tokio::test]
async fn a_renewal_has_three_outcomes() {
    let acts = [granted(30_000), renewed(30_000), lost("broken"), Act::Answer(502, String::new())];
    let node = Fake::start(acts).await;
    let clock = Arc::new(HandClock::default());
    let client = Client::with(&node.uri(), Options::default(), clock.clone());
    let grant = Grant::acquire(&client, &nobody()).await.unwrap();
    clock.advance(10_000);
    let Outcome::Ok(renewed) = grant.renew(&client, WAIT, WAIT).await else { panic!() };
    assert_eq!(renewed.deadline, own_deadline(Boottime { ns: 10_000_000_000 }, 30_000));
    assert_eq!(renewed.next, Boottime { ns: 20_000_000_000 });
    let lost = grant.renew(&client, WAIT, WAIT).await;
    assert_eq!(lost, Outcome::Lost { reason: "broken".to_owned(), detail: None });
    let brief = Duration::from_millis(300);
    assert!(matches!(grant.renew(&client, brief, brief).await, Outcome::Retry { .. }));
    let seen = node.seen();
    assert_eq!(seen[1].body, seen[2].body, "one copy or many");
    assert_eq!(seen[1].body["args"].get("unix_ms"), None);
}

#[tokio::test]
async fn another_grant_than_ones_own_proves_nothing() {
    let other = r#"{"result":{"status":"renewed","id":2,"fence":8,"ttl_ms":30000,"identity":null,"pool":"u-1","first":0,"size":4}}"#;
    let node = Fake::start([granted(30_000), Act::ok(other)]).await;
    let client = Client::new(&node.uri());
    let grant = Grant::acquire(&client, &nobody()).await.unwrap();
    assert!(matches!(grant.renew(&client, WAIT, WAIT).await, Outcome::Retry { .. }));
}

#[tokio::test]
async fn who_gave_the_token_is_told_of_the_doubt() {
    let acts = [Act::problem(504, "outcome_unknown"), no("exhausted")];
    let node = Fake::start(acts).await;
    let acquire = Acquire { token: Some("t".into()), ..nobody() };
    let not = Grant::acquire(&Client::new(&node.uri()), &acquire).await.unwrap_err();
    assert_eq!(not, NotAcquired { why: AcquireError::Exhausted { retry_after: None }, in_doubt: true });
    assert_eq!(node.operations(), ["ACQUIRE", "ACQUIRE"], "it is theirs to give back");
    let options = Options { refused_timeout: Duration::ZERO, ..Options::default() };
    let nobody_there = Client::with(&uri(&[&nowhere()]), options, Arc::new(HostClock));
    let not = Grant::acquire(&nobody_there, &acquire).await.unwrap_err();
    assert!(matches!(not.why, AcquireError::Client(CallError::Unreachable { .. })) && !not.in_doubt, "{not:?}");
}

/// Of a grant that was longer before nobody waits for a third of that: the loss is to be heard soon.
#[test]
fn the_next_renewal_is_a_third_of_what_counts() {
    let sent = Boottime { ns: 0 };
    let next = |left_ms, asked_ms, raised| super::grant::next(sent, left_ms, asked_ms, raised).ns / 1_000_000;
    assert_eq!(next(30_000, 30_000, false), 10_000);
    assert_eq!(next(30_000, 5_000, true), 10_000, "raised to the pool's least");
    assert_eq!(next(6_000, 1_000, true), 2_000, "which is less than the default");
    assert_eq!(next(3_600_000, 10_000, true), 10_000, "raised, and resumed with an hour left");
    assert_eq!(next(86_400_000, 30_000, false), 10_000, "resumed, with a day left");
    assert_eq!(next(9_000, 30_000, false), 3_000, "in the grace of nothing it knows");
}
