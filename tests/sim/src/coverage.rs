//! What went wrong, and how often it had an effect: a fault that never fired proves nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Counts effects by name (`message_lost`, `torn_write`, `snapshot_installed`, ...). Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Coverage(Arc<Mutex<BTreeMap<&'static str, u64>>>);

impl Coverage {
    /// `what` had an effect.
    pub fn fired(&self, what: &'static str) {
        self.add(what, 1);
    }

    /// `what` had so many effects.
    pub fn add(&self, what: &'static str, times: u64) {
        *self.0.lock().unwrap().entry(what).or_default() += times;
    }

    /// All counts.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.0.lock().unwrap().clone()
    }
}
