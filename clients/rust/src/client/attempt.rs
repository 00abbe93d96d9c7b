//! One try, judged: what an HTTP answer (or its absence) says about the command. Pure.

use hyper::StatusCode;

use super::{Answered, CallError, Witness};
use crate::time::Boottime;
use crate::wire::{Answer, Code, Problem, Repeat};

/// How a try ended.
#[derive(Debug)]
pub(super) enum Tried {
    /// With an answer.
    Answered(Answered),
    /// With an error that no other endpoint would change.
    Over(CallError),
    /// Surely without effect.
    Without {
        /// What happened.
        detail: String,
        /// The host refused the connection: nothing listens.
        refused: bool,
    },
    /// Perhaps with effect.
    InDoubt {
        /// What happened.
        detail: String,
    },
}

/// An answer as it came.
pub(super) struct Raw<'a> {
    /// From whom.
    pub endpoint: String,
    pub status: StatusCode,
    pub witness: Witness,
    pub body: &'a [u8],
    /// The time before the request was sent.
    pub sent: Boottime,
    pub repeat: Repeat,
    /// The body is a bare JSON value, not `{"result": …}`.
    pub bare: bool,
}

/// What it says.
pub(super) fn judge(raw: Raw<'_>) -> Tried {
    if raw.status.is_success() {
        return answer(raw);
    }
    let Ok(problem) = serde_json::from_slice::<Problem>(raw.body) else {
        let detail = format!("HTTP status {} without a problem+json body", raw.status.as_u16());
        // A proxy's 5xx may stand for a request that reached a node.
        return if raw.status.is_server_error() {
            Tried::InDoubt { detail: format!("{}: {detail}", raw.endpoint) }
        } else {
            Tried::Over(CallError::Protocol { endpoint: raw.endpoint, detail })
        };
    };
    if problem.is(Code::Unavailable) {
        return Tried::Without { detail: format!("{}: {}", raw.endpoint, problem.detail), refused: false };
    }
    // A fault of the node says nothing about how far the command came; of a read it does not matter.
    let doubtful = problem.is(Code::OutcomeUnknown) || (problem.is(Code::Internal) && raw.repeat != Repeat::Read);
    if doubtful {
        return Tried::InDoubt { detail: format!("{}: {}", raw.endpoint, problem.detail) };
    }
    Tried::Over(CallError::Refused(Box::new(problem)))
}

fn answer(raw: Raw<'_>) -> Tried {
    let parsed = if raw.bare {
        serde_json::from_slice(raw.body).map(|result| Answer { result, ..Answer::default() })
    } else {
        serde_json::from_slice::<Answer>(raw.body)
    };
    match parsed {
        Ok(answer) => Tried::Answered(Answered {
            answer,
            witness: raw.witness,
            endpoint: raw.endpoint,
            sent: raw.sent,
            repeated: false,
        }),
        Err(error) => unreadable(raw.endpoint, raw.repeat, &format!("the answer is unreadable: {error}")),
    }
}

/// Something answered "done", and what was done cannot be read: of a read that is the endpoint's fault, of a write the
/// effect is in doubt.
pub(super) fn unreadable(endpoint: String, repeat: Repeat, detail: &str) -> Tried {
    match repeat {
        Repeat::Read => Tried::Over(CallError::Protocol { endpoint, detail: detail.to_owned() }),
        Repeat::ByToken | Repeat::Never => Tried::InDoubt { detail: format!("{endpoint}: {detail}") },
    }
}
