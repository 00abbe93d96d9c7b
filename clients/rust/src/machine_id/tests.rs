//! The guard under clocks moved by hand, against scripted nodes.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::atomic::Ordering;

use tokio::sync::Notify;

use super::*;
use crate::client::Options;
use crate::fake::{Act, Fake, HandClock, HandWall, uri};
use crate::lease::LostBy;
use crate::time::{Clock, HostClock, own_deadline};
use crate::wire::{TookOver, reason};

const WALL: u64 = 1_796_000_000_000;

fn grant(fence: u64, ttl_ms: u64, floor: &str) -> String {
    format!(
        r#""id":3,"fence":{fence},"ttl_ms":{ttl_ms},"identity":"pod-1","pool":"u-1","first":0,"size":512,"floor_unix_ms":{floor}"#
    )
}

fn granted(ttl_ms: u64) -> Act {
    Act::ok(&format!(r#"{{"result":{{{}}}}}"#, grant(17, ttl_ms, "null")))
}

fn above(floor_unix_ms: u64) -> Act {
    Act::ok(&format!(r#"{{"result":{{{}}}}}"#, grant(17, 30_000, &floor_unix_ms.to_string())))
}

fn yours() -> Act {
    Act::ok(&format!(r#"{{"result":{{{}}},"yours":true}}"#, grant(17, 30_000, "null")))
}

fn renewed(ttl_ms: u64) -> Act {
    Act::ok(&format!(r#"{{"result":{{"status":"renewed",{}}}}}"#, grant(17, ttl_ms, "null")))
}

fn lost(reason: &str) -> Act {
    Act::ok(&format!(r#"{{"result":{{"status":"lost"}},"reason":"{reason}"}}"#))
}

fn no(reason: &str) -> Act {
    Act::ok(&format!(r#"{{"result":null,"reason":"{reason}","retry_after_ms":1500}}"#))
}

fn released() -> Act {
    Act::ok(r#"{"result":true}"#)
}

/// What nobody proved to be a node's word on the grant.
fn troubles() -> [Act; 9] {
    [
        Act::Answer(500, "oops".to_owned()),
        Act::Answer(404, "<h1>not here</h1>".to_owned()),
        Act::Answer(307, String::new()),
        Act::problem(401, "unauthenticated"),
        Act::problem(429, "rate_limited"),
        Act::problem(504, "outcome_unknown"),
        Act::Close,
        no("key_expired"),
        Act::ok(r#"{"result":false,"reason":"not_held"}"#),
    ]
}

fn has_trouble(state: &State) -> bool {
    matches!(state, State::Held { trouble: Some(_), .. })
}

/// Those who ask the nodes for pod-1, with that clock and a wall clock that stands.
fn ids(nodes: &[&Fake], clock: Arc<dyn Clock>) -> MachineIds {
    let addresses: Vec<&str> = nodes.iter().map(|node| node.address.as_str()).collect();
    let client = Client::with(&uri(&addresses), Options::default(), clock);
    MachineIds::new(client, "ids", "pod-1").wall_clock(HandWall::at(WALL))
}

fn of_host(node: &Fake) -> MachineIds {
    ids(&[node], Arc::new(HostClock))
}

/// Acquired under a wall clock that is set once the node was asked.
async fn acquired_while_set(
    ids: &MachineIds,
    node: &Fake,
    wall: &HandWall,
    unix_ms: u64,
) -> Result<MachineId, AcquireError> {
    let set = async {
        node.arrived(1).await;
        // The answer is here once its floor is compared with the clock as it was.
        wall.read_again().await;
        wall.set(unix_ms);
        std::future::pending::<()>().await
    };
    tokio::select! {
        acquired = ids.acquire() => acquired,
        () = set => panic!("it waits for ever"),
    }
}

#[tokio::test]
async fn an_id_is_renewed_at_a_third_and_its_deadline_moves() {
    let clock = Arc::new(HandClock::default());
    let node = Fake::start([granted(30_000), renewed(30_000)]).await;
    let machine_id = ids(&[&node], clock.clone()).acquire().await.unwrap();
    assert_eq!((machine_id.id(), machine_id.fence(), machine_id.pool_uuid()), (Ok(3), 17, "u-1"));
    let first = own_deadline(Boottime { ns: 0 }, 30_000);
    assert_eq!(machine_id.deadline(), Ok(first));
    let mut changes = machine_id.watch();
    clock.advance(9_999);
    assert_eq!(node.seen().len(), 1, "not before");
    clock.advance(1);
    changes.changed().await.unwrap();
    assert_eq!(machine_id.deadline(), Ok(first.after(Duration::from_secs(10))));
    let seen = node.seen();
    let (acquire, renew) = (&seen[0].body["args"], &seen[1].body["args"]);
    assert_eq!(
        (&acquire["identity"], &acquire["once"], &acquire["ttl_ms"]),
        (&"pod-1".into(), &true.into(), &30_000.into())
    );
    assert_eq!((acquire.get("owner"), acquire.get("create"), acquire.get("avoid")), (None, None, None));
    assert_eq!((&acquire["unix_ms"], &renew["unix_ms"]), (&WALL.into(), &WALL.into()));
    assert_eq!((&renew["fence"], &renew["token"]), (&17.into(), &acquire["token"]));
}

/// What is asked again is answered with the same grant, from then on: nothing more has to prove it.
#[tokio::test]
async fn a_lost_answer_is_resolved_by_the_token() {
    let node = Fake::start([Act::Close, yours()]).await;
    let machine_id = of_host(&node).acquire().await.unwrap();
    assert_eq!((machine_id.id(), machine_id.grant().yours), (Ok(3), true));
    let seen = node.seen();
    assert_eq!(node.operations(), ["ACQUIRE", "ACQUIRE"]);
    assert_eq!(seen[0].body["args"]["token"], seen[1].body["args"]["token"]);
}

#[tokio::test]
async fn a_grant_that_came_and_went_unseen_is_asked_for_with_a_fresh_token() {
    let node = Fake::start([Act::Close, no("token_used"), granted(30_000)]).await;
    let machine_id = of_host(&node).acquire().await.unwrap();
    let seen = node.seen();
    assert_ne!(seen[1].body["args"]["token"], seen[2].body["args"]["token"]);
    assert_eq!(machine_id.token().expose(), seen[2].body["args"]["token"]);
}

#[tokio::test]
async fn a_nodes_word_is_a_loss() {
    let broken = Act::ok(r#"{"result":{"status":"lost"},"reason":"broken","detail":"deploy"}"#);
    let cases = [
        (lost("taken_over"), "taken_over", "another process uses the same identity"),
        (lost("expired"), "expired", "stop using its id, then acquire again"),
        (lost("not_held"), "not_held", "stop using its id"),
        (broken, "broken", "broken (deploy): stop"),
        (Act::problem(404, "no_such_key"), "deleted", "slot lost: deleted: stop"),
        (Act::problem(409, "wrong_type"), "deleted", "deleted (told so)"),
    ];
    for (act, because, text) in cases {
        let clock = Arc::new(HandClock::default());
        let node = Fake::start([granted(30_000), act]).await;
        let machine_id = ids(&[&node], clock.clone()).acquire().await.unwrap();
        clock.advance(10_000);
        let lost = machine_id.lost().await;
        assert!(matches!(&lost.by, LostBy::Node { reason, .. } if reason == because), "{lost:?}");
        assert!(lost.to_string().contains(text), "{lost}");
        assert_eq!(machine_id.id(), Err(lost));
        assert!(!machine_id.release().await.unwrap());
        assert_eq!(node.operations(), ["ACQUIRE", "RENEW"], "nothing to give back");
    }
}

#[tokio::test]
async fn all_else_is_retried_and_is_no_loss() {
    for trouble in troubles() {
        let clock = Arc::new(HandClock::default());
        let node = Fake::start([granted(30_000), trouble.clone(), renewed(30_000)]).await;
        let machine_id = ids(&[&node], clock.clone()).acquire().await.unwrap();
        let mut changes = machine_id.watch();
        clock.advance(10_000);
        // Where the call itself goes on to the next try, there is no trouble to be seen.
        let moved = |state: &State| matches!(state, State::Held { deadline, .. } if deadline.ns > 35_000_000_000);
        changes.wait_for(|state| has_trouble(state) || moved(state)).await.unwrap();
        // The pause until the next call is counted by this clock.
        clock.advance(2_000);
        changes.wait_for(moved).await.unwrap();
        assert_eq!((machine_id.id(), node.seen().len()), (Ok(3), 3), "{trouble:?}");
    }
}

/// A wrong server behind one name does not cost the id while a node answers behind another.
#[tokio::test]
async fn the_next_endpoint_is_asked_after_a_strangers_answer() {
    let clock = Arc::new(HandClock::default());
    let first = Fake::start([granted(30_000), Act::Answer(404, "<h1>not here</h1>".to_owned())]).await;
    let second = Fake::start([renewed(30_000)]).await;
    let machine_id = ids(&[&first, &second], clock.clone()).acquire().await.unwrap();
    let mut changes = machine_id.watch();
    clock.advance(10_000);
    changes.wait_for(has_trouble).await.unwrap();
    clock.advance(2_000);
    tokio::select! {
        () = second.arrived(1) => {}
        () = first.arrived(3) => panic!("the stranger is asked again"),
    }
    assert_eq!(machine_id.id(), Ok(3));
}

#[tokio::test]
async fn a_partitioned_holder_fails_closed_at_its_own_deadline_and_not_before() {
    for act in [Act::Hang, Act::Answer(503, String::new()), Act::problem(503, "unavailable")] {
        let clock = Arc::new(HandClock::default());
        let node = Fake::start([granted(30_000), act]).await;
        let machine_id = ids(&[&node], clock.clone()).acquire().await.unwrap();
        clock.advance(10_000);
        node.arrived(2).await;
        let deadline = own_deadline(Boottime { ns: 0 }, 30_000);
        let left = clock.now().until(deadline);
        clock.0.fetch_add(u64::try_from(left.as_nanos()).unwrap() - 1, Ordering::SeqCst);
        assert_eq!(machine_id.id(), Ok(3));
        clock.0.fetch_add(1, Ordering::SeqCst);
        let lost = machine_id.id().unwrap_err();
        assert!(matches!(lost.by, LostBy::Deadline { .. }), "{lost:?}");
        assert_eq!(lost.deadline, deadline);
        assert!(deadline < Boottime { ns: 30_000_000_000 }, "before the node can give it on");
        assert_eq!(machine_id.lost().await, lost, "told again the same");
    }
}

/// The node counted from when it got the request; the holder, from before it sent it.
#[tokio::test]
async fn the_time_that_an_answer_took_is_subtracted() {
    let clock = Arc::new(HandClock::default());
    let told = Arc::new(Notify::new());
    let Act::Answer(_, body) = granted(30_000) else { panic!() };
    let node = Fake::start([Act::When(Arc::clone(&told), body)]).await;
    let ids = ids(&[&node], clock.clone());
    let acquired = tokio::spawn(async move { ids.acquire().await });
    node.arrived(1).await;
    clock.advance(4_000);
    told.notify_one();
    let machine_id = acquired.await.unwrap().unwrap();
    assert_eq!(machine_id.deadline(), Ok(own_deadline(Boottime { ns: 0 }, 30_000)));
}

#[tokio::test]
async fn an_answer_that_is_too_late_is_proved_by_renew() {
    let (clock, told) = (Arc::new(HandClock::default()), Arc::new(Notify::new()));
    let Act::Answer(_, body) = granted(30_000) else { panic!() };
    for (proof, is_held) in [(renewed(30_000), true), (lost("expired"), false)] {
        let acts = [Act::When(Arc::clone(&told), body.clone()), proof, no("exhausted")];
        let node = Fake::start(acts).await;
        let ids = ids(&[&node], clock.clone());
        let acquired = tokio::spawn(async move { ids.acquire().await });
        node.arrived(1).await;
        clock.advance(30_000);
        told.notify_one();
        let acquired = acquired.await.unwrap();
        assert_eq!(acquired.is_ok(), is_held, "{acquired:?}");
        assert_eq!(&node.operations()[..2], ["ACQUIRE", "RENEW"]);
    }
}

#[tokio::test]
async fn a_clock_that_is_past_the_floor_starts_at_once() {
    for floor in [WALL - 1, WALL - 5_000] {
        let node = Fake::start([above(floor)]).await;
        assert_eq!(of_host(&node).acquire().await.unwrap().id(), Ok(3));
        assert_eq!(node.operations(), ["ACQUIRE"]);
    }
}

#[tokio::test]
async fn up_to_two_seconds_behind_the_floor_are_waited_for() {
    // To the millisecond after it: in the floor's own an earlier holder may have been at work.
    for behind_ms in [0, 2_000] {
        let node = Fake::start([above(WALL + behind_ms)]).await;
        let (clock, wall) = (Arc::new(HandClock::default()), HandWall::at(WALL));
        let ids = ids(&[&node], clock).wall_clock(wall.clone());
        let machine_id = acquired_while_set(&ids, &node, &wall, WALL + behind_ms + 1).await.unwrap();
        assert_eq!(machine_id.id(), Ok(3));
        assert_eq!(wall.unix_ms(), WALL + behind_ms + 1, "not before");
    }
}

#[tokio::test]
async fn a_floor_that_took_a_third_of_the_ttl_is_followed_by_a_renew() {
    let node = Fake::start([above(WALL + 2_000), renewed(30_000)]).await;
    let (clock, wall) = (Arc::new(HandClock::default()), HandWall::at(WALL));
    let ids = ids(&[&node], clock.clone()).wall_clock(wall.clone());
    let passes = async {
        node.arrived(1).await;
        wall.read_again().await;
        clock.advance(10_000);
        wall.set(WALL + 10_000);
        std::future::pending::<()>().await
    };
    let machine_id = tokio::select! {
        acquired = ids.acquire() => acquired.unwrap(),
        () = passes => panic!(),
    };
    assert_eq!(machine_id.deadline(), Ok(own_deadline(Boottime { ns: 10_000_000_000 }, 30_000)));
    assert_eq!(node.operations(), ["ACQUIRE", "RENEW"]);
    assert_eq!(node.seen()[1].body["args"]["unix_ms"], WALL + 10_000);
}

/// The answer was under way while the clocks of earlier holders ran on: what the proof says counts too.
#[tokio::test]
async fn the_floor_of_the_proof_counts_too() {
    let (clock, told) = (Arc::new(HandClock::default()), Arc::new(Notify::new()));
    let Act::Answer(_, body) = granted(30_000) else { panic!() };
    let proof = format!(r#"{{"result":{{"status":"renewed",{}}}}}"#, grant(17, 30_000, &(WALL + 9_000).to_string()));
    let node = Fake::start([Act::When(Arc::clone(&told), body), Act::ok(&proof), released()]).await;
    let ids = ids(&[&node], clock.clone());
    let acquired = tokio::spawn(async move { ids.acquire().await });
    node.arrived(1).await;
    clock.advance(30_000);
    told.notify_one();
    let error = acquired.await.unwrap().unwrap_err();
    assert_eq!(error, AcquireError::ClockBehind { by: Duration::from_secs(9) });
    assert_eq!(node.operations(), ["ACQUIRE", "RENEW", "RELEASE"]);
}

#[tokio::test]
async fn a_clock_further_behind_gives_the_slot_back() {
    let node = Fake::start([above(WALL + 2_001), released()]).await;
    let error = of_host(&node).acquire().await.unwrap_err();
    assert_eq!(error, AcquireError::ClockBehind { by: Duration::from_millis(2_001) });
    assert!(error.to_string().contains("2.0 s behind") && error.to_string().contains("set it right"), "{error}");
    assert_eq!(node.operations(), ["ACQUIRE", "RELEASE"]);
    assert_eq!(node.seen()[1].body["args"]["fence"], 17);
}

#[tokio::test]
async fn a_clock_that_is_set_back_while_it_is_waited_for_is_behind() {
    let node = Fake::start([above(WALL + 1_000), released()]).await;
    let wall = HandWall::at(WALL);
    let ids = of_host(&node).wall_clock(wall.clone());
    let error = acquired_while_set(&ids, &node, &wall, WALL - 60_000).await.unwrap_err();
    assert_eq!(error, AcquireError::ClockBehind { by: Duration::from_secs(61) });
}

#[tokio::test]
async fn a_refusal_says_why_and_what_to_do() {
    let after = Some(Duration::from_millis(1_500));
    let identity = "pod-1".to_owned();
    let refused =
        |reason: &str| AcquireError::Refused(Refused { reason: reason.to_owned(), retry_after: after, detail: None });
    let cases = [
        ("exhausted", AcquireError::Exhausted { retry_after: after }, "in 1.5 s at the earliest"),
        (
            "identity_in_use",
            AcquireError::InUse { identity: identity.clone(), retry_after: after },
            r#"the identity "pod-1" is in use for 1.5 s"#,
        ),
        (
            "identity_conflict",
            AcquireError::Conflict { identity, retry_after: after },
            r#"two processes use the identity "pod-1""#,
        ),
        ("taken_over", refused(reason::TAKEN_OVER), "this token never gets it back"),
        ("key_expired", refused(reason::KEY_EXPIRED), "PERSIST it"),
    ];
    for (reason, wanted, text) in cases {
        let node = Fake::start([no(reason)]).await;
        let error = of_host(&node).acquire().await.unwrap_err();
        assert_eq!(error, wanted);
        assert!(error.to_string().contains(text), "{error}");
        assert_eq!(node.seen().len(), 1, "nothing to give back");
    }
    let node = Fake::start([Act::problem(404, "no_such_key")]).await;
    let error = of_host(&node).acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::Client(CallError::Refused(_))), "{error:?}");
}

#[tokio::test]
async fn a_token_resumes_its_grant_or_is_told_why_not() {
    let token = Token::from("kept in a file");
    // It may have ended while nobody looked: then it is granted anew.
    for act in [yours(), granted(30_000)] {
        let node = Fake::start([act]).await;
        let machine_id = of_host(&node).token(token.clone()).acquire().await.unwrap();
        assert_eq!((machine_id.id(), machine_id.token()), (Ok(3), &token));
        let args = &node.seen()[0].body["args"];
        assert_eq!((&args["token"], args.get("once")), (&"kept in a file".into(), None));
    }
    for reason in ["token_used", "taken_over"] {
        let node = Fake::start([no(reason)]).await;
        let error = of_host(&node).token(token.clone()).acquire().await.unwrap_err();
        assert!(matches!(&error, AcquireError::Refused(refused) if refused.reason == reason), "{error:?}");
        assert_eq!(node.seen().len(), 1, "the token is the caller's: no other one is taken");
    }
}

#[tokio::test]
async fn what_comes_with_the_grant_is_shown() {
    let clock = Arc::new(HandClock::default());
    let body = format!(
        r#"{{"result":{{{}}},"ttl_raised":true,"took_over":true,"prior_ttl_ms":900,"prior_fence":16}}"#,
        grant(17, 60_000, "null")
    );
    let node = Fake::start([Act::ok(&body), renewed(60_000)]).await;
    let ids = ids(&[&node], clock.clone()).ttl(Duration::from_secs(5)).avoid(9).note("v2").untold();
    let machine_id = ids.acquire().await.unwrap();
    let grant = machine_id.grant();
    assert_eq!((grant.ttl_raised, grant.slot.ttl_ms, grant.slot.size), (true, 60_000, 512));
    assert_eq!(grant.took_over, Some(TookOver { fence: Some(16), ttl_ms: 900 }));
    assert_eq!(grant.next, Boottime { ns: 20_000_000_000 }, "a third of what was given");
    let args = &node.seen()[0].body["args"];
    assert_eq!((&args["avoid"], &args["ttl_ms"], &args["note"]), (&9.into(), &5_000.into(), &"v2".into()));
    assert_eq!(args.get("unix_ms"), None);
}

#[tokio::test]
async fn release_is_exact_and_a_repeated_one_counts() {
    let not_held = Act::ok(r#"{"result":false,"reason":"not_held"}"#);
    let node = Fake::start([granted(30_000), Act::Close, not_held]).await;
    let machine_id = of_host(&node).acquire().await.unwrap();
    assert!(machine_id.release().await.unwrap());
    assert_eq!(node.operations(), ["ACQUIRE", "RELEASE", "RELEASE"]);
    assert_eq!(node.seen()[2].body["args"]["fence"], 17);
}

/// The work that used the id may still run: it ends by its ttl.
#[tokio::test]
async fn dropping_stops_the_renewal_and_tells_nobody() {
    let clock = Arc::new(HandClock::default());
    let node = Fake::start([granted(30_000)]).await;
    let ids = ids(&[&node], clock.clone());
    let machine_id = ids.acquire().await.unwrap();
    let mut changes = machine_id.watch();
    drop(machine_id);
    clock.advance(10_000);
    // The task is gone once nobody can change the state any more.
    assert!(changes.changed().await.is_err());
    // What was to be told in the background would have gone before this.
    ids.acquire().await.unwrap();
    assert_eq!(node.operations(), ["ACQUIRE", "ACQUIRE"]);
}

#[tokio::test]
async fn an_acquire_in_doubt_is_given_back() {
    let node = Fake::start([Act::Hang, released()]).await;
    let ids = of_host(&node);
    tokio::select! {
        _ = ids.acquire() => panic!("answered by a node that hangs"),
        () = node.arrived(1) => {}
    }
    node.arrived(2).await;
    let seen = node.seen();
    assert_eq!(node.operations(), ["ACQUIRE", "RELEASE"]);
    assert_eq!(seen[0].body["args"]["token"], seen[1].body["args"]["token"]);
}

#[tokio::test]
async fn each_try_tells_the_time_at_which_it_is_sent() {
    let wall = HandWall::at(WALL);
    let told = Arc::new(Notify::new());
    let slow = Fake::start([Act::When(Arc::clone(&told), String::new())]).await;
    let second = Fake::start([yours()]).await;
    let ids = ids(&[&slow, &second], Arc::new(HostClock)).wall_clock(wall.clone());
    let acquired = tokio::spawn(async move { ids.acquire().await });
    slow.arrived(1).await;
    wall.set(WALL + 700);
    told.notify_one();
    acquired.await.unwrap().unwrap();
    let unix_ms = |node: &Fake| node.seen()[0].body["args"]["unix_ms"].as_u64().unwrap();
    assert_eq!((unix_ms(&slow), unix_ms(&second)), (WALL, WALL + 700));
}

#[tokio::test]
async fn debug_shows_no_token() {
    let node = Fake::start([granted(30_000)]).await;
    let machine_id = of_host(&node).acquire().await.unwrap();
    assert!(!format!("{machine_id:?}").contains(machine_id.token().expose()));
}
