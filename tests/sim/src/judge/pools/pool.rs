//! One pool as the contract has it: who holds which slot, what keeps a free one from whom, and which is to be given next.
//! Nothing of the keyspace is in it but its words; all questions are answered by looking at every slot.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure::keyspace::{
    AcquireSlot, Attach, Command, Key, OnConflict, PoolOptions, PoolUuid, PriorGrant, Reason, TokenHash,
};

use super::super::line::Standing;

/// Superseded tokens that a slot remembers.
const SUPERSEDED_MAX: usize = 8;
/// So many takeovers in such a time, and the next is refused.
const TAKEOVERS_MAX: usize = 3;
const TAKEOVERS_WITHIN_MS: u64 = 60_000;

/// What an ACQUIRE of a slot asks for, for an identity or not.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub token: TokenHash,
    /// `None`: anonymous.
    pub identity: Option<Arc<str>>,
    pub ttl_ms: i64,
    pub avoid: Option<u32>,
    /// The caller's clock less the cluster's.
    pub clock: Option<i64>,
    pub once: bool,
    /// It waits, for so long.
    pub waits: Option<(Attach, u64)>,
}

impl Ask {
    /// What the command asks for, and of which pool.
    pub(super) fn of(command: &Command, now_ms: u64) -> Option<(&Key, Self)> {
        let anonymous = |ask: &tenure::keyspace::Acquire, waits| Self {
            token: ask.token,
            identity: None,
            ttl_ms: ask.ttl_ms,
            avoid: None,
            clock: None,
            once: ask.once,
            waits,
        };
        let named = |ask: &AcquireSlot, waits| Self {
            token: ask.token,
            identity: Some(Arc::clone(&ask.identity)),
            ttl_ms: ask.ttl_ms,
            avoid: ask.avoid,
            clock: ask.unix_ms.map(|unix_ms| clock(unix_ms, now_ms)),
            once: ask.once,
            waits,
        };
        Some(match command {
            Command::Acquire(ask) => (&ask.key, anonymous(ask, None)),
            Command::Wait(wait) => (&wait.ask.key, anonymous(&wait.ask, Some((wait.attach, wait.wait_ms)))),
            Command::AcquireSlot(ask) => (&ask.key, named(ask, None)),
            Command::WaitSlot(wait) => (&wait.ask.key, named(&wait.ask, Some((wait.attach, wait.wait_ms)))),
            _ => return None,
        })
    }

    /// How long a grant of it lasts; below the least that is given.
    pub(super) fn lasts_ms(&self, options: &PoolOptions) -> u64 {
        u64::try_from(self.ttl_ms).unwrap_or(0).max(options.ttl_ms_min)
    }

    pub(super) fn attach(&self) -> Option<Attach> {
        self.waits.map(|(attach, _)| attach)
    }
}

/// The live grant of a slot.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub fence: u64,
    pub token: TokenHash,
    pub identity: Option<Arc<str>>,
    pub deadline_ms: u64,
    pub broken: bool,
    /// The holder's clock less the cluster's, the greatest that it told.
    pub clock: Option<i64>,
    /// Granted to this request, and its token not heard since; false: perhaps it was.
    pub unheard: Option<(Attach, bool)>,
}

/// How a grant ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Released,
    /// Given up by its identity, to which the slot seems to be used by somebody else.
    Avoided,
    Undelivered,
    Expired,
    Broken,
    TakenOver,
}

impl End {
    /// What the old token is told.
    pub(super) fn reason(self) -> Reason {
        match self {
            Self::Released | Self::Avoided => Reason::NotHeld,
            Self::Undelivered => Reason::Undelivered,
            Self::Expired => Reason::Expired,
            Self::Broken => Reason::Broken,
            Self::TakenOver => Reason::TakenOver,
        }
    }
}

/// The grant of a slot that ended last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gone {
    pub fence: u64,
    pub token: TokenHash,
    pub end: End,
}

