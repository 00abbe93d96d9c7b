//! Bodies, good and bad, and exactly what becomes of them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use tenure_cluster::{Position, Stamp};

use super::*;
use crate::api::problem::{Code, Problem};
use crate::keyspace::{
    Acquire, Command, Ended, GrantView, LeaseOptions, OpReply, Page, Place, PoolUuid, Reason, Refusal, Reply, Shown,
    View, token_hash,
};

fn read(command: &str, body: &str) -> Result<Request, Invalid> {
    request(Kind::named(command).unwrap(), body.as_bytes(), PoolUuid::default())
}

fn write(command: &str, body: &str) -> Command {
    match read(command, body) {
        Ok(Request::Write(command)) => command,
        other => panic!("{command} {body}: {other:?}"),
    }
}

fn acquire() -> Acquire {
    Acquire {
        key: "k".into(),
        owner: "o".into(),
        token: token_hash("k", "t"),
        ttl_ms: 30_000,
        create: false,
        note: None,
        min_hold_ms: None,
        delay_ms: None,
        once: false,
    }
}

#[test]
fn defaults_of_acquire() {
    let body = r#"{"key":"k","operation":"ACQUIRE","args":{"owner":"o","token":"t"}}"#;
    assert_eq!(write("OP", body), Command::Acquire(acquire()));
}

#[test]
fn an_explicit_zero_is_zero() {
    let body = r#"{"key":"k","operation":"ACQUIRE","args":{"owner":"o","token":"t","ttl_ms":0,"wait_ms":0,
        "min_hold_ms":0,"delay_ms":0,"create":false,"once":true,"note":""}}"#;
    let expected =
        Acquire { ttl_ms: 0, min_hold_ms: Some(0), delay_ms: Some(0), once: true, note: Some("".into()), ..acquire() };
    assert_eq!(write("OP", body), Command::Acquire(expected));
}

