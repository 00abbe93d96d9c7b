//! `tenure renew`: keeps a grant.

use std::time::Duration;

use tenure_client::wire::{Op, RenewArgs};

use super::failure::Failure;
use super::grant_args::GrantArgs;
use super::{Session, duration, verdict};

/// Keep a lease for another ttl from now (never shorter than it had); exits 1 if it is no longer held by this token
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    grant: GrantArgs,
    /// How long it lives from now on, with a unit
    #[arg(long, default_value = "30s", value_parser = duration::parse)]
    ttl: Duration,
}

pub async fn run(session: &Session, args: Args) -> Result<u8, Failure> {
    let GrantArgs { key, token, fence } = args.grant;
    let ttl_ms = i64::try_from(duration::millis(args.ttl)).unwrap_or(i64::MAX);
    let renew = RenewArgs { token, ttl_ms: Some(ttl_ms), fence };
    let answer = session.client.call(&Op::new(key.clone(), renew)).await?.answer;
    let left = answer.ttl_ms().map(duration::shown).unwrap_or_default();
    verdict(session, &key, &answer, &format!("renewed, expires in {left}"))
}