/// A slot that was given or avoided.
#[derive(Clone, Debug, Default)]
pub(super) struct Slot {
    pub held: Option<Held>,
    pub last: Option<Gone>,
    /// Free: whose it is again, also in quarantine.
    pub claim: Option<Arc<str>>,
    /// Free: until then in quarantine.
    pub shut_ms: u64,
    /// Held by an identity that had it before: until then it goes to no other, however this grant ends.
    guarded_ms: u64,
    /// Free since.
    pub since_ms: u64,
    superseded: Vec<TokenHash>,
    /// The last holder's identity.
    whose: Option<Arc<str>>,
    /// When its identity took it over, or left another for it, of late.
    pub taken_ms: Vec<u64>,
    /// Until when one that was taken over may be at work.
    believed_ms: u64,
    /// Clocks of earlier holders, and until when each may have been in use.
    clocks: Vec<(i64, u64)>,
}

/// One who waits.
#[derive(Clone, Debug)]
pub(super) struct Waiter {
    pub ask: Ask,
    pub ends_ms: u64,
    pub standing: Standing,
}

impl Waiter {
    pub(super) fn attach(&self) -> Option<Attach> {
        match self.standing {
            Standing::Attached(attach) => Some(attach),
            Standing::Kept(_) => None,
        }
    }
}

/// See the module's head.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    pub uuid: PoolUuid,
    pub options: PoolOptions,
    pub slots: BTreeMap<u32, Slot>,
    pub line: Vec<Waiter>,
    /// When its lifetime ends.
    pub ends_ms: Option<u64>,
}

impl Pool {
    pub(super) fn new(uuid: PoolUuid, options: PoolOptions) -> Self {
        Self { uuid, options, slots: BTreeMap::new(), line: Vec::new(), ends_ms: None }
    }

    pub(super) fn is_over(&self, now_ms: u64) -> bool {
        self.ends_ms.is_some_and(|ends_ms| ends_ms <= now_ms)
    }

    pub(super) fn takes_over(&self) -> bool {
        self.options.on_conflict == OnConflict::Takeover
    }

    pub(super) fn has(&self, id: u32) -> bool {
        let (first, size) = (u64::from(self.options.first), u64::from(self.options.size));
        (first..first + size).contains(&u64::from(id))
    }

    /// All ids within the range.
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> + use<> {
        let Self { options: PoolOptions { first, size, .. }, .. } = *self;
        (0..size).map(move |n| first + n)
    }

    /// Live grants.
    pub(super) fn live(&self, now_ms: u64) -> impl Iterator<Item = (u32, &Held)> {
        let held = self.slots.iter().filter_map(|(id, slot)| Some((*id, slot.held.as_ref()?)));
        held.filter(move |(_, held)| held.deadline_ms > now_ms)
    }

    pub(super) fn of_token(&self, token: TokenHash, now_ms: u64) -> Option<(u32, Held)> {
        self.live(now_ms).find(|(_, held)| held.token == token).map(|(id, held)| (id, held.clone()))
    }

    pub(super) fn of_identity(&self, identity: &str, now_ms: u64) -> Option<(u32, Held)> {
        let own = |held: &Held| held.identity.as_deref() == Some(identity);
        self.live(now_ms).find(|(_, held)| own(held)).map(|(id, held)| (id, held.clone()))
    }

    /// Did the token lose a slot to another of its identity, as far as that is remembered?
    pub(super) fn is_superseded(&self, token: TokenHash) -> bool {
        self.slots.values().any(|slot| slot.superseded.contains(&token))
    }

    /// Where the token's grant was the last that ended.
    pub(super) fn ended(&self, token: TokenHash) -> Option<Gone> {
        self.slots.values().filter_map(|slot| slot.last).find(|gone| gone.token == token)
    }

    /// Which slot whoever asks must be given, if any; the identity holds none.
    pub(super) fn choose(&self, identity: Option<&str>, avoid: Option<u32>, now_ms: u64) -> Option<u32> {
        let fits = |id: &u32| Some(*id) != avoid;
        let own = |id: &u32| {
            let slot = self.slots.get(id);
            identity.is_some() && slot.is_some_and(|slot| slot.held.is_none() && slot.claim.as_deref() == identity)
        };
        let fresh = |id: &u32| !self.slots.contains_key(id);
        let mut free: Vec<(u64, u32)> = self
            .slots
            .iter()
            .filter(|(id, slot)| self.has(**id) && fits(id) && slot.held.is_none() && slot.shut_ms <= now_ms)
            .map(|(id, slot)| (slot.since_ms, *id))
            .collect();
        free.sort_unstable();
        let own = self.ids().filter(fits).find(own);
        own.or_else(|| self.ids().filter(fits).find(fresh)).or(free.first().map(|(_, id)| *id))
    }

