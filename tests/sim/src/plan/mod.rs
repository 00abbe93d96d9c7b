//! A whole run, decided beforehand: its shape and what will go wrong when. A plan is data: it is made from a seed, kept
//! beside a failing seed as JSON, and shrunk.
//!
//! ```text
//! seed -> shape (sizes, times) -> schedule (episodes: what goes wrong, and right again) -> profiles (which, how often)
//! ```
//!
//! Invariants of a plan made from a seed: equal seeds give equal plans; acts stand in order of time and within the fault
//! phase; at most a minority of the nodes is ever damaged; no two clocks, the clients' included, part by more than rho.
//!
//! Not promised: that an act has an effect (nobody knows beforehand who leads, or what a node has on disk), nor any of the
//! above but the order of a plan that was read or shrunk.

mod network;
mod profiles;
mod schedule;
mod shape;
pub mod shrink;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use profiles::{PROFILES, damages};

/// See the module's head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Everything that is not in the plan (order of tasks, delays, which sectors tear, what clients do) follows from it.
    pub seed: u64,
    /// What stays the same.
    pub shape: Shape,
    /// In order of time.
    pub acts: Vec<Timed>,
}

impl Plan {
    /// The plan of a seed: as many consecutive seeds as there are [`PROFILES`] have each of them once.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        let profile = profiles::of(seed);
        let shape = shape::draw(seed, profile);
        let acts = profiles::acts(seed, profile, &shape);
        Self { seed, shape, acts }
    }

    /// The same without those acts.
    #[must_use]
    pub fn without(&self, acts: Range<usize>) -> Self {
        let kept =
            self.acts.iter().enumerate().filter(|(at, _)| !acts.contains(at)).map(|(_, act)| act.clone()).collect();
        Self { acts: kept, ..self.clone() }
    }

    /// Writes it to `path`, as JSON for people.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let mut json = serde_json::to_vec_pretty(self)?;
        json.push(b'\n');
        fs::write(path, json)
    }

    /// Reads what [`Plan::save`] wrote.
    ///
    /// # Errors
    /// When the file cannot be read, or is no plan.
    pub fn load(path: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(path)?)?)
    }
}

impl Shape {
    /// T: the greatest election timeout.
    #[must_use]
    pub const fn longest_election_ms(&self) -> u64 {
        2 * self.election_timeout_ms
    }

    /// The greatest number of nodes that is no majority.
    #[must_use]
    pub const fn minority(&self) -> u64 {
        (self.nodes - 1) / 2
    }
}

/// The size of things in one run. Times in virtual milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Which kinds of faults the seed favours: for people.
    pub profile: String,
    /// 3 or 5 voters: ids 1..=nodes.
    pub nodes: u64,
    /// How long things go wrong before all is healed.
    pub fault_ms: u64,
    /// Clients at work.
    pub clients: u32,
    /// Keys in use at one time; they are rotated.
    pub keys: u32,
    /// Least election timeout; T is twice that.
    pub election_timeout_ms: u64,
    /// Longest time a node tries.
    pub request_timeout_ms: u64,
    /// Log bytes between snapshots.
    pub snapshot_log_bytes: u64,
    /// Log bytes kept behind a snapshot.
    pub log_margin_bytes: u64,
    /// Size of a log segment.
    pub segment_bytes: u64,
    /// What a good sync takes, microseconds.
    pub sync_us: u64,
    /// One way of a message, least and most, microseconds.
    pub hop_us: (u64, u64),
    /// Lifetimes that clients ask for, least and most.
    pub ttl_ms: (u64, u64),
}

/// An act and when it happens, from the beginning of the fault phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timed {
    /// Virtual milliseconds.
    pub at_ms: u64,
    /// What happens.
    pub act: Act,
}

/// Which way between two hosts; 0 is the host of the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Way {
    /// From this host.
    pub from: u64,
    /// To that host.
    pub to: u64,
}

/// Something that goes wrong, or right again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the fields say what they are in the sentence above them")]
pub enum Act {
    /// The process dies (`kill -9`); its disk keeps what was written. The others see its connections refused.
    Kill { node: u64 },
    /// The machine dies: what was not synced is lost, torn.
    PowerCut { node: u64 },
    /// The process is started again on what is stored. Nothing where it runs.
    Start { node: u64 },
    /// No task of the process runs (SIGSTOP), its connections stand.
    Pause { node: u64 },
    /// It runs on.
    Resume { node: u64 },
    /// Messages of this way are lost, silently.
    Cut { way: Way },
    /// They arrive again.
    Mend { way: Way },
    /// Cut both ways between `left` and all other nodes; the clients reach all.
    Split { left: Vec<u64> },
    /// Connections between the two are reset: calls under way fail, new ones succeed.
    Reset { one: u64, other: u64 },
    /// Everything between hosts is as at the beginning again.
    HealNetwork,
    /// Of all messages so many in a thousand are lost.
    Loss { per_mille: u32 },
    /// Requests that may be repeated are, so many in a thousand.
    Duplicate { per_mille: u32 },
    /// So many in a thousand take up to `most_ms`, and overtake each other.
    Delay { per_mille: u32, most_ms: u64 },
    /// A way carries so many bytes a second; 0 for no limit.
    Slow { way: Way, bytes_per_second: u64 },
    /// Each sync of the node takes so much longer.
    SlowDisk { node: u64, sync_ms: u64 },
    /// The disk has so many bytes left.
    FullDisk { node: u64, left_bytes: u64 },
    /// It has room again.
    RoomyDisk { node: u64 },
    /// The next operation but so many fails with an input/output error, and the node must stop. To be started again.
    FailDisk { node: u64, after: u64 },
    /// While the node is down: a synced byte of its log, so many thousandths through it, is flipped.
    Corrupt { node: u64, per_mille: u32 },
    /// Tasks of the node lose the processor: one in `every` polls, up to so long. `every` 0: no more.
    Stall { node: u64, every: u32, longest_ms: u64 },
    /// Its monotonic clock runs at so many millionths.
    Rate { node: u64, ppm: u64 },
    /// Its wall clock jumps.
    WallJump { node: u64, by_ms: i64 },
    /// An operator asks the leader to hand over to the node.
    HandOver { to: u64 },
}
