//! Several leases as one: all are held, or none is.
//!
//! # Model
//! Without waiting all keys are asked for with one token (a node keeps tokens apart by key) in one BATCH
//! `all_or_nothing`: one entry of the log takes all leases or none. With waiting the keys are taken one after another in
//! the order of their bytes, so that two that want the same keys cannot wait for each other; what is held already is
//! renewed meanwhile, and given back if one of it is lost or another is not to be had.
//!
//! # Not promised
//! [`Leases`] renews each lease by itself: one may be lost while the others stand. Then [`Leases::lost`] says which, and
//! what needs all of them must stop.

use std::collections::BTreeSet;

use tokio::time::Instant;

use super::attempt::{Attempt, fresh_token, incomplete, no_lease, renew};
use super::grant::{Acquire, AcquireError, Acquired, Grant, NotHeld};
use super::{Lease, Lost, LostBy, release};
use crate::client::{Answered, CallError, Client};
use crate::time::own_deadline;
use crate::wire::{Answer, Batch, Code, ITEMS_MAX, Op, Problem, ReleaseArgs, Repeat, Request, Token, reason};

/// Fresh tokens that are taken at most after one was used up unseen.
const FRESH_TOKENS_MAX: u32 = 3;

/// Grants given back in one BATCH: with the longest keys and tokens it stays below the greatest body.
const RELEASED_MAX: usize = 250;

/// All held, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquiredAll<T = Vec<Grant>> {
    /// All are the caller's now, in the order of its keys.
    Held(T),
    /// None is held.
    NotHeld {
        /// The first key that was not to be had, or was lost meanwhile.
        key: String,
        /// Why.
        why: NotHeld,
    },
}

impl Grant {
    /// Acquires all of `keys` (1..=1000, none twice) or none of them, without renewing them afterwards.
    ///
    /// # Errors
    /// [`AcquireError`]; that somebody else holds one is none.
    pub async fn acquire_all(client: &Client, keys: &[String], acquire: Acquire) -> Result<AcquiredAll, AcquireError> {
        if !(1..=ITEMS_MAX).contains(&keys.len()) || keys.iter().collect::<BTreeSet<_>>().len() < keys.len() {
            let detail = format!("{} keys: name 1 to {ITEMS_MAX}, none of them twice", keys.len());
            let problem = Problem::new(Code::InvalidArgument, detail).field("keys");
            return Err(CallError::Refused(Box::new(problem)).into());
        }
        if !acquire.wait.is_zero() {
            return one_after_another(client, keys, acquire).await;
        }
        let mut fresh_left = FRESH_TOKENS_MAX;
        loop {
            let token = acquire.token.clone().map_or_else(fresh_token, Ok)?;
            match at_once(client, keys, &acquire, &token).await? {
                AcquiredAll::NotHeld { why, .. }
                    if why.reason == reason::TOKEN_USED && acquire.token.is_none() && fresh_left > 0 =>
                {
                    fresh_left -= 1;
                }
                acquired => return Ok(acquired),
            }
        }
    }
}

/// One BATCH.
async fn at_once(
    client: &Client,
    keys: &[String],
    acquire: &Acquire,
    token: &Token,
) -> Result<AcquiredAll, AcquireError> {
    let own = acquire.token.is_none();
    let acquire = Acquire { token: Some(token.clone()), ..acquire.clone() };
    let mut batch = Batch::all_or_nothing();
    for key in keys {
        put(&mut batch, Attempt::new(client, key, &acquire)?.op().clone())?;
    }
    let mut unproved = Unproved { client, keys, token, own, in_doubt: true };
    let answered = match client.call(&ByToken(batch)).await {
        Ok(answered) => answered,
        Err(error) => {
            unproved.in_doubt = matches!(error, CallError::OutcomeUnknown { .. } | CallError::Protocol { .. });
            return Err(error.into());
        }
    };
    let Some(answers) = answers(&answered, keys.len())? else {
        unproved.in_doubt = answered.repeated;
        return Ok(not_all(&answered, keys));
    };
    if let Some((key, _)) = keys.iter().zip(&answers).find(|(_, answer)| answer.of_pool()) {
        // Now, and not by the drop: whoever mixed them up may end with this.
        // A token of the caller's keeps what it had before.
        let ours = keys.iter().zip(&answers).filter(|(_, answer)| own || !answer.yours()).map(|(key, _)| key);
        if let Err(error) = client.call(&ByToken(releases(ours, token))).await {
            tracing::warn!(key, %error, "a slot that was taken for a lease ends by its ttl");
        } else {
            unproved.in_doubt = false;
        }
        return Err(no_lease(key));
    }
    let mut grants = grants(&answered, &answers, keys, token, acquire.ttl_ms)?;
    let is_over = |grant: &Grant| client.clock().now() >= grant.deadline;
    if answers.iter().any(Answer::yours) || grants.iter().any(is_over) {
        let mut batch = Batch::all_or_nothing();
        for grant in &grants {
            put(&mut batch, renew(grant))?;
        }
        let proof = client.call(&ByToken(batch)).await?;
        let Some(answers) = self::answers(&proof, keys.len())? else { return Ok(not_all(&proof, keys)) };
        grants = self::grants(&proof, &answers, keys, token, acquire.ttl_ms)?;
        if grants.iter().any(is_over) {
            return Err(AcquireError::TooSlow { ttl_ms: acquire.ttl_ms });
        }
    }
    unproved.in_doubt = false;
    Ok(AcquiredAll::Held(grants))
}

