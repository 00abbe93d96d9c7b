//! `tenure ls`: all keys, page by page. Each page is true at its own moment, a long list at none.

use serde_json::Value;
use tenure_client::wire::{ITEMS_MAX, Scan, Snapshot};

use super::duration::shown;
use super::failure::Failure;
use super::get::{held_of_size, snapshot};
use super::table::Table;
use super::{DONE, Session, output};

/// List keys: held or not, owner, fence, time left, how many wait
///
/// Of a pool: how many of its slots are held; who holds them lists `tenure id holders`.
/// With --json one object a line, as GET answers it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only keys that start so
    prefix: Option<String>,
    /// At most so many keys [default: all]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Only leases that are held, and pools with a slot that is
    #[arg(long)]
    held: bool,
}

pub async fn run(session: &Session, args: Args) -> Result<u8, Failure> {
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut table = Table::default();
    let mut cursor = None;
    let mut rows = vec![header()];
    while left > 0 {
        // A filter may need more keys than it shows.
        let limit = if args.held { ITEMS_MAX as u64 } else { left.min(ITEMS_MAX as u64) };
        let scan = Scan { prefix: args.prefix.clone(), limit: Some(limit), cursor };
        let mut page = session.client.call(&scan).await?.answer.result;
        let Some(Value::Array(mut keys)) = page.get_mut("keys").map(Value::take) else {
            return Err(Failure::Answer("the node answered no list of keys".to_owned()));
        };
        keys.retain(|lease| lease["held"] == true || !args.held);
        keys.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        left -= keys.len() as u64;
        if session.json {
            keys.iter().for_each(|lease| output::line(&lease.to_string()));
        } else {
            for lease in keys {
                rows.push(row(&snapshot(lease)?));
            }
            output::text(&table.page(&std::mem::take(&mut rows)));
        }
        cursor = page["cursor"].as_str().map(str::to_owned);
        if cursor.is_none() {
            break;
        }
    }
    Ok(DONE)
}

fn header() -> [String; 7] {
    ["KEY", "TYPE", "HELD", "OWNER", "FENCE", "EXPIRES IN", "WAITERS"].map(str::to_owned)
}

fn row(lease: &Snapshot) -> [String; 7] {
    let none = || "-".to_owned();
    let yes_or_no = || if lease.held { "yes" } else { "no" }.to_owned();
    [
        lease.key.clone(),
        lease.kind.clone(),
        held_of_size(lease).unwrap_or_else(yes_or_no),
        lease.owner.clone().unwrap_or_else(none),
        lease.fence.map_or_else(none, |fence| fence.to_string()),
        lease.ttl_ms.map_or_else(none, shown),
        if lease.waiters == 0 { none() } else { lease.waiters.to_string() },
    ]
}

#[cfg(test)]
mod tests {
    use tenure_client::wire::{KeyOptions, SlotCounts};

    use super::*;

    #[test]
    fn a_pool_says_how_many_are_held() {
        let pool = Snapshot {
            key: "ids".into(),
            kind: "pool".into(),
            held: true,
            waiters: 2,
            slots: Some(SlotCounts { held: 3, quarantined: 1, free: 508 }),
            options: Some(KeyOptions { size: Some(512), ..KeyOptions::default() }),
            ..Snapshot::default()
        };
        assert_eq!(row(&pool), ["ids", "pool", "3/512", "-", "-", "-", "2"]);
        let lease = Snapshot { key: "k".into(), kind: "lease".into(), ..Snapshot::default() };
        assert_eq!(row(&lease)[..3], ["k", "lease", "no"]);
    }
}
