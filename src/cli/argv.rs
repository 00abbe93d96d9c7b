//! `-uri`: the protocol's own spelling, which a parser of long and short options would read as `-u -r -i`.

use std::ffi::OsString;

/// Commands whose arguments end in somebody else's command line: nothing behind them is ours to change.
const FOREIGN_TAIL: [&[&str]; 3] = [&["run"], &["dev"], &["id", "run"]];

/// Commands whose exit status is that of somebody else's command.
const FOREIGN_STATUS: [&[&str]; 3] = [&["run"], &["elect"], &["id", "run"]];

/// Turns `-uri X` and `-uri=X` into `--uri`, up to `--` or a command with a foreign command line.
pub fn with_long_uri(argv: Vec<OsString>) -> Vec<OsString> {
    let mut is_ours = true;
    // The program's name is no argument.
    let mut is_value = true;
    let mut words: Vec<String> = Vec::new();
    let rewrite = |arg: OsString| {
        let text = arg.to_str().unwrap_or_default();
        if !is_ours || std::mem::take(&mut is_value) {
            return arg;
        }
        if text == "-uri" || text == "--uri" {
            is_value = true;
            return OsString::from("--uri");
        }
        if let Some(uri) = text.strip_prefix("-uri=") {
            return OsString::from(format!("--uri={uri}"));
        }
        if !text.starts_with('-') && words.len() < 2 {
            words.push(text.to_owned());
            is_ours = !FOREIGN_TAIL.iter().any(|command| words == *command);
        }
        is_ours &= text != "--";
        arg
    };
    argv.into_iter().map(rewrite).collect()
}

/// Whether the exit status is that of another's command: then ours have to be told apart from it.
pub fn has_foreign_status(argv: &[OsString]) -> bool {
    let words = words(argv);
    FOREIGN_STATUS.iter().any(|command| words.starts_with(command))
}

/// The first two arguments that are neither options nor the URI.
fn words(argv: &[OsString]) -> Vec<&str> {
    let mut arguments = argv.iter().skip(1).map_while(|argument| argument.to_str());
    let mut words = Vec::new();
    while let Some(argument) = arguments.next() {
        match argument {
            "--uri" => drop(arguments.next()),
            option if option.starts_with('-') => {}
            word => words.push(word),
        }
        if words.len() == 2 {
            break;
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(line: &str) -> String {
        let argv = line.split(' ').map(OsString::from).collect();
        let argv: Vec<String> = with_long_uri(argv).into_iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
        argv.join(" ")
    }

    #[test]
    fn the_command_is_found_behind_options() {
        for (line, wanted) in [
            ("t run x", true),
            ("t --uri run get k", false),
            ("t --json --uri=a run", true),
            ("t --json", false),
            ("t elect k", true),
            ("t id --json run --pool p", true),
            ("t id acquire run", false),
            ("t get run", false),
        ] {
            let argv: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(has_foreign_status(&argv), wanted, "{line}");
        }
    }

    #[test]
    fn the_single_dash_is_read_where_it_is_ours() {
        for (line, wanted) in [
            ("tenure -uri tenure://a GET {}", "tenure --uri tenure://a GET {}"),
            ("tenure -uri=tenure://a GET {}", "tenure --uri=tenure://a GET {}"),
            ("tenure GET {} -uri tenure://a", "tenure GET {} --uri tenure://a"),
            ("tenure --uri -uri GET {}", "tenure --uri -uri GET {}"),
            ("-uri -uri x", "-uri --uri x"),
            ("tenure -uri x run --key k -- curl -uri y", "tenure --uri x run --key k -- curl -uri y"),
            ("tenure run --key k curl -uri y", "tenure run --key k curl -uri y"),
            ("tenure -uri run get k -uri x", "tenure --uri run get k --uri x"),
            ("tenure get run -uri x", "tenure get run --uri x"),
            ("tenure -uri x id run --pool p curl -uri y", "tenure --uri x id run --pool p curl -uri y"),
            ("tenure id acquire p -uri y", "tenure id acquire p --uri y"),
        ] {
            assert_eq!(rewritten(line), wanted, "{line}");
        }
    }
}
