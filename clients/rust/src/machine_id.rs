//! A machine ID held by this process: a number that no other live process of the fleet has.
//!
//! # Model
//! A pool gives each identity a slot, and its id is the machine ID. [`MachineIds`] asks, [`MachineId`] holds and renews.
//! The same identity gets the same id again, also after it was lost, while nobody else had it; so an identity must name
//! one process at a time (a StatefulSet's pod, a host and a slot number), never something that two share.
//!
//! # The floor of the clock
//! Who makes timestamps with the id must not lag behind whoever had it before. So each ACQUIRE and RENEW tells the wall
//! clock, and a grant says where the clocks of earlier holders stood. Up to 2 s behind that is waited for; more gives the
//! slot back and is [`AcquireError::ClockBehind`].
//!
//! # Not promised
//! That the old process has stopped when its id was taken over by its own identity: until its next renewal it does not
//! know ([`TookOver`](crate::wire::TookOver) says for how long at most). `Drop` stops the renewal and tells nobody: the
//! work that used the id may still run, so the id ends by its ttl. Whoever is done calls [`MachineId::release`].
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use tenure_client::{Client, MachineIds};
//!
//! let client = Client::new(&"tenure://a:13378,b:13378,c:13378".parse()?);
//! let machine_id = MachineIds::new(client, "ids", "pod-7").acquire().await?;
//! loop {
//!     // Fails before anybody else can have the id: stop then.
//!     let id = machine_id.id()?;
//!     generate_some(id);
//! #   break;
//! }
//! machine_id.release().await?;
//! # Ok(()) }
//! # fn generate_some(id: u32) {}
//! ```

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::client::{CallError, Client};
use crate::lease::State;
use crate::slot::{Acquire, Grant, Kept, NotAcquired, Whose, millis};
pub use crate::slot::{AcquireError, Lost, Refused};
use crate::time::{Boottime, HostWallClock, WallClock};
use crate::wire::Token;

/// Asks for the machine ID of an identity.
#[derive(Clone, Debug)]
pub struct MachineIds {
    client: Client,
    acquire: Acquire,
    wall: Arc<dyn WallClock>,
}

impl MachineIds {
    /// From that pool, which has to exist, for that identity.
    pub fn new(client: Client, pool: impl Into<String>, identity: impl Into<String>) -> MachineIds {
        let whose = Whose::Identity { identity: identity.into(), avoid: None };
        let wall: Arc<dyn WallClock> = Arc::new(HostWallClock);
        let acquire = Acquire { wall: Some(Arc::clone(&wall)), ..Acquire::new(pool, whose) };
        MachineIds { client, acquire, wall }
    }

    /// Lifetime of the grant and of each renewal. Default 30 s; a pool may give more.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> MachineIds {
        self.acquire.ttl_ms = millis(ttl);
        self
    }

    /// Resumes the grant of this token, which is renewed by that; if it ended while nobody looked, there is a new one of
    /// the same token. Once another process took its slot over it is [`AcquireError::Refused`] with `taken_over`: then ask
    /// without, if that process is to stop. Default: a fresh token.
    #[must_use]
    pub fn token(mut self, token: Token) -> MachineIds {
        self.acquire.token = Some(token);
        self.acquire.once = false;
        self
    }

    /// Not this id: somebody else seems to use it. It is put in quarantine for everybody.
    #[must_use]
    pub fn avoid(mut self, id: u32) -> MachineIds {
        if let Whose::Identity { avoid, .. } = &mut self.acquire.whose {
            *avoid = Some(id);
        }
        self
    }

    /// How long to wait in line while no id is free. Default zero: ask once.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> MachineIds {
        self.acquire.wait = wait;
        self
    }

    /// Free text for operators.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> MachineIds {
        self.acquire.note = Some(note.into());
        self
    }

    /// Another wall clock than the host's.
    #[must_use]
    pub fn wall_clock(mut self, wall: Arc<dyn WallClock>) -> MachineIds {
        self.acquire.wall = self.acquire.wall.map(|_| Arc::clone(&wall));
        self.wall = wall;
        self
    }

    /// Does not tell the wall clock, so that later holders know nothing of it. The floor is kept all the same.
    #[must_use]
    pub fn untold(mut self) -> MachineIds {
        self.acquire.wall = None;
        self
    }

    /// Acquires an id and keeps renewing it. Needs a tokio runtime with time and I/O.
    ///
    /// # Errors
    /// [`AcquireError`].
    pub async fn acquire(&self) -> Result<MachineId, AcquireError> {
        let grant = self.grant().await?;
        Ok(MachineId { kept: Kept::new(&self.client, grant) })
    }

    /// Acquires an id, its floor kept, without renewing it afterwards: for who renews by [`Grant::renew`].
    ///
    /// # Errors
    /// [`NotAcquired`].
    pub async fn grant(&self) -> Result<Grant, NotAcquired> {
        let grant = Grant::acquire(&self.client, &self.acquire).await?;
        grant.above_floor(&self.client, &*self.wall).await
    }
}

/// A held machine ID that renews itself. See the module.
#[derive(Debug)]
pub struct MachineId {
    kept: Kept,
}

impl MachineId {
    /// The id, if it is held now: fails before a node can give it to others. Ask before each batch of what is made with it.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn id(&self) -> Result<u32, Lost> {
        self.kept.id()
    }

    /// The grant as it was given: the pool's range, whether the ttl was raised, whom it was taken from.
    pub fn grant(&self) -> &Grant {
        &self.kept.grant
    }

    /// The grant's fence: greater than that of any earlier holder of the id.
    pub fn fence(&self) -> u64 {
        self.kept.grant.slot.fence
    }

    /// The holder's secret: whoever has it can resume the grant ([`MachineIds::token`]).
    pub fn token(&self) -> &Token {
        &self.kept.grant.token
    }

    /// The uuid of the pool: ids of two pools are never mixed up.
    pub fn pool_uuid(&self) -> &str {
        &self.kept.grant.slot.pool
    }

    /// Until when it is held at least, by the own clock.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn deadline(&self) -> Result<Boottime, Lost> {
        self.kept.deadline()
    }

    /// Follows the state: each renewal moves the deadline. A deadline that passed is seen within 200 ms here, at once in
    /// [`MachineId::id`].
    pub fn watch(&self) -> watch::Receiver<State> {
        self.kept.standing.subscribe()
    }

    /// Returns when the id is lost; never while it is held. Any number of callers, each told once and the same.
    pub async fn lost(&self) -> Lost {
        self.kept.standing.lost().await.into()
    }

    /// Gives the id back, once nothing uses it any more. `false`: it had ended before.
    ///
    /// # Errors
    /// [`CallError`]: it then ends by its ttl.
    pub async fn release(self) -> Result<bool, CallError> {
        self.kept.release().await
    }
}

#[cfg(test)]
mod tests;
