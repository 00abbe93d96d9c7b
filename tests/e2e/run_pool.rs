//! `tenure run --pool` on a real node: a counting semaphore.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Fresh, Node, Process, eventually, stderr, stdout, tenure};

fn run(node: &Node, more: &[&str], job: &str) -> Command {
    let mut command = tenure();
    command.args(["--uri", &node.uri(), "run", "--pool", "builds"]);
    command.args(more).args(["--", "sh", "-c", job]);
    command
}

/// Notes when it is in and out, and is out only when it is told.
fn noting(dir: &Path, name: usize) -> String {
    let dir = dir.display();
    format!(
        "echo in {name} $TENURE_SLOT >> {dir}/log; until [ -e {dir}/go.{name} ]; do sleep 0.02; done; \
         echo out {name} >> {dir}/log"
    )
}

fn log(dir: &Path) -> Vec<String> {
    fs::read_to_string(dir.join("log")).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Those that are at work, with their slots.
fn at_work(log: &[String]) -> Vec<(usize, String)> {
    let mut inside: Vec<(usize, String)> = Vec::new();
    for line in log {
        let words: Vec<&str> = line.split(' ').collect();
        let name: usize = words[1].parse().unwrap();
        match words[0] {
            "in" => inside.push((name, words[2].to_owned())),
            _ => inside.retain(|(own, _)| *own != name),
        }
    }
    inside
}

#[test]
fn at_most_so_many_at_once_and_all_of_them_in_the_end() {
    let fresh = Fresh::start();
    let dir = TempDir::new().unwrap();
    let start = |name: usize| {
        let more = ["--size", "2", "--wait", "10m"];
        Process::start(run(&fresh.node, &more, &noting(dir.path(), name)))
    };
    let mut all: Vec<Process> = (0..5).map(start).collect();
    for ended in 0..5 {
        let in_all = (ended + 2).min(5);
        let inside = eventually(&format!("{in_all} have begun"), || {
            let log = log(dir.path());
            let begun = log.iter().filter(|line| line.starts_with("in")).count();
            (begun == in_all).then(|| at_work(&log))
        });
        assert_eq!(inside.len(), in_all - ended);
        let wait = 5 - in_all;
        eventually("the others wait", || (fresh.node.get("builds")["waiters"] == wait).then_some(()));
        assert_eq!(fresh.node.get("builds")["slots"]["held"], in_all - ended);
        if let [(_, one), (_, other)] = &inside[..] {
            assert_ne!(one, other, "each has a slot of its own");
        }
        let (next, _) = inside[0];
        fs::write(dir.path().join(format!("go.{next}")), "").unwrap();
        assert_eq!(all[next].end().code(), Some(0), "{}", all[next].lines.text());
    }
    let log = log(dir.path());
    let most = (1..=log.len()).map(|end| at_work(&log[..end]).len()).max();
    assert_eq!((most, log.len()), (Some(2), 10), "{log:?}");
    assert_eq!(fresh.node.get("builds")["slots"]["held"], 0);
}

#[test]
fn a_full_pool_is_not_acquired() {
    let fresh = Fresh::start();
    let dir = TempDir::new().unwrap();
    let holder = Process::start(run(&fresh.node, &["--size", "1"], &noting(dir.path(), 0)));
    eventually("it is in", || (!log(dir.path()).is_empty()).then_some(()));
    let output = run(&fresh.node, &["--size", "1"], "echo never").output().unwrap();
    assert_eq!((output.status.code(), stdout(&output).as_str(), stderr(&output).as_str()), (Some(120), "", ""));
    let output = run(&fresh.node, &["--verbose", "--wait", "200ms"], "echo never").output().unwrap();
    assert_eq!(output.status.code(), Some(120));
    assert!(stderr(&output).contains("not acquired"), "{}", stderr(&output));
    assert_eq!(fresh.node.get("builds")["waiters"], 0);
    drop(holder);
}

#[test]
fn what_the_pool_is_counts() {
    let fresh = Fresh::start();
    let output = run(&fresh.node, &[], "echo never").output().unwrap();
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(125), ""));
    assert!(stderr(&output).contains("no such pool") && stderr(&output).contains("--size"), "{}", stderr(&output));
    let job = "echo $TENURE_KEY $TENURE_SLOT $TENURE_FENCE ${TENURE_TOKEN:+token} ${TENURE_MACHINE_ID:-none}";
    let output = run(&fresh.node, &["--size", "3"], job).output().unwrap();
    assert_eq!(stdout(&output), "builds 0 1 token none", "{}", stderr(&output));
    let options = &fresh.node.get("builds")["options"];
    assert_eq!(
        (&options["size"], &options["quarantine_ms"], &options["ttl_ms_min"]),
        (&json!(3), &json!(0), &json!(1))
    );
    let output = run(&fresh.node, &["--size", "5"], "true").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("has 3 slots, not 5"), "{}", stderr(&output));
    fresh.node.call("CREATE", &json!({"key": "k", "type": "lease"}));
    let mut lease = tenure();
    lease.args(["--uri", &fresh.node.uri(), "run", "--pool", "k", "--size", "2", "--", "true"]);
    let output = lease.output().unwrap();
    assert_eq!(output.status.code(), Some(125), "a lease is no pool: {}", stderr(&output));
    assert_eq!(fresh.node.get("k")["held"], false);
}

