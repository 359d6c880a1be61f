//! The expected content of the pool: a list of all changes, and the states that follow.
//!
//! # Theory
//! Every change is recorded with its txg, in the order in which changes were made. The
//! state of txg *T* is the result of all changes of txgs up to *T*, in that order. Whatever
//! else was in memory when the power failed, a pool whose uberblock is of txg *T* must have
//! exactly this content.
//!
//! Names, owners, holds and origins are histories: lists of values, each with the txg from
//! which on it holds ([`History`]). A snapshot's content is that of the dataset of which it was
//! taken, as of that txg, whatever became of either since. A rollback gives a dataset the
//! content of a snapshot, and takes back all changes of txgs up to its own.
//!
//! # Invariants
//! * A change is recorded while its transaction is open, so no txg is committed before all
//!   its changes are recorded.
//! * Operations on datasets that are related by names or clones are recorded in the order of
//!   their txgs, because one thread makes them.
//!
//! Lock order: each lock is a leaf and invisible to the scheduler.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use base::Txg;
use base::rt::plain;

/// Bytes per chunk of content; chunks of zeros are not stored.
pub const CHUNK: u64 = 512;

/// A dataset of the model; the root is 0.
pub type DsId = usize;

/// A change of an object.
#[derive(Clone, Debug)]
pub enum Act {
    /// The object is created, as a ZAP or not.
    Create {
        /// A ZAP.
        zap: bool,
        /// Bytes of a block.
        block_size: u32,
        /// Its bonus.
        bonus: Vec<u8>,
    },
    /// Bytes are written.
    Write {
        /// First byte.
        at: u64,
        /// The bytes.
        data: Arc<Vec<u8>>,
    },
    /// A range becomes zero; `None` is to the end.
    Zero {
        /// First byte.
        at: u64,
        /// Bytes.
        len: Option<u64>,
    },
    /// Another block size.
    BlockSize(u32),
    /// Another bonus.
    Bonus(Vec<u8>),
    /// Another spill block, or none.
    Spill(Option<Vec<u8>>),
    /// An entry of a ZAP is added or changed.
    Put(Vec<u8>, Vec<u64>),
    /// An entry of a ZAP is removed.
    Remove(Vec<u8>),
    /// The object is freed.
    Free,
    /// A change failed half way: the content is unknown.
    Unknown,
}

#[derive(Clone, Debug)]
struct Note {
    txg: Txg,
    ds: DsId,
    object: u64,
    act: Act,
}

/// A value that changes, with the txgs that changed it in their order.
#[derive(Clone, Debug)]
pub struct History<T>(Vec<(Txg, T)>);

impl<T: Clone> History<T> {
    /// A value from the beginning on.
    pub fn new(value: T) -> History<T> {
        History(vec![(Txg::ZERO, value)])
    }

    pub(crate) fn set(&mut self, txg: Txg, value: T) {
        self.0.push((txg, value));
    }

    /// The value in `txg`.
    pub fn at(&self, txg: Txg) -> &T {
        let last = self.0.iter().rfind(|(since, _)| *since <= txg);
        &last.unwrap_or(&self.0[0]).1
    }

    /// The newest value.
    pub fn now(&self) -> &T {
        self.at(Txg::MAX)
    }

    fn cut(&mut self, txg: Txg) {
        *self = History::new(self.at(txg).clone());
    }
}

/// The history of a dataset.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// Full name.
    pub name: History<String>,
    /// Its head's object.
    pub head: u64,
    /// The origin of its content: a dataset as of a txg.
    pub origin: Option<(DsId, Txg)>,
    /// The snapshot that it is a clone of, by its index.
    pub clone_of: History<Option<usize>>,
    /// The txg that made it.
    pub born: Txg,
    /// The txg that destroyed it.
    pub died: Option<Txg>,
}

/// The history of a snapshot.
#[derive(Clone, Debug)]
pub struct Snap {
    /// The dataset of which it was taken.
    pub ds: DsId,
    /// The dataset to which it belongs, and its name behind the `@`.
    pub home: History<(DsId, String)>,
    /// Its object; 0 if unknown.
    pub object: u64,
    /// The txg that took it.
    pub born: Txg,
    /// The txg that destroyed it.
    pub died: Option<Txg>,
    /// The tags that hold it.
    pub tags: History<BTreeSet<String>>,
    /// Whether it is destroyed with its last hold and clone.
    pub deferred: History<bool>,
}

