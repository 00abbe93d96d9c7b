//! The command line of `tenure run`.

use std::ffi::OsString;
use std::time::Duration;

use super::times::OnLost;
use crate::cli::duration;

/// Most keys of one run: as many as a watch follows.
pub const KEYS_MAX: usize = 100;

/// Run a command under a lease: once in the whole fleet, and dead before anybody else can hold the key
///
/// With --pool at most so many at once, as the pool has slots.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The lease; made if it does not exist. Several: all or none of them are held
    #[arg(long = "key", value_name = "KEY", required_unless_present = "pool")]
    pub keys: Vec<String>,
    /// Instead of a lease a slot of this pool: as many commands at once, in the whole fleet, as it has slots
    #[arg(long, value_name = "KEY", conflicts_with_all = ["keys", "min_hold"])]
    pub pool: Option<String>,
    /// Make the pool with so many slots if it does not exist; then a slot is free as soon as its command has ended
    #[arg(long, value_name = "N", requires = "pool", conflicts_with = "keys", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub size: Option<u32>,
    /// How long the lease lives without renewal, with a unit; renewed each third of it, below 15s each sixth
    #[arg(long, default_value = "30s", value_parser = duration::parse)]
    pub ttl: Duration,
    /// How long to wait in line while others hold it, with a unit [default: do not wait]
    #[arg(long, default_value = "0s", hide_default_value = true, value_parser = duration::parse)]
    pub wait: Duration,
    /// From TERM to KILL, with a unit; at most half of the ttl [default: 10s, at most a quarter of the ttl]
    #[arg(long, value_parser = duration::parse)]
    pub grace: Option<Duration>,
    /// What a lost lease does to the command: TERM and after the grace KILL, or KILL at once
    #[arg(long, value_enum, default_value_t = OnLost::Term, value_name = "WHAT")]
    pub on_lost: OnLost,
    /// Who holds, for operators [default: host:pid]
    #[arg(long)]
    pub owner: Option<String>,
    /// Free text for operators
    #[arg(long)]
    pub note: Option<String>,
    /// Once a period: after the run nobody can acquire the key until so long after it began, with a unit
    #[arg(long, value_parser = duration::parse)]
    pub min_hold: Option<Duration>,
    /// Which runs count for --min-hold: those that exit 0, or all
    #[arg(long, value_enum, default_value_t = HoldOn::Success, requires = "min_hold", value_name = "WHICH")]
    pub min_hold_on: HoldOn,
    /// Say each change on stderr, not only losses and failures; with --json each line is an object
    #[arg(short, long)]
    pub verbose: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// After which runs the minimum hold keeps others out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum HoldOn {
    /// After a command that exits 0: one that fails leaves the period to the next who asks
    Success,
    /// After every command that was started and had the lease to its end
    Always,
}

const HELP: &str = "\
The command gets TENURE_KEY, TENURE_TOKEN and TENURE_FENCE in its environment, and TENURE_GRANTS, a JSON array with key, \
token and fence of each --key; of several keys the first three speak of the first. It runs in a process group of its own, \
in the foreground of the terminal if `tenure run` is: Ctrl-C, Ctrl-Z and fg mean the command.

--wait waits in line, first come first served. A signal while waiting leaves the line.

Several --key: without --wait in one step; with it one after the other in the order of their bytes, each waited for while \
those before it are held, so that two runs with the same keys never wait for each other. If one is lost, the command is \
ended. All are given back at its end.

--min-hold: a command that fails, with the default --min-hold-on success, leaves the key free at once; its grant then \
ends as broken, and the reason says how the command failed. A command that never started opens no window. So that no window \
is lost to an outage, the lease is given back as long as it lives. If this host dies first, the run may be repeated.

--pool holds one slot of a pool instead of a lease: as many commands at once as the pool has slots, a counting semaphore. \
The command gets TENURE_SLOT, its slot's number, beside TENURE_KEY, TENURE_TOKEN and TENURE_FENCE. --size N makes the pool \
if there is none; one that is there keeps its size. All else is as for a lease. For numbers that belong to a process see \
`tenure id run`.

Without a renewal in time it gets TERM, and KILL before the lease can be anybody else's. A BREAK by an operator, or a DEL, \
ends it at once; stderr says why. KILL goes to all that descends from it. What its first process leaves behind when it ends \
gets TERM, after the grace KILL. The lease is given back when nothing is left. SIGTERM, SIGINT and SIGHUP end the command \
first.

An outage that the job survives, with the default grace: with --ttl 6s nearly 3 s, with 10s nearly 5 s, with 30s 10 s. A \
cluster whose leader falls silent takes about 3 s to go on: below 10s is tight.

It holds when the network, the server, or `tenure run` itself dies (kill -9 too). A whole host that stops cannot be \
covered: that is what the fence is for. Let the resource refuse a fence lower than one it has seen.

Exit status:
  the command's, or 128 + the signal that ended it (or ended the wait)
  120  not acquired: somebody else holds the lease, or all slots of the pool are held
  121  already ran in this period (--min-hold)
  122  the lease was lost or broken, the command was ended
  125  tenure itself failed
  126  the command cannot be run
  127  no such command";
