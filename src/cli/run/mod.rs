//! `tenure run`: a command under a lease, dead before anybody else can hold the key.
//!
//! Two processes: this one acquires, renews in time (a third of the ttl, of a short one a sixth) and gives back when
//! nothing of the job is left; the [`guard`] keeps the deadline. [`times`] has the arithmetic, [`acquire`] the beginning,
//! [`supervision`] the middle, [`ending`] the end. `tenure elect` does the same again and again. A slot of a pool is come by
//! in another way ([`slot`], [`pool`], and `tenure id run`); what follows is the same ([`work`]).

use std::ffi::OsString;
use std::time::Duration;

use tenure_client::wire::reason;
use tenure_client::{Acquire, AcquireError, Client, NotHeld};
use tokio::signal::unix::SignalKind;

use super::duration;

pub mod acquire;
pub mod args;
pub mod clock;
pub mod each;
pub mod ending;
pub mod grants;
pub mod guard;
pub mod hints;
pub mod pool;
pub mod report;
pub mod signals;
pub mod slot;
pub mod supervision;
pub mod terminal;
pub mod times;
pub mod work;

use acquire::Asked;
pub use args::Args;
use args::{HoldOn, KEYS_MAX};
use ending::End;
pub use ending::{FAILED, LOST};
use guard::StartError;
use report::Report;
use signals::Signals;
use times::Plan;
use work::Work;

/// Somebody else holds the lease.
pub const NOT_ACQUIRED: u8 = 120;
/// This period's run was already.
pub const ALREADY_RAN: u8 = 121;

/// What is run, and how.
#[derive(Clone, Debug)]
pub struct Job {
    /// The leases.
    pub keys: Vec<String>,
    /// The fixed lengths.
    pub plan: Plan,
    /// How each lease is asked for.
    pub acquire: Acquire,
    /// Which runs keep the minimum hold, if one is asked for.
    pub hold_on: Option<HoldOn>,
    /// The command and its arguments.
    pub command: Vec<OsString>,
}

/// How a job came out.
#[derive(Debug)]
pub enum Came {
    /// All leases were held; the job may have run.
    To(End),
    /// This lease was not acquired.
    NotHeld(String, NotHeld),
    /// A signal ended the asking.
    Interrupted(SignalKind),
}

/// Why there is no exit status of a job.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The lengths do not fit.
    #[error(transparent)]
    Plan(#[from] times::PlanError),
    /// The keys do not.
    #[error("--key {0} is given twice")]
    Twice(String),
    /// There are too many.
    #[error("--key is given {0} times: at most {KEYS_MAX}")]
    TooMany(usize),
    /// No answer to build on.
    #[error("cannot acquire: {0}")]
    Acquire(#[from] AcquireError),
    /// Nothing can be watched.
    #[error("cannot watch: {0}")]
    Watch(#[from] tenure_client::watch::WatchError),
    /// The same of a pool.
    #[error("cannot acquire: {0}")]
    AcquireSlot(#[from] tenure_client::slot::AcquireError),
    /// The pool could not be made.
    #[error("cannot make the pool: {0}")]
    Create(tenure_client::CallError),
    /// The guard or the command did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The operating system.
    #[error("cannot take care of child processes and signals: {0}")]
    Processes(#[from] std::io::Error),
}

/// Runs the command and gives the exit status. `json`: what is said on stderr are objects.
pub async fn run(client: &Client, args: Args, json: bool) -> u8 {
    let keys = args.pool.as_ref().map_or_else(|| args.keys.clone(), |pool| vec![pool.clone()]);
    let report = Report::new("run", &keys, args.verbose, json);
    let outcome = match &args.pool {
        Some(pool) => pool::run(client, pool.clone(), args, &report).await,
        None => once(client, args, &report).await,
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            report.trouble(error);
            FAILED
        }
    }
}

async fn once(client: &Client, args: Args, report: &Report) -> Result<u8, Failure> {
    let job = Job::new(args)?;
    let mut signals = take_care()?;
    tell_wait(job.acquire.wait, report);
    Ok(match job.run(client, &mut signals, report).await? {
        Came::To(end) => end.code(),
        Came::NotHeld(key, not) => not_held(job.keys.len() > 1, &key, &not, report),
        Came::Interrupted(signal) => guard::frame::Ended::by(signal).code(),
    })
}

/// Says how long is waited.
pub fn tell_wait(wait: Duration, report: &Report) {
    if !wait.is_zero() {
        report.change(format_args!("waiting for at most {}", duration::shown(duration::millis(wait))));
    }
}

/// Orphans of the job become ours, and what would end this process ends the job first.
pub fn take_care() -> std::io::Result<Signals> {
    guard::adopt_orphans()?;
    Signals::unless_ignored(&[SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()])
}

impl Job {
    /// As the command line has it.
    fn new(args: Args) -> Result<Self, Failure> {
        let plan = Plan::new(args.ttl, args.grace, args.on_lost)?;
        if args.keys.len() > KEYS_MAX {
            return Err(Failure::TooMany(args.keys.len()));
        }
        if let Some(key) =
            args.keys.iter().enumerate().find_map(|(at, key)| args.keys[..at].contains(key).then_some(key))
        {
            return Err(Failure::Twice(key.clone()));
        }
        let acquire = Acquire {
            owner: args.owner,
            ttl_ms: plan.ttl_ms,
            note: args.note,
            min_hold_ms: args.min_hold.map(duration::millis),
            wait: args.wait,
            ..Acquire::default()
        };
        let hold_on = args.min_hold.filter(|hold| *hold > Duration::ZERO).map(|_| args.min_hold_on);
        Ok(Self { keys: args.keys, plan, acquire, hold_on, command: args.command })
    }

    /// Acquires, runs, gives back.
    pub async fn run(&self, client: &Client, signals: &mut Signals, report: &Report) -> Result<Came, Failure> {
        let (grants, schedule) = match acquire::ask(client, &self.keys, &self.acquire, self.plan, signals).await? {
            Asked::Held(grants, schedule) => (grants, schedule),
            Asked::NotHeld(key, not) => return Ok(Came::NotHeld(key, not)),
            Asked::Interrupted(signal) => return Ok(Came::Interrupted(signal)),
        };
        let work = Work { command: &self.command, grace_ms: self.plan.grace_ms, hold_on: self.hold_on, lock: None };
        let end = work.under(client, &grants, schedule, signals, report).await?;
        Ok(Came::To(end))
    }
}

/// The exit status of a refusal. Said only if asked: in a fleet it is the normal course for all hosts but one.
fn not_held(several: bool, key: &str, not: &NotHeld, report: &Report) -> u8 {
    let which = if several { format!("{key}: ") } else { String::new() };
    if [reason::MIN_HOLD, reason::TOKEN_USED].contains(&not.reason.as_str()) {
        let next = not.retry_after_ms.map(|ms| format!(", next in {}", duration::shown(ms))).unwrap_or_default();
        report.change(format_args!("{which}already ran in this period{next}"));
        return ALREADY_RAN;
    }
    report.change(format_args!("{which}{not}"));
    NOT_ACQUIRED
}
