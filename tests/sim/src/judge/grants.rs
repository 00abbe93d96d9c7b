//! The contract's rules on grants, from the log alone: what was ordered, answered, and under which stamps. It shares
//! nothing with the keyspace but the form of commands and replies.
//!
//! Model: a key has at most one grant, which lives while its deadline is after the clock. It begins with an ACQUIRE that was
//! true; RENEW moves its deadline to `max(old, now + ttl)`; RELEASE, DEL, and BREAK (after its grace) end it; nothing
//! else does, a key's own lifetime neither.
//!
//! Laws: `NotEarly` (nothing else ends, replaces or denies a live grant), `EndedStaysEnded` (nothing extends, or shows, one
//! that has ended), `DeadlinesStand` (what is left is what must be), `FencesGrow` (each grant's fence is greater than all
//! before it, whoever leads and whatever was loaded), `TokensOnly` (a grant obeys its token alone), `FreeIsGranted`
//! (nothing is refused as held when nobody holds), `StaysShut` (a delay, or a minimum hold, keeps a free key shut). Those
//! on waiting stand in `waiting`.

use std::collections::{BTreeMap, BTreeSet};

use tenure::keyspace::{
    Acquire, Attach, Command, EdgeId, Event, Key, LeaseOptions, OpReply, Reason, Refusal, Reply, TokenHash, View,
};
use tenure_cluster::Moment;

use super::Verdict;
use super::line::Line;
use super::pools::Pools;
use super::waiting::{Told, Unheard, Waits};

#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub fence: u64,
    pub token: TokenHash,
    pub deadline_ms: u64,
    broken: bool,
    granted_ms: u64,
    /// In force for this grant.
    options: Options,
    /// Was it waited for, and its token not heard since?
    pub unheard: Unheard,
}

/// What keeps a free key shut.
#[derive(Clone, Copy, Debug, Default)]
struct Options {
    min_hold_ms: u64,
    delay_ms: u64,
}

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Grants {
    pub by_key: BTreeMap<Key, Grant>,
    /// Who waits.
    pub lines: BTreeMap<Key, Line>,
    /// When each edge was last heard of.
    pub edges: BTreeMap<EdgeId, u64>,
    /// When a key's own lifetime ends.
    pub ends: BTreeMap<Key, u64>,
    /// What the step that is judged must tell.
    pub expected: Vec<Told>,
    /// What the grants that this step began last, by their fences.
    pub begun: BTreeMap<u64, u64>,
    /// How much was judged of waiting.
    pub waits: Waits,
    /// Of keys made by CREATE.
    options: BTreeMap<Key, Options>,
    /// Of a key that was given back: until when it stays shut, and whose it was.
    pub shut: BTreeMap<Key, (u64, TokenHash)>,
    /// Keys that had a lifetime: they may go and come again unseen.
    mortal: BTreeSet<Key>,
    /// The greatest that was granted.
    pub fence: u64,
    /// Keys of the other type.
    pub pools: Pools,
}

/// A step as its rule sees it.
pub(super) struct At<'a> {
    pub moment: &'a Moment,
    pub command: &'a Command,
    pub reply: &'a Reply,
    pub verdict: &'a mut Verdict,
}

impl At<'_> {
    pub(super) fn now_ms(&self) -> u64 {
        self.moment.stamp.0
    }

    pub(super) fn violated(&mut self, law: &str, what: &str, known: Option<Grant>) {
        let (command, reply, Moment { stamp, position, .. }) = (self.command, self.reply, self.moment);
        let now_ms = stamp.0;
        self.verdict
            .violated(law, || format!("{what} at {position}, {now_ms} ms: {command:?} -> {reply:?}; was {known:?}"));
    }
}

impl Grants {
    /// Takes in one command of the log.
    pub(super) fn step(
        &mut self,
        moment: &Moment,
        command: &Command,
        reply: &Reply,
        events: &[Event],
        verdict: &mut Verdict,
    ) {
        self.expected.clear();
        self.begun.clear();
        match (command, reply) {
            (Command::Batch(commands) | Command::AllOrNothing(commands), Reply::Batch(replies)) => {
                if matches!(command, Command::AllOrNothing(_)) && !replies.iter().all(is_done) {
                    At { moment, command, reply, verdict }.violated("AllOrNothing", "an item was not done", None);
                }
                self.items(commands.iter().zip(replies).collect(), &mut At { moment, command, reply, verdict }, events);
            }
            // That nothing was done the states tell.
            (Command::AllOrNothing(_), _) => {
                self.items(Vec::new(), &mut At { moment, command, reply, verdict }, events)
            }
            _ => self.items(vec![(command, reply)], &mut At { moment, command, reply, verdict }, events),
        }
    }

