//! One node on a simulated runtime: virtual time, no files, no threads. Every wait is an event or a virtual sleep.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use openraft::AsyncRuntime;
use openraft::type_config::TypeConfigExt;
use openraft_rt_sim::SimRuntime;

use crate::cluster::{Cluster, EventAt};
use crate::config::Config;
use crate::counter::{Command, Counter, Reset};
use crate::error::{OpenError, StopReason, SubmitError};
use crate::executor::Inline;
use crate::machine::Position;
use crate::memory_log::MemoryLog;
use crate::raft::TypeConfig;
use crate::snapshot::MemorySnapshots;
use crate::start::Parts;
use crate::transport::NoPeers;

type Rt = SimRuntime;
type Heard = Arc<Mutex<Vec<(EventAt, Reset)>>>;

const WALL_MS: u64 = 1_700_000_000_000;

/// What outlives the node, and what it was started with.
#[derive(Clone)]
struct World {
    log: MemoryLog<Rt>,
    snapshots: MemorySnapshots,
    wall_ms: Arc<AtomicU64>,
    heard: Heard,
    jumps: Arc<Mutex<Vec<Position>>>,
    config: Config,
}

impl World {
    fn new() -> Self {
        let mut config = Config::single("unused");
        config.election_timeout = Duration::from_millis(300);
        Self {
            log: MemoryLog::default(),
            snapshots: MemorySnapshots::default(),
            wall_ms: Arc::new(AtomicU64::new(WALL_MS)),
            heard: Heard::default(),
            jumps: Arc::default(),
            config,
        }
    }

    async fn start(&self) -> Cluster<Counter, Rt> {
        self.try_start().await.unwrap()
    }

    async fn try_start(&self) -> Result<Cluster<Counter, Rt>, OpenError> {
        let (heard, wall_ms) = (Arc::clone(&self.heard), Arc::clone(&self.wall_ms));
        let jumps = Arc::clone(&self.jumps);
        let parts = Parts {
            cluster_id: "0".repeat(32),
            node_id: 1,
            log: self.log.clone(),
            gauge: Arc::new(self.log.clone()),
            snapshots: Arc::new(self.snapshots.clone()),
            executor: Arc::new(Inline),
            wall: Arc::new(move || wall_ms.load(Ordering::Relaxed)),
            transport: NoPeers::shared(),
            peers: crate::bootstrap::Peers::new(),
            remedy: crate::Remedy::default(),
            keep: Box::new(()),
        };
        let events = Arc::new(move |told: crate::Heard<'_, Reset>| match told {
            crate::Heard::Event(at, event) => heard.lock().unwrap().push((at, *event)),
            crate::Heard::Jump(to) => jumps.lock().unwrap().push(to),
        });
        let cluster = Cluster::start(&self.config, parts, events).await?;
        cluster.lead_alone(&self.config).await?;
        Ok(cluster)
    }

    /// The node dies at this instant; the next one starts on a copy of what was stored.
    async fn crash(&mut self, cluster: Cluster<Counter, Rt>) -> Cluster<Counter, Rt> {
        self.log = self.log.crash();
        drop(cluster);
        self.start().await
    }
}

#[test]
fn one_of_several_that_only_voted_does_not_wait_to_lead_alone() {
    in_simulation(async {
        let world = World::new();
        let vote = crate::persisted::VoteV1 { term: 1, node: Some(2), committed: true };
        openraft::storage::RaftLogStorage::save_vote(&mut world.log.clone(), &vote.try_into().unwrap()).await.unwrap();
        let Err(error) = world.try_start().await else { panic!("it leads") };
        assert!(error.to_string().contains("one of several"), "{error}");
    });
}

async fn sleep(ms: u64) {
    TypeConfig::<Rt>::sleep(Duration::from_millis(ms)).await;
}

async fn sum(cluster: &Cluster<Counter, Rt>) -> u64 {
    cluster.read(|counter, at| counter.sum(at)).await.unwrap().value
}

