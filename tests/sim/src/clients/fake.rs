//! One keyspace that serves as several nodes, for the tests of clients: answers late, loses requests and answers, and can
//! be told to have a fault, which the notes must show.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use checker::Dice;
use tenure::keyspace::{
    Acquire, AcquireSlot, Attach, Command, EdgeId, Event, EventKind, Holders, HoldersPage, Key, Keyspace, OpReply,
    Reply, Shown, TokenHash, View, Wait, WaitSlot,
};
use tenure_cluster::{Applied, Moment, Position, ReadAt, Seen, Stamp, StateMachine, Witness};

use super::service::Service;
use crate::runtime;
use crate::world::NoReply;

/// The cluster clock at the beginning.
const EPOCH_MS: u64 = 1_000_000;
/// Once in a while no answer comes back for a while, and everything is done.
const MUTE_EVERY_MS: u64 = 7_000;
const MUTE_MS: u64 = 1_300;

/// What the fake does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// Its clock runs 5 % fast.
    ClockRuns,
    /// A token is as good as another.
    AnyToken,
    /// Nothing is served after this time.
    Dies {
        after_ms: u64,
    },
}

/// See the module's head.
#[derive(Clone)]
pub(super) struct Fake(Arc<Mutex<State>>);

struct State {
    keyspace: Keyspace,
    dice: Dice,
    index: u64,
    fault: Fault,
    /// Tokens of live grants, so that any other can be taken for them.
    granted: std::collections::BTreeMap<String, tenure::keyspace::TokenHash>,
    /// Every command that was applied, as it is printed.
    applied: Vec<String>,
    /// What became of requests that wait.
    told: std::collections::BTreeMap<Attach, Applied<Reply>>,
    requests: u64,
}

/// A request that waits, until its caller goes.
struct Waiting {
    fake: Fake,
    key: Key,
    token: TokenHash,
    attach: Attach,
    answered: bool,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Self { fake, key, token, attach, answered } = self;
        if !*answered && runtime::running() {
            let detach = Command::Detach { key: Key::clone(key), token: *token, attach: *attach };
            fake.0.lock().unwrap().apply_quietly(detach);
        }
    }
}

impl Fake {
    pub(super) fn new(fault: Fault, seed: u64) -> Self {
        let state = State {
            keyspace: Keyspace::default(),
            dice: Dice::new(seed, 77),
            index: 0,
            fault,
            granted: std::collections::BTreeMap::new(),
            applied: Vec::new(),
            told: std::collections::BTreeMap::new(),
            requests: 0,
        };
        Self(Arc::new(Mutex::new(state)))
    }

    pub(super) fn applied(&self) -> Vec<String> {
        self.0.lock().unwrap().applied.clone()
    }

    fn percent(&self, percent: u64) -> bool {
        self.0.lock().unwrap().dice.percent(percent)
    }

    /// A hop takes a while, now and then a long one.
    async fn hop(&self) {
        let most_us = if self.percent(5) { 150_000 } else { 6_000 };
        let us = self.0.lock().unwrap().dice.in_range(100..=most_us);
        runtime::sleep(Duration::from_micros(us)).await;
    }

    fn is_mute() -> bool {
        let ms = runtime::now_ns() / 1_000_000;
        ms > MUTE_EVERY_MS && ms % MUTE_EVERY_MS < MUTE_MS
    }

    fn is_dead(&self) -> bool {
        matches!(self.0.lock().unwrap().fault, Fault::Dies { after_ms } if runtime::now_ns() / 1_000_000 > after_ms)
    }

    async fn waits(
        &self,
        node: u64,
        (key, token): (Key, TokenHash),
        command: impl FnOnce(Attach) -> Command,
        patience: Duration,
    ) -> Result<Applied<Reply>, NoReply> {
        self.hop().await;
        if self.is_dead() {
            runtime::sleep(patience).await;
            return Err(NoReply::Nothing);
        }
        if self.percent(3) {
            return Err(NoReply::Nothing);
        }
        let edge = EdgeId { node, incarnation: 1 };
        let (attach, first) = {
            let state = &mut *self.0.lock().unwrap();
            state.requests += 1;
            let attach = Attach { edge, request: state.requests };
            (attach, state.apply(command(attach)))
        };
        let mut waiting = Waiting { fake: self.clone(), key, token, attach, answered: false };
        let mut came = (!matches!(first.reply, Reply::Queued { .. } | Reply::SlotQueued(_))).then_some(first);
        while came.is_none() {
            runtime::sleep(Duration::from_millis(7)).await;
            let state = &mut *self.0.lock().unwrap();
            state.apply_quietly(Command::Presence { edge });
            came = state.told.remove(&attach);
        }
        waiting.answered = true;
        self.hop().await;
        let lost = self.percent(4) || Self::is_mute();
        came.filter(|_| !lost).ok_or(NoReply::Unknown)
    }
}

impl State {
    fn clock(&self) -> Stamp {
        let ms = runtime::now_ns() / 1_000_000;
        Stamp(EPOCH_MS + if self.fault == Fault::ClockRuns { ms * 105 / 100 } else { ms })
    }

    fn moment(&mut self) -> Moment {
        self.index += 1;
        Moment { stamp: self.clock(), position: Position { index: self.index, ordinal: 0 }, wall_ms: 0 }
    }

    fn apply(&mut self, command: Command) -> Applied<Reply> {
        self.applied.push(format!("{command:?}"));
        self.apply_quietly(command)
    }

