//! A killed leader costs tens of milliseconds, not an election timeout.
//!
//! Model: a transport knows of some peers that their process is *surely gone*: the connection was reset and a new one
//! refused. A voter that sees its leader gone waits for its turn (the lowest id first), then asks the other voters. One
//! that stands under the same leadership, sees the same with its own eyes and has nothing that the candidate lacks,
//! agrees; by that alone nothing changes. With a majority (the candidate included) the candidate campaigns at once, as if
//! the leader had handed over to it.
//!
//! Invariants: at most once a term and node; silence, a slow link, or what one node sees alone deposes nobody, since each
//! of a majority must see it. Whatever is decided here, only a majority's votes make a leader: a wrong guess costs an
//! election and no promise.
//!
//! Not promised: that it works (a host that dies answers nothing, nor refuses). Then the election timeout does.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::TransferLeaderRequest;
use openraft::type_config::TypeConfigExt;

use crate::cluster::Node;
use crate::peer::{LeaderGoneV1, PeerAnswerV1, PeerRequestV1};
use crate::persisted::{Foreign, LogIdV1, VoteV1};
use crate::planted::{self, Bug};
use crate::raft::{AsyncRuntime, NodeId, Raft, TypeConfig};
use crate::standing::Standings;
use crate::transport::Transport;

/// One voter's turn comes so long after the one's before it.
const TURN: Duration = Duration::from_millis(40);
/// How long a voter that is asked waits to see for itself.
const SEE_WITHIN: Duration = Duration::from_millis(150);
/// How long a candidate waits for answers, and for its own log to be synced before it asks.
const ANSWER_WITHIN: Duration = Duration::from_millis(300);

/// What a voter knows.
struct Sight {
    node: NodeId,
    /// Voter sets: two while the membership changes.
    voters: Vec<BTreeSet<NodeId>>,
    vote: VoteV1,
    gone: BTreeSet<NodeId>,
}

/// To ask, after a wait, whether the others see the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Campaign {
    leader: VoteV1,
    wait: Duration,
}

impl Sight {
    fn all_voters(&self) -> BTreeSet<NodeId> {
        self.voters.iter().flatten().copied().collect()
    }

    /// The leader it stands under, if that is another and its process is gone.
    fn gone_leader(&self) -> Option<NodeId> {
        let leader = self.vote.node.filter(|leader| *leader != self.node && self.vote.committed)?;
        self.gone.contains(&leader).then_some(leader)
    }

    /// What to do, if this node has not tried in this term; `tried` is the last term it tried in.
    fn campaign(&self, tried: u64) -> Option<Campaign> {
        self.gone_leader()?;
        if self.vote.term <= tried {
            return None;
        }
        let voters = self.all_voters();
        let turn = voters.difference(&self.gone).position(|voter| *voter == self.node)?;
        let turn = u32::try_from(turn).unwrap_or(u32::MAX);
        Some(Campaign { leader: self.vote, wait: TURN.saturating_mul(turn) })
    }

    /// Do those who `agree` make a majority of each voter set?
    fn is_majority(&self, agree: &BTreeSet<NodeId>) -> bool {
        self.voters.iter().all(|set| set.intersection(agree).count() * 2 > set.len())
    }

    /// Does this node, whose log ends with `last`, agree that the candidate takes over?
    fn agrees(&self, asked: &LeaderGoneV1, last: Option<LogIdV1>) -> bool {
        self.vote == asked.leader
            && self.gone_leader().is_some()
            && self.all_voters().contains(&asked.candidate)
            && asked.last >= last
    }
}

fn sight<RT: AsyncRuntime>(standings: &Standings<RT>, transport: &dyn Transport) -> Sight {
    let server = standings.server().borrow_watched();
    let voters = server.membership_config.membership().get_joint_config().clone();
    Sight { node: standings.node(), voters, vote: VoteV1::from(&server.vote), gone: surely_gone(transport) }
}

/// The peers whose process is surely gone.
fn surely_gone(transport: &dyn Transport) -> BTreeSet<NodeId> {
    let mut gone = transport.gone().borrow().clone();
    if planted::has(Bug::CrashPathOnSilence) {
        gone.extend(transport.links().into_iter().filter(|(_, link)| !link.connected).map(|(id, _)| id));
    }
    gone
}

