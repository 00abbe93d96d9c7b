//! Why a command has no result: one line on stderr that ends with what to do, and the exit code.

use std::io::Write as _;

use tenure_client::{AcquireError, CallError};

/// Refused with an error.
pub const REFUSED: u8 = 1;
/// The command line is wrong.
pub const USAGE: u8 = 2;
/// Nothing happened, and may later.
pub const UNAVAILABLE: u8 = 3;
/// It may have taken effect.
pub const OUTCOME_UNKNOWN: u8 = 4;

/// What went wrong.
#[derive(Debug)]
pub enum Failure {
    /// The command line.
    Usage(String),
    /// The call.
    Call(CallError),
    /// The call may have taken effect: what happened, and what to do.
    InDoubt(String),
    /// An answer of this node that this version does not understand.
    Answer(String),
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Failure {
        Failure::Call(error)
    }
}

impl From<AcquireError> for Failure {
    fn from(error: AcquireError) -> Failure {
        match error {
            AcquireError::Call(error) => Failure::Call(error),
            AcquireError::TooSlow { .. } | AcquireError::Randomness(_) => Failure::Answer(error.to_string()),
        }
    }
}

impl Failure {
    /// Says it, and gives the exit code.
    pub fn report(&self) -> u8 {
        let (line, code) = self.explain();
        say(&line);
        code
    }

    /// The line and the exit code.
    pub fn explain(&self) -> (String, u8) {
        match self {
            Failure::Usage(text) => (text.clone(), USAGE),
            Failure::Answer(text) => (text.clone(), REFUSED),
            Failure::InDoubt(text) => (text.clone(), OUTCOME_UNKNOWN),
            Failure::Call(error) => call(error),
        }
    }
}

fn call(error: &CallError) -> (String, u8) {
    match error {
        CallError::Unreachable { .. } => (format!("{error}, or say where it is with --uri or TENURE_URI"), UNAVAILABLE),
        CallError::Unavailable { detail } => {
            (format!("unavailable: {detail}. Nothing was done: try again, or ask `tenure status`"), UNAVAILABLE)
        }
        CallError::OutcomeUnknown { detail } => {
            let hint = "It may have taken effect: look with `tenure get KEY` before you repeat it";
            (format!("outcome unknown: {detail}. {hint}"), OUTCOME_UNKNOWN)
        }
        CallError::Refused(problem) => (problem.to_string(), REFUSED),
        CallError::Protocol { .. } => (format!("{error}. Is --uri right?"), UNAVAILABLE),
        CallError::Request { .. } => (error.to_string(), USAGE),
    }
}

/// A mistake of the command line that the parser cannot see.
pub fn usage(text: &str) -> u8 {
    say(text);
    USAGE
}

/// One line on stderr.
pub fn say(line: &str) {
    let line = line.replace(['\n', '\r'], " ");
    let _no_stderr = writeln!(std::io::stderr(), "tenure: {line}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_client::wire::{Code, Problem};

    #[test]
    fn each_failure_says_what_to_do_in_one_line() {
        let detail = || "a:1: told\nso".to_owned();
        for (error, code, part) in [
            (CallError::Unreachable { endpoints: "a:1".into() }, 3, "no node at a:1: start one with `tenure serve`"),
            (CallError::Unavailable { detail: detail() }, 3, "try again"),
            (CallError::OutcomeUnknown { detail: detail() }, 4, "before you repeat it"),
            (CallError::Protocol { endpoint: "a:1".into(), detail: detail() }, 3, "Is --uri right?"),
            (CallError::Request { detail: detail() }, 2, "no JSON"),
        ] {
            let (line, got) = Failure::Call(error).explain();
            assert!(got == code && line.contains(part), "{got}: {line}");
        }
        let problem = Problem::new(Code::InvalidArgument, "options.ttl is unknown").field("options.ttl");
        let (line, code) = Failure::Call(CallError::Refused(Box::new(problem))).explain();
        assert_eq!((line.as_str(), code), ("invalid_argument: options.ttl is unknown (field options.ttl)", 1));
    }
}
