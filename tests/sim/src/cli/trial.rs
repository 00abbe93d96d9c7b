//! A run on a thread of its own, with what may happen to it: it ends, panics, or does not end.
//!
//! Each run has a new thread, so that nothing which a run leaves in its thread, or leaves half done when it panics, meets
//! the next. Runs that do not end keep their thread: threads cannot be killed. So whoever meets one must stop soon.
//!
//! A panic is a violation also when somebody caught it on the way (the runtime may, at a task's edge): the hook sees it.

use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::Once;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use sim::judge::Violation;
use sim::plan::Plan;
use sim::run::{Options, Outcome};
use sim::runtime::take_trace;
use tenure_cluster::planted::Bug;

/// A law of the harness: no panic, ours or openraft's.
pub const NO_PANIC: &str = "NoPanic";
/// A law of the harness: a run comes to its end.
pub const ENDS: &str = "Ends";
/// A law of the harness: equal plans are equal runs.
pub const DETERMINISTIC: &str = "Deterministic";

/// A run takes seconds, and a minute in a debug build on a busy machine. One that takes so long does not end.
pub const RUN_MAX: Duration = Duration::from_secs(300);
/// Of one run; more tell nothing new.
const PANICS_MAX: usize = 5;
/// Debug builds poll deeply.
const STACK_BYTES: usize = 32 << 20;

/// How runs are run.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    /// The simulator.
    pub run: fn(&Plan, &Options) -> Outcome,
    /// What is put in on the run's thread.
    pub bug: Option<Bug>,
    /// A run that takes longer does not end.
    pub run_max: Duration,
}

/// A run that ended.
#[derive(Clone, Debug, Default)]
pub struct Tried {
    /// With panics among its violations.
    pub outcome: Outcome,
    /// Processor time of its thread.
    pub cpu: Duration,
}

impl Tried {
    /// What is told of a run that did not end.
    pub fn endless(run_max: Duration) -> Self {
        let detail = format!("no end after {} s", run_max.as_secs());
        Self { outcome: broken(vec![Violation { law: ENDS.to_owned(), detail }]), cpu: Duration::ZERO }
    }

    /// The laws that were broken, each once.
    pub fn laws(&self) -> Vec<&str> {
        let mut laws: Vec<_> = self.outcome.violations.iter().map(|violation| violation.law.as_str()).collect();
        laws.sort_unstable();
        laws.dedup();
        laws
    }
}

impl Trial {
    /// The simulator as it is.
    pub const fn new() -> Self {
        Self { run: sim::run::run, bug: None, run_max: RUN_MAX }
    }

    /// Runs `plan` on a new thread, and calls `then` there.
    #[expect(clippy::expect_used, reason = "a machine without room for a thread runs nothing")]
    pub fn start(self, plan: Plan, options: Options, then: impl FnOnce(Tried) + Send + 'static) {
        let thread = thread::Builder::new().name(format!("seed {:#x}", plan.seed)).stack_size(STACK_BYTES);
        let started = thread.spawn(move || then(self.here(&plan, &options)));
        started.expect("a thread for a run");
    }

    /// Runs `plan` on a new thread, waiting for its end.
    pub fn alone(self, plan: &Plan, options: &Options) -> Tried {
        let (done, tried): (_, Receiver<Tried>) = sync_channel(1);
        // Nobody may wait any more.
        self.start(plan.clone(), options.clone(), move |tried| drop(done.send(tried)));
        match tried.recv_timeout(self.run_max) {
            Ok(tried) => tried,
            Err(RecvTimeoutError::Timeout) => Tried::endless(self.run_max),
            Err(RecvTimeoutError::Disconnected) => unreachable!("a run's panics are caught"),
        }
    }

    fn here(self, plan: &Plan, options: &Options) -> Tried {
        plant(self.bug);
        let before = thread_cpu();
        watch_panics(options.trace);
        let ended = panic::catch_unwind(AssertUnwindSafe(|| (self.run)(plan, options)));
        let panics = take_panics();
        // The simulator keeps the trace of a run that panicked.
        let mut outcome = ended.unwrap_or_else(|_| Outcome { trace: take_trace(), ..Outcome::default() });
        let panics = panics.into_iter().map(|detail| Violation { law: NO_PANIC.to_owned(), detail });
        outcome.violations.splice(0..0, panics);
        Tried { outcome, cpu: thread_cpu().saturating_sub(before) }
    }
}

