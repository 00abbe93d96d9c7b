//! Reads a request's body: declared as JSON, at most 1 MiB, within a time.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body as _;

use super::problem::{Code, Problem};

/// Greatest body in bytes.
pub const BYTES_MAX: usize = 1024 * 1024;
/// A body that is too large is read and dropped up to this size before the refusal, so that a client which is still
/// sending sees the answer rather than a reset.
const DISCARD_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Refuses a body that is not declared as JSON.
pub fn require_json(headers: &HeaderMap) -> Result<(), Problem> {
    let declared = headers.get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap_or_default());
    let essence = declared.map(|value| value.split(';').next().unwrap_or_default().trim());
    if essence.is_some_and(|essence| essence.eq_ignore_ascii_case("application/json")) {
        return Ok(());
    }
    let got = declared.map_or("none".to_owned(), |value| format!("{value:?}"));
    let help = "send the header \"Content-Type: application/json\"; with curl: curl --json '{…}' URL";
    Err(Problem::new(Code::UnsupportedMediaType, format!("the body's content type must be JSON; got {got}: {help}")))
}

/// Reads the whole body.
pub async fn read(mut body: Body, timeout: Duration) -> Result<Bytes, Problem> {
    let declared = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    match tokio::time::timeout(timeout, collect(&mut body, declared)).await {
        Ok(result) => result,
        Err(_) => {
            let detail = format!("the body did not arrive within {} ms", timeout.as_millis());
            Err(Problem::new(Code::RequestTimeout, detail))
        }
    }
}

async fn collect(body: &mut Body, declared: usize) -> Result<Bytes, Problem> {
    let mut bytes = BytesMut::new();
    let mut seen = 0_usize;
    while declared <= DISCARD_BYTES_MAX && seen <= DISCARD_BYTES_MAX {
        let Some(frame) = body.frame().await else { break };
        let frame = frame.map_err(|error| {
            Problem::new(Code::InvalidArgument, format!("the body ended before it was complete: {error}"))
        })?;
        let Ok(data) = frame.into_data() else { continue };
        seen = seen.saturating_add(data.len());
        if seen == data.len() && body.is_end_stream() && seen <= BYTES_MAX {
            return Ok(data);
        }
        if seen.max(declared) <= BYTES_MAX {
            bytes.extend_from_slice(&data);
        }
    }
    if seen.max(declared) > BYTES_MAX {
        return Err(Problem::new(Code::TooLarge, format!("the body must be at most {BYTES_MAX} bytes")));
    }
    Ok(bytes.freeze())
}
