//! Nodes of a cluster that lose their data, are replaced and move, in every order that was thought of.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::type_config::TypeConfigExt;

use super::sim_net::{C, Flags, World};
use super::sim_tests::{STEPS_MAX, agree, in_simulation, leader, start_all, until, works};
use crate::cluster::Role;
use crate::counter::Command;
use crate::error::ReplaceError;
use crate::identity::hex;
use crate::peer_config::Startup;
use crate::raft::NodeId;

#[test]
fn wiped_nodes_never_found_beside_the_one_that_has_the_data() {
    in_simulation(6, async {
        let (world, flags) = (World::default(), Flags::of(3));
        start_all(&world, &flags);
        works(&world, &[1, 2, 3]).await;
        let written = world.written();
        world.kill(3);
        for id in [1, 2] {
            world.wipe(id);
            world.start(id, &format!("peer-{id}"), &flags);
        }
        C::sleep(Duration::from_secs(3_600)).await;
        assert_eq!(world.written(), written, "nothing was founded");
        for id in [1, 2] {
            let Startup::WaitingForPeers(missing) = world.startup(id) else { panic!("{:?}", world.startup(id)) };
            assert_eq!(missing.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [3]);
        }
        world.start(3, "peer-3", &flags);
        for id in [1, 2] {
            let line = until("a refusal", || world.refusal(id)).await;
            assert!(line.contains(&format!("tenure cluster replace {id}")) && !line.contains('\n'), "{line}");
            assert!(line.contains(&hex(written.first().unwrap())), "{line}");
        }
        assert_eq!(world.written(), written);
    });
}

#[test]
fn a_wiped_node_is_refused_and_the_cluster_goes_on() {
    in_simulation(7, async {
        let (world, flags) = (World::default(), Flags::of(3));
        start_all(&world, &flags);
        works(&world, &[1, 2, 3]).await;
        world.wipe(1);
        for round in 2..=4 {
            world.start(1, "peer-1", &flags);
            let line = until("a refusal", || world.refusal(1)).await;
            assert!(line.contains("tenure cluster replace 1"), "{line}");
            assert_eq!(works(&world, &[2, 3]).await, round);
        }
    });
}

#[test]
fn a_replaced_node_comes_back_empty_and_votes_again() {
    in_simulation(13, async {
        let (world, flags) = (World::default(), Flags::of(3));
        start_all(&world, &flags);
        works(&world, &[1, 2, 3]).await;
        let whole = leader(&world, &[1, 2, 3]).await.replace(3).await.unwrap_err();
        assert!(matches!(&whole, ReplaceError::Refused(line) if line.contains("nothing to replace")), "{whole}");
        for lost in [3, 1, 2] {
            let rest: Vec<NodeId> = (1..=3).filter(|id| *id != lost).collect();
            world.wipe(lost);
            world.start(lost, &format!("peer-{lost}"), &flags);
            until("a refusal", || world.refusal(lost)).await;
            // Long enough for a snapshot, so that the log alone does not do.
            for _ in 0..60 {
                let _ = leader(&world, &rest).await.submit(Command::Padded(vec![1; 1_000])).await;
            }
            let asked = rest[1];
            until("a node that knows the leader", || world.node(asked)?.status().leader).await;
            world.node(asked).unwrap().replace(lost).await.unwrap();
            works(&world, &rest).await;
            world.start(lost, &format!("peer-{lost}"), &flags);
            works(&world, &[1, 2, 3]).await;
            until("its vote", || {
                let status = world.node(lost)?.status();
                assert!(status.role != Role::Learner || status.not_ready.is_some(), "it does not count yet");
                (status.role != Role::Learner).then_some(())
            })
            .await;
            agree(&world, &[1, 2, 3]);
            assert_eq!(world.startup(lost), Startup::Started);
            // It counts: one of the others may be away now.
            world.kill(rest[0]);
            works(&world, &[rest[1], lost]).await;
            world.start(rest[0], &format!("peer-{}", rest[0]), &flags);
            works(&world, &[1, 2, 3]).await;
        }
    });
}

