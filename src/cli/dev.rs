//! `tenure dev`: a throw-away node, or cluster of nodes, as real processes, for trying out and for users' own tests.
//!
//! `dev` owns every node: also one that CMD killed and starts again through `node-N/start`, which asks `dev` over a
//! socket in its directory. Each node's stdin is a pipe that `dev` holds, so nodes end with `dev` however it ends, and
//! the directory goes with them. Not covered: processes CMD leaves behind.
//!
//! The nodes start together, and CMD once all of them can commit.
//!
//! Exit: CMD's code, 128 + its signal, 126 or 127 when it cannot be started; without CMD 0 after a signal; 1 when no
//! node could be started, 2 for a wrong call.

mod control;
mod directory;
mod process;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::signal::unix::{self, SignalKind, signal};

use self::control::Control;
use self::directory::Directory;
use self::process::Nodes;

/// After a signal, CMD has so long to end before it is killed.
const GRACE: Duration = Duration::from_secs(10);

/// Runs a throw-away node or cluster, for trying out and for tests
#[derive(clap::Args, Debug)]
pub struct Dev {
    /// How many nodes: 1, 3 or 5
    #[arg(long, default_value_t = 1, value_name = "N")]
    nodes: usize,
    /// What `node-N/start` calls
    #[arg(long, hide = true, value_name = "N", requires = "dir")]
    restart: Option<usize>,
    #[arg(long, hide = true, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Runs with `tenure` in its PATH, TENURE_URI (all nodes), TENURE_DEV_PIDS (in node order) and TENURE_DEV_DIR, where
    /// node-N/pid holds a node's pid and node-N/start starts it again once it was killed; everything ends with it
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Dev {
    /// Runs, and says how the process ends.
    pub async fn run(self) -> ExitCode {
        if let (Some(node), Some(dir)) = (self.restart, &self.dir) {
            return match control::ask(dir, node) {
                Ok(answer) => say(&answer),
                Err(error) => fail(&error, 1),
            };
        }
        if ![1, 3, 5].contains(&self.nodes) {
            let error =
                anyhow::anyhow!("dev --nodes must be 1, 3 or 5: an even number survives no more; got {}", self.nodes);
            return fail(&error, 2);
        }
        match self.supervise().await {
            Ok(code) => code,
            Err(error) => fail(&error, 1),
        }
    }

    async fn supervise(self) -> Result<ExitCode> {
        let mut signals = Signals::new()?;
        let directory = Directory::make()?;
        let mut nodes = tokio::select! {
            nodes = Nodes::start(self.nodes, &directory) => nodes?,
            _ = signals.next() => bail!("ended by a signal before the nodes could commit"),
        };
        let control = Control::open(&directory)?;
        let outcome = match self.command.split_first() {
            None => idle(&mut nodes, &control, &mut signals, &directory).await,
            Some((program, arguments)) => {
                let mut command = Command::new(program);
                command.args(arguments).env("TENURE_URI", nodes.uri());
                command.env("TENURE_DEV_PIDS", nodes.pids()).env("TENURE_DEV_DIR", directory.path());
                command.env("PATH", path_with_this_program()?);
                match command.kill_on_drop(true).spawn() {
                    Ok(child) => attend(child, &mut nodes, &control, &mut signals).await,
                    Err(error) => Ok(not_started(program, &error)),
                }
            }
        };
        nodes.end().await;
        outcome
    }
}

/// `PATH` with this program's own directory first, so that CMD's `tenure` is this one.
fn path_with_this_program() -> Result<OsString> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let path = std::env::var_os("PATH");
    let own = program.parent().map(Path::to_owned).into_iter();
    let all = own.chain(path.iter().flat_map(std::env::split_paths));
    std::env::join_paths(all).context("this program's directory cannot stand in PATH")
}

/// Without CMD: until a signal.
async fn idle(nodes: &mut Nodes, control: &Control, signals: &mut Signals, directory: &Directory) -> Result<ExitCode> {
    let count = nodes.count();
    let address = nodes.first_address();
    let dir = directory.path().display();
    let (what, kill) = match count {
        1 => ("A throw-away node is running".to_owned(), String::new()),
        _ => {
            let kill = format!("  tenure status\n  kill -9 $(cat {dir}/node-1/pid)\n  {dir}/node-1/start\n");
            (format!("A throw-away cluster of {count} nodes is running"), kill)
        }
    };
    let text = format!(
        "{uri}\n\n{what}; Ctrl-C ends it and removes {dir}. Try:\n\n  export TENURE_URI={uri}\n{kill}  \
         curl --json '{{\"key\":\"demo\",\"operation\":\"ACQUIRE\",\"args\":{{\"owner\":\"me\",\"token\":\"t1\",\
         \"create\":true}}}}' http://{address}/v1/OP\n  \
         curl --json '{{\"key\":\"demo\"}}' http://{address}/v1/GET",
        uri = nodes.uri(),
    );
    say(&text);
    // Beside each other: to start a node may take half a minute, and Ctrl-C does not wait for it.
    tokio::select! {
        _ = signals.next() => Ok(ExitCode::SUCCESS),
        never = control.serve(nodes) => match never {},
    }
}

/// With CMD: until it ended.
async fn attend(mut child: Child, nodes: &mut Nodes, control: &Control, signals: &mut Signals) -> Result<ExitCode> {
    let mut kill_at = None;
    let calls = control.serve(nodes);
    tokio::pin!(calls);
    loop {
        let killing = async {
            match kill_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            status = child.wait() => return status.map(code).context("cannot wait for CMD"),
            signal = signals.next() => {
                kill_at = kill_at.or(Some(tokio::time::Instant::now() + GRACE));
                forward(&child, signal);
            }
            () = killing => {
                child.start_kill().context("cannot kill CMD")?;
                kill_at = None;
            }
            never = &mut calls => match never {},
        }
    }
}

/// Passes a signal on to CMD, unless the terminal has done so already.
fn forward(child: &Child, signal: Signal) {
    if signal == Signal::INT && io::stdin().is_terminal() {
        return;
    }
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // It may just have ended.
        let _ = kill_process(pid, signal);
    }
}

fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

fn not_started(program: &OsString, error: &io::Error) -> ExitCode {
    let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
    fail(&anyhow::anyhow!("cannot run {}: {error}", program.display()), code)
}

/// SIGTERM and SIGINT.
struct Signals {
    term: unix::Signal,
    int: unix::Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self { term: listen(SignalKind::terminate())?, int: listen(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.term.recv() => Signal::TERM,
            _ = self.int.recv() => Signal::INT,
        }
    }
}

fn say(text: &str) -> ExitCode {
    // Nobody may be reading.
    let _ = writeln!(io::stdout(), "{text}");
    ExitCode::SUCCESS
}

/// One clear line on stderr.
fn fail(error: &anyhow::Error, code: u8) -> ExitCode {
    let _ = writeln!(io::stderr(), "tenure: {error:#}");
    ExitCode::from(code)
}
