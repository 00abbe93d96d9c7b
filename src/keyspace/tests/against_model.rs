//! Random commands, time jumps, reads, restarts and clones against the naive [`Model`], on three machines at once:
//! - one whose timers all fire at each entry, compared with the model answer by answer and event by event;
//! - one that is saved and loaded whenever the case says so, and must stay equal to the first byte by byte;
//! - one whose timers lag (0 to 2 an entry): its answers must be the same, and so what it tells of each key, in order.
//!
//! `waits` has waiting among the commands. There the lagging machine is another machine: who waits is granted when the
//! lease is handed on, and that is later. It is only held to what holds of every machine.

use std::sync::Arc;

use proptest::prelude::*;
use tenure_cluster::{Moment, NeedsTick, Position, ReadAt, Stamp, StateMachine};

use super::model::Model;
use crate::keyspace::{
    Acquire, Command, Event, EventKind, Key, KeyTtl, Keyspace, LeaseOptions, Reply, Shown, Standing, TokenHash, View,
    token_hash,
};

pub const KEYS: [&str; 4] = ["a", "a/1", "a/2", "b"];
pub const TOKENS: [&str; 3] = ["x", "y", "z"];

/// Where every case's clock starts.
const START: u64 = 1_000_000;

/// One entry: how long after the one before, how many timers the lagging machine fires, what is done, what is read
/// after it, and how far ahead the leader's clock is at the read.
#[derive(Clone, Debug)]
pub struct Step {
    passed_ms: u64,
    lag: usize,
    act: Act,
    read: usize,
    fence: u64,
    ahead_ms: u64,
}

#[derive(Clone, Debug)]
enum Act {
    Tick,
    Do(Command),
    Restart,
}

fn key() -> impl Strategy<Value = Arc<str>> {
    prop::sample::select(&KEYS[..]).prop_map(Arc::from)
}

/// Durations that meet: grants, delays, lifetimes, waits and jumps end at one another's stamps again and again.
fn ms() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => prop::sample::select(vec![1, 2, 5, 10, 20, 50, 100]),
        2 => prop::sample::select(vec![1_000, 2_000, 3_000, 5_000]),
        1 => 0_u64..200,
        1 => Just(86_400_000),
    ]
}

fn ms_or_zero() -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(0), 2 => ms()]
}

fn ttl_ms() -> impl Strategy<Value = i64> {
    prop_oneof![8 => ms().prop_map(|ms| ms as i64), 1 => -5_i64..=0]
}

fn fence() -> impl Strategy<Value = Option<u64>> {
    prop::option::weighted(0.3, 1_u64..8)
}

fn text() -> impl Strategy<Value = Arc<str>> {
    prop::sample::select(&["one", "two"][..]).prop_map(Arc::from)
}

fn acquire() -> impl Strategy<Value = Acquire> {
    let asked = (key(), prop::sample::select(&TOKENS[..]), ttl_ms(), prop::bool::weighted(0.4));
    let more = (
        prop::option::weighted(0.2, text()),
        prop::option::weighted(0.2, ms_or_zero()),
        prop::option::weighted(0.2, ms_or_zero()),
        prop::bool::weighted(0.3),
    );
    (asked, more).prop_map(|((key, token, ttl_ms, create), (note, min_hold_ms, delay_ms, once))| {
        let (owner, token) = (Arc::from(format!("owner of {token}")), token_hash(&key, token));
        Acquire { key, owner, token, ttl_ms, create, note, min_hold_ms, delay_ms, once }
    })
}

fn claim() -> impl Strategy<Value = (Arc<str>, TokenHash, Option<u64>)> {
    (key(), prop::sample::select(&TOKENS[..]), fence()).prop_map(|(key, token, fence)| {
        let token = token_hash(&key, token);
        (key, token, fence)
    })
}

fn options() -> impl Strategy<Value = LeaseOptions> {
    let zero_or = |weight| prop_oneof![3 => Just(0), weight => ms()];
    (zero_or(1), zero_or(1), prop::option::weighted(0.2, ms()))
        .prop_map(|(delay_ms, min_hold_ms, ttl_ms_max)| LeaseOptions { delay_ms, min_hold_ms, ttl_ms_max })
}

