//! Changing datasets, in syncing context (chapter 04).
//!
//! # Theory
//! Every function here edits MOS objects through a [`MosStore`], for one transaction group
//! (txg), on the sync thread. A txg is committed atomically, so the order of edits inside a
//! txg does not matter. But a txg must never contain half an operation. So requests are
//! checked first, and an error from a function that has begun to edit means that the txg
//! cannot be committed.
//!
//! Space is neither allocated nor freed here. Blocks to be freed are passed to the caller,
//! through [`SyncCx::with_free`] or an argument. Blocks born and killed in a dataset are
//! collected in a [`Delta`] while it is synced and accounted for once.
//!
//! # Invariants
//! * After every txg [`check()`] finds nothing: the sums of §5.4, the key sets of §6.4, the
//!   counts of features.
//! * All data read is untrusted: descents are bounded, lists end, no sum panics.
//!
//! # Departures from OpenZFS
//! * In pools older than version 26, whose deadlists are plain lists, destroyed blocks are
//!   freed in the same txg.
//! * A feature's count that would fall below zero stays zero.

pub mod accounting;
pub mod background;
pub mod bookmark;
pub mod bpobj;
pub mod check;
pub mod counts;
pub mod create;
pub mod crypt;
pub mod deadlist;
pub mod delegation;
pub mod delta;
pub mod destroy;
pub mod errlog;
pub mod features;
pub mod history;
pub mod initial;
pub mod links;
pub mod livelist;
#[cfg(test)]
mod mem;
pub mod promote;
pub mod props;
pub mod receive;
pub mod relocate;
pub mod remap;
pub mod rename;
pub mod rollback;
pub mod scan;
pub mod snapshot;
pub mod store;
#[cfg(test)]
mod tests;
pub mod trees;
#[cfg(test)]
mod unit_tests;
pub mod upgrade;
pub mod usage;

use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering::Relaxed;

use base::planted::{BugSwitch, TestValue};
use base::{Error, ObjectId, Result, Txg};
use ondisk::dslphys::{DslDatasetPhys, DslDirPhys};
use ondisk::zap::ZapValue;
use ondisk::{BlkPtr, ObjType};

pub use check::{check, check_livelists};
pub use delta::{Delta, Killed};
pub use store::{MosRead, MosStore, NewObject, ObjectInfo};
pub use usage::{Ratios, Usage};

/// Bytes of a data block of new ZAPs and of objects that have only a bonus buffer.
const SMALL_BLOCK: u32 = 512;
/// Name of the list of blocks to be freed in the object directory.
const FREE_LIST: &str = "free_bpobj";

/// The context of one txg's changes of the MOS.
pub struct SyncCx<'a> {
    /// The MOS.
    pub mos: &'a dyn MosStore,
    /// The txg.
    pub txg: Txg,
    /// Unix time: seconds, nanoseconds.
    pub now: (u64, u32),
    /// Deflate ratios.
    pub ratios: &'a Ratios,
    /// Random numbers, for identities.
    pub random: &'a dyn Fn() -> u64,
    /// The pool's version.
    version: u64,
    free: Option<Free<'a>>,
    plants: Option<&'a LineagePlants>,
    label_features_changed: Cell<bool>,
    scan_events: RefCell<Vec<scan::ScanEvent>>,
    deadlist_keys: deadlist::KeyCache,
}

