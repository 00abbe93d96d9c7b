//! [`Rt`]: what openraft asks of a runtime.
//!
//! Channels are tokio's, which need no tokio runtime; the watch is the one of openraft's own simulator, whose waiters
//! wake in order.

use std::io;
use std::time::Duration;

use openraft::{AsyncRuntime, OptionalSend};
use openraft_rt_sim::SimWatch;
use openraft_rt_tokio::{TokioMpsc, TokioMutex, TokioOneshot};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::join::joined;
use super::run::{simulate, with};
use super::{Elapsed, Instant, JoinError, JoinHandle, Sleep, Timeout};

/// The runtime that whole nodes are instantiated with. All of it is the thread's simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rt;

impl AsyncRuntime for Rt {
    type JoinError = JoinError;
    type JoinHandle<T: OptionalSend + 'static> = JoinHandle<T>;
    type Sleep = Sleep;
    type Instant = Instant;
    type TimeoutError = Elapsed;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = Timeout<T>;
    type ThreadLocalRng = SmallRng;
    type Mpsc = TokioMpsc;
    type Watch = SimWatch;
    type Oneshot = TokioOneshot;
    type Mutex<T: OptionalSend + 'static> = TokioMutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        let owner = with(|state| state.current.owner);
        let (task, handle) = joined(future);
        // What is refused is dropped here, where nothing is borrowed.
        drop(with(|state| state.start(owner, Box::pin(task))));
        handle
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        Sleep::lasting(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        Sleep::until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(duration: Duration, future: F) -> Self::Timeout<R, F> {
        Timeout::new(future, Sleep::lasting(duration))
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(deadline: Self::Instant, future: F) -> Self::Timeout<R, F> {
        Timeout::new(future, Sleep::until(deadline))
    }

    /// A panic ends the simulation: nobody is told of it by a handle.
    fn is_panic(_: &Self::JoinError) -> bool {
        false
    }

    /// From the seed, the host, and how many this host had: one more on a host changes nothing on another.
    fn thread_rng() -> Self::ThreadLocalRng {
        SmallRng::seed_from_u64(with(|state| state.draw()))
    }

    fn new(_threads: usize) -> Self {
        Self
    }

    /// A simulation of its own, with the seed 0.
    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        simulate(0, future)
    }

    /// Refused, and `work` not run: there are no threads here, and nobody is to think that it takes time.
    fn spawn_blocking<F, T>(_work: F) -> impl Future<Output = Result<T, io::Error>> + Send
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        std::future::ready(Err(io::Error::new(io::ErrorKind::Unsupported, "no threads in a simulation")))
    }
}
