//! `tenure id run` on a real node: a command with a machine ID, which nobody else has while anything of it lives.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Fresh, Process, eventually, stderr, stdout};
use crate::id::{holders, nobody, nobody_at, pool};
use crate::run_lost::Way;

/// From the start of a process to its job at work, with nothing to wait for: before the 30 s after which an id that is not
/// renewed is free.
const AT_ONCE: Duration = Duration::from_secs(20);

struct Work {
    fresh: Fresh,
    dir: TempDir,
}

impl Work {
    fn new(options: &Value) -> Self {
        let work = Self { fresh: Fresh::start(), dir: TempDir::new().unwrap() };
        pool(&work.fresh.node, options);
        work
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Of that identity, with a file of that name.
    fn run(&self, identity: &str, file: &str, more: &[&str], job: &str) -> Command {
        let mut command = nobody(&self.fresh.node);
        command.args(["id", "run", "--pool", "ids", "--identity", identity, "--state"]).arg(self.file(file));
        command.args(more).args(["--", "sh", "-c", job]);
        command
    }

    /// The same, at work.
    fn start(&self, identity: &str, file: &str, more: &[&str], job: &str) -> Process {
        let before = lines(&self.file("log")).len();
        let process = Process::start(self.run(identity, file, more, job));
        eventually("the job is at work", || (lines(&self.file("log")).len() > before).then_some(()));
        process
    }

    /// A job that notes its id and fence, its process beside, and works until TERM.
    fn willing(&self) -> String {
        let log = self.file("log").display().to_string();
        format!("echo $$ >> {log}.pids; echo $TENURE_MACHINE_ID $TENURE_FENCE >> {log}; exec sleep 1000")
    }

    /// The same, but nothing short of KILL ends it. It notes if one before it is there yet.
    fn stubborn(&self) -> String {
        let log = self.file("log").display().to_string();
        format!(
            "trap '' TERM; for pid in $(cat {log}.pids 2>/dev/null); do kill -0 $pid 2>/dev/null && echo $pid >> {log}.overlap; done; \
             echo $$ >> {log}.pids; echo $TENURE_MACHINE_ID $TENURE_FENCE >> {log}; while :; do sleep 0.02; done"
        )
    }
}

fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Whatever an earlier start asked for, and though the pool raises what is asked for now: who loses the id hears of it soon.
#[test]
fn what_an_earlier_start_left_is_renewed_as_often_as_any() {
    let work = Work::new(&json!({"size": 2, "ttl_ms_min": 3_000}));
    let mut earlier = nobody(&work.fresh.node);
    earlier.args(["id", "acquire", "ids", "--identity", "a", "--ttl", "1h", "--state"]).arg(work.file("a"));
    assert_eq!(stdout(&earlier.output().unwrap()), "0");
    let _job = work.start("a", "a", &["--ttl", "1s"], &work.willing());
    let version = || work.fresh.node.get("ids")["version"].clone();
    let before = version();
    eventually("it is renewed", || (version() != before).then_some(()));
}

#[test]
fn the_job_knows_its_id() {
    let work = Work::new(&json!({"size": 2, "first": 7}));
    let job = "echo $TENURE_KEY $TENURE_MACHINE_ID $TENURE_FENCE ${TENURE_TOKEN:+token}; exit 3";
    let output = work.run("a", "a", &[], job).output().unwrap();
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("ids 7 1 token", Some(3)), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    assert_eq!(holders(&work.fresh.node), Vec::<Value>::new(), "given back");
    let again = work.run("a", "a", &["--verbose"], "echo $TENURE_MACHINE_ID $TENURE_FENCE").output().unwrap();
    assert_eq!(stdout(&again), "7 2", "its own again: {}", stderr(&again));
    let missing = nobody(&work.fresh.node)
        .args(["id", "run", "--pool", "ids", "--identity", "a", "--state"])
        .arg(work.file("a"))
        .arg("no-such-program")
        .output()
        .unwrap();
    assert_eq!(missing.status.code(), Some(127), "{}", stderr(&missing));
    assert_eq!(holders(&work.fresh.node), Vec::<Value>::new());
}

#[test]
fn no_id_is_no_run() {
    let work = Work::new(&json!({"size": 1}));
    let mut first = work.start("a", "a", &[], &work.willing());
    let second = work.run("b", "b", &[], "echo never").output().unwrap();
    assert_eq!((second.status.code(), stdout(&second).as_str()), (Some(120), ""), "{}", stderr(&second));
    assert!(stderr(&second).contains("exhausted"), "{}", stderr(&second));
    let mut waiting = Process::start(work.run("b", "b", &["--wait", "10m"], "echo mine $TENURE_MACHINE_ID"));
    eventually("it waits", || (work.fresh.node.get("ids")["waiters"] == 1).then_some(()));
    first.signal(Signal::TERM);
    assert_eq!(first.end().code(), Some(143), "{}", first.lines.text());
    assert_eq!(waiting.end().code(), Some(0), "{}", waiting.lines.text());
    assert_eq!(waiting.rest(), "mine 0");
}

/// The token is on the disk: the next start is the same holder.
#[test]
fn a_killed_run_goes_on_at_once_with_its_id() {
    let work = Work::new(&json!({"size": 8}));
    let mut all = Vec::new();
    for _ in 0..3 {
        let started = Instant::now();
        let mut process = work.start("a", "a", &[], &work.willing());
        assert!(started.elapsed() < AT_ONCE, "{:?}", started.elapsed());
        process.signal(Signal::KILL);
        process.end();
        all.push(process);
    }
    let told = lines(&work.file("log"));
    assert_eq!(told, ["0 1"; 3], "the same id by the same grant");
    eventually("the last job is ended too", || {
        let pids = lines(&work.file("log.pids"));
        pids.iter().all(|pid| !Path::new("/proc").join(pid).exists()).then_some(())
    });
}

/// A job that its killed run left behind is dead before the next run's begins, though it is the same identity.
#[test]
fn a_killed_run_s_job_and_the_next_never_overlap() {
    let work = Work::new(&json!({"size": 8, "ttl_ms_min": 1_000}));
    // So long that the release and the second start come while the first one's job lives, also on a loaded machine.
    let ttl = ["--ttl", "10s"];
    let mut first = work.start("a", "a", &ttl, &work.stubborn());
    first.signal(Signal::KILL);
    first.end();
    let mut early = Process::start({
        let mut command = nobody(&work.fresh.node);
        command.args(["id", "release", "ids", "--identity", "a", "--state"]).arg(work.file("a"));
        command
    });
    assert_eq!(early.end().code(), Some(1));
    assert!(early.rest().contains("the job of an earlier run"), "{}", early.lines.text());
    let mut second = work.start("a", "a", &ttl, &work.stubborn());
    let said = second.lines.text();
    assert!(said.contains("still being ended"), "{said}");
    assert_eq!(lines(&work.file("log.overlap")), Vec::<String>::new());
    let told = lines(&work.file("log"));
    assert!(told.len() == 2 && told.iter().all(|line| line.starts_with("0 ")), "the same id: {told:?}");
    second.signal(Signal::TERM);
    assert_eq!(second.end().code(), Some(137), "killed after its grace: {}", second.lines.text());
}

#[test]
fn a_second_process_on_the_file_is_told() {
    let work = Work::new(&json!({"size": 8}));
    let mut first = work.start("a", "a", &[], &work.willing());
    let pid = first.pid().as_raw_pid().to_string();
    let second = work.run("a", "a", &[], "echo never").output().unwrap();
    assert_eq!((second.status.code(), stdout(&second).as_str()), (Some(125), ""));
    for part in [&format!("process {pid}"), "--slot 1"] {
        assert!(stderr(&second).contains(part), "{part} is missing in {}", stderr(&second));
    }
    for what in ["release", "renew", "acquire"] {
        let output = nobody(&work.fresh.node)
            .args(["id", what, "ids", "--identity", "a", "--state"])
            .arg(work.file("a"))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{what}: {}", stderr(&output));
        assert!(stderr(&output).contains(&pid), "{what}: {}", stderr(&output));
    }
    assert!(first.ended().is_none());
    assert_eq!(holders(&work.fresh.node)[0]["fence"], 1);
    let slot = work.run("a", "a.1", &["--slot", "1"], "echo $TENURE_MACHINE_ID").output().unwrap();
    assert_eq!(stdout(&slot), "1", "{}", stderr(&slot));
    first.signal(Signal::TERM);
    assert_eq!(first.end().code(), Some(143));
}

/// FR-53 for ids: a host that is cut off has nothing at work any more when its id is given on.
#[test]
fn a_partitioned_holder_is_done_before_its_id_is_given_on() {
    let work = Work::new(&json!({"size": 1, "ttl_ms_min": 1_000, "quarantine_ms": 0}));
    let way = Way::to(work.fresh.node.addr);
    let (beats, begun) = (work.file("beats"), work.file("begun"));
    let run_at = |addr: SocketAddr, identity: &str, more: &[&str], job: &str| {
        let mut command = nobody_at(&format!("tenure://{addr}"));
        // So long that a stall before the second stands in line does not lose the first.
        command.args(["id", "run", "--pool", "ids", "--ttl", "10s", "--identity", identity, "--state"]);
        command.arg(work.file(identity)).args(more).args(["--", "sh", "-c", job]);
        command
    };
    let stubborn = format!("trap '' TERM; while :; do date +%s%N >> {}; sleep 0.02; done", beats.display());
    let mut first = Process::start(run_at(way.addr, "a", &[], &stubborn));
    eventually("the first is at work", || (lines(&beats).len() > 2).then_some(()));
    let next = format!("echo $TENURE_MACHINE_ID $(date +%s%N) > {}", begun.display());
    let mut second = Process::start(run_at(work.fresh.node.addr, "b", &["--wait", "1m"], &next));
    eventually("the second waits", || (work.fresh.node.get("ids")["waiters"] == 1).then_some(()));
    way.cut.store(true, Ordering::SeqCst);
    assert_eq!(second.end().code(), Some(0), "{}", second.lines.text());
    assert_eq!(first.end().code(), Some(122), "{}", first.lines.text());
    let ns = |text: &str| text.trim().parse::<u64>().unwrap();
    let last = lines(&beats).iter().map(|line| ns(line)).max().unwrap();
    let begun = fs::read_to_string(begun).unwrap();
    let (id, begun) = begun.split_once(' ').unwrap();
    assert_eq!(id, "0");
    let begun = ns(begun);
    assert!(last < begun, "the first was alive {} ms into the second's", last.saturating_sub(begun) / 1_000_000);
}

/// What ends a grant ends its job, within moments and not at the next renewal: an end is awaited for SOON, and that comes
/// after 200 s.
#[test]
fn a_break_or_a_takeover_reaches_the_job_at_once() {
    let work = Work::new(&json!({"size": 2, "quarantine_ms": 0}));
    let mut broken = work.start("a", "a", &["--ttl", "10m"], &work.willing());
    let output = work.fresh.node.cli(&["break", "ids", "--id", "0", "--reason", "host 7 is gone"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(broken.end().code(), Some(122), "{}", broken.lines.text());
    assert!(broken.rest().contains("lost: broken: host 7 is gone"), "{}", broken.lines.text());

    let mut first = work.start("b", "one", &["--ttl", "10m"], &work.willing());
    let mut other = work.start("c", "c", &["--ttl", "10m"], &work.willing());
    let mut second = work.start("b", "two", &["--ttl", "10m"], &work.willing());
    assert_eq!(first.end().code(), Some(122), "{}", first.lines.text());
    assert!(first.rest().contains("lost: taken_over"), "{}", first.lines.text());
    assert!(second.lines.text().contains("took id"), "{}", second.lines.text());
    assert!(other.ended().is_none() && second.ended().is_none(), "the other slot's holder goes on");
    for process in [&mut other, &mut second] {
        process.signal(Signal::INT);
        assert_eq!(process.end().code(), Some(143), "{}", process.lines.text());
    }
    assert_eq!(holders(&work.fresh.node), Vec::<Value>::new());
}
