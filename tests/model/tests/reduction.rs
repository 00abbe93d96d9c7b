//! What the reduction forgets does not matter: checked on each of the first states of an unreduced search, for every
//! variant. Not checked: states beyond those.

use model::{Bounds, Protocol, State, VARIANTS, Variant};
use stateright::{Checker, Expectation, Model, Property};

/// The whole search, and on each of its states that the reduction loses nothing.
#[derive(Clone)]
struct Unreduced(Protocol);

impl Model for Unreduced {
    type State = State;
    type Action = model::Action;

    fn init_states(&self) -> Vec<State> {
        self.0.init_states()
    }

    fn actions(&self, state: &State, actions: &mut Vec<model::Action>) {
        self.0.actions(state, actions);
    }

    fn next_state(&self, last: &State, action: model::Action) -> Option<State> {
        self.0.next_state(last, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::<Self>::always("nothing is lost", |model, state| model.loses_nothing(state))]
    }
}

impl Unreduced {
    fn loses_nothing(&self, state: &State) -> bool {
        let left = self.0.reduced(*state);
        let is_judged_alike = self.0.properties().iter().all(|property| {
            let judge = |state| (property.condition)(&self.0, state);
            property.expectation != Expectation::Always || judge(state) == judge(&left)
        });
        let (mut whole, mut fewer) = (Vec::new(), Vec::new());
        self.0.actions(state, &mut whole);
        self.0.actions(&left, &mut fewer);
        let after = |from: &State, action| self.0.next_state(from, action).map(|next| self.0.reduced(next));
        let is_followed = whole.iter().all(|action| {
            let expected = if fewer.contains(action) { after(&left, *action) } else { Some(left) };
            after(state, *action) == expected
        });
        let adds_nothing = fewer.iter().all(|action| whole.contains(action) || after(&left, *action) == Some(left));
        is_judged_alike && is_followed && adds_nothing && self.0.reduced(left) == left
    }
}

/// States made in each search, repeats included; most searches have more.
const STATES: usize = 300_000;

#[test]
fn what_is_forgotten_does_not_matter() {
    for Variant { name, rules, .. } in VARIANTS {
        for bounds in [
            Bounds { horizon: 2, terms: 2, outages: 0, clients: 2 },
            Bounds { horizon: 2, terms: 1, outages: 1, clients: 2 },
        ] {
            let protocol = Protocol { rules: *rules, bounds, forgets: false };
            let checker = Unreduced(protocol).checker().threads(2).target_state_count(STATES).spawn_bfs().join();
            if let Some(path) = checker.discovery("nothing is lost") {
                let state = *path.last_state();
                panic!("{name}: {state:#?}\n{:#?}", protocol.reduced(state));
            }
        }
    }
}

/// What the reduced searches cannot see: a stalled append that meets its node's next leadership, and an election that
/// keeps an entry.
#[test]
fn the_designed_protocol_holds_and_comes_by_everything_without_the_reduction() {
    let bounds = Bounds { horizon: 2, terms: 2, outages: 0, clients: 2 };
    let protocol = Protocol { rules: VARIANTS[0].rules, bounds, forgets: false };
    let checker = protocol.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    assert!(checker.discovery("a new leader meets a stalled append of its own").is_some());
    assert!(checker.unique_state_count() > 700_000, "{}", checker.unique_state_count());
}
