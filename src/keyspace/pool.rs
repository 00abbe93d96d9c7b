//! A pool: numbered slots of which each is held by one, the order in which they are given, and what time does to them.
//!
//! Model: only slots that were given (or avoided) are kept; all others are as new. A free slot within the range is either
//! in quarantine (`shut`) or can be given (`idle`). Indexes answer every question of a command in O(log n): by token, by
//! identity, by fence, by deadline, by end of quarantine, by time of idleness. So neither memory nor time hangs on `size`.
//! RESIZE alone goes from slot to slot: those that it moves into or out of the range.
//!
//! Order: the identity's own slot; else the lowest that was never given; else the one that is free for longest and out of
//! quarantine.
//!
//! Invariants, kept here and nowhere else:
//! - The indexes say of exactly the slots in `slots` what these say of themselves; `fresh` is the lowest id without a slot.
//!   They follow from the slots, and only these are saved.
//! - A token stands in one slot; an identity has one slot, which it holds or claims.
//! - `shut` and `idle` hold the free slots within the range, `within` the held ones. Those beyond the end (RESIZE) are held
//!   until their grants end, and given to nobody; `beyond` says until when one of them may be in use.
//! - A clone costs O(1).
//!
//! [`Pool::pass`] ends what time has ended, a bounded number a call, the earliest first. What it has not reached is judged
//! by its own deadline ([`Pool::end_if_over`]); in such a backlog the order of giving is that of the slots reached.

use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use tenure_cluster::Stamp;
use tenure_cluster::planted::{self, Bug};

use super::lease::{Claim, End};
use super::queue::Queue;
use super::slot::{Slot, Stand, TAKEOVERS_MAX, Tenancy};
use super::{PoolOptions, PoolUse, PoolUuid, TokenHash};

/// Slots that time changes in one call of [`Pool::pass`] at most.
pub(super) const PASS_MAX: usize = 1_000;

/// See the module's head.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    pub options: PoolOptions,
    pub uuid: PoolUuid,
    /// Who waits, if anybody does.
    pub queue: Option<Box<Queue>>,
    slots: OrdMap<u32, Arc<Slot>>,
    /// Beyond the range when all of it was given.
    fresh: u64,
    /// The next one after it without a slot.
    after_fresh: u64,
    tokens: OrdMap<TokenHash, u32>,
    identities: OrdMap<Arc<str>, u32>,
    fences: OrdMap<u64, u32>,
    /// Of those that are held.
    deadlines: OrdSet<(Stamp, u64, u32)>,
    shut: OrdSet<(Stamp, u32)>,
    idle: OrdSet<(Stamp, u32)>,
    /// Those that are held within the range, by when they can be given if nothing but time happens.
    within: OrdSet<(Stamp, u32)>,
    /// The same of those beyond the end, and the free ones there that are or were in quarantine.
    beyond: OrdSet<(Stamp, u32)>,
}

/// Where a slot stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Beyond the end; but for that it could be given then.
    Beyond(Stamp),
    /// In quarantine until then.
    Shut(Stamp),
    /// Can be given; free since then.
    Idle(Stamp),
    /// Held; by time alone to be given then.
    Held(Stamp),
}

/// A grant that ended, and where.
pub(super) type Ended = (u32, Tenancy);

impl Pool {
    /// A pool of which no slot was given.
    pub fn new(options: PoolOptions, uuid: PoolUuid) -> Self {
        Self {
            options,
            uuid,
            queue: None,
            slots: OrdMap::new(),
            fresh: u64::from(options.first),
            after_fresh: u64::from(options.first) + 1,
            tokens: OrdMap::new(),
            identities: OrdMap::new(),
            fences: OrdMap::new(),
            deadlines: OrdSet::new(),
            shut: OrdSet::new(),
            idle: OrdSet::new(),
            within: OrdSet::new(),
            beyond: OrdSet::new(),
        }
    }

    /// Slots that are held, those whose time is over but that were not reached included.
    pub fn held(&self) -> u32 {
        u32::try_from(self.deadlines.len()).unwrap_or(u32::MAX)
    }

    /// How much of it is in use.
    pub fn usage(&self) -> PoolUse {
        let quarantined = u32::try_from(self.shut.len()).unwrap_or(u32::MAX);
        PoolUse { held: self.held(), quarantined, size: self.options.size }
    }

    /// Slots that can be given now.
    pub fn free(&self) -> u32 {
        // Every slot within the range that was given is in one of three sets.
        let others = self.shut.len() + self.within.len();
        self.options.size.saturating_sub(u32::try_from(others).unwrap_or(u32::MAX))
    }

    fn first(&self) -> u64 {
        u64::from(self.options.first)
    }

    /// The first id beyond the range.
    fn end(&self) -> u64 {
        self.first() + u64::from(self.options.size)
    }

