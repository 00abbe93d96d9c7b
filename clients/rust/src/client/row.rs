//! The tries of one call: in which order endpoints are asked, and what their outcomes come to. Pure but for jitter.

use std::collections::VecDeque;
use std::time::Duration;

use super::attempt::{Tried, Why, Without};
use super::transport::Exchange;
use super::{Answered, CallError};
use crate::uri::Endpoint;
use crate::wire::Repeat;

/// A round: each endpoint once, in turn from the first.
pub(super) struct Round(VecDeque<usize>);

impl Round {
    pub fn new(first: usize, count: usize) -> Round {
        Round((0..count).map(|n| (first + n) % count).collect())
    }

    pub fn next(&mut self) -> Option<usize> {
        self.0.pop_front()
    }

    /// How many are to be tried yet, the one at hand included.
    pub fn left_with_this(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX).saturating_add(1)
    }

    /// That one is next, unless it had its turn.
    pub fn prefer(&mut self, index: usize) {
        if let Some(at) = self.0.iter().position(|waiting| *waiting == index) {
            self.0.remove(at);
            self.0.push_front(index);
        }
    }
}

/// What follows from a try.
pub(super) enum Step {
    /// The call is over.
    End {
        outcome: Result<Answered, CallError>,
        /// The next call is better begun at another endpoint.
        elsewhere: bool,
    },
    /// The next endpoint, or the leader if one was named.
    Next { leader: Option<Endpoint> },
}

/// What the tries of one call have come to.
pub(super) struct Row<'a> {
    endpoints: &'a [Endpoint],
    /// Each endpoint's last try, if it surely had no effect.
    without: Vec<Option<(Why, String)>>,
    /// The last try in doubt.
    doubt: Option<String>,
    /// The first endpoint that gave no answer.
    silent: Option<usize>,
    pause: Backoff,
}

impl<'a> Row<'a> {
    pub fn new(endpoints: &'a [Endpoint]) -> Row<'a> {
        Row { endpoints, without: vec![None; endpoints.len()], doubt: None, silent: None, pause: Backoff::default() }
    }

    pub fn take(&mut self, index: usize, tried: Tried, exchange: &Exchange) -> Step {
        if matches!(tried, Tried::InDoubt { .. } | Tried::Without(Without { why: Why::NoWay, .. })) {
            self.silent = self.silent.or(Some(index));
        }
        match tried {
            Tried::Answered { mut answered, closing } => {
                answered.repeated = self.doubt.is_some();
                return Step::End { outcome: Ok(answered), elsewhere: closing };
            }
            // What this try came to says nothing of an earlier one that may have had its effect, or have it yet.
            Tried::Over(error) => {
                // Something else answers there; a node may at the next.
                let elsewhere = matches!(error, CallError::Protocol { .. });
                let outcome = Err(match self.doubt.take() {
                    Some(detail) => CallError::OutcomeUnknown { detail },
                    None => error,
                });
                return Step::End { outcome, elsewhere };
            }
            Tried::Without(Without { detail, why, leader }) => {
                self.without[index] = Some((why, detail));
                return Step::Next { leader };
            }
            Tried::InDoubt { detail } => match exchange.repeat {
                Repeat::Never => {
                    let detail = self.named(index, &detail);
                    return Step::End { outcome: Err(CallError::OutcomeUnknown { detail }), elsewhere: true };
                }
                // A read has no effect to be in doubt.
                Repeat::Read => self.without[index] = Some((Why::NotServed, detail)),
                Repeat::ByToken => {
                    self.doubt = Some(self.named(index, &detail));
                    self.without[index] = Some((Why::NotServed, detail));
                }
            },
        }
        Step::Next { leader: None }
    }

    /// Where a next call is better begun than where this one was, which ends without an answer.
    pub fn past_the_silent(&self) -> Option<usize> {
        self.silent.map(|index| (index + 1) % self.endpoints.len())
    }

    /// After a round: every host refused. Who asks on asks nobody.
    pub fn nothing_listens(&self) -> bool {
        self.doubt.is_none() && self.without.iter().all(|last| matches!(last, Some((Why::Refused, _))))
    }

    /// It is a write, was tried, and surely had no effect so far: better said so than put in doubt by a last hasty try.
    pub fn is_safe_to_leave(&self, exchange: &Exchange) -> bool {
        exchange.repeat != Repeat::Read && self.doubt.is_none() && self.without.iter().any(Option::is_some)
    }

    /// How long to wait before the next round.
    pub fn pause(&mut self) -> Duration {
        self.pause.next()
    }

    /// No further try.
    pub fn over(self, exchange: &Exchange) -> CallError {
        let connected = |last: &Option<(Why, String)>| !matches!(last, Some((Why::Refused | Why::NoWay, _)));
        if let Some(detail) = self.doubt {
            return CallError::OutcomeUnknown { detail };
        }
        let tried = || {
            let both = self.endpoints.iter().zip(&self.without);
            both.filter_map(|(endpoint, last)| last.as_ref().map(|(_, detail)| (endpoint, detail)))
        };
        if tried().next().is_none() {
            return CallError::Unavailable { detail: format!("no time was left to send {}", exchange.path) };
        }
        if self.without.iter().any(connected) {
            let all: Vec<String> = tried().map(|(endpoint, detail)| format!("{endpoint}: {detail}")).collect();
            return CallError::Unavailable { detail: all.join("; ") };
        }
        let all: Vec<String> = tried().map(|(endpoint, detail)| format!("{endpoint} ({detail})")).collect();
        CallError::Unreachable { endpoints: all.join(", ") }
    }

    fn named(&self, index: usize, detail: &str) -> String {
        format!("{}: {detail}", self.endpoints[index])
    }
}

/// Growing pauses with jitter: 50 ms doubling to 1 s, each between half of that and all of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backoff {
    count: u32,
}

impl Backoff {
    pub(crate) fn next(&mut self) -> Duration {
        let ms = (50u64 << self.count.min(5)).min(1_000);
        self.count = self.count.saturating_add(1);
        jittered(Duration::from_millis(ms))
    }
}

/// Between half of `whole` and all of it, so that clients that failed together do not come back together.
fn jittered(whole: Duration) -> Duration {
    // Without randomness the pause is the whole: only the spread is lost.
    let random = getrandom::u32().unwrap_or(u32::MAX);
    whole.mul_f64(0.5 + 0.5 * f64::from(random) / f64::from(u32::MAX))
}
