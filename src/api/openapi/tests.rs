//! The document against the code, in both directions. What a schema says of a field is tried on the reader of bodies:
//! each limit is taken, and one beyond it refused.

#![allow(clippy::unwrap_used, clippy::panic)]

mod pools;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::http::HeaderMap;
use serde_json::{Value, json};
use tenure_client::wire;
use tenure_cluster::{EventAt, Position, Stamp};

use super::DOCUMENT;
use crate::api::convert::{self, Kind, node_id};
use crate::api::problem::Code;
use crate::api::watch::query::Query as Watched;
use crate::api::watch::text::write;
use crate::edge::history::Told;
use crate::edge::watch::{Cut, Item, Why};
use crate::keyspace::{
    Ended, Event, EventKind, HoldersPage, LeaseOptions, OpReply, Place, PoolOptions, PoolUuid, PoolView, PriorGrant,
    Reason, Reply, Shown, SlotGrant, SlotOutcome, SlotReply, SlotView, Slotted, View,
};

fn document() -> Value {
    serde_json::from_str(DOCUMENT).unwrap()
}

/// A schema by its name.
fn schema(name: &str) -> Value {
    let schema = document()["components"]["schemas"][name].clone();
    assert!(schema.is_object(), "no schema {name}");
    schema
}

/// The schema a `$ref` names, with what stands beside it; or the schema itself.
fn resolved(schema: &Value) -> Value {
    let Some(target) = schema["$ref"].as_str() else { return schema.clone() };
    let mut whole = document().pointer(target.strip_prefix('#').unwrap()).unwrap().clone();
    for (name, value) in schema.as_object().unwrap().iter().filter(|(name, _)| *name != "$ref") {
        whole[name] = value.clone();
    }
    whole
}

fn names(object: &Value) -> BTreeSet<String> {
    object.as_object().map(|object| object.keys().cloned().collect()).unwrap_or_default()
}

fn texts(array: &Value) -> BTreeSet<String> {
    array.as_array().map(|all| all.iter().map(|text| text.as_str().unwrap().to_owned()).collect()).unwrap_or_default()
}

/// How a schema's own example comes to be a whole body.
type Whole = Box<dyn Fn(Value) -> Value>;

