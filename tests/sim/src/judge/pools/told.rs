//! What is told of a pool: is it allowed, by what was ordered and by the clock? Then it is so.

use tenure::keyspace::{Attach, Command, Event, EventKind, Key, PriorGrant, Reason, SlotReply, Slotted};

use super::super::grants::At;
use super::super::line::{KEPT_MS, Standing};
use super::pool::{Ask, End, Held, Pool};
use super::{Item, Pools, Taken, has_lapsed};

impl Pools {
    /// Something is told of a pool. `items`: what was ordered; none if time alone did it.
    pub(super) fn told(&mut self, at: &mut At<'_>, items: &[Item<'_>], event: &Event, fence: &mut u64) {
        if let Some(pool) = self.by_key.get_mut(&event.key) {
            pool.pass(at.now_ms());
        }
        match event.kind {
            EventKind::Granted => self.granted(at, items, event, fence),
            EventKind::Released => self.released(at, items, event),
            EventKind::Expired => self.expired(at, event),
            EventKind::Broken => self.broken(at, items, event),
            EventKind::Deleted => self.deleted(at, items, event),
            EventKind::WaitEnded => self.wait_ended(at, items, event),
            EventKind::Detached => self.detached(at, items, event),
            // Judged by the answers.
            EventKind::Created | EventKind::Renewed | EventKind::Waiting => {}
        }
    }

    fn granted(&mut self, at: &mut At<'_>, items: &[Item<'_>], event: &Event, last: &mut u64) {
        let now_ms = at.now_ms();
        let key = &event.key;
        let (Some(slotted), Some(fence)) = (&event.slot, event.fence) else {
            return at.violated("EndsAreTold", &format!("a grant of no slot: {event:?}"), None);
        };
        let Some(pool) = self.by_key.get(key) else {
            return at.violated("EndsAreTold", &format!("of no pool: {event:?}"), None);
        };
        let Some(ask) = asker(at, pool, items, event, slotted) else { return };
        if fence != *last + 1 {
            at.violated("FencesGrow", &format!("{fence} after {last}"), None);
        }
        *last = fence.max(*last);
        let (taken, avoided) = (self.done.taken.take(), self.done.avoided.take());
        may_begin(at, pool, &ask, slotted, taken.is_some_and(|taken| taken.id == slotted.id));
        let lasts_ms = ask.lasts_ms(&pool.options);
        if event.ttl_ms != Some(lasts_ms) {
            at.violated("DeadlinesStand", &format!("told {:?}, and it lasts {lasts_ms} ms", event.ttl_ms), None);
        }
        let slot = pool.slots.get(&slotted.id);
        let is_own = slot.is_some_and(|slot| slot.claim.is_some() && slot.claim == ask.identity);
        let in_quarantine = is_own && slot.is_some_and(|slot| slot.shut_ms > now_ms);
        let in_line = pool.place(ask.token);
        let waited = in_line.is_some() && event.attach.is_some();
        let claimed = pool.slots.iter().find(|(id, slot)| {
            Some(**id) == ask.avoid
                && pool.has(**id)
                && slot.claim.is_some()
                && slot.claim == ask.identity
                && slot.held.is_none()
        });
        let claimed = claimed.map(|(id, _)| *id);
        if let Some(id) = claimed.filter(|id| pool.is_contended(*id, now_ms)) {
            at.violated("TakeoversStand", &format!("{id} is left for another once more: {event:?}"), None);
        }
        let left = taken.map(|taken| taken.id).or(avoided).or(claimed);
        let taken_ms = left.and_then(|id| pool.slots.get(&id)).map(|slot| slot.taken_ms.clone());
        let Some(pool) = self.by_key.get_mut(key) else { return };
        if let Some(place) = in_line {
            pool.line.remove(place);
        }
        if let Some(avoid) = ask.avoid.filter(|avoid| pool.has(*avoid)) {
            pool.put_aside(avoid, now_ms);
        }
        let deadline_ms = now_ms + lasts_ms;
        pool.begin(
            slotted.id,
            Held {
                fence,
                token: ask.token,
                identity: ask.identity.clone(),
                deadline_ms,
                broken: false,
                clock: ask.clock,
                unheard: event.attach.map(|attach| (attach, true)),
            },
        );
        if let Some(mut taken_ms) = taken_ms {
            taken_ms.push(now_ms);
            pool.slots.entry(slotted.id).and_modify(|slot| slot.taken_ms = taken_ms);
        }
        let here = taken.filter(|taken| taken.id == slotted.id);
        let prior = pool.prior(slotted.id, here.map(|taken| taken.prior), now_ms);
        let held = pool.live(now_ms).count();
        if slotted.held.is_some_and(|told| told as usize != held) {
            at.violated("ReadsAgree", &format!("told {:?} held, and {held} are", slotted.held), None);
        }
        if let Some(answer) = &slotted.answer {
            is_right(at, pool, slotted.id, answer, prior, None);
        }
        self.done.took.extend(prior.map(|prior| (fence, prior)));
        self.records.began(key, fence, slotted.id, ask.identity, (at.moment.position, deadline_ms));
        self.done.begun.push(fence);
        self.count("slots_granted");
        if is_own {
            self.count(if in_quarantine { "slots_own_in_quarantine" } else { "slots_own" });
        }
        if waited {
            self.count("slots_granted_waiting");
        }
    }

    /// The grant that is told to end, if it lives.
    fn ends(&mut self, at: &mut At<'_>, event: &Event, end: End) -> Option<(u32, Held)> {
        let now_ms = at.now_ms();
        let pool = self.by_key.get_mut(&event.key)?;
        let id = event.slot.as_ref().map(|slotted| slotted.id)?;
        let held = pool.slots.get(&id).and_then(|slot| slot.held.as_ref());
        if held.is_none_or(|held| Some(held.fence) != event.fence) {
            at.violated("EndsAreTold", &format!("{event:?}, and slot {id} has {held:?}"), None);
            return None;
        }
        let held = pool.end(id, end, now_ms)?;
        let shut = pool.slots.get(&id).is_some_and(|slot| slot.shut_ms > now_ms);
        self.records.ended(held.fence, at.moment.position);
        self.done.ended.push(held.token);
        if shut {
            self.count("slots_in_quarantine");
        }
        Some((id, held))
    }

    fn released(&mut self, at: &mut At<'_>, items: &[Item<'_>], event: &Event) {
        let now_ms = at.now_ms();
        let held = self.held_by(event).cloned();
        let Some(held) = held else { return drop(self.ends(at, event, End::Released)) };
        let id = event.slot.as_ref().map(|slotted| slotted.id);
        let ordered = |fits: &dyn Fn(&Command) -> bool| items.iter().any(|(command, _)| fits(command));
        let of_identity = |ask: &Ask| ask.identity.is_some() && ask.identity == held.identity;
        let (end, allowed) = match event.reason {
            Some(Reason::TakenOver) => {
                let takes = |command: &Command| {
                    Ask::of(command, now_ms).is_some_and(|(_, ask)| of_identity(&ask) && ask.token != held.token)
                };
                let waits = self.by_key.get(&event.key).and_then(Pool::first);
                let waits = waits.is_some_and(|waiter| of_identity(&waiter.ask) && waiter.ask.token != held.token);
                (End::TakenOver, ordered(&takes) || waits)
            }
            Some(Reason::Undelivered) => {
                let goes = |command: &Command| {
                    matches!(command, Command::Detach { token, attach, .. }
                        if *token == held.token && held.unheard.is_some_and(|(own, _)| own == *attach))
                };
                self.done.undelivered = true;
                (End::Undelivered, ordered(&goes))
            }
            _ => {
                let avoids = |command: &Command| {
                    Ask::of(command, now_ms).is_some_and(|(_, ask)| {
                        ask.avoid.is_some() && ask.avoid == id && (of_identity(&ask) || ask.token == held.token)
                    })
                };
                let gives_back = |command: &Command| {
                    matches!(command, Command::Release { token, fence, .. }
                        if *token == held.token && fence.is_none_or(|fence| fence == held.fence))
                };
                match ordered(&avoids) {
                    true => (End::Avoided, true),
                    // After a BREAK the slot keeps its quarantine, whoever ends the grant.
                    false => (if held.broken { End::Broken } else { End::Released }, ordered(&gives_back)),
                }
            }
        };
        if !allowed {
            let law = match end {
                End::Undelivered => "UndeliveredIsUnheard",
                End::TakenOver => "TakeoversStand",
                _ => "NotEarly",
            };
            at.violated(law, &format!("nobody ordered {event:?}, of {held:?}"), None);
        }
        if held.deadline_ms <= now_ms {
            at.violated("EndedStaysEnded", &format!("{event:?} after its end"), None);
        }
        if end == End::TakenOver {
            self.is_taken(at, event, &held);
            let prior = PriorGrant { fence: Some(held.fence), ttl_ms: held.deadline_ms.saturating_sub(now_ms) };
            self.done.taken = id.map(|id| Taken { id, prior });
        }
        // Beyond the end it is of no account.
        let within = self.by_key.get(&event.key).zip(id).is_some_and(|(pool, id)| pool.has(id));
        if end == End::Avoided && within {
            self.done.avoided = id;
            self.is_contended(at, event, &held);
        }
        if matches!(end, End::TakenOver | End::Avoided) {
            self.records.overridden(held.fence, at.moment.position);
        }
        self.count(match end {
            End::TakenOver => "slots_taken_over",
            End::Undelivered => "slots_undelivered",
            End::Avoided => "slots_avoided",
            _ => "slots_released",
        });
        drop(self.ends(at, event, end));
    }

    fn held_by(&self, event: &Event) -> Option<&Held> {
        let id = event.slot.as_ref()?.id;
        self.by_key.get(&event.key)?.slots.get(&id)?.held.as_ref().filter(|held| Some(held.fence) == event.fence)
    }

    /// Another token takes the slot of its identity over.
    fn is_taken(&self, at: &mut At<'_>, event: &Event, held: &Held) {
        let Some(pool) = self.by_key.get(&event.key) else { return };
        if !pool.takes_over() || held.broken {
            at.violated("TakeoversStand", &format!("{event:?}, of {held:?}"), None);
        }
        self.is_contended(at, event, held);
    }

    /// A slot that went from hand to hand of late, as those that its identity left for it, does not do so again.
    fn is_contended(&self, at: &mut At<'_>, event: &Event, held: &Held) {
        let Some((pool, slotted)) = self.by_key.get(&event.key).zip(event.slot.as_ref()) else { return };
        if pool.is_contended(slotted.id, at.now_ms()) {
            at.violated("TakeoversStand", &format!("{event:?}, of {held:?}, once more"), None);
        }
    }

    fn expired(&mut self, at: &mut At<'_>, event: &Event) {
        let now_ms = at.now_ms();
        if let Some((id, held)) = self.ends(at, event, End::Expired)
            && (held.deadline_ms > now_ms || held.broken)
        {
            at.violated("NotEarly", &format!("slot {id} expires: {held:?}"), None);
        }
        self.count("slots_expired");
    }

    /// Told once, at the first BREAK.
    fn broken(&mut self, at: &mut At<'_>, items: &[Item<'_>], event: &Event) {
        let id = event.slot.as_ref().map(|slotted| slotted.id);
        let ordered = items.iter().any(|(command, reply)| {
            matches!(command, Command::BreakSlot { id: of, .. } if Some(*of) == id) && super::is_true(reply)
        });
        if !ordered {
            at.violated("NotEarly", &format!("nobody ordered {event:?}"), None);
        }
        // Without a grace it has ended already.
        if let Some(fence) = event.fence.filter(|_| self.held_by(event).is_none()) {
            self.records.ended(fence, at.moment.position);
        }
    }

    fn deleted(&mut self, at: &mut At<'_>, items: &[Item<'_>], event: &Event) {
        let now_ms = at.now_ms();
        let ordered =
            items.iter().any(|(command, _)| matches!(command, Command::Del { keys, .. } if keys.contains(&event.key)));
        if event.slot.is_some() {
            if !ordered {
                at.violated("NotEarly", &format!("nobody ordered {event:?}"), None);
            }
            self.records.overridden(event.fence.unwrap_or_default(), at.moment.position);
            drop(self.ends(at, event, End::Broken));
            return self.count("slots_deleted");
        }
        let Some(pool) = self.by_key.remove(&event.key) else { return };
        if let Some(left) = pool.slots.values().filter_map(|slot| slot.held.as_ref()).next() {
            at.violated("EndsAreTold", &format!("{event:?}, and nothing is told of {left:?}"), None);
        }
        if !ordered && !pool.is_over(now_ms) {
            at.violated("NotEarly", &format!("nobody ordered {event:?}"), None);
        }
        if !ordered && !pool.is_quiet(now_ms) {
            at.violated("QuarantineStands", &format!("{event:?}, with slots that are kept back"), None);
        }
        if let Some(waiter) = pool.first() {
            at.violated("WaitsEndOnce", &format!("its pool goes, and nobody tells {waiter:?}"), None);
        }
    }

    fn wait_ended(&mut self, at: &mut At<'_>, items: &[Item<'_>], event: &Event) {
        let now_ms = at.now_ms();
        let Some((pool, attach)) = self.by_key.get_mut(&event.key).zip(event.attach) else { return };
        let Some(place) = pool.line.iter().position(|waiter| waiter.attach() == Some(attach)) else {
            // A command may be answered at once with an end that its request is told of too.
            return at.violated("WaitsEndOnce", &format!("{event:?}, and nobody waits so"), None);
        };
        let waiter = &pool.line[place];
        let token = waiter.ask.token;
        let ordered = |fits: &dyn Fn(&Command) -> bool| items.iter().any(|(command, _)| fits(command));
        let due = match event.reason {
            Some(Reason::WaitTimeout) => {
                let cancels =
                    |command: &Command| matches!(command, Command::Cancel { attach: of, .. } if *of == attach);
                waiter.ends_ms <= now_ms || ordered(&cancels)
            }
            Some(Reason::Superseded) => {
                ordered(&|command: &Command| Ask::of(command, now_ms).is_some_and(|(_, ask)| ask.token == token))
            }
            Some(Reason::CancelledWait) => {
                ordered(&|command: &Command| matches!(command, Command::Release { token: of, .. } if *of == token))
            }
            Some(Reason::Deleted) => ordered(&|command: &Command| matches!(command, Command::Del { .. })),
            Some(Reason::KeyExpired) => pool.is_over(now_ms),
            // Another of its identity holds meanwhile.
            Some(Reason::IdentityInUse | Reason::IdentityConflict | Reason::TakenOver | Reason::TokenUsed) => true,
            _ => false,
        };
        if !due {
            at.violated("WaitsEndOnce", &format!("{event:?}, of {waiter:?}"), None);
        }
        if event.reason == Some(Reason::Superseded) {
            // It is granted, or takes the place up again.
            pool.line[place].standing = Standing::Kept(u64::MAX);
        } else {
            pool.line.remove(place);
        }
        self.count("slot_waits_ended");
    }

    fn detached(&mut self, at: &mut At<'_>, items: &[Item<'_>], event: &Event) {
        let now_ms = at.now_ms();
        let Some(attach) = event.attach else { return };
        let another = |edge: &tenure::keyspace::EdgeId| edge.node == attach.edge.node && *edge != attach.edge;
        let ordered = items.iter().any(|(command, _)| match command {
            Command::Away { edge } => *edge == attach.edge,
            Command::Presence { edge } => another(edge),
            Command::Wait(wait) => another(&wait.attach.edge),
            Command::WaitSlot(wait) => another(&wait.attach.edge),
            _ => false,
        });
        if !ordered && !has_lapsed(&self.seen, attach.edge, now_ms) {
            at.violated("EdgesLapse", &format!("{event:?}, and its edge was heard of"), None);
        }
        let waiter = self.by_key.get_mut(&event.key).and_then(|pool| waiter_at(pool, attach));
        match waiter {
            Some(waiter) => waiter.standing = Standing::Kept(now_ms + KEPT_MS),
            None => at.violated("WaitsEndOnce", &format!("{event:?}, and nobody waits so"), None),
        }
        self.count("slot_waits_lapsed");
    }
}

