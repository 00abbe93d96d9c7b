//! Names under which calls are counted, so that a sweep tells what it tried.

use checker::{Answer, Call, Operation, Outcome};

/// What a call shows that must be seen in every sweep; `None`: nothing of that kind.
#[must_use]
pub fn counted(call: &Call) -> Option<&'static str> {
    let answer = match &call.outcome {
        Outcome::Answered(_, answer) => answer,
        Outcome::Unknown => return Some("in_doubt"),
        Outcome::Nothing => return Some("without_effect"),
    };
    Some(match (call.operation, answer) {
        (_, Answer::Refused { reason, .. }) if reason == "key_expired" => "lifetime_over",
        (Operation::Acquire { .. }, Answer::Refused { reason, .. }) if reason == "token_used" => "refused_token_used",
        (Operation::Acquire { .. }, Answer::Refused { yours: true, .. }) => "refused_yours",
        (Operation::Acquire { .. }, Answer::Granted(_)) => "granted",
        (Operation::Wait { .. }, Answer::Granted(_)) => "granted_waiting",
        (Operation::Wait { .. }, Answer::Refused { yours: true, .. }) => "refused_yours_waiting",
        (Operation::Wait { .. }, Answer::Refused { reason, .. }) if reason == "wait_timeout" => "wait_over",
        (Operation::Wait { .. }, Answer::Refused { reason, .. }) if reason == "superseded" => "wait_superseded",
        (Operation::Renew { .. }, Answer::Granted(_)) => "renewed",
        (Operation::Renew { .. } | Operation::Release { .. }, Answer::Refused { .. }) => "refused_late",
        (Operation::Release { .. }, Answer::Done) => "released",
        (Operation::Trespass { .. }, Answer::Refused { .. }) => "refused_trespass",
        (Operation::Expire { .. } | Operation::Persist, Answer::Done) => "lifetime_set",
        (Operation::Break, Answer::Done) => "broken",
        (Operation::Delete, Answer::Done) => "deleted",
        _ => return None,
    })
}