/// Every schema of a request: the command, the schema's name, its path in the body, how to make a body of it.
fn requests() -> Vec<(&'static str, String, &'static str, Whole)> {
    let mut all: Vec<(&'static str, String, &'static str, Whole)> = Vec::new();
    for (command, name) in [
        ("CREATE", "CreateLease"),
        ("CREATE", "CreatePool"),
        ("GET", "Get"),
        ("TYPE", "Type"),
        ("EXISTS", "Exists"),
        ("EXPIRE", "Expire"),
        ("TTL", "Ttl"),
        ("PERSIST", "Persist"),
        ("DEL", "Del"),
        ("SCAN", "Scan"),
        ("BATCH", "Batch"),
        ("BATCH", "AllOrNothing"),
    ] {
        all.push((command, name.to_owned(), "", Box::new(|body| body)));
    }
    for (of, name) in [("lease", "LeaseOptions"), ("pool", "PoolOptions")] {
        let create = move |options: Value| json!({"key": "k", "type": of, "options": options});
        all.push(("CREATE", name.to_owned(), "options.", Box::new(create)));
    }
    let acquire = |args: Value| json!({"key": "k", "operation": "ACQUIRE", "args": args});
    all.push(("OP", "AcquireSlotArgs".to_owned(), "args.", Box::new(acquire)));
    for (operation, target) in schema("Op")["discriminator"]["mapping"].as_object().unwrap() {
        let name = target.as_str().unwrap().rsplit('/').next().unwrap().to_owned();
        all.push(("OP", name.clone(), "", Box::new(|body| body)));
        let operation = operation.clone();
        let args = move |args: Value| json!({"key": "k", "operation": operation, "args": args});
        all.push(("OP", format!("{name}Args"), "args.", Box::new(args)));
    }
    for item in ["BatchItem", "AllOrNothingItem"] {
        let whole = item == "AllOrNothingItem";
        for of in schema(item)["oneOf"].as_array().unwrap() {
            let name = of["$ref"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
            let body = move |item: Value| json!({"commands": [item], "all_or_nothing": whole});
            all.push(("BATCH", name, "", Box::new(body)));
        }
    }
    let item = |args| json!({"commands": [{"command": "OP", "key": "k", "operation": "ACQUIRE", "args": args}]});
    for name in ["AcquireItemArgs", "AcquireSlotItemArgs"] {
        all.push(("BATCH", name.to_owned(), "args.", Box::new(item)));
    }
    all
}

fn read(command: &str, body: &Value) -> Result<(), convert::Invalid> {
    convert::request(Kind::named(command).unwrap(), body.to_string().as_bytes(), PoolUuid::default()).map(|_| ())
}

/// All paths of the code, as its own text has them, commands one by one.
fn routes() -> BTreeSet<(String, String)> {
    let mut all = BTreeSet::new();
    for route in include_str!("../mod.rs").split(".route(\"").skip(1) {
        let (path, rest) = route.split_once("\", ").unwrap();
        let method = rest.split('(').next().unwrap().to_owned();
        if path == "/v1/{command}" {
            all.extend(Kind::names().split(", ").map(|name| (method.clone(), format!("/v1/{name}"))));
        } else {
            all.insert((method, path.to_owned()));
        }
    }
    all
}

#[test]
fn it_is_openapi_of_this_version() {
    let document = document();
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn every_route_is_told_and_no_other() {
    let told: BTreeSet<(String, String)> = document()["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, methods)| names(methods).into_iter().map(|method| (method, path.clone())).collect::<Vec<_>>())
        .collect();
    assert_eq!(told, routes());
}

#[test]
fn every_reference_leads_somewhere_and_every_component_is_used() {
    fn walk(value: &Value, seen: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                seen.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
                fields.values().for_each(|value| walk(value, seen));
            }
            Value::Array(items) => items.iter().for_each(|item| walk(item, seen)),
            _ => {}
        }
    }
    let document = document();
    let mut seen = BTreeSet::new();
    walk(&document, &mut seen);
    for (kind, components) in document["components"].as_object().unwrap() {
        for name in names(components) {
            let target = format!("#/components/{kind}/{name}");
            assert!(seen.remove(&target), "{target} is used nowhere");
        }
    }
    assert!(seen.is_empty(), "these lead nowhere: {seen:?}");
}

#[test]
fn operations_are_those_of_the_code() {
    let told = names(&schema("Op")["discriminator"]["mapping"]);
    let known = read("OP", &json!({"key": "k", "operation": "?"})).unwrap_err().detail;
    let known = known.split_once("one of ").unwrap().1.split_once(" (upper").unwrap().0.to_owned();
    assert_eq!(told, known.split(", ").map(str::to_owned).collect());
    let items: BTreeSet<String> = schema("BatchItem")["oneOf"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| resolved(item)["properties"]["command"]["const"].as_str().unwrap().to_owned())
        .collect();
    let known = read("BATCH", &json!({"commands": [{"command": "?"}]})).unwrap_err().detail;
    assert_eq!(items, known.split_once("one of ").unwrap().1.split(", ").map(str::to_owned).collect());
}

#[test]
fn every_field_is_told_and_no_other() {
    for (command, name, path, whole) in requests() {
        let schema = schema(&name);
        assert_eq!(schema["additionalProperties"], false, "{name}");
        let mut example = schema["examples"][0].clone();
        example["?"] = json!(1);
        let invalid = read(command, &whole(example)).unwrap_err();
        assert_eq!(invalid.field.as_deref(), Some(&*format!("{path}?")), "{name}");
        let known = invalid.detail.split_once("known: ").unwrap().1.split(", ").map(str::to_owned).collect();
        assert_eq!(names(&schema["properties"]), known, "{name}");
    }
}

#[test]
fn required_fields_are_those_that_must_be_there() {
    for (command, name, _, whole) in requests() {
        let schema = schema(&name);
        let (example, required) = (schema["examples"][0].clone(), texts(&schema["required"]));
        assert_eq!(read(command, &whole(example.clone())), Ok(()), "the example of {name}");
        for field in names(&example) {
            let mut without = example.clone();
            without.as_object_mut().unwrap().remove(&field);
            // What makes a batch another kind of batch is required of the schema alone.
            let needed = required.contains(&field) && field != "all_or_nothing";
            assert_eq!(read(command, &whole(without)).is_err(), needed, "{name} without {field}");
        }
    }
}

/// Values at a schema's limits, and those just beyond.
fn limits(schema: &Value) -> (Vec<Value>, Vec<Value>) {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    if let Some(only) = schema.get("const") {
        good.push(only.clone());
        bad.extend([json!("?"), json!(1)]);
    }
    if let Some(least) = schema["minimum"].as_i64() {
        good.push(json!(least));
        bad.push(least.checked_sub(1).map_or_else(|| json!(-1e30), |below| json!(below)));
    }
    if let Some(most) = schema["maximum"].as_u64() {
        good.push(json!(most));
        bad.push(json!(most + 1));
    }
    let text = |bytes: u64| json!("x".repeat(usize::try_from(bytes).unwrap()));
    if let Some(most) = schema["maxLength"].as_u64() {
        let least = schema["minLength"].as_u64().unwrap_or(0);
        good.extend([text(least), text(most)]);
        bad.push(text(most + 1));
        bad.extend(least.checked_sub(1).map(text));
        bad.push(json!("\u{85}"));
    }
    if let Some(most) = schema["maxItems"].as_u64() {
        let item = resolved(&schema["items"]);
        let item = resolved(item.pointer("/oneOf/0").unwrap_or(&item));
        let item = item.pointer("/examples/0").cloned().unwrap_or(json!("k"));
        let many = |items: u64| json!(vec![item.clone(); usize::try_from(items).unwrap()]);
        good.extend([many(1), many(most)]);
        bad.extend([many(0), many(most + 1)]);
    }
    if let Some(known) = schema["enum"].as_array() {
        good.extend(known.iter().cloned());
        bad.push(json!("?"));
    }
    let kind = schema["type"].as_str().unwrap_or("object");
    let of_kind: BTreeMap<&str, Value> = BTreeMap::from([
        ("integer", json!("1")),
        ("string", json!(1)),
        ("boolean", json!("true")),
        ("array", json!({})),
        ("object", json!([])),
    ]);
    bad.extend([Value::Null, of_kind[kind].clone()]);
    (good, bad)
}

#[test]
fn limits_are_those_of_the_code() {
    let mut tried = 0;
    for (command, name, _, whole) in requests() {
        let schema = schema(&name);
        for (field, of) in schema["properties"].as_object().unwrap() {
            let (good, bad) = limits(&resolved(of));
            let with = |value: Value| {
                let mut body = schema["examples"][0].clone();
                body[field] = value;
                whole(body)
            };
            for value in good {
                assert_eq!(read(command, &with(value.clone())), Ok(()), "{name}.{field} = {value:.80}");
            }
            for value in bad {
                assert!(read(command, &with(value.clone())).is_err(), "{name}.{field} = {value:.80}");
                tried += 1;
            }
        }
    }
    assert!(tried > 300, "{tried}");
    let node = schema("Replace")["properties"]["node_id"].clone();
    let (good, bad) = limits(&node);
    let replace = |value: &Value| node_id(json!({"node_id": value}).to_string().as_bytes());
    assert!(good.iter().all(|value| replace(value).is_ok()) && bad.iter().all(|value| replace(value).is_err()));
}

#[test]
fn reasons_are_those_of_the_code() {
    // Serde lists what it knows.
    let known = serde_json::from_str::<Reason>("\"?\"").unwrap_err().to_string();
    let known: BTreeSet<String> = known.split('`').skip(3).step_by(2).map(str::to_owned).collect();
    assert_eq!(texts(&schema("Reason")["enum"]), known);
    let text = schema("Reason")["description"].as_str().unwrap().to_owned();
    assert!(known.iter().all(|reason| text.contains(&format!("`{reason}`"))), "each is explained");
}

/// Every code; the compiler says when one is missing.
fn codes() -> Vec<Code> {
    let next = |code: &Code| {
        Some(match code {
            Code::InvalidArgument => Code::Unauthenticated,
            Code::Unauthenticated => Code::PermissionDenied,
            Code::PermissionDenied => Code::NoSuchKey,
            Code::NoSuchKey => Code::NotFound,
            Code::NotFound => Code::MethodNotAllowed,
            Code::MethodNotAllowed => Code::RequestTimeout,
            Code::RequestTimeout => Code::AlreadyExists,
            Code::AlreadyExists => Code::WrongType,
            Code::WrongType => Code::WrongCluster,
            Code::WrongCluster => Code::TooLarge,
            Code::TooLarge => Code::UnsupportedMediaType,
            Code::UnsupportedMediaType => Code::RateLimited,
            Code::RateLimited => Code::Internal,
            Code::Internal => Code::Unavailable,
            Code::Unavailable => Code::OutcomeUnknown,
            Code::OutcomeUnknown => return None,
        })
    };
    std::iter::successors(Some(Code::InvalidArgument), next).collect()
}

#[test]
fn codes_are_those_of_the_code_each_with_its_status() {
    let told = schema("Code");
    assert_eq!(texts(&told["enum"]), codes().iter().map(|code| code.as_str().to_owned()).collect());
    let by_name: BTreeMap<&str, u16> = codes().iter().map(|code| (code.as_str(), code.status())).collect();
    let document = document();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (status, answer) in
            methods.as_object().unwrap().values().flat_map(|of| of["responses"].as_object().unwrap())
        {
            let answer = resolved(answer);
            let Some(problem) = answer["content"].get("application/problem+json") else {
                assert_eq!(status, "200", "{path}");
                continue;
            };
            let code = problem["schema"]["properties"]["code"]["const"].as_str().unwrap();
            assert_eq!(status, &by_name[code].to_string(), "{path} {code}");
        }
    }
    let text = told["description"].as_str().unwrap();
    assert!(codes().iter().all(|code| text.contains(&format!("`{}`", code.as_str()))), "each is explained");
    let problem =
        wire::Problem { field: Some("f".into()), index: Some(1), leader: Some("l".into()), ..wire::Problem::default() };
    assert_eq!(names(&schema("Problem")["properties"]), names(&serde_json::to_value(problem).unwrap()));
}

