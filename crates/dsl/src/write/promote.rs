//! Promoting a clone: the snapshots that it shares with its origin's dataset become its own
//! (chapter 04 §10.3).
//!
//! # Theory
//! Blocks, deadlists and the chain of snapshots stay as they are. What changes is to which
//! directory the shared snapshots belong, and which of the two datasets that follow the
//! origin is its next one and which its clone. Space moves between the two directories by
//! the closed forms of §5.4, so the sums are right whatever happened before.
//!
//! # Scans and background frees
//! A running scan needs no change: it reaches both datasets behind the origin, whichever of
//! them is called the clone (§17.3 lists no duty). Blocks that wait to be freed belong to no
//! dataset.

use std::collections::HashMap;

use base::{Error, ErrorKind, ObjectId, Result, Txg};
use ondisk::dslphys::{DS_FLAG_CI_DATASET, DslDatasetPhys, UsedKind};

use super::accounting::diduse;
use super::links::{self, DIR_CLONES, chain};
use super::{MosRead, SyncCx, Usage, bookmark, counts, deadlist, errlog, livelist};

/// Flag of datasets that must not be promoted.
const NOPROMOTE: u64 = 1 << 1;

/// What a promotion moves.
#[derive(Clone, Debug)]
pub struct Promotion {
    clone: u64,
    clone_dir: u64,
    origin: u64,
    origin_dir: u64,
    origin_head: u64,
    /// Snapshots that move, the newest (the origin) first.
    shared: Vec<(u64, String)>,
    /// Datasets of the clone, its head first.
    own: Vec<u64>,
    /// Datasets that stay with the origin's directory, its head first.
    left: Vec<u64>,
}

impl Promotion {
    /// Directory of the clone.
    pub fn clone_dir(&self) -> u64 {
        self.clone_dir
    }

    /// Directory that loses the snapshots.
    pub fn origin_dir(&self) -> u64 {
        self.origin_dir
    }

    /// Names of the snapshots that move, without dataset.
    pub fn snapshots(&self) -> impl Iterator<Item = &str> {
        self.shared.iter().map(|(_, name)| name.as_str())
    }

    /// Bytes that move to the clone's directory.
    ///
    /// # Errors
    /// Those of reading.
    pub fn used(&self, mos: &dyn MosRead) -> Result<u64> {
        Ok(u64::try_from(self.amount(mos)?.used).unwrap_or(0))
    }

    fn amount(&self, mos: &dyn MosRead) -> Result<Usage> {
        let referenced = |object| Ok::<_, Error>(usage_of(&mos.dataset(object)?));
        let mut sum = referenced(self.origin)?;
        for (snap, _) in &self.shared {
            sum += deadlist::total(mos, mos.dataset(*snap)?.deadlist_obj)?;
        }
        match mos.dir(self.origin_dir)?.origin_obj {
            0 => Ok(sum),
            before => Ok(sum - referenced(before)?),
        }
    }
}

fn usage_of(ds: &DslDatasetPhys) -> Usage {
    Usage::of(ds.referenced_bytes, ds.compressed_bytes, ds.uncompressed_bytes)
}

