//! Probes. `/livez`: the process serves (restart it when this fails). `/readyz`: it can commit (send it work).

use axum::extract::State;
use axum::response::{IntoResponse, Response};

use super::Api;
use super::problem::{Code, Problem};

/// `GET /livez`: always 200.
pub async fn livez() -> &'static str {
    "ok\n"
}

/// `GET /readyz`: 200, or 503 with the reason.
pub async fn readyz(State(api): State<Api>) -> Response {
    match api.not_ready(&api.shared.cluster.status()) {
        None => "ok\n".into_response(),
        Some(reason) => Problem::new(Code::Unavailable, reason).into_response(),
    }
}
