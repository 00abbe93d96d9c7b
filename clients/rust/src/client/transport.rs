//! Carries one request to one endpoint over pooled HTTP/1.1 connections, and knows whether its body ever left.

use std::error::Error as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{self, HeaderName};
use hyper::{HeaderMap, Method, Response};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::attempt::{Raw, Tried, Why, Without, judge, unreadable};
use super::{Options, Witness};
use crate::time::{Boottime, Clock};
use crate::uri::Endpoint;
use crate::wire::Repeat;

/// Idle connections kept to one endpoint.
const IDLE_MAX: usize = 256;
/// How long an idle connection is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Greatest value of the header, a day.
const TIMEOUT_MS_MAX: u64 = 86_400_000;
/// With less time left no further try of a write is begun: it could end in nothing but doubt.
pub(super) const WORTH_A_TRY: Duration = Duration::from_millis(100);

/// What to ask, wherever it is asked.
pub(super) struct Exchange {
    method: Method,
    pub path: String,
    body: Content,
    pub repeat: Repeat,
    bare: bool,
}

/// What a try sends.
enum Content {
    /// The same each time.
    Fixed(Bytes),
    /// Made for each try.
    Afresh(Box<dyn Fn() -> Bytes + Send + Sync>),
}

impl Content {
    fn bytes(&self) -> Bytes {
        match self {
            Content::Fixed(bytes) => bytes.clone(),
            Content::Afresh(make) => make(),
        }
    }
}

/// Tells a node how long its answer is waited for: what it cannot order by then it refuses, instead of leaving us in doubt.
const TIMEOUT_MS: HeaderName = HeaderName::from_static("tenure-timeout-ms");

impl Exchange {
    pub fn command(command: &str, body: Bytes, repeat: Repeat) -> Exchange {
        Exchange::made(command, Content::Fixed(body), repeat)
    }

    /// A command whose body is made for each try.
    pub fn afresh(command: &str, make: Box<dyn Fn() -> Bytes + Send + Sync>, repeat: Repeat) -> Exchange {
        Exchange::made(command, Content::Afresh(make), repeat)
    }

    fn made(command: &str, body: Content, repeat: Repeat) -> Exchange {
        Exchange { method: Method::POST, path: format!("/v1/{command}"), body, repeat, bare: false }
    }

    pub fn page(path: &str) -> Exchange {
        let (method, path) = (Method::GET, path.to_owned());
        Exchange { method, path, body: Content::Fixed(Bytes::new()), repeat: Repeat::Read, bare: true }
    }

    /// How long a try waits for its answer once the body left.
    fn patience_ms(&self, budget: Budget) -> u64 {
        let time = if self.repeat == Repeat::Never { budget.whole } else { budget.share };
        u64::try_from(time.as_millis()).unwrap_or(u64::MAX).clamp(1, TIMEOUT_MS_MAX)
    }
}

/// Time for a try.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// Beyond it the next endpoint is worth more than this one.
    share: Duration,
    /// For a command in doubt that must not be sent twice: nothing but the answer helps.
    whole: Duration,
}

impl Budget {
    /// For the first of `endpoints` among which `left` is shared, at most `try_timeout`.
    pub fn new(left: Duration, endpoints: u32, try_timeout: Duration) -> Budget {
        Budget { share: (left / endpoints.max(1)).min(try_timeout), whole: left.min(try_timeout) }
    }
}

pub(super) struct Transport {
    pub http: legacy::Client<HttpConnector, Watched>,
    clock: Arc<dyn Clock>,
    answer_bytes_max: usize,
}

