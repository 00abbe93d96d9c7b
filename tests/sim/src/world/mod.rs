//! The nodes and what they stand on: network, disks, clocks. Everything that a plan's act does, it does here.
//!
//! ```text
//! World (this file: the handle)   acts (what a plan says)   life (starts, ends)   end, quiet (all is well again?)
//!   site   one node's place: disk, snapshots, wall clock        disk, damage, stored   its log
//!   router -> exchange -> ways (what becomes of a message), links (which connections stand, who is gone)
//!   sockets (clients that wait, and what a node sees of their going)   majority (when surely none worked together)
//! ```
//! Real: the node, its log and all their code; messages go through their encoded form. Simulated: the disk below the log,
//! the snapshot store (durable at once), the network, time. Invariants: what a host does, tasks of that host do, so a
//! killed process ends at one instant and one that stands still does nothing; nothing here depends on anything but the
//! seed. A message or a task of an earlier life of a process goes nowhere.
//!
//! Not promised: snapshots on a faulty disk (the store has its own tests), TCP's retransmission (a lost message is lost).

mod acts;
mod clients;
mod damage;
mod disk;
mod end;
mod exchange;
mod life;
mod links;
mod majority;
mod quiet;
mod router;
mod site;
mod sockets;
mod stored;
#[cfg(test)]
mod tests;
mod ways;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use checker::Dice;
use tenure_cluster::peer::{PeerAnswerV1, PeerRequestV1};
use tenure_cluster::persisted::VoteV1;

use crate::coverage::Coverage;
use crate::judge::Ledger;
use crate::plan::{Plan, Shape, Way};
use crate::runtime::{self, WORLD};
use exchange::Call;
use links::{Changes, Links, Presence, SILENCE_NS};
use majority::{Majority, Seen};
use site::{Node, Phase, Site};
use ways::{Fate, Ways};

/// A call had no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoReply {
    /// Surely without effect.
    Nothing,
    /// It may have had its effect, or have it later.
    Unknown,
}

/// See the module's head. Clones are handles to the same.
#[derive(Clone)]
pub struct World(Arc<Inner>);

struct Inner {
    shape: Shape,
    ledger: Ledger,
    coverage: Coverage,
    state: Mutex<State>,
}

/// What changes.
struct State {
    dice: Dice,
    ways: Ways,
    links: Links,
    majority: Majority,
    sites: BTreeMap<u64, Site>,
    calls: BTreeMap<u64, Call>,
    next_call: u64,
    /// Who led, by term and node (several may, one after the other, in one term), and in which of its lives.
    leads: BTreeMap<(u64, u64), u64>,
}

impl State {
    fn send(&mut self, way: Way, bytes: u64, coverage: &Coverage) -> Fate {
        self.ways.send(way, bytes, runtime::now_ns(), &mut self.dice, coverage)
    }

    /// Who runs now, and which ways are open.
    fn seen(&self) -> Seen {
        let runs = |site: &Site| site.presence() == Presence::Alive;
        let ways = self.sites.keys().flat_map(|from| self.sites.keys().map(|to| Way { from: *from, to: *to }));
        Seen {
            ran: self.sites.iter().filter(|(_, site)| runs(site)).map(|(id, _)| *id).collect(),
            open: ways.filter(|way| way.from != way.to && !self.ways.is_cut(way.from, way.to)).collect(),
        }
    }

    /// Breaks the calls under way that `ends` says of.
    fn break_calls(&mut self, ends: impl Fn(Way) -> bool) -> usize {
        let before = self.calls.len();
        self.calls.retain(|_, call| !ends(call.way));
        before - self.calls.len()
    }
}

impl World {
    /// A world of the plan's shape: nodes with empty disks, none started.
    pub fn new(plan: &Plan, ledger: &Ledger, coverage: &Coverage) -> Self {
        let shape = plan.shape.clone();
        let state = State {
            dice: Dice::new(plan.seed, 0x0077_6f72_6c64),
            ways: Ways::new(shape.hop_us),
            links: Links::default(),
            majority: Majority::of(shape.nodes),
            sites: (1..=shape.nodes).map(|id| (id, Site::new(&shape))).collect(),
            calls: BTreeMap::new(),
            next_call: 0,
            leads: BTreeMap::new(),
        };
        let (ledger, coverage) = (ledger.clone(), coverage.clone());
        Self(Arc::new(Inner { shape, ledger, coverage, state: Mutex::new(state) }))
    }

    /// The ids of all nodes.
    pub fn ids(&self) -> Vec<u64> {
        (1..=self.0.shape.nodes).collect()
    }

