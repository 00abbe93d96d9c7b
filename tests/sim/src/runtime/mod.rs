//! The simulated runtime: one thread, virtual time, tasks that belong to hosts.
//!
//! ```text
//! run: the loop   ->  state: what is ready, who it belongs to  ->  tasks: one future each
//!                       |- hosts: a clock and its timers, paused, stalled
//!                       `- trace: the hash of all that was decided, and the last lines
//! rt, instant, sleep, join: what openraft asks of a runtime, on top of it
//! ```
//!
//! Model: a host is a process. Its tasks are polled one at a time; time stands still while anything is ready and then
//! jumps to the next timer. Which ready task is polled next is a hash of the seed, the task and how often it was polled:
//! never the order in which tasks were woken, for `tokio::sync` wakes in an order that no seed decides. In one round
//! every ready task is polled at most once, so none starves.
//!
//! Invariants: equal seeds give equal runs, in any process and on any thread. True time and every host's clock never go
//! back. A killed host's tasks are never polled again. No code of a task (poll, drop, wake) runs while the state is
//! borrowed. Nothing outlives [`simulate`] but the lines that [`take_trace`] has not taken.
//!
//! Not promised: that a wake from another thread arrives (it is ignored), that computing takes time, or that a task
//! which loops inside one poll is found.

mod clock;
mod faults;
mod hosts;
mod instant;
mod join;
mod rt;
mod run;
mod sleep;
mod state;
#[cfg(test)]
mod tests;
mod time;
mod trace;

use std::fmt::{self, Write};
use std::time::Duration;

pub use instant::Instant;
pub use join::{JoinError, JoinHandle};
pub use rt::Rt;
pub use run::{simulate, simulate_with};
pub use sleep::{Elapsed, Sleep, Timeout};

use run::with;

/// Its type configuration.
pub type C = tenure_cluster::raft::TypeConfig<Rt>;

/// Host number of the world itself and of the clients: its clock is true, it is never killed or paused.
pub const WORLD: u64 = 0;

/// What to keep of a simulation's trace. Nothing, by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Keep so many last lines.
    pub trace_lines: usize,
    /// Print every line.
    pub trace_print: bool,
    /// Have a line for every poll too: where two runs part.
    pub trace_polls: bool,
}

/// Starts a task of `host`. Tasks that a task starts belong to its host.
pub fn spawn_on(host: u64, task: impl Future<Output = ()> + Send + 'static) {
    let owner = with(|state| state.owner(host));
    // What is refused is dropped here, where nothing is borrowed.
    drop(with(|state| state.start(owner, Box::pin(task))));
}

/// The host of the task that runs now.
pub fn host() -> u64 {
    with(|state| state.host_number())
}

/// Whether this thread is inside [`simulate`].
pub fn running() -> bool {
    run::try_with(|_| ()).is_some()
}

/// Ends all tasks of `host` at this instant: they are dropped, not run; if one of them calls this, it is dropped when
/// its poll returns. Tasks started from now on are a new life of the host, which is not paused.
pub fn kill(host: u64) {
    run::kill(host);
}

/// No task of `host` runs until [`resume`]; its clock goes on.
pub fn pause(host: u64) {
    with(|state| state.pause(host));
}

/// See [`pause`]. Timers that came due meanwhile fire now.
pub fn resume(host: u64) {
    with(|state| state.resume(host));
}

/// The task of `host` that would run next does not for so long, now and then: one in `every` polls, chosen by the seed;
/// 0 for never; more often where it gave way to others by itself. What a thread that lost its processor looks like.
/// Lasts over [`kill`].
pub fn stall(host: u64, every: u32, longest: Duration) {
    with(|state| state.stall(host, every, longest));
}

/// From now on the monotonic clock of `host` runs at `rate_ppm` / 1 000 000 of true time; it does not jump.
pub fn set_rate(host: u64, rate_ppm: u64) {
    with(|state| state.set_rate(host, rate_ppm));
}

/// Nanoseconds of true time since the simulation began.
pub fn now_ns() -> u64 {
    with(|state| state.now_ns)
}

/// What the monotonic clock of `host` shows.
pub fn clock_ns(host: u64) -> u64 {
    with(|state| state.clock_ns(host))
}

/// How many tasks `host` has.
pub fn tasks(host: u64) -> usize {
    with(|state| state.tasks_of(host))
}

/// Waits by true time.
pub async fn sleep(duration: Duration) {
    Sleep::of_world(duration).await;
}

/// A number that all scheduling decisions so far went into.
pub fn trace_hash() -> u64 {
    with(|state| state.trace.hash())
}

/// Adds `what` to the trace's hash, and to the trace when one is kept.
pub fn trace(what: impl FnOnce() -> String) {
    let what = what();
    with(|state| state.note(&what));
}

/// As [`trace()`], without a string of its own: `trace_line(format_args!("..."))`.
pub fn trace_line(what: fmt::Arguments<'_>) {
    // Formatting is foreign code, which may ask for the time: the buffer is lent out meanwhile.
    let mut line = with(|state| std::mem::take(&mut state.line));
    line.clear();
    let written = line.write_fmt(what);
    with(|state| {
        state.note(&line);
        state.line = line;
    });
    assert!(written.is_ok(), "what goes to the trace must be printable");
}

/// From now on keeps the last `lines` lines of the trace, and prints each when `print`.
pub fn keep_trace(lines: usize, print: bool) {
    with(|state| state.trace.keep(lines, print));
}

/// The lines kept since the last call; after [`simulate`] (even if it panicked) those of the last one on this thread.
pub fn take_trace() -> Vec<String> {
    run::take_trace()
}

/// How many polls [`stall`] put off.
pub fn stalls() -> u64 {
    with(|state| state.stalls)
}

/// How many pauses held something up that would have run.
pub fn pauses() -> u64 {
    with(|state| state.pauses)
}