    /// The items of a command, and all that they told: first those of leases, then those of pools.
    fn items(&mut self, items: Vec<(&Command, &Reply)>, at: &mut At<'_>, events: &[Event]) {
        for (command, reply) in &items {
            self.pools.hears(at.now_ms(), command, reply);
            if let (Some(edge), Reply::SlotQueued(_)) = (edge_of(command), reply) {
                self.waits_at(at.now_ms(), edge);
            }
            if !self.pools.is_of_pool(command) {
                self.one(&mut At { moment: at.moment, command, reply, verdict: at.verdict });
            }
        }
        let (of_pools, of_leases): (Vec<Event>, Vec<Event>) = match self.pools.is_empty() {
            true => (Vec::new(), events.to_vec()),
            false => events.iter().cloned().partition(|event| self.pools.is_pool(&event.key)),
        };
        self.is_told(at, &of_leases);
        self.pools.step(at, &items, &of_pools, &mut self.fence);
    }

    fn one(&mut self, at: &mut At<'_>) {
        let (command, reply) = (at.command, at.reply);
        match (command, reply) {
            (Command::Acquire(ask), Reply::Op(reply)) => self.acquired(at, ask, None, reply),
            (Command::Renew { key, token, ttl_ms, fence }, Reply::Op(reply)) => {
                self.renewed(at, key, *token, *fence, u64::try_from(*ttl_ms).unwrap_or(0), reply);
            }
            (Command::Release { key, token, fence }, Reply::Op(reply)) => {
                self.released(at, key, *token, *fence, reply);
            }
            (Command::Break { key, grace_ms, fence, .. }, Reply::Op(reply)) => {
                self.broken(at, key, *grace_ms, *fence, reply);
            }
            (Command::Del { keys, fence }, Reply::Deleted(count)) => self.deleted(at, keys, *fence, *count),
            (Command::Held { key, token }, Reply::Op(reply)) => self.claimed(at, key, (*token, None), reply),
            (Command::Check { key, fence }, Reply::Op(reply)) => self.claimed(at, key, (None, Some(*fence)), reply),
            (Command::Get { key }, Reply::View(view)) => self.seen(at, key, view.as_deref()),
            (Command::Create { key, options }, Reply::Done { result: true, .. }) => {
                self.absent(at, key);
                self.forget(key);
                let LeaseOptions { min_hold_ms, delay_ms, .. } = *options;
                self.options.insert(Key::clone(key), Options { min_hold_ms, delay_ms });
            }
            (Command::Expire { key, ttl_ms }, Reply::Done { result: true, .. }) => {
                self.mortal.insert(Key::clone(key));
                self.ends.insert(Key::clone(key), at.moment.stamp.plus_ms(*ttl_ms).0);
            }
            (Command::Persist { key }, Reply::Done { result: true, .. }) => drop(self.ends.remove(key)),
            (Command::Expire { key, .. } | Command::Persist { key }, Reply::Done { result: false, reason: None })
            | (
                Command::Renew { key, .. }
                | Command::Release { key, .. }
                | Command::Break { key, .. }
                | Command::Held { key, .. }
                | Command::Check { key, .. }
                | Command::Acquire(Acquire { key, .. }),
                Reply::Refused(Refusal::NoSuchKey),
            ) => self.absent(at, key),
            _ => self.of_waiting(at),
        }
    }

    pub(super) fn live(&self, at: &At<'_>, key: &Key) -> Option<Grant> {
        self.by_key.get(key).copied().filter(|grant| grant.deadline_ms > at.now_ms())
    }

    /// The key is another from now on.
    pub(super) fn forget(&mut self, key: &Key) {
        self.by_key.remove(key);
        self.ends.remove(key);
        self.lines.remove(key);
        self.options.remove(key);
        self.shut.remove(key);
    }

    /// From when a key that nobody holds may be acquired: after an expiry or BREAK a delay later, after RELEASE when its
    /// grant would have had the least age.
    pub(super) fn opens_ms(&self, key: &Key) -> u64 {
        let ended = self.by_key.get(key).map(|grant| grant.deadline_ms + grant.options.delay_ms);
        ended.or(self.shut.get(key).map(|(until_ms, _)| *until_ms)).unwrap_or_default()
    }

    /// Whose the grant was that ended last, as long as the key surely remembers.
    fn last_token(&self, key: &Key) -> Option<TokenHash> {
        let ended = self.by_key.get(key).map(|grant| grant.token);
        ended.or(self.shut.get(key).map(|(_, token)| *token)).filter(|_| !self.mortal.contains(key))
    }

    /// There is no such key: then nobody holds it.
    fn absent(&self, at: &mut At<'_>, key: &Key) {
        if let Some(grant) = self.live(at, key) {
            at.violated("NotEarly", "the key of a live grant is not there", Some(grant));
        }
    }

