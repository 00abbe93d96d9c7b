//! `tenure break`: an operator ends a grant, and exactly the one that was shown.

use std::time::Duration;

use serde_json::json;
use tenure_client::wire::{BreakArgs, Get, Op};

use super::failure::{Failure, say};
use super::get::{holder_card, snapshot};
use super::{DONE, NOT_SO, Session, duration, output};

/// End another's grant: for operators
///
/// Shows who holds it and ends exactly that grant, by its fence. `tenure run` ends its command within two seconds and
/// says your reason; any other holder is told at its next renewal. With --grace it may hold on for that long at most. Its
/// work may still be running: the fence keeps that out, if what it writes to checks it. Exits 1 if nobody holds the lease.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The key
    key: String,
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
    } else if grace_ms > 0 {
        output::line(&format!("broken: fence {fence} ends in {} at the latest", duration::shown(grace_ms)));
    } else {
        output::line(&format!("broken: fence {fence} holds it no longer"));
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
