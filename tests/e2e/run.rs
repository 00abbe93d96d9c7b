//! `tenure run` on a real node: exit codes, deadlines, process groups, and that two runs of one key never overlap.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use crate::harness::{Fresh, Node, Process, eventually, pass, stderr, stdout, tenure};
use crate::ports;

fn run(node: &Node, key: &str, ttl: &str, job: &str) -> Command {
    let mut command = tenure();
    command.args(["--uri", &node.uri(), "run", "--key", key, "--ttl", ttl, "--", "sh", "-c", job]);
    command
}

/// FR-56.
#[test]
fn the_jobs_exit_code_is_the_runs() {
    let fresh = Fresh::start();
    for (job, code) in [("exit 0", 0), ("exit 1", 1), ("exit 37", 37), ("kill -9 $$", 137), ("kill -TERM $$", 143)] {
        let output = run(&fresh.node, "k", "10s", job).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{job}: {}", stderr(&output));
        assert_eq!(fresh.node.get("k")["held"], false, "{job}: released at its end");
    }
    let missing = tenure()
        .args(["--uri", &fresh.node.uri(), "run", "--key", "k", "--ttl", "10s", "--", "no-such-program"])
        .output()
        .unwrap();
    assert_eq!(missing.status.code(), Some(127), "{}", stderr(&missing));
    let forbidden =
        tenure().args(["--uri", &fresh.node.uri(), "run", "--key", "k", "--ttl", "10s", "--", "/"]).output().unwrap();
    assert_eq!(forbidden.status.code(), Some(126), "{}", stderr(&forbidden));
    assert_eq!(fresh.node.get("k")["held"], false, "given back when the job cannot start");
}

#[test]
fn a_held_key_is_not_run() {
    let fresh = Fresh::start();
    fresh.node.op("k", "ACQUIRE", &json!({"owner": "other host", "token": "t", "create": true}));
    let output = run(&fresh.node, "k", "10s", "echo never").output().unwrap();
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(120), ""), "{}", stderr(&output));
    assert_eq!(stderr(&output), "", "quiet: on most hosts of a fleet this is the normal course");
    let mut told = tenure();
    told.args(["--uri", &fresh.node.uri(), "run", "--verbose", "--key", "k", "--ttl", "10s", "--", "true"]);
    let output = told.output().unwrap();
    assert_eq!(output.status.code(), Some(120));
    assert!(stderr(&output).contains("other host"), "asked, it says who holds: {}", stderr(&output));
}

#[test]
fn the_job_knows_its_grant() {
    let fresh = Fresh::start();
    let job = "echo $TENURE_KEY $TENURE_FENCE ${TENURE_TOKEN:+token}";
    let output = run(&fresh.node, "a key", "10s", job).output().unwrap();
    assert_eq!(stdout(&output), "a key 1 token", "{}", stderr(&output));
}

/// A job that writes a line every 20 ms, so that its life can be read afterwards; with a child that ignores TERM.
fn stubborn_job(log: &Path) -> String {
    format!(
        "trap '' TERM; beat() {{ while :; do date +%s%3N >> {0}.$1; sleep 0.02; done; }}; beat child & beat parent",
        log.display()
    )
}

/// When a beat file was last written to, as time since `since`; it must not grow any more.
fn last_beat(log: &Path, who: &str, since: Instant) -> Duration {
    let path = PathBuf::from(format!("{}.{who}", log.display()));
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let ago = modified.elapsed().unwrap_or_default();
    since.elapsed().saturating_sub(ago)
}

fn await_beats(log: &Path) {
    eventually("the job is at work", || {
        let lines =
            |who: &str| fs::read_to_string(format!("{}.{who}", log.display())).ok().map(|text| text.lines().count());
        (lines("parent")? > 2 && lines("child")? > 2).then_some(())
    });
}

/// FR-53, FR-54: the server is gone for longer than the ttl; the whole group is dead before the deadline.
#[test]
fn a_server_that_is_gone_ends_the_job_before_the_deadline() {
    let fresh = Fresh::start();
    let dir = TempDir::new().unwrap();
    let log = dir.path().join("beat");
    let job = stubborn_job(&log);
    let mut command = tenure();
    command.args(["--uri", &fresh.node.uri(), "run", "--key", "k", "--ttl", "15s", "--grace", "3s"]);
    command.args(["--", "sh", "-c", &job]);
    let started = Instant::now();
    let mut process = Process::start(command);
    await_beats(&log);
    // Shortly before the renewal, at a third: so much sooner than the ttl after the stop the lease's time is over, which
    // leaves a guard on a loaded machine as much to kill in.
    pass(Duration::from_secs(3).saturating_sub(started.elapsed()));
    fresh.node.process.signal(Signal::STOP);
    let stopped = Instant::now();
    let status = process.end();
    let deadline = Duration::from_secs(15);
    assert_eq!(status.code(), Some(122), "lost: {}", process.lines.text());
    for who in ["parent", "child"] {
        let last = last_beat(&log, who, stopped);
        assert!(
            last < deadline,
            "{who} was alive {last:?} after the last renewal was possible; the ttl is {deadline:?}"
        );
    }
    assert_no_more_beats(&log);
    fresh.node.process.signal(Signal::CONT);
}

