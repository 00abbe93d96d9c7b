//! What a snapshot costs: writes and loads N records (default one million of about 120 bytes) and prints seconds, bytes
//! on disk and the process's peak memory. `cargo bench -p tenure-cluster --bench snapshot_cost -- DIR [N]`

#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use std::error::Error;
use std::io::{self, Read, Write};
use std::time::Instant;

use tenure_cluster::persisted::{LogIdV1, MembershipV2};
use tenure_cluster::snapshot::{Head, SledSnapshots, SnapshotStore};

const RECORD_BYTES: usize = 120;

fn record(number: u64) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    let mut state = number;
    for word in bytes.chunks_mut(8) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        word.copy_from_slice(&state.to_be_bytes());
    }
    bytes
}

fn memory(which: &str) -> io::Result<String> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with(which)).unwrap_or_default();
    Ok(line.split_whitespace().skip(1).collect::<Vec<_>>().join(" "))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let dir = args.next().ok_or("usage: snapshot_cost DIR [N]")?;
    let records: u64 = args.next().map_or(Ok(1_000_000), |text| text.parse())?;
    let store = SledSnapshots::open(&dir)?;
    let last = LogIdV1 { term: 1, node: 1, index: store.newest()?.map_or(1, |stored| stored.head.last.index + 1) };
    let membership = MembershipV2::default();
    let head =
        Head { last, ordinal: 0, membership_at: None, membership, stamp_ms: 1, feature_level: 1, format_version: 1 };

    let start = Instant::now();
    let stored =
        store.write(head, &mut |sink: &mut dyn Write| (0..records).try_for_each(|n| sink.write_all(&record(n))))?;
    println!(
        "write  {:.2?}: {} bytes, {} on disk, peak {}",
        start.elapsed(),
        stored.bytes,
        stored.disk_bytes,
        memory("VmHWM")?
    );
    drop(store);

    let start = Instant::now();
    let store = SledSnapshots::open(&dir)?;
    println!("check  {:.2?}", start.elapsed());
    let mut source = store.open(&stored)?;
    let mut found = [0; RECORD_BYTES];
    for number in 0..records {
        source.read_exact(&mut found)?;
        if found != record(number) {
            return Err(format!("record {number} differs").into());
        }
    }
    println!("check and load {:.2?}, peak {}", start.elapsed(), memory("VmHWM")?);
    Ok(())
}
