//! Drives a log step by step on a simulated disk, beside a naive model that remembers what each prefix of the submitted
//! changes adds up to and how many of them were told to be durable.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_util::FutureExt;
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use openraft::type_config::alias::OneshotReceiverOf;
use openraft::{EntryPayload, RaftLogReader};
use tenure_cluster::codec::{self, Kind};
use tenure_cluster::config::Unobserved;
use tenure_cluster::error::OpenError;
use tenure_cluster::log::{LogOptions, LogStore, Step, Writer};
use tenure_cluster::persisted::{EntryV2, LogIdV1, PayloadV2};
use tenure_cluster::raft::{Batch, Entry, LeaderId, LogId, TokioRuntime, TypeConfig, Vote};
use tenure_cluster::simdisk::SimDisk;

pub type Types = TypeConfig<TokioRuntime>;
pub type Id = LogId<TokioRuntime>;
type Saving = Pin<Box<dyn Future<Output = io::Result<()>>>>;
type Answer = OneshotReceiverOf<Types, io::Result<()>>;

pub const DIR: &str = "/log";

/// What a log holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    pub vote: Option<Vote<TokioRuntime>>,
    pub purged: Option<Id>,
    pub last: Option<Id>,
    pub entries: BTreeMap<u64, (Id, Bytes)>,
}

/// One thing to do to a log.
#[derive(Clone, Debug)]
pub enum Op {
    /// A vote in the next term.
    Vote,
    /// So many entries of so many bytes.
    Append(u64, usize),
    /// All appended entries are committed.
    Commit,
    /// The last so many entries are gone, but none that is committed.
    Truncate(u64),
    /// All but so many committed entries are purged.
    Purge(u64),
    /// A snapshot so far ahead of the log was installed: everything is purged.
    Jump(u64),
    /// The writer takes what waits.
    Step,
}

pub struct Rig {
    pub log: LogStore<TokioRuntime>,
    pub writer: Writer,
    /// What each prefix of the submitted changes adds up to; the first is what was found at the open.
    pub prefixes: Vec<Content>,
    /// So many changes were told to be durable.
    pub told: usize,
    pub committed: Option<Id>,
    answers: Vec<(usize, Answer)>,
    votes: Vec<(usize, Saving)>,
    pub term: u64,
    filler: u8,
    /// How many answers were errors.
    pub refused: usize,
    /// How many of the newest changes are told to nobody: truncations and purges.
    pub untold: usize,
}

pub fn options() -> LogOptions {
    LogOptions { segment_bytes: 4096, cached_bytes_max: 1000, ..LogOptions::default() }
}

pub fn id(term: u64, index: u64) -> Id {
    Id { leader_id: LeaderId::<TokioRuntime> { term, node_id: 1 }, index }
}

pub fn open(disk: &SimDisk) -> Result<(LogStore<TokioRuntime>, Writer), OpenError> {
    LogStore::open_stepped(disk.mount(), PathBuf::from(DIR), options(), Arc::new(Unobserved))
}

pub fn segment_path(sequence: u64) -> PathBuf {
    Path::new(DIR).join(format!("{sequence:020}.log"))
}

/// Reads everything a log has.
pub fn content(log: &LogStore<TokioRuntime>) -> Content {
    let mut log = log.clone();
    let state = log.get_log_state().now_or_never().unwrap().unwrap();
    let entries = log.try_get_log_entries(..).now_or_never().unwrap().unwrap();
    Content {
        vote: log.read_vote().now_or_never().unwrap().unwrap(),
        purged: state.last_purged_log_id,
        last: state.last_log_id,
        entries: entries.into_iter().map(|entry| (entry.log_id.index, (entry.log_id, payload(&entry)))).collect(),
    }
}

fn payload(entry: &Entry<TokioRuntime>) -> Bytes {
    match &entry.payload {
        EntryPayload::Normal(batch) => batch.0.clone(),
        other => panic!("{other:?} was never appended"),
    }
}

/// The log is without a hole from its purge mark to its last entry.
pub fn assert_contiguous(content: &Content) {
    let first = content.purged.map_or(0, |purged| purged.index + 1);
    let next = content.last.map_or(0, |last| last.index + 1);
    let indexes: Vec<u64> = content.entries.keys().copied().collect();
    assert_eq!(indexes, (first..next).collect::<Vec<_>>(), "hole in {content:?}");
    for (index, (id, _)) in &content.entries {
        assert_eq!(*index, id.index);
    }
    if let Some((id, _)) = content.last.and_then(|last| content.entries.get(&last.index)) {
        assert_eq!(Some(*id), content.last);
    }
}

