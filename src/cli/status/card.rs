//! One node's own report, as a card.

use serde_json::Value;

use crate::cli::duration::shown;
use crate::cli::table::card;

/// What the report says; what it does not say is left out.
pub fn status_card(status: &Value) -> String {
    let text = |name: &str| match &status[name] {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        value => Some(value.to_string()),
    };
    let ready = match (&status["ready"], text("not_ready")) {
        (Value::Bool(true), _) => Some("yes".to_owned()),
        (_, Some(why)) => Some(format!("no: {why}")),
        _ => None,
    };
    let index = |name| status[name].as_u64().map(|index| index.to_string());
    let log =
        [("last", index("last_index")), ("committed", index("committed_index")), ("applied", index("applied_index"))];
    let log: Vec<String> = log.into_iter().filter_map(|(name, index)| Some(format!("{name} {}", index?))).collect();
    let snapshot = &status["snapshot"];
    let snapshot = snapshot["index"].as_u64().map(|index| {
        let bytes = snapshot["bytes"].as_u64().map(size).unwrap_or_default();
        let age = snapshot["age_ms"].as_u64().map(shown).unwrap_or_default();
        format!("up to {index}, {bytes}, {age} old")
    });
    let disk = &status["disk"];
    let disk = disk["free_bytes"].as_u64().map(|free| {
        let total = disk["total_bytes"].as_u64().map(size).unwrap_or_default();
        format!("{} free of {total}", size(free))
    });
    card([
        ("node", text("node_id")),
        ("role", text("role")),
        ("leader", text("leader")),
        ("ready", ready),
        ("members", members(status)),
        ("cluster", text("cluster_id")),
        ("term", text("term")),
        ("log", Some(log.join(", ")).filter(|log| !log.is_empty())),
        ("log size", status["log_bytes"].as_u64().map(size)),
        ("snapshot", snapshot),
        ("disk", disk),
        ("keys", text("keys")),
        ("leases held", text("leases_held")),
        ("cluster clock", text("clock_ms").map(|ms| format!("{ms} ms"))),
        ("rho", text("rho")),
        ("up for", status["uptime_ms"].as_u64().map(|ms| shown(ms / 1000 * 1000))),
        ("version", text("version")),
    ])
}

fn members(status: &Value) -> Option<String> {
    let name = |member: &Value| {
        let id = member["node_id"].as_u64()?;
        Some(format!("{id} at {}", member["address"].as_str()?))
    };
    let all: Vec<String> = status["members"].as_array()?.iter().filter_map(name).collect();
    Some(all.join(", ")).filter(|all| !all.is_empty())
}

/// Bytes for people.
fn size(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{}.{} {name}", bytes / unit, bytes % unit * 10 / unit),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_of_what_is_said() {
        let status = serde_json::json!({
            "node_id": 1, "role": "leader", "leader": 1, "ready": false, "not_ready": "disk_full", "term": 3,
            "members": [{"node_id": 1, "address": "127.0.0.1:13378", "peer_address": null}],
            "last_index": 9, "committed_index": 8, "applied_index": 7, "log_bytes": 1_572_864, "snapshot": null,
            "rho": 0.01
        });
        let wanted = "\
node      1
role      leader
leader    1
ready     no: disk_full
members   1 at 127.0.0.1:13378
term      3
log       last 9, committed 8, applied 7
log size  1.5 MiB
rho       0.01
";
        assert_eq!(status_card(&status), wanted);
    }

    #[test]
    fn a_later_node_may_say_anything() {
        assert_eq!(status_card(&serde_json::json!({"members": 3, "snapshot": "x"})), "");
        assert_eq!(status_card(&Value::Null), "");
    }
}
