//! The decisions alone: who founds, who is let in, who is turned away, and with which words.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::Arc;

use super::admission::{self, Verdict};
use super::doorman::{self, Register};
use super::roll::{Call, Canvass, Consents, Roll, Unwilling};
use super::sim_net::greeting;
use super::{Peers, at};
use crate::hello::HelloV1;
use crate::identity::{Belonging, ClusterId, Identity, hex};
use crate::peer::{AdmitV1, FoundV1};
use crate::raft::{Member, NodeId, PlainLogId, PlainMembership};
use crate::transport::LinkState;

const MINE: ClusterId = [0xAA; 16];
const OTHER: ClusterId = [0xBB; 16];

fn peers(count: u64) -> Peers {
    (1..=count).map(|id| (id, format!("peer-{id}"))).collect()
}

fn roll(me: NodeId, majority: bool) -> Roll {
    Roll { me, peers: peers(3), majority }
}

fn links(hellos: impl IntoIterator<Item = HelloV1>) -> BTreeMap<NodeId, LinkState> {
    let link = |hello: HelloV1| (hello.node, LinkState { connected: true, hello: Some(hello), trouble: None });
    hellos.into_iter().map(link).collect()
}

/// A node of a cluster that is begun.
fn of(cluster: ClusterId, id: NodeId) -> HelloV1 {
    HelloV1 { cluster: Some(cluster), empty: false, ..greeting(id) }
}

/// A node that founds.
fn founding(cluster: ClusterId, id: NodeId) -> HelloV1 {
    HelloV1 { cluster: Some(cluster), ..greeting(id) }
}

fn waits_for(call: Call) -> Vec<NodeId> {
    let Call::Wait(missing) = call else { panic!("{call:?}") };
    assert!(missing.iter().all(|(_, why)| !why.is_empty()));
    missing.into_iter().map(|(id, _)| id).collect()
}

#[test]
fn the_lowest_founds_once_all_are_there_and_empty() {
    assert_eq!(waits_for(roll(1, false).call(&links([]))), [2, 3]);
    assert_eq!(waits_for(roll(1, false).call(&links([greeting(3)]))), [2]);
    assert_eq!(roll(1, false).call(&links([greeting(2), greeting(3)])), Call::Found);
    assert_eq!(roll(2, false).call(&links([greeting(1), greeting(3)])), Call::Listen(1));
    assert_eq!(roll(2, false).call(&links([founding(MINE, 1), greeting(3)])), Call::Listen(1));
    let mut lost = links([greeting(2), greeting(3)]);
    lost.get_mut(&3).unwrap().connected = false;
    assert_eq!(waits_for(roll(1, false).call(&lost)), [3], "what was said before is not believed");
}

#[test]
fn a_majority_does_only_where_it_may() {
    assert_eq!(waits_for(roll(2, true).call(&links([]))), [1, 3]);
    assert_eq!(roll(2, true).call(&links([greeting(3)])), Call::Found);
    assert_eq!(roll(3, true).call(&links([greeting(2)])), Call::Listen(2));
    let four = Roll { me: 1, peers: peers(4), majority: true };
    assert_eq!(waits_for(four.call(&links([greeting(2)]))), [3, 4], "half is no majority");
}

#[test]
fn a_cluster_that_is_there_is_asked_and_never_founded_beside() {
    assert_eq!(roll(1, false).call(&links([of(MINE, 3)])), Call::Ask(vec![3]));
    assert_eq!(roll(1, true).call(&links([of(MINE, 3), greeting(2)])), Call::Ask(vec![3]));
    assert_eq!(roll(1, true).call(&links([of(MINE, 3), founding(OTHER, 2)])), Call::Ask(vec![3]));
    let Call::Refuse(line) = roll(1, false).call(&links([of(MINE, 2), of(OTHER, 3)])) else { panic!("adopted") };
    assert!(line.contains(&hex(&MINE)) && line.contains(&hex(&OTHER)), "{line}");
}

#[test]
fn a_founder_begins_only_with_those_that_agreed_and_are_still_the_same() {
    let me = at("peer-1");
    let canvass = |roll: &Roll, links: &BTreeMap<_, _>, consents: &Consents| roll.canvass(&MINE, &me, links, consents);
    let both: Consents = [(2, greeting(2)), (3, greeting(3))].into();
    let tell = |canvass| {
        let Canvass::Tell(told, missing) = canvass else { panic!("{canvass:?}") };
        (told, missing.into_iter().map(|(id, _)| id).collect::<Vec<_>>())
    };
    let all = links([greeting(2), greeting(3)]);
    assert_eq!(tell(canvass(&roll(1, false), &all, &Consents::new())), (vec![(2, 200), (3, 300)], vec![]));
    assert_eq!(tell(canvass(&roll(1, false), &links([greeting(2)]), &Consents::new())), (vec![(2, 200)], vec![3]));
    let Canvass::Begin(voters) = canvass(&roll(1, false), &links([]), &both) else { panic!("it waits") };
    assert_eq!(voters.len(), 3);
    assert_eq!(voters[&3], Member { incarnation: 300, ..at("peer-3") });
    let wiped = links([HelloV1 { incarnation: 9, ..greeting(3) }]);
    assert_eq!(tell(canvass(&roll(1, false), &wiped, &both)), (vec![(3, 9)], vec![2]));
    let one: Consents = [(2, greeting(2))].into();
    let Canvass::Begin(voters) = canvass(&roll(1, true), &links([]), &one) else { panic!("it waits") };
    assert_eq!(voters[&3], at("peer-3"), "nobody knows its incarnation yet");
    assert_eq!(canvass(&roll(1, false), &links([of(OTHER, 2)]), &both), Canvass::Ask(vec![2]));
}

