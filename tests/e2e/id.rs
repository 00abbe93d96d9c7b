//! `tenure id acquire|renew|release|holders` on a real node: who a process is, what its state file remembers, and what
//! operators see of a pool.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Fresh, Node, Process, SOON, eventually, stderr, stdout, tenure};

/// A pool `ids` with these options.
pub fn pool(node: &Node, options: &Value) {
    let create = json!({"key": "ids", "type": "pool", "options": options});
    assert_eq!(node.call("CREATE", &create)["result"], true);
}

/// The command line of a process that is nobody but for what it is given.
pub fn nobody(node: &Node) -> Command {
    nobody_at(&node.uri())
}

/// The same, at that address.
pub fn nobody_at(uri: &str) -> Command {
    let mut command = tenure();
    for name in ["POD_NAME", "POD_NAMESPACE", "KUBERNETES_SERVICE_HOST", "XDG_STATE_HOME"] {
        command.env_remove(name);
    }
    command.args(["--uri", uri]);
    command
}

/// The slots that are held, as HOLDERS answers.
pub fn holders(node: &Node) -> Vec<Value> {
    node.op("ids", "HOLDERS", &json!({}))["result"]["holders"].as_array().unwrap().clone()
}

/// A node with a pool, and a place for state files.
pub struct Work {
    pub fresh: Fresh,
    pub dir: TempDir,
}

impl Work {
    pub fn new(options: &Value) -> Self {
        let work = Self { fresh: Fresh::start(), dir: TempDir::new().unwrap() };
        pool(&work.fresh.node, options);
        work
    }

    pub fn file(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// `tenure id <args>` of that identity with its own file.
    pub fn id(&self, identity: &str, args: &[&str]) -> Output {
        self.id_at(identity, identity, args)
    }

    pub fn id_at(&self, identity: &str, file: &str, args: &[&str]) -> Output {
        let mut command = nobody(&self.fresh.node);
        command.arg("id").args(args).args(["--identity", identity, "--state", &self.file(file)]);
        command.output().unwrap()
    }
}

pub fn assert_said(output: &Output, code: i32, words: &[&str]) {
    let said = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{said}\n{}", stdout(output));
    for word in words {
        assert!(said.contains(word), "{word:?} is missing in: {said}");
    }
}

pub fn unix_ms() -> u64 {
    let time = clock_gettime(ClockId::Realtime);
    u64::try_from(time.tv_sec).unwrap() * 1_000 + u64::try_from(time.tv_nsec).unwrap() / 1_000_000
}

#[test]
fn the_same_process_has_the_same_id() {
    let work = Work::new(&json!({"size": 4}));
    let first = work.id("a", &["acquire", "ids"]);
    assert_eq!(stdout(&first), "0", "{}", stderr(&first));
    let fence = holders(&work.fresh.node)[0]["fence"].clone();
    assert_eq!(stdout(&work.id("b", &["acquire", "ids"])), "1");
    let again = work.id("a", &["acquire", "ids", "--json"]);
    let again: Value = serde_json::from_str(&stdout(&again)).unwrap();
    assert_eq!((&again["result"]["id"], &again["result"]["fence"], &again["yours"]), (&json!(0), &fence, &json!(true)));
    assert_eq!(again["result"]["identity"], "a");
    let renewed = work.id("a", &["renew", "ids", "--ttl", "10m"]);
    assert_said(&renewed, 0, &[]);
    assert!(stdout(&renewed).starts_with("id 0 renewed, expires in "), "{}", stdout(&renewed));
    assert!(holders(&work.fresh.node)[0]["ttl_ms"].as_u64().unwrap() > 500_000);
    assert_eq!(stdout(&work.id("a", &["release", "ids"])), "id 0 released");
    assert_said(&work.id("a", &["renew", "ids"]), 1, &["no id is held"]);
    assert_said(&work.id("a", &["release", "ids"]), 1, &["no id is held"]);
    assert_eq!(stdout(&work.id("c", &["acquire", "ids"])), "2", "never used before long idle");
    assert_eq!(stdout(&work.id("a", &["acquire", "ids"])), "0", "its own again");
}

#[test]
fn the_state_file_is_the_process_s_own() {
    let work = Work::new(&json!({}));
    let home = work.dir.path().join("home");
    let acquire = || {
        let mut command = nobody(&work.fresh.node);
        command.env("XDG_STATE_HOME", &home).env("POD_NAME", "web-0").env("POD_NAMESPACE", "prod");
        command.args(["id", "acquire", "ids", "--json"]).output().unwrap()
    };
    let answer: Value = serde_json::from_str(&stdout(&acquire())).unwrap();
    assert_eq!(answer["result"]["identity"], "prod/web-0");
    let path = answer["state"].as_str().unwrap();
    assert!(Path::new(path).starts_with(home.join("tenure/id")), "{path}");
    let meta = fs::metadata(path).unwrap();
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(path).unwrap();
    let state: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&state["version"], &state["pool"], &state["id"]), (&json!(1), &json!("ids"), &json!(0)));
    assert_eq!(state["pool_uuid"], work.fresh.node.get("ids")["pool"]);
    assert!(state["token"].as_str().is_some_and(|token| token.len() == 32), "{text}");
    assert!(state["cluster"].is_string());
    let again: Value = serde_json::from_str(&stdout(&acquire())).unwrap();
    assert_eq!(again["yours"], true);
    let slot = nobody(&work.fresh.node)
        .env("XDG_STATE_HOME", &home)
        .env("POD_NAME", "web-0")
        .args(["id", "acquire", "ids", "--slot", "1"])
        .output()
        .unwrap();
    assert_eq!(stdout(&slot), "1", "{}", stderr(&slot));
}

