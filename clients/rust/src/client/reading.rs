//! What the client makes of an answer's bytes: for tests that hand it damaged ones. No part of the interface.

use hyper::{HeaderMap, StatusCode};

use super::attempt::{Raw, Tried, judge};
use super::{CallError, Witness};
use crate::time::Boottime;
use crate::wire::Repeat;

/// What an answer came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Made {
    /// It was answered.
    Answered(Witness),
    /// Refused by the node.
    Refused,
    /// Not understood, and nothing else would help.
    NotUnderstood,
    /// Surely without effect.
    Without,
    /// Perhaps with effect.
    InDoubt,
}

/// Judges an answer to a request that may be repeated so.
#[must_use]
pub fn answer(status: StatusCode, headers: &HeaderMap, body: &[u8], repeat: Repeat, bare: bool) -> Made {
    let witness = Witness::of(headers);
    let (endpoint, sent) = ("a:1".to_owned(), Boottime { ns: 0 });
    match judge(Raw { endpoint, status, witness, body, sent, repeat, bare, closing: false }) {
        Tried::Answered { answered, .. } => Made::Answered(answered.witness),
        Tried::Over(CallError::Refused(problem)) => {
            // What a person is shown.
            let _ = problem.to_string();
            Made::Refused
        }
        Tried::Over(_) => Made::NotUnderstood,
        Tried::Without(_) => Made::Without,
        Tried::InDoubt { .. } => Made::InDoubt,
    }
}
