//! The state of a file system that is open for writing.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};

use base::ids::{ID_RUN, IdMap};
use base::rt::{Mutex, RwLock};
use base::{Error, ErrorKind, ObjectId, Result, Txg};
use dmu::{Io, Objset, Tx};
use ondisk::znode::Time;

use super::locks::{Locks, SeqLock};
use super::types::{Host, RwProps};
use crate::fs::FileSystem;
use crate::master::QuotaObjects;

const SHARDS: usize = 16;
/// The number of txgs that may be unwritten at a time: a later one begins when the oldest
/// is on disk.
const OPEN_TXGS: u64 = 4;
/// Entries of a shard of [`Touched`] before entries of written txgs are dropped for the
/// first time.
const TOUCHED_MIN: usize = 2048;

/// The writable state besides the object set.
pub(crate) struct Rw {
    pub(crate) host: Arc<dyn Host>,
    pub(crate) log: Option<Arc<zil::Log>>,
    pub(crate) locks: Locks,
    pub(crate) seqlock: SeqLock,
    /// Held by renames between directories, so that the shape of the tree is fixed
    /// meanwhile.
    pub(crate) renames: Mutex<()>,
    /// The delete queue.
    pub(crate) queue: Mutex<()>,
    /// The tables of system attributes, and those of quotas.
    pub(crate) layouts: Mutex<()>,
    pub(crate) holds: Mutex<Holds>,
    pub(crate) times: Times,
    pub(crate) touched: Touched,
    /// Quotas of users, groups and projects, after the first change since the open.
    pub(crate) quotas: RwLock<Option<[QuotaObjects; 3]>>,
    /// The table of foreign ids' domains, if it was created since the open.
    pub(crate) fuids: Mutex<Option<ObjectId>>,
    /// A record of a case-insensitive call is being replayed.
    pub(crate) ignores_case: AtomicBool,
    /// Blocks that a txg frees.
    pub(crate) freeing: Mutex<(Txg, u64)>,
}

impl std::fmt::Debug for Rw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Rw")
    }
}

/// Open objects, and those without names.
#[derive(Default)]
pub(crate) struct Holds {
    /// Holds by object.
    pub(crate) count: IdMap<u64, u32>,
    /// Objects put on the delete queue since the file system was opened; true for those
    /// that may get a name (`O_TMPFILE`).
    pub(crate) orphans: IdMap<u64, bool>,
    /// Objects that are being freed.
    pub(crate) dying: HashSet<u64>,
}

/// Limit of objects whose times of access wait to be stored: a directory is never closed
/// for the last time.
const TIMES_MAX: usize = 1 << 16;

/// Times of access that are not stored yet.
#[derive(Default)]
pub(crate) struct Times {
    shards: [Mutex<IdMap<u64, Time>>; SHARDS],
    pending: AtomicUsize,
}

fn shard(id: ObjectId) -> usize {
    (id.0 / ID_RUN) as usize % SHARDS
}

impl Times {
    /// The time of an object, if it is not stored yet.
    pub(crate) fn of(&self, id: ObjectId) -> Option<Time> {
        if self.pending.load(SeqCst) == 0 {
            return None;
        }
        self.shards[shard(id)].lock().get(&id.0).copied()
    }

    /// Whether the limit of pending times is reached.
    pub(crate) fn are_many(&self) -> bool {
        self.pending.load(SeqCst) >= TIMES_MAX
    }

    pub(crate) fn put(&self, id: ObjectId, time: Time) {
        if self.shards[shard(id)].lock().insert(id.0, time).is_none() {
            self.pending.fetch_add(1, SeqCst);
        }
    }

    /// Removes the time, to store it or because it is obsolete.
    pub(crate) fn take(&self, id: ObjectId) -> Option<Time> {
        if self.pending.load(SeqCst) == 0 {
            return None;
        }
        let time = self.shards[shard(id)].lock().remove(&id.0);
        if time.is_some() {
            self.pending.fetch_sub(1, SeqCst);
        }
        time
    }

    /// Objects with times, ascending.
    pub(crate) fn ids(&self) -> Vec<ObjectId> {
        let of = |s: &Mutex<IdMap<u64, Time>>| s.lock().keys().copied().collect::<Vec<_>>();
        let mut ids: Vec<_> = self.shards.iter().flat_map(of).map(ObjectId).collect();
        ids.sort_unstable();
        ids
    }
}

/// The last txg that changed an object: for all objects changed in txgs that may not be on
/// disk, and at most as many others.
#[derive(Default)]
pub(crate) struct Touched {
    shards: [Mutex<Recent>; SHARDS],
    newest: AtomicU64,
}

#[derive(Default)]
struct Recent {
    groups: IdMap<u64, Txg>,
    /// The number of entries after old ones were last dropped.
    left: usize,
}

