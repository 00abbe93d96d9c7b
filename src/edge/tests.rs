//! The edge on a real node of its own, called in process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::atomic::{AtomicBool, Ordering};

use tempfile::TempDir;
use tenure_cluster::{Config, Heard, Position};
use tokio::task::JoinHandle;

use super::*;
use crate::keyspace::{Acquire, Attach, OpReply, Reason, TokenHash, View, Wait};

pub(super) const ID: EdgeId = EdgeId { node: 1, incarnation: 7 };
pub(super) const MINUTE_MS: u64 = 60_000;

pub(super) struct Fixture {
    pub(super) edge: Edge<Keyspace>,
    requests: Arc<Requests>,
    /// While it is set, the edge hears nothing.
    deaf: Arc<AtomicBool>,
    _dir: TempDir,
}

pub(super) type Outcome = Result<Applied<Reply>, SubmitError>;

impl Fixture {
    pub(super) async fn open() -> Self {
        Self::with_max(10).await
    }

    async fn with_max(max: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (requests, deaf) = (Arc::new(Requests::with_max(max)), Arc::<AtomicBool>::default());
        let (heard, off) = (Arc::clone(&requests), Arc::clone(&deaf));
        let events = Arc::new(move |event: Heard<'_, Event>| {
            if !off.load(Ordering::Relaxed) {
                heard.hear(event);
            }
        });
        let cluster = Cluster::open(Config::single(dir.path().join("data")), events).await.unwrap();
        let edge = Edge::new(ID, cluster, Arc::clone(&requests));
        Self { edge, requests, deaf, _dir: dir }
    }

    pub(super) async fn submit(&self, command: Command) -> Reply {
        self.edge.shared.cluster.submit(command).await.unwrap().reply
    }

    /// `holder` has the lease from now on.
    async fn hold(&self) {
        assert!(op(self.submit(Command::Acquire(ask(0))).await).result);
    }

    async fn release(&self, token: u8) {
        let release = Command::Release { key: "k".into(), token: hash(token), fence: None };
        assert!(op(self.submit(release).await).result);
    }

    /// A request that waits for a minute, and stands in line.
    async fn wait(&self, token: u8) -> JoinHandle<Outcome> {
        let edge = self.edge.clone();
        let waiting = tokio::spawn(async move { edge.wait(ask(token), MINUTE_MS, Duration::MAX).await });
        self.until(|machine| machine.attached("k", hash(token)).is_some_and(|attach| attach.edge == ID)).await;
        waiting
    }

    fn view(&self) -> View {
        let read = |machine: &Keyspace, at| machine.get("k", at).unwrap().unwrap().lease().unwrap();
        self.edge.shared.cluster.read_stale(read).value
    }

    /// Awaits a state of the machine.
    pub(super) async fn until(&self, reached: impl Fn(&Keyspace) -> bool) {
        let awaited = async {
            while !self.edge.shared.cluster.read_stale(|machine, _| reached(machine)).value {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), awaited).await.expect("a state that is reached");
    }
}

pub(super) fn hash(token: u8) -> TokenHash {
    TokenHash([token; 16])
}

fn ask(token: u8) -> Acquire {
    Acquire {
        key: "k".into(),
        owner: format!("owner-{token}").into(),
        token: hash(token),
        ttl_ms: 60_000,
        create: true,
        note: None,
        min_hold_ms: None,
        delay_ms: None,
        once: false,
    }
}

fn op(reply: Reply) -> OpReply {
    match reply {
        Reply::Op(op) | Reply::Queued { op, .. } => op,
        other => panic!("{other:?}"),
    }
}

async fn answer(waiting: JoinHandle<Outcome>) -> OpReply {
    op(waiting.await.unwrap().unwrap().reply)
}

#[tokio::test]
async fn what_is_free_is_granted_at_once_and_what_is_not_in_turn() {
    let fixture = Fixture::open().await;
    let first = fixture.edge.wait(ask(1), MINUTE_MS, Duration::MAX).await.unwrap();
    assert_eq!(op(first.reply).fence, Some(1));
    let (second, third) = (fixture.wait(2).await, fixture.wait(3).await);
    fixture.release(1).await;
    let granted = second.await.unwrap().unwrap();
    let reply = op(granted.reply);
    assert_eq!((reply.result, reply.fence, reply.ttl_ms), (true, Some(2), Some(60_000)));
    assert_eq!(reply.owner.as_deref(), Some("owner-2"));
    assert_eq!(fixture.view().version, granted.witness.position);
    fixture.release(2).await;
    assert_eq!(answer(third).await.fence, Some(3));
}

