//! The naive keyspace's grants: what was asked, and all that became of it.

use std::sync::Arc;

use crate::keyspace::{Acquire, Attach, LeaseOptions, OpReply, Reason};

#[derive(Clone)]
pub(super) struct Held {
    pub ask: Acquire,
    pub fence: u64,
    pub since: u64,
    pub wall_ms: u64,
    pub renewed: u64,
    pub deadline: u64,
    pub broken: Option<Arc<str>>,
    pub returned: Option<u64>,
    /// By the wait of this request, and its client may not know.
    pub untold: Option<Attach>,
    pub undelivered: bool,
}

impl Held {
    pub fn live(&self, t: u64) -> bool {
        self.returned.is_none() && t < self.deadline
    }

    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    pub fn end(&self) -> u64 {
        self.returned.unwrap_or(self.deadline)
    }

    pub fn reason(&self) -> Reason {
        match (self.returned, &self.broken) {
            (Some(_), _) if self.undelivered => Reason::Undelivered,
            (Some(_), _) => Reason::Released,
            (None, Some(_)) => Reason::Broken,
            (None, None) => Reason::Expired,
        }
    }

    pub fn opens(&self, options: &LeaseOptions) -> u64 {
        match self.returned {
            Some(returned) if self.undelivered => returned,
            Some(_) => self.since + self.ask.min_hold_ms.unwrap_or(options.min_hold_ms),
            None => self.deadline + self.ask.delay_ms.unwrap_or(options.delay_ms),
        }
    }

    pub fn extras(&self, t: u64) -> OpReply {
        OpReply {
            fence: Some(self.fence),
            owner: Some(self.ask.owner.clone()),
            ttl_ms: Some(self.deadline - t),
            ..OpReply::default()
        }
    }
}
