//! Errors on the wire: `application/problem+json` (RFC 9457) with a stable `code`. Codes and their statuses are fixed;
//! texts are not.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use tenure_client::wire;
pub use tenure_client::wire::Code;
use tenure_cluster::{ReadError, SubmitError};

use super::convert::{Invalid, Refused};
use crate::keyspace::{LeaseArgument, Refusal};

/// An error answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Its code.
    pub code: Code,
    /// What was wrong this time and what to do.
    pub detail: String,
    /// The offending field.
    pub field: Option<String>,
    /// The offending item of a BATCH.
    pub index: Option<usize>,
    /// `unavailable`: the leader's address for clients.
    pub leader: Option<String>,
}

impl Problem {
    /// A problem that no single field is to blame for.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), field: None, index: None, leader: None }
    }

    /// As the wire has it.
    pub fn to_wire(&self) -> wire::Problem {
        wire::Problem {
            field: self.field.clone(),
            index: self.index,
            leader: self.leader.clone(),
            ..wire::Problem::new(self.code, self.detail.clone())
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response<Body> {
        let status = StatusCode::from_u16(self.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let json = serde_json::to_vec(&self.to_wire()).unwrap_or_default();
        let mut response = Response::new(Body::from(json));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if matches!(self.code, Code::Unavailable | Code::RateLimited) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Self {
        let Invalid { field, index, detail } = invalid;
        Self { code: Code::InvalidArgument, detail, field, index, leader: None }
    }
}

impl From<SubmitError> for Problem {
    fn from(error: SubmitError) -> Self {
        let code = match error {
            SubmitError::Unavailable(_) => Code::Unavailable,
            SubmitError::OutcomeUnknown => Code::OutcomeUnknown,
            SubmitError::TooLarge { .. } => Code::TooLarge,
            SubmitError::Internal(_) => Code::Internal,
        };
        Self::new(code, error.to_string())
    }
}

impl From<ReadError> for Problem {
    fn from(ReadError::Unavailable(why): ReadError) -> Self {
        Self::new(Code::Unavailable, why)
    }
}

impl From<&Refusal> for Problem {
    fn from(refused: &Refusal) -> Self {
        let (code, detail) = refusal(refused);
        let field = match refused {
            Refusal::TtlAboveMax { .. } => Some("args.ttl_ms".to_owned()),
            Refusal::NotForPool(argument) => Some(format!("args.{}", argument_name(*argument))),
            Refusal::IdMissing => Some("args.id".to_owned()),
            Refusal::SizeAboveMax { .. } => Some("args.size".to_owned()),
            _ => None,
        };
        Self { code, detail, field, index: None, leader: None }
    }
}

impl From<Refused<'_>> for Problem {
    fn from(Refused { refusal, index }: Refused<'_>) -> Self {
        Self { index: index.and_then(|index| usize::try_from(index).ok()), ..Self::from(refusal) }
    }
}

/// Code and text of a refusal.
pub fn refusal(refusal: &Refusal) -> (Code, String) {
    match refusal {
        Refusal::NoSuchKey => {
            (Code::NoSuchKey, "no such key: CREATE it first, or ACQUIRE a lease with \"create\": true".to_owned())
        }
        Refusal::AlreadyExists => (Code::AlreadyExists, "the key exists".to_owned()),
        Refusal::WrongType => {
            let detail = "the key is a lease; identity, unix_ms, id, RESIZE and HOLDERS are for keys of type pool";
            (Code::WrongType, detail.to_owned())
        }
        Refusal::TtlAboveMax { max } => {
            (Code::InvalidArgument, format!("args.ttl_ms must be at most {max}, the key's option ttl_ms_max"))
        }
        // The store is what is too large, not the request; a retry will not help until keys are deleted.
        Refusal::KeysMax { max } => {
            (Code::TooLarge, format!("the keyspace holds its limit of {max} keys: delete some first"))
        }
        Refusal::FenceExhausted => (Code::Internal, "the fence counter is used up (2^53)".to_owned()),
        Refusal::NotForPool(argument) => {
            let name = argument_name(*argument);
            (Code::InvalidArgument, format!("args.{name} is for leases, and the key is a pool: leave it out"))
        }
        Refusal::IdMissing => (
            Code::InvalidArgument,
            "args.id is missing: the key is a pool, say which slot (HOLDERS lists them)".to_owned(),
        ),
        Refusal::SizeAboveMax { max } => {
            (Code::InvalidArgument, format!("args.size must be at most {max} for this pool: ids end at 4294967295"))
        }
    }
}

const fn argument_name(argument: LeaseArgument) -> &'static str {
    match argument {
        LeaseArgument::MinHoldMs => "min_hold_ms",
        LeaseArgument::DelayMs => "delay_ms",
    }
}
