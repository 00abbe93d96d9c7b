//! What a naive pool answers of itself, from the list of its grants.

use std::sync::Arc;

use tenure_cluster::{Moment, Stamp};

use super::*;

/// The pool's own questions.
impl Pool {
    pub fn live(&self, t: u64) -> impl Iterator<Item = &Held> {
        self.grants.iter().filter(move |grant| grant.live(t))
    }

    pub fn over(&self, t: u64) -> bool {
        self.ends.is_some_and(|ends| ends <= t)
    }

    pub fn exists(&self, t: u64) -> bool {
        !self.deleted && (!self.over(t) || self.live(t).next().is_some() || self.used().any(|id| self.opens(id) > t))
    }

    pub(in crate::keyspace::tests) fn ids(&self) -> std::ops::Range<u64> {
        let first = u64::from(self.options.first);
        first..first + u64::from(self.options.size)
    }

    pub(in crate::keyspace::tests) fn within(&self, id: u32) -> bool {
        self.ids().contains(&u64::from(id))
    }

    pub(in crate::keyspace::tests) fn in_range(&self) -> impl Iterator<Item = u32> + use<> {
        self.ids().map(|id| id as u32)
    }

    pub(in crate::keyspace::tests) fn last(&self, id: u32) -> Option<&Held> {
        self.grants.iter().rev().find(|grant| grant.id == id)
    }

    pub(in crate::keyspace::tests) fn holder(&self, id: u32, t: u64) -> Option<&Held> {
        self.last(id).filter(|grant| grant.live(t))
    }

    pub(in crate::keyspace::tests) fn last_ended(&self, id: u32, t: u64) -> Option<&Held> {
        self.grants.iter().rev().find(|grant| grant.id == id && !grant.live(t))
    }

    /// From when on a slot that is not held may be given to anybody.
    pub(in crate::keyspace::tests) fn opens(&self, id: u32) -> u64 {
        let avoided = self.avoided.iter().filter(|one| one.id == id).map(|one| one.until);
        // That of an earlier grant lasts, though its own identity had the slot again since.
        let grants = self.grants.iter().filter(|grant| grant.id == id).map(|grant| grant.opens(&self.options));
        grants.chain(avoided).max().unwrap_or(0)
    }

    /// When quarantines end.
    pub fn openings(&self, t: u64) -> impl Iterator<Item = u64> {
        self.in_range().filter(move |id| self.holder(*id, t).is_none()).map(|id| self.opens(id))
    }

    /// When a slot but `avoid` can next be given to anybody, by time alone.
    pub(in crate::keyspace::tests) fn opens_next(&self, avoid: Option<u32>) -> Option<u64> {
        self.in_range().filter(|id| Some(*id) != avoid).map(|id| self.opens(id)).min()
    }

    /// The slot an identity had last, if it may have it again.
    pub(in crate::keyspace::tests) fn claim(&self, identity: &str) -> Option<u32> {
        let own = self.grants.iter().rev().find(|grant| grant.identity.as_deref() == Some(identity))?;
        let is_last = self.last(own.id).is_some_and(|last| last.fence == own.fence);
        let is_avoided = self.avoided.iter().any(|one| one.id == own.id && one.after >= own.fence);
        (is_last && !is_avoided && own.broken.is_none()).then_some(own.id)
    }

    /// Whom a free slot is kept for.
    pub(in crate::keyspace::tests) fn kept_for(&self, id: u32) -> Option<&Arc<str>> {
        let identity = self.last(id)?.identity.as_ref()?;
        (self.claim(identity) == Some(id)).then_some(identity)
    }

    /// For how long one that was taken over may be at work on the slot yet.
    pub fn believed(&self, id: u32, t: u64) -> Option<u64> {
        let taken = self.grants.iter().filter(|grant| grant.id == id && grant.how() == Some(How::TakenOver));
        taken.map(|grant| grant.deadline).max()?.checked_sub(t).filter(|left| *left > 0)
    }

    /// When all grants and quarantines are over, by time alone.
    pub(in crate::keyspace::tests) fn quiet(&self, t: u64) -> u64 {
        let live = self.live(t).map(|grant| grant.deadline);
        live.chain(self.used().map(|id| self.opens(id))).max().unwrap_or(0)
    }