    /// When a slot is free at the earliest, if nothing but time happens.
    pub(super) fn opens_ms(&self, avoid: Option<u32>, now_ms: u64) -> Option<u64> {
        let opens = |slot: &Slot| match &slot.held {
            Some(held) => (held.deadline_ms + self.options.quarantine_ms).max(slot.guarded_ms),
            None => slot.shut_ms,
        };
        let fits = |id: u32| self.has(id) && avoid != Some(id);
        let within = self.slots.iter().filter(|(id, _)| fits(**id)).map(|(_, slot)| slot);
        within.filter(|slot| slot.held.is_some() || slot.shut_ms > now_ms).map(opens).min()
    }

    /// May the slot be taken over once more?
    pub(super) fn is_contended(&self, id: u32, now_ms: u64) -> bool {
        let taken = self.slots.get(&id).map_or(&[][..], |slot| &slot.taken_ms);
        taken.iter().filter(|at_ms| *at_ms + TAKEOVERS_WITHIN_MS > now_ms).count() >= TAKEOVERS_MAX
    }

    /// What is to be told of who lost the slot and may not know it. `taken`: it was taken over by this grant.
    pub(super) fn prior(&self, id: u32, taken: Option<PriorGrant>, now_ms: u64) -> Option<PriorGrant> {
        let left_ms = self.slots.get(&id).map_or(0, |slot| slot.believed_ms.saturating_sub(now_ms));
        match taken {
            Some(taken) => Some(PriorGrant { ttl_ms: taken.ttl_ms.max(left_ms), ..taken }),
            None => (left_ms > 0).then_some(PriorGrant { fence: None, ttl_ms: left_ms }),
        }
    }

    /// The same for a repetition of the question.
    pub(super) fn prior_again(&self, id: u32, now_ms: u64) -> Option<PriorGrant> {
        let last = self.slots.get(&id)?.last.filter(|last| last.end == End::TakenOver);
        let prior = self.prior(id, None, now_ms)?;
        Some(PriorGrant { fence: last.map(|last| last.fence), ..prior })
    }

    /// Is no slot in quarantine, beyond the end neither?
    pub(super) fn is_quiet(&self, now_ms: u64) -> bool {
        self.slots.values().all(|slot| slot.held.is_some() || slot.shut_ms <= now_ms)
    }

    /// Ends of grants that no event tells: those whose grace is over.
    pub(super) fn pass(&mut self, now_ms: u64) {
        let over = |slot: &Slot| slot.held.as_ref().is_some_and(|held| held.broken && held.deadline_ms <= now_ms);
        let ids: Vec<u32> = self.slots.iter().filter(|(_, slot)| over(slot)).map(|(id, _)| *id).collect();
        for id in ids {
            self.end(id, End::Broken, now_ms);
        }
        let over = self.is_over(now_ms);
        // Kept places go with the pool's lifetime.
        self.line.retain(|waiter| match waiter.standing {
            Standing::Kept(until_ms) => !over && until_ms.min(waiter.ends_ms) > now_ms,
            Standing::Attached(_) => true,
        });
    }

    /// The grant of the slot ends.
    pub(super) fn end(&mut self, id: u32, end: End, now_ms: u64) -> Option<Held> {
        let options = self.options;
        let slot = self.slots.get_mut(&id)?;
        let held = slot.held.take()?;
        let at_ms = if matches!(end, End::Expired | End::Broken) { held.deadline_ms.min(now_ms) } else { now_ms };
        // Whoever ends it: after a BREAK it is in quarantine, for its own identity too.
        let shut_for_ms = match end {
            _ if held.broken => options.quarantine_ms,
            End::Expired | End::Broken => options.quarantine_ms,
            // And more, when the slot is avoided.
            End::Released | End::Avoided => options.release_quarantine_ms,
            End::Undelivered => 0,
            // Who was lost does not know it, and goes on until its deadline.
            End::TakenOver => held.deadline_ms.saturating_sub(at_ms) + options.quarantine_ms,
        };
        let in_use_ms = match end {
            End::Expired | End::Broken => at_ms + shut_for_ms,
            End::TakenOver => held.deadline_ms,
            End::Released | End::Avoided | End::Undelivered => at_ms,
        };
        slot.clocks.extend(held.clock.map(|clock| (clock, in_use_ms)));
        slot.claim = held.identity.clone().filter(|_| !held.broken && !matches!(end, End::Broken | End::Avoided));
        (slot.shut_ms, slot.since_ms) = ((at_ms + shut_for_ms).max(slot.guarded_ms), at_ms);
        slot.last = Some(Gone { fence: held.fence, token: held.token, end });
        if end == End::TakenOver {
            slot.believed_ms = slot.believed_ms.max(held.deadline_ms);
            slot.superseded.push(held.token);
            if slot.superseded.len() > SUPERSEDED_MAX {
                slot.superseded.remove(0);
            }
        }
        Some(held)
    }