impl Snap {
    /// A snapshot that `born` took.
    pub fn new(ds: DsId, name: String, object: u64, born: Txg) -> Snap {
        let (tags, deferred) = (History::new(BTreeSet::new()), History::new(false));
        Snap { ds, home: History::new((ds, name)), object, born, died: None, tags, deferred }
    }
}

/// The history of a bookmark.
#[derive(Clone, Debug)]
pub struct Mark {
    /// The dataset to which it belongs, and its name behind the `#`.
    pub home: History<(DsId, String)>,
    /// The txg that took its snapshot.
    pub of: Txg,
    /// The txg that made it.
    pub born: Txg,
    /// The txg that destroyed it.
    pub died: Option<Txg>,
}

/// A rollback of a dataset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rollback {
    /// The dataset.
    pub(crate) ds: DsId,
    /// The txg that made it.
    pub(crate) txg: Txg,
    /// The content since: that of a dataset as of a txg.
    pub(crate) to: (DsId, Txg),
}

/// An object's content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Obj {
    /// It is a ZAP.
    pub zap: bool,
    /// Bytes of a block; unknown for a ZAP.
    pub block_size: u32,
    /// The bonus.
    pub bonus: Vec<u8>,
    /// The spill block.
    pub spill: Option<Vec<u8>>,
    /// Bytes, without chunks of zeros.
    pub chunks: BTreeMap<u64, Box<[u8; CHUNK as usize]>>,
    /// Entries of a ZAP.
    pub entries: BTreeMap<Vec<u8>, Vec<u64>>,
    /// Its content is unknown and cannot be compared.
    pub unknown: bool,
}

/// An object set's content.
pub type Content = BTreeMap<u64, Arc<Obj>>;

impl Obj {
    /// Bytes from a multiple of [`CHUNK`] on.
    pub(crate) fn bytes(&self, at: u64, len: u64) -> Vec<u8> {
        let mut out = Vec::new();
        for chunk in at / CHUNK..(at + len).div_ceil(CHUNK) {
            let bytes = self.chunks.get(&chunk).map_or([0; CHUNK as usize], |bytes| **bytes);
            out.extend_from_slice(&bytes);
        }
        out.truncate(len as usize);
        out
    }

    fn put(&mut self, at: u64, data: &[u8]) {
        let mut done = 0;
        while done < data.len() {
            let pos = at + done as u64;
            let (chunk, skip) = (pos / CHUNK, (pos % CHUNK) as usize);
            let n = (CHUNK as usize - skip).min(data.len() - done);
            let bytes = self.chunks.entry(chunk).or_insert_with(|| Box::new([0; 512]));
            bytes[skip..skip + n].copy_from_slice(&data[done..done + n]);
            if bytes.iter().all(|b| *b == 0) {
                self.chunks.remove(&chunk);
            }
            done += n;
        }
    }

    fn zero(&mut self, at: u64, len: Option<u64>) {
        let end = len.map_or(u64::MAX, |len| at.saturating_add(len));
        let touched: Vec<u64> =
            self.chunks.range(at / CHUNK..=end / CHUNK).map(|(c, _)| *c).collect();
        for chunk in touched {
            let start = chunk * CHUNK;
            let (from, to) = (at.max(start), end.min(start + CHUNK));
            if from < to {
                self.put(from, &[0; CHUNK as usize][..(to - from) as usize]);
            }
        }
    }

    fn apply(&mut self, act: &Act) {
        match act {
            Act::Create { zap, block_size, bonus } => {
                let (zap, block_size, bonus) = (*zap, *block_size, bonus.clone());
                *self = Obj { zap, block_size, bonus, ..Obj::default() };
            }
            Act::Write { at, data } => self.put(*at, data),
            Act::Zero { at, len } => self.zero(*at, *len),
            // Only an object of one block can change its block size.
            Act::BlockSize(size) if *size == self.block_size => {}
            Act::BlockSize(size) => {
                self.block_size = *size;
                self.zero(u64::from(*size), None);
            }
            Act::Spill(spill) => self.spill.clone_from(spill),
            Act::Bonus(bonus) => self.bonus.clone_from(bonus),
            Act::Put(name, value) => {
                self.entries.insert(name.clone(), value.clone());
            }
            Act::Remove(name) => {
                self.entries.remove(name);
            }
            Act::Free => {}
            Act::Unknown => self.unknown = true,
        }
    }
}