#[tokio::test]
async fn what_the_machine_lost_sight_of_is_put_in_line_again_and_keeps_its_place() {
    let fixture = Fixture::open().await;
    fixture.hold().await;
    let (first, second) = (fixture.wait(1).await, fixture.wait(2).await);
    let was = fixture.edge.shared.cluster.read_stale(|machine, _| machine.attached("k", hash(1))).value;
    // As if this node had been silent.
    fixture.submit(Command::Away { edge: ID }).await;
    let again = |machine: &Keyspace, token| machine.attached("k", hash(token)).is_some_and(|now| Some(now) != was);
    fixture.until(|machine| again(machine, 1) && again(machine, 2)).await;
    // As if a snapshot had come, of which nobody knows what it passes over.
    fixture.requests.hear(Heard::Jump(Position::default()));
    fixture.release(0).await;
    let first = answer(first).await;
    // What was granted before it was asked for again is its own already.
    assert!((first.result || first.yours) && first.fence == Some(2), "{first:?}");
    fixture.release(1).await;
    let second = answer(second).await;
    assert!((second.result || second.yours) && second.fence == Some(3), "{second:?}");
}

#[tokio::test]
async fn a_place_is_not_taken_back_from_a_newer_request() {
    let fixture = Fixture::open().await;
    fixture.hold().await;
    let waiting = fixture.wait(1).await;
    fixture.deaf.store(true, Ordering::Relaxed);
    let attach = Attach { edge: EdgeId { node: 2, incarnation: 9 }, request: 1 };
    fixture.submit(Command::Wait(Wait { ask: ask(1), wait_ms: MINUTE_MS, attach })).await;
    fixture.deaf.store(false, Ordering::Relaxed);
    fixture.requests.hear(Heard::Jump(Position::default()));
    assert_eq!(answer(waiting).await.reason, Some(Reason::Superseded));
    fixture.edge.left(Duration::from_secs(10)).await;
    let stands = fixture.edge.shared.cluster.read_stale(|machine, _| machine.attached("k", hash(1))).value;
    assert_eq!(stands, Some(attach));
}

/// A request of token 1 that waits so long, one command of which was given up and may come late.
fn in_doubt(fixture: &Fixture, wait_ms: u64) -> (Wait, oneshot::Receiver<attendance::Answer>) {
    let late = Wait { ask: ask(1), wait_ms: MINUTE_MS, attach: Attach { edge: ID, request: u64::MAX } };
    let (shared, entered) = (Arc::clone(&fixture.edge.shared), fixture.requests.enter().unwrap());
    let mut attendance = Attendance::new(shared, entered, ask(1).into(), wait_ms, Duration::MAX);
    attendance.in_doubt.push(late.attach);
    attendance.may_be_own = Some(time::now::<TokioRuntime>() + Duration::from_secs(60));
    let (answer, answered) = oneshot::channel();
    tokio::spawn(attendance.attend(answer));
    (late, answered)
}

#[tokio::test]
async fn a_late_command_of_its_own_ends_no_wait_and_a_newer_call_does() {
    let fixture = Fixture::open().await;
    fixture.hold().await;
    let (late, answered) = in_doubt(&fixture, MINUTE_MS);
    fixture.until(|machine| machine.attached("k", hash(1)).is_some()).await;
    for _ in 0..2 {
        fixture.submit(Command::Wait(late.clone())).await;
        fixture.until(|machine| machine.attached("k", hash(1)).is_some_and(|attach| attach != late.attach)).await;
    }
    let newer = Attach { edge: EdgeId { node: 2, incarnation: 9 }, request: 1 };
    fixture.submit(Command::Wait(Wait { attach: newer, ..late })).await;
    let (outcome, _taken) = answered.await.unwrap();
    assert_eq!(op(outcome.unwrap().reply).reason, Some(Reason::Superseded));
    let stands = fixture.edge.shared.cluster.read_stale(|machine, _| machine.attached("k", hash(1))).value;
    assert_eq!(stands, Some(newer));
}

#[tokio::test]
async fn a_late_command_of_an_answered_request_leaves_nobody_in_line() {
    let fixture = Fixture::open().await;
    fixture.hold().await;
    // With somebody there the edge goes on to say that it is there, and time detaches nobody.
    let _other = fixture.wait(2).await;
    let (late, answered) = in_doubt(&fixture, 50);
    let (outcome, taken) = answered.await.unwrap();
    assert_eq!(op(outcome.unwrap().reply).reason, Some(Reason::WaitTimeout));
    taken.send(()).unwrap();
    // As a rule after the first look at it, and before the second.
    tokio::time::sleep(Duration::from_millis(200)).await;
    fixture.submit(Command::Wait(late)).await;
    fixture.until(|machine| machine.attached("k", hash(1)).is_none()).await;
}

#[tokio::test]
async fn whoever_goes_away_is_passed_over() {
    let fixture = Fixture::open().await;
    fixture.hold().await;
    let (first, second) = (fixture.wait(1).await, fixture.wait(2).await);
    first.abort();
    fixture.until(|machine| machine.attached("k", hash(1)).is_none()).await;
    fixture.release(0).await;
    assert_eq!(answer(second).await.fence, Some(2));
}

