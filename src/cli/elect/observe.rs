//! Who leads, as it changes.

use std::io::Write as _;

use serde_json::json;
use tenure_client::{Acquire, Election, Leader};

use super::Session;
use crate::cli::run;
use crate::cli::run::report::Report;

/// Prints each leader until a signal comes or nobody reads any more.
pub async fn run(session: &Session, key: &str, report: &Report) -> Result<u8, run::Failure> {
    let mut signals = run::take_care()?;
    let mut leaders = Election::new(&session.client, key, Acquire::default()).observe();
    let mut troubles = leaders.troubles();
    loop {
        tokio::select! {
            leader = leaders.next() => {
                if !say(session, key, leader?.as_ref()) {
                    return Ok(0);
                }
            }
            Ok(()) = troubles.changed() => {
                if let Some(trouble) = troubles.borrow_and_update().as_ref() {
                    report.trouble(trouble);
                }
            }
            _ = signals.next() => return Ok(0),
        }
    }
}

/// False: nobody reads.
fn say(session: &Session, key: &str, leader: Option<&Leader>) -> bool {
    let line = match (leader, session.json) {
        (leader, true) => {
            let (owner, fence) = leader.map(|leader| (&leader.owner, leader.fence)).unzip();
            let note = leader.and_then(|leader| leader.note.as_ref());
            json!({"key": key, "owner": owner, "fence": fence, "note": note}).to_string()
        }
        (Some(Leader { owner, fence, note }), false) => {
            let note = note.as_ref().map(|note| format!(", {note}")).unwrap_or_default();
            format!("{owner}, fence {fence}{note}")
        }
        (None, false) => "nobody".to_owned(),
    };
    writeln!(std::io::stdout(), "{line}").is_ok()
}
