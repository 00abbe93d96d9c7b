//! What is waited for: a lease or an anonymous slot of a pool, which are asked for alike, or an identity's slot.

use crate::keyspace::{Acquire, AcquireSlot, Attach, Command, Key, TokenHash, Wait, WaitSlot};

/// What an ACQUIRE asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A lease, or any slot of a pool.
    Owner(Acquire),
    /// A pool's slot for an identity.
    Identity(AcquireSlot),
}

impl From<Acquire> for Ask {
    fn from(ask: Acquire) -> Self {
        Self::Owner(ask)
    }
}

impl From<AcquireSlot> for Ask {
    fn from(ask: AcquireSlot) -> Self {
        Self::Identity(ask)
    }
}

impl Ask {
    /// The key that it is about.
    #[must_use]
    pub const fn key(&self) -> &Key {
        match self {
            Self::Owner(ask) => &ask.key,
            Self::Identity(ask) => &ask.key,
        }
    }

    /// The holder's secret, hashed.
    #[must_use]
    pub const fn token(&self) -> TokenHash {
        match self {
            Self::Owner(ask) => ask.token,
            Self::Identity(ask) => ask.token,
        }
    }

    /// As a command that does not wait.
    #[must_use]
    pub fn into_command(self) -> Command {
        match self {
            Self::Owner(ask) => Command::Acquire(ask),
            Self::Identity(ask) => Command::AcquireSlot(ask),
        }
    }

    /// As a command that puts it in line.
    #[must_use]
    pub fn waiting(self, wait_ms: u64, attach: Attach) -> Command {
        match self {
            Self::Owner(ask) => Command::Wait(Wait { ask, wait_ms, attach }),
            Self::Identity(ask) => Command::WaitSlot(WaitSlot { ask, wait_ms, attach }),
        }
    }
}
