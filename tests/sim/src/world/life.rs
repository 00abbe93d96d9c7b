//! Nodes begin and end: started on what is stored, killed, without power, or stopped by themselves for a cause.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::edge::{Edge, Requests};
use tenure::keyspace::{EdgeId, Event};
use tenure_cluster::cluster::EventSink;
use tenure_cluster::executor::Inline;
use tenure_cluster::log::{LogStore, Writer};
use tenure_cluster::start::Parts;
use tenure_cluster::{Cluster, OpenError, Remedy, StopReason};
use tokio::sync::oneshot;

use super::World;
use super::damage::LOG_DIR;
use super::disk::{Observed, Snapshots, drive};
use super::router::Router;
use super::site::{Node, Phase, Running, Site, config, log_options, member, wall};
use super::stored::Stored;
use crate::judge::Watched;
use crate::runtime::{self, Rt, WORLD};

/// Longest time in which a node must stop whose disk has failed.
const STOPS_WITHIN: Duration = Duration::from_secs(20);
/// Time between two looks for a leader.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// `kill -9`, or by itself: what was written stays.
    Process,
    /// With its machine: what was not synced may be lost.
    Power,
}

/// A node that was opened.
struct Opened {
    node: Node,
    edge: Edge<Watched, Rt>,
    writer: Arc<Mutex<Writer>>,
    log: LogStore<Rt>,
    found: Stored,
}

impl World {
    /// Starts all nodes and makes them one cluster; returns once it has a leader.
    pub async fn found(&self) {
        for id in self.ids() {
            self.start(id).await;
        }
        let voters: BTreeMap<_, _> = self.ids().into_iter().map(|id| (id, member(id))).collect();
        let Some((_, first)) = self.nodes().into_iter().next() else { return };
        let (told, done) = oneshot::channel();
        runtime::spawn_on(1, async move {
            // Nobody waits any more only when the run is over.
            let _ = told.send(first.found(voters).await.map_err(|error| error.to_string()));
        });
        if let Err(why) = done.await.unwrap_or_else(|_| Err("its process ended".to_owned())) {
            self.0.ledger.violated("StartsAgain", format!("the cluster was not founded: {why}"));
            return;
        }
        let world = self.clone();
        runtime::spawn_on(WORLD, async move {
            loop {
                runtime::sleep(STOPS_WITHIN / 8).await;
                world.check_failed_disks();
            }
        });
        while self.leader().is_none() {
            runtime::sleep(LOOK_EVERY).await;
        }
    }

    /// Starts a node that is down on what is stored; returns when it serves, or cannot.
    pub(super) async fn start(&self, id: u64) {
        let (life, starts) = {
            let state = &mut *self.state();
            let Some(site) = state.sites.get_mut(&id).filter(|site| site.may_start()) else { return };
            site.begin();
            state.links.forget(id);
            (site.life, site.starts)
        };
        self.0.ledger.started(id);
        runtime::trace(|| format!("node {id} starts, life {life}"));
        self.look();
        let (told, opened) = oneshot::channel();
        let world = self.clone();
        runtime::spawn_on(id, async move {
            let opened = world.open(id, life, starts).await;
            // Nobody waits any more when the life is over.
            let _ = told.send(opened);
        });
        match opened.await {
            Ok(Ok(opened)) => self.opened(id, life, opened),
            Ok(Err(error)) => self.not_opened(id, life, &error),
            Err(_) => {}
        }
    }

    async fn open(&self, id: u64, life: u64, starts: u64) -> Result<Opened, OpenError> {
        let (mount, pace, snapshots, wall) = {
            let state = self.state();
            let site = &state.sites[&id];
            (site.disk.mount(), Arc::clone(&site.pace), site.snapshots.clone(), wall(&site.wall_off_ms))
        };
        let mut config = config(id, &self.0.shape);
        config.observer = Arc::new(Snapshots(self.0.coverage.clone()));
        let disk = Arc::new(Observed { disk: mount, pace: Arc::clone(&pace), coverage: self.0.coverage.clone() });
        let options = log_options(&self.0.shape, starts);
        let observer = Arc::clone(&config.observer);
        let (log, writer) = LogStore::<Rt>::open_stepped(disk, PathBuf::from(LOG_DIR), options, observer)?;
        let found = Stored::of(&log);
        let writer = Arc::new(Mutex::new(writer));
        runtime::spawn_on(id, drive(Arc::clone(&writer), pace, self.0.coverage.clone()));
        let parts = Parts {
            cluster_id: "0".repeat(32),
            node_id: id,
            gauge: Arc::new(log.clone()),
            log: log.clone(),
            snapshots: Arc::new(snapshots),
            executor: Arc::new(Inline),
            wall,
            transport: Arc::new(Router { from: id, life, world: Arc::downgrade(&self.0) }),
            peers: BTreeMap::new(),
            remedy: Remedy::default(),
            keep: Box::new(()),
        };
        let requests = Arc::new(Requests::default());
        let node = Cluster::start(&config, parts, self.listener(id, &requests)).await?;
        let incarnation = self.below(u64::MAX);
        let edge = Edge::new(EdgeId { node: id, incarnation }, node.clone(), requests);
        Ok(Opened { node, edge, writer, log, found })
    }

    /// Hears what the machine of a node tells.
    fn listener(&self, id: u64, requests: &Arc<Requests>) -> EventSink<Event> {
        let (ledger, requests) = (self.0.ledger.clone(), Arc::clone(requests));
        Arc::new(move |heard| {
            ledger.heard(id, &heard);
            requests.hear(heard);
        })
    }