#[test]
fn a_ttl_that_is_not_positive_goes_to_the_machine() {
    for (ttl, expected) in [("-1", -1), ("0", 0), ("-9223372036854775808", i64::MIN), ("31536000000", 31_536_000_000)] {
        let body = format!(r#"{{"key":"k","operation":"RENEW","args":{{"token":"t","ttl_ms":{ttl}}}}}"#);
        let (key, token) = ("k".into(), token_hash("k", "t"));
        assert_eq!(write("OP", &body), Command::Renew { key, token, ttl_ms: expected, fence: None });
    }
}

#[test]
fn a_wait_is_no_command_of_the_log_until_an_edge_has_taken_it() {
    for wait_ms in [1, 86_400_000] {
        let body = format!(
            r#"{{"key":"k","operation":"ACQUIRE","args":{{"owner":"o","token":"t","wait_ms":{wait_ms},"once":true}}}}"#
        );
        let request = read("OP", &body).unwrap();
        assert_eq!(request.name(), "ACQUIRE");
        assert_eq!(request, Request::Wait { ask: Acquire { once: true, ..acquire() }.into(), wait_ms });
    }
}

#[test]
fn all_or_nothing_is_a_command_of_its_own() {
    let token = token_hash("k", "t");
    let commands = r#"[{"command":"OP","key":"k","operation":"ACQUIRE","args":{"owner":"o","token":"t","wait_ms":0}},
        {"command":"OP","key":"k","operation":"RENEW","args":{"token":"t"}},
        {"command":"OP","key":"k","operation":"RELEASE","args":{"token":"t","fence":3}}]"#;
    let items = vec![
        Command::Acquire(acquire()),
        Command::Renew { key: "k".into(), token, ttl_ms: 30_000, fence: None },
        Command::Release { key: "k".into(), token, fence: Some(3) },
    ];
    for (flag, expected) in [
        (r#","all_or_nothing":true"#, Command::AllOrNothing(items.clone())),
        (r#","all_or_nothing":false"#, Command::Batch(items.clone())),
        ("", Command::Batch(items)),
    ] {
        assert_eq!(write("BATCH", &format!(r#"{{"commands":{commands}{flag}}}"#)), expected);
    }
}

#[test]
fn texts_are_exact_bytes() {
    for key in ["a", "a/b", "/a", "a/", "a//b", "A", " a ", "ä\u{2028}日本"] {
        let Command::Persist { key: got } = write("PERSIST", &format!(r#"{{"key":"{key}"}}"#)) else { panic!() };
        assert_eq!(&*got, key);
    }
    let Command::Persist { key } = write("PERSIST", r#"{"key":"\u00e4\"\\"}"#) else { panic!() };
    assert_eq!(&*key, "ä\"\\");
}

#[test]
fn every_other_body() {
    let key = || "k".into();
    let options = LeaseOptions { delay_ms: 1, min_hold_ms: 2, ttl_ms_max: Some(3) };
    let body = r#"{"key":"k","type":"lease","options":{"delay_ms":1,"min_hold_ms":2,"ttl_ms_max":3}}"#;
    assert_eq!(write("CREATE", body), Command::Create { key: key(), options });
    let body = r#"{"key":"k","operation":"BREAK","args":{"reason":"r","grace_ms":5,"fence":7}}"#;
    let (reason, fence) = ("r".into(), Some(7));
    assert_eq!(write("OP", body), Command::Break { key: key(), reason, grace_ms: 5, fence });
    assert_eq!(write("EXPIRE", r#"{"key":"k","ttl_ms":1}"#), Command::Expire { key: key(), ttl_ms: 1 });
    let keys = vec!["a".into(), "b".into()];
    assert_eq!(
        write("DEL", r#"{"keys":["a","b"],"fence":9007199254740991}"#),
        Command::Del { keys, fence: Some((1 << 53) - 1) }
    );
    let all = Query::Scan { prefix: String::new(), cursor: None, limit: 100 };
    assert_eq!(read("SCAN", "{}"), Ok(Request::Read(all)));
    let held = Query::Held { key: key(), token: None };
    assert_eq!(read("OP", r#"{"key":"k","operation":"HELD"}"#), Ok(Request::Read(held)));
    let body = r#"{"commands":[{"command":"GET","key":"k"},
        {"command":"OP","key":"k","operation":"CHECK","args":{"fence":1}},{"command":"PERSIST","key":"k"}]}"#;
    let check = Command::Check { key: key(), fence: 1 };
    let items = vec![Command::Get { key: key() }, check, Command::Persist { key: key() }];
    assert_eq!(write("BATCH", body), Command::Batch(items));
}

const KEY: &str = "must be a string of 1..=1024 bytes of UTF-8 without control characters";
const TTL: &str = "args.ttl_ms must be an integer of milliseconds, at most 31536000000";

fn refused(command: &str, body: &str, field: &str, detail: &str) {
    let invalid = read(command, body).expect_err(body);
    assert_eq!(invalid.field.unwrap_or_default(), field, "{body}");
    assert_eq!(invalid.detail, detail, "{body}");
    assert_eq!(invalid.index, None, "{body}");
}

#[test]
fn bad_json() {
    let not = |why: &str| format!("the body is not valid JSON: {why}");
    refused("GET", " ", "", "the body is empty; send a JSON object, e.g. {\"key\":\"example\"}");
    refused("GET", "[]", "", "the body must be a JSON object; got an array");
    refused("GET", "null", "", "the body must be a JSON object; got null");
    refused("GET", "{\"key\":\n}", "", &not("expected value at line 2 column 1"));
    refused("GET", r#"{"key":"k"} x"#, "", &not("trailing characters at line 1 column 13"));
    refused("GET", r#"{"key":NaN}"#, "", &not("expected value at line 1 column 8"));
    assert!(request(Kind::Get, b"{\"key\":\"\xff\"}", PoolUuid::default()).is_err());
    assert!(read("GET", &"[".repeat(100_000)).is_err());
}

#[test]
fn bad_fields() {
    refused("GET", "{}", "key", &format!("key is missing: it {KEY}"));
    refused("GET", r#"{"key":null}"#, "key", &format!("key {KEY}; got null"));
    refused("GET", r#"{"key":5}"#, "key", &format!("key {KEY}; got an integer"));
    refused("GET", r#"{"key":""}"#, "key", &format!("key {KEY}; got 0 bytes"));
    refused("GET", &format!(r#"{{"key":"{}"}}"#, "k".repeat(1025)), "key", &format!("key {KEY}; got 1025 bytes"));
    refused("GET", r#"{"key":"a\u0000"}"#, "key", &format!("key {KEY}; got a control character at byte 1"));
    refused("GET", r#"{"key":"a","key":"a"}"#, "key", "key is given more than once");
    refused("GET", r#"{"key":"a","kez":1}"#, "kez", "kez is not a field here; known: key");
    refused("CREATE", r#"{"key":"k"}"#, "type", "type is missing: it must be \"lease\" or \"pool\"");
    refused("CREATE", r#"{"key":"k","type":"x"}"#, "type", "type must be \"lease\" or \"pool\"; got another string");
    let detail = "options.x is not a field here; known: delay_ms, min_hold_ms, ttl_ms_max";
    refused("CREATE", r#"{"key":"k","type":"lease","options":{"x":1}}"#, "options.x", detail);
    let detail = "options must be a JSON object; got null";
    refused("CREATE", r#"{"key":"k","type":"lease","options":null}"#, "options", detail);
    let detail = "options.ttl_ms_max must be an integer in 1..=31536000000; got 0";
    refused("CREATE", r#"{"key":"k","type":"lease","options":{"ttl_ms_max":0}}"#, "options.ttl_ms_max", detail);
    for (ttl, got) in [("0", "0"), ("-5", "-5"), ("1.0", "a number with a fraction, an exponent or more than 64 bits")]
    {
        let detail = format!("ttl_ms must be an integer in 1..=31536000000; got {got}");
        refused("EXPIRE", &format!(r#"{{"key":"k","ttl_ms":{ttl}}}"#), "ttl_ms", &detail);
    }
    refused("DEL", r#"{"keys":[]}"#, "keys", "keys must be an array of 1..=1000 keys; got 0");
    refused("DEL", r#"{"keys":["a",1]}"#, "keys[1]", &format!("keys[1] {KEY}; got an integer"));
    refused("SCAN", r#"{"limit":1001}"#, "limit", "limit must be an integer in 1..=1000; got 1001");
}

#[test]
fn bad_operations() {
    let op = |operation: &str, args: &str| format!(r#"{{"key":"k","operation":"{operation}","args":{args}}}"#);
    let real = "a number with a fraction, an exponent or more than 64 bits";
    for (ttl, got) in [
        ("123.45", real),
        ("3e4", real),
        ("\"30000\"", "a string"),
        ("null", "null"),
        ("true", "a boolean"),
        ("31536000001", "31536000001"),
        ("99999999999999999999", real),
    ] {
        let args = format!(r#"{{"owner":"o","token":"t","ttl_ms":{ttl}}}"#);
        refused("OP", &op("ACQUIRE", &args), "args.ttl_ms", &format!("{TTL}; got {got}"));
        refused(
            "OP",
            &op("RENEW", &format!(r#"{{"token":"t","ttl_ms":{ttl}}}"#)),
            "args.ttl_ms",
            &format!("{TTL}; got {got}"),
        );
    }
    let text = "must be a string of 1..=256 bytes of UTF-8 without control characters";
    let detail = "args.owner must be a string of 1..=256 bytes of UTF-8 without control characters; got null";
    refused("OP", &op("ACQUIRE", r#"{"owner":null,"token":"t"}"#), "args.owner", detail);
    refused("OP", r#"{"key":"k","operation":"RENEW"}"#, "args.token", &format!("args.token is missing: it {text}"));
    let detail = "args.wait_ms must be an integer in 0..=86400000; got 86400001";
    refused("OP", &op("ACQUIRE", r#"{"owner":"o","token":"t","wait_ms":86400001}"#), "args.wait_ms", detail);
    let detail = "args.create must be true or false; got an integer";
    refused("OP", &op("ACQUIRE", r#"{"owner":"o","token":"t","create":1}"#), "args.create", detail);
    let detail = "args.fence must be an integer in 1..=9007199254740991; got 9007199254740992";
    refused("OP", &op("CHECK", r#"{"fence":9007199254740992}"#), "args.fence", detail);
    let detail = "operation must be one of ACQUIRE, RENEW, RELEASE, HELD, BREAK, CHECK, RESIZE, HOLDERS (upper case); \
                  got another string";
    refused("OP", &op("acquire", "{}"), "operation", detail);
    refused("OP", &op("HELD", "[]"), "args", "args must be a JSON object; got an array");
    refused(
        "OP",
        &op("RELEASE", r#"{"token":"t","tokenn":1}"#),
        "args.tokenn",
        "args.tokenn is not a field here; known: token, fence",
    );
}

#[test]
fn bad_batches() {
    let item = |item: &str| format!(r#"{{"commands":[{{"command":"GET","key":"k"}},{item}]}}"#);
    let rule = "must be one of CREATE, OP, EXPIRE, PERSIST, DEL, GET";
    let wait = r#"{"command":"OP","key":"k","operation":"ACQUIRE","args":{"owner":"o","token":"t","wait_ms":1}}"#;
    for (json, field, detail) in [
        (r#"{"command":"SCAN"}"#, "command", format!("command {rule}")),
        (r#"{"command":"BATCH","commands":[]}"#, "command", format!("command {rule}")),
        (r#"{"key":"k"}"#, "command", format!("command is missing: it {rule}")),
        ("5", "commands", "commands must hold JSON objects; got an integer".to_owned()),
        (r#"{"command":"GET","key":"k","x":1}"#, "x", "x is not a field here; known: command, key".to_owned()),
        (r#"{"command":"GET","command":"GET","key":"k"}"#, "command", "command is given more than once".to_owned()),
        (wait, "args.wait_ms", "args.wait_ms must be 0 in a BATCH: nothing waits there".to_owned()),
    ] {
        let expected = Invalid { field: Some(field.to_owned()), index: Some(1), detail };
        assert_eq!(read("BATCH", &item(json)), Err(expected), "{json}");
    }
    let many = format!(r#"{{"commands":[{}]}}"#, vec![r#"{"command":"GET","key":"k"}"#; 1001].join(","));
    refused("BATCH", &many, "commands", "commands must be an array of 1..=1000 commands; got 1001");
}

#[test]
fn bad_items_of_all_or_nothing() {
    let first = r#"{"command":"OP","key":"k","operation":"RELEASE","args":{"token":"t"}}"#;
    let op = |operation: &str, args: &str| {
        format!(r#"{{"command":"OP","key":"k","operation":"{operation}","args":{args}}}"#)
    };
    let command = "command must be OP in a BATCH with all_or_nothing: ACQUIRE, RENEW or RELEASE";
    let operation = "operation must be ACQUIRE, RENEW or RELEASE in a BATCH with all_or_nothing";
    let wait = op("ACQUIRE", r#"{"owner":"o","token":"t","wait_ms":1}"#);
    for (item, field, detail) in [
        (r#"{"command":"GET","key":"k"}"#.to_owned(), "command", command),
        (r#"{"command":"CREATE","key":"k","type":"lease"}"#.to_owned(), "command", command),
        (r#"{"command":"DEL","keys":["k"]}"#.to_owned(), "command", command),
        (op("HELD", "{}"), "operation", operation),
        (op("CHECK", r#"{"fence":1}"#), "operation", operation),
        (op("BREAK", r#"{"reason":"r"}"#), "operation", operation),
        (wait, "args.wait_ms", "args.wait_ms must be 0 in a BATCH: nothing waits there"),
    ] {
        let body = format!(r#"{{"commands":[{first},{item}],"all_or_nothing":true}}"#);
        let expected = Invalid { field: Some(field.to_owned()), index: Some(1), detail: detail.to_owned() };
        assert_eq!(read("BATCH", &body), Err(expected), "{item}");
    }
    let body = format!(r#"{{"commands":[{first}],"all_or_nothing":1}}"#);
    refused("BATCH", &body, "all_or_nothing", "all_or_nothing must be true or false; got an integer");
    refused(
        "BATCH",
        r#"{"commands":[],"all_or_nothing":true}"#,
        "commands",
        "commands must be an array of 1..=1000 commands; got 0",
    );
}

fn json(body: Result<Body, serde_json::Error>) -> String {
    String::from_utf8(body.unwrap().json).unwrap()
}

#[test]
fn extras_stand_only_where_there_is_something_to_say() {
    assert_eq!(
        json(op(&OpReply { result: true, fence: Some(7), ttl_ms: Some(9), ..OpReply::default() })),
        r#"{"result":true,"fence":7,"ttl_ms":9}"#
    );
    let refused = OpReply {
        reason: Some(Reason::MinHold),
        yours: true,
        owner: Some("o".into()),
        retry_after_ms: Some(5),
        detail: Some("why".into()),
        ..OpReply::default()
    };
    assert_eq!(
        json(op(&refused)),
        r#"{"result":false,"owner":"o","reason":"min_hold","yours":true,"retry_after_ms":5,"detail":"why"}"#
    );
}

#[test]
fn a_batch_answers_item_by_item() {
    let replies = Reply::Batch(vec![
        Reply::Done { result: true, reason: None },
        Reply::Done { result: false, reason: Some(Reason::KeyExpired) },
        Reply::Deleted(2),
        Reply::View(None),
        Reply::Refused(Refusal::AlreadyExists),
    ]);
    assert_eq!(
        json(reply(&replies, Stamp(0)).unwrap()),
        r#"{"result":[{"result":true},{"result":false,"reason":"key_expired"},{"result":2},{"result":null},{"error":{"code":"already_exists","detail":"the key exists"}}]}"#
    );
}

#[test]
fn who_waits_is_told_its_place() {
    let op = OpReply { reason: Some(Reason::Queued), fence: Some(7), ttl_ms: Some(9), ..OpReply::default() };
    let queued = Reply::Queued { op, place: Place { ahead: 2, waiters: 5 } };
    let expected = r#"{"result":false,"fence":7,"ttl_ms":9,"reason":"queued","ahead":2,"waiters":5}"#;
    assert_eq!(json(reply(&queued, Stamp(0)).unwrap()), expected);
    let batch = Reply::Batch(vec![queued]);
    assert_eq!(json(reply(&batch, Stamp(0)).unwrap()), format!(r#"{{"result":[{expected}]}}"#));
}

#[test]
fn nothing_of_a_batch_is_told_by_the_item_to_blame() {
    let held = OpReply { reason: Some(Reason::Held), owner: Some("o".into()), fence: Some(7), ..OpReply::default() };
    let not_all = Reply::NotAll { index: 2, why: Ok(held) };
    let expected = r#"{"result":false,"fence":7,"owner":"o","reason":"held","index":2}"#;
    assert_eq!(json(reply(&not_all, Stamp(0)).unwrap()), expected);
    let not_all = Reply::NotAll { index: 0, why: Err(Refusal::TtlAboveMax { max: 5 }) };
    let problem = Problem::from(reply(&not_all, Stamp(0)).err().unwrap());
    assert_eq!((problem.code, problem.index), (Code::InvalidArgument, Some(0)));
    assert_eq!(problem.field.as_deref(), Some("args.ttl_ms"));
}

fn view() -> View {
    View {
        key: "k".into(),
        grant: None,
        waiters: 0,
        acquirable_in_ms: 0,
        options: LeaseOptions::default(),
        version: Position { index: 3, ordinal: 1 },
        key_ttl_ms: None,
        auto_created: false,
        last: None,
    }
}

#[test]
fn a_free_lease_has_nulls() {
    let expected = r#"{"key":"k","type":"lease","held":false,"owner":null,"fence":null,"ttl_ms":null,"held_for_ms":null,"acquired_at":null,"note":null,"broken":null,"waiters":0,"acquirable_in_ms":0,"key_ttl_ms":null,"auto_created":false,"options":{"delay_ms":0,"min_hold_ms":0,"ttl_ms_max":null},"version":"3.1","last":null}"#;
    assert_eq!(
        json(super::view(Some(&Shown::Lease(Box::new(view()))), Stamp(0))),
        format!(r#"{{"result":{expected}}}"#)
    );
    let page = Page { views: vec![Shown::Lease(Box::new(view()))], cursor: Some("k".into()) };
    assert_eq!(json(super::page(&page, Stamp(0))), format!(r#"{{"result":{{"keys":[{expected}],"cursor":"k"}}}}"#));
    assert_eq!(json(super::view(None, Stamp(0))), r#"{"result":null}"#);
}

#[test]
fn a_held_lease_tells_its_grant_and_the_last_one() {
    let grant = GrantView {
        owner: "o".into(),
        fence: 8,
        ttl_ms: 10,
        held_for_ms: 20,
        acquired_wall_ms: 1_700_000_000_123,
        note: Some("n".into()),
        broken: None,
    };
    let last = Ended { fence: 7, owner: "p".into(), reason: Reason::Expired, at: Stamp(40), detail: None };
    let view = View { grant: Some(grant), last: Some(last), ..view() };
    let json: serde_json::Value =
        serde_json::from_str(&json(super::view(Some(&Shown::Lease(Box::new(view.clone()))), Stamp(100)))).unwrap();
    let lease = &json["result"];
    assert_eq!(lease["acquired_at"], "2023-11-14T22:13:20.123Z");
    assert_eq!((&lease["fence"], &lease["note"], &lease["held"]), (&8.into(), &"n".into(), &true.into()));
    let last = serde_json::json!({"fence":7,"owner":"p","reason":"expired","ended_ms_ago":60,"detail":null});
    assert_eq!(lease["last"], last);
}
