//! Why and whether a node stops. The first reason stands; a fault may come from any part of the node.

use tokio::sync::watch;

use crate::error::StopReason;

/// See the module's head.
#[derive(Debug)]
pub struct Stop {
    reason: watch::Sender<Option<StopReason>>,
    done: watch::Sender<bool>,
}

impl Default for Stop {
    fn default() -> Self {
        Self { reason: watch::Sender::new(None), done: watch::Sender::new(false) }
    }
}

impl Stop {
    /// Asks the node to stop, or tells that it must.
    pub fn stop(&self, why: StopReason) {
        self.reason.send_if_modified(|reason| {
            let first = reason.is_none();
            if first {
                *reason = Some(why);
            }
            first
        });
    }

    /// Everything is put away.
    pub fn done(&self) {
        self.done.send_replace(true);
    }

    /// Is it to stop?
    pub fn is_stopping(&self) -> bool {
        self.reason.borrow().is_some()
    }

    /// The reason, if it is to stop.
    pub fn reason(&self) -> Option<StopReason> {
        self.reason.borrow().clone()
    }

    /// Resolves when the node is to stop.
    pub async fn stopping(&self) -> StopReason {
        let mut reason = self.reason.subscribe();
        match reason.wait_for(Option::is_some).await.map(|reason| reason.clone()) {
            Ok(Some(reason)) => reason,
            Ok(None) | Err(_) => StopReason::Shutdown,
        }
    }

    /// Resolves when the node has stopped: after a fault at once, since nothing it does then is to be waited for.
    pub async fn stopped(&self) -> StopReason {
        let reason = self.stopping().await;
        if reason == StopReason::Shutdown {
            let mut done = self.done.subscribe();
            // An error means that the node is gone altogether.
            let _ = done.wait_for(|done| *done).await;
        }
        reason
    }
}
