//! BATCH: its items are commands of their own, but reads of one key and waiting; `all_or_nothing` takes fewer still.

use super::fields::{Fields, Invalid};
use super::json::Json;
use super::request::{Kind, Query, Request, array, single};
use crate::keyspace::{Command, PoolUuid};

/// The body of a BATCH. Pools that it makes get uuids made of `drawn`, no two the same.
pub(super) fn commands<'a>(json: &'a Json<'a>, drawn: PoolUuid) -> Result<Command, Invalid> {
    let body = Fields::open(json, "", &["commands", "all_or_nothing"])?;
    let all_or_nothing = body.flag_if_given("all_or_nothing")?.unwrap_or(false);
    let items = array(&body, "commands", "must be an array of 1..=1000 commands")?;
    let commands = items.iter().zip(0_u32..).map(|(json, n)| {
        let read = if all_or_nothing { whole_item(json) } else { item(json, nth(drawn, n)) };
        read.map_err(|invalid| invalid.in_item(n as usize))
    });
    let commands = commands.collect::<Result<_, _>>()?;
    Ok(if all_or_nothing { Command::AllOrNothing(commands) } else { Command::Batch(commands) })
}

/// One random number makes many: they need to differ, and to be nobody else's.
fn nth(PoolUuid(mut bytes): PoolUuid, n: u32) -> PoolUuid {
    let [.., a, b, c, d] = &mut bytes;
    let last = u32::from_be_bytes([*a, *b, *c, *d]).wrapping_add(n);
    [*a, *b, *c, *d] = last.to_be_bytes();
    PoolUuid(bytes)
}

/// One item of a BATCH that is done as a whole or not at all.
fn whole_item<'a>(json: &'a Json<'a>) -> Result<Command, Invalid> {
    const RULE: &str = "must be ACQUIRE, RENEW or RELEASE in a BATCH with all_or_nothing";
    // None of what may stand here makes a pool.
    match item(json, PoolUuid::default())? {
        command @ (Command::Acquire(_)
        | Command::AcquireSlot(_)
        | Command::Renew { .. }
        | Command::RenewSlot { .. }
        | Command::Release { .. }) => Ok(command),
        Command::Held { .. } | Command::Check { .. } | Command::Break { .. } | Command::BreakSlot { .. } => {
            Err(Invalid::field("operation", RULE))
        }
        _ => Err(Invalid::field("command", "must be OP in a BATCH with all_or_nothing: ACQUIRE, RENEW or RELEASE")),
    }
}

/// One item: `{"command":…, …its body}`.
fn item<'a>(json: &'a Json<'a>, drawn: PoolUuid) -> Result<Command, Invalid> {
    const RULE: &str = "must be one of CREATE, OP, EXPIRE, PERSIST, DEL, GET";
    let Json::Object(entries) = json else {
        return Err(Invalid::field("commands", format!("must hold JSON objects; got {}", json.describe())));
    };
    let kind = match entries.iter().find(|(name, _)| name.0 == "command").map(|(_, json)| json) {
        Some(Json::Text(name)) => Kind::named(name),
        Some(other) => return Err(Invalid::field("command", format!("{RULE}; got {}", other.describe()))),
        None => return Err(Invalid::field("command", format!("is missing: it {RULE}"))),
    };
    let kind = kind
        .filter(|kind| matches!(kind, Kind::Create | Kind::Op | Kind::Expire | Kind::Persist | Kind::Del | Kind::Get));
    let kind = kind.ok_or_else(|| Invalid::field("command", RULE))?;
    match single(kind, json, &["command"], drawn)? {
        Request::Write(Command::Resize { .. }) => Err(Invalid::field(
            "operation",
            "must not be RESIZE in a BATCH: it may move every slot of a pool, send it alone",
        )),
        Request::Write(command) => Ok(command),
        Request::Read(Query::Get(key)) => Ok(Command::Get { key }),
        Request::Read(Query::Held { key, token }) => Ok(Command::Held { key, token }),
        Request::Read(Query::Check { key, fence }) => Ok(Command::Check { key, fence }),
        Request::Read(Query::Holders { .. }) => {
            Err(Invalid::field("operation", "must not be HOLDERS in a BATCH: it is a read, ask for it alone"))
        }
        Request::Wait { .. } => Err(Invalid::field("args.wait_ms", "must be 0 in a BATCH: nothing waits there")),
        Request::Read(_) => Err(Invalid::field("command", RULE)),
    }
}
