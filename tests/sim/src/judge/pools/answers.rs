//! What is answered of a pool, after what was told: is it so?

use tenure::keyspace::{Command, Key, OpReply, Place, PoolView, Reason, Reply, SlotOutcome, SlotReply, TokenHash};

use super::super::grants::At;
use super::super::line::{KEPT_MS, Standing};
use super::pool::{Ask, Pool, Waiter, clock};
use super::told::{is_right, waiter_at};
use super::{Pools, is_absent, is_true, key_of};

/// A renewal, whatever its command.
struct Renewal {
    token: TokenHash,
    ttl_ms: i64,
    fence: Option<u64>,
    unix_ms: Option<u64>,
}

impl Pools {
    pub(super) fn answered(&mut self, at: &mut At<'_>) {
        let (command, reply) = (at.command, at.reply);
        if let Some(key) = key_of(command).filter(|_| is_absent(reply)) {
            return self.absent(at, key);
        }
        match command {
            Command::Renew { key, token, ttl_ms, fence } => {
                let renewal = Renewal { token: *token, ttl_ms: *ttl_ms, fence: *fence, unix_ms: None };
                self.renewed(at, key, &renewal, reply);
            }
            Command::RenewSlot { key, token, ttl_ms, fence, unix_ms } => {
                let renewal = Renewal { token: *token, ttl_ms: *ttl_ms, fence: *fence, unix_ms: Some(*unix_ms) };
                self.renewed(at, key, &renewal, reply);
            }
            Command::Release { key, token, fence } => self.gave_back(at, key, *token, *fence, reply),
            Command::BreakSlot { key, id, fence, .. } if !is_true(reply) => {
                self.not_broken(at, key, *id, *fence, reply);
            }
            Command::Held { key, token } => self.claimed(at, key, (*token, None), reply),
            Command::Check { key, fence } => self.claimed(at, key, (None, Some(*fence)), reply),
            Command::Get { key } => self.seen(at, key, reply),
            Command::Detach { key, token, attach } => self.went(at, key, (*token, *attach), reply),
            Command::Del { keys, fence: None } => {
                if let Some(key) = keys.iter().find(|key| self.by_key.contains_key(*key)) {
                    at.violated("NotEarly", &format!("{key} is deleted, and nothing is told of it"), None);
                }
            }
            _ => {
                if let Some((key, ask)) = Ask::of(command, at.now_ms()) {
                    self.acquired(at, key, &ask, reply);
                }
            }
        }
    }

    fn acquired(&mut self, at: &mut At<'_>, key: &Key, ask: &Ask, reply: &Reply) {
        match reply {
            Reply::Slot(reply) => match &reply.outcome {
                SlotOutcome::Granted(_) => self.given(at, key, ask, reply),
                SlotOutcome::Nothing => self.refused(at, key, ask, reply),
                SlotOutcome::Renewed(_) | SlotOutcome::Lost => {
                    at.violated("LostIsLost", "ACQUIRE is answered as RENEW", None);
                }
            },
            Reply::SlotQueued(place) => self.queued(at, key, ask, *place),
            Reply::Refused(_) => {}
            _ => at.violated("LostIsLost", "ACQUIRE of a slot is answered otherwise", None),
        }
    }

