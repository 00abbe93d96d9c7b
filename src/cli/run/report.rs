//! What a run says on stderr: one line a change. Quiet but for losses and failures, unless asked.

use std::fmt::Display;
use std::io::Write as _;

/// Speaks for one key.
#[derive(Clone, Debug)]
pub struct Report {
    key: String,
    verbose: bool,
}

impl Report {
    /// `verbose`: also what needs nobody's attention.
    pub fn new(key: &str, verbose: bool) -> Self {
        Self { key: key.to_owned(), verbose }
    }

    /// A change in the normal course of things.
    pub fn change(&self, text: impl Display) {
        if self.verbose {
            self.trouble(text);
        }
    }

    /// What somebody must know.
    pub fn trouble(&self, text: impl Display) {
        let _no_stderr = writeln!(std::io::stderr(), "tenure run: {}: {text}", self.key);
    }
}
