//! Bad input: each is one clear problem+json that names the field, and changes nothing. The keyspace is compared before
//! and after all of it.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Fresh, Node};
use crate::http::{Http, Response};

/// The problem's form, and that it is this one.
fn assert_problem(response: &Response, status: u16, code: &str, field: Option<&str>, what: &str) {
    assert_eq!(response.status, status, "{what}: {response:?}");
    assert_eq!(response.headers["content-type"], "application/problem+json", "{what}");
    let problem = response.json();
    assert_eq!(problem["code"], code, "{what}: {problem}");
    assert_eq!(problem["status"], status, "{what}: {problem}");
    for name in ["type", "title", "detail"] {
        assert!(problem[name].as_str().is_some_and(|text| !text.is_empty()), "{what}: no {name} in {problem}");
    }
    assert_eq!(problem.get("field").and_then(Value::as_str), field, "{what}: {problem}");
    if let Some(field) = field {
        assert!(problem["detail"].as_str().unwrap().contains(field), "{what}: the text names the field: {problem}");
    }
}

/// Every key with all that time alone does not change.
fn still(node: &Node) -> Vec<Value> {
    let mut keys = node.scan();
    for key in &mut keys {
        for moving in ["ttl_ms", "held_for_ms", "acquirable_in_ms", "key_ttl_ms"] {
            key[moving] = Value::Null;
        }
    }
    keys
}

/// A node with one held and one free lease, and a check that bad input changed neither.
fn with_leases(attack: impl FnOnce(&Node, &mut Http)) {
    let fresh = Fresh::start();
    let node = &fresh.node;
    let args = json!({"owner": "o", "token": "t", "ttl_ms": 600_000, "create": true});
    assert_eq!(node.op("held", "ACQUIRE", &args)["result"], true);
    node.call("CREATE", &json!({"key": "k", "type": "lease", "options": {}}));
    let before = still(node);
    attack(node, &mut node.http());
    assert_eq!(still(node), before, "bad input changed something");
    assert_eq!(node.op("held", "RENEW", &json!({"token": "t", "ttl_ms": 1}))["result"], true);
}

