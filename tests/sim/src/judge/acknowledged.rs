//! What clients were answered, against the log.

use checker::{Answer, Call, Live, Operation, Position};
use tenure::edge::Ask;
use tenure::keyspace::{Command, Key, OpReply, Reason, Reply};
use tenure_cluster::Applied;

use super::events::Outcome;
use super::log::Log;
use super::{Verdict, value_digest};
use crate::clients::token_of;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Acquire,
    Wait,
    Renew,
    Release,
    Break,
    Delete,
    Expire,
    Persist,
    /// What no call of a history stands for.
    Other,
}

/// What is kept of a command and its reply.
#[derive(Debug)]
pub(super) struct Deed {
    kind: Kind,
    key: Option<Key>,
    result: bool,
    /// The live grant that the reply tells of.
    live: Option<Live>,
}

impl Deed {
    pub(super) fn of(command: &Command, reply: &Reply) -> Self {
        // A client sets a command without free text apart by a batch: its first is what it means, the rest only makes
        // its bytes differ.
        if let (Command::Batch(commands), Reply::Batch(replies)) = (command, reply)
            && let (Some(command), Some(reply)) = (commands.first(), replies.first())
            && !matches!(command, Command::Batch(_))
        {
            return Self::of(command, reply);
        }
        let (kind, key) = match command {
            Command::Acquire(ask) => (Kind::Acquire, Some(&ask.key)),
            Command::Wait(wait) => (Kind::Wait, Some(&wait.ask.key)),
            Command::WaitSlot(wait) => (Kind::Wait, Some(&wait.ask.key)),
            Command::Renew { key, .. } => (Kind::Renew, Some(key)),
            Command::Release { key, .. } => (Kind::Release, Some(key)),
            Command::Break { key, .. } => (Kind::Break, Some(key)),
            Command::Expire { key, .. } => (Kind::Expire, Some(key)),
            Command::Persist { key } => (Kind::Persist, Some(key)),
            // The first is meant; others only make its bytes differ.
            Command::Del { keys, .. } => (Kind::Delete, keys.first()),
            _ => (Kind::Other, None),
        };
        let (result, live) = match reply {
            Reply::Op(reply) => (reply.result, live_of(reply)),
            Reply::Done { result, .. } => (*result, None),
            Reply::Deleted(count) => (*count > 0, None),
            Reply::Queued { op, .. } => (false, live_of(op)),
            Reply::NotAll { .. } => (false, None),
            Reply::View(_) | Reply::Batch(_) | Reply::Refused(_) => (false, None),
            Reply::Slot(_) | Reply::SlotQueued(_) | Reply::OfSlot { .. } | Reply::PoolView(_) => (false, None),
        };
        Self { kind, key: key.cloned(), result, live }
    }

    /// Is it what this answer tells?
    fn is(&self, call: &Call, answer: &Answer) -> bool {
        let kind = match call.operation {
            Operation::Acquire { .. } => Kind::Acquire,
            Operation::Wait { .. } => Kind::Wait,
            Operation::Renew { .. } | Operation::Trespass { .. } => Kind::Renew,
            Operation::Release { .. } => Kind::Release,
            Operation::Break => Kind::Break,
            Operation::Delete => Kind::Delete,
            Operation::Expire { .. } => Kind::Expire,
            Operation::Persist => Kind::Persist,
            Operation::Get => return false,
        };
        let told = match answer {
            Answer::Granted(live) => self.result && self.live == Some(*live),
            Answer::Done => self.result,
            Answer::Refused { live, .. } => !self.result && (live.is_none() || *live == self.live),
            Answer::Seen(_) => false,
        };
        kind == self.kind && self.key.as_deref() == Some(&*call.key) && told
    }
}

fn live_of(reply: &OpReply) -> Option<Live> {
    reply.fence.zip(reply.ttl_ms).map(|(fence, ttl_ms)| Live { fence, ttl_ms })
}

/// Is it what this answer to a waiting call tells?
fn came(outcome: &Outcome, call: &Call, token: u64, answer: &Answer) -> bool {
    let is_its = *outcome.key == *call.key && outcome.token == token_of(&call.key, token);
    let granted = if let Answer::Granted(live) = answer { Some((live.fence, live.ttl_ms)) } else { None };
    is_its && granted.is_some() && outcome.came.ok() == granted
}

