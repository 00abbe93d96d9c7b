//! Bodies for pools, good and bad, and what pools answer, to the byte.

#![allow(clippy::unwrap_used, clippy::panic)]

use tenure_cluster::{Position, Stamp};

use super::*;
use crate::api::problem::{Code, Problem};
use crate::edge::Ask;
use crate::keyspace::{
    Acquire, AcquireSlot, Command, Ended, GrantView, Holders, HoldersPage, LeaseArgument, OnConflict, OpReply, Page,
    Place, PoolOptions, PoolUuid, PoolView, PriorGrant, Reason, Refusal, Reply, Shown, SlotGrant, SlotOutcome,
    SlotReply, SlotView, token_hash,
};

const DRAWN: PoolUuid = PoolUuid([0xff; 16]);

fn read(command: &str, body: &str) -> Result<Request, Invalid> {
    request(Kind::named(command).unwrap(), body.as_bytes(), DRAWN)
}

fn write(command: &str, body: &str) -> Command {
    match read(command, body) {
        Ok(Request::Write(command)) => command,
        other => panic!("{command} {body}: {other:?}"),
    }
}

fn create(options: &str) -> Result<Request, Invalid> {
    read("CREATE", &format!(r#"{{"key":"k","type":"pool","options":{options}}}"#))
}

fn op(operation: &str, args: &str) -> String {
    format!(r#"{{"key":"k","operation":"{operation}","args":{args}}}"#)
}

fn acquire_slot() -> AcquireSlot {
    AcquireSlot {
        key: "k".into(),
        identity: "i".into(),
        token: token_hash("k", "t"),
        ttl_ms: 30_000,
        avoid: None,
        unix_ms: None,
        note: None,
        once: false,
    }
}

#[test]
fn options_of_a_pool() {
    let made = |options| Ok(Request::Write(Command::CreatePool { key: "k".into(), options, uuid: DRAWN }));
    assert_eq!(read("CREATE", r#"{"key":"k","type":"pool"}"#), made(PoolOptions::default()));
    assert_eq!(create("{}"), made(PoolOptions::default()));
    let all = r#"{"size":65536,"first":4294901760,"quarantine_ms":0,"release_quarantine_ms":86400000,"ttl_ms_min":1,
        "ttl_ms_max":1,"on_conflict":"reject"}"#;
    let options = PoolOptions {
        size: 65_536,
        first: 4_294_901_760,
        quarantine_ms: 0,
        release_quarantine_ms: 86_400_000,
        ttl_ms_min: 1,
        ttl_ms_max: 1,
        on_conflict: OnConflict::Reject,
    };
    assert_eq!(create(all), made(options));
    let options = PoolOptions { ttl_ms_min: 86_400_000, on_conflict: OnConflict::Takeover, ..PoolOptions::default() };
    assert_eq!(create(r#"{"ttl_ms_min":86400000,"on_conflict":"takeover"}"#), made(options));
}

#[test]
fn bad_options_of_a_pool() {
    let text = "must be \"takeover\" or \"reject\"";
    for (options, field, rule) in [
        (r#"{"size":0}"#, "size", "must be an integer in 1..=65536; got 0"),
        (r#"{"size":65537}"#, "size", "must be an integer in 1..=65536; got 65537"),
        (r#"{"first":4294967296}"#, "first", "must be an integer in 0..=4294967295; got 4294967296"),
        (r#"{"first":4294966785}"#, "first", "must be at most 4294966784 with 512 slots: ids end at 4294967295"),
        (r#"{"first":4294967295,"size":2}"#, "first", "must be at most 4294967294 with 2 slots: ids end at 4294967295"),
        (r#"{"quarantine_ms":86400001}"#, "quarantine_ms", "must be an integer in 0..=86400000; got 86400001"),
        (r#"{"ttl_ms_min":0}"#, "ttl_ms_min", "must be an integer in 1..=31536000000; got 0"),
        (r#"{"ttl_ms_max":31536000001}"#, "ttl_ms_max", "must be an integer in 1..=31536000000; got 31536000001"),
        (
            r#"{"ttl_ms_min":86400001}"#,
            "ttl_ms_min",
            "must be at most ttl_ms_max, which is 86400000 unless given; got 86400001",
        ),
        (
            r#"{"ttl_ms_max":29999}"#,
            "ttl_ms_max",
            "must be at least ttl_ms_min, which is 30000 unless given; got 29999",
        ),
        (r#"{"ttl_ms_min":6,"ttl_ms_max":5}"#, "ttl_ms_max", "must be at least ttl_ms_min, 6; got 5"),
        (r#"{"on_conflict":"Reject"}"#, "on_conflict", &format!("{text}; got another string")),
        (r#"{"on_conflict":null}"#, "on_conflict", &format!("{text}; got null")),
        (
            r#"{"delay_ms":1}"#,
            "delay_ms",
            "is an option of a lease, and this is a pool; known: size, first, quarantine_ms, release_quarantine_ms, \
             ttl_ms_min, ttl_ms_max, on_conflict",
        ),
    ] {
        let invalid = create(options).unwrap_err();
        assert_eq!(invalid.field.as_deref(), Some(&*format!("options.{field}")), "{options}");
        assert_eq!(invalid.detail, format!("options.{field} {rule}"), "{options}");
    }
    let invalid = read("CREATE", r#"{"key":"k","type":"lease","options":{"size":5}}"#).unwrap_err();
    let detail = "options.size is an option of a pool, and this is a lease; known: delay_ms, min_hold_ms, ttl_ms_max";
    assert_eq!((invalid.field.as_deref(), &*invalid.detail), (Some("options.size"), detail));
}

#[test]
fn no_two_pools_of_a_batch_share_a_uuid() {
    let create = |key: &str| format!(r#"{{"command":"CREATE","key":"{key}","type":"pool"}}"#);
    let body = format!(r#"{{"commands":[{},{}]}}"#, create("a"), create("b"));
    let Command::Batch(items) = write("BATCH", &body) else { panic!() };
    let uuids: Vec<PoolUuid> = items
        .into_iter()
        .map(|item| match item {
            Command::CreatePool { uuid, .. } => uuid,
            other => panic!("{other:?}"),
        })
        .collect();
    let mut second = [0xff; 16];
    second[12..].fill(0);
    assert_eq!(uuids, [DRAWN, PoolUuid(second)]);
}

#[test]
fn acquire_by_identity() {
    assert_eq!(write("OP", &op("ACQUIRE", r#"{"identity":"i","token":"t"}"#)), Command::AcquireSlot(acquire_slot()));
    let args = r#"{"identity":"i","token":"t","ttl_ms":-1,"avoid":4294967295,"unix_ms":9007199254740991,"note":"n",
        "once":true,"wait_ms":5}"#;
    let ask = AcquireSlot {
        ttl_ms: -1,
        avoid: Some(u32::MAX),
        unix_ms: Some((1 << 53) - 1),
        note: Some("n".into()),
        once: true,
        ..acquire_slot()
    };
    let request = read("OP", &op("ACQUIRE", args)).unwrap();
    assert_eq!(request.name(), "ACQUIRE");
    assert_eq!(request, Request::Wait { ask: Ask::Identity(ask), wait_ms: 5 });
    let zero = AcquireSlot { avoid: Some(0), unix_ms: Some(0), ..acquire_slot() };
    let args = r#"{"identity":"i","token":"t","avoid":0,"unix_ms":0,"wait_ms":0}"#;
    assert_eq!(write("OP", &op("ACQUIRE", args)), Command::AcquireSlot(zero));
}

#[test]
fn every_other_operation() {
    let (key, token) = (|| "k".into(), token_hash("k", "t"));
    let renew = op("RENEW", r#"{"token":"t","ttl_ms":1,"fence":2,"unix_ms":3}"#);
    let expected = Command::RenewSlot { key: key(), token, ttl_ms: 1, fence: Some(2), unix_ms: 3 };
    assert_eq!(write("OP", &renew), expected);
    let broken = op("BREAK", r#"{"id":0,"reason":"r","grace_ms":1,"fence":2}"#);
    let expected = Command::BreakSlot { key: key(), id: 0, reason: "r".into(), grace_ms: 1, fence: Some(2) };
    assert_eq!(write("OP", &broken), expected);
    assert_eq!(write("OP", &op("RESIZE", r#"{"size":65536}"#)), Command::Resize { key: key(), size: 65_536 });
    let holders = |which| Ok(Request::Read(Query::Holders { key: key(), which }));
    let all = Holders { limit: 100, ..Holders::default() };
    assert_eq!(read("OP", r#"{"key":"k","operation":"HOLDERS"}"#), holders(all));
    let which = Holders { id: Some(1), all: true, cursor: Some(u32::MAX), limit: 1000 };
    assert_eq!(read("OP", &op("HOLDERS", r#"{"id":1,"all":true,"cursor":4294967295,"limit":1000}"#)), holders(which));
}

#[test]
fn bad_operations() {
    let text = "must be a string of 1..=256 bytes of UTF-8 without control characters";
    for (operation, args, field, rule) in [
        (
            "ACQUIRE",
            r#"{"token":"t"}"#,
            "args.owner",
            "is missing: say owner (who holds a lease, or any slot of a pool) or identity (whose slot of a pool), \
             a string of 1..=256 bytes of UTF-8 without control characters",
        ),
        (
            "ACQUIRE",
            r#"{"owner":"o","identity":"i","token":"t"}"#,
            "args.owner",
            "must not stand beside args.identity: a slot is an identity's, or any slot for an owner",
        ),
        (
            "ACQUIRE",
            r#"{"identity":"i","token":"t","create":true}"#,
            "args.create",
            "is not a field here; known: identity, token, ttl_ms, avoid, unix_ms, wait_ms, note, once",
        ),
        (
            "ACQUIRE",
            r#"{"owner":"o","token":"t","avoid":1}"#,
            "args.avoid",
            "is not a field here; known: owner, token, ttl_ms, wait_ms, create, note, min_hold_ms, delay_ms, once",
        ),
        (
            "ACQUIRE",
            r#"{"tokn":"t"}"#,
            "args.tokn",
            "is not a field here; known: owner, token, ttl_ms, wait_ms, create, note, min_hold_ms, delay_ms, once, \
             identity, avoid, unix_ms",
        ),
        ("ACQUIRE", r#"{"identity":"","token":"t"}"#, "args.identity", &format!("{text}; got 0 bytes")),
        (
            "ACQUIRE",
            r#"{"identity":"i","token":"t","unix_ms":9007199254740992}"#,
            "args.unix_ms",
            "must be an integer in 0..=9007199254740991; got 9007199254740992",
        ),
        (
            "ACQUIRE",
            r#"{"identity":"i","token":"t","avoid":-1}"#,
            "args.avoid",
            "must be an integer in 0..=4294967295; got -1",
        ),
        ("RESIZE", "{}", "args.size", "is missing: it must be an integer in 1..=65536"),
        ("RESIZE", r#"{"size":0}"#, "args.size", "must be an integer in 1..=65536; got 0"),
        ("HOLDERS", r#"{"limit":0}"#, "args.limit", "must be an integer in 1..=1000; got 0"),
        ("HOLDERS", r#"{"all":1}"#, "args.all", "must be true or false; got an integer"),
        ("BREAK", r#"{"reason":"r","id":"1"}"#, "args.id", "must be an integer in 0..=4294967295; got a string"),
    ] {
        let invalid = read("OP", &op(operation, args)).unwrap_err();
        assert_eq!(invalid.field.as_deref(), Some(field), "{operation} {args}");
        assert_eq!(invalid.detail, format!("{field} {rule}"), "{operation} {args}");
    }
}

#[test]
fn items_of_batches() {
    let item = |operation: &str, args: &str| {
        format!(r#"{{"command":"OP","key":"k","operation":"{operation}","args":{args}}}"#)
    };
    let batch = |items: &[String], all: bool| {
        read("BATCH", &format!(r#"{{"commands":[{}],"all_or_nothing":{all}}}"#, items.join(",")))
    };
    let acquire = item("ACQUIRE", r#"{"identity":"i","token":"t"}"#);
    let renew = item("RENEW", r#"{"token":"t","unix_ms":1}"#);
    let both = vec![
        Command::AcquireSlot(acquire_slot()),
        Command::RenewSlot { key: "k".into(), token: token_hash("k", "t"), ttl_ms: 30_000, fence: None, unix_ms: 1 },
    ];
    let items = [acquire.clone(), renew];
    assert_eq!(batch(&items, true), Ok(Request::Write(Command::AllOrNothing(both.clone()))));
    assert_eq!(batch(&items, false), Ok(Request::Write(Command::Batch(both))));
    let breaks = item("BREAK", r#"{"id":1,"reason":"r"}"#);
    let broken = Command::BreakSlot { key: "k".into(), id: 1, reason: "r".into(), grace_ms: 0, fence: None };
    assert_eq!(batch(std::slice::from_ref(&breaks), false), Ok(Request::Write(Command::Batch(vec![broken]))));
    let resize = item("RESIZE", r#"{"size":1}"#);
    let alone = "operation must not be RESIZE in a BATCH: it may move every slot of a pool, send it alone";
    let whole = "operation must be ACQUIRE, RENEW or RELEASE in a BATCH with all_or_nothing";
    let holders = "operation must not be HOLDERS in a BATCH: it is a read, ask for it alone";
    let wait = item("ACQUIRE", r#"{"identity":"i","token":"t","wait_ms":1}"#);
    for (bad, all, detail) in [
        (&resize, false, alone),
        (&resize, true, alone),
        (&breaks, true, whole),
        (&item("HOLDERS", "{}"), false, holders),
        (&item("HOLDERS", "{}"), true, holders),
        (&wait, false, "args.wait_ms must be 0 in a BATCH: nothing waits there"),
    ] {
        let invalid = batch(&[acquire.clone(), bad.clone()], all).unwrap_err();
        assert_eq!((&*invalid.detail, invalid.index), (detail, Some(1)), "{bad}");
    }
}

#[test]
fn an_anonymous_slot_is_asked_for_as_a_lease_is() {
    let Command::Acquire(Acquire { owner, .. }) = write("OP", &op("ACQUIRE", r#"{"owner":"o","token":"t"}"#)) else {
        panic!()
    };
    assert_eq!(&*owner, "o");
}

fn json(body: Result<Body, serde_json::Error>) -> String {
    String::from_utf8(body.unwrap().json).unwrap()
}

/// The answer alone and as an item of a BATCH, which are the same, and its word for counting.
fn answered(of: &Reply) -> (String, &'static str) {
    let body = reply(of, Stamp(0)).unwrap().unwrap();
    let text = String::from_utf8(body.json).unwrap();
    let batch = json(reply(&Reply::Batch(vec![of.clone()]), Stamp(0)).unwrap());
    assert_eq!(batch, format!(r#"{{"result":[{text}]}}"#));
    (text, body.outcome)
}

fn grant() -> SlotGrant {
    SlotGrant {
        id: 3,
        fence: 17,
        ttl_ms: 30_000,
        identity: Some("pod-1".into()),
        uuid: PoolUuid([0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0x4d, 0xef, 0x80, 1, 2, 3, 4, 5, 6, 7]),
        first: 0,
        size: 512,
        floor_unix_ms: Some(1_796_000_000_000),
    }
}

const GRANT: &str = r#""id":3,"fence":17,"ttl_ms":30000,"identity":"pod-1","pool":"12345678-9abc-4def-8001-020304050607","first":0,"size":512,"floor_unix_ms":1796000000000"#;

fn slot(outcome: SlotOutcome) -> SlotReply {
    SlotReply { outcome, reason: None, ..SlotReply::nothing(Reason::Exhausted) }
}

#[test]
fn a_slot_that_was_granted() {
    let reply = |reply| answered(&Reply::Slot(Box::new(reply)));
    let granted = slot(SlotOutcome::Granted(grant()));
    assert_eq!(reply(granted.clone()), (format!(r#"{{"result":{{{GRANT}}}}}"#), "true"));
    let with_all =
        SlotReply { yours: true, ttl_raised: true, prior: Some(PriorGrant { fence: Some(16), ttl_ms: 9 }), ..granted };
    let extras = r#""yours":true,"ttl_raised":true,"took_over":true,"prior_ttl_ms":9,"prior_fence":16"#;
    assert_eq!(reply(with_all), (format!(r#"{{"result":{{{GRANT}}},{extras}}}"#), "true"));
    let earlier =
        SlotReply { prior: Some(PriorGrant { fence: None, ttl_ms: 9 }), ..slot(SlotOutcome::Granted(grant())) };
    assert_eq!(reply(earlier), (format!(r#"{{"result":{{{GRANT}}},"prior_ttl_ms":9}}"#), "true"));
    let anonymous = SlotGrant { identity: None, floor_unix_ms: None, ..grant() };
    let expected =
        format!(r#"{{"result":{{{GRANT}}}}}"#).replace(r#""pod-1""#, "null").replace("1796000000000", "null");
    assert_eq!(reply(slot(SlotOutcome::Granted(anonymous))), (expected, "true"));
}

#[test]
fn a_slot_that_was_not_granted() {
    let reply = |reply| answered(&reply);
    let exhausted = SlotReply { retry_after_ms: Some(60_000), ..SlotReply::nothing(Reason::Exhausted) };
    let expected = r#"{"result":null,"reason":"exhausted","retry_after_ms":60000}"#.to_owned();
    assert_eq!(reply(Reply::Slot(Box::new(exhausted))), (expected, "false"));
    let broken = SlotReply { detail: Some("why".into()), ..SlotReply::nothing(Reason::Broken) };
    let expected = r#"{"result":null,"reason":"broken","detail":"why"}"#.to_owned();
    assert_eq!(reply(Reply::Slot(Box::new(broken))), (expected, "false"));
    let expected = r#"{"result":null,"reason":"queued","ahead":2,"waiters":5}"#.to_owned();
    assert_eq!(reply(Reply::SlotQueued(Place { ahead: 2, waiters: 5 })), (expected, "false"));
}

#[test]
fn a_renewal_of_a_slot() {
    let reply = |reply| answered(&Reply::Slot(Box::new(reply)));
    let renewed = SlotReply { ttl_raised: true, ..slot(SlotOutcome::Renewed(grant())) };
    let expected = format!(r#"{{"result":{{"status":"renewed",{GRANT}}},"ttl_raised":true}}"#);
    assert_eq!(reply(renewed), (expected, "true"));
    let lost =
        SlotReply { outcome: SlotOutcome::Lost, detail: Some("why".into()), ..SlotReply::nothing(Reason::Broken) };
    let expected = r#"{"result":{"status":"lost"},"reason":"broken","detail":"why"}"#.to_owned();
    assert_eq!(reply(lost), (expected, "false"));
    let nothing = SlotReply::nothing(Reason::TtlNotPositive);
    assert_eq!(reply(nothing), (r#"{"result":null,"reason":"ttl_not_positive"}"#.to_owned(), "false"));
}

#[test]
fn an_operation_on_one_slot_says_which() {
    let held = OpReply { result: true, fence: Some(7), ttl_ms: Some(9), owner: Some("o".into()), ..OpReply::default() };
    let expected = r#"{"result":true,"id":0,"fence":7,"ttl_ms":9,"owner":"o"}"#.to_owned();
    assert_eq!(answered(&Reply::OfSlot { op: held, id: 0 }), (expected, "true"));
    let released = OpReply { reason: Some(Reason::TakenOver), ..OpReply::default() };
    let expected = r#"{"result":false,"id":5,"reason":"taken_over"}"#.to_owned();
    assert_eq!(answered(&Reply::OfSlot { op: released, id: 5 }), (expected, "false"));
}

#[test]
fn a_pool_as_get_and_scan_show_it() {
    let view = PoolView {
        key: "ids".into(),
        uuid: grant().uuid,
        options: PoolOptions::default(),
        held: 2,
        quarantined: 1,
        free: 509,
        waiters: 0,
        acquirable_in_ms: 0,
        version: Position { index: 3, ordinal: 1 },
        key_ttl_ms: None,
    };
    let expected = r#"{"key":"ids","type":"pool","pool":"12345678-9abc-4def-8001-020304050607","held":true,"slots":{"held":2,"quarantined":1,"free":509},"waiters":0,"acquirable_in_ms":0,"key_ttl_ms":null,"options":{"size":512,"first":0,"quarantine_ms":60000,"release_quarantine_ms":0,"ttl_ms_min":30000,"ttl_ms_max":86400000,"on_conflict":"takeover"},"version":"3.1"}"#;
    let shown = Shown::Pool(Box::new(view.clone()));
    assert_eq!(json(super::view(Some(&shown), Stamp(0))), format!(r#"{{"result":{expected}}}"#));
    let page = Page { views: vec![shown], cursor: None };
    assert_eq!(json(super::page(&page, Stamp(0))), format!(r#"{{"result":{{"keys":[{expected}],"cursor":null}}}}"#));
    let options = PoolOptions { on_conflict: OnConflict::Reject, ..PoolOptions::default() };
    let empty = PoolView { held: 0, options, ..view };
    let (text, outcome) = answered(&Reply::PoolView(Box::new(empty)));
    assert!(text.contains(r#""held":false"#) && text.contains(r#""on_conflict":"reject""#), "{text}");
    assert_eq!(outcome, "ok");
}

#[test]
fn who_holds_which() {
    let grant = GrantView {
        owner: "pod-1".into(),
        fence: 8,
        ttl_ms: 10,
        held_for_ms: 20,
        acquired_wall_ms: 1_700_000_000_123,
        note: Some("n".into()),
        broken: None,
    };
    let last = Ended { fence: 7, owner: "p".into(), reason: Reason::Expired, at: Stamp(40), detail: None };
    let held = SlotView { id: 0, grant: Some(grant), identity: Some("pod-1".into()), free_in_ms: 0, last: None };
    let free = SlotView { id: 1, grant: None, identity: None, free_in_ms: 5, last: Some(last) };
    let page = HoldersPage { slots: vec![held, free], cursor: Some(1) };
    let expected = concat!(
        r#"{"result":{"holders":[{"id":0,"held":true,"identity":"pod-1","owner":"pod-1","fence":8,"ttl_ms":10,"#,
        r#""held_for_ms":20,"acquired_at":"2023-11-14T22:13:20.123Z","note":"n","broken":null,"free_in_ms":0,"last":null},"#,
        r#"{"id":1,"held":false,"identity":null,"owner":null,"fence":null,"ttl_ms":null,"held_for_ms":null,"#,
        r#""acquired_at":null,"note":null,"broken":null,"free_in_ms":5,"#,
        r#""last":{"fence":7,"owner":"p","reason":"expired","ended_ms_ago":60,"detail":null}}],"cursor":1}}"#
    );
    assert_eq!(json(holders(&page, Stamp(100))), expected);
}

#[test]
fn refusals_name_their_field() {
    for (refusal, code, field) in [
        (Refusal::NotForPool(LeaseArgument::MinHoldMs), Code::InvalidArgument, Some("args.min_hold_ms")),
        (Refusal::NotForPool(LeaseArgument::DelayMs), Code::InvalidArgument, Some("args.delay_ms")),
        (Refusal::IdMissing, Code::InvalidArgument, Some("args.id")),
        (Refusal::SizeAboveMax { max: 5 }, Code::InvalidArgument, Some("args.size")),
        (Refusal::WrongType, Code::WrongType, None),
    ] {
        let problem = Problem::from(&refusal);
        assert_eq!((problem.code, problem.field.as_deref()), (code, field), "{refusal:?}");
        assert!(field.is_none_or(|field| problem.detail.starts_with(field)), "{}", problem.detail);
    }
}
