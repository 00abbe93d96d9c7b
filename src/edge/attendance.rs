//! The life of one request that waits.
//!
//! It is put in line, again and again if the machine loses sight of it, each time under a fresh number, until there is
//! an answer, its caller goes away, or this node cannot say what became of it. A command in flight is never let go:
//! what cleans up after it has to come later in the log.
//!
//! Then every number that may still stand in the machine is detached, but for that of which the caller has the answer. A
//! number whose command got no answer may yet be ordered by a leader that was cut off: nobody would wait for it, and it
//! might be granted. So it is detached once more after a while, whatever the caller was told.

use std::sync::Arc;
use std::time::Duration;

use tenure_cluster::planted::{self, Bug};
use tenure_cluster::raft::AsyncRuntime;
use tenure_cluster::time::{Instant, now, sleep};
use tenure_cluster::{Applied, Position, Seen, SubmitError};
use tokio::sync::oneshot;

use super::requests::{Entered, Number, Told};
use super::{Ask, Shared, Waitable, turned};
use crate::keyspace::{Attach, Command, OpReply, Reason, Reply, Shown, SlotReply, View};

/// A day.
const WAIT_MS_MAX: u64 = 86_400_000;
/// The machine ends a wait by the cluster's clock. That stands still while nobody leads, so the edge looks at its own.
const LATE: Duration = Duration::from_millis(250);
/// Of a caller's patience: left for the end of the wait to be ordered and answered. At most half of the whole.
const ANSWER_MARGIN: Duration = Duration::from_millis(500);
/// How long the machine may take to end a wait that is over.
const ENDS_WITHIN: Duration = Duration::from_secs(5);
/// How long a DETACH is tried. As long as a place is kept: then it would be told nothing new.
const DETACHED_WITHIN: Duration = Duration::from_secs(5);
/// Between two tries of a command that could not be ordered.
const PAUSE: Duration = Duration::from_millis(250);
/// How much later than it was given up a command may still be ordered, as far as anything is done about it.
const LATE_COMMAND: Duration = Duration::from_secs(5);
/// Commands of one request without an answer; then it is given up.
const DOUBTS_MAX: usize = 8;

/// What a caller gets, and what it says when it has it.
pub(super) type Answer = (Result<Applied<Reply>, SubmitError>, oneshot::Sender<()>);

/// A request and all that is known of it.
pub(super) struct Attendance<M: Waitable, RT: AsyncRuntime> {
    edge: Arc<Shared<M, RT>>,
    entered: Entered,
    ask: Ask,
    /// It stands in line for a slot of a pool; `None`: it was never told that it stands.
    for_slot: Option<bool>,
    /// When the wait is over.
    ends: Instant<RT>,
    /// When the caller must have its answer; `None`: no such time.
    answer_by: Option<Instant<RT>>,
    /// The number it was last put in line by, and where that stands in the log.
    stands: Option<(Attach, Position)>,
    /// Numbers whose command got no answer, and of which nothing was told.
    pub(super) in_doubt: Vec<Attach>,
    /// Until when a newer call of the same token may be one of its own commands, in doubt and late.
    pub(super) may_be_own: Option<Instant<RT>>,
}

impl<M: Waitable, RT: AsyncRuntime> Attendance<M, RT> {
    pub fn new(edge: Arc<Shared<M, RT>>, entered: Entered, ask: Ask, wait_ms: u64, timeout: Duration) -> Self {
        let started = now::<RT>();
        let answered = timeout.saturating_sub(ANSWER_MARGIN.min(timeout / 2));
        let wait = Duration::from_millis(wait_ms.clamp(1, WAIT_MS_MAX)).min(answered);
        // A timeout for ever has no end that could be reckoned.
        let answer_by = (timeout < Duration::from_secs(1 << 32)).then(|| started + timeout);
        let ends = started + wait;
        let (for_slot, stands, in_doubt, may_be_own) = (None, None, Vec::new(), None);
        Self { edge, entered, ask, for_slot, ends, answer_by, stands, in_doubt, may_be_own }
    }

    /// From the first command to the last.
    pub async fn attend(mut self, mut caller: oneshot::Sender<Answer>) {
        let outcome = self.outcome(&mut caller).await;
        let (taken, has_it) = oneshot::channel();
        let answered = match outcome {
            None => false,
            Some(outcome) => {
                let over = outcome.is_ok();
                // A caller that goes away in this moment drops what it was sent.
                caller.send((outcome, taken)).is_ok() && has_it.await.is_ok() && over
            }
        };
        if answered && !planted::has(Bug::DetachedAfterAnswer) {
            self.stands = None;
        }
        self.clean_up().await;
    }

