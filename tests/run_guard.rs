//! The guard of `tenure run` with real processes, without a server.
//!
//! Every job holds a FIFO open: its lines tell how far it is, its end of file that no process of it is left.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenure::cli::run::clock::boottime_ms;
use tenure::cli::run::guard::frame::Ended;
use tenure::cli::run::guard::{Event, Guard};
use tenure::cli::run::times::Limits;
use tokio::sync::mpsc;

/// Far beyond what any test takes: a limit that must not be reached.
const NEVER_MS: u64 = 600_000;
/// Ends a test that hangs.
const HANG: Duration = Duration::from_secs(60);
/// A limit that is to be reached: long after the job of a loaded machine has said that it is up.
const LIMIT_MS: u64 = 3_500;

/// A job under test.
struct Job {
    guard: Option<Guard>,
    lines: mpsc::Receiver<String>,
    _directory: tempfile::TempDir,
}

impl Job {
    /// Starts `script` with `$LINES` open as descriptor 9; limits count from now.
    async fn start(script: &str, term_in_ms: u64, kill_in_ms: u64, grace_ms: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let fifo = fifo(directory.path());
        let script = format!("exec 9>\"$LINES\"; {script}");
        let lines = follow(fifo.clone());
        let guard = start(&["sh", "-c", &script], &fifo, term_in_ms, kill_in_ms, grace_ms).await;
        Self { guard: Some(guard), lines, _directory: directory }
    }

    /// The next line of the job; `None` once no process of it is left.
    async fn line(&mut self) -> Option<String> {
        tokio::time::timeout(HANG, self.lines.recv()).await.expect("the job hangs")
    }

    async fn event(&mut self) -> Event {
        tokio::time::timeout(HANG, self.guard().next()).await.expect("the guard hangs")
    }

    fn guard(&mut self) -> &mut Guard {
        self.guard.as_mut().unwrap()
    }

    /// Closes the client's end, as the death of the client does.
    fn abandon(&mut self) {
        self.guard = None;
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(guard) = &self.guard {
            guard.kill();
        }
    }
}

fn fifo(directory: &Path) -> PathBuf {
    let path = directory.join("lines");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
    path
}

/// The end of a job whose lease was renewed.
fn ended(ended: Ended) -> Event {
    Event::Ended { ended, unrenewed: false }
}

/// The end of a job for want of renewal: by KILL, as all that ask so ignore TERM.
fn unrenewed() -> Event {
    Event::Ended { ended: Ended::Signalled(9), unrenewed: true }
}

/// Opening blocks until the job opens its side.
fn follow(fifo: PathBuf) -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel(16);
    std::thread::spawn(move || {
        for line in BufReader::new(File::open(fifo).unwrap()).lines() {
            if sender.blocking_send(line.unwrap()).is_err() {
                return;
            }
        }
    });
    lines
}

async fn start(command: &[&str], fifo: &Path, term_in_ms: u64, kill_in_ms: u64, grace_ms: u64) -> Guard {
    let command: Vec<OsString> = command.iter().map(OsString::from).collect();
    let now_ms = boottime_ms();
    let limits = Limits { term_at_ms: now_ms + term_in_ms, kill_at_ms: now_ms + kill_in_ms };
    let environment = [("LINES", fifo.as_os_str().to_owned())];
    Guard::start(Path::new(env!("CARGO_BIN_EXE_tenure")), &command, &environment, limits, grace_ms, None).await.unwrap()
}

#[tokio::test]
async fn ends_pass_through() {
    let directory = tempfile::tempdir().unwrap();
    let plain = directory.path().join("plain");
    std::fs::write(&plain, "not a program").unwrap();
    let plain = plain.to_str().unwrap();
    let rows: [(&[&str], Ended, u8); 7] = [
        (&["true"], Ended::Exited(0), 0),
        (&["false"], Ended::Exited(1), 1),
        (&["sh", "-c", "exit 37"], Ended::Exited(37), 37),
        (&["sh", "-c", "kill -9 $$"], Ended::Signalled(9), 137),
        (&["sh", "-c", "kill -15 $$"], Ended::Signalled(15), 143),
        (&[plain], Ended::Exited(126), 126),
        (&["/no/such/program"], Ended::Exited(127), 127),
    ];
    for (command, ended, code) in rows {
        let mut guard = start(command, Path::new("unused"), NEVER_MS, NEVER_MS, 1_000).await;
        assert_eq!(guard.next().await, Event::Ended { ended, unrenewed: false }, "{command:?}");
        assert_eq!(ended.code(), code);
        guard.finish().await;
    }
}