/// The answers to a BATCH `all_or_nothing`; `None`: nothing was done.
fn answers(answered: &Answered, count: usize) -> Result<Option<Vec<Answer>>, AcquireError> {
    if answered.answer.result == serde_json::Value::Bool(false) {
        return Ok(None);
    }
    let answers = serde_json::from_value::<Vec<Answer>>(answered.answer.result.clone());
    answers.ok().filter(|answers| answers.len() == count).map(Some).ok_or_else(|| incomplete(answered))
}

fn not_all(answered: &Answered, keys: &[String]) -> AcquiredAll {
    let index = answered.answer.index().and_then(|index| usize::try_from(index).ok());
    let key = index.and_then(|index| keys.get(index)).or(keys.first()).cloned().unwrap_or_default();
    AcquiredAll::NotHeld { key, why: NotHeld { in_doubt: answered.repeated, ..NotHeld::of(&answered.answer) } }
}

fn grants(
    answered: &Answered,
    answers: &[Answer],
    keys: &[String],
    token: &Token,
    ttl_ms: u64,
) -> Result<Vec<Grant>, AcquireError> {
    let grant = |(key, answer): (&String, &Answer)| {
        let (fence, left_ms) = answer.fence().zip(answer.ttl_ms()).ok_or_else(|| incomplete(answered))?;
        let deadline = own_deadline(answered.sent, left_ms);
        Ok(Grant { key: key.clone(), token: token.clone(), fence, ttl_ms, deadline })
    };
    keys.iter().zip(answers).map(grant).collect()
}

fn put<R: Request>(batch: &mut Batch, request: R) -> Result<(), AcquireError> {
    batch.push(&request).map_err(|error| CallError::Request { detail: error.to_string() }.into())
}

/// Waits for one key after another.
async fn one_after_another(client: &Client, keys: &[String], acquire: Acquire) -> Result<AcquiredAll, AcquireError> {
    let started = Instant::now();
    let mut in_order: Vec<&String> = keys.iter().collect();
    in_order.sort();
    // Given back when they are dropped.
    let mut held = Leases(Vec::with_capacity(keys.len()));
    for key in in_order {
        // The wait is for all keys together. The last one asked for at its end is asked for at least once.
        let wait = acquire.wait.saturating_sub(started.elapsed());
        let next = Lease::acquire(client, key, Acquire { wait, ..acquire.clone() });
        let acquired = tokio::select! {
            acquired = next => acquired?,
            (key, lost) = held.lost() => return Ok(AcquiredAll::NotHeld { key, why: lost.into() }),
        };
        match acquired {
            Acquired::Held(lease) => held.0.push(lease),
            Acquired::NotHeld(why) => return Ok(AcquiredAll::NotHeld { key: key.clone(), why }),
        }
    }
    held.0.sort_by_key(|lease| keys.iter().position(|key| key == lease.key()));
    let lost = held.0.iter().find_map(|lease| Some((lease.key().to_owned(), lease.known_lost()?)));
    if let Some((key, lost)) = lost {
        return Ok(AcquiredAll::NotHeld { key, why: lost.into() });
    }
    let grants: Vec<Grant> = held.0.into_iter().filter_map(Lease::into_grant).collect();
    if grants.len() < keys.len() {
        // One was lost at the last moment. Dropped, the others are given back.
        drop(Leases::keep(client, grants));
        return Err(AcquireError::TooSlow { ttl_ms: acquire.ttl_ms });
    }
    Ok(AcquiredAll::Held(grants))
}

impl From<Lost> for NotHeld {
    fn from(lost: Lost) -> NotHeld {
        let reason = match lost.by {
            LostBy::Deadline { .. } => reason::EXPIRED.to_owned(),
            LostBy::Node { reason, .. } => reason,
        };
        NotHeld { reason, ..NotHeld::default() }
    }
}

/// Several leases that renew themselves. See the module.
#[derive(Debug)]
pub struct Leases(Vec<Lease>);

