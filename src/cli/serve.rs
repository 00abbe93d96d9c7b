//! `tenure serve`: runs one node until SIGTERM or SIGINT.
//!
//! Prints the node's URI to stdout once it takes part; all else goes to stderr. Probes are answered before: as soon as
//! the port is bound. Exit: 0 after a drain, or told to end before it took part; 1 when it could not start or a fault
//! stopped it, 2 when the configuration breaks a rule.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

use super::{logging, service_manager};
use crate::config::{NodeConfig, Settings};
use crate::node::{Bound, Node, StartError};

/// Runs one node, alone or among --peers
#[derive(clap::Args, Debug)]
pub struct Serve {
    /// TOML file with the settings below (keys: listen, data, node_id, …); flags and environment win over it
    #[arg(long, env = "TENURE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    pub settings: Settings,
    /// Ends when stdin closes, and then removes DIR, in which the data must lie (see `dev`)
    #[arg(long, hide = true, value_name = "DIR")]
    throw_away: Option<PathBuf>,
}

impl Serve {
    /// Serves, and says how the process ends.
    pub async fn run(self) -> ExitCode {
        logging::start();
        let config = match self.configure() {
            Ok(config) => config,
            Err(error) => return fail(&error, 2),
        };
        match serve(config).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error, 1),
        }
    }

    fn configure(self) -> Result<NodeConfig> {
        let file = self.config.as_deref().map(Settings::from_file).transpose()?.unwrap_or_default();
        let config = self.settings.or(file).check()?;
        if let Some(dir) = self.throw_away {
            ensure!(config.data_dir.starts_with(&dir), "throw-away: the data directory must lie in {}", dir.display());
            end_with_stdin(dir).context("throw-away")?;
        }
        Ok(config)
    }
}

async fn serve(config: NodeConfig) -> Result<()> {
    let mut shutdown = Box::pin(shutdown()?);
    service_manager::feed_watchdog();
    // The errors' texts already say what the system said.
    let bound = Node::bind(config).map_err(|error| anyhow!("{error}"))?;
    let node = tokio::select! {
        opened = open(bound) => opened.map_err(|error| anyhow!("{error}"))?,
        () = &mut shutdown => {
            service_manager::stopping();
            info!("stopped before it took part");
            // At once: an orderly end would wait until the log is read. It was killed at any other time as safely.
            std::process::exit(0);
        }
    };
    // Whoever started the node with port 0 reads the port here. Nobody may be reading: that is no fault.
    let _ = writeln!(io::stdout(), "tenure://{}", node.address());
    service_manager::ready(&format!("serving on {}", node.address()));
    let shutdown = async {
        shutdown.await;
        service_manager::stopping();
    };
    if let Err(fault) = node.run(shutdown).await {
        fail(&fault.into(), 1);
        // At once: an orderly end would wait for whatever hangs on the disk.
        std::process::exit(1);
    }
    Ok(())
}

/// Opens the node, and says what it waits for meanwhile.
async fn open(bound: Bound) -> Result<Node, StartError> {
    let mut starting = bound.starting();
    service_manager::status(&starting.reason());
    let mut opening = bound.open();
    loop {
        tokio::select! {
            opened = &mut opening => return opened,
            reason = starting.changed() => {
                info!(reason, "not taking part yet");
                service_manager::status(&reason);
            }
        }
    }
}

/// Resolves at the first SIGTERM or SIGINT; the next one ends the process at once.
fn shutdown() -> Result<impl Future<Output = ()>> {
    let mut term = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut int = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let (told, first) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let mut either = async || tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} };
        either().await;
        let _ = told.send(());
        either().await;
        warn!("a second signal: ending without a drain");
        std::process::exit(1);
    });
    Ok(async {
        let _ = first.await;
    })
}

/// Ties this process to whoever holds the other end of stdin.
fn end_with_stdin(dir: PathBuf) -> io::Result<()> {
    // The node still writes while its directory goes: what it makes meanwhile needs another pass.
    const PASSES_MAX: usize = 10;
    thread::Builder::new().name("stdin".to_owned()).spawn(move || {
        let mut sink = [0; 64];
        while match io::stdin().read(&mut sink) {
            Ok(bytes) => bytes > 0,
            Err(error) => error.kind() == io::ErrorKind::Interrupted,
        } {}
        for _ in 0..PASSES_MAX {
            if std::fs::remove_dir_all(&dir).is_ok() || !dir.exists() {
                break;
            }
        }
        std::process::exit(0);
    })?;
    Ok(())
}

/// One clear line on stderr.
fn fail(error: &anyhow::Error, code: u8) -> ExitCode {
    let _ = writeln!(io::stderr(), "tenure: {}", format!("{error:#}").trim_end().replace('\n', " "));
    ExitCode::from(code)
}
