//! A closed loop: each client sends its next operation when the last one was answered.
//!
//! An operation counts if it began inside the window (after the warm-up, before the end), however long it took: a stall
//! at the end is not hidden. Its rate is taken over the time until the last counted one was answered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tenure_client::{Endpoint, Token, Uri};
use tokio::task::JoinSet;

use super::connection::{Connection, Fault};
use super::workload::{Script, Shot, Workload};

/// One operation that takes longer is a failure.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(30);
/// Before connecting again.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);
/// Latencies are kept in microseconds with three significant digits.
const DIGITS: u8 = 3;

/// What to run.
#[derive(Clone, Debug)]
pub struct Load {
    /// The nodes; clients take them in turn.
    pub uri: Uri,
    /// What each operation is.
    pub workload: Workload,
    /// Connections.
    pub clients: usize,
    /// Different keys; clients take them in turn.
    pub keys: usize,
    /// What the keys begin with.
    pub prefix: String,
    /// Not measured.
    pub warmup: Duration,
    /// Measured.
    pub duration: Duration,
}

impl Load {
    /// The keys that are used.
    pub fn all_keys(&self) -> Vec<String> {
        (0..self.keys.min(self.clients)).map(|index| format!("{}{index}", self.prefix)).collect()
    }
}

/// What came of it.
#[derive(Debug)]
pub struct Measure {
    /// Connections.
    pub clients: usize,
    /// Microseconds of each counted operation.
    pub latency_us: Histogram<u64>,
    /// From the window's begin until the last counted operation was answered.
    pub elapsed: Duration,
    /// Operations of the window that failed, by code.
    pub failures: BTreeMap<String, u64>,
}

impl Measure {
    /// Counted operations per second.
    pub fn rate(&self) -> f64 {
        self.latency_us.len() as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// Why there is nothing to measure.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A client could not even begin.
    #[error("{endpoint}: {code}")]
    Start {
        /// The node.
        endpoint: Endpoint,
        /// What happened.
        code: String,
    },
    /// A client was not written down.
    #[error("the requests cannot be prepared: {0}")]
    Prepare(String),
}

/// Runs it. `done` counts finished operations, for who watches.
pub async fn run(load: &Load, done: &Arc<AtomicU64>) -> Result<Measure, LoadError> {
    let mut ready = Vec::new();
    for index in 0..load.clients {
        ready.push(Client::prepare(load, index, done).await?);
    }
    let begin = Instant::now() + load.warmup;
    let end = begin + load.duration;
    let mut tasks: JoinSet<Client> = ready.into_iter().map(|client| client.run(begin, end)).collect();
    let mut measure =
        Measure { clients: load.clients, latency_us: histogram()?, elapsed: load.duration, failures: BTreeMap::new() };
    while let Some(client) = tasks.join_next().await {
        let client = client.map_err(|error| LoadError::Prepare(error.to_string()))?;
        measure.latency_us.add(&client.latency_us).map_err(|error| LoadError::Prepare(error.to_string()))?;
        measure.elapsed = measure.elapsed.max(client.last.saturating_duration_since(begin));
        for (code, count) in client.failures {
            *measure.failures.entry(code).or_default() += count;
        }
    }
    Ok(measure)
}

struct Client {
    endpoint: Endpoint,
    script: Script,
    connection: Option<Connection>,
    done: Arc<AtomicU64>,
    latency_us: Histogram<u64>,
    failures: BTreeMap<String, u64>,
    last: Instant,
}

impl Client {
    /// Connected, and where the workload needs it holding its lease.
    async fn prepare(load: &Load, index: usize, done: &Arc<AtomicU64>) -> Result<Self, LoadError> {
        let endpoints = load.uri.endpoints();
        let endpoint = endpoints[index % endpoints.len()].clone();
        let key = format!("{}{}", load.prefix, index % load.keys);
        let owner_of_token = if load.workload.shares_token() { index % load.keys } else { index };
        let token = Token::from(format!("{}{owner_of_token}", load.prefix));
        let script = load.workload.script(&key, &token).map_err(|error| LoadError::Prepare(error.to_string()))?;
        let mut client = Self {
            endpoint,
            script,
            connection: None,
            done: Arc::clone(done),
            latency_us: histogram()?,
            failures: BTreeMap::new(),
            last: Instant::now(),
        };
        match client.connect().await {
            Ok(()) => Ok(client),
            Err(fault) => Err(LoadError::Start { endpoint: client.endpoint, code: fault.code() }),
        }
    }

    async fn run(mut self, begin: Instant, end: Instant) -> Self {
        loop {
            let start = Instant::now();
            if start >= end {
                break;
            }
            let outcome = self.operate().await;
            self.done.fetch_add(1, Ordering::Relaxed);
            if start < begin {
                continue;
            }
            self.last = Instant::now();
            match outcome {
                Ok(()) => self.latency_us.saturating_record(micros(self.last - start)),
                Err(fault) => *self.failures.entry(fault.code()).or_default() += 1,
            }
        }
        let after = Arc::clone(&self.script.after);
        // What cannot be given back ends with its ttl.
        let _best_effort = self.all(&after).await;
        self
    }

    async fn operate(&mut self) -> Result<(), Fault> {
        if !self.connection.as_ref().is_some_and(Connection::is_open) {
            tokio::time::sleep(RECONNECT_PAUSE).await;
            self.connect().await?;
        }
        let operation = Arc::clone(&self.script.operation);
        let outcome = match tokio::time::timeout(OPERATION_TIMEOUT, self.all(&operation)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Fault::Failed("timeout".to_owned())),
        };
        if matches!(outcome, Err(Fault::Failed(_))) {
            // It is not known how far it came: the next operation begins with a new connection, from the beginning.
            self.connection = None;
        }
        outcome
    }

    async fn connect(&mut self) -> Result<(), Fault> {
        self.connection = Some(Connection::open(&self.endpoint).await?);
        let before = Arc::clone(&self.script.before);
        match self.all(&before).await {
            Err(Fault::Refused(_)) => Ok(()),
            outcome => outcome,
        }
    }

    async fn all(&mut self, shots: &[Shot]) -> Result<(), Fault> {
        let Some(connection) = &mut self.connection else { return Err(Fault::Failed("not connected".to_owned())) };
        for shot in shots {
            connection.shoot(shot).await?;
        }
        Ok(())
    }
}

fn histogram() -> Result<Histogram<u64>, LoadError> {
    let highest_us = micros(OPERATION_TIMEOUT);
    Histogram::new_with_bounds(1, highest_us, DIGITS).map_err(|error| LoadError::Prepare(error.to_string()))
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
