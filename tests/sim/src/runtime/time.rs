//! Time and timers of a simulation.
//!
//! Invariants: true time never goes back and moves only when nobody is ready. What is due is handed out, to be woken
//! where nothing is borrowed; in which order does not matter.

use std::task::Waker;

use super::hosts::Place;
use super::state::State;

/// How a timer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Due,
    Set,
    Unset,
}

impl State {
    /// Jumps to the next timer or end of a stall. False when there is none. `due` is to be woken.
    pub(super) fn advance(&mut self, due: &mut Vec<Waker>) -> bool {
        let now_ns = self.now_ns;
        let timers = self.hosts.all().iter().filter_map(|host| host.next_ns(now_ns)).min();
        let stalls = self.stalled.first().map(|&(until_ns, _)| until_ns);
        let Some(next_ns) = timers.into_iter().chain(stalls).min() else { return false };
        if next_ns > now_ns {
            self.now_ns = next_ns;
            self.polls_now = 0;
        }
        // All are equal again.
        self.round += 1;
        for host in self.hosts.all() {
            host.take_due(self.now_ns, due);
        }
        while let Some(&(until_ns, id)) = self.stalled.first() {
            if until_ns > self.now_ns {
                break;
            }
            self.stalled.pop_first();
            if let Some(task) = self.tasks.get_mut(&id) {
                task.stalled_ns = None;
                task.excused = true;
                self.queue(id);
            }
        }
        true
    }

    /// Why nothing goes on.
    pub(super) fn deadlock(&mut self) -> String {
        let mut waiting = Vec::new();
        for place in 0..self.hosts.all().len() {
            let tasks = self.tasks.values().filter(|task| task.owner.place == place).count();
            let host = self.hosts.at(place);
            let paused = if host.paused { ", paused" } else { "" };
            waiting.push(format!("host {}: {tasks}{paused}", host.number));
        }
        let waiting = waiting.join("; ");
        format!(
            "deadlock at {} ns (seed {}): no task is ready and no timer set. Tasks of {waiting}",
            self.now_ns, self.seed
        )
    }

    pub(super) fn next_timer(&mut self) -> u64 {
        self.next_timer += 1;
        self.next_timer
    }

    pub(super) fn timer(&mut self, place: Place, key: (u64, u64), waker: &Waker) -> Standing {
        let host = self.hosts.at(place);
        if host.clock.local_ns(self.now_ns) >= key.0 {
            return Standing::Due;
        }
        if host.timers.get(&key).is_some_and(|set| set.will_wake(waker)) { Standing::Set } else { Standing::Unset }
    }

    #[must_use]
    pub(super) fn set_timer(&mut self, place: Place, key: (u64, u64), waker: Waker) -> Option<Waker> {
        self.hosts.at(place).timers.insert(key, waker)
    }

    #[must_use]
    pub(super) fn take_timer(&mut self, place: Place, key: (u64, u64)) -> Option<Waker> {
        self.hosts.at(place).timers.remove(&key)
    }

    pub(super) fn local_now_ns(&mut self) -> u64 {
        let (place, now_ns) = (self.place(), self.now_ns);
        self.hosts.at(place).clock.local_ns(now_ns)
    }

    pub(super) fn clock_ns(&mut self, number: u64) -> u64 {
        let owner = self.owner(number);
        self.hosts.at(owner.place).clock.local_ns(self.now_ns)
    }
}
