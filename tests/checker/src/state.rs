//! What is known of one key at a position of the log, and what the next answer must therefore be.
//!
//! Known is the latest grant: its fence, its deadline on the cluster clock (exact, since every answer tells the clock and
//! what is left), and whether it has ended. An answer that shows a grant nobody was told of is right only if an unknown
//! ACQUIRE could have made it.

use super::doubt::Doubts;
use super::history::{Call, Live, Position, Sight};
use super::{Rule, Verdict};

/// Where an answer stands.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub position: Position,
    pub clock_ms: u64,
    pub call: &'a Call,
}

impl At<'_> {
    fn deadline(&self, live: Live) -> u64 {
        self.clock_ms.saturating_add(live.ttl_ms)
    }
}

/// The latest grant that is known.
struct Grant {
    fence: u64,
    /// `None`: of somebody who was not told.
    token: Option<u64>,
    deadline_ms: u64,
    end: Option<End>,
    /// Its token was told of it, or spoke of it: it is not returned for want of a caller any more.
    heard: bool,
    /// A BREAK of its position may have ended it.
    perhaps_broken: bool,
}

impl Grant {
    fn claim(&self) -> (u64, Option<u64>) {
        (self.fence, self.token)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Released,
    Broken,
    Deleted,
    /// Somebody was shown so.
    Seen,
}

/// See the module's head.
pub(super) struct State<'a> {
    doubts: &'a Doubts,
    verdict: &'a mut Verdict,
    latest: Option<Grant>,
    /// The key was deleted or seen absent, and not made again.
    gone: bool,
    /// When its lifetime ends, as the last EXPIRE or PERSIST that is known has it.
    ends_ms: Option<u64>,
    /// The earliest end that any lifetime of it was set to.
    first_end_ms: Option<u64>,
}

impl<'a> State<'a> {
    pub(super) fn new(doubts: &'a Doubts, verdict: &'a mut Verdict) -> Self {
        Self { doubts, verdict, latest: None, gone: false, ends_ms: None, first_end_ms: None }
    }

    fn violated(&mut self, rule: Rule, at: At<'_>, what: &str) {
        let known = self.latest.as_ref().map(|grant| (grant.fence, grant.token, grant.deadline_ms, grant.end));
        let call = at.call;
        self.verdict.add(rule, || format!("{what}: {call}; known before: (fence, token, deadline, end) = {known:?}"));
    }

    /// Must the latest grant be live at `at`?
    fn is_live(&self, at: At<'_>) -> bool {
        self.latest.as_ref().is_some_and(|grant| {
            let ended = self.doubts.ended(grant.claim(), at.position) || self.may_be_returned(grant, at);
            grant.end.is_none() && at.clock_ms < grant.deadline_ms && !ended && !grant.perhaps_broken
        })
    }

    /// May it have gone back, since whoever waited for it was gone?
    fn may_be_returned(&self, grant: &Grant, at: At<'_>) -> bool {
        !grant.heard && self.doubts.returned(grant.token, at.position)
    }

    /// Is it surely live, for whoever puts calls of one position in order?
    pub(super) fn holds(&self, at: At<'_>) -> bool {
        self.is_live(at)
    }

    /// Can anybody hold?
    pub(super) fn may_hold(&self, at: At<'_>) -> bool {
        self.may_be_live(at) || self.doubts.granted(None, at.position)
    }

    /// The latest grant is perhaps what a BREAK of its position ended.
    pub(super) fn perhaps_broken(&mut self) {
        if let Some(grant) = &mut self.latest {
            grant.perhaps_broken = true;
        }
    }

    /// Can the latest grant be live at `at`?
    fn may_be_live(&self, at: At<'_>) -> bool {
        self.latest.as_ref().is_some_and(|grant| {
            let renewed = self.doubts.renewed(grant.claim(), at.position);
            grant.end.is_none() && (at.clock_ms < grant.deadline_ms || renewed)
        })
    }

