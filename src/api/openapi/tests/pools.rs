//! What answers of pools hold, against the document.

use super::*;

pub(super) fn slot_grant() -> SlotGrant {
    let (uuid, identity) = (PoolUuid::default(), None);
    SlotGrant { id: 0, fence: 1, ttl_ms: 1, identity, uuid, first: 0, size: 1, floor_unix_ms: None }
}

/// With all that it may have.
pub(super) fn slot_reply(outcome: SlotOutcome) -> SlotReply {
    SlotReply {
        outcome,
        yours: true,
        ttl_raised: true,
        prior: Some(PriorGrant { fence: Some(1), ttl_ms: 1 }),
        retry_after_ms: Some(1),
        detail: Some("d".into()),
        ..SlotReply::nothing(Reason::Exhausted)
    }
}

#[test]
fn fields_of_pools_are_told() {
    let answer = |body: &Result<convert::Body, serde_json::Error>| -> Value {
        serde_json::from_slice(&body.as_ref().unwrap().json).unwrap()
    };
    let renewed = Reply::Slot(Box::new(slot_reply(SlotOutcome::Renewed(slot_grant()))));
    let renewed = answer(&convert::reply(&renewed, Stamp(0)).ok().unwrap());
    let (grant, with_status) = (schema("SlotGrant"), names(&renewed["result"]));
    assert_eq!(names(&grant["properties"]), with_status);
    let mut required = texts(&grant["required"]);
    assert!(required.insert("status".to_owned()), "of RENEW alone");
    assert_eq!(required, with_status);
    let lost = Reply::Slot(Box::new(slot_reply(SlotOutcome::Lost)));
    let lost = answer(&convert::reply(&lost, Stamp(0)).ok().unwrap());
    assert_eq!(names(&schema("SlotAnswer")["properties"]["result"]["anyOf"][1]["properties"]), names(&lost["result"]));

    let slot = SlotView { id: 0, grant: None, identity: None, free_in_ms: 0, last: None };
    let page = answer(&convert::holders(&HoldersPage { slots: vec![slot], cursor: None }, Stamp(0)));
    assert_eq!(names(&schema("HoldersAnswer")["properties"]["result"]["properties"]), names(&page["result"]));
    let (holder, told) = (schema("Holder"), names(&page["result"]["holders"][0]));
    assert_eq!((names(&holder["properties"]), texts(&holder["required"])), (told.clone(), told));

    let view = PoolView {
        key: "k".into(),
        uuid: PoolUuid::default(),
        options: PoolOptions::default(),
        held: 0,
        quarantined: 0,
        free: 512,
        waiters: 0,
        acquirable_in_ms: 0,
        version: Position { index: 1, ordinal: 0 },
        key_ttl_ms: None,
    };
    let shown = answer(&convert::view(Some(&Shown::Pool(Box::new(view))), Stamp(0)));
    let (pool, told) = (schema("PoolSnapshot"), names(&shown["result"]));
    assert_eq!((names(&pool["properties"]), texts(&pool["required"])), (told.clone(), told));
    for part in ["slots", "options"] {
        let (of, told) = (&pool["properties"][part], names(&shown["result"][part]));
        assert_eq!((names(&of["properties"]), texts(&of["required"])), (told.clone(), told), "{part}");
    }
    // What is not given at CREATE is what a pool then shows.
    for (option, of) in schema("PoolOptions")["properties"].as_object().unwrap() {
        assert_eq!(of["default"], shown["result"]["options"][option], "{option}");
    }
}
