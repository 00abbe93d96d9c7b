//! Results and their extras: `{"result": …, "fence": …, …}`.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use tenure_cluster::{Position, Stamp};

use crate::keyspace::{Ended, LeaseOptions, OpReply, Page, Place, Reason, Refusal, Reply, View};

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
        Reply::NotAll { index, why: Ok(reply) } => Body::of(&NotAll { op: Op::from(reply), index: *index }, "false"),
        Reply::NotAll { index, why: Err(refusal) } => return Err(Refused { refusal, index: Some(*index) }),
        Reply::Done { result, .. } => Body::of(&Answer::of(reply, clock), truth(*result)),
        Reply::Deleted(_) | Reply::View(_) => Body::of(&Answer::of(reply, clock), "ok"),
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
pub fn view(view: Option<&View>, clock: Stamp) -> Result<Body, serde_json::Error> {
    scalar(&view.map(|view| Snapshot::of(view, clock)))
}

/// The object that GET answers, for where it stands among others.
pub fn snapshot(view: &View, clock: Stamp) -> impl Serialize + '_ {
    Snapshot::of(view, clock)
}

/// SCAN.
pub fn page(page: &Page, clock: Stamp) -> Result<Body, serde_json::Error> {
    let keys = page.views.iter().map(|view| Snapshot::of(view, clock)).collect();
    scalar(&Keys { keys, cursor: page.cursor.as_deref() })
}

const fn truth(result: bool) -> &'static str {
    if result { "true" } else { "false" }
}

/// An item of a BATCH, or a whole answer.
#[derive(Serialize)]
#[serde(untagged)]
enum Answer<'a> {
    Op(Op<'a>),
    Done(Plain<bool>),
    Count(Plain<u64>),
    View(Plain<Option<Box<Snapshot<'a>>>>),
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
struct Keys<'a> {
    keys: Vec<Snapshot<'a>>,
    cursor: Option<&'a str>,
}

/// GET's object: every field is always there, null where a free lease has none.
#[derive(Serialize)]
struct Snapshot<'a> {
    key: &'a str,
    r#type: &'static str,
    held: bool,
    owner: Option<&'a str>,
    fence: Option<u64>,
    ttl_ms: Option<u64>,
    held_for_ms: Option<u64>,
    acquired_at: Option<String>,
    note: Option<&'a str>,
    broken: Option<&'a str>,
    waiters: u64,
    acquirable_in_ms: u64,
    key_ttl_ms: Option<u64>,
    auto_created: bool,
    options: Options,
    version: Text<Position>,
    last: Option<Last<'a>>,
}

#[derive(Serialize)]
struct Options {
    delay_ms: u64,
    min_hold_ms: u64,
    ttl_ms_max: Option<u64>,
}

#[derive(Serialize)]
struct Last<'a> {
    fence: u64,
    owner: &'a str,
    reason: Reason,
    ended_ms_ago: u64,
    detail: Option<&'a str>,
}

impl<'a> Snapshot<'a> {
    fn of(view: &'a View, clock: Stamp) -> Self {
        let grant = view.grant.as_ref();
        Self {
            key: &view.key,
            r#type: "lease",
            held: grant.is_some(),
            owner: grant.map(|grant| &*grant.owner),
            fence: grant.map(|grant| grant.fence),
            ttl_ms: grant.map(|grant| grant.ttl_ms),
            held_for_ms: grant.map(|grant| grant.held_for_ms),
            acquired_at: grant.and_then(|grant| rfc3339(grant.acquired_wall_ms)),
            note: grant.and_then(|grant| grant.note.as_deref()),
            broken: grant.and_then(|grant| grant.broken.as_deref()),
            waiters: view.waiters,
            acquirable_in_ms: view.acquirable_in_ms,
            key_ttl_ms: view.key_ttl_ms,
            auto_created: view.auto_created,
            options: Options::from(view.options),
            version: Text(view.version),
            last: view.last.as_ref().map(|ended| Last::of(ended, clock)),
        }
    }
}

impl From<LeaseOptions> for Options {
    fn from(options: LeaseOptions) -> Self {
        let LeaseOptions { delay_ms, min_hold_ms, ttl_ms_max } = options;
        Self { delay_ms, min_hold_ms, ttl_ms_max }
    }
}

impl<'a> Last<'a> {
    fn of(ended: &'a Ended, clock: Stamp) -> Self {
        Self {
            fence: ended.fence,
            owner: &ended.owner,
            reason: ended.reason,
            ended_ms_ago: clock.ms_since(ended.at),
            detail: ended.detail.as_deref(),
        }
    }
}

/// A value that is shown as its text.
struct Text<T>(T);

impl<T: std::fmt::Display> Serialize for Text<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// Unix milliseconds as RFC 3339; `None` past the year 9999, which has no such form.
pub fn rfc3339(unix_ms: u64) -> Option<String> {
    const YEAR_10000_UNIX_MS: u64 = 253_402_300_800_000;
    (unix_ms < YEAR_10000_UNIX_MS).then(|| {
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(unix_ms);
        humantime::format_rfc3339_millis(at).to_string()
    })
}