    /// What an answer tells of the live grant, after the command.
    pub(super) fn told(&self, at: &mut At<'_>, key: &Key, reply: &OpReply) {
        let Some(fence) = reply.fence else { return };
        self.shown(at, key, fence, reply.ttl_ms.unwrap_or_default());
    }

    fn shown(&self, at: &mut At<'_>, key: &Key, fence: u64, ttl_ms: u64) {
        let known = self.live(at, key).filter(|grant| grant.fence == fence);
        match known {
            None => at.violated("EndedStaysEnded", "a grant that is not live", self.by_key.get(key).copied()),
            Some(grant) if grant.deadline_ms - at.now_ms() != ttl_ms => {
                at.violated("DeadlinesStand", "another remaining time", known);
            }
            Some(_) => {}
        }
    }

    /// ACQUIRE, or one that waits, was answered at once.
    pub(super) fn acquired(&mut self, at: &mut At<'_>, ask: &Acquire, attach: Option<Attach>, reply: &OpReply) {
        let live = self.live(at, &ask.key);
        if !reply.result {
            self.heard(&ask.key, ask.token, reply.yours);
            let token_holds = live.is_some_and(|grant| grant.token == ask.token);
            if reply.yours != token_holds && reply.reason != Some(Reason::TtlNotPositive) {
                at.violated("TokensOnly", "whose it is", live);
            }
            if live.is_none() && matches!(reply.reason, Some(Reason::Held | Reason::KeyExpired)) {
                at.violated("FreeIsGranted", "nobody holds it", live);
            }
            let shut = matches!(reply.reason, Some(Reason::MinHold | Reason::Delay));
            if shut && (live.is_some() || self.opens_ms(&ask.key) <= at.now_ms()) {
                at.violated("FreeIsGranted", "nothing keeps it shut", live);
            }
            return self.told(at, &ask.key, reply);
        }
        let fence = reply.fence.unwrap_or_default();
        if live.is_some() {
            at.violated("NotEarly", "granted while another lives", live);
        }
        let opens_ms = self.opens_ms(&ask.key);
        if live.is_none() && opens_ms > at.now_ms() {
            at.violated(
                "StaysShut",
                &format!("granted, and shut until {opens_ms}"),
                self.by_key.get(&ask.key).copied(),
            );
        }
        if live.is_none() && ask.once && self.last_token(&ask.key) == Some(ask.token) {
            at.violated("TokensOnly", "granted once more with `once`", self.by_key.get(&ask.key).copied());
        }
        if fence <= self.fence {
            at.violated("FencesGrow", &format!("not above {}", self.fence), live);
        }
        self.begin(at, ask, fence, attach);
        self.leaves(ask, attach);
        self.told(at, &ask.key, reply);
    }

    /// A grant begins.
    pub(super) fn begin(&mut self, at: &At<'_>, ask: &Acquire, fence: u64, attach: Option<Attach>) {
        self.fence = self.fence.max(fence);
        let deadline_ms = at.moment.stamp.plus_ms(u64::try_from(ask.ttl_ms).unwrap_or(0)).0;
        let of_key = self.options.get(&ask.key).copied().unwrap_or_default();
        let options = Options {
            min_hold_ms: ask.min_hold_ms.unwrap_or(of_key.min_hold_ms),
            delay_ms: ask.delay_ms.unwrap_or(of_key.delay_ms),
        };
        let (granted_ms, unheard) = (at.now_ms(), attach.map_or(Unheard::No, Unheard::Since));
        let grant = Grant { fence, token: ask.token, deadline_ms, broken: false, granted_ms, options, unheard };
        self.begun.insert(fence, deadline_ms - granted_ms);
        self.shut.remove(&ask.key);
        // A key whose lifetime is over, and nobody held it, had gone.
        if self.is_over(&ask.key, at.now_ms()) {
            self.ends.remove(&ask.key);
        }
        self.by_key.insert(Key::clone(&ask.key), grant);
    }

    fn renewed(
        &mut self,
        at: &mut At<'_>,
        key: &Key,
        token: TokenHash,
        fence: Option<u64>,
        ttl_ms: u64,
        reply: &OpReply,
    ) {
        let live = self.live(at, key);
        let mine = live.filter(|grant| grant.token == token && fence.is_none_or(|fence| fence == grant.fence));
        match (reply.result, live, mine) {
            (true, None, _) => at.violated("EndedStaysEnded", "renewed after its end", self.by_key.get(key).copied()),
            (true, Some(_), None) => at.violated("TokensOnly", "renewed by another", live),
            (true, _, Some(grant)) => {
                if grant.broken {
                    at.violated("EndedStaysEnded", "renewed after its BREAK", live);
                }
                let deadline_ms = grant.deadline_ms.max(at.moment.stamp.plus_ms(ttl_ms).0);
                self.by_key.insert(Key::clone(key), Grant { deadline_ms, unheard: Unheard::No, ..grant });
                self.told(at, key, reply);
            }
            (false, _, Some(grant)) => {
                let may_be = match reply.reason {
                    Some(Reason::KeyExpired | Reason::TtlNotPositive) => true,
                    Some(Reason::Broken) => grant.broken,
                    _ => false,
                };
                if !may_be {
                    at.violated("NotEarly", "refused to its holder", live);
                }
                self.told(at, key, reply);
            }
            (false, _, None) => self.told(at, key, reply),
        }
        self.heard(key, token, false);
    }

