//! Server-sent events: one item, one message.

use serde::Serialize;
use tenure_cluster::Stamp;

use crate::api::convert;
use crate::edge::history::Told;
use crate::edge::watch::{Item, Page, full_id};
use crate::keyspace::{Event, EventKind, Reason, Shown};

/// What happened; what there is none of is left out.
#[derive(Serialize)]
struct EventData<'a> {
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<&'a str>,
    /// Of a pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<u32>,
    /// Of a pool; an anonymous slot has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    identity: Option<&'a str>,
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
    let keys = views.as_ref().map(|views| views.iter().map(|shown| key(shown, *clock)).collect());
    let data = ResetData { reason: why.as_str(), keys, more: id.is_none(), clock_ms: clock.0 };
    message(out, id.map(|id| full_id(cluster, id)), "reset", &data);
}

fn key(shown: &Shown, clock: Stamp) -> impl Serialize + '_ {
    convert::snapshot(shown, clock)
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
        slot: event.slot.as_ref().map(|slot| slot.id),
        identity: event.slot.as_ref().and_then(|slot| slot.identity.as_deref()),
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

#[cfg(test)]
mod tests {
    use tenure_cluster::{EventAt, Position};

    use super::*;
    use crate::keyspace::Slotted;

    fn told(kind: EventKind, slot: Option<Slotted>, reason: Option<Reason>) -> String {
        let at = EventAt {
            position: Position { index: 3, ordinal: 1 },
            nth: 2,
            stamp: Stamp(9),
            wall_ms: 1_700_000_000_123,
            term: 1,
            replay: false,
        };
        let event = Event {
            key: "ids".into(),
            kind,
            fence: Some(7),
            owner: Some("pod-1".into()),
            last_renewed: None,
            detail: None,
            ttl_ms: None,
            attach: None,
            reason,
            slot,
        };
        let mut out = String::new();
        write(&mut out, &Item::Event(std::sync::Arc::new(Told { at, event })), "c");
        out
    }

    const WHEN: &str = r#""position":"3.1","clock_ms":9,"at":"2023-11-14T22:13:20.123Z"}"#;

    #[test]
    fn an_event_of_a_pool_says_which_slot_and_whose() {
        let slot = |identity: Option<&str>| {
            Some(Slotted { id: 0, identity: identity.map(Into::into), answer: None, held: Some(1) })
        };
        assert_eq!(
            told(EventKind::Released, slot(Some("pod-1")), Some(Reason::TakenOver)),
            format!(
                "id: c-3.1.2\nevent: released\ndata: {{\"key\":\"ids\",\"fence\":7,\"owner\":\"pod-1\",\"slot\":0,\
                 \"identity\":\"pod-1\",\"reason\":\"taken_over\",{WHEN}\n\n"
            )
        );
        assert_eq!(
            told(EventKind::Granted, slot(None), None),
            format!(
                "id: c-3.1.2\nevent: granted\ndata: {{\"key\":\"ids\",\"fence\":7,\"owner\":\"pod-1\",\"slot\":0,{WHEN}\n\n"
            )
        );
        let of_lease = told(EventKind::Granted, None, None);
        assert!(!of_lease.contains("slot") && !of_lease.contains("identity"), "{of_lease}");
    }
}
