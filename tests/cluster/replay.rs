//! A saved history, judged again: by a changed checker, or with `--nocapture` to read it.

use std::path::Path;

/// `TENURE_HISTORY=FILE`: every violation in it. Without it there is nothing to replay, and the test says so.
#[test]
fn replay() {
    let Some(path) = std::env::var_os("TENURE_HISTORY") else {
        eprintln!("skipped: no TENURE_HISTORY is given");
        return;
    };
    let calls = checker::load(Path::new(&path)).unwrap();
    let violations = checker::check(&calls);
    let list: Vec<String> = violations.iter().map(ToString::to_string).collect();
    assert!(violations.is_empty(), "{} violations in {} calls:\n  {}", list.len(), calls.len(), list.join("\n  "));
    eprintln!("{} calls, no violation", calls.len());
}