pub fn item() -> impl Strategy<Value = Command> {
    prop_oneof![
        3 => (key(), options()).prop_map(|(key, options)| Command::Create { key, options }),
        6 => acquire().prop_map(Command::Acquire),
        4 => (claim(), ttl_ms()).prop_map(|((key, token, fence), ttl_ms)| Command::Renew { key, token, ttl_ms, fence }),
        3 => claim().prop_map(|(key, token, fence)| Command::Release { key, token, fence }),
        2 => (key(), text(), ms_or_zero(), fence())
            .prop_map(|(key, reason, grace_ms, fence)| Command::Break { key, reason, grace_ms, fence }),
        2 => (key(), ms()).prop_map(|(key, ttl_ms)| Command::Expire { key, ttl_ms: ttl_ms.max(1) }),
        1 => key().prop_map(|key| Command::Persist { key }),
        1 => (prop::collection::vec(key(), 1..4), fence()).prop_map(|(keys, fence)| Command::Del { keys, fence }),
        1 => key().prop_map(|key| Command::Get { key }),
        1 => (claim(), any::<bool>())
            .prop_map(|((key, token, _), whose)| Command::Held { key, token: whose.then_some(token) }),
        1 => (key(), 1_u64..8).prop_map(|(key, fence)| Command::Check { key, fence }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    steps(prop_oneof![2 => Just(0), 6 => ms()], item().boxed())
}

pub fn steps(passed: impl Strategy<Value = u64>, item: BoxedStrategy<Command>) -> impl Strategy<Value = Step> {
    let act = prop_oneof![
        1 => Just(Act::Tick),
        1 => Just(Act::Restart),
        8 => item.clone().prop_map(Act::Do),
        1 => prop::collection::vec(item.prop_filter("no batch in a batch", is_flat), 0..6)
            .prop_map(|items| Act::Do(Command::Batch(items))),
    ];
    (passed, 0_usize..3, act, 0..KEYS.len(), 1_u64..8, ms_or_zero())
        .prop_map(|(passed_ms, lag, act, read, fence, ahead_ms)| Step { passed_ms, lag, act, read, fence, ahead_ms })
}

fn is_flat(command: &Command) -> bool {
    !matches!(command, Command::AllOrNothing(_))
}

pub fn saved(keyspace: &Keyspace) -> Vec<u8> {
    let mut bytes = Vec::new();
    keyspace.save(&mut bytes).unwrap();
    bytes
}

/// `version` tells which entry applied an expiry: the model cannot know, and a lagging machine has another.
fn blind(reply: &mut Reply) {
    match reply {
        Reply::View(Some(view)) => view.version = Position::default(),
        Reply::Batch(replies) => replies.iter_mut().for_each(blind),
        _ => {}
    }
}

/// Per key in order; keys in byte order.
fn by_key(mut events: Vec<Event>) -> Vec<Event> {
    events.sort_by(|a, b| a.key.cmp(&b.key));
    events
}

fn with_limits(keyspace: Keyspace, model: &Model) -> Keyspace {
    let (queue_max, waiters_max) = model.line.max;
    keyspace
        .with_keys_max(model.keys_max.map_or(usize::MAX, |max| max as usize))
        .with_waiters_max(queue_max, waiters_max)
}

/// The machines and their model after the same entries.
pub struct Run {
    model: Model,
    prompt: Keyspace,
    restarted: Keyspace,
    lagging: Keyspace,
    at: Moment,
    pub told: Vec<Event>,
    told_late: Vec<Event>,
    /// The lagging machine answers as the others: there is no limit of keys, and nobody waits.
    lag_is_alike: bool,
}

impl Run {
    pub fn new(keys_max: Option<u64>, waiters_max: Option<(usize, usize)>) -> Self {
        let mut model = Model::new(keys_max);
        model.line.max = waiters_max.unwrap_or(model.line.max);
        let keyspace = with_limits(Keyspace::default(), &model);
        Self {
            lag_is_alike: keys_max.is_none() && waiters_max.is_none(),
            model,
            prompt: keyspace.clone(),
            restarted: keyspace,
            // Keys that are not cleaned up yet count, so here the limit would show the lag.
            lagging: Keyspace::default(),
            at: Moment { stamp: Stamp(START), ..Moment::default() },
            told: Vec::new(),
            told_late: Vec::new(),
        }
    }

    fn restart(&mut self) {
        let bytes = saved(&self.restarted);
        self.restarted = with_limits(Keyspace::load(&mut bytes.as_slice()).unwrap(), &self.model);
        assert_eq!(saved(&self.restarted), bytes);
        let lagging = saved(&self.lagging);
        self.lagging = Keyspace::load(&mut lagging.as_slice()).unwrap();
        assert_eq!(saved(&self.lagging), lagging);
    }

    fn entry(&mut self, step: &Step) {
        let before = self.at.stamp;
        self.at.stamp = before.plus_ms(step.passed_ms);
        self.at.position.index += 1;
        self.at.wall_ms = self.at.stamp.0 + 7;
        let (mut expected, mut events, mut again) = (Vec::new(), Vec::new(), Vec::new());
        self.model.passed(before.0, &self.at, &mut expected);
        self.prompt.advance(&self.at, &mut events);
        self.restarted.advance(&self.at, &mut again);
        self.lagging.advance_up_to(step.lag, &self.at, &mut self.told_late);
        match &step.act {
            Act::Tick => {}
            Act::Restart => self.restart(),
            Act::Do(command) => {
                let mut wanted = self.model.apply(&self.at, command, &mut expected);
                let mut reply = self.prompt.apply(&self.at, command.clone(), &mut events);
                assert_eq!(self.restarted.apply(&self.at, command.clone(), &mut again), reply);
                let mut late = self.lagging.apply(&self.at, command.clone(), &mut self.told_late);
                [&mut wanted, &mut reply, &mut late].into_iter().for_each(blind);
                assert_eq!(reply, wanted, "{command:?}");
                if self.lag_is_alike {
                    assert_eq!(late, wanted, "lagging, {command:?}");
                }
            }
        }
        assert_eq!(again, events);
        self.told.extend(events.iter().cloned());
        assert_eq!(by_key(events), by_key(expected));
        assert_eq!(self.prompt.grants(), self.model.held(self.at.stamp.0));
        assert_eq!(self.prompt.longest_ttl_ms(), self.model.longest_ttl_ms);
        let bytes = saved(&self.prompt);
        assert_eq!(saved(&self.restarted), bytes);
        assert!(self.prompt.wake().is_none_or(|wake| wake > self.at.stamp), "all timers that are due have fired");
        assert_eq!(self.prompt.waiters(), self.model.waiters());
        assert_eq!(self.prompt.edges().collect::<Vec<_>>(), self.model.edges());
        assert_eq!(self.prompt.state_format() == 1, bytes.starts_with(b"tenure keyspace\x01"));
        for machine in [&self.prompt, &self.lagging] {
            nobody_waits_in_vain(machine, self.at.stamp);
        }
    }

    /// All reads of one key and a scan, on the prompt and the lagging machine.
    fn read(&mut self, step: &Step) {
        let at = ReadAt { applied: self.at.stamp, now: self.at.stamp.plus_ms(step.ahead_ms) };
        let (key, now) = (KEYS[step.read], at.now.0);
        let token = token_hash(key, TOKENS[0]);
        let changes = self.model.changes(key, at.applied.0, now);
        let view = self.model.get(key, now);
        let (mine, check) =
            (self.model.holds(key, Some(token), None, now), self.model.holds(key, None, Some(step.fence), now));
        let ttl = match &view {
            None => KeyTtl::NoKey,
            Some(view) => view.key_ttl_ms.map_or(KeyTtl::Endless, KeyTtl::Remaining),
        };
        let (held, aged) = (self.model.holds(key, None, None, now), self.model.aged(key, now));
        let place =
            self.model.waits(key, Some(token), now).map(|(op, place)| Standing { op, place: Some(place), slot: None });
        let mine = mine.map(|op| place.unwrap_or(op.into()));
        for machine in [&self.prompt, &self.lagging] {
            let lags = std::ptr::eq(machine, &self.lagging);
            if lags && !self.lag_is_alike {
                continue;
            }
            let got = machine.get(key, at);
            if changes {
                assert_eq!(got, Err(NeedsTick));
                assert_eq!(machine.exists(key, at), Err(NeedsTick));
                continue;
            }
            assert_eq!(machine.held(key, None, at), Ok(held.clone().map(Into::into)));
            assert_eq!(machine.held(key, Some(token), at), Ok(mine.clone()));
            assert_eq!(machine.check(key, step.fence, at), Ok(check.clone().map(Standing::from)));
            assert_eq!(machine.key_ttl(key, at), Ok(ttl));
            assert_eq!(machine.exists(key, at), Ok(view.is_some()));
            check_view(got.unwrap().and_then(Shown::lease), view.clone(), aged && lags, self.at.position);
        }
        self.scan();
    }

    /// Pages of two put together are all keys, in order, as GET shows them.
    fn scan(&mut self) {
        let at = ReadAt { applied: self.at.stamp, now: self.at.stamp };
        let (mut names, mut cursor) = (Vec::new(), None::<Arc<str>>);
        loop {
            let page = self.prompt.scan("", cursor.as_deref(), 2, at).unwrap();
            for view in page.views {
                assert_eq!(self.prompt.get(view.key(), at), Ok(Some(view.clone())));
                names.push(Key::clone(view.key()));
            }
            cursor = page.cursor;
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(names, self.model.names(at.now.0));
    }

    /// Fires what is left, then compares what both machines told.
    fn finish(mut self) -> Vec<Event> {
        let mut entries = 0;
        while self.lagging.wake().is_some_and(|wake| wake <= self.at.stamp) {
            self.lagging.advance_up_to(1, &self.at, &mut self.told_late);
            entries += 1;
            assert!(entries <= KEYS.len(), "one timer a key");
        }
        let granted: Vec<_> = self.told.iter().filter(|e| e.kind == EventKind::Granted).map(|e| e.fence).collect();
        assert!(granted.iter().zip(1..).all(|(fence, wanted)| *fence == Some(wanted)), "fences grow by one");
        if self.lag_is_alike {
            assert_eq!(by_key(self.told_late), by_key(self.told.clone()));
        }
        self.told
    }
}

/// Whoever waits at an edge waits for something: unless a timer is to hand the lease on at once.
fn nobody_waits_in_vain(keyspace: &Keyspace, now: Stamp) {
    for (key, record) in keyspace.table.iter() {
        let lease = record.lease().unwrap();
        let is_open = lease.last.as_ref().is_none_or(|last| last.opens_at <= now);
        let mut waiters = lease.queue().into_iter().flat_map(|queue| queue.iter());
        if lease.grant.is_none() && is_open && waiters.any(|waiter| waiter.attach().is_some()) {
            let fires = record.timer().is_some_and(|timer| timer.stamp <= now);
            assert!(fires && keyspace.wake().is_some_and(|wake| wake <= now), "{key} is free: {record:?}");
        }
    }
}

fn check_view(got: Option<View>, wanted: Option<View>, aged: bool, last: Position) {
    let (Some(mut got), Some(mut wanted)) = (got.clone(), wanted.clone()) else {
        assert_eq!(got, wanted);
        return;
    };
    if aged {
        assert!(got.version <= last, "{} {last}", got.version);
        (got.version, wanted.version) = (last, last);
    }
    assert_eq!(got, wanted);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn answers_as_the_model(
        steps in prop::collection::vec(step(), 1..60),
        keys_max in prop::option::weighted(0.2, 2_u64..4),
    ) {
        agree(Run::new(keys_max, None), &steps);
    }
}

/// The events that were told.
pub fn agree(mut run: Run, steps: &[Step]) -> Vec<Event> {
    let mut clone = (run.prompt.clone(), saved(&run.prompt));
    for (n, step) in steps.iter().enumerate() {
        if n % 8 == 0 {
            assert_eq!(saved(&clone.0), clone.1, "a clone does not change with its original");
            clone = (run.prompt.clone(), saved(&run.prompt));
        }
        run.entry(step);
        run.read(step);
    }
    assert_eq!(saved(&clone.0), clone.1);
    run.finish()
}
