//! What a plan's acts do. An act that makes no sense now does nothing.

use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::AsyncRuntime;
use tenure_cluster::simdisk::Fault;

use super::World;
use super::damage::{Damage, flip, foresee};
use super::life::End;
use super::site::{Phase, Site, log_options};
use crate::plan::{Act, Way};
use crate::runtime::{self, Rt, WORLD};

/// A clock's right rate.
const TRUE_PPM: u64 = 1_000_000;
/// So long a power cut looks out for a write to meet: most meet one that way, few would by chance.
const CUT_WITHIN: Duration = Duration::from_millis(50);
/// In so many of a hundred it looks out for as long as an election takes: of a node whose leader has just gone, the next
/// write is its vote.
const CUT_PATIENTLY: u64 = 40;

impl World {
    /// Cuts the power of a node when its disk next writes, or soon.
    fn cut_power(&self, node: u64) {
        let (writes, patiently) = {
            let mut state = self.state();
            (state.sites[&node].pace.next_write(), state.dice.percent(CUT_PATIENTLY))
        };
        let election = Duration::from_millis(self.0.shape.longest_election_ms());
        let (within, world) = (if patiently { election } else { CUT_WITHIN }, self.clone());
        runtime::spawn_on(WORLD, async move {
            // When the time is over it is cut all the same; not when the cut was given up.
            if !matches!(Rt::timeout(within, writes).await, Ok(Err(_))) {
                world.kill(node, End::Power);
            }
        });
    }

    /// Does what `act` says, as far as it makes sense now.
    pub async fn act(&self, act: &Act) {
        runtime::trace(|| format!("{act:?}"));
        match act {
            Act::Kill { node } => self.kill(*node, End::Process),
            Act::PowerCut { node } => self.cut_power(*node),
            Act::Start { node } => {
                let (world, node) = (self.clone(), *node);
                // Else it would stay down, for it is started before it is cut.
                world.state().sites[&node].pace.give_up_cut();
                runtime::spawn_on(WORLD, async move { world.start(node).await });
            }
            Act::Pause { node } => self.pause(*node),
            Act::Resume { node } => self.resume(*node),
            Act::Stall { node, every, longest_ms } => {
                runtime::stall(*node, *every, Duration::from_millis(*longest_ms));
            }
            Act::Rate { node, ppm } => {
                self.0.coverage.fired("clock_rate");
                runtime::set_rate(*node, *ppm);
            }
            Act::HandOver { to } => self.hand_over(*to),
            Act::SlowDisk { .. }
            | Act::FullDisk { .. }
            | Act::RoomyDisk { .. }
            | Act::FailDisk { .. }
            | Act::Corrupt { .. }
            | Act::WallJump { .. } => self.act_on_site(act),
            Act::Cut { .. }
            | Act::Mend { .. }
            | Act::Split { .. }
            | Act::Reset { .. }
            | Act::HealNetwork
            | Act::Loss { .. }
            | Act::Duplicate { .. }
            | Act::Delay { .. }
            | Act::Slow { .. } => self.act_on_network(act),
        }
    }

    fn act_on_network(&self, act: &Act) {
        let ids = self.ids();
        {
            let state = &mut *self.state();
            match act {
                Act::Cut { way } => state.ways.cut(*way),
                Act::Mend { way } => state.ways.mend(*way),
                Act::Split { left } => {
                    for from in &ids {
                        for to in ids.iter().filter(|to| left.contains(from) != left.contains(to)) {
                            state.ways.cut(Way { from: *from, to: *to });
                        }
                    }
                }
                Act::Reset { one, other } => {
                    state.links.reset(*one, *other);
                    let between = [(*one, *other), (*other, *one)];
                    if state.break_calls(|way| between.contains(&(way.from, way.to))) > 0 {
                        self.0.coverage.fired("reset");
                    }
                }
                Act::HealNetwork => state.ways.heal(),
                Act::Loss { per_mille } => state.ways.set_loss(*per_mille),
                Act::Duplicate { per_mille } => state.ways.set_duplicate(*per_mille),
                Act::Delay { per_mille, most_ms } => state.ways.set_delay(*per_mille, *most_ms),
                Act::Slow { way, bytes_per_second } => state.ways.set_slow(*way, *bytes_per_second),
                _ => {}
            }
        }
        self.look();
    }