#[tokio::test]
async fn a_grant_that_nobody_takes_is_returned() {
    let fixture = Fixture::open().await;
    fixture.hold().await;
    let edge = fixture.edge.clone();
    let mut waiting = Box::pin(edge.wait(ask(1), MINUTE_MS, Duration::MAX));
    // Asked, and never looked at again.
    assert!(futures_util::poll!(&mut waiting).is_pending());
    fixture.until(|machine| machine.attached("k", hash(1)).is_some()).await;
    fixture.release(0).await;
    fixture
        .until(|machine| machine.get("k", Default::default()).ok().flatten().unwrap().lease().unwrap().grant.is_some())
        .await;
    drop(waiting);
    fixture.until(|machine| machine.grants() == 0).await;
    let last = fixture.view().last.unwrap();
    assert_eq!((last.fence, last.reason), (2, Reason::Undelivered));
}

/// Also one that was granted without waiting.
#[tokio::test]
async fn a_grant_at_once_that_nobody_takes_is_returned() {
    let fixture = Fixture::open().await;
    let edge = fixture.edge.clone();
    let mut waiting = Box::pin(edge.wait(ask(1), MINUTE_MS, Duration::MAX));
    assert!(futures_util::poll!(&mut waiting).is_pending());
    drop(waiting);
    fixture.edge.left(Duration::from_secs(10)).await;
    assert!(fixture.view().grant.is_none());
}

/// What a request is told, and how long that took. A disk or a machine that stands still for more than the margin before
/// the caller's end leaves it in doubt, which is right and proves nothing: then another try.
async fn told(fixture: &Fixture, wait_ms: u64, timeout: Duration) -> (Outcome, Duration) {
    let mut tries_left = 5;
    loop {
        let started = std::time::Instant::now();
        let outcome = fixture.edge.wait(ask(1), wait_ms, timeout).await;
        tries_left -= 1;
        if tries_left == 0 || !matches!(outcome, Err(SubmitError::OutcomeUnknown)) {
            return (outcome, started.elapsed());
        }
    }
}

#[tokio::test]
async fn a_wait_is_over_by_its_own_time_and_its_callers() {
    let fixture = Fixture::open().await;
    fixture.hold().await;
    // So long that the caller's answer has its whole margin: of a shorter time the margin is half.
    for (wait_ms, timeout) in [(50, Duration::MAX), (MINUTE_MS, Duration::from_secs(4))] {
        let (outcome, took) = told(&fixture, wait_ms, timeout).await;
        let reply = op(outcome.unwrap().reply);
        assert_eq!((reply.result, reply.reason, reply.fence), (false, Some(Reason::WaitTimeout), Some(1)));
        assert!(took < timeout.min(Duration::from_secs(10)), "{took:?}");
    }
    assert_eq!(fixture.view().waiters, 0);
}

#[tokio::test]
async fn no_more_wait_than_there_is_room_for() {
    let fixture = Fixture::with_max(1).await;
    fixture.hold().await;
    let waiting = fixture.wait(1).await;
    let refused = fixture.edge.wait(ask(2), MINUTE_MS, Duration::MAX).await.unwrap_err();
    assert!(matches!(&refused, SubmitError::Unavailable(why) if why.contains("1 requests")), "{refused:?}");
    fixture.release(0).await;
    answer(waiting).await;
    fixture.edge.left(Duration::from_secs(10)).await;
    assert_eq!(fixture.edge.waiting(), 0);
}

#[tokio::test]
async fn a_node_that_leaves_lets_go_of_all_and_takes_no_more() {
    let fixture = Fixture::open().await;
    fixture.hold().await;
    let waiting = [fixture.wait(1).await, fixture.wait(2).await];
    fixture.edge.leave();
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap().unwrap_err(), SubmitError::OutcomeUnknown);
    }
    let refused = fixture.edge.wait(ask(3), MINUTE_MS, Duration::MAX).await;
    assert!(matches!(refused, Err(SubmitError::Unavailable(_))), "{refused:?}");
    fixture.edge.left(Duration::from_secs(10)).await;
    // Their places are kept, and nobody is taken for waiting.
    let (view, edges) = (fixture.view(), fixture.edge.shared.cluster.read_stale(|machine, _| machine.edges().count()));
    assert_eq!((view.waiters, edges.value), (2, 0));
}

#[tokio::test]
async fn nothing_keeps_a_node_that_nobody_holds() {
    let fixture = Fixture::open().await;
    let node = Arc::downgrade(&fixture.edge.shared);
    let leadership = fixture.edge.shared.cluster.leadership();
    assert!(leadership.leads());
    drop(fixture);
    while node.strong_count() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
