//! The shapes as the contract has them.

#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;
use crate::wire::{Create, Event, LeaseOptions, Op, Request, Snapshot};

fn answer(json: serde_json::Value) -> Answer {
    serde_json::from_value(json).unwrap()
}

#[test]
fn requests_have_the_shape_of_the_contract() {
    let options = PoolOptions { size: Some(4), on_conflict: Some(OnConflict::Reject), ..PoolOptions::default() };
    let create = Create::pool("ids", options);
    assert_eq!(
        serde_json::to_value(&create).unwrap(),
        json!({"key": "ids", "type": "pool", "options": {"size": 4, "on_conflict": "reject"}})
    );
    let lease = Create::lease("k", LeaseOptions::default());
    assert_eq!(serde_json::to_value(&lease).unwrap(), json!({"key": "k", "type": "lease", "options": {}}));
    let args = AcquireSlotArgs {
        identity: "pod-1".to_owned(),
        token: "t".into(),
        ttl_ms: Some(40_000),
        avoid: Some(7),
        unix_ms: Some(1),
        wait_ms: None,
        note: None,
        once: Some(true),
    };
    assert_eq!(
        serde_json::to_value(Op::new("ids", args)).unwrap(),
        json!({"key": "ids", "operation": "ACQUIRE", "args": {
            "identity": "pod-1", "token": "t", "ttl_ms": 40_000, "avoid": 7, "unix_ms": 1, "once": true}})
    );
    let page = Op::new("ids", HoldersArgs { all: Some(true), ..HoldersArgs::default() });
    assert_eq!(
        serde_json::to_value(&page).unwrap(),
        json!({"key": "ids", "operation": "HOLDERS", "args": {"all": true}})
    );
}

#[test]
fn what_may_be_repeated_is_the_commands_own_rule() {
    let renew = |fence| Op::new("ids", RenewSlotArgs { token: "t".into(), ttl_ms: None, fence, unix_ms: None });
    assert_eq!(renew(Some(7)).repeat(), Repeat::ByToken);
    assert_eq!(renew(None).repeat(), Repeat::Never);
    assert_eq!(Op::new("ids", ResizeArgs { size: 3 }).repeat(), Repeat::Never);
    assert_eq!(Op::new("ids", HoldersArgs::default()).repeat(), Repeat::Read);
    let end = BreakSlotArgs { id: 3, reason: "gone".to_owned(), grace_ms: None, fence: Some(7) };
    assert_eq!(Op::new("ids", end).repeat(), Repeat::Never);
}

#[test]
fn a_grant_and_what_stands_beside_it() {
    let granted = answer(json!({"result": {"id": 3, "fence": 17, "ttl_ms": 30000, "identity": "pod-1", "pool": "u",
        "first": 0, "size": 512, "floor_unix_ms": null, "news": 1}, "ttl_raised": true, "took_over": true,
        "prior_ttl_ms": 12000, "prior_fence": 16}));
    let slot = granted.slot().unwrap();
    assert_eq!((slot.id, slot.fence, slot.ttl_ms, slot.identity.as_deref()), (3, 17, 30_000, Some("pod-1")));
    assert_eq!((slot.pool.as_str(), slot.first, slot.size, slot.floor_unix_ms), ("u", 0, 512, None));
    assert_eq!(granted.took_over(), Some(TookOver { fence: Some(16), ttl_ms: 12_000 }));
    assert!(granted.ttl_raised() && !granted.yours());
    let refused = answer(json!({"result": null, "reason": "exhausted", "retry_after_ms": 5}));
    assert_eq!((refused.slot(), refused.slot_renewal(), refused.took_over()), (None, None, None));
}

#[test]
fn only_a_status_is_a_word_on_the_grant() {
    let lost = answer(json!({"result": {"status": "lost"}, "reason": "taken_over"}));
    assert_eq!((lost.slot_renewal(), lost.reason()), (Some(SlotRenewal::Lost), Some("taken_over")));
    let renewed = answer(json!({"result": {"status": "renewed", "id": 3, "fence": 17, "ttl_ms": 30000,
        "identity": null, "pool": "u", "first": 0, "size": 8, "floor_unix_ms": 1796000000000u64}}));
    assert!(matches!(renewed.slot_renewal(), Some(SlotRenewal::Renewed(SlotGrant { id: 3, fence: 17, .. }))));
    for odd in [json!(null), json!(false), json!({"status": "resting"}), json!({"status": "renewed", "id": 3})] {
        assert_eq!(answer(json!({"result": odd.clone()})).slot_renewal(), None, "{odd}");
    }
}

#[test]
fn a_page_of_holders() {
    let page = json!({"holders": [{"id": 3, "held": true, "identity": "pod-1", "owner": "pod-1", "fence": 17,
        "ttl_ms": 30000, "held_for_ms": 5, "acquired_at": "2026-01-31T12:00:00.000Z", "note": null, "broken": null,
        "free_in_ms": null, "last": {"fence": 16, "owner": "pod-1", "reason": "taken_over", "ended_ms_ago": 5,
        "detail": null}}], "cursor": 3});
    let page: HoldersPage = serde_json::from_value(page).unwrap();
    assert_eq!((page.cursor, page.holders[0].id, page.holders[0].held), (Some(3), 3, true));
    assert_eq!(page.holders[0].last.as_ref().unwrap().reason, "taken_over");
}

#[test]
fn a_pool_is_shown_with_its_options_and_counts() {
    let shown = json!({"key": "ids", "type": "pool", "pool": "u", "held": true,
        "slots": {"held": 1, "quarantined": 2, "free": 509}, "waiters": 0, "acquirable_in_ms": 0, "key_ttl_ms": null,
        "options": {"size": 512, "first": 0, "quarantine_ms": 60000, "release_quarantine_ms": 0, "ttl_ms_min": 30000,
        "ttl_ms_max": 86400000, "on_conflict": "takeover"}, "version": "7.0"});
    let shown: Snapshot = serde_json::from_value(shown).unwrap();
    assert_eq!((shown.pool.as_deref(), shown.slots.unwrap().free), (Some("u"), 509));
    let options = shown.options.unwrap();
    assert_eq!((options.size, options.on_conflict), (Some(512), Some(OnConflict::Takeover)));
    assert_eq!((options.ttl_ms_max, options.delay_ms), (Some(86_400_000), None));
    let newer: KeyOptions = serde_json::from_value(json!({"on_conflict": "ask", "colour": "red"})).unwrap();
    assert_eq!(newer, KeyOptions::default(), "a newer version's words are skipped");
}

#[test]
fn an_event_names_the_slot() {
    let event = json!({"key": "ids", "slot": 3, "identity": "pod-1", "fence": 17, "position": "7.0", "clock_ms": 1});
    let event: Event = serde_json::from_value(event).unwrap();
    assert_eq!((event.slot, event.identity.as_deref()), (Some(3), Some("pod-1")));
}
