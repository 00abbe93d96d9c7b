//! `tenure break`: an operator ends a grant, and exactly the one that was shown.

use std::time::Duration;

use serde_json::json;
use tenure_client::wire::{BreakArgs, BreakSlotArgs, Get, Op};

use super::failure::{Failure, say};
use super::get::{holder_card, snapshot};
use super::{DONE, NOT_SO, Session, duration, id, output};

/// End another's grant: for operators
///
/// Shows who holds it and ends exactly that grant, by its fence. `tenure run` ends its command within two seconds and
/// says your reason; any other holder is told at its next renewal. With --grace it may hold on for that long at most. Its
/// work may still be running: the fence keeps that out, if what it writes to checks it. Exits 1 if nobody holds the lease.
/// Of a pool --id says which slot; after that it is kept back from everybody, its own identity too, for the pool's
/// quarantine.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The key
    key: String,
    /// Of a pool: which slot, see `tenure id holders`
    #[arg(long)]
    id: Option<u32>,
    /// Why; the holder is told
    #[arg(long)]
    reason: String,
    /// How long the holder may keep it at most, with a unit
    #[arg(long, default_value = "0s", value_parser = duration::parse)]
    grace: Duration,
    /// Only the grant with this fence [default: the one that is found]
    #[arg(long)]
    fence: Option<u64>,
}

pub async fn run(session: &Session, args: Args) -> Result<u8, Failure> {
    let result = session.client.call(&Get { key: args.key.clone() }).await?.answer.result;
    if result.is_null() {
        return nothing(session, &args.key, "no such key; see `tenure ls`");
    }
    let lease = snapshot(result)?;
    let is_pool = lease.slots.is_some();
    match args.id {
        Some(id) if is_pool => return slot(session, args, id).await,
        None if is_pool => {
            let key = &args.key;
            return Err(Failure::Usage(format!(
                "{key} is a pool: say which slot with --id, see `tenure id holders {key}`"
            )));
        }
        Some(_) => return Err(Failure::Usage(format!("{} is a {}: --id is for pools", args.key, lease.kind))),
        None => {}
    }
    let Some(shown) = lease.fence.filter(|_| lease.held) else {
        return nothing(session, &args.key, "nobody holds it");
    };
    // First, so that whoever is told "outcome unknown" knows of whom.
    if !session.json {
        output::text(&holder_card(&lease));
    }
    let grace_ms = duration::millis(args.grace);
    let fence = args.fence.unwrap_or(shown);
    let breaking = BreakArgs { reason: args.reason, grace_ms: Some(grace_ms), fence: Some(fence) };
    let answer = session.client.call(&Op::new(args.key.clone(), breaking)).await?.answer;
    if !answer.is_true() {
        return nothing(session, &args.key, "not broken: the holder is another by now, look again");
    }
    if session.json {
        output::json(&json!({"result": true, "key": args.key, "fence": fence, "owner": lease.owner}))?;
    } else {
        say_broken(fence, grace_ms);
    }
    Ok(DONE)
}

fn say_broken(fence: u64, grace_ms: u64) {
    if grace_ms > 0 {
        output::line(&format!("broken: fence {fence} ends in {} at the latest", duration::shown(grace_ms)));
    } else {
        output::line(&format!("broken: fence {fence} holds it no longer"));
    }
}

/// The same of one slot of a pool.
async fn slot(session: &Session, args: Args, id: u32) -> Result<u8, Failure> {
    let held = match id::holder(session, &args.key, id).await? {
        Some(slot) => id::read_slot(slot)?,
        None => return nothing(session, &args.key, &format!("nobody holds id {id}: it was never given")),
    };
    let Some(shown) = held.fence.filter(|_| held.held) else {
        return nothing(session, &args.key, &format!("nobody holds id {id}"));
    };
    if !session.json {
        output::text(&id::slot_card(&args.key, &held));
    }
    let grace_ms = duration::millis(args.grace);
    let fence = args.fence.unwrap_or(shown);
    let breaking = BreakSlotArgs { id, reason: args.reason, grace_ms: Some(grace_ms), fence: Some(fence) };
    let answer = session.client.call(&Op::new(args.key.clone(), breaking)).await?.answer;
    if !answer.is_true() {
        return nothing(session, &args.key, "not broken: the holder is another by now, look again");
    }
    if session.json {
        let owner = held.identity.or(held.owner);
        output::json(&json!({"result": true, "key": args.key, "id": id, "fence": fence, "owner": owner}))?;
    } else {
        say_broken(fence, grace_ms);
    }
    Ok(DONE)
}

fn nothing(session: &Session, key: &str, why: &str) -> Result<u8, Failure> {
    if session.json {
        output::json(&json!({"result": false, "key": key, "reason": why}))?;
    } else {
        say(&format!("{key}: {why}"));
    }
    Ok(NOT_SO)
}
