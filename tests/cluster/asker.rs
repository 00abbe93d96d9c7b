//! Clients that ask on, with the same token, at one node after the other, until one answers.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Cluster, SOON};
use crate::http::{Http, Response};
use crate::process::pass;

/// Between two tries.
const PACE: Duration = Duration::from_millis(20);

/// One of them.
pub struct Asker {
    nodes: Vec<SocketAddr>,
    at: usize,
}

impl Asker {
    /// Knows all nodes, and begins at the `first`th.
    pub fn new(cluster: &Cluster, first: usize) -> Self {
        let ids = cluster.ids();
        let at = first % ids.len();
        Self { at, ..Self::of(cluster, &ids) }
    }

    /// Knows these nodes.
    pub fn of(cluster: &Cluster, ids: &[u64]) -> Self {
        Self { nodes: ids.iter().map(|id| cluster.seat(*id).client).collect(), at: 0 }
    }

    /// Asks the next one from here on.
    pub fn go_on(&mut self) {
        self.at = (self.at + 1) % self.nodes.len();
    }

    /// An OP until a node answers it; what is asked must bear to be repeated.
    pub fn insist(&mut self, key: &str, operation: &str, args: &Value) -> Value {
        let body = json!({"key": key, "operation": operation, "args": args}).to_string();
        let until = Instant::now() + SOON;
        loop {
            match self.ask(&body) {
                Some(response) if response.status == 200 => return response.json(),
                Some(response) => {
                    let code = response.json()["code"].take();
                    let passing = ["outcome_unknown", "unavailable", "rate_limited"];
                    assert!(passing.iter().any(|one| code == *one), "{body}: {response:?}");
                }
                None => {}
            }
            assert!(Instant::now() < until, "no answer within {SOON:?}: {body}");
            self.go_on();
            pass(PACE);
        }
    }

    /// `None`: no answer.
    fn ask(&self, body: &str) -> Option<Response> {
        Http::connect_within(self.nodes[self.at], SOON).ok()?.post("OP", body).ok()
    }
}

/// A granted slot: its id and fence.
pub fn given(answer: &Value) -> (u64, u64) {
    let told = |field: &str| answer["result"][field].as_u64().unwrap_or_else(|| panic!("no grant: {answer}"));
    (told("id"), told("fence"))
}

/// A refusal: its reason, and when to ask again.
pub fn refused(answer: &Value) -> (&str, Option<u64>) {
    assert!(answer["result"].is_null(), "no refusal: {answer}");
    (answer["reason"].as_str().unwrap_or_default(), answer["retry_after_ms"].as_u64())
}
