//! House rules that the compiler cannot check, over the sources as text. Each rule fails with every place that breaks
//! it and the reason it exists. An exception is argued here, in the rule, not at the place.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

/// Lines of a file; beyond it there is a seam that nobody cut.
const FILE_LINES_MAX: usize = 500;
/// Lines of a function: it fits a screen.
const FUNCTION_LINES_MAX: usize = 70;
/// A test tells a story in order; splitting it hides the order.
const TEST_FUNCTION_LINES_MAX: usize = 100;

/// A source file: its path from the repository's root with `/`, and its text.
struct Source {
    path: String,
    text: String,
}

impl Source {
    /// Lines with their numbers from 1, comments cut off (good enough: no string here holds `//` but in a URL).
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(at, line)| {
            let comment = line.match_indices("//").map(|(i, _)| i).find(|&i| i == 0 || !line[..i].ends_with(':'));
            (at + 1, &line[..comment.unwrap_or(line.len())])
        })
    }

    fn is_test(&self) -> bool {
        self.path.starts_with("tests/") || self.path.contains("/tests/") || self.path.ends_with("/tests.rs")
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files below `folder` whose names end in one of `endings`, in order; not build output, not hidden folders.
fn sources(folder: &str, endings: &[&str]) -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = vec![root().join(folder)];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap_or_else(|error| panic!("{}: {error}", next.display())) {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    folders.push(path);
                }
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                let relative = path.strip_prefix(root()).unwrap().to_str().unwrap().replace('\\', "/");
                found.push(Source { path: relative, text: fs::read_to_string(&path).unwrap() });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(!found.is_empty(), "no {endings:?} below {folder}: the rule would check nothing");
    found
}

/// All Rust files of the repository but this one, which must name what it forbids.
fn rust() -> Vec<Source> {
    let mut all = sources("", &[".rs"]);
    all.retain(|source| source.path != "tests/tidy.rs");
    all
}

/// Fails with all of `broken`, under the rule's reason.
fn verdict(reason: &str, broken: &[String]) {
    assert!(broken.is_empty(), "\n{reason}\n  {}\n", broken.join("\n  "));
}

/// Where code (not comments) of `files` holds one of `words`.
fn places(files: &[Source], words: &[&str]) -> Vec<String> {
    let mut broken = Vec::new();
    for file in files {
        for (line, code) in file.code() {
            broken.extend(words.iter().filter(|w| code.contains(**w)).map(|w| format!("{}:{line}: {w}", file.path)));
        }
    }
    broken
}

#[test]
fn keyspace_is_pure() {
    let mut files = sources("src/keyspace", &[".rs"]);
    files.retain(|file| !file.is_test());
    for file in &mut files {
        // Test modules at a file's end may use what they like.
        if let Some(at) = file.text.find("#[cfg(test)]\nmod tests {") {
            file.text.truncate(at);
        }
    }
    let banned = [
        "tokio",
        "axum",
        "hyper",
        "tracing",
        "HashMap",
        "HashSet",
        "std::time",
        "SystemTime",
        "Instant",
        "rand::",
        "getrandom",
        "std::fs",
        "std::net",
        "std::env",
        "std::thread",
        "std::sync::Mutex",
        "async fn",
        ".await",
        "println!",
    ];
    verdict(
        "keyspace is a pure function of the log: equal logs give equal bytes on every node, or replicas part. No clock, \
         no I/O, no randomness, no async, no iteration order that differs between processes.",
        &places(&files, &banned),
    );
}

#[test]
fn keyspace_knows_only_the_machine_contract() {
    let mut files = sources("src/keyspace", &[".rs"]);
    files.retain(|file| !file.is_test());
    let banned =
        ["crate::api", "crate::edge", "crate::node", "crate::cli", "crate::config", "tenure_client", "Cluster<"];
    verdict("keyspace sees the contract of a replicated machine and nothing above it.", &places(&files, &banned));
}

#[test]
fn cluster_replicates_any_machine() {
    let mut broken = Vec::new();
    for file in sources("cluster", &[".rs", ".toml"]) {
        for (at, line) in file.text.lines().enumerate() {
            let lower = line.to_lowercase();
            let named =
                lower.match_indices("lease").any(|(i, _)| !lower[..i].ends_with("re") && !lower[..i].ends_with('p'));
            if named {
                broken.push(format!("{}:{}: {}", file.path, at + 1, line.trim()));
            }
        }
    }
    verdict("cluster/ replicates any deterministic machine; the word of this one does not occur in it.", &broken);
}