async fn add(cluster: &Cluster<Counter, Rt>, amount: u64) -> u64 {
    cluster.submit(Command::Add(amount)).await.unwrap().reply
}

fn in_simulation<T>(test: impl Future<Output = T>) -> T {
    SimRuntime::with_seed(7).block_on(test)
}

#[test]
fn a_node_orders_reads_and_remembers() {
    in_simulation(async {
        let mut world = World::new();
        let cluster = world.start().await;
        assert_eq!(add(&cluster, 5).await, 5);
        let applied = cluster.submit(Command::Add(2)).await.unwrap();
        assert_eq!(applied.reply, 7);
        let seen = cluster.read(|counter, at| counter.sum(at)).await.unwrap();
        assert_eq!(seen.value, 7);
        assert!(seen.witness.position >= applied.witness.position);
        assert!(seen.witness.clock >= applied.witness.clock);
        let term = applied.witness.term;
        let cluster = world.crash(cluster).await;
        assert_eq!(sum(&cluster).await, 7);
        let applied = cluster.submit(Command::Add(1)).await.unwrap();
        assert_eq!(applied.reply, 8);
        assert!(applied.witness.term > term);
    });
}

/// The leader's clock, as a read sees it.
async fn clock(cluster: &Cluster<Counter, Rt>) -> u64 {
    cluster.read(|_, at| Ok(at.now.0)).await.unwrap().value
}

#[test]
fn the_clock_starts_at_the_founders_wall_time_and_then_no_wall_clock_matters() {
    in_simulation(async {
        let mut world = World::new();
        let cluster = world.start().await;
        add(&cluster, 1).await;
        let founded = clock(&cluster).await;
        assert!((WALL_MS..WALL_MS + 1_000).contains(&founded), "{founded}");
        for step in [3_600_000, 0] {
            world.wall_ms.store(WALL_MS - 1_800_000 + step, Ordering::Relaxed);
            let before = clock(&cluster).await;
            sleep(1_000).await;
            add(&cluster, 1).await;
            assert_eq!(clock(&cluster).await, before + 1_000);
        }
        let before = cluster.submit(Command::Add(1)).await.unwrap().witness.clock;
        let cluster = world.crash(cluster).await;
        let after = cluster.submit(Command::Add(1)).await.unwrap().witness.clock;
        assert!(after >= before && after.ms_since(before) < 100, "a restart neither goes back nor jumps");
    });
}

#[test]
fn what_is_seen_as_past_is_in_the_log() {
    // At 100 ms the ticker comes by itself just then; at 4 ms, so near the last entry, only because a read asks.
    for due_ms in [100, 4] {
        in_simulation(async {
            let world = World::new();
            let cluster = world.start().await;
            add(&cluster, 9).await;
            let armed = cluster.submit(Command::ResetIn(due_ms)).await.unwrap().witness.clock;
            sleep(due_ms - 1).await;
            loop {
                let seen = cluster.read(|counter, at| counter.sum(at)).await.unwrap();
                let is_due = seen.witness.clock.ms_since(armed) >= due_ms;
                assert_eq!(seen.value == 0, is_due, "at {:?}", seen.witness);
                // Shown as past: then the log has heard of it, and so has the listener.
                assert_eq!(world.heard.lock().unwrap().len(), usize::from(is_due));
                if is_due {
                    break;
                }
                TypeConfig::<Rt>::sleep(Duration::from_micros(100)).await;
            }
            let stale = cluster.read_stale(|counter, at| counter.sum(at));
            assert_eq!(stale.value, Ok(0));
        });
    }
}