/// Sizes in bytes are those of the records, whatever was truncated and purged before.
fn assert_sizes(log: &LogStore<TokioRuntime>, content: &Content) {
    let mut after = 0;
    for (index, (id, bytes)) in content.entries.iter().rev() {
        assert_eq!(log.bytes_after(*index), after, "after {index}");
        let entry = EntryV2 { id: LogIdV1::from(id), payload: PayloadV2::Batch(bytes.clone()) };
        after += 28 + codec::encode(Kind::Entry, 2, &entry).unwrap().len() as u64;
        assert!(log.index_with_tail_of(after).is_none_or(|at| at < *index && log.bytes_after(at) == after));
    }
    assert_eq!(log.bytes_after(0).max(after), after);
}

impl Rig {
    pub fn open(disk: &SimDisk) -> Result<Self, OpenError> {
        let (log, writer) = open(disk)?;
        let found = content(&log);
        assert_contiguous(&found);
        assert_sizes(&log, &found);
        let committed = log.clone().read_committed().now_or_never().unwrap().unwrap();
        assert!(committed <= found.last, "committed {committed:?} is beyond {:?}", found.last);
        let voted = found.vote.map_or(1, |vote| vote.leader_id.term);
        let term = voted.max(found.last.map_or(1, |last| last.leader_id.term));
        Ok(Self {
            log,
            writer,
            prefixes: vec![found],
            told: 0,
            committed,
            answers: Vec::new(),
            votes: Vec::new(),
            term,
            filler: 0,
            refused: 0,
            untold: 0,
        })
    }

    pub fn now(&self) -> Content {
        self.prefixes.last().unwrap().clone()
    }

    fn push(&mut self, content: Content) -> usize {
        self.untold = 0;
        self.prefixes.push(content);
        self.prefixes.len() - 1
    }

    /// Does one thing; false once the log refuses.
    pub fn act(&mut self, op: &Op) -> bool {
        let mut next = self.now();
        let last = next.last.map_or(0, |last| last.index);
        let committed = self.committed.map_or(0, |committed| committed.index);
        match op {
            Op::Vote => return self.vote(),
            Op::Append(count, bytes) => return self.append(*count, *bytes),
            Op::Commit => {
                self.committed = self.committed.max(next.last);
                return self.log.save_committed(self.committed).now_or_never().unwrap().is_ok();
            }
            Op::Truncate(back) => {
                let floor = committed.max(next.purged.map_or(0, |purged| purged.index));
                let keep = last.saturating_sub(*back).max(floor);
                let Some((after, _)) = next.entries.get(&keep).cloned() else { return true };
                if self.log.truncate_after(Some(after)).now_or_never().unwrap().is_err() {
                    return false;
                }
                next.entries.retain(|index, _| *index <= keep);
                next.last = Some(after);
                self.term += 1;
            }
            Op::Purge(keep) => {
                let Some((upto, _)) = next.entries.get(&committed.saturating_sub(*keep)).cloned() else { return true };
                if self.log.purge(upto).now_or_never().unwrap().is_err() {
                    return false;
                }
                next.entries.retain(|index, _| *index > upto.index);
                next.purged = Some(upto);
            }
            Op::Jump(ahead) => {
                let upto = id(self.term, last + ahead);
                if self.log.purge(upto).now_or_never().unwrap().is_err() {
                    return false;
                }
                next = Content { vote: next.vote, purged: Some(upto), last: Some(upto), entries: BTreeMap::new() };
                self.committed = Some(upto);
            }
            Op::Step => return self.step() != Step::Stopped,
        }
        let untold = self.untold;
        self.push(next);
        self.untold = untold + 1;
        true
    }

    fn vote(&mut self) -> bool {
        self.term += 1;
        let vote = Vote::<TokioRuntime>::new(self.term, 1);
        let at = self.push(Content { vote: Some(vote), ..self.now() });
        let mut log = self.log.clone();
        self.votes.push((at, Box::pin(async move { log.save_vote(&vote).await })));
        self.collect();
        self.refused == 0
    }