#[tokio::test]
async fn the_job_gets_the_callers_descriptors_only() {
    let directory = tempfile::tempdir().unwrap();
    let (plain, guarded) = (directory.path().join("plain"), directory.path().join("guarded"));
    let command = ["sh", "-c", "exec ls /proc/self/fd > $LINES"];
    let status = std::process::Command::new(command[0]).args(&command[1..]).env("LINES", &plain).status().unwrap();
    assert!(status.success());
    let mut guard = start(&command, &guarded, NEVER_MS, NEVER_MS, 1_000).await;
    assert_eq!(guard.next().await, ended(Ended::Exited(0)));
    assert_eq!(std::fs::read_to_string(guarded).unwrap(), std::fs::read_to_string(plain).unwrap());
}

#[tokio::test]
async fn unrenewed_it_gets_term_then_kill_at_the_limit() {
    const GRACE_MS: u64 = 3_000;
    const KILL_MS: u64 = LIMIT_MS + GRACE_MS;
    let start_ms = boottime_ms();
    let mut job =
        Job::start("trap 'echo term >&9' TERM; echo up >&9; while :; do sleep 0.05; done", LIMIT_MS, KILL_MS, GRACE_MS)
            .await;
    assert_eq!(job.line().await.as_deref(), Some("up"));
    assert_eq!(job.line().await.as_deref(), Some("term"));
    let term_ms = boottime_ms();
    assert_eq!(job.line().await, None);
    let end_ms = boottime_ms();
    assert!(term_ms >= start_ms + LIMIT_MS, "TERM after {} ms", term_ms - start_ms);
    assert!(end_ms >= start_ms + KILL_MS, "KILL after {} ms", end_ms - start_ms);
    assert_eq!(job.event().await, unrenewed());
}

#[tokio::test]
async fn an_extension_keeps_it_alive() {
    // It is alive after both of its first limits.
    let mut job = Job::start("echo up >&9; sleep 5; echo alive >&9; exit 5", LIMIT_MS, LIMIT_MS + 1_000, 1_000).await;
    assert_eq!(job.line().await.as_deref(), Some("up"));
    let now_ms = boottime_ms();
    job.guard().extend(Limits { term_at_ms: now_ms + NEVER_MS, kill_at_ms: now_ms + NEVER_MS }).await;
    assert_eq!(job.line().await.as_deref(), Some("alive"));
    assert_eq!(job.event().await, ended(Ended::Exited(5)));
}

#[tokio::test]
async fn told_to_end_it_gets_term_and_after_the_grace_kill() {
    let mut job =
        Job::start("trap 'echo term >&9' TERM; echo up >&9; while :; do sleep 0.05; done", NEVER_MS, NEVER_MS, 3_000)
            .await;
    assert_eq!(job.line().await.as_deref(), Some("up"));
    job.guard().end().await;
    assert_eq!(job.line().await.as_deref(), Some("term"));
    assert_eq!(job.line().await, None);
    assert_eq!(job.event().await, ended(Ended::Signalled(9)));
}

#[tokio::test]
async fn told_to_kill_it_gets_no_term() {
    let deaf = "setsid sh -c \"trap 'echo term >&9' TERM; echo up >&9; while :; do sleep 0.05; done\" & ";
    let mut job = Job::start(
        &format!("{deaf} trap 'echo term >&9' TERM; while :; do sleep 0.05; done"),
        NEVER_MS,
        NEVER_MS,
        NEVER_MS,
    )
    .await;
    assert_eq!(job.line().await.as_deref(), Some("up"));
    job.guard().kill_all().await;
    assert_eq!(job.line().await, None, "no word of TERM, also from what left the group");
    assert_eq!(job.event().await, ended(Ended::Signalled(9)));
}