#[test]
fn a_change_that_its_leader_left_half_way_is_ended_by_the_next() {
    in_simulation(18, async {
        let (world, flags) = (World::default(), Flags::of(3));
        start_all(&world, &flags);
        works(&world, &[1, 2, 3]).await;
        let old = leader(&world, &[1, 2, 3]).await.status().node_id;
        let rest: Vec<NodeId> = (1..=3).filter(|id| *id != old).collect();
        let (left, lost) = (rest[0], rest[1]);
        world.wipe(lost);
        let changing = world.node(old).unwrap();
        drop(C::spawn(async move { drop(changing.replace(lost).await) }));
        let voter_sets = |id| {
            let server = world.node(id)?.node().raft.server_metrics();
            let sets = server.borrow_watched().membership_config.membership().get_joint_config().len();
            Some(sets)
        };
        // Less than a hop: the leader has not heard that the first step is agreed to.
        for _ in 0..STEPS_MAX {
            if voter_sets(left) == Some(2) {
                break;
            }
            C::sleep(Duration::from_micros(200)).await;
        }
        world.kill(old);
        assert_eq!(voter_sets(left), Some(2));
        world.start(old, &format!("peer-{old}"), &flags);
        for id in [old, left] {
            until("one set of voters", || voter_sets(id).filter(|sets| *sets == 1)).await;
        }
        works(&world, &[old, left]).await;
        leader(&world, &[old, left]).await.replace(lost).await.unwrap();
        world.start(lost, &format!("peer-{lost}"), &flags);
        works(&world, &[1, 2, 3]).await;
        until("its vote", || (world.node(lost)?.status().role != Role::Learner).then_some(())).await;
        agree(&world, &[1, 2, 3]);
    });
}

#[test]
fn an_empty_node_waits_while_only_one_that_is_behind_answers() {
    in_simulation(16, async {
        let (world, flags) = (World::default(), Flags::of(5));
        let all: Vec<NodeId> = (1..=5).collect();
        start_all(&world, &flags);
        works(&world, &all).await;
        let leads = leader(&world, &all).await.status().node_id;
        let others: Vec<NodeId> = all.iter().copied().filter(|id| *id != leads).collect();
        let (behind, lost) = (others[0], others[1]);
        let rest: Vec<NodeId> = all.iter().copied().filter(|id| ![behind, lost].contains(id)).collect();
        world.kill(behind);
        world.wipe(lost);
        leader(&world, &rest).await.replace(lost).await.unwrap();
        for id in &rest {
            world.kill(*id);
        }
        // It knows the leader that it followed, cannot reach it, and takes the empty node for a wiped voter.
        world.start(behind, &format!("peer-{behind}"), &flags);
        world.start(lost, &format!("peer-{lost}"), &flags);
        C::sleep(Duration::from_secs(600)).await;
        assert_eq!(world.refusal(lost), None);
        let Startup::AskingAdmission(line) = world.startup(lost) else { panic!("{:?}", world.startup(lost)) };
        assert!(line.contains(&format!("tenure cluster replace {lost}")), "{line}");
        for id in &rest {
            world.start(*id, &format!("peer-{id}"), &flags);
        }
        works(&world, &all).await;
        until("its vote", || (world.node(lost)?.status().role != Role::Learner).then_some(())).await;
        agree(&world, &all);
    });
}

#[test]
fn nodes_that_wait_for_a_founder_that_was_wiped_say_what_to_do() {
    in_simulation(17, async {
        let (world, flags) = (World::default(), Flags::of(3));
        start_all(&world, &flags);
        while world.stored(2).is_none_or(|stored| stored.identity.belonging.is_none()) {
            C::sleep(Duration::from_micros(500)).await;
        }
        world.wipe(1);
        world.start(1, "peer-1", &flags);
        until("what to do", || match world.startup(1) {
            Startup::AskingAdmission(line) => line.contains("remove the data directories of all").then_some(()),
            _ => None,
        })
        .await;
        for id in 1..=3 {
            world.wipe(id);
        }
        start_all(&world, &flags);
        works(&world, &[1, 2, 3]).await;
        agree(&world, &[1, 2, 3]);
    });
}