    /// Ids that were given or avoided.
    fn used(&self) -> impl Iterator<Item = u32> {
        self.grants.iter().map(|grant| grant.id).chain(self.avoided.iter().map(|one| one.id))
    }

    /// What an ask comes to now.
    pub fn judge(&self, ask: &Ask, t: u64) -> Verdict {
        if let Some(own) = self.of_token(ask.token, t) {
            match &own.broken {
                _ if ask.avoid == Some(own.id) && own.identity == ask.identity => {}
                _ if ask.avoid == Some(own.id) => {
                    return Verdict::Refused(no_until(Reason::IdentityInUse, own.deadline - t));
                }
                None => return Verdict::Yours(own.fence),
                Some(text) => {
                    let broken = no_until(Reason::Broken, own.deadline - t);
                    return Verdict::Refused(SlotReply { detail: Some(text.clone()), ..broken });
                }
            }
        } else if self.superseded(ask.token) {
            return Verdict::Refused(no(Reason::TakenOver));
        } else if ask.once && self.remembered(ask.token, None, t).is_some_and(|last| !last.is_undelivered()) {
            return Verdict::Refused(no(Reason::TokenUsed));
        }
        if self.over(t) {
            return Verdict::Refused(no_until(Reason::KeyExpired, self.quiet(t) - t));
        }
        let next = self.choose(ask, t);
        let is_own = |grant: &&Held| grant.identity.is_some() && grant.identity == ask.identity;
        let claimed = || ask.identity.as_ref().and_then(|identity| self.claim(identity));
        let avoids = |id: u32| ask.avoid == Some(id);
        let Some(own) = self.live(t).find(is_own).cloned() else {
            let conflict = claimed().filter(|id| avoids(*id)).and_then(|id| self.conflict(id, t));
            return match (conflict, next) {
                (Some(retry_after_ms), _) => Verdict::Refused(no_until(Reason::IdentityConflict, retry_after_ms)),
                (None, Some(id)) => Verdict::Give { id, from: None },
                (None, None) => Verdict::Exhausted,
            };
        };
        let takes_over = own.token != ask.token;
        if takes_over && (own.broken.is_some() || self.options.on_conflict == OnConflict::Reject) {
            return Verdict::Refused(no_until(Reason::IdentityInUse, own.deadline - t));
        }
        let conflict = self.conflict(own.id, t).filter(|_| takes_over || avoids(own.id));
        if let Some(retry_after_ms) = conflict {
            return Verdict::Refused(no_until(Reason::IdentityConflict, retry_after_ms));
        }
        // An id beyond the end is not given again, nor one that is avoided.
        let stays = self.within(own.id) && ask.avoid != Some(own.id);
        let id = if stays { Some(own.id) } else { next };
        id.map_or(Verdict::Exhausted, |id| Verdict::Give { id, from: Some(own) })
    }

    /// Where the clocks of a grant's slot stood before, that of its own holder included.
    pub(in crate::keyspace::tests) fn own_floor(&mut self, fence: u64, t: u64) -> Option<u64> {
        let own = self.grant_mut(fence).clone();
        let clock = own.ahead.map(|ahead| (ahead + i128::from(t)).clamp(0, (1 << 53) - 1) as u64);
        clock.max(self.floor(&own, t))
    }

    /// The slot that nobody holds which this ask gets: its own former one, one never used, or the one that is longest idle.
    pub fn choose(&self, ask: &Ask, t: u64) -> Option<u32> {
        let fits = |id: &u32| Some(*id) != ask.avoid && self.within(*id) && self.holder(*id, t).is_none();
        let own = ask.identity.as_ref().and_then(|identity| self.claim(identity)).filter(fits);
        own.or_else(|| {
            let given = |id: &u32| self.last(*id).is_some() || self.avoided.iter().any(|one| one.id == *id);
            let mut free: Vec<_> = self.in_range().filter(fits).filter(|id| self.opens(*id) <= t).collect();
            free.sort_by_key(|id| (given(id), self.idle_since(*id), *id));
            free.first().copied()
        })
    }

    /// Of a slot that is free: since when; if it was never given, since it was first avoided.
    pub(in crate::keyspace::tests) fn idle_since(&self, id: u32) -> u64 {
        let avoided = || self.avoided.iter().find(|one| one.id == id).map(|one| one.at);
        self.last(id).map(Held::end).or_else(avoided).unwrap_or(0)
    }