    /// Can the key's lifetime be over at `at`?
    fn may_be_over(&self, at: At<'_>) -> bool {
        self.ends_ms.is_some_and(|ends_ms| at.clock_ms >= ends_ms)
            || self.doubts.lifetime_over(at.position, at.clock_ms)
    }

    /// Must it be? Whoever could have set it anew, or made the key anew, did not.
    fn must_be_over(&self, at: At<'_>) -> bool {
        let unchanged = !self.doubts.lifetime_changed(at.position)
            && !self.doubts.ended_from_outside(at.position)
            && !self.doubts.granted(None, at.position);
        unchanged && self.ends_ms.is_some_and(|ends_ms| at.clock_ms >= ends_ms)
    }

    fn is_latest(&self, fence: u64) -> bool {
        self.latest.as_ref().is_some_and(|grant| grant.fence == fence)
    }

    /// A grant that nobody was told of shows itself.
    fn discovered(&mut self, at: At<'_>, token: Option<u64>, live: Live) {
        if self.latest.as_ref().is_some_and(|grant| grant.fence > live.fence) {
            self.violated(Rule::EndedStaysEnded, at, "an older grant than the latest");
            return;
        }
        if self.is_live(at) {
            self.violated(Rule::NotEarly, at, "another grant before this one's deadline");
        }
        if !self.doubts.granted(token, at.position) {
            self.violated(Rule::NothingFromNowhere, at, "a grant that nobody could have been given");
        }
        let (deadline_ms, heard) = (at.deadline(live), token.is_some());
        self.latest = Some(Grant { fence: live.fence, token, deadline_ms, end: None, heard, perhaps_broken: false });
        self.gone = false;
    }

    pub(super) fn granted(&mut self, at: At<'_>, token: u64, ttl_ms: u64, live: Live) {
        if self.is_live(at) {
            self.violated(Rule::NotEarly, at, "granted before the deadline of the grant before");
        }
        if self.latest.as_ref().is_some_and(|grant| grant.fence >= live.fence) {
            self.violated(Rule::FencesGrow, at, "a fence that does not grow");
        }
        if live.ttl_ms != ttl_ms {
            self.violated(Rule::DeadlinesStand, at, "another length than was asked for");
        }
        let (token, deadline_ms) = (Some(token), at.deadline(live));
        self.latest =
            Some(Grant { fence: live.fence, token, deadline_ms, end: None, heard: true, perhaps_broken: false });
        self.gone = false;
        // A free key whose lifetime was over had gone: this is another.
        self.ends_ms = self.ends_ms.filter(|ends_ms| at.clock_ms < *ends_ms);
    }

    pub(super) fn renewed(&mut self, at: At<'_>, token: u64, ttl_ms: u64, live: Live) {
        if !self.is_latest(live.fence) {
            self.discovered(at, Some(token), live);
            return;
        }
        if !self.may_be_live(at) {
            self.violated(Rule::EndedStaysEnded, at, "renewed after its end");
        }
        if self.must_be_over(at) {
            self.violated(Rule::LifetimesStand, at, "renewed after the end of its key's lifetime");
        }
        let doubt = self.doubts.renewed((live.fence, Some(token)), at.position);
        let Some(grant) = &mut self.latest else { return };
        let (old, new) = (grant.deadline_ms, at.deadline(live));
        grant.token = Some(token);
        (grant.heard, grant.perhaps_broken) = (true, false);
        grant.deadline_ms = new;
        let due = old.max(at.clock_ms.saturating_add(ttl_ms));
        if new < due || (new > due && !doubt) {
            self.violated(Rule::DeadlinesStand, at, "a RENEW moves the deadline to max(old, now + ttl)");
        }
    }

    /// RENEW or RELEASE of a grant was false.
    pub(super) fn denied(&mut self, at: At<'_>, token: u64, fence: u64, reason: &str) {
        if reason == "key_expired" {
            return self.key_expired(at);
        }
        if at.call.repeated || reason == "ttl_not_positive" {
            return;
        }
        if !self.is_latest(fence) {
            return;
        }
        if self.is_live(at) {
            self.violated(Rule::NotEarly, at, "refused before its deadline");
        }
        if let Some(grant) = &mut self.latest {
            grant.token = Some(token);
            grant.end.get_or_insert(End::Seen);
        }
    }

