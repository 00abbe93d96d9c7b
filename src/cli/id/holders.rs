//! `tenure id holders`: who has which id. Each page is true at its own moment, a long list at none.

use serde_json::Value;
use tenure_client::wire::{Holder, HoldersArgs, ITEMS_MAX, Op};

use super::super::duration::shown;
use super::super::failure::{Failure, say};
use super::super::get::ended;
use super::super::table::{Table, card};
use super::super::{DONE, NOT_SO, Session, output};

/// List who holds the ids of a pool: holder, fence, time left
///
/// With --json one object a line, as HOLDERS answers it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pool
    #[arg(value_name = "POOL")]
    pool: String,
    /// Free ids too, if they were given before: who had them, and when others may
    #[arg(long, conflicts_with = "id")]
    all: bool,
    /// All that is known of this id; exits 1 if it was never given
    #[arg(long, value_name = "ID")]
    id: Option<u32>,
}

pub async fn run(session: &Session, args: Args) -> Result<u8, Failure> {
    match args.id {
        Some(id) => one(session, &args.pool, id).await,
        None => all(session, &args).await,
    }
}

/// A slot as it stands; `None`: it was never given.
pub async fn holder(session: &Session, pool: &str, id: u32) -> Result<Option<Value>, Failure> {
    let ask = HoldersArgs { id: Some(id), ..HoldersArgs::default() };
    let mut page = session.client.call(&Op::new(pool, ask)).await?.answer.result;
    Ok(slots(&mut page)?.into_iter().next())
}

async fn one(session: &Session, pool: &str, id: u32) -> Result<u8, Failure> {
    let Some(slot) = holder(session, pool, id).await? else {
        say(&format!("{pool}: id {id} was never given"));
        return Ok(NOT_SO);
    };
    if session.json {
        output::line(&slot.to_string());
    } else {
        output::text(&slot_card(pool, &read(slot)?));
    }
    Ok(DONE)
}

async fn all(session: &Session, args: &Args) -> Result<u8, Failure> {
    let mut table = Table::default();
    let mut rows = vec![["ID", "HELD", "HOLDER", "FENCE", "EXPIRES IN", "FREE IN"].map(str::to_owned)];
    let mut cursor = None;
    loop {
        let ask = HoldersArgs { id: None, all: Some(args.all), limit: Some(ITEMS_MAX as u64), cursor };
        let mut page = session.client.call(&Op::new(args.pool.clone(), ask)).await?.answer.result;
        let slots = slots(&mut page)?;
        if session.json {
            slots.iter().for_each(|slot| output::line(&slot.to_string()));
        } else {
            for slot in slots {
                rows.push(row(&read(slot)?));
            }
            output::text(&table.page(&std::mem::take(&mut rows)));
        }
        cursor = page["cursor"].as_u64().and_then(|cursor| u32::try_from(cursor).ok());
        if cursor.is_none() {
            return Ok(DONE);
        }
    }
}

fn slots(page: &mut Value) -> Result<Vec<Value>, Failure> {
    match page.get_mut("holders").map(Value::take) {
        Some(Value::Array(slots)) => Ok(slots),
        _ => Err(Failure::Answer("the node answered no list of holders".to_owned())),
    }
}

/// What HOLDERS answered of one, if it is what this version knows.
pub fn read(slot: Value) -> Result<Holder, Failure> {
    serde_json::from_value(slot).map_err(|error| Failure::Answer(format!("the node answered something else: {error}")))
}

fn row(slot: &Holder) -> [String; 6] {
    let none = || "-".to_owned();
    [
        slot.id.to_string(),
        if slot.held { "yes" } else { "no" }.to_owned(),
        who(slot).cloned().unwrap_or_else(none),
        slot.fence.map_or_else(none, |fence| fence.to_string()),
        slot.ttl_ms.map_or_else(none, shown),
        match slot.free_in_ms.filter(|_| !slot.held) {
            Some(0) => "now".to_owned(),
            Some(ms) => shown(ms),
            None => none(),
        },
    ]
}

/// Who has it, or had it last.
fn who(slot: &Holder) -> Option<&String> {
    let last = slot.last.as_ref().map(|last| &last.owner).filter(|_| !slot.held);
    last.or(slot.identity.as_ref()).or(slot.owner.as_ref())
}

/// The card of a slot.
pub fn slot_card(pool: &str, slot: &Holder) -> String {
    let free = || match slot.free_in_ms {
        Some(0) | None => "no".to_owned(),
        Some(ms) => format!("no, kept back for {}", shown(ms)),
    };
    let anonymous = slot.identity.is_none();
    card([
        ("pool", Some(pool.to_owned())),
        ("id", Some(slot.id.to_string())),
        ("held", Some(if slot.held { "yes".to_owned() } else { free() })),
        ("identity", slot.identity.clone().filter(|_| slot.held)),
        ("kept for", slot.identity.clone().filter(|_| !slot.held)),
        ("owner", slot.owner.clone().filter(|_| anonymous)),
        ("fence", slot.fence.map(|fence| fence.to_string())),
        ("expires in", slot.ttl_ms.map(|ms| format!("{} unless renewed", shown(ms)))),
        ("held for", slot.held_for_ms.map(shown)),
        ("acquired at", slot.acquired_at.clone()),
        ("note", slot.note.clone()),
        ("broken", slot.broken.clone()),
        ("last grant", slot.last.as_ref().map(ended)),
    ])
}

#[cfg(test)]
mod tests {
    use tenure_client::wire::EndedGrant;

    use super::*;

    #[test]
    fn a_held_and_a_free_one() {
        let held = Holder {
            id: 3,
            held: true,
            identity: Some("pod-1".into()),
            owner: Some("pod-1".into()),
            fence: Some(17),
            ttl_ms: Some(29_000),
            held_for_ms: Some(1_000),
            ..Holder::default()
        };
        assert_eq!(row(&held), ["3", "yes", "pod-1", "17", "29s", "-"]);
        let wanted = "pool        ids\nid          3\nheld        yes\nidentity    pod-1\nfence       17\n\
                      expires in  29s unless renewed\nheld for    1s\n";
        assert_eq!(slot_card("ids", &held), wanted);
        let last = EndedGrant { fence: 17, owner: "pod-1".into(), reason: "expired".into(), ..EndedGrant::default() };
        let free = Holder {
            id: 3,
            identity: Some("pod-1".into()),
            free_in_ms: Some(60_000),
            last: Some(last),
            ..Holder::default()
        };
        assert_eq!(row(&free), ["3", "no", "pod-1", "-", "-", "1m"]);
        let broken = Holder { identity: None, ..free.clone() };
        assert_eq!(row(&broken)[2], "pod-1", "kept for nobody after a BREAK, but it had it");
        let wanted = "pool        ids\nid          3\nheld        no, kept back for 1m\nkept for    pod-1\n\
                      last grant  fence 17 of pod-1, expired\n";
        assert_eq!(slot_card("ids", &free), wanted);
    }

    #[test]
    fn an_anonymous_one_has_an_owner() {
        let held = Holder { id: 0, held: true, owner: Some("host:7".into()), ..Holder::default() };
        assert_eq!(row(&held)[2], "host:7");
        assert!(slot_card("gpus", &held).contains("owner  host:7"));
    }
}
