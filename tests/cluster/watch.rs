//! Watches that outlive the nodes they are read from.
//!
//! Four readers watch while nodes are killed under load: one at each node alone, and one that knows all nodes. What any of
//! them is told is of one log. So between two resets each must have been told everything that any of them was told of
//! there, once and in order. `TENURE_CLUSTER_ROUNDS` kills more often; from [`LONG`] on the logs are compacted on the way.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::json;
use tenure_client::wire::Event;
use tenure_client::{Client, Notice, Selection, Watch};

use crate::harness::{Cluster, Plan, rounds};
use crate::history::History;
use crate::load::Load;
use crate::process::eventually;

/// Rounds from which on compactions are worth their time.
const LONG: usize = 10;
/// Log bytes at which a snapshot is taken.
const SNAPSHOT_BYTES: usize = 64 << 20;
/// Of one BATCH: keys, and bytes of each.
const KEYS: usize = 400;
const KEY_BYTES: usize = 1_000;

/// An event's place: what orders ids.
type Place = (u64, u32, u32);

fn place(id: &str) -> Place {
    let (_, numbers) = id.rsplit_once('-').unwrap();
    let mut numbers = numbers.split('.');
    let index = numbers.next().unwrap().parse().unwrap();
    let mut number = || numbers.next().map(|number| number.parse().unwrap());
    // Without a third it is the end of the position.
    (index, number().unwrap(), number().unwrap_or(u32::MAX))
}

/// One reader and all that it was told.
struct Reader {
    name: String,
    told: Arc<Mutex<Vec<Notice>>>,
}

impl Reader {
    fn start(runtime: &tokio::runtime::Runtime, name: String, client: &Client) -> Self {
        let told: Arc<Mutex<Vec<Notice>>> = Arc::default();
        let (mut watch, own) = (Watch::new(client, Selection::default()), Arc::clone(&told));
        runtime.spawn(async move {
            loop {
                let notice = watch.next().await.expect("a watch of a cluster goes on");
                own.lock().unwrap().push(notice);
            }
        });
        Self { name, told }
    }

    fn has(&self, is_it: impl Fn(&Notice) -> bool) -> bool {
        self.told.lock().unwrap().iter().any(is_it)
    }

    /// What it was told after each reset.
    fn spans(&self) -> Vec<(Place, Vec<Event>)> {
        let mut spans = Vec::new();
        for notice in self.told.lock().unwrap().iter().cloned() {
            match notice {
                Notice::Reset { id, .. } => spans.push((place(&id), Vec::new())),
                Notice::Event(event) => spans.last_mut().expect("first comes a reset").1.push(event),
            }
        }
        spans
    }
}

/// Fills the log until each node but `away` takes a snapshot.
fn compact_but(cluster: &mut Cluster, away: u64) {
    let leader = cluster.leader_but(away);
    let key = |n: usize| format!("{n:-<KEY_BYTES$}");
    let commands: Vec<_> = (0..KEYS).map(|n| json!({"command": "CREATE", "key": key(n), "type": "lease"})).collect();
    let index = |id: u64| cluster.status(id).and_then(|status| status["snapshot"]["index"].as_u64()).unwrap_or(0);
    let here = cluster.others(away);
    let before: Vec<u64> = here.iter().map(|id| index(*id)).collect();
    // From the second on they change nothing, and are in the log all the same.
    for _ in 0..=SNAPSHOT_BYTES / (KEYS * KEY_BYTES) {
        cluster.call(leader, "BATCH", &json!({"commands": commands}));
    }
    eventually("each node has a snapshot", || {
        here.iter().zip(&before).all(|(id, before)| index(*id) > *before).then_some(())
    });
}

/// Each of `readers` was told all that is known of its spans.
fn judge(readers: &[Reader]) -> usize {
    // Leases still expire: what is judged has to stand still.
    let readers: Vec<_> = readers.iter().map(|reader| (&reader.name, reader.spans())).collect();
    let mut log = BTreeMap::new();
    for (name, spans) in &readers {
        for event in spans.iter().flat_map(|(_, events)| events) {
            let known = log.entry(place(&event.id)).or_insert(event);
            assert_eq!(*known, event, "{name}: another node tells otherwise");
        }
    }
    for (name, spans) in &readers {
        let reasons: Vec<_> = spans.iter().map(|(start, events)| (start.0, events.len())).collect();
        eprintln!("{name}: resets at, and events after them: {reasons:?}");
        for (start, events) in spans {
            let told: Vec<Place> = events.iter().map(|event| place(&event.id)).collect();
            let last = told.last().copied().unwrap_or(*start);
            let wanted: Vec<Place> = match *start < last {
                true => log
                    .range((std::ops::Bound::Excluded(*start), std::ops::Bound::Included(last)))
                    .map(|(at, _)| *at)
                    .collect(),
                false => Vec::new(),
            };
            let missing: Vec<_> = wanted.iter().filter(|at| !told.contains(at)).collect();
            assert!(told == wanted, "{name}: not in order, twice, or missing {missing:?}");
        }
    }
    log.len()
}

#[test]
fn watches_are_kept_while_nodes_are_killed() {
    let rounds = rounds(3);
    let mut cluster = Cluster::start(Plan::three());
    let history = History::default();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let alone = |(id, addr)| {
        let client = Client::new(&format!("tenure://{addr}").parse().unwrap());
        Reader::start(&runtime, format!("node {id}"), &client)
    };
    let mut readers: Vec<Reader> = cluster.endpoints().into_iter().map(alone).collect();
    readers.push(Reader::start(&runtime, "all nodes".to_owned(), &cluster.client()));
    for reader in &readers {
        eventually("the watch begins", || reader.has(|_| true).then_some(()));
    }
    Load::default().run(&mut cluster, &history, |cluster, running| {
        let ids = cluster.ids();
        for round in 0..rounds {
            running.await_calls(60 + round * 31 % 90);
            let node = ids[round % ids.len()];
            cluster.kill(node);
            running.await_calls(40);
            if rounds >= LONG && round % 10 == 5 {
                // The one that is away has to be brought up to date by a snapshot, or from further back than it likes.
                compact_but(cluster, node);
            }
            cluster.restart(node);
            cluster.await_ready(node);
        }
    });
    cluster.call(cluster.leader(), "CREATE", &json!({"key": "the end", "type": "lease"}));
    for reader in &readers {
        eventually(&format!("{} is told of the end", reader.name), || {
            reader.has(|notice| matches!(notice, Notice::Event(event) if event.key == "the end")).then_some(())
        });
    }
    let events = judge(&readers);
    assert!(events > 50, "the load did little: {events} events");
    let tally = history.judge("watched");
    assert!(tally.grants > 10, "the load did little: {tally:?}");
}