    fn given(&mut self, at: &mut At<'_>, key: &Key, ask: &Ask, reply: &SlotReply) {
        let now_ms = at.now_ms();
        let Some(pool) = self.by_key.get_mut(key) else {
            return at.violated("EndsAreTold", "a slot of no pool", None);
        };
        let Some((id, held)) = pool.of_token(ask.token, now_ms) else {
            return at.violated("EndedStaysEnded", "granted, and nothing is held", None);
        };
        let is_new = self.done.begun.contains(&held.fence);
        if let Some(waiter) = pool.older_ask(ask).filter(|_| is_new) {
            at.violated("TakeoversStand", &format!("asked before, and waits to take over: {waiter:?}"), None);
        }
        if reply.yours == is_new {
            at.violated("TokensOnly", &format!("whose it is: {held:?}"), None);
        }
        let own_ms = held.clock.filter(|_| !is_new).map(|clock| now_ms.saturating_add_signed(clock));
        if !is_new && !pool.is_over(now_ms) {
            if held.broken {
                at.violated("EndedStaysEnded", "renewed after its BREAK", None);
            }
            extend(pool, id, ask.lasts_ms(&pool.options.clone()), ask.clock, now_ms, &ask.token);
            let deadline_ms = pool.slots.get(&id).and_then(|slot| slot.held.as_ref()).map(|held| held.deadline_ms);
            self.records.moved(held.fence, at.moment.position, deadline_ms.unwrap_or_default());
            *self.counts.entry("slots_yours").or_default() += 1;
        } else if !is_new {
            // Not prolonged at the end of the pool's lifetime, and its client knows of it all the same.
            heard(pool, ask.token, true);
        }
        let Some(pool) = self.by_key.get_mut(key) else { return };
        let prior = if is_new { self.done.took.get(&held.fence).copied() } else { pool.prior_again(id, now_ms) };
        is_right(at, pool, id, reply, prior, own_ms);
        if reply.ttl_raised != (ask.ttl_ms < i64::try_from(pool.options.ttl_ms_min).unwrap_or(i64::MAX)) {
            at.violated("DeadlinesStand", &format!("raised: {}", reply.ttl_raised), None);
        }
    }

    fn refused(&mut self, at: &mut At<'_>, key: &Key, ask: &Ask, reply: &SlotReply) {
        let now_ms = at.now_ms();
        let Some(pool) = self.by_key.get_mut(key) else { return };
        let own = pool.of_token(ask.token, now_ms);
        let of_identity = ask.identity.as_deref().and_then(|identity| pool.of_identity(identity, now_ms));
        let other = of_identity.filter(|(_, held)| held.token != ask.token);
        let (law, holds, what) = match reply.reason {
            Some(Reason::TtlNotPositive) => ("LostIsLost", ask.ttl_ms <= 0, "slots_ttl_not_positive"),
            Some(Reason::KeyExpired) => ("LostIsLost", pool.is_over(now_ms), "slots_key_expired"),
            Some(Reason::Broken) => ("LostIsLost", own.as_ref().is_some_and(|(_, held)| held.broken), "slots_in_grace"),
            Some(Reason::Exhausted) => {
                let could = pool.choose(ask.identity.as_deref(), ask.avoid, now_ms);
                // Nor is a slot beyond the end taken over.
                let stays = |(id, _): &(u32, _)| pool.has(*id) && ask.avoid != Some(*id);
                let taken = own.iter().chain(&other).any(stays);
                ("ExhaustedIsFull", could.is_none() && !taken, "slots_exhausted")
            }
            Some(Reason::IdentityInUse) => {
                let rejects = other.as_ref().is_some_and(|(_, held)| held.broken || !pool.takes_over());
                ("TakeoversStand", rejects, "slots_in_use")
            }
            Some(Reason::IdentityConflict) => {
                let avoided = ask.avoid.filter(|id| {
                    let slot = pool.slots.get(id);
                    let held = slot.and_then(|slot| slot.held.as_ref()).filter(|held| held.deadline_ms > now_ms);
                    let whose = held.map_or(slot.and_then(|slot| slot.claim.as_ref()), |held| held.identity.as_ref());
                    pool.has(*id) && ask.identity.is_some() && whose == ask.identity.as_ref()
                });
                let mut left = other.as_ref().map(|(id, _)| *id).into_iter().chain(avoided);
                let contended = left.any(|id| pool.is_contended(id, now_ms));
                ("TakeoversStand", contended, "slots_in_conflict")
            }
            Some(Reason::TakenOver) => ("SupersededStaysOut", pool.is_superseded(ask.token), "slots_superseded"),
            Some(Reason::TokenUsed) => ("LostIsLost", ask.once && pool.ended(ask.token).is_some(), "slots_token_used"),
            _ => ("WaitsEndOnce", false, "for no reason of a slot"),
        };
        if !holds {
            let slots = format!("{:?}", pool.slots);
            at.violated(law, &format!("it does not hold; own {own:?}, of the identity {other:?}, of {slots}"), None);
        }
        if reply.reason == Some(Reason::Exhausted) {
            let opens_ms = pool.opens_ms(ask.avoid, now_ms);
            if reply.retry_after_ms != opens_ms.map(|opens_ms| opens_ms.saturating_sub(now_ms).max(1)) {
                at.violated("ExhaustedIsFull", &format!("a slot may be free at {opens_ms:?}"), None);
            }
            if ask.waits.is_some() && ask.avoid.is_none_or(|avoid| !pool.has(avoid)) {
                at.violated("WaitsEndOnce", "exhausted, and it asks to wait", None);
            }
        }
        if let Some(held) = own.and_then(|(id, _)| pool.slots.get_mut(&id)?.held.as_mut()) {
            held.unheard = held.unheard.map(|(attach, _)| (attach, false));
        }
        self.count(what);
    }

