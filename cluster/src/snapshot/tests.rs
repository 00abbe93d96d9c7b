//! Snapshots at every step of being made and at every damaged byte.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tempfile::TempDir;

use super::*;
use crate::persisted::MemberV2;

fn head(term: u64, index: u64) -> Head {
    let last = LogIdV1 { term, node: 1, index };
    let member = MemberV2 { client: "a:1".into(), peer: String::new(), incarnation: 9 };
    let membership = MembershipV2 { configs: vec![vec![1]], nodes: vec![(1, member)] };
    let membership_at = Some(LogIdV1 { term: 1, node: 1, index: 1 });
    Head {
        last,
        ordinal: 0,
        membership_at,
        membership,
        stamp_ms: 1_700_000_000_000 + index,
        feature_level: 3,
        format_version: 2,
    }
}

/// Bytes without a pattern, different for each seed.
fn state(seed: u64, length: usize) -> Vec<u8> {
    let mut word = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word.to_le_bytes()[3]
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// Writes the state of `index` in odd pieces.
fn write(store: &dyn SnapshotStore, index: u64, length: usize) -> Result<Stored, SnapshotError> {
    let bytes = state(index, length);
    store.write(head(1, index), &mut |sink| bytes.chunks(1013).try_for_each(|piece| sink.write_all(piece)))
}

fn read(store: &dyn SnapshotStore, stored: &Stored) -> Result<Vec<u8>, SnapshotError> {
    let mut bytes = Vec::new();
    store.open(stored)?.read_to_end(&mut bytes).unwrap();
    Ok(bytes)
}

/// The one snapshot's directory in a store's.
fn only_dir(store: &Path) -> PathBuf {
    let mut entries = fs::read_dir(store).unwrap().map(|entry| entry.unwrap().path());
    let only = entries.next().unwrap();
    assert_eq!(entries.next(), None, "beside {only:?}");
    only
}

fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    found
}

fn keeps_the_newest(store: &dyn SnapshotStore) {
    assert_eq!(store.newest().unwrap(), None);
    for (index, length) in [0, 1, 4095, 4096, 4097, 300_000].into_iter().enumerate() {
        let index = index as u64 + 10;
        let stored = write(store, index, length).unwrap();
        assert_eq!(stored.head, head(1, index));
        assert_eq!(stored.bytes, length as u64);
        assert_eq!(store.newest().unwrap().as_ref(), Some(&stored));
        assert!(read(store, &stored).unwrap() == state(index, length), "length {length}");
    }
    let newest = store.newest().unwrap().unwrap();
    for index in [newest.head.last.index, 3] {
        let same = store.write(head(1, index), &mut |_| panic!("must not be saved again")).unwrap();
        assert_eq!(same, newest, "a store never goes back");
    }
    let older = Stored { head: head(1, 12), ..newest.clone() };
    assert!(matches!(store.open(&older), Err(SnapshotError::Gone { term: 1, index: 12 })));

    let refused = store.write(head(2, 16), &mut |sink| {
        sink.write_all(&state(0, 10_000))?;
        Err(io::ErrorKind::StorageFull.into())
    });
    assert!(matches!(&refused, Err(error @ SnapshotError::Save(_)) if error.is_disk_full()));
    assert_eq!(store.newest().unwrap(), Some(newest.clone()));
    assert!(read(store, &newest).unwrap() == state(15, 300_000));
    // A later term counts, whatever the index.
    let later = store.write(head(2, 16), &mut |sink| sink.write_all(b"later")).unwrap();
    assert_eq!(read(store, &later).unwrap(), b"later");
}

#[test]
fn memory_keeps_the_newest() {
    let store = MemorySnapshots::default();
    keeps_the_newest(&store);
    assert_eq!(store.clone().newest().unwrap(), store.newest().unwrap(), "clones share");
}

#[test]
fn sled_keeps_the_newest_and_nothing_else() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("snapshots");
    let store = SledSnapshots::open(&path).unwrap();
    keeps_the_newest(&store);
    let newest = store.newest().unwrap();
    let on_disk: u64 = contents(&only_dir(&path)).values().map(|bytes| bytes.len() as u64).sum();
    assert!(newest.as_ref().unwrap().disk_bytes.abs_diff(on_disk) <= 4, "all but the manifest's checksum");
    drop(store);
    let again = SledSnapshots::open(&path).unwrap();
    assert_eq!(again.newest().unwrap(), newest);
    assert_eq!(read(&again, &newest.unwrap()).unwrap(), b"later");
}

/// A store whose write fails from the `fatal`-th step on, and the steps it did.
fn crashing(path: &Path, fatal: usize) -> (SledSnapshots, Arc<AtomicUsize>) {
    let steps = Arc::new(AtomicUsize::new(0));
    let done = Arc::clone(&steps);
    let hook = move |_: Step| match done.fetch_add(1, Ordering::SeqCst) {
        step if step < fatal => Ok(()),
        _ => Err(io::Error::other("crash")),
    };
    (SledSnapshots::open(path).unwrap().with_hook(Arc::new(hook)), steps)
}

