//! What clients were answered, against the log.

use checker::{Answer, Call, Live, Operation, Position};
use tenure::keyspace::{Command, Key, Reply};

use super::Verdict;
use super::log::Log;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Acquire,
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
            Reply::Op(reply) => {
                let live = reply.fence.zip(reply.ttl_ms).map(|(fence, ttl_ms)| Live { fence, ttl_ms });
                (reply.result, live)
            }
            Reply::Done { result, .. } => (*result, None),
            Reply::Deleted(count) => (*count > 0, None),
            Reply::View(_) | Reply::Batch(_) | Reply::Refused(_) => (false, None),
        };
        Self { kind, key: key.cloned(), result, live }
    }

    /// Is it what this answer tells?
    fn is(&self, call: &Call, answer: &Answer) -> bool {
        let kind = match call.operation {
            Operation::Acquire { .. } => Kind::Acquire,
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
        if stamp_ms != Some(witness.clock_ms) || !step.is_some_and(|step| step.deed.is(call, answer)) {
            verdict.violated("AckedIsLogged", || {
                format!("{call}, and the log has {:?} under {stamp_ms:?}", step.map(|step| &step.deed))
            });
        }
    }
    compared
}
