//! One client: at which node it asks, and the writing down of every try.
//!
//! Each try is a call of its own: what the real client does inside one call (ask again with the same token, at another
//! node) is here several. What is in doubt is repeated only where the real client does.

use std::time::Duration;

use checker::{Answer, Call, Dice, Live, Operation, Outcome};
use tenure::keyspace::{Reply, Shown};
use tenure_cluster::Applied;

use super::Notes;
use super::board::{Board, Hint};
use super::convert;
use super::service::Service;
use crate::plan::Shape;
use crate::runtime;
use crate::world::NoReply;

/// Pauses after trouble: doubled from the least to the most.
const PAUSE_LEAST_MS: u64 = 10;
const PAUSE_MOST_MS: u64 = 400;
/// Lines of nonsense that are kept.
const NONSENSE_MAX: usize = 20;

/// See the module's head.
pub(super) struct Client<S> {
    pub number: u32,
    pub service: S,
    pub board: Board,
    pub notes: Notes,
    pub dice: Dice,
    pub ttl_ms: (u64, u64),
    pub request_timeout_ms: u64,
    ids: Vec<u64>,
    at: usize,
}

/// What came of a try.
pub(super) struct Told {
    pub sent_ns: u64,
    pub returned_ns: u64,
    pub outcome: Outcome,
}

impl<S: Service> Client<S> {
    pub(super) fn new(number: u32, service: &S, board: &Board, notes: &Notes, shape: &Shape, seed: u64) -> Self {
        let ids = service.ids();
        Self {
            number,
            service: service.clone(),
            board: board.clone(),
            notes: notes.clone(),
            // Beyond the dice of the plan.
            dice: Dice::new(seed, 1_000 + u64::from(number)),
            ttl_ms: shape.ttl_ms,
            request_timeout_ms: shape.request_timeout_ms,
            at: usize::try_from(number).unwrap() % ids.len(),
            ids,
        }
    }

    /// How long to wait for an answer: mostly longer than a node tries, now and then not.
    pub(super) fn patience(&mut self) -> Duration {
        let most_ms = self.request_timeout_ms;
        let impatient = self.dice.percent(12);
        let ms = if impatient { self.dice.in_range(20..=400) } else { self.dice.in_range(most_ms..=most_ms + 300) };
        Duration::from_millis(ms)
    }

    /// A lifetime to ask for.
    pub(super) fn lifetime_ms(&mut self) -> u64 {
        let (least, most) = self.ttl_ms;
        // Short ones are the ones that end while things go wrong.
        let most = if self.dice.percent(60) { least + (most - least) / 4 } else { most };
        self.dice.in_range(least..=most)
    }

    /// One try at the node of this client; `None`: there must be no more calls of this key.
    pub(super) async fn call(&mut self, key: &str, operation: Operation, patience: Duration) -> Option<Told> {
        let node = self.turn(3);
        let nth = self.board.count(key)?;
        let told = self.ask(node, key, operation, nth, patience).await;
        if matches!(told.outcome, Outcome::Nothing | Outcome::Unknown) {
            self.move_on();
        }
        Some(told)
    }

    /// The node that is asked next: now and then, in so many of a hundred, another than before.
    pub(super) fn turn(&mut self, percent: u64) -> u64 {
        if self.dice.percent(percent) {
            self.move_on();
        }
        self.ids[self.at]
    }

    fn move_on(&mut self) {
        self.at = (self.at + 1) % self.ids.len();
    }

    /// GET at each of `nodes` at once.
    pub(super) async fn look(&mut self, key: &str, nodes: usize) -> Option<()> {
        let patience = self.patience();
        let mut looks = Vec::with_capacity(nodes);
        for n in 0..nodes.min(self.ids.len()) {
            let nth = self.board.count(key)?;
            let node = self.ids[(self.at + n) % self.ids.len()];
            looks.push(self.ask(node, key, Operation::Get, nth, patience));
        }
        let told = futures_util::future::join_all(looks).await;
        if told.iter().any(|told| told.outcome == Outcome::Nothing) {
            self.move_on();
        }
        Some(())
    }

    /// One try at `node`, written down.
    pub(super) async fn ask(&self, node: u64, key: &str, operation: Operation, nth: u32, patience: Duration) -> Told {
        let operation = vary(operation, nth);
        let sent_ns = runtime::now_ns();
        let outcome = self.attempt(node, key, operation, nth, patience).await;
        let returned_ns = runtime::now_ns();
        if let Outcome::Answered(_, answer) = &outcome {
            self.hear(key, answer, sent_ns);
        }
        let call = Call {
            client: self.number,
            node,
            key: key.to_owned(),
            operation,
            invoked_ns: sent_ns,
            sent_ns,
            returned_ns,
            repeated: false,
            outcome: outcome.clone(),
        };
        // So that the trace's hash is one of the history too.
        runtime::trace_line(format_args!("{call}"));
        self.notes.calls.lock().unwrap().push(call);
        Told { sent_ns, returned_ns, outcome }
    }