#[test]
fn headers_of_answers_are_told() {
    let own: BTreeSet<String> =
        names(&document()["components"]["headers"]).iter().map(|name| name.to_ascii_lowercase()).collect();
    let known =
        [wire::HEADER_POSITION, wire::HEADER_CLOCK, wire::HEADER_TERM, wire::HEADER_CLUSTER, wire::HEADER_AGE_MS];
    assert_eq!(own, known.into_iter().chain(["retry-after"]).map(str::to_owned).collect());
}

/// The fields of an answer's JSON.
fn told(body: &Result<convert::Body, serde_json::Error>) -> BTreeSet<String> {
    names(&serde_json::from_slice(&body.as_ref().unwrap().json).unwrap())
}

#[test]
fn fields_of_answers_are_told() {
    let op = OpReply {
        result: false,
        reason: Some(Reason::Queued),
        yours: true,
        fence: Some(1),
        ttl_ms: Some(1),
        owner: Some("o".into()),
        retry_after_ms: Some(1),
        detail: Some("d".into()),
    };
    let place = Place { ahead: 0, waiters: 1 };
    let queued = Reply::Queued { op: op.clone(), place };
    let of_slot = Reply::OfSlot { op: op.clone(), id: 0 };
    let not_all = Reply::NotAll { index: 0, why: Ok(op) };
    let slot = Reply::Slot(Box::new(pools::slot_reply(SlotOutcome::Granted(pools::slot_grant()))));
    for (name, replies) in [
        ("OpAnswer", vec![queued, of_slot]),
        ("SlotAnswer", vec![slot, Reply::SlotQueued(place)]),
        ("NotAllAnswer", vec![not_all]),
    ] {
        let fields = replies.iter().flat_map(|reply| told(&convert::reply(reply, Stamp(0)).ok().unwrap()));
        assert_eq!(names(&schema(name)["properties"]), fields.collect(), "{name}");
    }
    let last = Ended { fence: 1, owner: "o".into(), reason: Reason::Expired, at: Stamp(0), detail: None };
    let view = View {
        key: "k".into(),
        grant: None,
        waiters: 0,
        acquirable_in_ms: 0,
        options: LeaseOptions::default(),
        version: Position { index: 1, ordinal: 0 },
        key_ttl_ms: None,
        auto_created: false,
        last: Some(last),
    };
    let body = convert::view(Some(&Shown::Lease(Box::new(view))), Stamp(0)).unwrap();
    let answer: Value = serde_json::from_slice(&body.json).unwrap();
    let snapshot = schema("LeaseSnapshot");
    assert_eq!(names(&snapshot["properties"]), names(&answer["result"]));
    assert_eq!(names(&snapshot["properties"]), texts(&snapshot["required"]));
    assert_eq!(names(&schema("Last")["oneOf"][1]["properties"]), names(&answer["result"]["last"]));
    assert_eq!(names(&snapshot["properties"]["options"]["properties"]), names(&answer["result"]["options"]));
}

