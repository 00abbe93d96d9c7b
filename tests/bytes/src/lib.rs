//! Damaged bytes against everything that reads bytes.
//!
//! Model: a target is one reader behind one function. Its corpus is what the real encoders write (`corpus/NAME/`, made
//! anew by `TENURE_BYTES_CORPUS=write cargo test -p bytes-tests --test corpus`) and every input that once broke
//! something (`found-…`). `campaign` hands it the corpus as it is, then mutants of it (`mutate`, `text`); where a format
//! has checksums or lengths, the target mends them, so that mutants get behind the first check.
//!
//! Invariants of every read: no panic; no more memory than a bound in the input's length; what was accepted survives
//! being written and read again, where there is an encoder. Beyond that each reader's own promises, said at its topic.
//!
//! Not promised: coverage is not measured (`fuzz/` does that, by hand); a mutant is no adversary who knows the code.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

pub mod campaign;
pub mod client;
pub mod corpus;
pub mod http;
pub mod keyspace;
pub mod log;
pub mod mutate;
pub mod peers;
pub mod persisted;
pub mod settings;
pub mod snapshots;
pub mod text;
pub mod watch;

use mutate::Form;

/// What became of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was taken for what the format means.
    Accepted,
    /// It was refused in the reader's own way.
    Refused,
}

impl Verdict {
    /// Accepted if so.
    pub fn of(accepted: bool) -> Self {
        if accepted { Self::Accepted } else { Self::Refused }
    }
}

/// The most that a read may allocate at once: so much for each byte of the input, and so much besides.
#[derive(Clone, Copy, Debug)]
pub struct Heap {
    /// Times the input's length.
    pub per_byte: usize,
    /// Whatever the input.
    pub besides: usize,
}

/// A valid input, and its name in the corpus.
pub type Sample = (&'static str, Vec<u8>);

/// A reader of bytes.
pub struct Target {
    /// Its name, and its folder in the corpus.
    pub name: &'static str,
    /// Reads, and checks what must hold of what was read.
    pub read: fn(&[u8]) -> Verdict,
    /// Valid inputs, made by the real encoders.
    pub samples: fn() -> Vec<Sample>,
    /// How its mutants are made.
    pub form: Form,
    /// Makes checksums and lengths right again.
    pub mend: Option<fn(&mut Vec<u8>)>,
    /// Its bound.
    pub heap: Heap,
    /// Mutants it gets at least, however slow.
    pub least: u64,
}

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// All of them.
pub const TARGETS: &[Target] = &[
    http::WIRE,
    http::BODY,
    peers::GREETING,
    peers::FRAMES,
    peers::SNAPSHOT,
    peers::REQUEST,
    peers::ANSWER,
    peers::OFFER,
    log::SEGMENTS,
    log::HEADER,
    log::CHANGE,
    snapshots::MANIFEST,
    snapshots::CHUNKS,
    snapshots::STORE,
    keyspace::STATE,
    keyspace::COMMAND,
    keyspace::REPLY,
    persisted::BATCH,
    persisted::IDENTITY,
    persisted::DIRECTORY,
    settings::TOML,
    settings::ARGV,
    settings::GUARD,
    client::URI,
    client::ANSWER,
    client::WIRE,
];

/// What was read survives being written and read again: `write_what_was_read` gives the bytes that the encoder makes.
pub(crate) fn survives(bytes: &[u8], write_what_was_read: impl Fn(&[u8]) -> Option<Vec<u8>>) -> Verdict {
    let Some(once) = write_what_was_read(bytes) else { return Verdict::Refused };
    let twice = write_what_was_read(&once);
    assert_eq!(twice.as_ref(), Some(&once), "what was read and written is read as something else");
    Verdict::Accepted
}