    pub(in crate::keyspace::tests) fn of_token(&self, token: TokenHash, t: u64) -> Option<&Held> {
        self.live(t).find(|grant| grant.token == token)
    }

    /// Was the token's slot taken over, as far as the slot remembers?
    pub(in crate::keyspace::tests) fn superseded(&self, token: TokenHash) -> bool {
        self.grants.iter().rev().filter(|grant| grant.how() == Some(How::TakenOver)).any(|grant| {
            let later =
                |one: &&Held| one.id == grant.id && one.how() == Some(How::TakenOver) && one.fence > grant.fence;
            grant.token == token && self.grants.iter().filter(later).count() < SUPERSEDED_MAX
        })
    }

    /// The token's last grant, if it is the last that ended in its slot.
    pub(in crate::keyspace::tests) fn remembered(&self, token: TokenHash, fence: Option<u64>, t: u64) -> Option<&Held> {
        let own = self.grants.iter().rev().find(|grant| grant.token == token)?;
        let is_last = self.last_ended(own.id, t).is_some_and(|last| last.fence == own.fence);
        (is_last && fence.is_none_or(|fence| fence == own.fence)).then_some(own)
    }

    /// Why a token or fence does not hold.
    pub fn lost(&self, token: TokenHash, fence: Option<u64>, t: u64) -> (Reason, Option<Arc<str>>) {
        match self.remembered(token, fence, t) {
            Some(grant) if grant.reason() != Reason::Released => (grant.reason(), grant.text()),
            _ if self.superseded(token) => (Reason::TakenOver, None),
            _ => (Reason::NotHeld, None),
        }
    }

    pub(in crate::keyspace::tests) fn floor(&self, grant: &Held, t: u64) -> Option<u64> {
        let before = self.grants.iter().filter(|one| one.id == grant.id && one.fence < grant.fence);
        before.filter_map(|one| one.clock(&self.options, t)).max().map(|floor| floor.clamp(0, (1 << 53) - 1) as u64)
    }

    pub(in crate::keyspace::tests) fn told(&self, grant: &Held, t: u64) -> SlotGrant {
        SlotGrant {
            id: grant.id,
            fence: grant.fence,
            ttl_ms: grant.deadline - t,
            identity: grant.identity.clone(),
            uuid: self.uuid,
            first: self.options.first,
            size: self.options.size,
            floor_unix_ms: self.floor(grant, t),
        }
    }

    pub(in crate::keyspace::tests) fn quarantined(&self, t: u64) -> usize {
        self.in_range().filter(|id| self.holder(*id, t).is_none() && self.opens(*id) > t).count()
    }

    /// What a reader could notice of time at `t`; `None`: no key.
    pub(in crate::keyspace::tests) fn looks(&self, t: u64) -> Option<(Vec<u64>, usize, bool, usize)> {
        let live = self.live(t).map(|grant| grant.fence).collect();
        let looks = (live, self.quarantined(t), self.over(t), self.standing(t).count());
        self.exists(t).then_some(looks)
    }

    pub(in crate::keyspace::tests) fn view(&self, t: u64) -> PoolView {
        let within = self.live(t).filter(|grant| self.within(grant.id)).count() as u32;
        let quarantined = self.quarantined(t) as u32;
        PoolView {
            key: self.key.clone(),
            uuid: self.uuid,
            options: self.options,
            held: self.live(t).count() as u32,
            quarantined,
            free: self.options.size - within - quarantined,
            waiters: self.standing(t).count() as u64,
            acquirable_in_ms: Some(self.quiet(t))
                .filter(|_| self.over(t))
                .or(self.opens_next(None))
                .unwrap()
                .saturating_sub(t),
            version: self.changed,
            key_ttl_ms: self.ends.map(|ends| ends.saturating_sub(t)),
        }
    }

    pub(in crate::keyspace::tests) fn slot_view(&self, id: u32, t: u64) -> SlotView {
        let live = self.holder(id, t);
        SlotView {
            id,
            grant: live.map(|grant| GrantView {
                owner: grant.owner.clone(),
                fence: grant.fence,
                ttl_ms: grant.deadline - t,
                held_for_ms: t - grant.since,
                acquired_wall_ms: grant.wall_ms,
                note: grant.note.clone(),
                broken: grant.broken.clone(),
            }),
            identity: live.map_or_else(|| self.kept_for(id).cloned(), |grant| grant.identity.clone()),
            free_in_ms: if live.is_some() { 0 } else { self.opens(id).saturating_sub(t) },
            last: self.last_ended(id, t).map(|grant| Ended {
                fence: grant.fence,
                owner: grant.owner.clone(),
                reason: grant.reason(),
                at: Stamp(grant.end()),
                detail: grant.text(),
            }),
        }
    }

