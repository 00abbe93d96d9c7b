//! Several leases against a scripted node: all, or none.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use super::*;
use crate::fake::{Act, Fake};
use crate::wire::Code;

const BOTH: &str = r#"{"result":[{"result":true,"fence":7,"ttl_ms":30000},{"result":true,"fence":8,"ttl_ms":30000}]}"#;
const ONE_IS_YOURS: &str =
    r#"{"result":[{"result":true,"fence":7,"ttl_ms":30000},{"result":false,"yours":true,"fence":8,"ttl_ms":9}]}"#;
const SECOND_IS_HELD: &str = r#"{"result":false,"reason":"held","owner":"b","fence":6,"index":1}"#;
const GONE: &str = r#"{"result":[{"result":false,"reason":"not_held"},{"result":true}]}"#;

fn keys() -> Vec<String> {
    ["b", "a"].map(str::to_owned).to_vec()
}

fn waiting() -> Acquire {
    Acquire { wait: Duration::from_secs(60), ..Acquire::default() }
}

fn granted(fence: u64) -> Act {
    Act::ok(&format!(r#"{{"result":true,"fence":{fence},"ttl_ms":30000}}"#))
}

#[tokio::test]
async fn all_are_taken_by_one_batch() {
    let node = Fake::start([Act::ok(BOTH)]).await;
    let acquired = Grant::acquire_all(&Client::new(&node.uri()), &keys(), Acquire::default()).await.unwrap();
    let AcquiredAll::Held(grants) = acquired else { panic!() };
    let held: Vec<_> = grants.iter().map(|grant| (grant.key.as_str(), grant.fence)).collect();
    assert_eq!(held, [("b", 7), ("a", 8)]);
    let seen = node.seen();
    assert_eq!((seen.len(), seen[0].path.as_str()), (1, "/v1/BATCH"));
    assert_eq!(seen[0].body["all_or_nothing"], true);
    let item = |at: usize| seen[0].body["commands"][at].clone();
    assert_eq!(
        (&item(0)["command"], &item(0)["operation"], &item(1)["key"]),
        (&"OP".into(), &"ACQUIRE".into(), &"a".into())
    );
    assert_eq!(item(0)["args"]["token"], item(1)["args"]["token"]);
    assert_eq!((item(0)["args"].get("wait_ms"), &item(0)["args"]["once"]), (None, &true.into()));
}

#[tokio::test]
async fn the_first_that_is_not_to_be_had_is_named_and_nothing_is_held() {
    let node = Fake::start([Act::ok(SECOND_IS_HELD)]).await;
    let acquired = Grant::acquire_all(&Client::new(&node.uri()), &keys(), Acquire::default()).await.unwrap();
    let AcquiredAll::NotHeld { key, why } = acquired else { panic!() };
    assert_eq!((key.as_str(), why.to_string().as_str()), ("a", "not acquired: held by b, fence 6"));
    assert_eq!(node.seen().len(), 1, "nothing to give back");
    let node = Fake::start([Act::problem(404, "no_such_key")]).await;
    let error = Grant::acquire_all(&Client::new(&node.uri()), &keys(), Acquire::default()).await.unwrap_err();
    assert!(matches!(error, AcquireError::Call(CallError::Refused(problem)) if problem.is(Code::NoSuchKey)));
}

#[tokio::test]
async fn a_lost_answer_is_resolved_by_the_token_and_proved_by_renewing_all() {
    let node = Fake::start([Act::Close, Act::ok(ONE_IS_YOURS), Act::ok(BOTH)]).await;
    let acquired = Grant::acquire_all(&Client::new(&node.uri()), &keys(), Acquire::default()).await.unwrap();
    assert!(matches!(acquired, AcquiredAll::Held(grants) if grants.len() == 2));
    let seen = node.seen();
    assert_eq!(seen[0].body, seen[1].body);
    assert_eq!(seen[2].body["commands"][1]["operation"], "RENEW");
    assert_eq!(
        (&seen[2].body["commands"][1]["args"]["fence"], &seen[2].body["all_or_nothing"]),
        (&8.into(), &true.into())
    );
}

#[tokio::test]
async fn what_is_in_doubt_or_not_proved_is_given_back() {
    let not_proved = [Act::ok(ONE_IS_YOURS), Act::ok(r#"{"result":false,"reason":"not_held","index":0}"#)];
    let in_doubt = [Act::Close, Act::ok(SECOND_IS_HELD)];
    for acts in [not_proved, in_doubt] {
        let [first, second] = acts;
        let node = Fake::start([first, second, Act::ok(GONE)]).await;
        let acquired = Grant::acquire_all(&Client::new(&node.uri()), &keys(), Acquire::default()).await.unwrap();
        assert!(matches!(acquired, AcquiredAll::NotHeld { .. }));
        node.arrived(3).await;
        let last = node.seen().pop().unwrap().body;
        let operations: Vec<_> =
            last["commands"].as_array().unwrap().iter().map(|one| one["operation"].as_str().unwrap()).collect();
        assert_eq!((operations, last.get("all_or_nothing")), (vec!["RELEASE"; 2], None), "each for itself");
    }
}

#[tokio::test]
async fn a_used_up_token_is_replaced() {
    let node = Fake::start([Act::ok(r#"{"result":false,"reason":"token_used","index":0}"#), Act::ok(BOTH)]).await;
    let acquired = Grant::acquire_all(&Client::new(&node.uri()), &keys(), Acquire::default()).await.unwrap();
    assert!(matches!(acquired, AcquiredAll::Held(_)));
    let token = |at: usize| node.seen()[at].body["commands"][0]["args"]["token"].clone();
    assert_ne!(token(0), token(1));
}

/// Two that want the same keys meet at the least of them.
#[tokio::test]
async fn waiting_takes_them_in_the_order_of_their_bytes() {
    let node = Fake::start([granted(7), granted(7), granted(8), granted(8)]).await;
    let acquired = Grant::acquire_all(&Client::new(&node.uri()), &keys(), waiting()).await.unwrap();
    let AcquiredAll::Held(grants) = acquired else { panic!() };
    assert_eq!(grants.iter().map(|grant| (grant.key.as_str(), grant.fence)).collect::<Vec<_>>(), [("b", 8), ("a", 7)]);
    let seen = node.seen();
    let asked: Vec<_> = seen
        .iter()
        .map(|seen| (seen.body["key"].as_str().unwrap(), seen.body["operation"].as_str().unwrap()))
        .collect();
    assert_eq!(asked, [("a", "ACQUIRE"), ("a", "RENEW"), ("b", "ACQUIRE"), ("b", "RENEW")]);
}

#[tokio::test]
async fn while_one_is_waited_for_the_others_are_renewed_and_given_back_in_the_end() {
    let short = r#"{"result":true,"fence":7,"ttl_ms":3000}"#;
    let told = Arc::new(tokio::sync::Notify::new());
    let waits = Act::When(Arc::clone(&told), r#"{"result":false,"reason":"deleted"}"#.to_owned());
    let node = Fake::start([Act::ok(short), Act::ok(short), waits, Act::ok(short)]).await;
    let client = Client::new(&node.uri());
    let acquiring = {
        let (client, acquire) = (client.clone(), Acquire { ttl_ms: 3000, ..waiting() });
        tokio::spawn(async move { Grant::acquire_all(&client, &keys(), acquire).await })
    };
    // Asked for and proved; the second asked for; the first renewed, twice.
    node.arrived(5).await;
    assert_eq!(node.operations()[3..5], ["RENEW", "RENEW"]);
    told.notify_one();
    let AcquiredAll::NotHeld { key, why } = acquiring.await.unwrap().unwrap() else { panic!() };
    assert_eq!((key.as_str(), why.reason.as_str()), ("b", "deleted"));
    let count = node.seen().len();
    if node.operations().last().unwrap() != "RELEASE" {
        node.arrived(count + 1).await;
    }
    assert_eq!(node.operations().last().unwrap(), "RELEASE");
}

#[tokio::test]
async fn one_that_is_lost_ends_the_wait_for_the_others() {
    let node = Fake::start([
        Act::ok(r#"{"result":true,"fence":7,"ttl_ms":3000}"#),
        Act::ok(r#"{"result":true,"fence":7,"ttl_ms":3000}"#),
        Act::Hang,
        Act::ok(r#"{"result":false,"reason":"broken","detail":"deploy"}"#),
    ])
    .await;
    let acquire = Acquire { ttl_ms: 3000, ..waiting() };
    let acquired = Grant::acquire_all(&Client::new(&node.uri()), &keys(), acquire).await.unwrap();
    assert!(matches!(acquired, AcquiredAll::NotHeld { key, why } if key == "a" && why.reason == "broken"));
}

#[tokio::test]
async fn a_guard_of_several_tells_which_is_lost_and_gives_all_back() {
    let node = Fake::start([Act::ok(BOTH), Act::ok(GONE)]).await;
    let client = Client::new(&node.uri());
    let acquired = Leases::acquire_all(&client, &keys(), Acquire::default()).await.unwrap();
    let AcquiredAll::Held(leases) = acquired else { panic!() };
    assert_eq!((leases.fence("a"), leases.fence("c"), leases.are_held()), (Some(8), None, true));
    assert_eq!(leases.release().await.unwrap(), 1, "one had ended before");
    assert_eq!(node.seen()[1].body["commands"][1]["args"]["fence"], 8);

    let lost = r#"{"result":false,"reason":"expired"}"#;
    let brief = BOTH.replace("30000}]", "3000}]");
    let node = Fake::start([Act::ok(&brief), Act::ok(lost)]).await;
    let acquire = Acquire { ttl_ms: 3000, ..Acquire::default() };
    let AcquiredAll::Held(leases) = Leases::acquire_all(&Client::new(&node.uri()), &keys(), acquire).await.unwrap()
    else {
        panic!()
    };
    let (key, lost) = leases.lost().await;
    assert!(!leases.are_held() && ["a", "b"].contains(&key.as_str()), "{key}: {lost}");
}

#[tokio::test]
async fn keys_are_at_least_one_and_none_twice() {
    let node = Fake::start([Act::ok(BOTH)]).await;
    for keys in [Vec::new(), vec!["a".to_owned(), "a".to_owned()]] {
        let error = Grant::acquire_all(&Client::new(&node.uri()), &keys, Acquire::default()).await.unwrap_err();
        assert!(error.to_string().contains("none of them twice"), "{error}");
    }
    assert_eq!(node.seen().len(), 0);
}

/// With the longest keys one BATCH of all would be larger than a node takes.
#[tokio::test]
async fn very_many_are_given_back_in_several_batches() {
    let trues = |count: usize| Act::ok(&format!(r#"{{"result":[{}]}}"#, vec![r#"{"result":true}"#; count].join(",")));
    let node = Fake::start([trues(250), Act::problem(403, "permission_denied"), trues(1)]).await;
    let client = Client::new(&node.uri());
    let deadline = client.clock().now().after(Duration::from_secs(60));
    let token = Token::random().unwrap();
    let grant = |n: u64| Grant { key: n.to_string(), token: token.clone(), fence: n, ttl_ms: 60_000, deadline };
    let leases = || Leases::keep(&client, (1..=501).map(grant).collect());
    let refused = leases().release().await.unwrap_err();
    assert!(matches!(refused, CallError::Refused(_)), "{refused:?}");
    let items: Vec<_> = node.seen().iter().map(|seen| seen.body["commands"].as_array().unwrap().len()).collect();
    assert_eq!(items, [250, 250, 1], "one that fails keeps none of the others");
    assert_eq!(leases().release().await.unwrap(), 3, "as this node counts them");
}
