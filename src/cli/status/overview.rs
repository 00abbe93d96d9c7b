//! What all reports together say of the cluster, and the table of its nodes. Pure.

use serde_json::Value;

use super::gather::{Node, cluster};
use crate::cli::table::{Table, card};

/// The cluster as its nodes show it.
#[derive(Debug, PartialEq, Eq)]
pub struct Overview {
    /// Of the node with the youngest word.
    pub cluster_id: Option<String>,
    /// The youngest term's leader.
    pub leader: Option<u64>,
    /// The youngest term.
    pub term: u64,
    /// How many have a vote.
    pub voters: usize,
    /// Voters that can commit.
    pub ready: usize,
}

const HEAD: [&str; 10] =
    ["ID", "ADDRESS", "ROLE", "READY", "TERM", "APPLIED", "LAG", "CLOCK MS", "FSYNC MS p50/p99", "VERSION"];

impl Overview {
    /// Of what was said.
    pub fn of(nodes: &[Node]) -> Self {
        let reports = || nodes.iter().filter_map(|node| node.said.as_ref().ok());
        let age = |report: &&Value| (number(report, "term"), number(report, "applied_index"));
        let youngest = reports().max_by_key(age);
        let cluster_id = youngest.and_then(|report| report["cluster_id"].as_str()).map(str::to_owned);
        let voters = youngest.map(voters).unwrap_or_default();
        // Before a cluster is founded nobody lists members: whoever was asked is to be a voter.
        let has_vote = |node: &&Node| voters.is_empty() || node.id.is_some_and(|id| voters.contains(&id));
        let ours = |node: &&Node| cluster(node) == cluster_id.as_deref();
        let ready = nodes.iter().filter(ours).filter(has_vote).filter(|node| is_ready(node)).count();
        Self {
            leader: youngest.and_then(|report| report["leader"].as_u64()),
            term: youngest.and_then(|report| number(report, "term")).unwrap_or(0),
            voters: if voters.is_empty() { nodes.len() } else { voters.len() },
            ready,
            cluster_id,
        }
    }

    /// A majority of the voters can commit.
    pub const fn has_quorum(&self) -> bool {
        self.ready > self.voters / 2
    }

    /// Head and table.
    pub fn text(&self, nodes: &[Node]) -> String {
        let quorum = if self.has_quorum() { "a quorum is up" } else { "NO QUORUM" };
        let mut text = card([
            ("cluster", self.cluster_id.clone()),
            ("leader", Some(self.leader.map_or("none".to_owned(), |id| format!("node {id}, term {}", self.term)))),
            ("voters", Some(format!("{}, {} ready: {quorum}", self.voters, self.ready))),
        ]);
        text.push('\n');
        let lag = self.lag(nodes);
        let head = HEAD.map(str::to_owned);
        let rows: Vec<_> = std::iter::once(head).chain(nodes.iter().map(|node| self.row(node, lag))).collect();
        text.push_str(&Table::default().page(&rows));
        text
    }

    /// What the leader says of its followers.
    fn lag<'a>(&self, nodes: &'a [Node]) -> Option<&'a Value> {
        let leader = nodes.iter().find(|node| self.leads(node))?;
        leader.said.as_ref().ok().map(|report| &report["lag"])
    }

    /// Of two that say so, the one of the younger term.
    fn leads(&self, node: &Node) -> bool {
        let term = node.said.as_ref().ok().and_then(|report| number(report, "term"));
        field(node, "role") == Some("leader") && term == Some(self.term)
    }

    fn row(&self, node: &Node, lag: Option<&Value>) -> [String; 10] {
        let shown = |name| node.said.as_ref().ok().and_then(|report| number(report, name)).map(|n| n.to_string());
        let dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let role = match field(node, "role") {
            Some("leader") if !self.leads(node) => Some("leader of an old term"),
            role => role,
        };
        let behind = node.id.and_then(|id| lag?[id.to_string()].as_u64()).map(|entries| entries.to_string());
        [
            dash(node.id.map(|id| id.to_string())),
            node.address.clone(),
            dash(role.map(str::to_owned)),
            self.readiness(node),
            dash(shown("term")),
            dash(shown("applied_index")),
            dash(behind),
            dash(shown("clock_ms")),
            dash(fsync(node)),
            dash(field(node, "version").map(str::to_owned)),
        ]
    }

    fn readiness(&self, node: &Node) -> String {
        match &node.said {
            Err(why) => format!("unreachable: {why}"),
            Ok(_) if self.cluster_id.as_deref().zip(cluster(node)).is_some_and(|(ours, its)| ours != its) => {
                format!("of another cluster: {}", cluster(node).unwrap_or_default())
            }
            Ok(_) if is_ready(node) => "yes".to_owned(),
            Ok(_) => {
                let why = field(node, "not_ready").unwrap_or("no reason given");
                let detail = field(node, "detail").map(|detail| format!(", {detail}")).unwrap_or_default();
                format!("no: {why}{detail}")
            }
        }
    }
}

