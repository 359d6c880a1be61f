//! Prefetch: of streams of data, of their indirect blocks, and of the blocks that a walk
//! over directories needs.
//!
//! # Theory
//! [`stream::Table`] is the predictor of one file, a pure state machine in blocks.
//! [`Zfetch`] wraps it in a lock, reports reads to it, and carries out its plans:
//! background reads, bounded by the pool's workers and by the bytes of all prefetches
//! ([`zio::Prefetch`]), and the eviction of blocks behind a reader. An open file has a
//! [`Zfetch`] of its own. Where files are read by object id, [`ZfetchFiles`] keeps the
//! predictors of the files read last. [`walk::Walks`] does the same for directories.
//!
//! A read from memory costs little here. The block of the last read is kept outside the
//! lock; a contended lock is skipped; the clock is read only where a stream is concerned.
//! When reads have proved random, only those that wait for a device are examined (and
//! counted), until a stream shows.
//!
//! # Invariants
//! * Nothing here waits for a device, or reads more than the predictor planned.
//! * A prefetch that could not be started is requested again.
//! * One stream alone has at most half of the cache's room for unread prefetches.
//!
//! Lock order: a set's lock of [`ZfetchFiles`] is released before a file's is taken; a
//! file's lock is a leaf.

mod course;
pub mod stream;
pub mod walk;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use base::rt::{self, Mutex};
use zio::prefetch::Tunable;
use zio::{Io, Prefetch};

use crate::object::Object;
use crate::zap::Zap;
use stream::{Params, Plan, Table};
pub use walk::Walks;

/// A file's statistics are added to the shared counters after this many accesses.
const STATS_BATCH: u64 = 64;

/// Of so many parts of the cache's room for unread prefetches, a stream uses two for data and
/// one for indirect blocks.
const UNREAD_PARTS: u64 = 4;

/// The kinds of blocks that are prefetched for a dataset's readers: its property
/// `prefetch`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefetchMode {
    /// Data and metadata.
    #[default]
    All,
    /// Indirect blocks, directories and dnodes.
    Metadata,
    /// Nothing.
    None,
}

impl PrefetchMode {
    /// The mode that the property's number means; unknown numbers mean all.
    pub fn from_number(n: u64) -> PrefetchMode {
        match n {
            0 => PrefetchMode::None,
            1 => PrefetchMode::Metadata,
            _ => PrefetchMode::All,
        }
    }
}

struct PredictorState {
    table: Option<Table>,
    generation: u64,
}

/// The predictor of one open file.
pub struct Zfetch {
    shared: Arc<Prefetch>,
    mode: PrefetchMode,
    /// The last access, packed; 0 if there was none.
    last: AtomicU64,
    /// Reads are random: those from memory are ignored.
    random: AtomicBool,
    state: Mutex<PredictorState>,
}

impl std::fmt::Debug for Zfetch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Zfetch")
    }
}

/// The clock of [`Walks`].
pub fn clock() -> Duration {
    rt::uptime()
}

fn shift_or_divide(n: u64, by: u64) -> u64 {
    if by.is_power_of_two() { n >> by.trailing_zeros() } else { n / by.max(1) }
}

fn params(shared: &Prefetch, object: &Object) -> Params {
    let dnode = object.dnode();
    let zio = object.objset().zio();
    // No stream has more prefetches in flight than all may have together, nor more waiting
    // than the cache keeps: it would drop every block just before its reader comes.
    let room = zio.cache().unread_room();
    let most = zio.read_ahead_limit().min(room / UNREAD_PARTS * 2).max(object.block_size());
    let l1_span = object.block_size().checked_shl(dnode.epb_shift()).unwrap_or(u64::MAX);
    let l1_blocks = (room / UNREAD_PARTS / dnode.block_size(1).max(1)).max(1);
    let seconds = |t| Duration::from_secs(shared.get(t));
    Params {
        block_size: object.block_size(),
        blocks: dnode.max_blkid.saturating_add(1),
        l1_shift: if dnode.levels > 1 { dnode.epb_shift() } else { 0 },
        max_streams: shared.get(Tunable::MaxStreams) as usize,
        min_distance: shared.get(Tunable::MinDistance).min(most),
        max_distance: shared.get(Tunable::MaxDistance).min(most),
        max_idistance: shared.get(Tunable::MaxIdistance).min(l1_span.saturating_mul(l1_blocks)),
        reorder: shared.get(Tunable::MaxReorder),
        min_reap: seconds(Tunable::MinSecReap),
        max_reap: seconds(Tunable::MaxSecReap),
        hole_shift: shared.get(Tunable::HoleShift) as u32,
    }
}

