//! Random commands on pools, time jumps, reads, restarts and clones against the naive [`PoolModel`], on three machines
//! at once, as [`super::against_model`] has it for leases:
//! - one whose timers all fire at each entry, compared with the model answer by answer and event by event;
//! - one that is saved and loaded whenever the case says so, and must stay equal to the first byte by byte;
//! - one whose timers lag (0 to 2 an entry): its answers must be the same while nobody waits, and so what it tells of
//!   each slot, in order. (Who waits is granted when a slot is handed on, and there that is later.)

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tenure_cluster::{Moment, NeedsTick, Position, ReadAt, Stamp, StateMachine};

use super::against_model::saved;
use super::pool_model::PoolModel;
use super::pool_steps::{Act, KEYS, START, Step, create, item, passed, steps, waiting_item};
use crate::keyspace::{
    Command, Event, EventKind, Holders, Key, KeyTtl, KeyType, Keyspace, PoolView, Refusal, Reply, Shown, SlotGrant,
    SlotOutcome, SlotView, Standing,
};

/// `version` tells which entry applied an expiry: the model cannot know, and a lagging machine has another.
fn blind(reply: &mut Reply) {
    match reply {
        Reply::PoolView(view) => view.version = Position::default(),
        Reply::Batch(replies) => replies.iter_mut().for_each(blind),
        _ => {}
    }
}

/// What a reply tells of a grant.
fn grants_of(reply: &mut Reply) -> Vec<&mut SlotGrant> {
    match reply {
        Reply::Slot(slot) => match &mut slot.outcome {
            SlotOutcome::Granted(grant) | SlotOutcome::Renewed(grant) => vec![grant],
            SlotOutcome::Lost | SlotOutcome::Nothing => Vec::new(),
        },
        Reply::Batch(replies) => replies.iter_mut().flat_map(grants_of).collect(),
        _ => Vec::new(),
    }
}

/// What an event tells of a grant.
fn grant_of(event: &mut Event) -> Option<&mut SlotGrant> {
    match &mut Arc::make_mut(event.slot.as_mut()?.answer.as_mut()?).outcome {
        SlotOutcome::Granted(grant) => Some(grant),
        _ => None,
    }
}

/// In order for each slot, and for each waiter.
fn by_slot(mut events: Vec<Event>) -> Vec<Event> {
    events.sort_by_key(|event| (event.key.clone(), event.slot.as_ref().map(|slot| slot.id), event.attach));
    events
}

/// The machines and their model after the same entries.
struct Run {
    model: PoolModel,
    prompt: Keyspace,
    restarted: Keyspace,
    lagging: Keyspace,
    at: Moment,
    told: Vec<Event>,
    told_late: Vec<Event>,
    /// Nobody waits, and so the lagging machine answers as the others.
    lag_is_alike: bool,
    /// What was met, and how often.
    met: BTreeMap<String, usize>,
}

impl Run {
    fn new(waiters_max: Option<(usize, usize)>) -> Self {
        let mut run = Self {
            model: PoolModel::default(),
            prompt: Keyspace::default(),
            restarted: Keyspace::default(),
            lagging: Keyspace::default(),
            at: Moment { stamp: Stamp(START), ..Moment::default() },
            told: Vec::new(),
            told_late: Vec::new(),
            lag_is_alike: waiters_max.is_none(),
            met: BTreeMap::new(),
        };
        run.model.max = waiters_max.unwrap_or(run.model.max);
        (run.prompt, run.restarted) = (run.limited(run.prompt.clone()), run.limited(run.restarted.clone()));
        run
    }

    fn limited(&self, keyspace: Keyspace) -> Keyspace {
        let (queue_max, waiters_max) = self.model.max;
        keyspace.with_waiters_max(queue_max, waiters_max)
    }

