//! What must always be so, and what must be possible at all: without the second the first could hold of nothing.

use stateright::Property;

use crate::model::Protocol;
use crate::state::{Held, Operation, State};

/// The machine keeps a grant while its holder may still act by its own clock, even if the answer is still on its way.
pub const EARLY_EXPIRY: &str = "no early expiry";
/// At most one client acts at a time, by the clients' own clocks.
pub const TWO_HOLDERS: &str = "one holder at a time";
/// What anybody was shown as expired is never renewed.
pub const SEEN_EXPIRED: &str = "nothing seen expired comes back";
/// No stamp is ahead of the time that has passed (at the rate that the variant allows).
pub const CLOCK_AHEAD: &str = "the clock never outruns real time";
/// A grant expires only when its TTL has passed since its last extension was sent, less the time in which nobody could
/// renew it, of which T is counted at most.
pub const OUTAGE_COUNTED: &str = "an outage costs at most T";

/// All properties of `protocol`, and what it must be able to reach.
pub fn all(protocol: &Protocol) -> Vec<Property<Protocol>> {
    let mut all = vec![
        Property::<Protocol>::always(EARLY_EXPIRY, grants_last),
        Property::<Protocol>::always(TWO_HOLDERS, one_holder),
        Property::<Protocol>::always(SEEN_EXPIRED, |_, state| !state.came_back),
        Property::<Protocol>::always(CLOCK_AHEAD, clock_is_behind),
        Property::<Protocol>::sometimes("a renewal succeeds", renewal_is_heard),
        Property::<Protocol>::sometimes("a grant expires", |_, state| {
            state.machine.fence > 0 && state.machine.grant.is_none()
        }),
        Property::<Protocol>::sometimes("a lease passes on", |_, state| state.machine.fence > 1),
        Property::<Protocol>::sometimes("a read is to show an expiry", |_, state| {
            let is_over = state.machine.fence > 0 && state.machine.grant.is_none();
            is_over && state.operations().any(|(_, it)| matches!(it, Operation::Reads(_)))
        }),
        Property::<Protocol>::sometimes("a read makes a tick", |_, state| {
            state.operations().any(|(_, it)| matches!(it, Operation::TickLogged(..)))
        }),
        Property::<Protocol>::sometimes("a timer makes a tick", |_, state| {
            state.suffix.iter().any(|(entry, _)| entry.asker.is_none())
        }),
    ];
    // The reduction forgets what these look at.
    if protocol.bounds.terms > 1 && !protocol.forgets {
        all.extend([
            Property::<Protocol>::sometimes("a new leader meets a stalled append of its own", stalled_append_is_met),
            Property::<Protocol>::sometimes("an election keeps an entry", |_, state| {
                state.suffix.iter().any(|(_, appended)| appended < state.term)
            }),
        ]);
    }
    if protocol.bounds.outages > 0 {
        all.push(Property::<Protocol>::always(OUTAGE_COUNTED, |_, state| !state.outage_counted));
        all.push(Property::<Protocol>::sometimes("a grant expires after an outage", |_, state| {
            state.outage > 0 && state.has_quorum && state.machine.fence > 0 && state.machine.grant.is_none()
        }));
        all.push(Property::<Protocol>::sometimes("a clock stands", |_, state| {
            state.lead(state.leader).is_some_and(|lead| lead.clock < state.now) && state.term == 1
        }));
    }
    all
}

/// What clients hold, or will once they hear.
fn promises<'a>(protocol: &'a Protocol, state: &'a State) -> impl Iterator<Item = Held> + 'a {
    let heard = state.clients.iter().map(|client| client.held);
    let unheard = state.operations().filter_map(|(_, operation)| match operation {
        Operation::Answered { fence, sent_at } => Some(Held { fence, until: sent_at + protocol.rules.acts_for }),
        _ => None,
    });
    heard.chain(unheard).filter(|held| held.until > state.now)
}

fn grants_last(protocol: &Protocol, state: &State) -> bool {
    let live = state.machine.grant.map(|grant| grant.fence);
    promises(protocol, state).all(|held| live == Some(held.fence))
}

fn one_holder(_: &Protocol, state: &State) -> bool {
    state.clients.iter().filter(|client| client.held.until > state.now).count() <= 1
}

fn clock_is_behind(protocol: &Protocol, state: &State) -> bool {
    let rate = if protocol.rules.may_run_double { 2 } else { 1 };
    let stamps = state.suffix.iter().map(|(entry, _)| entry.stamp);
    stamps.fold(state.log_stamp.max(state.machine.clock), u8::max) <= state.now * rate
}

/// A holder is about to hear of its grant for the second time.
fn renewal_is_heard(_: &Protocol, state: &State) -> bool {
    state.clients.iter().any(|client| {
        let mut answered = client.operations.iter();
        client.held.fence > 0
            && answered.any(|it| matches!(it, Operation::Answered { fence, .. } if *fence == client.held.fence))
    })
}

/// A handler stalled while its node lost and regained leadership.
fn stalled_append_is_met(_: &Protocol, state: &State) -> bool {
    state.operations().any(|(_, it)| match it {
        Operation::Stalls(entry) => entry.node == state.leader && entry.term < state.term,
        _ => false,
    })
}
