//! Naive pools, written from the contract and from nothing else: a list of all grants that ever were, in which each
//! question looks for its answer anew. No timers, no indices, no settling: at any time `t` a grant is live if nobody
//! ended it and `t < deadline`; whose a slot is, until when it is in quarantine, who may claim it, which tokens were
//! superseded and where the clocks of its holders stood, follow from its grants. The line is in [`super::pool_line`].

mod commands;
mod questions;

use std::sync::Arc;

use tenure_cluster::Position;

use super::pool_line::InLine;
use crate::keyspace::{
    Acquire, AcquireSlot, Attach, Command, EdgeId, Ended, Event, EventKind, GrantView, Holders, Key, LeaseArgument,
    OnConflict, OpReply, PoolOptions, PoolUuid, PoolView, PriorGrant, Reason, Refusal, Reply, SlotGrant, SlotOutcome,
    SlotReply, SlotView, Slotted, TokenHash, Wait, WaitSlot,
};

/// So many takeovers of a slot in [`CONFLICT_MS`], and the next is a conflict.
const TAKEOVERS_MAX: usize = 3;
const CONFLICT_MS: u64 = 60_000;
/// Superseded tokens that a slot remembers.
const SUPERSEDED_MAX: usize = 8;

/// How a grant ended by a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Released,
    TakenOver,
    Undelivered,
}

/// What an ACQUIRE asks for, of an identity or anonymous.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub token: TokenHash,
    pub owner: Arc<str>,
    pub identity: Option<Arc<str>>,
    pub ttl_ms: i64,
    pub avoid: Option<u32>,
    /// The caller's wall clock ahead of the cluster's, when it asked.
    pub ahead: Option<i128>,
    pub note: Option<Arc<str>>,
    pub once: bool,
}

impl Ask {
    fn of_slot(ask: &AcquireSlot, t: u64) -> Self {
        let AcquireSlot { identity, token, ttl_ms, avoid, unix_ms, note, once, .. } = ask.clone();
        let ahead = unix_ms.map(|unix_ms| i128::from(unix_ms) - i128::from(t));
        Self { token, owner: identity.clone(), identity: Some(identity), ttl_ms, avoid, ahead, note, once }
    }

    fn anonymous(ask: &Acquire) -> Self {
        let Acquire { owner, token, ttl_ms, note, once, .. } = ask.clone();
        Self { token, owner, identity: None, ttl_ms, avoid: None, ahead: None, note, once }
    }
}

/// A grant, live or not.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub id: u32,
    pub fence: u64,
    pub token: TokenHash,
    pub owner: Arc<str>,
    pub identity: Option<Arc<str>>,
    pub since: u64,
    pub wall_ms: u64,
    pub renewed: u64,
    pub deadline: u64,
    pub note: Option<Arc<str>>,
    pub ahead: Option<i128>,
    /// When its identity took this slot over, or left another for it, up to this grant.
    shifts: Vec<u64>,
    pub broken: Option<Arc<str>>,
    pub ended: Option<(u64, How)>,
    /// By the wait of this request, and its client may not know.
    pub untold: Option<Attach>,
}

impl Held {
    pub fn live(&self, t: u64) -> bool {
        self.ended.is_none() && t < self.deadline
    }

    fn is_undelivered(&self) -> bool {
        self.how() == Some(How::Undelivered)
    }

    fn end(&self) -> u64 {
        self.ended.map_or(self.deadline, |(at, _)| at)
    }

    fn how(&self) -> Option<How> {
        self.ended.map(|(_, how)| how)
    }

    fn reason(&self) -> Reason {
        match (self.how(), &self.broken) {
            // Given back in the grace of a BREAK.
            (Some(How::Released), Some(_)) => Reason::Broken,
            (Some(How::Released), None) => Reason::Released,
            (Some(How::TakenOver), _) => Reason::TakenOver,
            (Some(How::Undelivered), _) => Reason::Undelivered,
            (None, Some(_)) => Reason::Broken,
            (None, None) => Reason::Expired,
        }
    }

    /// The text of a BREAK, if it ended by that.
    fn text(&self) -> Option<Arc<str>> {
        self.broken.clone().filter(|_| self.reason() == Reason::Broken)
    }

    /// From when on others may have the slot, as far as this grant goes.
    fn opens(&self, options: &PoolOptions) -> u64 {
        match self.how() {
            Some(How::Released) if self.broken.is_none() => self.end() + options.release_quarantine_ms,
            Some(How::TakenOver) => self.deadline + options.quarantine_ms,
            Some(How::Undelivered) if self.broken.is_none() => self.end(),
            Some(_) | None => self.end() + options.quarantine_ms,
        }
    }

    /// Where its holder's wall clock stood when it could last have used the id, or stands.
    fn clock(&self, options: &PoolOptions, t: u64) -> Option<i128> {
        Some(self.ahead? + i128::from(self.last_use(options).min(t)))
    }

    fn last_use(&self, options: &PoolOptions) -> u64 {
        match self.how() {
            Some(How::TakenOver) => self.deadline,
            Some(How::Undelivered) => self.end(),
            Some(How::Released) if self.broken.is_none() => self.end(),
            Some(How::Released) | None => self.end() + options.quarantine_ms,
        }
    }