    /// All pages of HOLDERS in one.
    pub(in crate::keyspace::tests) fn holders(&self, which: &Holders, t: u64) -> Vec<SlotView> {
        let avoided = self.avoided.iter().map(|one| one.id);
        let mut ids: Vec<_> = self.grants.iter().map(|grant| grant.id).chain(avoided).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.retain(|id| match which.id {
            Some(one) => *id == one,
            None => (which.all || self.holder(*id, t).is_some()) && which.cursor.is_none_or(|cursor| *id > cursor),
        });
        ids.into_iter().map(|id| self.slot_view(id, t)).collect()
    }

    /// HELD: is it this token's, or anybody's?
    pub(in crate::keyspace::tests) fn held(&self, token: Option<TokenHash>, t: u64) -> (OpReply, Option<u32>) {
        let Some(token) = token else {
            let result = self.live(t).next().is_some();
            return (OpReply { result, reason: (!result).then_some(Reason::NotHeld), ..OpReply::default() }, None);
        };
        match self.of_token(token, t) {
            Some(grant) => (OpReply { result: true, ..grant.extras(t) }, Some(grant.id)),
            None => {
                let (reason, detail) = self.lost(token, None, t);
                (OpReply { reason: Some(reason), detail, ..OpReply::default() }, None)
            }
        }
    }

    pub(in crate::keyspace::tests) fn check(&self, fence: u64, t: u64) -> (OpReply, Option<u32>) {
        match self.live(t).find(|grant| grant.fence == fence) {
            Some(grant) => (OpReply { result: true, ..grant.extras(t) }, Some(grant.id)),
            None => (OpReply { reason: Some(Reason::NotHeld), ..OpReply::default() }, None),
        }
    }

    pub(in crate::keyspace::tests) fn event(&self, kind: EventKind, grant: &Held) -> Event {
        Event {
            fence: Some(grant.fence),
            owner: Some(grant.owner.clone()),
            slot: Some(Slotted { id: grant.id, identity: grant.identity.clone(), answer: None, held: None }),
            ..event(&self.key, kind)
        }
    }

    pub(in crate::keyspace::tests) fn grant_mut(&mut self, fence: u64) -> &mut Held {
        self.grants.iter_mut().find(|grant| grant.fence == fence).unwrap()
    }

    /// Ends a live grant by command.
    pub fn end_by(&mut self, at: &Moment, fence: u64, how: How, reason: Option<Reason>, events: &mut Vec<Event>) {
        self.changed = at.position;
        let grant = self.grant_mut(fence);
        grant.ended = Some((at.stamp.0, how));
        let grant = grant.clone();
        events.push(Event { reason, ..self.event(EventKind::Released, &grant) });
    }

    pub fn go_if_over(&mut self, t: u64, events: &mut Vec<Event>) {
        if !self.exists(t) {
            events.push(event(&self.key, EventKind::Deleted));
        }
    }

    /// Expiries in `(from, to]`.
    pub fn expire(&mut self, at: &Moment, from: u64, events: &mut Vec<Event>) {
        let to = at.stamp.0;
        let mut due: Vec<_> = self.live(from).filter(|grant| grant.deadline <= to).cloned().collect();
        due.sort_by_key(|grant| (grant.deadline, grant.fence));
        for grant in due {
            self.changed = at.position;
            if grant.broken.is_none() {
                let last_renewed = Some(Stamp(grant.renewed));
                events.push(Event { last_renewed, ..self.event(EventKind::Expired, &grant) });
            }
        }
    }
}

impl Pool {
    /// Would one more takeover of the slot be one too many? Then until when.
    pub(in crate::keyspace::tests) fn conflict(&self, id: u32, t: u64) -> Option<u64> {
        let recent: Vec<_> = self.last(id)?.shifts.iter().copied().filter(|at| t < at + CONFLICT_MS).collect();
        let oldest = recent.len().checked_sub(TAKEOVERS_MAX).map(|n| recent[n])?;
        Some(oldest + CONFLICT_MS - t)
    }
}
