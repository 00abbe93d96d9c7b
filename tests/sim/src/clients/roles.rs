//! Kinds of clients, and what each does again and again.

use checker::Operation;

use super::client::{Client, sleep_until};
use super::service::Service;

/// What a client is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Holds for a while, renews, gives back or lets go.
    Holder,
    /// Wants what is held: asks at the edge of each grant, and is soon done with it.
    Contender,
    /// Waits in line for what is held.
    Waiter,
    /// Many who wait in line, of whom most go away; see `crowd`.
    Crowd,
    /// Waits long, at every node, for what is held long; see `siege`.
    Besieger,
    /// Looks, at several nodes at once, when something is about to end.
    Reader,
    /// Renews what is not its own.
    Intruder,
    /// Sets the lifetime of a key that is in use.
    Undertaker,
    /// BREAK and DEL, now and then.
    Operator,
    /// What the others never ask; see `odd`.
    Odd,
    /// A pool, those who hold its slots, and whoever looks after it; see `pools`.
    Landlord,
}

/// Clients by number: the first are the ones no run can do without.
const ROLES: [Role; 18] = [
    Role::Holder,
    Role::Contender,
    Role::Reader,
    Role::Waiter,
    Role::Intruder,
    Role::Landlord,
    Role::Undertaker,
    Role::Operator,
    Role::Odd,
    Role::Crowd,
    Role::Besieger,
    Role::Holder,
    Role::Contender,
    Role::Waiter,
    Role::Landlord,
    Role::Reader,
    Role::Holder,
    Role::Holder,
];

/// Lifetimes of keys.
const KEY_TTL_MS: std::ops::RangeInclusive<u64> = 1_024..=4_000;

impl Role {
    pub(super) fn of(number: u32) -> Self {
        ROLES[usize::try_from(number.saturating_sub(1)).unwrap() % ROLES.len()]
    }
}

impl<S: Service> Client<S> {
    /// Works until the run is over.
    pub(super) async fn work(mut self) {
        let role = Role::of(self.number);
        self.rest(0..=100).await;
        while !self.board.is_over() {
            match role {
                Role::Holder => self.hold_one().await,
                Role::Contender => self.contend().await,
                Role::Waiter => self.wait_in_line().await,
                Role::Crowd => self.be_crowd().await,
                Role::Besieger => self.besiege().await,
                Role::Reader => self.read().await,
                Role::Intruder => self.intrude().await,
                Role::Undertaker => self.change_lifetime().await,
                Role::Odd => self.be_odd().await,
                Role::Landlord => self.let_slots().await,
                Role::Operator => self.override_holder().await,
            }
        }
    }

    async fn hold_one(&mut self) {
        let (key, wait_ms) = (self.board.pick(&mut self.dice), self.dice.in_range(200..=3_000));
        if let Some(held) = self.acquire(&key, wait_ms).await {
            let renewals = self.dice.in_range(0..=4);
            self.hold(held, renewals).await;
        }
        self.rest(0..=80).await;
    }

    async fn contend(&mut self) {
        let key = self.board.pick(&mut self.dice);
        if let Some(held) = self.acquire(&key, 6_000).await {
            let renewals = self.dice.in_range(0..=1);
            self.hold(held, renewals).await;
        }
        self.rest(0..=60).await;
    }

    async fn read(&mut self) {
        let key = self.board.pick(&mut self.dice);
        if let Some(hint) = self.board.hint(&key).filter(|_| self.dice.percent(70)) {
            let before_ns = self.dice.in_range(0..=4_000_000);
            let ends_ns = hint.ends_ns.saturating_sub(before_ns);
            if ends_ns < crate::runtime::now_ns() + self.ttl_ms.1 * 1_000_000 / 2 {
                sleep_until(ends_ns).await;
            }
        }
        for _ in 0..self.dice.in_range(1..=4) {
            let nodes = usize::try_from(self.dice.in_range(1..=3)).unwrap();
            if self.board.is_over() || self.look(&key, nodes).await.is_none() {
                break;
            }
            self.rest(0..=4).await;
        }
        self.rest(20..=160).await;
    }

    async fn intrude(&mut self) {
        let key = self.board.pick(&mut self.dice);
        let patience = self.patience();
        // Also when nobody seems to hold: then its end is not to be taken back.
        let fence = self.board.hint(&key).map(|hint| hint.fence).filter(|_| self.dice.percent(70));
        let ttl_ms = self.ttl_ms.1;
        drop(self.call(&key, Operation::Trespass { fence, ttl_ms }, patience).await);
        self.rest(60..=400).await;
    }

    async fn change_lifetime(&mut self) {
        let (key, patience) = (self.board.pick_mortal(), self.patience());
        let operation = if self.dice.percent(75) {
            Operation::Expire { ttl_ms: self.dice.in_range(KEY_TTL_MS) }
        } else {
            Operation::Persist
        };
        drop(self.call(&key, operation, patience).await);
        // Looked at when it may be over, held or not.
        self.rest(200..=1_500).await;
        let _ = self.look(&key, 1).await;
    }

    async fn override_holder(&mut self) {
        let (key, patience) = (self.board.pick(&mut self.dice), self.patience());
        let operation = if self.dice.percent(75) { Operation::Break } else { Operation::Delete };
        drop(self.call(&key, operation, patience).await);
        for _ in 0..self.dice.in_range(3..=8) {
            self.rest(100..=900).await;
            if self.board.is_over() {
                return;
            }
            let key = self.board.pick(&mut self.dice);
            let _ = self.look(&key, 2).await;
        }
    }
}
