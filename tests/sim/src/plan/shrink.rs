//! Smaller plans, to be tried in place of one that fails: acts dropped in halves, quarters and so on down to one, a
//! shorter fault phase, fewer clients and keys. Whoever drives it takes the first that still fails and asks anew
//! (ddmin, Zeller 1999): it ends, since each candidate is smaller.

use super::Plan;

/// Below it a run has no time to show anything.
const FAULT_MS_MIN: u64 = 1_000;

/// Plans that are smaller than `plan`, those that drop most first. Empty when nothing can be dropped any more.
pub fn candidates(plan: &Plan) -> impl Iterator<Item = Plan> {
    shorter(plan).chain(without_acts(plan)).chain(fewer(plan))
}

/// With a shorter fault phase, and without the acts beyond it.
fn shorter(plan: &Plan) -> impl Iterator<Item = Plan> {
    let whole_ms = plan.shape.fault_ms;
    let after_acts_ms = plan.acts.last().map_or(0, |last| last.at_ms) + FAULT_MS_MIN;
    let mut lengths_ms = vec![whole_ms / 2, whole_ms * 3 / 4, whole_ms * 7 / 8, after_acts_ms];
    lengths_ms.retain(|ms| (FAULT_MS_MIN..whole_ms).contains(ms));
    lengths_ms.dedup();
    lengths_ms.into_iter().map(|fault_ms| {
        let mut smaller = plan.clone();
        smaller.shape.fault_ms = fault_ms;
        smaller.acts.retain(|timed| timed.at_ms < fault_ms);
        smaller
    })
}

/// Without a part of its acts: each half, each quarter, ..., each act.
fn without_acts(plan: &Plan) -> impl Iterator<Item = Plan> {
    let count = plan.acts.len();
    let sizes = std::iter::successors(Some(count), |size| (*size > 1).then(|| size.div_ceil(2)));
    sizes
        .filter(|size| *size > 0)
        .flat_map(move |size| (0..count).step_by(size).map(move |from| plan.without(from..count.min(from + size))))
}

/// With fewer clients or keys.
fn fewer(plan: &Plan) -> impl Iterator<Item = Plan> {
    let shape = &plan.shape;
    let clients = [shape.clients / 2, shape.clients.saturating_sub(1)].into_iter().filter(|count| *count > 0);
    let clients = clients.map(|clients| {
        let mut smaller = plan.clone();
        smaller.shape.clients = clients;
        smaller
    });
    let keys = [1, shape.keys.saturating_sub(1)].into_iter().filter(|keys| (1..shape.keys).contains(keys));
    let keys = keys.map(|keys| {
        let mut smaller = plan.clone();
        smaller.shape.keys = keys;
        smaller
    });
    clients.chain(keys)
}