#[cfg(feature = "planted")]
use tenure_cluster::planted::plant;

/// Nothing can be put in; `--planted` says so.
#[cfg(not(feature = "planted"))]
fn plant(_bug: Option<Bug>) {}

fn broken(violations: Vec<Violation>) -> Outcome {
    Outcome { violations, ..Outcome::default() }
}

/// Processor time that this thread has used.
fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// What panicked on a thread that runs a plan.
struct Watch {
    panics: Vec<String>,
    aloud: bool,
}

thread_local! {
    static WATCH: RefCell<Option<Watch>> = const { RefCell::new(None) };
}

/// From now on panics of this thread are noted; printed only if `aloud`.
fn watch_panics(aloud: bool) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !note(info) {
                print(info);
            }
        }));
    });
    WATCH.set(Some(Watch { panics: Vec::new(), aloud }));
}

fn take_panics() -> Vec<String> {
    WATCH.take().map(|watch| watch.panics).unwrap_or_default()
}

/// Notes a panic of a watched thread; whether it was, and silently.
fn note(info: &PanicHookInfo<'_>) -> bool {
    let noted = WATCH.try_with(|watch| {
        let mut watch = watch.try_borrow_mut().ok()?;
        let watch = watch.as_mut()?;
        if watch.panics.len() < PANICS_MAX {
            let message = info.payload_as_str().unwrap_or("a panic without words").replace('\n', " | ");
            let place = info.location().map_or_else(String::new, |at| format!(" at {}:{}", at.file(), at.line()));
            watch.panics.push(message + &place);
        }
        Some(!watch.aloud)
    });
    noted.ok().flatten().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(run: fn(&Plan, &Options) -> Outcome) -> Trial {
        Trial { run, bug: None, run_max: Duration::from_secs(60) }
    }

    fn alone(run: fn(&Plan, &Options) -> Outcome) -> Tried {
        trial(run).alone(&Plan::from_seed(1), &Options::default())
    }

    #[test]
    fn a_panic_is_a_violation() {
        let tried = alone(|_, _| panic!("a leader\nis {}", "mad"));
        let violation = &tried.outcome.violations[0];
        assert_eq!(violation.law, NO_PANIC);
        assert!(violation.detail.starts_with("a leader | is mad at "), "{}", violation.detail);
        assert!(violation.detail.contains("trial.rs:"), "{}", violation.detail);
    }

    #[test]
    fn a_panic_that_was_caught_is_one_too() {
        let tried = alone(|_, _| {
            drop(panic::catch_unwind(|| panic!("in a task")));
            let stale = Violation { law: "NeverStale".to_owned(), detail: String::new() };
            Outcome { trace_hash: 7, violations: vec![stale], ..Outcome::default() }
        });
        assert_eq!((tried.outcome.trace_hash, tried.laws()), (7, vec!["NeverStale", NO_PANIC]));
    }

    #[test]
    fn panics_of_one_run_are_not_the_next_ones() {
        assert_eq!(alone(|_, _| panic!("once")).laws(), [NO_PANIC]);
        assert_eq!(alone(|_, _| Outcome::default()).laws(), [""; 0]);
    }

    #[test]
    fn a_run_without_end_is_given_up() {
        let trial = Trial {
            run_max: Duration::from_millis(50),
            ..trial(|_, _| {
                loop {
                    thread::park()
                }
            })
        };
        let tried = trial.alone(&Plan::from_seed(1), &Options::default());
        assert_eq!(tried.laws(), [ENDS]);
    }

    #[test]
    fn work_costs_processor_time() {
        let tried =
            alone(|_, _| Outcome { trace_hash: (0..3_000_000_u64).fold(0, |a, b| a ^ b), ..Outcome::default() });
        assert!(tried.cpu > Duration::ZERO && tried.cpu < Duration::from_secs(30), "{:?}", tried.cpu);
    }
}
