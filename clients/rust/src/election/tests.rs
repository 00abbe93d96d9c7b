//! Campaigns and observers against a scripted node.

#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::client::CallError;
use crate::fake::{Act, Fake};

const GRANTED: &str = r#"{"result":true,"fence":7,"ttl_ms":30000}"#;

fn no(reason: &str) -> Act {
    Act::ok(&format!(r#"{{"result":false,"reason":"{reason}"}}"#))
}

fn election(node: &Fake) -> Election {
    Election::new(&Client::new(&node.uri()), "k", Acquire { note: Some("n".to_owned()), ..Acquire::default() })
}

#[tokio::test]
async fn a_candidate_waits_without_end_and_then_holds_a_lease() {
    let acts =
        [no("wait_timeout"), no("deleted"), Act::problem(503, "unavailable"), Act::ok(GRANTED), Act::ok(GRANTED)];
    let node = Fake::start(acts).await;
    let lease = election(&node).campaign().await.unwrap();
    assert_eq!((lease.fence(), lease.is_held()), (7, true));
    let seen = node.seen();
    assert_eq!(node.operations(), ["ACQUIRE", "ACQUIRE", "ACQUIRE", "ACQUIRE", "RENEW"]);
    assert!(seen[..4].iter().all(|seen| seen.body["args"]["wait_ms"] == 86_400_000), "a day at a time");
    assert_eq!(seen[0].body["args"]["note"], "n");
}

#[tokio::test]
async fn turns_that_came_and_went_unseen_do_not_end_a_campaign() {
    for reason in ["expired", "not_held", "broken"] {
        let mut acts: Vec<Act> = (0..6).flat_map(|_| [Act::ok(GRANTED), no(reason)]).collect();
        acts.extend([no("token_used"), Act::ok(GRANTED), Act::ok(GRANTED)]);
        let node = Fake::start(acts).await;
        assert!(election(&node).campaign().await.unwrap().is_held(), "{reason}");
        assert_eq!(node.operations().len(), 15);
    }
    // Its own token is used up with its first turn.
    let node = Fake::start([Act::ok(GRANTED), no("expired"), no("token_used")]).await;
    let acquire = Acquire { token: Some(crate::Token::random().unwrap()), ..Acquire::default() };
    let error = Election::new(&Client::new(&node.uri()), "k", acquire).campaign().await.unwrap_err();
    assert!(matches!(&error, CampaignError::Never(why) if why.reason == "token_used"), "{error:?}");
}

#[tokio::test]
async fn a_campaign_that_can_never_be_won_is_over() {
    for reason in ["ttl_not_positive", "cancelled_wait"] {
        let node = Fake::start([no(reason)]).await;
        let error = election(&node).campaign().await.unwrap_err();
        assert!(matches!(&error, CampaignError::Never(why) if why.reason == reason), "{error:?}");
    }
    let node = Fake::start([Act::problem(403, "permission_denied")]).await;
    let error = election(&node).campaign().await.unwrap_err();
    assert!(matches!(error, CampaignError::Acquire(AcquireError::Call(CallError::Refused(_)))), "{error:?}");
}

#[tokio::test]
async fn a_campaign_that_is_given_up_leaves_the_line() {
    let node = Fake::start([Act::Hang, Act::ok(r#"{"result":false,"reason":"cancelled_wait"}"#)]).await;
    let election = election(&node);
    tokio::select! {
        _ = election.campaign() => panic!("answered by a node that hangs"),
        () = node.arrived(1) => {}
    }
    node.arrived(2).await;
    assert_eq!(node.operations(), ["ACQUIRE", "RELEASE"]);
}

fn event(owner: &str, fence: u64) -> String {
    format!(r#"{{"key":"k","owner":"{owner}","fence":{fence},"position":"6.0","clock_ms":9}}"#)
}

fn reset(reason: &str, keys: &str) -> String {
    format!(r#"{{"reason":"{reason}","keys":{keys},"more":false}}"#)
}

fn leads(owner: &str, fence: u64, note: Option<&str>) -> Option<Leader> {
    Some(Leader { owner: owner.to_owned(), fence, note: note.map(str::to_owned) })
}

#[tokio::test]
async fn an_observer_is_told_each_leader_once() {
    let held = r#"[{"key":"k","type":"lease","held":true,"owner":"a","fence":5,"note":"x"}]"#;
    let again = r#"[{"key":"k","type":"lease","held":true,"owner":"c","fence":7}]"#;
    let first = vec![
        ("c-5.0", "reset", reset("start", held)),
        ("c-6.0.0", "renewed", event("a", 5)),
        ("c-7.0.0", "broken", event("a", 5)),
        ("c-7.0.1", "granted", event("b", 6)),
        ("c-8.0.0", "released", event("b", 6)),
        ("c-8.0.1", "granted", event("c", 7)),
        ("c-9.0.0", "expired", event("a", 5)),
    ];
    let second = vec![("c-20.0", "reset", reset("too_old", again)), ("c-21.0.0", "deleted", event("c", 7))];
    let node = Fake::start([Act::Events(first), Act::Events(second), Act::Hang]).await;
    node.shows(r#"{"result":{"key":"k","type":"lease","held":true,"owner":"b","fence":6,"note":"n"}}"#);
    let mut observation = election(&node).observe();
    let expected = [
        leads("a", 5, Some("x")),
        None,
        leads("b", 6, Some("n")),
        None,
        // The view is of another leadership: its note is not this one's.
        leads("c", 7, None),
        None,
    ];
    for expected in expected {
        let told = tokio::time::timeout(Duration::from_secs(10), observation.next()).await.unwrap().unwrap();
        assert_eq!(told, expected);
    }
}

#[tokio::test]
async fn an_observer_that_is_refused_hears_why() {
    let node = Fake::start([Act::problem(403, "permission_denied")]).await;
    let error = election(&node).observe().next().await.unwrap_err();
    assert!(matches!(error, WatchError::Refused(_)), "{error:?}");
}
