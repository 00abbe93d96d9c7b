//! A command that a node answers only after a while: it stands in a line there, and its place outlives the node.
//!
//! # Model
//! One try waits at one node. It is the row of tries of [`Client::call_within`] stretched over the wait: a try that had no
//! effect, or is in doubt, is followed by the next at another endpoint, with the same token and what is left of the wait.
//! The place in the line belongs to the token, and is kept for some seconds after its node has gone.
//!
//! A node that goes silent would be waited for to the end. So while a try waits, the node's `/livez` is asked every
//! [`Options::probe_every`](super::Options) on a connection of its own; after [`PROBES_MAX`] failures in a row the next endpoint is asked. The old
//! try stays open beside the new one, and what it still brings counts if it is a grant: closing it first could make its
//! node give up the place before the new one is in the line.
//!
//! The answer `superseded` says that a newer call of the token took the place. Where this row has sent more than one try
//! that may be an older one which arrived late, so the row asks again, a few times.
//!
//! # Limits
//! A try waits at most [`TRY_WAIT_MAX`] at its node, and is renewed in half of that, so that a longer wait keeps its
//! place. An answer is waited for [`Options::try_timeout`](super::Options) beyond the wait. Two tries are open at most.

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::Request as HttpRequest;
use tokio::time::Instant;

use super::attempt::Tried;
use super::row::{Round, Row, Step};
use super::transport::{Budget, Exchange};
use super::{Answered, CallError, Client, body};
use crate::uri::Endpoint;
use crate::wire::{Answer, Request, WAIT_MS_MAX, reason};

/// How long the answer to a probe may take.
const PROBE_TIMEOUT: Duration = Duration::from_millis(1_500);
/// Greatest answer to a probe that is read.
const PROBE_BYTES_MAX: usize = 64 << 10;
/// Failures in a row after which another node is asked.
const PROBES_MAX: u32 = 2;
/// Longest wait of one try.
const TRY_WAIT_MAX: Duration = Duration::from_millis(WAIT_MS_MAX);
/// Times that a row asks again after it was superseded.
const SUPERSEDED_MAX: u32 = 8;

/// A try that is under way. Owns all it needs, so that it can be waited for beside others.
struct Open {
    index: usize,
    tried: Pin<Box<dyn Future<Output = Tried> + Send>>,
    /// Ends when this try is no longer worth waiting for alone.
    gives_out: Pin<Box<dyn Future<Output = &'static str> + Send>>,
}

/// What came of waiting.
enum Next {
    /// The try of now ended.
    Ended(usize, Tried),
    /// The try before it ended.
    Late(Tried),
    /// The try of now goes on, and the next endpoint is to be asked beside it.
    Move(&'static str),
    /// The pause is over.
    Rested,
}

/// A row of waiting tries.
struct Line<'a> {
    client: &'a Client,
    row: Row<'a>,
    round: Round,
    now: Option<Open>,
    before: Option<Open>,
    tries: u32,
    superseded_left: u32,
}

impl Client {
    /// Sends the command that `request` makes for a wait of so many milliseconds, until `wait` is over.
    ///
    /// # Errors
    /// [`CallError`], once the wait is over without an answer, or at once for what no other node would change.
    pub(crate) async fn call_waiting<R: Request>(
        &self,
        wait: Duration,
        request: impl Fn(u64) -> R + Send + Sync,
    ) -> Result<Answered, CallError> {
        let started = Instant::now();
        let left = || wait.saturating_sub(started.elapsed());
        let exchange = |left: Duration| {
            let ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).clamp(1, WAIT_MS_MAX);
            let request = request(ms);
            Ok::<_, CallError>(Exchange::command(R::COMMAND, body(&request)?, request.repeat()))
        };
        let mut line = Line::new(self);
        loop {
            let mut pause = None;
            if line.now.is_none() {
                let left = left();
                if left.is_zero() && line.tries > 0 {
                    return Err(line.over(&exchange(left)?));
                }
                match line.round.next() {
                    Some(index) => line.begin(index, exchange(left)?, left.min(TRY_WAIT_MAX)),
                    None => pause = Some(line.another_round().min(left)),
                }
            }
            match line.next(pause).await {
                Next::Ended(index, tried) => {
                    if let Some(outcome) = line.take(index, tried, &exchange(left())?) {
                        return outcome;
                    }
                }
                Next::Late(tried) => {
                    if let Some(answered) = line.late(tried) {
                        return Ok(answered);
                    }
                }
                Next::Move(why) => line.move_on(why, &exchange(left())?),
                Next::Rested => {}
            }
        }
    }

    /// Returns when so many probes of that endpoint failed in a row.
    async fn silence(self, endpoint: Endpoint) {
        let mut failed = 0;
        while failed < PROBES_MAX {
            tokio::time::sleep(self.inner.options.probe_every).await;
            failed = if self.lives(&endpoint).await { 0 } else { failed + 1 };
        }
    }

    /// Does anybody answer there? Whatever it says, if it is no server's error.
    async fn lives(&self, endpoint: &Endpoint) -> bool {
        let transport = &self.inner.transport;
        let Ok(probe) = transport.empty(HttpRequest::get(format!("http://{endpoint}/livez"))) else { return false };
        let answer = async {
            let answer = transport.http.request(probe).await.ok()?;
            let lives = !answer.status().is_server_error();
            // Read, so that the connection serves the next probe.
            let _ = Limited::new(answer.into_body(), PROBE_BYTES_MAX).collect().await;
            Some(lives)
        };
        let timeout = PROBE_TIMEOUT.min(self.inner.options.probe_every);
        matches!(tokio::time::timeout(timeout, answer).await, Ok(Some(true)))
    }
}