#[test]
fn a_node_becomes_part_of_a_cluster_only_for_the_right_founder() {
    let found = |peers: Peers| FoundV1 {
        cluster: MINE,
        founded_wall_ms: 1,
        incarnation: 300,
        peers: peers.into_iter().collect(),
    };
    let judge = |majority, from, found: &FoundV1, links| roll(3, majority).judge(300, &greeting(from), found, &links);
    assert_eq!(judge(false, 1, &found(peers(3)), links([greeting(1)])), Ok(()));
    let stale = FoundV1 { incarnation: 299, ..found(peers(3)) };
    assert!(matches!(judge(false, 1, &stale, links([])), Err(Unwilling::Now(_))));
    let Err(Unwilling::Ever(line)) = judge(false, 1, &found(peers(4)), links([])) else { panic!("agreed") };
    assert!(line.contains("1=peer-1,2=peer-2,3=peer-3:") && line.contains(",4=peer-4 and"), "{line}");
    assert!(matches!(judge(false, 2, &found(peers(3)), links([])), Err(Unwilling::Ever(_))), "not the lowest");
    assert!(matches!(judge(true, 2, &found(peers(3)), links([founding(OTHER, 1)])), Err(Unwilling::Now(_))));
    assert_eq!(judge(true, 2, &found(peers(3)), links([greeting(1)])), Ok(()), "it founds nothing, it listens");
    assert_eq!(judge(true, 2, &found(peers(3)), links([])), Ok(()));
}

/// Nodes 1 and 2, and 3 whose incarnation is not known, as of entry 50.
fn register() -> Register {
    let known = |id: NodeId, incarnation| (id, Member { incarnation, ..at(&format!("peer-{id}")) });
    let nodes: BTreeMap<NodeId, Member> = [known(1, 100), known(2, 200), known(3, 0)].into();
    let membership = openraft::Membership::new(vec![[1, 2, 3].into()], nodes).unwrap();
    let id = PlainLogId { leader_id: openraft::vote::leader_id_adv::LeaderId { term: 1, node_id: 1 }, index: 50 };
    Register(Arc::new(PlainMembership::new(Some(id), membership)))
}

#[test]
fn who_comes_with_another_directory_is_told_to_be_replaced() {
    let ask =
        |node, incarnation, peer: &str| AdmitV1 { node, incarnation, client: String::new(), peer: peer.to_owned() };
    let judge = |ask| admission::judge(&MINE, &register(), &peers(5), &ask);
    assert_eq!(judge(ask(2, 200, "peer-2")), Verdict::Yes);
    assert_eq!(judge(ask(2, 200, "new-2")), Verdict::Record(Member { incarnation: 200, ..at("new-2") }));
    assert_eq!(judge(ask(3, 7, "peer-3")), Verdict::Record(Member { incarnation: 7, ..at("peer-3") }));
    let Verdict::Wiped(line) = judge(ask(2, 201, "peer-2")) else { panic!("let in") };
    assert!(
        line.contains("`tenure cluster replace 2`") && line.contains(&hex(&MINE)) && !line.contains('\n'),
        "{line}"
    );
    let Verdict::Stranger(line) = judge(ask(4, 1, "peer-4")) else { panic!("let in") };
    assert!(line.contains("node 4") && line.contains("1, 2, 3") && line.contains(&hex(&MINE)), "{line}");
    assert!(line.contains("`tenure cluster replace 4`"), "one of --peers may be half-way replaced: {line}");
    let Verdict::Stranger(line) = judge(ask(6, 1, "peer-6")) else { panic!("let in") };
    assert!(!line.contains("replace"), "{line}");
}

#[test]
fn the_doorman_knows_members_by_id_and_directory() {
    let mine = Belonging { cluster: MINE, founded_wall_ms: 1, founder: false, admitted_at: 0 };
    let me = Identity { node_id: 1, incarnation: 100, several: true, belonging: Some(mine) };
    let refuse = |register: &Register, from: &HelloV1| doorman::refuse(&me, &mine, &peers(3), register, from);
    let told = |from: &HelloV1| refuse(&register(), from).unwrap_or_default();
    assert_eq!(told(&of(MINE, 2)), "");
    assert_eq!(told(&of(MINE, 3)), "", "its incarnation is not known yet");
    assert_eq!(told(&greeting(4)), "", "it hears what is against it when it asks");
    assert_eq!(told(&founding(OTHER, 2)), "", "so does one whose own cluster is not begun");
    assert!(told(&of(MINE, 1)).contains("both are node 1"));
    let line = told(&of(OTHER, 2));
    assert!(line.contains(&hex(&MINE)) && line.contains(&hex(&OTHER)), "{line}");
    assert!(told(&of(MINE, 4)).contains("not a member"));
    let wiped = HelloV1 { incarnation: 201, ..of(MINE, 2) };
    assert!(told(&wiped).contains("tenure cluster replace 2"));
    let admitted_at = |at| HelloV1 { admitted_at: at, ..wiped.clone() };
    assert!(told(&admitted_at(50)).contains("replace"), "this membership knows of its admission");
    assert_eq!(told(&admitted_at(51)), "", "this membership is older than its admission");

    let none = Register::default();
    assert_eq!(refuse(&none, &wiped), None);
    assert!(refuse(&none, &of(MINE, 4)).is_some_and(|line| line.contains("1=peer-1,2=peer-2,3=peer-3")));
    let before = |from: &HelloV1| doorman::refuse_before(&Identity { belonging: None, ..me }, &peers(3), from);
    assert_eq!(before(&of(OTHER, 2)), None);
    assert!(before(&greeting(4)).is_some());
}
