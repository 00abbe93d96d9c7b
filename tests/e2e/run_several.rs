//! `tenure run` with several keys: all or none.

use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Fresh, Node, Process, eventually, stderr, stdout, tenure};

fn run(node: &Node, keys: &[&str], more: &[&str], job: &str) -> Command {
    let mut command = tenure();
    command.args(["--uri", &node.uri(), "run", "--ttl", "10s"]);
    keys.iter().for_each(|key| {
        command.args(["--key", key]);
    });
    command.args(more).args(["--", "sh", "-c", job]);
    command
}

fn held(node: &Node, key: &str) -> bool {
    node.get(key)["held"] == true
}

#[test]
fn the_job_has_all_of_them_and_all_are_given_back() {
    let fresh = Fresh::start();
    let job = "echo \"$TENURE_GRANTS\"; echo \"$TENURE_KEY $TENURE_FENCE\"";
    let output = run(&fresh.node, &["b", "a key", "c"], &[], job).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let said = stdout(&output);
    let mut lines = said.lines();
    let grants: Value = serde_json::from_str(lines.next().unwrap()).unwrap();
    let keys: Vec<&str> = grants.as_array().unwrap().iter().map(|grant| grant["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["b", "a key", "c"], "in the order of the command line");
    assert!(grants.as_array().unwrap().iter().all(|grant| grant["fence"].is_u64() && grant["token"].is_string()));
    assert_eq!(lines.next(), Some(format!("b {}", grants[0]["fence"]).as_str()), "the first in the usual names");
    for key in keys {
        assert!(!held(&fresh.node, key), "{key}");
        assert_eq!(fresh.node.get(key)["last"]["reason"], "released");
    }
}

#[test]
fn one_that_is_held_leaves_the_others_alone() {
    let fresh = Fresh::start();
    fresh.node.op("b", "ACQUIRE", &json!({"owner": "other", "token": "t", "create": true}));
    let output = run(&fresh.node, &["a", "b", "c"], &["--verbose"], "echo never").output().unwrap();
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(120), ""), "{}", stderr(&output));
    assert!(stderr(&output).contains("b: not acquired: held by other"), "it says which: {}", stderr(&output));
    assert!(!held(&fresh.node, "a") && !held(&fresh.node, "c"));
    let waited = run(&fresh.node, &["a", "b", "c"], &["--wait", "300ms"], "echo never").output().unwrap();
    assert_eq!(waited.status.code(), Some(120), "{}", stderr(&waited));
    assert!(!held(&fresh.node, "a") && !held(&fresh.node, "c"));
}

#[test]
fn a_period_is_not_used_up_by_keys_that_were_never_run_with() {
    let fresh = Fresh::start();
    fresh.node.op("b", "ACQUIRE", &json!({"owner": "other", "token": "t", "create": true}));
    let hold = ["--min-hold", "10m", "--wait", "300ms"];
    let output = run(&fresh.node, &["a", "b"], &hold, "echo never").output().unwrap();
    assert_eq!(output.status.code(), Some(120), "{}", stderr(&output));
    let alone = run(&fresh.node, &["a"], &hold, "echo ran").output().unwrap();
    assert_eq!(stdout(&alone), "ran", "no window of a job that never was: {}", stderr(&alone));
}

/// Two that want the same keys in opposite order would each wait for the other.
#[test]
fn opposite_orders_do_not_wait_for_each_other() {
    let fresh = Fresh::start();
    std::thread::scope(|scope| {
        for keys in [["a", "b"], ["b", "a"]] {
            let node = &fresh.node;
            scope.spawn(move || {
                for _ in 0..5 {
                    let output = run(node, &keys, &["--wait", "20s"], "sleep 0.02").output().unwrap();
                    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
                }
            });
        }
    });
}

#[test]
fn the_loss_of_one_ends_the_job_and_gives_the_others_back() {
    let fresh = Fresh::start();
    let mut process = Process::start(run(&fresh.node, &["a", "b"], &[], "while :; do sleep 0.05; done"));
    eventually("it holds both", || (held(&fresh.node, "a") && held(&fresh.node, "b")).then_some(()));
    fresh.node.op("b", "BREAK", &json!({"reason": "maintenance"}));
    assert_eq!(process.end().code(), Some(122));
    let said = process.rest();
    assert!(said.contains("a and 1 more: lost: b: broken: maintenance"), "{said}");
    assert!(!held(&fresh.node, "a"));
    assert_eq!(fresh.node.get("a")["last"]["reason"], "released");
}

#[test]
fn keys_are_given_once() {
    for (keys, words) in [(vec!["a", "b", "a"], "a is given twice"), (vec!["k"; 101], "at most 100")] {
        let mut command = tenure();
        command.arg("run");
        keys.iter().for_each(|key| {
            command.args(["--key", key]);
        });
        let output = command.args(["--", "true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(125));
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
    }
}
