//! What a started task leaves to whoever waits for it.
//!
//! A panic of a task is not among it: it ends the simulation. A task that was killed leaves [`JoinError`], even if the
//! poll in which it was killed is the one that finished it.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tokio::sync::oneshot;

use super::run::try_with;

/// The task was ended before it was done: by the end of its host or of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinError;

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the task was ended before it was done")
    }
}

impl std::error::Error for JoinError {}

/// Resolves to the task's output. The task goes on when this is dropped.
#[derive(Debug)]
pub struct JoinHandle<T>(oneshot::Receiver<T>);

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|output| output.map_err(|_| JoinError))
    }
}

pin_project! {
    /// A future and whom its output goes to.
    pub(super) struct Joined<F: Future> {
        #[pin]
        future: F,
        output: Option<oneshot::Sender<F::Output>>,
    }
}

/// A task of `future` and the handle to it.
pub(super) fn joined<F: Future>(future: F) -> (Joined<F>, JoinHandle<F::Output>) {
    let (sender, receiver) = oneshot::channel();
    (Joined { future, output: Some(sender) }, JoinHandle(receiver))
}

impl<F: Future> Future for Joined<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        let Poll::Ready(output) = this.future.poll(context) else { return Poll::Pending };
        let sender = this.output.take();
        if try_with(|state| state.current_lives()) == Some(true)
            && let Some(sender) = sender
        {
            // Nobody may wait for it.
            let _ = sender.send(output);
        }
        Poll::Ready(())
    }
}
