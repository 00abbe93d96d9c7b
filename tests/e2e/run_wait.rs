//! `tenure run --wait`: in line, first come first served; whoever leaves is passed over.

use std::fs;
use std::process::Command;

use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use crate::harness::{Fresh, Node, Process, eventually, stderr, tenure};
use crate::sse::Stream;
use crate::waiting::requests_wait;

/// From the end of a grant to the next in line, on the cluster clock: before the 5 s for which a dead one's place is kept.
const HANDED_OVER_MS: u64 = 4_000;

fn run(node: &Node, wait: &str, job: &str) -> Command {
    let mut command = tenure();
    command.args(["--uri", &node.uri(), "run", "--key", "k", "--ttl", "10s", "--wait", wait, "--", "sh", "-c", job]);
    command
}

/// Its fence.
fn hold(node: &Node) -> u64 {
    let args = json!({"owner": "other", "token": "t", "create": true, "ttl_ms": 600_000});
    let answer = node.op("k", "ACQUIRE", &args);
    assert_eq!(answer["result"], true, "{answer}");
    answer["fence"].as_u64().unwrap()
}

fn release(node: &Node) {
    assert_eq!(node.op("k", "RELEASE", &json!({"token": "t"}))["result"], true);
}

/// Starts one that waits, and awaits that it does.
fn waiting(node: &Node, job: &str) -> Process {
    let before = node.get("k")["waiters"].as_u64().unwrap();
    let process = Process::start(run(node, "10m", job));
    await_waiters(node, before + 1);
    process
}

fn await_waiters(node: &Node, count: u64) {
    eventually(&format!("{count} wait"), || (node.get("k")["waiters"] == count).then_some(()));
}

#[test]
fn first_come_first_served() {
    let fresh = Fresh::start();
    let dir = TempDir::new().unwrap();
    let log = dir.path().join("log");
    hold(&fresh.node);
    let mut all: Vec<Process> =
        (0..4).map(|n| waiting(&fresh.node, &format!("echo {n} >> {}", log.display()))).collect();
    release(&fresh.node);
    for process in &mut all {
        assert_eq!(process.end().code(), Some(0), "{}", process.lines.text());
    }
    assert_eq!(fs::read_to_string(log).unwrap(), "0\n1\n2\n3\n");
}

#[test]
fn a_wait_that_is_over_is_not_acquired() {
    let fresh = Fresh::start();
    hold(&fresh.node);
    let output = run(&fresh.node, "300ms", "echo never").output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(120), ""));
    assert_eq!(fresh.node.get("k")["waiters"], 0);
}

/// FR-55 for those that wait: a signal leaves the line at once; one that is killed is passed over.
#[test]
fn whoever_leaves_the_line_is_passed_over() {
    let fresh = Fresh::start();
    let dir = TempDir::new().unwrap();
    let log = dir.path().join("log");
    let note = |name: &str| format!("echo {name} >> {}", log.display());
    let held = hold(&fresh.node);
    let mut told = waiting(&fresh.node, &note("told"));
    let mut killed = waiting(&fresh.node, &note("killed"));
    let mut last = waiting(&fresh.node, &note("last"));
    told.signal(Signal::TERM);
    assert_eq!(told.end().code(), Some(143));
    await_waiters(&fresh.node, 2);
    // Both listen: none is between two tries of its call.
    requests_wait(&fresh.node, 2);
    let mut watch = Stream::open(fresh.node.addr, "?key=k&list=false", None);
    killed.signal(Signal::KILL);
    killed.end();
    release(&fresh.node);
    assert_eq!(last.end().code(), Some(0), "{}", last.lines.text());
    let granted = fresh.node.get("k")["last"]["fence"].as_u64().unwrap();
    let released_ms = watch.clock_ms("released", held);
    let took_ms = watch.clock_ms("granted", granted) - released_ms;
    assert!(took_ms < HANDED_OVER_MS, "{took_ms} ms");
    assert_eq!(fs::read_to_string(log).unwrap(), "last\n");
}

/// A run that was told to stop while it waited has not used up the period.
#[test]
fn a_wait_that_was_left_opens_no_window() {
    let fresh = Fresh::start();
    hold(&fresh.node);
    let mut command = tenure();
    command.args(["--uri", &fresh.node.uri(), "run", "--key", "k", "--ttl", "10s", "--wait", "10m"]);
    command.args(["--min-hold", "10m", "--", "echo", "never"]);
    let mut process = Process::start(command);
    await_waiters(&fresh.node, 1);
    process.signal(Signal::TERM);
    assert_eq!(process.end().code(), Some(143));
    release(&fresh.node);
    assert_eq!(fresh.node.get("k")["acquirable_in_ms"], 0);
}

#[test]
fn acquire_waits_in_line_and_get_shows_it() {
    let fresh = Fresh::start();
    hold(&fresh.node);
    let mut command = tenure();
    command.args(["--uri", &fresh.node.uri(), "acquire", "k", "--wait", "10m"]);
    let mut process = Process::start(command);
    await_waiters(&fresh.node, 1);
    let shown = String::from_utf8(fresh.node.cli(&["get", "k"]).stdout).unwrap();
    assert!(shown.lines().any(|line| line.split_whitespace().eq(["waiters", "1"])), "{shown}");
    let listed = String::from_utf8(fresh.node.cli(&["ls"]).stdout).unwrap();
    assert!(listed.lines().next().unwrap().contains("WAITERS"), "{listed}");
    release(&fresh.node);
    assert_eq!(process.end().code(), Some(0), "{}", process.lines.text());
    assert_eq!(fresh.node.get("k")["held"], true);
}