    /// A RENEW that was not the holder's was true. What it moved is taken as it is, so that it is one violation.
    pub(super) fn trespassed(&mut self, at: At<'_>, live: Live) {
        self.violated(Rule::TokensOnly, at, "a token that was never granted renews");
        if let Some(grant) = self.latest.as_mut().filter(|grant| grant.fence == live.fence) {
            grant.deadline_ms = grant.deadline_ms.max(at.deadline(live));
        }
    }

    /// EXPIRE (with its ttl) or PERSIST was true.
    pub(super) fn lifetime_set(&mut self, at: At<'_>, ttl_ms: Option<u64>) {
        if self.must_be_over(at) {
            self.violated(Rule::LifetimesStand, at, "set anew after its end");
        }
        if (self.gone || self.latest.is_none()) && !self.doubts.granted(None, at.position) {
            self.violated(Rule::NothingFromNowhere, at, "a key that nobody made");
        }
        self.ends_ms = ttl_ms.map(|ttl_ms| at.clock_ms.saturating_add(ttl_ms));
        self.first_end_ms = self.first_end_ms.into_iter().chain(self.ends_ms).min();
    }

    /// Something was refused because the key's lifetime is over: only a held key is still there then.
    pub(super) fn key_expired(&mut self, at: At<'_>) {
        // Those who wait are told at that time, whoever holds; they hear it when the key has gone, or come again.
        let tells = at.call.is_wait();
        let was_over = tells && self.first_end_ms.is_some_and(|end_ms| at.clock_ms >= end_ms);
        if !was_over && !self.may_be_over(at) {
            self.violated(Rule::LifetimesStand, at, "refused before the end of the key's lifetime");
        }
        if !tells && !self.may_be_live(at) && !self.doubts.granted(None, at.position) {
            self.violated(Rule::EndedStaysEnded, at, "a key after its lifetime, and nobody holds it");
        }
    }

    pub(super) fn released(&mut self, at: At<'_>, token: u64, fence: u64) {
        if !self.is_latest(fence) {
            self.discovered(at, Some(token), Live { fence, ttl_ms: 0 });
        } else if !self.may_be_live(at) {
            self.violated(Rule::EndedStaysEnded, at, "released after its end");
        }
        self.end(End::Released);
    }

    pub(super) fn broken(&mut self, at: At<'_>) {
        if !self.may_be_live(at) && !self.doubts.granted(None, at.position) {
            self.violated(Rule::EndedStaysEnded, at, "broken after its end");
        }
        self.end(End::Broken);
    }

    pub(super) fn deleted(&mut self) {
        self.end(End::Deleted);
        self.gone = true;
        self.ends_ms = None;
    }

    fn end(&mut self, end: End) {
        if let Some(grant) = &mut self.latest {
            grant.end = Some(end);
        }
    }

    pub(super) fn acquire_refused(&mut self, at: At<'_>, token: u64, reason: &str, live: Option<Live>, yours: bool) {
        if reason == "key_expired" {
            self.key_expired(at);
        }
        match live {
            Some(live) => {
                let (known, of) = (self.is_latest(live.fence), if yours { Some(token) } else { None });
                self.seen_held(at, of, live);
                let other = self.latest.as_ref().and_then(|grant| grant.token).is_some_and(|known| known != token);
                if let Some(grant) = self.latest.as_mut().filter(|grant| yours && grant.fence == live.fence) {
                    grant.heard = true;
                }
                if known && yours && other {
                    self.violated(Rule::NothingFromNowhere, at, "another's grant is called the asker's");
                }
            }
            None if reason == "held" && !self.may_be_live(at) && !self.doubts.granted(None, at.position) => {
                self.violated(Rule::FreeIsGranted, at, "refused as held, and nobody holds");
            }
            None => {}
        }
    }