#[test]
fn a_crash_after_any_step_leaves_the_old_or_the_new_one_whole() {
    for with_old in [false, true] {
        let mut seen_new = false;
        for fatal in 0.. {
            let dir = TempDir::new().unwrap();
            let path = dir.path().join("snapshots");
            if with_old {
                write(&SledSnapshots::open(&path).unwrap(), 1, 20_000).unwrap();
            }
            let (store, steps) = crashing(&path, fatal);
            let written = write(&store, 2, 30_000);
            if written.is_ok() {
                assert_eq!(steps.load(Ordering::SeqCst), fatal, "every step was crashed at");
                assert!(fatal > 10, "too few steps: {fatal}");
                break;
            }
            drop(store);
            // What has no final name is not synced: the crash may have left anything in it.
            let unfinished = |file: &Path| file.ancestors().any(|dir| dir.extension().is_some_and(|end| end == "tmp"));
            for (file, bytes) in contents(&path).into_iter().filter(|(file, _)| unfinished(file)) {
                fs::write(file, &bytes[..bytes.len() / 2]).unwrap();
            }

            let store = SledSnapshots::open(&path).unwrap();
            match store.newest().unwrap() {
                None => assert!(!with_old && !seen_new, "step {fatal}"),
                Some(old) if old.head.last.index == 1 => {
                    assert!(with_old && !seen_new, "step {fatal}");
                    assert!(read(&store, &old).unwrap() == state(1, 20_000));
                }
                Some(new) => {
                    seen_new = true;
                    assert!(read(&store, &new).unwrap() == state(2, 30_000));
                }
            }
            // It goes on from there, and nothing is left over.
            let next = write(&store, 3, 40_000).unwrap();
            assert!(read(&store, &next).unwrap() == state(3, 40_000));
            only_dir(&path);
        }
    }
}

#[test]
fn a_failed_write_gives_its_space_back() {
    let dir = TempDir::new().unwrap();
    let hook = |step| if step == Step::Verified { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) };
    let store = SledSnapshots::open(dir.path()).unwrap().with_hook(Arc::new(hook));
    let error = write(&store, 1, 10_000).unwrap_err();
    assert!(error.is_disk_full(), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Opens the store and reads its snapshot, as a start does.
fn start(path: &Path) -> Result<Vec<u8>, SnapshotError> {
    let store = SledSnapshots::open(path)?;
    let newest = store.newest()?.unwrap();
    read(&store, &newest)
}

fn assert_damaged(path: &Path, file: &Path, what: &str) {
    let before = contents(path);
    let line = match start(path) {
        Err(error @ SnapshotError::Damaged { .. }) => error.at_opening(Remedy::Replace(2)).to_string(),
        other => panic!("{file:?}, {what}: {:?}", other.map(|bytes| bytes.len())),
    };
    assert!(line.contains(&*file.to_string_lossy()) && line.contains("replace 2") && !line.contains('\n'), "{line}");
    assert!(contents(path) == before, "{file:?}, {what}: something was changed");
}

#[test]
fn damage_anywhere_is_told_and_changes_nothing() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("snapshots");
    write(&SledSnapshots::open(&path).unwrap(), 7, 60_000).unwrap();
    let files = contents(&path);
    assert!(files.len() >= 4, "conf, db, sled's own snapshot and the manifest: {:?}", files.keys());
    for (file, bytes) in &files {
        // Each byte of small files, some 150 places of the large one.
        for at in (0..bytes.len()).step_by(bytes.len().div_ceil(150)).chain([bytes.len() - 1]) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            fs::write(file, damaged).unwrap();
            assert_damaged(&path, file, &format!("byte {at} changed"));
        }
        for length in [0, 1, bytes.len() / 2, bytes.len() - 1] {
            fs::write(file, &bytes[..length]).unwrap();
            assert_damaged(&path, file, &format!("cut to {length}"));
        }
        fs::write(file, [bytes.as_slice(), &[0]].concat()).unwrap();
        assert_damaged(&path, file, "one byte more");
        fs::remove_file(file).unwrap();
        assert_damaged(&path, file, "removed");
        fs::write(file, bytes).unwrap();
    }
    let added = only_dir(&path).join("snap.FFFFFFFFFFFFFFFF");
    fs::write(&added, b"sled would take this for its newest").unwrap();
    assert_damaged(&path, &added, "added");
    fs::remove_file(&added).unwrap();
    assert!(start(&path).unwrap() == state(7, 60_000));
}

#[test]
fn a_snapshot_under_another_name_is_not_believed() {
    let dir = TempDir::new().unwrap();
    write(&SledSnapshots::open(dir.path()).unwrap(), 7, 10).unwrap();
    let place = only_dir(dir.path());
    let other = PathBuf::from(place.to_string_lossy().replace("07", "08"));
    fs::rename(place, &other).unwrap();
    assert_damaged(dir.path(), &other.join("manifest"), "renamed");
}