    /// Waits; `None` once nobody listens any more.
    async fn outcome(&mut self, caller: &mut oneshot::Sender<Answer>) -> Option<Result<Applied<Reply>, SubmitError>> {
        loop {
            let mut number = match self.entered.register() {
                Ok(number) => number,
                Err(why) => return Some(Err(if self.is_known() { SubmitError::OutcomeUnknown } else { turned(why) })),
            };
            let told = match self.put_in_line(&mut number).await {
                Step::Told(told) => told,
                Step::Stands if caller.is_closed() => return None,
                Step::Stands => tokio::select! { biased;
                    told = self.told(&mut number) => told,
                    () = caller.closed() => return None,
                },
                Step::Answered(outcome) => return Some(outcome),
            };
            match told {
                Told::Granted(applied) => {
                    self.in_doubt.retain(|attach| *attach != number.attach);
                    self.stands = Some((number.attach, applied.witness.position));
                    return Some(Ok(applied));
                }
                Told::Ended(Reason::Superseded) if self.is_own() => {}
                Told::Ended(reason) => return Some(Ok(self.ended(reason))),
                Told::Again if self.is_elsewhere() => return Some(Ok(self.ended(Reason::Superseded))),
                Told::Again => {}
                Told::Forsaken => return Some(Err(SubmitError::OutcomeUnknown)),
            }
            if caller.is_closed() {
                return None;
            }
        }
    }

    /// Was it one of its own late commands that took its place? Then nobody else stands there by now.
    fn is_own(&self) -> bool {
        let other = || self.attached().value.is_some_and(|attach| !self.in_doubt.contains(&attach));
        self.may_be_own.is_some_and(|until| now::<RT>() < until) && !other()
    }

    /// By which request its token stands in line.
    fn attached(&self) -> Seen<Option<Attach>> {
        self.edge.cluster.read_stale(|machine, _| machine.as_ref().attached(self.ask.key(), self.ask.token()))
    }

    /// Does its client wait at a newer request by now? Then this one must not take the place again. Before it stood in
    /// line, another request is the older one: that of a node that is gone, and that nobody has told the machine of.
    fn is_elsewhere(&self) -> bool {
        let Some((own, since)) = self.stands else { return false };
        let Seen { value: attached, witness, .. } = self.attached();
        let newer = attached.is_some_and(|attach| attach != own && !self.in_doubt.contains(&attach));
        newer && witness.position >= since
    }

    /// Was a command of it handed to the cluster that may still mean something?
    fn is_known(&self) -> bool {
        self.stands.is_some() || !self.in_doubt.is_empty()
    }