    async fn attempt(&self, node: u64, key: &str, operation: Operation, nth: u32, patience: Duration) -> Outcome {
        if let Operation::Wait { token, ttl_ms, wait_ms } = operation {
            return self.wait_attempt(node, key, (token, ttl_ms), wait_ms, patience).await;
        }
        let Some(command) = convert::command(key, operation, nth) else {
            return match self.service.get(node, key.to_owned(), patience).await {
                Ok(seen) => {
                    let sight = convert::sight(seen.value.and_then(Shown::lease).as_ref());
                    Outcome::Answered(convert::witness(seen.witness), Answer::Seen(sight))
                }
                // A read has no effect.
                Err(NoReply::Nothing | NoReply::Unknown) => Outcome::Nothing,
            };
        };
        match self.service.submit(node, command.clone(), patience).await {
            Ok(applied) => self.answered(node, key, operation, &applied),
            Err(NoReply::Nothing) => {
                self.notes.without_effect.lock().unwrap().push(command);
                Outcome::Nothing
            }
            Err(NoReply::Unknown) => Outcome::Unknown,
        }
    }

    /// Waits in line; gone when `patience` is over, whatever the node would still do.
    async fn wait_attempt(
        &self,
        node: u64,
        key: &str,
        (token, ttl_ms): (u64, u64),
        wait_ms: u64,
        patience: Duration,
    ) -> Outcome {
        let stays = Duration::from_millis(wait_ms + self.request_timeout_ms);
        let answer = self.service.wait(node, convert::ask(key, token, ttl_ms), wait_ms, stays);
        let answer = tokio::select! { biased;
            answer = answer => answer,
            () = runtime::sleep(patience) => return Outcome::Unknown,
        };
        match answer {
            Ok(applied) => self.answered(node, key, Operation::Wait { token, ttl_ms, wait_ms }, &applied),
            Err(NoReply::Nothing) => Outcome::Nothing,
            Err(NoReply::Unknown) => Outcome::Unknown,
        }
    }

    fn answered(&self, node: u64, key: &str, operation: Operation, applied: &Applied<Reply>) -> Outcome {
        if let Some(answer) = convert::answer(operation, &applied.reply) {
            return Outcome::Answered(convert::witness(applied.witness), answer);
        }
        let line = format!("{operation:?} of {key} at node {node} was answered {:?}", applied.reply);
        let mut nonsense = self.notes.nonsense.lock().unwrap();
        if nonsense.len() < NONSENSE_MAX {
            nonsense.push(line);
        }
        Outcome::Unknown
    }

    /// Whatever an answer tells of the key's grant is told to all.
    fn hear(&self, key: &str, answer: &Answer, sent_ns: u64) {
        let hint = |live: &Live| Hint { fence: live.fence, ends_ns: sent_ns + live.ttl_ms * 1_000_000 };
        match answer {
            Answer::Granted(live) | Answer::Refused { live: Some(live), .. } => self.board.tell(key, Some(hint(live))),
            Answer::Seen(sight) => {
                self.board.tell(key, sight.as_ref().and_then(|sight| sight.held.as_ref()).map(hint));
            }
            Answer::Done | Answer::Refused { live: None, .. } => {}
        }
    }

    /// Waits some time of this range.
    pub(super) async fn rest(&mut self, ms: std::ops::RangeInclusive<u64>) {
        let us = self.dice.in_range(ms.start() * 1_000..=ms.end() * 1_000);
        runtime::sleep(Duration::from_micros(us)).await;
    }
}

/// Waits until then.
pub(super) async fn sleep_until(at_ns: u64) {
    let left_ns = at_ns.saturating_sub(runtime::now_ns());
    if left_ns > 0 {
        runtime::sleep(Duration::from_nanos(left_ns)).await;
    }
}

/// Makes the `nth` call of a key another than all before it.
fn vary(operation: Operation, nth: u32) -> Operation {
    let nth = u64::from(nth);
    match operation {
        // One token asks for one length plus this.
        Operation::Acquire { token, ttl_ms } => Operation::Acquire { token, ttl_ms: ttl_ms + nth },
        Operation::Wait { token, ttl_ms, wait_ms } => Operation::Wait { token, ttl_ms: ttl_ms + nth, wait_ms },
        Operation::Renew { token, fence, ttl_ms } => Operation::Renew { token, fence, ttl_ms: ttl_ms + nth },
        // Of one key there are fewer than 1 024 calls.
        Operation::Expire { ttl_ms } => Operation::Expire { ttl_ms: ttl_ms / 1_024 * 1_024 + nth },
        other => other,
    }
}

/// Pauses that grow, and differ.
#[derive(Default)]
pub(super) struct Backoff {
    tries: u32,
}

impl Backoff {
    pub(super) fn next_ms(&mut self, dice: &mut Dice) -> u64 {
        let most = PAUSE_LEAST_MS.saturating_mul(1 << self.tries.min(10)).min(PAUSE_MOST_MS);
        self.tries += 1;
        dice.in_range(most / 2..=most)
    }
}