impl Zfetch {
    /// The predictor of a file of a pool, without reads yet.
    pub fn new(shared: Arc<Prefetch>, mode: PrefetchMode) -> Zfetch {
        let state = PredictorState { table: None, generation: 0 };
        Zfetch {
            shared,
            mode,
            last: AtomicU64::new(0),
            random: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }

    /// Reports that these bytes of `object` are read. Call it before a read that waits for
    /// a device (`waits`), or after one from memory. With `drop`, blocks well behind a
    /// sequential reader are evicted.
    pub fn advance(&self, object: &Object, offset: u64, len: u64, waits: bool, drop: bool) {
        if object.dnode().max_blkid == 0 || len == 0 || self.mode == PrefetchMode::None {
            return;
        }
        let bs = object.block_size();
        let first = shift_or_divide(offset, bs);
        let blocks = shift_or_divide(offset.saturating_add(len - 1), bs) - first + 1;
        // Many small reads of one block are one access.
        let packed = first << 16 | blocks.min(0xffff);
        if !waits && (self.random.load(Relaxed) || self.last.load(Relaxed) == packed) {
            return;
        }
        self.last.store(packed, Relaxed);
        let plan = {
            let held = if waits { Some(self.state.lock()) } else { self.state.try_lock() };
            let Some(mut state) = held else { return };
            let Some(table) = self.table(&mut state, object) else { return };
            let plan = table.access(clock, first, blocks, waits);
            if waits && !table.is_random() {
                self.random.store(false, Relaxed);
            }
            if table.pending() >= STATS_BATCH {
                self.shared.count(&table.take_stats());
                table.reap(clock());
                let random = table.is_random();
                self.random.store(random, Relaxed);
                // The cache's target, one of the parameters, may change at any time.
                state.generation = 0;
            }
            plan
        };
        if !plan.is_empty() {
            self.carry_out(object, &plan, drop);
        }
    }

    /// The table with the present tunables; none if prediction is off.
    fn table<'a>(&self, state: &'a mut PredictorState, object: &Object) -> Option<&'a mut Table> {
        let generation = self.shared.generation();
        if state.generation != generation {
            state.generation = generation;
            if self.shared.get(Tunable::Disable) != 0 {
                state.table = None;
                return None;
            }
            let params = params(&self.shared, object);
            match &mut state.table {
                Some(table) => table.set_params(params),
                none => *none = Some(Table::new(params)),
            }
        }
        let table = state.table.as_mut()?;
        let shape = (object.block_size(), object.dnode().max_blkid.saturating_add(1));
        if (table.params().block_size, table.params().blocks) != shape {
            table.set_params(params(&self.shared, object));
        }
        Some(table)
    }

    fn carry_out(&self, object: &Object, plan: &Plan, drop: bool) {
        let indirect = plan.indirect.clone().into_iter().flatten();
        let (mut issued, _) = object.read_ahead(1, indirect, Io::PREFETCH);
        let mut refused = None;
        if self.mode == PrefetchMode::All {
            let data = plan.data.into_iter().flat_map(|runs| runs.each());
            let (started, left) = object.read_ahead(0, data, Io::PREFETCH);
            (issued, refused) = (issued + started, left);
        }
        if issued > 0 || refused.is_some() {
            let mut state = self.state.lock();
            if let Some(table) = &mut state.table {
                table.count_issued(issued);
                if let Some(blkid) = refused {
                    table.refused(plan, blkid);
                }
            }
        }
        if drop {
            let bs = object.block_size();
            for run in plan.behind.into_iter().flat_map(|runs| runs.runs()) {
                let bytes = (run.end - run.start).saturating_mul(bs);
                object.evict_range(run.start.saturating_mul(bs), bytes);
            }
        }
    }
}

impl Drop for Zfetch {
    fn drop(&mut self) {
        if let Some(table) = &mut self.state.get_mut().table {
            self.shared.count(&table.take_stats());
        }
    }
}

