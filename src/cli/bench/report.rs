//! The figures of a benchmark, for people and for programs.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::load::Measure;
use super::workload::Workload;

/// One line of the report; times in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Connections.
    pub clients: usize,
    /// Operations that count.
    pub ops: u64,
    /// Per second.
    pub ops_per_s: f64,
    /// Latency.
    pub latency_us: Latency,
    /// Failed operations by code.
    pub errors: BTreeMap<String, u64>,
}

/// Microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// Arithmetic mean.
    pub mean: f64,
    /// Half are faster.
    pub p50: u64,
    /// Nine of ten are faster.
    pub p90: u64,
    /// 99 %.
    pub p99: u64,
    /// 99.9 %.
    pub p999: u64,
    /// The slowest.
    pub max: u64,
}

/// All of it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What each operation was.
    pub workload: Workload,
    /// The nodes.
    pub uri: String,
    /// Keys; null: one per client.
    pub keys: Option<usize>,
    /// Of the window.
    pub duration_ms: u64,
    /// Before it.
    pub warmup_ms: u64,
    /// One per number of clients.
    pub results: Vec<Row>,
}

impl From<&Measure> for Row {
    fn from(measure: &Measure) -> Self {
        let latency = &measure.latency_us;
        Self {
            clients: measure.clients,
            ops: latency.len(),
            ops_per_s: measure.rate(),
            latency_us: Latency::from(latency),
            errors: measure.failures.clone(),
        }
    }
}

impl From<&Histogram<u64>> for Latency {
    fn from(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile);
        Self {
            mean: histogram.mean(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: histogram.max(),
        }
    }
}

/// The columns of [`cells`].
pub const HEADER: [&str; 9] = ["CLIENTS", "OPS/S", "P50 MS", "P90 MS", "P99 MS", "P99.9 MS", "MAX MS", "OPS", "ERRORS"];

/// A row of the table.
pub fn cells(row: &Row) -> [String; 9] {
    let latency = &row.latency_us;
    let errors: Vec<String> = row.errors.iter().map(|(code, count)| format!("{code} {count}")).collect();
    let errors = if errors.is_empty() { "0".to_owned() } else { errors.join(", ") };
    [
        row.clients.to_string(),
        format!("{:.0}", row.ops_per_s),
        ms(latency.p50),
        ms(latency.p90),
        ms(latency.p99),
        ms(latency.p999),
        ms(latency.max),
        row.ops.to_string(),
        errors,
    ]
}

/// Milliseconds with three significant digits or so.
pub fn ms(us: u64) -> String {
    let ms = us as f64 / 1_000.0;
    match us {
        0..10_000 => format!("{ms:.2}"),
        10_000..100_000 => format!("{ms:.1}"),
        _ => format!("{ms:.0}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;

    #[test]
    fn figures_of_known_latencies() {
        let mut latency_us = Histogram::new_with_bounds(1, 10_000_000, 3).unwrap();
        for us in 1..=1_000 {
            latency_us.record(us).unwrap();
        }
        let failures = BTreeMap::from([("held".to_owned(), 2)]);
        let measure = Measure { clients: 4, latency_us, elapsed: Duration::from_millis(500), failures };
        let row = Row::from(&measure);
        assert_eq!(cells(&row), ["4", "2000", "0.50", "0.90", "0.99", "1.00", "1.00", "1000", "held 2"]);
    }

    #[test]
    fn milliseconds_keep_their_digits() {
        assert_eq!([ms(7), ms(1_234), ms(12_345), ms(123_456)], ["0.01", "1.23", "12.3", "123"]);
    }
}
