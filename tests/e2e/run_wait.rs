//! `tenure run --wait`: in line, first come first served; whoever leaves is passed over.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use crate::harness::{Fresh, Node, Process, eventually, stderr, tenure};

/// From the end of a grant to the next in line at work.
const HANDED_OVER: Duration = Duration::from_secs(2);

fn run(node: &Node, wait: &str, job: &str) -> Command {
    let mut command = tenure();
    command.args(["--uri", &node.uri(), "run", "--key", "k", "--ttl", "10s", "--wait", wait, "--", "sh", "-c", job]);
    command
}

fn hold(node: &Node) {
    let args = json!({"owner": "other", "token": "t", "create": true, "ttl_ms": 600_000});
    assert_eq!(node.op("k", "ACQUIRE", &args)["result"], true);
}

fn release(node: &Node) -> Instant {
    assert_eq!(node.op("k", "RELEASE", &json!({"token": "t"}))["result"], true);
    Instant::now()
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
    hold(&fresh.node);
    let mut told = waiting(&fresh.node, &note("told"));
    let mut killed = waiting(&fresh.node, &note("killed"));
    let mut last = waiting(&fresh.node, &note("last"));
    told.signal(Signal::TERM);
    assert_eq!(told.end().code(), Some(143));
    await_waiters(&fresh.node, 2);
    killed.signal(Signal::KILL);
    killed.end();
    let released = release(&fresh.node);
    assert_eq!(last.end().code(), Some(0), "{}", last.lines.text());
    assert!(released.elapsed() < HANDED_OVER, "{:?}", released.elapsed());
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
