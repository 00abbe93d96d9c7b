//! From the state file to an id: the token of the last start first, a fresh one where that is of no use any more.
//!
//! # Invariants
//! - A token is in the file before it is sent.
//! - Nothing is asked of another pool than the one the file is of: a pool that was deleted and made again, or one of the
//!   same name in another cluster, may have given the same id to somebody else.
//! - An id whose earlier holder's clock was ahead of ours is given back, not used. One that this token had already is left
//!   as it is: it may be in use.
//! - Who is told that another process of the identity took over goes no further: a fresh token would take the id back.
//!   Only if that was before this start, the newest start counts.
//! - A token whose RELEASE had no answer is not asked with again: that RELEASE may come late, and would end a new job's use.

use std::sync::Arc;
use std::time::Duration;

use tenure_client::lease::give_back;
use tenure_client::slot::{Acquire, AcquireError, Grant, NotAcquired, Whose};
use tenure_client::wire::{Get, Snapshot, Token, TookOver};
use tenure_client::{CallError, Client, HostWallClock};
use thiserror::Error;
use tokio::time::Instant;

use super::state::{StateError, StateFile};
use crate::cli::duration::{millis, shown};
use crate::cli::run::slot::{Refusal, ask, pause};

/// Tokens that are tried: the file's, and a fresh one for each that was used up unseen.
const TOKENS_MAX: u32 = 3;
/// For giving back what is of no use.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// How an id is asked for.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Lifetime without renewal.
    pub ttl_ms: u64,
    /// How long to wait for an id.
    pub wait: Duration,
    /// Free text for operators.
    pub note: Option<String>,
    /// Not this one.
    pub avoid: Option<u32>,
}

/// What came of it.
#[derive(Debug)]
pub enum Taken {
    /// An id.
    Held(Box<Grant>),
    /// None.
    Refused(Refusal),
}

/// Why nothing is known, or nothing may be used.
#[derive(Debug, Error)]
pub enum TakeError {
    /// The cluster, or the host's clock.
    #[error("cannot acquire: {0}")]
    Acquire(#[from] AcquireError),
    /// The state file.
    #[error(transparent)]
    State(#[from] StateError),
    /// Of the id's earlier holders one told a later time than it is here.
    #[error(
        "the wall clock is {} behind that of an earlier holder of id {id}, which was given back. Set this clock right; if it is right, theirs was wrong, and that stays with the id: --avoid {id} takes another",
        shown(*by_ms)
    )]
    ClockBehind {
        /// The id.
        id: u32,
        /// By how much.
        by_ms: u64,
    },
    /// The same of an id that is held since before.
    #[error(
        "the wall clock is {} behind that of an earlier holder of id {id}, which this state file holds and which stays as it is. Set this clock right; until then make no ids with it",
        shown(*by_ms)
    )]
    OwnClockBehind {
        /// The id.
        id: u32,
        /// By how much.
        by_ms: u64,
    },
    /// An earlier start's id is not surely given back.
    #[error("the id of the last start is not surely given back, so that it cannot be asked for yet: {0}")]
    Leaving(CallError),
    /// The pool is not the one of the state file.
    #[error(
        "the pool that is there now has the uuid {there}, and {path} is of {ours}: two pools of one name are mixed up, or it was made anew. Look at --uri; to take an id of the one that is there, remove {path}"
    )]
    OtherPool {
        /// Its key.
        pool: String,
        /// The uuid of the one that is there.
        there: String,
        /// The uuid in the file.
        ours: String,
        /// The file.
        path: String,
    },
    /// There is none.
    #[error("no such pool: {pool}; make it: tenure CREATE '{{\"key\":\"{pool}\",\"type\":\"pool\",\"options\":{{}}}}'")]
    NoPool {
        /// Its key.
        pool: String,
    },
    /// The key is of another type.
    #[error("{pool} is a {kind} and no pool")]
    NotAPool {
        /// The key.
        pool: String,
        /// Its type.
        kind: String,
    },
}

impl From<CallError> for TakeError {
    fn from(error: CallError) -> Self {
        AcquireError::from(error).into()
    }
}