/// What promoting the head `clone` moves, if it can be promoted. The caller checks space,
/// limits and the lengths of full names.
///
/// # Errors
/// `Invalid` for a dataset that is no clone; `Exists`, with the name in the message, when
/// the clone has a snapshot or bookmark of the same name; `Unsupported` for encrypted
/// datasets; those of reading.
pub fn check(cx: &SyncCx<'_>, clone: u64) -> Result<Promotion> {
    let mos = cx.read();
    let ds = mos.dataset(clone)?;
    let dir = mos.dir(ds.dir_obj)?;
    let none = || Error::invalid("not a cloned filesystem");
    if ds.is_snapshot() || dir.origin_obj == 0 || ds.flags & NOPROMOTE != 0 {
        return Err(none());
    }
    let origin = mos.dataset(dir.origin_obj)?;
    if links::is_pool_origin(mos, dir.origin_obj, &origin)? {
        return Err(none());
    }
    if mos.attribute(origin.dir_obj, "com.datto:crypto_key_obj")?.is_some() {
        return Err(Error::unsupported("encrypted datasets cannot be promoted"));
    }
    let above = mos.dir(origin.dir_obj)?;
    let head = mos.dataset(above.head_dataset_obj)?;
    let names: HashMap<u64, String> = mos
        .numbers(head.snapnames_zapobj)?
        .into_iter()
        .map(|(name, object)| (object, name))
        .collect();
    let mut shared = Vec::new();
    for snap in chain(mos, dir.origin_obj, above.origin_obj)? {
        let nameless = || Error::corrupt("a snapshot has no name").in_object(ObjectId(snap));
        let name = names.get(&snap).ok_or_else(nameless)?;
        let (zap, name) = (ds.snapnames_zapobj, name.as_str());
        let taken = if ds.flags & DS_FLAG_CI_DATASET != 0 {
            cx.mos.zap_lookup_folded(zap, name.as_bytes())?.is_some()
        } else {
            cx.mos.zap_lookup(zap, name.as_bytes())?.is_some()
        };
        if taken {
            return Err(Error::new(ErrorKind::Exists, name));
        }
        shared.push((snap, name.to_owned()));
    }
    let own_marks = bookmark::of_head(mos, clone)?;
    for mark in bookmark::of_head(mos, above.head_dataset_obj)? {
        let moves = mark.phys.creation_txg <= origin.creation_txg;
        if moves && own_marks.iter().any(|own| own.name == mark.name) {
            return Err(Error::new(ErrorKind::Exists, String::from_utf8_lossy(&mark.name)));
        }
    }
    Ok(Promotion {
        clone,
        clone_dir: ds.dir_obj,
        origin: dir.origin_obj,
        origin_dir: origin.dir_obj,
        origin_head: above.head_dataset_obj,
        shared,
        own: chain(mos, clone, dir.origin_obj)?,
        left: chain(mos, above.head_dataset_obj, dir.origin_obj)?,
    })
}

/// Promotes a clone. Both datasets were synced in this txg.
///
/// # Errors
/// Those of the store; `Corrupt`.
pub fn promote(cx: &SyncCx<'_>, plan: &Promotion) -> Result<()> {
    let mos = cx.read();
    let moved = plan.amount(mos)?;
    let (clone_dir, origin_dir) = (plan.clone_dir, plan.origin_dir);
    let (dd, odd) = (cx.dir(clone_dir)?, cx.dir(origin_dir)?);
    let origin = cx.dataset(plan.origin)?;
    let since = links::origin_txg(mos, odd.origin_obj)?;
    let dead_since = |object: u64, txg: Txg| {
        let list = cx.dataset(object)?.deadlist_obj;
        Ok::<_, Error>(deadlist::range(cx, list, txg.0, u64::MAX)?.used)
    };
    let mut clone_snap = 0i64;
    let forgets = cx.is_planted(|p| &p.forgotten_deadlist);
    let shared = plan.shared.iter().filter(|_| !forgets).map(|(snap, _)| *snap);
    for object in shared.chain(plan.own.iter().copied()) {
        clone_snap = clone_snap.wrapping_add(dead_since(object, since)?);
    }
    let mut origin_snap = 0i64;
    for &object in &plan.left {
        origin_snap = origin_snap.wrapping_add(dead_since(object, origin.creation_txg)?);
    }

    livelist::discard(cx, clone_dir)?;
    livelist::discard(cx, origin_dir)?;
    let next = exchange_next(cx, plan)?;
    cx.edit_dir(clone_dir, |d| d.origin_obj = odd.origin_obj)?;
    cx.edit_dir(origin_dir, |d| d.origin_obj = plan.origin)?;
    let lists = cx.has_lists()?;
    if lists {
        exchange_clones(cx, plan, odd.origin_obj)?;
    }
    if !cx.is_planted(|p| &p.left_bookmarks) {
        move_bookmarks(cx, plan, &origin)?;
    }
    for (snap, name) in &plan.shared {
        move_snapshot(cx, plan, *snap, name)?;
        if lists && !cx.is_planted(|p| &p.forgotten_clones) {
            move_clones(cx, plan, *snap, next)?;
        }
    }
    errlog::promoted(cx, plan.origin_head, plan.clone, origin.creation_txg)?;
    links::snapshots_changed(cx, clone_dir)?;
    links::snapshots_changed(cx, origin_dir)?;

    let snap = |dir: &ondisk::dslphys::DslDirPhys| dir.used_breakdown[UsedKind::Snap as usize];
    let to_clone = clone_snap.wrapping_sub(snap(&dd) as i64);
    let to_origin = origin_snap.wrapping_sub(snap(&odd) as i64);
    diduse(cx, clone_dir, UsedKind::Snap, Usage::bytes(to_clone))?;
    diduse(cx, clone_dir, UsedKind::Head, moved - Usage::bytes(to_clone))?;
    diduse(cx, origin_dir, UsedKind::Snap, Usage::bytes(to_origin))?;
    diduse(cx, origin_dir, UsedKind::Head, -moved - Usage::bytes(to_origin))
}

