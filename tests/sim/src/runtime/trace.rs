//! What was decided and what was said, as one number; and its last lines, for people.
//!
//! The number is for comparing runs of one build of this simulator, not for keeping.

use std::collections::VecDeque;
use std::fmt::Write;

use super::Options;

#[derive(Debug)]
pub(super) struct Trace {
    hash: u64,
    lines: VecDeque<String>,
    options: Options,
}

/// Mixes all bits of a number into all bits (SplitMix64).
pub(super) fn mix(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Trace {
    pub(super) fn new(seed: u64, options: Options) -> Self {
        Self { hash: mix(seed), lines: VecDeque::new(), options }
    }

    pub(super) fn hash(&self) -> u64 {
        mix(self.hash)
    }

    fn add(&mut self, number: u64) {
        self.hash = (self.hash.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    /// A task is polled.
    pub(super) fn poll(&mut self, now_ns: u64, host: u64, task: u64) {
        self.add(now_ns);
        self.add(host);
        self.add(task);
        if self.options.trace_polls {
            self.line(now_ns, host, format_args!("task {task} is polled"));
        }
    }

    /// Something that somebody said.
    pub(super) fn note(&mut self, now_ns: u64, host: u64, what: &str) {
        self.add(now_ns);
        self.add(host);
        self.add(what.len() as u64);
        let mut chunks = what.as_bytes().chunks_exact(8);
        for chunk in &mut chunks {
            self.add(chunk.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)));
        }
        self.add(chunks.remainder().iter().fold(0, |number, &byte| number << 8 | u64::from(byte)));
        self.line(now_ns, host, format_args!("{what}"));
    }

    #[expect(clippy::print_stdout, reason = "somebody asked to see the trace")]
    fn line(&mut self, now_ns: u64, host: u64, what: std::fmt::Arguments<'_>) {
        if self.options.trace_lines == 0 && !self.options.trace_print {
            return;
        }
        // The oldest line's memory is the newest line's.
        let full = self.lines.len() >= self.options.trace_lines.max(1);
        let mut line = if full { self.lines.pop_front().unwrap_or_default() } else { String::new() };
        line.clear();
        let (seconds, micros) = (now_ns / 1_000_000_000, now_ns / 1_000 % 1_000_000);
        // Writing to a string does not fail.
        let _ = write!(line, "{seconds:>4}.{micros:06} host {host}: {what}");
        if self.options.trace_print {
            println!("{line}");
        }
        if self.options.trace_lines > 0 {
            self.lines.push_back(line);
        }
    }

    pub(super) fn keep(&mut self, lines: usize, print: bool) {
        self.options.trace_lines = lines;
        self.options.trace_print = print;
        let extra = self.lines.len().saturating_sub(lines);
        self.lines.drain(..extra);
    }

    pub(super) fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines).into()
    }
}
