//! `tenure id renew`: keeps the id of a state file.

use std::time::Duration;

use tenure_client::wire::{Op, RenewSlotArgs, SlotRenewal, reason};
use tenure_client::{HostWallClock, WallClock as _};

use super::super::failure::{Failure, say};
use super::super::{DONE, NOT_SO, Session, duration, output};
use super::take::forget_if_ours;
use super::{Asker, failed, no_token};

/// Keep a machine ID for another ttl from now (never shorter than it had); exits 1 if it is not held any more
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    asker: Asker,
    /// How long it lives from now on, with a unit
    #[arg(long, default_value = "30s", value_parser = duration::parse)]
    ttl: Duration,
}

pub async fn run(session: &Session, args: Args) -> Result<u8, Failure> {
    let mut state = args.asker.state()?;
    let Some(token) = state.remembered.token.clone() else { return Ok(no_token(&state, &args.asker.pool)) };
    if state.remembered.leaving {
        let pool = &args.asker.pool;
        say(&format!("{pool}: not renewed: its RELEASE had no answer; see `tenure id release {pool}`"));
        return Ok(NOT_SO);
    }
    let ttl_ms = i64::try_from(duration::millis(args.ttl)).ok();
    let renew = RenewSlotArgs { token, ttl_ms, fence: state.remembered.fence, unix_ms: Some(HostWallClock.unix_ms()) };
    let answered = session.client.call(&Op::new(args.asker.pool.clone(), renew)).await;
    let answer = answered.map_err(|error| failed(error, &state))?.answer;
    if session.json {
        output::json(&answer)?;
    }
    match answer.slot_renewal() {
        Some(SlotRenewal::Renewed(slot)) => {
            if !session.json {
                output::line(&format!("id {} renewed, expires in {}", slot.id, duration::shown(slot.ttl_ms)));
            }
            state.remembered.ttl_ms = Some(slot.ttl_ms);
            if let Err(error) = state.write() {
                // Renewed it is, and the token stands in the file.
                say(&error.to_string());
            }
            return Ok(DONE);
        }
        // Proof, if it is the pool that granted it: the token will never hold it again.
        Some(SlotRenewal::Lost) => forget_if_ours(&session.client, &mut state).await?,
        None => {}
    }
    if !session.json {
        let reason = answer.reason().unwrap_or(reason::NOT_HELD);
        let detail = answer.detail().map(|detail| format!(": {detail}")).unwrap_or_default();
        let lost = if state.remembered.token.is_none() { "lost" } else { "not renewed" };
        say(&format!("{}: {lost}: {reason}{detail}", args.asker.pool));
    }
    Ok(NOT_SO)
}
