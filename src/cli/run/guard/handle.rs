//! The client's end of the guard.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, getpid, kill_process_group, set_child_subreaper};
use thiserror::Error;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use super::GUARD;
use super::children::end_all;
use super::frame::{Ended, Frame};
use super::link::{Door, Link};
use crate::cli::run::terminal;
use crate::cli::run::times::Limits;

/// How long a guard may take to start, and to go away after its last word.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// Why no job was started.
#[derive(Debug, Error)]
pub enum StartError {
    /// The guard could not be started or spoken to.
    #[error("the guard process could not be started: {0}")]
    Guard(#[from] io::Error),
    /// The guard could not start the job's process.
    #[error("the job could not be started: {0}")]
    Job(io::Error),
    /// The lease was nearly over before the job could be started.
    #[error("the lease was nearly over before the job could be started")]
    TooLate,
}

/// What the guard tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The job's first process was stopped.
    Stopped {
        /// Because it wanted the terminal and had it not. Otherwise the terminal is ours again.
        asked: bool,
    },
    /// Nothing of the job is left.
    Ended {
        /// How its first process ended.
        ended: Ended,
        /// The job was ended since the lease was not renewed in time.
        unrenewed: bool,
    },
    /// The guard is gone (or not itself any more) while the job may be alive.
    Died,
}

/// A started job and its guard. Dropped, it ends the job: the guard sees the closed socket.
#[derive(Debug)]
pub struct Guard {
    process: Child,
    link: Link,
    job: Pid,
}

impl Guard {
    /// Starts `command` under a guard; `program` is this binary. Stdin, stdout, stderr and all environment but
    /// `environment` are inherited. The job gets the terminal if we are in its foreground. `lock`: a file that stays locked
    /// as long as something of the job is there.
    ///
    /// After an error the guard is gone. A job that it had begun to start is left: see [`end_descendants`].
    pub async fn start(
        program: &Path,
        command: &[OsString],
        environment: &[(&str, OsString)],
        limits: Limits,
        grace_ms: u64,
        lock: Option<&Path>,
    ) -> Result<Self, StartError> {
        let door = Door::open()?;
        let owner = terminal::owner();
        let mut process = Command::new(program)
            .arg0("tenure")
            .args([GUARD, door.name(), &owner.map_or(0, Pid::as_raw_pid).to_string()])
            .arg(lock.unwrap_or(Path::new("")))
            .args(command)
            .envs(environment.iter().map(|(name, value)| (*name, value)))
            .stdin(Stdio::inherit())
            .process_group(0)
            .spawn()?;
        match Self::order(door, &mut process, limits, grace_ms).await {
            Ok((link, job)) => {
                terminal::give_to(job);
                Ok(Self { process, link, job })
            }
            Err(error) => {
                // One that was held up would start the job yet.
                let _ended_meanwhile = process.kill().await;
                Err(error)
            }
        }
    }

    /// Lets the guard start the job.
    async fn order(door: Door, process: &mut Child, limits: Limits, grace_ms: u64) -> Result<(Link, Pid), StartError> {
        let Some(pid) = process.id() else { return Err(io::Error::other("it ended at once").into()) };
        let mut link = tokio::select! {
            link = door.admit(pid) => link?,
            status = process.wait() => return Err(io::Error::other(format!("it ended at once, {}", status?)).into()),
            () = tokio::time::sleep(START_TIMEOUT) => return Err(io::Error::from(io::ErrorKind::TimedOut).into()),
        };
        link.send(Frame::Start { limits, grace_ms }).await?;
        let answer = tokio::time::timeout(START_TIMEOUT, link.next()).await;
        let job = match answer.map_err(io::Error::from)? {
            Some(Frame::Started { pid }) => i32::try_from(pid).ok().and_then(Pid::from_raw),
            Some(Frame::Refused { errno }) => {
                return Err(StartError::Job(io::Error::from_raw_os_error(errno.cast_signed())));
            }
            Some(Frame::TooLate) => return Err(StartError::TooLate),
            _ => None,
        };
        let job = job.ok_or_else(|| io::Error::other("it ended before the job was started"))?;
        Ok((link, job))
    }

    /// The job's process group, which is the id of its first process.
    pub fn job(&self) -> Pid {
        self.job
    }

    /// The guard's process id; `None` once it was reaped.
    pub fn id(&self) -> Option<u32> {
        self.process.id()
    }

    /// The lease was renewed. If the guard cannot be told, the job ends at the old limits.
    pub async fn extend(&mut self, limits: Limits) {
        let _then_at_the_old_limits = self.link.send(Frame::Extend(limits)).await;
    }

    /// TERM now, KILL after the grace.
    pub async fn end(&mut self) {
        let _then_at_the_old_limits = self.link.send(Frame::End).await;
    }

    /// KILL now, to all of the job.
    pub async fn kill_all(&mut self) {
        self.kill();
        let _then_at_the_old_limits = self.link.send(Frame::Kill).await;
    }

    /// Kills the job's process group, past the guard: for a guard that should have done so.
    pub fn kill(&self) {
        let _ended_meanwhile = kill_process_group(self.job, Signal::KILL);
    }

    /// The next event. Nothing is lost if it is cancelled.
    pub async fn next(&mut self) -> Event {
        match self.link.next().await {
            Some(Frame::Stopped { asked }) => Event::Stopped { asked },
            Some(Frame::Ended { ended, unrenewed }) => Event::Ended { ended, unrenewed },
            _ => Event::Died,
        }
    }

    /// Reaps the guard after its last word, or ends one that went mad.
    pub async fn finish(mut self) {
        if tokio::time::timeout(START_TIMEOUT, self.process.wait()).await.is_err() {
            let _ended_meanwhile = self.process.kill().await;
        }
    }
}

/// Makes this process adopt what a killed guard leaves behind, so that [`end_descendants`] can end it.
pub fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Kills every descendant of this process and returns when none is left.
pub async fn end_descendants() -> io::Result<()> {
    let mut deaths = signal(SignalKind::child())?;
    end_all(&mut deaths).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt as _;

    use rustix::io::Errno;
    use rustix::process::test_kill_process;

    use super::*;

    #[tokio::test]
    async fn a_guard_that_says_nothing_is_gone_when_that_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let (program, pid) = (directory.path().join("guard"), directory.path().join("pid"));
        std::fs::write(&program, "#!/bin/sh\necho $$ > \"$PID\"; exec sleep 600\n").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
        let limits = Limits { term_at_ms: u64::MAX, kill_at_ms: u64::MAX };
        let environment = [("PID", pid.as_os_str().to_owned())];
        let error = loop {
            let command = ["true".into()];
            match Guard::start(&program, &command, &environment, limits, 0, None).await.unwrap_err() {
                // Another test began a process meanwhile, which has our file open until it is that program.
                StartError::Guard(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {}
                error => break error,
            }
        };
        assert!(matches!(&error, StartError::Guard(error) if error.kind() == io::ErrorKind::TimedOut), "{error}");
        let pid = std::fs::read_to_string(pid).unwrap().trim().parse().ok().and_then(Pid::from_raw).unwrap();
        assert_eq!(test_kill_process(pid), Err(Errno::SRCH));
    }
}
