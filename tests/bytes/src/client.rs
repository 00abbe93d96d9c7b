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

fn wire_type(bytes: &[u8]) -> Verdict {
    let at = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let json = bytes.get(at + 1..).unwrap_or_default();
    match &bytes[..at] {
        b"answer" => same::<wire::Answer>(json),
        b"problem" => same::<Problem>(json),
        b"snapshot" => same::<wire::Snapshot>(json),
        b"page" => same::<wire::ScanPage>(json),
        b"op" => same::<wire::Op<wire::CheckArgs>>(json),
        b"create" => same::<wire::Create>(json),
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
    let page = wire::ScanPage { keys: vec![snapshot.clone()], cursor: Some("k".into()) };
    let named = |name: &str, json: String| format!("{name}\n{json}").into_bytes();
    vec![
        ("answer", named("answer", r#"{"result":[1,-2,3.5,null],"fence":1,"detail":"d"}"#.into())),
        ("problem", named("problem", serde_json::to_string(&Problem::new(Code::TooLarge, "d")).unwrap())),
        ("snapshot", named("snapshot", serde_json::to_string(&snapshot).unwrap())),
        ("page", named("page", serde_json::to_string(&page).unwrap())),
        ("op", named("op", r#"{"key":"k","operation":"CHECK","args":{"fence":3}}"#.into())),
        ("create", named("create", r#"{"key":"k","type":"lease","options":{"delay_ms":1}}"#.into())),
    ]
}
