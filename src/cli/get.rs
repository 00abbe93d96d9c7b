//! `tenure get`: a lease and who holds it, for people.

use tenure_client::wire::{EndedGrant, Get, Snapshot};

use super::duration::shown;
use super::failure::{Failure, say};
use super::table::card;
use super::{DONE, NOT_SO, Session, output};

/// Show a lease: who holds it, since when, until when; exits 1 if there is no such key
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The key
    key: String,
}

pub async fn run(session: &Session, args: Args) -> Result<u8, Failure> {
    let result = session.client.call(&Get { key: args.key.clone() }).await?.answer.result;
    if session.json {
        output::json(&result)?;
        return Ok(if result.is_null() { NOT_SO } else { DONE });
    }
    if result.is_null() {
        say(&format!("no such key: {}; see `tenure ls`", args.key));
        return Ok(NOT_SO);
    }
    output::text(&holder_card(&snapshot(result)?));
    Ok(DONE)
}

/// What GET answered, if it is what this version knows.
pub fn snapshot(result: serde_json::Value) -> Result<Snapshot, Failure> {
    serde_json::from_value(result)
        .map_err(|error| Failure::Answer(format!("the node answered something else: {error}")))
}

/// The card of a lease.
pub fn holder_card(lease: &Snapshot) -> String {
    let options = lease.options.unwrap_or_default();
    let some_ms = |ms: Option<u64>| ms.filter(|ms| *ms > 0).map(shown);
    let free = || match lease.acquirable_in_ms {
        0 => "no, free to acquire".to_owned(),
        ms => format!("no, acquirable in {}", shown(ms)),
    };
    card([
        ("key", Some(lease.key.clone())),
        ("held", Some(if lease.held { "yes".to_owned() } else { free() })),
        ("owner", lease.owner.clone()),
        ("fence", lease.fence.map(|fence| fence.to_string())),
        ("expires in", lease.ttl_ms.map(|ms| format!("{} unless renewed", shown(ms)))),
        ("held for", lease.held_for_ms.map(shown)),
        ("acquired at", lease.acquired_at.clone()),
        ("note", lease.note.clone()),
        ("broken", lease.broken.clone()),
        ("waiters", Some(lease.waiters).filter(|waiters| *waiters > 0).map(|waiters| waiters.to_string())),
        ("last grant", lease.last.as_ref().map(ended)),
        ("key ends in", lease.key_ttl_ms.map(shown)),
        ("delay", some_ms(options.delay_ms)),
        ("minimum hold", some_ms(options.min_hold_ms)),
        ("longest ttl", options.ttl_ms_max.map(shown)),
        ("version", lease.version.clone()),
    ])
}

fn ended(last: &EndedGrant) -> String {
    let ago = last.ended_ms_ago.map(|ms| format!(" {} ago", shown(ms))).unwrap_or_default();
    let detail = last.detail.as_ref().map(|detail| format!(" ({detail})")).unwrap_or_default();
    format!("fence {} of {}, {}{ago}{detail}", last.fence, last.owner, last.reason)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// As docs/api.md shows it.
    const HELD: &str = r#"{"key": "example:lease", "type": "lease", "held": true, "owner": "me", "fence": 7,
        "ttl_ms": 29120, "held_for_ms": 880, "acquired_at": "2026-01-31T12:00:00.000Z", "note": null, "broken": null,
        "waiters": 0, "acquirable_in_ms": 29120, "key_ttl_ms": null, "auto_created": false,
        "options": {"delay_ms": 0, "min_hold_ms": 0, "ttl_ms_max": null}, "version": "1234.0",
        "last": {"fence": 5, "owner": "you", "reason": "expired", "ended_ms_ago": 61000, "detail": null}}"#;

    #[test]
    fn a_held_lease() {
        let lease = snapshot(serde_json::from_str(HELD).unwrap()).ok().unwrap();
        let wanted = "\
key          example:lease
held         yes
owner        me
fence        7
expires in   29s 120ms unless renewed
held for     880ms
acquired at  2026-01-31T12:00:00.000Z
last grant   fence 5 of you, expired 1m 1s ago
version      1234.0
";
        assert_eq!(holder_card(&lease), wanted);
    }

    #[test]
    fn a_free_lease_says_when_it_can_be_had() {
        let free = Snapshot { key: "k".into(), acquirable_in_ms: 5000, ..Snapshot::default() };
        assert_eq!(holder_card(&free), "key   k\nheld  no, acquirable in 5s\n");
    }
}
