//! `tenure get`: a lease and who holds it, or a pool and how it stands, for people.

use tenure_client::wire::{EndedGrant, Get, OnConflict, Snapshot};

use super::duration::shown;
use super::failure::{Failure, say};
use super::table::card;
use super::{DONE, NOT_SO, Session, output};

/// Show a lease: who holds it, since when, until when. Or a pool: how many slots are held, kept back and free. Exits 1 if
/// there is no such key
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
    let shown = snapshot(result)?;
    output::text(&match shown.slots {
        Some(_) => pool_card(&shown),
        None => holder_card(&shown),
    });
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

/// Of a pool: `3/512`.
pub fn held_of_size(pool: &Snapshot) -> Option<String> {
    let held = pool.slots?.held;
    Some(match pool.options.and_then(|options| options.size) {
        Some(size) => format!("{held}/{size}"),
        None => held.to_string(),
    })
}

/// The card of a pool.
fn pool_card(pool: &Snapshot) -> String {
    let options = pool.options.unwrap_or_default();
    let slots = pool.slots.unwrap_or_default();
    let ids = || {
        let (first, size) = (options.first?, options.size?);
        Some(format!("{first} to {}", u64::from(first) + u64::from(size) - 1))
    };
    let free = match pool.acquirable_in_ms {
        0 => slots.free.to_string(),
        ms => format!("{}, the next in {}", slots.free, shown(ms)),
    };
    let conflict = options.on_conflict.map(|what| match what {
        OnConflict::Takeover => "takeover",
        OnConflict::Reject => "reject",
    });
    card([
        ("key", Some(pool.key.clone())),
        ("type", Some("pool".to_owned())),
        ("held", held_of_size(pool)),
        ("kept back", Some(slots.quarantined.to_string())),
        ("free", Some(free)),
        ("waiters", Some(pool.waiters).filter(|waiters| *waiters > 0).map(|waiters| waiters.to_string())),
        ("ids", options.size.filter(|size| *size > 0).and_then(|_| ids())),
        ("least ttl", options.ttl_ms_min.map(shown)),
        ("longest ttl", options.ttl_ms_max.map(shown)),
        ("quarantine", options.quarantine_ms.map(shown)),
        ("after release", options.release_quarantine_ms.map(shown)),
        ("same identity", conflict.map(str::to_owned)),
        ("key ends in", pool.key_ttl_ms.map(shown)),
        ("uuid", pool.pool.clone()),
        ("version", pool.version.clone()),
    ])
}

/// How a grant ended.
pub fn ended(last: &EndedGrant) -> String {
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

    /// As docs/api.md shows it.
    const POOL: &str = r#"{"key": "ids", "type": "pool", "pool": "u-7", "held": true,
        "slots": {"held": 3, "quarantined": 1, "free": 508}, "waiters": 0, "acquirable_in_ms": 0, "key_ttl_ms": null,
        "options": {"size": 512, "first": 256, "quarantine_ms": 60000, "release_quarantine_ms": 0, "ttl_ms_min": 30000,
        "ttl_ms_max": 86400000, "on_conflict": "takeover"}, "version": "7.0"}"#;

    #[test]
    fn a_pool() {
        let pool = snapshot(serde_json::from_str(POOL).unwrap()).ok().unwrap();
        let wanted = "\
key            ids
type           pool
held           3/512
kept back      1
free           508
ids            256 to 767
least ttl      30s
longest ttl    1day
quarantine     1m
after release  0s
same identity  takeover
uuid           u-7
version        7.0
";
        assert_eq!(pool_card(&pool), wanted);
    }

    #[test]
    fn a_free_lease_says_when_it_can_be_had() {
        let free = Snapshot { key: "k".into(), acquirable_in_ms: 5000, ..Snapshot::default() };
        assert_eq!(holder_card(&free), "key   k\nheld  no, acquirable in 5s\n");
    }
}
