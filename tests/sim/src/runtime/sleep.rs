//! Timers.
//!
//! A timer belongs to the host on which it was made and goes by that host's clock, whoever waits for it. It is set at its
//! first poll and taken back when it is dropped.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;

use super::hosts::Place;
use super::instant::{Instant, nanos};
use super::run::{try_with, with};
use super::time::Standing;

/// Resolves when its host's clock shows its deadline.
#[derive(Debug)]
pub struct Sleep {
    run: u64,
    place: Place,
    deadline_ns: u64,
    order: u64,
    set: bool,
}

impl Sleep {
    pub(super) fn until(deadline: Instant) -> Self {
        with(|state| Self::new(state.run, state.place(), deadline.0, state.next_timer()))
    }

    pub(super) fn lasting(duration: Duration) -> Self {
        with(|state| {
            let deadline_ns = state.local_now_ns().saturating_add(nanos(duration));
            Self::new(state.run, state.place(), deadline_ns, state.next_timer())
        })
    }

    /// By true time.
    pub(super) fn of_world(duration: Duration) -> Self {
        with(|state| {
            let deadline_ns = state.clock_ns(super::WORLD).saturating_add(nanos(duration));
            Self::new(state.run, 0, deadline_ns, state.next_timer())
        })
    }

    fn new(run: u64, place: Place, deadline_ns: u64, order: u64) -> Self {
        Self { run, place, deadline_ns, order, set: false }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let key = (self.deadline_ns, self.order);
        let standing = with(|state| {
            assert!(state.run == self.run, "a timer of another simulation");
            state.timer(self.place, key, context.waker())
        });
        match standing {
            Standing::Due => return Poll::Ready(()),
            Standing::Set => {}
            Standing::Unset => {
                // Cloning and dropping a waker may be foreign code: not while anything is borrowed.
                let waker = context.waker().clone();
                drop(with(|state| state.set_timer(self.place, key, waker)));
                self.set = true;
            }
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if !self.set {
            return;
        }
        let key = (self.deadline_ns, self.order);
        drop(try_with(|state| (state.run == self.run).then(|| state.take_timer(self.place, key))));
    }
}

/// The time was up first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the time is up")
    }
}

impl std::error::Error for Elapsed {}

pin_project! {
    /// A future's output, or [`Elapsed`]. What is ready when the time is up wins.
    #[derive(Debug)]
    pub struct Timeout<F> {
        #[pin]
        future: F,
        sleep: Sleep,
    }
}

impl<F> Timeout<F> {
    pub(super) fn new(future: F, sleep: Sleep) -> Self {
        Self { future, sleep }
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(output) = this.future.poll(context) {
            return Poll::Ready(Ok(output));
        }
        Pin::new(this.sleep).poll(context).map(|()| Err(Elapsed))
    }
}
