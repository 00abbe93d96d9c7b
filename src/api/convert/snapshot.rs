//! What GET and SCAN show of a key, and a watch's reset.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use tenure_cluster::{Position, Stamp};

use super::type_name;
use crate::keyspace::{Ended, KeyType, LeaseOptions, OnConflict, PoolOptions, PoolUuid, PoolView, Reason, Shown, View};

/// The object that GET answers.
pub fn snapshot(shown: &Shown, clock: Stamp) -> impl Serialize + '_ {
    match shown {
        Shown::Lease(view) => Either::Lease(Box::new(Snapshot::of(view, clock))),
        Shown::Pool(view) => Either::Pool(Box::new(PoolSnapshot::from(&**view))),
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Either<'a> {
    Lease(Box<Snapshot<'a>>),
    Pool(Box<PoolSnapshot<'a>>),
}

/// GET's object of a lease: every field is always there, null where a free lease has none.
#[derive(Serialize)]
pub(super) struct Snapshot<'a> {
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
pub(super) struct Last<'a> {
    fence: u64,
    owner: &'a str,
    reason: Reason,
    ended_ms_ago: u64,
    detail: Option<&'a str>,
}

impl<'a> Snapshot<'a> {
    pub(super) fn of(view: &'a View, clock: Stamp) -> Self {
        let grant = view.grant.as_ref();
        Self {
            key: &view.key,
            r#type: type_name(KeyType::Lease),
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
    pub(super) fn of(ended: &'a Ended, clock: Stamp) -> Self {
        Self {
            fence: ended.fence,
            owner: &ended.owner,
            reason: ended.reason,
            ended_ms_ago: clock.ms_since(ended.at),
            detail: ended.detail.as_deref(),
        }
    }
}

/// GET's object of a pool: every field is always there.
#[derive(Serialize)]
pub(super) struct PoolSnapshot<'a> {
    key: &'a str,
    r#type: &'static str,
    pool: Text<PoolUuid>,
    held: bool,
    slots: Slots,
    waiters: u64,
    acquirable_in_ms: u64,
    key_ttl_ms: Option<u64>,
    options: PoolOptionsShown,
    version: Text<Position>,
}

#[derive(Serialize)]
struct Slots {
    held: u32,
    quarantined: u32,
    free: u32,
}

#[derive(Serialize)]
struct PoolOptionsShown {
    size: u32,
    first: u32,
    quarantine_ms: u64,
    release_quarantine_ms: u64,
    ttl_ms_min: u64,
    ttl_ms_max: u64,
    on_conflict: &'static str,
}

impl<'a> From<&'a PoolView> for PoolSnapshot<'a> {
    fn from(view: &'a PoolView) -> Self {
        Self {
            key: &view.key,
            r#type: type_name(KeyType::Pool),
            pool: Text(view.uuid),
            held: view.held > 0,
            slots: Slots { held: view.held, quarantined: view.quarantined, free: view.free },
            waiters: view.waiters,
            acquirable_in_ms: view.acquirable_in_ms,
            key_ttl_ms: view.key_ttl_ms,
            options: PoolOptionsShown::from(view.options),
            version: Text(view.version),
        }
    }
}

impl From<PoolOptions> for PoolOptionsShown {
    fn from(options: PoolOptions) -> Self {
        let PoolOptions { size, first, quarantine_ms, release_quarantine_ms, ttl_ms_min, ttl_ms_max, on_conflict } =
            options;
        let on_conflict = match on_conflict {
            OnConflict::Takeover => "takeover",
            OnConflict::Reject => "reject",
        };
        Self { size, first, quarantine_ms, release_quarantine_ms, ttl_ms_min, ttl_ms_max, on_conflict }
    }
}

/// A value that is shown as its text.
pub(super) struct Text<T>(pub T);

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
