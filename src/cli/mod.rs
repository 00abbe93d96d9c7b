//! The command line: one file per command, each with its `Args` and a `run` that gives the exit code.
//!
//! # Exit codes
//! Raw commands (`CREATE`, `OP`, …) exit 0 whenever they were answered, also with false. The friendly ones exit 0 when
//! what was asked for is so, 1 when it is not. All: 1 refused with an error, 2 usage, 3 unavailable (nothing happened),
//! 4 outcome unknown. `serve`, `dev`, `run` and `elect` have codes of their own.
//!
//! To add a command: its file, a line in [`Command`] (or [`Ask`]), a line in [`dispatch`] (or [`ask`]).

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tenure_client::wire::Answer;
use tenure_client::{Client, Uri};

mod acquire;
mod argv;
mod bench;
mod breaking;
mod check;
mod completions;
mod dev;
mod duration;
mod elect;
mod failure;
mod get;
mod grant_args;
mod id;
mod logging;
mod ls;
mod output;
mod raw;
mod release;
mod renew;
mod replace;
pub mod run;
mod serve;
mod service_manager;
mod status;
mod table;
mod watch;

use failure::Failure;

/// What was asked for is so; a raw command was answered.
const DONE: u8 = 0;
/// It is not so.
const NOT_SO: u8 = 1;

#[derive(Debug, Parser)]
#[command(name = "tenure", version, about = ABOUT, after_help = HELP, disable_help_subcommand = true)]
#[command(subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: Command,
}

const ABOUT: &str =
    "A strongly consistent lease store: locks for jobs that must run once, with fencing numbers; and machine IDs";

const HELP: &str = "\
Commands in capitals are the command protocol, word by word:
  tenure -uri tenure://127.0.0.1:13378 CREATE '{\"key\":\"example:lease\",\"type\":\"lease\",\"options\":{}}'

Exit status:
  0  raw commands: answered, also with false. Others: it is so
  1  refused with an error. Others also: it is not so (not acquired, not held, no such key)
  2  usage     3  unavailable: nothing happened     4  outcome unknown: it may have taken effect";

#[derive(Debug, clap::Args)]
struct Globals {
    /// Where the nodes are; -uri does as well
    #[arg(long, global = true, env = "TENURE_URI", default_value = "tenure://127.0.0.1:13378")]
    uri: String,
    /// Print JSON: of a raw command the whole answer
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Serve),
    Dev(dev::Dev),
    Run(run::Args),
    Elect(elect::Args),
    /// Machine IDs: numbers of a pool, each held by one process at a time
    #[command(subcommand)]
    Id(id::Command),
    Bench(bench::Args),
    #[command(flatten)]
    Ask(Ask),
    Status(status::Args),
    /// The cluster as a whole
    #[command(subcommand)]
    Cluster(ClusterCommand),
    Completions(completions::Args),
}

/// `tenure cluster …`.
#[derive(Debug, Subcommand)]
enum ClusterCommand {
    Status(status::Args),
    Replace(replace::Args),
}

/// Commands that ask the cluster.
#[derive(Debug, Subcommand)]
enum Ask {
    Acquire(acquire::Args),
    Renew(renew::Args),
    Release(release::Args),
    Get(get::Args),
    Ls(ls::Args),
    Break(breaking::Args),
    Watch(watch::Args),
    Check(check::Args),
    #[command(flatten)]
    Raw(raw::Command),
}

impl Command {
    /// What asks waits for one socket: one thread does.
    const fn needs_threads(&self) -> bool {
        match self {
            Command::Id(command) => matches!(command, id::Command::Run(_)),
            Command::Ask(_) | Command::Status(_) | Command::Cluster(_) | Command::Completions(_) => false,
            _ => true,
        }
    }
}

/// Parses, runs, and gives the exit code. Not generic, so that all of it is compiled once, in this library.
pub fn main(argv: Vec<OsString>) -> ExitCode {
    // Before anything else: the guard of `run` wants no threads.
    if let Some(code) = run::guard::reentry(argv.iter().cloned()) {
        return code.into();
    }
    let argv = argv::with_long_uri(argv);
    let is_run = argv::has_foreign_status(&argv);
    let Cli { globals, command } = match Cli::try_parse_from(&argv) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version come here too, with code 0. Nobody may be reading.
            let _closed = error.print();
            return match error.exit_code() {
                0 => ExitCode::SUCCESS,
                // 2 may be the job's own.
                _ if is_run => run::FAILED.into(),
                _ => failure::USAGE.into(),
            };
        }
    };
    let mut runtime = match command.needs_threads() {
        true => tokio::runtime::Builder::new_multi_thread(),
        false => tokio::runtime::Builder::new_current_thread(),
    };
    match runtime.enable_all().build() {
        Ok(runtime) => runtime.block_on(dispatch(&globals, command)),
        Err(error) => failure::usage(&format!("the system gives no threads or events: {error}")).into(),
    }
}

