//! What client and guard say to each other: frames of 32 bytes over one local socket, both ends the same binary.
//!
//! `magic + version (4) | kind u32 | three u64`, little endian. A frame that is not of this version is an error, which
//! both ends treat as a closed socket.

use thiserror::Error;
use tokio::signal::unix::SignalKind;

use crate::cli::run::times::Limits;

/// Bytes of a frame.
pub const LENGTH: usize = 32;
/// Three letters and the version.
const MAGIC: [u8; 4] = *b"TNG1";

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It exited with this code.
    Exited(u8),
    /// This signal ended it.
    Signalled(u8),
}

impl Ended {
    /// By this signal.
    pub fn by(signal: SignalKind) -> Self {
        Self::Signalled(u8::try_from(signal.as_raw_value()).unwrap_or(0))
    }

    /// As a shell tells it: the code, or 128 + the signal.
    pub fn code(self) -> u8 {
        match self {
            Self::Exited(code) => code,
            Self::Signalled(signal) => 128_u8.saturating_add(signal),
        }
    }
}

/// A message in either direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// To the guard, first: start the job under these limits.
    Start {
        /// TERM and KILL, on `CLOCK_BOOTTIME`.
        limits: Limits,
        /// From TERM to KILL when the job is told to end.
        grace_ms: u64,
    },
    /// To the guard: the lease was renewed.
    Extend(Limits),
    /// To the guard: TERM now, KILL after the grace.
    End,
    /// To the guard: KILL now.
    Kill,
    /// From the guard: the job runs, as leader of the process group of this number.
    Started {
        /// Process id and group id.
        pid: u32,
    },
    /// From the guard, instead of `Started`: the operating system refused, with this `errno`.
    Refused {
        /// 0 if there is none.
        errno: u32,
    },
    /// From the guard: the job's first process was stopped.
    Stopped {
        /// Because it wanted the terminal and had it not. Otherwise the terminal is ours again.
        asked: bool,
    },
    /// From the guard, instead of `Started`: TERM's time was over already.
    TooLate,
    /// From the guard, last: nothing of the job is left.
    Ended {
        /// How its first process ended.
        ended: Ended,
        /// The limits of the lease were reached: the job was ended for it.
        unrenewed: bool,
    },
}

/// Not a frame of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not a frame of this version of tenure")]
pub struct BadFrame;

impl Frame {
    /// The bytes of it.
    pub fn encode(self) -> [u8; LENGTH] {
        let (kind, fields): (u32, [u64; 3]) = match self {
            Self::Start { limits, grace_ms } => (1, [limits.term_at_ms, limits.kill_at_ms, grace_ms]),
            Self::Extend(limits) => (2, [limits.term_at_ms, limits.kill_at_ms, 0]),
            Self::End => (3, [0; 3]),
            Self::Kill => (4, [0; 3]),
            Self::Started { pid } => (16, [pid.into(), 0, 0]),
            Self::Refused { errno } => (17, [errno.into(), 0, 0]),
            Self::Stopped { asked } => (18, [asked.into(), 0, 0]),
            Self::TooLate => (19, [0; 3]),
            Self::Ended { ended: Ended::Exited(code), unrenewed } => (20, [code.into(), unrenewed.into(), 0]),
            Self::Ended { ended: Ended::Signalled(signal), unrenewed } => (21, [signal.into(), unrenewed.into(), 0]),
        };
        let mut bytes = [0; LENGTH];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&kind.to_le_bytes());
        for (slot, field) in bytes[8..].chunks_exact_mut(8).zip(fields) {
            slot.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// The frame of these bytes.
    pub fn decode(bytes: &[u8; LENGTH]) -> Result<Self, BadFrame> {
        let (head, fields) = bytes.split_at(8);
        let mut field = fields.chunks_exact(8).map(|eight| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(eight);
            u64::from_le_bytes(bytes)
        });
        let [Some(a), Some(b), Some(c)] = [field.next(), field.next(), field.next()] else { return Err(BadFrame) };
        if head[..4] != MAGIC {
            return Err(BadFrame);
        }
        let limits = Limits { term_at_ms: a, kill_at_ms: b };
        let byte = |value: u64| u8::try_from(value).map_err(|_| BadFrame);
        let word = |value: u64| u32::try_from(value).map_err(|_| BadFrame);
        Ok(match head[4..] {
            [1, 0, 0, 0] => Self::Start { limits, grace_ms: c },
            [2, 0, 0, 0] => Self::Extend(limits),
            [3, 0, 0, 0] => Self::End,
            [4, 0, 0, 0] => Self::Kill,
            [16, 0, 0, 0] => Self::Started { pid: word(a)? },
            [17, 0, 0, 0] => Self::Refused { errno: word(a)? },
            [18, 0, 0, 0] => Self::Stopped { asked: a != 0 },
            [19, 0, 0, 0] => Self::TooLate,
            [20, 0, 0, 0] => Self::Ended { ended: Ended::Exited(byte(a)?), unrenewed: b != 0 },
            [21, 0, 0, 0] => Self::Ended { ended: Ended::Signalled(byte(a)?), unrenewed: b != 0 },
            _ => return Err(BadFrame),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_frame_round_trips_and_no_other_version_passes() {
        let limits = Limits { term_at_ms: u64::MAX - 1, kill_at_ms: u64::MAX };
        let frames = [
            Frame::Start { limits, grace_ms: 7 },
            Frame::Extend(limits),
            Frame::End,
            Frame::Kill,
            Frame::Started { pid: u32::MAX },
            Frame::Refused { errno: 11 },
            Frame::Stopped { asked: true },
            Frame::Stopped { asked: false },
            Frame::TooLate,
            Frame::Ended { ended: Ended::Exited(255), unrenewed: false },
            Frame::Ended { ended: Ended::Signalled(64), unrenewed: true },
        ];
        for frame in frames {
            let bytes = frame.encode();
            assert_eq!(Frame::decode(&bytes), Ok(frame));
            let mut other = bytes;
            other[3] = b'2';
            assert_eq!(Frame::decode(&other), Err(BadFrame));
            let mut unknown = bytes;
            unknown[5] = 1;
            assert_eq!(Frame::decode(&unknown), Err(BadFrame));
        }
    }

    #[test]
    fn codes_are_a_shells() {
        assert_eq!(Ended::Exited(37).code(), 37);
        assert_eq!(Ended::Signalled(9).code(), 137);
    }
}
