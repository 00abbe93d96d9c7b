//! `tenure watch`: what happens to keys, one line each, until it is interrupted.
//!
//! A line says it when some events may be missing; what goes wrong on the way, and passes, is said on stderr.

use std::io::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_client::wire::{Event, Snapshot};
use tenure_client::{CallError, Notice, Selection, Watch, WatchError};
use tokio::time::Instant;

use super::duration::shown;
use super::failure::{Failure, say};
use super::get::held_of_size;
use super::{DONE, Session};

/// So long nobody answers at the start, and it is given up. Later a watch waits for its nodes to come back.
const CONNECTED_WITHIN: Duration = Duration::from_secs(5);

/// Show what happens to keys, as it happens: created, granted, released, expired, broken, deleted
///
/// With --json one object a line. Goes on at another node when one goes away; where events may be missing it says
/// `reset`. Ends with 0 on Ctrl-C.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these keys [default: all]
    keys: Vec<String>,
    /// Only keys that start so
    #[arg(long, conflicts_with = "keys")]
    prefix: Option<String>,
    /// Renewals too; those that happen while the connection is changed are not shown
    #[arg(long)]
    renewed: bool,
    /// First show the keys as they stand, and again after a reset
    #[arg(long)]
    list: bool,
    /// Go on after this event's id, as --json shows it
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// End after the first event of that kind
    #[arg(long, value_name = "EVENT", value_parser = KINDS)]
    until: Option<String>,
}

const KINDS: [&str; 7] = ["created", "granted", "renewed", "released", "expired", "broken", "deleted"];

impl From<WatchError> for Failure {
    fn from(error: WatchError) -> Failure {
        match error {
            WatchError::Refused(problem) => Failure::Call(CallError::Refused(problem)),
            WatchError::Protocol { endpoint, detail } => Failure::Call(CallError::Protocol { endpoint, detail }),
            WatchError::Id(_) => Failure::Usage(format!("--after: {error}")),
            WatchError::TooLarge => Failure::Answer(error.to_string()),
        }
    }
}

pub async fn run(session: &Session, args: Args) -> Result<u8, Failure> {
    // What is waited for has to be told.
    let renewed = args.renewed || args.until.as_deref() == Some("renewed");
    let selection = Selection { keys: args.keys, prefix: args.prefix, renewed, list: args.list };
    let watch = match args.after {
        None => Watch::new(&session.client, selection),
        Some(id) => Watch::after(&session.client, selection, id),
    };
    tokio::select! {
        ended = follow(watch, args.until.as_deref(), session.json) => ended,
        interrupted = tokio::signal::ctrl_c() => match interrupted {
            Ok(()) => Ok(DONE),
            Err(error) => Err(Failure::Answer(format!("the system gives no signals: {error}"))),
        },
    }
}

async fn follow(mut watch: Watch, until: Option<&str>, json: bool) -> Result<u8, Failure> {
    let mut troubles = watch.troubles();
    let give_up_at = Instant::now() + CONNECTED_WITHIN;
    let (mut is_connected, mut is_told) = (false, true);
    loop {
        tokio::select! {
            notice = watch.next() => {
                is_connected = true;
                let notice = notice?;
                let is_last = matches!(&notice, Notice::Event(event) if until == Some(event.kind.as_str()));
                if !show(&notice, json) || is_last {
                    return Ok(DONE);
                }
            }
            changed = troubles.changed(), if is_told => {
                // No more is told once the watch is over: why, it says itself.
                is_told = changed.is_ok();
                match troubles.borrow_and_update().clone() {
                    None => is_connected = true,
                    Some(detail) if is_connected => say(&format!("{detail}; trying again")),
                    Some(_) => {}
                }
            }
            () = tokio::time::sleep_until(give_up_at), if !is_connected => {
                let detail = watch.trouble().unwrap_or_else(|| "no node answers".to_owned());
                return Err(Failure::Call(CallError::Unavailable { detail }));
            }
        }
    }
}

/// False once nobody reads any more.
fn show(notice: &Notice, json: bool) -> bool {
    let text = if json { as_json(notice).to_string() + "\n" } else { for_people(notice) };
    std::io::stdout().write_all(text.as_bytes()).is_ok()
}

