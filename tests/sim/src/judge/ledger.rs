//! The ledger of a run: the handle that machines, the world and the run itself have of the judge.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use checker::Call;
use tenure::edge::Ask;
use tenure::keyspace::{Command, Event, Key, Reply};
use tenure_cluster::{Applied, Heard, Witness};

use super::log::{Log, Passed, Place, Taken};
use super::outages::{self, Outages};
use super::votes::Votes;
use super::{Shown, Verdict, Violation, acknowledged};

thread_local! {
    static INSTALLED: RefCell<Option<Ledger>> = const { RefCell::new(None) };
}

/// What all nodes together did. Clones are handles to the same. The machine, which is made by `Default`, finds the
/// ledger of its run by the thread: [`Ledger::install`].
#[derive(Clone, Debug, Default)]
pub struct Ledger(Arc<Mutex<Book>>);

#[derive(Debug, Default)]
struct Book {
    verdict: Verdict,
    log: Log,
    votes: Votes,
    outages: Outages,
    /// How far each node is since it was started.
    nodes: BTreeMap<u64, u64>,
    stopped: BTreeSet<u64>,
    loads: u64,
    acknowledged: u64,
    without_effect: u64,
    given_back: u64,
    /// Pools that readers were shown.
    shown: u64,
    /// Answers that edges gave to waiting requests.
    answered: u64,
    /// What edges said they surely did not ask for.
    not_asked: Vec<Ask>,
}

/// A ledger is installed on this thread until this is dropped.
#[derive(Debug)]
pub struct Installed(Option<Ledger>);

impl Drop for Installed {
    fn drop(&mut self) {
        let before = self.0.take();
        INSTALLED.with(|installed| *installed.borrow_mut() = before);
    }
}

impl Ledger {
    /// From now on the machines of this thread write into this ledger.
    #[must_use]
    pub fn install(&self) -> Installed {
        Installed(INSTALLED.with(|installed| installed.borrow_mut().replace(self.clone())))
    }

