//! The end of a run: what becomes of its grants, and its exit status.
//!
//! With a minimum hold a RELEASE opens the window in which nobody else can have the lease. A run that does not count for
//! it ends its grants by a BREAK of its own, by their fences: that opens none, and says why. (A key's `delay_ms` does count
//! after a BREAK: the next run comes that much later.)

use std::time::Duration;

use tenure_client::{CallError, Client};
use tokio::time::Instant;

use super::args::HoldOn;
use super::clock::boottime_ms;
use super::grants::Grants;
use super::guard::frame::Ended;
use super::report::Report;
use super::signals::Signals;
use super::supervision::Outcome;

/// The lease was lost or broken while the job ran; the job was ended.
pub const LOST: u8 = 122;
/// Our own failure: bad arguments, no answer from the server, no process.
pub const FAILED: u8 = 125;

/// How long giving back takes at most where nothing hangs on it: what is not given back ends by itself.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Pause between two calls that met nobody.
const AGAIN: Duration = Duration::from_millis(500);

/// What a run came to. Nothing of the job is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The job was never started.
    NotStarted,
    /// It was.
    Ran(Outcome),
}

impl End {
    /// The exit status.
    pub fn code(&self) -> u8 {
        match self {
            Self::Ran(Outcome::Ended(ended)) => ended.code(),
            Self::Ran(Outcome::Lost { .. }) => LOST,
            Self::Ran(Outcome::GuardDied) | Self::NotStarted => FAILED,
        }
    }

    /// Why it does not count as this period's run; `None` if it does.
    fn does_not_count(&self, hold_on: HoldOn) -> Option<String> {
        let always = hold_on == HoldOn::Always;
        match self {
            Self::NotStarted => Some("the job was not started".to_owned()),
            // In the grace of a BREAK the newest text counts: the operator's stays.
            Self::Ran(Outcome::Lost { detail: Some(text) }) => Some(text.clone()),
            Self::Ran(Outcome::Lost { detail: None }) => Some("the lease was lost while the job ran".to_owned()),
            Self::Ran(Outcome::Ended(Ended::Exited(0))) => None,
            Self::Ran(_) if always => None,
            Self::Ran(Outcome::Ended(Ended::Exited(code))) => Some(format!("the job failed: exit {code}")),
            Self::Ran(Outcome::Ended(Ended::Signalled(signal))) => Some(format!("the job failed: signal {signal}")),
            Self::Ran(Outcome::GuardDied) => Some("the job was killed with its guard".to_owned()),
        }
    }
}

/// Ends the grants; `Ok` if they surely are not held any more. `hold_on`: they have a minimum hold, for those runs;
/// `deadline_ms`: up to when they live at least.
pub async fn give_back(
    client: &Client,
    grants: &Grants,
    end: &End,
    hold_on: Option<HoldOn>,
    deadline_ms: u64,
    signals: &mut Signals,
    report: &Report,
) -> Result<(), CallError> {
    // A window that is not opened is a run that may be repeated: worth as long as the grant lives.
    let timeout = match hold_on {
        Some(_) => TIMEOUT.max(Duration::from_millis(deadline_ms.saturating_sub(boottime_ms()))),
        None => TIMEOUT,
    };
    let giving = async {
        match hold_on.and_then(|hold_on| end.does_not_count(hold_on)) {
            Some(why) => {
                let annul = |left| grants.annul(client, &why, left);
                (as_long(timeout, annul).await, "given back without a minimum hold")
            }
            None => (as_long(timeout, |left| grants.release(client, left)).await, "released"),
        }
    };
    let (outcome, done) = tokio::select! {
        given = giving => given,
        error = hurried(signals) => (Err(error), ""),
    };
    match &outcome {
        Ok(true) => report.change(done),
        // Lost before, or in part.
        Ok(false) => report.change("nothing left to give back"),
        Err(error) if hold_on.is_some() && *end == End::Ran(Outcome::Ended(Ended::Exited(0))) => {
            report.trouble(format_args!("not released, so this period's run may be repeated: {error}"));
        }
        Err(error) => report.change(format_args!("not released, it ends by itself: {error}")),
    }
    outcome.map(drop)
}

/// Asks until there is an answer or the time is over: one call gives up early where every node refuses connections, as
/// while the only one is started anew.
async fn as_long<F>(timeout: Duration, give: impl Fn(Duration) -> F) -> Result<bool, CallError>
where
    F: Future<Output = Result<bool, CallError>>,
{
    let until = Instant::now() + timeout;
    loop {
        let outcome = give(until.saturating_duration_since(Instant::now())).await;
        let again = matches!(outcome, Err(CallError::Unreachable { .. })) && Instant::now() + AGAIN < until;
        if !again {
            return outcome;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// A signal leaves it so long as it takes where nothing hangs on it, and no longer.
async fn hurried(signals: &mut Signals) -> CallError {
    let signal = signals.next().await;
    tokio::time::sleep(TIMEOUT).await;
    CallError::OutcomeUnknown { detail: format!("no answer, and signal {} came", signal.as_raw_value()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_runs_count() {
        let ended = |ended| End::Ran(Outcome::Ended(ended));
        let rows = [
            (ended(Ended::Exited(0)), true, true, 0),
            (ended(Ended::Exited(3)), false, true, 3),
            (ended(Ended::Signalled(15)), false, true, 143),
            (End::Ran(Outcome::Lost { detail: None }), false, false, LOST),
            (End::Ran(Outcome::GuardDied), false, true, FAILED),
            (End::NotStarted, false, false, FAILED),
        ];
        for (end, success, always, code) in rows {
            assert_eq!(end.does_not_count(HoldOn::Success).is_none(), success, "{end:?}");
            assert_eq!(end.does_not_count(HoldOn::Always).is_none(), always, "{end:?}");
            assert_eq!(end.code(), code, "{end:?}");
        }
    }
}