#[test]
fn reads_that_wait_for_time_share_a_tick() {
    in_simulation(async {
        let world = World::new();
        let cluster = world.start().await;
        cluster.submit(Command::ResetIn(50)).await.unwrap();
        // Held up: the ticker cannot propose, so that all reads come to wait for the same time.
        world.log.set_stuck(true);
        sleep(60).await;
        let reads: Vec<_> = (0..20)
            .map(|_| {
                let cluster = cluster.clone();
                TypeConfig::<Rt>::spawn(async move { sum(&cluster).await })
            })
            .collect();
        sleep(10).await;
        let before = world.log.batches().len();
        world.log.set_stuck(false);
        for read in reads {
            assert_eq!(read.await.unwrap(), 0);
        }
        assert!(world.log.batches().len() - before <= 1, "one tick for all of them, beside the one that was stuck");
    });
}

#[test]
fn an_idle_node_writes_nothing_and_one_with_timers_a_tick_a_second() {
    in_simulation(async {
        let world = World::new();
        let cluster = world.start().await;
        add(&cluster, 1).await;
        let before = world.log.batches().len();
        sleep(3_600_000).await;
        assert_eq!(world.log.batches().len(), before, "an hour without timers");
        cluster.submit(Command::ResetIn(10_000)).await.unwrap();
        let before = world.log.batches().len();
        sleep(9_500).await;
        assert_eq!(world.log.batches().len(), before + 9, "a timer is outstanding");
        sleep(1_000).await;
        assert_eq!(world.heard.lock().unwrap().len(), 1);
        let before = world.log.batches().len();
        sleep(60_000).await;
        assert_eq!(world.log.batches().len(), before, "it is over");
    });
}

#[test]
fn a_stopped_node_gives_its_time_back() {
    in_simulation(async {
        let mut world = World::new();
        let cluster = world.start().await;
        add(&cluster, 9).await;
        let armed = cluster.submit(Command::ResetIn(10_000)).await.unwrap().witness.clock;
        sleep(3_500).await;
        world.log = world.log.crash();
        drop(cluster);
        sleep(3_600_000).await;
        let cluster = world.start().await;
        let passed = cluster.read(|_, at| Ok(at.now)).await.unwrap().value.ms_since(armed);
        assert!((2_500..=3_500).contains(&passed), "the hour does not count, and at most a second is lost: {passed}");
        sleep(10_000 - passed - 200).await;
        assert_eq!(sum(&cluster).await, 9);
        sleep(300).await;
        assert_eq!(sum(&cluster).await, 0);
    });
}

#[test]
fn time_stands_still_while_nothing_can_be_written() {
    in_simulation(async {
        let world = World::new();
        let cluster = world.start().await;
        add(&cluster, 9).await;
        cluster.submit(Command::ResetIn(2_000)).await.unwrap();
        let before = clock(&cluster).await;
        world.log.set_stuck(true);
        let pending = cluster.submit(Command::Add(1)).await;
        assert_eq!(pending.unwrap_err(), SubmitError::OutcomeUnknown, "it is in the log's hands");
        let queued = cluster.submit(Command::Add(10)).await.unwrap_err();
        let SubmitError::Unavailable(why) = queued else { panic!("{queued}: it was never handed off") };
        assert!(why.contains("disk_slow"), "{why}");
        assert_eq!(cluster.status().not_ready, Some("disk_slow"));
        sleep(3_600_000).await;
        let stood = clock(&cluster).await - before;
        assert!(stood <= 600, "at most T of an hour: {stood}");
        assert_eq!(sum(&cluster).await, 9, "nothing ran out meanwhile");
        world.log.set_stuck(false);
        assert_eq!(add(&cluster, 100).await, 110, "the unknown one took effect, the withdrawn one never");
        assert_eq!(cluster.status().not_ready, None);
    });
}

#[test]
fn a_full_disk_is_told_and_gone_when_there_is_room() {
    in_simulation(async {
        let world = World::new();
        let cluster = world.start().await;
        add(&cluster, 1).await;
        world.log.set_full(true);
        assert_eq!(cluster.submit(Command::Add(1)).await.unwrap_err(), SubmitError::OutcomeUnknown);
        let queued = cluster.submit(Command::Add(1)).await.unwrap_err();
        assert_eq!(
            queued,
            SubmitError::Unavailable("the command was not ordered within 5000 ms: disk_full".to_owned())
        );
        assert_eq!(cluster.status().not_ready, Some("disk_full"));
        assert_eq!(sum(&cluster).await, 1, "reads go on");
        world.log.set_full(false);
        assert_eq!(add(&cluster, 1).await, 3);
        assert_eq!(cluster.status().not_ready, None);
    });
}