pub(super) fn waiter_at(pool: &mut Pool, attach: Attach) -> Option<&mut super::pool::Waiter> {
    pool.line.iter_mut().find(|waiter| waiter.attach() == Some(attach))
}

/// Who asked for the grant: a command of this step, or the first in line.
fn asker(at: &mut At<'_>, pool: &Pool, items: &[Item<'_>], event: &Event, slotted: &Slotted) -> Option<Ask> {
    let key: &Key = &event.key;
    let own = items.iter().filter_map(|(command, _)| Ask::of(command, at.now_ms())).find(|(of, ask)| {
        *of == key && (event.attach.is_none() || ask.attach() == event.attach) && ask.identity == slotted.identity
    });
    if let Some((_, ask)) = own {
        return Some(ask);
    }
    let waiter = pool.line.iter().find(|waiter| waiter.attach().is_some() && waiter.attach() == event.attach);
    let Some(waiter) = waiter else {
        at.violated("FirstComeFirst", &format!("granted to nobody who asks: {event:?}"), None);
        return None;
    };
    if pool.first().and_then(super::pool::Waiter::attach) != event.attach || waiter.ends_ms <= at.now_ms() {
        at.violated("FirstComeFirst", &format!("{event:?}, before {:?}", pool.first()), None);
    }
    if waiter.ask.identity != slotted.identity {
        at.violated("OneSlotOfIdentity", &format!("{event:?}, to {waiter:?}"), None);
    }
    Some(waiter.ask.clone())
}