#[test]
fn what_is_not_sure_is_asked_for() {
    let work = Work::new(&json!({}));
    let try_with = |name: &str, value: &str| {
        let mut command = nobody(&work.fresh.node);
        command.env(name, value).env("XDG_STATE_HOME", work.dir.path());
        command.args(["id", "acquire", "ids"]).output().unwrap()
    };
    assert_said(&try_with("POD_NAME", ""), 2, &["POD_NAME is set and empty", "--identity"]);
    assert_said(&try_with("TENURE_IDENTITY", ""), 2, &["empty", "--identity"]);
    assert_said(&try_with("KUBERNETES_SERVICE_HOST", "10.0.0.1"), 2, &["POD_NAME", "metadata.name", "--identity"]);
    assert_eq!(holders(&work.fresh.node), Vec::<Value>::new());
    let run = nobody(&work.fresh.node)
        .env("POD_NAME", "")
        .args(["id", "run", "--pool", "ids", "--", "true"])
        .output()
        .unwrap();
    assert_said(&run, 125, &["POD_NAME is set and empty"]);
}

#[test]
fn an_exhausted_pool_gives_what_is_released() {
    let work = Work::new(&json!({"size": 1}));
    assert_eq!(stdout(&work.id("a", &["acquire", "ids"])), "0");
    assert_said(&work.id("b", &["acquire", "ids"]), 1, &["exhausted", "try again in"]);
    let json = work.id("b", &["acquire", "ids", "--json"]);
    let answer: Value = serde_json::from_str(&stdout(&json)).unwrap();
    assert_eq!(
        (&answer["result"], &answer["reason"], json.status.code()),
        (&Value::Null, &json!("exhausted"), Some(1))
    );
    let mut waiting = nobody(&work.fresh.node);
    waiting.args(["id", "acquire", "ids", "--wait", "1m", "--identity", "b", "--state", &work.file("b")]);
    let mut waiting = Process::start(waiting);
    eventually("it waits", || (work.fresh.node.get("ids")["waiters"] == 1).then_some(()));
    assert_said(&work.id("a", &["release", "ids"]), 0, &[]);
    assert_eq!(waiting.end().code(), Some(0), "{}", waiting.rest());
    assert_eq!(holders(&work.fresh.node)[0]["identity"], "b");
}

/// Somebody else seems to use it: nobody gets it for a while.
#[test]
fn an_id_may_be_avoided() {
    let work = Work::new(&json!({"size": 4}));
    assert_eq!(stdout(&work.id("a", &["acquire", "ids"])), "0");
    let other = work.id("a", &["acquire", "ids", "--avoid", "0"]);
    assert_eq!(stdout(&other), "1", "{}", stderr(&other));
    assert_eq!(holders(&work.fresh.node).len(), 1);
    assert_eq!(stdout(&work.id("a", &["acquire", "ids"])), "1", "it stays");
    assert_eq!(stdout(&work.id("b", &["acquire", "ids"])), "2");
}