/// The ids of the members that have a vote, as a report lists them.
fn voters(report: &Value) -> Vec<u64> {
    let all = report["members"].as_array().map(Vec::as_slice).unwrap_or_default();
    let voters = all.iter().filter(|member| member["voter"] != Value::Bool(false));
    voters.filter_map(|member| member["node_id"].as_u64()).collect()
}

fn is_ready(node: &Node) -> bool {
    node.said.as_ref().is_ok_and(|report| report["ready"] == Value::Bool(true))
}

fn field<'a>(node: &'a Node, name: &str) -> Option<&'a str> {
    node.said.as_ref().ok()?[name].as_str()
}

fn number(report: &Value, name: &str) -> Option<u64> {
    report[name].as_u64()
}

fn fsync(node: &Node) -> Option<String> {
    let fsync = &node.said.as_ref().ok()?["fsync"];
    let ms = |name| number(fsync, name).map(|us| format!("{}.{:02}", us / 1_000, us % 1_000 / 10));
    Some(format!("{}/{}", ms("p50_us")?, ms("p99_us")?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn report(id: u64, role: &str, term: u64) -> Value {
        let members: Vec<Value> = (1..=3).map(|id| json!({"node_id": id, "address": format!("a:{id}")})).collect();
        json!({
            "cluster_id": "c", "node_id": id, "role": role, "term": term, "leader": 1, "members": members,
            "ready": true, "not_ready": null, "applied_index": 10, "clock_ms": 7, "version": "0.1.0"
        })
    }

    fn node(id: u64, said: Result<Value, &str>) -> Node {
        Node { id: Some(id), address: format!("a:{id}"), said: said.map_err(str::to_owned) }
    }

    #[test]
    fn a_whole_cluster_and_one_that_is_gone() {
        let mut leader = report(1, "leader", 3);
        leader["lag"] = json!({"2": 4, "3": 900});
        leader["fsync"] = json!({"count": 9, "p50_us": 420, "p99_us": 12_345, "max_us": 20_000});
        let nodes = [node(1, Ok(leader)), node(2, Ok(report(2, "follower", 3))), node(3, Err("connection refused"))];
        let overview = Overview::of(&nodes);
        assert!(overview.has_quorum() && (overview.voters, overview.ready) == (3, 2));
        let wanted = "\
cluster  c
leader   node 1, term 3
voters   3, 2 ready: a quorum is up

ID  ADDRESS  ROLE      READY                            TERM  APPLIED  LAG  CLOCK MS  FSYNC MS p50/p99  VERSION
1   a:1      leader    yes                              3     10       -    7         0.42/12.34        0.1.0
2   a:2      follower  yes                              3     10       4    7         -                 0.1.0
3   a:3      -         unreachable: connection refused  -     -        900  -         -                 -
";
        assert_eq!(overview.text(&nodes), wanted);
    }

    #[test]
    fn no_quorum() {
        let mut alone = report(1, "candidate", 9);
        alone["ready"] = json!(false);
        alone["not_ready"] = json!("no_leader");
        alone["leader"] = Value::Null;
        let nodes = [node(1, Ok(alone)), node(2, Err("silent")), node(3, Err("silent"))];
        let overview = Overview::of(&nodes);
        assert!(!overview.has_quorum() && (overview.voters, overview.ready) == (3, 0));
        let text = overview.text(&nodes);
        assert!(
            text.contains("NO QUORUM") && text.contains("leader   none") && text.contains("no: no_leader"),
            "{text}"
        );
    }

    #[test]
    fn a_leader_that_was_cut_off_and_a_stranger_are_told_apart() {
        let mut stranger = report(3, "leader", 3);
        stranger["cluster_id"] = json!("d");
        stranger["applied_index"] = json!(1);
        let nodes = [node(1, Ok(report(1, "leader", 3))), node(2, Ok(report(2, "leader", 2))), node(3, Ok(stranger))];
        let overview = Overview::of(&nodes);
        assert_eq!((overview.cluster_id.as_deref(), overview.ready), (Some("c"), 2));
        let text = overview.text(&nodes);
        assert!(text.contains("leader of an old term") && text.contains("of another cluster: d"), "{text}");
    }

    #[test]
    fn learners_have_no_vote() {
        let nodes = [1, 2, 3].map(|id| {
            let mut report = report(id, if id == 3 { "learner" } else { "follower" }, 1);
            report["members"][2]["voter"] = json!(false);
            node(id, Ok(report))
        });
        let overview = Overview::of(&nodes);
        assert_eq!((overview.voters, overview.ready), (2, 2));
    }

    #[test]
    fn nodes_that_wait_for_each_other() {
        let waits = json!({"role": "starting", "ready": false, "not_ready": "waiting_for_peers", "detail": "node 2"});
        let nodes = [node(1, Ok(waits)), node(2, Err("refused"))];
        let overview = Overview::of(&nodes);
        assert!(!overview.has_quorum() && overview.voters == 2);
        assert!(overview.text(&nodes).contains("no: waiting_for_peers, node 2"));
    }
}