/// Judges what an edge of `node` answers a waiting request: the reply to it, or what came of it later.
pub(super) fn waited(node: u64, ask: &Ask, answer: &Applied<Reply>, log: &Log, verdict: &mut Verdict) {
    let position = answer.witness.position;
    let entry = log.entry(position.index);
    let step = entry.and_then(|entry| entry.steps.get(usize::try_from(position.ordinal).ok()?));
    let at_once = step.is_some_and(|step| {
        step.deed.kind == Kind::Wait && step.deed.key.as_ref() == Some(ask.key()) && step.replied(&answer.reply)
    });
    let later = log.events.outcomes(position).iter().any(|outcome| {
        let told = match (&outcome.came, &answer.reply) {
            (Ok(came), Reply::Op(reply)) => reply.result && reply.fence.zip(reply.ttl_ms) == Some(*came),
            (Ok(_), Reply::Slot(reply)) => outcome.answer == Some(value_digest(reply)),
            _ => false,
        };
        outcome.key == *ask.key() && outcome.token == ask.token() && told
    });
    // A wait without a grant is answered after its end, with what the node saw then.
    let ended = |reason: Reason| log.events.ended(ask.key(), ask.token(), reason, position);
    if !at_once && why_not(&answer.reply).is_some_and(ended) {
        return;
    }
    let stamp_ms = entry.map(|entry| entry.stamp_ms);
    if !(at_once || later) || stamp_ms != Some(answer.witness.clock.0) {
        let outcomes = log.events.outcomes(position);
        verdict.violated("AckedIsLogged", || {
            format!("the edge of node {node} answers {ask:?} {answer:?}; the log has {step:?} and {outcomes:?} under {stamp_ms:?}")
        });
    }
}

/// Why a wait came to nothing.
fn why_not(reply: &Reply) -> Option<Reason> {
    match reply {
        Reply::Op(reply) => reply.reason.filter(|_| !reply.result),
        Reply::Slot(reply) => reply.reason.filter(|_| reply.grant().is_none()),
        _ => None,
    }
}

/// Compares what clients of pools were told with what stands at its position: the same command, the same reply.
pub(super) fn told(command: &Command, answer: &Applied<Reply>, log: &Log, verdict: &mut Verdict) {
    let position = answer.witness.position;
    let entry = log.entry(position.index);
    let step = entry.and_then(|entry| entry.steps.get(usize::try_from(position.ordinal).ok()?));
    let is_so = step.is_some_and(|step| step.is(command) && step.replied(&answer.reply));
    let stamp_ms = entry.map(|entry| entry.stamp_ms);
    if !is_so || stamp_ms != Some(answer.witness.clock.0) {
        verdict.violated("AckedIsLogged", || {
            let deed = step.map(|step| &step.deed);
            format!("{command:?} was answered {answer:?}, and the log has {deed:?} under {stamp_ms:?}")
        });
    }
}

/// Compares every answered write with what stands at its position. Returns how many there were.
pub(super) fn compare(calls: &[Call], log: &Log, verdict: &mut Verdict) -> u64 {
    let mut compared = 0;
    for call in calls.iter().filter(|call| call.is_write()) {
        let Some((witness, answer)) = call.answered() else { continue };
        compared += 1;
        let Position { index, ordinal } = witness.position;
        let entry = log.entry(index);
        let step = entry.and_then(|entry| entry.steps.get(usize::try_from(ordinal).ok()?));
        let stamp_ms = entry.map(|entry| entry.stamp_ms);
        let later = match call.operation {
            Operation::Wait { token, .. } => {
                let position = tenure_cluster::Position { index, ordinal };
                log.events.outcomes(position).iter().any(|outcome| came(outcome, call, token, answer))
            }
            _ => false,
        };
        let at_once = step.is_some_and(|step| step.deed.is(call, answer));
        if stamp_ms != Some(witness.clock_ms) || !(at_once || later) {
            verdict.violated("AckedIsLogged", || {
                format!("{call}, and the log has {:?} under {stamp_ms:?}", step.map(|step| &step.deed))
            });
        }
    }
    compared
}
