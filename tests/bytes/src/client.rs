//! What a client reads: URIs, answers with their status and headers, and the wire's types.
//!
//! Invariant of an answer: a write counts as surely without effect only when a node says `unavailable`; whatever else
//! cannot be read leaves it in doubt or ends the call.

use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_client::client::reading::{self, Made};
use tenure_client::wire::{self, Code, Problem, Repeat};
use tenure_client::{Endpoint, Uri};

use crate::mutate::Form;
use crate::{Heap, KIB, Sample, Target, Verdict};

/// Endpoints of a URI.
pub const URI: Target = Target {
    name: "client-uri",
    read: uri,
    samples: uri_samples,
    form: Form::Text,
    mend: None,
    // A comma is an endpoint of 32 bytes, before they are counted.
    heap: Heap { per_byte: 128, besides: 16 * KIB },
    least: 2_000,
};

/// An answer as it comes: a status, headers, an empty line, a body.
pub const ANSWER: Target = Target {
    name: "client-answer",
    read: answer,
    samples: answer_samples,
    form: Form::Json,
    mend: None,
    // A tree of JSON values: 32 bytes an element, and its maps.
    heap: Heap { per_byte: 256, besides: 64 * KIB },
    least: 2_000,
};

/// A type's name, and its JSON.
pub const WIRE: Target = Target {
    name: "client-wire",
    read: wire_type,
    samples: wire_samples,
    form: Form::Json,
    mend: None,
    heap: Heap { per_byte: 512, besides: 64 * KIB },
    least: 2_000,
};

fn uri(bytes: &[u8]) -> Verdict {
    let Ok(text) = std::str::from_utf8(bytes) else { return Verdict::Refused };
    let _ = text.parse::<Endpoint>();
    match text.parse::<Uri>() {
        Ok(uri) => {
            assert!((1..=16).contains(&uri.endpoints().len()));
            assert_eq!(uri.to_string().parse::<Uri>().unwrap(), uri);
            for endpoint in uri.endpoints() {
                assert!(endpoint.port > 0);
                assert_eq!(&endpoint.to_string().parse::<Endpoint>().unwrap(), endpoint);
                format!("http://{endpoint}/v1/OP").parse::<hyper::Uri>().expect("an endpoint makes a request's URI");
            }
            Verdict::Accepted
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            Verdict::Refused
        }
    }
}

fn uri_samples() -> Vec<Sample> {
    let sixteen = format!("tenure://{}", (1..=16).map(|n| format!("h{n}:{n}")).collect::<Vec<_>>().join(","));
    vec![
        ("one", b"tenure://127.0.0.1:13378".to_vec()),
        ("three", b"amaquet://a,b-c.d_e:2,[fe80::1]:65535/".to_vec()),
        ("sixteen", sixteen.into_bytes()),
    ]
}

fn answer(bytes: &[u8]) -> Verdict {
    let end = bytes.windows(2).position(|two| two == b"\n\n").unwrap_or(bytes.len());
    let body = bytes.get(end + 2..).unwrap_or_default();
    let mut lines = bytes[..end].split(|byte| *byte == b'\n');
    let Some(Ok(status)) = lines.next().map(StatusCode::from_bytes) else { return Verdict::Refused };
    let mut headers = HeaderMap::new();
    for line in lines.take(100) {
        let Some(at) = line.iter().position(|byte| *byte == b':') else { continue };
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(&line[..at]), HeaderValue::from_bytes(&line[at + 1..])) {
            headers.append(name, value);
        }
    }
    let mut verdict = Verdict::Refused;
    for (repeat, bare) in
        [(Repeat::Read, true), (Repeat::Read, false), (Repeat::ByToken, false), (Repeat::Never, false)]
    {
        let made = reading::answer(status, &headers, body, repeat, bare);
        if made == Made::Without {
            let problem: Problem = serde_json::from_slice(body).unwrap();
            assert_eq!(problem.code, Code::Unavailable.as_str());
        }
        if status.is_success() && repeat != Repeat::Read {
            assert!(matches!(made, Made::Answered(_) | Made::InDoubt), "{made:?}: what was done is done");
        }
        if !bare && !matches!(made, Made::NotUnderstood | Made::InDoubt) {
            verdict = Verdict::Accepted;
        }
    }
    verdict
}

fn answer_samples() -> Vec<Sample> {
    let witness = "tenure-position:7.0\ntenure-clock:1700000000000\ntenure-term:2\ntenure-cluster:00ff";
    let problem = |code: Code| serde_json::to_string(&Problem::new(code, "d").field("args.ttl_ms")).unwrap();
    let led = Problem { leader: Some("a:1".into()), index: Some(3), ..Problem::new(Code::Unavailable, "no_leader") };
    [
        ("held", format!("200\n{witness}\n\n{{\"result\":true,\"fence\":1,\"ttl_ms\":30000,\"owner\":\"o\"}}")),
        (
            "busy",
            format!("200\n{witness}\n\n{{\"result\":false,\"reason\":\"held\",\"retry_after_ms\":5,\"yours\":true}}"),
        ),
        ("refused", format!("400\n{witness}\n\n{}", problem(Code::InvalidArgument))),
        ("unavailable", format!("503\nretry-after:1\n\n{}", serde_json::to_string(&led).unwrap())),
    ]
    .into_iter()
    .map(|(name, text)| (name, text.into_bytes()))
    .collect()
}