    /// Put in line, or there already.
    fn queued(&mut self, at: &mut At<'_>, key: &Key, ask: &Ask, place: Place) {
        let now_ms = at.now_ms();
        let Some(pool) = self.by_key.get_mut(key) else { return };
        let identity = ask.identity.as_deref();
        if let Some(id) = pool.choose(identity, None, now_ms).filter(|_| ask.waits.is_some()) {
            at.violated("NobodyWaitsForFree", &format!("put in line, and slot {id} is free"), None);
        }
        let mut what = "slot_waits_told";
        // Who avoids an id within the range is told where it stands by another request, if it does, and takes no place.
        if let Some((attach, wait_ms)) = ask.waits.filter(|_| ask.avoid.is_none_or(|avoid| !pool.has(avoid))) {
            let ends_ms = now_ms.saturating_add(wait_ms);
            // Who avoids an id within the range is not put in line.
            let waiter =
                Waiter { ask: Ask { avoid: None, ..ask.clone() }, ends_ms, standing: Standing::Attached(attach) };
            match pool.place(ask.token) {
                Some(known) => {
                    pool.line[known] = waiter;
                    what = "slot_waits_again";
                }
                None => {
                    pool.line.push(waiter);
                    what = "slot_waits_queued";
                }
            }
        }
        let known = pool.place(ask.token).map(|ahead| (ahead as u64, pool.line.len() as u64));
        if known != Some((place.ahead, place.waiters)) {
            at.violated("PlacesStand", &format!("(ahead, waiters) is {known:?}"), None);
        }
        self.count(what);
    }

    fn renewed(&mut self, at: &mut At<'_>, key: &Key, renewal: &Renewal, reply: &Reply) {
        let now_ms = at.now_ms();
        let Some(pool) = self.by_key.get_mut(key) else { return };
        let Reply::Slot(reply) = reply else {
            if !matches!(reply, Reply::Refused(_)) {
                at.violated("LostIsLost", "RENEW of a slot is answered otherwise", None);
            }
            return;
        };
        let live = pool.of_token(renewal.token, now_ms);
        let mine = live.clone().filter(|(_, held)| renewal.fence.is_none_or(|fence| fence == held.fence));
        match (&reply.outcome, mine) {
            (SlotOutcome::Renewed(_), Some((id, held))) => {
                if held.broken {
                    at.violated("EndedStaysEnded", "renewed after its BREAK", None);
                }
                let lasts_ms = u64::try_from(renewal.ttl_ms).unwrap_or(0).max(pool.options.ttl_ms_min);
                extend(
                    pool,
                    id,
                    lasts_ms,
                    renewal.unix_ms.map(|unix_ms| clock(unix_ms, now_ms)),
                    now_ms,
                    &renewal.token,
                );
                let deadline_ms = pool.slots.get(&id).and_then(|slot| slot.held.as_ref()).map(|held| held.deadline_ms);
                is_right(at, pool, id, reply, None, None);
                self.records.moved(held.fence, at.moment.position, deadline_ms.unwrap_or_default());
                self.count("slots_renewed");
            }
            (SlotOutcome::Renewed(_), None) => {
                let law = if pool.is_superseded(renewal.token) { "SupersededStaysOut" } else { "EndedStaysEnded" };
                let law = if live.is_some() { "TokensOnly" } else { law };
                at.violated(law, &format!("renewed, and has {live:?}"), None);
            }
            (SlotOutcome::Lost, Some((_, held))) => {
                if !(held.broken && reply.reason == Some(Reason::Broken)) {
                    at.violated("LostIsLost", &format!("lost, and holds {held:?}"), None);
                }
                self.count("slots_lost_broken");
            }
            (SlotOutcome::Lost, None) => {
                let must = why_lost(pool, renewal);
                if must.is_some_and(|must| reply.reason != Some(must)) {
                    at.violated("LostIsLost", &format!("for another reason than {must:?}"), None);
                }
                self.count(match reply.reason {
                    Some(Reason::TakenOver) => "slots_lost_taken_over",
                    Some(Reason::Expired) => "slots_lost_expired",
                    _ => "slots_lost",
                });
            }
            (SlotOutcome::Nothing, _) => {
                let is_so = match reply.reason {
                    Some(Reason::TtlNotPositive) => renewal.ttl_ms <= 0,
                    Some(Reason::KeyExpired) => pool.is_over(now_ms),
                    _ => false,
                };
                if !is_so {
                    at.violated("LostIsLost", "neither renewed nor lost", None);
                }
                heard(pool, renewal.token, false);
            }
            (SlotOutcome::Granted(_), _) => at.violated("LostIsLost", "RENEW is answered as ACQUIRE", None),
        }
    }

