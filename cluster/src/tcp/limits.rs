//! What the peer transport never exceeds, and its pace. Every queue, frame, wait and retry of this module has its limit
//! here.

use std::time::Duration;

/// Lowest protocol version that this build speaks.
pub const PROTOCOL_MIN: u16 = 1;
/// Highest protocol version that this build speaks.
pub const PROTOCOL_MAX: u16 = 2;

const MIB: usize = 1024 * 1024;

/// A frame's body, once both sides are authenticated: the largest append (about 4 MiB) with room.
pub(super) const FRAME_BYTES_MAX: usize = 6 * MIB;
/// A frame's body before that.
pub(super) const HELLO_BYTES_MAX: usize = 4096;
/// A piece of a snapshot.
pub(super) const CHUNK_BYTES: usize = 256 * 1024;
/// What one write gathers; a frame that is longer goes alone.
pub(super) const WRITE_BYTES: usize = 256 * 1024;
/// Calls to one peer that have no answer yet.
pub(super) const IN_FLIGHT_MAX: usize = 1024;
/// Bytes of calls to one peer that are not written yet.
pub(super) const QUEUED_BYTES_MAX: usize = 16 * MIB;
/// Requests of one connection that are being answered.
pub(super) const HANDLED_MAX: usize = 2048;
/// Their bytes.
pub(super) const HANDLED_BYTES_MAX: usize = 64 * MIB;
/// Answers of one connection that wait to be written; beyond it no request is read.
pub(super) const ANSWERS_MAX: usize = 64;
/// Connections that were accepted and are not authenticated yet.
pub(super) const STRANGERS_MAX: usize = 64;
/// Those of them that come from one address.
pub(super) const STRANGERS_OF_ONE_MAX: usize = 8;
/// Connections that were accepted and are authenticated.
pub(super) const ACCEPTED_MAX: usize = 256;
/// Snapshots being taken in.
pub(super) const SNAPSHOTS_IN_MAX: usize = 2;
/// Snapshots being sent.
pub(super) const SNAPSHOTS_OUT_MAX: usize = 4;
/// Pieces of a snapshot between the socket and the thread that stores or reads it.
pub(super) const CHUNKS_WAITING_MAX: usize = 2;
/// A line that one side tells the other.
pub(super) const LINE_BYTES_MAX: usize = 512;
/// Addresses tried for one peer: names after the first so many are not looked up.
pub(super) const NAMES_MAX: usize = 8;
/// Addresses tried for one name.
pub(super) const ADDRESSES_MAX: usize = 8;

/// How long things may take. Tests shorten some.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// To look a name up, and to connect to an address.
    pub connect: Duration,
    /// From the connect to the end of the greeting, for the one who dialled.
    pub greet: Duration,
    /// The same for the one who accepted.
    pub greet_accepted: Duration,
    /// How long to wait for a refused other side to have read why.
    pub linger: Duration,
    /// A side that has nothing to say says that it is alive this often.
    pub alive: Duration,
    /// Not a byte for so long: the connection is dead.
    pub silence: Duration,
    /// Not a byte could be written for so long: likewise.
    pub stall: Duration,
    /// [`Pace::silence`] of a snapshot. Its sender waits for as long as the receiver says that it is alive.
    pub snapshot_silence: Duration,
    /// First pause between two tries; each next is twice as long.
    pub retry_first: Duration,
    /// Longest pause.
    pub retry_max: Duration,
    /// For so long after a connection broke its address is probed every `retry_first`. A connection that lasted as long
    /// starts the pauses anew.
    pub probe: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(1),
            greet: Duration::from_secs(2),
            greet_accepted: Duration::from_secs(5),
            linger: Duration::from_millis(500),
            alive: Duration::from_secs(1),
            silence: Duration::from_millis(3_500),
            stall: Duration::from_secs(10),
            snapshot_silence: Duration::from_secs(30),
            retry_first: Duration::from_millis(20),
            retry_max: Duration::from_secs(1),
            probe: Duration::from_secs(1),
        }
    }
}
