//! One cluster, asked over HTTP: endpoints in turn, inside one budget, repeated only where that is safe.
//!
//! # Model
//! A call is a row of tries. Each try goes to one endpoint and ends in one of these ways:
//! - answered: the call is over;
//! - refused with an error: the call is over;
//! - surely without effect (nothing connected, the body never left, `unavailable`): the next endpoint is tried at once,
//!   after a whole round with a growing, jittered pause;
//! - in doubt (`outcome_unknown`, no answer in time, connection lost after the body began to leave, an unreadable
//!   answer): the next endpoint is tried only where [`Repeat`] allows, else the call ends in
//!   [`CallError::OutcomeUnknown`].
//!
//! Whether the body left is not guessed from the error: the body itself notes when it is first read (a server cannot
//! obey a command that it never got).
//!
//! # Which endpoint
//! Any node serves everything. A call begins where the last one was answered; not where it was left without an answer,
//! and not at a node that closes its connections because it goes away. A node that cannot serve may name the leader:
//! that endpoint is tried next if it is one of the client's own. A name outside the list is ignored: whoever made the
//! list decided whom this client trusts with its tokens.
//!
//! # Time
//! In a round each endpoint gets its even share of what is left of the call, so that one that swallows packets leaves
//! room for the others. A command that left and must not be sent twice is waited for beyond its share: only the answer
//! can tell what became of it. Each try tells the node how long it is waited for (`Tenure-Timeout-Ms`), so that a command
//! which cannot be ordered by then is refused in time and not left in doubt; and none is begun that leaves no time for it.
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
#[doc(hidden)]
pub mod reading;
mod row;
mod streaming;
mod transport;
mod waiting;
mod witness;

pub(crate) use row::Backoff;
use row::{Round, Row, Step};
pub(crate) use streaming::Unopened;
use transport::{Budget, Exchange, Transport, WORTH_A_TRY};
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
    /// How often a node at which a command waits is asked whether it is there; after two failures in a row another node is
    /// asked. Default 2 s.
    pub probe_every: Duration,
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
            probe_every: Duration::from_secs(2),
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
    /// No endpoint could be connected to. Nothing happened.
    #[error("no node at {endpoints}: start one with `tenure serve`")]
    Unreachable {
        /// All that were tried, each with why.
        endpoints: String,
    },
    /// The cluster cannot serve now. Nothing happened: safe to repeat.
    #[error("unavailable: {detail}")]
    Unavailable {
        /// Each endpoint's last trouble.
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
        let exchange = Exchange::command(R::COMMAND, body(request)?, request.repeat());
        self.run(&exchange, call_timeout, try_timeout).await
    }

    /// Sends a command that is made for each try: one that tells the time.
    ///
    /// # Errors
    /// [`CallError`].
    pub(crate) async fn call_afresh<R: Request>(
        &self,
        make: impl Fn() -> R + Send + Sync + 'static,
        call_timeout: Duration,
        try_timeout: Duration,
    ) -> Result<Answered, CallError> {
        let first = make();
        body(&first)?;
        // What could be written once can be again.
        let exchange = move || body(&make()).unwrap_or_default();
        let exchange = Exchange::afresh(R::COMMAND, Box::new(exchange), first.repeat());
        self.run(&exchange, call_timeout, try_timeout).await
    }

    /// Sends a command whose body stands already, byte for byte. `repeat` says what its meaning allows.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn call_raw(&self, command: &str, body: Bytes, repeat: Repeat) -> Result<Answered, CallError> {
        self.call_raw_waiting(command, body, repeat, Duration::ZERO).await
    }

    /// The same for a command that waits so long at its node before it is answered.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn call_raw_waiting(
        &self,
        command: &str,
        body: Bytes,
        repeat: Repeat,
        wait: Duration,
    ) -> Result<Answered, CallError> {
        let exchange = Exchange::command(command, body, repeat);
        let Options { call_timeout, try_timeout, .. } = self.inner.options;
        self.run(&exchange, call_timeout.saturating_add(wait), try_timeout.saturating_add(wait)).await
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
        let left = || call_timeout.saturating_sub(started.elapsed());
        let count = inner.endpoints.len();
        let mut first = inner.preferred.load(Ordering::Relaxed);
        let mut row = Row::new(&inner.endpoints);
        loop {
            let mut round = Round::new(first, count);
            while let Some(index) = round.next() {
                let left = left();
                let least = if row.is_safe_to_leave(exchange) { WORTH_A_TRY } else { Duration::ZERO };
                if left <= least {
                    if let Some(next) = row.past_the_silent() {
                        inner.preferred.store(next, Ordering::Relaxed);
                    }
                    return Err(row.over(exchange));
                }
                let tried = inner.transport.attempt(
                    &inner.endpoints[index],
                    exchange,
                    Budget::new(left, round.left_with_this(), try_timeout),
                );
                match row.take(index, tried.await, exchange) {
                    Step::End { outcome, elsewhere } => {
                        let next = if elsewhere { (index + 1) % count } else { index };
                        inner.preferred.store(next, Ordering::Relaxed);
                        return outcome;
                    }
                    Step::Next { leader } => {
                        let leader = leader.and_then(|named| inner.endpoints.iter().position(|own| *own == named));
                        if let Some(leader) = leader {
                            round.prefer(leader);
                            first = leader;
                        }
                    }
                }
            }
            if row.nothing_listens() && started.elapsed() >= inner.options.refused_timeout {
                return Err(row.over(exchange));
            }
            tokio::time::sleep(row.pause().min(left())).await;
        }
    }
}

fn body<R: Request>(request: &R) -> Result<Bytes, CallError> {
    let body = serde_json::to_vec(request).map_err(|error| CallError::Request { detail: error.to_string() })?;
    Ok(body.into())
}

#[cfg(test)]
mod tests;
