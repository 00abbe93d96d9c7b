//! Where work runs that blocks: writing and loading snapshots, dropping big states. Beside the file trait, so that the
//! simulator, which has no threads, runs the same code.

use std::io;
use std::sync::Arc;

use tokio::sync::oneshot;

/// A piece of blocking work.
pub type Job = Box<dyn FnOnce() + Send>;

/// Runs blocking work away from the async threads.
pub trait Executor: Send + Sync + 'static {
    /// Starts `job`; returns at once or, where there are no threads, when it is done.
    ///
    /// # Errors
    /// When the system gives no thread; `job` has not run.
    fn start(&self, name: &'static str, job: Job) -> io::Result<()>;
}

/// One short-lived thread a job. Jobs are rare: a snapshot, a load, a drop.
#[derive(Clone, Copy, Debug, Default)]
pub struct Threads;

impl Executor for Threads {
    fn start(&self, name: &'static str, job: Job) -> io::Result<()> {
        std::thread::Builder::new().name(name.to_owned()).spawn(job).map(drop)
    }
}

/// Runs each job at once on the caller's thread: for the simulator, whose time stands still meanwhile.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inline;

impl Executor for Inline {
    fn start(&self, _name: &'static str, job: Job) -> io::Result<()> {
        job();
        Ok(())
    }
}

/// Runs `work` on `executor` and waits for its value.
///
/// # Errors
/// When no thread could be started or the work panicked.
pub async fn run<T: Send + 'static>(
    executor: &Arc<dyn Executor>,
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (done, value) = oneshot::channel();
    executor.start(
        name,
        Box::new(move || {
            // Nobody waits any more: the value is dropped here, where that may take its time.
            let _ = done.send(work());
        }),
    )?;
    value.await.map_err(|_| io::Error::other(format!("{name} did not finish")))
}
