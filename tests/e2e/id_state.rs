//! What `tenure id` believes of its state file's token, and when it gives it up: lost answers, late commands, other pools,
//! other processes of the identity.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};

use serde_json::{Value, json};

use crate::harness::{Process, eventually, stderr, stdout};
use crate::id::{Work, assert_said, holders, nobody, nobody_at, unix_ms};
use crate::line::Waiting;

fn state(work: &Work, file: &str) -> Value {
    serde_json::from_slice(&fs::read(work.file(file)).unwrap()).unwrap()
}

/// A process that waits for an id of the identity `a`.
fn waiting(work: &Work, file: &str, waiters: u64) -> Process {
    let mut command = nobody(&work.fresh.node);
    command.args(["id", "acquire", "ids", "--wait", "1m", "--identity", "a", "--state", &work.file(file)]);
    let process = Process::start(command);
    eventually("it waits", || (work.fresh.node.get("ids")["waiters"] == waiters).then_some(()));
    process
}

fn hold(work: &Work, token: &str) {
    let args = json!({"identity": token, "token": token});
    assert_eq!(work.fresh.node.op("ids", "ACQUIRE", &args)["result"]["id"], 0);
}

/// One file is one process: who finds an id that is held gets it, and is told so.
#[test]
fn what_is_held_already_is_said() {
    let work = Work::new(&json!({}));
    assert_eq!(stderr(&work.id("a", &["acquire", "ids"])), "");
    let again = work.id("a", &["acquire", "ids"]);
    assert_eq!(stdout(&again), "0");
    assert_said(&again, 0, &["id 0 was held already", &work.file("a"), "--slot"]);
}

#[test]
fn the_word_of_another_pool_is_no_proof() {
    let (ours, theirs) = (Work::new(&json!({})), Work::new(&json!({})));
    assert_eq!(stdout(&ours.id("a", &["acquire", "ids"])), "0");
    for command in ["renew", "release"] {
        let mut there = nobody_at(&theirs.fresh.node.uri());
        there.args(["id", command, "ids", "--identity", "a", "--state", &ours.file("a")]);
        assert_said(&there.output().unwrap(), 1, &["two pools of one name are mixed up", "--uri"]);
        assert_said(&ours.id("a", &["renew", "ids"]), 0, &[]);
    }
    assert_eq!(holders(&ours.fresh.node).len(), 1);
    assert_eq!(stdout(&ours.id("a", &["release", "ids"])), "id 0 released");
}

/// A RELEASE without an answer may be ordered when the next job has long begun. It finds nothing then: the token that it
/// names is given back first, and another is asked with.
#[test]
fn a_token_that_is_being_given_back_is_not_asked_with_again() {
    let work = Work::new(&json!({"on_conflict": "reject"}));
    assert_eq!(stdout(&work.id("a", &["acquire", "ids"])), "0");
    let before = state(&work, "a");
    let mut leaving = before.clone();
    leaving["leaving"] = true.into();
    fs::write(work.file("a"), leaving.to_string()).unwrap();
    assert_said(&work.id("a", &["renew", "ids"]), 1, &["its RELEASE had no answer"]);
    let next = work.id("a", &["acquire", "ids"]);
    assert_eq!((stdout(&next).as_str(), stderr(&next).as_str()), ("0", ""));
    let after = state(&work, "a");
    assert_ne!(after["token"], before["token"]);
    assert_eq!(
        (after["fence"].as_u64(), &after["leaving"]),
        (before["fence"].as_u64().map(|one| one + 1), &json!(false))
    );
    let late = json!({"token": before["token"], "fence": before["fence"]});
    assert_eq!(work.fresh.node.op("ids", "RELEASE", &late)["result"], false);
    assert_said(&work.id("a", &["renew", "ids"]), 0, &[]);
}

/// A command that cannot be given back stays to be; one that surely was not leaves all as it was.
#[test]
fn what_was_surely_not_given_back_is_held_on() {
    let work = Work::new(&json!({}));
    assert_eq!(stdout(&work.id("a", &["acquire", "ids"])), "0");
    let before = state(&work, "a");
    let mut nobody_there = nobody_at("tenure://127.0.0.1:1");
    nobody_there.args(["id", "release", "ids", "--identity", "a", "--state", &work.file("a")]);
    assert_said(&nobody_there.output().unwrap(), 3, &["no node at"]);
    assert_eq!(state(&work, "a"), before);
    assert_said(&work.id("a", &["renew", "ids"]), 0, &[]);

    // One that went before it may still come.
    let mut leaving = state(&work, "a");
    leaving["leaving"] = true.into();
    fs::write(work.file("a"), leaving.to_string()).unwrap();
    assert_said(&nobody_there.output().unwrap(), 3, &["no node at"]);
    assert_eq!(state(&work, "a"), leaving);
}

