//! Errors on the wire: `application/problem+json` (RFC 9457) with a stable `code`.

use serde::{Deserialize, Serialize};

/// An error: `application/problem+json` (RFC 9457).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// A URI reference: `/problems/<code>`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Short, fixed per code.
    pub title: String,
    /// HTTP status.
    pub status: u16,
    /// Stable code, e.g. `invalid_argument`.
    pub code: String,
    /// What was wrong this time and what to do.
    pub detail: String,
    /// The offending field, e.g. `args.ttl_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The offending item of a BATCH.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    /// `unavailable`: whom the node takes for the leader, its address for clients. A hint where to try next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
}

impl Problem {
    /// A problem of that code; title and status follow from it.
    pub fn new(code: Code, detail: impl Into<String>) -> Problem {
        Problem {
            kind: format!("/problems/{}", code.as_str()),
            title: code.title().to_owned(),
            status: code.status(),
            code: code.as_str().to_owned(),
            detail: detail.into(),
            field: None,
            index: None,
            leader: None,
        }
    }

    /// The same, naming the offending field.
    #[must_use]
    pub fn field(mut self, field: impl Into<String>) -> Problem {
        self.field = Some(field.into());
        self
    }

    /// Is it of that code?
    pub fn is(&self, code: Code) -> bool {
        self.code == code.as_str()
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code, self.detail)?;
        if let Some(field) = &self.field {
            write!(f, " (field {field})")?;
        }
        if let Some(index) = self.index {
            write!(f, " (item {index} of the batch)")?;
        }
        Ok(())
    }
}

/// The codes: fixed, each with one status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// A field is missing, unknown, of the wrong type or out of range.
    InvalidArgument,
    /// No credentials.
    Unauthenticated,
    /// The credentials do not allow it.
    PermissionDenied,
    /// OP and the like on a key that does not exist.
    NoSuchKey,
    /// No such path.
    NotFound,
    /// The path takes another method.
    MethodNotAllowed,
    /// The body came too slowly.
    RequestTimeout,
    /// CREATE of a key that exists.
    AlreadyExists,
    /// The key is of another type.
    WrongType,
    /// The request names another cluster.
    WrongCluster,
    /// The body is too large.
    TooLarge,
    /// The body is not JSON by its content type.
    UnsupportedMediaType,
    /// Too many requests.
    RateLimited,
    /// A fault of the node.
    Internal,
    /// Surely without effect: safe to repeat.
    Unavailable,
    /// May have had its effect, or have it later.
    OutcomeUnknown,
}

impl Code {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Code::InvalidArgument => "invalid_argument",
            Code::Unauthenticated => "unauthenticated",
            Code::PermissionDenied => "permission_denied",
            Code::NoSuchKey => "no_such_key",
            Code::NotFound => "not_found",
            Code::MethodNotAllowed => "method_not_allowed",
            Code::RequestTimeout => "request_timeout",
            Code::AlreadyExists => "already_exists",
            Code::WrongType => "wrong_type",
            Code::WrongCluster => "wrong_cluster",
            Code::TooLarge => "too_large",
            Code::UnsupportedMediaType => "unsupported_media_type",
            Code::RateLimited => "rate_limited",
            Code::Internal => "internal",
            Code::Unavailable => "unavailable",
            Code::OutcomeUnknown => "outcome_unknown",
        }
    }

    /// The HTTP status.
    pub const fn status(self) -> u16 {
        match self {
            Code::InvalidArgument => 400,
            Code::Unauthenticated => 401,
            Code::PermissionDenied => 403,
            Code::NoSuchKey | Code::NotFound => 404,
            Code::MethodNotAllowed => 405,
            Code::RequestTimeout => 408,
            Code::AlreadyExists | Code::WrongType | Code::WrongCluster => 409,
            Code::TooLarge => 413,
            Code::UnsupportedMediaType => 415,
            Code::RateLimited => 429,
            Code::Internal => 500,
            Code::Unavailable => 503,
            Code::OutcomeUnknown => 504,
        }
    }

    /// Short and fixed, for people.
    pub const fn title(self) -> &'static str {
        match self {
            Code::InvalidArgument => "Invalid argument",
            Code::Unauthenticated => "Not authenticated",
            Code::PermissionDenied => "Permission denied",
            Code::NoSuchKey => "No such key",
            Code::NotFound => "Not found",
            Code::MethodNotAllowed => "Method not allowed",
            Code::RequestTimeout => "Request came too slowly",
            Code::AlreadyExists => "Key already exists",
            Code::WrongType => "Key is of another type",
            Code::WrongCluster => "Another cluster",
            Code::TooLarge => "Too large",
            Code::UnsupportedMediaType => "Unsupported media type",
            Code::RateLimited => "Too many requests",
            Code::Internal => "Internal error",
            Code::Unavailable => "Unavailable, safe to repeat",
            Code::OutcomeUnknown => "Outcome unknown",
        }
    }
}
