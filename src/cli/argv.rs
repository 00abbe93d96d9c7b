//! `-uri`: the protocol's own spelling, which a parser of long and short options would read as `-u -r -i`.

use std::ffi::OsString;

/// Commands whose arguments end in somebody else's command line: nothing behind them is ours to change.
const FOREIGN_TAIL: [&str; 2] = ["run", "dev"];

/// Turns `-uri X` and `-uri=X` into `--uri`, up to `--` or a command with a foreign command line.
pub fn with_long_uri(argv: Vec<OsString>) -> Vec<OsString> {
    let mut is_ours = true;
    // The program's name is no argument.
    let mut is_value = true;
    let mut has_command = false;
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
        is_ours = text != "--" && (has_command || !FOREIGN_TAIL.contains(&text));
        has_command |= !text.starts_with('-');
        arg
    };
    argv.into_iter().map(rewrite).collect()
}

/// The first argument that is neither an option nor the URI.
pub fn command(argv: &[OsString]) -> Option<&str> {
    let mut arguments = argv.iter().skip(1);
    loop {
        match arguments.next()?.to_str()? {
            "--uri" => drop(arguments.next()),
            option if option.starts_with('-') => {}
            command => return Some(command),
        }
    }
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
        for (line, wanted) in
            [("t run x", "run"), ("t --uri run get k", "get"), ("t --json --uri=a run", "run"), ("t --json", "-")]
        {
            let argv: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(command(&argv).unwrap_or("-"), wanted, "{line}");
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
        ] {
            assert_eq!(rewritten(line), wanted, "{line}");
        }
    }
}
