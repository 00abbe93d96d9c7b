//! `tenure run` whose lease is lost: how soon the job is told, how, and how often.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use crate::harness::{Fresh, Node, Process, SOON, eventually, pass, tenure};
use crate::ports;

/// One whose third, when it is renewed, lies far behind [`SOON`], for which an end is awaited: no renewal told of that.
const LONG_TTL: &str = "10m";

fn run(node: &Node, ttl: &str, more: &[&str], job: &str) -> Command {
    let mut command = tenure();
    command.args(["--uri", &node.uri(), "run", "--key", "k", "--ttl", ttl]).args(more).args(["--", "sh", "-c", job]);
    command
}

/// Writes a line when it is at work, and at each TERM; its process id beside.
fn noting(log: &Path) -> String {
    let log = log.display();
    format!("echo $$ > {log}.pid; trap 'echo term >> {log}' TERM; echo up >> {log}; while :; do sleep 0.02; done")
}

/// Whether the process that was noted is there, not reaped.
fn is_there(log: &Path) -> bool {
    let pid = fs::read_to_string(format!("{}.pid", log.display())).unwrap();
    Path::new("/proc").join(pid.trim()).exists()
}

fn await_line(log: &Path, wanted: &str) {
    eventually(wanted, || fs::read_to_string(log).ok().filter(|text| text.lines().any(|line| line == wanted)));
}

struct Work {
    fresh: Fresh,
    dir: TempDir,
}

impl Work {
    fn new() -> Self {
        Self { fresh: Fresh::start(), dir: TempDir::new().unwrap() }
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// A job at work.
    fn start(&self, ttl: &str, more: &[&str], job: &str) -> Process {
        let process = Process::start(run(&self.fresh.node, ttl, more, job));
        await_line(&self.log(), "up");
        process
    }
}

#[test]
fn a_break_reaches_the_job_at_once() {
    for grace_ms in [0, 600_000] {
        let work = Work::new();
        let job = format!("trap 'exit 0' TERM; echo up >> {}; while :; do sleep 0.02; done", work.log().display());
        let mut process = work.start(LONG_TTL, &[], &job);
        work.fresh.node.op("k", "BREAK", &json!({"reason": "host 7 is upgraded", "grace_ms": grace_ms}));
        assert_eq!(process.end().code(), Some(122), "grace {grace_ms} ms: {}", process.lines.text());
        let said = process.rest();
        assert!(said.contains("lost: broken: host 7 is upgraded"), "it says why: {said}");
        assert_eq!(work.fresh.node.get("k")["held"], false, "given back when the job is gone, grace or not");
    }
}

#[test]
fn a_deleted_key_ends_the_job_at_once() {
    let work = Work::new();
    let mut process = work.start(LONG_TTL, &["--grace", "0s"], &noting(&work.log()));
    work.fresh.node.call("DEL", &json!({"keys": ["k"]}));
    assert_eq!(process.end().code(), Some(122));
    let said = process.rest();
    assert!(said.contains("lost: deleted"), "{said}");
}

/// A BREAK while the watch is cut, or before it has begun, is in no event that it tells.
#[test]
fn what_the_watch_missed_is_in_its_list() {
    let (dir, addr) = (TempDir::new().unwrap(), ports::free());
    let data = dir.path().join("data");
    let work = Work { fresh: Fresh { node: Node::start_at(&data, addr), dir }, dir: TempDir::new().unwrap() };
    let mut process = work.start(LONG_TTL, &["--grace", "0s"], &noting(&work.log()));
    let Work { fresh: Fresh { node, dir: _dir }, dir: _job } = work;
    node.kill();
    let node = Node::start_at(&data, addr);
    node.op("k", "BREAK", &json!({"reason": "after the restart"}));
    assert_eq!(process.end().code(), Some(122));
    let said = process.rest();
    assert!(said.contains("after the restart"), "{said}");
}

#[test]
fn a_job_may_be_killed_without_a_word() {
    let work = Work::new();
    let mut process = work.start(LONG_TTL, &["--on-lost", "kill", "--grace", "1m"], &noting(&work.log()));
    work.fresh.node.op("k", "BREAK", &json!({"reason": "now"}));
    // Awaited for less than the grace.
    assert_eq!(process.end().code(), Some(122));
    assert_eq!(fs::read_to_string(work.log()).unwrap(), "up\n", "no TERM");
}

/// The same for want of a renewal: the job works until it is killed.
#[test]
fn an_unrenewed_job_may_be_killed_without_a_word() {
    let work = Work::new();
    // So long that a stall before the stop loses nothing.
    let mut process = work.start("8s", &["--on-lost", "kill"], &noting(&work.log()));
    work.fresh.node.process.signal(Signal::STOP);
    assert_eq!(process.end().code(), Some(122));
    work.fresh.node.process.signal(Signal::CONT);
    assert_eq!(fs::read_to_string(work.log()).unwrap(), "up\n", "no TERM");
    assert!(process.rest().contains("lost: no renewal was answered in time"));
}

/// FR-23: a connection that swallows everything. Lost by the job's own clock: not before TERM's time, and dead before the
/// deadline; told once.
#[test]
fn a_silent_connection_is_a_loss_at_the_own_deadline() {
    let work = Work::new();
    let ttl = Duration::from_secs(15);
    // TERM at 15 s - 1 % - margins 0.45 s - grace 3 s after the grant, or after a renewal, which comes at a third.
    let earliest = Duration::from_millis(11_400);
    let (log, beats) = (work.log(), work.dir.path().join("beats"));
    let job = noting(&log).replace("sleep", &format!("echo >> {}; sleep", beats.display()));
    let asked = Instant::now();
    let mut process = work.start("15s", &["--grace", "3s"], &job);
    // Shortly before the renewal: so much sooner than the silence is as old as the ttl its time is over, which leaves a
    // guard on a loaded machine as much to kill in.
    pass(Duration::from_secs(3).saturating_sub(asked.elapsed()));
    let silent = Instant::now();
    work.fresh.node.process.signal(Signal::STOP);
    await_line(&log, "term");
    let told = asked.elapsed();
    assert_eq!(process.end().code(), Some(122));
    assert!(!is_there(&log), "gone before the run ends");
    work.fresh.node.process.signal(Signal::CONT);
    assert!(told > earliest, "a silence is no loss before its time: {told:?}");
    let since_last = fs::metadata(beats).unwrap().modified().unwrap().elapsed().unwrap_or_default();
    let last = silent.elapsed().saturating_sub(since_last);
    assert!(last < ttl, "dead before the lease can be another's: {last:?}");
    assert_eq!(fs::read_to_string(work.log()).unwrap(), "up\nterm\n", "one TERM");
    let said = process.rest();
    assert_eq!(said.matches("lost").count(), 1, "said once: {said}");
}

/// A way to a node that can be made to swallow everything, without a reset.
pub struct Way {
    pub addr: SocketAddr,
    pub cut: Arc<AtomicBool>,
}

impl Way {
    pub fn to(node: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let way = Self { addr: listener.local_addr().unwrap(), cut: Arc::default() };
        let cut = Arc::clone(&way.cut);
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect_timeout(&node, SOON) else { continue };
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (from, to, cut) = (from.try_clone().unwrap(), to.try_clone().unwrap(), Arc::clone(&cut));
                    std::thread::spawn(move || carry(from, to, &cut));
                }
            }
        });
        way
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, cut: &AtomicBool) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if !cut.load(Ordering::SeqCst) && to.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
    // An end that comes after the cut does not get through either.
    if !cut.load(Ordering::SeqCst) {
        let _gone = to.shutdown(Shutdown::Write);
    }
}

