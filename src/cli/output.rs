//! What goes to stdout. A reader that went away (`| head`) is no error of ours.

use std::io::{IsTerminal as _, Write as _};

use serde::Serialize;
use serde_json::Value;

use super::failure::Failure;

/// One line.
pub fn line(text: &str) {
    let _closed = writeln!(std::io::stdout(), "{text}");
}

/// Text that ends its lines itself.
pub fn text(text: &str) {
    let _closed = write!(std::io::stdout(), "{text}");
}

/// JSON: compact for a program, spread out for a terminal.
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    let spread = std::io::stdout().is_terminal();
    let json = if spread { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) };
    line(&json.map_err(|error| Failure::Answer(format!("the answer cannot be printed: {error}")))?);
    Ok(())
}

/// A bare result: a string as it is, everything else as JSON.
pub fn bare(value: &Value) -> Result<(), Failure> {
    match value {
        Value::String(text) => {
            line(text);
            Ok(())
        }
        value => json(value),
    }
}