#[test]
fn a_damaged_newest_one_does_not_cost_the_older() {
    let dir = TempDir::new().unwrap();
    // The hook stops the write once the new one is durable: the old one is still there.
    let (store, _) = crashing(dir.path(), usize::MAX);
    write(&store, 1, 10).unwrap();
    let store = store.with_hook(Arc::new(|step| match step {
        Step::Durable => Err(io::Error::other("crash")),
        _ => Ok(()),
    }));
    write(&store, 2, 10).unwrap_err();
    drop(store);
    let newest = contents(dir.path()).into_keys().rfind(|file| file.ends_with("manifest")).unwrap();
    assert!(newest.to_string_lossy().contains("02/"), "{newest:?}");
    fs::write(&newest, b"x").unwrap();
    assert_damaged(dir.path(), &newest, "newest");
}

#[test]
fn damage_after_the_start_is_told_at_the_next_opening() {
    let dir = TempDir::new().unwrap();
    let store = SledSnapshots::open(dir.path()).unwrap();
    let stored = write(&store, 7, 60_000).unwrap();
    assert!(read(&store, &stored).unwrap() == state(7, 60_000));
    let db = only_dir(dir.path()).join("db");
    let mut bytes = fs::read(&db).unwrap();
    bytes[1000] ^= 1;
    fs::write(&db, bytes).unwrap();
    assert!(matches!(store.open(&stored), Err(SnapshotError::Damaged { path, .. }) if path == db));
}

#[test]
fn a_reader_lasts_beyond_its_snapshot_and_shares_it() {
    let dir = TempDir::new().unwrap();
    let store = SledSnapshots::open(dir.path()).unwrap();
    let old = write(&store, 1, 200_000).unwrap();
    let (mut one, mut two) = (store.open(&old).unwrap(), store.open(&old).unwrap());
    let mut first = [0; 10];
    one.read_exact(&mut first).unwrap();
    write(&store, 2, 100).unwrap();
    let mut three = store.open(&old).unwrap();
    let mut rest = Vec::new();
    one.read_to_end(&mut rest).unwrap();
    assert!([first.as_slice(), &rest].concat() == state(1, 200_000));
    for reader in [&mut two, &mut three] {
        let mut all = Vec::new();
        reader.read_to_end(&mut all).unwrap();
        assert!(all == state(1, 200_000));
    }
    drop((one, two, three));
    assert!(matches!(store.open(&old), Err(SnapshotError::Gone { .. })));
}

#[test]
fn opening_right_after_closing_works() {
    let dir = TempDir::new().unwrap();
    let store = SledSnapshots::open(dir.path()).unwrap();
    let stored = write(&store, 1, 50_000).unwrap();
    drop(store);
    for _ in 0..100 {
        assert!(start(dir.path()).unwrap() == state(1, 50_000));
    }
    let store = SledSnapshots::open(dir.path()).unwrap();
    for _ in 0..100 {
        drop(store.open(&stored).unwrap());
    }
}

#[test]
fn opening_and_reading_leave_every_file_as_it_is() {
    // Sizes at which sled rewrites pages when they are first read (67 210, 8 400 765), and at which its last segment is
    // exactly full (205 958, 549 733): there it would change its files under a manifest that was written too early.
    for length in [0, 1, 4096, 67_210, 205_958, 549_733, 8_400_765] {
        let dir = TempDir::new().unwrap();
        let bytes = vec![7; length];
        let store = SledSnapshots::open(dir.path()).unwrap();
        store.write(head(1, 1), &mut |sink| sink.write_all(&bytes)).unwrap();
        let before = contents(dir.path());
        for _ in 0..3 {
            assert!(start(dir.path()).unwrap() == bytes, "length {length}");
        }
        // A reader that gives up half way.
        let store = SledSnapshots::open(dir.path()).unwrap();
        let mut reader = store.open(&store.newest().unwrap().unwrap()).unwrap();
        reader.read_exact(&mut vec![0; length / 2]).unwrap();
        drop(reader);
        assert!(start(dir.path()).unwrap() == bytes, "length {length}");
        assert!(contents(dir.path()) == before, "length {length}");
    }
}

#[test]
fn readers_beside_a_writer_see_whole_snapshots() {
    let dir = TempDir::new().unwrap();
    let store = SledSnapshots::open(dir.path()).unwrap();
    write(&store, 1, 30_000).unwrap();
    const LAST: u64 = 12;
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let stored = store.newest().unwrap().unwrap();
                    let index = stored.head.last.index;
                    match read(&store, &stored) {
                        Ok(bytes) => assert!(bytes == state(index, 30_000)),
                        Err(SnapshotError::Gone { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                    if index == LAST {
                        return;
                    }
                }
            });
        }
        for index in 2..=LAST {
            write(&store, index, 30_000).unwrap();
        }
    });
}

#[test]
fn a_place_that_is_no_directory_is_told() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, b"").unwrap();
    let Err(error) = SledSnapshots::open(file.join("snapshots")) else { panic!("opened") };
    assert!(matches!(error, SnapshotError::Io { .. }) && error.to_string().contains("file/snapshots"), "{error}");
}