    /// GET.
    pub(super) fn seen(&mut self, at: At<'_>, sight: Option<&Sight>) {
        let Some(sight) = sight else { return self.seen_absent(at) };
        match sight.held {
            Some(live) => self.seen_held(at, None, live),
            None => self.seen_free(at, sight.last.as_ref()),
        }
    }

    /// There is no such key.
    pub(super) fn seen_absent(&mut self, at: At<'_>) {
        let excused = self.gone || self.doubts.ended_from_outside(at.position);
        if self.is_live(at) {
            self.violated(Rule::NotEarly, at, "the key went before the deadline of its grant");
        } else if self.latest.is_some() && !excused && !self.may_be_over(at) {
            self.violated(Rule::NothingIsLost, at, "the key is not there");
        }
        self.end_if_open(End::Seen);
        self.gone = true;
        self.ends_ms = None;
    }

    pub(super) fn seen_held(&mut self, at: At<'_>, token: Option<u64>, live: Live) {
        if !self.is_latest(live.fence) {
            self.discovered(at, token, live);
            return;
        }
        if !self.may_be_live(at) {
            self.violated(Rule::EndedStaysEnded, at, "seen held after its end");
        }
        let Some(grant) = &mut self.latest else { return };
        let (old, new) = (grant.deadline_ms, at.deadline(live));
        grant.deadline_ms = old.max(new);
        grant.token = grant.token.or(token);
        let doubt = self.doubts.renewed(grant.claim(), at.position);
        if new < old || (new > old && !doubt) {
            self.violated(Rule::DeadlinesStand, at, "another deadline than it had");
        }
    }

    fn seen_free(&mut self, at: At<'_>, last: Option<&(u64, String)>) {
        if self.is_live(at) {
            self.violated(Rule::NotEarly, at, "seen free before its deadline");
        }
        if self.must_be_over(at) {
            self.violated(Rule::LifetimesStand, at, "free and still there after its lifetime");
        }
        let known = self.latest.as_ref().map(|grant| grant.fence);
        let shown = last.map(|(fence, _)| *fence);
        if shown < known && !self.gone && !self.doubts.ended_from_outside(at.position) {
            self.violated(Rule::NothingIsLost, at, "an acknowledged grant is not there");
        }
        if self.gone && known.is_some() && shown <= known {
            self.violated(Rule::NothingFromNowhere, at, "a key that had gone, and nobody made again");
        }
        let Some((fence, reason)) = last else { return self.end_if_open(End::Seen) };
        if known.is_none_or(|known| *fence > known) {
            if !self.doubts.granted(None, at.position) {
                self.violated(Rule::NothingFromNowhere, at, "a grant that nobody could have been given");
            }
            let (deadline_ms, end) = (at.clock_ms, Some(End::Seen));
            self.latest =
                Some(Grant { fence: *fence, token: None, deadline_ms, end, heard: false, perhaps_broken: false });
            self.gone = false;
            return;
        }
        if Some(*fence) == known {
            self.seen_ended(at, reason);
        }
        self.end_if_open(End::Seen);
    }

    /// The latest grant is shown as ended: for the reason it did?
    fn seen_ended(&mut self, at: At<'_>, reason: &str) {
        let Some(grant) = &self.latest else { return };
        let right = match reason {
            "released" => grant.end == Some(End::Released) || self.doubts.released(grant.claim(), at.position),
            "broken" => {
                grant.perhaps_broken || grant.end == Some(End::Broken) || self.doubts.ended_from_outside(at.position)
            }
            "undelivered" => self.may_be_returned(grant, at),
            "expired" => !matches!(grant.end, Some(End::Released | End::Broken)) && at.clock_ms >= grant.deadline_ms,
            _ => false,
        };
        // One that was seen ended before, by a refusal that told no reason, may have ended in any of these ways.
        if !right && grant.end != Some(End::Seen) {
            self.violated(Rule::NothingIsLost, at, "ended for another reason than it did");
        }
    }

    fn end_if_open(&mut self, end: End) {
        if let Some(grant) = &mut self.latest {
            grant.end.get_or_insert(end);
        }
    }
}