/// May whoever asks be given that slot?
fn may_begin(at: &mut At<'_>, pool: &Pool, ask: &Ask, slotted: &Slotted, takes_over: bool) {
    let (now_ms, id) = (at.now_ms(), slotted.id);
    let slot = pool.slots.get(&id);
    if let Some(held) = slot.and_then(|slot| slot.held.as_ref()) {
        return at.violated("OneGrantOfSlot", &format!("slot {id} is given, and held: {held:?}"), None);
    }
    if let Some((other, held)) = ask.identity.as_deref().and_then(|identity| pool.of_identity(identity, now_ms)) {
        at.violated("OneSlotOfIdentity", &format!("slot {id} is given, and {other} is held: {held:?}"), None);
    }
    if let Some((other, held)) = pool.of_token(ask.token, now_ms) {
        at.violated("OneSlotOfIdentity", &format!("slot {id} is given, and the token holds {other}: {held:?}"), None);
    }
    if pool.is_superseded(ask.token) {
        at.violated("SupersededStaysOut", &format!("slot {id} is given to {ask:?}"), None);
    }
    if takes_over {
        return;
    }
    if !pool.has(id) {
        at.violated("IdsInRange", &format!("slot {id} of {:?}", pool.options), None);
    }
    let own = slot.is_some_and(|slot| slot.claim.is_some() && slot.claim == ask.identity);
    if slot.is_some_and(|slot| slot.shut_ms > now_ms) && !own {
        at.violated("QuarantineStands", &format!("slot {id} is given to {ask:?}, and is {slot:?}"), None);
    }
    let must = pool.choose(ask.identity.as_deref(), ask.avoid, now_ms);
    if must != Some(id) {
        let (slot, must) = (slot.cloned(), must.map(|id| (id, pool.slots.get(&id))));
        at.violated("IdsInOrder", &format!("slot {id} is given ({slot:?}), and {must:?} should be"), None);
    }
    if ask.once && pool.ended(ask.token).is_some_and(|gone| !matches!(gone.end, End::Undelivered | End::Avoided)) {
        at.violated("TokensOnly", "granted once more with `once`", None);
    }
}

