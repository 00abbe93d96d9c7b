//! What holders believe, by the real client's rule, and the law on it: no two hold one key at one instant.
//!
//! A belief begins with the answer that proves the grant and ends at the holder's own deadline, which counts from before
//! the request was sent (without the margin a careful holder takes off: what the store owes). A true RENEW that came in
//! time moves it; RELEASE ends it when it is sent, a false RENEW when it is heard.

use std::collections::BTreeMap;

use checker::{Call, Operation, Outcome};
use tenure_client::time::{Boottime, margin, own_deadline};
use tenure_cluster::planted::{Bug, has};

use super::{Belief, Notes};

/// Overlaps that are told; more tell nothing new.
const LINES_MAX: usize = 5;

/// Until when a grant may be believed in: asked for at `sent_ns`, answered at `returned_ns` with what is left of it.
pub(super) fn deadline_ns(sent_ns: u64, returned_ns: u64, ttl_ms: u64) -> u64 {
    let from_ns = if has(Bug::DeadlineFromAnswer) { returned_ns } else { sent_ns };
    own_deadline(Boottime { ns: from_ns }, ttl_ms).after(margin(ttl_ms)).ns
}

impl Notes {
    /// Writes a belief down; the number is for its end.
    pub(super) fn begin(&self, belief: Belief) -> usize {
        let mut beliefs = self.beliefs.lock().unwrap();
        beliefs.push(belief);
        beliefs.len() - 1
    }

    /// It goes on until then, or at least until then.
    pub(super) fn extend(&self, number: usize, until_ns: u64) {
        let belief = &mut self.beliefs.lock().unwrap()[number];
        belief.until_ns = belief.until_ns.max(until_ns);
    }

    /// It is over by then.
    pub(super) fn end(&self, number: usize, at_ns: u64) {
        let belief = &mut self.beliefs.lock().unwrap()[number];
        belief.until_ns = belief.until_ns.min(at_ns);
    }
}

/// `OneHolder`: each two beliefs in different grants of one key at one instant, a line each. A BREAK or DEL ends what it
/// may have ended when it is sent: it acts over the holder's head.
///
/// `OneHolderOfId`: the same of one id of a pool. `overridden`: from when on the holder of a grant of a slot need not know
/// that somebody else made an end of it, as the log has it, by the grant's fence. (Until its next RENEW, or its deadline.)
#[must_use]
pub fn overlaps(notes: &Notes, overridden: &BTreeMap<u64, u64>) -> Vec<(&'static str, String)> {
    let mut keys: BTreeMap<String, Vec<Belief>> = BTreeMap::new();
    for belief in notes.beliefs.lock().unwrap().iter() {
        let mut belief = belief.clone();
        if let Some(at_ns) = overridden.get(&belief.fence) {
            belief.until_ns = belief.until_ns.min(*at_ns.max(&belief.from_ns));
        }
        keys.entry(belief.key.clone()).or_default().push(belief);
    }
    for call in notes.calls.lock().unwrap().iter() {
        if let Some(beliefs) = keys.get_mut(&call.key) {
            cut(beliefs, call);
        }
    }
    let law = |key: &str| if is_slot(key) { "OneHolderOfId" } else { "OneHolder" };
    let told =
        keys.into_iter().flat_map(|(key, beliefs)| of_one_key(beliefs).into_iter().map(move |line| (law(&key), line)));
    told.take(LINES_MAX).collect()
}

/// How a slot is named.
pub(super) fn slot_name(pool: &str, id: u32) -> String {
    format!("{pool}#{id}")
}

fn is_slot(key: &str) -> bool {
    key.contains('#')
}

/// Takes the time after a BREAK or DEL off the beliefs that it may have ended.
fn cut(beliefs: &mut [Belief], call: &Call) {
    let acts = matches!(call.operation, Operation::Break | Operation::Delete) && call.outcome != Outcome::Nothing;
    if !acts {
        return;
    }
    let may_act_until = if call.outcome == Outcome::Unknown { u64::MAX } else { call.returned_ns };
    // Also a grant whose answer was still on its way.
    for belief in beliefs.iter_mut().filter(|belief| belief.sent_ns < may_act_until) {
        belief.until_ns = belief.until_ns.min(call.invoked_ns.max(belief.from_ns));
    }
}

fn of_one_key(mut beliefs: Vec<Belief>) -> Vec<String> {
    beliefs.retain(|belief| belief.from_ns < belief.until_ns);
    beliefs.sort_by_key(|belief| (belief.from_ns, belief.fence));
    let mut lines = Vec::new();
    let mut longest: Option<&Belief> = None;
    for belief in &beliefs {
        if let Some(before) = longest.filter(|before| before.until_ns > belief.from_ns && before.fence != belief.fence)
        {
            let both_ns = before.until_ns.min(belief.until_ns) - belief.from_ns;
            lines.push(format!("two hold {} for {} us: {before:?} and {belief:?}", belief.key, both_ns / 1_000));
        }
        if longest.is_none_or(|before| belief.until_ns > before.until_ns) {
            longest = Some(belief);
        }
    }
    lines
}
