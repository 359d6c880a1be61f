//! Rewind to an earlier txg, to read the pool as it was or to continue from there
//! (chapter 01 §8.4).
//!
//! # Theory
//! Uberblocks of earlier txgs stay in the labels' rings until later ones take their slots.
//! The trees below them survive as long as their blocks are not reused: two txgs by rule
//! (chapter 05 §6) and longer by chance. Reading such a txg is harmless, because checksums
//! detect lost blocks ([`look_back`] lists the txgs). Writing after it discards all later
//! txgs, *the future*. Two conditions must hold then. The state to continue from must be
//! complete. And the future must never be opened again, because the first txg written
//! reuses space that the future refers to.
//!
//! # Completeness
//! `Spa::judge` walks every block pointer of the old state and reads all metadata (`-X`:
//! all data, too). Damaged metadata and space maps that contradict the blocks refuse the
//! rewind. Damaged data is counted: the rest of its files stays readable.
//!
//! # The future is never opened again
//! OpenZFS gives the first txg written the number of the newest uberblock, so that the
//! newer time decides; after `-T` it even counts on from the old txg. Here the old
//! uberblock R is rewritten, before anything else, with a number beyond that of the newest
//! uberblock N on any leaf (`outrank`): to all labels, with their configurations, in the
//! order of every commit (`write::commit`).
//!
//! * Power fails before the new uberblock is complete on a leaf: N is still the best one,
//!   and nothing that it refers to was touched. The rewind did not happen.
//! * Power fails after that: the new uberblock is the best one, and refers to R's tree,
//!   which no txg has changed. The rewind happened, and is complete.
//! * The uberblocks of the future are then wiped (`forget`). Leaves that are absent or fail
//!   keep them; they rank below the new one forever.
//! * An absent leaf may have been written separately, and return with uberblocks that this
//!   import did not see. [`GAP`] is more txgs than can be written in weeks.
//!
//! No txg number is used twice: blocks of the future have births in (R, N], and new blocks
//! have births beyond N. So an absent leaf misses exactly the txgs that its DTL will name,
//! and intent log records that belong to the future never look like records to be replayed.
//!
//! # Intent logs
//! A log that was not claimed in R has records from after R: it is dropped, and its blocks
//! that R has allocated are freed (`engine::claim`). One that was claimed is part of R.
//!
//! Lock order: no locks; the pool has no writer yet.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::{BufMut, Error, Guid, Result, Txg};
use dmu::traverse::{Bookmark, Flow, Options as WalkOptions, Visitor, traverse};
use dmu::{Io, Objset};
use dsl::{DslDataset, Mos};
use ondisk::config::PoolConfig;
use ondisk::label::{LABELS, label_offset, slot_offset, slot_size, usable_size};
use ondisk::uberblock::{Mmp, Uberblock};
use ondisk::{BlkPtr, ObjType};
use vdev::{LeafSpec, Tree};
use zio::BlockCache;

use crate::assemble::{FoundPool, fix_paths};
use crate::audit::{AuditOptions, Problem, Verify, Watch};
use crate::engine::commit_labels;
use crate::import::{ImportOptions, Spa};
use crate::labels::LeafLabels;
use crate::leaves::Leaves;
use crate::opener::LeafOpener;
use crate::specs::{self, Extra};

/// Txg numbers skipped between the newest uberblock and the one that outranks it.
pub const GAP: u64 = 1 << 20;
/// Reads in flight while an old state is verified.
const READS: usize = 16;

/// The distance of a rewind, and its losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewind {
    /// The newest txg, which is discarded.
    pub from: Txg,
    /// Its time, seconds since 1970.
    pub from_time: u64,
    /// The txg that was opened.
    pub to: Txg,
    /// Its time, seconds since 1970.
    pub to_time: u64,
    /// Bytes of files and volumes written after it, before compression; `None` if the
    /// newest txg cannot be read.
    pub lost: Option<u64>,
    /// Damaged blocks of files and volumes in the older state, as far as they were read.
    pub damaged: u64,
}

impl Rewind {
    /// Seconds of changes that are lost.
    pub fn seconds(&self) -> u64 {
        self.from_time.saturating_sub(self.to_time)
    }
}

/// Counts unreadable blocks.
#[derive(Default)]
struct Judge {
    metadata: AtomicU64,
    data: AtomicU64,
}

