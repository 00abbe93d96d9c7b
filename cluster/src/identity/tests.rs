//! Founding, locking and refusing data directories.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;

use tempfile::TempDir;

use super::*;

const FOUNDED_MS: u64 = 1_700_000_000_123;

/// Opens with "random" bytes that are all `seed`.
fn open_with(path: &Path, node_id: Option<NodeId>, seed: u8) -> Result<DataDir, OpenError> {
    let mut random = |bytes: &mut [u8]| {
        bytes.fill(seed);
        Ok(())
    };
    DataDir::open(path, node_id, Founding { wall_ms: FOUNDED_MS, several: false, random: &mut random })
}

fn open(path: &Path, node_id: Option<NodeId>) -> Result<DataDir, OpenError> {
    open_with(path, node_id, 0xAB)
}

/// The one line of a refusal, which must have changed nothing.
fn refusal(path: &Path, node_id: Option<NodeId>) -> (OpenError, String) {
    let before = contents(path);
    let Err(error) = open(path, node_id) else { panic!("{path:?} was opened") };
    assert_eq!(contents(path), before, "something was changed");
    let line = error.to_string();
    assert!(!line.contains('\n') && line.contains(&*path.to_string_lossy()), "{line}");
    (error, line)
}

/// Files with their bytes and directories, but not LOCK, below `path`.
fn contents(path: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(path).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
            found.insert(path, None);
        } else if !path.ends_with(LOCK) {
            found.insert(path.clone(), Some(fs::read(&path).unwrap()));
        }
    }
    found
}

#[test]
fn a_new_directory_is_founded_once() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("not/yet/there");
    let data = open(&path, None).unwrap();
    assert!(data.is_new());
    let identity = data.identity();
    assert_eq!(identity.cluster_id_hex(), "ab".repeat(16));
    assert_eq!((identity.node_id, identity.belonging.unwrap().founded_wall_ms), (1, FOUNDED_MS));
    assert!(data.log_dir().is_dir() && data.snapshot_dir().is_dir());
    drop(data);
    for node_id in [None, Some(1)] {
        let again = open_with(&path, node_id, 0xCD).unwrap();
        assert!(!again.is_new());
        assert_eq!(again.identity(), identity, "kept, not drawn again");
    }
}

#[test]
fn an_empty_directory_and_a_half_made_one_are_new() {
    let halves: [&[&str]; 4] = [&[], &["lost+found/"], &["LOCK", "identity.tmp"], &["LOCK", "log/", "snapshots/"]];
    for half in halves {
        let dir = TempDir::new().unwrap();
        for name in half {
            match name.strip_suffix('/') {
                Some(name) => fs::create_dir(dir.path().join(name)).unwrap(),
                None => fs::write(dir.path().join(name), b"half").unwrap(),
            }
        }
        assert_eq!(open(dir.path(), Some(9)).unwrap().identity().node_id, 9, "{half:?}");
        assert!(!open(dir.path(), Some(9)).unwrap().is_new());
    }
}

#[test]
fn an_open_directory_is_locked_until_it_is_dropped() {
    let dir = TempDir::new().unwrap();
    let data = open(dir.path(), None).unwrap();
    let (error, line) = refusal(dir.path(), None);
    assert!(matches!(error, OpenError::Locked { .. }), "{line}");
    drop(data);
    open(dir.path(), None).unwrap();
}

#[test]
fn a_foreign_directory_is_refused_with_what_was_found() {
    let dir = TempDir::new().unwrap();
    for name in ["photo.jpg", "a", "b", "c", "LOCK"] {
        fs::write(dir.path().join(name), b"mine").unwrap();
    }
    let (error, line) = refusal(dir.path(), None);
    assert!(matches!(error, OpenError::Foreign { .. }), "{line}");
    assert!(line.contains("(found a, b, c, …)") && line.contains("choose an empty directory"), "{line}");
    assert_eq!(fs::read(dir.path().join("LOCK")).unwrap(), b"mine");

    let file = dir.path().join("photo.jpg");
    let (error, line) = refusal(&file, None);
    assert!(matches!(error, OpenError::Foreign { .. }) && line.contains("is not a directory"), "{line}");
    let (error, line) = refusal(&file.join("data"), None);
    assert!(matches!(error, OpenError::Io { .. }) && line.contains("cannot be made"), "{line}");
}

