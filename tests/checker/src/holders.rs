//! Holders by their own clocks: each believes to hold from its answer to its own deadline, and no two of one key do at
//! one instant.
//!
//! The own deadline is the time before sending + `ttl_ms` of the answer / (1 + rho), without the margin a careful holder
//! takes off: what the store owes, not what a client gains. A RENEW that was true extends it, but only if it came in
//! time: lost stays lost. A holder stops to believe when it sends RELEASE, or is refused a RENEW (but with `key_expired`:
//! then it holds on to its deadline). BREAK and DEL, which end a grant over its holder's head, end the belief at their
//! invocation already.

use std::collections::BTreeMap;

use super::history::{Answer, Call, Live, Operation, Outcome};
use super::{Rule, Verdict};

/// rho in percent: by how much a leader's clock may run faster than a holder's.
const RHO_PERCENT: u64 = 1;

/// One holder of one grant.
struct Belief<'a> {
    from_ns: u64,
    until_ns: u64,
    by: &'a Call,
}

pub(super) fn check(history: &[Call], verdict: &mut Verdict) {
    let mut keys: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
    for call in history {
        keys.entry(&call.key).or_default().push(call);
    }
    for calls in keys.values_mut() {
        calls.sort_by_key(|call| call.returned_ns);
        overlaps(beliefs(calls), verdict);
    }
}

fn own_deadline(sent_ns: u64, ttl_ms: u64) -> u64 {
    let usable = u128::from(ttl_ms) * 1_000_000 * 100 / u128::from(100 + RHO_PERCENT);
    sent_ns.saturating_add(u64::try_from(usable).unwrap_or(u64::MAX))
}

/// What the holders of one key believed; `calls` by their return.
fn beliefs<'a>(calls: &[&'a Call]) -> Vec<Belief<'a>> {
    let mut beliefs: BTreeMap<u64, Belief<'a>> = BTreeMap::new();
    for call in calls {
        match (&call.operation, &call.outcome) {
            (
                Operation::Acquire { .. } | Operation::Wait { .. } | Operation::Renew { .. },
                Outcome::Answered(_, Answer::Granted(live)),
            ) => {
                believe(&mut beliefs, call, live);
            }
            (Operation::Renew { .. }, Outcome::Answered(_, Answer::Refused { reason, .. }))
                if reason == "key_expired" => {}
            (Operation::Renew { fence, .. }, Outcome::Answered(..)) => {
                stop(&mut beliefs, *fence, call.returned_ns);
            }
            _ => {}
        }
    }
    for call in calls {
        if let Operation::Release { fence, .. } = call.operation {
            stop(&mut beliefs, fence, call.invoked_ns);
        }
    }
    let over_their_heads = |call: &&&Call| {
        matches!(call.operation, Operation::Break | Operation::Delete) && call.outcome != Outcome::Nothing
    };
    for call in calls.iter().filter(over_their_heads) {
        let may_act_until = if call.outcome == Outcome::Unknown { u64::MAX } else { call.returned_ns };
        // Also a grant whose answer was still on its way.
        for belief in beliefs.values_mut().filter(|belief| belief.by.invoked_ns < may_act_until) {
            belief.until_ns = belief.until_ns.min(call.invoked_ns.max(belief.from_ns));
        }
    }
    beliefs.into_values().collect()
}

fn believe<'a>(beliefs: &mut BTreeMap<u64, Belief<'a>>, call: &'a Call, live: &Live) {
    let until_ns = own_deadline(call.sent_ns, live.ttl_ms);
    match beliefs.get_mut(&live.fence) {
        Some(belief) if belief.until_ns >= call.returned_ns => belief.until_ns = belief.until_ns.max(until_ns),
        Some(_) => {}
        None => {
            beliefs.insert(live.fence, Belief { from_ns: call.returned_ns, until_ns, by: call });
        }
    }
}

fn stop(beliefs: &mut BTreeMap<u64, Belief<'_>>, fence: u64, at_ns: u64) {
    if let Some(belief) = beliefs.get_mut(&fence) {
        belief.until_ns = belief.until_ns.min(at_ns);
    }
}

fn overlaps(mut beliefs: Vec<Belief<'_>>, verdict: &mut Verdict) {
    beliefs.retain(|belief| belief.from_ns < belief.until_ns);
    beliefs.sort_by_key(|belief| belief.from_ns);
    let mut longest: Option<&Belief<'_>> = None;
    for belief in &beliefs {
        if let Some(before) = longest.filter(|before| before.until_ns > belief.from_ns) {
            verdict.add(Rule::OneHolder, || {
                let both_ns = before.until_ns.min(belief.until_ns) - belief.from_ns;
                format!(
                    "two hold for {} us: {} until {} us, and {}",
                    both_ns / 1000,
                    before.by,
                    before.until_ns / 1000,
                    belief.by
                )
            });
        }
        if longest.is_none_or(|before| belief.until_ns > before.until_ns) {
            longest = Some(belief);
        }
    }
}
