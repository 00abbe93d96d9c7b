//! `tenure cluster replace`: a voter whose data is lost for good gets a new, empty place.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tenure_client::wire::Repeat;
use tenure_client::{Client, HostClock, Options};

use super::failure::Failure;
use super::{DONE, Globals, output};

/// Two changes of the membership, each through the log; by any node, which asks the leader.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Then another node is asked, since the first may be the one that hangs: what is under way there can be repeated.
const TRY_TIMEOUT: Duration = Duration::from_secs(10);

/// Let node N, whose data directory is lost, take part again with an empty one
///
/// A node that finds its directory empty is not let in by itself: it would have forgotten its votes. Say this only if
/// the directory is lost for good. Then start the node with an empty one; it votes again once it has caught up. May be
/// repeated.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The node's id
    #[arg(value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    node: u64,
}

pub async fn run(globals: &Globals, args: Args) -> Result<u8, Failure> {
    let options = Options { call_timeout: TIMEOUT, try_timeout: TRY_TIMEOUT, ..Options::default() };
    let client = Client::with(&globals.endpoints()?, options, Arc::new(HostClock));
    let body = json!({"node_id": args.node}).to_string();
    let answer = client.call_raw("cluster/replace", body.into(), Repeat::ByToken).await?.answer;
    if globals.json {
        output::json(&answer)?;
    } else {
        let node = args.node;
        output::line(&format!(
            "node {node} may be started with an empty data directory; it votes once it has caught up"
        ));
    }
    Ok(DONE)
}
