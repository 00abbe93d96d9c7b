//! `tenure run`: a command under a lease, dead before anybody else can hold the key.
//!
//! Two processes: this one acquires, renews in time (a third of the ttl, of a short one a sixth) and RELEASEs when
//! nothing of the job is left; the [`guard`] keeps the deadline. [`times`] has the arithmetic, [`acquire`] the beginning, [`supervision`] the middle.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Duration;

use tenure_client::wire::reason;
use tenure_client::{Acquire, AcquireError, Client, Grant, NotHeld};
use tokio::signal::unix::SignalKind;

use super::duration;

pub mod acquire;
pub mod clock;
pub mod guard;
pub mod report;
pub mod signals;
pub mod supervision;
pub mod terminal;
pub mod times;

use acquire::{Asked, give_back};
use guard::Guard;
use report::Report;
use signals::Signals;
use supervision::{Outcome, Supervision};
use times::{Plan, Schedule};

/// Somebody else holds the lease.
pub const NOT_ACQUIRED: u8 = 120;
/// This period's run was already.
pub const ALREADY_RAN: u8 = 121;
/// The lease was lost or broken while the job ran; the job was ended.
pub const LOST: u8 = 122;
/// Our own failure: bad arguments, no answer from the server, no process.
pub const FAILED: u8 = 125;

/// How long the RELEASE at the end may take: if it fails the lease ends by itself.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);

/// Run a command under a lease: once in the whole fleet, and dead before anybody else can hold the key
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The lease; made if it does not exist
    #[arg(long)]
    pub key: String,
    /// How long the lease lives without renewal, with a unit; renewed each third of it, below 15s each sixth
    #[arg(long, default_value = "30s", value_parser = duration::parse)]
    pub ttl: Duration,
    /// How long to go on asking while somebody else holds it, with a unit [default: ask once]
    #[arg(long, default_value = "0s", hide_default_value = true, value_parser = duration::parse)]
    pub wait: Duration,
    /// From TERM to KILL, with a unit; at most half of the ttl [default: 10s, at most a quarter of the ttl]
    #[arg(long, value_parser = duration::parse)]
    pub grace: Option<Duration>,
    /// Who holds, for operators [default: host:pid]
    #[arg(long)]
    pub owner: Option<String>,
    /// Free text for operators
    #[arg(long)]
    pub note: Option<String>,
    /// Once a period: after a run that ended by itself nobody can acquire the key until so long after it began, with a unit
    #[arg(long, value_parser = duration::parse)]
    pub min_hold: Option<Duration>,
    /// Say each change on stderr, not only losses and failures
    #[arg(short, long)]
    pub verbose: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

const HELP: &str = "\
The command gets TENURE_KEY, TENURE_TOKEN and TENURE_FENCE in its environment. It runs in a process group of its own.

Without a renewal in time it gets TERM, and KILL before the lease can be anybody else's. KILL goes to all that descends \
from it. What its first process leaves behind when it ends gets TERM, after the grace KILL. The lease is given back when \
nothing is left. SIGTERM, SIGINT and SIGHUP end the command first.

An outage that the job survives, with the default grace: with --ttl 6s nearly 3 s, with 10s nearly 5 s, with 30s 10 s. A \
cluster whose leader falls silent takes about 3 s to go on: below 10s is tight.

It holds when the network, the server, or `tenure run` itself dies (kill -9 too). A whole host that stops cannot be \
covered: that is what the fence is for. Let the resource refuse a fence lower than one it has seen.

Exit status:
  the command's, or 128 + the signal that ended it
  120  not acquired: somebody else holds the lease
  121  already ran in this period (--min-hold)
  122  the lease was lost or broken, the command was ended
  125  tenure itself failed
  126  the command cannot be run
  127  no such command";

/// Runs the command and gives the exit status.
pub async fn run(client: &Client, args: Args) -> u8 {
    let report = Report::new(&args.key, args.verbose);
    match guarded(client, &args, &report).await {
        Ok(code) => code,
        Err(error) => {
            report.trouble(error);
            FAILED
        }
    }
}

/// Why there is no exit status of a job.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Plan(#[from] times::PlanError),
    #[error("cannot acquire: {0}")]
    Acquire(#[from] AcquireError),
    #[error(transparent)]
    Start(#[from] guard::StartError),
    #[error("cannot take care of child processes and signals: {0}")]
    Processes(#[from] std::io::Error),
}

async fn guarded(client: &Client, args: &Args, report: &Report) -> Result<u8, Failure> {
    let plan = Plan::new(args.ttl, args.grace)?;
    guard::adopt_orphans()?;
    let ending = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
    let mut signals = Signals::unless_ignored(&ending)?;
    let acquire = Acquire {
        owner: args.owner.clone(),
        ttl_ms: plan.ttl_ms,
        note: args.note.clone(),
        min_hold_ms: args.min_hold.map(duration::millis),
        wait: args.wait,
        ..Acquire::default()
    };
    let (grant, schedule) = match acquire::ask(client, &args.key, acquire, plan, &mut signals).await? {
        Asked::Held(grant, schedule) => (grant, schedule),
        Asked::NotHeld(not) => return Ok(not_held(&not, report)),
        Asked::Interrupted(signal) => return Ok(guard::frame::Ended::by(signal).code()),
    };
    report.change(format_args!("acquired, fence {}", grant.fence));
    let outcome = match start(args, plan, &grant, &schedule).await {
        Ok(guard) => {
            let supervision = Supervision::new(client, &grant, schedule, guard, report.clone());
            Ok(supervision.run(&mut signals).await)
        }
        Err(guard::StartError::TooLate) => {
            report.trouble(guard::StartError::TooLate);
            Ok(Outcome::Lost { by_server: false })
        }
        Err(error) => Err(error),
    };
    if !matches!(outcome, Ok(Outcome::Lost { by_server: true })) {
        release(client, &grant, report).await;
    }
    Ok(match outcome? {
        Outcome::Ended(ended) => ended.code(),
        Outcome::Lost { .. } => LOST,
        Outcome::GuardDied => FAILED,
    })
}

async fn start(args: &Args, plan: Plan, grant: &Grant, schedule: &Schedule) -> Result<Guard, guard::StartError> {
    let fence = grant.fence.to_string();
    let environment = [
        ("TENURE_KEY", OsStr::new(&grant.key)),
        ("TENURE_TOKEN", OsStr::new(grant.token.expose())),
        ("TENURE_FENCE", OsStr::new(&fence)),
    ];
    let program = Path::new("/proc/self/exe");
    Guard::start(program, &args.command, &environment, schedule.limits(), plan.grace_ms).await
}

/// The exit status of a refusal. Said only if asked: in a fleet it is the normal course for all hosts but one.
fn not_held(not: &NotHeld, report: &Report) -> u8 {
    if [reason::MIN_HOLD, reason::TOKEN_USED].contains(&not.reason.as_str()) {
        let next = not.retry_after_ms.map(|ms| format!(", next in {ms} ms")).unwrap_or_default();
        report.change(format_args!("already ran in this period{next}"));
        return ALREADY_RAN;
    }
    report.change(not);
    NOT_ACQUIRED
}

async fn release(client: &Client, grant: &Grant, report: &Report) {
    if give_back(client, &grant.key, &grant.token, Some(grant.fence), RELEASE_TIMEOUT).await {
        report.change("released");
    } else {
        report.change("not released: the lease ends by itself if it has not already");
    }
}
