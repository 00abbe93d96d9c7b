//! One node on the real log over a simulated disk, in virtual time: what power cuts, full and failing disks leave of it.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use openraft::AsyncRuntime;
use openraft::type_config::TypeConfigExt;
use openraft_rt_sim::SimRuntime;

use crate::cluster::Cluster;
use crate::config::{Config, Unobserved};
use crate::counter::{Command, Counter};
use crate::error::{StopReason, SubmitError};
use crate::executor::Inline;
use crate::log::{LogOptions, LogStore, Step, Writer};
use crate::machine::Stamp;
use crate::raft::TypeConfig;
use crate::simdisk::{Fault, SimDisk};
use crate::snapshot::MemorySnapshots;
use crate::start::Parts;
use crate::transport::NoPeers;

type Rt = SimRuntime;
type C = TypeConfig<Rt>;

const SEGMENT_BYTES: u64 = 64 * 1024;
/// What a sync takes on the simulated disk.
const SYNC: Duration = Duration::from_millis(2);

/// Drives the log's writer as its thread would.
async fn drive(mut writer: Writer) {
    let mut retry = true;
    loop {
        let seen = writer.wakeups();
        match writer.step(retry) {
            Step::Wrote => C::sleep(SYNC).await,
            Step::Stopped => return,
            Step::Idle | Step::Coming => writer.woken(seen).await,
            Step::Full => {
                C::sleep(Duration::from_secs(1)).await;
                retry = true;
                continue;
            }
        }
        retry = false;
    }
}

#[derive(Clone)]
struct World {
    disk: SimDisk,
    snapshots: MemorySnapshots,
    config: Config,
}

impl World {
    fn new() -> Self {
        let mut config = Config::single("unused");
        config.election_timeout = Duration::from_millis(300);
        config.snapshot_log_bytes = 200_000;
        config.log_margin_bytes = 50_000;
        Self { disk: SimDisk::new(), snapshots: MemorySnapshots::default(), config }
    }

    async fn start(&self) -> Cluster<Counter, Rt> {
        let options = LogOptions { segment_bytes: SEGMENT_BYTES, ..LogOptions::default() };
        let dir = PathBuf::from("/log");
        let (log, writer) =
            LogStore::<Rt>::open_stepped(self.disk.mount(), dir, options, Arc::new(Unobserved)).unwrap();
        drop(C::spawn(drive(writer)));
        let parts = Parts {
            cluster_id: "0".repeat(32),
            node_id: 1,
            gauge: Arc::new(log.clone()),
            log,
            snapshots: Arc::new(self.snapshots.clone()),
            executor: Arc::new(Inline),
            wall: Arc::new(|| 1_700_000_000_000),
            transport: NoPeers::shared(),
            peers: crate::bootstrap::Peers::new(),
            remedy: crate::Remedy::default(),
            keep: Box::new(()),
        };
        let cluster = Cluster::start(&self.config, parts, Arc::new(|_| {})).await.unwrap();
        cluster.lead_alone(&self.config).await.unwrap();
        cluster
    }
}

/// What submitters were told.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    answered: u64,
    unknown: u64,
    clock: Stamp,
}

/// Adds one after the other until it is refused.
async fn submit_until_refused(cluster: Cluster<Counter, Rt>) -> Told {
    let mut told = Told::default();
    loop {
        match cluster.submit(Command::Padded(vec![3; 300])).await {
            Ok(applied) => {
                assert!(applied.witness.clock >= told.clock, "the clock went back");
                told.clock = applied.witness.clock;
                told.answered += 1;
            }
            Err(SubmitError::OutcomeUnknown) => {
                told.unknown += 1;
                return told;
            }
            Err(_) => return told,
        }
    }
}

#[test]
fn a_power_cut_at_any_time_loses_nothing_that_was_answered() {
    for seed in 0..40 {
        SimRuntime::with_seed(seed).block_on(async {
            let world = World::new();
            let (mut least, mut most, mut clock) = (0, 0, Stamp(0));
            for round in 0..4 {
                let cluster = world.start().await;
                let found = cluster.read(|counter, at| counter.sum(at)).await.unwrap();
                let sum = found.value;
                assert!((least..=most).contains(&sum), "seed {seed}: {sum} is not in {least}..={most}");
                assert!(found.witness.clock >= clock, "seed {seed}: the clock went back over a restart");
                let submitters: Vec<_> = (0..16).map(|_| C::spawn(submit_until_refused(cluster.clone()))).collect();
                C::sleep(Duration::from_micros(137_000 + seed * 7_919)).await;
                world.disk.power_cut(seed * 4 + round);
                let fault = cluster.stopped().await;
                assert!(matches!(fault, StopReason::Storage(_)), "{fault}");
                (least, most) = (sum, sum);
                for submitter in submitters {
                    let told = submitter.await.unwrap();
                    least += told.answered;
                    most += told.answered + told.unknown;
                    clock = clock.max(told.clock);
                }
                assert!(least > sum + 100, "it was under load");
            }
        });
    }
}

#[test]
fn a_full_disk_makes_commands_wait_and_comes_back() {
    SimRuntime::with_seed(1).block_on(async {
        let mut world = World::new();
        world.config.snapshot_log_bytes = u64::MAX;
        let cluster = world.start().await;
        world.disk.set_capacity(Some(world.disk.used() + SEGMENT_BYTES));
        let mut answered = 0;
        let refused = loop {
            match cluster.submit(Command::Padded(vec![3; 3_000])).await {
                Ok(_) => answered += 1,
                Err(refused) => break refused,
            }
        };
        assert_eq!(refused, SubmitError::OutcomeUnknown, "it waits in the log");
        assert!(answered > 10, "what had room was taken");
        assert_eq!(cluster.status().not_ready, Some("disk_full"));
        assert_eq!(cluster.read(|counter, at| counter.sum(at)).await.unwrap().value, answered);
        world.disk.set_capacity(None);
        let next = loop {
            // It looks for room each second.
            if let Ok(next) = cluster.submit(Command::Padded(vec![3; 3_000])).await {
                break next.reply;
            }
        };
        assert!(next >= answered + 2, "what waited took effect");
        assert_eq!(cluster.status().not_ready, None);
    });
}

#[test]
fn a_failing_disk_stops_the_node_and_the_next_start_has_all_that_was_answered() {
    SimRuntime::with_seed(2).block_on(async {
        let world = World::new();
        let cluster = world.start().await;
        cluster.submit(Command::Add(5)).await.unwrap();
        world.disk.fail_at(world.disk.operations() + 1, Fault::Error);
        assert_eq!(cluster.submit(Command::Add(1)).await.unwrap_err(), SubmitError::OutcomeUnknown);
        let StopReason::Storage(why) = cluster.stopped().await else { panic!("another reason") };
        assert!(why.contains("/log"), "{why}");
        world.disk.process_crash();
        let cluster = world.start().await;
        let sum = cluster.read(|counter, at| counter.sum(at)).await.unwrap().value;
        assert!(sum == 5 || sum == 6, "{sum}");
    });
}
