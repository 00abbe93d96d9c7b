//! `POST /v1/cluster/…`: an operator changes the cluster itself. Any node takes it and passes it to the leader.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use axum::response::IntoResponse;
use serde_json::json;
use tenure_cluster::error::ReplaceError;

use super::problem::{Code, Problem};
use super::{Api, body, convert, status};

/// `POST /v1/cluster/replace {"node_id": 3}`: an empty data directory may take the place of the one that voter lost. May
/// be repeated.
pub async fn replace(State(api): State<Api>, request: Request) -> Response<Body> {
    match try_replace(&api, request).await {
        Ok(()) => status::json(&json!({"result": true})),
        Err(problem) => problem.into_response(),
    }
}

async fn try_replace(api: &Api, request: Request) -> Result<(), Problem> {
    let (parts, body) = request.into_parts();
    body::require_json(&parts.headers)?;
    let id = convert::node_id(&body::read(body, api.shared.body_timeout).await?)?;
    api.shared.cluster.replace(id).await.map_err(|error| match error {
        ReplaceError::Refused(why) => {
            Problem { field: Some("node_id".to_owned()), ..Problem::new(Code::InvalidArgument, why) }
        }
        // Repeating it is safe, and brings to its end what was cut short.
        ReplaceError::Unavailable(why) => Problem::new(Code::Unavailable, why),
    })
}
