//! Faults of every kind, one after the other and two at once, chosen by the load's seed.

use std::time::Duration;

use crate::harness::{Cluster, Plan, rounds};
use crate::history::History;
use crate::load::{Load, seed};
use crate::network::Network;
use crate::process::pass;
use crate::tenants::Tenants;
use checker::Dice;

/// Apart from the clients' dice.
const STREAM: u64 = 1 << 32;

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// SIGKILL.
    Killed,
    /// SIGTERM.
    Terminated,
    /// SIGSTOP.
    Stopped,
    /// No peer reaches it.
    Cut,
}

impl Fault {
    fn any(dice: &mut Dice) -> Self {
        match dice.in_range(1..=4) {
            1 => Self::Killed,
            2 => Self::Terminated,
            3 => Self::Stopped,
            _ => Self::Cut,
        }
    }

    fn begin(self, cluster: &mut Cluster, network: &Network, id: u64) {
        match self {
            Self::Killed => drop(cluster.kill(id)),
            Self::Terminated => cluster.terminate(id),
            Self::Stopped => cluster.stop(id),
            Self::Cut => network.cut(id),
        }
    }

    fn end(self, cluster: &mut Cluster, network: &Network, id: u64) {
        match self {
            Self::Killed => cluster.restart(id),
            Self::Terminated => {
                assert!(cluster.end(id).success(), "node {id} drains");
                cluster.restart(id);
            }
            Self::Stopped => cluster.resume(id),
            Self::Cut => network.heal(id),
        }
    }
}

/// One node or two, each with a fault of its own, for up to 3 s; the next fault may come while they still recover.
fn one_round(cluster: &mut Cluster, network: &Network, dice: &mut Dice) -> Vec<(u64, Fault)> {
    let first = dice.in_range(1..=3);
    let mut hit = vec![(first, Fault::any(dice))];
    if dice.percent(30) {
        hit.push((first % 3 + 1, Fault::any(dice)));
    }
    for (id, fault) in &hit {
        fault.begin(cluster, network, *id);
        pass(Duration::from_millis(dice.in_range(0..=200)));
    }
    pass(Duration::from_millis(dice.in_range(50..=3_000)));
    hit.iter().for_each(|(id, fault)| fault.end(cluster, network, *id));
    hit
}

/// Whatever happens, every history is right, and afterwards all nodes are ready and of one state.
#[test]
fn any_faults_in_any_order() {
    let network = match Network::build(3) {
        Ok(network) => network,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let mut plan = Plan::three();
    plan.flags.extend(["--request-timeout", "1s"].map(str::to_owned));
    let mut cluster = Cluster::start_seated(plan, |seat| network.place(seat));
    let history = History::default();
    let seed = seed();
    let mut dice = Dice::new(seed, STREAM);
    let tenants = Tenants::start(&cluster, seed);
    Load::default().run_seeded(seed, &mut cluster, &history, |cluster, running| {
        let mut faults = Vec::new();
        for _ in 0..rounds(4) {
            faults.extend(one_round(cluster, &network, &mut dice));
            if dice.percent(50) {
                cluster.ids().into_iter().for_each(|id| cluster.await_ready(id));
                running.await_calls(50);
            }
        }
        eprintln!("faults: {faults:?}");
        cluster.ids().into_iter().for_each(|id| cluster.await_ready(id));
    });
    let grants = tenants.judge();
    assert!(grants > 10, "the programs did little: {grants} grants");
    let tally = history.judge("any-faults");
    assert!(tally.grants > 10 && tally.reads > 10, "the load did little: {tally:?}");
    cluster.states_are_equal();
}