    fn apply_quietly(&mut self, mut command: Command) -> Applied<Reply> {
        if let Command::Acquire(ask) = &command {
            let free = self.view(&ask.key).is_none_or(|view| view.grant.is_none());
            if free {
                self.granted.insert(ask.key.to_string(), ask.token);
            }
        }
        if let (Command::Renew { key, token, .. }, Fault::AnyToken) = (&mut command, self.fault) {
            *token = self.granted.get(&**key).copied().unwrap_or(*token);
        }
        let moment = self.moment();
        let mut events = Vec::new();
        self.keyspace.advance(&moment, &mut events);
        let reply = self.keyspace.apply(&moment, command, &mut events);
        self.hear(&moment, &events);
        Applied { reply, witness: Witness { position: moment.position, clock: moment.stamp, term: 1 } }
    }

    fn hear(&mut self, moment: &Moment, events: &[Event]) {
        for event in events {
            let (Some(attach), EventKind::Granted | EventKind::WaitEnded) = (event.attach, event.kind) else {
                continue;
            };
            let (result, reason) = (event.kind == EventKind::Granted, event.reason);
            let answer = event.slot.as_ref().and_then(|slotted| slotted.answer.as_deref()).cloned();
            let told = OpReply { result, reason, fence: event.fence, ttl_ms: event.ttl_ms, ..OpReply::default() };
            let witness = Witness { position: moment.position, clock: moment.stamp, term: 1 };
            self.told.insert(
                attach,
                Applied { reply: answer.map_or(Reply::Op(told), |answer| Reply::Slot(Box::new(answer))), witness },
            );
        }
    }

    /// Time passes in the log first: what is seen as ended is in it.
    fn shown(&mut self, key: &str) -> Option<Shown> {
        let (moment, mut events) = (self.moment(), Vec::new());
        self.keyspace.advance(&moment, &mut events);
        self.hear(&moment, &events);
        self.keyspace.get(key, ReadAt { applied: moment.stamp, now: moment.stamp }).unwrap()
    }

    fn view(&mut self, key: &str) -> Option<View> {
        self.shown(key).and_then(Shown::lease)
    }
}

impl Service for Fake {
    fn ids(&self) -> Vec<u64> {
        vec![1, 2, 3]
    }

    async fn submit(&self, _node: u64, command: Command, patience: Duration) -> Result<Applied<Reply>, NoReply> {
        self.hop().await;
        if self.is_dead() {
            runtime::sleep(patience).await;
            return Err(NoReply::Nothing);
        }
        if self.percent(3) {
            return Err(NoReply::Nothing);
        }
        let (lost, late) = (self.percent(4), self.percent(50));
        if lost && late {
            // It acts, long after its client gave up.
            let (fake, us) = (self.clone(), self.0.lock().unwrap().dice.in_range(1_000..=600_000));
            runtime::spawn_on(runtime::WORLD, async move {
                runtime::sleep(Duration::from_micros(us)).await;
                fake.0.lock().unwrap().apply(command);
            });
            runtime::sleep(patience.min(Duration::from_millis(50))).await;
            return Err(NoReply::Unknown);
        }
        let applied = self.0.lock().unwrap().apply(command);
        self.hop().await;
        if lost || Self::is_mute() { Err(NoReply::Unknown) } else { Ok(applied) }
    }

    async fn wait(&self, node: u64, ask: Acquire, wait_ms: u64, patience: Duration) -> Result<Applied<Reply>, NoReply> {
        let (key, token) = (Key::clone(&ask.key), ask.token);
        let command = move |attach| Command::Wait(Wait { ask, wait_ms, attach });
        self.waits(node, (key, token), command, patience).await
    }

    async fn wait_slot(
        &self,
        node: u64,
        ask: AcquireSlot,
        wait_ms: u64,
        patience: Duration,
    ) -> Result<Applied<Reply>, NoReply> {
        let (key, token) = (Key::clone(&ask.key), ask.token);
        let command = move |attach| Command::WaitSlot(WaitSlot { ask, wait_ms, attach });
        self.waits(node, (key, token), command, patience).await
    }

    async fn holders(
        &self,
        _node: u64,
        key: String,
        which: Holders,
        _patience: Duration,
    ) -> Result<Seen<Option<HoldersPage>>, NoReply> {
        self.hop().await;
        let mut state = self.0.lock().unwrap();
        drop(state.shown(&key));
        let stamp = state.clock();
        let value = state.keyspace.holders(&key, &which, ReadAt { applied: stamp, now: stamp }).unwrap().ok();
        let position = Position { index: state.index, ordinal: 0 };
        Ok(Seen { value, witness: Witness { position, clock: stamp, term: 1 }, age_ms: 0 })
    }

    async fn get(&self, _node: u64, key: String, patience: Duration) -> Result<Seen<Option<Shown>>, NoReply> {
        self.hop().await;
        if self.is_dead() {
            runtime::sleep(patience).await;
            return Err(NoReply::Nothing);
        }
        let seen = {
            let mut state = self.0.lock().unwrap();
            let value = state.shown(&key);
            let position = Position { index: state.index, ordinal: 0 };
            Seen { value, witness: Witness { position, clock: state.clock(), term: 1 }, age_ms: 0 }
        };
        self.hop().await;
        if self.percent(3) { Err(NoReply::Nothing) } else { Ok(seen) }
    }
}
