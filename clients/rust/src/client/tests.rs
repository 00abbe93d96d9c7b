//! The client against a scripted node: what is repeated, what is not, and how long it waits.

#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::fake::{Act, Fake, black_hole, nowhere, uri};
use crate::time::HostClock;
use crate::wire::{AcquireArgs, Create, Get, Op, RenewArgs};

/// For nodes that hang, so that the test is over soon; long enough for a try on a loaded machine.
const SHORT: Duration = Duration::from_secs(1);

fn client(uri: &Uri) -> Client {
    let options =
        Options { refused_timeout: Duration::from_millis(100), answer_bytes_max: 10_000, ..Options::default() };
    Client::with(uri, options, Arc::new(HostClock))
}

fn create() -> Create {
    Create { key: "k".into(), kind: "lease".into(), options: None }
}

fn get() -> Get {
    Get { key: "k".into() }
}

fn acquire() -> Op<AcquireArgs> {
    let args = AcquireArgs {
        owner: "o".into(),
        token: "secret".into(),
        ttl_ms: Some(30_000),
        wait_ms: None,
        create: None,
        note: None,
        min_hold_ms: None,
        delay_ms: None,
        once: Some(true),
    };
    Op::new("k", args)
}

fn renew(fence: Option<u64>) -> Op<RenewArgs> {
    Op::new("k", RenewArgs { token: "secret".into(), ttl_ms: None, fence })
}

