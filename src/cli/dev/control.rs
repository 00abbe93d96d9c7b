//! The socket over which `node-N/start` asks `dev` to start a node: one line with the node's number, one line back,
//! `ok PID` or what went wrong.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::directory::Directory;
use super::process::Nodes;

/// A call is one short line: so long until it is there.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// Longer than a node may take to end and to start.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const CALL_BYTES_MAX: u64 = 32;
/// After a call that could not be taken.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The listening end.
pub struct Control(UnixListener);

impl Control {
    /// Listens in `directory`.
    pub fn open(directory: &Directory) -> Result<Self> {
        let path = socket(directory.path());
        let listener = UnixListener::bind(&path).with_context(|| format!("cannot listen on {}", path.display()))?;
        Ok(Self(listener))
    }

    /// Does what calls ask for, one after the other.
    pub async fn serve(&self, nodes: &mut Nodes) -> Infallible {
        loop {
            match self.0.accept().await {
                Ok((call, _)) => answer(call, nodes).await,
                // No file descriptor is left, say: that may last.
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }
}

fn socket(dir: &Path) -> PathBuf {
    dir.join("control")
}

/// Does what a call asks for, and answers it. The caller may be gone by then.
async fn answer(stream: UnixStream, nodes: &mut Nodes) {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    let mut limited = read.take(CALL_BYTES_MAX);
    let Ok(Ok(_)) = tokio::time::timeout(CALL_TIMEOUT, limited.read_to_string(&mut line)).await else { return };
    let answer = match line.trim().parse() {
        Ok(id) => match nodes.restart(id).await {
            Ok(pid) => format!("ok {pid}\n"),
            Err(error) => format!("{error:#}\n"),
        },
        Err(_) => "not a node's number\n".to_owned(),
    };
    let _ = write.write_all(answer.as_bytes()).await;
}

/// Asks the `dev` of `dir` to start node `id`; its new pid.
pub fn ask(dir: &Path, id: usize) -> Result<String> {
    let mut stream = StdStream::connect(socket(dir)).context("that `tenure dev` is gone")?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(format!("{id}\n").as_bytes())?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.trim_end().strip_prefix("ok ") {
        Some(pid) => Ok(pid.to_owned()),
        None => bail!("{}", answer.trim_end()),
    }
}
