//! What stands behind private modules and reads bytes, one function per format: for tests that hand it damaged bytes.
//!
//! Most functions are of one form: `None` when the bytes are refused, else what this build would write for what it read.
//! So a caller can check that what was read survives being written and read again, without naming the types.
//!
//! Not promised: anything. No part of this crate's interface.

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::FutureExt;
use openraft::RaftLogReader;
use openraft::storage::RaftLogStorage;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::codec::{self, Kind};
use crate::config::Unobserved;
use crate::error::OpenError;
use crate::identity::Identity;
use crate::log::record::{Change, RecordKind};
use crate::log::segment;
use crate::log::{LogOptions, LogStore, Step};
use crate::peer::{PeerAnswerV1, PeerRequestV1};
use crate::persisted::{EntryV2, LogIdV1, VoteV1};
use crate::raft::{Entry, TokioRuntime, Vote};
use crate::simdisk::SimDisk;
use crate::tcp::{OfferV2, PROTOCOL_MAX};

pub use crate::snapshot::reading::{Chunks, manifest};
pub use crate::tcp::reading::{frames, greeting, resealed, sealed, snapshot};

/// The newest version of `kind` in wire use.
fn wire<T: Serialize + DeserializeOwned>(kind: Kind, bytes: &[u8]) -> Option<(T, Vec<u8>)> {
    let value: T = codec::decode(kind, 1, bytes).ok()?;
    let again = codec::encode(kind, 1, &value).ok()?;
    Some((value, again))
}

/// A peer's request, and what replication makes of it.
#[must_use]
pub fn request(bytes: &[u8]) -> Option<Vec<u8>> {
    let (request, again) = wire(Kind::PeerRequest, bytes)?;
    let made = match request {
        PeerRequestV1::Append(append) => append.plain::<TokioRuntime>().is_ok(),
        PeerRequestV1::Vote(vote) | PeerRequestV1::PreVote(vote) => vote.plain::<TokioRuntime>().is_ok(),
        PeerRequestV1::Transfer(transfer) => transfer.plain::<TokioRuntime>().is_ok(),
        _ => true,
    };
    made.then_some(again)
}

/// A peer's answer, and what replication makes of it.
#[must_use]
pub fn answer(bytes: &[u8]) -> Option<Vec<u8>> {
    let (answer, again) = wire(Kind::PeerAnswer, bytes)?;
    let made = match answer {
        PeerAnswerV1::Append(appended) => appended.plain::<TokioRuntime>().is_ok(),
        PeerAnswerV1::Vote(vote) => vote.plain::<TokioRuntime>().is_ok(),
        PeerAnswerV1::Transfer(transfer) => transfer.plain::<TokioRuntime>().is_ok(),
        PeerAnswerV1::Snapshot(vote) => Vote::<TokioRuntime>::try_from(vote).is_ok(),
        _ => true,
    };
    made.then_some(again)
}

/// A snapshot's head on its way.
#[must_use]
pub fn offer(bytes: &[u8]) -> Option<Vec<u8>> {
    OfferV2::decode(bytes).ok()?.encode(PROTOCOL_MAX).ok()
}

/// The identity file's envelope.
#[must_use]
pub fn identity(bytes: &[u8]) -> Option<Vec<u8>> {
    Identity::decode(bytes).ok()?.encode().ok()
}

/// A log segment's header.
#[must_use]
pub fn segment_header(bytes: &[u8]) -> Option<Vec<u8>> {
    segment::encode_header(&segment::decode_header(bytes).ok()?).ok()
}

/// A log record's payload, and what replication makes of an entry.
#[must_use]
pub fn change(kind: u8, index: u64, payload: &[u8]) -> Option<(u8, u64, Vec<u8>)> {
    let change = Change::decode(RecordKind::of(kind)?, index, payload).ok()?;
    let (kind, index, again) = change.encode().ok()?;
    let made = match change {
        Change::Append(entry) => Entry::<TokioRuntime>::try_from(entry).is_ok(),
        Change::Vote(vote) => Vote::<TokioRuntime>::try_from(vote).is_ok(),
        _ => true,
    };
    made.then_some((kind as u8, index, again))
}