/// A slot is asked for as a lease is, so the pool gives one: it must not stay held, nor the job be skipped in silence.
#[test]
fn a_pool_is_no_lease() {
    let fresh = Fresh::start();
    fresh.node.call("CREATE", &json!({"key": "p", "type": "pool", "options": {"size": 1}}));
    for which in ["--key p", "--key k --key p", "--key p --wait 10m"] {
        let mut command = tenure();
        command.args(["--uri", &fresh.node.uri(), "run"]).args(which.split(' '));
        let output = command.args(["--", "echo", "never"]).output().unwrap();
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(125), ""), "{which}");
        assert!(stderr(&output).contains("p is a pool, not a lease"), "{}", stderr(&output));
        eventually("given back", || (fresh.node.get("p")["held"] == false).then_some(()));
    }
}

fn free(node: &Node) -> Value {
    node.get("builds")["slots"]["free"].clone()
}

#[test]
fn a_broken_slot_ends_its_command_and_no_other() {
    let fresh = Fresh::start();
    let dir = TempDir::new().unwrap();
    let start = |name: usize| Process::start(run(&fresh.node, &["--size", "2"], &noting(dir.path(), name)));
    let mut first = start(0);
    eventually("the first is in", || (log(dir.path()).len() == 1).then_some(()));
    let mut second = start(1);
    eventually("both are in", || (log(dir.path()).len() == 2).then_some(()));
    let output = fresh.node.cli(&["break", "builds", "--id", "0", "--reason", "too long"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(first.end().code(), Some(122), "{}", first.lines.text());
    assert!(first.rest().contains("broken: too long"), "{}", first.lines.text());
    assert!(second.ended().is_none(), "{}", second.lines.text());
    let go: PathBuf = dir.path().join("go.1");
    fs::write(go, "").unwrap();
    assert_eq!(second.end().code(), Some(0), "{}", second.lines.text());
    assert_eq!(free(&fresh.node), 2);
}

/// A signal gives the slot back; a kill leaves it to the ttl.
#[test]
fn a_slot_does_not_stay_with_the_dead() {
    let fresh = Fresh::start();
    let dir = TempDir::new().unwrap();
    let job = format!("echo up >> {}; sleep 1000", dir.path().join("up").display());
    // The ttl: so long that a stall before the signal is no loss.
    let start = || {
        let _none = fs::remove_file(dir.path().join("up"));
        let process = Process::start(run(&fresh.node, &["--size", "1", "--ttl", "8s"], &job));
        eventually("it is up", || fs::metadata(dir.path().join("up")).ok());
        process
    };
    let mut told = start();
    told.signal(Signal::TERM);
    assert_eq!(told.end().code(), Some(143));
    assert_eq!(free(&fresh.node), 1);
    let mut killed = start();
    killed.signal(Signal::KILL);
    killed.end();
    let output = run(&fresh.node, &["--wait", "1m"], "echo next").output().unwrap();
    assert_eq!(stdout(&output), "next", "{}", stderr(&output));
}
