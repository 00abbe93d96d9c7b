//! A node's log on its simulated disk, driven as its thread would.
//!
//! Model: a group is written and synced at one instant, which is the time of a sync after there was something to write.
//! So nobody hears of a group before a sync's time has passed, and what is submitted meanwhile rides in it. A power cut
//! finds the group of that time anywhere between its first write and its last: see `Site::tear`.
//!
//! Not promised: that what is submitted during a sync waits for the next one.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_cluster::Observer;
use tenure_cluster::files::{Disk, DiskFile};
use tenure_cluster::log::{Step, Writer};
use tokio::sync::oneshot;

use crate::coverage::Coverage;
use crate::runtime;

/// How often a full disk is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// How long syncs take, and when the disk first failed; shared by all lives of a node.
#[derive(Default)]
pub(super) struct Pace {
    sync_us: u64,
    pub(super) more_ms: AtomicU64,
    /// True time of the first failure in this life, plus 1; 0 for none.
    failed_at: AtomicU64,
    /// Until when the sync that is under way takes, true time.
    syncs_until_ns: AtomicU64,
    /// Who waits for the next write, to cut it short.
    cut: Mutex<Option<oneshot::Sender<()>>>,
}

impl Pace {
    /// Of a disk whose syncs take so long.
    pub(super) fn of(sync_us: u64) -> Self {
        Self { sync_us, ..Self::default() }
    }

    /// A new life begins.
    pub(super) fn begin(&self) {
        self.failed_at.store(0, Ordering::Relaxed);
    }

    /// When the disk first failed in this life.
    pub(super) fn failed_at_ns(&self) -> Option<u64> {
        self.failed_at.load(Ordering::Relaxed).checked_sub(1)
    }

    fn failed(&self) {
        // Only the first counts.
        let _ = self.failed_at.compare_exchange(0, runtime::now_ns() + 1, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Until when the last sync that began takes: a slow one goes on when the disk is no longer slow.
    pub(super) fn syncs_until_ns(&self) -> u64 {
        self.syncs_until_ns.load(Ordering::Relaxed)
    }

    /// Resolves when something is about to be written, which then is not: the machine must be stopped.
    pub(super) fn next_write(&self) -> oneshot::Receiver<()> {
        let (cut, told) = oneshot::channel();
        *self.cut.lock().unwrap() = Some(cut);
        told
    }

    /// Whoever waits to cut a write short does so no more.
    pub(super) fn give_up_cut(&self) {
        *self.cut.lock().unwrap() = None;
    }

    /// Does somebody cut this write short?
    fn is_cut(&self) -> bool {
        self.cut.lock().unwrap().take().is_some_and(|cut| cut.send(()).is_ok())
    }

    async fn sync(&self, coverage: &Coverage) {
        let more = self.more_ms.load(Ordering::Relaxed);
        if more > 0 {
            coverage.fired("slow_sync");
        }
        let takes = Duration::from_micros(self.sync_us) + Duration::from_millis(more);
        self.syncs_until_ns.store(runtime::now_ns() + takes.as_nanos() as u64, Ordering::Relaxed);
        runtime::sleep(takes).await;
    }
}

/// Drives the log's writer until it stops.
pub(super) async fn drive(writer: Arc<Mutex<Writer>>, pace: Arc<Pace>, coverage: Coverage) {
    let mut retry_at_ns = 0;
    loop {
        // As its thread does, also where something was written: a disk that was full a while ago may have room again.
        let retry = runtime::now_ns() >= retry_at_ns;
        if retry {
            retry_at_ns = runtime::now_ns() + RETRY.as_nanos() as u64;
        }
        let (seen, step) = {
            let mut writer = writer.lock().unwrap();
            (writer.wakeups(), writer.step(retry))
        };
        match step {
            Step::Wrote => pace.sync(&coverage).await,
            Step::Stopped => return,
            Step::Idle | Step::Coming => {
                let woken = writer.lock().unwrap().woken(seen);
                woken.await;
                pace.sync(&coverage).await;
                if pace.is_cut() {
                    std::future::pending::<()>().await;
                }
            }
            Step::Full => {
                coverage.fired("disk_full");
                runtime::sleep(RETRY).await;
            }
        }
    }
}

/// Counts what a node tells of its snapshots.
pub(super) struct Snapshots(pub(super) Coverage);

impl Observer for Snapshots {
    fn snapshot_taken(&self, _bytes: u64, _elapsed: Duration) {
        self.0.fired("snapshot_taken");
    }
}

/// A disk that is watched: failures, and segments that come and go.
pub(super) struct Observed {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) pace: Arc<Pace>,
    pub(super) coverage: Coverage,
}

struct ObservedFile {
    file: Arc<dyn DiskFile>,
    pace: Arc<Pace>,
}

/// A failure is what is neither an answer nor a full disk.
fn look<T>(pace: &Pace, result: io::Result<T>) -> io::Result<T> {
    if let Err(error) = &result {
        let answers = [
            io::ErrorKind::NotFound,
            io::ErrorKind::AlreadyExists,
            io::ErrorKind::StorageFull,
            io::ErrorKind::UnexpectedEof,
        ];
        if !answers.contains(&error.kind()) {
            pace.failed();
        }
    }
    result
}

impl Observed {
    fn file(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(ObservedFile { file, pace: Arc::clone(&self.pace) })
    }
}

fn is_segment(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "log")
}

impl Disk for Observed {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        look(&self.pace, self.disk.create_dir(dir))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        look(&self.pace, self.disk.list(dir))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        look(&self.pace, self.disk.open(path)).map(|file| self.file(file))
    }

    fn create_new(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        look(&self.pace, self.disk.create_new(path)).map(|file| self.file(file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        look(&self.pace, self.disk.rename(from, to))?;
        if is_segment(to) {
            self.coverage.fired("segment_rolled");
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        look(&self.pace, self.disk.remove(path))?;
        if is_segment(path) {
            self.coverage.fired("log_purged");
        }
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        look(&self.pace, self.disk.sync_dir(dir))
    }
}

impl DiskFile for ObservedFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        look(&self.pace, self.file.read_at(bytes, offset))
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        look(&self.pace, self.file.write_at(bytes, offset))
    }

    fn sync_data(&self) -> io::Result<()> {
        look(&self.pace, self.file.sync_data())
    }

    fn len(&self) -> io::Result<u64> {
        look(&self.pace, self.file.len())
    }
}
