//! `tenure id release`: gives the id of a state file back.

use tenure_client::wire::{Op, ReleaseArgs, reason};

use super::super::failure::Failure;
use super::super::{Session, verdict};
use super::take::{forget, forget_if_ours, leaves, not_left, stays};
use super::{Asker, failed, no_token};

/// Give a machine ID back: others may have it; exits 1 if it was not held any more
///
/// What makes ids with it has to have ended before.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    asker: Asker,
}

pub async fn run(session: &Session, args: Args) -> Result<u8, Failure> {
    let mut state = args.asker.state()?;
    let Some(token) = state.remembered.token.clone() else { return Ok(no_token(&state, &args.asker.pool)) };
    let release = ReleaseArgs { token, fence: state.remembered.fence };
    let before = leaves(&mut state);
    let answered = match session.client.call(&Op::new(args.asker.pool.clone(), release)).await {
        Ok(answered) => answered,
        Err(error) => {
            not_left(&mut state, before, &error);
            return Err(failed(error, &state));
        }
    };
    let mut answer = answered.answer;
    if answered.repeated && answer.reason() == Some(reason::NOT_HELD) {
        // The first copy did its work; its answer got lost.
        answer.result = true.into();
        answer.extras.remove("reason");
    }
    if answer.is_true() {
        forget(&mut state);
    } else if let Err(error) = forget_if_ours(&session.client, &mut state).await {
        // Whoever said that did not hold it; the token may be held elsewhere.
        stays(&mut state, before);
        return Err(error.into());
    }
    let which = state.remembered.id.map(|id| format!("id {id} ")).unwrap_or_default();
    verdict(session, &args.asker.pool, &answer, &format!("{which}released"))
}