    fn gave_back(&mut self, at: &mut At<'_>, key: &Key, token: TokenHash, fence: Option<u64>, reply: &Reply) {
        let now_ms = at.now_ms();
        let Some(pool) = self.by_key.get_mut(key) else { return };
        let still = pool.of_token(token, now_ms).filter(|(_, held)| fence.is_none_or(|fence| fence == held.fence));
        let Some(op) = op_of(reply) else { return };
        // What was given back was told, and has ended.
        if let Some((_, held)) = still {
            at.violated("NotEarly", &format!("RELEASE is {}, and it holds {held:?}", op.result), None);
        }
        if op.result {
            if !self.done.ended.contains(&token) {
                at.violated("EndedStaysEnded", "released, and nothing was held", None);
            }
        } else if op.reason == Some(Reason::TakenOver) && !pool.is_superseded(token) {
            at.violated("SupersededStaysOut", "RELEASE of what was never taken over", None);
        }
        if !op.result && fence.is_none() && pool.place(token).is_some() {
            if op.reason != Some(Reason::CancelledWait) {
                at.violated("WaitsEndOnce", "RELEASE of a token that waits cancels", None);
            }
            pool.line.retain(|waiter| waiter.ask.token != token);
        }
    }

    fn not_broken(&self, at: &mut At<'_>, key: &Key, id: u32, fence: Option<u64>, reply: &Reply) {
        let Some(pool) = self.by_key.get(key).filter(|_| op_of(reply).is_some()) else { return };
        let now_ms = at.now_ms();
        let live = pool.live(now_ms).find(|(of, held)| *of == id && fence.is_none_or(|fence| fence == held.fence));
        if let Some((_, held)) = live {
            at.violated("NotEarly", &format!("there is nothing to break: {held:?}"), None);
        }
    }

    fn claimed(&mut self, at: &mut At<'_>, key: &Key, (token, fence): (Option<TokenHash>, Option<u64>), reply: &Reply) {
        let now_ms = at.now_ms();
        let Some(pool) = self.by_key.get_mut(key) else { return };
        if let Reply::SlotQueued(place) | Reply::Queued { place, .. } = reply {
            let known = token.and_then(|token| pool.place(token)).map(|ahead| (ahead as u64, pool.line.len() as u64));
            if known != Some((place.ahead, place.waiters)) {
                at.violated("PlacesStand", &format!("(ahead, waiters) is {known:?}"), None);
            }
            return;
        }
        let Some(op) = op_of(reply) else { return };
        let fits = pool.live(now_ms).find(|(_, held)| {
            token.is_none_or(|token| token == held.token) && fence.is_none_or(|fence| fence == held.fence)
        });
        let fits = fits.map(|(id, held)| (id, held.fence, held.deadline_ms - now_ms));
        match (op.result, fits) {
            (true, None) => at.violated("EndedStaysEnded", "said to hold", None),
            (false, Some(held)) => at.violated("NotEarly", &format!("said not to hold {held:?}"), None),
            (true, Some((id, fence, ttl_ms))) if token.is_some() => {
                let told_id = if let Reply::OfSlot { id, .. } = reply { Some(*id) } else { None };
                if (told_id, op.fence, op.ttl_ms) != (Some(id), Some(fence), Some(ttl_ms)) {
                    at.violated("ReadsAgree", &format!("it holds {id}, fence {fence}, for {ttl_ms} ms"), None);
                }
            }
            _ => {}
        }
        if let Some(token) = token {
            heard(pool, token, op.result);
        }
    }