/// FR-53: one host is cut off; the other, which waits in line, begins when nothing of the first one's job is left.
#[test]
fn a_host_that_is_cut_off_is_done_before_the_next_begins() {
    let work = Work::new();
    let way = Way::to(work.fresh.node.addr);
    let (beats, begun) = (work.dir.path().join("beats"), work.dir.path().join("begun"));
    let stubborn = format!(
        "trap '' TERM; echo up >> {}; while :; do date +%s%N >> {}; sleep 0.02; done",
        work.log().display(),
        beats.display()
    );
    let run_at = |addr: SocketAddr, more: &[&str], job: &str| {
        let mut command = tenure();
        // So long that a stall before the second stands in line does not lose the first.
        command.args(["--uri", &format!("tenure://{addr}"), "run", "--key", "k", "--ttl", "10s"]);
        command.args(more).args(["--", "sh", "-c", job]);
        Process::start(command)
    };
    let mut first = run_at(way.addr, &[], &stubborn);
    await_line(&work.log(), "up");
    let next = format!("date +%s%N > {}", begun.display());
    let mut second = run_at(work.fresh.node.addr, &["--wait", "1m"], &next);
    eventually("the second waits", || (work.fresh.node.get("k")["waiters"] == 1).then_some(()));
    way.cut.store(true, Ordering::SeqCst);
    assert_eq!(second.end().code(), Some(0), "{}", second.lines.text());
    assert_eq!(first.end().code(), Some(122), "{}", first.lines.text());
    let ns = |text: &str| text.trim().parse::<u64>().unwrap();
    let last = fs::read_to_string(beats).unwrap().lines().map(ns).max().unwrap();
    let begun = ns(&fs::read_to_string(begun).unwrap());
    assert!(last < begun, "the first was alive {} ms into the second's run", last.saturating_sub(begun) / 1_000_000);
}

/// FR-54: what the shell started is ended with it.
#[test]
fn no_process_of_a_lost_job_survives() {
    let work = Work::new();
    let job = format!("sleep 1000 & echo $! > {0}.pid; echo up >> {0}; sleep 1000", work.log().display());
    let mut process = work.start(LONG_TTL, &[], &job);
    assert!(is_there(&work.log()));
    work.fresh.node.op("k", "BREAK", &json!({"reason": "test"}));
    assert_eq!(process.end().code(), Some(122));
    assert!(!is_there(&work.log()), "reaped before the run ends");
}

/// FR-57, FR-55: the ttl is what a killed holder keeps others out for; a Ctrl-C ends it at once.
#[test]
fn a_killed_holder_is_free_at_its_ttl_and_an_interrupted_one_at_once() {
    let short = tenure().args(["run", "--key", "k", "--ttl", "500ms", "--", "true"]).output().unwrap();
    assert_eq!(short.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&short.stderr).contains("the least here is 800ms"));

    let work = Work::new();
    let take = || {
        let args = json!({"owner": "next", "token": "next"});
        (work.fresh.node.op("k", "ACQUIRE", &args)["result"] == true).then_some(())
    };
    let mut process = work.start("5s", &[], &noting(&work.log()));
    process.signal(Signal::KILL);
    let killed = Instant::now();
    process.end();
    eventually("it is free", take);
    let took = killed.elapsed();
    // A node that stands still on a loaded machine gives that time back.
    assert!(took < Duration::from_secs(10), "ttl 5s: {took:?}");
    fs::remove_file(work.log()).unwrap();
    work.fresh.node.op("k", "RELEASE", &json!({"token": "next"}));

    let job = format!("echo up >> {}; sleep 1000", work.log().display());
    let mut process = work.start(LONG_TTL, &[], &job);
    process.signal(Signal::INT);
    assert_eq!(process.end().code(), Some(143), "the job's own end, by TERM");
    assert!(take().is_some(), "given back");
}
