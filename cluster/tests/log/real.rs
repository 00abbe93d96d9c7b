//! On the real file system, with the writer's thread, and in the simulated runtime without one.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, RaftLogStorage, RaftLogStorageExt};
use openraft::type_config::TypeConfigExt;
use openraft::{AsyncRuntime, EntryPayload, RaftLogReader};
use openraft_rt_sim::SimRuntime;
use tenure_cluster::config::Unobserved;
use tenure_cluster::files::OsDisk;
use tenure_cluster::log::{LogOptions, LogStore, Step};
use tenure_cluster::raft::{Batch, Entry, TokioRuntime, TypeConfig, Vote};
use tenure_cluster::simdisk::SimDisk;

use super::harness::{Types, content, id};

fn entry(term: u64, index: u64, bytes: usize) -> Entry<TokioRuntime> {
    let bytes = Bytes::from(vec![index as u8; bytes]);
    Entry::<TokioRuntime>::new(id(term, index), EntryPayload::Normal(Batch(bytes)))
}

fn open(dir: &Path, options: &LogOptions) -> LogStore<TokioRuntime> {
    LogStore::open(Arc::new(OsDisk::default()), dir.join("log"), options.clone(), Arc::new(Unobserved)).unwrap()
}

#[test]
fn a_log_on_a_real_disk_survives_closing_and_dropping() {
    let dir = tempfile::tempdir().unwrap();
    let options = LogOptions { segment_bytes: 64 * 1024, cached_bytes_max: 0, ..LogOptions::default() };
    Types::run(async {
        let mut log = open(dir.path(), &options);
        log.save_vote(&Vote::<TokioRuntime>::new_committed(3, 1)).await.unwrap();
        let mut answers = Vec::new();
        for index in 0..400 {
            let (told, answer) = Types::oneshot();
            log.append([entry(3, index, 1000)], IOFlushed::signal(told)).await.unwrap();
            answers.push(answer);
        }
        for answer in answers {
            answer.await.unwrap().unwrap();
        }
        log.save_committed(Some(id(3, 390))).await.unwrap();
        log.truncate_after(Some(id(3, 399))).await.unwrap();
        log.purge(id(3, 99)).await.unwrap();
        log.blocking_append([entry(3, 400, 70_000)]).await.unwrap();
        assert!(log.disk_bytes() < 700_000, "purged segments are removed: {}", log.disk_bytes());
        let expected = content(&log);
        assert_eq!(expected.entries.len(), 301);
        log.save_committed(Some(id(3, 400))).await.unwrap();
        log.close();

        let mut log = open(dir.path(), &LogOptions { must_exist: true, ..options.clone() });
        assert_eq!(content(&log), expected);
        assert_eq!(log.read_committed().await.unwrap(), Some(id(3, 400)), "closing writes what is committed");
        log.blocking_append([entry(4, 401, 10)]).await.unwrap();
        let expected = content(&log);
        drop(log);
        assert_eq!(content(&open(dir.path(), &options)), expected);
    });
}

#[test]
fn reads_are_bounded_and_purging_is_by_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let options = LogOptions { cached_bytes_max: 1024 * 1024, ..LogOptions::default() };
    Types::run(async {
        let mut log = open(dir.path(), &options);
        let mut sizes = Vec::new();
        for index in 0..20 {
            let before = log.bytes_after(0);
            log.blocking_append([entry(1, index, 500_000)]).await.unwrap();
            sizes.push(log.bytes_after(0) - before);
        }
        let record = sizes[10];
        assert!((500_000..500_100).contains(&record), "{record}");
        let read = log.limited_get_log_entries(2, 20).await.unwrap();
        assert_eq!(read.len() as u64, 4 * 1024 * 1024 / record);
        assert_eq!(read[0].log_id, id(1, 2));
        assert_eq!(log.bytes_after(17), 2 * record);
        assert_eq!(log.bytes_after(19), 0);
        assert_eq!(log.index_with_tail_of(2 * record), Some(17));
        assert_eq!(log.index_with_tail_of(2 * record + 1), Some(16));
        assert_eq!(log.index_with_tail_of(100 * record), None);
        log.purge(id(1, 9)).await.unwrap();
        assert_eq!(log.bytes_after(0), 10 * record);
        assert_eq!(log.index_with_tail_of(10 * record), None);
        assert!(log.limited_get_log_entries(5, 20).await.unwrap().is_empty(), "no hole: purged meanwhile");
        assert_eq!(log.try_get_log_entries(5..20).await.unwrap().len(), 10);
        assert!(log.append([entry(1, 25, 1)], IOFlushed::noop()).await.is_err(), "a hole is refused");
    });
}

#[test]
fn the_simulated_runtime_drives_the_same_log() {
    SimRuntime::with_seed(7).block_on(async {
        type Simulated = TypeConfig<SimRuntime>;
        let disk = SimDisk::new();
        let options = LogOptions { segment_bytes: 4096, ..LogOptions::default() };
        let opened = LogStore::<SimRuntime>::open_stepped(disk.mount(), "/log".into(), options, Arc::new(Unobserved));
        let (mut log, mut writer) = opened.unwrap();
        let task = Simulated::spawn(async move {
            loop {
                let seen = writer.wakeups();
                match writer.step(false) {
                    Step::Wrote => {}
                    Step::Stopped => break,
                    Step::Idle | Step::Coming | Step::Full => writer.woken(seen).await,
                }
            }
        });
        log.save_vote(&Vote::<SimRuntime>::new(1, 1)).await.unwrap();
        for index in 0..20 {
            log.blocking_append([entry(1, index, 700)]).await.unwrap();
        }
        log.close();
        task.await.unwrap();
        assert_eq!(log.try_get_log_entries(..).await.unwrap().len(), 20);
    });
}
