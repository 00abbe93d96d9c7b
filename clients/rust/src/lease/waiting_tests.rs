//! Waiting in line against scripted nodes: the place is the token's, wherever it is asked for.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::*;
use crate::client::Options;
use crate::fake::{Act, Fake, Seen, nowhere, uri};
use crate::time::HostClock;

const GRANTED: &str = r#"{"result":true,"fence":7,"ttl_ms":30000}"#;
const RENEWED: &str = r#"{"result":true,"fence":7,"ttl_ms":30000}"#;
const RELEASED: &str = r#"{"result":true}"#;
const WAIT: Duration = Duration::from_secs(60);
/// One that ends without an answer: long enough for a second try on a loaded machine.
const SHORT: Duration = Duration::from_secs(2);

fn no(reason: &str) -> Act {
    Act::ok(&format!(r#"{{"result":false,"reason":"{reason}","owner":"b","fence":6}}"#))
}

/// A client of these nodes that notices a silent one soon.
fn client(nodes: &[&Fake]) -> Client {
    let addresses: Vec<&str> = nodes.iter().map(|node| node.address.as_str()).collect();
    let options = Options { probe_every: Duration::from_millis(300), ..Options::default() };
    Client::with(&uri(&addresses), options, Arc::new(HostClock))
}

fn waiting(wait: Duration) -> Acquire {
    Acquire { wait, ..Acquire::default() }
}

/// An acquisition that goes on beside the test.
fn spawned(client: &Client, acquire: Acquire) -> JoinHandle<Result<Acquired<Grant>, AcquireError>> {
    let client = client.clone();
    tokio::spawn(async move { Grant::acquire(&client, "k", acquire).await })
}

fn held(acquired: Acquired<Grant>) -> Grant {
    match acquired {
        Acquired::Held(grant) => grant,
        Acquired::NotHeld(not_held) => panic!("{not_held}"),
    }
}

fn not_held(acquired: Acquired<Grant>) -> NotHeld {
    match acquired {
        Acquired::Held(grant) => panic!("{grant:?}"),
        Acquired::NotHeld(not_held) => not_held,
    }
}

fn wait_ms(seen: &Seen) -> u64 {
    seen.body["args"]["wait_ms"].as_u64().unwrap()
}

#[tokio::test]
async fn one_acquire_waits_and_a_renew_proves_what_came_of_it() {
    let node = Fake::start([Act::ok(GRANTED), Act::ok(RENEWED)]).await;
    let grant = held(Grant::acquire(&client(&[&node]), "k", waiting(WAIT)).await.unwrap());
    assert_eq!((grant.fence, node.operations()), (7, vec!["ACQUIRE".to_owned(), "RENEW".to_owned()]));
    let seen = node.seen();
    assert!((59_000..=60_000).contains(&wait_ms(&seen[0])), "{}", wait_ms(&seen[0]));
    assert!(seen[0].timeout_ms.unwrap() >= wait_ms(&seen[0]) + 5_000, "the answer is waited for longer than the line");
    assert_eq!(seen[1].body["args"]["fence"], 7);
}

#[tokio::test]
async fn a_key_that_went_between_the_grant_and_its_proof_took_the_grant_along() {
    let node = Fake::start([Act::ok(GRANTED), Act::problem(404, "no_such_key")]).await;
    let why = not_held(Grant::acquire(&client(&[&node]), "k", waiting(WAIT)).await.unwrap());
    assert_eq!((&*why.reason, why.in_doubt), ("deleted", false));
    assert_eq!(node.operations(), ["ACQUIRE", "RENEW"], "there is nothing to give back");
}

/// FR-22, FR-24: neither a node that goes away nor an election costs the place.
#[tokio::test]
async fn the_next_node_is_asked_with_the_same_token_and_what_is_left_of_the_wait() {
    let told = Arc::new(Notify::new());
    for trouble in [Act::Close, Act::problem(504, "outcome_unknown"), Act::problem(503, "unavailable")] {
        let first = Fake::start([trouble, Act::Hang]).await;
        let second = Fake::start([Act::When(Arc::clone(&told), GRANTED.to_owned()), Act::ok(RENEWED)]).await;
        let acquired = spawned(&client(&[&first, &second]), waiting(WAIT));
        second.arrived(1).await;
        told.notify_one();
        assert_eq!(held(acquired.await.unwrap().unwrap()).fence, 7);
        let (first, second) = (first.seen(), second.seen());
        assert_eq!(first[0].body["args"]["token"], second[0].body["args"]["token"], "the place is the token's");
        assert!(wait_ms(&second[0]) <= wait_ms(&first[0]), "never longer than there is left");
    }
}

#[tokio::test]
async fn the_wait_goes_on_while_the_whole_cluster_is_away() {
    let away = || Act::problem(503, "unavailable");
    let node = Fake::start([away(), away(), Act::Close, Act::ok(GRANTED), Act::ok(RENEWED)]).await;
    let gone = nowhere();
    let client = Client::new(&uri(&[&gone, &node.address]));
    assert_eq!(held(Grant::acquire(&client, "k", waiting(WAIT)).await.unwrap()).fence, 7);
    let tokens = node.seen().iter().map(|seen| seen.body["args"]["token"].to_string()).collect::<Vec<_>>();
    assert!(tokens.iter().all(|token| *token == tokens[0]));
}

#[tokio::test]
async fn a_wait_that_is_over_without_any_answer_says_so() {
    let away = Fake::start([Act::problem(503, "unavailable")]).await;
    let error = Grant::acquire(&client(&[&away]), "k", waiting(SHORT)).await.unwrap_err();
    assert!(matches!(error, AcquireError::Call(CallError::Unavailable { .. })), "{error:?}");
    assert!(!away.operations().contains(&"RELEASE".to_owned()), "nothing can be held");
    let doubt = Fake::start([Act::problem(504, "outcome_unknown"), Act::problem(503, "unavailable")]).await;
    let error = Grant::acquire(&client(&[&doubt]), "k", waiting(SHORT)).await.unwrap_err();
    assert!(matches!(error, AcquireError::Call(CallError::OutcomeUnknown { .. })), "{error:?}");
    let asked = doubt.operations().iter().filter(|name| *name == "ACQUIRE").count();
    doubt.arrived(asked + 1).await;
    assert_eq!(doubt.operations().last().unwrap(), "RELEASE", "the first may wait or hold");
}

/// A host that vanished, or a process that stands still, sends nothing: not even that it is gone.
#[tokio::test]
async fn a_silent_node_is_left_and_its_answer_still_counts_if_it_grants() {
    for first_answers in [false, true] {
        let (one, two) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let silent = Fake::start([Act::When(Arc::clone(&one), GRANTED.to_owned()), Act::ok(RENEWED)]).await;
        let other = Fake::start([Act::When(Arc::clone(&two), GRANTED.to_owned()), Act::ok(RENEWED)]).await;
        let acquired = spawned(&client(&[&silent, &other]), waiting(WAIT));
        silent.arrived(1).await;
        silent.fall_silent();
        other.arrived(1).await;
        assert_eq!(silent.seen()[0].body["args"]["token"], other.seen()[0].body["args"]["token"]);
        if first_answers {
            one.notify_one()
        } else {
            two.notify_one()
        }
        assert_eq!(held(acquired.await.unwrap().unwrap()).fence, 7);
        let renews = |node: &Fake| node.operations().iter().filter(|name| *name == "RENEW").count();
        assert_eq!(renews(&silent) + renews(&other), 1, "proved once, wherever it came from");
    }
}

#[tokio::test]
async fn a_node_that_answers_its_probes_is_waited_for() {
    let told = Arc::new(Notify::new());
    let node = Fake::start([Act::When(Arc::clone(&told), GRANTED.to_owned()), Act::ok(RENEWED)]).await;
    let other = Fake::start([Act::Hang]).await;
    let acquired = spawned(&client(&[&node, &other]), waiting(WAIT));
    node.arrived(1).await;
    node.probed(4).await;
    told.notify_one();
    held(acquired.await.unwrap().unwrap());
    assert_eq!(other.seen().len(), 0);
}

/// The copy that was thought lost may come after the one that followed it, and take its place.
#[tokio::test]
async fn a_call_that_is_superseded_by_its_own_copy_asks_again() {
    let node = Fake::start([Act::Close, no("superseded"), Act::ok(GRANTED), Act::ok(RENEWED)]).await;
    held(Grant::acquire(&client(&[&node]), "k", waiting(WAIT)).await.unwrap());
    assert_eq!(node.operations(), ["ACQUIRE", "ACQUIRE", "ACQUIRE", "RENEW"]);
    let node = Fake::start([no("superseded")]).await;
    let token = Some(Token::random().unwrap());
    let acquired = Grant::acquire(&client(&[&node]), "k", Acquire { token, ..waiting(WAIT) }).await.unwrap();
    assert_eq!(not_held(acquired).reason, "superseded", "by somebody else who uses the token");
    assert_eq!(node.seen().len(), 1);
}

#[tokio::test]
async fn what_a_node_says_for_good_ends_the_wait() {
    let over = |reason: &'static str| async move {
        let node = Fake::start([no(reason)]).await;
        let acquire = Acquire { min_hold_ms: Some(60_000), ..waiting(WAIT) };
        let not_held = not_held(Grant::acquire(&client(&[&node]), "k", acquire).await.unwrap());
        assert_eq!((not_held.reason.as_str(), not_held.in_doubt, node.seen().len()), (reason, false, 1));
    };
    for reason in ["min_hold", "ttl_not_positive", "deleted", "cancelled_wait"] {
        over(reason).await;
    }
    let node = Fake::start([no("wait_timeout")]).await;
    let acquired = Grant::acquire(&client(&[&node]), "k", waiting(Duration::from_millis(20))).await.unwrap();
    assert_eq!(not_held(acquired).to_string(), "not acquired: wait_timeout by b, fence 6");
}

#[tokio::test]
async fn where_there_is_no_line_it_asks_again_after_a_pause() {
    let acts = [no("queue_full"), no("key_expired"), no("wait_timeout"), Act::ok(GRANTED), Act::ok(RENEWED)];
    let node = Fake::start(acts).await;
    held(Grant::acquire(&client(&[&node]), "k", waiting(WAIT)).await.unwrap());
    let seen = node.seen();
    assert_eq!(seen[0].body["args"]["token"], seen[3].body["args"]["token"], "one attempt, one token");
}

/// It was granted, and gone before anybody could know: the next question has a token of its own.
#[tokio::test]
async fn a_grant_that_its_renew_does_not_prove_is_asked_for_anew() {
    let yours = r#"{"result":false,"reason":"held","yours":true,"fence":5,"ttl_ms":30000}"#;
    for first in [GRANTED, yours] {
        let node = Fake::start([Act::ok(first), no("not_held"), Act::ok(GRANTED), Act::ok(RENEWED)]).await;
        held(Grant::acquire(&client(&[&node]), "k", waiting(WAIT)).await.unwrap());
        let seen = node.seen();
        assert_eq!(node.operations(), ["ACQUIRE", "RENEW", "ACQUIRE", "RENEW"]);
        assert_ne!(seen[0].body["args"]["token"], seen[2].body["args"]["token"]);
    }
}

#[tokio::test]
async fn a_wait_that_is_given_up_leaves_the_line() {
    let node = Fake::start([Act::Hang, Act::ok(RELEASED)]).await;
    let client = client(&[&node]);
    tokio::select! {
        _ = Grant::acquire(&client, "k", waiting(WAIT)) => panic!("answered by a node that hangs"),
        () = node.arrived(1) => {}
    }
    node.arrived(2).await;
    let seen = node.seen();
    assert_eq!(node.operations(), ["ACQUIRE", "RELEASE"]);
    assert_eq!(seen[0].body["args"]["token"], seen[1].body["args"]["token"]);
    assert_eq!(seen[1].body["args"].get("fence"), None, "whatever it holds or waits for");
}

#[tokio::test]
async fn a_wait_without_end_is_a_day_at_a_time() {
    let node = Fake::start([Act::ok(GRANTED), Act::ok(RENEWED)]).await;
    held(Grant::acquire(&client(&[&node]), "k", waiting(Duration::MAX)).await.unwrap());
    let seen = node.seen();
    assert_eq!((wait_ms(&seen[0]), seen[0].timeout_ms), (86_400_000, Some(86_400_000)));
}