/// The last entry of a node's log.
fn last<RT: AsyncRuntime>(raft: &Raft<RT>) -> Option<LogIdV1> {
    raft.data_metrics().borrow_watched().last_log.as_ref().map(LogIdV1::from)
}

/// Watches for the leader's end.
pub struct CrashWatch<RT: AsyncRuntime> {
    /// Replication.
    pub raft: Raft<RT>,
    /// Who leads.
    pub standings: Standings<RT>,
    /// Who is gone, and the way to the others.
    pub transport: Arc<dyn Transport>,
}

impl<RT: AsyncRuntime> CrashWatch<RT> {
    /// Runs until the node stops.
    pub async fn run(self) {
        let mut tried = 0;
        loop {
            let seen = self.campaign(tried);
            let Some(campaign) = seen else {
                self.changes(tried, None).await;
                continue;
            };
            tokio::select! { biased;
                () = self.changes(tried, seen) => continue,
                () = TypeConfig::<RT>::sleep(campaign.wait) => {}
            }
            tried = campaign.leader.term;
            if self.is_agreed(campaign.leader).await {
                self.take_over(campaign.leader).await;
            }
        }
    }

    fn campaign(&self, tried: u64) -> Option<Campaign> {
        sight(&self.standings, &*self.transport).campaign(tried)
    }

    /// Resolves when what is to be done is no longer `seen`; never after replication or the transport has ended.
    async fn changes(&self, tried: u64, seen: Option<Campaign>) {
        let (mut gone, mut server) = (self.transport.gone(), self.standings.server().clone());
        loop {
            gone.mark_unchanged();
            drop(server.borrow_and_update());
            if self.campaign(tried) != seen {
                return;
            }
            let alive = tokio::select! { biased;
                changed = gone.changed() => changed.is_ok(),
                changed = server.changed() => changed.is_ok(),
                // Nothing tells that a link is silent.
                () = async { TypeConfig::<RT>::sleep(TURN).await }, if planted::has(Bug::CrashPathOnSilence) => true,
            };
            if !alive {
                return std::future::pending().await;
            }
        }
    }

    /// Asks the other voters; true as soon as a majority, this node included, sees the leader gone.
    async fn is_agreed(&self, leader: VoteV1) -> bool {
        let Some(last) = self.synced().await else { return false };
        let asked = LeaderGoneV1 { leader, candidate: self.standings.node(), last };
        let sight = sight(&self.standings, &*self.transport);
        let others = sight.all_voters().into_iter().filter(|id| *id != sight.node && !sight.gone.contains(id));
        let calls = others.filter_map(|id| {
            let called = self.transport.call(self.standings.peer(id)?, PeerRequestV1::LeaderGone(asked.clone()));
            Some(async move { (id, TypeConfig::<RT>::timeout(ANSWER_WITHIN, called).await) })
        });
        let mut answers: FuturesUnordered<_> = calls.collect();
        let mut agree = BTreeSet::from([sight.node]);
        while !sight.is_majority(&agree) {
            match answers.next().await {
                Some((id, Ok(Ok(PeerAnswerV1::LeaderGone(true))))) => drop(agree.insert(id)),
                Some(_) => {}
                None => return false,
            }
        }
        true
    }

    /// The end of this node's log once all of it is synced; `None` when that takes too long.
    async fn synced(&self) -> Option<Option<LogIdV1>> {
        let end = last(&self.raft);
        let mut progress = self.raft.watch_log_progress();
        let flushed = progress.wait_until(|flushed| {
            flushed.as_ref().and_then(|point| point.last_log_id.as_ref()).map(LogIdV1::from) >= end
        });
        TypeConfig::<RT>::timeout(ANSWER_WITHIN, flushed).await.ok()?.ok()?;
        Some(end)
    }

    /// Campaigns, if the leader is still the one that is gone.
    async fn take_over(&self, leader: VoteV1) {
        let sight = sight(&self.standings, &*self.transport);
        if sight.vote != leader || sight.gone_leader().is_none() {
            return;
        }
        if let Ok(request) = transfer(leader, sight.node, last(&self.raft)) {
            // An error says that replication has ended, or that another leadership began: nothing is left to do.
            let _ = self.raft.handle_transfer_leader(request).await;
        }
    }
}

