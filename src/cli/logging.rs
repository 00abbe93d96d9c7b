//! Log lines: to stderr, at `RUST_LOG` (default: this program's from `info`, its libraries' from `error`).

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

/// Starts logging. A second call does nothing.
pub fn start() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default()));
    // Without `log_internal_errors(false)` a closed stderr would be reported to stderr, which panics.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .log_internal_errors(false)
        .try_init();
}

/// Libraries warn of what is normal, such as an election.
fn default() -> String {
    format!("error,{},tenure=info,tenure_cluster=info,tenure_client=info", tenure_cluster::QUIET)
}
