//! `tenure completions`: for a shell.

use super::{DONE, output};

/// Print completions for a shell, e.g. `tenure completions bash > /etc/bash_completion.d/tenure`
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell
    shell: clap_complete::Shell,
}

pub fn run(args: &Args, mut command: clap::Command) -> u8 {
    // Into memory first: the generator panics where its reader has gone.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "tenure", &mut script);
    output::text(&String::from_utf8_lossy(&script));
    DONE
}