/// Read, written and read again it is the same.
fn same<T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug>(json: &[u8]) -> Verdict {
    let Ok(value) = serde_json::from_slice::<T>(json) else { return Verdict::Refused };
    let written = serde_json::to_vec(&value).unwrap();
    assert_eq!(serde_json::from_slice::<T>(&written).unwrap(), value);
    Verdict::Accepted
}

fn has_real(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::Number(number) => number.is_f64(),
        serde_json::Value::Array(items) => items.iter().any(has_real),
        serde_json::Value::Object(fields) => fields.values().any(has_real),
        _ => false,
    }
}

/// Whatever it is the answer to: what a pool may have told is asked of it.
fn read_answer(json: &[u8]) -> Verdict {
    if let Ok(answer) = serde_json::from_slice::<wire::Answer>(json) {
        let (slot, renewal) = (answer.slot(), answer.slot_renewal());
        if let Some(wire::SlotRenewal::Renewed(renewed)) = renewal {
            assert_eq!(Some(renewed), slot);
        }
        let _ = (answer.ttl_raised(), answer.took_over());
        // No node says a number that is no integer, and serde_json reads one to its last digit only if it is asked to.
        if has_real(&answer.result) || answer.extras.values().any(has_real) {
            return Verdict::Accepted;
        }
    }
    same::<wire::Answer>(json)
}

fn wire_type(bytes: &[u8]) -> Verdict {
    let at = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let json = bytes.get(at + 1..).unwrap_or_default();
    match &bytes[..at] {
        b"answer" => read_answer(json),
        b"problem" => same::<Problem>(json),
        b"snapshot" => same::<wire::Snapshot>(json),
        b"page" => same::<wire::ScanPage>(json),
        b"op" => same::<wire::Op<wire::CheckArgs>>(json),
        b"create" => same::<wire::Create>(json),
        b"slot" => same::<wire::SlotGrant>(json),
        b"holders" => same::<wire::HoldersPage>(json),
        b"acquire-slot" => same::<wire::Op<wire::AcquireSlotArgs>>(json),
        _ => Verdict::Refused,
    }
}

fn wire_samples() -> Vec<Sample> {
    let snapshot = wire::Snapshot {
        key: "k".into(),
        kind: "lease".into(),
        held: true,
        owner: Some("o".into()),
        fence: Some(7),
        ttl_ms: Some(1),
        last: Some(wire::EndedGrant { fence: 6, owner: "p".into(), reason: "expired".into(), ..Default::default() }),
        ..Default::default()
    };
    let slot =
        r#"{"id":3,"fence":17,"ttl_ms":30000,"identity":null,"pool":"00ff","first":0,"size":512,"floor_unix_ms":5}"#;
    let pool = r#"{"key":"k","type":"pool","pool":"00ff","held":true,"slots":{"held":1,"quarantined":2,"free":3},
        "options":{"size":6,"on_conflict":"reject"},"version":"3.1"}"#;
    let acquire_slot = r#"{"key":"k","operation":"ACQUIRE","args":{"identity":"i","token":"t","avoid":3,"unix_ms":5}}"#;
    let page = wire::ScanPage { keys: vec![snapshot.clone()], cursor: Some("k".into()) };
    let named = |name: &str, json: String| format!("{name}\n{json}").into_bytes();
    vec![
        ("answer", named("answer", r#"{"result":[1,-2,3.5,null],"fence":1,"detail":"d"}"#.into())),
        ("problem", named("problem", serde_json::to_string(&Problem::new(Code::TooLarge, "d")).unwrap())),
        ("snapshot", named("snapshot", serde_json::to_string(&snapshot).unwrap())),
        ("page", named("page", serde_json::to_string(&page).unwrap())),
        ("op", named("op", r#"{"key":"k","operation":"CHECK","args":{"fence":3}}"#.into())),
        (
            "slot-granted",
            named("answer", format!(r#"{{"result":{slot},"took_over":true,"prior_ttl_ms":9,"prior_fence":16}}"#)),
        ),
        ("slot-renewed", named("answer", format!(r#"{{"result":{{"status":"renewed",{}}}"#, &slot[1..]))),
        ("slot-lost", named("answer", r#"{"result":{"status":"lost"},"reason":"taken_over"}"#.into())),
        ("slot", named("slot", slot.into())),
        ("pool", named("snapshot", pool.into())),
        (
            "holders",
            named(
                "holders",
                r#"{"holders":[{"id":3,"held":true,"identity":"i","fence":7,"free_in_ms":0}],"cursor":3}"#.into(),
            ),
        ),
        ("acquire-slot", named("acquire-slot", acquire_slot.into())),
        ("create", named("create", r#"{"key":"k","type":"lease","options":{"delay_ms":1}}"#.into())),
    ]
}