/// Prefetches the leaves behind `hash` for a walk through the directory `zap`.
pub fn prefetch_leaves(walks: &Walks, zap: &Zap, hash: u64) {
    let (object, now) = (zap.object(), clock());
    let dir = object.id().0;
    let Some(from) = walks.leaves(now, dir, hash) else { return };
    // The reader of a damaged table will get the error.
    let Ok(mut leaves) = zap.leaves_from(from, walk::LEAVES) else { return };
    let Some(&(_, to)) = leaves.last() else { return };
    let half = leaves[leaves.len() / 2].1;
    walks.requested(now, dir, half, to);
    leaves.sort_unstable();
    let absent = leaves.into_iter().filter(|l| !object.in_memory(l.0, Io::PREFETCH));
    object.read_ahead(0, absent.map(|l| l.0), Io::PREFETCH);
}

/// Sets of [`ZfetchFiles`], and files per set.
const SETS: usize = 32;
const WAYS: usize = 4;

#[derive(Default)]
struct Set {
    /// The file used last comes first.
    files: Vec<(u64, Arc<Zfetch>)>,
}

/// The predictors of a file system's files, as many as are read at a time. Of those that
/// share a set, the one read longest ago is dropped first.
pub struct ZfetchFiles {
    shared: Arc<Prefetch>,
    mode: AtomicU64,
    sets: [Mutex<Set>; SETS],
}

impl std::fmt::Debug for ZfetchFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ZfetchFiles")
    }
}

impl ZfetchFiles {
    /// No files yet.
    pub fn new(shared: Arc<Prefetch>) -> ZfetchFiles {
        let sets = std::array::from_fn(|_| Mutex::default());
        ZfetchFiles { shared, mode: AtomicU64::new(2), sets }
    }

    /// Sets the mode of files that are opened from now on.
    pub fn set_mode(&self, mode: PrefetchMode) {
        let number = match mode {
            PrefetchMode::None => 0,
            PrefetchMode::Metadata => 1,
            PrefetchMode::All => 2,
        };
        self.mode.store(number, Relaxed);
    }

    /// The mode.
    pub fn mode(&self) -> PrefetchMode {
        PrefetchMode::from_number(self.mode.load(Relaxed))
    }

    /// Whether metadata may be prefetched for walks.
    pub fn metadata(&self) -> bool {
        self.mode() != PrefetchMode::None && self.shared.get(Tunable::Disable) == 0
    }

    /// A predictor for a file that is being opened.
    pub fn open(&self) -> Zfetch {
        Zfetch::new(Arc::clone(&self.shared), self.mode())
    }

    /// As [`Zfetch::advance`], for a file given by its object id.
    pub fn advance(&self, object: &Object, offset: u64, len: u64, waits: bool, drop: bool) {
        if object.dnode().max_blkid > 0 {
            self.file(object.id().0).advance(object, offset, len, waits, drop);
        }
    }

    fn file(&self, id: u64) -> Arc<Zfetch> {
        let mut set = self.sets[id as usize % SETS].lock();
        if let Some(at) = set.files.iter().position(|f| f.0 == id) {
            set.files[..=at].rotate_right(1);
        } else {
            set.files.truncate(WAYS - 1);
            set.files.insert(0, (id, Arc::new(self.open())));
        }
        Arc::clone(&set.files[0].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_read_together_are_all_remembered() {
        let files = ZfetchFiles::new(Prefetch::new());
        let first: Vec<_> = (0..128).map(|id| files.file(id)).collect();
        assert!((0..128).all(|id| Arc::ptr_eq(&files.file(id), &first[id as usize])));
        // One more in the set of file 0: the one used longest ago is dropped.
        files.file(0);
        files.file(128);
        assert!(Arc::ptr_eq(&files.file(0), &first[0]));
        assert!(!Arc::ptr_eq(&files.file(32), &first[32]));
    }

    #[test]
    fn modes() {
        let files = ZfetchFiles::new(Prefetch::new());
        assert_eq!(files.mode(), PrefetchMode::All);
        for mode in [PrefetchMode::None, PrefetchMode::Metadata, PrefetchMode::All] {
            files.set_mode(mode);
            assert_eq!((files.mode(), files.metadata()), (mode, mode != PrefetchMode::None));
        }
        files.shared.set(Tunable::Disable, 1).unwrap();
        assert!(!files.metadata());
    }
}
