//! The terminal of a job in the foreground.
//!
//! The job has a process group of its own, so it must be made the terminal's foreground group to read from it and to get
//! Ctrl-C, and the terminal must come back when it ends or is stopped (Ctrl-Z). Giving is done by the client, which is in
//! the foreground then. Taking back is done by the guard: a background process that asks is stopped by SIGTTOU, so the
//! guard joins the job's group for the moment of asking.
//!
//! A stopped job stops `run` too, as a shell expects of a job; it is not renewed then and ends with its lease. Not one
//! that was stopped because it asked for the terminal before it was given: by the time that is seen it may have it, so the
//! signal tells the two apart, and it is only woken.

use std::io::{self, stdin};
use std::time::Duration;

use rustix::process::{Pid, Signal, getpgrp, getpid, kill_process, kill_process_group, setpgid};
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use tokio::signal::unix::{SignalKind, signal};

/// A process that stops itself is surely stopped after this.
const STOP_TAKES: Duration = Duration::from_millis(200);

/// Our own process group, if stdin is our terminal: who gets it back.
pub fn owner() -> Option<Pid> {
    tcgetpgrp(stdin()).ok().map(|_foreground| getpgrp())
}

/// Makes the job the foreground group, if we are it now; and wakes it, since it may have asked too early.
pub fn give_to(job: Pid) {
    if tcgetpgrp(stdin()).is_ok_and(|group| group == getpgrp()) {
        let _closed_meanwhile = tcsetpgrp(stdin(), job);
        wake(job);
    }
}

/// Whether `signal` stops only who wants the terminal and has it not.
pub fn asked_for(signal: Option<i32>) -> bool {
    signal.is_some_and(|signal| signal == Signal::TTIN.as_raw() || signal == Signal::TTOU.as_raw())
}

/// In the client, when the job was stopped: stops us too, and both go on together. If it only `asked` for the terminal it
/// gets that from us, or was given it since. Without a terminal nothing happens.
pub async fn follow_stopped(job: Pid, asked: bool) -> io::Result<()> {
    let Some(own) = owner() else { return Ok(()) };
    let ours_to_give = tcgetpgrp(stdin()).is_ok_and(|group| group == own || group == job);
    if !(asked && ours_to_give) {
        let mut continued = signal(SignalKind::from_raw(Signal::CONT.as_raw()))?;
        kill_process(getpid(), Signal::TSTP)?;
        // Where no shell is there to continue us, the kernel does not stop us either: then the job just goes on.
        let _continued_or_never_stopped = tokio::time::timeout(STOP_TAKES, continued.recv()).await;
    }
    give_to(job);
    wake(job);
    Ok(())
}

/// In the guard: gives the terminal back to `owner` if the job, of which at least an unreaped process is left, has it.
pub fn take_back(job: Pid, owner: Pid) {
    if tcgetpgrp(stdin()).is_ok_and(|group| group == job) && setpgid(None, Some(job)).is_ok() {
        let _closed_meanwhile = tcsetpgrp(stdin(), owner);
        let _never_fails_for_a_group_of_our_own = setpgid(None, None);
    }
}

fn wake(job: Pid) {
    let _ended_meanwhile = kill_process_group(job, Signal::CONT);
}