    /// Is the id within the range?
    pub fn has(&self, id: u32) -> bool {
        (self.first()..self.end()).contains(&u64::from(id))
    }

    pub fn slot(&self, id: u32) -> Option<&Slot> {
        self.slots.get(&id).map(Arc::as_ref)
    }

    /// All that were given or avoided, from `from` on, in order.
    pub fn slots(&self, from: u32) -> impl Iterator<Item = (u32, &Slot)> {
        self.slots.range(from..).map(|(id, slot)| (*id, slot.as_ref()))
    }

    /// All that are held, in order of their deadlines.
    pub fn tenancies(&self) -> impl Iterator<Item = (u32, &Tenancy)> {
        self.deadlines.iter().filter_map(|(.., id)| Some((*id, self.slot(*id)?.held.as_ref()?)))
    }

    /// The deadline of the grant that ends last.
    pub fn last_deadline(&self) -> Option<Stamp> {
        self.deadlines.get_max().map(|(deadline, ..)| *deadline)
    }

    /// When all grants and quarantines are over if nothing but time happens.
    pub fn quiet_at(&self) -> Option<Stamp> {
        [&self.within, &self.shut, &self.beyond].into_iter().filter_map(OrdSet::get_max).map(|(stamp, _)| *stamp).max()
    }

    /// The slot where a token stands.
    pub fn of_token(&self, token: TokenHash) -> Option<u32> {
        self.tokens.get(&token).copied()
    }

    /// Where a token stands.
    pub fn stand(&self, token: TokenHash) -> Option<(u32, Stand<'_>)> {
        let id = self.of_token(token)?;
        Some((id, self.slot(id)?.stand(token)?))
    }

    /// The slot that an identity holds or claims.
    pub fn of_identity(&self, identity: &str) -> Option<u32> {
        self.identities.get(identity).copied()
    }

    /// The slot of a live fence.
    pub fn of_fence(&self, fence: u64) -> Option<u32> {
        self.fences.get(&fence).copied()
    }

    /// The live grant that a claim by token fits.
    pub fn claimed(&self, claim: &Claim) -> Option<(u32, &Tenancy)> {
        let id = match claim {
            Claim { token: Some(token), .. } => self.of_token(*token)?,
            Claim { fence: Some(fence), .. } => self.of_fence(*fence)?,
            Claim { token: None, fence: None } => return None,
        };
        let held = self.slot(id)?.held.as_ref()?;
        let superseded = |token: TokenHash| self.slot(id).is_some_and(|slot| slot.superseded.contains(&token));
        let renews = planted::has(Bug::SupersededRenews) && claim.token.is_some_and(superseded);
        (claim.fits(held.grant.token, held.grant.fence) || renews).then_some((id, held))
    }

    /// The next slot to be given but `avoid`, if any can be.
    pub fn next(&self, avoid: Option<u32>) -> Option<u32> {
        let fits = |id: &u32| Some(*id) != avoid;
        let slips = |id: &u32| planted::has(Bug::IdBeyondTheEnd) && u64::from(*id) == self.end();
        let fresh = [self.fresh, self.after_fresh].into_iter().filter_map(|id| u32::try_from(id).ok());
        let mut fresh = fresh.filter(|id| self.has(*id) || slips(id));
        fresh.find(fits).or_else(|| self.idle.iter().map(|(_, id)| *id).find(fits))
    }

    /// When a slot but `avoid` can be given at the earliest if nothing but time happens and none can be given now.
    pub fn opens_at(&self, avoid: Option<u32>) -> Option<Stamp> {
        let first =
            |times: &OrdSet<(Stamp, u32)>| times.iter().find(|(_, id)| Some(*id) != avoid).map(|(stamp, _)| *stamp);
        [first(&self.within), first(&self.shut)].into_iter().flatten().min()
    }

    /// When time next changes it, and the fence of the grant that it ends, if it ends one.
    pub fn next_time(&self) -> Option<(Stamp, u64)> {
        let held = self.deadlines.get_min().map(|(deadline, fence, _)| (*deadline, *fence));
        let shut = self.shut.get_min().map(|(opens_at, _)| (*opens_at, 0));
        held.into_iter().chain(shut).min()
    }

    /// Lets time do its work on at most `limit` slots: the grants that ended, and how many slots it was.
    pub fn pass(&mut self, now: Stamp, limit: usize) -> (Vec<Ended>, usize) {
        let (mut ended, mut slots) = (Vec::new(), 0);
        while let Some((_, fence)) = self.next_time().filter(|(stamp, _)| *stamp <= now && slots < limit) {
            match self.of_fence(fence) {
                Some(id) => ended.extend(self.end_if_over(id, now)),
                None => self.open_first(),
            }
            slots += 1;
        }
        (ended, slots)
    }

