//! Tells systemd how the service stands (`Type=notify`). Without NOTIFY_SOCKET all of it does nothing.

use std::time::Duration;

use sd_notify::NotifyState;
use tracing::debug;

/// The node takes part.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// What `systemctl status` shows; one line.
pub fn status(status: &str) {
    tell(&[NotifyState::Status(status)]);
}

/// The node ends.
pub fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("draining")]);
}

/// Says twice in the watchdog's time that the runtime still gets to its tasks, if that is asked for.
pub fn feed_watchdog() {
    let mut us = 0;
    if !sd_notify::watchdog_enabled(false, &mut us) || us < 2 {
        return;
    }
    tokio::spawn(async move {
        let mut interval = tokio::time::interval(Duration::from_micros(us / 2));
        loop {
            interval.tick().await;
            tell(&[NotifyState::Watchdog]);
        }
    });
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(false, states) {
        debug!(%error, "the service manager was not told");
    }
}