impl Watch for Judge {
    fn error(&self, bp: Option<&BlkPtr>, at: Bookmark, _error: &Error) {
        let data = |bp: &BlkPtr| at.level == 0 && !bp.head().object_type.is_metadata();
        let count = if bp.is_some_and(data) { &self.data } else { &self.metadata };
        count.fetch_add(1, Relaxed);
    }
}

/// Sums up the data of a walk.
#[derive(Default)]
struct WrittenBytes(AtomicU64);

impl Visitor for WrittenBytes {
    fn visit(&self, bp: &BlkPtr, at: Bookmark) -> Result<Flow> {
        if at.level == 0
            && let BlkPtr::Block(block) = bp
            && !block.head.object_type.is_metadata()
        {
            self.0.fetch_add(block.head.lsize.0, Relaxed);
        }
        Ok(Flow::Descend)
    }
    fn unreadable(&self, _error: Error, _at: Bookmark) -> Result<()> {
        // Damage in the future is expected; it is the reason for discarding it.
        Ok(())
    }
}

/// Reads every block of an object set and everything below.
struct ReadAll<'a>(&'a zio::Zio);

impl Visitor for ReadAll<'_> {
    fn visit(&self, bp: &BlkPtr, _at: Bookmark) -> Result<Flow> {
        if let BlkPtr::Block(block) = bp {
            let checked = self.0.check_copies(block);
            if checked.readable == 0 {
                let fault = checked.faults.into_iter().next();
                return Err(fault.map_or_else(|| Error::corrupt("no copy"), |f| f.error));
            }
        }
        Ok(Flow::Descend)
    }
}

impl Spa {
    /// Whether the pool can continue from the older state, and the losses. `newest`: the
    /// best uberblock of all.
    ///
    /// # Errors
    /// `Corrupt` when metadata is damaged or space maps contradict the blocks; those of
    /// reading the pool's own records.
    pub(crate) fn judge(&self, newest: &Uberblock) -> Result<Rewind> {
        let options = self.options();
        let verify = if options.extreme { Verify::All } else { Verify::Metadata };
        let leaks = !options.rebuild_space;
        let judge = Judge::default();
        let report = self.audit(AuditOptions { verify, leaks, threads: READS }, &judge)?;
        let at = self.uberblock().txg;
        let metadata = judge.metadata.load(Relaxed);
        if metadata > 0 {
            let why = format!("{metadata} metadata blocks of txg {at} cannot be read");
            return Err(Error::corrupt(why));
        }
        let contradicts = |p: &Problem| {
            matches!(p, Problem::Claim { .. } | Problem::Contradiction(..) | Problem::MapSum(..))
        };
        if report.problems.iter().any(contradicts) {
            let why = format!("the space maps of txg {at} contradict its blocks");
            return Err(Error::corrupt(why));
        }
        Ok(Rewind {
            from: newest.txg,
            from_time: newest.timestamp,
            to: at,
            to_time: self.uberblock().timestamp,
            lost: self.written_since(newest),
            damaged: judge.data.load(Relaxed),
        })
    }

    /// Bytes of data that the newest txg refers to and this one does not.
    fn written_since(&self, newest: &Uberblock) -> Option<u64> {
        let objset = Objset::open(Arc::clone(self.zio()), 0, newest.root_bp, Io::SCAN).ok()?;
        let mos = Mos::new(objset).ok()?;
        let written = WrittenBytes::default();
        let mut at = base::ObjectId(0);
        while let Some(id) = mos.objset().next_object(at, Io::SCAN).ok()? {
            at = id;
            let Ok(object) = mos.objset().object(id, Io::SCAN) else { continue };
            if object.dnode().bonus_type != ObjType::DSL_DATASET {
                continue;
            }
            let Ok(phys) = DslDataset::read_phys(&mos, id.0) else { continue };
            let min_txg = phys.prev_snap_txg.max(self.uberblock().txg);
            let how = WalkOptions { min_txg, threads: READS, io: Io::SCAN };
            traverse(self.zio(), id.0, &phys.bp, &written, how).ok()?;
        }
        Some(written.0.load(Relaxed))
    }
}

/// The uberblock of an old state with a txg number and time that outrank the newest one.
///
/// # Errors
/// `Limit` when there are no numbers left.
pub(crate) fn renumbered(old: &Uberblock, newest: &Uberblock) -> Result<Uberblock> {
    let number = newest.txg.0.checked_add(GAP).filter(|n| *n < 1 << 62);
    let number = number.ok_or_else(|| Error::limit("the pool has no txg numbers left"))?;
    let now = base::rt::wall_clock().as_secs();
    let timestamp = now.max(newest.timestamp).max(old.timestamp);
    Ok(Uberblock { txg: Txg(number), timestamp, mmp: Some(Mmp::default()), ..old.clone() })
}

