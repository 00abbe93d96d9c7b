//! What clients of one run share: which keys are in use, numbers that must be unique, and when to end.
//!
//! Invariants: a key gets at most [`KEY_CALLS_MAX`] calls while clients work, so that a checker that searches can judge
//! it; a run at most [`CALLS_MAX`]. Nothing here is known to the cluster, and nothing of it is believed: a hint says when
//! a key may become free, so that clients come together at that edge.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use checker::Dice;

/// A key with so many calls is given up for a new one; what is left is for those who still hold it.
const KEY_CALLS_RETIRE: u32 = 140;
/// Calls of one key at most, but for the end of the run.
pub(super) const KEY_CALLS_MAX: u32 = 180;
/// Calls of a run at most, but for its end.
pub(super) const CALLS_MAX: u32 = 20_000;

/// See the module's head. Clones are handles to the same.
#[derive(Clone, Debug)]
pub(super) struct Board(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    slots: Vec<Slot>,
    /// Every key that was ever in use.
    uses: BTreeMap<String, Use>,
    calls: u32,
    numbers: u64,
    stopped: bool,
}

/// A key to work on, and the how-manieth of its place it is.
#[derive(Debug)]
struct Slot {
    key: String,
    epoch: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Use {
    calls: u32,
    hint: Option<Hint>,
}

/// A grant that somebody was told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hint {
    pub fence: u64,
    /// About when it ends.
    pub ends_ns: u64,
}

impl Board {
    pub(super) fn new(keys: u32) -> Self {
        let slots = (0..keys.max(1)).map(|_| Slot { key: String::new(), epoch: 0 }).collect();
        let mut state = State { slots, uses: BTreeMap::new(), calls: 0, numbers: 0, stopped: false };
        (0..state.slots.len()).for_each(|at| state.renew_key(at));
        Self(Arc::new(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// A key to work on.
    pub(super) fn pick(&self, dice: &mut Dice) -> String {
        let last = u64::try_from(self.state().slots.len() - 1).unwrap();
        self.pick_at(usize::try_from(dice.in_range(0..=last)).unwrap())
    }

    /// The key whose lifetime clients play with: always of the same place, so that all others live on.
    pub(super) fn pick_mortal(&self) -> String {
        self.pick_at(0)
    }

    fn pick_at(&self, at: usize) -> String {
        let mut state = self.state();
        if state.uses[&state.slots[at].key].calls >= KEY_CALLS_RETIRE {
            state.renew_key(at);
        }
        state.slots[at].key.clone()
    }

    /// Counts a call of `key`, and tells which of its calls it is; `None`: there must be no more.
    pub(super) fn count(&self, key: &str) -> Option<u32> {
        let mut state = self.state();
        if state.calls >= CALLS_MAX {
            return None;
        }
        let of_key = state.uses.get_mut(key).filter(|of_key| of_key.calls < KEY_CALLS_MAX)?;
        of_key.calls += 1;
        let nth = of_key.calls;
        state.calls += 1;
        Some(nth)
    }

    /// The same, when all clients have ended: nothing is refused.
    pub(super) fn count_last(&self, key: &str) -> u32 {
        let mut state = self.state();
        let of_key = state.uses.entry(key.to_owned()).or_default();
        of_key.calls += 1;
        of_key.calls
    }

    /// Is the key still one to work on?
    pub(super) fn is_current(&self, key: &str) -> bool {
        let state = self.state();
        !state.stopped && state.uses.get(key).is_some_and(|of_key| of_key.calls < KEY_CALLS_RETIRE)
    }

    pub(super) fn hint(&self, key: &str) -> Option<Hint> {
        self.state().uses.get(key).and_then(|of_key| of_key.hint)
    }

    /// `hint` is the latest word on the key.
    pub(super) fn tell(&self, key: &str, hint: Option<Hint>) {
        if let Some(of_key) = self.state().uses.get_mut(key) {
            of_key.hint = hint;
        }
    }

    /// A number nobody has had.
    pub(super) fn number(&self) -> u64 {
        let mut state = self.state();
        state.numbers += 1;
        state.numbers
    }

    pub(super) fn stop(&self) {
        self.state().stopped = true;
    }

    /// Must clients end?
    pub(super) fn is_over(&self) -> bool {
        let state = self.state();
        state.stopped || state.calls >= CALLS_MAX
    }

    /// All keys that ever had a call.
    pub(super) fn used(&self) -> Vec<String> {
        self.state().uses.iter().filter(|(_, of_key)| of_key.calls > 0).map(|(key, _)| key.clone()).collect()
    }
}

impl State {
    fn renew_key(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        slot.epoch += 1;
        slot.key = format!("k-{}-{at}", slot.epoch);
        self.uses.insert(slot.key.clone(), Use::default());
    }
}