    /// Entries of a term that was never voted for do no harm here.
    fn append(&mut self, count: u64, bytes: usize) -> bool {
        let mut next = self.now();
        let first = next.last.map_or(0, |last| last.index + 1);
        let mut entries = Vec::new();
        for index in first..first + count {
            self.filler = self.filler.wrapping_add(1);
            let (id, bytes) = (id(self.term, index), Bytes::from(vec![self.filler; bytes]));
            next.entries.insert(index, (id, bytes.clone()));
            next.last = Some(id);
            entries.push(Entry::<TokioRuntime>::new(id, EntryPayload::Normal(Batch(bytes))));
            if index + 1 < first + count {
                self.push(next.clone());
            }
        }
        let (told, answer) = Types::oneshot();
        let result =
            self.log.append(entries, IOFlushed::signal(told)).now_or_never().expect("appends do not wait here");
        let at = self.push(next);
        self.answers.push((at, answer));
        let seen = content(&self.log);
        assert_sizes(&self.log, &seen);
        if result.is_ok() {
            assert_eq!(seen.entries, self.now().entries, "entries are readable before append returns");
        }
        result.is_ok()
    }

    pub fn step(&mut self) -> Step {
        let step = self.writer.step(true);
        self.collect();
        step
    }

    /// Steps until nothing more happens.
    pub fn settle(&mut self) -> Step {
        loop {
            let step = self.step();
            if step != Step::Wrote {
                return step;
            }
        }
    }

    /// Takes in what was answered. Answers come in order, and none is good after a bad one.
    pub fn collect(&mut self) {
        let mut answered = Vec::new();
        self.answers.retain_mut(|(at, answer)| match answer.now_or_never() {
            None => true,
            Some(result) => {
                answered.push((*at, result.unwrap_or_else(|_| Err(io::Error::other("dropped")))));
                false
            }
        });
        let mut context = Context::from_waker(Waker::noop());
        self.votes.retain_mut(|(at, vote)| match vote.as_mut().poll(&mut context) {
            Poll::Pending => true,
            Poll::Ready(result) => {
                answered.push((*at, result));
                false
            }
        });
        answered.sort_by_key(|(at, _)| *at);
        let oldest_open = self.answers.iter().map(|(at, _)| *at).chain(self.votes.iter().map(|(at, _)| *at)).min();
        for (at, result) in answered {
            match result {
                Ok(()) => {
                    assert!(oldest_open.is_none_or(|open| open > at), "told out of order");
                    assert_eq!(self.refused, 0, "told to be durable after a fault");
                    assert!(at > self.told);
                    self.told = at;
                }
                Err(_) => self.refused += 1,
            }
        }
    }

    /// Runs a script until its end or until the log refuses.
    pub fn run(&mut self, script: &[Op]) -> bool {
        script.iter().all(|op| self.act(op)) && self.settle() == Step::Idle
    }

    /// What was found after a crash must be what some prefix added up to, at least all that was told.
    pub fn assert_allows(&self, found: &Content) {
        let allowed = &self.prefixes[self.told..];
        assert!(
            allowed.contains(found),
            "told {} of {}; found {found:?}\nlast told {:?}\nlast {:?}",
            self.told,
            self.prefixes.len() - 1,
            allowed.first(),
            allowed.last()
        );
    }
}

/// Votes, appends, truncations, purges, a snapshot ahead of the log, over many small segments; groups of one and of many.
pub fn script() -> Vec<Op> {
    use Op::{Append, Commit, Jump, Purge, Step, Truncate, Vote};
    vec![
        Vote,
        Step,
        Append(1, 10),
        Step,
        Commit,
        Append(3, 700),
        Append(2, 400),
        Vote,
        Step,
        Append(5, 600),
        Step,
        Step,
        Commit,
        Append(4, 300),
        Truncate(3),
        Append(2, 900),
        Step,
        Vote,
        Truncate(1),
        Append(1, 50),
        Step,
        Commit,
        Purge(2),
        Append(6, 800),
        Step,
        Step,
        Commit,
        Append(1, 1),
        Purge(1),
        Step,
        Append(4, 1000),
        Truncate(2),
        Append(3, 500),
        Step,
        Vote,
        Append(2, 5000),
        Step,
        Step,
        Commit,
        Append(1, 5),
        Step,
        Jump(7),
        Append(2, 600),
        Step,
        Append(9, 450),
        Step,
        Commit,
        Purge(0),
        Vote,
        Append(1, 100),
        Step,
    ]
}