/// Planted bugs ([`base::planted`]).
#[derive(Debug, Default)]
pub struct LineagePlants {
    /// A promotion does not count what the deadlists of the shared snapshots have.
    pub forgotten_deadlist: BugSwitch,
    /// A promotion leaves the other clones of the shared snapshots in their set.
    pub forgotten_clones: BugSwitch,
    /// A promotion leaves the bookmarks where they are.
    pub left_bookmarks: BugSwitch,
    /// A rollback does not free what was written since the snapshot.
    pub kept_blocks: BugSwitch,
    /// A destroyed dataset frees the blocks of its origin, too.
    pub freed_origin: BugSwitch,
    /// A snapshot that is renamed loses its holds.
    pub dropped_holds: BugSwitch,
    /// The last clone of a snapshot whose destruction is deferred does not destroy it.
    pub forgotten_deferral: BugSwitch,
    /// A block that dies in a clone is not noted in its livelist.
    pub lost_entry: BugSwitch,
    /// A destroyed clone frees all blocks of its livelist, also those that it freed before.
    pub ignored_frees: BugSwitch,
    /// A clone that is rolled back keeps its livelist.
    pub kept_livelist: BugSwitch,
    /// One more than the entries above which a sublist of a livelist is closed; 0: the own
    /// limit. Not a bug.
    pub sublist_max: TestValue,
    /// One more than the shared part, in percent, below which a livelist is dropped; 0: the
    /// own limit. Not a bug.
    pub shared_min: TestValue,
}

/// Frees the space of a block.
type Free<'a> = &'a dyn Fn(&BlkPtr) -> Result<()>;