#[test]
fn a_failed_write_stops_the_node_with_one_line() {
    in_simulation(async {
        let world = World::new();
        let cluster = world.start().await;
        add(&cluster, 1).await;
        world.log.break_down("log/3.seg: fdatasync: Input/output error");
        assert_eq!(cluster.submit(Command::Add(1)).await.unwrap_err(), SubmitError::OutcomeUnknown);
        let reason = cluster.stopped().await;
        assert_eq!(reason.to_string(), "storage fault: log/3.seg: fdatasync: Input/output error");
        let after = cluster.submit(Command::Add(1)).await.unwrap_err();
        assert!(matches!(after, SubmitError::Unavailable(_)), "{after}");
    });
}

#[test]
fn an_entry_that_does_not_decode_stops_the_node() {
    in_simulation(async {
        let mut world = World::new();
        let cluster = world.start().await;
        add(&cluster, 1).await;
        add(&cluster, 2).await;
        drop(cluster);
        world.log = world.log.crash();
        world.log.damage_last(b"no batch");
        let refused = world.try_start().await.map(|_| ()).unwrap_err().to_string();
        assert!(refused.contains("entry 4 cannot be applied"), "{refused}");
    });
}

#[test]
fn snapshots_shorten_the_log_and_restart_from_them() {
    in_simulation(async {
        let mut world = World::new();
        world.config.snapshot_log_bytes = 100_000;
        world.config.log_margin_bytes = 20_000;
        let cluster = world.start().await;
        let mut longest = 0;
        for _ in 0..1_000 {
            cluster.submit(Command::Padded(vec![1; 1_000])).await.unwrap();
            sleep(5).await;
            longest = longest.max(cluster.status().log_bytes);
        }
        // The log is looked at each 100 ms, in which 20 commands come.
        assert!(longest < 100_000 + 20_000 + 2 * 25_000, "{longest}");
        let (index, _, _) = cluster.status().snapshot.unwrap();
        assert!(index > 800, "{index}");
        let armed = cluster.submit(Command::ResetIn(60_000)).await.unwrap().witness.clock;
        assert!(world.jumps.lock().unwrap().is_empty());
        let cluster = world.crash(cluster).await;
        let jumps = world.jumps.lock().unwrap().clone();
        assert_eq!(jumps.iter().map(|to| to.index).collect::<Vec<_>>(), [index], "what it held of old is not told");
        assert_eq!(cluster.status().snapshot.map(|(index, ..)| index), Some(index));
        assert_eq!(sum(&cluster).await, 1_000);
        assert!(cluster.read(|_, at| Ok(at.now)).await.unwrap().value >= armed);
        assert_eq!(cluster.submit(Command::Add(1)).await.unwrap().reply, 1_001);
    });
}

#[test]
fn events_of_before_the_restart_are_told_as_such() {
    in_simulation(async {
        let mut world = World::new();
        let cluster = world.start().await;
        cluster.submit(Command::ResetIn(10)).await.unwrap();
        sleep(100).await;
        add(&cluster, 1).await;
        assert_eq!(world.heard.lock().unwrap().iter().map(|(at, _)| at.replay).collect::<Vec<_>>(), [false]);
        let first = world.heard.lock().unwrap()[0];
        let cluster = world.crash(cluster).await;
        cluster.submit(Command::ResetIn(10)).await.unwrap();
        sleep(100).await;
        let heard = world.heard.lock().unwrap().clone();
        assert_eq!(heard.iter().map(|(at, _)| at.replay).collect::<Vec<_>>(), [false, true, false]);
        assert_eq!((heard[1].0.position, heard[1].0.stamp, heard[1].1), (first.0.position, first.0.stamp, first.1));
    });
}