#[test]
fn two_processes_of_one_identity_are_told() {
    let work = Work::new(&json!({"size": 4}));
    assert_eq!(stdout(&work.id_at("a", "one", &["acquire", "ids"])), "0");
    let second = work.id_at("a", "two", &["acquire", "ids"]);
    assert_eq!(stdout(&second), "0", "{}", stderr(&second));
    assert_said(&second, 0, &["took id 0 over", "--slot"]);
    assert_said(&work.id_at("a", "one", &["renew", "ids"]), 1, &["lost: taken_over"]);
    assert_said(&work.id_at("a", "two", &["renew", "ids"]), 0, &[]);
}

/// A token that was taken over never gets the id back, but its process may ask as anybody.
#[test]
fn a_used_up_token_is_replaced_and_that_is_said() {
    let work = Work::new(&json!({"size": 4}));
    assert_eq!(stdout(&work.id_at("a", "one", &["acquire", "ids"])), "0");
    assert_eq!(stdout(&work.id_at("a", "two", &["acquire", "ids"])), "0");
    let again = work.id_at("a", "one", &["acquire", "ids"]);
    assert_eq!(stdout(&again), "0", "{}", stderr(&again));
    assert_said(&again, 0, &["of no use any more (taken_over)", "took id 0 over"]);
}

#[test]
fn a_pool_may_refuse_the_second_process() {
    let work = Work::new(&json!({"on_conflict": "reject"}));
    assert_eq!(stdout(&work.id_at("a", "one", &["acquire", "ids"])), "0");
    let second = work.id_at("a", "two", &["acquire", "ids"]);
    assert_said(&second, 1, &["identity_in_use", "--slot", "try again in"]);
    assert_said(&work.id_at("a", "one", &["renew", "ids"]), 0, &[]);
}

#[test]
fn two_pools_of_one_name_are_not_mixed_up() {
    let work = Work::new(&json!({}));
    assert_eq!(stdout(&work.id("a", &["acquire", "ids"])), "0");
    work.fresh.node.call("DEL", &json!({"keys": ["ids"]}));
    assert_said(&work.id("a", &["acquire", "ids"]), 1, &["no such pool: ids", "CREATE"]);
    pool(&work.fresh.node, &json!({}));
    assert_said(&work.id("a", &["acquire", "ids"]), 1, &["two pools of one name are mixed up", &work.file("a")]);
    assert_eq!(holders(&work.fresh.node), Vec::<Value>::new());
    fs::remove_file(work.file("a")).unwrap();
    assert_eq!(stdout(&work.id("a", &["acquire", "ids"])), "0");
    work.fresh.node.call("CREATE", &json!({"key": "k", "type": "lease"}));
    assert_said(&work.id("b", &["acquire", "k"]), 1, &["k is a lease"]);
    assert_said(&work.id_at("b", "a", &["acquire", "ids"]), 1, &["identity \"a\", not of \"b\""]);
}

/// Leaf#216: whoever makes ids from its clock must not be behind an earlier holder of the number.
#[test]
fn a_clock_that_is_behind_gets_no_id() {
    let work = Work::new(&json!({"size": 1}));
    let node = &work.fresh.node;
    let hold = |token: &str, ahead_ms: u64| {
        let args = json!({"identity": "ahead", "token": token, "unix_ms": unix_ms() + ahead_ms});
        assert_eq!(node.op("ids", "ACQUIRE", &args)["result"]["id"], 0);
        assert_eq!(node.op("ids", "RELEASE", &json!({"token": token}))["result"], true);
    };
    hold("far", 60_000);
    assert_said(&work.id("a", &["acquire", "ids"]), 1, &["clock", "behind", "id 0", "--avoid 0"]);
    assert_eq!(holders(node), Vec::<Value>::new(), "given back");
    let mut run = nobody(node);
    run.args(["id", "run", "--pool", "ids", "--identity", "a", "--state", &work.file("a"), "echo", "never"]);
    let run = run.output().unwrap();
    assert_eq!((run.status.code(), stdout(&run).as_str()), (Some(125), ""), "{}", stderr(&run));

    let work = Work::new(&json!({"size": 1}));
    let node = &work.fresh.node;
    let told_ms = unix_ms() + 1_500;
    let args = json!({"identity": "ahead", "token": "near", "unix_ms": told_ms});
    assert_eq!(node.op("ids", "ACQUIRE", &args)["result"]["id"], 0);
    assert_eq!(node.op("ids", "RELEASE", &json!({"token": "near"}))["result"], true);
    assert_eq!(stdout(&work.id("a", &["acquire", "ids"])), "0");
    assert!(unix_ms() >= told_ms, "a little is waited out");
}