#[tokio::test]
async fn an_answer_comes_with_its_witness() {
    let node = Fake::start([Act::ok(r#"{"result":true,"fence":7,"owner":"o"}"#)]).await;
    let answered = client(&node.uri()).call(&acquire()).await.unwrap();
    assert!(answered.answer.is_true());
    assert_eq!((answered.answer.fence(), answered.answer.owner()), (Some(7), Some("o")));
    let witness =
        Witness { position: Some("7.0".into()), clock_ms: Some(123), term: Some(2), cluster: Some("c1".into()) };
    assert_eq!(answered.witness, witness);
    let seen = &node.seen()[0];
    assert_eq!(seen.path, "/v1/OP");
    let body = r#"{"key":"k","operation":"ACQUIRE","args":{"owner":"o","token":"secret","ttl_ms":30000,"once":true}}"#;
    assert_eq!(seen.body, serde_json::from_str::<serde_json::Value>(body).unwrap());
}

#[tokio::test]
async fn the_answer_to_an_acquire_is_lost_and_asked_for_again() {
    let node = Fake::start([Act::Close, Act::ok(r#"{"result":false,"yours":true,"fence":3,"ttl_ms":9}"#)]).await;
    let answered = client(&node.uri()).call(&acquire()).await.unwrap();
    assert!(answered.answer.yours() && answered.repeated);
    assert_eq!(node.operations(), ["ACQUIRE", "ACQUIRE"]);
}

#[tokio::test]
async fn a_lost_answer_to_a_write_without_identity_is_an_unknown_outcome() {
    for act in [Act::Close, Act::Hang, Act::problem(504, "outcome_unknown"), Act::problem(500, "internal")] {
        let node = Fake::start([act.clone(), Act::ok(r#"{"result":true}"#)]).await;
        let error = client(&node.uri()).call_within(&create(), 2 * SHORT, SHORT).await.unwrap_err();
        assert!(matches!(error, CallError::OutcomeUnknown { .. }), "{act:?}: {error:?}");
        node.arrived(1).await;
        assert_eq!(node.seen().len(), 1, "{act:?}");
    }
}

#[tokio::test]
async fn a_renew_is_repeated_only_with_its_fence() {
    for (fence, tries) in [(None, 1), (Some(3), 2)] {
        let node = Fake::start([Act::problem(504, "outcome_unknown"), Act::ok(r#"{"result":true}"#)]).await;
        let outcome = client(&node.uri()).call(&renew(fence)).await;
        assert_eq!((outcome.is_ok(), node.seen().len()), (fence.is_some(), tries));
    }
}

#[tokio::test]
async fn unavailable_is_retried_for_any_command() {
    let node = Fake::start([Act::problem(503, "unavailable"), Act::ok(r#"{"result":true}"#)]).await;
    let answered = client(&node.uri()).call(&create()).await.unwrap();
    assert!(answered.answer.is_true() && !answered.repeated);
    assert_eq!(node.seen().len(), 2);
}

#[tokio::test]
async fn unavailable_to_the_end_is_safe_to_repeat_unless_a_try_was_in_doubt() {
    // Long enough for a second try on a loaded machine.
    let limit = Duration::from_secs(2);
    let node = Fake::start([Act::problem(503, "unavailable")]).await;
    let error = client(&node.uri()).call_within(&acquire(), limit, limit).await.unwrap_err();
    assert!(matches!(&error, CallError::Unavailable { detail } if detail.contains("told so")), "{error:?}");
    let node = Fake::start([Act::Close, Act::problem(503, "unavailable")]).await;
    let error = client(&node.uri()).call_within(&acquire(), limit, limit).await.unwrap_err();
    assert!(matches!(error, CallError::OutcomeUnknown { .. }), "{error:?}");
}

#[tokio::test]
async fn without_a_leader_a_write_is_told_that_nothing_happened() {
    let nodes = [Fake::start([Act::Leaderless]).await, Fake::start([Act::Leaderless]).await];
    let client = client(&uri(&[&nodes[0].address, &nodes[1].address]));
    let call = Duration::from_secs(3);
    for error in [
        client.call_within(&create(), call, call).await.unwrap_err(),
        client.call_within(&acquire(), call, call).await.unwrap_err(),
    ] {
        assert!(matches!(error, CallError::Unavailable { .. }), "{error:?}");
    }
    let told: Vec<u64> = nodes.iter().flat_map(Fake::seen).map(|seen| seen.timeout_ms.unwrap()).collect();
    assert!(told.iter().all(|ms| (1..=3000).contains(ms)), "{told:?}");
    // Its share were half.
    assert!(told[0] > 2000, "a command that must not be repeated has the whole time: {told:?}");
}

#[tokio::test]
async fn a_refused_connection_costs_only_the_way_to_the_next_endpoint() {
    let node = Fake::start([Act::ok(r#"{"result":true}"#)]).await;
    let client = client(&uri(&[&nowhere(), &node.address]));
    assert!(client.call(&create()).await.unwrap().answer.is_true());
    assert_eq!(client.inner.preferred.load(Ordering::Relaxed), 1, "the next call begins where this one ended");
}

#[tokio::test]
async fn nothing_listens() {
    let (a, b) = (nowhere(), nowhere());
    let error = client(&uri(&[&a, &b])).call(&create()).await.unwrap_err();
    let endpoints = format!("{a} (connection refused), {b} (connection refused)");
    assert_eq!(error.to_string(), format!("no node at {endpoints}: start one with `tenure serve`"));
    assert_eq!(error, CallError::Unreachable { endpoints });
}

#[tokio::test]
async fn an_endpoint_that_swallows_packets_leaves_room_for_the_others() {
    let (hole, _queue, _listener) = black_hole().await;
    let node = Fake::start([Act::ok(r#"{"result":true}"#)]).await;
    let client = client(&uri(&[&hole, &nowhere(), &node.address]));
    // Never repeated: without a connection it surely had no effect.
    let answered = client.call_within(&create(), 3 * SHORT, 3 * SHORT).await.unwrap();
    assert!(answered.answer.is_true() && !answered.repeated);
    assert_eq!(answered.endpoint, node.address);
}

#[tokio::test]
async fn nobody_can_be_connected_to() {
    let (hole, _queue, _listener) = black_hole().await;
    let gone = nowhere();
    let error = client(&uri(&[&hole, &gone])).call_within(&create(), SHORT, SHORT).await.unwrap_err();
    let CallError::Unreachable { endpoints } = &error else { panic!("{error:?}") };
    assert!(endpoints.contains(&format!("{hole} (no connection within")), "{endpoints}");
    assert!(endpoints.contains(&format!("{gone} (connection refused)")), "{endpoints}");
}

#[tokio::test]
async fn a_command_that_left_and_must_not_be_repeated_is_waited_for_beyond_its_share() {
    let hangs = Fake::start([Act::Hang]).await;
    let other = Fake::start([Act::ok(r#"{"result":true}"#)]).await;
    let client = client(&uri(&[&hangs.address, &other.address]));
    // Its share is half of three halves.
    let error = client.call_within(&create(), SHORT * 3 / 2, SHORT).await.unwrap_err();
    let detail = format!("{}: no answer within {} ms", hangs.address, SHORT.as_millis());
    assert_eq!(error, CallError::OutcomeUnknown { detail });
    assert!(other.seen().is_empty());
    // The next call does not begin where this one was left without an answer.
    assert!(client.call(&create()).await.unwrap().answer.is_true());
    assert_eq!((hangs.seen().len(), other.seen().len()), (1, 1));
}

#[tokio::test]
async fn a_call_that_runs_out_of_time_leaves_the_endpoint_that_hangs() {
    let hangs = Fake::start([Act::Hang]).await;
    let leaderless = Fake::start([Act::problem(503, "unavailable")]).await;
    let client = client(&uri(&[&hangs.address, &leaderless.address]));
    let error = client.call_within(&acquire(), SHORT, SHORT).await.unwrap_err();
    assert!(matches!(error, CallError::OutcomeUnknown { .. }), "{error:?}");
    assert_eq!(client.inner.preferred.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_named_leader_is_asked_next_and_kept() {
    let leader = Fake::start([Act::ok(r#"{"result":true}"#)]).await;
    let first = Fake::start([Act::led_by(&leader.address)]).await;
    let between = Fake::start([Act::ok(r#"{"result":true}"#)]).await;
    let client = client(&uri(&[&first.address, &between.address, &leader.address]));
    for _ in 0..2 {
        assert_eq!(client.call(&create()).await.unwrap().endpoint, leader.address);
    }
    assert_eq!((first.seen().len(), between.seen().len(), leader.seen().len()), (1, 0, 2));
}

#[tokio::test]
async fn a_leader_outside_the_list_is_not_asked() {
    let stranger = Fake::start([Act::ok(r#"{"result":true}"#)]).await;
    for leader in [stranger.address.as_str(), "no address at all", ""] {
        let first = Fake::start([Act::led_by(leader)]).await;
        let second = Fake::start([Act::ok(r#"{"result":true}"#)]).await;
        let client = client(&uri(&[&first.address, &second.address]));
        assert_eq!(client.call(&acquire()).await.unwrap().endpoint, second.address);
    }
    assert!(stranger.seen().is_empty(), "it would have learnt a token");
}

#[tokio::test]
async fn a_node_that_goes_away_is_left() {
    let draining = Fake::start([Act::Last(r#"{"result":true}"#.to_owned())]).await;
    let stays = Fake::start([Act::ok(r#"{"result":true}"#)]).await;
    let client = client(&uri(&[&draining.address, &stays.address]));
    assert_eq!(client.call(&create()).await.unwrap().endpoint, draining.address);
    assert_eq!(client.call(&create()).await.unwrap().endpoint, stays.address);
}

#[tokio::test]
async fn all_that_cannot_serve_are_named_with_their_reasons() {
    let (a, b) = (Fake::start([Act::problem(503, "unavailable")]).await, nowhere());
    let error = client(&uri(&[&a.address, &b])).call_within(&create(), SHORT, SHORT).await.unwrap_err();
    let detail = format!("{}: told so; {b}: connection refused", a.address);
    assert_eq!(error, CallError::Unavailable { detail });
}

#[tokio::test]
async fn a_hanging_node_is_left_for_the_next_where_that_is_safe() {
    let (hangs, works) = (Fake::start([Act::Hang]).await, Fake::start([Act::ok(r#"{"result":null}"#)]).await);
    let client = client(&uri(&[&hangs.address, &works.address]));
    let answered = client.call_within(&get(), 20 * SHORT, SHORT).await.unwrap();
    assert!(answered.answer.result.is_null());
    assert_eq!(answered.endpoint, works.address);
    hangs.arrived(1).await;
}

#[tokio::test]
async fn a_refusal_is_final() {
    let node = Fake::start([Act::problem(409, "already_exists"), Act::ok(r#"{"result":true}"#)]).await;
    let error = client(&node.uri()).call(&create()).await.unwrap_err();
    assert!(matches!(&error, CallError::Refused(problem) if problem.code == "already_exists"), "{error:?}");
    assert_eq!(node.seen().len(), 1);
}

#[tokio::test]
async fn a_refusal_says_nothing_of_an_earlier_try_in_doubt() {
    let node = Fake::start([Act::Close, Act::problem(404, "no_such_key")]).await;
    let error = client(&node.uri()).call(&acquire()).await.unwrap_err();
    assert!(matches!(error, CallError::OutcomeUnknown { .. }), "the first may have been granted: {error:?}");
    assert_eq!(node.seen().len(), 2);
}

#[tokio::test]
async fn garbage_and_huge_answers_are_named() {
    let huge = format!(r#"{{"result":"{}"}}"#, "x".repeat(20_000));
    for (act, part) in [(Act::ok("<html>"), "unreadable"), (Act::ok(&huge), "larger than 10000 bytes")] {
        let node = Fake::start([act]).await;
        let error = client(&node.uri()).call(&get()).await.unwrap_err();
        assert!(matches!(&error, CallError::Protocol { detail, .. } if detail.contains(part)), "{error:?}");
        let error = client(&node.uri()).call(&create()).await.unwrap_err();
        assert!(matches!(&error, CallError::OutcomeUnknown { detail } if detail.contains(part)), "{error:?}");
    }
    let node = Fake::start([Act::Answer(404, "<html>".into())]).await;
    let error = client(&node.uri()).call(&create()).await.unwrap_err();
    assert!(matches!(&error, CallError::Protocol { detail, .. } if detail.contains("404")), "{error:?}");
    let node = Fake::start([Act::Answer(502, "<html>".into())]).await;
    let error = client(&node.uri()).call(&create()).await.unwrap_err();
    assert!(matches!(error, CallError::OutcomeUnknown { .. }), "a proxy may have passed it on: {error:?}");
}

#[tokio::test]
async fn status_is_a_page_of_its_own() {
    let node = Fake::start([Act::ok(r#"{"node_id":1}"#)]).await;
    assert_eq!(client(&node.uri()).status().await.unwrap()["node_id"], 1);
    assert_eq!(node.seen()[0].path, "/v1/status");
}

#[test]
fn debug_shows_no_token() {
    assert!(!format!("{:?}", acquire()).contains("secret"));
    let mut batch = crate::wire::Batch::default();
    batch.push(&acquire()).unwrap();
    assert!(!format!("{batch:?}").contains("secret"));
    assert_eq!(batch.commands[0]["command"], "OP");
}

#[test]
fn pauses_grow_to_a_second_and_vary_by_half() {
    let mut pauses = Backoff::default();
    for ms in [50, 100, 200, 400, 800, 1000, 1000] {
        let pause = pauses.next();
        let (least, most) = (Duration::from_millis(ms / 2), Duration::from_millis(ms));
        assert!(least <= pause && pause <= most, "{pause:?} of {ms} ms");
    }
}
