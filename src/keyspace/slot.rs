//! A slot of a pool: its live grant, the one that ended last, and what keeps it from others while it is free.
//!
//! Model: a slot is held by one [`Tenancy`] or free. A free one that is in quarantine has `opens_at`: until then it goes to
//! nobody but the identity that has its `claim`. The claim is that of the last holder; it is soft (whoever needs the slot
//! takes it) and dropped by BREAK and `avoid`.
//!
//! Nothing but time shortens a quarantine: if its own identity gets the slot within it, the rest of it is kept (`guarded`)
//! for when that grant ends. After a takeover it lasts from the deadline that the old holder believes in.
//!
//! Invariants: `claim`, `opens_at` and `since` speak of a free slot only, `guarded` of a held one. A token stands in one
//! slot of a pool, and there in one place: the grant, the last one, or the superseded.
//!
//! The clock floor ([`Floor`]) answers how far the wall clocks of earlier holders had got when they could last have made
//! ids: up to a RELEASE; else on until the quarantine is over, since whoever stalls may go on for a while; after a takeover
//! until the deadline that the old holder believes in.
//!
//! Not promised: a floor for holders that never told their clock; that a holder whose own clock jumps tells so in time.

use std::sync::Arc;

use tenure_cluster::Stamp;
use tenure_cluster::planted::{self, Bug};

use super::lease::{End, Grant};
use super::{Attach, Ended, PoolOptions, PriorGrant, Reason, TokenHash};

/// Superseded tokens that a slot remembers.
pub(super) const SUPERSEDED_MAX: usize = 8;
/// Takeovers of a slot within [`TAKEOVERS_WITHIN_MS`]; then there are two processes of one identity.
pub(super) const TAKEOVERS_MAX: usize = 3;
/// See [`TAKEOVERS_MAX`].
pub(super) const TAKEOVERS_WITHIN_MS: u64 = 60_000;

/// Clocks of earlier holders that a slot tells apart while they may be in use.
pub(super) const CLOCKS_MAX: usize = 4;

/// Wall clocks stay below this: every JSON reader can hold them exactly.
const UNIX_MS_MAX: u64 = (1 << 53) - 1;

/// A slot that was given, or avoided, at least once.
#[derive(Clone, Debug, Default)]
pub(super) struct Slot {
    pub held: Option<Tenancy>,
    pub last: Option<Past>,
    /// Free: whose it is again without further ado.
    pub claim: Option<Arc<str>>,
    /// Free and in quarantine: until then.
    pub opens_at: Option<Stamp>,
    /// Held, by an identity that had it before: until then others do not get it, however this grant ends. An earlier holder
    /// may still be at work.
    pub guarded: Option<Stamp>,
    /// Free: since when.
    pub since: Stamp,
    /// Tokens that lost the slot to another of their identity, the oldest first.
    pub superseded: Vec<TokenHash>,
    /// When its identity took it over from itself of late, or left another since that was to be avoided, the oldest first.
    pub takeovers: Vec<Stamp>,
    /// The last deadline of those that were taken over: until then one of them may be at work.
    pub believed: Option<Stamp>,
    pub floor: Floor,
}

/// The live grant of a slot.
#[derive(Clone, Debug)]
pub(super) struct Tenancy {
    /// Its owner is the identity, where there is one.
    pub grant: Grant,
    pub identity: Option<Arc<str>>,
    /// The holder's wall clock less the cluster's, as told; the greatest of what was told.
    pub clock: Option<i64>,
    /// See `lease::Waiting::unconfirmed`.
    pub unconfirmed: Option<Attach>,
}

/// The grant of a slot that ended last.
#[derive(Clone, Debug)]
pub(super) struct Past {
    pub fence: u64,
    pub owner: Arc<str>,
    /// `None`: the token stands elsewhere by now.
    pub token: Option<TokenHash>,
    pub end: End,
    pub at: Stamp,
}

impl Past {
    pub fn view(&self) -> Ended {
        Ended {
            fence: self.fence,
            owner: Arc::clone(&self.owner),
            reason: self.end.reason(),
            at: self.at,
            detail: self.end.detail(),
        }
    }

    /// What a claim on it is told.
    pub fn lost(&self) -> Reason {
        match self.end {
            End::Released => Reason::NotHeld,
            End::Expired | End::Broken(_) | End::Undelivered | End::TakenOver => self.end.reason(),
        }
    }
}