    pub fn extras(&self, t: u64) -> OpReply {
        OpReply {
            fence: Some(self.fence),
            owner: Some(self.owner.clone()),
            ttl_ms: Some(self.deadline - t),
            detail: self.broken.clone(),
            ..OpReply::default()
        }
    }
}

/// Somebody would not have this slot.
#[derive(Clone, Debug)]
struct Avoided {
    id: u32,
    at: u64,
    /// The last fence by then.
    after: u64,
    until: u64,
}

/// What an ask comes to.
pub(super) enum Verdict {
    /// The token holds this grant.
    Yours(u64),
    /// It gets this slot; the other grant, of the same identity, ends.
    Give {
        id: u32,
        from: Option<Held>,
    },
    Exhausted,
    Refused(SlotReply),
}

/// One life of a pool.
#[derive(Clone)]
pub(super) struct Pool {
    pub key: Key,
    uuid: PoolUuid,
    pub options: PoolOptions,
    pub ends: Option<u64>,
    deleted: bool,
    pub grants: Vec<Held>,
    avoided: Vec<Avoided>,
    pub waiters: Vec<InLine>,
    pub changed: Position,
}

fn no(reason: Reason) -> SlotReply {
    SlotReply::nothing(reason)
}

fn no_until(reason: Reason, retry_after_ms: u64) -> SlotReply {
    SlotReply { retry_after_ms: Some(retry_after_ms), ..no(reason) }
}

/// All pools that ever were, the youngest last.
#[derive(Clone)]
pub struct PoolModel {
    pub(super) pools: Vec<Pool>,
    fence: u64,
    pub longest_ttl_ms: u64,
    /// Waiters of one key, and in all.
    pub max: (usize, usize),
    pub(super) seen: Vec<(EdgeId, u64)>,
}

impl Default for PoolModel {
    fn default() -> Self {
        let (pools, seen) = (Vec::new(), Vec::new());
        Self { pools, fence: 0, longest_ttl_ms: 0, max: (usize::MAX, usize::MAX), seen }
    }
}

impl PoolModel {
    pub(super) fn find(&mut self, key: &str, t: u64) -> Option<&mut Pool> {
        self.pools.iter_mut().rev().find(|pool| &*pool.key == key).filter(|pool| pool.exists(t))
    }

    fn look(&self, key: &str, t: u64) -> Option<&Pool> {
        self.pools.iter().rev().find(|pool| &*pool.key == key).filter(|pool| pool.exists(t))
    }

    /// Does an answer about this key change by time alone in `(from, to]`?
    pub fn changes(&self, key: &str, from: u64, to: u64) -> bool {
        self.pools.iter().rev().find(|pool| &*pool.key == key).is_some_and(|pool| pool.looks(from) != pool.looks(to))
    }

    pub fn get(&self, key: &str, t: u64) -> Option<PoolView> {
        self.look(key, t).map(|pool| pool.view(t))
    }

    pub fn holders(&self, key: &str, which: &Holders, t: u64) -> Result<Vec<SlotView>, Refusal> {
        self.look(key, t).map(|pool| pool.holders(which, t)).ok_or(Refusal::NoSuchKey)
    }

    pub fn check(&self, key: &str, fence: u64, t: u64) -> Result<(OpReply, Option<u32>), Refusal> {
        self.look(key, t).map(|pool| pool.check(fence, t)).ok_or(Refusal::NoSuchKey)
    }

    /// HELD of one that does not wait.
    pub fn held(&self, key: &str, token: Option<TokenHash>, t: u64) -> Result<(OpReply, Option<u32>), Refusal> {
        self.look(key, t).map(|pool| pool.held(token, t)).ok_or(Refusal::NoSuchKey)
    }

    /// The floor of a grant as it may be told at most. Several holders whose times overlap may be taken together for one
    /// with the clock that is furthest ahead and the latest last use.
    pub fn floor_at_most(&self, fence: u64, t: u64) -> u64 {
        let (pool, id) = self
            .pools
            .iter()
            .find_map(|pool| {
                let grant = pool.grants.iter().find(|grant| grant.fence == fence)?;
                Some((pool, grant.id))
            })
            .unwrap();
        let told = pool.grants.iter().filter(|one| one.id == id && one.fence <= fence && one.ahead.is_some());
        let ahead = told.clone().filter_map(|one| one.ahead).max().unwrap_or(0);
        let last_use = told.map(|one| one.last_use(&pool.options)).max().unwrap_or(0);
        (ahead + i128::from(last_use.min(t))).clamp(0, (1 << 53) - 1) as u64
    }

    pub fn live(&self, t: u64) -> usize {
        self.pools.iter().filter(|pool| pool.exists(t)).map(|pool| pool.live(t).count()).sum()
    }
}

fn within_max(options: &PoolOptions, ttl_ms: i64) -> Result<(), Refusal> {
    let max = options.ttl_ms_max;
    if ttl_ms.unsigned_abs() > max { Err(Refusal::TtlAboveMax { max }) } else { Ok(()) }
}

fn of_slot((op, id): (OpReply, Option<u32>)) -> Reply {
    match id {
        Some(id) => Reply::OfSlot { op, id },
        None => Reply::Op(op),
    }
}

pub(super) fn event(key: &Key, kind: EventKind) -> Event {
    Event {
        key: key.clone(),
        kind,
        fence: None,
        owner: None,
        last_renewed: None,
        detail: None,
        ttl_ms: None,
        attach: None,
        reason: None,
        slot: None,
    }
}
