//! The hosts of a simulation: each a clock with its timers, and what the scheduler may do to it.
//!
//! Invariants: no two hosts' clocks come near each other in a simulation that is shorter than [`APART_NS`], so an instant
//! that leaked from one host to another is off by years. Timers hold a deadline by their host's clock: a change of rate
//! moves none of them.

use std::collections::{BTreeMap, BTreeSet};
use std::task::Waker;
use std::time::Duration;

use super::clock::Clock;
use super::state::TaskId;

const DAY_NS: u64 = 86_400_000_000_000;
/// What the first clock shows at the beginning: whoever subtracts a timeout from an instant stays above zero.
const EPOCH_NS: u64 = 10 * DAY_NS;
/// Between the clocks of two hosts at the beginning.
const APART_NS: u64 = 700 * DAY_NS;
/// Hosts of one simulation; so many fit the range of a clock.
const HOSTS_MAX: usize = 200;

/// A host, by its place in [`Hosts`].
pub(super) type Place = usize;

/// Stalls of a host's tasks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stalling {
    /// One in so many polls.
    pub(super) every: u64,
    /// Nanoseconds, at least 1.
    pub(super) longest_ns: u64,
}

#[derive(Debug)]
pub(super) struct Host {
    pub(super) number: u64,
    /// Lives before this one: tasks of an earlier life start none.
    pub(super) life: u64,
    pub(super) clock: Clock,
    /// By deadline of the host's clock and by order of their making.
    pub(super) timers: BTreeMap<(u64, u64), Waker>,
    pub(super) paused: bool,
    /// Tasks that are ready but may not run before the host is resumed.
    pub(super) parked: BTreeSet<TaskId>,
    pub(super) stalling: Option<Stalling>,
    /// How many random generators were made.
    pub(super) draws: u64,
}

impl Host {
    fn new(number: u64, place: Place, now_ns: u64) -> Self {
        assert!(place < HOSTS_MAX, "at most {HOSTS_MAX} hosts in a simulation");
        Self {
            number,
            life: 0,
            clock: Clock::new(now_ns, now_ns + EPOCH_NS + APART_NS * place as u64),
            timers: BTreeMap::new(),
            paused: false,
            parked: BTreeSet::new(),
            stalling: None,
            draws: 0,
        }
    }

    /// When its next timer fires, by true time; never while it is paused.
    pub(super) fn next_ns(&self, now_ns: u64) -> Option<u64> {
        if self.paused {
            return None;
        }
        let (&(deadline_ns, _), _) = self.timers.first_key_value()?;
        Some(self.clock.true_ns(deadline_ns).max(now_ns))
    }

    /// Takes the timers that are due.
    pub(super) fn take_due(&mut self, now_ns: u64, due: &mut Vec<Waker>) {
        if self.paused || self.timers.is_empty() {
            return;
        }
        let local_ns = self.clock.local_ns(now_ns);
        while let Some(first) = self.timers.first_entry() {
            if first.key().0 > local_ns {
                break;
            }
            due.push(first.remove());
        }
    }

    pub(super) fn stall(&mut self, every: u32, longest: Duration) {
        let longest_ns = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
        self.stalling = (every > 0 && longest_ns > 0).then_some(Stalling { every: u64::from(every), longest_ns });
    }
}

/// All hosts that were ever named, in order of their naming.
#[derive(Debug)]
pub(super) struct Hosts(Vec<Host>);

impl Hosts {
    /// The world alone.
    pub(super) fn new() -> Self {
        Self(vec![Host::new(super::WORLD, 0, 0)])
    }

    /// The place of the host with this number.
    pub(super) fn place(&mut self, number: u64, now_ns: u64) -> Place {
        let known = self.0.iter().position(|host| host.number == number);
        known.unwrap_or_else(|| {
            let place = self.0.len();
            self.0.push(Host::new(number, place, now_ns));
            place
        })
    }

    pub(super) fn at(&mut self, place: Place) -> &mut Host {
        &mut self.0[place]
    }

    pub(super) fn all(&mut self) -> &mut [Host] {
        &mut self.0
    }
}