impl Transport {
    pub fn new(options: &Options, clock: Arc<dyn Clock>) -> Transport {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(options.connect_timeout));
        let http = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(IDLE_MAX)
            .build(connector);
        Transport { http, clock, answer_bytes_max: options.answer_bytes_max }
    }

    /// A request without a body.
    pub fn empty(&self, request: hyper::http::request::Builder) -> Result<hyper::Request<Watched>, hyper::http::Error> {
        request.body(Watched { body: Full::default(), left: Arc::default() })
    }

    /// One try.
    pub async fn attempt(&self, endpoint: &Endpoint, exchange: &Exchange, budget: Budget) -> Tried {
        let left = Arc::new(AtomicBool::new(false));
        let body = exchange.body.bytes();
        let is_bodiless = body.is_empty();
        let request = hyper::Request::builder()
            .method(exchange.method.clone())
            .uri(format!("http://{endpoint}{}", exchange.path))
            .header(header::CONTENT_TYPE, "application/json")
            .header(TIMEOUT_MS, exchange.patience_ms(budget))
            .body(Watched { body: Full::new(body), left: Arc::clone(&left) });
        let request = match request {
            Ok(request) => request,
            Err(error) => {
                return Tried::Without(Without { detail: error.to_string(), why: Why::NoWay, leader: None });
            }
        };
        let sent = self.clock.now();
        let has_left = || left.load(Ordering::Acquire);
        let answer = async {
            let response = self.http.request(request).await.map_err(|error| trouble(&error))?;
            Ok(self.read(endpoint, exchange, sent, response).await)
        };
        tokio::pin!(answer);
        let in_share = tokio::time::timeout(budget.share, &mut answer).await;
        let (in_time, waited) = match in_share {
            Err(_) if exchange.repeat == Repeat::Never && has_left() => {
                (tokio::time::timeout(budget.whole.saturating_sub(budget.share), answer).await, budget.whole)
            }
            in_share => (in_share, budget.share),
        };
        let (detail, why) = match in_time {
            Ok(Ok(tried)) => return tried,
            Ok(Err(trouble)) => trouble,
            // Of an empty body nobody knows whether it left.
            Err(_) if has_left() || is_bodiless => (format!("no answer within {} ms", waited.as_millis()), Why::NoWay),
            Err(_) => (format!("no connection within {} ms", waited.as_millis()), Why::NoWay),
        };
        if has_left() { Tried::InDoubt { detail } } else { Tried::Without(Without { detail, why, leader: None }) }
    }

    async fn read(
        &self,
        endpoint: &Endpoint,
        exchange: &Exchange,
        sent: Boottime,
        response: Response<Incoming>,
    ) -> Tried {
        let status = response.status();
        let witness = Witness::of(response.headers());
        let closing = closes(response.headers());
        let body = match Limited::new(response.into_body(), self.answer_bytes_max).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => {
                let detail = format!("the answer is larger than {} bytes", self.answer_bytes_max);
                return unreadable(endpoint.to_string(), exchange.repeat, &detail);
            }
            Err(error) => return Tried::InDoubt { detail: format!("the answer broke off: {error}") },
        };
        let (repeat, bare) = (exchange.repeat, exchange.bare);
        judge(Raw { endpoint: endpoint.to_string(), status, witness, body: &body, sent, repeat, bare, closing })
    }
}

/// A request body that notes when it is first read: until then no byte of the command can have left.
pub(super) struct Watched {
    body: Full<Bytes>,
    left: Arc<AtomicBool>,
}

impl Body for Watched {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::convert::Infallible>>> {
        self.left.store(true, Ordering::Release);
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Will the node close the connection after its answer?
fn closes(headers: &HeaderMap) -> bool {
    let options = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    options.flat_map(|value| value.split(',')).any(|option| option.trim().eq_ignore_ascii_case("close"))
}

/// What went wrong, in few words.
pub(super) fn trouble(error: &legacy::Error) -> (String, Why) {
    match root_cause(error) {
        Some(std::io::ErrorKind::ConnectionRefused) => ("connection refused".to_owned(), Why::Refused),
        Some(std::io::ErrorKind::TimedOut) if error.is_connect() => ("connecting timed out".to_owned(), Why::NoWay),
        _ => (with_causes(error), Why::NoWay),
    }
}

/// The kind of the innermost I/O error.
fn root_cause(error: &legacy::Error) -> Option<std::io::ErrorKind> {
    let mut kind = None;
    let mut cause = error.source();
    while let Some(error) = cause {
        kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind).or(kind);
        cause = error.source();
    }
    kind
}

/// The whole chain in one line.
fn with_causes(error: &legacy::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