#[tokio::test]
async fn a_closed_socket_is_term_at_once_and_kill_at_the_limit() {
    let start_ms = boottime_ms();
    let mut job =
        Job::start("trap 'echo term >&9' TERM; echo up >&9; while :; do sleep 0.05; done", LIMIT_MS, LIMIT_MS, 100)
            .await;
    assert_eq!(job.line().await.as_deref(), Some("up"));
    job.abandon();
    assert_eq!(job.line().await.as_deref(), Some("term"));
    assert_eq!(job.line().await, None);
    // Not after the grace of 100 ms: the lease is the job's own up to the limit.
    assert!(boottime_ms() >= start_ms + LIMIT_MS);
}

#[tokio::test]
async fn a_closed_socket_lets_a_willing_job_end() {
    let mut job = Job::start(
        "trap 'echo bye >&9; exit 0' TERM; echo up >&9; while :; do sleep 0.05; done",
        NEVER_MS,
        NEVER_MS,
        100,
    )
    .await;
    assert_eq!(job.line().await.as_deref(), Some("up"));
    job.abandon();
    assert_eq!(job.line().await.as_deref(), Some("bye"));
    assert_eq!(job.line().await, None);
}

#[tokio::test]
async fn nothing_the_job_leaves_behind_survives() {
    let ignoring = "trap '' TERM; echo up >&9; while :; do sleep 0.05; done";
    let cases = [
        format!("({ignoring}) & wait_for_it"),
        format!("setsid sh -c \"{ignoring}\" & wait_for_it"),
        format!("setsid sh -c 'setsid sh -c \"{}\" & exit 0' & wait_for_it", ignoring.replace('\'', "'\\''")),
    ];
    for case in cases {
        // The leader ends when its child has said that it is up: through the test, which then writes a file.
        let directory = tempfile::tempdir().unwrap();
        let go = directory.path().join("go");
        let wait = format!("while [ ! -e {} ]; do sleep 0.02; done; exit 3", go.display());
        let mut job = Job::start(&case.replace("wait_for_it", &wait), NEVER_MS, NEVER_MS, 200).await;
        assert_eq!(job.line().await.as_deref(), Some("up"), "{case}");
        std::fs::write(&go, "").unwrap();
        assert_eq!(job.event().await, ended(Ended::Exited(3)), "{case}");
        // Dead before the guard says so: end of file comes without waiting for anything else.
        assert_eq!(job.line().await, None, "{case}");
    }
}

#[tokio::test]
async fn a_session_of_its_own_is_no_escape_at_the_limit() {
    let script = "setsid sh -c \"trap '' TERM; echo up >&9; while :; do sleep 0.05; done\" & trap '' TERM; while :; do sleep 0.05; done";
    let mut job = Job::start(script, LIMIT_MS, LIMIT_MS + 1_000, 1_000).await;
    assert_eq!(job.line().await.as_deref(), Some("up"));
    assert_eq!(job.line().await, None);
    assert_eq!(job.event().await, unrenewed());
}

#[tokio::test]
async fn adopted_orphans_do_not_end_the_job() {
    let script = "for i in 1 2 3 4 5; do (sh -c 'exit 9' &); done; sleep 0.3; echo still >&9; exit 4";
    let mut job = Job::start(script, NEVER_MS, NEVER_MS, 200).await;
    assert_eq!(job.line().await.as_deref(), Some("still"));
    assert_eq!(job.event().await, ended(Ended::Exited(4)));
}

#[tokio::test]
async fn a_killed_guard_takes_the_first_process_with_it() {
    let mut job = Job::start("echo up >&9; exec sleep 600", NEVER_MS, NEVER_MS, 200).await;
    assert_eq!(job.line().await.as_deref(), Some("up"));
    let guard = Pid::from_raw(job.guard().id().unwrap().cast_signed()).unwrap();
    kill_process(guard, Signal::KILL).unwrap();
    assert_eq!(job.event().await, Event::Died);
    assert_eq!(job.line().await, None);
}

#[tokio::test]
async fn a_guard_asked_to_end_ends_the_job() {
    let mut job = Job::start(
        "trap 'echo term >&9; exit 0' TERM; echo up >&9; while :; do sleep 0.05; done",
        NEVER_MS,
        NEVER_MS,
        5_000,
    )
    .await;
    assert_eq!(job.line().await.as_deref(), Some("up"));
    let guard = Pid::from_raw(job.guard().id().unwrap().cast_signed()).unwrap();
    kill_process(guard, Signal::TERM).unwrap();
    assert_eq!(job.line().await.as_deref(), Some("term"));
    assert_eq!(job.event().await, ended(Ended::Exited(0)));
}
