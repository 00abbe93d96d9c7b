//! After all is healed: does the store live again, and do all nodes tell the same?
//!
//! Every key that was used is read, acquired, and read on every node, within a bound: the longest lifetime, a number of
//! elections, and what a stuck sync and catching up may take. What is asked here is written down like every other call,
//! so whoever judges the notes sees that the last state holds everything that was acknowledged.

use std::collections::BTreeSet;
use std::time::Duration;

use checker::{Answer, Operation, Outcome, Sight};

use super::Notes;
use super::board::Board;
use super::client::{Backoff, Client, Told};
use super::service::Service;
use crate::plan::{Shape, damages};
use crate::runtime;

/// Elections after the healing, at most.
const ELECTIONS: u64 = 10;
/// A sync that hangs, a snapshot that is installed.
const CATCHING_UP_MS: u64 = 8_000;
/// Lines that are told; more tell nothing new.
const LINES_MAX: usize = 20;
const MS: u64 = 1_000_000;

/// The one who asks at the end.
const NUMBER: u32 = 0;

/// See the module's head. A line for each thing that did not come to be.
pub(super) async fn finish<S: Service>(service: &S, board: &Board, notes: &Notes, shape: &Shape) -> Vec<String> {
    // Rounded lifetimes and a leader's clock that is rho slow.
    let bound_ms = shape.ttl_ms.1 * 102 / 100 + 300 + ELECTIONS * shape.longest_election_ms() + CATCHING_UP_MS;
    let by_ns = runtime::now_ns() + bound_ms * MS;
    let keys = board.used();
    let ends = keys.iter().zip(0..).map(|(key, n)| {
        let client = Client::new(NUMBER, service, board, notes, shape, n);
        End { client, board, key, by_ns, nodes: service.ids(), silent: BTreeSet::new(), lines: Vec::new() }.see()
    });
    let (mut silent, mut lines) = (BTreeSet::new(), Vec::new());
    for end in futures_util::future::join_all(ends).await {
        silent.extend(end.silent);
        lines.extend(end.lines);
    }
    // A node that refuses its damaged log is down, and rightly so.
    let down_max = if damages(&shape.profile) { shape.minority() } else { 0 };
    if u64::try_from(silent.len()).unwrap() > down_max {
        lines.push(format!("nodes {silent:?} answer no read within {bound_ms} ms after the healing"));
    }
    lines.truncate(LINES_MAX);
    lines
}

/// The end of one key.
struct End<'a, S> {
    client: Client<S>,
    board: &'a Board,
    key: &'a str,
    by_ns: u64,
    nodes: Vec<u64>,
    /// Nodes that did not answer.
    silent: BTreeSet<u64>,
    lines: Vec<String>,
}

/// What came of it.
struct Ended {
    silent: BTreeSet<u64>,
    lines: Vec<String>,
}

impl<S: Service> End<'_, S> {
    async fn see(mut self) -> Ended {
        let read = self.at_any(Operation::Get, |told| Some(told).filter(|told| told.is_answered())).await;
        if read.is_none() {
            self.lines.push(format!("{}: no node answers a read", self.key));
        }
        match self.acquire().await {
            Some(fence) => self.look_everywhere(fence).await,
            None => self.lines.push(format!("{}: it is not granted to anybody", self.key)),
        }
        Ended { silent: self.silent, lines: self.lines }
    }

    async fn ask(&mut self, node: u64, operation: Operation) -> Told {
        let (nth, patience) = (self.board.count_last(self.key), self.client.patience());
        self.client.ask(node, self.key, operation, nth, patience).await
    }

    /// Asks one node after the other until `enough` takes the answer.
    async fn at_any<R>(&mut self, operation: Operation, enough: impl Fn(Told) -> Option<R>) -> Option<R> {
        let mut pauses = Backoff::default();
        for at in 0.. {
            let node = self.nodes[at % self.nodes.len()];
            let told = self.ask(node, operation).await;
            let edge_ms = told.free_in_ms();
            if let Some(found) = enough(told) {
                return Some(found);
            }
            let pause_ms = edge_ms.unwrap_or_else(|| pauses.next_ms(&mut self.client.dice));
            if runtime::now_ns() + pause_ms * MS >= self.by_ns {
                return None;
            }
            runtime::sleep(Duration::from_millis(pause_ms)).await;
        }
        None
    }

    /// The fence of a grant to this one.
    async fn acquire(&mut self) -> Option<u64> {
        let (token, ttl_ms) = (self.board.number(), self.client.ttl_ms.1);
        self.at_any(Operation::Acquire { token, ttl_ms }, |told| match told.outcome {
            Outcome::Answered(_, Answer::Granted(live)) => Some(live.fence),
            Outcome::Answered(_, Answer::Refused { yours: true, live, .. }) => live.map(|live| live.fence),
            // An earlier try was granted, and ended before it was heard.
            Outcome::Answered(_, Answer::Refused { reason, .. }) if reason == "token_used" => Some(0),
            _ => None,
        })
        .await
    }

    /// Every node shows that grant, or its end.
    async fn look_everywhere(&mut self, fence: u64) {
        for node in self.nodes.clone() {
            let Some(sight) = self.look(node).await else {
                self.silent.insert(node);
                continue;
            };
            let shown = sight
                .as_ref()
                .map(|sight| sight.held.map_or(0, |live| live.fence).max(sight.last.as_ref().map_or(0, |last| last.0)));
            // A key with a lifetime may be gone once the grant has ended.
            let right =
                if fence == 0 { true } else { shown == Some(fence) || (shown.is_none() && is_mortal(self.key)) };
            if !right {
                self.lines.push(format!("{}: granted with fence {fence}, and node {node} shows {sight:?}", self.key));
            }
        }
    }

    async fn look(&mut self, node: u64) -> Option<Option<Sight>> {
        let mut pauses = Backoff::default();
        loop {
            if let Outcome::Answered(_, Answer::Seen(sight)) = self.ask(node, Operation::Get).await.outcome {
                return Some(sight);
            }
            let pause_ms = pauses.next_ms(&mut self.client.dice);
            if runtime::now_ns() + pause_ms * MS >= self.by_ns {
                return None;
            }
            runtime::sleep(Duration::from_millis(pause_ms)).await;
        }
    }
}

impl Told {
    fn is_answered(&self) -> bool {
        matches!(self.outcome, Outcome::Answered(..))
    }

    /// When the grant in the way ends, if nothing but time happens.
    fn free_in_ms(&self) -> Option<u64> {
        match &self.outcome {
            Outcome::Answered(_, Answer::Refused { live: Some(live), .. }) => Some(live.ttl_ms.max(10)),
            _ => None,
        }
    }
}

/// Do clients give this key a lifetime?
fn is_mortal(key: &str) -> bool {
    key.ends_with("-0")
}
