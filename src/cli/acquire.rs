//! `tenure acquire`: takes a lease and leaves it to the caller to renew. `run` does both.

use std::time::Duration;

use serde_json::json;
use tenure_client::lease::default_owner;
use tenure_client::{Acquire, Acquired, Grant, Token};

use super::failure::{Failure, say};
use super::table::card;
use super::{DONE, NOT_SO, Session, duration, output};

/// Take a lease; prints token and fence, exits 1 if another holds it
///
/// The lease lives for its ttl: renew it with `tenure renew`, give it back with `tenure release`. To run a command under
/// a lease use `tenure run`, which renews it and ends the command in time.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The key
    key: String,
    /// How long the lease lives without renewal, with a unit
    #[arg(long, default_value = "30s", value_parser = duration::parse)]
    ttl: Duration,
    /// How long to go on asking while another holds it, with a unit [default: ask once]
    #[arg(long, default_value = "0s", hide_default_value = true, value_parser = duration::parse)]
    wait: Duration,
    /// Who holds, for operators [default: host:pid]
    #[arg(long)]
    owner: Option<String>,
    /// Free text for operators
    #[arg(long)]
    note: Option<String>,
    /// The secret that will prove the grant is yours [default: a fresh random one]
    #[arg(long)]
    token: Option<Token>,
    /// Once a period: after an early release nobody can take the key until so long after this, with a unit
    #[arg(long, value_parser = duration::parse)]
    min_hold: Option<Duration>,
    /// After an expiry nobody can take the key for so long, with a unit [default: the key's]
    #[arg(long, value_parser = duration::parse)]
    delay: Option<Duration>,
    /// Refuse a key that does not exist, instead of making it
    #[arg(long)]
    no_create: bool,
}

pub async fn run(session: &Session, args: Args) -> Result<u8, Failure> {
    let owner = args.owner.unwrap_or_else(default_owner);
    let acquire = Acquire {
        owner: Some(owner.clone()),
        ttl_ms: duration::millis(args.ttl),
        create: !args.no_create,
        note: args.note,
        min_hold_ms: args.min_hold.map(duration::millis),
        delay_ms: args.delay.map(duration::millis),
        wait: args.wait,
        token: args.token,
    };
    match Grant::acquire(&session.client, &args.key, acquire).await? {
        Acquired::Held(grant) => {
            held(session, &grant, &owner)?;
            Ok(DONE)
        }
        Acquired::NotHeld(not_held) if session.json => {
            output::json(&json!({
                "result": false,
                "key": args.key,
                "reason": not_held.reason,
                "owner": not_held.owner,
                "fence": not_held.fence,
                "ttl_ms": not_held.ttl_ms,
                "retry_after_ms": not_held.retry_after_ms,
            }))?;
            Ok(NOT_SO)
        }
        Acquired::NotHeld(not_held) => {
            say(&format!("{}: {not_held}", args.key));
            Ok(NOT_SO)
        }
    }
}

fn held(session: &Session, grant: &Grant, owner: &str) -> Result<(), Failure> {
    let token = grant.token.expose();
    if session.json {
        return output::json(&json!({
            "result": true,
            "key": grant.key,
            "owner": owner,
            "token": token,
            "fence": grant.fence,
            "ttl_ms": grant.ttl_ms,
        }));
    }
    output::text(&card([
        ("key", Some(grant.key.clone())),
        ("token", Some(token.to_owned())),
        ("fence", Some(grant.fence.to_string())),
        ("ttl", Some(duration::shown(grant.ttl_ms))),
    ]));
    Ok(())
}