    fn released(&mut self, at: &mut At<'_>, key: &Key, token: TokenHash, fence: Option<u64>, reply: &OpReply) {
        let live = self.live(at, key);
        let mine = live.filter(|grant| grant.token == token && fence.is_none_or(|fence| fence == grant.fence));
        match (reply.result, live, mine) {
            (true, None, _) => at.violated("EndedStaysEnded", "released after its end", self.by_key.get(key).copied()),
            (true, Some(_), None) => at.violated("TokensOnly", "released by another", live),
            (false, _, Some(_)) => at.violated("NotEarly", "refused to its holder", live),
            (false, _, None) => self.told(at, key, reply),
            (true, ..) => {}
        }
        self.heard(key, token, false);
        if let Some(grant) = live.filter(|_| reply.result) {
            self.by_key.remove(key);
            let opens_ms = grant.granted_ms + grant.options.min_hold_ms;
            self.shut.insert(Key::clone(key), (opens_ms, grant.token));
            if opens_ms > at.now_ms() {
                self.window_opens(key);
            }
            self.hand_on(at, key);
        } else if !reply.result && fence.is_none() {
            self.gives_up(at, key, token, reply);
        }
    }

    fn broken(&mut self, at: &mut At<'_>, key: &Key, grace_ms: u64, fence: Option<u64>, reply: &OpReply) {
        let live = self.live(at, key);
        let meant = live.filter(|grant| fence.is_none_or(|fence| fence == grant.fence));
        match (reply.result, meant) {
            (true, None) => at.violated("EndedStaysEnded", "broken after its end", self.by_key.get(key).copied()),
            (false, Some(_)) => at.violated("NotEarly", "there is nothing to break", live),
            (true, Some(grant)) => {
                let deadline_ms = grant.deadline_ms.min(at.moment.stamp.plus_ms(grace_ms).0);
                self.by_key.insert(Key::clone(key), Grant { deadline_ms, broken: true, ..grant });
            }
            (false, None) => {}
        }
        // What it tells is the broken grant's.
        self.told(at, key, reply);
        self.hand_on(at, key);
    }

    fn deleted(&mut self, at: &mut At<'_>, keys: &[Key], fence: Option<u64>, count: u64) {
        let mut held = 0;
        for key in keys {
            let live = self.live(at, key).filter(|grant| fence.is_none_or(|fence| fence == grant.fence));
            if live.is_some() {
                held += 1;
            }
            if live.is_some() || fence.is_none() {
                self.all_leave(key, Reason::Deleted);
                self.forget(key);
            }
        }
        if count < held {
            at.violated("NotEarly", &format!("{held} of the keys were held"), None);
        }
    }

    fn claimed(
        &mut self,
        at: &mut At<'_>,
        key: &Key,
        (token, fence): (Option<TokenHash>, Option<u64>),
        reply: &OpReply,
    ) {
        let live = self.live(at, key);
        if let Some(token) = token {
            self.heard(key, token, reply.result);
        }
        let fits = live.is_some_and(|grant| {
            token.is_none_or(|token| token == grant.token) && fence.is_none_or(|fence| fence == grant.fence)
        });
        match (reply.result, fits) {
            (true, false) => at.violated("EndedStaysEnded", "said to hold", live),
            (false, true) => at.violated("NotEarly", "said not to hold", live),
            _ => self.told(at, key, reply),
        }
    }

    fn seen(&self, at: &mut At<'_>, key: &Key, view: Option<&View>) {
        self.counted(at, key, view.map(|view| view.waiters));
        match view.and_then(|view| view.grant.as_ref()) {
            Some(grant) => self.shown(at, key, grant.fence, grant.ttl_ms),
            None => self.absent(at, key),
        }
    }
}

/// Where a command waits, if it does.
fn edge_of(command: &Command) -> Option<EdgeId> {
    match command {
        Command::Wait(wait) => Some(wait.attach.edge),
        Command::WaitSlot(wait) => Some(wait.attach.edge),
        _ => None,
    }
}

/// Was an item of a list done?
fn is_done(reply: &Reply) -> bool {
    matches!(reply, Reply::Op(op) if op.result || (op.yours && op.reason.is_none()))
}