    pub(super) fn installed() -> Option<Self> {
        INSTALLED.with(|installed| installed.borrow().clone())
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A law of somebody else's is broken.
    pub fn violated(&self, law: &str, detail: String) {
        self.book().verdict.violated(law, || detail);
    }

    /// A node is started: it begins at its snapshot, or at the beginning.
    pub fn started(&self, node: u64) {
        let mut book = self.book();
        book.nodes.remove(&node);
        book.stopped.remove(&node);
        book.log.events.started(node);
    }

    /// A node's listener hears something.
    pub fn heard(&self, node: u64, heard: &Heard<'_, Event>) {
        let book = &mut *self.book();
        book.log.events.hear(node, heard, &mut book.verdict);
    }

    /// An edge of `node` answers a waiting request.
    pub fn waited(&self, node: u64, ask: &Ask, answer: &Applied<Reply>) {
        let book = &mut *self.book();
        book.answered += 1;
        acknowledged::waited(node, ask, answer, &book.log, &mut book.verdict);
    }

    /// An edge said that a request to wait for this surely had no effect: at the end none may stand in the log.
    pub fn not_asked(&self, ask: Ask) {
        self.book().not_asked.push(ask);
    }

    /// A node runs no more.
    pub fn stopped(&self, node: u64) {
        self.book().stopped.insert(node);
    }

    /// A node leads in this term.
    pub fn led(&self, node: u64, term: u64) {
        self.book().votes.led(node, term);
    }

    /// A node told another, or itself, that it votes for `candidate`: it must be on its disk.
    pub fn voted(&self, node: u64, term: u64, candidate: u64) {
        self.book().votes.voted(node, term, candidate);
    }

    /// A node starts, and its disk holds this vote.
    pub fn durable_vote(&self, node: u64, term: u64, candidate: u64) {
        let book = &mut *self.book();
        book.votes.durable(node, term, candidate, &mut book.verdict);
    }

    /// The run is over, and clients were answered this.
    pub fn acknowledged(&self, calls: &[Call]) {
        let book = &mut *self.book();
        book.acknowledged += acknowledged::compare(calls, &book.log, &mut book.verdict);
    }

    /// The run is over, and clients of pools were answered this.
    pub fn told(&self, answered: &[(Command, Applied<Reply>)]) {
        let book = &mut *self.book();
        book.acknowledged += answered.len() as u64;
        for (command, answer) in answered {
            acknowledged::told(command, answer, &book.log, &mut book.verdict);
        }
    }

    /// The run is over, and readers were shown these pools.
    pub fn shown(&self, shown: &[(Key, Shown, Witness)]) {
        let book = &mut *self.book();
        book.shown += shown.len() as u64;
        let records = &book.log.grants.pools.records;
        for wrong in shown.iter().filter_map(|(key, shown, witness)| records.contradicts(key, shown, *witness)) {
            book.verdict.violated("ReadsAgree", || wrong);
        }
    }

    /// From when on, true time, a holder of a slot need not know that it is not any more: by BREAK, DEL, a takeover, or
    /// `avoid` of another token of its identity. By fence.
    pub fn overridden(&self) -> BTreeMap<u64, u64> {
        let book = self.book();
        let overrides = book.log.grants.pools.records.overrides();
        overrides.filter_map(|(fence, at)| Some((fence, book.log.entry(at.index)?.first_ns))).collect()
    }

    /// The run is over, and clients were told that these had surely no effect.
    pub fn without_effect(&self, commands: &[Command]) {
        let book = &mut *self.book();
        book.without_effect += commands.len() as u64;
        for (command, position) in commands.iter().filter_map(|it| Some((it, book.log.position(it)?))) {
            book.verdict.violated("SurelyNot", || format!("{position} is what a client was told is not: {command:?}"));
        }
        for (ask, position) in book.not_asked.iter().filter_map(|ask| Some((ask, book.log.asked(ask)?))) {
            book.verdict.violated("SurelyNot", || format!("{position} asks for what an edge told is not: {ask:?}"));
        }
    }

    /// From when until when, true time, no majority worked together.
    pub fn outage(&self, from_ns: u64, until_ns: u64) {
        self.book().outages.add(from_ns, until_ns);
    }

    /// The run is over: did the clock count what it may? `limit_ms` is T.
    pub fn timed(&self, calls: &[Call], limit_ms: u64) {
        let book = &mut *self.book();
        outages::stuck(&book.log, limit_ms, &mut book.verdict);
        book.given_back += book.outages.compare(calls, limit_ms, &mut book.verdict);
    }

    /// What was broken, the first first.
    pub fn violations(&self) -> Vec<Violation> {
        self.book().verdict.0.clone()
    }

    /// How much was judged: a verdict over nothing says nothing.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        let book = self.book();
        let number = |count: usize| count as u64;
        let mut counts = BTreeMap::from([
            ("judged_entries", number(book.log.len())),
            ("judged_on_another_node", book.log.compared),
            ("judged_once", number(book.log.tries())),
            ("judged_loads", book.loads),
            ("judged_acknowledged", book.acknowledged),
            ("judged_without_effect", book.without_effect),
            ("judged_outages", book.given_back),
            ("term_shared", book.votes.shared_terms()),
            ("judged_events", book.log.events.count),
            ("judged_jumps", book.log.events.jumps),
            ("judged_waits_answered", book.answered),
            ("judged_pools_shown", book.shown),
        ]);
        counts.extend(&book.log.grants.waits.0);
        counts.extend(&book.log.grants.pools.counts);
        counts
    }

    pub(super) fn loaded(&self, node: u64, state: u64) {
        let book = &mut *self.book();
        book.loads += 1;
        book.log.loaded(node, state, &mut book.verdict);
    }

    pub(super) fn advanced(&self, node: u64, now_ns: u64, place: &mut Place, passed: &Passed<'_>) {
        let book = &mut *self.book();
        let index = passed.moment.position.index;
        if book.stopped.contains(&node) {
            book.verdict.violated("PositionsGrow", || format!("node {node} takes entry {index} and is stopped"));
        }
        if let Some(before) = book.nodes.insert(node, index).filter(|before| *before >= index) {
            book.verdict.violated("PositionsGrow", || format!("node {node} goes back from entry {before} to {index}"));
        }
        book.log.advanced(node, now_ns, place, passed, &mut book.verdict);
    }

    pub(super) fn applied(&self, node: u64, place: &mut Place, taken: &Taken<'_>) {
        let book = &mut *self.book();
        book.log.applied(node, place, taken, &mut book.verdict);
    }
}
