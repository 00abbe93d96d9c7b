//! `tenure run --pool`: a command under an anonymous slot of a pool, a counting semaphore.

use tenure_client::lease::give_back;
use tenure_client::slot::{Acquire, AcquireError, Grant, Whose};
use tenure_client::wire::{Code, Create, PoolOptions, Token};
use tenure_client::{CallError, Client};
use tokio::time::Instant;

use super::acquire::LEAVE_TIMEOUT;
use super::args::Args;
use super::guard::frame::Ended;
use super::report::Report;
use super::signals::Signals;
use super::slot::{Refusal, ask, held};
use super::times::Plan;
use super::work::Work;
use super::{Failure, NOT_ACQUIRED, take_care, tell_wait};
use crate::cli::duration::millis;

/// Tokens whose grant came and went unseen before we give up: each costs a whole ttl, so more would be odd.
const TOKENS_MAX: u32 = 3;

/// Gives the exit status.
pub async fn run(client: &Client, pool: String, args: Args, report: &Report) -> Result<u8, Failure> {
    // The pool may raise the ttl, which makes nothing worse.
    Plan::new(args.ttl, args.grace, args.on_lost)?;
    let mut signals = take_care()?;
    if let Some(size) = args.size {
        create(client, &pool, size).await?;
    }
    tell_wait(args.wait, report);
    let started = Instant::now();
    let mut tokens_left = TOKENS_MAX;
    loop {
        // Ours from the start, so that whatever it holds or waits for can be given back when we stop asking.
        let token = Token::random().map_err(AcquireError::from)?;
        let acquire = Acquire {
            ttl_ms: millis(args.ttl),
            wait: args.wait.saturating_sub(started.elapsed()),
            note: args.note.clone(),
            token: Some(token.clone()),
            ..Acquire::new(pool.clone(), Whose::Nobody { owner: args.owner.clone() })
        };
        let asked = tokio::select! {
            asked = ask(client, &acquire) => asked,
            signal = signals.next() => {
                // What cannot be told ends by itself: a grant by its ttl, a place in line with its socket.
                let _ends_by_itself = give_back(client, &pool, &token, None, LEAVE_TIMEOUT).await;
                return Ok(Ended::by(signal).code());
            }
        };
        tokens_left -= 1;
        let not = match asked {
            Ok(grant) => return work(client, grant, &args, &mut signals, report).await,
            Err(not) => not,
        };
        if not.in_doubt {
            let _ends_by_itself = give_back(client, &pool, &token, None, LEAVE_TIMEOUT).await;
        }
        match Refusal::of(&not.why) {
            Some(refusal) if refusal.is_of_token() && tokens_left > 0 => {}
            Some(refusal) => {
                // Said only if asked: it is what a semaphore is for.
                report.change(refusal);
                return Ok(NOT_ACQUIRED);
            }
            None => return Err(no_such_pool(not.why)),
        }
    }
}

/// Makes the pool, if there is none. What frees a slot of a semaphore is the end of its command, which a lost one has met
/// before its deadline: nothing has to be kept back.
async fn create(client: &Client, pool: &str, size: u32) -> Result<(), Failure> {
    let options =
        PoolOptions { size: Some(size), quarantine_ms: Some(0), ttl_ms_min: Some(1), ..PoolOptions::default() };
    match client.call(&Create::pool(pool, options)).await {
        Ok(_) => Ok(()),
        Err(CallError::Refused(problem)) if problem.is(Code::AlreadyExists) => Ok(()),
        // It may be there by now: asking for a slot tells.
        Err(CallError::OutcomeUnknown { .. }) => Ok(()),
        Err(error) => Err(Failure::Create(error)),
    }
}

async fn work(
    client: &Client,
    grant: Grant,
    args: &Args,
    signals: &mut Signals,
    report: &Report,
) -> Result<u8, Failure> {
    if let Some(size) = args.size.filter(|size| *size != grant.slot.size) {
        let has = grant.slot.size;
        report.trouble(format_args!("the pool has {has} slots, not {size}: it was there before, and keeps its size"));
    }
    let (grants, schedule) = held(grant, args.grace, args.on_lost)?;
    let grace_ms = schedule.plan().grace_ms;
    let work = Work { command: &args.command, grace_ms, hold_on: None, lock: None };
    Ok(work.under(client, &grants, schedule, signals, report).await?.code())
}

/// The node's own text speaks of leases.
fn no_such_pool(error: AcquireError) -> Failure {
    match error {
        AcquireError::Client(CallError::Refused(mut problem)) if problem.is(Code::NoSuchKey) => {
            "no such pool: --size N makes it with N slots, or CREATE it".clone_into(&mut problem.detail);
            AcquireError::Client(CallError::Refused(problem)).into()
        }
        error => error.into(),
    }
}
