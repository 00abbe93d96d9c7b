//! The command line: the seed's form word by word, the same answers as over HTTP, exit codes, and errors that say what to do.

use std::process::Output;

use serde_json::{Value, json};

use crate::harness::{Fresh, stderr, stdout, tenure};

/// The seed's own form, on this node: the bare result.
fn seed(fresh: &Fresh, command: &str, body: &str) -> Value {
    let uri = fresh.node.uri();
    let output = tenure().args(["-uri", &uri, command, body]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{command} {body}: {}", stderr(&output));
    serde_json::from_str(&stdout(&output)).unwrap_or_else(|error| panic!("{error}: {}", stdout(&output)))
}

fn assert_exit(output: &Output, code: i32, words: &[&str]) {
    let said = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{said}\n{}", stdout(output));
    for word in words {
        assert!(said.contains(word), "{word:?} is missing in: {said}");
    }
}

#[test]
fn every_command_in_the_seeds_form() {
    let fresh = Fresh::start();
    let run = |command: &str, body: &str| seed(&fresh, command, body);
    assert_eq!(run("CREATE", r#"{"key":"example:lease","type":"lease","options":{}}"#), true);
    let acquire = r#"{"key":"example:lease","operation":"ACQUIRE","args":{"owner":"o","token":"t","ttl_ms":30000}}"#;
    assert_eq!(run("OP", acquire), true);
    assert_eq!(run("OP", acquire), false, "held");
    assert_eq!(run("OP", r#"{"key":"example:lease","operation":"HELD","args":{}}"#), true);
    assert_eq!(run("OP", r#"{"key":"example:lease","operation":"HELD"}"#), true);
    assert_eq!(run("OP", r#"{"key":"example:lease","operation":"RENEW","args":{"token":"t","ttl_ms":30000}}"#), true);
    assert_eq!(run("OP", r#"{"key":"example:lease","operation":"CHECK","args":{"fence":1}}"#), true);
    assert_eq!(run("GET", r#"{"key":"example:lease"}"#)["owner"], "o");
    assert_eq!(run("GET", r#"{"key":"absent"}"#), Value::Null);
    let kind = fresh.node.cli(&["TYPE", r#"{"key":"example:lease"}"#]);
    assert_eq!(stdout(&kind), "lease", "a string is printed as it is");
    assert_eq!(run("EXISTS", r#"{"key":"example:lease"}"#), true);
    assert_eq!(run("EXPIRE", r#"{"key":"example:lease","ttl_ms":60000}"#), true);
    assert!(run("TTL", r#"{"key":"example:lease"}"#).as_i64().is_some_and(|left| left > 50_000));
    assert_eq!(run("PERSIST", r#"{"key":"example:lease"}"#), true);
    assert_eq!(run("TTL", r#"{"key":"example:lease"}"#), -1);
    assert_eq!(run("SCAN", r#"{"prefix":"example"}"#)["keys"][0]["key"], "example:lease");
    assert_eq!(run("OP", r#"{"key":"example:lease","operation":"BREAK","args":{"reason":"test"}}"#), true);
    assert_eq!(run("OP", r#"{"key":"example:lease","operation":"RELEASE","args":{"token":"t"}}"#), false);
    let batch = run("BATCH", r#"{"commands":[{"command":"GET","key":"absent"}]}"#);
    assert_eq!(batch, json!([{"result": null}]));
    assert_eq!(run("DEL", r#"{"keys":["example:lease"]}"#), 1);
}

#[test]
fn the_node_is_named_in_several_ways() {
    let fresh = Fresh::start();
    let uri = fresh.node.uri();
    let body = r#"{"key":"absent"}"#;
    let alias = uri.replace("tenure://", "amaquet://");
    let dead_first = uri.replace("tenure://", "tenure://127.0.0.1:1,");
    for args in [vec!["-uri", &uri], vec!["--uri", &uri], vec!["--uri", &alias], vec!["--uri", &dead_first]] {
        let output = tenure().args(&args).args(["EXISTS", body]).output().unwrap();
        assert_eq!(stdout(&output), "false", "{args:?}: {}", stderr(&output));
    }
    let joined = tenure().arg(format!("-uri={uri}")).args(["EXISTS", body]).output().unwrap();
    assert_eq!(stdout(&joined), "false", "-uri=…: {}", stderr(&joined));
    let by_environment = tenure().env("TENURE_URI", &uri).args(["EXISTS", body]).output().unwrap();
    assert_eq!(stdout(&by_environment), "false", "{}", stderr(&by_environment));
}

#[test]
fn json_shows_the_whole_answer() {
    let fresh = Fresh::start();
    let acquire = r#"{"key":"k","operation":"ACQUIRE","args":{"owner":"o","token":"t","create":true}}"#;
    let output = fresh.node.cli(&["--json", "OP", acquire]);
    let answer: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((&answer["result"], &answer["fence"]), (&json!(true), &json!(1)));
    let again: Value = serde_json::from_str(&stdout(&fresh.node.cli(&["--json", "OP", acquire]))).unwrap();
    assert_eq!((&again["result"], &again["yours"]), (&json!(false), &json!(true)));
}

#[test]
fn exit_codes_tell_refused_from_unavailable() {
    let fresh = Fresh::start();
    let bad = r#"{"key":"absent","operation":"HELD"}"#;
    assert_exit(&fresh.node.cli(&["OP", bad]), 1, &["no_such_key"]);
    let wrong = r#"{"key":"k","type":"lease","options":{"ttl":1}}"#;
    assert_exit(&fresh.node.cli(&["CREATE", wrong]), 1, &["options.ttl"]);
    assert_exit(&fresh.node.cli(&["GET", "{not json"]), 1, &["JSON"]);
    assert_exit(&fresh.node.cli(&["NOPE", "{}"]), 2, &["NOPE"]);
    assert_exit(&fresh.node.cli(&["acquire"]), 2, &[]);
    assert_exit(&tenure().output().unwrap(), 2, &["Usage"]);
    let nobody = tenure().args(["--uri", "tenure://127.0.0.1:1", "GET", r#"{"key":"k"}"#]).output().unwrap();
    assert_exit(&nobody, 3, &["127.0.0.1:1", "tenure serve"]);
    let nobody = tenure().args(["--uri", "tenure://127.0.0.1:1,127.0.0.1:2", "status"]).output().unwrap();
    assert_exit(&nobody, 3, &["127.0.0.1:1 (connection refused), 127.0.0.1:2", "tenure serve"]);
    let nobody = tenure().args(["--uri", "tenure://127.0.0.1:1", "run", "--key", "k", "--", "true"]).output().unwrap();
    assert_exit(&nobody, 125, &["no node at 127.0.0.1:1", "tenure serve"]);
    let scheme = tenure().args(["--uri", "http://127.0.0.1:1", "GET", r#"{"key":"k"}"#]).output().unwrap();
    assert_exit(&scheme, 2, &["tenure://"]);
}

/// FR-03: units are said, and mean the same.
#[test]
fn durations_need_a_unit() {
    let fresh = Fresh::start();
    for (key, ttl) in [("a", "30s"), ("b", "30000ms")] {
        let output = fresh.node.cli(&["acquire", key, "--ttl", ttl]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let left = fresh.node.get(key)["ttl_ms"].as_u64().unwrap();
        assert!((25_000..=30_000).contains(&left), "{ttl}: {left}");
    }
    assert_exit(&fresh.node.cli(&["acquire", "c", "--ttl", "30"]), 2, &["30s"]);
    assert_eq!(fresh.node.get("c"), Value::Null);
}

/// FR-07: what one command prints, another takes.
#[test]
fn what_is_printed_is_taken() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    let output = node.cli(&["--json", "acquire", "k", "--ttl", "60s"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let grant: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let (token, fence) = (grant["token"].as_str().unwrap(), grant["fence"].to_string());
    assert_eq!(node.cli(&["acquire", "k", "--ttl", "60s"]).status.code(), Some(1), "held by another");
    assert_eq!(node.cli(&["check", "k", &fence]).status.code(), Some(0));
    assert_eq!(node.cli(&["renew", "k", "--token", token, "--fence", &fence]).status.code(), Some(0));
    let listed = stdout(&node.cli(&["ls"]));
    assert!(listed.contains('k') && listed.contains(&fence), "{listed}");
    assert!(!listed.contains(token), "a token is never shown again");
    assert!(stdout(&node.cli(&["get", "k"])).contains(&fence));
    assert_eq!(node.cli(&["release", "k", "--token", token, "--fence", &fence]).status.code(), Some(0));
    assert_eq!(node.get("k")["held"], false);
}

/// FR-50: who holds, and how to end it.
#[test]
fn an_operator_breaks_a_grant() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    let args = json!({"owner": "host-7/backup", "token": "t", "note": "nightly", "create": true});
    node.op("k", "ACQUIRE", &args);
    let shown = stdout(&node.cli(&["get", "k"]));
    assert!(shown.contains("host-7/backup") && shown.contains("nightly"), "{shown}");
    let fence = node.get("k")["fence"].to_string();
    let old = node.cli(&["break", "k", "--reason", "too late", "--fence", "999"]);
    assert_exit(&old, 1, &["another"]);
    let output = node.cli(&["break", "k", "--reason", "host-7 is gone"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let said = stdout(&output);
    assert!(said.contains("host-7/backup") && said.contains(&format!("broken: fence {fence}")), "{said}");
    let renewed = node.op("k", "RENEW", &json!({"token": "t"}));
    assert_eq!((&renewed["reason"], &renewed["detail"]), (&json!("broken"), &json!("host-7 is gone")));
}

#[test]
fn help_version_status_completions() {
    let fresh = Fresh::start();
    let version = tenure().arg("--version").output().unwrap();
    assert!(stdout(&version).contains(env!("CARGO_PKG_VERSION")), "{}", stdout(&version));
    let help = stdout(&tenure().arg("--help").output().unwrap());
    for command in [
        "serve", "dev", "run", "elect", "id ", "acquire", "renew", "release", "get", "ls", "break", "check", "status",
        "bench",
    ] {
        assert!(help.contains(command), "{command} is missing in: {help}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let output = tenure().args(["completions", shell]).output().unwrap();
        assert!(output.status.success() && stdout(&output).contains("tenure"), "{shell}: {}", stderr(&output));
        assert!(stdout(&output).contains("holders"), "{shell}: commands of commands too");
    }
    let status = fresh.node.cli(&["status"]);
    assert_eq!(status.status.code(), Some(0), "{}", stderr(&status));
    assert!(stdout(&status).to_lowercase().contains("leader"), "{}", stdout(&status));
    let status = fresh.node.cli(&["cluster", "status", "--json"]);
    let status: Value = serde_json::from_str(&stdout(&status)).unwrap();
    assert_eq!((&status["quorum"], &status["nodes"][0]["report"]["role"]), (&json!(true), &json!("leader")));
    assert!(status["nodes"][0]["report"]["fsync"]["p99_us"].as_u64().is_some_and(|us| us > 0), "{status}");
}

/// Nothing is refused, and nothing is left behind.
#[test]
fn every_workload_of_the_benchmark_does_what_it_says() {
    let fresh = Fresh::start();
    for workload in ["cycle", "renew", "read", "slot"] {
        let short = ["--clients", "3", "--duration", "300ms", "--warmup", "0s"];
        let output = fresh.node.cli(&[&["--json", "bench", "--workload", workload], &short[..]].concat());
        assert_eq!(output.status.code(), Some(0), "{workload}: {}", stderr(&output));
        let said: Value = serde_json::from_str(&stdout(&output)).unwrap();
        let result = &said["results"][0];
        assert!(result["ops"].as_u64().is_some_and(|ops| ops > 0), "{said}");
        assert_eq!(result["errors"], json!({}), "{said}");
    }
    assert_eq!(stdout(&fresh.node.cli(&["--json", "ls"])).matches("bench:").count(), 0);
}

/// A throw-away node lives as long as its command, and tells it where it is.
#[test]
fn dev_runs_a_command_on_a_throw_away_node() {
    let script = "tenure EXISTS '{\"key\":\"k\"}' && kill -9 $(cat $TENURE_DEV_DIR/node-1/pid) && \
                  $TENURE_DEV_DIR/node-1/start >/dev/null && tenure EXISTS '{\"key\":\"k\"}' && \
                  echo $TENURE_DEV_DIR && exit 7";
    let output = tenure().args(["dev", "--", "sh", "-c", script]).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "the command's own code: {}", stderr(&output));
    let said = stdout(&output);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..2], ["false", "false"], "{said}");
    assert!(!std::path::Path::new(lines[2]).exists(), "everything is gone when it ends");
}
