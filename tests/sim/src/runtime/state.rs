//! All of a simulation but the futures that are being polled.
//!
//! Ready tasks stand in an order that is theirs alone: a hash of the seed, the task and its polls so far. A task that
//! becomes ready is put among those of this round unless it was polled (or born) in it; then it waits for the next.
//! Nothing here calls a future, a waker or a drop of either: what is to be dropped or woken is handed out.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::task::{Poll, Waker};

use super::Options;
use super::hosts::{Hosts, Place};
use super::run::waker;
use super::trace::{Trace, mix};

/// Polls while time stands still; more is a loop without end.
const POLLS_MAX: u64 = 200_000;
/// Tasks at one time.
const TASKS_MAX: usize = 1_000_000;

/// A task, never used again in its simulation.
pub(super) type TaskId = u64;

/// The future that `simulate` was given, which it keeps itself.
pub(super) const MAIN: TaskId = 0;

/// A started future.
pub(super) type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a poll needs: out of the state while it lasts.
pub(super) struct Body {
    /// None for [`MAIN`].
    pub(super) work: Option<Work>,
    pub(super) waker: Waker,
}

/// Whose a task is: a host in one of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) place: Place,
    life: u64,
}

/// Who runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Current {
    /// None between polls.
    task: Option<TaskId>,
    pub(super) owner: Owner,
}

/// Nobody, which is on the world.
const NOBODY: Current = Current { task: None, owner: Owner { place: 0, life: 0 } };

/// A task that gave way is put off so much more often: where it does so matters, and few do.
const GIVES_WAY: u64 = 16;

pub(super) struct Task {
    pub(super) owner: Owner,
    /// From the seed and the id.
    pub(super) salt: u64,
    pub(super) polls: u64,
    /// The round of its last poll, or of its birth.
    pub(super) round: u64,
    /// It stands among the ready, the parked or the stalled.
    pub(super) ready: bool,
    /// Until when it is put off.
    pub(super) stalled_ns: Option<u64>,
    /// It was put off before this poll and is not again.
    pub(super) excused: bool,
    /// It woke itself in its last poll: it gave way to others in the middle of something.
    pub(super) gave_way: bool,
    /// None while it is polled.
    pub(super) body: Option<Body>,
}

pub(super) struct State {
    /// Tells simulations apart.
    pub(super) run: u64,
    pub(super) seed: u64,
    pub(super) now_ns: u64,
    pub(super) polls_now: u64,
    pub(super) round: u64,
    pub(super) ready: BTreeSet<(u64, TaskId)>,
    pub(super) later: BTreeSet<(u64, TaskId)>,
    pub(super) stalled: BTreeSet<(u64, TaskId)>,
    pub(super) tasks: BTreeMap<TaskId, Task>,
    pub(super) next_task: TaskId,
    pub(super) next_timer: u64,
    pub(super) hosts: Hosts,
    pub(super) current: Current,
    /// Nothing is started any more.
    pub(super) ending: bool,
    pub(super) trace: Trace,
    /// Lent to whoever formats a line.
    pub(super) line: String,
    pub(super) stalls: u64,
    pub(super) pauses: u64,
}

impl State {
    pub(super) fn new(run: u64, seed: u64, options: Options) -> Self {
        let mut state = Self {
            run,
            seed,
            now_ns: 0,
            polls_now: 0,
            round: 0,
            ready: BTreeSet::new(),
            later: BTreeSet::new(),
            stalled: BTreeSet::new(),
            tasks: BTreeMap::new(),
            next_task: MAIN,
            next_timer: 0,
            hosts: Hosts::new(),
            current: NOBODY,
            ending: false,
            trace: Trace::new(seed, options),
            line: String::new(),
            stalls: 0,
            pauses: 0,
        };
        state.add(NOBODY.owner, None);
        state
    }

    /// The host with this number, in the life it has now.
    pub(super) fn owner(&mut self, number: u64) -> Owner {
        let place = self.hosts.place(number, self.now_ns);
        Owner { place, life: self.hosts.at(place).life }
    }

    /// Starts a task; gives it back when its owner is dead, or all ends.
    pub(super) fn start(&mut self, owner: Owner, work: Work) -> Option<Work> {
        if self.ending || self.hosts.at(owner.place).life != owner.life {
            return Some(work);
        }
        self.add(owner, Some(work));
        None
    }

    fn add(&mut self, owner: Owner, work: Option<Work>) {
        let id = self.next_task;
        self.next_task += 1;
        let body = Body { work, waker: waker(self.run, id) };
        let task = Task {
            owner,
            salt: mix(self.seed ^ mix(id)),
            polls: 0,
            round: self.round,
            ready: false,
            stalled_ns: None,
            excused: false,
            gave_way: false,
            body: Some(body),
        };
        self.tasks.insert(id, task);
        self.wake(id);
    }

