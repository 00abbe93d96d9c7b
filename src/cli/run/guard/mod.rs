//! The guard of a job: a process without network that ends the job before its lease does.
//!
//! ```text
//! tenure run (client) ──socket──> guard ──forks──> job (leader of its own process group)
//!   acquires, renews               KILLs at a deadline that the client extends
//! ```
//! The guard is the same binary, started again as `tenure __guard`; it stands in a process group of its own, is the
//! subreaper of all that descends from the job, and starts the job through `tenure __job`, which asks the kernel to be
//! killed with the guard and then becomes the job.
//!
//! What ends a job in time:
//! - no renewal: TERM at `term_at`, KILL at `kill_at`, by the guard's own clock, whatever the client does or does not;
//! - the client is killed (also by KILL) or stops: the same; a closed socket is TERM at once;
//! - the guard is killed: the kernel kills the job's first process, and the client, which is a subreaper too, all the rest;
//! - the guard is stopped: the client kills the job's process group at `kill_at`.
//!
//! "Job" is every descendant: members of the group, and those that left it (`setsid`), which the guard adopts when their
//! parent ends. A job ends when its first process has ended; what that leaves behind gets TERM, after the grace KILL, and
//! only when nothing is left the client is told so and may RELEASE.
//!
//! Not covered: client and guard killed both, by KILL at the same time (then only the first process is sure to die), work
//! that the job had done by others (a daemon, another host), set-user-ID descendants, processes stuck in the kernel, and a
//! host that stops as a whole. That is what the fence is for.

pub mod frame;
pub mod link;

mod children;
mod handle;
mod orders;
mod process;

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

pub use handle::{Event, Guard, StartError, adopt_orphans, end_descendants};

/// First argument of the guard: then the socket's name, the terminal's owner (a process group or 0), the file that it keeps
/// locked (empty: none), the command.
const GUARD: &str = "__guard";
/// First argument of what becomes the job: then the guard's process id, the command.
const JOB: &str = "__job";

/// Exit codes that `run` and env(1) share, and our own failure.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;
const FAILED: u8 = 125;

/// If these arguments (the program's name first) are those of a guard or of a job about to start: does that and gives the
/// exit code. To be asked before anything else is done by the process: the guard needs no runtime and no threads.
pub fn reentry(mut arguments: impl Iterator<Item = OsString>) -> Option<u8> {
    let role = arguments.nth(1)?;
    if role == GUARD {
        let name = arguments.next().and_then(|name| name.into_string().ok());
        let owner = number(arguments.next());
        let lock = arguments.next().filter(|path| !path.is_empty());
        let command: Vec<OsString> = arguments.collect();
        return Some(match (name, owner) {
            (Some(name), Some(owner)) => {
                process::run(&name, Pid::from_raw(owner), lock.as_deref().map(Path::new), &command)
            }
            _ => refuse("`__guard` is started by `tenure run` only"),
        });
    }
    if role == JOB {
        let guard = number(arguments.next()).and_then(Pid::from_raw);
        let command: Vec<OsString> = arguments.collect();
        return Some(become_job(guard, &command));
    }
    None
}

/// Becomes the command. Comes back only with the exit code that env(1) has for the failure.
fn become_job(guard: Option<Pid>, command: &[OsString]) -> u8 {
    let Some((program, arguments)) = command.split_first() else {
        return refuse("`__job` is started by `tenure run` only");
    };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return refuse(&format!("the job cannot be bound to its guard: {error}"));
    }
    // The guard may have died before the line above: then nobody guards this job.
    if guard.is_none() || getppid() != guard {
        return refuse("the job's guard is gone before the job has started");
    }
    let error = Command::new(program).args(arguments).exec();
    refuse(&format!("cannot run {}: {error}", program.display()));
    if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE }
}

fn number(argument: Option<OsString>) -> Option<i32> {
    argument?.to_str()?.parse().ok()
}

fn refuse(message: &str) -> u8 {
    let _no_stderr = writeln!(std::io::stderr(), "tenure run: {message}");
    FAILED
}