#[test]
fn openraft_stays_in_cluster() {
    let mut files = rust();
    // The simulator is a runtime for it.
    files.retain(|file| !file.path.starts_with("cluster/") && !file.path.starts_with("tests/sim/"));
    let mut broken = places(&files, &["openraft::", "use openraft"]);
    broken.extend(places(&sources("clients", &["Cargo.toml"]), &["openraft"]));
    verdict("openraft is pinned to an exact version: whoever else used it would have to move with it.", &broken);
}

#[test]
fn serializer_is_named_once() {
    let mut files = rust();
    files.retain(|file| file.path != "cluster/src/codec.rs");
    verdict(
        "cluster/src/codec.rs alone names the serializer: its limits, full-length check and replacement are one file's matter.",
        &places(&files, &["bincode"]),
    );
}

#[test]
fn sled_holds_snapshots_only() {
    let mut files = rust();
    files.retain(|file| !(file.path.starts_with("cluster/") && file.path.contains("snapshot")));
    files.extend(sources("clients", &["Cargo.toml"]));
    verdict("sled is the snapshot's container, never the log: its flush is not an fsync.", &places(&files, &["sled"]));
}

#[test]
fn http_is_the_apis_matter() {
    let mut files = sources("src", &[".rs"]);
    files.retain(|file| !file.path.starts_with("src/api"));
    verdict("api/ alone knows the web framework.", &places(&files, &["axum"]));
}

#[test]
fn client_is_light() {
    let mut broken = places(&sources("clients/rust", &[".rs"]), &["tenure_cluster", "axum", "sled"]);
    broken.extend(places(&sources("clients/rust", &[".toml"]), &["tenure-cluster", "axum", "sled"]));
    verdict("a client links no server.", &broken);
}

#[test]
fn anyhow_is_for_the_top() {
    let mut files = rust();
    files.retain(|file| {
        let top = file.path.starts_with("src/cli") || file.path == "src/main.rs" || file.path.starts_with("src/config");
        // A tool is a program without a library: all of it is the top.
        let tool = file.path.starts_with("tools/");
        !top && !tool && !file.is_test() && !file.path.contains("examples/")
    });
    verdict(
        "libraries answer with enums a caller can match; anyhow is for main, cli and config.",
        &places(&files, &["anyhow"]),
    );
}

#[test]
fn nothing_is_left_unfinished() {
    let words = ["todo!(", "unimplemented!(", "dbg!(", "#[ignore]"];
    let mut broken = places(&rust(), &words);
    for file in rust() {
        for (at, line) in file.text.lines().enumerate() {
            if ["FIXME", "XXX", "TODO"].iter().any(|word| line.contains(word)) {
                broken.push(format!("{}:{}: {}", file.path, at + 1, line.trim()));
            }
        }
    }
    verdict("no stub is called done; what is open is an issue, not a mark in the code.", &broken);
}

#[test]
fn files_say_what_they_are() {
    let broken: Vec<String> =
        rust().into_iter().filter(|file| !file.text.starts_with("//!")).map(|file| file.path).collect();
    verdict("every file begins with a `//!` head-note: model, invariants, what it does not promise.", &broken);
}

#[test]
fn files_are_small() {
    let mut broken = Vec::new();
    for file in sources("", &[".rs"]) {
        let lines = file.text.lines().count();
        if lines > FILE_LINES_MAX {
            broken.push(format!("{}: {lines} lines", file.path));
        }
    }
    verdict(&format!("a file has at most {FILE_LINES_MAX} lines: find its seam."), &broken);
}

/// Functions of rustfmt'd text: name, first line, number of lines. A body ends at the first `}` (or, without a body,
/// `;`) that stands at the function's own indentation.
fn functions(text: &str) -> Vec<(String, usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some(at) = words.iter().position(|word| *word == "fn") else { continue };
        let qualifiers = ["const", "async", "unsafe", "extern"];
        if !words[..at].iter().all(|word| word.starts_with("pub") || word.ends_with(')') || qualifiers.contains(word)) {
            continue;
        }
        let one_line = line.ends_with('}') || line.ends_with(';');
        let ends = |other: &&str| {
            !other.trim().is_empty()
                && indent(other) == indent(line)
                && (other.trim_start().starts_with('}') || other.ends_with(';'))
        };
        let length = if one_line { 1 } else { lines[start + 1..].iter().position(ends).map_or(1, |n| n + 2) };
        let name = words.get(at + 1).map_or("", |word| word.split(['(', '<']).next().unwrap_or(word));
        found.push((name.to_owned(), start + 1, length));
    }
    found
}