/// What is held may be in use: a clock that was set back does not take it away.
#[test]
fn an_id_in_use_is_not_given_back_for_its_clock() {
    let work = Work::new(&json!({}));
    assert_eq!(stdout(&work.id("a", &["acquire", "ids"])), "0");
    let token = state(&work, "a")["token"].clone();
    let ahead = json!({"token": token, "unix_ms": unix_ms() + 60_000});
    assert_eq!(work.fresh.node.op("ids", "RENEW", &ahead)["result"]["status"], "renewed");
    assert_said(&work.id("a", &["acquire", "ids"]), 1, &["clock", "behind", "id 0", "stays as it is"]);
    assert_eq!((holders(&work.fresh.node).len(), &state(&work, "a")["token"]), (1, &token));
}

/// A start that asks too soon after many others waits for its turn, as long as it may wait at all.
#[test]
fn a_start_in_a_hot_loop_waits() {
    // More than are let through.
    const TRIES: usize = 60;
    let work = Work::new(&json!({}));
    assert_eq!(stdout(&work.id("a", &["acquire", "ids"])), "0");
    // At once: one after the other on a slow disk they are no hot loop.
    let token = state(&work, "a")["token"].as_str().unwrap().to_owned();
    let again = json!({"identity": "a", "owner": null, "create": null, "wait_ms": null});
    let ask = |_| Waiting::ask_with(work.fresh.node.addr, "ids", &token, &again, "");
    let mut hot: Vec<Waiting> = (0..TRIES).map(ask).collect();
    let statuses: Vec<u16> = hot.iter_mut().map(|one| one.response().status).collect();
    assert!(statuses.contains(&429), "none is too often: {statuses:?}");
    let waits = work.id("a", &["acquire", "ids", "--wait", "30s"]);
    assert_eq!((waits.status.code(), stdout(&waits).as_str()), (Some(0), "0"), "{}", stderr(&waits));
}

/// It asked first: the other is the newer, and has the id.
#[test]
fn who_is_taken_over_while_it_waits_ends() {
    let work = Work::new(&json!({"size": 1}));
    hold(&work, "other");
    let (mut first, mut second) = (waiting(&work, "one", 1), waiting(&work, "two", 2));
    assert_eq!(work.fresh.node.op("ids", "RELEASE", &json!({"token": "other"}))["result"], true);
    assert_eq!(second.end().code(), Some(0), "{}", second.rest());
    assert_eq!(first.end().code(), Some(1));
    let said = first.rest();
    assert!(said.contains("taken_over: another process of this identity has its id now"), "{said}");
    assert_said(&work.id_at("a", "two", &["renew", "ids"]), 0, &[]);
}

#[test]
fn a_killed_wait_goes_on_in_its_place() {
    let work = Work::new(&json!({"size": 1}));
    hold(&work, "other");
    drop(waiting(&work, "one", 1));
    let mut again = waiting(&work, "one", 1);
    let waits = || work.fresh.node.op("ids", "HELD", &json!({"token": state(&work, "one")["token"]}));
    assert_eq!(waits()["reason"], "queued");
    assert_eq!(work.fresh.node.op("ids", "RELEASE", &json!({"token": "other"}))["result"], true);
    assert_eq!(again.end().code(), Some(0), "{}", again.rest());
}

/// An operator who is root looks after a service: its file stays the service's.
#[test]
fn the_file_keeps_its_owner() {
    let work = Work::new(&json!({}));
    assert_eq!(stdout(&work.id("a", &["acquire", "ids"])), "0");
    if chown(work.file("a"), Some(4_711), Some(4_712)).is_err() {
        return eprintln!("skipped: only root can give files away");
    }
    assert_said(&work.id("a", &["renew", "ids"]), 0, &[]);
    let file = fs::metadata(work.file("a")).unwrap();
    assert_eq!((file.uid(), file.gid(), file.mode() & 0o777), (4_711, 4_712, 0o600));
}