#[test]
fn numbers_out_of_form_or_range() {
    // FR-01, FR-02: fractional, textual, absent-like and huge times. Zero and negative are refusals for a grant
    // (`contract.rs`) and errors for a key's lifetime.
    let bad = ["123.45", "\"30000\"", "null", "true", "[]", "{}", "1e3", "31536000001", "18446744073709551616"];
    with_leases(|_, http| {
        for value in bad {
            for (operation, args, field) in [
                ("ACQUIRE", format!(r#"{{"owner":"o","token":"t","ttl_ms":{value}}}"#), "args.ttl_ms"),
                ("ACQUIRE", format!(r#"{{"owner":"o","token":"t","delay_ms":{value}}}"#), "args.delay_ms"),
                ("ACQUIRE", format!(r#"{{"owner":"o","token":"t","min_hold_ms":{value}}}"#), "args.min_hold_ms"),
                ("ACQUIRE", format!(r#"{{"owner":"o","token":"t","wait_ms":{value}}}"#), "args.wait_ms"),
                ("RENEW", format!(r#"{{"token":"t","ttl_ms":{value}}}"#), "args.ttl_ms"),
                ("BREAK", format!(r#"{{"reason":"r","grace_ms":{value}}}"#), "args.grace_ms"),
            ] {
                let body = format!(r#"{{"key":"held","operation":"{operation}","args":{args}}}"#);
                let response = http.post("OP", &body).unwrap();
                assert_problem(&response, 400, "invalid_argument", Some(field), &body);
            }
        }
        for value in bad.iter().chain(&["0", "-1"]) {
            let body = format!(r#"{{"key":"k","ttl_ms":{value}}}"#);
            let response = http.post("EXPIRE", &body).unwrap();
            assert_problem(&response, 400, "invalid_argument", Some("ttl_ms"), &body);
        }
        for value in ["0", "1001", "-1", "1.5", "\"1\"", "null"] {
            let body = format!(r#"{{"limit":{value}}}"#);
            let response = http.post("SCAN", &body).unwrap();
            assert_problem(&response, 400, "invalid_argument", Some("limit"), &body);
        }
        for value in ["-1", "1.5", "\"1\"", "null", "9007199254740992"] {
            let body = format!(r#"{{"key":"held","operation":"CHECK","args":{{"fence":{value}}}}}"#);
            let response = http.post("OP", &body).unwrap();
            assert_problem(&response, 400, "invalid_argument", Some("args.fence"), &body);
        }
    });
}

#[test]
fn texts_out_of_form_or_range() {
    with_leases(|_, http| {
        let long = |bytes: usize| format!("\"{}\"", "x".repeat(bytes));
        let kinds = ["\"\"", "1", "null", "true", "[]", r#""a\u0000b""#, r#""a\nb""#, r#""\u007f""#];
        for (field, max) in [("owner", 256), ("token", 256), ("note", 1024)] {
            for value in kinds.iter().map(|&kind| kind.to_owned()).chain([long(max + 1)]) {
                if field == "note" && value == "\"\"" {
                    continue; // an empty note is a note
                }
                let args = [("owner", "\"o\""), ("token", "\"t\"")].iter().filter(|(name, _)| *name != field);
                let mut args: Vec<String> = args.map(|(name, value)| format!(r#""{name}":{value}"#)).collect();
                args.push(format!(r#""{field}":{value}"#));
                let body = format!(r#"{{"key":"k","operation":"ACQUIRE","args":{{{}}}}}"#, args.join(","));
                let response = http.post("OP", &body).unwrap();
                assert_problem(&response, 400, "invalid_argument", Some(&format!("args.{field}")), &body);
            }
        }
        for value in kinds.iter().map(|&kind| kind.to_owned()).chain([long(1025)]) {
            for command in ["GET", "TYPE", "EXISTS", "TTL", "PERSIST"] {
                let body = format!(r#"{{"key":{value}}}"#);
                let response = http.post(command, &body).unwrap();
                assert_problem(&response, 400, "invalid_argument", Some("key"), &body);
            }
        }
        let body = format!(r#"{{"key":"held","operation":"BREAK","args":{{"reason":{}}}}}"#, long(1025));
        assert_problem(&http.post("OP", &body).unwrap(), 400, "invalid_argument", Some("args.reason"), "BREAK");
        // At the limits themselves all is well: 1024 bytes of key, in two-byte characters too.
        for key in ["x".repeat(1024), "ä".repeat(512)] {
            let response = http.post("EXISTS", &json!({"key": key}).to_string()).unwrap();
            assert_eq!(response.status, 200, "{response:?}");
        }
    });
}

#[test]
fn fields_missing_unknown_and_twice() {
    with_leases(|_, http| {
        for (command, body, field) in [
            ("CREATE", r#"{"type":"lease"}"#, "key"),
            ("CREATE", r#"{"key":"n"}"#, "type"),
            ("CREATE", r#"{"key":"n","type":"queue"}"#, "type"),
            ("CREATE", r#"{"key":"n","type":"lease","options":[]}"#, "options"),
            ("CREATE", r#"{"key":"n","type":"lease","options":{"delay":1}}"#, "options.delay"),
            ("CREATE", r#"{"key":"n","type":"lease","options":{"delay_ms":1.5}}"#, "options.delay_ms"),
            ("CREATE", r#"{"key":"n","type":"lease","options":{"ttl_ms_max":0}}"#, "options.ttl_ms_max"),
            ("CREATE", r#"{"key":"n","key":"m","type":"lease"}"#, "key"),
            ("CREATE", r#"{"key":"n","type":"lease","ttl_ms":1}"#, "ttl_ms"),
            ("OP", r#"{"operation":"HELD"}"#, "key"),
            ("OP", r#"{"key":"k"}"#, "operation"),
            ("OP", r#"{"key":"k","operation":"STEAL"}"#, "operation"),
            ("OP", r#"{"key":"k","operation":"acquire"}"#, "operation"),
            ("OP", r#"{"key":"k","operation":1}"#, "operation"),
            ("OP", r#"{"key":"k","operation":"HELD","args":null}"#, "args"),
            ("OP", r#"{"key":"k","operation":"ACQUIRE"}"#, "args.owner"),
            ("OP", r#"{"key":"k","operation":"ACQUIRE","args":{"owner":"o"}}"#, "args.token"),
            ("OP", r#"{"key":"k","operation":"ACQUIRE","args":{"owner":"o","token":"t","ttl":1}}"#, "args.ttl"),
            ("OP", r#"{"key":"k","operation":"ACQUIRE","args":{"owner":"o","token":"t","token":"u"}}"#, "args.token"),
            ("OP", r#"{"key":"k","operation":"ACQUIRE","args":{"owner":"o","token":"t","once":1}}"#, "args.once"),
            (
                "OP",
                r#"{"key":"k","operation":"ACQUIRE","args":{"owner":"o","token":"t","create":"yes"}}"#,
                "args.create",
            ),
            ("OP", r#"{"key":"k","operation":"RENEW","args":{}}"#, "args.token"),
            ("OP", r#"{"key":"k","operation":"RENEW","args":{"token":"t","owner":"o"}}"#, "args.owner"),
            ("OP", r#"{"key":"k","operation":"BREAK","args":{}}"#, "args.reason"),
            ("OP", r#"{"key":"k","operation":"CHECK","args":{}}"#, "args.fence"),
            ("OP", r#"{"key":"k","operation":"CHECK"}"#, "args.fence"),
            ("EXPIRE", r#"{"key":"k"}"#, "ttl_ms"),
            ("DEL", r#"{}"#, "keys"),
            ("DEL", r#"{"keys":[]}"#, "keys"),
            ("DEL", r#"{"keys":"k"}"#, "keys"),
            ("DEL", r#"{"keys":["k",""]}"#, "keys[1]"),
            ("DEL", r#"{"key":"k"}"#, "key"),
            ("GET", r#"{"keys":["k"]}"#, "keys"),
            ("SCAN", r#"{"prefix":1}"#, "prefix"),
            ("SCAN", r#"{"cursor":null}"#, "cursor"),
            ("BATCH", r#"{}"#, "commands"),
            ("BATCH", r#"{"commands":[]}"#, "commands"),
        ] {
            let response = http.post(command, body).unwrap();
            assert_problem(&response, 400, "invalid_argument", Some(field), &format!("{command} {body}"));
        }
        let keys: Vec<String> = (0..1001).map(|n| format!("k{n}")).collect();
        let response = http.post("DEL", &json!({"keys": keys}).to_string()).unwrap();
        assert_problem(&response, 400, "invalid_argument", Some("keys"), "1001 keys");
    });
}

#[test]
fn a_malformed_item_refuses_the_whole_batch() {
    with_leases(|_, http| {
        let good = r#"{"command":"CREATE","key":"made","type":"lease"}"#;
        for (bad, field) in [
            (r#"{"command":"EXPIRE","key":"k","ttl_ms":0}"#, Some("ttl_ms")),
            (r#"{"command":"SCAN"}"#, Some("command")),
            (r#"{"command":"BATCH","commands":[]}"#, Some("command")),
            (r#"{"key":"k"}"#, Some("command")),
            (
                r#"{"command":"OP","key":"k","operation":"ACQUIRE","args":{"owner":"o","token":"t","wait_ms":1}}"#,
                Some("args.wait_ms"),
            ),
        ] {
            let response = http.post("BATCH", &format!(r#"{{"commands":[{good},{bad}]}}"#)).unwrap();
            assert_problem(&response, 400, "invalid_argument", field, bad);
            assert_eq!(response.json()["index"], 1, "{bad}");
        }
        let many = vec![good; 1001].join(",");
        let response = http.post("BATCH", &format!(r#"{{"commands":[{many}]}}"#)).unwrap();
        assert_problem(&response, 400, "invalid_argument", Some("commands"), "1001 commands");
    });
}

#[test]
fn bodies_that_are_no_json_object() {
    with_leases(|_, http| {
        for body in [
            "",
            " ",
            "{",
            "[]",
            "null",
            "1",
            "\"k\"",
            "{\"key\":\"k\"} x",
            "{\"key\":NaN}",
            "{\"key\":\"\\ud800\"}",
            "{key:1}",
        ] {
            let response = http.post("GET", body).unwrap();
            assert_problem(&response, 400, "invalid_argument", None, body);
        }
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_problem(&http.post("GET", &deep).unwrap(), 400, "invalid_argument", None, "deep nesting");
    });
}

#[test]
fn not_utf8() {
    with_leases(|node, _| {
        let mut http = node.http();
        let body = b"{\"key\":\"\xff\xfe\"}";
        let head = format!(
            "POST /v1/GET HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        http.send_bytes(&[head.as_bytes(), body].concat()).unwrap();
        assert_problem(&http.answer().unwrap(), 400, "invalid_argument", None, "bytes that are no UTF-8");
    });
}

#[test]
fn every_path_and_method_answers_a_problem() {
    // FR-06.
    with_leases(|_, http| {
        let json_type = [("Content-Type", "application/json")];
        for (method, path, status, code) in [
            ("GET", "/v1/GET", 405, "method_not_allowed"),
            ("PUT", "/v1/CREATE", 405, "method_not_allowed"),
            ("DELETE", "/v1/OP", 405, "method_not_allowed"),
            ("POST", "/livez", 405, "method_not_allowed"),
            ("POST", "/v1/ACQUIRE", 404, "not_found"),
            ("POST", "/v1/acquire", 404, "not_found"),
            ("POST", "/v1/NOPE", 404, "not_found"),
            ("POST", "/v2/GET", 404, "not_found"),
            ("GET", "/nowhere", 404, "not_found"),
            ("GET", "/v1", 404, "not_found"),
            ("GET", "/v1/", 404, "not_found"),
            ("GET", "//", 404, "not_found"),
            ("GET", "/%2e%2e/etc", 404, "not_found"),
        ] {
            let response = http.send(method, path, &json_type, r#"{"key":"k"}"#).unwrap();
            assert_problem(&response, status, code, None, &format!("{method} {path}"));
        }
        let told = http.post("ACQUIRE", "{}").unwrap().json();
        assert!(told["detail"].as_str().unwrap().contains("OP"), "the OP form is shown: {told}");
    });
}

#[test]
fn content_types_and_sizes() {
    with_leases(|node, http| {
        for kind in [None, Some("text/plain"), Some("application/x-www-form-urlencoded"), Some("application/jsonx")] {
            let headers: Vec<(&str, &str)> = kind.map(|kind| ("Content-Type", kind)).into_iter().collect();
            let response = http.send("POST", "/v1/GET", &headers, r#"{"key":"k"}"#).unwrap();
            assert_problem(&response, 415, "unsupported_media_type", None, &format!("{kind:?}"));
            assert!(response.json()["detail"].as_str().unwrap().contains("--json"), "it says how with curl");
        }
        let charset = [("Content-Type", "application/json; charset=utf-8")];
        assert_eq!(http.send("POST", "/v1/GET", &charset, r#"{"key":"k"}"#).unwrap().status, 200);
        let response = node.http().post("GET", &" ".repeat((1 << 20) + 1)).unwrap();
        assert_problem(&response, 413, "too_large", None, "1 MiB and a byte");
        let padded = format!("{}{}", r#"{"key":"k"}"#, " ".repeat((1 << 20) - 11));
        assert_eq!(http.post("GET", &padded).unwrap().status, 200, "1 MiB is within the limit");
    });
}

#[test]
fn an_unfinished_request_holds_nobody_up() {
    with_leases(|node, http| {
        // Half a body, then silence; half a head, then silence; a body cut off. Others are served meanwhile.
        let mut slow = node.http();
        slow.send_bytes(
            b"POST /v1/GET HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{\"key\"",
        )
        .unwrap();
        let mut silent = node.http();
        silent.send_bytes(b"POST /v1/GET HT").unwrap();
        let mut cut = TcpStream::connect_timeout(&node.addr, Duration::from_secs(5)).unwrap();
        cut.write_all(b"POST /v1/CREATE HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{\"key\":\"cut\"").unwrap();
        cut.shutdown(Shutdown::Both).unwrap();
        let started = Instant::now();
        assert_eq!(http.post("GET", r#"{"key":"k"}"#).unwrap().status, 200);
        assert!(started.elapsed() < Duration::from_secs(5), "served while another's body is missing");
        let answer = slow.answer().unwrap();
        assert_problem(&answer, 408, "request_timeout", None, "a body that does not come");
    });
}

#[test]
fn no_token_is_seen_again() {
    let fresh = Fresh::start();
    let token = "5ecret-5ecret-5ecret";
    let args = json!({"owner": "o", "token": token, "create": true, "note": "n"});
    let granted = fresh.node.op("k", "ACQUIRE", &args);
    assert_eq!(granted["result"], true);
    let mut seen = vec![granted.to_string()];
    for operation in ["ACQUIRE", "RENEW", "HELD", "RELEASE", "RENEW"] {
        let args = if operation == "ACQUIRE" { args.clone() } else { json!({"token": token}) };
        seen.push(fresh.node.op("k", operation, &args).to_string());
    }
    let wrong = format!(r#"{{"key":"k","operation":"RENEW","args":{{"token":"{token}","ttl_ms":1.5}}}}"#);
    let mut http = fresh.node.http();
    seen.push(http.post("OP", &wrong).unwrap().body);
    seen.push(http.post("OP", &wrong.replace("1.5", token)).unwrap().body);
    seen.push(fresh.node.get("k").to_string());
    seen.push(http.send("GET", "/metrics", &[], "").unwrap().body);
    seen.push(http.send("GET", "/v1/status", &[], "").unwrap().body);
    for text in &seen {
        assert!(!text.contains(token), "{text}");
    }
    assert!(!fresh.node.process.lines.text().contains(token), "the node's own lines");
    let mut folders = vec![fresh.data()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let bytes = std::fs::read(&path).unwrap();
                let found = bytes.windows(token.len()).any(|window| window == token.as_bytes());
                assert!(!found, "the token stands in {}", path.display());
            }
        }
    }
}