#[derive(Default)]
pub(crate) struct Notes {
    notes: Vec<Note>,
    pub(crate) datasets: Vec<Dataset>,
    pub(crate) snaps: Vec<Snap>,
    pub(crate) marks: Vec<Mark>,
    pub(crate) rollbacks: Vec<Rollback>,
    /// The pool's comment, by txg; several threads may change it in one.
    comments: Vec<(Txg, String)>,
    /// The checkpointed txg, by the txg that changed it.
    checkpoints: Vec<(Txg, Option<Txg>)>,
    /// The checkpoint before the first of these records is unknown.
    checkpoint_unknown: bool,
    /// The content of datasets before the first recorded change.
    base: HashMap<DsId, Arc<Content>>,
    /// The content of snapshots taken before the first recorded change.
    fixed: HashMap<(DsId, Txg), Arc<Content>>,
}

/// The model of one pool.
#[derive(Default)]
pub struct Model {
    pub(crate) notes: plain::Mutex<Notes>,
    /// Content by dataset and txg, computed on demand.
    states: plain::Mutex<HashMap<(DsId, Txg), Arc<Content>>>,
}

/// The state of a txg: names, and keys of their content.
#[derive(Default)]
pub struct PoolNames {
    /// Heads by name.
    pub heads: BTreeMap<String, (DsId, Txg)>,
    /// Snapshots by dataset's name and own name.
    pub snaps: BTreeMap<(String, String), (DsId, Txg)>,
    /// Origins of the clones among the heads: dataset and snapshot.
    pub origins: BTreeMap<String, (String, String)>,
    /// The tags of each held snapshot.
    pub holds: BTreeMap<(String, String), BTreeSet<String>>,
    /// Snapshots whose destruction is deferred.
    pub deferred: BTreeSet<(String, String)>,
    /// Bookmarks by dataset's name and own name, with the txgs of their snapshots.
    pub marks: BTreeMap<(String, String), Txg>,
}

impl PoolNames {
    /// Everything but content.
    fn same_relations(&self, other: &PoolNames) -> bool {
        self.snaps == other.snaps
            && self.origins == other.origins
            && self.holds == other.holds
            && self.deferred == other.deferred
            && self.marks == other.marks
            && self.heads.keys().eq(other.heads.keys())
    }
}

pub(crate) fn alive(born: Txg, died: Option<Txg>, at: Txg) -> bool {
    born <= at && died.is_none_or(|d| d > at)
}

impl Model {
    /// Records a change.
    pub fn note(&self, txg: Txg, ds: DsId, object: u64, act: Act) {
        self.notes.lock().notes.push(Note { txg, ds, object, act });
        self.states.lock().clear();
    }

    /// Records a comment.
    pub(crate) fn note_comment(&self, txg: Txg, comment: String) {
        self.notes.lock().comments.push((txg, comment));
    }

    /// The comments that the pool may have in `txg`; empty if none was set.
    pub(crate) fn comments(&self, txg: Txg) -> Vec<String> {
        let notes = self.notes.lock();
        let known = notes.comments.iter().filter(|(t, _)| *t <= txg);
        let last = known.clone().map(|(t, _)| *t).max();
        known.filter(|(t, _)| Some(*t) == last).map(|(_, c)| c.clone()).collect()
    }

    /// Records that `txg` took a checkpoint of a txg, or discarded it.
    pub fn note_checkpoint(&self, txg: Txg, of: Option<Txg>) {
        let mut notes = self.notes.lock();
        notes.checkpoints.push((txg, of));
        notes.checkpoints.sort_unstable_by_key(|(txg, _)| *txg);
    }

    /// An operation on the checkpoint failed: which one there is, is unknown.
    pub fn lose_checkpoint(&self) {
        let mut notes = self.notes.lock();
        notes.checkpoints.clear();
        notes.checkpoint_unknown = true;
    }

