//! One cluster, asked over HTTP: endpoints in turn, inside one budget, repeated only where that is safe.
//!
//! # Model
//! A call is a row of tries. Each try goes to one endpoint and ends in one of these ways:
//! - answered: the call is over;
//! - refused with an error: the call is over;
//! - surely without effect (nothing connected, the body never left, `unavailable`): the next endpoint is tried, after a
//!   whole round with a growing, jittered pause;
//! - in doubt (`outcome_unknown`, no answer in time, connection lost after the body began to leave, an unreadable
//!   answer): the next endpoint is tried only where [`Repeat`] allows, else the call ends in
//!   [`CallError::OutcomeUnknown`].
//!
//! Whether the body left is not guessed from the error: the body itself notes when it is first read (a server cannot
//! obey a command that it never got).
//!
//! # Limits
//! [`Options`]: time for a call, for a try and for connecting, size of an answer. At most 16 endpoints.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::time::{Boottime, Clock, HostClock};
use crate::uri::{Endpoint, Uri};
use crate::wire::{Answer, Problem, Repeat, Request};

mod attempt;
mod transport;
mod witness;

use attempt::Tried;
use transport::{Exchange, Transport};
pub use witness::Witness;

/// Limits of a [`Client`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// For a whole call, all tries and pauses included. Default 10 s.
    pub call_timeout: Duration,
    /// For one try, connecting included. Default 6 s: a node answers `unavailable` itself after 5 s.
    pub try_timeout: Duration,
    /// For connecting. Default 2 s.
    pub connect_timeout: Duration,
    /// How long to go on while nothing listens on any endpoint. Default 1 s: a node that restarts is back by then,
    /// and a mistyped address should not cost ten.
    pub refused_timeout: Duration,
    /// Greatest answer, bytes. Default 16 MiB: a SCAN page of 1000 keys with longest texts is about half of it.
    pub answer_bytes_max: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            call_timeout: Duration::from_secs(10),
            try_timeout: Duration::from_secs(6),
            connect_timeout: Duration::from_secs(2),
            refused_timeout: Duration::from_secs(1),
            answer_bytes_max: 16 << 20,
        }
    }
}

/// An answer and where it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Answered {
    /// The answer.
    pub answer: Answer,
    /// What the node swears by.
    pub witness: Witness,
    /// Which node answered, `host:port`.
    pub endpoint: String,
    /// The time before the answered try was sent.
    pub sent: Boottime,
    /// An earlier try of the call was in doubt: this may be the answer to a repetition.
    pub repeated: bool,
}

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Nothing listens there. Nothing happened.
    #[error("no node at {endpoints}")]
    Unreachable {
        /// All that were tried.
        endpoints: String,
    },
    /// The cluster cannot serve now. Nothing happened: safe to repeat.
    #[error("unavailable: {detail}")]
    Unavailable {
        /// The last try's trouble.
        detail: String,
    },
    /// The command may have had its effect, or have it later.
    #[error("outcome unknown: {detail}")]
    OutcomeUnknown {
        /// What happened to the try in doubt.
        detail: String,
    },
    /// The node refused the command. Nothing changed.
    #[error("{0}")]
    Refused(Box<Problem>),
    /// What answers there does not speak tenure.
    #[error("{endpoint} gave no answer of a tenure node: {detail}")]
    Protocol {
        /// Who.
        endpoint: String,
        /// What came instead.
        detail: String,
    },
    /// The request cannot be written down.
    #[error("the request is no JSON: {detail}")]
    Request {
        /// Why.
        detail: String,
    },
}

/// A handle on one cluster; clones share its connections.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    transport: Transport,
    endpoints: Vec<Endpoint>,
    /// Index of the endpoint that answered last: the next call begins there.
    preferred: AtomicUsize,
    options: Options,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("endpoints", &self.inner.endpoints).finish_non_exhaustive()
    }
}

impl Client {
    /// A client with default [`Options`]. Connects with the first call.
    pub fn new(uri: &Uri) -> Client {
        Client::with(uri, Options::default(), Arc::new(HostClock))
    }

    /// A client with these limits and this clock.
    pub fn with(uri: &Uri, options: Options, clock: Arc<dyn Clock>) -> Client {
        let transport = Transport::new(&options, Arc::clone(&clock));
        let endpoints = uri.endpoints().to_vec();
        Client { inner: Arc::new(Inner { transport, endpoints, preferred: AtomicUsize::new(0), options, clock }) }
    }

