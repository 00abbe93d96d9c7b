//! Results as tables and pictures. Reads every DIR/*.jsonl, prints markdown, writes SVGs.
//!
//! A case is what was asked for (workload, clients or leases, which nodes, which reads). Per case and target the last
//! line of medians counts, so a repeated measurement replaces an older one; without one the last window does. Kills of
//! the leader are never replaced: every one counts. What failed is listed, not left out.

mod chart;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The order in which targets are shown; ratios are of the first that was measured.
const TARGETS: [&str; 6] = ["tenure", "tenure1", "etcd", "zk", "redis", "redlock"];

/// One measured case of one target.
#[derive(Clone, Default)]
struct Measure {
    ops_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// Cores of other work while it ran: what a reader should distrust.
    other_cores: f64,
}

/// Workload, then what was asked of it; ordered as shown.
type Case = (String, Vec<u64>, String);

#[derive(Default)]
struct Results {
    cases: BTreeMap<Case, BTreeMap<usize, Measure>>,
    /// Milliseconds from each kill to the first acquire, by target.
    kills: BTreeMap<usize, Vec<f64>>,
    failures: Vec<String>,
}

/// Reads, prints, draws.
pub fn report(dir: &Path, plots: &Path) -> Result<()> {
    let results = read(dir)?;
    ensure!(!results.cases.is_empty() || !results.kills.is_empty(), "{}: no result in any *.jsonl", dir.display());
    print!("{}", results.markdown());
    std::fs::create_dir_all(plots).with_context(|| plots.display().to_string())?;
    for (name, title, measure) in [
        (
            "peers-cycle.svg",
            "ACQUIRE + RELEASE on keys of one's own, cycles/s",
            Measure::throughput as fn(&Measure) -> f64,
        ),
        ("peers-cycle-p99.svg", "ACQUIRE + RELEASE on keys of one's own, p99 of a cycle, ms", Measure::p99),
    ] {
        chart::by_clients(&plots.join(name), title, &results.by_clients(measure)).map_err(drawing)?;
    }
    let bars = results.bars();
    if !bars.is_empty() {
        chart::bars(&plots.join("peers-renew-read.svg"), "Renewals and reads, per second", &bars).map_err(drawing)?;
    }
    if !results.kills.is_empty() {
        let title = "kill -9 of the leader: ms to the first acquire, each kill and the median";
        chart::kills(&plots.join("peers-failover.svg"), title, &results.kills).map_err(drawing)?;
    }
    Ok(())
}

fn drawing(error: Box<dyn std::error::Error>) -> anyhow::Error {
    anyhow::anyhow!("drawing: {error}")
}

fn read(dir: &Path) -> Result<Results> {
    let mut files: Vec<_> = std::fs::read_dir(dir)
        .with_context(|| dir.display().to_string())?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ending| ending == "jsonl"))
        .collect();
    files.sort();
    let mut results = Results::default();
    for file in files {
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        for (at, line) in text.lines().enumerate() {
            let line: Value = serde_json::from_str(line).with_context(|| format!("{}:{}", file.display(), at + 1))?;
            results.add(&line);
        }
    }
    Ok(results)
}

impl Measure {
    fn throughput(&self) -> f64 {
        self.ops_s
    }
    fn p99(&self) -> f64 {
        self.p99_ms
    }
}

impl Results {
    fn add(&mut self, line: &Value) {
        let Some(target) = TARGETS.iter().position(|name| line["target"] == *name) else { return };
        if let Some(failed) = line["failed"].as_str() {
            return self.failures.push(format!("{}: {failed}", TARGETS[target]));
        }
        if line["work"] == "w5" {
            return self.kills.entry(target).or_default().extend(line["first_acquire_ms"].as_f64());
        }
        let (Some(case), Some(ops_s)) = (case(line), line["ops_s"].as_f64()) else { return };
        let name = match case.0.as_str() {
            "w1" => "cycle",
            "w2" => "renew",
            "w3" => "handover",
            _ => "read",
        };
        let number = |field: String| line[field].as_f64().unwrap_or(f64::NAN);
        let measure = Measure {
            ops_s,
            p50_ms: number(format!("{name}_p50_ms")),
            p99_ms: number(format!("{name}_p99_ms")),
            other_cores: number("other_cores".into()),
        };
        self.cases.entry(case).or_default().insert(target, measure);
    }