/// Comes by an id for the process of that file. `tell` is told what is of note on the way.
pub async fn take(
    client: &Client,
    state: &mut StateFile,
    wish: &Wish,
    tell: &(dyn Fn(&str) + Sync),
) -> Result<Taken, TakeError> {
    let least_ttl_ms = look_at_pool(client, state, tell).await?;
    // With it, since a pool that raises a ttl does not say by how much: the answer tells what is left, and that may be
    // much more after an earlier start.
    let wish = Wish { ttl_ms: wish.ttl_ms.max(least_ttl_ms), ..wish.clone() };
    if state.remembered.leaving {
        left(client, state).await.map_err(TakeError::Leaving)?;
    }
    let started = Instant::now();
    let mut tokens_left = TOKENS_MAX;
    // Of an earlier start: it may have an id by it, whatever comes of asking.
    let mut is_earlier_token = state.remembered.token.is_some();
    loop {
        let mut acquire = asked(state, &wish)?;
        // With that of an earlier start it is first asked what became of it: what it is told after a wait is news.
        let looks = is_earlier_token && wish.avoid.is_none() && !wish.wait.is_zero();
        acquire.wait = if looks { Duration::ZERO } else { wish.wait.saturating_sub(started.elapsed()) };
        let not = match ask(client, &acquire).await {
            Ok(grant) => return held(client, state, grant, tell).await.map(|grant| Taken::Held(Box::new(grant))),
            Err(not) => not,
        };
        match Refusal::of(&not.why) {
            // It holds nothing, and may wait.
            Some(refusal) if looks && refusal.is_waited_for() => is_earlier_token = false,
            Some(refusal) if refusal.may_be_passed(is_earlier_token) && tokens_left > 1 => {
                tokens_left -= 1;
                state.remembered.token = None;
                is_earlier_token = false;
                tell(&format!("the token of the last start is of no use any more ({}): a fresh one", refusal.reason));
            }
            Some(refusal) => {
                // Not with a token that may hold an id since before: asking for another does not end the use of that.
                if not.in_doubt && !is_earlier_token {
                    leave(client, state).await;
                }
                return Ok(Taken::Refused(refusal));
            }
            None => match pause(&not.why).filter(|_| looks) {
                Some(pause) if pause < wish.wait.saturating_sub(started.elapsed()) => tokio::time::sleep(pause).await,
                // What was granted all the same, the token in the file finds at the next start.
                _ => return Err(not.why.into()),
            },
        }
    }
}

/// Gives back what the file's token may hold or wait for: nobody will use it.
pub async fn leave(client: &Client, state: &mut StateFile) {
    let before = leaves(state);
    // Else it ends by itself, and the next start gives it back.
    if let Err(error) = left(client, state).await {
        not_left(state, before, &error);
    }
}

async fn left(client: &Client, state: &mut StateFile) -> Result<(), CallError> {
    if let Some(token) = state.remembered.token.clone() {
        give_back(client, &state.remembered.pool, &token, None, LEAVE_TIMEOUT).await?;
    }
    forget(state);
    Ok(())
}

/// A RELEASE with the token follows: until it is answered the token is not asked with again. Gives whether one went before
/// it, which may come late whatever becomes of this one.
pub fn leaves(state: &mut StateFile) -> bool {
    let before = state.remembered.leaving;
    stays(state, state.remembered.token.is_some());
    before
}

/// The RELEASE had no answer. If it surely did nothing either, all is as it was before.
pub fn not_left(state: &mut StateFile, before: bool, error: &CallError) {
    if let CallError::Unreachable { .. } | CallError::Unavailable { .. } | CallError::Refused(_) = error {
        stays(state, before);
    }
}

/// The token stays. `leaving`: a RELEASE with it is under way.
pub fn stays(state: &mut StateFile, leaving: bool) {
    state.remembered.leaving = leaving;
    written(state);
}

/// The token is of no use any more. A file that keeps it costs the next start a question, and no more.
pub fn forget(state: &mut StateFile) {
    (state.remembered.token, state.remembered.leaving) = (None, false);
    written(state);
}

fn written(state: &StateFile) {
    if let Err(error) = state.write() {
        crate::cli::failure::say(&error.to_string());
    }
}

/// [`forget`], if the pool that says so is the one of the file.
pub async fn forget_if_ours(client: &Client, state: &mut StateFile) -> Result<(), TakeError> {
    look_at_pool(client, state, &|_| {}).await?;
    forget(state);
    Ok(())
}

/// The question, its token on the disk.
///
/// A fence that the answer may change is taken out before: if that gets lost, RENEW and RELEASE with the old one would be
/// told that nothing is held, and the id would be out of reach.
fn asked(state: &mut StateFile, wish: &Wish) -> Result<Acquire, TakeError> {
    let token = match &state.remembered.token {
        Some(token) => token.clone(),
        None => Token::random().map_err(AcquireError::from)?,
    };
    if state.remembered.token.is_none() || wish.avoid.is_some() {
        state.remembered.token = Some(token.clone());
        state.remembered.fence = None;
        state.write()?;
    }
    let whose = Whose::Identity { identity: state.remembered.identity.clone(), avoid: wish.avoid };
    Ok(Acquire {
        ttl_ms: wish.ttl_ms,
        note: wish.note.clone(),
        token: Some(token),
        wall: Some(Arc::new(HostWallClock)),
        ..Acquire::new(state.remembered.pool.clone(), whose)
    })
}