/// Reads a command line as [`main`] does, the program's name first: the node's settings in it, if it is of `serve`. `None`:
/// it is refused. For tests that hand it damaged ones.
#[doc(hidden)]
#[must_use]
pub fn read(argv: Vec<OsString>) -> Option<Option<crate::config::Settings>> {
    let argv = argv::with_long_uri(argv);
    let _ = argv::has_foreign_status(&argv);
    let Cli { globals, command } = Cli::try_parse_from(&argv).ok()?;
    let _ = globals.endpoints();
    Some(match command {
        Command::Serve(serve) => Some(serve.settings),
        _ => None,
    })
}

async fn dispatch(globals: &Globals, command: Command) -> ExitCode {
    match command {
        Command::Serve(serve) => serve.run().await,
        Command::Dev(dev) => dev.run().await,
        Command::Run(args) => match globals.session() {
            Ok(session) => run::run(&session.client, args, session.json).await.into(),
            Err(failure) => {
                failure.report();
                run::FAILED.into()
            }
        },
        Command::Elect(args) => match globals.session() {
            Ok(session) => elect::run(&session, args).await.into(),
            Err(failure) => {
                failure.report();
                run::FAILED.into()
            }
        },
        Command::Id(command) => {
            let is_run = matches!(command, id::Command::Run(_));
            match id(globals, command).await {
                Ok(code) => code.into(),
                // 1 to 4 may be the job's own.
                Err(failure) => match failure.report() {
                    _ if is_run => run::FAILED.into(),
                    code => code.into(),
                },
            }
        }
        Command::Bench(args) => match bench(globals, args).await {
            Ok(code) => code.into(),
            Err(failure) => failure.report().into(),
        },
        Command::Status(args) | Command::Cluster(ClusterCommand::Status(args)) => {
            match status::run(globals, args).await {
                Ok(code) => code.into(),
                Err(failure) => failure.report().into(),
            }
        }
        Command::Cluster(ClusterCommand::Replace(args)) => match replace::run(globals, args).await {
            Ok(code) => code.into(),
            Err(failure) => failure.report().into(),
        },
        Command::Completions(args) => completions::run(&args, <Cli as clap::CommandFactory>::command()).into(),
        Command::Ask(command) => match ask(globals, command).await {
            Ok(code) => code.into(),
            Err(failure) => failure.report().into(),
        },
    }
}

async fn bench(globals: &Globals, args: bench::Args) -> Result<u8, Failure> {
    bench::run(&globals.session()?, &globals.endpoints()?, args).await
}

async fn id(globals: &Globals, command: id::Command) -> Result<u8, Failure> {
    id::run(&globals.session()?, command).await
}

async fn ask(globals: &Globals, command: Ask) -> Result<u8, Failure> {
    let session = globals.session()?;
    match command {
        Ask::Acquire(args) => acquire::run(&session, args).await,
        Ask::Renew(args) => renew::run(&session, args).await,
        Ask::Release(args) => release::run(&session, args).await,
        Ask::Get(args) => get::run(&session, args).await,
        Ask::Ls(args) => ls::run(&session, args).await,
        Ask::Break(args) => breaking::run(&session, args).await,
        Ask::Watch(args) => watch::run(&session, args).await,
        Ask::Check(args) => check::run(&session, args).await,
        Ask::Raw(command) => raw::run(&session, command).await,
    }
}

/// What a command that asks the cluster works with.
struct Session {
    client: Client,
    json: bool,
}

impl Globals {
    /// The URI is read here and not by the parser: a command that asks no node must not fail for TENURE_URI.
    fn session(&self) -> Result<Session, Failure> {
        Ok(Session { client: Client::new(&self.endpoints()?), json: self.json })
    }

    fn endpoints(&self) -> Result<Uri, Failure> {
        self.uri.parse().map_err(|error| Failure::Usage(format!("--uri: {error}")))
    }
}

/// The end of a command that is so or not: `true` says `done`, false says why on stderr.
fn verdict(session: &Session, key: &str, answer: &Answer, done: &str) -> Result<u8, Failure> {
    let so = answer.is_true();
    if session.json {
        output::json(answer)?;
    } else if so {
        output::line(done);
    } else {
        let reason = answer.reason().unwrap_or("no");
        let detail = answer.detail().map(|detail| format!(": {detail}")).unwrap_or_default();
        let holder = answer.owner().map(|owner| format!("; held by {owner}")).unwrap_or_default();
        failure::say(&format!("{key}: {reason}{detail}{holder}"));
    }
    Ok(if so { DONE } else { NOT_SO })
}

#[cfg(test)]
mod tests;
