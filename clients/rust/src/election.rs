//! Leading among several: who holds the lease leads.
//!
//! # Model
//! A candidate waits in the lease's line without end; its turn comes when it leads. What it does then is a [`Lease`]
//! like any other: it ends when it is given back or lost, and the next candidate leads, at the earliest when the own
//! deadline of the one before has passed. The fence tells leaderships apart; what a leader writes to should check it.
//!
//! Whoever only wants to know watches: [`Election::observe`] tells the leader of now and each that follows.
//!
//! # Not promised
//! That an observer's leader still leads: what is told is past. A leader that an operator broke with a grace is told as
//! gone when it was broken; until its grace is over it may still act.

use std::time::Duration;

use crate::client::{Backoff, Client};
use crate::lease::{Acquire, AcquireError, Acquired, Lease, NotHeld};
use crate::watch::{Notice, Selection, Watch, WatchError};
use crate::wire::{Event, Get, Snapshot, reason};

/// For the note of a new leader.
const NOTE_TIMEOUT: Duration = Duration::from_secs(2);

/// A lease that candidates campaign for.
#[derive(Clone, Debug)]
pub struct Election {
    client: Client,
    key: String,
    acquire: Acquire,
}

/// Why a campaign is over without a leadership.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CampaignError {
    /// Nothing is known to be held.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// Waiting does not help: the lease refuses what was asked for, or somebody took the place out of the line.
    #[error("{0}")]
    Never(NotHeld),
}

/// Who leads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leader {
    /// The owner that its candidate named.
    pub owner: String,
    /// Its leadership: greater than any before.
    pub fence: u64,
    /// Its note.
    pub note: Option<String>,
}

impl Election {
    /// For `key`; candidates ask as `acquire` says, but its `wait` does not matter.
    pub fn new(client: &Client, key: impl Into<String>, acquire: Acquire) -> Election {
        Election { client: client.clone(), key: key.into(), acquire }
    }

    /// Waits until this candidate leads. May be given up: then it leaves the line. Needs a tokio runtime with time and
    /// I/O.
    ///
    /// # Errors
    /// [`CampaignError`]; a cluster that is away is waited for.
    pub async fn campaign(&self) -> Result<Lease, CampaignError> {
        let mut pauses = Backoff::default();
        loop {
            let acquire = Acquire { wait: Duration::MAX, ..self.acquire.clone() };
            match Lease::acquire(&self.client, &self.key, acquire).await? {
                Acquired::Held(lease) => return Ok(lease),
                Acquired::NotHeld(why) if self.passes(&why) => tokio::time::sleep(pauses.next()).await,
                Acquired::NotHeld(why) => return Err(CampaignError::Never(why)),
            }
        }
    }

    /// Is the office still to be had? An operator removed the key, the wait of a try was over, or turns came and went
    /// unseen: of a candidate that waits for months, whose host sleeps now and then, more than one attempt allows.
    fn passes(&self, why: &NotHeld) -> bool {
        match why.reason.as_str() {
            reason::DELETED | reason::WAIT_TIMEOUT | reason::EXPIRED | reason::NOT_HELD | reason::BROKEN => true,
            reason::TOKEN_USED => self.acquire.token.is_none(),
            _ => false,
        }
    }

    /// Who leads, now and from now on.
    pub fn observe(&self) -> Observation {
        Observation {
            client: self.client.clone(),
            key: self.key.clone(),
            watch: Watch::new(&self.client, Selection::of_key(self.key.clone())),
            told: None,
            new: None,
        }
    }
}

/// A view of who leads. See [`Election::observe`].
#[derive(Debug)]
pub struct Observation {
    client: Client,
    key: String,
    watch: Watch,
    /// What was told last; `None`: nothing yet.
    told: Option<Option<Leader>>,
    /// A new leader whose note is not known yet.
    new: Option<Leader>,
}

impl Observation {
    /// The next leader; `None`: nobody leads. The first answer is how it stands. May be given up and called again.
    ///
    /// # Errors
    /// [`WatchError`], then and at every further call.
    pub async fn next(&mut self) -> Result<Option<Leader>, WatchError> {
        loop {
            if let Some(new) = &self.new {
                let note = self.note(new.fence).await;
                let now = self.new.take().map(|new| Leader { note, ..new });
                self.told = Some(now.clone());
                return Ok(now);
            }
            let now = match self.watch.next().await? {
                // Without a list nothing is known but what events tell.
                Notice::Reset { keys, .. } => keys.unwrap_or_default().iter().find_map(leader),
                Notice::Event(event) => match self.after(event) {
                    Some(None) => None,
                    Some(new) => {
                        self.new = new;
                        continue;
                    }
                    None => continue,
                },
            };
            if self.told.as_ref() != Some(&now) {
                self.told = Some(now.clone());
                return Ok(now);
            }
        }
    }

    /// Why nothing is heard now, as [`Watch::troubles`] tells it.
    pub fn troubles(&self) -> tokio::sync::watch::Receiver<Option<String>> {
        self.watch.troubles()
    }

    /// The note of that grant, if it can be had soon: events do not tell it.
    async fn note(&self, fence: u64) -> Option<String> {
        let get = Get { key: self.key.clone() };
        let answered = self.client.call_within(&get, NOTE_TIMEOUT, NOTE_TIMEOUT).await.ok()?;
        let snapshot = serde_json::from_value::<Snapshot>(answered.answer.result).ok()?;
        snapshot.note.filter(|_| snapshot.fence == Some(fence))
    }

    /// Who leads after `event`; `None`: it says nothing of that.
    fn after(&self, event: Event) -> Option<Option<Leader>> {
        let leads = self.told.as_ref().and_then(Option::as_ref);
        match event.kind.as_str() {
            "granted" => {
                let (owner, fence) = (event.owner?, event.fence?);
                // A reset may tell of a grant, with its note, before the event does.
                if leads.is_some_and(|leader| leader.fence >= fence) {
                    return None;
                }
                Some(Some(Leader { owner, fence, note: None }))
            }
            // Of the leader that is known, or of one that was never told: then nobody leads all the same.
            "released" | "expired" | "broken" | "deleted" => {
                let is_past = event.fence.zip(leads).is_some_and(|(fence, leader)| leader.fence > fence);
                (!is_past).then_some(None)
            }
            _ => None,
        }
    }
}

fn leader(snapshot: &Snapshot) -> Option<Leader> {
    if !snapshot.held || snapshot.broken.is_some() {
        return None;
    }
    Some(Leader { owner: snapshot.owner.clone()?, fence: snapshot.fence?, note: snapshot.note.clone() })
}

#[cfg(test)]
mod tests;
