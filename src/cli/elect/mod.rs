//! `tenure elect`: one leader of many, for as long as it lives; the next in line when it ends.
//!
//! A leader is the holder of a lease. With a command it is `tenure run` again and again: whoever loses the lease has its
//! command ended, and stands in line anew. Without one it only holds ([`hold`]), and says on stdout since when and until
//! when. `--observe` holds nothing and tells who leads ([`observe`]).

use std::ffi::OsString;
use std::time::Duration;

use tenure_client::Acquire;
use tenure_client::wire::WAIT_MS_MAX;

use super::Session;
use super::duration;
use super::run::ending::End;
use super::run::guard::frame::Ended;
use super::run::report::Report;
use super::run::signals::Signals;
use super::run::supervision::Outcome;
use super::run::times::{OnLost, Plan};
use super::run::{self, Came, FAILED, Job, NOT_ACQUIRED};

mod hold;
mod observe;

/// Before standing in line again: what ended the last time may do so at once.
const PAUSE: Duration = Duration::from_secs(1);

/// Campaign for a key and hold it; with a command run it while leading
///
/// Waits in line, first come first served, without an end unless --wait gives one. With a command: runs it as
/// `tenure run` does. If the lease is lost the command is ended and the campaign goes on; if the command ends, the lease
/// is given back. Without one: holds until a signal, and prints a line when it is elected and when it has lost.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The key; made if it does not exist
    key: String,
    /// Hold nothing: print each leader, as they come and go
    #[arg(long, conflicts_with_all = ["command", "wait", "owner", "note", "grace"])]
    observe: bool,
    /// How long the lease lives without renewal, with a unit
    #[arg(long, default_value = "30s", value_parser = duration::parse)]
    ttl: Duration,
    /// How long to wait in line, with a unit [default: for ever]
    #[arg(long, value_parser = duration::parse)]
    wait: Option<Duration>,
    /// Who leads, for operators and observers [default: host:pid]
    #[arg(long)]
    owner: Option<String>,
    /// Free text for operators
    #[arg(long)]
    note: Option<String>,
    /// From TERM to KILL, with a unit; at most half of the ttl [default: 10s, at most a quarter of the ttl]
    #[arg(long, value_parser = duration::parse)]
    grace: Option<Duration>,
    /// What a lost lease does to the command: TERM and after the grace KILL, or KILL at once
    #[arg(long, value_enum, default_value_t = OnLost::Term, value_name = "WHAT")]
    on_lost: OnLost,
    /// Say each change on stderr, not only losses and failures
    #[arg(short, long)]
    verbose: bool,
    /// The command and its arguments, run while leading
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const HELP: &str = "\
Exit status:
  with a command: as of `tenure run`, but a lost lease is no end
  0    without one: stopped by a signal while it led; with --observe: by a signal, or nobody reads any more
  120  not elected within --wait
  125  tenure itself failed
  128 + the signal that ended the wait";

/// Gives the exit status.
pub async fn run(session: &Session, args: Args) -> u8 {
    let keys = [args.key.clone()];
    let report = Report::new("elect", &keys, args.verbose, session.json);
    let outcome = match (args.observe, args.command.is_empty()) {
        (true, _) => observe::run(session, &args.key, &report).await,
        (false, true) => hold::run(session, args, &report).await,
        (false, false) => lead(session, args, &report).await,
    };
    match outcome {
        Ok(code) => code,
        Err(trouble) => {
            report.trouble(trouble);
            FAILED
        }
    }
}

/// How the lease is asked for, for at most `wait`.
fn acquire(args: &Args, wait: Duration) -> Acquire {
    Acquire {
        owner: args.owner.clone(),
        note: args.note.clone(),
        ttl_ms: duration::millis(args.ttl),
        wait,
        ..Acquire::default()
    }
}

/// For one stand in line; the greatest that a node accepts, if there is to be no end.
fn wait(args: &Args) -> Duration {
    args.wait.unwrap_or(Duration::from_millis(WAIT_MS_MAX))
}

/// Runs the command whenever it leads, until the command ends by itself.
async fn lead(session: &Session, args: Args, report: &Report) -> Result<u8, run::Failure> {
    let plan = Plan::new(args.ttl, args.grace, args.on_lost)?;
    let mut signals = run::take_care()?;
    let (wait, ends) = (wait(&args), args.wait.is_some());
    let acquire = acquire(&args, wait);
    let job = Job { keys: vec![args.key], plan, acquire, hold_on: None, command: args.command };
    loop {
        report.change("campaigning");
        match job.run(&session.client, &mut signals, report).await? {
            // A signal that came while the job was being ended is meant for the campaign too.
            Came::To(End::Ran(Outcome::Lost { .. })) if !signals.told() => {}
            Came::To(end) => return Ok(end.code()),
            Came::Interrupted(signal) => return Ok(Ended::by(signal).code()),
            Came::NotHeld(_, not) => {
                report.change(not);
                if ends {
                    return Ok(NOT_ACQUIRED);
                }
            }
        }
        if let Some(code) = pause(&mut signals).await {
            return Ok(code);
        }
    }
}

/// The exit status, if a signal comes meanwhile.
async fn pause(signals: &mut Signals) -> Option<u8> {
    tokio::select! {
        signal = signals.next() => Some(Ended::by(signal).code()),
        () = tokio::time::sleep(PAUSE) => None,
    }
}
