//! Server-sent events: one item, one message.

use serde::Serialize;
use tenure_cluster::Stamp;

use crate::api::convert;
use crate::edge::history::Told;
use crate::edge::watch::{Item, Page, full_id};
use crate::keyspace::{Event, EventKind, Reason, View};

/// What happened; what there is none of is left out.
#[derive(Serialize)]
struct EventData<'a> {
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Reason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
    position: String,
    clock_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
}

#[derive(Serialize)]
struct ResetData<K> {
    reason: &'static str,
    keys: Option<Vec<K>>,
    more: bool,
    clock_ms: u64,
}

#[derive(Serialize)]
struct CutData {
    reason: &'static str,
}

#[derive(Serialize)]
struct HeartbeatData {}

/// Appends `item`.
pub fn write(out: &mut String, item: &Item, cluster: &str) {
    match item {
        Item::Event(told) => {
            message(out, Some(full_id(cluster, told.id())), name(told.event.kind), &event(told));
        }
        Item::Reset(page) => reset(out, page, cluster),
        Item::Heartbeat(id) => message(out, Some(full_id(cluster, *id)), "heartbeat", &HeartbeatData {}),
        Item::Cut(why) => message(out, None, "cut", &CutData { reason: why.as_str() }),
    }
}

fn reset(out: &mut String, page: &Page, cluster: &str) {
    let Page { why, views, clock, id } = page;
    let keys = views.as_ref().map(|views| views.iter().map(|view| key(view, *clock)).collect());
    let data = ResetData { reason: why.as_str(), keys, more: id.is_none(), clock_ms: clock.0 };
    message(out, id.map(|id| full_id(cluster, id)), "reset", &data);
}

fn key(view: &View, clock: Stamp) -> impl Serialize + '_ {
    convert::snapshot(view, clock)
}

/// A client's parser takes an event without data for none: there is always some.
fn message(out: &mut String, id: Option<String>, event: &str, data: &impl Serialize) {
    // What is written here are texts and numbers under names: it always has a JSON form, in one line.
    let Ok(data) = serde_json::to_string(data) else { return };
    if let Some(id) = id {
        out.extend(["id: ", &id, "\n"]);
    }
    out.extend(["event: ", event, "\ndata: ", &data, "\n\n"]);
}

fn event(told: &Told) -> EventData<'_> {
    let Told { at, event } = told;
    EventData {
        key: &event.key,
        fence: event.fence,
        owner: event.owner.as_deref(),
        ttl_ms: event.ttl_ms,
        reason: reason(event),
        detail: event.detail.as_deref(),
        position: at.position.to_string(),
        clock_ms: at.stamp.0,
        at: convert::rfc3339(at.wall_ms),
    }
}

/// Why a grant ended: `undelivered` and the like where the machine says so, else what the event's kind says.
fn reason(event: &Event) -> Option<Reason> {
    event.reason.or(match event.kind {
        EventKind::Released => Some(Reason::Released),
        EventKind::Expired => Some(Reason::Expired),
        EventKind::Broken => Some(Reason::Broken),
        EventKind::Deleted if event.fence.is_some() => Some(Reason::Deleted),
        _ => None,
    })
}

/// Waiters' events are never told.
const fn name(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Created => "created",
        EventKind::Granted => "granted",
        EventKind::Renewed => "renewed",
        EventKind::Released => "released",
        EventKind::Expired => "expired",
        EventKind::Broken => "broken",
        EventKind::Deleted => "deleted",
        EventKind::Waiting => "waiting",
        EventKind::WaitEnded => "wait_ended",
        EventKind::Detached => "detached",
    }
}
