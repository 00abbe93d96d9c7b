//! How a holder names its grant. A job under `tenure run` finds both in its environment.

use tenure_client::Token;

/// Key, token and fence.
#[derive(Debug, clap::Args)]
pub struct GrantArgs {
    /// The key
    pub key: String,
    /// The holder's secret, as `acquire` printed it; better from the environment, where `ps` does not show it
    #[arg(long, env = "TENURE_TOKEN", hide_env_values = true)]
    pub token: Token,
    /// Only the grant with this fence
    #[arg(long, env = "TENURE_FENCE")]
    pub fence: Option<u64>,
}
