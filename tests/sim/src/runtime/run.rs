//! The loop, and the thread's place for the simulation that runs on it.
//!
//! The state is borrowed for a moment at a time, and never while code of a task runs. A panic of any task ends the
//! simulation: all that is left is dropped inside of it, in order, and the panic goes on out of [`simulate`].

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use super::Options;
use super::state::{Body, Current, State, TaskId};

thread_local! {
    static STATE: RefCell<Option<Box<State>>> = const { RefCell::new(None) };
    /// Lines of the last simulation that nobody took.
    static LEFT: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    /// Simulations of this thread so far; begins at a number of the thread's own.
    static RUNS: Cell<u64> = {
        let mut hasher = DefaultHasher::new();
        std::thread::current().id().hash(&mut hasher);
        Cell::new(hasher.finish())
    };
}

/// Does something to the thread's simulation; None when there is none.
pub(super) fn try_with<T>(action: impl FnOnce(&mut State) -> T) -> Option<T> {
    STATE.try_with(|state| state.borrow_mut().as_deref_mut().map(action)).ok().flatten()
}

/// Does something to the thread's simulation.
#[track_caller]
pub(super) fn with<T>(action: impl FnOnce(&mut State) -> T) -> T {
    try_with(action).expect("this is possible inside of a simulation only")
}

/// Wakes a task, if it and its simulation are still there.
struct TaskWaker {
    run: u64,
    id: TaskId,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Late wakes are harmless.
        let _ = try_with(|state| {
            if state.run == self.run {
                state.wake(self.id);
            }
        });
    }
}

pub(super) fn waker(run: u64, id: TaskId) -> Waker {
    Waker::from(Arc::new(TaskWaker { run, id }))
}

/// Runs `main` on host [`WORLD`](super::WORLD) to its end. All choices (order of ready tasks, `thread_rng`) follow from
/// `seed`. A panic of any task comes out of here.
pub fn simulate<T>(seed: u64, main: impl Future<Output = T>) -> T {
    simulate_with(seed, Options::default(), main)
}

/// As [`simulate`], with a trace.
pub fn simulate_with<T>(seed: u64, options: Options, main: impl Future<Output = T>) -> T {
    enter(seed, options);
    let outcome = catch_unwind(AssertUnwindSafe(|| run(pin!(main))));
    let ended = end_all();
    leave();
    match (outcome, ended) {
        (Ok(output), None) => output,
        (Err(panic), _) | (Ok(_), Some(panic)) => resume_unwind(panic),
    }
}

fn enter(seed: u64, options: Options) {
    let run = RUNS.get().wrapping_add(1);
    RUNS.set(run);
    STATE.with_borrow_mut(|state| {
        assert!(state.is_none(), "a simulation inside of a simulation");
        *state = Some(Box::new(State::new(run, seed, options)));
    });
    LEFT.take();
}

fn leave() {
    let state = STATE.take();
    if let Some(mut state) = state {
        LEFT.set(state.trace.take());
    }
}

pub(super) fn take_trace() -> Vec<String> {
    try_with(|state| state.trace.take()).unwrap_or_else(|| LEFT.take())
}

fn run<T>(mut main: Pin<&mut impl Future<Output = T>>) -> T {
    let mut due = Vec::new();
    loop {
        let Some((id, mut body)) = with(State::next) else {
            if !with(|state| state.advance(&mut due)) {
                let why = with(State::deadlock);
                panic!("{why}");
            }
            due.drain(..).for_each(Waker::wake);
            continue;
        };
        let polled = match &mut body.work {
            Some(work) => work.as_mut().poll(&mut Context::from_waker(&body.waker)),
            None => match main.as_mut().poll(&mut Context::from_waker(&body.waker)) {
                Poll::Ready(output) => return output,
                Poll::Pending => Poll::Pending,
            },
        };
        let done = with(|state| state.end(id, body, polled));
        if let Some(body) = done {
            drop(body);
            with(State::rest);
        }
    }
}

pub(super) fn kill(host: u64) {
    let before = with(|state| state.current);
    let doomed = with(|state| state.doom(host));
    for (current, body) in doomed {
        bury(current, body);
    }
    with(|state| state.current = before);
}

/// Drops a task on its own host.
fn bury(current: Current, body: Body) {
    with(|state| state.current = current);
    drop(body);
}

/// Drops all tasks that are left, and what they leave. Gives the first panic that came of it.
fn end_all() -> Option<Box<dyn Any + Send>> {
    let mut first = None;
    while let Some((current, body)) = with(State::end_one) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| bury(current, body))) {
            first.get_or_insert(panic);
        }
    }
    first
}
