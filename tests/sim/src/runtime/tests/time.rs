//! Clocks, timers, rates, pauses.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use openraft::{AsyncRuntime, Instant as _};

use super::super::{
    C, Instant, Rt, clock_ns, kill, now_ns, pause, pauses, resume, set_rate, simulate, sleep, spawn_on, tasks,
};
use openraft::type_config::TypeConfigExt;

const SECOND: Duration = Duration::from_secs(1);
const SECOND_NS: u64 = 1_000_000_000;

/// What was noted, with the true time.
type Notes = Arc<Mutex<Vec<(u32, u64)>>>;

fn note(notes: &Notes, what: u32) {
    notes.lock().unwrap().push((what, now_ns()));
}

#[test]
fn timers_fire_in_order_and_to_the_nanosecond() {
    for seed in 0..20 {
        let fired = simulate(seed, async {
            let notes = Notes::default();
            for number in [5, 3, 9, 1, 7] {
                let notes = notes.clone();
                spawn_on(u64::from(number % 4), async move {
                    C::sleep(Duration::from_nanos(u64::from(number) * 1_000 + 1)).await;
                    note(&notes, number);
                });
            }
            sleep(SECOND).await;
            notes.lock().unwrap().clone()
        });
        assert_eq!(fired, [(1, 1_001), (3, 3_001), (5, 5_001), (7, 7_001), (9, 9_001)]);
    }
}

#[test]
fn a_clock_runs_at_its_rate_and_timers_go_by_it() {
    let woken = simulate(1, async {
        let notes = Notes::default();
        for (host, rate_ppm) in [(1, 1_010_000), (2, 990_000), (3, 1_000_000)] {
            set_rate(host, rate_ppm);
            let notes = notes.clone();
            spawn_on(host, async move {
                let before = Instant::now();
                Rt::sleep(SECOND).await;
                let passed = before.elapsed();
                assert!(passed >= SECOND && passed < SECOND + Duration::from_nanos(2), "{passed:?}");
                note(&notes, u32::try_from(host).unwrap());
            });
        }
        sleep(SECOND * 2).await;
        notes.lock().unwrap().clone()
    });
    assert_eq!(woken, [(1, 990_099_010), (3, SECOND_NS), (2, 1_010_101_011)]);
}

#[test]
fn a_timer_holds_when_the_rate_changes_meanwhile() {
    let woken = simulate(1, async {
        let notes = Notes::default();
        let theirs = notes.clone();
        spawn_on(1, async move {
            assert!(Rt::timeout(SECOND * 2, std::future::pending::<()>()).await.is_err());
            note(&theirs, 1);
        });
        sleep(SECOND).await;
        // One second is left: at half the speed it takes two.
        set_rate(1, 500_000);
        sleep(SECOND * 5).await;
        // True time went on by the world's clock, the host's by 1 + 2.5 s.
        assert_eq!(now_ns(), 6 * SECOND_NS);
        notes.lock().unwrap().clone()
    });
    assert_eq!(woken, [(1, 3 * SECOND_NS)]);
}

#[test]
fn clocks_are_far_apart_and_true_by_default() {
    simulate(1, async {
        let starts: Vec<u64> = (0..8).map(clock_ns).collect();
        for (at, one) in starts.iter().enumerate() {
            assert!(*one > 86_400 * SECOND_NS, "subtracting a day stays above zero");
            for other in &starts[..at] {
                assert!(one.abs_diff(*other) > 365 * 86_400 * SECOND_NS);
            }
        }
        sleep(SECOND * 3).await;
        for (host, start) in (0..8).zip(starts) {
            assert_eq!(clock_ns(host), start + 3 * SECOND_NS);
        }
        let earliest = Instant::now() - Duration::MAX;
        assert_eq!(Instant::now() - earliest, Duration::from_nanos(clock_ns(0)), "no underflow");
        assert!(Instant::now() + Duration::MAX > Instant::now(), "no overflow");
        let mut endless = Box::pin(Rt::sleep(Duration::MAX));
        assert!(futures_util::poll!(endless.as_mut()).is_pending());
    });
}

#[test]
fn what_is_ready_when_the_time_is_up_wins() {
    simulate(1, async {
        let both = Rt::timeout(SECOND, sleep(SECOND)).await;
        assert_eq!(both, Ok(()));
        assert!(Rt::timeout(SECOND, sleep(SECOND * 2)).await.is_err());
        assert_eq!(Rt::timeout_at(Instant::now(), async { 4 }).await, Ok(4));
    });
}

#[test]
fn a_paused_host_does_nothing_and_catches_up() {
    for seed in 0..20 {
        let done = simulate(seed, async {
            let notes = Notes::default();
            let (sender, mut receiver) = tokio::sync::mpsc::channel::<()>(1);
            let timer = notes.clone();
            spawn_on(1, async move {
                let started = Instant::now();
                Rt::sleep(SECOND * 2).await;
                note(&timer, 1);
                assert_eq!(started.elapsed(), SECOND * 5, "its clock went on");
                Rt::sleep(SECOND).await;
                note(&timer, 2);
            });
            let message = notes.clone();
            spawn_on(1, async move {
                receiver.recv().await.unwrap();
                note(&message, 3);
            });
            sleep(SECOND).await;
            pause(1);
            sender.send(()).await.unwrap();
            sleep(SECOND * 4).await;
            assert_eq!((notes.lock().unwrap().len(), pauses()), (0, 0), "nothing while it is paused");
            resume(1);
            resume(1);
            sleep(SECOND * 2).await;
            assert_eq!(pauses(), 1);
            pause(1);
            resume(1);
            assert_eq!(pauses(), 1, "a pause that held nothing up is not counted");
            let mut done = notes.lock().unwrap().clone();
            done.sort_unstable();
            done
        });
        assert_eq!(done, [(1, 5 * SECOND_NS), (2, 6 * SECOND_NS), (3, 5 * SECOND_NS)]);
    }
}

#[test]
fn a_host_that_was_killed_while_paused_starts_anew() {
    let done = simulate(1, async {
        let notes = Notes::default();
        for life in 0..2 {
            let notes = notes.clone();
            spawn_on(1, async move {
                Rt::sleep(SECOND).await;
                note(&notes, life);
            });
            if life == 0 {
                pause(1);
                sleep(SECOND * 2).await;
                kill(1);
            }
        }
        sleep(SECOND * 2).await;
        assert_eq!(tasks(1), 0);
        notes.lock().unwrap().clone()
    });
    assert_eq!(done, [(1, 3 * SECOND_NS)]);
}
