//! `tenure check`: for resources that guard themselves.

use tenure_client::wire::{CheckArgs, Op};

use super::failure::Failure;
use super::{Session, verdict};

/// Is this the fence of the live grant? Exits 1 if not: refuse what came with it
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The key
    key: String,
    /// The fence that came with the request
    fence: u64,
}

pub async fn run(session: &Session, args: Args) -> Result<u8, Failure> {
    let check = Op::new(args.key.clone(), CheckArgs { fence: args.fence });
    let answer = session.client.call(&check).await?.answer;
    if !session.json && !answer.is_true() && answer.reason().is_none() {
        super::failure::say(&format!("{}: {} is not the live grant's fence", args.key, args.fence));
        return Ok(super::NOT_SO);
    }
    verdict(session, &args.key, &answer, "live")
}
