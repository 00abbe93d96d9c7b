//! What is done to hosts: killed, paused, stalled, their clocks set fast or slow. Never to the world.

use std::time::Duration;

use super::WORLD;
use super::state::{Body, Current, State, TaskId};

impl State {
    /// Ends a life of a host: its tasks, in order of their ids. The one that is being polled has no body here.
    pub(super) fn doom(&mut self, number: u64) -> Vec<(Current, Body)> {
        assert!(number != WORLD, "the world is not killed");
        let owner = self.owner(number);
        let host = self.hosts.at(owner.place);
        host.life += 1;
        host.paused = false;
        host.parked.clear();
        let ids: Vec<TaskId> = self.tasks.iter().filter(|(_, task)| task.owner == owner).map(|(&id, _)| id).collect();
        ids.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    pub(super) fn pause(&mut self, number: u64) {
        assert!(number != WORLD, "the world is not paused");
        let owner = self.owner(number);
        self.hosts.at(owner.place).paused = true;
    }

    pub(super) fn resume(&mut self, number: u64) {
        let owner = self.owner(number);
        let host = self.hosts.at(owner.place);
        if !std::mem::replace(&mut host.paused, false) {
            return;
        }
        let parked = std::mem::take(&mut host.parked);
        let overdue = host.next_ns(self.now_ns).is_some_and(|next_ns| next_ns <= self.now_ns);
        self.pauses += u64::from(overdue || !parked.is_empty());
        for id in parked {
            self.queue(id);
        }
    }

    pub(super) fn stall(&mut self, number: u64, every: u32, longest: Duration) {
        assert!(number != WORLD || every == 0, "the world is not stalled");
        let owner = self.owner(number);
        self.hosts.at(owner.place).stall(every, longest);
    }

    pub(super) fn set_rate(&mut self, number: u64, rate_ppm: u64) {
        assert!(number != WORLD, "the clock of the world is true");
        let owner = self.owner(number);
        self.hosts.at(owner.place).clock.set_rate(self.now_ns, rate_ppm);
    }
}