impl Recent {
    /// Drops entries of written txgs, when they may be half of all. So each entry is
    /// examined about twice, however many a txg has.
    fn forget(&mut self, now: Txg) {
        if self.groups.len() > TOUCHED_MIN.max(2 * self.left) {
            self.groups.retain(|_, t| t.0 + OPEN_TXGS > now.0);
            self.left = self.groups.len();
        }
    }
}

impl Touched {
    pub(crate) fn set(&self, id: ObjectId, txg: Txg) {
        self.newest.fetch_max(txg.0, SeqCst);
        let mut shard = self.shards[shard(id)].lock();
        let last = shard.groups.entry(id.0).or_insert(txg);
        *last = (*last).max(txg);
        shard.forget(txg);
    }

    /// The txg to wait for; `None` if all changes are certainly on disk.
    pub(crate) fn of(&self, id: ObjectId) -> Option<Txg> {
        self.shards[shard(id)].lock().groups.get(&id.0).copied()
    }

    /// The txg is on disk.
    pub(crate) fn synced(&self, id: ObjectId, txg: Txg) {
        let mut shard = self.shards[shard(id)].lock();
        if shard.groups.get(&id.0).is_some_and(|t| *t <= txg) {
            shard.groups.remove(&id.0);
        }
    }

    pub(crate) fn newest(&self) -> Option<Txg> {
        Some(Txg(self.newest.load(SeqCst))).filter(|t| t.0 != 0)
    }
}

impl Rw {
    pub(crate) fn new(host: Arc<dyn Host>) -> Rw {
        Rw {
            log: host.log(),
            host,
            locks: Locks::default(),
            seqlock: SeqLock::default(),
            renames: Mutex::default(),
            queue: Mutex::default(),
            layouts: Mutex::default(),
            holds: Mutex::default(),
            times: Times::default(),
            touched: Touched::default(),
            quotas: RwLock::default(),
            fuids: Mutex::default(),
            ignores_case: AtomicBool::new(false),
            freeing: Mutex::new((Txg::ZERO, 0)),
        }
    }
}

impl FileSystem {
    /// Opens the file system in `os` for writing. `os` is open for writing, and no other
    /// file system is open over it. [`FileSystem::empty_delete_queue`] should follow.
    ///
    /// # Errors
    /// As [`FileSystem::open`].
    pub fn open_rw(os: Arc<Objset>, host: Arc<dyn Host>, io: Io) -> Result<Arc<FileSystem>> {
        FileSystem::open_as(os, Some(Rw::new(host)), io)
    }

    /// The state for writing, if writing is allowed now.
    pub(crate) fn rw(&self) -> Result<(&Rw, Arc<RwProps>)> {
        let read_only = || Error::new(ErrorKind::ReadOnly, "the file system is read-only");
        let rw = self.rw_part().ok_or_else(read_only)?;
        let props = rw.host.props();
        if props.read_only { Err(read_only()) } else { Ok((rw, props)) }
    }

    /// The state for work that continues while `readonly` is set: earlier writes may be
    /// synced, and unused objects may be freed.
    pub(crate) fn rw_always(&self) -> Result<&Rw> {
        let read_only = || Error::new(ErrorKind::ReadOnly, "the file system is read-only");
        self.rw_part().ok_or_else(read_only)
    }

    /// Begins a transaction ([`Host::begin`]).
    pub(crate) fn begin_tx(&self, bytes: u64, frees: bool) -> Result<Tx> {
        self.rw_always()?.host.begin(bytes, frees, self.outage())
    }

    /// Notes for fsync that `tx` changed an object.
    pub(crate) fn touch(&self, tx: &Tx, id: ObjectId) {
        if let Some(rw) = self.rw_part() {
            rw.touched.set(id, tx.txg());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Story: with more than 32,768 objects changed in unwritten txgs, each change searched
    /// its whole shard for old entries.
    #[test]
    fn many_objects_of_one_txg_are_not_searched_again_and_again() {
        let mut recent = Recent::default();
        let mut searched = 0;
        for id in 0..1u64 << 18 {
            recent.groups.insert(id, Txg(100 + id / 100_000));
            let (before, left) = (recent.groups.len(), recent.left);
            recent.forget(Txg(100 + id / 100_000));
            searched += if recent.left == left { 0 } else { before };
        }
        assert!(searched < 3 << 18, "{searched} entries looked at");
    }

    #[test]
    fn what_is_on_disk_is_forgotten_and_nothing_else() {
        let touched = Touched::default();
        for txg in 10..40 {
            for id in 0..4_000u64 {
                touched.set(ObjectId(txg * 4_000 + id), Txg(txg));
            }
            let from = txg.saturating_sub(OPEN_TXGS - 1).max(10);
            for group in from..=txg {
                assert_eq!(touched.of(ObjectId(group * 4_000 + 7)), Some(Txg(group)));
            }
        }
        let kept: usize = touched.shards.iter().map(|s| s.lock().groups.len()).sum();
        let most = SHARDS * (TOUCHED_MIN + 1).max(2 * 4 * 4_000 / SHARDS + 1);
        assert!(kept <= most, "{kept} of 120,000 kept");
    }
}
