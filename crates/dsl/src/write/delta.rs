//! The changes that a txg makes to one dataset: blocks born and killed (chapter 04 §5.2,
//! §5.3).
//!
//! # Theory
//! While a dataset is synced, its blocks are reported one by one. The sums are written
//! once, at the end. The result is the same as if every block had been accounted for at
//! once, because every step of §5 is a sum, or the growth of a maximum, which telescopes.
//!
//! # Invariants
//! * A block born after the previous snapshot is freed by the caller the moment it is
//!   killed; an older one is put on the deadlist instead (trap 4 of §21).
//! * The births and deaths of blocks born after the origin are noted in a clone's livelist.

use std::collections::{BTreeMap, BTreeSet};

use base::{ObjectId, Result, Txg};
use ondisk::BlkPtr;
use ondisk::bpobj::BpobjEntry;
use ondisk::dslphys::UsedKind;

use super::accounting::{diduse_transfer, growth_above, transfer};
use super::usage::add;
use super::{MosRead, Ratios, SyncCx, Usage, birth, bookmark, deadlist, features, links};
use super::{livelist, props};

/// What to do with a killed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Killed {
    /// No dataset refers to it: free its space.
    Free,
    /// A snapshot refers to it.
    Dead,
    /// It has no space: a hole or a redacted block.
    Nothing,
}

/// Sums of one txg's changes to one head. This is plain data that may be filled on any
/// thread, under any lock.
#[derive(Clone, Debug)]
pub struct Delta {
    head: u64,
    ratios: Ratios,
    /// Creation of the previous snapshot.
    prev: Txg,
    /// Creation of the snapshot before, if the previous one is the head's own.
    prev_prev: Option<Txg>,
    origin: Txg,
    born: Usage,
    freed: Usage,
    dead: Usage,
    /// Bytes that only the previous snapshot still refers to.
    unique_to_prev: i64,
    /// Dead bytes that were born in this dataset.
    to_snapshots: i64,
    dead_list: Vec<BpobjEntry>,
    /// What is noted in the livelist, if there is one: births and deaths.
    live: Option<(Vec<BpobjEntry>, Vec<BpobjEntry>)>,
    /// Killed blocks that the bookmarks of a creation txg count.
    bookmarks: BTreeMap<u64, Usage>,
    features: BTreeSet<&'static str>,
    changed: bool,
}

impl Delta {
    /// An empty delta for the head at `head`.
    ///
    /// # Errors
    /// Those of reading; `Bug` for a snapshot.
    pub fn begin(mos: &dyn MosRead, head: u64, ratios: &Ratios) -> Result<Delta> {
        let ds = mos.dataset(head)?;
        if ds.is_snapshot() {
            return Err(base::bug!("a snapshot does not change").in_object(ObjectId(head)));
        }
        let mut prev_prev = None;
        if ds.prev_snap_obj != 0 {
            let prev = mos.dataset(ds.prev_snap_obj)?;
            prev_prev = (prev.next_snap_obj == head).then_some(prev.prev_snap_txg);
        }
        let marks = bookmark::with_fbn(mos, head)?.into_iter().map(|m| m.phys.creation_txg);
        let marks = marks.filter(|txg| *txg >= ds.prev_snap_txg);
        Ok(Delta {
            head,
            ratios: ratios.clone(),
            prev: ds.prev_snap_txg,
            prev_prev,
            origin: links::origin_txg(mos, mos.dir(ds.dir_obj)?.origin_obj)?,
            born: Usage::default(),
            freed: Usage::default(),
            dead: Usage::default(),
            unique_to_prev: 0,
            to_snapshots: 0,
            dead_list: Vec::new(),
            live: livelist::of_dir(mos, ds.dir_obj)?.map(|_| Default::default()),
            bookmarks: marks.map(|txg| (txg.0, Usage::default())).collect(),
            features: BTreeSet::new(),
            changed: false,
        })
    }