fn transfer<RT: AsyncRuntime>(
    leader: VoteV1,
    to: NodeId,
    last: Option<LogIdV1>,
) -> Result<TransferLeaderRequest<TypeConfig<RT>>, Foreign> {
    Ok(TransferLeaderRequest::new(leader.try_into()?, to, last.map(Into::into)))
}

impl<RT: AsyncRuntime> Node<RT> {
    /// A candidate asks whether this node sees the leader gone too.
    pub(crate) async fn confirm_gone(&self, asked: LeaderGoneV1) -> Result<PeerAnswerV1, String> {
        let leader = asked.leader.node.ok_or("the vote names no leader")?;
        let mut gone = self.transport.gone();
        let seen = async { gone.wait_for(|gone| gone.contains(&leader)).await.is_ok() };
        // Whether it was seen is judged below, together with the rest.
        let _ = TypeConfig::<RT>::timeout(SEE_WITHIN, seen).await;
        let agrees = sight(&self.standings, &*self.transport).agrees(&asked, last(&self.raft));
        // An opinion, and no more: the leader's hold on this node stands until the candidate, with a majority behind it,
        // asks for votes as after a transfer. If it gets no majority, nothing has changed.
        Ok(PeerAnswerV1::LeaderGone(agrees))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vote(term: u64, node: NodeId, committed: bool) -> VoteV1 {
        VoteV1 { term, node: Some(node), committed }
    }

    fn of_five(node: NodeId, vote: VoteV1, gone: &[NodeId]) -> Sight {
        Sight { node, voters: vec![(1..=5).collect()], vote, gone: gone.iter().copied().collect() }
    }

    #[test]
    fn only_a_voter_whose_own_leader_is_gone_campaigns_in_its_turn() {
        let led = vote(7, 1, true);
        let wait = |sight: Sight, tried| sight.campaign(tried).map(|campaign| campaign.wait.as_millis());
        let cases = [
            ("the lowest id at once", of_five(2, led, &[1]), 6, Some(0)),
            ("the next after it", of_five(3, led, &[1]), 6, Some(40)),
            ("who is gone has no turn", of_five(4, led, &[1, 2]), 6, Some(40)),
            ("once a term", of_five(2, led, &[1]), 7, None),
            ("another is gone", of_five(2, led, &[3]), 6, None),
            ("no leader yet", of_five(2, vote(7, 1, false), &[1]), 6, None),
            ("it leads itself", of_five(2, vote(7, 2, true), &[2]), 6, None),
            ("a learner", of_five(6, led, &[1]), 6, None),
        ];
        for (name, sight, tried, expected) in cases {
            assert_eq!(wait(sight, tried), expected, "{name}");
        }
    }

    #[test]
    fn a_majority_of_each_set_must_agree() {
        let mut sight = of_five(2, vote(7, 1, true), &[1]);
        assert!(!sight.is_majority(&[2, 3].into()));
        assert!(sight.is_majority(&[2, 3, 4].into()));
        assert!(!sight.is_majority(&[2, 8, 9].into()), "strangers do not count");
        sight.voters.push([1, 2, 6].into());
        assert!(!sight.is_majority(&[3, 4, 5].into()));
        assert!(sight.is_majority(&[2, 3, 4, 6].into()));
    }

    #[test]
    fn who_is_asked_sees_for_itself() {
        let led = vote(7, 1, true);
        let at = |index| Some(LogIdV1 { term: 7, node: 1, index });
        let asked = |candidate, leader, index| LeaderGoneV1 { leader, candidate, last: at(index) };
        let cases = [
            ("sees the same", of_five(3, led, &[1]), asked(2, led, 9), true),
            ("lacks something", of_five(3, led, &[1]), asked(2, led, 10), true),
            ("has more", of_five(3, led, &[1]), asked(2, led, 8), false),
            ("sees it alive", of_five(3, led, &[]), asked(2, led, 9), false),
            ("follows another by now", of_five(3, vote(8, 4, true), &[1]), asked(2, led, 9), false),
            ("is the leader", of_five(1, led, &[]), asked(2, led, 9), false),
            ("is asked by a stranger", of_five(3, led, &[1]), asked(9, led, 9), false),
        ];
        for (name, sight, asked, expected) in cases {
            assert_eq!(sight.agrees(&asked, at(9)), expected, "{name}");
        }
    }
}
