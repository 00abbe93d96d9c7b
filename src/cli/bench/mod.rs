//! `tenure bench`: what this cluster does here, in a closed loop.
//!
//! [`workload`] is what is asked, [`connection`] how, [`load`] the loop, [`report`] and [`chart`] the figures. The keys
//! are the benchmark's own (`bench:<random>:…`); they are deleted at the end.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use tenure_client::wire::{Del, Expire};
use tenure_client::{Client, Token, Uri};

use super::duration::{self, millis};
use super::failure::{Failure, say};
use super::table::Table;
use super::{DONE, NOT_SO, Session, output};

mod chart;
mod connection;
mod load;
mod report;
mod workload;

use load::{Load, Measure};
use report::{HEADER, Report, Row, cells};
use workload::Workload;

/// Connections of one loop at most.
const CLIENTS_MAX: usize = 10_000;
/// Keys of one DEL.
const DEL_KEYS: usize = 1_000;
/// Keys that a killed benchmark leaves behind vanish by themselves after so long, in addition to its own time.
const LEFT_MS: u64 = 86_400_000;
/// How often the progress bar moves.
const FRAME: Duration = Duration::from_millis(100);

/// Measure operations per second and latency in a closed loop
///
/// An operation that was refused or failed counts as an error, not as an operation.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What each operation is
    #[arg(long, value_enum, default_value_t = Workload::Cycle)]
    workload: Workload,
    /// Connections, each with one operation at a time; several numbers are measured one after the other
    #[arg(long, value_delimiter = ',', default_value = "1,16,64", value_parser = clients)]
    clients: Vec<usize>,
    /// How long to measure, for each number of clients, with a unit
    #[arg(long, default_value = "10s", value_parser = duration::parse)]
    duration: Duration,
    /// How long to run before that, with a unit
    #[arg(long, default_value = "1s", value_parser = duration::parse)]
    warmup: Duration,
    /// Different keys; fewer than clients make them compete, but for slots [default: one per client; one pool]
    #[arg(long, value_parser = clients)]
    keys: Option<usize>,
    /// Write the latencies as a picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

fn clients(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(number @ 1..=CLIENTS_MAX) => Ok(number),
        _ => Err(format!("a number of 1..={CLIENTS_MAX}")),
    }
}

/// Measures, prints, draws. 1 if no operation succeeded.
pub async fn run(session: &Session, uri: &Uri, args: Args) -> Result<u8, Failure> {
    if args.duration.is_zero() {
        return Err(Failure::Usage("--duration: longer than zero".to_owned()));
    }
    // Says what to do if there is no node.
    session.client.status().await?;
    let random = Token::random().map_err(|error| Failure::Usage(format!("no randomness for keys: {error}")))?;
    let prefix = format!("bench:{}:", &random.expose()[..8]);
    let mut table = Table::default();
    if !session.json {
        // Room for any figure: the table is printed row by row.
        output::text(&table.page(&[HEADER.map(|name| format!("{name:<8}"))]));
    }
    let mut measures = Vec::new();
    for clients in args.clients.iter().copied() {
        let load = Load {
            uri: uri.clone(),
            workload: args.workload,
            clients,
            keys: args.keys.unwrap_or(args.workload.keys(clients)),
            prefix: prefix.clone(),
            warmup: args.warmup,
            duration: args.duration,
        };
        let measured = match make_keys(&session.client, &load).await {
            Ok(()) => watched(&load).await.map_err(|error| Failure::Answer(error.to_string())),
            Err(error) => Err(error),
        };
        clean_up(&session.client, &load).await;
        let measure = measured?;
        if !session.json {
            output::text(&table.page(&[cells(&Row::from(&measure))]));
        }
        measures.push(measure);
    }
    finish(session, uri, &args, &measures)
}

fn finish(session: &Session, uri: &Uri, args: &Args, measures: &[Measure]) -> Result<u8, Failure> {
    if session.json {
        output::json(&Report {
            workload: args.workload,
            uri: uri.to_string(),
            keys: args.keys,
            duration_ms: millis(args.duration),
            warmup_ms: millis(args.warmup),
            results: measures.iter().map(Row::from).collect(),
        })?;
    }
    let succeeded = measures.iter().any(|measure| !measure.latency_us.is_empty());
    if let Some(path) = args.svg.as_ref().filter(|_| succeeded) {
        let title = format!("{}: latency by percentile", args.workload.title());
        chart::draw(path, &title, measures).map_err(Failure::Answer)?;
    }
    Ok(if succeeded { DONE } else { NOT_SO })
}

/// Runs a load behind a progress bar, if somebody looks.
async fn watched(load: &Load) -> Result<Measure, load::LoadError> {
    let done = Arc::new(AtomicU64::new(0));
    if !std::io::stderr().is_terminal() {
        return load::run(load, &done).await;
    }
    let total = load.warmup + load.duration;
    let bar = ProgressBar::new(millis(total));
    let style = ProgressStyle::with_template("{prefix:>12} {wide_bar} {msg:>14}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_prefix(format!("{} clients", load.clients));
    let start = Instant::now();
    let measuring = load::run(load, &done);
    tokio::pin!(measuring);
    let mut frames = tokio::time::interval(FRAME);
    let mut before = 0;
    loop {
        tokio::select! {
            measured = &mut measuring => {
                bar.finish_and_clear();
                return measured;
            }
            _ = frames.tick() => {
                let now = done.load(Ordering::Relaxed);
                bar.set_position(millis(start.elapsed().min(total)));
                bar.set_message(format!("{:.0} ops/s", (now - before) as f64 / FRAME.as_secs_f64()));
                before = now;
            }
        }
    }
}

/// Makes the keys, where the operation does not.
async fn make_keys(client: &Client, load: &Load) -> Result<(), Failure> {
    let ttl_ms = millis(load.warmup).saturating_add(millis(load.duration)).saturating_add(LEFT_MS);
    for create in load.all_keys().iter().filter_map(|key| load.workload.create(key, load.clients)) {
        client.call(&create).await?;
        client.call(&Expire { key: create.key, ttl_ms }).await?;
    }
    Ok(())
}

/// Deletes the keys. A benchmark that is killed leaves free keys behind, which vanish by themselves after a day.
async fn clean_up(client: &Client, load: &Load) {
    for keys in load.all_keys().chunks(DEL_KEYS) {
        if let Err(error) = client.call(&Del { keys: keys.to_vec(), fence: None }).await {
            say(&format!("the keys {}* stay until they vanish by themselves: {error}", load.prefix));
            return;
        }
    }
}
