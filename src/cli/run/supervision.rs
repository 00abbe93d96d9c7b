//! From the start of the job to its end: renewals, signals, the guard's words, in one loop.
//!
//! TERM and KILL are the guard's to send, by the limits that it was told last. Here they are only judged: a job that had
//! to be ended is a lost run, whatever code it ends with. Should the guard not do its duty, this process kills.
//!
//! A hint that a grant may have ended is a reason to ask at once; only the answer to a RENEW, and time, end a job.

use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tenure_client::{CallError, Client};

use super::clock::boottime_ms;
use super::each::Within;
use super::grants::{Grants, Renewed};
use super::guard::frame::Ended;
use super::guard::{Event, Guard, end_descendants};
use super::hints::Hints;
use super::report::Report;
use super::signals::Signals;
use super::terminal;
use super::times::{OnLost, Schedule};

/// The clock is read at least this often: a timer does not see that the machine slept.
const TICK: Duration = Duration::from_millis(200);

/// The shortest time that a renewal is given.
const CALL_MIN: Duration = Duration::from_millis(100);

/// How a run ended. In any case nothing of the job is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The job's first process ended so, under the lease.
    Ended(Ended),
    /// The lease was lost first: the server said so, or there was no renewal in time.
    Lost {
        /// The operator's text, if it was a BREAK.
        detail: Option<String>,
    },
    /// The guard was killed; the job with it.
    GuardDied,
}

type Renewal = Pin<Box<dyn Future<Output = Result<Renewed, CallError>> + Send>>;

/// A job at work.
pub struct Supervision {
    client: Client,
    grants: Grants,
    hints: Hints,
    schedule: Schedule,
    guard: Guard,
    report: Report,
    renewal: Option<Renewal>,
    /// The last renewal failed: said once until one succeeds.
    failing: bool,
    lost: Option<Outcome>,
}

impl Supervision {
    /// A job that was just started under these grants.
    pub fn new(client: &Client, grants: &Grants, schedule: Schedule, guard: Guard, report: Report) -> Self {
        let hints = Hints::new(client, grants);
        let (client, grants) = (client.clone(), grants.clone());
        Self { client, grants, hints, schedule, guard, report, renewal: None, failing: false, lost: None }
    }

