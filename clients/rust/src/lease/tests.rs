//! The renewing lease under a clock moved by hand, against a scripted node.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::*;
use crate::client::Options;
use crate::fake::{Act, Fake, HandClock, nowhere, uri};
use crate::time::{Clock, HostClock, own_deadline};

fn client(node: &Fake, clock: Arc<dyn Clock>) -> Client {
    Client::with(&node.uri(), Options::default(), clock)
}

fn held(acquired: Acquired<Lease>) -> Lease {
    match acquired {
        Acquired::Held(lease) => lease,
        Acquired::NotHeld(not_held) => panic!("{not_held}"),
    }
}

const GRANTED: &str = r#"{"result":true,"fence":7,"ttl_ms":30000}"#;
const RENEWED: &str = r#"{"result":true,"fence":7,"ttl_ms":30000}"#;
const YOURS: &str = r#"{"result":false,"reason":"held","yours":true,"fence":7,"ttl_ms":30000}"#;
const HELD: &str = r#"{"result":false,"reason":"held","owner":"b","fence":6,"ttl_ms":900,"retry_after_ms":900}"#;
const RELEASED: &str = r#"{"result":true}"#;

#[tokio::test]
async fn a_grant_is_renewed_at_a_third_and_its_deadline_moves() {
    let clock = Arc::new(HandClock::default());
    let node = Fake::start([Act::ok(GRANTED), Act::ok(RENEWED)]).await;
    let client = client(&node, clock.clone());
    let lease = held(Lease::acquire(&client, "k", Acquire::default()).await.unwrap());
    assert_eq!(lease.fence(), 7);
    let first = own_deadline(Boottime { ns: 0 }, 30_000);
    assert_eq!(lease.state(), State::Held { deadline: first, trouble: None });
    let mut changes = lease.watch();
    clock.advance(10_000);
    changes.changed().await.unwrap();
    assert_eq!(lease.state(), State::Held { deadline: first.after(Duration::from_secs(10)), trouble: None });
    let seen = node.seen();
    assert_eq!(seen[0].body["args"]["once"], true);
    assert_eq!(seen[0].body["args"]["create"], true);
    assert_eq!(seen[1].body["args"]["fence"], 7);
    assert_eq!(seen[1].body["args"]["token"], seen[0].body["args"]["token"]);
}

#[tokio::test]
async fn a_silent_node_costs_the_lease_at_its_own_deadline_and_not_before() {
    let clock = Arc::new(HandClock::default());
    let node = Fake::start([Act::ok(GRANTED), Act::Hang]).await;
    let client = client(&node, clock.clone());
    let lease = held(Lease::acquire(&client, "k", Acquire::default()).await.unwrap());
    clock.advance(10_000);
    node.arrived(2).await;
    let deadline = own_deadline(Boottime { ns: 0 }, 30_000);
    let left = clock.now().until(deadline);
    clock.0.fetch_add(u64::try_from(left.as_nanos()).unwrap() - 1, Ordering::SeqCst);
    assert!(lease.is_held());
    clock.0.fetch_add(1, Ordering::SeqCst);
    assert!(!lease.is_held());
    let lost = lease.lost().await;
    assert!(matches!(lost.by, LostBy::Deadline { .. }), "{lost:?}");
    assert_eq!(lost.deadline, deadline);
    assert_eq!(lease.lost().await, lost, "told again the same");
}

