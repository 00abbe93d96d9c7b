//! Listens to what the keyspace applies: hands it to the requests that wait here and to those who watch, counts it, and writes a line for each
//! lease that expired.
//!
//! The sink is called inside apply, so it only counts and hands over: lines are written by a thread of their own from a
//! bounded queue. When expiries come faster than the log takes them, lines are dropped and counted, never waited for.
//! What is applied again after a restart is neither counted nor logged.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use tenure_cluster::cluster::EventSink;
use tenure_cluster::{EventAt, Heard};
use tracing::info;

use crate::api::metrics::Metrics;
use crate::edge::Requests;
use crate::edge::history::History;
use crate::keyspace::{Event, EventKind};

/// Lines that may wait.
const LINES_MAX: usize = 8_192;

/// Who listens on this node.
#[derive(Default)]
pub struct Ears {
    /// Counts.
    pub metrics: Arc<Metrics>,
    /// Answers the requests that wait here.
    pub requests: Arc<Requests>,
    /// Keeps it for those who watch.
    pub history: Arc<History>,
}

/// The sink, and its thread, which ends when the sink is dropped.
///
/// # Errors
/// When the system makes no thread.
pub fn sink(ears: Ears) -> io::Result<EventSink<Event>> {
    let Ears { metrics, requests, history } = ears;
    let (lines, queue) = sync_channel(LINES_MAX);
    thread::Builder::new().name("expiry-log".to_owned()).spawn(move || write_lines(&queue))?;
    Ok(Arc::new(move |heard| {
        // First: clients wait for it.
        requests.hear(heard);
        history.hear(heard);
        if let Heard::Event(at, event) = heard {
            take(&metrics, &lines, at, event);
        }
    }))
}

fn take(metrics: &Metrics, lines: &SyncSender<(EventAt, Event)>, at: EventAt, event: &Event) {
    if at.replay {
        return;
    }
    metrics.event(event);
    if event.kind == EventKind::Expired && lines.try_send((at, event.clone())).is_err() {
        metrics.expiries_unlogged.inc();
    }
}

fn write_lines(queue: &Receiver<(EventAt, Event)>) {
    for (at, event) in queue {
        info!(
            key = &*event.key,
            fence = event.fence,
            owner = event.owner.as_deref(),
            last_renewed_ms_ago = event.last_renewed.map(|last| at.stamp.ms_since(last)),
            position = %at.position,
            "lease expired"
        );
    }
}
