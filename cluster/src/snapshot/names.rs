//! The names in a snapshot store's directory: `snap-<term>-<index>` is a finished one, `….tmp` one being made or
//! unmade. Numbers are padded, so that names sort as log ids do. Anything else is not ours and left alone.

use std::fs;
use std::path::{Path, PathBuf};

use super::SnapshotError;
use super::files::io_error;
use crate::persisted::LogIdV1;

/// Digits of a number in a name: as many as the largest u64 has.
const DIGITS: usize = 20;

/// What tells snapshots apart. A committed log has one entry for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id {
    pub term: u64,
    pub index: u64,
}

impl From<&LogIdV1> for Id {
    fn from(last: &LogIdV1) -> Self {
        Self { term: last.term, index: last.index }
    }
}

impl Id {
    /// The finished snapshot's place below `dir`.
    pub(super) fn path(self, dir: &Path) -> PathBuf {
        dir.join(format!("snap-{:0DIGITS$}-{:0DIGITS$}", self.term, self.index))
    }

    fn parse(name: &str) -> Option<Self> {
        let (term, index) = name.strip_prefix("snap-")?.split_once('-')?;
        let digits = |text: &str| text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = |text: &str| digits(text).then(|| text.parse().ok()).flatten();
        Some(Self { term: number(term)?, index: number(index)? })
    }
}

/// Where a snapshot is made or unmade.
pub(super) fn aside(finished: &Path) -> PathBuf {
    finished.with_extension("tmp")
}

/// What a store's directory holds.
pub(super) struct Listing {
    /// Finished snapshots, oldest first.
    pub finished: Vec<(Id, PathBuf)>,
    /// Those being made or unmade.
    pub unfinished: Vec<PathBuf>,
}

/// Lists what is ours below `dir`.
pub(super) fn list(dir: &Path) -> Result<Listing, SnapshotError> {
    let mut listing = Listing { finished: Vec::new(), unfinished: Vec::new() };
    for entry in fs::read_dir(dir).map_err(io_error(dir, "list"))? {
        let name = entry.map_err(io_error(dir, "list"))?.file_name().to_string_lossy().into_owned();
        if let Some(id) = Id::parse(&name) {
            listing.finished.push((id, dir.join(name)));
        } else if name.strip_suffix(".tmp").and_then(Id::parse).is_some() {
            listing.unfinished.push(dir.join(name));
        }
    }
    listing.finished.sort();
    Ok(listing)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn names_sort_as_log_ids_do_and_read_back() {
        let ids = [(1, 9), (1, 10), (2, 3), (10, 1), (u64::MAX, u64::MAX)].map(|(term, index)| Id { term, index });
        let paths = ids.map(|id| id.path(Path::new("d")));
        assert!(paths.is_sorted());
        for (id, path) in ids.iter().zip(&paths) {
            assert_eq!(Id::parse(path.file_name().unwrap().to_str().unwrap()), Some(*id));
        }
    }

    #[test]
    fn other_names_are_not_ours() {
        let good = "snap-00000000000000000001-00000000000000000002";
        assert!(Id::parse(good).is_some());
        let plus = good.replacen("00000000000000000001", "+0000000000000000001", 1);
        let large = good.replace("00000000000000000002", "99999999999999999999");
        for name in ["", "snap-", "snap-1-2", "lost+found", &good[1..], &plus, &large, &format!("{good}.tmp")] {
            assert_eq!(Id::parse(name), None, "{name}");
        }
    }
}
