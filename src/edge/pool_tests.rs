//! Waiting for slots of pools, on a real node of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use tokio::task::JoinHandle;

use super::tests::{Fixture, ID, MINUTE_MS, Outcome, hash};
use super::*;
use crate::keyspace::{Acquire, AcquireSlot, OnConflict, PoolOptions, PoolUuid, Reason, SlotOutcome, SlotReply};

const POOL: PoolUuid = PoolUuid([7; 16]);

/// A pool of one slot.
async fn pool() -> Fixture {
    let fixture = Fixture::open().await;
    let options = PoolOptions { size: 1, first: 5, on_conflict: OnConflict::Reject, ..PoolOptions::default() };
    let made = fixture.submit(Command::CreatePool { key: "p".into(), options, uuid: POOL }).await;
    assert_eq!(made, Reply::Done { result: true, reason: None });
    fixture
}

/// Any slot.
fn any(token: u8) -> Ask {
    Ask::Owner(Acquire {
        key: "p".into(),
        owner: format!("owner-{token}").into(),
        token: hash(token),
        ttl_ms: 60_000,
        create: false,
        note: None,
        min_hold_ms: None,
        delay_ms: None,
        once: false,
    })
}

/// An identity's slot.
fn own(token: u8) -> Ask {
    Ask::Identity(AcquireSlot {
        key: "p".into(),
        identity: format!("identity-{token}").into(),
        token: hash(token),
        ttl_ms: 60_000,
        avoid: None,
        unix_ms: None,
        note: None,
        once: false,
    })
}

fn slot(reply: Reply) -> SlotReply {
    match reply {
        Reply::Slot(slot) => *slot,
        other => panic!("{other:?}"),
    }
}

async fn wait(fixture: &Fixture, ask: Ask) -> JoinHandle<Outcome> {
    let (edge, token) = (fixture.edge.clone(), ask.token());
    let waiting = tokio::spawn(async move { edge.wait(ask, MINUTE_MS, Duration::MAX).await });
    fixture.until(|machine| machine.attached("p", token).is_some_and(|attach| attach.edge == ID)).await;
    waiting
}

async fn release(fixture: &Fixture, token: u8) {
    let released = fixture.submit(Command::Release { key: "p".into(), token: hash(token), fence: None }).await;
    assert!(matches!(&released, Reply::OfSlot { op, id: 5 } if op.result), "{released:?}");
}

async fn answer(waiting: JoinHandle<Outcome>) -> SlotReply {
    slot(waiting.await.unwrap().unwrap().reply)
}

#[tokio::test]
async fn a_slot_is_granted_at_once_or_in_turn_to_whoever_asked() {
    let fixture = pool().await;
    let first = fixture.edge.wait(any(1), MINUTE_MS, Duration::MAX).await.unwrap();
    assert_eq!(slot(first.reply).grant().unwrap().id, 5);
    let (second, third) = (wait(&fixture, own(2)).await, wait(&fixture, any(3)).await);
    release(&fixture, 1).await;
    let second = answer(second).await;
    let grant = second.grant().unwrap();
    assert_eq!((grant.id, grant.uuid, grant.ttl_ms), (5, POOL, 60_000));
    assert_eq!((grant.identity.as_deref(), second.reason, second.yours), (Some("identity-2"), None, false));
    release(&fixture, 2).await;
    let third = answer(third).await;
    assert_eq!(third.grant().unwrap().identity, None);
    assert!(third.grant().unwrap().fence > grant.fence);
}

#[tokio::test]
async fn the_end_of_a_wait_is_told_as_a_pool_tells_it() {
    let fixture = pool().await;
    let _held = fixture.edge.wait(own(1), MINUTE_MS, Duration::MAX).await.unwrap();
    for ask in [own(2), any(3)] {
        let ended = slot(fixture.edge.wait(ask, 50, Duration::MAX).await.unwrap().reply);
        assert_eq!((ended.outcome, ended.reason), (SlotOutcome::Nothing, Some(Reason::WaitTimeout)));
        // At least its ttl, and its quarantine after that.
        assert!(ended.retry_after_ms.is_some_and(|ms| (60_000..=120_000).contains(&ms)), "{:?}", ended.retry_after_ms);
    }
    let waiting = [wait(&fixture, own(2)).await, wait(&fixture, any(3)).await];
    fixture.submit(Command::Del { keys: vec!["p".into()], fence: None }).await;
    for waiting in waiting {
        assert_eq!(answer(waiting).await, SlotReply::nothing(Reason::Deleted));
    }
}

#[tokio::test]
async fn what_waiting_cannot_help_is_refused_at_once() {
    let fixture = pool().await;
    let _held = fixture.edge.wait(own(1), MINUTE_MS, Duration::MAX).await.unwrap();
    let Ask::Identity(ask) = own(1) else { panic!() };
    let refused = fixture.edge.wait(AcquireSlot { token: hash(2), ..ask }, MINUTE_MS, Duration::MAX).await.unwrap();
    assert_eq!(slot(refused.reply).reason, Some(Reason::IdentityInUse));
    let again = slot(fixture.edge.wait(own(1), MINUTE_MS, Duration::MAX).await.unwrap().reply);
    assert!(again.yours && again.grant().is_some());
}

#[tokio::test]
async fn a_slot_that_nobody_takes_is_returned() {
    let fixture = pool().await;
    let _held = fixture.edge.wait(own(1), MINUTE_MS, Duration::MAX).await.unwrap();
    let edge = fixture.edge.clone();
    let mut waiting = Box::pin(edge.wait(own(2), MINUTE_MS, Duration::MAX));
    assert!(futures_util::poll!(&mut waiting).is_pending());
    fixture.until(|machine| machine.attached("p", hash(2)).is_some()).await;
    let next = wait(&fixture, any(3)).await;
    release(&fixture, 1).await;
    fixture.until(|machine| machine.grants() == 1 && machine.attached("p", hash(2)).is_none()).await;
    drop(waiting);
    assert!(answer(next).await.grant().is_some());
}