#[test]
fn another_nodes_directory_is_refused_and_both_are_named() {
    let dir = TempDir::new().unwrap();
    drop(open(dir.path(), Some(2)).unwrap());
    let (error, line) = refusal(dir.path(), Some(3));
    assert!(matches!(error, OpenError::Foreign { .. }), "{line}");
    assert!(line.contains("node 2 of cluster abab") && line.contains("not to node 3"), "{line}");
    assert!(matches!(open(dir.path(), Some(0)), Err(OpenError::Config(_))));
}

#[test]
fn a_damaged_identity_is_refused_byte_by_byte() {
    let dir = TempDir::new().unwrap();
    drop(open(dir.path(), None).unwrap());
    let file = dir.path().join(IDENTITY);
    let bytes = fs::read(&file).unwrap();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(&file, damaged).unwrap();
        let (error, line) = refusal(dir.path(), None);
        assert!(matches!(error, OpenError::Damaged { .. }) && line.contains("backup only if"), "byte {at}: {line}");
        fs::write(&file, &bytes[..at]).unwrap();
        let (error, line) = refusal(dir.path(), None);
        assert!(matches!(error, OpenError::Damaged { .. }), "cut to {at}: {line}");
    }
    fs::write(&file, bytes).unwrap();
    open(dir.path(), None).unwrap();
}

#[test]
fn lost_parts_are_noticed() {
    for lost in [LOG, SNAPSHOTS] {
        let dir = TempDir::new().unwrap();
        drop(open(dir.path(), None).unwrap());
        fs::remove_dir(dir.path().join(lost)).unwrap();
        let (error, line) = refusal(dir.path(), None);
        assert!(matches!(error, OpenError::Damaged { .. }) && line.contains(&format!("{lost}/ is missing")), "{line}");
    }
    for (opened, way_on, not) in [
        (open as fn(&Path, Option<NodeId>) -> _, "from a backup", "tenure cluster"),
        (open_among, "`tenure cluster replace 5`", "backup"),
    ] {
        let dir = TempDir::new().unwrap();
        drop(opened(dir.path(), Some(5)).unwrap());
        fs::remove_dir(dir.path().join(LOG)).unwrap();
        let (_, line) = refusal(dir.path(), Some(5));
        assert!(line.contains(way_on) && !line.contains(not), "{line}");
    }
    let dir = TempDir::new().unwrap();
    drop(open(dir.path(), None).unwrap());
    fs::write(dir.path().join(LOG).join("segment"), b"data").unwrap();
    fs::remove_file(dir.path().join(IDENTITY)).unwrap();
    let (error, line) = refusal(dir.path(), None);
    assert!(matches!(error, OpenError::Damaged { .. }) && line.contains("log/ holds data"), "{line}");
}

#[test]
fn a_newer_identity_asks_for_the_newer_build() {
    let dir = TempDir::new().unwrap();
    drop(open(dir.path(), None).unwrap());
    let mut envelope = sealed::read(&dir.path().join(IDENTITY)).unwrap();
    envelope[1] = 3;
    sealed::write(&dir.path().join(IDENTITY), &envelope).unwrap();
    let (error, line) = refusal(dir.path(), None);
    assert!(matches!(error, OpenError::Foreign { .. }) && line.contains("newer build"), "{line}");
}

#[test]
fn no_random_numbers_no_identity() {
    let dir = TempDir::new().unwrap();
    let mut random = |_: &mut [u8]| Err(io::Error::other("no entropy"));
    let opened = DataDir::open(dir.path(), None, Founding { wall_ms: FOUNDED_MS, several: false, random: &mut random });
    assert!(matches!(opened, Err(OpenError::Io { .. })));
    assert!(!dir.path().join(IDENTITY).exists());
}

