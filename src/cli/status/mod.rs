//! `tenure status`: every node of the cluster, asked by itself.
//!
//! The endpoints of --uri are asked, and then all members that they name: each directly, at once and for a short time.
//! A node that does not answer is a row that says why. Nothing here goes through the log, so it works without a quorum.

use serde_json::json;

use super::failure::{Failure, UNAVAILABLE};
use super::{DONE, Globals, NOT_SO, output};

mod card;
mod gather;
mod overview;

use overview::Overview;

/// Show every node of the cluster: role, readiness, log, clock, disk times
///
/// Asks the nodes of --uri and all members that they know of.
///
/// Exits 0 if all voters are ready, 1 if some are not, 3 if no quorum is (or nobody answers).
#[derive(Debug, clap::Args)]
pub struct Args {}

pub async fn run(globals: &Globals, _: Args) -> Result<u8, Failure> {
    let nodes = gather::all(&globals.endpoints()?).await?;
    let overview = Overview::of(&nodes);
    if globals.json {
        let nodes: Vec<_> = nodes.iter().map(gather::Node::json).collect();
        output::json(&json!({
            "cluster_id": overview.cluster_id,
            "leader": overview.leader,
            "term": overview.term,
            "voters": overview.voters,
            "voters_ready": overview.ready,
            "quorum": overview.has_quorum(),
            "nodes": nodes,
        }))?;
    } else {
        match nodes.as_slice() {
            [gather::Node { said: Ok(report), .. }] => output::text(&card::status_card(report)),
            _ => output::text(&overview.text(&nodes)),
        }
    }
    Ok(match overview {
        _ if !overview.has_quorum() => UNAVAILABLE,
        _ if overview.ready < overview.voters => NOT_SO,
        _ => DONE,
    })
}
