//! Pools and those who use them: for a while one pool, identities that hold its slots (`tenants`), others that want any slot
//! (`lodgers`), and one who resizes, breaks, deletes and looks (`warden`). They stand in no history: the judge, who reads the log,
//! tells whether each was answered right, and whether each answer is in it; what they believed is in the notes.

use std::sync::Arc;
use std::time::Duration;

use checker::Dice;
use futures_util::future::{join, join_all};
use tenure::keyspace::{Command, Key, OnConflict, PoolOptions, PoolUuid, Reply};
use tenure_cluster::Applied;

use super::beliefs::{deadline_ns, slot_name};
use super::board::Board;
use super::client::Client;
use super::holding::MS;
use super::service::Service;
use super::{Belief, Notes};
use crate::runtime;
use crate::world::NoReply;

/// Pools at one time, and how long each is used.
const POOLS: u64 = 2;
const POOL_FOR_NS: u64 = 9_000_000_000;
/// Identities of one landlord, and those who want any slot.
const TENANTS: std::ops::RangeInclusive<u64> = 2..=3;
const LODGERS: std::ops::RangeInclusive<u64> = 0..=2;
/// Of a hundred tenants so many have the identity of another.
const TWINS: u64 = 15;
/// What clients' wall clocks are off at most.
const OFF_MS: u64 = 4_000;
/// Wall time at the beginning, Unix milliseconds.
const WALL_MS: u64 = 1_700_000_000_000;

/// One process that wants slots of a pool.
pub(super) struct Process<S> {
    pub client: u32,
    pub service: S,
    pub board: Board,
    pub notes: Notes,
    pub dice: Dice,
    pub pool: Key,
    /// Until when it works.
    pub until_ns: u64,
    pub request_timeout_ms: u64,
    ttl_ms: (u64, u64),
    off_ms: u64,
    nodes: Vec<u64>,
    at: usize,
    tries: u64,
}

/// A try that was answered.
pub(super) struct Answered {
    pub sent_ns: u64,
    pub returned_ns: u64,
    pub reply: Reply,
}

/// A slot that is believed in.
pub(super) struct Lodging {
    pub token: u64,
    pub id: u32,
    pub fence: u64,
    pub ttl_ms: u64,
    /// The own deadline.
    pub until_ns: u64,
    /// In the notes.
    pub belief: usize,
}

impl<S: Service> Client<S> {
    /// A pool for a while, and all who use it.
    pub(super) async fn let_slots(&mut self) {
        let now_ns = runtime::now_ns();
        let epoch = now_ns / POOL_FOR_NS;
        let until_ns = (epoch + 1) * POOL_FOR_NS;
        let pool = Key::from(format!("pool-{epoch}-{}", self.dice.in_range(1..=POOLS)));
        let create = self.create(&pool);
        let mut first = self.process(&pool, until_ns);
        drop(first.send(create).await);
        let (tenants, lodgers) = (self.dice.in_range(TENANTS), self.dice.in_range(LODGERS));
        let mut lives = Vec::new();
        for n in 1..=tenants {
            let n = if self.dice.percent(TWINS) { 1 } else { n };
            let identity: Arc<str> = format!("t{}-{n}", self.number).into();
            lives.push(self.process(&pool, until_ns).live(identity));
        }
        let any: Vec<_> = (0..lodgers).map(|_| self.process(&pool, until_ns).lodge()).collect();
        let ward = first.ward();
        join(join(join_all(lives), join_all(any)), ward).await;
        self.rest(0..=300).await;
    }

    fn process(&mut self, pool: &Key, until_ns: u64) -> Process<S> {
        let nodes = self.service.ids();
        Process {
            client: self.number,
            service: self.service.clone(),
            board: self.board.clone(),
            notes: self.notes.clone(),
            dice: Dice::new(self.dice.in_range(0..=u64::MAX - 1), 0x0070_6f6f_6c73),
            pool: Key::clone(pool),
            until_ns,
            request_timeout_ms: self.request_timeout_ms,
            ttl_ms: self.ttl_ms,
            off_ms: self.dice.in_range(0..=2 * OFF_MS),
            at: usize::try_from(self.dice.in_range(0..=nodes.len() as u64 - 1)).unwrap(),
            nodes,
            tries: 0,
        }
    }

    fn create(&mut self, pool: &Key) -> Command {
        let dice = &mut self.dice;
        let span = |dice: &mut Dice, percent, most| if dice.percent(percent) { dice.in_range(1..=most) } else { 0 };
        let size = u32::try_from(dice.in_range(2..=5)).unwrap();
        let options = PoolOptions {
            size,
            first: [0, 7, u32::MAX - size + 1][usize::try_from(dice.in_range(0..=2)).unwrap()],
            quarantine_ms: span(dice, 80, 1_500),
            release_quarantine_ms: span(dice, 40, 500),
            ttl_ms_min: dice.in_range(1..=400),
            ttl_ms_max: 86_400_000,
            on_conflict: if dice.percent(30) { OnConflict::Reject } else { OnConflict::Takeover },
        };
        let number = u128::from(self.board.number());
        Command::CreatePool { key: Key::clone(pool), options, uuid: PoolUuid(number.to_be_bytes()) }
    }
}