    fn of(inner: &Weak<Inner>) -> Option<Self> {
        inner.upgrade().map(Self)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node `id` in this life.
    fn node(&self, id: u64, life: u64) -> Option<Node> {
        self.state().sites.get(&id)?.node(life).cloned()
    }

    /// The nodes that serve.
    fn nodes(&self) -> Vec<(u64, Node)> {
        let state = self.state();
        state.sites.iter().filter_map(|(id, site)| Some((*id, site.running.as_ref()?.node.clone()))).collect()
    }

    fn life(&self, id: u64) -> u64 {
        self.state().sites.get(&id).map_or(0, |site| site.life)
    }

    fn hop_ns(&self) -> u64 {
        let state = &mut *self.state();
        state.ways.hop_ns(&mut state.dice)
    }

    fn repeats(&self) -> bool {
        let state = &mut *self.state();
        state.ways.repeats(&mut state.dice)
    }

    /// A number below `limit`, which is not 0.
    fn below(&self, limit: u64) -> u64 {
        self.state().dice.in_range(0..=limit - 1)
    }

    fn connection(&self, way: Way) -> Option<u64> {
        self.state().links.connection(way.from, way.to)
    }

    /// Looks again who reaches whom: after each change of a host or a way.
    fn look(&self) {
        let now_ns = runtime::now_ns();
        let changes = {
            let state = &mut *self.state();
            if let Some((from_ns, until_ns)) = state.majority.look(now_ns, state.seen()) {
                self.0.ledger.outage(from_ns, until_ns);
            }
            let hosts = state.sites.iter().map(|(id, site)| (*id, site.presence())).collect();
            let changes = state.links.look(now_ns, &hosts, |from, to| state.ways.is_cut(from, to));
            for (who, whom) in &changes.broken {
                state.break_calls(|way| (way.from, way.to) == (*who, *whom));
            }
            for (who, whom) in &changes.not_gone {
                state.sites[who].gone.send_if_modified(|gone| gone.remove(whom));
            }
            changes
        };
        self.spread(&changes);
    }

    /// What takes a moment to be seen.
    fn spread(&self, changes: &Changes) {
        for (who, whom) in changes.gone.iter().copied() {
            let (world, life, of) = (self.clone(), self.life(who), self.life(whom));
            let trip = Duration::from_nanos(self.hop_ns() + self.hop_ns());
            runtime::spawn_on(who, async move {
                runtime::sleep(trip).await;
                let state = world.state();
                let (own, peer) = (&state.sites[&who], &state.sites[&whom]);
                if own.life == life && peer.life == of && peer.presence() == Presence::Dead {
                    own.gone.send_if_modified(|gone| gone.insert(whom));
                }
            });
        }
        if changes.fell_silent {
            let world = self.clone();
            runtime::spawn_on(WORLD, async move {
                runtime::sleep(Duration::from_nanos(SILENCE_NS)).await;
                world.look();
            });
        }
    }

    /// A request leaves `from`: what it shows of who leads and who voted.
    fn asks(&self, from: u64, life: u64, request: &PeerRequestV1) {
        match request {
            PeerRequestV1::Append(append) if append.vote.node == Some(from) => {
                let term = append.vote.term;
                let mut state = self.state();
                let changed = state.leads.last_key_value().is_some_and(|((_, leader), _)| *leader != from);
                let known = state.leads.insert((term, from), life);
                drop(state);
                self.0.ledger.led(from, term);
                if known.is_none() && changed {
                    self.0.coverage.fired("leader_changed");
                }
            }
            PeerRequestV1::Vote(asked) if asked.vote.node == Some(from) => {
                self.0.ledger.voted(from, asked.vote.term, from);
            }
            PeerRequestV1::LeaderGone(asked) => self.is_gone(from, &asked.leader),
            _ => {}
        }
    }

    /// Node `who` says that the process that led by this vote is gone: is it?
    fn is_gone(&self, who: u64, leader: &VoteV1) {
        let state = self.state();
        let Some(id) = leader.node else { return };
        let Some(life) = state.leads.get(&(leader.term, id)).copied() else { return };
        let site = &state.sites[&id];
        if site.life == life && site.phase == Phase::Up {
            let detail = format!("node {who} takes node {id}, leader of term {}, for dead, and it lives", leader.term);
            drop(state);
            self.0.ledger.violated("GoneIsGone", detail);
        }
    }

    /// `from` answers; `asked` is the vote that was asked for.
    fn answers(&self, from: u64, asked: Option<VoteV1>, answer: &PeerAnswerV1) {
        match (asked, answer) {
            (Some(asked), PeerAnswerV1::Vote(answer)) if answer.granted => {
                if let Some(candidate) = asked.node {
                    self.0.ledger.voted(from, asked.term, candidate);
                }
            }
            (_, PeerAnswerV1::LeaderGone(true)) => self.0.coverage.fired("crash_path"),
            _ => {}
        }
    }
}