fn as_json(notice: &Notice) -> Value {
    match notice {
        Notice::Event(event) => json!(event),
        Notice::Reset { reason, keys, id } => json!({"event": "reset", "id": id, "reason": reason, "keys": keys}),
    }
}

fn for_people(notice: &Notice) -> String {
    match notice {
        Notice::Event(event) => line(event),
        Notice::Reset { reason, keys, .. } => {
            let said =
                if reason == "start" { String::new() } else { format!("reset: {reason}, events may be missing\n") };
            keys.iter().flatten().fold(said, |text, key| text + &standing(key))
        }
    }
}

/// As a key stands.
fn standing(key: &Snapshot) -> String {
    if let Some(held) = held_of_size(key) {
        return format!("pool      {}  {held} held\n", key.key);
    }
    let (Some(owner), Some(fence)) = (&key.owner, key.fence) else { return format!("free      {}\n", key.key) };
    let left = key.ttl_ms.map(|ms| format!(", {} left", shown(ms))).unwrap_or_default();
    format!("held      {}  fence {fence} by {owner}{left}\n", key.key)
}

fn line(event: &Event) -> String {
    let Event { kind, key, .. } = event;
    let mut line = format!("{}  {kind:<8}  {key}", event.at.as_deref().unwrap_or(&event.position));
    if let Some(slot) = event.slot {
        line += &format!("  id {slot}");
    }
    if let Some(fence) = event.fence {
        line += &format!("  fence {fence}");
    }
    if let Some(owner) = event.owner.as_ref().or(event.identity.as_ref()) {
        line += &format!(" by {owner}");
    }
    if let Some(ttl_ms) = event.ttl_ms {
        line += &format!(" for {}", shown(ttl_ms));
    }
    // What the kind says already is not said again.
    if let Some(reason) = event.reason.as_ref().filter(|reason| *reason != kind) {
        line += &format!(", {reason}");
    }
    if let Some(detail) = &event.detail {
        line += &format!(": {detail}");
    }
    line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: &str) -> Event {
        Event { id: "c-7.0.1".into(), kind: kind.into(), key: "k".into(), position: "7.0".into(), ..Event::default() }
    }

    #[test]
    fn a_line_says_what_there_is() {
        let granted = Event {
            fence: Some(7),
            owner: Some("me".into()),
            ttl_ms: Some(30_000),
            at: Some("2026-01-31T12:00:00.000Z".into()),
            ..event("granted")
        };
        assert_eq!(line(&granted), "2026-01-31T12:00:00.000Z  granted   k  fence 7 by me for 30s\n");
        let undelivered = Event { fence: Some(7), reason: Some("undelivered".into()), ..event("released") };
        assert_eq!(line(&undelivered), "7.0  released  k  fence 7, undelivered\n");
        let broken = Event { reason: Some("broken".into()), detail: Some("fire".into()), ..event("broken") };
        assert_eq!(line(&broken), "7.0  broken    k: fire\n");
        assert_eq!(line(&event("created")), "7.0  created   k\n");
        let slot =
            Event { slot: Some(3), fence: Some(7), owner: Some("me".into()), ttl_ms: Some(30_000), ..event("granted") };
        assert_eq!(line(&slot), "7.0  granted   k  id 3  fence 7 by me for 30s\n");
    }

    #[test]
    fn a_reset_is_said_and_a_start_is_not() {
        let free = Snapshot { key: "a".into(), ..Snapshot::default() };
        let held = Snapshot {
            key: "b".into(),
            owner: Some("me".into()),
            fence: Some(3),
            ttl_ms: Some(900),
            ..Snapshot::default()
        };
        let reset = |reason: &str, keys| Notice::Reset { reason: reason.into(), keys, id: "c-1.0".into() };
        assert_eq!(for_people(&reset("start", None)), "");
        let keys = "free      a\nheld      b  fence 3 by me, 900ms left\n";
        assert_eq!(for_people(&reset("start", Some(vec![free.clone(), held.clone()]))), keys);
        let wanted = format!("reset: jumped, events may be missing\n{keys}");
        assert_eq!(for_people(&reset("jumped", Some(vec![free, held]))), wanted);
    }
}