impl<'a> Line<'a> {
    fn new(client: &'a Client) -> Line<'a> {
        let endpoints = &client.inner.endpoints;
        let first = client.inner.preferred.load(Ordering::Relaxed);
        Line {
            client,
            row: Row::new(endpoints),
            round: Round::new(first, endpoints.len()),
            now: None,
            before: None,
            tries: 0,
            superseded_left: SUPERSEDED_MAX,
        }
    }

    fn begin(&mut self, index: usize, exchange: Exchange, wait: Duration) {
        let client = self.client.clone();
        let endpoint = client.inner.endpoints[index].clone();
        let patience = wait.saturating_add(client.inner.options.try_timeout);
        let silence = client.clone().silence(endpoint.clone());
        let tried = async move {
            client.inner.transport.attempt(&endpoint, &exchange, Budget::new(patience, 1, patience)).await
        };
        let gives_out = async move {
            tokio::select! {
                () = silence => "it gave no sign of life",
                () = tokio::time::sleep(TRY_WAIT_MAX / 2) => "it was asked half a day ago",
            }
        };
        self.tries = self.tries.saturating_add(1);
        self.now = Some(Open { index, tried: Box::pin(tried), gives_out: Box::pin(gives_out) });
    }

    /// Waits for the try of now, or `pause` if there is none; and for the one before.
    async fn next(&mut self, pause: Option<Duration>) -> Next {
        let (now, before) = (&mut self.now, &mut self.before);
        let late = async {
            match before {
                Some(open) => open.tried.as_mut().await,
                None => std::future::pending().await,
            }
        };
        let ended = async {
            match now {
                Some(open) => tokio::select! { biased;
                    tried = open.tried.as_mut() => Next::Ended(open.index, tried),
                    why = open.gives_out.as_mut() => Next::Move(why),
                },
                None => {
                    tokio::time::sleep(pause.unwrap_or_default()).await;
                    Next::Rested
                }
            }
        };
        let next = tokio::select! { biased;
            next = ended => next,
            tried = late => Next::Late(tried),
        };
        match next {
            Next::Ended(..) => self.now = None,
            Next::Late(_) => self.before = None,
            Next::Move(_) | Next::Rested => {}
        }
        next
    }

    /// What follows from the end of the try of now; `None`: the next one.
    fn take(&mut self, index: usize, tried: Tried, exchange: &Exchange) -> Option<Result<Answered, CallError>> {
        let tried = match tried {
            Tried::Answered { answered, .. } if self.asks_again(&answered.answer) => {
                Tried::InDoubt { detail: "a copy of the same call took its place".to_owned() }
            }
            tried => tried,
        };
        let count = self.client.inner.endpoints.len();
        match self.row.take(index, tried, exchange) {
            Step::End { outcome, elsewhere } => {
                let next = if elsewhere { (index + 1) % count } else { index };
                self.client.inner.preferred.store(next, Ordering::Relaxed);
                Some(outcome)
            }
            Step::Next { leader } => {
                let own = leader.and_then(|named| self.client.inner.endpoints.iter().position(|own| *own == named));
                if let Some(own) = own {
                    self.round.prefer(own);
                }
                None
            }
        }
    }

    /// Was it superseded by a copy of its own? Nobody else knows a token that was made for one attempt; another's may be
    /// used by another process as well, and then only several tries make it likely.
    fn asks_again(&mut self, answer: &Answer) -> bool {
        let again = answer.reason() == Some(reason::SUPERSEDED) && self.tries > 1 && self.superseded_left > 0;
        self.superseded_left -= u32::from(again);
        again
    }

    /// Of a try that another one has followed only a grant counts.
    fn late(&mut self, tried: Tried) -> Option<Answered> {
        match tried {
            Tried::Answered { mut answered, .. } if answered.answer.grants() => {
                answered.repeated = true;
                Some(answered)
            }
            _ => None,
        }
    }

    /// The try of now becomes the one before; the next endpoint is asked.
    fn move_on(&mut self, why: &str, exchange: &Exchange) {
        self.before = self.now.take();
        if let Some(open) = &self.before {
            // It is in doubt: its outcome counts only if it comes.
            let _ = self.row.take(open.index, Tried::InDoubt { detail: why.to_owned() }, exchange);
        }
    }

    /// Each endpoint once more, after that pause.
    fn another_round(&mut self) -> Duration {
        let first = self.client.inner.preferred.load(Ordering::Relaxed);
        self.round = Round::new(first, self.client.inner.endpoints.len());
        self.row.pause()
    }

    fn over(self, exchange: &Exchange) -> CallError {
        if let Some(next) = self.row.past_the_silent() {
            self.client.inner.preferred.store(next, Ordering::Relaxed);
        }
        self.row.over(exchange)
    }
}
