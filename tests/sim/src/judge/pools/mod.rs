//! The contract's rules on pools, from the log alone: what was ordered, answered and told, and under which stamps. It shares
//! nothing with the keyspace but the form of commands, replies and events.
//!
//! Model: the slots of each pool and who waits (`pool`). Grants begin and end by what is told of them (`told`): each must be
//! allowed by what was ordered and by the clock. Then the answers are compared with what is so (`answers`), and nothing
//! that is due may be left. Of a list that changes a pool, only the first item does; others may read. What was held when is
//! kept (`records`), for what readers were shown, and what holders believed.
//!
//! Laws: `OneGrantOfSlot` (a slot has one live grant), `OneSlotOfIdentity` (an identity holds one slot), `IdsInRange`, `IdsInOrder` (its own
//! id, one that was never given, the one that is free for longest), `QuarantineStands` (an id in quarantine goes to nobody but
//! its own identity, after BREAK and `avoid` to nobody at all), `SupersededStaysOut` (a token that was taken over is never
//! granted that slot again, nor renewed), `TakeoversStand` (who may take over, and how often), `LostIsLost` (RENEW is lost only
//! if it is, and for the right reason), `ExhaustedIsFull` (nothing could have been given), `FloorStands` (the clock floor is
//! at least what was told), `EndsAreTold` (each grant ends by one word), `ReadsAgree` (HOLDERS, GET and HELD).
//! As in `grants` and `waiting`: `NotEarly`, `EndedStaysEnded`, `DeadlinesStand`, `FencesGrow`, `TokensOnly`,
//! `FirstComeFirst`, `NobodyWaitsForFree`, `WaitsEndOnce`, `PlacesStand`, `UndeliveredIsUnheard`, `EdgesLapse`.
//!
//! Not judged: how long RESIZE and DEL take; events of lists that change a pool twice.

mod answers;
mod pool;
pub(in crate::judge) mod records;
mod told;

use std::collections::BTreeMap;

use tenure::keyspace::{Command, EdgeId, Event, Key, PriorGrant, Refusal, Reply, TokenHash};

use super::grants::At;
use super::line::{SILENT_MS, Standing};
use pool::{Ask, End, Pool};
use records::Records;

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Pools {
    by_key: BTreeMap<Key, Pool>,
    /// When each edge was last heard of.
    seen: BTreeMap<EdgeId, u64>,
    /// How much was judged.
    pub counts: BTreeMap<&'static str, u64>,
    pub records: Records,
    done: Done,
}

/// A command, and what it was answered.
pub(super) type Item<'a> = (&'a Command, &'a Reply);

/// What a step did so far.
#[derive(Debug, Default)]
struct Done {
    /// The fences of grants that began.
    begun: Vec<u64>,
    /// The grant that is taken over.
    taken: Option<Taken>,
    /// The slot that its identity left, since it is to be avoided.
    avoided: Option<u32>,
    /// What those that began took over, by their fences.
    took: BTreeMap<u64, PriorGrant>,
    /// The tokens of grants that ended.
    ended: Vec<TokenHash>,
    /// A grant was returned.
    undelivered: bool,
}

/// A grant that was taken over, of this slot.
#[derive(Clone, Copy, Debug)]
struct Taken {
    id: u32,
    prior: PriorGrant,
}

impl Pools {
    pub(super) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    pub(super) fn is_pool(&self, key: &Key) -> bool {
        self.by_key.contains_key(key)
    }

    /// Is the command about a pool?
    pub(super) fn is_of_pool(&self, command: &Command) -> bool {
        match command {
            Command::CreatePool { .. }
            | Command::AcquireSlot(_)
            | Command::WaitSlot(_)
            | Command::RenewSlot { .. }
            | Command::BreakSlot { .. }
            | Command::Resize { .. } => true,
            _ => key_of(command).is_some_and(|key| self.is_pool(key)),
        }
    }