/// Before anything is asked for: in another pool this identity may be somebody else's, who would lose its id by that.
/// Gives the pool's least ttl.
async fn look_at_pool(client: &Client, state: &mut StateFile, tell: &(dyn Fn(&str) + Sync)) -> Result<u64, TakeError> {
    let pool = state.remembered.pool.clone();
    let answered = client.call(&Get { key: pool.clone() }).await?;
    let there: Option<Snapshot> = serde_json::from_value(answered.answer.result).map_err(|error| {
        let detail = format!("GET was answered with something else: {error}");
        CallError::Protocol { endpoint: answered.endpoint, detail }
    })?;
    let least_ttl_ms = match there {
        None => return Err(TakeError::NoPool { pool }),
        Some(Snapshot { pool: Some(uuid), options, .. }) => {
            same_pool(state, &uuid)?;
            options.and_then(|options| options.ttl_ms_min).unwrap_or(0)
        }
        Some(Snapshot { kind, .. }) => return Err(TakeError::NotAPool { pool, kind }),
    };
    let cluster = answered.witness.cluster;
    if let (Some(ours), Some(there)) = (&state.remembered.cluster, &cluster)
        && ours != there
    {
        tell(&format!("the cluster is {there} now, and was {ours} at the last start: it was restored"));
    }
    state.remembered.cluster = cluster;
    Ok(least_ttl_ms)
}

fn same_pool(state: &StateFile, there: &str) -> Result<(), TakeError> {
    match &state.remembered.pool_uuid {
        Some(ours) if ours != there => Err(TakeError::OtherPool {
            pool: state.remembered.pool.clone(),
            there: there.to_owned(),
            ours: ours.clone(),
            path: state.path().display().to_string(),
        }),
        _ => Ok(()),
    }
}

/// A slot was granted: looked at, and remembered.
async fn held(
    client: &Client,
    state: &mut StateFile,
    grant: Grant,
    tell: &(dyn Fn(&str) + Sync),
) -> Result<Grant, TakeError> {
    if let Err(other) = same_pool(state, &grant.slot.pool) {
        leave(client, state).await;
        return Err(other);
    }
    let id = grant.slot.id;
    if grant.yours
        && let Err(by) = grant.wait_for_floor(&HostWallClock).await
    {
        return Err(TakeError::OwnClockBehind { id, by_ms: millis(by) });
    }
    let grant = match grant.above_floor(client, &HostWallClock).await {
        Ok(grant) => grant,
        Err(NotAcquired { why, in_doubt }) => {
            if !in_doubt {
                forget(state);
            }
            return Err(match why {
                AcquireError::ClockBehind { by } => TakeError::ClockBehind { id, by_ms: millis(by) },
                why => why.into(),
            });
        }
    };
    if let Some(took_over) = grant.took_over {
        tell(&told(id, &state.remembered.identity, took_over));
    }
    let remembered = &mut state.remembered;
    remembered.id = Some(grant.slot.id);
    remembered.fence = Some(grant.slot.fence);
    remembered.ttl_ms = Some(grant.slot.ttl_ms);
    remembered.pool_uuid = Some(grant.slot.pool.clone());
    if let Err(error) = state.write() {
        // The token is on the disk already: it finds all the rest.
        tell(&error.to_string());
    }
    Ok(grant)
}

/// What is to be known of who had the id before.
fn told(id: u32, identity: &str, TookOver { fence, ttl_ms }: TookOver) -> String {
    let left = shown(ttl_ms);
    match fence {
        Some(_) => format!(
            "took id {id} over from another process of identity {identity}, which may not know it for {left}. If that one \
             lives, it loses the id by this: give each process its own --identity or --slot"
        ),
        None => format!(
            "id {id} was taken over from another process of identity {identity} before, which may not know it for {left} \
             yet. If that one lives: give each process its own --identity or --slot"
        ),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_fresh_token_stands_in_the_file_before_it_is_sent_and_without_another_s_fence() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("ids.json");
        let mut state = StateFile::open(path.clone(), "ids", "me").unwrap();
        state.remembered.fence = Some(7);
        let wish = Wish { ttl_ms: 30_000, wait: Duration::ZERO, note: None, avoid: None };
        let acquire = asked(&mut state, &wish).unwrap();
        // The same token with another id gets another fence; by itself it keeps its own.
        for (avoid, fence) in [(None, Some(8)), (Some(3), None)] {
            state.remembered.fence = Some(8);
            state.write().unwrap();
            assert_eq!(asked(&mut state, &Wish { avoid, ..wish.clone() }).unwrap().token, acquire.token);
            assert_eq!(state.remembered.fence, fence);
        }
        drop(state);
        let remembered = StateFile::open(path, "ids", "me").unwrap().remembered;
        assert!(acquire.token.is_some());
        assert_eq!((remembered.token, remembered.fence), (acquire.token, None));
    }
}
