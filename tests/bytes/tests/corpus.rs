//! The corpus is what the encoders write. `TENURE_BYTES_CORPUS=write` makes its samples anew.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::collections::BTreeSet;
use std::fs;

use bytes_tests::{TARGETS, corpus};

#[test]
fn the_corpus_is_what_the_encoders_write() {
    let write = std::env::var_os("TENURE_BYTES_CORPUS").is_some_and(|value| value == "write");
    for target in TARGETS {
        let folder = corpus::folder(target);
        let samples = (target.samples)();
        for (name, bytes) in &samples {
            assert!(!name.starts_with("found-"), "{name} is no finding");
            let path = folder.join(name);
            if write {
                fs::create_dir_all(&folder).unwrap();
                fs::write(&path, bytes).unwrap();
            }
            let kept = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert!(&kept == bytes, "{} is not what is written today: see this file's head", path.display());
        }
        let known: BTreeSet<&str> = samples.iter().map(|(name, _)| *name).collect();
        for item in corpus::items(target) {
            assert!(
                item.is_finding() || known.contains(item.name.as_str()),
                "{}: {} is no sample",
                target.name,
                item.name
            );
        }
    }
}

#[test]
fn every_target_has_its_own_name() {
    let names: BTreeSet<&str> = TARGETS.iter().map(|target| target.name).collect();
    assert_eq!(names.len(), TARGETS.len());
}
