//! Every target in turn. `TENURE_BYTES_SECONDS` is the time for all (default 10), `TENURE_BYTES_SEED` decides the
//! mutants (default 1), `TENURE_BYTES_TARGET` is one target alone, `TENURE_BYTES_REPLAY` a file to read with it.
//! A read that ends the process (a stack that overflows) tells nothing: with `TENURE_BYTES_KEEP` each mutant is written to
//! `tenure-bytes-last` in the temporary directory before it is read.
//!
//! Without the test harness: its threads would be measured too, and its counts are worth reading when all is well.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "a test")]

use std::process::ExitCode;
use std::time::Duration;

use bytes_tests::campaign::{self, Counts, Course};
use bytes_tests::watch::Watch;
use bytes_tests::{TARGETS, Target};
use peak_alloc::PeakAlloc;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

const SECONDS: f64 = 10.0;

fn setting<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} cannot be {text:?}")))
}

fn main() -> ExitCode {
    // A reader that did not count would let everything pass.
    HEAP.reset_peak_usage();
    drop(std::hint::black_box(vec![1_u8; 1 << 20]));
    assert!(HEAP.peak_usage() >= 1 << 20, "the heap is not counted");

    let only: Option<String> = setting("TENURE_BYTES_TARGET");
    let targets: Vec<&Target> =
        TARGETS.iter().filter(|target| only.as_ref().is_none_or(|only| only == target.name)).collect();
    assert!(!targets.is_empty(), "TENURE_BYTES_TARGET is none of the targets");
    let watch = Watch::begin(campaign::keep);
    if let Some(file) = setting::<String>("TENURE_BYTES_REPLAY") {
        return replay(&targets, &watch, &file);
    }
    let seconds = setting("TENURE_BYTES_SECONDS").unwrap_or(SECONDS);
    let time = Duration::from_secs_f64(seconds / targets.len() as f64);
    let seed = setting("TENURE_BYTES_SEED").unwrap_or(1);
    println!("{:<20} {:>6} {:>9} {:>9} {:>9} {:>10}", "target", "corpus", "mutants", "accepted", "refused", "heap KiB");
    let mut failures = Vec::new();
    for target in targets {
        match campaign::run(target, &watch, Course { seed, time }) {
            Ok(Counts { items, accepted, refused, heap_bytes }) => {
                let (all, kib) = (accepted + refused, heap_bytes / 1024);
                println!("{:<20} {items:>6} {all:>9} {accepted:>9} {refused:>9} {kib:>10}", target.name);
            }
            Err(failure) => {
                println!("{:<20} FAILED", target.name);
                failures.push(failure);
            }
        }
    }
    for failure in &failures {
        println!("\nFAIL {failure}");
    }
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The file as input of each of `targets`: of one, if it is named.
fn replay(targets: &[&Target], watch: &Watch, file: &str) -> ExitCode {
    let input = std::fs::read(file).unwrap_or_else(|error| panic!("{file}: {error}"));
    let mut code = ExitCode::SUCCESS;
    for target in targets {
        match campaign::read(target, watch, &input) {
            Ok((verdict, heap_bytes)) => println!("{:<20} {verdict:?}, {heap_bytes} bytes of heap", target.name),
            Err(what) => {
                println!("{:<20} FAILED: {what}", target.name);
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}