#[test]
fn operators_see_a_pool_and_end_one_grant() {
    let work = Work::new(&json!({"size": 4, "first": 100}));
    let node = &work.fresh.node;
    assert_eq!(stdout(&work.id("a", &["acquire", "ids"])), "100");
    assert_eq!(stdout(&work.id("b", &["acquire", "ids", "--note", "blue"])), "101");
    let listed = stdout(&node.cli(&["ls"]));
    assert!(listed.contains("pool") && listed.contains("2/4"), "{listed}");
    let shown = stdout(&node.cli(&["get", "ids"]));
    assert!(shown.contains("100 to 103") && shown.contains("2/4"), "{shown}");
    let held = stdout(&node.cli(&["id", "holders", "ids"]));
    assert_eq!(held.lines().count(), 3, "{held}");
    assert!(held.contains("101") && held.contains(" b "), "{held}");
    let one = stdout(&node.cli(&["id", "holders", "ids", "--id", "101"]));
    assert!(one.contains("blue") && one.contains("identity"), "{one}");
    let never = node.cli(&["id", "holders", "ids", "--id", "102"]);
    assert_said(&never, 1, &["id 102 was never given"]);

    assert_said(&node.cli(&["break", "ids", "--reason", "gone"]), 2, &["--id"]);
    assert_said(&node.cli(&["break", "ids", "--id", "102", "--reason", "gone"]), 1, &["nobody holds id 102"]);
    let old = node.cli(&["break", "ids", "--id", "101", "--fence", "999", "--reason", "gone"]);
    assert_said(&old, 1, &["another"]);
    let broken = node.cli(&["break", "ids", "--id", "101", "--reason", "host 7 is gone"]);
    assert_said(&broken, 0, &[]);
    assert!(stdout(&broken).contains("broken: fence"), "{}", stdout(&broken));
    assert_said(&work.id("b", &["renew", "ids"]), 1, &["lost: broken", "host 7 is gone"]);
    assert_said(&work.id("a", &["renew", "ids"]), 0, &[]);
    let free = stdout(&node.cli(&["id", "holders", "ids", "--all", "--json"]));
    let free: Vec<Value> = free.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&free[1]["id"], &free[1]["held"]), (&json!(101), &json!(false)));
    assert!(free[1]["free_in_ms"].as_u64().is_some_and(|ms| ms > 30_000), "in quarantine: {}", free[1]);

    node.call("CREATE", &json!({"key": "k", "type": "lease"}));
    assert_said(&node.cli(&["break", "k", "--id", "1", "--reason", "gone"]), 2, &["k is a lease"]);
}

#[test]
fn a_watch_says_which_id() {
    let work = Work::new(&json!({"size": 4}));
    let mut watch = nobody(&work.fresh.node);
    watch.args(["watch", "ids", "--list", "--until", "released"]);
    let mut watch = Process::start(watch);
    let pool = watch.lines.await_line(SOON, |line| line.contains("0/4 held").then_some(()));
    assert!(pool.is_some(), "{}", watch.lines.text());
    work.id("a", &["acquire", "ids"]);
    work.id("a", &["release", "ids"]);
    assert_eq!(watch.end().code(), Some(0));
    let said = watch.rest();
    assert!(said.contains("granted") && said.contains("id 0  fence 1 by a"), "{said}");
}

#[test]
fn a_wait_for_an_identity_ends_with_its_holder() {
    let work = Work::new(&json!({"size": 4, "on_conflict": "reject"}));
    assert_eq!(stdout(&work.id_at("a", "one", &["acquire", "ids"])), "0");
    let mut next = nobody(&work.fresh.node);
    next.args(["id", "acquire", "ids", "--wait", "1m", "--identity", "a", "--state", &work.file("two")]);
    let mut next = Process::start(next);
    eventually("it asks", || fs::metadata(work.file("two")).ok());
    assert_said(&work.id_at("a", "one", &["release", "ids"]), 0, &[]);
    assert_eq!(next.end().code(), Some(0), "{}", next.rest());
    assert_eq!(next.rest(), "0");
}