/// Makes the state of txg `old` the newest one of the pool, with `uberblock`, before
/// anything else is written. `config` is written to the labels.
///
/// # Errors
/// As of a commit: `Io` if the devices do not accept the writes.
pub(crate) fn outrank(
    tree: &Arc<Tree>,
    mut config: PoolConfig,
    old: Txg,
    uberblock: &Uberblock,
) -> Result<()> {
    config.txg = uberblock.txg;
    for guid in commit_labels(tree, &config, uberblock)? {
        tree.add_missing(guid, uberblock.txg);
    }
    forget(tree, old, uberblock.txg);
    Ok(())
}

/// Wipes the uberblocks between two txgs, as far as the leaves allow it. They are outranked
/// in any case.
fn forget(tree: &Tree, after: Txg, before: Txg) {
    let discarded = |ub: &Uberblock| after < ub.txg && ub.txg < before;
    let mut writes = Vec::new();
    for (_, leaf) in tree.leaves() {
        let (Some(device), Ok(top)) = (leaf.device(), tree.top(leaf.top())) else { continue };
        let ashift = top.ashift();
        let Ok(labels) = LeafLabels::read(&**device) else { continue };
        for label in 0..LABELS {
            let Some(start) = label_offset(usable_size(device.size()), label) else { continue };
            for (slot, ub) in labels.uberblocks_of(label, ashift) {
                if let Some(within) = slot_offset(ashift, slot).filter(|_| discarded(&ub)) {
                    let zeros = BufMut::zeroed(slot_size(ashift)).freeze();
                    writes.push((leaf.guid(), start + within, zeros));
                }
            }
        }
    }
    let _outranked = tree.write_leaves(writes);
    let tops: Vec<_> = tree.top_ids().collect();
    let _outranked = tree.flush(&tops);
}

/// A txg that still has an uberblock.
#[derive(Debug)]
pub struct Past {
    /// The txg.
    pub txg: Txg,
    /// Its time, seconds since 1970.
    pub timestamp: u64,
    /// Whether the pool can be opened at this txg and every block of its MOS can be read;
    /// if not, why.
    pub whole: Result<()>,
}

/// The txgs at which a pool can be inspected or to which it can be rewound, newest first.
/// The pool may be in use.
///
/// # Errors
/// Those of opening the devices; `Missing` when there is no uberblock at all.
pub fn look_back(
    found: &FoundPool,
    options: &ImportOptions,
    cache: &Arc<BlockCache>,
    source: &dyn Leaves,
) -> Result<Vec<Past>> {
    let options = ImportOptions { readonly: true, inspect: true, shared: true, ..options.clone() };
    let opener = LeafOpener::new(found, source, options.purpose());
    let mut spec = specs::untrusted(found, Extra::default())?;
    fix_paths(&mut spec, &found.locations);
    let open_leaf = |leaf: &LeafSpec| opener.open(leaf, Txg::MAX);
    let tree = Tree::build(&spec, &open_leaf)?;
    let mut groups: BTreeMap<Txg, (Guid, Uberblock)> = BTreeMap::new();
    for (leaf, ub) in opener.uberblocks() {
        let better = |(_, known): &(Guid, Uberblock)| ub.compare(known).is_gt();
        if ub.txg != Txg::ZERO && groups.get(&ub.txg).is_none_or(better) {
            groups.insert(ub.txg, (leaf, ub));
        }
    }
    drop(tree);
    if groups.is_empty() {
        return Err(Error::new(
            base::ErrorKind::DevicesMissing,
            "no valid uberblock on any device",
        ));
    }
    let past = |(txg, (_, ub)): (Txg, (Guid, Uberblock))| {
        let options = ImportOptions { txg: Some(txg), rewind: false, ..options.clone() };
        let whole = Spa::open_in(found, &options, cache, source)
            .map_err(|failure| failure.error)
            .and_then(|spa| {
                if spa.uberblock().txg != txg {
                    return Err(Error::corrupt("its uberblock is not on the pool's devices"));
                }
                let how = WalkOptions { threads: READS, ..WalkOptions::default() };
                let mos = spa.mos().objset().root_bp();
                traverse(spa.zio(), 0, &mos, &ReadAll(spa.zio()), how)
            });
        Past { txg, timestamp: ub.timestamp, whole }
    };
    Ok(groups.into_iter().rev().map(past).collect())
}
