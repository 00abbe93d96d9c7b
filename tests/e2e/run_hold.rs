//! `tenure run --min-hold`: once a period, and which runs count.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use crate::harness::{Fresh, Node, Process, SOON, eventually, pass, stderr, stdout, tenure};
use crate::ports;

/// A period that no test outlives.
const HOLD: &str = "10m";

fn once(node: &Node, key: &str, more: &[&str], job: &str) -> Output {
    let mut command: Command = tenure();
    command.args(["--uri", &node.uri(), "run", "--key", key, "--ttl", "10s", "--min-hold", HOLD]);
    command.args(more).args(["--", "sh", "-c", job]).output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("{}: {}", output.status, stderr(output)))
}

#[test]
fn a_run_that_succeeds_is_the_periods_run() {
    let fresh = Fresh::start();
    let first = once(&fresh.node, "k", &[], "echo ran");
    assert_eq!((code(&first), stdout(&first).as_str()), (0, "ran"));
    let lease = fresh.node.get("k");
    assert_eq!((&lease["held"], &lease["last"]["reason"]), (&json!(false), &json!("released")));
    assert!(lease["acquirable_in_ms"].as_u64().unwrap() > 500_000, "{lease}");
    for more in [&[][..], &["--wait", "10s"]] {
        let again = once(&fresh.node, "k", more, "echo again");
        assert_eq!((code(&again), stdout(&again).as_str()), (121, ""), "told at once: {}", stderr(&again));
    }
}

#[test]
fn a_run_that_fails_leaves_the_period_to_the_next() {
    let fresh = Fresh::start();
    for (job, by, reason) in [
        ("exit 3", 3, "the job failed: exit 3"),
        ("kill -9 $$", 137, "the job failed: signal 9"),
        ("exec /no/such/program", 127, "the job failed: exit 127"),
    ] {
        let failed = once(&fresh.node, "k", &[], job);
        assert_eq!(code(&failed), by, "{job}: {}", stderr(&failed));
        let last = &fresh.node.get("k")["last"];
        assert_eq!((&last["reason"], &last["detail"]), (&json!("broken"), &json!(reason)), "{job}");
    }
    let next = once(&fresh.node, "k", &["--min-hold-on", "success"], "echo ran");
    assert_eq!((code(&next), stdout(&next).as_str()), (0, "ran"), "at once: {}", stderr(&next));
    assert_eq!(code(&once(&fresh.node, "k", &[], "true")), 121);
}

#[test]
fn always_counts_a_run_that_fails() {
    let fresh = Fresh::start();
    let failed = once(&fresh.node, "k", &["--min-hold-on", "always"], "exit 3");
    assert_eq!(code(&failed), 3, "{}", stderr(&failed));
    assert_eq!(code(&once(&fresh.node, "k", &[], "true")), 121);
}

/// The operator's text stays, and no window opens.
#[test]
fn a_broken_run_counts_for_nobody() {
    let fresh = Fresh::start();
    let (tenure, uri) = (env!("CARGO_BIN_EXE_tenure"), fresh.node.uri());
    let job = format!("{tenure} --uri {uri} break k --reason upgrade --grace 10m; while :; do sleep 0.05; done");
    let broken = once(&fresh.node, "k", &["--min-hold-on", "always"], &job);
    assert_eq!(code(&broken), 122, "{}", stderr(&broken));
    let last = &fresh.node.get("k")["last"];
    assert_eq!((&last["reason"], &last["detail"]), (&json!("broken"), &json!("upgrade")));
    assert_eq!(code(&once(&fresh.node, "k", &[], "true")), 0, "the grace is not waited for once the job is gone");
}

/// A run that waits for the end of its input, and loses its node before it comes.
fn without_a_node(node: Node) -> Process {
    let mut command = tenure();
    command.args(["--uri", &node.uri(), "run", "--key", "k", "--ttl", "10m", "--min-hold", HOLD]);
    command.args(["--", "sh", "-c", "echo runs; read end; exit 0"]).stdin(Stdio::piped());
    let mut process = Process::start(command);
    assert!(process.lines.await_line(SOON, |line| (line == "runs").then_some(())).is_some());
    node.kill();
    drop(process.stdin());
    let pid = process.pid().as_raw_pid();
    eventually("nothing is left of the job", || {
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        children.is_empty().then_some(())
    });
    process
}

/// One call gives up after two seconds in which nobody listens; the grant lives longer.
#[test]
fn the_window_opens_after_an_outage() {
    let (dir, addr) = (TempDir::new().unwrap(), ports::free());
    let data = dir.path().join("data");
    let mut process = without_a_node(Node::start_at(&data, addr));
    pass(Duration::from_secs(4));
    assert!(process.ended().is_none(), "it goes on trying");
    let node = Node::start_at(&data, addr);
    assert_eq!(process.end().code(), Some(0), "{}", process.lines.text());
    let lease = node.get("k");
    assert_eq!((&lease["held"], &lease["last"]["reason"]), (&json!(false), &json!("released")));
    assert!(lease["acquirable_in_ms"].as_u64().unwrap() > 500_000, "{lease}");
}

/// It would go on trying for as long as its grant lives, here 10 minutes.
#[test]
fn a_signal_ends_the_tries_to_open_the_window() {
    let dir = TempDir::new().unwrap();
    // At an address where no node of another test answers it.
    let mut process = without_a_node(Node::start_at(&dir.path().join("data"), ports::free()));
    process.signal(Signal::TERM);
    assert_eq!(process.end().code(), Some(0), "the job's own: {}", process.lines.text());
    let said = process.rest();
    assert!(said.contains("this period's run may be repeated"), "{said}");
}

#[test]
fn what_a_hold_is_on_needs_a_hold() {
    let output = tenure().args(["run", "--key", "k", "--min-hold-on", "always", "--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("--min-hold"), "{}", stderr(&output));
}