impl<S: Service> Process<S> {
    pub(super) fn is_over(&self) -> bool {
        self.board.is_over() || runtime::now_ns() >= self.until_ns
    }

    pub(super) async fn rest(&mut self, ms: std::ops::RangeInclusive<u64>) {
        let us = self.dice.in_range(ms.start() * 1_000..=ms.end() * 1_000);
        runtime::sleep(Duration::from_micros(us)).await;
    }

    /// Mostly longer than a node tries.
    pub(super) fn patience(&mut self) -> Duration {
        let most_ms = self.request_timeout_ms;
        let impatient = self.dice.percent(10);
        Duration::from_millis(if impatient { self.dice.in_range(20..=300) } else { most_ms + 200 })
    }

    /// A lifetime to ask for, now and then less than the least; no two tries ask for the same.
    pub(super) fn lifetime_ms(&mut self) -> u64 {
        let (least, most) = self.ttl_ms;
        let drawn = if self.dice.percent(20) { 1 } else { self.dice.in_range(least..=least + (most - least) / 2) };
        self.tries += 1;
        drawn / 256 * 256 + self.tries % 256 + 1
    }

    /// Its wall clock.
    pub(super) fn unix_ms(&self) -> u64 {
        WALL_MS + runtime::now_ns() / MS + self.off_ms - OFF_MS
    }

    /// The node that is asked next.
    pub(super) fn turn(&mut self, percent: u64) -> u64 {
        if self.dice.percent(percent) {
            self.at = (self.at + 1) % self.nodes.len();
        }
        self.nodes[self.at]
    }

    /// One try, written down. `None`: no answer.
    pub(super) async fn send(&mut self, command: Command) -> Option<Answered> {
        let (node, patience, sent_ns) = (self.turn(5), self.patience(), runtime::now_ns());
        match self.service.submit(node, command.clone(), patience).await {
            Ok(applied) => {
                let returned_ns = runtime::now_ns();
                runtime::trace_line(format_args!("{} at {node}: {command:?} -> {:?}", self.client, applied.reply));
                let reply = applied.reply.clone();
                self.notes.told.lock().unwrap().push((command, applied));
                Some(Answered { sent_ns, returned_ns, reply: first(reply) })
            }
            Err(lost) => {
                if lost == NoReply::Nothing {
                    self.notes.without_effect.lock().unwrap().push(command);
                }
                self.turn(100);
                None
            }
        }
    }

    /// A command of which the same may be sent again: it is told apart by a batch.
    pub(super) async fn send_apart(&mut self, mut commands: Vec<Command>) -> Option<Answered> {
        commands.push(Command::Check { key: Key::from(format!("nowhere-pool-{}", self.board.number())), fence: 1 });
        self.send(Command::Batch(commands)).await
    }

    /// What came of a wait.
    pub(super) fn waited(&mut self, sent_ns: u64, came: Result<Applied<Reply>, NoReply>) -> Option<Answered> {
        let returned_ns = runtime::now_ns();
        match came {
            Ok(applied) => {
                runtime::trace_line(format_args!("{} waited: {:?}", self.client, applied.reply));
                Some(Answered { sent_ns, returned_ns, reply: applied.reply })
            }
            Err(_) => {
                self.turn(100);
                None
            }
        }
    }

    /// The grant that an answer tells of, believed in; `None`: none, or it came too late to be.
    pub(super) fn believe(&self, token: u64, answered: &Answered) -> Option<Lodging> {
        let Reply::Slot(reply) = &answered.reply else { return None };
        let grant = reply.grant()?;
        let until_ns = deadline_ns(answered.sent_ns, answered.returned_ns, grant.ttl_ms);
        if answered.returned_ns >= until_ns {
            return None;
        }
        let belief = self.notes.begin(Belief {
            client: self.client,
            key: slot_name(&self.pool, grant.id),
            fence: grant.fence,
            sent_ns: answered.sent_ns,
            from_ns: answered.returned_ns,
            until_ns,
        });
        Some(Lodging { token, id: grant.id, fence: grant.fence, ttl_ms: grant.ttl_ms, until_ns, belief })
    }
}

/// Of a batch what is meant.
fn first(reply: Reply) -> Reply {
    match reply {
        Reply::Batch(replies) => replies.into_iter().next().unwrap_or(Reply::Batch(Vec::new())),
        reply => reply,
    }
}
