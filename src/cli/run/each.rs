//! One operation on each key of a run: an OP for one key, one BATCH for several.
//!
//! What is asked here carries a token that serves this run alone, or the fence of its grant: a second copy finds its work
//! done and changes nothing, so all of it may be repeated without an answer.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tenure_client::wire::{Answer, Batch, Op, OpArgs, Problem, Repeat, Request};
use tenure_client::{Boottime, CallError, Client};

/// What became of each operation.
#[derive(Debug)]
pub struct Each {
    /// In the order of the operations: the answer, or why it was refused with an error.
    pub answers: Vec<Result<Answer, Box<Problem>>>,
    /// The time before it was sent.
    pub sent: Boottime,
    /// Who answered.
    pub endpoint: String,
    /// An earlier try was in doubt: this may be the answer to a repetition.
    pub repeated: bool,
}

/// How long a call may take.
#[derive(Clone, Copy, Debug)]
pub struct Within {
    /// With all its tries.
    pub call: Duration,
    /// One try.
    pub one_try: Duration,
}

impl Within {
    /// So long for the call; a try as the client's options have it.
    pub fn of(client: &Client, call: Duration) -> Self {
        Self { call, one_try: call.min(client.options().try_timeout) }
    }
}

/// Asks all of `ops`, at least one.
pub async fn ask_each<A: OpArgs>(client: &Client, ops: &[Op<A>], within: Within) -> Result<Each, CallError> {
    if let [op] = ops {
        return match client.call_within(&Own(op), within.call, within.one_try).await {
            Ok(answered) => Ok(Each {
                answers: vec![Ok(answered.answer)],
                sent: answered.sent,
                endpoint: answered.endpoint,
                repeated: answered.repeated,
            }),
            // Nothing changed: when it was sent says nothing.
            Err(CallError::Refused(problem)) => Ok(Each {
                answers: vec![Err(problem)],
                sent: client.clock().now(),
                endpoint: String::new(),
                repeated: false,
            }),
            Err(error) => Err(error),
        };
    }
    let mut batch = Batch::default();
    for op in ops {
        batch.push(op).map_err(|error| CallError::Request { detail: error.to_string() })?;
    }
    let answered = client.call_within(&Own(&batch), within.call, within.one_try).await?;
    match answers(answered.answer.result, ops.len()) {
        Some(answers) => {
            let (sent, endpoint, repeated) = (answered.sent, answered.endpoint, answered.repeated);
            Ok(Each { answers, sent, endpoint, repeated })
        }
        None => {
            let detail = "a BATCH without an answer for each of its commands".to_owned();
            Err(CallError::Protocol { endpoint: answered.endpoint, detail })
        }
    }
}

/// The items of a BATCH's answer, if there are `count`.
fn answers(result: Value, count: usize) -> Option<Vec<Result<Answer, Box<Problem>>>> {
    let Value::Array(items) = result else { return None };
    let answers: Option<Vec<_>> = items.into_iter().map(answer).collect();
    answers.filter(|answers| answers.len() == count)
}

fn answer(mut item: Value) -> Option<Result<Answer, Box<Problem>>> {
    if let Some(mut error) = item.get_mut("error").map(Value::take) {
        let mut text = |name: &str| match error.get_mut(name).map(Value::take) {
            Some(Value::String(text)) => text,
            _ => String::new(),
        };
        let problem = Problem { code: text("code"), detail: text("detail"), ..Problem::default() };
        return Some(Err(Box::new(problem)));
    }
    serde_json::from_value(item).ok().map(Ok)
}

/// A request of a run's own token or fence.
#[derive(Serialize)]
#[serde(transparent)]
struct Own<'a, R>(&'a R);

impl<R: Request> Request for Own<'_, R> {
    const COMMAND: &'static str = R::COMMAND;

    fn repeat(&self) -> Repeat {
        Repeat::ByToken
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;
    use tenure_client::wire::Code;

    use super::*;

    #[test]
    fn items_are_answers_or_errors() {
        let items = json!([
            {"result": true, "ttl_ms": 7},
            {"error": {"code": "no_such_key", "detail": "no such key: a"}},
        ]);
        let answers = answers(items, 2).unwrap();
        assert_eq!(answers[0].as_ref().unwrap().ttl_ms(), Some(7));
        let problem = answers[1].as_ref().unwrap_err();
        assert!(problem.is(Code::NoSuchKey), "{problem}");
        assert_eq!(problem.detail, "no such key: a");
    }

    #[test]
    fn another_shape_is_no_answer() {
        for odd in [json!(true), json!([]), json!([{"result": true}]), json!([{"result": true}, {"fence": 1}])] {
            assert!(answers(odd.clone(), 2).is_none(), "{odd}");
        }
    }
}
