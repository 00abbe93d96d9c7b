//! Results and their extras: `{"result": …, "fence": …, …}`. What ACQUIRE, RENEW and HOLDERS of a pool answer stands in
//! `slots`, what GET shows in `snapshot`.

use serde::Serialize;
use tenure_cluster::Stamp;

use super::slots::{Holders, Slot};
use super::snapshot::{PoolSnapshot, Snapshot, snapshot};
use crate::keyspace::{HoldersPage, OpReply, Page, Place, Reason, Refusal, Reply, Shown};

/// An answer's JSON, and its result in a word, for counting.
pub struct Body {
    /// The JSON.
    pub json: Vec<u8>,
    /// `true`, `false` or `ok`.
    pub outcome: &'static str,
}

impl Body {
    fn of(answer: &impl Serialize, outcome: &'static str) -> Result<Self, serde_json::Error> {
        Ok(Self { json: serde_json::to_vec(answer)?, outcome })
    }
}

/// An error of a command that was applied: see `problem`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused<'a> {
    /// Why.
    pub refusal: &'a Refusal,
    /// The item of a BATCH `all_or_nothing`, from 0.
    pub index: Option<u32>,
}

/// The answer to a command that went through the log; `clock` is the stamp it was applied at. A refusal is no answer.
pub fn reply(reply: &Reply, clock: Stamp) -> Result<Result<Body, serde_json::Error>, Refused<'_>> {
    Ok(match reply {
        Reply::Refused(refusal) => return Err(Refused { refusal, index: None }),
        Reply::Op(reply) => op(reply),
        Reply::Queued { op, place } => Body::of(&Op { place: Some(*place), ..Op::from(op) }, "false"),
        Reply::OfSlot { op, id } => Body::of(&Op { id: Some(*id), ..Op::from(op) }, truth(op.result)),
        Reply::Slot(reply) => Body::of(&Slot::from(&**reply), truth(reply.grant().is_some())),
        Reply::SlotQueued(place) => Body::of(&Slot::from(*place), "false"),
        Reply::NotAll { index, why: Ok(reply) } => Body::of(&NotAll { op: Op::from(reply), index: *index }, "false"),
        Reply::NotAll { index, why: Err(refusal) } => return Err(Refused { refusal, index: Some(*index) }),
        Reply::Done { result, .. } => Body::of(&Answer::of(reply, clock), truth(*result)),
        Reply::Deleted(_) | Reply::View(_) | Reply::PoolView(_) => Body::of(&Answer::of(reply, clock), "ok"),
        Reply::Batch(replies) => {
            let items = replies.iter().map(|reply| Answer::of(reply, clock)).collect::<Vec<_>>();
            scalar(&items)
        }
    })
}

/// The answer to an OP.
pub fn op(reply: &OpReply) -> Result<Body, serde_json::Error> {
    Body::of(&Op::from(reply), truth(reply.result))
}

/// A result without extras.
pub fn scalar(result: &impl Serialize) -> Result<Body, serde_json::Error> {
    Body::of(&Plain { result, reason: None }, "ok")
}

/// GET.
pub fn view(shown: Option<&Shown>, clock: Stamp) -> Result<Body, serde_json::Error> {
    scalar(&shown.map(|shown| snapshot(shown, clock)))
}

/// SCAN.
pub fn page(page: &Page, clock: Stamp) -> Result<Body, serde_json::Error> {
    let keys = page.views.iter().map(|shown| snapshot(shown, clock)).collect();
    scalar(&Keys { keys, cursor: page.cursor.as_deref() })
}

/// OP HOLDERS.
pub fn holders(page: &HoldersPage, clock: Stamp) -> Result<Body, serde_json::Error> {
    scalar(&Holders::of(page, clock))
}

const fn truth(result: bool) -> &'static str {
    if result { "true" } else { "false" }
}

/// An item of a BATCH, or a whole answer.
#[derive(Serialize)]
#[serde(untagged)]
enum Answer<'a> {
    Op(Op<'a>),
    Slot(Slot<'a>),
    Done(Plain<bool>),
    Count(Plain<u64>),
    View(Plain<Option<Box<Snapshot<'a>>>>),
    Pool(Plain<PoolSnapshot<'a>>),
    Error { error: ItemError },
}

#[derive(Serialize)]
struct ItemError {
    code: &'static str,
    detail: String,
}

impl<'a> Answer<'a> {
    fn of(reply: &'a Reply, clock: Stamp) -> Self {
        match reply {
            Reply::Op(reply) => Self::Op(Op::from(reply)),
            Reply::Done { result, reason } => Self::Done(Plain { result: *result, reason: *reason }),
            Reply::Deleted(count) => Self::Count(Plain { result: *count, reason: None }),
            Reply::View(view) => {
                let result = view.as_deref().map(|view| Box::new(Snapshot::of(view, clock)));
                Self::View(Plain { result, reason: None })
            }
            Reply::Refused(refusal) => {
                let (code, detail) = crate::api::problem::refusal(refusal);
                Self::Error { error: ItemError { code: code.as_str(), detail } }
            }
            Reply::Queued { op, place } => Self::Op(Op { place: Some(*place), ..Op::from(op) }),
            Reply::OfSlot { op, id } => Self::Op(Op { id: Some(*id), ..Op::from(op) }),
            Reply::Slot(reply) => Self::Slot(Slot::from(&**reply)),
            Reply::SlotQueued(place) => Self::Slot(Slot::from(*place)),
            Reply::PoolView(view) => Self::Pool(Plain { result: PoolSnapshot::from(&**view), reason: None }),
            Reply::Batch(_) | Reply::NotAll { .. } => {
                let (code, detail) = (crate::api::problem::Code::Internal, "a BATCH inside a BATCH".to_owned());
                Self::Error { error: ItemError { code: code.as_str(), detail } }
            }
        }
    }
}

#[derive(Serialize)]
struct Plain<T> {
    result: T,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Reason>,
}

#[derive(Serialize)]
struct Op<'a> {
    result: bool,
    /// Of a pool: the slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Reason>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    yours: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    place: Option<Place>,
}

/// BATCH `all_or_nothing` of which nothing was done: the first item that was not true, and its answer.
#[derive(Serialize)]
struct NotAll<'a> {
    #[serde(flatten)]
    op: Op<'a>,
    index: u32,
}

impl<'a> From<&'a OpReply> for Op<'a> {
    fn from(reply: &'a OpReply) -> Self {
        Self {
            result: reply.result,
            id: None,
            fence: reply.fence,
            ttl_ms: reply.ttl_ms,
            owner: reply.owner.as_deref(),
            reason: reply.reason,
            yours: reply.yours,
            retry_after_ms: reply.retry_after_ms,
            detail: reply.detail.as_deref(),
            place: None,
        }
    }
}

#[derive(Serialize)]
struct Keys<'a, S> {
    keys: Vec<S>,
    cursor: Option<&'a str>,
}
