//! Listens to what the keyspace applies: hands it to the requests that wait here and to those who watch, counts it, and writes a line for each
//! grant that expired and for each pool that comes to be nearly full ([`fullness`]).
//!
//! The sink is called inside apply, so it only counts and hands over: lines are written by a thread of their own from a
//! bounded queue. When they come faster than the log takes them, lines are dropped and counted, never waited for.
//! What is applied again after a restart is neither counted nor logged.

mod fullness;

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use tenure_cluster::cluster::EventSink;
use tenure_cluster::{EventAt, Heard};
use tracing::{info, warn};

use self::fullness::{Fullness, NearlyFull};
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

/// What is written.
enum Line {
    Expired(EventAt, Event),
    NearlyFull(NearlyFull),
}

/// The sink, and its thread, which ends when the sink is dropped.
///
/// # Errors
/// When the system makes no thread.
pub fn sink(ears: Ears) -> io::Result<EventSink<Event>> {
    let Ears { metrics, requests, history } = ears;
    let (lines, queue) = sync_channel(LINES_MAX);
    thread::Builder::new().name("event-log".to_owned()).spawn(move || write_lines(&queue))?;
    // Events come one after the other: nobody waits for it.
    let fullness = Mutex::<Fullness>::default();
    Ok(Arc::new(move |heard| {
        // First: clients wait for it.
        requests.hear(heard);
        history.hear(heard);
        if let Heard::Event(at, event) = heard {
            take(&metrics, &fullness, &lines, at, event);
        }
    }))
}

fn take(metrics: &Metrics, fullness: &Mutex<Fullness>, lines: &SyncSender<Line>, at: EventAt, event: &Event) {
    if at.replay {
        return;
    }
    metrics.event(event);
    if event.kind == EventKind::Expired && lines.try_send(Line::Expired(at, event.clone())).is_err() {
        metrics.expiries_unlogged.inc();
    }
    let nearly_full = fullness.lock().unwrap_or_else(PoisonError::into_inner).hear(event);
    if let Some(nearly_full) = nearly_full {
        // A full queue of expiries says that much is wrong already; the gauges tell of the pool.
        let _ = lines.try_send(Line::NearlyFull(nearly_full));
    }
}

fn write_lines(queue: &Receiver<Line>) {
    for line in queue {
        match line {
            Line::Expired(at, event) => expired(&at, &event),
            Line::NearlyFull(NearlyFull { pool, held, size }) => {
                warn!(pool = &*pool, held, size, "pool is nearly full: RESIZE it, or see who holds (HOLDERS)");
            }
        }
    }
}

fn expired(at: &EventAt, event: &Event) {
    info!(
        key = &*event.key,
        slot = event.slot.as_ref().map(|slot| slot.id),
        fence = event.fence,
        owner = event.owner.as_deref(),
        last_renewed_ms_ago = event.last_renewed.map(|last| at.stamp.ms_since(last)),
        position = %at.position,
        "lease expired"
    );
}
