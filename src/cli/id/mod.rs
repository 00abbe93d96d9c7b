//! `tenure id`: a machine ID, one of a pool's numbers, for a process that is known by its identity.
//!
//! [`identity`] says who the process is, [`state`] remembers its token between starts, [`take`] comes by an id with both.
//! `acquire`, `renew` and `release` are for scripts that do one thing at a time, `run` does all of it for a command, and
//! `holders` is for operators.

use clap::Subcommand;
use tenure_client::CallError;

use super::failure::Failure;
use super::{NOT_SO, Session};

mod acquire;
mod holders;
mod identity;
mod release;
mod renew;
pub mod run;
mod state;
mod take;

pub use holders::{holder, read as read_slot, slot_card};

/// `tenure id …`.
#[derive(Debug, Subcommand)]
pub enum Command {
    Acquire(acquire::Args),
    Renew(renew::Args),
    Release(release::Args),
    Holders(holders::Args),
    Run(run::Args),
}

/// The pool of a command line, and who asks of it.
#[derive(Debug, clap::Args)]
struct Asker {
    /// The pool
    #[arg(value_name = "POOL")]
    pool: String,
    #[command(flatten)]
    who: identity::IdentityArgs,
}

impl Asker {
    /// The state file of this process, locked: nobody else, and no job of an earlier run, uses its id.
    fn state(&self) -> Result<state::StateFile, Failure> {
        Ok(state_file(&self.pool, &self.who)?.without_job()?)
    }
}

/// The state file that goes with a pool and what the command line says of the process.
fn state_file(pool: &str, who: &identity::IdentityArgs) -> Result<state::StateFile, Failure> {
    let identity = identity::identity(who, &identity::Surroundings::here()).map_err(Failure::Usage)?;
    let path = match &who.state {
        Some(path) => path.clone(),
        None => state::default_path(pool, &identity)?,
    };
    Ok(state::StateFile::open(path, pool, &identity)?)
}

impl From<state::StateError> for Failure {
    fn from(error: state::StateError) -> Failure {
        Failure::Answer(error.to_string())
    }
}

/// All of them but `run`, whose exit status is another's.
pub async fn run(session: &Session, command: Command) -> Result<u8, Failure> {
    match command {
        Command::Acquire(args) => acquire::run(session, args).await,
        Command::Renew(args) => renew::run(session, args).await,
        Command::Release(args) => release::run(session, args).await,
        Command::Holders(args) => holders::run(session, args).await,
        Command::Run(args) => Ok(run::run(&session.client, args, session.json).await),
    }
}

/// A call with the token of the file had no result. Repeated, it asks the same again.
fn failed(error: CallError, state: &state::StateFile) -> Failure {
    match error {
        CallError::OutcomeUnknown { detail } => {
            let path = state.path().display();
            Failure::InDoubt(format!("outcome unknown: {detail}. Repeat the command: the token in {path} is its own"))
        }
        error => error.into(),
    }
}

/// Nothing is held by this process.
fn no_token(state: &state::StateFile, pool: &str) -> u8 {
    let path = state.path().display();
    super::failure::say(&format!("{pool}: no id is held: {path} has no token; see `tenure id acquire {pool}`"));
    NOT_SO
}