#[test]
fn parameters_are_those_of_the_code() {
    let document = document();
    let told = |path: &str, place: &str| {
        let (_, methods) = document["paths"][path].as_object().unwrap().iter().next().unwrap();
        let all = methods["parameters"].as_array().unwrap().iter().map(resolved);
        all.filter(|of| of["in"] == place).map(|of| of["name"].as_str().unwrap().to_owned()).collect::<BTreeSet<_>>()
    };
    let known = Watched::of("?=1", &HeaderMap::new(), "c").unwrap_err().detail;
    let known = known.split_once("known: ").unwrap().1.split(", ").map(str::to_owned).collect();
    assert_eq!(told("/v1/watch", "query"), known);
    assert_eq!(told("/v1/watch", "header"), BTreeSet::from(["Last-Event-ID".to_owned()]));
    for kind in Kind::names().split(", ") {
        assert_eq!(told(&format!("/v1/{kind}"), "header"), BTreeSet::from(["Tenure-Timeout-Ms".to_owned()]), "{kind}");
        let reads = ["OP", "GET", "TYPE", "EXISTS", "TTL", "SCAN"].contains(&kind);
        assert_eq!(told(&format!("/v1/{kind}"), "query").contains("consistency"), reads, "{kind}");
    }
}

#[test]
fn messages_of_a_watch_are_told() {
    let position = Position { index: 1, ordinal: 0 };
    let at = EventAt { position, nth: 0, stamp: Stamp(0), wall_ms: 0, term: 1, replay: false };
    let event = Event {
        key: "k".into(),
        kind: EventKind::Broken,
        fence: Some(1),
        owner: Some("o".into()),
        last_renewed: None,
        detail: Some("d".into()),
        ttl_ms: Some(1),
        attach: None,
        reason: None,
        slot: Some(Slotted { id: 0, identity: Some("i".into()), answer: None, held: None }),
    };
    let mut text = String::new();
    write(&mut text, &Item::Event(Arc::new(Told { at, event })), "c");
    let data = text.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
    assert_eq!(names(&schema("WatchEvent")["properties"]), names(&serde_json::from_str(data).unwrap()));
    let resets = [Why::Start, Why::TooOld, Why::OtherCluster, Why::Jumped].map(|why| why.as_str().to_owned());
    assert_eq!(texts(&schema("WatchReset")["properties"]["reason"]["enum"]), BTreeSet::from(resets));
    let cuts = [Cut::TooSlow, Cut::Leaving].map(|cut| cut.as_str().to_owned());
    assert_eq!(texts(&schema("WatchCut")["properties"]["reason"]["enum"]), BTreeSet::from(cuts));
}
