//! Leaders and votes, as the world saw them.
//!
//! Law: `VoteStands`: what a node told others it has voted, its disk still holds, or something newer, whenever it starts.
//! Votes are ordered by term and then by candidate: replication (`leader_id_adv`) lets a voter go over to a candidate of
//! the same term with a greater id, so that a term may have several votes of a node, and even several leaders, one after
//! the other. A leadership is (term, node). That it is one alone, the log's laws tell.

use std::collections::{BTreeMap, BTreeSet};

use super::Verdict;

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Votes {
    /// By term and node.
    leaders: BTreeSet<(u64, u64)>,
    /// The greatest vote of each node: term and for whom.
    given: BTreeMap<u64, (u64, u64)>,
}

impl Votes {
    /// A node leads.
    pub(super) fn led(&mut self, node: u64, term: u64) {
        self.leaders.insert((term, node));
    }

    /// How many terms had more than one leader.
    pub(super) fn shared_terms(&self) -> u64 {
        let mut terms: Vec<u64> = self.leaders.iter().map(|(term, _)| *term).collect();
        let leaderships = terms.len();
        terms.dedup();
        (leaderships - terms.len()) as u64
    }

    /// A node told another that it votes for `candidate`. In which order it voted cannot be told from when it said so.
    pub(super) fn voted(&mut self, node: u64, term: u64, candidate: u64) {
        let greatest = self.given.entry(node).or_default();
        *greatest = (*greatest).max((term, candidate));
    }

    /// A node starts, and this is the vote on its disk.
    pub(super) fn durable(&mut self, node: u64, term: u64, candidate: u64, verdict: &mut Verdict) {
        let given = self.given.get(&node).copied().unwrap_or_default();
        if (term, candidate) < given {
            let (newest, of) = given;
            verdict.violated("VoteStands", || {
                format!("node {node} starts with its vote of term {term} for {candidate}, and had voted in {newest} for {of}")
            });
        }
    }
}