/// Is a grant told as it is?
pub(super) fn is_right(
    at: &mut At<'_>,
    pool: &Pool,
    id: u32,
    reply: &SlotReply,
    prior: Option<PriorGrant>,
    own_ms: Option<u64>,
) {
    let now_ms = at.now_ms();
    let Some(grant) = reply.grant() else {
        return at.violated("LostIsLost", &format!("slot {id} is granted, and told {reply:?}"), None);
    };
    let held = pool.slots.get(&id).and_then(|slot| slot.held.as_ref());
    let known = held.map(|held| (held.fence, held.deadline_ms.saturating_sub(now_ms), held.identity.clone()));
    let told = (grant.fence, grant.ttl_ms, grant.identity.clone());
    let of_pool = (pool.uuid, pool.options.first, pool.options.size);
    if grant.id != id || known != Some(told) || of_pool != (grant.uuid, grant.first, grant.size) {
        at.violated("DeadlinesStand", &format!("told {grant:?}; slot {id} has {held:?}"), None);
    }
    if reply.prior != prior {
        at.violated("TakeoversStand", &format!("before it was {prior:?}, told {reply:?}"), None);
    }
    let floor = match (pool.floor(id, now_ms), own_ms) {
        (Some((least, most)), Some(own_ms)) => Some((least.max(own_ms), most.max(own_ms))),
        (floor, own_ms) => floor.or(own_ms.map(|own_ms| (own_ms, own_ms))),
    };
    let fits = match (floor, grant.floor_unix_ms) {
        (None, None) => true,
        (Some((least, most)), Some(told)) => (least..=most).contains(&told),
        _ => false,
    };
    if !fits {
        at.violated("FloorStands", &format!("told {:?}, between {floor:?}", grant.floor_unix_ms), None);
    }
}
