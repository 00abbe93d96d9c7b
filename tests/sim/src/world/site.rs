//! One node's place: the machine it runs on, and what outlives its process.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use checker::Dice;
use tenure::edge::Edge;
use tenure_cluster::log::{LogOptions, LogStore, Writer};
use tenure_cluster::raft::{Member, NodeId};
use tenure_cluster::simdisk::{Fault, SimDisk};
use tenure_cluster::snapshot::MemorySnapshots;
use tenure_cluster::{Cluster, Config};
use tokio::sync::{oneshot, watch};

use super::damage::LOG_DIR;
use super::disk::Pace;
use super::links::Presence;
use crate::judge::Watched;
use crate::plan::Shape;
use crate::runtime::{self, Rt};

/// A node.
pub(super) type Node = Cluster<Watched, Rt>;

/// Wall time at the beginning, Unix milliseconds.
const WALL_MS: i64 = 1_700_000_000_000;
/// Operations within which a power cut finds what the disk was about to do: mostly a write and its sync, now and then all
/// of a new segment.
const TEAR_OPERATIONS: [u64; 2] = [2, 8];

/// How a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The machine is without power, or was never started.
    Down,
    /// The process is dead, the machine runs.
    Dead,
    /// It reads what is stored.
    Starting,
    /// It serves.
    Up,
}

/// What runs of a node in one life.
pub(super) struct Running {
    pub(super) node: Node,
    pub(super) edge: Edge<Watched, Rt>,
    pub(super) writer: Arc<Mutex<Writer>>,
    pub(super) _log: LogStore<Rt>,
    /// Dropped with the life.
    pub(super) _end: oneshot::Sender<()>,
}

/// See the module's head.
pub(super) struct Site {
    pub(super) disk: SimDisk,
    pub(super) snapshots: MemorySnapshots,
    pub(super) pace: Arc<Pace>,
    pub(super) phase: Phase,
    pub(super) running: Option<Running>,
    /// Counts its starts and ends: what is of an earlier life goes nowhere.
    pub(super) life: u64,
    pub(super) starts: u64,
    pub(super) paused: bool,
    /// Its log was damaged so that it must not start any more.
    pub(super) damaged: bool,
    /// And it did not, when it was tried.
    pub(super) refused: bool,
    pub(super) full: bool,
    /// Whose processes this life sees gone.
    pub(super) gone: watch::Sender<BTreeSet<NodeId>>,
    /// Whom this life was told to know.
    pub(super) known: Vec<NodeId>,
    /// What its wall clock is off, milliseconds.
    pub(super) wall_off_ms: Arc<AtomicI64>,
}

impl Site {
    pub(super) fn new(shape: &Shape) -> Self {
        Self {
            disk: SimDisk::new(),
            snapshots: MemorySnapshots::default(),
            pace: Arc::new(Pace::of(shape.sync_us)),
            phase: Phase::Down,
            running: None,
            life: 0,
            starts: 0,
            paused: false,
            damaged: false,
            refused: false,
            full: false,
            gone: watch::Sender::default(),
            known: Vec::new(),
            wall_off_ms: Arc::default(),
        }
    }

    /// What the others meet.
    pub(super) fn presence(&self) -> Presence {
        match self.phase {
            Phase::Down => Presence::Silent,
            _ if self.paused => Presence::Silent,
            Phase::Dead | Phase::Starting => Presence::Dead,
            Phase::Up => Presence::Alive,
        }
    }

    /// The node, if this is its life.
    pub(super) fn node(&self, life: u64) -> Option<&Node> {
        self.running.as_ref().filter(|_| self.life == life).map(|running| &running.node)
    }

    /// Is it to be started again?
    pub(super) fn may_start(&self) -> bool {
        matches!(self.phase, Phase::Down | Phase::Dead) && !self.refused
    }

    /// A process begins: another life.
    pub(super) fn begin(&mut self) {
        self.phase = Phase::Starting;
        self.life += 1;
        self.starts += 1;
        self.gone = watch::Sender::default();
        self.known.clear();
        self.pace.begin();
    }

    /// The machine stops in the middle of what its disk was about to do: of the group that waits for its sync a part is
    /// written, or all of it, and no word of it gets out.
    pub(super) fn tear(&self, dice: &mut Dice) {
        let Some(running) = &self.running else { return };
        let within = TEAR_OPERATIONS[usize::from(dice.percent(30))];
        let last = self.disk.operations() + dice.in_range(1..=within);
        self.disk.fail_at(last, Fault::Stop);
        // What it did lies on the disk; whom it told is about to be no more.
        let _ = running.writer.lock().unwrap().step(false);
    }
}

/// A node's wall clock.
pub(super) fn wall(off_ms: &Arc<AtomicI64>) -> Arc<dyn Fn() -> u64 + Send + Sync> {
    let off_ms = Arc::clone(off_ms);
    Arc::new(move || {
        let true_ms = i64::try_from(runtime::now_ns() / 1_000_000).unwrap_or(i64::MAX);
        u64::try_from(WALL_MS + true_ms + off_ms.load(Ordering::Relaxed)).unwrap_or(0)
    })
}

/// Where node `id` is reached.
pub(super) fn member(id: NodeId) -> Member {
    Member { client: format!("client-{id}"), peer: format!("peer-{id}"), incarnation: id }
}

/// A node's configuration.
pub(super) fn config(id: NodeId, shape: &Shape) -> Config {
    let mut config = Config::single(LOG_DIR);
    config.node_id = Some(id);
    config.member = member(id);
    config.election_timeout = Duration::from_millis(shape.election_timeout_ms);
    config.request_timeout = Duration::from_millis(shape.request_timeout_ms);
    config.segment_bytes = shape.segment_bytes;
    config.snapshot_log_bytes = shape.snapshot_log_bytes;
    config.log_margin_bytes = shape.log_margin_bytes;
    config
}

/// How its log is kept.
pub(super) fn log_options(shape: &Shape, starts: u64) -> LogOptions {
    LogOptions { segment_bytes: shape.segment_bytes, must_exist: starts > 1, ..LogOptions::default() }
}