    fn restart(&mut self) {
        let bytes = saved(&self.restarted);
        self.restarted = self.limited(Keyspace::load(&mut bytes.as_slice()).unwrap());
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
                self.accept_floors(grants_of(&mut reply), grants_of(&mut wanted));
                assert_eq!(reply, wanted, "{command:?}");
                if self.lag_is_alike {
                    assert_eq!(late, wanted, "lagging, {command:?}");
                }
                self.meet(&reply);
            }
        }
        assert_eq!(again, events);
        let (mut told, mut expected) = (by_slot(events.clone()), by_slot(expected));
        self.accept_floors(told.iter_mut().filter_map(grant_of), expected.iter_mut().filter_map(grant_of));
        assert_eq!(told, expected);
        for event in &events {
            let reason = event.reason.map(|reason| format!(" {reason:?}")).unwrap_or_default();
            *self.met.entry(format!("event {:?}{reason}", event.kind)).or_default() += 1;
        }
        self.told.extend(events);
        self.after();
    }

    /// A floor may be told somewhat too high, and is never too low: see [`PoolModel::floor_at_most`].
    fn accept_floors<'a>(
        &self,
        got: impl IntoIterator<Item = &'a mut SlotGrant>,
        wanted: impl IntoIterator<Item = &'a mut SlotGrant>,
    ) {
        for (got, wanted) in got.into_iter().zip(wanted) {
            if let (Some(told), Some(exact)) = (got.floor_unix_ms, wanted.floor_unix_ms)
                && got.fence == wanted.fence
                && told != exact
            {
                assert!(
                    (exact..=self.model.floor_at_most(got.fence, self.at.stamp.0)).contains(&told),
                    "{told} {exact}"
                );
                wanted.floor_unix_ms = got.floor_unix_ms;
            }
        }
    }

    /// What holds after every entry.
    fn after(&self) {
        assert_eq!(self.prompt.grants(), self.model.live(self.at.stamp.0));
        assert_eq!(self.prompt.longest_ttl_ms(), self.model.longest_ttl_ms);
        assert_eq!(saved(&self.restarted), saved(&self.prompt));
        assert!(self.prompt.wake().is_none_or(|wake| wake > self.at.stamp), "all timers that are due have fired");
        assert_eq!(self.prompt.waiters(), self.model.waiters());
        assert_eq!(self.prompt.edges().collect::<Vec<_>>(), self.model.edges());
        for (key, used) in self.prompt.pools() {
            let view = self.model.get(key, self.at.stamp.0).unwrap();
            assert_eq!((used.held, used.size), (view.held, view.options.size), "{key}");
        }
    }

    fn meet(&mut self, reply: &Reply) {
        let name = match reply {
            Reply::Batch(replies) => return replies.iter().for_each(|reply| self.meet(reply)),
            Reply::Slot(slot) => {
                let outcome = match slot.outcome {
                    SlotOutcome::Granted(_) if slot.yours => "yours",
                    SlotOutcome::Granted(_) if slot.prior.is_some_and(|prior| prior.fence.is_some()) => "took over",
                    SlotOutcome::Granted(_) => "granted",
                    SlotOutcome::Renewed(_) => "renewed",
                    SlotOutcome::Lost => "lost",
                    SlotOutcome::Nothing => "nothing",
                };
                if slot.grant().is_some_and(|grant| grant.floor_unix_ms.is_some()) {
                    *self.met.entry("floor".to_owned()).or_default() += 1;
                }
                if slot.ttl_raised {
                    *self.met.entry("ttl raised".to_owned()).or_default() += 1;
                }
                slot.reason.map_or(outcome.to_owned(), |reason| format!("{outcome} {reason:?}"))
            }
            Reply::SlotQueued(_) => "queued".to_owned(),
            Reply::Refused(refusal) => format!("{refusal:?}"),
            _ => return,
        };
        *self.met.entry(name).or_default() += 1;
    }

    /// All reads of one key and a scan, on the prompt and the lagging machine.
    fn read(&mut self, step: &Step) {
        let at = ReadAt { applied: self.at.stamp, now: self.at.stamp.plus_ms(step.ahead_ms) };
        let (read, now) = (&step.read, at.now.0);
        let key = &*read.key;
        let changes = self.model.changes(key, at.applied.0, now);
        let view = self.model.get(key, now);
        let ttl = match &view {
            None => KeyTtl::NoKey,
            Some(view) => view.key_ttl_ms.map_or(KeyTtl::Endless, KeyTtl::Remaining),
        };
        let standing = |(op, slot)| Standing { op, place: None, slot };
        let any = self.model.held(key, None, now).map(standing);
        let mine = match self.model.waits(key, Some(read.token), now) {
            Some(Reply::Queued { op, place }) => Ok(Standing { op, place: Some(place), slot: None }),
            _ => self.model.held(key, Some(read.token), now).map(standing),
        };
        let check = self.model.check(key, read.fence, now).map(standing);
        let holders = self.model.holders(key, &read.which, now);
        for machine in [&self.prompt, &self.lagging] {
            if std::ptr::eq(machine, &self.lagging) && !self.lag_is_alike {
                continue;
            }
            let got = machine.get(key, at);
            if changes {
                assert_eq!(got, Err(NeedsTick), "{:?} {:?}", self.model.get(key, at.applied.0), view);
                assert_eq!(machine.exists(key, at), Err(NeedsTick));
                assert_eq!(machine.holders(key, &read.which, at), Err(NeedsTick));
                continue;
            }
            assert_eq!(machine.held(key, None, at), Ok(any.clone()));
            assert_eq!(machine.held(key, Some(read.token), at), Ok(mine.clone()));
            assert_eq!(machine.check(key, read.fence, at), Ok(check.clone()));
            assert_eq!(all_holders(machine, key, &read.which, at), holders);
            assert_eq!(machine.key_ttl(key, at), Ok(ttl));
            assert_eq!(machine.exists(key, at), Ok(view.is_some()));
            assert_eq!(machine.key_type(key, at), Ok(view.as_ref().map(|_| KeyType::Pool)));
            check_view(got.unwrap().and_then(Shown::pool), view.clone(), self.at.position);
        }
        self.scan();
    }

    /// All keys, in order, as GET shows them.
    fn scan(&self) {
        let at = ReadAt { applied: self.at.stamp, now: self.at.stamp };
        let page = self.prompt.scan("", None, 10, at).unwrap();
        let names: Vec<_> = page.views.iter().map(|view| Key::clone(view.key())).collect();
        for view in page.views {
            assert_eq!(self.prompt.get(&Key::clone(view.key()), at), Ok(Some(view)));
        }
        let exist = |key: &&str| self.model.get(key, at.now.0).is_some();
        assert_eq!(names, KEYS.iter().filter(|key| exist(key)).map(|key| Arc::from(*key)).collect::<Vec<Key>>());
    }

    /// Fires what is left, then compares what both machines told.
    fn finish(mut self) -> BTreeMap<String, usize> {
        let mut timers = 0;
        while self.lagging.wake().is_some_and(|wake| wake <= self.at.stamp) {
            self.lagging.advance_up_to(1, &self.at, &mut self.told_late);
            timers += 1;
            assert!(timers <= 1_000, "timers end");
        }
        let granted: Vec<_> = self.told.iter().filter(|e| e.kind == EventKind::Granted).map(|e| e.fence).collect();
        assert!(granted.iter().zip(1..).all(|(fence, wanted)| *fence == Some(wanted)), "fences grow by one");
        if self.lag_is_alike {
            assert_eq!(by_slot(self.told_late), by_slot(self.told));
        }
        self.met
    }
}

