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
use hyper::{Method, Response, header};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::attempt::{Raw, Tried, judge, unreadable};
use super::{Options, Witness};
use crate::time::{Boottime, Clock};
use crate::uri::Endpoint;
use crate::wire::Repeat;

/// Idle connections kept to one endpoint.
const IDLE_MAX: usize = 256;
/// How long an idle connection is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// What to ask, wherever it is asked.
pub(super) struct Exchange {
    method: Method,
    pub path: String,
    body: Bytes,
    pub repeat: Repeat,
    bare: bool,
}

impl Exchange {
    pub fn command(command: &str, body: Bytes, repeat: Repeat) -> Exchange {
        Exchange { method: Method::POST, path: format!("/v1/{command}"), body, repeat, bare: false }
    }

    pub fn page(path: &str) -> Exchange {
        let (method, path) = (Method::GET, path.to_owned());
        Exchange { method, path, body: Bytes::new(), repeat: Repeat::Read, bare: true }
    }
}

pub(super) struct Transport {
    http: legacy::Client<HttpConnector, Watched>,
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

    /// One try.
    pub async fn attempt(&self, endpoint: &Endpoint, exchange: &Exchange, timeout: Duration) -> Tried {
        let left = Arc::new(AtomicBool::new(false));
        let request = hyper::Request::builder()
            .method(exchange.method.clone())
            .uri(format!("http://{endpoint}{}", exchange.path))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Watched { body: Full::new(exchange.body.clone()), left: Arc::clone(&left) });
        let request = match request {
            Ok(request) => request,
            Err(error) => return Tried::Without { detail: format!("{endpoint}: {error}"), refused: false },
        };
        let sent = self.clock.now();
        let in_time = tokio::time::timeout(timeout, async {
            let response = self.http.request(request).await.map_err(|error| {
                let refused = root_cause(&error) == Some(std::io::ErrorKind::ConnectionRefused);
                (with_causes(&error), refused)
            })?;
            Ok(self.read(endpoint, exchange, sent, response).await)
        });
        let (detail, refused) = match in_time.await {
            Ok(Ok(tried)) => return tried,
            Ok(Err((detail, refused))) => (format!("{endpoint}: {detail}"), refused),
            Err(_) => (format!("{endpoint}: no answer within {} ms", timeout.as_millis()), false),
        };
        if left.load(Ordering::Acquire) { Tried::InDoubt { detail } } else { Tried::Without { detail, refused } }
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
        let body = match Limited::new(response.into_body(), self.answer_bytes_max).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => {
                let detail = format!("the answer is larger than {} bytes", self.answer_bytes_max);
                return unreadable(endpoint.to_string(), exchange.repeat, &detail);
            }
            Err(error) => return Tried::InDoubt { detail: format!("{endpoint}: the answer broke off: {error}") },
        };
        let (repeat, bare) = (exchange.repeat, exchange.bare);
        judge(Raw { endpoint: endpoint.to_string(), status, witness, body: &body, sent, repeat, bare })
    }
}

/// A request body that notes when it is first read: until then no byte of the command can have left.
struct Watched {
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
