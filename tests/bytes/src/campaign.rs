//! One target's run: its corpus as it is, then mutants for a time, at least so many; and what is said when one breaks it.
//!
//! The heap is measured over the whole process: one campaign runs at a time, and on one thread. What a reader's own
//! threads take meanwhile counts with it.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use checker::Dice;
use peak_alloc::PeakAlloc;

use crate::watch::Watch;
use crate::{Target, Verdict, corpus, mutate};

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Items of the corpus.
    pub items: u64,
    /// Mutants that were taken.
    pub accepted: u64,
    /// Mutants that were refused.
    pub refused: u64,
    /// The most that one read allocated, bytes.
    pub heap_bytes: usize,
}

/// Which inputs.
#[derive(Clone, Copy, Debug)]
pub struct Course {
    /// Of all mutants.
    pub seed: u64,
    /// How long.
    pub time: Duration,
}

/// Reads one input within the target's bounds.
///
/// # Errors
/// What it broke, in one line.
pub fn read(target: &Target, watch: &Watch, input: &[u8]) -> Result<(Verdict, usize), String> {
    watch.reads(target.name, input);
    PeakAlloc.reset_peak_usage();
    let before = PeakAlloc.current_usage();
    let outcome = catch_unwind(AssertUnwindSafe(|| (target.read)(input)));
    let heap_bytes = PeakAlloc.peak_usage().saturating_sub(before);
    watch.has_read();
    let verdict = outcome.map_err(|_| "it panicked (see above)".to_owned())?;
    let most = target.heap.per_byte * input.len() + target.heap.besides;
    if heap_bytes > most {
        return Err(format!("{heap_bytes} bytes were allocated, at most {most} are its bound"));
    }
    Ok((verdict, heap_bytes))
}

/// Writes an input down, and says how to read it again.
pub fn keep(target: &str, input: &[u8]) -> String {
    let name = format!("tenure-bytes-{target}-{:08x}", crc32c::crc32c(input));
    let path = std::env::temp_dir().join(name);
    match fs::write(&path, input) {
        Ok(()) => format!(
            "TENURE_BYTES_TARGET={target} TENURE_BYTES_REPLAY={} cargo test -p bytes-tests --test mutants",
            path.display()
        ),
        Err(error) => {
            let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{} cannot be written ({error}): {hex}", path.display())
        }
    }
}

/// Runs it.
///
/// # Errors
/// The first input that broke something, and how to replay it.
pub fn run(target: &Target, watch: &Watch, course: Course) -> Result<Counts, String> {
    let items = corpus::items(target);
    let mut counts = Counts { items: items.len() as u64, ..Counts::default() };
    // What is made once, as a node or a store, is made here and not on a mutant's account.
    let _ = (target.read)(&items[0].bytes);
    for item in &items {
        let broke = |what: &str| format!("{}, corpus item {}: {what}", target.name, item.name);
        let (verdict, heap_bytes) = read(target, watch, &item.bytes).map_err(|what| broke(&what))?;
        if verdict == Verdict::Refused && !item.is_finding() {
            return Err(broke("it is valid and was refused"));
        }
        counts.heap_bytes = counts.heap_bytes.max(heap_bytes);
    }
    let corpus: Vec<Vec<u8>> = items.into_iter().map(|item| item.bytes).collect();
    let started = Instant::now();
    let mut number = 0;
    let keeps = std::env::var_os("TENURE_BYTES_KEEP").is_some();
    while number < target.least || started.elapsed() < course.time {
        let input = mutate::mutant(&mut Dice::new(course.seed, number), target.form, &corpus, target.mend);
        if keeps {
            fs::write(std::env::temp_dir().join("tenure-bytes-last"), &input).map_err(|error| error.to_string())?;
        }
        let (verdict, heap_bytes) = read(target, watch, &input).map_err(|what| {
            let replay = keep(target.name, &input);
            format!("{}, seed {}, mutant {number} of {} bytes: {what}\n{replay}", target.name, course.seed, input.len())
        })?;
        match verdict {
            Verdict::Accepted => counts.accepted += 1,
            Verdict::Refused => counts.refused += 1,
        }
        counts.heap_bytes = counts.heap_bytes.max(heap_bytes);
        number += 1;
    }
    // Only one of the two: the mutations stop at the first check, or do not touch what is checked.
    if counts.accepted == 0 || counts.refused == 0 {
        return Err(format!("{}: of {number} mutants {} were accepted", target.name, counts.accepted));
    }
    Ok(counts)
}
