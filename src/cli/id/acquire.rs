//! `tenure id acquire`: takes an id and leaves it to the caller to renew. `id run` does both.

use std::time::Duration;

use serde_json::json;

use super::super::failure::{Failure, say};
use super::super::{DONE, NOT_SO, Session, duration, output};
use super::state::StateFile;
use super::take::{TakeError, Taken, Wish, take};
use super::{Asker, failed};
use tenure_client::slot::AcquireError;

/// Take a machine ID and print it; exits 1 if there is none
///
/// The same process (by its state file) gets the same id again, also while it holds it: this renews then, and says so. Two
/// processes of one host need two --slots. The id lives for
/// its ttl: renew it with `tenure id renew`, give it back with `tenure id release`. To run a command with an id use
/// `tenure id run`, which renews it and ends the command in time.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    asker: Asker,
    /// How long the id lives without renewal, with a unit; a pool raises what is below its least (30s by default)
    #[arg(long, default_value = "30s", value_parser = duration::parse)]
    ttl: Duration,
    /// How long to wait for an id while all are held, or another process has this identity, with a unit [default: do
    /// not wait]
    #[arg(long, default_value = "0s", hide_default_value = true, value_parser = duration::parse)]
    wait: Duration,
    /// Not this id: another process seems to use it. It is kept back from everybody for a while
    #[arg(long, value_name = "ID")]
    avoid: Option<u32>,
    /// Free text for operators
    #[arg(long)]
    note: Option<String>,
}

pub async fn run(session: &Session, args: Args) -> Result<u8, Failure> {
    let mut state = args.asker.state()?;
    let wish = Wish { ttl_ms: duration::millis(args.ttl), wait: args.wait, note: args.note, avoid: args.avoid };
    let taken = take(&session.client, &mut state, &wish, &|line| say(line)).await;
    let grant = match taken.map_err(|error| told(error, &state))? {
        Taken::Held(grant) => grant,
        Taken::Refused(refusal) => {
            if session.json {
                output::json(&json!({
                    "result": null,
                    "key": args.asker.pool,
                    "reason": refusal.reason,
                    "retry_after_ms": refusal.retry_after_ms,
                    "detail": refusal.detail,
                }))?;
            } else {
                say(&format!("{}: {refusal}", args.asker.pool));
            }
            return Ok(NOT_SO);
        }
    };
    if session.json {
        output::json(&json!({
            "result": grant.slot,
            "key": args.asker.pool,
            "yours": grant.yours,
            "ttl_raised": grant.ttl_ms > duration::millis(args.ttl),
            "took_over": grant.took_over.is_some_and(|prior| prior.fence.is_some()),
            "prior_ttl_ms": grant.took_over.map(|prior| prior.ttl_ms),
            "state": state.path(),
        }))?;
    } else {
        if grant.yours {
            let (id, path) = (grant.slot.id, state.path().display());
            say(&format!(
                "id {id} was held already, by {path}: renewed. Another process needs another --slot or --identity"
            ));
        }
        output::line(&grant.slot.id.to_string());
    }
    Ok(DONE)
}

fn told(error: TakeError, state: &StateFile) -> Failure {
    match error {
        TakeError::Acquire(AcquireError::Client(error)) | TakeError::Leaving(error) => failed(error, state),
        error => error.into(),
    }
}

impl From<TakeError> for Failure {
    fn from(error: TakeError) -> Failure {
        match error {
            TakeError::Acquire(AcquireError::Client(error)) => Failure::Call(error),
            error => Failure::Answer(error.to_string()),
        }
    }
}
