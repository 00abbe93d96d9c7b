//! What clients did and were told: one [`Call`] per request, with real times of one clock. Saved as a line of JSON each.

use std::fmt;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// A request and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Who asked.
    pub client: u32,
    /// Which node was asked; 0: the client chose by itself.
    pub node: u64,
    /// The key.
    pub key: String,
    /// What was asked.
    pub operation: Operation,
    /// Before the call.
    pub invoked_ns: u64,
    /// Before the try that was answered was sent; holders count from here.
    pub sent_ns: u64,
    /// After the answer, or after it was given up.
    pub returned_ns: u64,
    /// An earlier try of the same call was in doubt.
    #[serde(default)]
    pub repeated: bool,
    /// What came of it.
    pub outcome: Outcome,
}

/// What was asked. A token is a number here; each attempt to hold has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// ACQUIRE with `create`.
    Acquire {
        /// The attempt's token.
        token: u64,
        /// Asked for.
        ttl_ms: u64,
    },
    /// The same, waiting in line. What it was answered may stand at the position of the call that made the lease free.
    Wait {
        /// The attempt's token.
        token: u64,
        /// Asked for.
        ttl_ms: u64,
        /// How long it waits.
        wait_ms: u64,
    },
    /// RENEW of exactly this grant.
    Renew {
        /// Its token.
        token: u64,
        /// Its fence.
        fence: u64,
        /// Asked for.
        ttl_ms: u64,
    },
    /// RELEASE of exactly this grant.
    Release {
        /// Its token.
        token: u64,
        /// Its fence.
        fence: u64,
    },
    /// RENEW with a token that was never granted. Never true, of no effect.
    Trespass {
        /// The live grant's fence, or none said.
        fence: Option<u64>,
        /// Asked for.
        ttl_ms: u64,
    },
    /// EXPIRE: the key's lifetime from now.
    Expire {
        /// Asked for.
        ttl_ms: u64,
    },
    /// PERSIST: the key's lifetime has no end any more.
    Persist,
    /// BREAK without grace, whoever holds.
    Break,
    /// DEL of the key.
    Delete,
    /// GET, linearizable.
    Get,
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// An answer and what it leans on.
    Answered(Witness, Answer),
    /// Surely without effect: `unavailable`, or never sent.
    Nothing,
    /// It may have had its effect, or have it later.
    Unknown,
}

/// The witness headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Witness {
    /// In the log.
    pub position: Position,
    /// The cluster clock.
    pub clock_ms: u64,
    /// Of the leader.
    pub term: u64,
}

/// `index.n`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position {
    /// The entry.
    pub index: u64,
    /// The command in it.
    pub ordinal: u32,
}

impl Position {
    /// Reads `index.n`.
    pub fn parse(text: &str) -> Option<Self> {
        let (index, ordinal) = text.split_once('.')?;
        Some(Self { index: index.parse().ok()?, ordinal: ordinal.parse().ok()? })
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.ordinal)
    }
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// ACQUIRE or RENEW was true: this grant lives, for so long.
    Granted(Live),
    /// RELEASE, BREAK, EXPIRE or PERSIST was true, or DEL deleted the key.
    Done,
    /// The result was false (or DEL's 0, or the error `no_such_key`).
    Refused {
        /// Why, as on the wire; `no_such_key` (EXPIRE, PERSIST and DEL: or nothing) when there is no key.
        reason: String,
        /// The grant in the way, if told.
        live: Option<Live>,
        /// It is the asking token's.
        yours: bool,
    },
    /// GET: `None` for no such key.
    Seen(Option<Sight>),
}

/// A live grant as an answer shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Live {
    /// Its fence.
    pub fence: u64,
    /// What is left of it.
    pub ttl_ms: u64,
}

/// A key as GET shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sight {
    /// The live grant.
    pub held: Option<Live>,
    /// The last ended grant: its fence, and how it ended.
    pub last: Option<(u64, String)>,
}

impl Call {
    /// The answer and its witness.
    pub fn answered(&self) -> Option<(&Witness, &Answer)> {
        match &self.outcome {
            Outcome::Answered(witness, answer) => Some((witness, answer)),
            Outcome::Nothing | Outcome::Unknown => None,
        }
    }

    /// Is it in the log? A wait without a grant is answered with what its node saw afterwards, as a read is.
    pub fn is_write(&self) -> bool {
        match self.operation {
            Operation::Get => false,
            Operation::Wait { .. } => !matches!(self.answered(), Some((_, Answer::Refused { .. }))),
            _ => true,
        }
    }

    /// Did it wait in line?
    pub fn is_wait(&self) -> bool {
        matches!(self.operation, Operation::Wait { .. })
    }

    /// The token and the length that an ACQUIRE asks for.
    pub fn asks(&self) -> Option<(u64, u64)> {
        match self.operation {
            Operation::Acquire { token, ttl_ms } | Operation::Wait { token, ttl_ms, .. } => Some((token, ttl_ms)),
            _ => None,
        }
    }

    /// The fence that an ACQUIRE was granted.
    pub fn granted(&self) -> Option<u64> {
        match self.answered() {
            Some((_, Answer::Granted(live))) if self.asks().is_some() => Some(live.fence),
            _ => None,
        }
    }

    /// Was it told that there is no such key?
    pub fn finds_no_key(&self) -> bool {
        let Some((_, Answer::Refused { reason, .. })) = self.answered() else { return false };
        let is_of_keys = matches!(self.operation, Operation::Expire { .. } | Operation::Persist | Operation::Delete);
        reason == "no_such_key" || (is_of_keys && reason.is_empty())
    }

    /// May it have had, or have yet, an effect that its answer does not tell?
    pub fn is_doubtful(&self) -> bool {
        self.is_write() && (self.repeated || matches!(self.outcome, Outcome::Unknown))
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |ns: u64| ns / 1_000_000;
        let Self { client, node, key, operation, outcome, invoked_ns, returned_ns, .. } = self;
        let (from, to) = (ms(*invoked_ns), ms(*returned_ns));
        write!(f, "[client {client} at node {node}, {from}..{to} ms: {operation:?} {key} -> {outcome:?}]")
    }
}

/// Writes `history` to `path`, a call a line.
///
/// # Errors
/// When the file cannot be written.
pub fn save(history: &[Call], path: &Path) -> io::Result<()> {
    let mut file = BufWriter::new(std::fs::File::create(path)?);
    for call in history {
        serde_json::to_writer(&mut file, call)?;
        file.write_all(b"\n")?;
    }
    file.flush()
}

/// Reads what [`save`] wrote.
///
/// # Errors
/// When the file cannot be read, or a line is no call.
pub fn load(path: &Path) -> io::Result<Vec<Call>> {
    let file = BufReader::new(std::fs::File::open(path)?);
    file.lines().map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}
