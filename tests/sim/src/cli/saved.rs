//! What failed once: seeds with their causes (`seeds.txt`) and shrunk plans (`schedules/*.json`). Both are run first.
//!
//! A seed means the same run only as long as the code that makes plans and choices stays; a plan keeps what went wrong and
//! when. Neither promises to find its bug again once choices have moved: it is a place where one was.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use sim::plan::Plan;

use super::seed;

/// A plan beside what it is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// Why it is kept, for people: what was wrong.
    pub cause: String,
    /// The law that it broke.
    pub law: String,
    /// The commit that it broke it on.
    pub commit: String,
    /// What is run.
    pub plan: Plan,
}

/// A seed of the list and the line's comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seed {
    /// Makes a plan.
    pub seed: u64,
    /// What was wrong.
    pub cause: String,
}

/// The folder of this crate, which `seeds.txt` and `schedules` are in.
pub fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The seeds of a list; one `0xSEED  # cause` a line, empty lines and comments between them.
pub fn seeds(path: &Path) -> Result<Vec<Seed>> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    parse_seeds(&text).with_context(|| path.display().to_string())
}

fn parse_seeds(text: &str) -> Result<Vec<Seed>> {
    let mut found: Vec<Seed> = Vec::new();
    for (at, line) in text.lines().enumerate().map(|(at, line)| (at + 1, line.trim())) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (number, cause) = line.split_once('#').with_context(|| format!("line {at}: no `# cause`"))?;
        let seed = seed::parse(number.trim()).map_err(|error| anyhow::anyhow!("line {at}: {error}"))?;
        let cause = cause.trim().to_owned();
        ensure!(!cause.is_empty(), "line {at}: an empty cause");
        ensure!(found.iter().all(|other| other.seed != seed), "line {at}: {seed:#x} is there twice");
        found.push(Seed { seed, cause });
    }
    Ok(found)
}

/// The plans of a folder, in the order of their names.
pub fn schedules(folder: &Path) -> Result<Vec<(PathBuf, Kept)>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "json") {
            paths.push(path);
        }
    }
    paths.sort();
    paths.into_iter().map(|path| plan(&path).map(|kept| (path, kept))).collect()
}

/// Reads a kept plan.
pub fn plan(path: &Path) -> Result<Kept> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    parse_plan(&text).with_context(|| path.display().to_string())
}

/// serde_json's errors tell line and column.
fn parse_plan(text: &str) -> Result<Kept> {
    let kept: Kept = serde_json::from_str(text)?;
    if kept.cause.trim().is_empty() {
        bail!("an empty \"cause\": say what was wrong");
    }
    Ok(kept)
}

/// Writes `kept` into `folder`; the name tells law and seed.
pub fn keep(folder: &Path, kept: &Kept) -> Result<PathBuf> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let path = folder.join(format!("failed-{}-{:#x}.json", kept.law, kept.plan.seed));
    let text = serde_json::to_string_pretty(kept)?;
    fs::write(&path, text + "\n").with_context(|| path.display().to_string())?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error<T: std::fmt::Debug>(result: Result<T>) -> String {
        format!("{:#}", result.unwrap_err())
    }

    #[test]
    fn a_list_is_read_with_its_causes() {
        let list = parse_seeds("# which\n\n0x2a  # a torn vote\n  7 # a late tick # see 12\n").unwrap();
        assert_eq!(list[0], Seed { seed: 42, cause: "a torn vote".to_owned() });
        assert_eq!(list[1], Seed { seed: 7, cause: "a late tick # see 12".to_owned() });
        assert_eq!(list.len(), 2);
    }

    #[test]
    fn a_wrong_line_is_named() {
        assert_eq!(error(parse_seeds("\n0x2a")), "line 2: no `# cause`");
        assert_eq!(error(parse_seeds("0x2a #  ")), "line 1: an empty cause");
        assert!(error(parse_seeds("# x\n0xzz # y")).starts_with("line 2: \"0xzz\" is no seed"));
        assert_eq!(error(parse_seeds("1 # a\n0x1 # b")), "line 2: 0x1 is there twice");
    }

    #[test]
    fn what_is_kept_is_read_again() {
        let folder = std::env::temp_dir().join(format!("sim-kept-{}", std::process::id()));
        let kept = Kept {
            cause: "a torn vote".to_owned(),
            law: "OneHolder".to_owned(),
            commit: "e7000e25".to_owned(),
            plan: Plan::from_seed(42),
        };
        let path = keep(&folder, &kept).unwrap();
        assert_eq!(path.file_name().unwrap(), "failed-OneHolder-0x2a.json");
        assert_eq!(schedules(&folder).unwrap(), [(path, kept.clone())]);
        let unnamed = Kept { cause: " ".to_owned(), ..kept };
        keep(&folder, &unnamed).unwrap();
        assert!(error(schedules(&folder)).ends_with("an empty \"cause\": say what was wrong"));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_wrong_plan_is_told_by_line() {
        assert!(error(parse_plan("{\n  \"cause\": 3\n}")).contains("line 2 column"));
        assert!(error(parse_plan("{\n  \"because\": 3\n}")).contains("unknown field `because`"));
    }

    #[test]
    fn what_is_saved_here_is_read() {
        seeds(&folder().join("seeds.txt")).unwrap();
        schedules(&folder().join("schedules")).unwrap();
    }
}
