//! Leading without a command: for scripts that read stdout.

use serde_json::json;
use tenure_client::lease::default_owner;
use tenure_client::{Acquire, AcquireError, Acquired, Client, Grant, Lease, Lost, LostBy, Token};

use super::{Args, Session, acquire, pause, wait};
use crate::cli::output;
use crate::cli::run::grants::{Grants, Renewed, leave};
use crate::cli::run::guard::frame::Ended;
use crate::cli::run::hints::Hints;
use crate::cli::run::report::Report;
use crate::cli::run::signals::Signals;
use crate::cli::run::{self, NOT_ACQUIRED, acquire::LEAVE_TIMEOUT, each::Within};

/// Holds until a signal; campaigns again after each loss.
pub async fn run(session: &Session, args: Args, report: &Report) -> Result<u8, run::Failure> {
    // As for a command: a ttl that leaves no time would be won and lost for ever.
    run::times::Plan::new(args.ttl, args.grace, args.on_lost)?;
    let mut signals = run::take_care()?;
    let owner = args.owner.clone().unwrap_or_else(default_owner);
    let ask = Acquire { owner: Some(owner.clone()), ..acquire(&args, wait(&args)) };
    let client = &session.client;
    loop {
        report.change("campaigning");
        let token = Token::random().map_err(|error| AcquireError::Randomness(error.to_string()))?;
        let one = Acquire { token: Some(token.clone()), ..ask.clone() };
        let acquired = tokio::select! {
            acquired = Grant::acquire(client, &args.key, one) => acquired?,
            signal = signals.next() => {
                // What cannot be told ends by itself: a grant by its ttl, a place in line with its socket.
                let _ends_by_itself = leave(client, &[args.key], &token, false, LEAVE_TIMEOUT).await;
                return Ok(Ended::by(signal).code());
            }
        };
        match acquired {
            Acquired::Held(grant) => {
                let fence = grant.fence;
                say(session, &args.key, fence, &owner, None);
                match lead(client, grant, &mut signals).await {
                    None => return Ok(0),
                    Some(why) => say(session, &args.key, fence, &owner, Some(&why)),
                }
            }
            Acquired::NotHeld(not) => {
                report.change(not);
                if args.wait.is_some() {
                    return Ok(NOT_ACQUIRED);
                }
            }
        }
        if let Some(code) = pause(&mut signals).await {
            return Ok(code);
        }
    }
}

/// Why it leads no more; `None`: a signal, and the lease was given back.
async fn lead(client: &Client, grant: Grant, signals: &mut Signals) -> Option<String> {
    let grants = Grants::one(grant.clone());
    let mut hints = Hints::new(client, &grants);
    let lease = Lease::keep(client, grant);
    tokio::select! {
        lost = lease.lost() => Some(reason(lost)),
        why = ended(client, &grants, &mut hints) => Some(why),
        _ = signals.next() => {
            let _ends_by_itself = lease.release().await;
            None
        }
    }
}

/// Asks at each hint, beside the renewals and signals: an answer that does not come must not keep either waiting.
async fn ended(client: &Client, grants: &Grants, hints: &mut Hints) -> String {
    let timeout = client.options().call_timeout;
    loop {
        hints.next().await;
        if let Ok(Renewed::Lost { reason, detail, .. }) = grants.renew(client, Within::of(client, timeout)).await {
            return detail.map_or_else(|| reason.clone(), |detail| format!("{reason}: {detail}"));
        }
    }
}

fn reason(lost: Lost) -> String {
    match lost.by {
        LostBy::Node { reason, detail: Some(detail) } => format!("{reason}: {detail}"),
        LostBy::Node { reason, detail: None } => reason,
        LostBy::Deadline { .. } => "no renewal was answered in time".to_owned(),
    }
}

/// A line on stdout: elected, or `lost`.
fn say(session: &Session, key: &str, fence: u64, owner: &str, lost: Option<&str>) {
    if session.json {
        let event = if lost.is_some() { "lost" } else { "elected" };
        output::line(&json!({"event": event, "key": key, "fence": fence, "owner": owner, "reason": lost}).to_string());
    } else if let Some(why) = lost {
        output::line(&format!("lost, fence {fence}: {}", why.replace(['\n', '\r'], " ")));
    } else {
        output::line(&format!("elected, fence {fence}"));
    }
}
