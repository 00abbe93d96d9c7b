//! What ACQUIRE, RENEW and HOLDERS of a pool answer: objects, since a boolean would not say which slot.

use serde::Serialize;
use tenure_cluster::Stamp;

use super::snapshot::{Last, Text, rfc3339};
use crate::keyspace::{HoldersPage, Place, PoolUuid, Reason, SlotGrant, SlotOutcome, SlotReply, SlotView};

/// The whole answer: the grant, or null and the reason.
#[derive(Serialize)]
pub(super) struct Slot<'a> {
    result: Option<Outcome<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Reason>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    yours: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    ttl_raised: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    took_over: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    prior_ttl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prior_fence: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    place: Option<Place>,
}

/// ACQUIRE says what was granted; RENEW first of all whether it was renewed.
#[derive(Serialize)]
struct Outcome<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'static str>,
    #[serde(flatten)]
    grant: Option<Grant<'a>>,
}

#[derive(Serialize)]
struct Grant<'a> {
    id: u32,
    fence: u64,
    ttl_ms: u64,
    identity: Option<&'a str>,
    pool: Text<PoolUuid>,
    first: u32,
    size: u32,
    floor_unix_ms: Option<u64>,
}

impl<'a> From<&'a SlotGrant> for Grant<'a> {
    fn from(grant: &'a SlotGrant) -> Self {
        let SlotGrant { id, fence, ttl_ms, identity, uuid, first, size, floor_unix_ms } = grant;
        Self {
            id: *id,
            fence: *fence,
            ttl_ms: *ttl_ms,
            identity: identity.as_deref(),
            pool: Text(*uuid),
            first: *first,
            size: *size,
            floor_unix_ms: *floor_unix_ms,
        }
    }
}

impl<'a> From<&'a SlotReply> for Slot<'a> {
    fn from(reply: &'a SlotReply) -> Self {
        let SlotReply { outcome, reason, yours, ttl_raised, prior, retry_after_ms, detail } = reply;
        let result = match outcome {
            SlotOutcome::Granted(grant) => Some(Outcome { status: None, grant: Some(Grant::from(grant)) }),
            SlotOutcome::Renewed(grant) => Some(Outcome { status: Some("renewed"), grant: Some(Grant::from(grant)) }),
            SlotOutcome::Lost => Some(Outcome { status: Some("lost"), grant: None }),
            SlotOutcome::Nothing => None,
        };
        Self {
            result,
            reason: *reason,
            yours: *yours,
            ttl_raised: *ttl_raised,
            took_over: prior.is_some_and(|prior| prior.fence.is_some()),
            prior_ttl_ms: prior.map(|prior| prior.ttl_ms),
            prior_fence: prior.and_then(|prior| prior.fence),
            retry_after_ms: *retry_after_ms,
            detail: detail.as_deref(),
            place: None,
        }
    }
}

/// Of a token that waits in line.
impl From<Place> for Slot<'_> {
    fn from(place: Place) -> Self {
        Self {
            result: None,
            reason: Some(Reason::Queued),
            yours: false,
            ttl_raised: false,
            took_over: false,
            prior_ttl_ms: None,
            prior_fence: None,
            retry_after_ms: None,
            detail: None,
            place: Some(place),
        }
    }
}

/// OP HOLDERS.
#[derive(Serialize)]
pub(super) struct Holders<'a> {
    holders: Vec<Holder<'a>>,
    cursor: Option<u32>,
}

impl<'a> Holders<'a> {
    pub(super) fn of(page: &'a HoldersPage, clock: Stamp) -> Self {
        let holders = page.slots.iter().map(|slot| Holder::of(slot, clock)).collect();
        Self { holders, cursor: page.cursor }
    }
}

/// A slot: every field is always there, null where a free one has none.
#[derive(Serialize)]
struct Holder<'a> {
    id: u32,
    held: bool,
    identity: Option<&'a str>,
    owner: Option<&'a str>,
    fence: Option<u64>,
    ttl_ms: Option<u64>,
    held_for_ms: Option<u64>,
    acquired_at: Option<String>,
    note: Option<&'a str>,
    broken: Option<&'a str>,
    free_in_ms: u64,
    last: Option<Last<'a>>,
}

impl<'a> Holder<'a> {
    fn of(slot: &'a SlotView, clock: Stamp) -> Self {
        let grant = slot.grant.as_ref();
        Self {
            id: slot.id,
            held: grant.is_some(),
            identity: slot.identity.as_deref(),
            owner: grant.map(|grant| &*grant.owner),
            fence: grant.map(|grant| grant.fence),
            ttl_ms: grant.map(|grant| grant.ttl_ms),
            held_for_ms: grant.map(|grant| grant.held_for_ms),
            acquired_at: grant.and_then(|grant| rfc3339(grant.acquired_wall_ms)),
            note: grant.and_then(|grant| grant.note.as_deref()),
            broken: grant.and_then(|grant| grant.broken.as_deref()),
            free_in_ms: slot.free_in_ms,
            last: slot.last.as_ref().map(|ended| Last::of(ended, clock)),
        }
    }
}
