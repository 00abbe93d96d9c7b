//! Asks nodes for their reports, and those whom the reports name.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use tenure_client::{CallError, Client, Endpoint, HostClock, Options, Uri};

use crate::cli::failure::Failure;

/// For a node's answer: it looks nothing up to give it.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Members that are asked at most.
const MEMBERS_MAX: usize = 64;

/// A node, and what it said of itself.
#[derive(Debug)]
pub struct Node {
    /// Its id, from its own report or from another's.
    pub id: Option<u64>,
    /// Where it was asked.
    pub address: String,
    /// Its report, or why there is none, in few words.
    pub said: Result<Value, String>,
}

impl Node {
    /// All of it.
    pub fn json(&self) -> Value {
        let (report, error) = (self.said.as_ref().ok(), self.said.as_ref().err());
        json!({"node_id": self.id, "address": self.address, "error": error, "report": report})
    }
}

/// All nodes, by id; those without one last.
///
/// # Errors
/// When none answers.
pub async fn all(uri: &Uri) -> Result<Vec<Node>, Failure> {
    let asked = join_all(uri.endpoints().iter().cloned().map(ask)).await;
    if asked.iter().all(|(_, said)| said.is_err()) {
        return Err(Failure::Call(nobody(asked)));
    }
    let mut nodes = Vec::new();
    for (address, said) in asked {
        let said = said.map_err(|error| in_few_words(&error));
        add(&mut nodes, Node { id: said.as_ref().ok().and_then(id), address, said });
    }
    let unasked = unasked(&mut nodes);
    let more = join_all(unasked.into_iter().map(|(id, address)| async move {
        let said = match address.parse::<Endpoint>() {
            Ok(endpoint) => ask(endpoint).await.1.map_err(|error| in_few_words(&error)),
            Err(error) => Err(error.to_string()),
        };
        Node { id: Some(id), address, said }
    }));
    for node in more.await {
        add(&mut nodes, node);
    }
    nodes.sort_by_key(|node| node.id.unwrap_or(u64::MAX));
    Ok(nodes)
}

async fn ask(endpoint: Endpoint) -> (String, Result<Value, CallError>) {
    let options = Options {
        call_timeout: TIMEOUT,
        try_timeout: TIMEOUT,
        connect_timeout: TIMEOUT,
        refused_timeout: Duration::ZERO,
        ..Options::default()
    };
    let address = endpoint.to_string();
    let client = Client::with(&endpoint.into(), options, Arc::new(HostClock));
    (address, client.status().await)
}

/// One node may be behind two endpoints.
fn add(nodes: &mut Vec<Node>, node: Node) {
    let whose = |node: &Node| Some((cluster(node)?.to_owned(), node.id?));
    let known = whose(&node).is_some_and(|own| nodes.iter().any(|other| whose(other).as_ref() == Some(&own)));
    if !known {
        nodes.push(node);
    }
}

/// Members that no endpoint stood for. Endpoints without an answer get their ids here.
fn unasked(nodes: &mut [Node]) -> Vec<(u64, String)> {
    let named: Vec<(u64, String)> =
        nodes.iter().filter_map(|node| node.said.as_ref().ok()).flat_map(members).take(MEMBERS_MAX).collect();
    let mut unasked = Vec::<(u64, String)>::new();
    for (id, address) in named {
        if let Some(silent) = nodes.iter_mut().find(|node| node.said.is_err() && node.address == address) {
            silent.id = Some(id);
        }
        let known = nodes.iter().any(|node| node.id == Some(id)) || unasked.iter().any(|(other, _)| *other == id);
        if !known {
            unasked.push((id, address));
        }
    }
    unasked
}

/// Ids and client addresses of the members that a report names.
fn members(report: &Value) -> impl Iterator<Item = (u64, String)> {
    let all = report["members"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().filter_map(|member| Some((id(member)?, member["address"].as_str()?.to_owned())))
}

fn id(report: &Value) -> Option<u64> {
    report["node_id"].as_u64()
}

/// The cluster that a node says it is of.
pub fn cluster(node: &Node) -> Option<&str> {
    node.said.as_ref().ok()?["cluster_id"].as_str()
}

fn nobody(asked: Vec<(String, Result<Value, CallError>)>) -> CallError {
    let errors: Vec<CallError> = asked.into_iter().filter_map(|(_, said)| said.err()).collect();
    let mut silent = Vec::new();
    for error in &errors {
        match error {
            CallError::Unreachable { endpoints } => silent.push(endpoints.clone()),
            other => return other.clone(),
        }
    }
    CallError::Unreachable { endpoints: silent.join(", ") }
}

/// A call to one endpoint names it in its error; the row does so too.
fn in_few_words(error: &CallError) -> String {
    let text = match error {
        CallError::Unreachable { endpoints } => {
            endpoints.split_once(" (").map_or(endpoints.as_str(), |(_, why)| why.trim_end_matches(')'))
        }
        CallError::Unavailable { detail } => detail.split_once(": ").map_or(detail.as_str(), |(_, why)| why),
        CallError::Protocol { detail, .. } => detail.as_str(),
        other => return other.to_string(),
    };
    text.to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn node(id: Option<u64>, address: &str, said: Result<Value, &str>) -> Node {
        Node { id, address: address.to_owned(), said: said.map_err(str::to_owned) }
    }

    #[test]
    fn a_node_behind_two_endpoints_is_one() {
        let mut nodes = Vec::new();
        for (cluster, id, address) in [("c", 1, "a:1"), ("c", 1, "b:1"), ("d", 1, "c:1"), ("c", 2, "d:1")] {
            add(&mut nodes, node(Some(id), address, Ok(json!({"cluster_id": cluster}))));
        }
        add(&mut nodes, node(None, "e:1", Err("gone")));
        add(&mut nodes, node(None, "f:1", Err("gone")));
        let addresses: Vec<&str> = nodes.iter().map(|node| node.address.as_str()).collect();
        assert_eq!(addresses, ["a:1", "c:1", "d:1", "e:1", "f:1"]);
    }

    #[test]
    fn members_are_found_and_silent_endpoints_get_their_ids() {
        let members = json!([{"node_id": 1, "address": "a:1"}, {"node_id": 2, "address": "b:1"}, {"node_id": 3, "address": "c:1"}]);
        let mut nodes = [node(Some(1), "a:1", Ok(json!({"members": members}))), node(None, "b:1", Err("refused"))];
        assert_eq!(unasked(&mut nodes), [(3, "c:1".to_owned())]);
        assert_eq!(nodes[1].id, Some(2));
    }

    #[test]
    fn errors_are_short() {
        let unreachable = CallError::Unreachable { endpoints: "a:1 (connection refused)".into() };
        assert_eq!(in_few_words(&unreachable), "connection refused");
        assert_eq!(in_few_words(&CallError::Unavailable { detail: "a:1: too many".into() }), "too many");
    }
}