#[tokio::test]
async fn lost_wakes_by_itself_when_the_node_stays_silent() {
    let node = Fake::start([Act::ok(r#"{"result":true,"fence":7,"ttl_ms":2000}"#), Act::Hang]).await;
    let client = client(&node, Arc::new(HostClock));
    let lease = held(Lease::acquire(&client, "k", Acquire { ttl_ms: 2000, ..Acquire::default() }).await.unwrap());
    let mut changes = lease.watch();
    let lost = lease.lost().await;
    assert!(HostClock.now() >= lost.deadline);
    let told = changes.wait_for(|state| !matches!(state, State::Held { .. })).await.unwrap().clone();
    assert_eq!(told, State::Lost(lost));
}

#[tokio::test]
async fn trouble_is_retried_and_is_no_loss() {
    let clock = Arc::new(HandClock::default());
    let acts = [GRANTED, RENEWED].map(Act::ok);
    let [granted, renewed] = acts;
    let node = Fake::start([granted, Act::problem(429, "rate_limited"), Act::Close, renewed]).await;
    let client = client(&node, clock.clone());
    let lease = held(Lease::acquire(&client, "k", Acquire::default()).await.unwrap());
    let mut changes = lease.watch();
    clock.advance(10_000);
    let trouble =
        |state: &State| matches!(state, State::Held { trouble: Some(text), .. } if text.contains("rate_limited"));
    changes.wait_for(trouble).await.unwrap();
    clock.advance(5_000);
    let renewed =
        |state: &State| matches!(state, State::Held { deadline, trouble: None } if deadline.ns > 40_000_000_000);
    changes.wait_for(renewed).await.unwrap();
}

/// FR-22: a cluster without a leader is no loss, and no reason to pause for long.
#[tokio::test]
async fn a_cluster_without_a_leader_is_asked_until_it_has_one() {
    let clock = Arc::new(HandClock::default());
    let away = || Act::problem(503, "unavailable");
    let gone = nowhere();
    let node = Fake::start([Act::ok(GRANTED), away(), away(), away(), Act::ok(RENEWED)]).await;
    let client = Client::with(&uri(&[&gone, &node.address]), Options::default(), clock.clone());
    let lease = held(Lease::acquire(&client, "k", Acquire::default()).await.unwrap());
    let mut changes = lease.watch();
    clock.advance(10_000);
    let moved = |state: &State| matches!(state, State::Held { deadline, .. } if deadline.ns > 35_000_000_000);
    changes.wait_for(moved).await.unwrap();
    assert!(lease.is_held());
    assert_eq!(node.seen().len(), 5);
}

#[tokio::test]
async fn a_node_that_says_no_is_proof() {
    let broken = Act::ok(r#"{"result":false,"reason":"broken","detail":"deploy"}"#);
    let gone = Act::problem(404, "no_such_key");
    for (act, text) in [(broken, "lease lost: broken: deploy"), (gone, "lease lost: deleted: told so")] {
        let clock = Arc::new(HandClock::default());
        let node = Fake::start([Act::ok(GRANTED), act]).await;
        let client = client(&node, clock.clone());
        let lease = held(Lease::acquire(&client, "k", Acquire::default()).await.unwrap());
        clock.advance(10_000);
        assert_eq!(lease.lost().await.to_string(), text);
        assert!(!lease.release().await.unwrap());
        assert_eq!(node.operations(), ["ACQUIRE", "RENEW"], "nothing to give back");
    }
}

#[tokio::test]
async fn a_lost_answer_is_resolved_by_the_token_and_proved_by_renew() {
    let node = Fake::start([Act::Close, Act::ok(YOURS), Act::ok(RENEWED)]).await;
    let client = client(&node, Arc::new(HostClock));
    let lease = held(Lease::acquire(&client, "k", Acquire::default()).await.unwrap());
    assert_eq!(node.operations(), ["ACQUIRE", "ACQUIRE", "RENEW"]);
    assert!(lease.is_held());
}

#[tokio::test]
async fn a_grant_that_came_and_went_unseen_is_asked_for_with_a_fresh_token() {
    let used = r#"{"result":false,"reason":"token_used"}"#;
    let node = Fake::start([Act::Close, Act::ok(used), Act::ok(GRANTED)]).await;
    let client = client(&node, Arc::new(HostClock));
    let lease = held(Lease::acquire(&client, "k", Acquire::default()).await.unwrap());
    let seen = node.seen();
    assert_eq!(seen[0].body["args"]["token"], seen[1].body["args"]["token"]);
    assert_ne!(seen[1].body["args"]["token"], seen[2].body["args"]["token"]);
    assert_eq!(lease.token().expose(), seen[2].body["args"]["token"]);
}

#[tokio::test]
async fn held_by_another_is_an_answer() {
    let node = Fake::start([Act::ok(HELD)]).await;
    let acquired = Lease::acquire(&client(&node, Arc::new(HostClock)), "k", Acquire::default()).await.unwrap();
    let Acquired::NotHeld(not_held) = acquired else { panic!() };
    assert_eq!(not_held.to_string(), "not acquired: held by b, fence 6, expires in 0.9 s unless renewed");
}

#[tokio::test]
async fn who_wants_one_run_a_period_does_not_wait_for_the_next() {
    let node = Fake::start([Act::ok(r#"{"result":false,"reason":"min_hold","retry_after_ms":5}"#)]).await;
    let wait = Duration::from_secs(60);
    let acquire = Acquire { min_hold_ms: Some(60_000), wait, ..Acquire::default() };
    let acquired = Lease::acquire(&client(&node, Arc::new(HostClock)), "k", acquire).await.unwrap();
    assert!(matches!(acquired, Acquired::NotHeld(not_held) if not_held.reason == "min_hold"));
    assert_eq!(node.seen().len(), 1);
}

#[tokio::test]
async fn release_is_exact_and_a_repeated_one_counts() {
    let acts = [Act::ok(GRANTED), Act::Close, Act::ok(r#"{"result":false,"reason":"not_held"}"#)];
    let node = Fake::start(acts).await;
    let client = client(&node, Arc::new(HostClock));
    let lease = held(Lease::acquire(&client, "k", Acquire::default()).await.unwrap());
    assert!(lease.release().await.unwrap());
    assert_eq!(node.operations(), ["ACQUIRE", "RELEASE", "RELEASE"]);
    assert_eq!(node.seen()[2].body["args"]["fence"], 7);
}

#[tokio::test]
async fn dropping_gives_back() {
    let node = Fake::start([Act::ok(GRANTED), Act::ok(RELEASED)]).await;
    let client = client(&node, Arc::new(HostClock));
    drop(held(Lease::acquire(&client, "k", Acquire::default()).await.unwrap()));
    node.arrived(2).await;
    assert_eq!(node.operations(), ["ACQUIRE", "RELEASE"]);
}

#[tokio::test]
async fn an_acquire_in_doubt_is_given_back() {
    let node = Fake::start([Act::Hang, Act::ok(RELEASED)]).await;
    let client = client(&node, Arc::new(HostClock));
    // The future is dropped with its first ACQUIRE on the wire.
    tokio::select! {
        _ = Lease::acquire(&client, "k", Acquire::default()) => panic!("answered by a node that hangs"),
        () = node.arrived(1) => {}
    }
    node.arrived(2).await;
    let seen = node.seen();
    assert_eq!(node.operations(), ["ACQUIRE", "RELEASE"]);
    assert_eq!(seen[0].body["args"]["token"], seen[1].body["args"]["token"]);
}

#[tokio::test]
async fn a_ttl_that_no_answer_can_meet_is_refused() {
    let node = Fake::start([Act::ok(r#"{"result":true,"fence":7,"ttl_ms":20}"#)]).await;
    let acquire = Acquire { ttl_ms: 20, ..Acquire::default() };
    let error = Lease::acquire(&client(&node, Arc::new(HostClock)), "k", acquire).await.unwrap_err();
    assert_eq!(error, AcquireError::TooSlow { ttl_ms: 20 });
}

#[tokio::test]
async fn no_node_is_an_error_at_once() {
    let options = Options { refused_timeout: Duration::ZERO, ..Options::default() };
    let client = Client::with(&uri(&[&nowhere()]), options, Arc::new(HostClock));
    let error = Lease::acquire(&client, "k", Acquire::default()).await.unwrap_err();
    assert!(matches!(error, AcquireError::Call(CallError::Unreachable { .. })), "{error:?}");
}

#[tokio::test]
async fn debug_shows_no_token() {
    let node = Fake::start([Act::ok(GRANTED)]).await;
    let lease = held(Lease::acquire(&client(&node, Arc::new(HostClock)), "k", Acquire::default()).await.unwrap());
    assert!(!format!("{lease:?}").contains(lease.token().expose()));
}

/// A doubt outlives the answers to later questions: the attempt gives back what its first copy may be granted yet.
#[tokio::test]
async fn what_one_try_left_in_doubt_is_given_back_whatever_the_next_came_to() {
    let acts = [Act::problem(504, "outcome_unknown"), Act::problem(429, "rate_limited"), Act::ok(RELEASED)];
    let node = Fake::start(acts).await;
    let acquire = Acquire { wait: Duration::ZERO, ..Acquire::default() };
    let error = Grant::acquire(&client(&node, Arc::new(HostClock)), "k", acquire).await.unwrap_err();
    assert!(matches!(error, AcquireError::Call(CallError::OutcomeUnknown { .. })), "{error:?}");
    node.arrived(3).await;
    assert_eq!(node.operations(), ["ACQUIRE", "ACQUIRE", "RELEASE"]);
}

/// The token was made for this attempt: nothing else can be released by a repetition.
#[tokio::test]
async fn giving_back_goes_on_past_an_endpoint_that_hangs() {
    let (hangs, works) = (Fake::start([Act::Hang]).await, Fake::start([Act::ok(RELEASED)]).await);
    let client = Client::new(&uri(&[&hangs.address, &works.address]));
    let token = Token::random().unwrap();
    let answered = give_back(&client, "k", &token, None, Duration::from_secs(4)).await.unwrap();
    assert_eq!((answered.endpoint.as_str(), hangs.operations().len()), (works.address.as_str(), 1));
}

/// Any slot of a pool is asked for in the same words: it is not to stay held by who wanted a lease.
#[tokio::test]
async fn a_pool_is_no_lease() {
    let slot = r#"{"result":{"id":0,"fence":7,"ttl_ms":30000,"identity":null,"pool":"u","first":0,"size":1,"floor_unix_ms":null}}"#;
    let exhausted = r#"{"result":null,"reason":"exhausted","retry_after_ms":900}"#;
    for (answers, asked) in [
        (vec![Act::ok(slot), Act::ok(RELEASED)], vec!["ACQUIRE", "RELEASE"]),
        (vec![Act::ok(exhausted)], vec!["ACQUIRE"]),
    ] {
        let node = Fake::start(answers).await;
        let client = client(&node, Arc::new(HandClock::default()));
        let error = Lease::acquire(&client, "ids", Acquire::default()).await.unwrap_err();
        let said = error.to_string();
        assert!(said.contains("wrong_type") && said.contains("ids is a pool, not a lease"), "{said}");
        assert_eq!(node.operations(), asked);
    }
}