    /// The clock that [`Answered::sent`] is read from.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.clock
    }

    /// The client's limits.
    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    /// Sends a command with the client's own limits.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn call<R: Request>(&self, request: &R) -> Result<Answered, CallError> {
        self.call_within(request, self.inner.options.call_timeout, self.inner.options.try_timeout).await
    }

    /// Sends a command with limits of its own: for the whole call and for one try.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn call_within<R: Request>(
        &self,
        request: &R,
        call_timeout: Duration,
        try_timeout: Duration,
    ) -> Result<Answered, CallError> {
        let body = serde_json::to_vec(request).map_err(|error| CallError::Request { detail: error.to_string() })?;
        let exchange = Exchange::command(R::COMMAND, body.into(), request.repeat());
        self.run(&exchange, call_timeout, try_timeout).await
    }

    /// Sends a command whose body stands already, byte for byte. `repeat` says what its meaning allows.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn call_raw(&self, command: &str, body: Bytes, repeat: Repeat) -> Result<Answered, CallError> {
        let exchange = Exchange::command(command, body, repeat);
        self.run(&exchange, self.inner.options.call_timeout, self.inner.options.try_timeout).await
    }

    /// `GET /v1/status`: what the node that answers knows of itself, as it says it.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn status(&self) -> Result<serde_json::Value, CallError> {
        let exchange = Exchange::page("/v1/status");
        let answered = self.run(&exchange, self.inner.options.call_timeout, self.inner.options.try_timeout).await?;
        Ok(answered.answer.result)
    }

    async fn run(
        &self,
        exchange: &Exchange,
        call_timeout: Duration,
        try_timeout: Duration,
    ) -> Result<Answered, CallError> {
        let inner = &*self.inner;
        let started = Instant::now();
        let first = inner.preferred.load(Ordering::Relaxed);
        let mut row = Row::default();
        loop {
            row.refused = true;
            for n in 0..inner.endpoints.len() {
                let left = call_timeout.saturating_sub(started.elapsed());
                if left.is_zero() {
                    return Err(row.over(exchange));
                }
                let index = (first + n) % inner.endpoints.len();
                let tried = inner.transport.attempt(&inner.endpoints[index], exchange, left.min(try_timeout)).await;
                if let Some(end) = row.take(tried, exchange) {
                    inner.preferred.store(index, Ordering::Relaxed);
                    return end;
                }
            }
            if row.refused && row.doubt.is_none() && started.elapsed() >= inner.options.refused_timeout {
                return Err(CallError::Unreachable { endpoints: list(&inner.endpoints) });
            }
            let left = call_timeout.saturating_sub(started.elapsed());
            tokio::time::sleep(row.pause.next().min(left)).await;
        }
    }
}

/// What the tries of one call have come to.
#[derive(Default)]
struct Row {
    /// The last try that surely had no effect.
    last: String,
    /// The last try in doubt.
    doubt: Option<String>,
    /// Every try of this round was refused by the host: nothing listens.
    refused: bool,
    pause: Backoff,
}

impl Row {
    /// `Some` if the call is over.
    fn take(&mut self, tried: Tried, exchange: &Exchange) -> Option<Result<Answered, CallError>> {
        match tried {
            Tried::Answered(mut answered) => {
                answered.repeated = self.doubt.is_some();
                return Some(Ok(answered));
            }
            // What this try came to says nothing of an earlier one that may have had its effect, or have it yet.
            Tried::Over(error) => {
                return Some(Err(match self.doubt.take() {
                    Some(detail) => CallError::OutcomeUnknown { detail },
                    None => error,
                }));
            }
            Tried::Without { detail, refused } => {
                self.refused &= refused;
                self.last = detail;
            }
            Tried::InDoubt { detail } => {
                self.refused = false;
                match exchange.repeat {
                    Repeat::Never => return Some(Err(CallError::OutcomeUnknown { detail })),
                    Repeat::Read => self.last = detail,
                    Repeat::ByToken => self.doubt = Some(detail),
                }
            }
        }
        None
    }

    /// The time is up.
    fn over(self, exchange: &Exchange) -> CallError {
        match self.doubt {
            Some(detail) => CallError::OutcomeUnknown { detail },
            None if self.last.is_empty() => {
                CallError::Unavailable { detail: format!("no time was left to send {}", exchange.path) }
            }
            None => CallError::Unavailable { detail: self.last },
        }
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
pub(crate) fn jittered(whole: Duration) -> Duration {
    // Without randomness the pause is the whole: only the spread is lost.
    let random = getrandom::u32().unwrap_or(u32::MAX);
    whole.mul_f64(0.5 + 0.5 * f64::from(random) / f64::from(u32::MAX))
}

fn list(endpoints: &[Endpoint]) -> String {
    let all: Vec<String> = endpoints.iter().map(Endpoint::to_string).collect();
    all.join(", ")
}

#[cfg(test)]
mod tests;
