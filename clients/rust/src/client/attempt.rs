//! One try, judged: what an HTTP answer (or its absence) says about the command. Pure.

use hyper::StatusCode;

use super::{Answered, CallError, Witness};
use crate::time::Boottime;
use crate::uri::Endpoint;
use crate::wire::{Answer, Code, Problem, Repeat};

/// How a try ended. No text names the endpoint but that of an error which ends the call.
#[derive(Debug)]
pub(super) enum Tried {
    /// With an answer.
    Answered {
        answered: Answered,
        /// The node closes the connection: it goes away.
        closing: bool,
    },
    /// With an error that no other endpoint would change.
    Over(CallError),
    /// Surely without effect.
    Without(Without),
    /// Perhaps with effect.
    InDoubt {
        /// What happened.
        detail: String,
    },
}

/// A try that surely had no effect.
#[derive(Debug)]
pub(super) struct Without {
    /// What happened.
    pub detail: String,
    pub why: Why,
    /// Whom the node takes for the leader.
    pub leader: Option<Endpoint>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// The host refused the connection: nothing listens.
    Refused,
    /// No connection came about, or it broke before the command left.
    NoWay,
    /// A node is there, and did not serve.
    NotServed,
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
    /// The node closes the connection after it.
    pub closing: bool,
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
            Tried::InDoubt { detail }
        } else {
            Tried::Over(CallError::Protocol { endpoint: raw.endpoint, detail })
        };
    };
    if problem.is(Code::Unavailable) {
        let leader = problem.leader.as_deref().and_then(|leader| leader.parse().ok());
        return Tried::Without(Without { detail: problem.detail, why: Why::NotServed, leader });
    }
    // A fault of the node says nothing about how far the command came; of a read it does not matter.
    let doubtful = problem.is(Code::OutcomeUnknown) || (problem.is(Code::Internal) && raw.repeat != Repeat::Read);
    if doubtful {
        return Tried::InDoubt { detail: problem.detail };
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
        Ok(answer) => Tried::Answered {
            answered: Answered {
                answer,
                witness: raw.witness,
                endpoint: raw.endpoint,
                sent: raw.sent,
                repeated: false,
            },
            closing: raw.closing,
        },
        Err(error) => unreadable(raw.endpoint, raw.repeat, &format!("the answer is unreadable: {error}")),
    }
}

/// Something answered "done", and what was done cannot be read: of a read that is the endpoint's fault, of a write the
/// effect is in doubt.
pub(super) fn unreadable(endpoint: String, repeat: Repeat, detail: &str) -> Tried {
    match repeat {
        Repeat::Read => Tried::Over(CallError::Protocol { endpoint, detail: detail.to_owned() }),
        Repeat::ByToken | Repeat::Never => Tried::InDoubt { detail: detail.to_owned() },
    }
}