/// Where a token stands in its slot.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stand<'a> {
    /// It holds it.
    Live(&'a Tenancy),
    /// It held it last.
    Past(&'a Past),
    /// Another of its identity took it over.
    Superseded,
}

impl Slot {
    /// Where the token stands, if it does.
    pub fn stand(&self, token: TokenHash) -> Option<Stand<'_>> {
        if let Some(held) = self.held.as_ref().filter(|held| held.grant.token == token) {
            return Some(Stand::Live(held));
        }
        if let Some(past) = self.last.as_ref().filter(|past| past.token == Some(token)) {
            return Some(Stand::Past(past));
        }
        self.superseded.contains(&token).then_some(Stand::Superseded)
    }

    /// Ends the grant, as of `at`: what is remembered of it, and for how long the slot is in quarantine.
    pub fn end(&mut self, end: End, at: Stamp, options: &PoolOptions) -> Option<Tenancy> {
        let held = self.held.take()?;
        // Whoever ends it, after a BREAK its own identity has no claim either.
        let is_broken = held.grant.broken.is_some();
        let quarantine_ms = match end {
            End::Expired if planted::has(Bug::QuarantineSkipped) => 0,
            _ if is_broken => options.quarantine_ms,
            End::Expired | End::Broken(_) => options.quarantine_ms,
            End::Released => options.release_quarantine_ms,
            End::Undelivered => 0,
            // Who was lost does not know it, and may go on until its deadline.
            End::TakenOver => held.grant.deadline.ms_since(at).saturating_add(options.quarantine_ms),
        };
        self.keep_clock(&held, &end, at, quarantine_ms);
        let drops_claim = is_broken && !planted::has(Bug::BreakKeepsClaim);
        self.claim = match planted::has(Bug::ClaimSurvivesAnother) {
            true => self.last.as_ref().map(|last| Arc::clone(&last.owner)),
            false => held.identity.clone().filter(|_| !drops_claim),
        };
        let opens_at = at.plus_ms(quarantine_ms).max(self.guarded.take().unwrap_or_default());
        self.opens_at = Some(opens_at).filter(|opens_at| *opens_at > at);
        self.since = at;
        let (fence, owner, token) = (held.grant.fence, Arc::clone(&held.grant.owner), held.grant.token);
        let is_superseded = end == End::TakenOver;
        if is_superseded {
            self.supersede(token);
            self.believed = self.believed.max(Some(held.grant.deadline));
        }
        self.last = Some(Past { fence, owner, token: Some(token).filter(|_| !is_superseded), end, at });
        Some(held)
    }

    /// Where the clock of who held it will have got.
    fn keep_clock(&mut self, held: &Tenancy, end: &End, at: Stamp, quarantine_ms: u64) {
        match end {
            End::Released if planted::has(Bug::FloorForgotten) => {}
            End::Released | End::Undelivered => self.floor.fix(held.clock, at),
            End::Expired | End::Broken(_) => self.floor.run(held.clock, at.plus_ms(quarantine_ms), at),
            End::TakenOver => self.floor.run(held.clock, held.grant.deadline, at),
        }
    }

    fn supersede(&mut self, token: TokenHash) {
        if self.superseded.len() >= SUPERSEDED_MAX {
            self.superseded.remove(0);
        }
        self.superseded.push(token);
    }

    /// For how long one that was taken over may be at work yet. `fence`: its own, if it lost to the live grant.
    pub fn prior(&self, fence: Option<u64>, now: Stamp) -> Option<PriorGrant> {
        let believed = self.believed.filter(|believed| *believed > now)?;
        Some(PriorGrant { fence, ttl_ms: believed.ms_since(now) })
    }

    /// When a further takeover may be made, if not now.
    pub fn takeover_opens_at(&self, now: Stamp) -> Option<Stamp> {
        let first = self.takeovers.len().checked_sub(TAKEOVERS_MAX)?;
        let opens_at = self.takeovers.get(first)?.plus_ms(TAKEOVERS_WITHIN_MS);
        (opens_at > now).then_some(opens_at)
    }
}

/// See the module's head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Floor {
    /// Where clocks stood that are of no more account, Unix milliseconds.
    pub fixed: Option<u64>,
    /// Those that may still be in use: the clock less the cluster's, and until when. What ends later is less far ahead,
    /// else the other is of no account. At most [`CLOCKS_MAX`]: of more, those that end first count as one.
    pub running: Vec<(i64, Stamp)>,
}

impl Floor {
    /// Unix milliseconds.
    pub fn at(&self, now: Stamp) -> Option<u64> {
        let running = self.running.iter().map(|(clock, until)| unix_ms(*clock, now.min(*until)));
        self.fixed.max(running.max())
    }

    /// A holder was done at `at`.
    pub fn fix(&mut self, clock: Option<i64>, at: Stamp) {
        self.fold(at);
        self.fixed = self.fixed.max(clock.map(|clock| unix_ms(clock, at)));
    }

    /// A holder's grant ended at `at`; it may be at work until then.
    pub fn run(&mut self, clock: Option<i64>, until: Stamp, at: Stamp) {
        self.fold(at);
        let Some(clock) = clock else { return };
        if self.running.iter().any(|(other, till)| *other >= clock && *till >= until) {
            return;
        }
        self.running.retain(|(other, till)| *other > clock || *till > until);
        let place = self.running.partition_point(|(_, till)| *till < until);
        self.running.insert(place, (clock, until));
        if self.running.len() > CLOCKS_MAX {
            let (ahead, _) = self.running.remove(0);
            self.running.iter_mut().take(1).for_each(|(clock, _)| *clock = ahead);
        }
    }

    /// What ran no more by then is fixed. By the time at which grants ended, not at which that was seen: nodes must agree.
    fn fold(&mut self, at: Stamp) {
        let over = self.running.partition_point(|(_, until)| *until <= at);
        for (clock, until) in self.running.drain(..over) {
            self.fixed = self.fixed.max(Some(unix_ms(clock, until)));
        }
    }
}

/// A holder's clock less the cluster's.
pub(super) fn clock(unix_ms: u64, now: Stamp) -> i64 {
    let (unix_ms, now) = (unix_ms.min(UNIX_MS_MAX), now.0.min(UNIX_MS_MAX));
    unix_ms.cast_signed() - now.cast_signed()
}

/// Where that clock stands at `now`, Unix milliseconds.
pub(super) fn unix_ms(clock: i64, now: Stamp) -> u64 {
    now.0.saturating_add_signed(clock).min(UNIX_MS_MAX)
}
