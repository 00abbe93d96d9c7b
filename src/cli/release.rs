//! `tenure release`: gives a grant back.

use tenure_client::wire::{Op, ReleaseArgs, reason};

use super::failure::Failure;
use super::grant_args::GrantArgs;
use super::{Session, verdict};

/// Give a lease back; exits 1 if it was no longer held by this token
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    grant: GrantArgs,
}

pub async fn run(session: &Session, args: Args) -> Result<u8, Failure> {
    let GrantArgs { key, token, fence } = args.grant;
    let answered = session.client.call(&Op::new(key.clone(), ReleaseArgs { token, fence })).await?;
    let mut answer = answered.answer;
    if answered.repeated && answer.reason() == Some(reason::NOT_HELD) {
        // The first copy did its work; its answer got lost.
        answer.result = true.into();
        answer.extras.remove("reason");
    }
    verdict(session, &key, &answer, "released")
}
