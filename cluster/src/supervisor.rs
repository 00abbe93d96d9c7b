//! Watches over replication: tells the clock when this node leads, notices when replication has died, and puts the node
//! away in order.
//!
//! A node **leads** once the first entry of its own leadership is applied: then its log holds nothing that its state
//! does not, and the state's stamp is the greatest of its log, which is where the clock must start. Replication's own
//! word "leader" is never enough: after a panic it stays true for ever. What counts is that its watch is alive.

use std::sync::Arc;
use std::time::Duration;

use openraft::ServerState;
use openraft::async_runtime::Select2;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::type_config::TypeConfigExt;
use openraft::type_config::alias::JoinHandleOf;
use tokio::sync::watch;

use crate::error::StopReason;
use crate::executor::{self, Executor};
use crate::log_gauge::LogGauge;
use crate::raft::{AsyncRuntime, NodeId, Raft, TypeConfig};
use crate::replica::Mark;
use crate::stop::Stop;
use crate::timekeeper::{Lead, Timekeeper};

/// How long replication may take to end before the log is closed under it.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(2);

/// See the module's head.
pub struct Supervisor<RT: AsyncRuntime> {
    /// This node.
    pub node: NodeId,
    /// Replication.
    pub raft: Raft<RT>,
    /// The clock.
    pub time: Arc<Timekeeper<RT>>,
    /// How far the state is.
    pub mark: watch::Receiver<Mark>,
    /// The log.
    pub log: Arc<dyn LogGauge>,
    /// Where blocking work runs.
    pub executor: Arc<dyn Executor>,
    /// Why the node stops.
    pub stop: Arc<Stop>,
    /// How often the clock is looked at: several times in T.
    pub observe_every: Duration,
    /// The proposer: it ends by itself, after the entry in flight.
    pub proposer: JoinHandleOf<TypeConfig<RT>, ()>,
    /// What to let go of when all has ended.
    pub keep: Box<dyn Send>,
}

impl<RT: AsyncRuntime> Supervisor<RT> {
    /// Runs until the node stops, and puts it away.
    pub async fn run(mut self) {
        let stop = Arc::clone(&self.stop);
        TypeConfig::<RT>::select2(stop.stopping(), self.watch()).await;
        if stop.reason() == Some(StopReason::Shutdown) {
            // An error says that it ended by a panic, which was reported where it happened.
            let _ = self.proposer.await;
        }
        self.time.end();
        // An error here says that replication died before: nothing is left to be ended. It may wait for the log, on a
        // full disk for ever: then closing the log lets it go.
        let ended = self.raft.shutdown();
        let _ = TypeConfig::<RT>::timeout(SHUTDOWN_WAIT, ended).await;
        let log = Arc::clone(&self.log);
        if executor::run(&self.executor, "log-close", move || log.close()).await.is_err() {
            self.log.close();
        }
        drop(self.keep);
        self.stop.done();
    }

    async fn watch(&mut self) {
        let mut server = self.raft.server_metrics();
        let mut told = None;
        loop {
            let (state, term, leader, is_alone) = {
                let server = server.borrow_and_update();
                let is_alone = server.membership_config.membership().nodes().count() < 2;
                (server.state, server.vote.leader_id.term, server.current_leader, is_alone)
            };
            if let (Some(leader), false, true) = (leader, is_alone, told != leader.map(|leader| (leader, term))) {
                tracing::info!("node {leader} leads, in term {term}");
                told = Some((leader, term));
            }
            if state == ServerState::Shutdown {
                return self.died();
            }
            self.follow_leadership(state == ServerState::Leader, term);
            let is_settled = self.time.lead().is_some() || state != ServerState::Leader;
            let applied =
                async { if is_settled { std::future::pending().await } else { drop(self.mark.changed().await) } };
            let look = TypeConfig::<RT>::select2(applied, TypeConfig::<RT>::sleep(self.observe_every));
            let changed = async { server.changed().await.is_ok() };
            if let Select2::First(false) = TypeConfig::<RT>::select2(changed, look).await {
                return self.died();
            }
            self.time.observe();
        }
    }

    fn follow_leadership(&self, leads: bool, term: u64) {
        let lead = Lead { term };
        if !leads {
            self.time.end();
        } else if self.time.lead() != Some(lead) {
            self.time.end();
            let mark = *self.mark.borrow();
            if mark.last.is_some_and(|last| last.term == term && last.node == self.node) {
                self.time.start(term, mark.stamp);
            }
        }
    }

    /// Replication is gone without having been asked to.
    fn died(&self) {
        let why = match self.log.fault() {
            Some(fault) => StopReason::Storage(fault),
            None => match &self.raft.metrics().borrow_watched().running_state {
                Err(fatal) => StopReason::Replication(fatal.to_string()),
                Ok(()) => StopReason::Replication("its task ended unexpectedly".to_owned()),
            },
        };
        self.stop.stop(why);
    }
}
