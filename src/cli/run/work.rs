//! A command under what is held: started, watched over, and what is held given back.

use std::ffi::OsString;
use std::path::Path;

use tenure_client::{CallError, Client};

use super::args::HoldOn;
use super::ending::{End, give_back};
use super::grants::Grants;
use super::guard::{Guard, StartError, end_descendants};
use super::report::Report;
use super::signals::Signals;
use super::supervision::{Outcome, Supervision};
use super::times::Schedule;

/// What is to be done under grants.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// The command and its arguments.
    pub command: &'a [OsString],
    /// From TERM to KILL.
    pub grace_ms: u64,
    /// Which runs keep the minimum hold, if one was asked for.
    pub hold_on: Option<HoldOn>,
    /// A file that the guard keeps locked while anything of the job is there.
    pub lock: Option<&'a Path>,
}

/// What became of a command. What it was under is held yet.
#[derive(Debug)]
pub struct Ran {
    outcome: Result<End, StartError>,
    deadline_ms: u64,
}

impl Work<'_> {
    /// Runs the command and gives the grants back.
    pub async fn under(
        &self,
        client: &Client,
        grants: &Grants,
        schedule: Schedule,
        signals: &mut Signals,
        report: &Report,
    ) -> Result<End, StartError> {
        let ran = self.run(client, grants, schedule, signals, report).await;
        let _else_it_ends_by_itself = ran.give_back(client, grants, self.hold_on, signals, report).await;
        ran.end(report)
    }

    /// Runs the command.
    pub async fn run(
        &self,
        client: &Client,
        grants: &Grants,
        schedule: Schedule,
        signals: &mut Signals,
        report: &Report,
    ) -> Ran {
        report.change(format_args!("acquired, {}", grants.fences()));
        match self.start(grants, &schedule).await {
            Ok(guard) => {
                let supervision = Supervision::new(client, grants, schedule, guard, report.clone());
                let (outcome, deadline_ms) = supervision.run(signals).await;
                Ran { outcome: Ok(End::Ran(outcome)), deadline_ms }
            }
            Err(error) => Ran { outcome: Err(error), deadline_ms: schedule.deadline_ms() },
        }
    }

    async fn start(&self, grants: &Grants, schedule: &Schedule) -> Result<Guard, StartError> {
        let program = Path::new("/proc/self/exe");
        let limits = schedule.limits();
        let guard = Guard::start(program, self.command, &grants.environment(), limits, self.grace_ms, self.lock).await;
        if guard.is_err() {
            // What a guard left that was held up must not outlive the grant, which is given back next.
            end_descendants().await?;
        }
        guard
    }
}

impl Ran {
    /// Gives the grants back.
    pub async fn give_back(
        &self,
        client: &Client,
        grants: &Grants,
        hold_on: Option<HoldOn>,
        signals: &mut Signals,
        report: &Report,
    ) -> Result<(), CallError> {
        let end = self.outcome.as_ref().unwrap_or(&End::NotStarted);
        give_back(client, grants, end, hold_on, self.deadline_ms, signals, report).await
    }

    /// How it ended.
    pub fn end(self, report: &Report) -> Result<End, StartError> {
        match self.outcome {
            Err(error @ StartError::TooLate) => {
                report.trouble(error);
                Ok(End::Ran(Outcome::Lost { detail: None }))
            }
            outcome => outcome,
        }
    }
}
