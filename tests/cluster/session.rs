//! One client's connection: one try per call, at exactly one node, written down with its outcome.
//!
//! Not the product's client, which tries again by itself: here each try is a call of its own, so that a history shows
//! what each node said. After a try without an answer the session goes on to the next node.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};

use crate::history::{History, now_ns};
use crate::http::{Http, Response};
use checker::{Answer, Call, Live, Operation, Outcome, Position, Sight, Witness};

/// One client of a cluster.
pub struct Session {
    client: u32,
    nodes: Vec<(u64, SocketAddr)>,
    at: usize,
    http: Option<Http>,
    answer_within: Duration,
    history: History,
}

impl Session {
    /// A client that begins at the `client`th node, and waits so long for an answer.
    pub fn new(client: u32, nodes: Vec<(u64, SocketAddr)>, answer_within: Duration, history: &History) -> Self {
        let at = client as usize % nodes.len();
        Self { client, nodes, at, http: None, answer_within, history: history.clone() }
    }

    /// Must a load end now?
    pub fn is_full(&self) -> bool {
        self.history.is_full()
    }

    /// Goes on at the `n`th node.
    pub fn go_to(&mut self, n: usize) {
        if self.at != n % self.nodes.len() {
            self.at = n % self.nodes.len();
            self.http = None;
        }
    }

    /// One try. What came of it is in the history.
    pub fn call(&mut self, key: &str, operation: Operation) -> Outcome {
        let invoked_ns = now_ns();
        let (node, _) = self.nodes[self.at];
        let outcome = self.attempt(key, operation);
        if matches!(outcome, Outcome::Nothing | Outcome::Unknown) {
            self.http = None;
            self.at = (self.at + 1) % self.nodes.len();
        }
        self.history.record(Call {
            client: self.client,
            node,
            key: key.to_owned(),
            operation,
            invoked_ns,
            sent_ns: invoked_ns,
            returned_ns: now_ns(),
            repeated: false,
            outcome: outcome.clone(),
        });
        outcome
    }

    fn attempt(&mut self, key: &str, operation: Operation) -> Outcome {
        let lost = if operation == Operation::Get { Outcome::Nothing } else { Outcome::Unknown };
        if self.http.is_none() {
            self.http = Http::connect_within(self.nodes[self.at].1, self.answer_within).ok();
        }
        // Nothing was sent.
        let Some(http) = &mut self.http else { return Outcome::Nothing };
        let (command, body) = written(self.client, key, operation);
        match http.post(command, &body.to_string()) {
            Ok(response) => read(operation, &response).unwrap_or(lost),
            Err(_) => lost,
        }
    }

    /// Asks every node in turn until one answers; at most `tries` times.
    pub fn insist(&mut self, key: &str, operation: Operation, tries: usize) -> Option<Outcome> {
        (0..tries).map(|_| self.call(key, operation)).find(|outcome| matches!(outcome, Outcome::Answered(..)))
    }
}

/// A call's command and body.
fn written(client: u32, key: &str, operation: Operation) -> (&'static str, Value) {
    let op = |name: &str, args: Value| ("OP", json!({"key": key, "operation": name, "args": args}));
    let token = |token: u64| format!("token-{token}");
    match operation {
        Operation::Acquire { token: number, ttl_ms } => {
            let owner = format!("client-{client}");
            op("ACQUIRE", json!({"owner": owner, "token": token(number), "ttl_ms": ttl_ms, "create": true}))
        }
        Operation::Wait { token: number, ttl_ms, wait_ms } => {
            let owner = format!("client-{client}");
            let (token, create) = (token(number), true);
            op(
                "ACQUIRE",
                json!({"owner": owner, "token": token, "ttl_ms": ttl_ms, "wait_ms": wait_ms, "create": create}),
            )
        }
        Operation::Renew { token: number, fence, ttl_ms } => {
            op("RENEW", json!({"token": token(number), "fence": fence, "ttl_ms": ttl_ms}))
        }
        Operation::Release { token: number, fence } => op("RELEASE", json!({"token": token(number), "fence": fence})),
        Operation::Trespass { fence, ttl_ms } => {
            let mut args = json!({"token": "of nobody", "ttl_ms": ttl_ms});
            if let Some(fence) = fence {
                args["fence"] = fence.into();
            }
            op("RENEW", args)
        }
        Operation::Expire { ttl_ms } => ("EXPIRE", json!({"key": key, "ttl_ms": ttl_ms})),
        Operation::Persist => ("PERSIST", json!({"key": key})),
        Operation::Break => op("BREAK", json!({"reason": "a test"})),
        Operation::Delete => ("DEL", json!({"keys": [key]})),
        Operation::Get => ("GET", json!({"key": key})),
    }
}

/// What a response says; `None`: nothing that is certain.
fn read(operation: Operation, response: &Response) -> Option<Outcome> {
    if response.status == 200 {
        let answer = answer(operation, &response.json());
        return Some(Outcome::Answered(witness(response)?, answer));
    }
    let problem = response.json();
    match problem["code"].as_str() {
        Some("unavailable") => Some(Outcome::Nothing),
        Some("outcome_unknown" | "internal") => None,
        Some("no_such_key") => {
            let refused = Answer::Refused { reason: "no_such_key".to_owned(), live: None, yours: false };
            Some(witness(response).map_or(Outcome::Nothing, |witness| Outcome::Answered(witness, refused)))
        }
        _ => panic!("{operation:?}: {response:?}"),
    }
}

fn witness(response: &Response) -> Option<Witness> {
    let header = |name: &str| response.headers.get(name).map(String::as_str);
    Some(Witness {
        position: Position::parse(header("tenure-position")?)?,
        clock_ms: header("tenure-clock")?.parse().ok()?,
        term: header("tenure-term")?.parse().ok()?,
    })
}

fn live(of: &Value) -> Option<Live> {
    Some(Live { fence: of["fence"].as_u64()?, ttl_ms: of["ttl_ms"].as_u64()? })
}

/// GET's result.
pub fn sight(seen: &Value) -> Option<Sight> {
    let last = |last: &Value| Some((last["fence"].as_u64()?, last["reason"].as_str()?.to_owned()));
    (!seen.is_null()).then(|| Sight { held: live(seen), last: last(&seen["last"]) })
}

fn answer(operation: Operation, answer: &Value) -> Answer {
    match (&answer["result"], operation) {
        (seen, Operation::Get) => Answer::Seen(sight(seen)),
        (Value::Bool(true), Operation::Acquire { .. } | Operation::Wait { .. } | Operation::Renew { .. }) => {
            Answer::Granted(live(answer).unwrap_or_else(|| panic!("a grant without fence or ttl: {answer}")))
        }
        (Value::Bool(true), _) => Answer::Done,
        (Value::Number(count), Operation::Delete) if count.as_u64() != Some(0) => Answer::Done,
        _ => Answer::Refused {
            reason: answer["reason"].as_str().unwrap_or_default().to_owned(),
            live: live(answer),
            yours: answer["yours"] == true,
        },
    }
}