    /// Takes in the items of one command of the log that are about pools, and what was told of pools.
    pub(super) fn step(&mut self, at: &mut At<'_>, items: &[Item<'_>], events: &[Event], fence: &mut u64) {
        let now_ms = at.now_ms();
        self.begin(at, items);
        self.done = Done::default();
        for event in events {
            self.told(at, items, event, fence);
        }
        for (command, reply) in items {
            if self.is_of_pool(command) {
                self.answered(&mut At { moment: at.moment, command, reply, verdict: at.verdict });
            }
        }
        for pool in self.by_key.values_mut() {
            pool.pass(now_ms);
        }
        self.nothing_is_left(at);
    }

    /// What is so before anything is told of it.
    fn begin(&mut self, at: &mut At<'_>, items: &[Item<'_>]) {
        let now_ms = at.now_ms();
        for (command, reply) in items {
            match (command, reply) {
                (Command::CreatePool { key, options, uuid }, Reply::Done { result: true, .. }) => {
                    self.absent(at, key);
                    self.by_key.insert(Key::clone(key), Pool::new(*uuid, *options));
                    self.count("pools_created");
                }
                (Command::Resize { key, size }, Reply::Done { result: true, .. }) => {
                    let Some(pool) = self.by_key.get_mut(key) else { continue };
                    let shrinks = *size < pool.options.size;
                    pool.options.size = *size;
                    let beyond = pool.live(now_ms).filter(|(id, _)| !pool.has(*id)).count();
                    self.count(if shrinks { "pools_shrunk" } else { "pools_grown" });
                    self.add("slots_held_beyond_the_end", beyond as u64);
                }
                (Command::BreakSlot { key, id, grace_ms, fence, .. }, reply) if is_true(reply) => {
                    self.breaks(at, key, *id, *grace_ms, *fence);
                }
                (Command::Expire { key, ttl_ms }, Reply::Done { result: true, .. }) => {
                    if let Some(pool) = self.by_key.get_mut(key) {
                        pool.ends_ms = Some(now_ms + ttl_ms);
                    }
                }
                (Command::Persist { key }, Reply::Done { result: true, .. }) => {
                    if let Some(pool) = self.by_key.get_mut(key) {
                        pool.ends_ms = None;
                    }
                }
                _ => {}
            }
        }
    }

    /// BREAK was true.
    fn breaks(&mut self, at: &mut At<'_>, key: &Key, id: u32, grace_ms: u64, fence: Option<u64>) {
        let now_ms = at.now_ms();
        let Some(pool) = self.by_key.get_mut(key) else { return };
        let held = pool.slots.get_mut(&id).and_then(|slot| slot.held.as_mut());
        let live = held.filter(|held| held.deadline_ms > now_ms && fence.is_none_or(|fence| fence == held.fence));
        let Some(held) = live else { return at.violated("EndedStaysEnded", "broken after its end", None) };
        held.deadline_ms = held.deadline_ms.min(now_ms + grace_ms);
        held.broken = true;
        let (fence, deadline_ms) = (held.fence, held.deadline_ms);
        self.records.moved(fence, at.moment.position, deadline_ms);
        self.records.overridden(fence, at.moment.position);
        if deadline_ms <= now_ms {
            pool.end(id, End::Broken, now_ms);
        }
        self.count("slots_broken");
    }

    /// Time has passed: something was told of a pool.
    pub(super) fn passed(&mut self, at: &mut At<'_>, event: &Event, fence: &mut u64) {
        self.told(at, &[], event, fence);
    }

    /// Nobody waits for what can be given, and nothing that is due is left.
    pub(super) fn nothing_is_left(&mut self, at: &mut At<'_>) {
        let now_ms = at.now_ms();
        self.done = Done::default();
        for (key, pool) in &mut self.by_key {
            pool.pass(now_ms);
            let over = pool.live(u64::MIN).find(|(_, held)| held.deadline_ms <= now_ms);
            if let Some((id, held)) = over {
                at.violated("EndsAreTold", &format!("slot {id} of {key}: {held:?} is over"), None);
            }
            let Some(first) = pool.first() else { continue };
            // What its identity alone could have it may be told of later: when somebody before it has gone.
            if let Some(id) = pool.choose(None, None, now_ms) {
                at.violated("NobodyWaitsForFree", &format!("{first:?} waits for {key}, and slot {id} is free"), None);
            }
            for waiter in &pool.line {
                let Standing::Attached(attach) = waiter.standing else { continue };
                if waiter.ends_ms <= now_ms || pool.is_over(now_ms) {
                    at.violated("WaitsEndOnce", &format!("{waiter:?} waits on for {key}"), None);
                }
                if has_lapsed(&self.seen, attach.edge, now_ms) {
                    at.violated("EdgesLapse", &format!("{attach:?} is silent, and waits on for {key}"), None);
                }
            }
        }
    }

    /// An edge is heard of, whatever for.
    pub(super) fn hears(&mut self, now_ms: u64, command: &Command, reply: &Reply) {
        let edge = match (command, reply) {
            (Command::Presence { edge }, _) => *edge,
            (Command::Wait(wait), Reply::Queued { .. } | Reply::SlotQueued(_)) => wait.attach.edge,
            (Command::WaitSlot(wait), Reply::SlotQueued(_)) => wait.attach.edge,
            _ => return,
        };
        self.seen.insert(edge, now_ms);
    }

    /// There is no such pool: then nobody holds any of it.
    fn absent(&self, at: &mut At<'_>, key: &Key) {
        let now_ms = at.now_ms();
        if let Some((id, held)) = self.by_key.get(key).and_then(|pool| pool.live(now_ms).next()) {
            at.violated("NotEarly", &format!("slot {id} is held, {held:?}, and its pool not there"), None);
        }
    }

    fn count(&mut self, what: &'static str) {
        self.add(what, 1);
    }

    fn add(&mut self, what: &'static str, times: u64) {
        *self.counts.entry(what).or_default() += times;
    }
}

fn has_lapsed(seen: &BTreeMap<EdgeId, u64>, edge: EdgeId, now_ms: u64) -> bool {
    seen.get(&edge).is_none_or(|seen_ms| seen_ms.saturating_add(SILENT_MS) <= now_ms)
}

/// The key of a command about one.
pub(super) fn key_of(command: &Command) -> Option<&Key> {
    Some(match command {
        Command::Renew { key, .. }
        | Command::Release { key, .. }
        | Command::Break { key, .. }
        | Command::Expire { key, .. }
        | Command::Persist { key }
        | Command::Get { key }
        | Command::Held { key, .. }
        | Command::Check { key, .. }
        | Command::Detach { key, .. }
        | Command::Cancel { key, .. }
        | Command::CreatePool { key, .. }
        | Command::RenewSlot { key, .. }
        | Command::BreakSlot { key, .. }
        | Command::Resize { key, .. } => key,
        Command::Del { keys, .. } => keys.first()?,
        command => return Ask::of(command, 0).map(|(key, _)| key),
    })
}

/// Was an operation that answers a boolean true?
fn is_true(reply: &Reply) -> bool {
    match reply {
        Reply::Op(op) | Reply::OfSlot { op, .. } => op.result,
        Reply::Done { result, .. } => *result,
        _ => false,
    }
}

/// Is there no such key?
fn is_absent(reply: &Reply) -> bool {
    matches!(reply, Reply::Refused(Refusal::NoSuchKey))
}
