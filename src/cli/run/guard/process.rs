//! The guard's own process: one thread, one loop. What it decides stands in [`super::orders`]; here it is done.
//!
//! The job's first process stays unreaped until all others are gone: its number, which is the group's, can then not be
//! given to a stranger while signals are still sent to it.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process_group, set_child_subreaper, waitid};
use tenure_cluster::FileLock;
use tokio::signal::unix::{SignalKind, signal};

use super::children::{SWEEP, end_all, reap_all_but, signal_all_but};
use super::frame::{Ended, Frame};
use super::link::Link;
use super::orders::{Due, Orders};
use super::{FAILED, JOB, refuse};
use crate::cli::run::clock::boottime_ms;
use crate::cli::run::signals::Signals;
use crate::cli::run::terminal;

/// The clock is read at least this often: a timer does not see that the machine slept.
const TICK: Duration = Duration::from_millis(200);

/// Guards `command` for the client behind `name`. `owner` is the process group that has the terminal now; `lock` is a file
/// that is kept locked until nothing of the job is left, whatever becomes of the client.
pub fn run(name: &str, owner: Option<Pid>, lock: Option<&Path>, command: &[OsString]) -> u8 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = runtime.and_then(|runtime| runtime.block_on(guard(name, owner, lock, command)));
    match outcome {
        Ok(()) => 0,
        // The client sees the closed socket and tells it; there is one who reads our stderr only if it is not there.
        Err(error) => refuse(&format!("the guard failed: {error}")),
    }
}

async fn guard(name: &str, owner: Option<Pid>, lock: Option<&Path>, command: &[OsString]) -> io::Result<()> {
    // Before the client is told that we are there: it says nothing of a job before that.
    let _until_the_end = lock.map(locked).transpose()?;
    set_child_subreaper(Some(getpid()))?;
    let mut deaths = signal(SignalKind::child())?;
    let orders_from_outside =
        [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()];
    let mut told_to_end = Signals::unless_ignored(&orders_from_outside)?;
    let _survived = Signals::unless_ignored(&harmless())?;
    let mut link = Link::connect(name)?;
    let Some(Frame::Start { limits, grace_ms }) = link.next().await else {
        return Err(io::Error::other("the client is gone"));
    };
    if boottime_ms() >= limits.term_at_ms {
        return link.send(Frame::TooLate).await;
    }
    let leader = match start(command) {
        Ok(leader) => leader,
        Err(error) => {
            let errno = error.raw_os_error().and_then(|errno| u32::try_from(errno).ok()).unwrap_or(0);
            return link.send(Frame::Refused { errno }).await;
        }
    };
    let mut job = Job { leader, owner, orders: Orders::new(limits, grace_ms), ended: None };
    let mut open = link.send(Frame::Started { pid: leader.as_raw_pid().unsigned_abs() }).await.is_ok();
    if !open {
        job.orders.orphaned();
    }
    loop {
        if let Observed::Stopped { asked } = job.observe() {
            if !asked {
                job.give_terminal_back();
            }
            open = open && link.send(Frame::Stopped { asked }).await.is_ok();
        }
        if !reap_all_but(leader) && job.ended.is_some() {
            break;
        }
        let pause = job.act();
        tokio::select! {
            frame = link.next(), if open => match frame {
                Some(Frame::Extend(limits)) => job.orders.extend(limits, boottime_ms()),
                Some(Frame::End) => job.orders.end(boottime_ms()),
                Some(Frame::Kill) => job.orders.kill(boottime_ms()),
                _ => {
                    open = false;
                    job.orders.orphaned();
                }
            },
            _ = told_to_end.next() => job.orders.end(boottime_ms()),
            _ = deaths.recv() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
    job.give_terminal_back();
    end_all(&mut deaths).await;
    let ended = job.ended.unwrap_or(Ended::Exited(FAILED));
    let unrenewed = job.orders.unrenewed();
    if open { link.send(Frame::Ended { ended, unrenewed }).await } else { Ok(()) }
}

/// The file, locked; the job does not inherit it.
fn locked(path: &Path) -> io::Result<FileLock> {
    let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    FileLock::try_of(file).map_err(|error| io::Error::other(format!("cannot lock {}: {error}", path.display())))
}

/// Signals whose default would stop or end the guard, and that nobody means for it.
fn harmless() -> [SignalKind; 6] {
    let stop_at_terminal = [20, 21, 22].map(SignalKind::from_raw);
    let [a, b, c] = stop_at_terminal;
    [a, b, c, SignalKind::user_defined1(), SignalKind::user_defined2(), SignalKind::alarm()]
}

/// Starts the job as the leader of a new process group.
fn start(command: &[OsString]) -> io::Result<Pid> {
    let guard = std::process::id().to_string();
    let child =
        Command::new("/proc/self/exe").arg0("tenure").args([JOB, &guard]).args(command).process_group(0).spawn()?;
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or_else(|| io::Error::other("no process id"))
}

enum Observed {
    Nothing,
    /// `asked`: because it wanted the terminal and had it not.
    Stopped {
        asked: bool,
    },
}

struct Job {
    leader: Pid,
    owner: Option<Pid>,
    orders: Orders,
    ended: Option<Ended>,
}

impl Job {
    /// Looks whether the first process was stopped or has ended, without reaping it.
    fn observe(&mut self) -> Observed {
        let id = WaitId::Pid(self.leader);
        if self.ended.is_none() {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            if let Ok(Some(status)) = waitid(id, options) {
                self.ended = status
                    .exit_status()
                    .map(|code| Ended::Exited(code as u8))
                    .or_else(|| status.terminating_signal().map(|signal| Ended::Signalled(signal as u8)));
            }
            if self.ended.is_some() {
                self.orders.end(boottime_ms());
                return Observed::Nothing;
            }
        }
        let stopped = waitid(WaitId::Pid(self.leader), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
        match stopped {
            Ok(Some(status)) if status.stopped() => {
                Observed::Stopped { asked: terminal::asked_for(status.stopping_signal()) }
            }
            _ => Observed::Nothing,
        }
    }

    /// Does what is due, and says how long nothing else is.
    fn act(&mut self) -> Duration {
        let now_ms = boottime_ms();
        match self.orders.due(now_ms) {
            Due::Term => {
                self.signal(Signal::TERM);
                // A stopped process takes no TERM before it goes on.
                self.signal(Signal::CONT);
                Duration::ZERO
            }
            Due::Kill => {
                self.signal(Signal::KILL);
                SWEEP
            }
            Due::Wait(until_ms) => TICK.min(Duration::from_millis(until_ms.saturating_sub(now_ms))),
        }
    }

    /// To the group, and to those that left it and came to us.
    fn signal(&self, signal: Signal) {
        let _nobody_left_in_it = kill_process_group(self.leader, signal);
        signal_all_but(Some(self.leader), signal);
    }

    fn give_terminal_back(&self) {
        if let Some(owner) = self.owner {
            terminal::take_back(self.leader, owner);
        }
    }
}