    /// The checkpointed txg of the pool in `txg`, or none; `None` if it is unknown.
    pub fn checkpoint_in(&self, txg: Txg) -> Option<Option<Txg>> {
        let notes = self.notes.lock();
        let last = notes.checkpoints.iter().rfind(|(at, _)| *at <= txg);
        last.map(|(_, of)| *of).or_else(|| (!notes.checkpoint_unknown).then_some(None))
    }

    /// Records a dataset; returns its id.
    pub(crate) fn add_dataset(&self, dataset: Dataset) -> DsId {
        let mut notes = self.notes.lock();
        notes.datasets.push(dataset);
        notes.datasets.len() - 1
    }

    /// Records a snapshot; returns its index.
    pub(crate) fn add_snap(&self, snap: Snap) -> usize {
        let mut notes = self.notes.lock();
        notes.snaps.push(snap);
        notes.snaps.len() - 1
    }

    /// Records that a dataset was destroyed.
    pub fn destroy_dataset(&self, ds: DsId, txg: Txg) {
        if let Some(d) = self.notes.lock().datasets.get_mut(ds) {
            d.died = Some(txg);
        }
    }

    /// Records that a snapshot was destroyed.
    pub(crate) fn destroy_snap(&self, snap: usize, txg: Txg) {
        if let Some(s) = self.notes.lock().snaps.get_mut(snap) {
            s.died = Some(txg);
        }
    }

    /// A dataset, if it was recorded.
    pub fn dataset(&self, ds: DsId) -> Option<Dataset> {
        self.notes.lock().datasets.get(ds).cloned()
    }

    /// A snapshot, if it was recorded.
    pub fn snap(&self, snap: usize) -> Option<Snap> {
        self.notes.lock().snaps.get(snap).cloned()
    }

    /// Number of changes.
    pub fn len(&self) -> usize {
        self.notes.lock().notes.len()
    }

    /// Whether nothing was changed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The state in `txg`.
    pub fn state(&self, txg: Txg) -> PoolNames {
        let notes = self.notes.lock();
        let mut state = PoolNames::default();
        let name = |ds: DsId| notes.datasets.get(ds).map_or("", |d| d.name.at(txg)).to_owned();
        let full = |home: &History<(DsId, String)>| {
            let (ds, own) = home.at(txg);
            (name(*ds), own.clone())
        };
        for (id, ds) in notes.datasets.iter().enumerate() {
            if !alive(ds.born, ds.died, txg) {
                continue;
            }
            state.heads.insert(name(id), (id, txg));
            if let Some(origin) = ds.clone_of.at(txg).and_then(|snap| notes.snaps.get(snap)) {
                state.origins.insert(name(id), full(&origin.home));
            }
        }
        for snap in notes.snaps.iter().filter(|s| alive(s.born, s.died, txg)) {
            let full = full(&snap.home);
            if !snap.tags.at(txg).is_empty() {
                state.holds.insert(full.clone(), snap.tags.at(txg).clone());
            }
            if *snap.deferred.at(txg) {
                state.deferred.insert(full.clone());
            }
            state.snaps.insert(full, (snap.ds, snap.born));
        }
        for mark in notes.marks.iter().filter(|m| alive(m.born, m.died, txg)) {
            state.marks.insert(full(&mark.home), mark.of);
        }
        state
    }

    /// Indices of the snapshots that exist in `txg`.
    pub(crate) fn snaps_in(&self, txg: Txg) -> Vec<usize> {
        let notes = self.notes.lock();
        let all = notes.snaps.iter().enumerate();
        all.filter(|(_, s)| alive(s.born, s.died, txg)).map(|(n, _)| n).collect()
    }

