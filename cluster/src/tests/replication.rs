//! Elections, stamps and snapshots: the transport trait carries all that replication needs.

use super::{World, config, simulated, sleep};
use crate::counter::Command;
use crate::error::SubmitError;
use crate::machine::Stamp;

#[test]
fn three_nodes_elect_order_and_agree() {
    simulated(3, async {
        let world = World::of(3).await;
        let (_, leader) = world.leader().await;
        for _ in 0..50 {
            leader.submit(Command::Add(2)).await.unwrap();
        }
        assert_eq!(leader.read(|counter, at| counter.sum(at)).await.unwrap().value, 100);
        assert_eq!(world.settled().await, 100);
        assert_eq!(leader.status().members.len(), 3);
    });
}

#[test]
fn a_leader_that_is_cut_off_answers_nothing_and_its_time_stands_still() {
    simulated(4, async {
        let world = World::of(3).await;
        let (old_id, old) = world.leader().await;
        old.submit(Command::Add(1)).await.unwrap();
        let armed = old.submit(Command::ResetIn(20_000)).await.unwrap().witness.clock;
        world.net().cut.insert(old_id);
        let unanswered = old.submit(Command::Add(1_000)).await.unwrap_err();
        assert_eq!(unanswered, SubmitError::OutcomeUnknown);
        old.read(|counter, at| counter.sum(at)).await.unwrap_err();
        assert_eq!(old.status().not_ready, Some("no_quorum"));

        let (new_id, new) = world.leader().await;
        assert_ne!(new_id, old_id);
        let first = new.submit(Command::Add(10)).await.unwrap();
        assert_eq!(first.reply, 11);
        let since = first.witness.clock.ms_since(armed);
        assert!(first.witness.clock >= armed, "the new clock starts at the log's last stamp");
        assert!(since <= 10_000 + 600, "the election itself costs nobody his time: {since}");

        world.net().cut.remove(&old_id);
        assert_eq!(world.settled().await, 11);
        assert_eq!(new.submit(Command::Add(1)).await.unwrap().reply, 12, "the old leader's command is discarded");
        assert_eq!(world.settled().await, 12);
    });
}

#[test]
fn stamps_never_go_back_over_many_failovers() {
    simulated(5, async {
        let world = World::of(3).await;
        let (mut clock, mut sum, mut most) = (Stamp(0), 0, 0);
        for _ in 0..8 {
            let (id, node) = world.leader().await;
            for _ in 0..20 {
                match node.submit(Command::Add(1)).await {
                    Ok(applied) => {
                        sum += 1;
                        assert!(applied.witness.clock >= clock);
                        clock = applied.witness.clock;
                    }
                    Err(SubmitError::OutcomeUnknown) => most += 1,
                    Err(_) => {}
                }
            }
            world.net().cut = [id].into();
        }
        world.net().cut.clear();
        let (_, node) = world.leader().await;
        let found = node.submit(Command::Add(0)).await.unwrap().reply;
        assert!((sum..=sum + most).contains(&found), "{found} is not in {sum}..={}", sum + most);
        assert_eq!(world.settled().await, found);
    });
}

#[test]
fn a_node_that_was_away_too_long_catches_up_by_snapshot() {
    simulated(6, async {
        let world = World::of(3).await;
        let (id, node) = world.leader().await;
        let away = (1..=3).find(|other| *other != id).unwrap();
        world.net().cut.insert(away);
        for _ in 0..400 {
            node.submit(Command::Padded(vec![1; 1_000])).await.unwrap();
        }
        sleep(1_000).await;
        assert!(node.status().log_bytes < 200_000, "a node that is away does not hold the log");
        world.net().cut.clear();
        assert_eq!(world.settled().await, 400);
        assert!(world.net().snapshots_sent > 0);
        assert_eq!(node.submit(Command::Add(1)).await.unwrap().reply, 401);
        assert_eq!(world.settled().await, 401);
    });
}

/// What it missed takes far longer to send than a heartbeat may.
#[test]
fn a_node_behind_a_slow_link_catches_up_by_log() {
    simulated(8, async {
        let mut config = config();
        (config.snapshot_log_bytes, config.log_margin_bytes) = (1 << 30, 1 << 30);
        let world = World::with(3, config).await;
        let (away, _) = world.follower().await;
        let (_, node) = world.leader().await;
        world.net().cut.insert(away);
        for _ in 0..40 {
            node.submit(Command::Padded(vec![1; 100_000])).await.unwrap();
        }
        {
            let mut net = world.net();
            net.bytes_per_second = Some(3_000_000);
            net.cut.clear();
        }
        assert_eq!(world.settled().await, 40);
        assert_eq!(world.net().snapshots_sent, 0);
    });
}

#[test]
fn status_tells_links_lag_and_readiness() {
    simulated(7, async {
        let world = World::of(3).await;
        let (id, leader) = world.leader().await;
        let (away, follower) = world.follower().await;
        leader.submit(Command::Add(1)).await.unwrap();
        world.settled().await;
        let status = leader.status();
        assert!(status.links.len() == 2 && status.links.values().all(|link| link.connected));
        assert_eq!(status.lag, (1..=3).filter(|other| *other != id).map(|other| (other, 0)).collect());
        assert_eq!((follower.status().not_ready, follower.status().leader), (None, Some(id)));
        assert!(follower.status().lag.is_empty());

        world.net().cut.insert(away);
        for _ in 0..10 {
            leader.submit(Command::Add(1)).await.unwrap();
        }
        assert_eq!(leader.status().lag[&away], 10);
        assert!(!leader.status().links[&away].connected);
        assert_eq!(leader.status().not_ready, None, "a majority is there");
        assert_eq!(follower.status().not_ready, Some("no_leader"), "its link is down");
        world.net().cut.clear();
        world.settled().await;
        assert_eq!(follower.status().not_ready, None);
        assert_eq!(leader.status().lag[&away], 0);
    });
}
