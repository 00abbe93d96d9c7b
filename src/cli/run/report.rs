//! What a run says on stderr: one line a change. Quiet but for losses and failures, unless asked.

use std::fmt::Display;
use std::io::Write as _;

use serde_json::json;

/// Speaks for the keys of one command.
#[derive(Clone, Debug)]
pub struct Report {
    command: &'static str,
    keys: Vec<String>,
    verbose: bool,
    json: bool,
}

impl Report {
    /// Of `tenure <command>`. `verbose`: also what needs nobody's attention; `json`: each line is an object.
    pub fn new(command: &'static str, keys: &[String], verbose: bool, json: bool) -> Self {
        Self { command, keys: keys.to_vec(), verbose, json }
    }

    /// A change in the normal course of things.
    pub fn change(&self, text: impl Display) {
        if self.verbose {
            self.say(false, &text);
        }
    }

    /// What somebody must know.
    pub fn trouble(&self, text: impl Display) {
        self.say(true, &text);
    }

    fn say(&self, trouble: bool, text: &dyn Display) {
        let _no_stderr = writeln!(std::io::stderr(), "{}", self.line(trouble, text));
    }

    /// One line, whatever a key of the command line or an operator's text holds.
    fn line(&self, trouble: bool, text: &dyn Display) -> String {
        let flat = |text: &str| text.replace(['\n', '\r'], " ");
        let text = flat(&text.to_string());
        if self.json {
            let line = json!({"command": self.command, "keys": self.keys, "trouble": trouble, "text": text});
            return line.to_string();
        }
        let more = match self.keys.len() {
            0 | 1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        let first = self.keys.first().map(String::as_str).unwrap_or_default();
        format!("tenure {}: {}{more}: {text}", self.command, flat(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_its_keys() {
        let report = |keys: &[&str], json| {
            let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
            Report::new("run", &keys, false, json)
        };
        assert_eq!(report(&["a"], false).line(true, &"lost"), "tenure run: a: lost");
        assert_eq!(report(&["a", "b", "c"], false).line(true, &"two\nlines"), "tenure run: a and 2 more: two lines");
        assert_eq!(report(&["a\nb"], false).line(true, &"refused"), "tenure run: a b: refused");
        let object = report(&["a", "b"], true).line(false, &"acquired");
        assert_eq!(object, r#"{"command":"run","keys":["a","b"],"text":"acquired","trouble":false}"#);
    }
}
