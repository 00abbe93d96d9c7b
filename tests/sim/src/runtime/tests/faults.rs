//! Killed and stalled hosts.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use openraft::{AsyncRuntime, Instant as _};

use super::super::{Instant, Rt, host, kill, now_ns, simulate, sleep, spawn_on, stall, stalls, tasks, trace_hash};

const SECOND: Duration = Duration::from_secs(1);

/// Says who was dropped, and starts a task as it is.
struct Last {
    who: u64,
    heard: Arc<Mutex<Vec<(u64, u64)>>>,
}

impl Drop for Last {
    fn drop(&mut self) {
        self.heard.lock().unwrap().push((self.who, host()));
        let heard = self.heard.clone();
        drop(Rt::spawn(async move { heard.lock().unwrap().push((99, host())) }));
        drop(Rt::sleep(SECOND));
        assert!(Instant::now() > Instant::now() - SECOND);
    }
}

#[test]
fn killed_tasks_are_dropped_at_once_on_their_host_and_start_nothing() {
    for seed in 0..50 {
        simulate(seed, async {
            let heard = Arc::new(Mutex::new(Vec::new()));
            let (sender, receiver) = tokio::sync::watch::channel(0_u32);
            for who in 0..4 {
                let last = Last { who, heard: heard.clone() };
                let mut receiver = receiver.clone();
                spawn_on(1 + who / 3, async move {
                    let _last = last;
                    drop(Rt::spawn(std::future::pending::<()>()));
                    while receiver.changed().await.is_ok() {}
                });
            }
            sleep(SECOND).await;
            // They are ready when they are killed, and yet not polled.
            sender.send_replace(1);
            assert_eq!((tasks(1), tasks(2)), (6, 2));
            kill(1);
            assert_eq!(*heard.lock().unwrap(), [(0, 1), (1, 1), (2, 1)], "in order, on their host, no other");
            assert_eq!((tasks(1), tasks(2), host()), (0, 2, 0));
            sender.send_replace(2);
            sleep(SECOND).await;
            assert_eq!(heard.lock().unwrap().len(), 3, "what they started when they were dropped is dead, too");
            kill(2);
            kill(77);
        });
    }
}

#[test]
fn who_kills_its_own_host_ends_at_the_end_of_its_poll() {
    for seed in 0..50 {
        simulate(seed, async {
            let heard = Arc::new(Mutex::new(Vec::new()));
            let (sender, receiver) = tokio::sync::oneshot::channel();
            let other = Last { who: 2, heard: heard.clone() };
            let own = Last { who: 1, heard: heard.clone() };
            let seen = heard.clone();
            spawn_on(1, async move {
                let handle = Rt::spawn(async move {
                    let _own = own;
                    Rt::sleep(SECOND).await;
                    kill(1);
                    assert_eq!(*seen.lock().unwrap(), [(2, 1)], "the others at once");
                    drop(Rt::spawn(async { panic!("the dead start nothing") }));
                    spawn_on(1, async move {
                        let _ = sender.send(now_ns());
                    });
                    Rt::sleep(SECOND).await;
                    panic!("polled after it was killed");
                });
                let _other = other;
                handle.await.unwrap();
            });
            assert_eq!(receiver.await, Ok(1_000_000_000), "a new life can begin at once");
            assert_eq!(*heard.lock().unwrap(), [(2, 1), (1, 1)]);
            sleep(SECOND * 3).await;
        });
    }
}

#[test]
fn a_handle_to_a_killed_task_is_an_error() {
    simulate(1, async {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        spawn_on(1, async move {
            let waits = Rt::spawn(std::future::pending::<()>());
            let killer = Rt::spawn(async {
                Rt::sleep(SECOND).await;
                kill(1);
                // Its last poll ends it, and yet it is dead.
            });
            let done = Rt::spawn(async { 7 });
            let _ = sender.send((waits, killer, done));
        });
        let (waits, killer, done) = receiver.await.unwrap();
        assert!(waits.await.is_err());
        assert!(killer.await.is_err());
        assert_eq!(done.await, Ok(7), "what was done before stays done");
    });
}

/// Two hosts at work in equal steps; how late each step of each was, at most, and how many stalls there were.
fn stalled(seed: u64, every: u32, longest: Duration) -> ([u64; 2], u64, u64) {
    simulate(seed, async move {
        stall(1, every, longest);
        let late = Arc::new(Mutex::new([0; 2]));
        for at in 0..2 {
            let late = late.clone();
            spawn_on(1 + at, async move {
                for _ in 0..100 {
                    let before = now_ns();
                    Rt::sleep(Duration::from_millis(10)).await;
                    let by = now_ns() - before - 10_000_000;
                    let most = &mut late.lock().unwrap()[usize::try_from(at).unwrap()];
                    *most = by.max(*most);
                }
            });
        }
        sleep(Duration::from_secs(100)).await;
        assert_eq!(tasks(1) + tasks(2), 0, "all end all the same");
        let late = *late.lock().unwrap();
        (late, stalls(), trace_hash())
    })
}

#[test]
fn stalls_put_off_tasks_of_their_host_alone() {
    let longest = Duration::from_millis(300);
    let (late, count, hash) = stalled(5, 10, longest);
    assert!((3..30).contains(&count), "about one in ten of 101 polls: {count}");
    assert!(late[0] > 50_000_000 && late[0] <= 300_000_000, "{late:?}");
    assert_eq!(late[1], 0, "the other host is as always");
    assert_eq!(stalled(5, 10, longest), (late, count, hash), "the seed decides");
    assert_ne!(stalled(6, 10, longest).2, hash);
    assert_eq!(stalled(5, 1, longest).1, 101, "each poll is put off once");
    assert_eq!(stalled(5, 0, longest).1, 0);
}

#[test]
fn a_stall_holds_up_one_task_and_not_its_neighbours() {
    let overtaken = (0..200).filter(|&seed| {
        simulate(seed, async {
            stall(1, 2, SECOND);
            let order = Arc::new(Mutex::new(Vec::new()));
            for who in 0..2 {
                let order = order.clone();
                spawn_on(1, async move { order.lock().unwrap().push((who, now_ns())) });
            }
            sleep(SECOND * 3).await;
            let order = order.lock().unwrap().clone();
            assert_eq!(order.len(), 2);
            order[0].1 == 0 && order[1].1 > 0
        })
    });
    let overtaken = overtaken.count();
    assert!((50..150).contains(&overtaken), "one of two stalled in half of the seeds: {overtaken}");
}

#[test]
fn a_stalled_task_can_be_killed() {
    simulate(1, async {
        stall(1, 1, SECOND);
        spawn_on(1, async { panic!("it was dead") });
        sleep(Duration::from_nanos(1)).await;
        assert_eq!((stalls(), tasks(1)), (1, 1));
        kill(1);
        sleep(SECOND * 2).await;
        assert_eq!(tasks(1), 0);
    });
}