#[test]
fn the_old_data_of_a_replaced_node_is_let_nowhere() {
    in_simulation(14, async {
        let (world, flags) = (World::default(), Flags::of(3));
        start_all(&world, &flags);
        works(&world, &[1, 2, 3]).await;
        world.kill(3);
        let old = world.stored(3).unwrap();
        world.wipe(3);
        leader(&world, &[1, 2]).await.replace(3).await.unwrap();
        world.start(3, "peer-3", &flags);
        works(&world, &[1, 2, 3]).await;
        until("its vote", || (world.node(3)?.status().role != Role::Learner).then_some(())).await;
        world.kill(3);
        world.restore(3, old);
        world.start(3, "peer-3", &flags);
        let term = leader(&world, &[1, 2]).await.status().term;
        C::sleep(Duration::from_secs(60)).await;
        let sum = works(&world, &[1, 2]).await;
        assert_eq!(leader(&world, &[1, 2]).await.status().term, term, "it disturbs nobody");
        let seen = world.node(3).unwrap().read_stale(|counter, at| counter.sum(at)).value;
        assert!(seen.is_ok_and(|seen| seen < sum), "and gets nothing");
    });
}

#[test]
fn nodes_that_move_are_found_again_one_by_one_and_all_at_once() {
    in_simulation(10, async {
        let (world, flags) = (World::default(), Flags::of(3));
        start_all(&world, &flags);
        works(&world, &[1, 2, 3]).await;
        world.kill(2);
        let mut moved = flags.clone();
        moved.peers.insert(2, "new-2".to_owned());
        world.start(2, "new-2", &moved);
        works(&world, &[1, 2, 3]).await;
        let known = |id, of: NodeId| {
            let members = world.node(id)?.status().members;
            members.into_iter().find(|(id, _)| *id == of).map(|(_, member)| (member.peer, member.client))
        };
        let at = |address: &str| (address.to_owned(), format!("client-of-{address}"));
        until("the new address", || (1..=3).all(|id| known(id, 2) == Some(at("new-2"))).then_some(())).await;

        (1..=3).for_each(|id| world.kill(id));
        let mut moved = flags.clone();
        moved.peers = (1..=3).map(|id| (id, format!("third-{id}"))).collect();
        start_all(&world, &moved);
        works(&world, &[1, 2, 3]).await;
        for (id, of) in (1..=3).flat_map(|id| (1..=3).map(move |of| (id, of))) {
            until("the new address", || known(id, of).filter(|known| *known == at(&format!("third-{of}")))).await;
        }
        agree(&world, &[1, 2, 3]);
        assert_eq!(world.node(1).unwrap().status().members.len(), 3, "one member a node");
    });
}

/// The leader dies, another is elected, and it comes back elsewhere, of which the others' flags know nothing.
async fn the_leader_moves(world: &World) {
    let flags = Flags::of(3);
    start_all(world, &flags);
    works(world, &[1, 2, 3]).await;
    for round in 0..3 {
        let lost = leader(world, &[1, 2, 3]).await.status().node_id;
        world.kill(lost);
        let rest: Vec<NodeId> = (1..=3).filter(|id| *id != lost).collect();
        works(world, &rest).await;
        let address = format!("new-{round}-{lost}");
        let mut moved = flags.clone();
        moved.peers.insert(lost, address.clone());
        world.start(lost, &address, &moved);
        works(world, &[1, 2, 3]).await;
        for id in 1..=3 {
            until("the new address", || {
                let members = world.node(id)?.status().members;
                members.into_iter().find(|(id, member)| *id == lost && member.peer == address)
            })
            .await;
        }
    }
}

#[test]
fn a_leader_that_dies_and_moves_is_found_where_it_says_it_is() {
    for seed in 20..25 {
        in_simulation(seed, the_leader_moves(&World::default()));
    }
}

#[test]
fn a_leader_that_dies_and_moves_asks_any_member_to_pass_on_where_it_is() {
    for seed in 30..35 {
        in_simulation(seed, async {
            let world = World::default();
            world.heed_no_addresses();
            the_leader_moves(&world).await;
        });
    }
}

#[test]
fn one_that_moved_and_is_behind_votes_for_the_one_that_is_left() {
    in_simulation(15, async {
        let (world, flags) = (World::default(), Flags::of(3));
        start_all(&world, &flags);
        works(&world, &[1, 2, 3]).await;
        world.kill(2);
        works(&world, &[1, 3]).await;
        world.kill(1);
        let mut moved = flags.clone();
        moved.peers.insert(2, "new-2".to_owned());
        world.start(2, "new-2", &moved);
        // Node 1 stays away: node 3 must reach node 2, which may not lead, at an address that nobody told it.
        works(&world, &[2, 3]).await;
        agree(&world, &[2, 3]);
    });
}
