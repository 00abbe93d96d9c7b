//! The leader clock's shell: the one place that reads the monotonic clock for stamps, and the one that reads the wall
//! clock. What it knows of the quorum it takes from replication's metrics.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use openraft::async_runtime::Instant;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::metrics::RaftMetrics;
use openraft::type_config::TypeConfigExt;
use openraft::type_config::alias::{InstantOf, WatchReceiverOf};
use tokio::sync::watch;

use crate::clock::{Evidence, LeaderClock, Quorum};
use crate::machine::Stamp;
use crate::planted::{self, Bug};
use crate::raft::{AsyncRuntime, NodeId, TypeConfig};

/// Tells the wall time, Unix milliseconds. It starts a new cluster's clock and is shown to people; it decides nothing.
pub type WallClock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The system's wall clock.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "the one reader of the wall clock: for display, and a founder's first stamp"
)]
pub fn system_wall_clock() -> WallClock {
    Arc::new(|| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

/// A leadership of this node whose log is applied up to and with its own first entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lead {
    /// Its term.
    pub term: u64,
}

/// The clock of this node while it leads.
pub struct Timekeeper<RT: AsyncRuntime> {
    clock: Mutex<LeaderClock>,
    leading: watch::Sender<Option<Lead>>,
    metrics: WatchReceiverOf<TypeConfig<RT>, RaftMetrics<TypeConfig<RT>>>,
    origin: InstantOf<TypeConfig<RT>>,
    /// When a quorum last followed this node; `None` before the first time.
    followed_at: Mutex<Option<InstantOf<TypeConfig<RT>>>>,
    node: NodeId,
    limit: Duration,
    wall: WallClock,
}

impl<RT: AsyncRuntime> Timekeeper<RT> {
    /// A clock that is not led by yet. `limit` is T, the greatest election timeout.
    pub fn new(
        node: NodeId,
        limit: Duration,
        metrics: WatchReceiverOf<TypeConfig<RT>, RaftMetrics<TypeConfig<RT>>>,
        wall: WallClock,
    ) -> Self {
        let clock = Mutex::new(LeaderClock::new(limit));
        let origin = TypeConfig::<RT>::now();
        let followed_at = Mutex::default();
        Self { clock, leading: watch::Sender::new(None), metrics, origin, followed_at, node, limit, wall }
    }

    /// Wall time, Unix milliseconds.
    pub fn wall_ms(&self) -> u64 {
        (self.wall)()
    }

    /// The leadership, now and from now on; `None` while this node does not lead.
    pub fn leading(&self) -> watch::Receiver<Option<Lead>> {
        self.leading.subscribe()
    }

    /// The leadership now.
    pub fn lead(&self) -> Option<Lead> {
        *self.leading.borrow()
    }

    /// This node leads in `term`, and `anchor` is the greatest stamp of its log. A log without one starts the clock at
    /// the wall time.
    pub fn start(&self, term: u64, anchor: Stamp) {
        let anchor = if anchor == Stamp(0) { Stamp(self.wall_ms()) } else { anchor };
        let (mut clock, at) = self.now();
        clock.lead(term, anchor, at);
        drop(clock);
        self.leading.send_replace(Some(Lead { term }));
    }

    /// This node leads no more.
    pub fn end(&self) {
        self.leading.send_if_modified(|lead| lead.take().is_some());
        self.now().0.follow();
    }

    /// Keeps the clock going: to be called several times in each T.
    pub fn observe(&self) {
        let (mut clock, at) = self.now();
        clock.observe(at);
        drop(clock);
        self.quorum_age();
    }

    /// The clock now, under `lead`; `None` when that is over.
    pub fn read(&self, lead: Lead) -> Option<Stamp> {
        let (mut clock, at) = self.now();
        clock.read(lead.term, at).map(|stamp| self.told(stamp))
    }

    /// The stamp for an entry that is now handed off under `lead`; `None` when that is over.
    pub fn hand_off(&self, lead: Lead) -> Option<Stamp> {
        let (mut clock, at) = self.now();
        clock.hand_off(lead.term, at).map(|stamp| self.told(stamp))
    }

    /// No own entry is in flight any more.
    pub fn settled(&self, lead: Lead) {
        let (mut clock, at) = self.now();
        clock.settled(lead.term, at);
    }

    /// Is the oldest own uncommitted entry older than T?
    pub fn is_stuck(&self) -> bool {
        let (clock, at) = self.now();
        clock.uncommitted_for(at.now).is_some_and(|age| age >= self.limit)
    }

    /// Time since this node's start.
    pub fn elapsed(&self) -> Duration {
        TypeConfig::<RT>::now().saturating_duration_since(self.origin)
    }

    /// Time since a quorum last followed this node; `None` if that was never since its start.
    pub fn quorum_age(&self) -> Option<Duration> {
        let now = TypeConfig::<RT>::now();
        let mut followed_at = self.followed_at.lock().unwrap_or_else(PoisonError::into_inner);
        if self.lead().is_some() {
            match self.evidence().quorum {
                Quorum::Sole => *followed_at = Some(now),
                Quorum::Acked(Some(acked)) => *followed_at = Some(self.origin + acked).max(*followed_at),
                Quorum::Acked(None) => {}
            }
        }
        followed_at.map(|followed_at| now.saturating_duration_since(followed_at))
    }

    /// What is told of the clock: its stamp, and nothing of the wall clock's.
    fn told(&self, stamp: Stamp) -> Stamp {
        if planted::has(Bug::WallClockStamps) { Stamp(self.wall_ms()) } else { stamp }
    }

    /// Locks the clock, then looks at the time: instants reach the clock in order.
    fn now(&self) -> (MutexGuard<'_, LeaderClock>, Evidence) {
        let clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        let at = self.evidence();
        (clock, at)
    }

    fn evidence(&self) -> Evidence {
        let quorum = {
            let metrics = self.metrics.borrow_watched();
            let mut voters = metrics.membership_config.membership().voter_ids();
            if voters.next() == Some(self.node) && voters.next().is_none() {
                Quorum::Sole
            } else {
                let acked = metrics.last_quorum_acked.map(|acked| acked.into_inner());
                Quorum::Acked(acked.map(|acked| acked.saturating_duration_since(self.origin)))
            }
        };
        Evidence { now: TypeConfig::<RT>::now().saturating_duration_since(self.origin), quorum }
    }
}