    /// A block now belongs to the head.
    pub fn born(&mut self, bp: &BlkPtr) {
        if matches!(bp, BlkPtr::Hole(_) | BlkPtr::Redacted(_)) {
            return;
        }
        self.changed = true;
        self.born += self.ratios.space_of(bp);
        if let Some((born, _)) = self.live.as_mut().filter(|_| livelist::lists(bp)) {
            born.push(BpobjEntry { bp: *bp, freed: false });
        }
        self.features.extend(features::needed_by(bp));
    }

    /// A feature must be marked although no pointer shows its use (§5.2, step 3).
    pub fn uses(&mut self, guid: &'static str) {
        self.features.insert(guid);
    }

    /// A block no longer belongs to the head.
    pub fn killed(&mut self, bp: &BlkPtr) -> Killed {
        if matches!(bp, BlkPtr::Hole(_) | BlkPtr::Redacted(_)) {
            return Killed::Nothing;
        }
        self.changed = true;
        let (usage, birth) = (self.ratios.space_of(bp), birth(bp));
        let listed = livelist::lists(bp) && birth > self.origin;
        if let Some((_, killed)) = self.live.as_mut().filter(|_| listed) {
            killed.push(BpobjEntry { bp: *bp, freed: true });
        }
        for (_, freed) in self.bookmarks.range_mut(birth.0..) {
            *freed += usage;
        }
        if birth > self.prev {
            self.freed += usage;
            return Killed::Free;
        }
        self.dead += usage;
        self.dead_list.push(BpobjEntry { bp: *bp, freed: false });
        if self.prev_prev.is_some_and(|txg| birth > txg) {
            self.unique_to_prev = self.unique_to_prev.wrapping_add(usage.used);
        }
        if birth > self.origin {
            self.to_snapshots = self.to_snapshots.wrapping_add(usage.used);
        }
        Killed::Dead
    }

    /// Whether there is anything to apply.
    pub fn is_empty(&self) -> bool {
        !self.changed && self.features.is_empty()
    }

    /// Writes the sums. `root` is the object set's new block, if it has one; it was
    /// reported as born like every other block.
    ///
    /// # Errors
    /// Those of the store; `Bug` when a snapshot was taken in between.
    pub fn apply(self, cx: &SyncCx<'_>, root: Option<&BlkPtr>) -> Result<()> {
        let mut ds = cx.dataset(self.head)?;
        if ds.prev_snap_txg != self.prev {
            let e = base::bug!("a snapshot was taken while its dataset was written");
            return Err(e.in_object(ObjectId(self.head)));
        }
        let refreserved = props::refreservation(cx.read(), ds.dir_obj)?;
        let own = self.born - self.freed;
        let all = own - self.dead;
        let grown = growth_above(ds.unique_bytes, refreserved, own.used);
        add(&mut ds.unique_bytes, own.used);
        add(&mut ds.referenced_bytes, all.used);
        add(&mut ds.compressed_bytes, all.comp);
        add(&mut ds.uncompressed_bytes, all.uncomp);
        if let Some(root) = root {
            ds.bp = *root;
        }
        cx.put_dataset(self.head, &ds)?;
        let (from, to) = (UsedKind::RefReservation, UsedKind::Head);
        let usage = Usage { used: grown, ..own };
        diduse_transfer(cx, ds.dir_obj, usage, own.used, from, to)?;
        transfer(cx, ds.dir_obj, self.to_snapshots, UsedKind::Head, UsedKind::Snap)?;
        if !self.dead_list.is_empty() {
            deadlist::insert(cx, ds.deadlist_obj, &self.dead_list)?;
        }
        if let Some((born, killed)) = &self.live {
            livelist::record(cx, ds.dir_obj, ds.referenced_bytes, born, killed)?;
        }
        if self.unique_to_prev != 0 {
            cx.edit_dataset(ds.prev_snap_obj, |p| add(&mut p.unique_bytes, self.unique_to_prev))?;
        }
        if self.bookmarks.values().any(|u| !u.is_zero()) {
            bookmark::edit_fbn(cx, self.head, &mut |phys| {
                let freed = self.bookmarks.get(&phys.creation_txg.0).copied().unwrap_or_default();
                bookmark::add_fbn(phys, freed);
                Ok(!freed.is_zero())
            })?;
        }
        self.features.iter().try_for_each(|guid| features::activate(cx, self.head, guid))
    }
}