    fn seen(&mut self, at: &mut At<'_>, key: &Key, reply: &Reply) {
        let now_ms = at.now_ms();
        let Some(pool) = self.by_key.get(key) else { return };
        let Reply::PoolView(view) = reply else {
            return at.violated("ReadsAgree", "GET shows no pool", None);
        };
        let PoolView { uuid, options, held, quarantined, free, waiters, .. } = &**view;
        let told = (*held as usize, *quarantined, *free, *waiters);
        let (shut, can) = pool.free(now_ms);
        let known = (pool.live(now_ms).count(), shut, can, pool.line.len() as u64);
        if told != known || (*uuid, *options) != (pool.uuid, pool.options) {
            at.violated("ReadsAgree", &format!("(held, quarantined, free, waiters) is {known:?}, told {told:?}"), None);
        }
        self.count("pools_seen");
    }

    /// The client of a waiting request is gone.
    fn went(
        &mut self,
        at: &mut At<'_>,
        key: &Key,
        (token, attach): (TokenHash, tenure::keyspace::Attach),
        reply: &Reply,
    ) {
        let now_ms = at.now_ms();
        let Some(pool) = self.by_key.get_mut(key) else { return };
        let result = is_true(reply);
        if let Some(waiter) = waiter_at(pool, attach).filter(|waiter| waiter.ask.token == token) {
            waiter.standing = Standing::Kept(now_ms + KEPT_MS);
            if !result {
                at.violated("WaitsEndOnce", "it waits, and DETACH is false", None);
            }
            return self.count("slot_waits_detached");
        }
        let unheard = pool.of_token(token, now_ms).and_then(|(_, held)| held.unheard);
        let must_end = unheard == Some((attach, true));
        if must_end || result != self.done.undelivered {
            at.violated("UndeliveredIsUnheard", &format!("DETACH is {result}, and unheard {unheard:?}"), None);
        }
    }
}

/// A live grant goes on.
fn extend(pool: &mut Pool, id: u32, lasts_ms: u64, clock: Option<i64>, now_ms: u64, token: &TokenHash) {
    if let Some(held) = pool.slots.get_mut(&id).and_then(|slot| slot.held.as_mut()) {
        held.deadline_ms = held.deadline_ms.max(now_ms + lasts_ms);
        held.clock = held.clock.max(clock);
    }
    heard(pool, *token, true);
}

/// A command of the token was applied; `surely` as the contract counts it.
fn heard(pool: &mut Pool, token: TokenHash, surely: bool) {
    for held in pool.slots.values_mut().filter_map(|slot| slot.held.as_mut()).filter(|held| held.token == token) {
        held.unheard = if surely { None } else { held.unheard.map(|(attach, _)| (attach, false)) };
    }
}

/// For which reason a token that holds nothing is lost, where that is surely known.
fn why_lost(pool: &Pool, renewal: &Renewal) -> Option<Reason> {
    if pool.is_superseded(renewal.token) {
        return Some(Reason::TakenOver);
    }
    let gone = pool.ended(renewal.token)?;
    Some(gone.end.reason()).filter(|_| renewal.fence.is_none_or(|fence| fence == gone.fence))
}

fn op_of(reply: &Reply) -> Option<&OpReply> {
    match reply {
        Reply::Op(op) | Reply::OfSlot { op, .. } => Some(op),
        _ => None,
    }
}
