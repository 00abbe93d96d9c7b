//! Probes. `/livez`: the process serves (restart it when this fails). `/readyz`: it can commit (send it work).

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use std::sync::atomic::Ordering;

use super::Api;
use super::problem::{Code, Problem};

/// `GET /livez`: always 200.
pub async fn livez() -> &'static str {
    "ok\n"
}

/// `GET /readyz`: 200, or 503 with the reason.
pub async fn readyz(State(api): State<Api>) -> Response {
    if api.shared.draining.load(Ordering::Acquire) {
        return Problem::new(Code::Unavailable, "draining").into_response();
    }
    match api.shared.cluster.status().not_ready {
        None => "ok\n".into_response(),
        Some(reason) => Problem::new(Code::Unavailable, reason).into_response(),
    }
}