/// FR-55: `kill -9` of `run`: the guard ends the group before the deadline, and the key is free by then.
#[test]
fn a_killed_run_leaves_no_job_behind() {
    let fresh = Fresh::start();
    let dir = TempDir::new().unwrap();
    let log = dir.path().join("beat");
    let mut process = Process::start(run(&fresh.node, "k", "3s", &stubborn_job(&log)));
    await_beats(&log);
    process.signal(Signal::KILL);
    let killed = Instant::now();
    process.end();
    // Whoever gets the key next does so after the job is dead.
    let free_after = eventually("the key is free", || {
        let args = json!({"owner": "next", "token": "next", "ttl_ms": 60_000});
        (fresh.node.op("k", "ACQUIRE", &args)["result"] == true).then(|| killed.elapsed())
    });
    assert_no_more_beats(&log);
    for who in ["parent", "child"] {
        let last = last_beat(&log, who, killed);
        assert!(last < free_after, "{who} was alive at {last:?}, the key was free at {free_after:?}");
    }
    // A node that stands still on a loaded machine gives that time back.
    assert!(free_after < Duration::from_secs(15), "free at the ttl: {free_after:?}");
}

fn assert_no_more_beats(log: &Path) {
    let sizes = || ["parent", "child"].map(|who| fs::metadata(format!("{}.{who}", log.display())).unwrap().len());
    let before = sizes();
    pass(Duration::from_millis(200));
    assert_eq!(sizes(), before, "something of the job still runs");
}

/// FR-58: TERM to `run` ends the job first, and the lease is renewed meanwhile; it is given back after that.
#[test]
fn the_lease_outlives_the_job() {
    let fresh = Fresh::start();
    let dir = TempDir::new().unwrap();
    let (log, go) = (dir.path().join("log"), dir.path().join("go"));
    // Once told, it comes to its end only when a renewal was seen.
    let job = format!(
        "trap 'until [ -e {1} ]; do sleep 0.05; done; echo ended >> {0}; exit 5' TERM; echo began >> {0}; \
         while :; do sleep 0.05; done",
        log.display(),
        go.display()
    );
    let mut command = tenure();
    // Renewed every 2.3 s: three times within the grace.
    command.args(["--uri", &fresh.node.uri(), "run", "--key", "k", "--ttl", "14s", "--grace", "7s"]);
    command.args(["--", "sh", "-c", &job]);
    let mut process = Process::start(command);
    eventually("the job is at work", || fs::read_to_string(&log).ok().filter(|text| text.contains("began")));
    process.signal(Signal::TERM);
    let (mut left_ms, mut renewals) = (0, 0);
    loop {
        let answer = fresh.node.op("k", "HELD", &json!({}));
        let ended = fs::read_to_string(&log).unwrap().contains("ended");
        assert!(answer["result"] == true || ended, "the lease was given back while the job was at work");
        let Some(now_ms) = answer["ttl_ms"].as_u64() else { break };
        if left_ms > 0 && now_ms > left_ms {
            renewals += 1;
            fs::write(&go, "").unwrap();
        }
        left_ms = now_ms;
        pass(Duration::from_millis(10));
    }
    assert_eq!(process.end().code(), Some(5), "the job's own code: {}", process.lines.text());
    assert!(renewals > 0, "nobody renewed it while the job came to its end");
}

/// Its server killed and started again: the job goes on, the lease is kept.
#[test]
fn a_restart_of_the_server_is_survived() {
    let (dir, addr) = (TempDir::new().unwrap(), ports::free());
    let data = dir.path().join("data");
    let node = Node::start_at(&data, addr);
    let go = dir.path().join("go");
    let job = format!("while [ ! -e {} ]; do sleep 0.05; done; echo done", go.display());
    // It outlives the restart on a loaded machine.
    let mut process = Process::start(run(&node, "k", "14s", &job));
    let fence = eventually("it holds", || node.get("k")["fence"].as_u64());
    node.kill();
    let node = Node::start_at(&data, addr);
    // It lives by renewals after the restart: nothing else gives it more time.
    let mut before_ms = u64::MAX;
    eventually("it is renewed", || {
        let now_ms = node.get("k")["ttl_ms"].as_u64().unwrap();
        let more = now_ms > before_ms;
        before_ms = now_ms;
        more.then_some(())
    });
    assert_eq!(node.get("k")["fence"], fence, "{}", process.lines.text());
    fs::write(&go, "").unwrap();
    assert_eq!(process.end().code(), Some(0), "{}", process.lines.text());
}

#[test]
fn a_broken_lease_ends_the_job() {
    let fresh = Fresh::start();
    // Told by the watch: no renewal comes so soon, and no stall is a loss.
    let mut process = Process::start(run(&fresh.node, "k", "10m", "while :; do sleep 0.05; done"));
    eventually("it holds", || fresh.node.get("k")["held"].as_bool().filter(|held| *held));
    fresh.node.op("k", "BREAK", &json!({"reason": "maintenance window"}));
    assert_eq!(process.end().code(), Some(122));
    let said = process.rest();
    assert!(said.contains("maintenance window"), "it says why: {said}");
}

/// Two hosts run one key in a loop; each job notes its start and end. No two overlap, by one log on one clock.
#[test]
fn two_runs_of_one_key_never_overlap() {
    let fresh = Fresh::start();
    let dir = TempDir::new().unwrap();
    let log = dir.path().join("log");
    // Each line is one short append: atomic, and in order.
    let job = format!("echo start $TENURE_FENCE >> {0}; sleep 0.03; echo end $TENURE_FENCE >> {0}", log.display());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..20 {
                    // A stall of the machine is no loss.
                    let output = run(&fresh.node, "k", "30s", &job).output().unwrap();
                    assert!([Some(0), Some(120)].contains(&output.status.code()), "{}", stderr(&output));
                }
            });
        }
    });
    let text = fs::read_to_string(&log).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() >= 2 && lines.len().is_multiple_of(2), "{text}");
    let mut last_fence = 0;
    for pair in lines.chunks(2) {
        let fence: u64 = pair[0].strip_prefix("start ").expect("a start").parse().unwrap();
        assert_eq!(pair[1], format!("end {fence}"), "two overlap: {text}");
        assert!(fence > last_fence, "fences grow: {text}");
        last_fence = fence;
    }
}