    fn opened(&self, id: u64, life: u64, opened: Opened) {
        let Opened { node, edge, writer, log, found } = opened;
        let (end, ended) = oneshot::channel();
        {
            let mut state = self.state();
            let Some(site) = state.sites.get_mut(&id).filter(|site| site.life == life) else { return };
            site.phase = Phase::Up;
            if site.damaged {
                self.0.ledger.violated("DamageIsRefused", format!("node {id} starts on a damaged log"));
            }
            site.running = Some(Running { node: node.clone(), edge, writer, _log: log, _end: end });
        }
        let vote = found.vote.map_or((0, 0), |vote| (vote.term, vote.node.unwrap_or_default()));
        self.0.ledger.durable_vote(id, vote.0, vote.1);
        self.look();
        let world = self.clone();
        runtime::spawn_on(WORLD, async move {
            let reason = tokio::select! { biased;
                _ = ended => return,
                reason = node.stopped() => reason,
            };
            world.stopped(id, life, &reason);
        });
    }

    fn not_opened(&self, id: u64, life: u64, error: &OpenError) {
        let (is_damage, failed, full) = {
            let state = self.state();
            let Some(site) = state.sites.get(&id).filter(|site| site.life == life) else { return };
            (site.damaged, site.pace.failed_at_ns().is_some(), site.full)
        };
        runtime::trace(|| format!("node {id} does not start: {error}"));
        match error {
            OpenError::Damaged { .. } if is_damage => self.refused(id),
            OpenError::Io { .. } | OpenError::Raft(_) if failed => self.0.coverage.fired("disk_failed"),
            OpenError::Io { .. } if full => self.0.coverage.fired("disk_full"),
            _ => self.0.ledger.violated("StartsAgain", format!("node {id} does not start: {error}")),
        }
        self.end(id, life, End::Process);
    }

    /// As it must be: a damaged node stays away.
    fn refused(&self, id: u64) {
        self.0.coverage.fired("damage_refused");
        if let Some(site) = self.state().sites.get_mut(&id) {
            site.refused = true;
        }
    }

    /// A node stopped by itself.
    fn stopped(&self, id: u64, life: u64, reason: &StopReason) {
        let failed = {
            let state = self.state();
            let Some(site) = state.sites.get(&id).filter(|site| site.life == life) else { return };
            site.pace.failed_at_ns().is_some()
        };
        runtime::trace(|| format!("node {id} stops: {reason}"));
        match reason {
            StopReason::Storage(_) if failed => self.0.coverage.fired("disk_failed"),
            _ => self.0.ledger.violated("StopsForCause", format!("node {id} stopped by itself: {reason}")),
        }
        self.end(id, life, End::Process);
    }

    /// Ends the process of this life, if it runs, at this instant. True when it did.
    pub(super) fn end(&self, id: u64, life: u64, how: End) -> bool {
        let dead = {
            let state = &mut *self.state();
            let Some(site) = state.sites.get_mut(&id).filter(|site| site.life == life) else { return false };
            if site.phase == Phase::Down || (site.phase == Phase::Dead && how == End::Process) {
                return false;
            }
            if how == End::Power {
                site.tear(&mut state.dice);
            }
            site.phase = if how == End::Power { Phase::Down } else { Phase::Dead };
            site.life += 1;
            site.paused = false;
            state.links.end(id);
            site.running.take()
        };
        runtime::kill(id);
        runtime::resume(id);
        {
            let state = &mut *self.state();
            match how {
                End::Process => state.sites[&id].disk.process_crash(),
                End::Power => {
                    let losses = state.sites[&id].disk.power_cut(state.dice.in_range(0..=u64::MAX - 1));
                    for (what, times) in [("torn_write", losses.torn), ("write_lost", losses.sectors + losses.names)] {
                        if times > 0 {
                            self.0.coverage.add(what, times);
                        }
                    }
                }
            }
            // From the dead nothing comes; what others asked it breaks, unless its host is silent.
            state.break_calls(|way| way.from == id || (way.to == id && how == End::Process));
        }
        drop(dead);
        self.0.ledger.stopped(id);
        self.look();
        true
    }

    /// Waits until each node has stopped whose disk failed, or is found guilty of going on.
    pub(super) async fn failed_have_stopped(&self) {
        let goes_on = |site: &Site| site.phase == Phase::Up && site.pace.failed_at_ns().is_some();
        let by_ns = runtime::now_ns() + (STOPS_WITHIN * 2).as_nanos() as u64;
        while self.state().sites.values().any(goes_on) && runtime::now_ns() < by_ns {
            runtime::sleep(STOPS_WITHIN / 400).await;
        }
    }

    /// Has each node stopped whose disk failed a while ago?
    pub(super) fn check_failed_disks(&self) {
        let now_ns = runtime::now_ns();
        let late = |at_ns: u64| now_ns.saturating_sub(at_ns) > STOPS_WITHIN.as_nanos() as u64;
        let state = self.state();
        let late: Vec<u64> = state
            .sites
            .iter()
            .filter(|(_, site)| site.phase == Phase::Up && !site.paused && site.pace.failed_at_ns().is_some_and(late))
            .map(|(id, _)| *id)
            .collect();
        drop(state);
        for id in late {
            self.0.ledger.violated("StopsForCause", format!("node {id} goes on although its disk failed"));
        }
    }
}