    /// The task is to be polled. Nothing when there is no such task any more.
    pub(super) fn wake(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        task.gave_way |= self.current.task == Some(id);
        if !std::mem::replace(&mut task.ready, true) {
            self.queue(id);
        }
    }

    /// Puts a task among those to be polled, in this round if it can be.
    pub(super) fn queue(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(&id) else { return };
        let place = (mix(task.salt ^ task.polls), id);
        let queue = if task.round == self.round { &mut self.later } else { &mut self.ready };
        queue.insert(place);
    }

    /// Whom to poll now, and with what. None when nobody is ready.
    pub(super) fn next(&mut self) -> Option<(TaskId, Body)> {
        loop {
            let Some((_, id)) = self.ready.pop_first() else {
                if self.later.is_empty() {
                    return None;
                }
                std::mem::swap(&mut self.ready, &mut self.later);
                self.round += 1;
                continue;
            };
            if let Some(body) = self.begin(id) {
                return Some((id, body));
            }
        }
    }

    /// Begins the poll of a task, unless it is gone, paused or stalled.
    fn begin(&mut self, id: TaskId) -> Option<Body> {
        let count = self.tasks.len();
        let task = self.tasks.get_mut(&id)?;
        let host = self.hosts.at(task.owner.place);
        if host.paused {
            host.parked.insert(id);
            return None;
        }
        if let Some(stalling) = host.stalling
            && !std::mem::replace(&mut task.excused, false)
        {
            let chance = mix(task.salt ^ mix(!task.polls));
            let every = if task.gave_way { (stalling.every / GIVES_WAY).max(1) } else { stalling.every };
            if chance.is_multiple_of(every) {
                let until_ns = self.now_ns.saturating_add(1 + mix(chance) % stalling.longest_ns);
                task.stalled_ns = Some(until_ns);
                self.stalled.insert((until_ns, id));
                self.stalls += 1;
                return None;
            }
        }
        assert!(count <= TASKS_MAX, "{TASKS_MAX} tasks at {} ns: somebody starts without end", self.now_ns);
        task.ready = false;
        task.gave_way = false;
        task.polls += 1;
        task.round = self.round;
        self.current = Current { task: Some(id), owner: task.owner };
        self.trace.poll(self.now_ns, host.number, id);
        self.polls_now += 1;
        assert!(
            self.polls_now <= POLLS_MAX,
            "{POLLS_MAX} polls at {} ns without an end (seed {}): task {id} of host {} is one of those that go round",
            self.now_ns,
            self.seed,
            host.number
        );
        task.body.take()
    }

    /// Ends a poll. What is given back is to be dropped, then [`State::rest`] called.
    pub(super) fn end(&mut self, id: TaskId, body: Body, polled: Poll<()>) -> Option<Body> {
        if polled.is_ready() {
            self.tasks.remove(&id);
            return Some(body);
        }
        // Gone when it was killed meanwhile.
        let Some(task) = self.tasks.get_mut(&id) else { return Some(body) };
        task.body = Some(body);
        self.current = NOBODY;
        None
    }

    /// Nobody runs.
    pub(super) fn rest(&mut self) {
        self.current = NOBODY;
    }

    /// Whether the task that runs was not killed.
    pub(super) fn current_lives(&self) -> bool {
        self.current.task.is_some_and(|id| self.tasks.contains_key(&id))
    }

    /// Ends any task that is left, for good: the simulation is over.
    pub(super) fn end_one(&mut self) -> Option<(Current, Body)> {
        self.ending = true;
        loop {
            let (&id, _) = self.tasks.first_key_value()?;
            // The one that panicked has no body.
            if let Some(doomed) = self.remove(id) {
                return Some(doomed);
            }
        }
    }

    pub(super) fn remove(&mut self, id: TaskId) -> Option<(Current, Body)> {
        let task = self.tasks.remove(&id)?;
        if let Some(until_ns) = task.stalled_ns {
            self.stalled.remove(&(until_ns, id));
        }
        Some((Current { task: Some(id), owner: task.owner }, task.body?))
    }

    pub(super) fn tasks_of(&mut self, number: u64) -> usize {
        let owner = self.owner(number);
        self.tasks.values().filter(|task| task.owner == owner).count()
    }

    /// Where the task that runs is.
    pub(super) fn place(&self) -> Place {
        self.current.owner.place
    }

    pub(super) fn host_number(&mut self) -> u64 {
        let place = self.place();
        self.hosts.at(place).number
    }

    /// What the next random generator of the host that runs begins with.
    pub(super) fn draw(&mut self) -> u64 {
        let place = self.place();
        let host = self.hosts.at(place);
        host.draws += 1;
        mix(self.seed ^ mix(mix(host.number) ^ host.draws))
    }

    pub(super) fn note(&mut self, what: &str) {
        let number = self.host_number();
        self.trace.note(self.now_ns, number, what);
    }
}
