//! Opens an answer that does not end: a page of one endpoint, read as it comes. Which endpoint, and when again, is the
//! reader's business.

use std::sync::atomic::Ordering;

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header;

use super::Client;
use super::transport::trouble;
use crate::uri::Endpoint;
use crate::wire::Problem;

/// Greatest problem that is read.
const PROBLEM_BYTES_MAX: usize = 64 << 10;

/// A stream did not begin.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Unopened {
    /// No connection, no answer, or that of a server in trouble.
    Trouble(String),
    /// What answers tells no events.
    Unclear(String),
    /// The node says why not.
    Refused(Box<Problem>),
}

impl Client {
    /// All endpoints, and which of them a call would begin with.
    pub(crate) fn endpoints(&self) -> (&[Endpoint], usize) {
        (&self.inner.endpoints, self.inner.preferred.load(Ordering::Relaxed))
    }

    /// Asks one endpoint for an event stream, after that id if one is given. The answer's head has to come within the
    /// time for a try.
    pub(crate) async fn open_stream(
        &self,
        endpoint: &Endpoint,
        path: &str,
        after: Option<&str>,
    ) -> Result<Incoming, Unopened> {
        let mut request = hyper::Request::get(format!("http://{endpoint}{path}"))
            .header(header::ACCEPT, "text/event-stream")
            .header(header::CACHE_CONTROL, "no-store");
        if let Some(id) = after {
            request = request.header("last-event-id", id);
        }
        let request = self.inner.transport.empty(request).map_err(|error| Unopened::Trouble(error.to_string()))?;
        let timeout = self.inner.options.try_timeout;
        let response = match tokio::time::timeout(timeout, self.inner.transport.http.request(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(Unopened::Trouble(trouble(&error).0)),
            Err(_) => return Err(Unopened::Trouble(format!("no answer within {} ms", timeout.as_millis()))),
        };
        let status = response.status();
        let content = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let is_stream = content.is_some_and(|content| content.starts_with("text/event-stream"));
        if status.is_success() && is_stream {
            return Ok(response.into_body());
        }
        let unclear = || {
            let detail = format!("HTTP status {} without an event stream", status.as_u16());
            if status.is_server_error() { Unopened::Trouble(detail) } else { Unopened::Unclear(detail) }
        };
        let body = Limited::new(response.into_body(), PROBLEM_BYTES_MAX).collect();
        let Ok(Ok(body)) = tokio::time::timeout(timeout, body).await else { return Err(unclear()) };
        match serde_json::from_slice::<Problem>(&body.to_bytes()) {
            Ok(problem) if !status.is_success() => Err(Unopened::Refused(Box::new(problem))),
            _ => Err(unclear()),
        }
    }
}