#[test]
fn functions_are_found() {
    let text = "pub(crate) async fn a(\n    b: u8,\n) -> u8 {\n    b\n}\n\nimpl X {\n    fn c() {}\n    fn d()\n    where\n        Y: Z,\n    {\n        e();\n    }\n}\n";
    let expected = [("a".to_owned(), 1, 5), ("c".to_owned(), 8, 1), ("d".to_owned(), 9, 6)];
    assert_eq!(functions(text), expected);
}

#[test]
fn functions_fit_a_screen() {
    let mut broken = Vec::new();
    for file in sources("", &[".rs"]) {
        let tests_from = file.text.lines().position(|line| line.trim() == "#[cfg(test)]").unwrap_or(usize::MAX);
        for (name, start, length) in functions(&file.text) {
            let test = file.is_test() || start > tests_from;
            let max = if test { TEST_FUNCTION_LINES_MAX } else { FUNCTION_LINES_MAX };
            if length > max {
                broken.push(format!("{}:{start}: {name} has {length} lines, at most {max}", file.path));
            }
        }
    }
    verdict("a function fits a screen: keep the branching, move the leaves out.", &broken);
}

#[test]
fn lints_are_inherited() {
    let mut files = sources("", &["Cargo.toml"]);
    files.retain(|file| !file.text.contains("[lints]\nworkspace = true"));
    let broken: Vec<String> = files.into_iter().map(|file| file.path).collect();
    verdict("every crate inherits the workspace's lints: unsafe is forbidden, unwrap and print are seen.", &broken);
}

#[test]
fn repository_speaks_of_the_product() {
    let mut broken = Vec::new();
    for file in sources("", &[".rs", ".md", ".toml", ".sh"]).iter().filter(|file| file.path != "tests/tidy.rs") {
        for (at, line) in file.text.lines().enumerate() {
            if ["/work/", "/root/", "/home/"].iter().any(|word| line.contains(word)) {
                broken.push(format!("{}:{}: {}", file.path, at + 1, line.trim()));
            }
        }
    }
    verdict("paths of somebody's machine mean nothing to a reader.", &broken);
}

#[test]
fn tests_that_are_named_exist() {
    let page = fs::read_to_string(root().join("docs/testing.md")).unwrap();
    // `file.rs: name_of_a_test`
    let named = page.split('`').filter_map(|text| text.split_once(".rs: "));
    let mut broken = Vec::new();
    let mut count = 0;
    for (file, name) in named {
        count += 1;
        let text = fs::read_to_string(root().join(format!("tests/{file}.rs"))).unwrap_or_default();
        if !text.contains(&format!("fn {name}() {{")) {
            broken.push(format!("tests/{file}.rs: {name}"));
        }
    }
    assert!(count > 20, "{count} are named: the rule checks next to nothing");
    verdict("docs/testing.md says where each report is tested; whoever renames a test says so there", &broken);
}

/// The fenced `sh` blocks of a markdown text, in order.
fn shell_blocks(markdown: &str) -> Vec<String> {
    markdown
        .split("```sh\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap_or_default().trim().to_owned())
        .collect()
}

#[test]
fn readmes_commands_are_what_ci_runs() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let ci = fs::read_to_string(root().join(".ci/run")).unwrap();
    let blocks = shell_blocks(&readme);
    assert!(blocks.len() >= 2, "README.md's first two ```sh blocks are its two commands");
    for (at, start) in ["cargo run --release --locked", "cargo test --release --locked --workspace"].iter().enumerate()
    {
        assert!(blocks[at].starts_with(start), "README's command {} must begin with `{start}`: {}", at + 1, blocks[at]);
        let call = format!("readme_command {}", at + 1);
        assert!(ci.contains(&call), ".ci/run must run README's own command, by `{call}`, so that they cannot differ");
    }
    assert_eq!(blocks[1].lines().count(), 1, "the second command is one line, the whole suite");
}
