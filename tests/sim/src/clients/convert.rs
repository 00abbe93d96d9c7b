//! Between the checker's words and the keyspace's: an operation becomes a command, a reply an answer. The same as HTTP
//! does with JSON in between.
//!
//! No two tries of a run have one command: whoever looks at what was applied can tell each. ACQUIRE and RENEW differ by
//! their `ttl_ms`, for which the caller sees to it; what has no such number is told apart by a word that has no effect.

use std::sync::Arc;

use checker::{Answer, Live, Operation, Sight, Witness};
use tenure::keyspace::{Acquire, Command, Key, OpReply, Reason, Refusal, Reply, TokenHash, View, token_hash};

/// All clients hold under one name: a name must never stand for a token.
const OWNER: &str = "worker";

/// Some grants have long notes: entries of many sectors, which a power cut can tear.
fn note(token: u64) -> Option<Arc<str>> {
    token.is_multiple_of(3).then(|| "n".repeat(1 + (token * 97 % 1024) as usize).into())
}

/// A token's hash.
pub fn token_of(key: &str, token: u64) -> TokenHash {
    token_hash(key, &format!("token-{token}"))
}

/// What ACQUIRE asks for.
pub(super) fn ask(key: &str, token: u64, ttl_ms: u64) -> Acquire {
    Acquire {
        key: Key::from(key),
        owner: Arc::from(OWNER),
        token: token_of(key, token),
        ttl_ms: i64::try_from(ttl_ms).unwrap(),
        create: true,
        note: note(token),
        min_hold_ms: None,
        delay_ms: None,
        once: true,
    }
}

/// The command of the `nth` call of `key`. `None` for GET, which is none.
pub(super) fn command(key: &str, operation: Operation, nth: u32) -> Option<Command> {
    let hash = |token: u64| token_of(key, token);
    let (name, ttl) = (Key::from(key), |ttl_ms: u64| i64::try_from(ttl_ms).unwrap());
    Some(match operation {
        // What waits is asked of an edge, which makes a command of it.
        Operation::Acquire { token, ttl_ms } | Operation::Wait { token, ttl_ms, .. } => {
            Command::Acquire(ask(key, token, ttl_ms))
        }
        Operation::Renew { token, fence, ttl_ms } => {
            Command::Renew { key: name, token: hash(token), ttl_ms: ttl(ttl_ms), fence: Some(fence) }
        }
        Operation::Trespass { fence, ttl_ms } => {
            Command::Renew { key: name, token: token_hash(key, &format!("stranger-{nth}")), ttl_ms: ttl(ttl_ms), fence }
        }
        Operation::Release { token, fence } => Command::Release { key: name, token: hash(token), fence: Some(fence) },
        Operation::Break => {
            Command::Break { key: name, reason: Arc::from(format!("break {nth}")), grace_ms: 0, fence: None }
        }
        // Of a key that never is, too.
        Operation::Delete => Command::Del { keys: vec![name, nowhere(nth)], fence: None },
        Operation::Expire { ttl_ms } => Command::Expire { key: name, ttl_ms },
        Operation::Persist => {
            let apart = Command::Check { key: nowhere(nth), fence: 1 };
            Command::Batch(vec![Command::Persist { key: name }, apart])
        }
        Operation::Get => return None,
    })
}

/// A key that nobody ever makes.
fn nowhere(nth: u32) -> Key {
    Key::from(format!("nowhere-{nth}"))
}

/// What a reply says; `None`: it is none to this operation.
pub(super) fn answer(operation: Operation, reply: &Reply) -> Option<Answer> {
    let refused = |reason: &str| Answer::Refused { reason: reason.to_owned(), live: None, yours: false };
    match (operation, reply) {
        (Operation::Persist, Reply::Batch(replies)) => done(replies.first()?),
        (Operation::Expire { .. }, reply) => done(reply),
        (Operation::Delete, Reply::Deleted(0)) => Some(refused("")),
        (Operation::Delete, Reply::Deleted(1)) => Some(Answer::Done),
        (Operation::Get | Operation::Persist | Operation::Delete, _) => None,
        (_, Reply::Op(reply)) => op(operation, reply),
        (_, Reply::Queued { op: reply, .. }) => op(operation, reply),
        (_, Reply::Refused(Refusal::NoSuchKey)) => Some(refused("no_such_key")),
        _ => None,
    }
}

/// EXPIRE and PERSIST.
fn done(reply: &Reply) -> Option<Answer> {
    match reply {
        Reply::Done { result: true, .. } => Some(Answer::Done),
        Reply::Done { reason, .. } => {
            Some(Answer::Refused { reason: reason.map(name).unwrap_or_default(), live: None, yours: false })
        }
        _ => None,
    }
}

fn op(operation: Operation, reply: &OpReply) -> Option<Answer> {
    let live = reply.fence.zip(reply.ttl_ms).map(|(fence, ttl_ms)| Live { fence, ttl_ms });
    Some(match operation {
        Operation::Acquire { .. } | Operation::Wait { .. } | Operation::Renew { .. } | Operation::Trespass { .. }
            if reply.result =>
        {
            Answer::Granted(live?)
        }
        _ if reply.result => Answer::Done,
        _ => Answer::Refused { reason: reply.reason.map(name).unwrap_or_default(), live, yours: reply.yours },
    })
}

/// The reason as it is on the wire.
fn name(reason: Reason) -> String {
    serde_json::to_value(reason).unwrap().as_str().unwrap().to_owned()
}

/// GET's.
pub(super) fn sight(view: Option<&View>) -> Option<Sight> {
    view.map(|view| Sight {
        held: view.grant.as_ref().map(|grant| Live { fence: grant.fence, ttl_ms: grant.ttl_ms }),
        last: view.last.as_ref().map(|ended| (ended.fence, name(ended.reason))),
    })
}

pub(super) fn witness(of: tenure_cluster::Witness) -> Witness {
    let tenure_cluster::Position { index, ordinal } = of.position;
    Witness { position: checker::Position { index, ordinal }, clock_ms: of.clock.0, term: of.term }
}