impl Leases {
    /// Acquires all of `keys` or none, and keeps renewing them. Needs a tokio runtime with time and I/O.
    ///
    /// # Errors
    /// As [`Grant::acquire_all`].
    pub async fn acquire_all(
        client: &Client,
        keys: &[String],
        acquire: Acquire,
    ) -> Result<AcquiredAll<Leases>, AcquireError> {
        Ok(match Grant::acquire_all(client, keys, acquire).await? {
            AcquiredAll::Held(grants) => AcquiredAll::Held(Leases::keep(client, grants)),
            AcquiredAll::NotHeld { key, why } => AcquiredAll::NotHeld { key, why },
        })
    }

    /// Keeps renewing grants that stand.
    pub fn keep(client: &Client, grants: Vec<Grant>) -> Leases {
        Leases(grants.into_iter().map(|grant| Lease::keep(client, grant)).collect())
    }

    /// Each of them.
    pub fn iter(&self) -> std::slice::Iter<'_, Lease> {
        self.0.iter()
    }

    /// The fence of that key.
    pub fn fence(&self, key: &str) -> Option<u64> {
        self.0.iter().find(|lease| lease.key() == key).map(Lease::fence)
    }

    /// Are all held now?
    pub fn are_held(&self) -> bool {
        self.0.iter().all(Lease::is_held)
    }

    /// Returns when the first of them is lost, with its key; never while all are held.
    pub async fn lost(&self) -> (String, Lost) {
        let mut waiting: Vec<_> = self.0.iter().map(|lease| Box::pin(lease.lost())).collect();
        std::future::poll_fn(|cx| {
            for (lease, lost) in self.0.iter().zip(&mut waiting) {
                if let std::task::Poll::Ready(lost) = lost.as_mut().poll(cx) {
                    return std::task::Poll::Ready((lease.key().to_owned(), lost));
                }
            }
            std::task::Poll::Pending
        })
        .await
    }

    /// Gives all of them back, in one BATCH if they are not very many. Says how many had not ended before.
    ///
    /// # Errors
    /// [`CallError`], the first: what was not given back ends by its ttl.
    pub async fn release(self) -> Result<usize, CallError> {
        let Some(client) = self.0.first().map(|lease| lease.client.clone()) else { return Ok(0) };
        let grants: Vec<Grant> = self.0.into_iter().filter_map(Lease::into_released).collect();
        let (mut count, mut failed) = (0, None);
        for some in grants.chunks(RELEASED_MAX) {
            match give_all_back(&client, some).await {
                Ok(gave_back) => count += gave_back,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(count), Err)
    }
}

/// One BATCH.
async fn give_all_back(client: &Client, grants: &[Grant]) -> Result<usize, CallError> {
    let mut batch = Batch::default();
    for grant in grants {
        batch.push(&release(grant)).map_err(|error| CallError::Request { detail: error.to_string() })?;
    }
    let answered = client.call(&ByToken(batch)).await?;
    let answers = serde_json::from_value::<Vec<Answer>>(answered.answer.result.clone()).unwrap_or_default();
    let gave_back =
        |answer: &&Answer| answer.is_true() || (answered.repeated && answer.reason() == Some(reason::NOT_HELD));
    Ok(answers.iter().filter(gave_back).count())
}

impl<'a> IntoIterator for &'a Leases {
    type Item = &'a Lease;
    type IntoIter = std::slice::Iter<'a, Lease>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// A BATCH whose commands all name their token (and fence): it may be repeated.
#[derive(serde::Serialize)]
#[serde(transparent)]
struct ByToken(Batch);

impl Request for ByToken {
    const COMMAND: &'static str = Batch::COMMAND;

    fn repeat(&self) -> Repeat {
        Repeat::ByToken
    }
}

/// Gives back, in the background, what nobody knows to be held.
struct Unproved<'a> {
    client: &'a Client,
    keys: &'a [String],
    token: &'a Token,
    /// The token was made for this.
    own: bool,
    in_doubt: bool,
}

impl Drop for Unproved<'_> {
    fn drop(&mut self) {
        if !self.in_doubt || !self.own {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (client, batch) = (self.client.clone(), releases(self.keys.iter(), self.token));
        runtime.spawn(async move {
            if let Err(error) = client.call(&ByToken(batch)).await {
                tracing::debug!(%error, "grants in doubt were not given back");
            }
        });
    }
}

/// RELEASE of whatever `token` holds of `keys`.
fn releases<'a>(keys: impl Iterator<Item = &'a String>, token: &Token) -> Batch {
    let mut batch = Batch::default();
    for key in keys {
        let release = Op::new(key.clone(), ReleaseArgs { token: token.clone(), fence: None });
        // It does not fail: the same was written before.
        let _ = batch.push(&release);
    }
    batch
}