    fn targets(&self) -> Vec<usize> {
        let mut all: Vec<usize> =
            self.cases.values().flat_map(BTreeMap::keys).chain(self.kills.keys()).copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn markdown(&self) -> String {
        let targets = self.targets();
        let (first, rest) = (targets[0], &targets[1..]);
        let mut out = String::new();
        let mut row = |cells: &mut dyn Iterator<Item = String>| {
            let _ = writeln!(out, "| {} |", cells.collect::<Vec<_>>().join(" | "));
        };
        let ratios = rest.iter().map(|t| format!("{} / {}", TARGETS[first], TARGETS[*t]));
        let names = targets.iter().map(|t| format!("{}: per second (p50 / p99 ms)", TARGETS[*t]));
        row(&mut ["workload".to_string()].into_iter().chain(names).chain(ratios).chain(["other cores".to_string()]));
        row(&mut vec!["---".to_string(); targets.len() + rest.len() + 2].into_iter());
        for (case, by_target) in &self.cases {
            let cell = |t: &usize| by_target.get(t).map_or_else(String::new, Measure::cell);
            let ratio = |t: &usize| match (by_target.get(&first), by_target.get(t)) {
                (Some(ours), Some(theirs)) => format!("{:.2}", ours.ops_s / theirs.ops_s),
                _ => String::new(),
            };
            let other = by_target.values().map(|m| m.other_cores).fold(0.0, f64::max);
            let cells = targets.iter().map(cell).chain(rest.iter().map(ratio));
            row(&mut [case_name(case)].into_iter().chain(cells).chain([format!("{other:.2}")]));
        }
        if !self.kills.is_empty() {
            out.push_str(
                "\n| kill -9 of the leader | kills | median ms | least | most |\n| --- | --- | --- | --- | --- |\n",
            );
        }
        for (target, kills) in &self.kills {
            let mut sorted = kills.clone();
            sorted.sort_by(f64::total_cmp);
            let (Some(least), Some(most)) = (sorted.first(), sorted.last()) else { continue };
            let (name, n, median) = (TARGETS[*target], sorted.len(), median(&sorted));
            let _ = writeln!(out, "| {name} | {n} | {median:.0} | {least:.0} | {most:.0} |");
        }
        for failure in &self.failures {
            let _ = writeln!(out, "\nfailed: {failure}");
        }
        out
    }

    /// Per target: (clients, value) of the plain cycle.
    fn by_clients(&self, value: fn(&Measure) -> f64) -> BTreeMap<usize, Vec<(f64, f64)>> {
        let mut lines: BTreeMap<usize, Vec<(f64, f64)>> = BTreeMap::new();
        for ((work, numbers, variant), by_target) in &self.cases {
            if work != "w1" || !variant.is_empty() {
                continue;
            }
            for (target, measure) in by_target {
                lines.entry(*target).or_default().push((numbers[0] as f64, value(measure)));
            }
        }
        lines
    }

    /// Per case of W2 and W4: its name and each target's rate.
    fn bars(&self) -> Vec<(String, BTreeMap<usize, f64>)> {
        self.cases
            .iter()
            .filter(|((work, ..), _)| work == "w2" || work == "w4")
            .map(|(case, by_target)| (case_name(case), by_target.iter().map(|(t, m)| (*t, m.ops_s)).collect()))
            .collect()
    }
}

impl Measure {
    fn cell(&self) -> String {
        format!("{:.0} ({:.2} / {:.2})", self.ops_s, self.p50_ms, self.p99_ms)
    }
}

fn case(line: &Value) -> Option<Case> {
    let work = line["work"].as_str()?;
    let number = |field: &str| line[field].as_u64().unwrap_or_default();
    let pin = match line["pin"].as_str() {
        None | Some("Any") => "",
        Some("Leader") => "leader",
        Some(_) => "follower",
    };
    let mut variant: Vec<&str> = vec![pin];
    let numbers = match work {
        "w1" => {
            variant.push(if line["mode"] == "full" { "lease opened and closed" } else { "" });
            vec![number("clients")]
        }
        "w2" => vec![number("leases")],
        "w3" => vec![number("clients")],
        "w4" => {
            variant.push(if line["read"] == "stale-ok" { "may be stale" } else { "" });
            vec![number("clients")]
        }
        _ => return None,
    };
    variant.retain(|word| !word.is_empty());
    Some((work.to_string(), numbers, variant.join(", ")))
}

fn case_name((work, numbers, variant): &Case) -> String {
    let n = numbers[0];
    let clients = if n == 1 { "1 client".to_string() } else { format!("{n} clients") };
    let name = match work.as_str() {
        "w1" => format!("cycle, {clients}"),
        "w2" => format!("renew, {n} leases"),
        "w3" => format!("one lock, {clients}"),
        _ => format!("read, {clients}"),
    };
    if variant.is_empty() { name } else { format!("{name}, {variant}") }
}

/// Of sorted values; of an even number the middle between two.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) { f64::midpoint(sorted[middle - 1], sorted[middle]) } else { sorted[middle] }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use serde_json::json;

    #[test]
    fn a_later_measurement_replaces_an_older_one_and_kills_add_up() {
        let mut results = Results::default();
        for ops_s in [100.0, 300.0] {
            results.add(&json!({"target": "tenure", "work": "w1", "mode": "held-lease", "clients": 64, "pin": "Any",
                "ops_s": ops_s, "cycle_p50_ms": 1.0, "cycle_p99_ms": 2.0, "other_cores": 0.1}));
        }
        results.add(&json!({"target": "etcd", "work": "w1", "mode": "held-lease", "clients": 64, "pin": "Any",
            "ops_s": 60.0, "cycle_p50_ms": 3.0, "cycle_p99_ms": 4.0, "other_cores": 0.2}));
        for ms in [10.0, 30.0, 20.0, 40.0] {
            results.add(&json!({"target": "tenure", "work": "w5", "first_acquire_ms": ms}));
        }
        results.add(&json!({"target": "etcd", "failed": "w5 --before 2"}));
        let text = results.markdown();
        assert!(text.contains("| cycle, 64 clients | 300 (1.00 / 2.00) | 60 (3.00 / 4.00) | 5.00 | 0.20 |"), "{text}");
        assert!(text.contains("| tenure | 4 | 25 | 10 | 40 |"), "{text}");
        assert!(text.ends_with("failed: etcd: w5 --before 2\n"), "{text}");
    }
}