    async fn put_in_line(&mut self, number: &mut Number) -> Step {
        let attach = number.attach;
        let left = self.ends.max(now::<RT>()) - now::<RT>();
        let wait_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1);
        let wait = self.ask.clone().waiting(wait_ms, attach);
        match self.edge.cluster.submit_within(wait, self.patience()).await {
            Ok(applied) => {
                // Also where it is granted: a grant that nobody takes is to be returned.
                self.stands = Some((attach, applied.witness.position));
                self.for_slot = match applied.reply {
                    Reply::Queued { .. } => Some(false),
                    Reply::SlotQueued(_) => Some(true),
                    _ => return Step::Answered(Ok(applied)),
                };
                Step::Stands
            }
            Err(SubmitError::OutcomeUnknown) => {
                self.in_doubt.push(attach);
                self.may_be_own = Some(now::<RT>() + LATE_COMMAND);
                match number.told_yet() {
                    Some(told) => Step::Told(told),
                    None if self.in_doubt.len() < DOUBTS_MAX && !self.patience().is_zero() => Step::Told(Told::Again),
                    None => Step::Answered(Err(SubmitError::OutcomeUnknown)),
                }
            }
            Err(SubmitError::Unavailable(_)) if self.is_known() => Step::Answered(Err(SubmitError::OutcomeUnknown)),
            Err(error) => Step::Answered(Err(error)),
        }
    }

    /// How long the caller still waits for an answer.
    fn patience(&self) -> Duration {
        self.answer_by.map_or(Duration::MAX, |by| by.max(now::<RT>()) - now::<RT>())
    }

    /// What is told of a number that stands in line. When its time is over, and the machine does not say so, it is ended.
    async fn told(&self, number: &mut Number) -> Told {
        let late = self.ends + LATE;
        let late = self.answer_by.map_or(late, |by| late.min(by));
        let attach = number.attach;
        tokio::select! { biased;
            told = number.told() => return told,
            () = sleep::<RT>(late.max(now::<RT>()) - now::<RT>()) => {}
        }
        tokio::select! { biased;
            told = number.told() => told,
            () = self.cancel(attach) => Told::Forsaken,
        }
    }

    /// Ends the wait. Returns when the machine should have told of its end long since.
    async fn cancel(&self, attach: Attach) {
        let until = now::<RT>() + ENDS_WITHIN.min(self.patience());
        let (key, token) = (self.ask.key().clone(), self.ask.token());
        let cancel = || Command::Cancel { key: key.clone(), token, attach };
        self.insist(cancel, until).await;
        sleep::<RT>(until.max(now::<RT>()) - now::<RT>()).await;
    }

    /// Orders a command that may be repeated, at most until then.
    async fn insist(&self, command: impl Fn() -> Command, until: Instant<RT>) {
        loop {
            let left = until.max(now::<RT>()) - now::<RT>();
            if left.is_zero() || self.edge.cluster.submit_within(command(), left).await.is_ok() {
                return;
            }
            sleep::<RT>(PAUSE.min(left)).await;
        }
    }

    /// The answer to a wait that ended without a grant: with how the key is as this node sees it now.
    fn ended(&self, reason: Reason) -> Applied<Reply> {
        let view = |machine: &M, at| machine.as_ref().get(self.ask.key(), at).ok().flatten();
        let Seen { value: shown, witness, .. } = self.edge.cluster.read_stale(view);
        let reply = match shown {
            _ if self.is_for_slot(shown.as_ref()) => {
                let opens = shown.and_then(Shown::pool).map(|pool| pool.acquirable_in_ms).filter(|ms| *ms > 0);
                let retry_after_ms = opens.filter(|_| reason == Reason::WaitTimeout);
                Reply::Slot(Box::new(SlotReply { retry_after_ms, ..SlotReply::nothing(reason) }))
            }
            shown => Reply::Op(ended_for_lease(reason, shown.and_then(Shown::lease))),
        };
        Applied { reply, witness }
    }

    /// Was a slot of a pool waited for? What it was told counts, then what it asked for, then what the key is by now.
    fn is_for_slot(&self, shown: Option<&Shown>) -> bool {
        let asked = matches!(self.ask, Ask::Identity(_));
        self.for_slot.unwrap_or(asked || matches!(shown, Some(Shown::Pool(_))))
    }

    /// Tells the machine that nobody waits any more.
    async fn clean_up(self) {
        let until = now::<RT>() + DETACHED_WITHIN;
        for attach in self.in_doubt.iter().copied().chain(self.stands.map(|(attach, _)| attach)) {
            self.detach(attach, until).await;
        }
        if self.in_doubt.is_empty() || self.edge.requests.is_leaving() {
            return;
        }
        sleep::<RT>(until.max(now::<RT>()) - now::<RT>()).await;
        let until = now::<RT>() + DETACHED_WITHIN;
        for attach in &self.in_doubt {
            self.detach(*attach, until).await;
        }
    }

    async fn detach(&self, attach: Attach, until: Instant<RT>) {
        let (key, token) = (self.ask.key().clone(), self.ask.token());
        self.insist(|| Command::Detach { key: key.clone(), token, attach }, until).await;
    }
}

/// The answer to whoever waited for a lease in vain: with its live grant.
fn ended_for_lease(reason: Reason, view: Option<View>) -> OpReply {
    let opens = view.as_ref().map(|view| view.acquirable_in_ms);
    let grant = view.and_then(|view| view.grant);
    OpReply {
        reason: Some(reason),
        fence: grant.as_ref().map(|grant| grant.fence),
        ttl_ms: grant.as_ref().map(|grant| grant.ttl_ms),
        owner: grant.map(|grant| grant.owner),
        retry_after_ms: opens.filter(|_| reason == Reason::MinHold),
        ..OpReply::default()
    }
}

/// What a command to be put in line came to.
enum Step {
    /// It stands in line.
    Stands,
    /// More is known already.
    Told(Told),
    /// It does not stand in line, and this is why.
    Answered(Result<Applied<Reply>, SubmitError>),
}