impl<'a> SyncCx<'a> {
    /// A context for `txg` at `now`.
    pub fn new(
        mos: &'a dyn MosStore,
        txg: Txg,
        now: (u64, u32),
        ratios: &'a Ratios,
        random: &'a dyn Fn() -> u64,
    ) -> SyncCx<'a> {
        SyncCx {
            mos,
            txg,
            now,
            ratios,
            random,
            version: ondisk::uberblock::VERSION_FEATURES,
            free: None,
            plants: None,
            label_features_changed: Cell::new(false),
            scan_events: RefCell::default(),
            deadlist_keys: deadlist::KeyCache::default(),
        }
    }

    /// Sets the pool's version, where it is not 5000.
    #[must_use]
    pub fn with_version(mut self, version: u64) -> SyncCx<'a> {
        self.version = version;
        self
    }

    /// Adds a function that frees blocks at once: pools older than version 26 have no list
    /// of blocks to be freed later.
    #[must_use]
    pub fn with_free(mut self, free: &'a dyn Fn(&BlkPtr) -> Result<()>) -> SyncCx<'a> {
        self.free = Some(free);
        self
    }

    /// Adds the switches of planted bugs.
    #[must_use]
    pub fn with_plants(mut self, plants: &'a LineagePlants) -> SyncCx<'a> {
        self.plants = Some(plants);
        self
    }

    fn is_planted(&self, bug: impl FnOnce(&LineagePlants) -> &BugSwitch) -> bool {
        self.plants.is_some_and(|plants| bug(plants).load(Relaxed))
    }

    fn free(&self, bp: &BlkPtr) -> Result<()> {
        let free =
            self.free.ok_or_else(|| base::bug!("no function that frees blocks was given"))?;
        free(bp)
    }

    /// Whether the pool is of version 11 or above: all datasets descend from one snapshot, and
    /// snapshots list their clones ([`links`]).
    fn keeps_clones(&self) -> bool {
        self.version >= upgrade::VERSION_ORIGIN
    }

    /// The snapshot that ordinary datasets are cloned from, if the pool's version has one.
    fn origin_of_all(&self) -> Result<Option<u64>> {
        if !self.keeps_clones() {
            return Ok(None);
        }
        let missing = || Error::corrupt("the pool has no origin snapshot");
        links::origin_snapshot(self.read())?.ok_or_else(missing).map(Some)
    }

    /// Whether the pool is of version 26 or above: deadlists have keys, directories list
    /// their clones, and destroyed datasets are freed in the background.
    fn has_lists(&self) -> Result<bool> {
        has_lists(self.read())
    }

    /// Whether a feature that labels and configuration list became active or inactive; both
    /// must be written again in this txg (chapter 01 §4.5).
    pub fn label_features_changed(&self) -> bool {
        self.label_features_changed.get()
    }

    /// Changes of the dataset graph since the last call, if a scan runs.
    pub fn take_scan_events(&self) -> Vec<scan::ScanEvent> {
        self.scan_events.take()
    }

    /// The MOS, for reading.
    pub fn read(&self) -> &dyn MosRead {
        self.mos
    }

    fn dir(&self, object: u64) -> Result<DslDirPhys> {
        self.read().dir(object)
    }

    fn dataset(&self, object: u64) -> Result<DslDatasetPhys> {
        self.read().dataset(object)
    }

    fn put_dir(&self, object: u64, phys: &DslDirPhys) -> Result<()> {
        self.mos.set_bonus(object, &phys.encode())
    }

    fn put_dataset(&self, object: u64, phys: &DslDatasetPhys) -> Result<()> {
        self.mos.set_bonus(object, &encode_dataset(phys)?)
    }

    fn edit_dir(&self, object: u64, edit: impl FnOnce(&mut DslDirPhys)) -> Result<()> {
        let mut phys = self.dir(object)?;
        edit(&mut phys);
        self.put_dir(object, &phys)
    }

    fn edit_dataset(&self, object: u64, edit: impl FnOnce(&mut DslDatasetPhys)) -> Result<()> {
        let mut phys = self.dataset(object)?;
        edit(&mut phys);
        self.put_dataset(object, &phys)
    }

    /// A new microzap; `normflags` are its normalisation flags.
    ///
    /// # Errors
    /// Those of the store.
    pub fn new_zap(&self, object_type: ObjType, normflags: u64) -> Result<u64> {
        let id = self.mos.allocate(&NewObject::plain(object_type, SMALL_BLOCK))?;
        self.mos.zap_init(id, normflags)?;
        Ok(id)
    }

    /// Adds or replaces a number in a ZAP.
    ///
    /// # Errors
    /// Those of the store.
    pub fn put_number(&self, zap: u64, name: &str, value: u64) -> Result<()> {
        self.mos.zap_update(zap, name.as_bytes(), &ZapValue::from_u64(value))
    }

    /// Adds an object to a set of objects (a "link" ZAP, chapter 04 §0).
    fn link(&self, zap: u64, object: u64) -> Result<()> {
        self.put_number(zap, &format!("{object:x}"), object)
    }

    fn unlink(&self, zap: u64, object: u64) -> Result<()> {
        self.mos.zap_remove(zap, format!("{object:x}").as_bytes())
    }

    /// Removes an entry, if it exists.
    fn remove_if_present(&self, zap: u64, name: &str) -> Result<bool> {
        if self.mos.zap_lookup(zap, name.as_bytes())?.is_none() {
            return Ok(false);
        }
        self.mos.zap_remove(zap, name.as_bytes())?;
        Ok(true)
    }

    /// Adds an object to the set at `zap`, creating the set if `zap` is 0; returns the
    /// set's object id.
    fn link_in(&self, zap: u64, object_type: ObjType, object: u64) -> Result<u64> {
        let zap = if zap == 0 { self.new_zap(object_type, 0)? } else { zap };
        self.link(zap, object)?;
        Ok(zap)
    }

    /// A random identity, as for `guid`: never 0.
    fn identity(&self) -> u64 {
        (self.random)().max(1)
    }
}

/// The pool's list of blocks to be freed was introduced with version 26, together with the
/// other forms that a dataset's writer must distinguish (chapter 04 §1, §6.4).
fn has_lists(mos: &dyn MosRead) -> Result<bool> {
    Ok(mos.directory(FREE_LIST)?.is_some())
}

fn encode_dataset(phys: &DslDatasetPhys) -> Result<Vec<u8>> {
    let bonus = phys.encode().ok_or_else(|| base::bug!("a dataset's block cannot be written"))?;
    Ok(bonus.to_vec())
}

/// The birth used in all comparisons (chapter 04 §0): the physical one for a block that was
/// moved without logical change.
pub fn birth(bp: &BlkPtr) -> Txg {
    bp.allocation_birth()
}

fn in_object<T>(result: Result<T>, object: u64) -> Result<T> {
    result.map_err(|e| e.in_object(ObjectId(object)))
}