/// The pages of HOLDERS, put together.
fn all_holders(machine: &Keyspace, key: &str, which: &Holders, at: ReadAt) -> Result<Vec<SlotView>, Refusal> {
    let (mut which, mut slots) = (which.clone(), Vec::new());
    loop {
        let page = machine.holders(key, &which, at).unwrap()?;
        assert!(page.slots.len() <= which.limit);
        slots.extend(page.slots);
        if page.cursor.is_none() {
            return Ok(slots);
        }
        assert!(which.id.is_none() && page.cursor > which.cursor);
        which.cursor = page.cursor;
    }
}

fn check_view(got: Option<PoolView>, wanted: Option<PoolView>, last: Position) {
    let (Some(got), Some(wanted)) = (&got, &wanted) else {
        assert_eq!(got, wanted);
        return;
    };
    assert!(got.version <= last && wanted.version <= last, "{} {last}", got.version);
    assert_eq!(PoolView { version: last, ..got.clone() }, PoolView { version: last, ..wanted.clone() });
}

fn agree(mut run: Run, first: Command, steps: &[Step]) -> BTreeMap<String, usize> {
    run.prompt.apply(&run.at, first.clone(), &mut run.told);
    run.restarted.apply(&run.at, first.clone(), &mut Vec::new());
    run.lagging.apply(&run.at, first.clone(), &mut run.told_late);
    run.model.apply(&run.at, &first, &mut Vec::new());
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

/// `TENURE_POOL_CASES=20000` for a long run.
fn cases() -> u32 {
    std::env::var("TENURE_POOL_CASES").map_or(400, |cases| cases.parse().unwrap())
}

/// Cases that are the same each time.
const SAME: u32 = 1_000;

/// Runs cases, and holds the mix of commands to what has to be met. It is those that are the same each time which have to
/// meet it, so that it is no matter of luck.
fn law(cases: u32, item: BoxedStrategy<Command>, waits: bool, wanted: &[&str]) {
    let all: RefCell<BTreeMap<String, usize>> = RefCell::default();
    let first = create(Just(Arc::from(KEYS[0])));
    let runs = (first, prop::collection::vec(steps(passed(), item), 1..60), prop::bool::weighted(0.2));
    let config = Config { cases, source_file: Some(file!()), ..Config::default() };
    let law = |(first, steps, narrow): (Command, Vec<Step>, bool)| {
        let waiters_max = waits.then_some(if narrow { (2, 3) } else { (usize::MAX, usize::MAX) });
        for (what, times) in agree(Run::new(waiters_max), first, &steps) {
            *all.borrow_mut().entry(what).or_default() += times;
        }
        Ok(())
    };
    let same = TestRng::deterministic_rng(RngAlgorithm::default());
    let run = |mut runner: TestRunner| runner.run(&runs, law).unwrap_or_else(|error| panic!("{error}"));
    run(TestRunner::new_with_rng(Config { cases: SAME, ..config.clone() }, same));
    for what in wanted {
        assert!(all.borrow().contains_key(*what), "{what} was not met: {all:#?}");
    }
    run(TestRunner::new(config));
    println!("{:#?}", all.into_inner());
}

#[test]
fn pools_answer_as_the_model() {
    let wanted = [
        "granted",
        "yours",
        "took over",
        "renewed",
        "ttl raised",
        "floor",
        "nothing Exhausted",
        "nothing IdentityInUse",
        "nothing IdentityConflict",
        "nothing TakenOver",
        "nothing TokenUsed",
        "nothing TtlNotPositive",
        "nothing KeyExpired",
        "nothing Broken",
        "lost Expired",
        "lost Broken",
        "lost TakenOver",
        "lost NotHeld",
        "event Released TakenOver",
        "event Deleted",
        "IdMissing",
    ];
    law(cases(), item().boxed(), false, &wanted);
}

#[test]
fn pools_are_waited_for_as_the_model_has_it() {
    let wanted = [
        "queued",
        "nothing QueueFull",
        "event Waiting",
        "event WaitEnded Superseded",
        "event WaitEnded WaitTimeout",
        "event WaitEnded CancelledWait",
        "event WaitEnded KeyExpired",
        "event WaitEnded Deleted",
        "event Released Undelivered",
        "event Detached",
    ];
    law(cases(), waiting_item().boxed(), true, &wanted);
}
