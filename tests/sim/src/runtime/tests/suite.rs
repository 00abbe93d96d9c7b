//! openraft's own suite for runtimes, and how a simulation begins and ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use openraft::rt::testing::Suite;
use openraft::{AsyncRuntime, Instant as _};
use rand::RngExt;

use super::super::{
    Instant, Options, Rt, host, kill, now_ns, running, simulate, simulate_with, sleep, spawn_on, take_trace, tasks,
    trace, trace_hash, trace_line,
};

/// The text of the panic that `action` ends with.
pub(super) fn panic_of(action: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(action)).expect_err("this must panic");
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast::<&str>().map(|text| (*text).to_owned()).expect("a text"),
    }
}

#[test]
fn openrafts_suite() {
    Suite::<Rt>::test_all();
}

#[test]
fn a_panic_of_any_task_ends_the_simulation() {
    let dropped = Arc::new(());
    let held = dropped.clone();
    let text = panic_of(|| {
        simulate(1, async move {
            spawn_on(2, async move {
                let _held = held;
                std::future::pending::<()>().await;
            });
            spawn_on(1, async {
                sleep(Duration::from_secs(5)).await;
                panic!("law {} is broken", 7);
            });
            std::future::pending::<()>().await;
        });
    });
    assert_eq!(text, "law 7 is broken");
    assert_eq!(Arc::strong_count(&dropped), 1, "all tasks are dropped");
    assert!(!running(), "the thread is free again");
    assert_eq!(simulate(1, async { 5 }), 5);
}

#[test]
fn a_panic_while_all_ends_is_not_swallowed() {
    struct Bad;
    impl Drop for Bad {
        fn drop(&mut self) {
            panic!("bad drop");
        }
    }
    let dropped = Arc::new(());
    let held = dropped.clone();
    let text = panic_of(|| {
        simulate(1, async move {
            spawn_on(1, async {
                let _bad = Bad;
                std::future::pending::<()>().await;
            });
            spawn_on(2, async move {
                let _held = held;
                std::future::pending::<()>().await;
            });
            sleep(Duration::from_secs(1)).await;
        });
    });
    assert_eq!(text, "bad drop");
    assert_eq!(Arc::strong_count(&dropped), 1, "the others are dropped all the same");
    assert!(!running());
}

#[test]
fn nested_is_refused_and_outside_is_nothing() {
    assert!(panic_of(|| simulate(1, async { simulate(2, async {}) })).contains("inside of a simulation"));
    assert!(panic_of(|| assert_eq!(now_ns(), 0)).contains("inside of a simulation only"));
}

#[test]
fn loops_and_deadlocks_are_told() {
    let text = panic_of(|| simulate(3, std::future::pending::<()>()));
    assert!(text.contains("deadlock at 0 ns (seed 3)") && text.contains("host 0: 1"), "{text}");
    let text = panic_of(|| {
        simulate(4, async {
            spawn_on(6, async {
                std::future::poll_fn::<(), _>(|context| {
                    context.waker().wake_by_ref();
                    std::task::Poll::Pending
                })
                .await;
            });
            sleep(Duration::from_secs(1)).await;
        });
    });
    assert!(text.contains("polls at 0 ns without an end (seed 4)") && text.contains("of host 6"), "{text}");
}

#[test]
fn everything_is_dropped_at_the_end() {
    /// Starts a task, asks for the time and kills when it is dropped, as real drops do.
    struct Busy(Arc<()>);
    impl Drop for Busy {
        fn drop(&mut self) {
            let held = self.0.clone();
            assert!(Instant::now() > Instant::now() - Duration::from_secs(1));
            assert_ne!(host(), 0, "dropped on its own host");
            drop(Rt::spawn(async move {
                let _held = held;
                std::future::pending::<()>().await;
            }));
            kill(3);
        }
    }
    let held = Arc::new(());
    for seed in 0..2_000 {
        let late = simulate(seed, async {
            for host in 1..4 {
                let busy = Busy(held.clone());
                spawn_on(host, async move {
                    let _busy = busy;
                    let (_sender, mut receiver) = tokio::sync::watch::channel(0);
                    let _ = Rt::timeout(Duration::from_secs(100), receiver.changed()).await;
                    std::future::pending::<()>().await;
                });
            }
            Rt::sleep(Duration::from_millis(seed)).await;
            std::future::poll_fn(|context| std::task::Poll::Ready(context.waker().clone())).await
        });
        assert_eq!(Arc::strong_count(&held), 1);
        assert!(!running());
        Waker::wake(late);
    }
}

#[test]
fn what_outlives_a_simulation_touches_no_other() {
    let (mut timer, handle) = simulate(1, async {
        let mut timer = Box::pin(Rt::sleep(Duration::from_secs(9)));
        assert!(futures_util::poll!(timer.as_mut()).is_pending());
        (timer, Rt::spawn(std::future::pending::<()>()))
    });
    assert!(simulate(1, handle).is_err(), "the task is gone");
    let text = panic_of(|| simulate(1, async { (&mut timer).await }));
    assert_eq!(text, "a timer of another simulation");
    let slept = simulate(1, async {
        let mut own = Box::pin(Rt::sleep(Duration::from_secs(9)));
        assert!(futures_util::poll!(own.as_mut()).is_pending());
        drop(timer);
        own.await;
        now_ns()
    });
    assert_eq!(slept, 9_000_000_000, "the like timer of another simulation was not taken back");
}

#[test]
fn a_draw_on_one_host_changes_nothing_on_another() {
    let draws = |seed: u64, extra: u32| {
        simulate(seed, async move {
            let (sender, receiver) = tokio::sync::oneshot::channel();
            spawn_on(1, async move {
                for _ in 0..extra {
                    Rt::thread_rng();
                }
            });
            spawn_on(2, async move {
                sleep(Duration::from_secs(1)).await;
                let drawn: Vec<u64> = (0..4).map(|_| Rt::thread_rng().random()).collect();
                sender.send(drawn).unwrap();
            });
            receiver.await.unwrap()
        })
    };
    assert_eq!(draws(1, 0), draws(1, 3));
    assert_ne!(draws(1, 0), draws(2, 0));
}

#[test]
fn the_last_lines_are_kept() {
    let options = Options { trace_lines: 2, ..Options::default() };
    let hash = |what: &'static str, options| {
        simulate_with(1, options, async move {
            trace(|| what.to_owned());
            sleep(Duration::from_micros(1_500_001)).await;
            trace_line(format_args!("at {}", now_ns()));
            spawn_on(3, async { trace(|| "here".to_owned()) });
            sleep(Duration::from_secs(1)).await;
            assert_eq!(tasks(3), 0);
            trace_hash()
        })
    };
    let first = hash("one", options);
    assert_eq!(take_trace(), ["   1.500001 host 0: at 1500001000", "   1.500001 host 3: here"]);
    assert_eq!(take_trace(), [""; 0]);
    assert_eq!(first, hash("one", Options::default()), "what is kept decides nothing");
    assert_ne!(first, hash("two", options), "what is said goes into the hash");
    let text = panic_of(|| {
        simulate_with(1, options, async {
            trace(|| "last words".to_owned());
            panic!("end")
        })
    });
    assert_eq!((text.as_str(), take_trace().len()), ("end", 1), "the lines before a panic are there");
}

#[test]
fn blocking_work_is_refused() {
    let refused = simulate(1, async { Rt::spawn_blocking(|| 1).await.unwrap_err().kind() });
    assert_eq!(refused, std::io::ErrorKind::Unsupported);
}
