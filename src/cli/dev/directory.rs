//! The throw-away directory: `control`, `secret`, and `node-N/{data,log,pid,start}`.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};

/// A directory of this user's alone, removed on drop.
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Makes one among the system's temporary files.
    pub fn make() -> Result<Self> {
        let random = getrandom::u64().map_err(|error| anyhow!("no random numbers: {error}"))?;
        let path = std::env::temp_dir().join(format!("tenure-dev-{random:016x}"));
        DirBuilder::new().mode(0o700).create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The home of node `id`, made if absent, with its `start` script.
    pub fn home(&self, id: usize) -> Result<Home> {
        let path = self.path.join(format!("node-{id}"));
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let home = Home { path, root: self.path.clone() };
        home.write_start_script(id)?;
        Ok(home)
    }
}

impl Directory {
    /// The file with the secret of this cluster's nodes, made if absent.
    pub fn secret(&self) -> Result<PathBuf> {
        let path = self.path.join("secret");
        if !path.exists() {
            let mut bytes = [0_u8; 32];
            getrandom::fill(&mut bytes).map_err(|error| anyhow!("no random numbers: {error}"))?;
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
            file.and_then(|mut file| file.write_all(&bytes)).context("cannot write the nodes' secret")?;
        }
        Ok(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A node that has just been killed may write yet, or may have removed all of it already.
        const PASSES_MAX: usize = 10;
        for _ in 0..PASSES_MAX {
            if fs::remove_dir_all(&self.path).is_ok() || !self.path.exists() {
                return;
            }
        }
    }
}

/// One node's place.
pub struct Home {
    path: PathBuf,
    root: PathBuf,
}

impl Home {
    /// The whole throw-away directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The node's data directory.
    pub fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    /// Where the node's log lines go.
    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// The last thing the node said.
    pub fn last_line(&self) -> String {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        log.lines().last().unwrap_or("it said nothing").to_owned()
    }

    /// Removes the data of a node that has ended.
    pub fn clear(&self) -> Result<()> {
        match fs::remove_dir_all(self.data()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).context("cannot remove the node's data")
            }
            _ => Ok(()),
        }
    }

    /// Opens the log for appending.
    pub fn open_log(&self) -> Result<File> {
        OpenOptions::new().create(true).append(true).open(self.log()).context("cannot open the node's log")
    }

    /// Says which process the node is.
    pub fn write_pid(&self, pid: u32) -> Result<()> {
        fs::write(self.path.join("pid"), format!("{pid}\n")).context("cannot write the node's pid")
    }

    fn write_start_script(&self, id: usize) -> Result<()> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let script = format!(
            "#!/bin/sh\n# Starts node {id} again after it was killed, on its port and data; returns once it serves.\n\
             exec {} dev --restart {id} --dir {}\n",
            quoted(&program)?,
            quoted(&self.root)?
        );
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o700).open(self.path.join("start"));
        file.and_then(|mut file| file.write_all(script.as_bytes())).context("cannot write the node's start script")
    }
}

/// `path` as one word of a shell.
fn quoted(path: &Path) -> Result<String> {
    let text = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(format!("'{}'", text.replace('\'', "'\\''")))
}
