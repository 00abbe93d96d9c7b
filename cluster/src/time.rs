//! Time and tasks of the runtime a node runs on, for whoever lives beside it: on tokio and in the simulator alike.

use std::future::Future;
use std::time::Duration;

use openraft::type_config::TypeConfigExt;
use openraft::type_config::alias::InstantOf;

use crate::raft::{AsyncRuntime, TypeConfig};

/// A point on the runtime's monotonic clock.
pub type Instant<RT> = InstantOf<TypeConfig<RT>>;

/// Now.
#[must_use]
pub fn now<RT: AsyncRuntime>() -> Instant<RT> {
    TypeConfig::<RT>::now()
}

/// Waits so long.
pub async fn sleep<RT: AsyncRuntime>(time: Duration) {
    TypeConfig::<RT>::sleep(time).await;
}

/// `future`'s result, or `None` if it takes longer than `time`.
pub async fn timeout<RT: AsyncRuntime, T: Send>(time: Duration, future: impl Future<Output = T> + Send) -> Option<T> {
    TypeConfig::<RT>::timeout(time, future).await.ok()
}

/// Runs `task` beside the caller. It ends with the runtime.
pub fn spawn<RT: AsyncRuntime>(task: impl Future<Output = ()> + Send + 'static) {
    drop(TypeConfig::<RT>::spawn(task));
}
