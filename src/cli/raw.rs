//! The command protocol, word by word: the body goes to the node as it was typed, so that the node judges every byte of
//! it, and the answer comes back bare.
//!
//! # What is repeated after a lost answer
//! Reads, and a RENEW with its fence. A repeated ACQUIRE or RELEASE would be safe, but its answer would be the second
//! one's: `false`, where the first was `true`. Verbatim means that nobody stands between to translate that.

use std::io::Read as _;
use std::time::Duration;

use serde_json::Value;
use tenure_client::wire::{BODY_BYTES_MAX, Repeat, WAIT_MS_MAX};

use super::failure::Failure;
use super::{DONE, Session, output};

#[derive(Debug, clap::Args)]
pub struct Body {
    /// The body, a JSON object; - reads it from stdin
    // Not `json`: that is the id of --json.
    #[arg(value_name = "JSON", allow_hyphen_values = true)]
    body: String,
}

#[derive(Debug, clap::Subcommand)]
#[command(rename_all = "UPPER")]
pub enum Command {
    /// Make a key: {"key":…, "type":"lease" or "pool", "options":{…}}
    Create(Body),
    /// ACQUIRE, RENEW, RELEASE, HELD, BREAK, CHECK; of a pool also RESIZE, HOLDERS: {"key":…, "operation":…, "args":{…}}
    Op(Body),
    /// A key as it stands, or null: {"key":…}
    Get(Body),
    /// "lease", "pool" or null: {"key":…}
    Type(Body),
    /// Is there such a key? {"key":…}
    Exists(Body),
    /// End a key's life later: {"key":…, "ttl_ms":…}
    Expire(Body),
    /// What is left of a key's life in ms, -1 no end, -2 no key: {"key":…}
    Ttl(Body),
    /// Let a key live on: {"key":…}
    Persist(Body),
    /// Delete keys with their grants: {"keys":[…]}
    Del(Body),
    /// A page of keys: {"prefix":…, "limit":…, "cursor":…}
    Scan(Body),
    /// Several commands at one moment: {"commands":[{"command":…, …}]}
    Batch(Body),
}

impl Command {
    fn parts(self) -> (&'static str, Body) {
        match self {
            Command::Create(body) => ("CREATE", body),
            Command::Op(body) => ("OP", body),
            Command::Get(body) => ("GET", body),
            Command::Type(body) => ("TYPE", body),
            Command::Exists(body) => ("EXISTS", body),
            Command::Expire(body) => ("EXPIRE", body),
            Command::Ttl(body) => ("TTL", body),
            Command::Persist(body) => ("PERSIST", body),
            Command::Del(body) => ("DEL", body),
            Command::Scan(body) => ("SCAN", body),
            Command::Batch(body) => ("BATCH", body),
        }
    }
}

pub async fn run(session: &Session, command: Command) -> Result<u8, Failure> {
    let (name, body) = command.parts();
    let json = if body.body == "-" { stdin()? } else { body.body };
    let (repeat, wait) = (repeat(name, &json), wait(name, &json));
    let answer = session.client.call_raw_waiting(name, json.into(), repeat, wait).await?.answer;
    if session.json {
        output::json(&answer)?
    } else {
        output::bare(&answer.result)?
    }
    Ok(DONE)
}

/// One byte more than a node takes: too much is for the node to refuse.
fn stdin() -> Result<String, Failure> {
    let mut json = String::new();
    let limit = BODY_BYTES_MAX as u64 + 1;
    match std::io::stdin().lock().take(limit).read_to_string(&mut json) {
        Ok(_) => Ok(json),
        Err(error) => Err(Failure::Usage(format!("the body cannot be read from stdin: {error}"))),
    }
}

/// How long an ACQUIRE asks to wait in line: its answer is waited for that much longer. Too much is for the node to refuse.
fn wait(command: &str, json: &str) -> Duration {
    let body: Value = match command {
        "OP" => serde_json::from_str(json).unwrap_or_default(),
        _ => Value::Null,
    };
    let wait_ms = body["args"]["wait_ms"].as_u64().filter(|_| body["operation"] == "ACQUIRE");
    Duration::from_millis(wait_ms.unwrap_or(0).min(WAIT_MS_MAX))
}

fn repeat(command: &str, json: &str) -> Repeat {
    match command {
        "GET" | "TYPE" | "EXISTS" | "TTL" | "SCAN" => Repeat::Read,
        "OP" => {
            let body: Value = serde_json::from_str(json).unwrap_or_default();
            match body["operation"].as_str() {
                Some("HELD" | "CHECK" | "HOLDERS") => Repeat::Read,
                Some("RENEW") if body["args"]["fence"].is_u64() => Repeat::ByToken,
                _ => Repeat::Never,
            }
        }
        _ => Repeat::Never,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acquire_waits_as_long_as_it_says() {
        let ask = |wait: &str| format!(r#"{{"operation":"ACQUIRE","args":{{"wait_ms":{wait}}}}}"#);
        for (command, json, wanted_ms) in [
            ("OP", ask("60000"), 60_000),
            ("OP", ask("999999999999"), WAIT_MS_MAX),
            ("OP", ask("-1"), 0),
            ("OP", ask("60000").replace("ACQUIRE", "HELD"), 0),
            ("BATCH", ask("60000"), 0),
            ("OP", "{not json".to_owned(), 0),
        ] {
            assert_eq!(wait(command, &json), Duration::from_millis(wanted_ms), "{command} {json}");
        }
    }

    #[test]
    fn only_what_answers_the_same_is_repeated() {
        for (command, json, wanted) in [
            ("GET", "{}", Repeat::Read),
            ("CREATE", "{}", Repeat::Never),
            ("OP", r#"{"operation":"HELD"}"#, Repeat::Read),
            ("OP", r#"{"operation":"HOLDERS"}"#, Repeat::Read),
            ("OP", r#"{"operation":"RESIZE","args":{"size":3}}"#, Repeat::Never),
            ("OP", r#"{"operation":"RENEW","args":{"fence":3}}"#, Repeat::ByToken),
            ("OP", r#"{"operation":"RENEW","args":{"token":"t"}}"#, Repeat::Never),
            ("OP", r#"{"operation":"ACQUIRE","args":{"token":"t"}}"#, Repeat::Never),
            ("OP", r#"{"operation":"RELEASE","args":{"token":"t","fence":3}}"#, Repeat::Never),
            ("OP", "{not json", Repeat::Never),
        ] {
            assert_eq!(repeat(command, json), wanted, "{command} {json}");
        }
    }
}