/// Makes the clone's oldest dataset the next one of the origin; returns the one that was.
fn exchange_next(cx: &SyncCx<'_>, plan: &Promotion) -> Result<u64> {
    let first = *plan.own.last().ok_or_else(|| base::bug!("a clone without datasets"))?;
    let origin = cx.dataset(plan.origin)?;
    let list = cx.dataset(first)?.deadlist_obj;
    let unique = deadlist::range(cx, list, origin.prev_snap_txg.0, u64::MAX)?;
    if cx.keeps_clones() {
        cx.unlink(origin.next_clones_obj, first)?;
        cx.link(origin.next_clones_obj, origin.next_snap_obj)?;
    }
    cx.edit_dataset(plan.origin, |o| {
        o.next_snap_obj = first;
        o.unique_bytes = unique.used as u64;
    })?;
    Ok(origin.next_snap_obj)
}

/// Updates the sets of clones: the clone now has its origin's origin, and the origin's head
/// is a clone of a snapshot of the clone.
fn exchange_clones(cx: &SyncCx<'_>, plan: &Promotion, before: u64) -> Result<()> {
    let above = cx.dataset(before)?.dir_obj;
    cx.unlink(cx.dir(plan.origin_dir)?.clones, plan.clone)?;
    let clones = cx.link_in(cx.dir(above)?.clones, DIR_CLONES, plan.clone)?;
    cx.unlink(clones, plan.origin_head)?;
    cx.edit_dir(above, |d| d.clones = clones)?;
    let clones = cx.link_in(cx.dir(plan.clone_dir)?.clones, DIR_CLONES, plan.origin_head)?;
    cx.edit_dir(plan.clone_dir, |d| d.clones = clones)
}

/// Moves the bookmarks of snapshots that move. The next dataset of the origin is another one
/// now, so what was freed before it is computed anew.
fn move_bookmarks(cx: &SyncCx<'_>, plan: &Promotion, origin: &DslDatasetPhys) -> Result<()> {
    let first = *plan.own.last().ok_or_else(|| base::bug!("a clone without datasets"))?;
    let freed = deadlist::total(cx.read(), cx.dataset(first)?.deadlist_obj)?;
    for mut mark in bookmark::of_head(cx.read(), plan.origin_head)? {
        if mark.phys.creation_txg > origin.creation_txg {
            continue;
        }
        if mark.phys.creation_txg == origin.creation_txg && mark.has_fbn() {
            mark.phys.fbn = freed.space();
        }
        bookmark::move_to(cx, plan.origin_head, plan.clone, &mark)?;
    }
    Ok(())
}

fn move_snapshot(cx: &SyncCx<'_>, plan: &Promotion, snap: u64, name: &str) -> Result<()> {
    cx.mos.zap_remove(cx.dataset(plan.origin_head)?.snapnames_zapobj, name.as_bytes())?;
    cx.put_number(cx.dataset(plan.clone)?.snapnames_zapobj, name, snap)?;
    if !name.starts_with('%') {
        counts::snapshots(cx, plan.origin_dir, -1)?;
        counts::snapshots(cx, plan.clone_dir, 1)?;
    }
    cx.edit_dataset(snap, |s| s.dir_obj = plan.clone_dir)
}

/// Moves the other clones of a snapshot from the set of the one directory to that of the
/// other. `next` has become a clone just now.
fn move_clones(cx: &SyncCx<'_>, plan: &Promotion, snap: u64, next: u64) -> Result<()> {
    for (_, first) in cx.read().numbers(cx.dataset(snap)?.next_clones_obj)? {
        if first == next {
            continue;
        }
        let head = cx.dir(cx.dataset(first)?.dir_obj)?.head_dataset_obj;
        cx.unlink(cx.dir(plan.origin_dir)?.clones, head)?;
        let clones = cx.link_in(cx.dir(plan.clone_dir)?.clones, DIR_CLONES, head)?;
        cx.edit_dir(plan.clone_dir, |d| d.clones = clones)?;
    }
    Ok(())
}