    /// A grant begins on a free slot.
    pub(super) fn begin(&mut self, id: u32, held: Held) {
        for slot in self.slots.values_mut() {
            if held.identity.is_some() && slot.claim == held.identity {
                slot.claim = None;
            }
            // The token stands here from now on.
            if slot.last.is_some_and(|last| last.token == held.token) {
                slot.last = None;
            }
        }
        let slot = self.slots.entry(id).or_default();
        if held.identity.is_none() || slot.whose != held.identity {
            slot.taken_ms.clear();
        }
        slot.whose.clone_from(&held.identity);
        // What is left of a quarantine is left for when this grant ends.
        slot.guarded_ms = slot.shut_ms;
        (slot.claim, slot.shut_ms, slot.since_ms) = (None, 0, 0);
        slot.held = Some(held);
    }

    /// Somebody else seems to use this slot, which is free: it goes to nobody for a while.
    pub(super) fn put_aside(&mut self, id: u32, now_ms: u64) {
        let shut_ms = now_ms + self.options.quarantine_ms;
        let is_new = !self.slots.contains_key(&id);
        let slot = self.slots.entry(id).or_default();
        if slot.held.is_some() {
            return;
        }
        if is_new {
            slot.since_ms = now_ms;
        }
        slot.claim = None;
        slot.shut_ms = slot.shut_ms.max(shut_ms);
    }

    /// Between which two the floor of a slot must be: what is surely known of clocks that were told, and what the greatest
    /// of them could have come to.
    pub(super) fn floor(&self, id: u32, now_ms: u64) -> Option<(u64, u64)> {
        let clocks = &self.slots.get(&id)?.clocks;
        let at = |clock: i64, ms: u64| ms.saturating_add_signed(clock);
        let least = clocks.iter().map(|(clock, until_ms)| at(*clock, now_ms.min(*until_ms))).max()?;
        let most = clocks.iter().map(|(clock, _)| at(*clock, now_ms)).max()?;
        Some((least, most))
    }

    /// Slots within the range that are free and in quarantine, and those that can be given.
    pub(super) fn free(&self, now_ms: u64) -> (u32, u32) {
        let (mut shut, mut free) = (0, 0);
        for id in self.ids() {
            match self.slots.get(&id) {
                Some(slot) if slot.held.is_some() => {}
                Some(slot) if slot.shut_ms > now_ms => shut += 1,
                _ => free += 1,
            }
        }
        (shut, free)
    }

    /// The first in line who is there.
    pub(super) fn first(&self) -> Option<&Waiter> {
        self.line.iter().find(|waiter| waiter.attach().is_some())
    }

    /// One of the same identity that was put in line before, and would take over what `ask` is given.
    pub(super) fn older_ask(&self, ask: &Ask) -> Option<&Waiter> {
        let is_own = |waiter: &&Waiter| waiter.attach().is_some() && waiter.ask.identity == ask.identity;
        self.line.iter().find(is_own).filter(|_| ask.identity.is_some() && self.takes_over())
    }

    pub(super) fn place(&self, token: TokenHash) -> Option<usize> {
        self.line.iter().position(|waiter| waiter.ask.token == token)
    }
}

/// A client's clock less the cluster's.
pub(super) fn clock(unix_ms: u64, now_ms: u64) -> i64 {
    i64::try_from(unix_ms).unwrap_or(i64::MAX) - i64::try_from(now_ms).unwrap_or(i64::MAX)
}
