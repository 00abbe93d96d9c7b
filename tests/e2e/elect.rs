//! `tenure elect`: one leader of many, and the next when it ends.

use std::process::Command;

use rustix::process::Signal;
use serde_json::json;

use crate::harness::{Fresh, Node, Process, SOON, eventually, stderr, stdout, tenure};

fn elect(node: &Node, owner: &str, more: &[&str]) -> Command {
    // Whoever is awaited here for SOON was told at once: neither the end of that ttl nor a renewal comes so early.
    let mut command = tenure();
    command.args(["--uri", &node.uri(), "elect", "k", "--ttl", "10m", "--owner", owner]).args(more);
    command
}

fn await_leader(node: &Node, owner: &str) -> u64 {
    eventually(&format!("{owner} leads"), || {
        let lease = node.get("k");
        (lease["owner"] == owner).then(|| lease["fence"].as_u64().unwrap())
    })
}

fn shows(process: &Process, text: &str) {
    let found = process.lines.await_line(SOON, |line| (line == text).then_some(()));
    assert!(found.is_some(), "{text:?} is not said: {}", process.lines.text());
}

#[test]
fn leaders_follow_each_other_and_are_observed() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    let mut observe = tenure();
    observe.args(["--uri", &node.uri(), "elect", "k", "--observe"]);
    let mut observer = Process::start(observe);
    shows(&observer, "nobody");
    let mut first = Process::start(elect(node, "first", &[]));
    let fence = await_leader(node, "first");
    shows(&first, &format!("elected, fence {fence}"));
    shows(&observer, &format!("first, fence {fence}"));
    let second = Process::start(elect(node, "second", &[]));
    eventually("the second waits", || (node.get("k")["waiters"] == 1).then_some(()));
    first.signal(Signal::TERM);
    assert_eq!(first.end().code(), Some(0), "{}", first.lines.text());
    let next = await_leader(node, "second");
    assert!(next > fence);
    shows(&second, &format!("elected, fence {next}"));
    shows(&observer, &format!("second, fence {next}"));
    observer.signal(Signal::TERM);
    assert_eq!(observer.end().code(), Some(0));
}

#[test]
fn a_leader_that_is_broken_says_so_and_stands_again() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    let process = Process::start(elect(node, "only", &[]));
    let fence = await_leader(node, "only");
    shows(&process, &format!("elected, fence {fence}"));
    node.op("k", "BREAK", &json!({"reason": "step down"}));
    shows(&process, &format!("lost, fence {fence}: broken: step down"));
    shows(&process, &format!("elected, fence {}", await_leader(node, "only")));
}

/// With a command: it runs while this one leads, is ended with the loss, and runs again.
#[test]
fn a_command_runs_while_it_leads() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    let job = "trap 'echo told; exit 0' TERM; echo leads:$TENURE_FENCE; while :; do sleep 0.02; done";
    let mut process = Process::start(elect(node, "only", &["--", "sh", "-c", job]));
    let fence = await_leader(node, "only");
    shows(&process, &format!("leads:{fence}"));
    node.op("k", "BREAK", &json!({"reason": "step down"}));
    shows(&process, "told");
    let next = eventually("it leads again", || node.get("k")["fence"].as_u64().filter(|next| *next > fence));
    shows(&process, &format!("leads:{next}"));
    process.signal(Signal::TERM);
    assert_eq!(process.end().code(), Some(0), "the command's own code: {}", process.lines.text());
    assert_eq!(node.get("k")["held"], false);
}

/// A signal that comes while the command of a lost lease is being ended is no less meant for the campaign.
#[test]
fn told_to_end_while_it_loses_it_campaigns_no_more() {
    let fresh = Fresh::start();
    let node = &fresh.node;
    let job = "trap 'echo told' TERM; echo leads:$TENURE_FENCE; while :; do sleep 0.02; done";
    // The grace: the signal comes within it on a loaded machine too.
    let mut process = Process::start(elect(node, "only", &["--grace", "6s", "--", "sh", "-c", job]));
    let fence = await_leader(node, "only");
    shows(&process, &format!("leads:{fence}"));
    node.op("k", "BREAK", &json!({"reason": "step down"}));
    shows(&process, "told");
    process.signal(Signal::TERM);
    assert_eq!(process.end().code(), Some(122), "{}", process.lines.text());
    assert_eq!(node.get("k")["last"]["fence"], fence, "nothing was acquired after it");
}

#[test]
fn a_wait_may_have_an_end_and_a_command_its_own() {
    let fresh = Fresh::start();
    let ended = elect(&fresh.node, "one", &["--", "sh", "-c", "exit 5"]).output().unwrap();
    assert_eq!(ended.status.code(), Some(5), "{}", stderr(&ended));
    fresh.node.op("k", "ACQUIRE", &json!({"owner": "other", "token": "t"}));
    let waited = elect(&fresh.node, "one", &["--wait", "200ms", "--", "echo", "never"]).output().unwrap();
    assert_eq!((waited.status.code(), stdout(&waited).as_str()), (Some(120), ""), "{}", stderr(&waited));
    let silent = elect(&fresh.node, "one", &["--wait", "200ms"]).output().unwrap();
    assert_eq!((silent.status.code(), stdout(&silent).as_str()), (Some(120), ""), "{}", stderr(&silent));
}