    /// Returns when nothing of the job is left: how it ended, and the own deadline as it stands then.
    pub async fn run(mut self, signals: &mut Signals) -> (Outcome, u64) {
        loop {
            let pause = self.act();
            tokio::select! {
                event = self.guard.next() => match event {
                    Event::Ended { ended, unrenewed } => return self.ended(ended, unrenewed).await,
                    Event::Stopped { asked } => self.stopped(asked).await,
                    Event::Died => return self.bury().await,
                },
                signal = signals.next() => {
                    self.report.change(format_args!("signal {}: ending the job", signal.as_raw_value()));
                    self.guard.end().await;
                }
                outcome = answer(&mut self.renewal) => self.answered(outcome).await,
                () = self.hints.next() => self.hinted(),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Does what the time demands, and says how long nothing else is due.
    fn act(&mut self) -> Duration {
        let now_ms = boottime_ms();
        let limits = self.schedule.limits();
        if now_ms >= limits.term_at_ms {
            self.unrenewed();
        }
        if now_ms >= limits.kill_at_ms {
            self.guard.kill();
        }
        let renew_at_ms = self.schedule.renew_at_ms().filter(|_| self.renewal.is_none());
        if renew_at_ms.is_some_and(|at_ms| now_ms >= at_ms) {
            self.renewal = Some(self.start_renewal(now_ms));
        }
        let next_ms = [renew_at_ms, Some(limits.term_at_ms), Some(limits.kill_at_ms)];
        let next_ms = next_ms.into_iter().flatten().filter(|at_ms| *at_ms > now_ms).min();
        next_ms.map_or(TICK, |at_ms| TICK.min(Duration::from_millis(at_ms - now_ms)))
    }

    /// One call takes half of what is left until TERM (after that, until KILL), and each of its tries half of that: one
    /// node out of reach, or one connection that swallows everything, leaves time for others before the job is ended.
    fn start_renewal(&self, now_ms: u64) -> Renewal {
        let limits = self.schedule.limits();
        let end_ms = if now_ms < limits.term_at_ms { limits.term_at_ms } else { limits.kill_at_ms };
        let call = Duration::from_millis(end_ms.saturating_sub(now_ms) / 2).max(CALL_MIN);
        let one_try = (call / 2).min(self.client.options().try_timeout);
        let (client, grants) = (self.client.clone(), self.grants.clone());
        Box::pin(async move { grants.renew(&client, Within { call, one_try }).await })
    }

    /// A renewal under way may have been ordered before what the hint is of: its answer is not waited for.
    fn hinted(&mut self) {
        if self.lost.is_none() {
            self.renewal = None;
            self.schedule.renew_now(boottime_ms());
        }
    }

    async fn answered(&mut self, outcome: Result<Renewed, CallError>) {
        let now_ms = boottime_ms();
        match outcome {
            Ok(Renewed::Held { deadline_ms }) => self.renewed(deadline_ms, now_ms).await,
            Ok(Renewed::Lost { key, reason, detail }) => self.lose(&key, &reason, detail.as_deref()).await,
            Ok(Renewed::Odd(trouble)) => self.failed(trouble, now_ms),
            Err(error) => self.failed(error, now_ms),
        }
    }

    async fn renewed(&mut self, deadline_ms: u64, now_ms: u64) {
        if self.schedule.renewed(deadline_ms, now_ms) {
            self.guard.extend(self.schedule.limits()).await;
        }
        if std::mem::take(&mut self.failing) {
            self.report.change("renewed again");
        }
    }

    fn failed(&mut self, trouble: impl Display, now_ms: u64) {
        self.schedule.unanswered(now_ms, jitter());
        if !std::mem::replace(&mut self.failing, true) {
            let left_ms = self.schedule.limits().term_at_ms.saturating_sub(now_ms);
            self.report.change(format_args!("retry: {trouble}; without a renewal the job is ended in {left_ms} ms"));
        }
    }

    /// The server's word: the job is ended at once.
    async fn lose(&mut self, key: &str, reason: &str, detail: Option<&str>) {
        self.schedule.lose();
        self.lost = Some(Outcome::Lost { detail: detail.map(str::to_owned) });
        let detail = detail.map(|detail| format!(": {detail}")).unwrap_or_default();
        let which = if self.grants.iter().count() > 1 { format!("{key}: ") } else { String::new() };
        match self.schedule.plan().on_lost {
            OnLost::Term => {
                self.report.trouble(format_args!("lost: {which}{reason}{detail}; ending the job"));
                self.guard.end().await;
            }
            OnLost::Kill => {
                self.report.trouble(format_args!("lost: {which}{reason}{detail}; killing the job"));
                self.guard.kill_all().await;
            }
        }
    }

    /// No renewal in time: the guard ends it by itself.
    fn unrenewed(&mut self) {
        if self.lost.is_none() {
            self.report.trouble("lost: no renewal was answered in time; the job is ended before the lease may be gone");
            self.lost = Some(Outcome::Lost { detail: None });
        }
    }

    async fn ended(mut self, ended: Ended, unrenewed: bool) -> (Outcome, u64) {
        if unrenewed {
            self.unrenewed();
        }
        self.guard.finish().await;
        (self.lost.unwrap_or(Outcome::Ended(ended)), self.schedule.deadline_ms())
    }

    async fn stopped(&self, asked: bool) {
        self.report.change("the job was stopped");
        if let Err(error) = terminal::follow_stopped(self.guard.job(), asked).await {
            self.report.trouble(format_args!("cannot stop together with the job: {error}"));
        }
    }

    /// The guard is gone: its children are ours now.
    async fn bury(self) -> (Outcome, u64) {
        self.report.trouble("the guard process was killed; killing the job");
        self.guard.kill();
        self.guard.finish().await;
        if let Err(error) = end_descendants().await {
            self.report.trouble(format_args!("cannot see whether the job has ended: {error}"));
        }
        (self.lost.unwrap_or(Outcome::GuardDied), self.schedule.deadline_ms())
    }
}

/// The answer to the renewal under way; for ever if there is none.
async fn answer(renewal: &mut Option<Renewal>) -> Result<Renewed, CallError> {
    let Some(pending) = renewal else { return std::future::pending().await };
    let outcome = pending.await;
    *renewal = None;
    outcome
}

/// In 0..=1; without randomness only the spread is lost.
fn jitter() -> f64 {
    f64::from(getrandom::u32().unwrap_or(u32::MAX)) / f64::from(u32::MAX)
}