    /// The quarantine that ends first ends.
    fn open_first(&mut self) {
        if let Some((_, id)) = self.shut.get_min().copied() {
            self.edit(id, |slot| slot.opens_at = None);
        }
    }

    /// Ends the slot's grant if its time is over.
    pub fn end_if_over(&mut self, id: u32, now: Stamp) -> Option<Ended> {
        let grant = &self.slot(id)?.held.as_ref()?.grant;
        let (deadline, broken) = (grant.deadline, grant.broken.clone());
        if deadline > now {
            return None;
        }
        self.end_grant(id, broken.map_or(End::Expired, End::Broken), deadline)
    }

    /// Ends the slot's grant, as of `at`.
    pub fn end_grant(&mut self, id: u32, end: End, at: Stamp) -> Option<Ended> {
        let options = self.options;
        let mut ended = None;
        self.edit(id, |slot| ended = slot.end(end, at, &options));
        ended.map(|held| (id, held))
    }

    /// Begins a grant on a free slot.
    pub fn begin(&mut self, id: u32, held: Tenancy) {
        self.forget_token(held.grant.token);
        if let Some(identity) = &held.identity {
            self.drop_claim(identity);
        }
        self.edit(id, |slot| {
            let was = slot.last.as_ref().map(|last| &last.owner);
            if held.identity.is_none() || was != held.identity.as_ref() {
                slot.takeovers.clear();
            }
            slot.guarded = slot.opens_at.filter(|opens_at| *opens_at > held.grant.granted_at);
            slot.believed = slot.believed.filter(|believed| *believed > held.grant.granted_at);
            (slot.claim, slot.opens_at, slot.since) = (None, None, Stamp(0));
            slot.held = Some(held);
        });
    }

    /// Notes that at `now` the slot was taken over, or another left for it, after these.
    pub fn note_takeover(&mut self, id: u32, mut takeovers: Vec<Stamp>, now: Stamp) {
        takeovers.push(now);
        takeovers.drain(..takeovers.len().saturating_sub(TAKEOVERS_MAX));
        self.edit(id, |slot| slot.takeovers = takeovers);
    }

    /// Changes the live grant of a slot.
    pub fn edit_held(&mut self, id: u32, change: impl FnOnce(&mut Tenancy)) {
        self.edit(id, |slot| {
            if let Some(held) = &mut slot.held {
                change(held);
            }
        });
    }

    /// Somebody else seems to use this slot, which is free and within the range: it goes to nobody for a while.
    pub fn quarantine(&mut self, id: u32, now: Stamp) {
        let opens_at = now.plus_ms(self.options.quarantine_ms);
        self.edit(id, |slot| {
            if slot.last.is_none() && slot.since == Stamp(0) {
                slot.since = now;
            }
            slot.claim = None;
            slot.opens_at = slot.opens_at.max((opens_at > now).then_some(opens_at));
        });
    }

    /// The token stands here no more.
    fn forget_token(&mut self, token: TokenHash) {
        let Some(id) = self.of_token(token) else { return };
        self.edit(id, |slot| {
            if let Some(last) = slot.last.as_mut().filter(|last| last.token == Some(token)) {
                last.token = None;
            }
        });
    }

    /// The identity's claim on a free slot ends.
    fn drop_claim(&mut self, identity: &Arc<str>) {
        let Some(id) = self.of_identity(identity) else { return };
        self.edit(id, |slot| slot.claim = None);
    }

    /// Another size.
    pub fn resize(&mut self, size: u32) {
        let old = self.end();
        let new = self.first() + u64::from(size);
        let from = u32::try_from(old.min(new)).unwrap_or(u32::MAX);
        let to = old.max(new);
        let moved = self.slots.range(from..).map(|(id, slot)| (*id, Arc::clone(slot)));
        let moved: Vec<_> = moved.take_while(|(id, _)| u64::from(*id) < to).collect();
        for (id, slot) in &moved {
            self.unplace(*id, self.place(*id, slot));
        }
        self.options.size = size;
        for (id, slot) in &moved {
            self.enplace(*id, self.place(*id, slot));
        }
    }

    /// Puts a slot in as it was saved; `false`: it contradicts another.
    pub fn put(&mut self, id: u32, slot: Slot) -> bool {
        let tokens = slot.tokens();
        let identity = slot.identity().cloned();
        let known = tokens.iter().any(|token| self.tokens.contains_key(token))
            || tokens.iter().enumerate().any(|(n, token)| tokens.iter().skip(n + 1).any(|other| other == token))
            || identity.is_some_and(|identity| self.identities.contains_key(&identity))
            || slot.held.as_ref().is_some_and(|held| self.fences.contains_key(&held.grant.fence))
            || self.slots.contains_key(&id);
        if !known {
            self.edit(id, |own| *own = slot);
        }
        !known
    }