/// What was found in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRead {
    /// The vote.
    pub vote: Option<VoteV1>,
    /// The committed entry, within the log.
    pub committed: Option<LogIdV1>,
    /// Everything up to here is gone.
    pub purged: Option<LogIdV1>,
    /// The last entry.
    pub last: Option<LogIdV1>,
    /// The entries.
    pub entries: Vec<EntryV2>,
}

/// A log that was opened but cannot be read to its end, or written on.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unusable(String);

/// Opens the log on `disk` and reads it to its end.
///
/// # Errors
/// Outside: it is refused. Inside: it was not, and should have been.
pub fn log(disk: &SimDisk, dir: &str, options: &LogOptions) -> Result<Result<LogRead, Unusable>, OpenError> {
    let (mut log, _writer) = LogStore::<TokioRuntime>::open_stepped(
        disk.mount(),
        PathBuf::from(dir),
        options.clone(),
        Arc::new(Unobserved),
    )?;
    Ok(read_log(&mut log))
}

fn read_log(log: &mut LogStore<TokioRuntime>) -> Result<LogRead, Unusable> {
    let state = now(log.get_log_state())?;
    let vote = now(log.read_vote())?;
    let committed = now(log.read_committed())?;
    let entries = now(log.try_get_log_entries(..))?;
    Ok(LogRead {
        vote: vote.as_ref().map(VoteV1::from),
        committed: committed.as_ref().map(LogIdV1::from),
        purged: state.last_purged_log_id.as_ref().map(LogIdV1::from),
        last: state.last_log_id.as_ref().map(LogIdV1::from),
        entries: entries.iter().map(EntryV2::from).collect(),
    })
}

/// Votes and appends to the log on `disk`, a group for each: what makes a sample.
///
/// # Errors
/// [`OpenError`], or [`Unusable`] when a write fails.
pub fn extend_log(
    disk: &SimDisk,
    dir: &str,
    options: &LogOptions,
    groups: Vec<Vec<EntryV2>>,
    vote: VoteV1,
    purged: Option<LogIdV1>,
) -> Result<Result<(), Unusable>, OpenError> {
    let (mut log, mut writer) = LogStore::<TokioRuntime>::open_stepped(
        disk.mount(),
        PathBuf::from(dir),
        options.clone(),
        Arc::new(Unobserved),
    )?;
    let write = || -> Result<(), Unusable> {
        for entries in groups {
            let entries: Result<Vec<_>, _> = entries.into_iter().map(Entry::<TokioRuntime>::try_from).collect();
            let entries = entries.map_err(|error| Unusable(error.to_string()))?;
            now(log.append(entries, openraft::storage::IOFlushed::noop()))?;
            while writer.step(true) == Step::Wrote {}
        }
        let vote = Vote::<TokioRuntime>::try_from(vote).map_err(|error| Unusable(error.to_string()))?;
        let mut voter = log.clone();
        let mut saving = Box::pin(voter.save_vote(&vote));
        if (&mut saving).now_or_never().is_none() {
            while writer.step(true) == Step::Wrote {}
            now(saving)?;
        }
        if let Some(upto) = purged {
            now(log.purge(upto.into()))?;
            while writer.step(true) == Step::Wrote {}
        }
        Ok(())
    };
    Ok(write())
}

/// What does not wait on a simulated disk.
fn now<T>(future: impl Future<Output = Result<T, std::io::Error>>) -> Result<T, Unusable> {
    match future.now_or_never() {
        Some(result) => result.map_err(|error| Unusable(error.to_string())),
        None => Err(Unusable("it waits".to_owned())),
    }
}
