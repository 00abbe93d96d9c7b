//! `GET /v1/openapi.json`: the contract for tools. The document is written by hand, as data, and compiled in.
//!
//! It cannot drift unnoticed: `tests` hold it against the routes, the commands and their fields, limits and answers, the
//! reasons and the codes of the code, in both directions; `tests/openapi/check.sh` holds it against a running node.

#[cfg(test)]
mod tests;

use axum::body::Body;
use axum::http::{HeaderValue, Response, header};

/// OpenAPI 3.1.
const DOCUMENT: &str = include_str!("openapi.json");

/// The handler.
pub async fn document() -> Response<Body> {
    let mut response = Response::new(Body::from(DOCUMENT));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