    /// Changes a slot and the indexes with it.
    fn edit(&mut self, id: u32, change: impl FnOnce(&mut Slot)) {
        let old = self.slots.get(&id).map(Arc::clone);
        let mut new = old.as_deref().cloned().unwrap_or_default();
        change(&mut new);
        self.relist(id, old.as_deref(), &new);
        self.slots.insert(id, Arc::new(new));
        let is_given = |id: u64| u32::try_from(id).is_ok_and(|id| self.slots.contains_key(&id));
        let first_without = |mut id: u64| {
            while is_given(id) {
                id += 1;
            }
            id
        };
        // Both only ever rise: each id is passed once in a pool's life, or twice.
        let fresh = first_without(self.fresh);
        let after_fresh = first_without(self.after_fresh.max(fresh + 1));
        (self.fresh, self.after_fresh) = (fresh, after_fresh);
    }

    fn relist(&mut self, id: u32, old: Option<&Slot>, new: &Slot) {
        let (was, is) = (old.map(Slot::tokens).unwrap_or_default(), new.tokens());
        if was != is {
            for token in &was {
                self.tokens.remove(token);
            }
            for token in &is {
                self.tokens.insert(*token, id);
            }
        }
        let (was, is) = (old.and_then(Slot::identity), new.identity());
        if was != is {
            was.map(|identity| self.identities.remove(identity));
            is.map(|identity| self.identities.insert(Arc::clone(identity), id));
        }
        let deadline = |slot: &Slot| slot.held.as_ref().map(|held| (held.grant.deadline, held.grant.fence, id));
        let (was, is) = (old.and_then(deadline), deadline(new));
        if was != is {
            was.map(|was| self.fences.remove(&was.1).and(self.deadlines.remove(&was)));
            is.map(|is| self.fences.insert(is.1, id).and(self.deadlines.insert(is)));
        }
        let (was, is) = (old.and_then(|old| self.place(id, old)), self.place(id, new));
        if was != is {
            self.unplace(id, was);
            self.enplace(id, is);
        }
    }

    /// Where a slot stands; `None`: beyond the end, free, and not in quarantine.
    fn place(&self, id: u32, slot: &Slot) -> Option<Place> {
        let held = slot.held.as_ref().map(|held| {
            let opens_at = held.grant.deadline.plus_ms(self.options.quarantine_ms);
            opens_at.max(slot.guarded.unwrap_or_default())
        });
        match (self.has(id), held, slot.opens_at) {
            (true, Some(opens_at), _) => Some(Place::Held(opens_at)),
            (true, None, Some(opens_at)) => Some(Place::Shut(opens_at)),
            (true, None, None) => Some(Place::Idle(slot.since)),
            (false, held, shut) => held.or(shut).map(Place::Beyond),
        }
    }

    fn unplace(&mut self, id: u32, place: Option<Place>) {
        match place {
            Some(Place::Shut(opens_at)) => drop(self.shut.remove(&(opens_at, id))),
            Some(Place::Idle(since)) => drop(self.idle.remove(&(since, id))),
            Some(Place::Held(opens_at)) => drop(self.within.remove(&(opens_at, id))),
            Some(Place::Beyond(opens_at)) => drop(self.beyond.remove(&(opens_at, id))),
            None => {}
        }
    }

    fn enplace(&mut self, id: u32, place: Option<Place>) {
        match place {
            Some(Place::Shut(opens_at)) => drop(self.shut.insert((opens_at, id))),
            Some(Place::Idle(since)) => drop(self.idle.insert((since, id))),
            Some(Place::Held(opens_at)) => drop(self.within.insert((opens_at, id))),
            Some(Place::Beyond(opens_at)) => drop(self.beyond.insert((opens_at, id))),
            None => {}
        }
    }

    /// Those who wait, if any.
    pub fn queue(&self) -> Option<&Queue> {
        self.queue.as_deref()
    }

    pub fn edit_queue<R>(&mut self, change: impl FnOnce(&mut Queue) -> R) -> R {
        let mut queue = self.queue.take().unwrap_or_default();
        let result = change(&mut queue);
        self.queue = Some(queue).filter(|queue| !queue.is_empty());
        result
    }
}

impl Slot {
    /// All tokens that stand here.
    fn tokens(&self) -> Vec<TokenHash> {
        let held = self.held.iter().map(|held| held.grant.token);
        let last = self.last.iter().filter_map(|last| last.token);
        held.chain(last).chain(self.superseded.iter().copied()).collect()
    }

    /// Whose it is.
    pub fn identity(&self) -> Option<&Arc<str>> {
        match &self.held {
            Some(held) => held.identity.as_ref(),
            None => self.claim.as_ref(),
        }
    }
}