/// Version 1 as it is on disks: must be read for ever.
const GOLDEN_V1: &str = concat!(
    "090100",                           // kind, version
    "abababababababababababababababab", // cluster id
    "fb2c01",                           // node id 300
    "fdabababababababab",               // incarnation
    "fd7b68e5cf8b010000",               // founded
    "5fe20e21",                         // CRC32C
);

/// Version 2 of the same.
const GOLDEN_V2: &str = concat!(
    "090200",                           // kind, version
    "fb2c01",                           // node id 300
    "fdabababababababab",               // incarnation
    "00",                               // not of several
    "01",                               // belongs to
    "abababababababababababababababab", // cluster id
    "fd7b68e5cf8b010000",               // founded
    "0100",                             // founder, admitted at
);

#[test]
fn version_2_keeps_its_bytes_and_version_1_says_the_same() {
    let dir = TempDir::new().unwrap();
    let identity = open(dir.path(), Some(300)).unwrap().identity();
    let file = dir.path().join(IDENTITY);
    let hex: String = sealed::read(&file).unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, GOLDEN_V2);
    let old = (0..GOLDEN_V1.len()).step_by(2).map(|at| u8::from_str_radix(&GOLDEN_V1[at..at + 2], 16).unwrap());
    fs::write(&file, old.collect::<Vec<_>>()).unwrap();
    assert_eq!(open(dir.path(), None).unwrap().identity(), identity);
}

/// Opens as a node of several.
fn open_among(path: &Path, node_id: Option<NodeId>) -> Result<DataDir, OpenError> {
    let mut random = |bytes: &mut [u8]| {
        bytes.fill(0xEF);
        Ok(())
    };
    DataDir::open(path, node_id, Founding { wall_ms: FOUNDED_MS, several: true, random: &mut random })
}

fn belonging(seed: u8, founder: bool) -> Belonging {
    Belonging { cluster: [seed; 16], founded_wall_ms: 5, founder, admitted_at: 9 }
}

#[test]
fn a_node_of_several_belongs_to_a_cluster_once_and_remembers_it() {
    let dir = TempDir::new().unwrap();
    let error = open_among(dir.path(), None).unwrap_err();
    assert!(matches!(&error, OpenError::Config(line) if line.contains("--node-id")), "{error}");
    let data = open_among(dir.path(), Some(2)).unwrap();
    assert_eq!((data.identity().belonging, data.identity().several), (None, true));
    drop(data);
    let (_, line) = refusal(dir.path(), Some(3));
    assert!(line.contains("node 2 of a cluster that is not founded yet, not to node 3"), "{line}");

    let data = open_among(dir.path(), Some(2)).unwrap();
    data.belongs_to(belonging(1, false)).unwrap();
    drop(data);
    let data = open_among(dir.path(), Some(2)).unwrap();
    assert_eq!(data.identity().belonging, Some(belonging(1, false)));
    let line = data.belongs_to(belonging(2, false)).unwrap_err().to_string();
    assert!(line.contains(&"01".repeat(16)) && line.contains(&"02".repeat(16)), "{line}");
    assert_eq!(data.identity().belonging, Some(belonging(1, false)));
}

#[test]
fn a_founder_may_join_another_cluster_only_before_it_has_a_log() {
    let dir = TempDir::new().unwrap();
    let data = open_among(dir.path(), Some(2)).unwrap();
    data.belongs_to(belonging(1, true)).unwrap();
    data.belongs_to(belonging(2, true)).unwrap();
    assert!(!data.has_log());
    data.note_log().unwrap();
    data.note_log().unwrap();
    data.belongs_to(belonging(3, false)).unwrap_err();
    drop(data);
    let data = open_among(dir.path(), Some(2)).unwrap();
    assert!(data.has_log());
    assert_eq!(data.identity().belonging, Some(belonging(2, true)));
}