#[test]
fn submitters_that_go_away_leave_nothing_behind() {
    in_simulation(async {
        let mut world = World::new();
        world.config.queue_max = 8;
        let cluster = world.start().await;
        world.log.set_stuck(true);
        let submit = |amount| {
            let cluster = cluster.clone();
            async move { cluster.submit(Command::Add(amount)).await }
        };
        let first = TypeConfig::<Rt>::spawn(submit(1));
        sleep(1).await;
        for _ in 0..100 {
            // Withdrawn as its future is dropped.
            let _ = TypeConfig::<Rt>::timeout(Duration::from_millis(1), submit(1_000)).await;
        }
        let full = submit(10_000).await.unwrap_err();
        let SubmitError::Unavailable(why) = full else { panic!("{full}") };
        assert!(why.starts_with("too many commands wait"), "{why}");
        world.log.set_stuck(false);
        assert_eq!(first.await.unwrap().unwrap_err(), SubmitError::OutcomeUnknown);
        assert_eq!(add(&cluster, 5).await, 6, "none of the withdrawn ones took effect");
        let all = (0..8).map(|_| TypeConfig::<Rt>::spawn(submit(1))).collect::<Vec<_>>();
        for one in all {
            one.await.unwrap().unwrap();
        }
        assert_eq!(sum(&cluster).await, 14);
    });
}

#[test]
fn what_waits_goes_as_one_entry() {
    in_simulation(async {
        let world = World::new();
        let cluster = world.start().await;
        let before = world.log.batches().len();
        let all: Vec<_> = (0..5_000)
            .map(|_| {
                let cluster = cluster.clone();
                TypeConfig::<Rt>::spawn(async move { cluster.submit(Command::Add(1)).await.unwrap() })
            })
            .collect();
        let mut positions = Vec::new();
        for one in all {
            let applied = one.await.unwrap();
            positions.push((applied.witness.position, applied.reply));
        }
        positions.sort();
        assert!(positions.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 + 1 == pair[1].1), "in log order");
        assert!(world.log.batches().len() - before <= 3, "one at once, then at most 4 096 each");
    });
}

#[test]
fn a_command_too_large_for_an_entry_is_refused() {
    in_simulation(async {
        let world = World::new();
        let cluster = world.start().await;
        let refused = cluster.submit(Command::Padded(vec![0; 1024 * 1024])).await.unwrap_err();
        assert!(matches!(refused, SubmitError::TooLarge { .. }), "{refused}");
        let large = crate::entry::COMMAND_BYTES_MAX - 16;
        assert_eq!(cluster.submit(Command::Padded(vec![0; large])).await.unwrap().reply, 1);
    });
}

#[test]
fn shutting_down_answers_what_is_in_flight_and_refuses_the_rest() {
    in_simulation(async {
        let world = World::new();
        let cluster = world.start().await;
        world.log.set_stuck(true);
        let submit = |amount| {
            let cluster = cluster.clone();
            TypeConfig::<Rt>::spawn(async move { cluster.submit(Command::Add(amount)).await })
        };
        let in_flight = submit(1);
        sleep(1).await;
        let queued = submit(10);
        sleep(1).await;
        let down = {
            let cluster = cluster.clone();
            TypeConfig::<Rt>::spawn(async move { cluster.shutdown().await })
        };
        sleep(10).await;
        world.log.set_stuck(false);
        assert_eq!(in_flight.await.unwrap().unwrap().reply, 1);
        assert!(matches!(queued.await.unwrap(), Err(SubmitError::Unavailable(_))));
        down.await.unwrap();
        assert_eq!(cluster.stopped().await, StopReason::Shutdown);
        assert!(matches!(cluster.submit(Command::Add(1)).await, Err(SubmitError::Unavailable(_))));
    });
}