    /// The content of a dataset as of `txg`.
    pub fn content(&self, ds: DsId, txg: Txg) -> Arc<Content> {
        // Equal states share one entry.
        let (last, back, origin, base) = {
            let notes = self.notes.lock();
            if let Some(fixed) = notes.fixed.get(&(ds, txg)) {
                return Arc::clone(fixed);
            }
            let backs = notes.rollbacks.iter().filter(|b| b.ds == ds && b.txg <= txg);
            let back = backs.max_by_key(|b| b.txg).copied();
            let mine = notes.notes.iter().filter(|n| n.ds == ds && n.txg <= txg);
            let last = mine.map(|n| n.txg).max().unwrap_or(Txg::ZERO);
            let last = last.max(back.map_or(Txg::ZERO, |b| b.txg));
            let origin = notes.datasets.get(ds).and_then(|d| d.origin);
            (last, back, origin, notes.base.get(&ds).cloned())
        };
        if let Some(known) = self.states.lock().get(&(ds, last)) {
            return Arc::clone(known);
        }
        let mut content: Content = match (back, origin, base) {
            (Some(back), _, _) => (*self.content(back.to.0, back.to.1)).clone(),
            (None, _, Some(base)) => (*base).clone(),
            (None, Some((from, at)), None) => (*self.content(from, at)).clone(),
            (None, None, None) => Content::new(),
        };
        let counts = |n: &&Note| {
            n.ds == ds && n.txg <= txg && back.as_ref().is_none_or(|back| n.txg > back.txg)
        };
        for note in self.notes.lock().notes.iter().filter(counts) {
            if matches!(note.act, Act::Free) {
                content.remove(&note.object);
            } else {
                Arc::make_mut(content.entry(note.object).or_default()).apply(&note.act);
            }
        }
        let content = Arc::new(content);
        self.states.lock().insert((ds, last), Arc::clone(&content));
        content
    }

    /// The first txg after `txg` with another resulting state, if any. A txg whose changes
    /// have no effect (zeros over a hole) need not be written.
    pub(crate) fn next_change(&self, txg: Txg) -> Option<Txg> {
        let mut later: Vec<Txg> = {
            let notes = self.notes.lock();
            notes.notes.iter().map(|n| n.txg).filter(|t| *t > txg).collect()
        };
        later.sort_unstable();
        later.dedup();
        later.into_iter().find(|t| !self.same(txg, *t))
    }

    /// Whether two txgs have the same resulting state.
    pub fn same(&self, a: Txg, b: Txg) -> bool {
        let (x, y) = (self.state(a), self.state(b));
        let same = |(p, q): ((DsId, Txg), (DsId, Txg))| {
            p.0 == q.0 && *self.content(p.0, p.1) == *self.content(q.0, q.1)
        };
        x.same_relations(&y)
            && self.comments(a) == self.comments(b)
            && x.heads.values().copied().zip(y.heads.values().copied()).all(same)
    }

    /// A model whose initial state is this one's state in `txg`.
    pub fn after(&self, txg: Txg) -> Model {
        let (datasets, snaps, marks) = {
            let notes = self.notes.lock();
            (notes.datasets.clone(), notes.snaps.clone(), notes.marks.clone())
        };
        let comments = self.comments(txg);
        let count = datasets.len();
        let never = |born: Txg| if born > txg { Some(Txg::ZERO) } else { None };
        let lived = |died: Option<Txg>| died.filter(|d| *d <= txg);
        let out = Model::default();
        {
            let mut notes = out.notes.lock();
            notes.base = (0..count).map(|ds| (ds, self.content(ds, txg))).collect();
            notes.comments = comments.into_iter().map(|c| (Txg::ZERO, c)).collect();
            // Content before `txg` is not a part of the new model.
            notes.checkpoint_unknown = true;
            notes.datasets = datasets;
            for d in &mut notes.datasets {
                d.died = never(d.born).or(lived(d.died));
                d.name.cut(txg);
                d.clone_of.cut(txg);
            }
            notes.snaps = snaps;
            for s in &mut notes.snaps {
                s.died = never(s.born).or(lived(s.died));
                s.home.cut(txg);
                s.tags.cut(txg);
                s.deferred.cut(txg);
            }
            notes.marks = marks;
            for m in &mut notes.marks {
                m.died = never(m.born).or(lived(m.died));
                m.home.cut(txg);
            }
        }
        // Snapshots keep their content.
        let kept: Vec<Snap> = out.notes.lock().snaps.clone();
        for snap in kept.iter().filter(|s| s.born <= txg) {
            let content = self.content(snap.ds, snap.born);
            out.notes.lock().fixed.insert((snap.ds, snap.born), content);
        }
        out
    }
}
