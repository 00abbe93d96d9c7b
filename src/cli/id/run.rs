//! `tenure id run`: a command with a machine ID, ended before anybody else can have the id.
//!
//! As `tenure run` in all but how the grant is come by: the identity's state file stays locked while this process lives,
//! and its second lock while anything of the job does, so that one identity's commands never overlap on a host.

use std::ffi::OsString;
use std::time::Duration;

use tenure_client::Client;
use thiserror::Error;
use tokio::time::Instant;

use super::super::duration;
use super::super::failure::Failure;
use super::super::run::guard::StartError;
use super::super::run::guard::frame::Ended;
use super::super::run::report::Report;
use super::super::run::signals::Signals;
use super::super::run::slot::held;
use super::super::run::times::{OnLost, Plan, PlanError};
use super::super::run::work::Work;
use super::super::run::{FAILED, NOT_ACQUIRED, take_care, tell_wait};
use super::identity::IdentityArgs;
use super::state::{StateError, StateFile};
use super::take::{TakeError, Taken, Wish, forget, leave, leaves, not_left, take};

/// How often it is looked whether an earlier job is gone.
const LOOK: Duration = Duration::from_millis(20);
/// Beyond an earlier job's ttl, and where that is not known.
const PATIENCE: Duration = Duration::from_secs(30);

/// Run a command with a machine ID, and end it before anybody else can have the id
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The pool
    #[arg(long)]
    pool: String,
    #[command(flatten)]
    who: IdentityArgs,
    /// How long the id lives without renewal, with a unit; renewed each third of it. A pool raises what is below its least
    /// (30s by default)
    #[arg(long, default_value = "30s", value_parser = duration::parse)]
    ttl: Duration,
    /// How long to wait for an id while all are held, or another process has this identity, with a unit [default: do
    /// not wait]
    #[arg(long, default_value = "0s", hide_default_value = true, value_parser = duration::parse)]
    wait: Duration,
    /// From TERM to KILL, with a unit; at most half of the ttl [default: 10s, at most a quarter of the ttl]
    #[arg(long, value_parser = duration::parse)]
    grace: Option<Duration>,
    /// What a lost id does to the command: TERM and after the grace KILL, or KILL at once
    #[arg(long, value_enum, default_value_t = OnLost::Term, value_name = "WHAT")]
    on_lost: OnLost,
    /// Not this id: another process seems to use it. It is kept back from everybody for a while
    #[arg(long, value_name = "ID")]
    avoid: Option<u32>,
    /// Free text for operators
    #[arg(long)]
    note: Option<String>,
    /// Say each change on stderr, not only losses and failures; with --json each line is an object
    #[arg(short, long)]
    verbose: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const HELP: &str = "\
The command gets TENURE_MACHINE_ID in its environment, and TENURE_KEY (the pool), TENURE_TOKEN and TENURE_FENCE. It is \
watched over as by `tenure run`: see there for signals, the terminal and what cannot be covered.

Who it is: --identity; else $POD_NAME (with $POD_NAMESPACE before it if that is set); else host name, user and --slot, 0 if \
none is given. Where nothing sure is known (a host name that many have, a pod without POD_NAME) nothing is guessed.

The state file keeps the token: a restart, also after kill -9 or of the host, goes on with the same id at once, while that \
is its own. It is locked while this process lives or anything of its command; a second process of one host needs another \
--slot. A restart waits until what is left of the earlier command is gone.

The id is given back when the command has ended. Its clock is compared with that of an id's earlier holders: up to 2s \
behind is waited out, more is refused.

Exit status:
  the command's, or 128 + the signal that ended it (or ended the wait)
  120  no id: all are held, or another process has this identity
  122  the id was lost, broken or taken over, the command was ended
  125  tenure itself failed; also: not known who this is, the state file is in use, the clock is behind
  126  the command cannot be run
  127  no such command";

/// Why there is no exit status of a job.
#[derive(Debug, Error)]
enum RunError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error("{0}")]
    Asker(String),
    #[error("{0}")]
    Take(#[from] TakeError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("cannot take care of child processes and signals: {0}")]
    Processes(#[from] std::io::Error),
}

impl From<StateError> for RunError {
    fn from(error: StateError) -> Self {
        Self::Take(error.into())
    }
}

/// Runs the command and gives the exit status. `json`: what is said on stderr are objects.
pub async fn run(client: &Client, args: Args, json: bool) -> u8 {
    let report = Report::new("id run", std::slice::from_ref(&args.pool), args.verbose, json);
    match once(client, args, &report).await {
        Ok(code) => code,
        Err(error) => {
            report.trouble(error);
            FAILED
        }
    }
}

async fn once(client: &Client, args: Args, report: &Report) -> Result<u8, RunError> {
    // The pool may raise the ttl, which makes nothing worse.
    Plan::new(args.ttl, args.grace, args.on_lost)?;
    let mut state = super::state_file(&args.pool, &args.who).map_err(|failure| RunError::Asker(text(&failure)))?;
    let mut signals = take_care()?;
    if let Some(code) = await_earlier_job(&state, &mut signals, report).await? {
        return Ok(code);
    }
    tell_wait(args.wait, report);
    let wish = Wish { ttl_ms: duration::millis(args.ttl), wait: args.wait, note: args.note.clone(), avoid: args.avoid };
    let tell = |line: &str| report.trouble(line);
    let taken = tokio::select! {
        taken = take(client, &mut state, &wish, &tell) => Ok(taken?),
        signal = signals.next() => Err(Ended::by(signal).code()),
    };
    let grant = match taken {
        Ok(Taken::Held(grant)) => grant,
        Ok(Taken::Refused(refusal)) => {
            report.trouble(refusal);
            return Ok(NOT_ACQUIRED);
        }
        Err(code) => {
            leave(client, &mut state).await;
            return Ok(code);
        }
    };
    if grant.yours {
        report.change("held from the last start on");
    }
    let (grants, schedule) = held(*grant, args.grace, args.on_lost)?;
    let (grace_ms, lock) = (schedule.plan().grace_ms, state.job_lock());
    let work = Work { command: &args.command, grace_ms, hold_on: None, lock: Some(&lock) };
    let ran = work.run(client, &grants, schedule, &mut signals, report).await;
    let before = leaves(&mut state);
    match ran.give_back(client, &grants, None, &mut signals, report).await {
        Ok(()) => forget(&mut state),
        Err(error) => not_left(&mut state, before, &error),
    }
    Ok(ran.end(report)?.code())
}

/// A client that was killed leaves its job to the guard, which ends it by the deadline. The exit status, if a signal comes
/// first.
async fn await_earlier_job(
    state: &StateFile,
    signals: &mut Signals,
    report: &Report,
) -> Result<Option<u8>, StateError> {
    if !state.job_is_alive()? {
        return Ok(None);
    }
    report.trouble("the command of an earlier run is still being ended: waiting for that");
    let ttl = Duration::from_millis(state.remembered.ttl_ms.unwrap_or(0));
    let until = Instant::now() + ttl + PATIENCE;
    while state.job_is_alive()? {
        if Instant::now() >= until {
            return Err(StateError::JobAlive { path: state.path().to_owned() });
        }
        tokio::select! {
            signal = signals.next() => return Ok(Some(Ended::by(signal).code())),
            () = tokio::time::sleep(LOOK) => {}
        }
    }
    Ok(None)
}

fn text(failure: &Failure) -> String {
    failure.explain().0
}