    fn act_on_site(&self, act: &Act) {
        let mut state = self.state();
        let sites = &mut state.sites;
        match act {
            Act::SlowDisk { node, sync_ms } => {
                if let Some(site) = sites.get(node) {
                    site.pace.more_ms.store(*sync_ms, Ordering::Relaxed);
                }
            }
            Act::FullDisk { node, left_bytes } => {
                if let Some(site) = sites.get_mut(node) {
                    site.disk.set_capacity(Some(site.disk.used() + left_bytes));
                    site.full = true;
                }
            }
            Act::RoomyDisk { node } => {
                if let Some(site) = sites.get_mut(node) {
                    site.make_room();
                }
            }
            Act::FailDisk { node, after } => {
                if let Some(site) = sites.get(node).filter(|site| site.phase == Phase::Up) {
                    site.disk.fail_at(site.disk.operations() + 1 + after, Fault::Error);
                }
            }
            Act::WallJump { node, by_ms } => {
                if let Some(site) = sites.get(node) {
                    self.0.coverage.fired("wall_jump");
                    site.wall_off_ms.fetch_add(*by_ms, Ordering::Relaxed);
                }
            }
            Act::Corrupt { node, per_mille } => {
                drop(state);
                self.corrupt(*node, (*per_mille).into());
            }
            _ => {}
        }
    }

    fn kill(&self, id: u64, how: End) {
        let ended = self.end(id, self.life(id), how);
        if ended {
            self.0.coverage.fired(if how == End::Power { "power_cut" } else { "killed" });
        }
    }

    fn pause(&self, id: u64) {
        {
            let mut state = self.state();
            let runs = |site: &&mut Site| matches!(site.phase, Phase::Up | Phase::Starting) && !site.paused;
            let Some(site) = state.sites.get_mut(&id).filter(runs) else { return };
            site.paused = true;
        }
        runtime::pause(id);
        self.0.coverage.fired("paused");
        self.look();
    }

    fn resume(&self, id: u64) {
        match self.state().sites.get_mut(&id).filter(|site| site.paused) {
            Some(site) => site.paused = false,
            None => return,
        }
        runtime::resume(id);
        self.look();
    }

    /// Damages the log of a node that is down, unless too few whole ones would be left for a majority.
    fn corrupt(&self, id: u64, per_mille: u64) {
        let mut state = self.state();
        let damaged = state.sites.values().filter(|site| site.damaged).count() as u64;
        let may =
            |site: &&mut Site| matches!(site.phase, Phase::Down | Phase::Dead) && site.starts > 0 && !site.damaged;
        let Some(site) = state.sites.get_mut(&id).filter(may) else { return };
        let options = log_options(&self.0.shape, site.starts);
        // A mount revives a machine that stopped; what is foreseen is foreseen on copies.
        let Some((byte, damage)) = foresee(&site.disk, &options, per_mille) else { return };
        match damage {
            Damage::Refused if damaged < (self.0.shape.nodes - 1) / 2 => {
                site.damaged = true;
                flip(&site.disk, &byte);
            }
            Damage::Refused | Damage::LastGroup => {}
            Damage::Harmless => {
                self.0.coverage.fired("damage_harmless");
                flip(&site.disk, &byte);
            }
            Damage::Unnoticed(what) => {
                drop(state);
                self.0.ledger.violated("DamageIsRefused", format!("node {id}: {what}"));
            }
        }
    }

    fn hand_over(&self, to: u64) {
        let Some((id, leader)) = self.leader() else { return };
        let world = self.clone();
        runtime::spawn_on(id, async move {
            if leader.hand_over(Some(to)).await == Ok(to) {
                world.0.coverage.fired("handed_over");
            }
        });
    }

    /// Ends all that goes wrong, and starts what is down.
    pub async fn heal(&self) {
        runtime::trace(|| "heal".to_owned());
        {
            let state = &mut *self.state();
            state.ways.heal();
            for site in state.sites.values_mut() {
                site.make_room();
                site.disk.forget_faults();
                site.pace.more_ms.store(0, Ordering::Relaxed);
                site.pace.give_up_cut();
            }
        }
        for id in self.ids() {
            runtime::set_rate(id, TRUE_PPM);
            runtime::stall(id, 0, Duration::ZERO);
            self.resume(id);
        }
        self.look();
        self.failed_have_stopped().await;
        for id in self.ids() {
            self.start(id).await;
        }
    }
}

impl Site {
    fn make_room(&mut self) {
        self.disk.set_capacity(None);
        self.full = false;
    }
}
