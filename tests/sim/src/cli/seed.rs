//! Which seeds: how one is written, and where fresh ones begin.
//!
//! Fresh seeds are consecutive numbers from a base that follows from the commit: the same commit is the same run, another
//! commit looks elsewhere.

use std::process::Command;

/// Reads a seed as it is printed (`0x2a`), or in decimal.
pub fn parse(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| format!("{text:?} is no seed (0x2a, or 42): {error}"))
}

/// The commit of the sources in the current directory, with `-dirty` when they are not what it says; `None` without git.
pub fn commit() -> Option<String> {
    let told = Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=16", "--exclude=*"]).output();
    let told = told.ok().filter(|told| told.status.success())?;
    let commit = String::from_utf8(told.stdout).ok()?.trim().to_owned();
    (!commit.is_empty()).then_some(commit)
}

/// Where fresh seeds begin: a commit's first digits, or a number made of `version` where there is no git.
pub fn base(commit: Option<&str>, version: &str) -> u64 {
    let digits = |commit: &str| commit.chars().take_while(char::is_ascii_hexdigit).take(16).collect::<String>();
    let from_commit = commit.and_then(|commit| u64::from_str_radix(&digits(commit), 16).ok());
    from_commit.unwrap_or_else(|| fnv1a(version))
}

/// FNV-1a: the same for ever, which the standard library does not promise of its own.
fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read() {
        for seed in [0, 42, u64::MAX] {
            assert_eq!(parse(&format!("{seed:#x}")), Ok(seed));
            assert_eq!(parse(&seed.to_string()), Ok(seed));
        }
        for wrong in ["", "0x", "0xg", "-1", "1 ", "0x10000000000000000"] {
            assert!(parse(wrong).unwrap_err().contains("is no seed"), "{wrong}");
        }
    }

    #[test]
    fn a_commit_is_a_base() {
        assert_eq!(base(Some("e7000e25f9a04a60"), "1"), 0xe700_0e25_f9a0_4a60);
        assert_eq!(base(Some("e7000e25f9a04a602eaecc4a"), "1"), 0xe700_0e25_f9a0_4a60, "more digits, same base");
        assert_eq!(base(Some("e7000e25f9a04a60-dirty"), "1"), 0xe700_0e25_f9a0_4a60);
        assert_eq!(base(None, "0.1.0"), base(None, "0.1.0"));
        assert_ne!(base(None, "0.1.0"), base(None, "0.1.1"));
        assert_eq!(fnv1a("a"), 0xaf63_dc4c_8601_ec8c, "the published value");
    }
}
