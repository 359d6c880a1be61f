//! Operations on the lineage of datasets: snapshots, clones, promotion, rollback, renames,
//! holds, deferred destruction and bookmarks, through the calls that commands use.
//!
//! # Theory
//! Each thread has a dataset of its own, and everything that it makes is below or descends
//! from that. So its operations affect no other thread's, and their effect follows from the
//! model: what a promotion moves, what a rollback takes back, which snapshot goes with its
//! last hold or clone. The model also says whether a request must be refused. Threads share
//! txgs, the sync thread, and the closing of logs.
//!
//! # Invariants
//! * A request that must be refused and is not, or the reverse, is an error; lack of space is
//!   none.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::{Error, ErrorKind, Result, Txg};
use ondisk::objset::ObjsetType;
use spa::engine::{NewBookmark, NewClone, NewDataset, SnapshotHold};

use crate::driver::{Driver, Hand, WriteTarget};
use crate::model::{Dataset, DsId, History, Mark, Model, Notes, Rollback, Snap};
use crate::ops::Op;
use crate::pool::POOL;

/// Levels of names below the pool's root.
const DEPTH: usize = 5;

/// Whether a dataset is another one or below it, by their names.
fn inside(name: &str, root: &str) -> bool {
    name.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn depth(name: &str) -> usize {
    name.matches('/').count()
}

impl Notes {
    pub(crate) fn name(&self, ds: DsId) -> String {
        self.datasets.get(ds).map_or(String::new(), |d| d.name.now().clone())
    }

    pub(crate) fn living(&self) -> impl Iterator<Item = DsId> {
        (0..self.datasets.len()).filter(|ds| self.datasets[*ds].died.is_none())
    }

    /// Datasets that are `root` or below it.
    fn subtree(&self, root: DsId) -> Vec<DsId> {
        let root = self.name(root);
        self.living().filter(|ds| inside(self.datasets[*ds].name.now(), &root)).collect()
    }

    /// The snapshots of a dataset, oldest first.
    fn snaps_of(&self, ds: DsId) -> Vec<usize> {
        let own = |s: &Snap| s.died.is_none() && s.home.now().0 == ds;
        let mut out: Vec<usize> =
            (0..self.snaps.len()).filter(|snap| own(&self.snaps[*snap])).collect();
        out.sort_by_key(|snap| self.snaps[*snap].born);
        out
    }

    fn marks_of(&self, ds: DsId) -> Vec<usize> {
        let own = |m: &Mark| m.died.is_none() && m.home.now().0 == ds;
        (0..self.marks.len()).filter(|mark| own(&self.marks[*mark])).collect()
    }

    pub(crate) fn snap_name(&self, snap: usize) -> String {
        let (ds, own) = self.snaps[snap].home.now();
        format!("{}@{own}", self.name(*ds))
    }

    fn clones(&self, snap: usize) -> Vec<DsId> {
        self.living().filter(|ds| *self.datasets[*ds].clone_of.now() == Some(snap)).collect()
    }

    /// Whether nothing keeps a snapshot.
    fn is_free(&self, snap: usize) -> bool {
        self.snaps[snap].tags.now().is_empty() && self.clones(snap).is_empty()
    }

    /// Snapshots go whose destruction was deferred until now.
    fn reap(&mut self, txg: Txg) {
        for snap in 0..self.snaps.len() {
            let is_due = self.snaps[snap].died.is_none() && *self.snaps[snap].deferred.now();
            if is_due && self.is_free(snap) {
                self.snaps[snap].died = Some(txg);
            }
        }
    }
}

/// Notes what a txg destroyed, by the names that it had.
///
/// # Errors
/// A name that nothing has.
pub(crate) fn note_destroyed(model: &Model, txg: Txg, names: &[String]) -> Result<()> {
    let mut notes = model.notes.lock();
    for name in names {
        let unknown = || Error::bug(format!("{name} was destroyed, which does not exist"));
        if name.contains('@') {
            let own =
                |snap: &usize| notes.snaps[*snap].died.is_none() && notes.snap_name(*snap) == *name;
            let snap = (0..notes.snaps.len()).find(own).ok_or_else(unknown)?;
            notes.snaps[snap].died = Some(txg);
        } else {
            let ds = notes.living().find(|ds| notes.name(*ds) == *name).ok_or_else(unknown)?;
            notes.datasets[ds].died = Some(txg);
            for mark in notes.marks_of(ds) {
                notes.marks[mark].died = Some(txg);
            }
        }
    }
    Ok(())
}

/// What a promotion moves.
struct PromotionPlan {
    origin: usize,
    from: DsId,
    snaps: Vec<usize>,
    marks: Vec<usize>,
    /// A name is taken.
    clash: bool,
}

impl Model {
    fn plan_promotion(&self, clone: DsId) -> Option<PromotionPlan> {
        let notes = self.notes.lock();
        let origin = (*notes.datasets.get(clone)?.clone_of.now())?;
        let (from, last) = (notes.snaps[origin].home.now().0, notes.snaps[origin].born);
        let mut snaps = notes.snaps_of(from);
        snaps.retain(|snap| notes.snaps[*snap].born <= last);
        let mut marks = notes.marks_of(from);
        marks.retain(|mark| notes.marks[*mark].of <= last);
        let snap_name = |snap: &usize| notes.snaps[*snap].home.now().1.clone();
        let mark_name = |mark: &usize| notes.marks[*mark].home.now().1.clone();
        let own: BTreeSet<String> = notes.snaps_of(clone).iter().map(snap_name).collect();
        let own_marks: BTreeSet<String> = notes.marks_of(clone).iter().map(mark_name).collect();
        let clash = snaps.iter().any(|snap| own.contains(&snap_name(snap)))
            || marks.iter().any(|mark| own_marks.contains(&mark_name(mark)));
        Some(PromotionPlan { origin, from, snaps, marks, clash })
    }

    fn promoted(&self, clone: DsId, plan: &PromotionPlan, txg: Txg) {
        let mut notes = self.notes.lock();
        for snap in &plan.snaps {
            let name = notes.snaps[*snap].home.now().1.clone();
            notes.snaps[*snap].home.set(txg, (clone, name));
        }
        for mark in &plan.marks {
            let name = notes.marks[*mark].home.now().1.clone();
            notes.marks[*mark].home.set(txg, (clone, name));
        }
        let before = *notes.datasets[plan.from].clone_of.now();
        notes.datasets[clone].clone_of.set(txg, before);
        notes.datasets[plan.from].clone_of.set(txg, Some(plan.origin));
    }
}

impl Driver {
    /// Gives a thread its own dataset, if it has none, and drops what is gone.
    pub(crate) fn begin_lineage(&self, hand: &mut Hand) -> Result<()> {
        hand.datasets.retain(|ds| *ds != 0);
        if hand.datasets.is_empty() {
            self.make_dataset(hand, POOL.to_owned())?;
            if self.clones {
                self.begin_with_clone(hand)?;
            }
        }
        Ok(())
    }

    /// A clone of a dataset that has more blocks than a few operations write.
    fn begin_with_clone(&self, hand: &mut Hand) -> Result<()> {
        let ds = hand.datasets[0];
        for seed in [3, 8] {
            let object = self.create(ds, 3, seed, false)?;
            self.write(&object, Some(0), 64 << 10, seed)?;
            hand.objects.push(object);
        }
        self.take_snapshots(hand, ds, false)?;
        match hand.snaps.first() {
            Some(&snap) => self.make_clone(hand, snap, POOL.to_owned()),
            None => Ok(()),
        }
    }

    /// The datasets that most operations change: the clones, if a workload is about them.
    pub(crate) fn preferred(&self, hand: &Hand) -> Vec<DsId> {
        if !self.clones {
            return Vec::new();
        }
        let notes = self.model.notes.lock();
        let is_clone = |ds: &DsId| notes.datasets[*ds].clone_of.now().is_some();
        hand.datasets.iter().copied().filter(is_clone).collect()
    }

    /// Whether a dataset has a livelist.
    fn has_livelist(&self, name: &str) -> Result<bool> {
        let _names = self.writer.names();
        let mos = self.writer.mos();
        let dir = dsl::DslDir::root(mos, POOL)?.find(name)?.object();
        let mos: &dyn dsl::write::MosRead = mos;
        Ok(mos.attribute_u64(dir, "com.delphix:livelist")?.is_some())
    }

    fn forget_dead(&self, hand: &mut Hand) {
        let living: BTreeSet<DsId> = {
            let notes = self.model.notes.lock();
            hand.snaps.retain(|snap| notes.snaps[*snap].died.is_none());
            notes.living().collect()
        };
        hand.datasets.retain(|ds| living.contains(ds));
        hand.objects.retain(|o| living.contains(&o.ds));
        // The model's locks are invisible to the scheduler: none is held here.
        self.heads.lock().retain(|ds, _| living.contains(ds));
    }

    /// Judges the answer to a request; the txg if it was granted.
    fn answer(&self, what: &'static str, done: Result<Txg>, refused: bool) -> Result<Option<Txg>> {
        let kinds = [ErrorKind::Exists, ErrorKind::Busy, ErrorKind::Invalid, ErrorKind::NotFound];
        match done {
            Ok(_) if refused => Err(Error::bug(format!("{what} should have been refused"))),
            Ok(txg) => {
                self.disks.mark(txg.0);
                self.done.lock().insert(what);
                Ok(Some(txg))
            }
            Err(e) if refused && kinds.contains(&e.kind()) => Ok(None),
            Err(e) if e.kind() == ErrorKind::NoSpace => Err(e),
            Err(e) => Err(Error::new(e.kind(), format!("{what}: {e}"))),
        }
    }

    /// The object of a head.
    fn head_object(&self, name: &str) -> Result<u64> {
        let _names = self.writer.names();
        let head = dsl::DslDir::root(self.writer.mos(), POOL)?.find(name)?.head()?;
        Ok(head.ok_or_else(|| Error::corrupt("a dataset without a head"))?.object())
    }

    /// A thread writes the objects that a dataset has in `txg`.
    fn adopt(&self, hand: &mut Hand, ds: DsId, txg: Txg) {
        hand.objects.retain(|o| o.ds != ds);
        for (&id, obj) in self.model.content(ds, txg).iter().filter(|(_, o)| !o.unknown) {
            let (zap, end, shared) = (obj.zap, Arc::default(), false);
            hand.objects.push(WriteTarget { ds, id, zap, end, shared });
        }
    }

    fn new_name(&self, hand: &mut Hand, kind: char) -> String {
        hand.made += 1;
        format!("{}{kind}{}-{}", self.prefix, hand.thread, hand.made)
    }

    /// One of few names, which may be taken.
    fn common_name(&self, hand: &Hand, kind: char, seed: u32) -> String {
        format!("{}{kind}{}-{}", self.prefix, hand.thread, seed % 4)
    }

    pub(crate) fn make_dataset(&self, hand: &mut Hand, above: String) -> Result<()> {
        let name = format!("{above}/{}", self.new_name(hand, 'd'));
        let new = NewDataset {
            name: name.clone(),
            kind: ObjsetType::Zfs,
            case_insensitive: false,
            props: Vec::new(),
            content: Box::new(|_, _| Ok(())),
        };
        let done = self.writer.create_dataset(new, None);
        let Some(txg) = self.answer("create", done, false)? else { return Ok(()) };
        self.made(hand, name, None, txg)
    }

    fn made(&self, hand: &mut Hand, name: String, snap: Option<usize>, txg: Txg) -> Result<()> {
        let head = self.head_object(&name)?;
        let origin = snap.and_then(|snap| self.model.snap(snap)).map(|s| (s.ds, s.born));
        let (name, clone_of) = (History::new(name), History::new(snap));
        let made = Dataset { name, head, origin, clone_of, born: txg, died: None };
        let ds = self.model.add_dataset(made);
        hand.datasets.push(ds);
        self.adopt(hand, ds, txg);
        Ok(())
    }

    /// The name of the dataset above one that is made or moved.
    fn above(&self, hand: &Hand, which: u32) -> String {
        let notes = self.model.notes.lock();
        let names = hand.datasets.iter().map(|ds| notes.name(*ds));
        let fit: Vec<String> = names.filter(|name| depth(name) < DEPTH).collect();
        match (which as usize / 2).checked_rem(fit.len()) {
            Some(at) if which.is_multiple_of(2) => fit[at].clone(),
            _ => POOL.to_owned(),
        }
    }

    pub(crate) fn take_snapshots(&self, hand: &mut Hand, ds: DsId, deep: bool) -> Result<()> {
        let short = self.new_name(hand, 's');
        let (all, names) = {
            let notes = self.model.notes.lock();
            let all = if deep { notes.subtree(ds) } else { vec![ds] };
            let name = |ds: &DsId| format!("{}@{short}", notes.name(*ds));
            let names: Vec<String> = all.iter().map(name).collect();
            (all, names)
        };
        let done = self.writer.snapshot(&names, &[], None);
        let Some(txg) = self.answer("snapshot", done, false)? else { return Ok(()) };
        for ds in all {
            hand.snaps.push(self.model.add_snap(Snap::new(ds, short.clone(), 0, txg)));
        }
        Ok(())
    }

    pub(crate) fn make_clone(&self, hand: &mut Hand, snap: usize, above: String) -> Result<()> {
        let name = format!("{above}/{}", self.new_name(hand, 'c'));
        let origin = self.model.notes.lock().snap_name(snap);
        let new = NewClone { origin, name: name.clone(), props: Vec::new() };
        let done = self.writer.clone_snapshot(new, None);
        match self.answer("clone", done, false)? {
            Some(txg) => self.made(hand, name, Some(snap), txg),
            None => Ok(()),
        }
    }

    fn promote(&self, ds: DsId) -> Result<()> {
        let plan = self.model.plan_promotion(ds);
        let refused = plan.as_ref().is_none_or(|plan| plan.clash);
        let name = self.model.notes.lock().name(ds);
        let done = self.writer.promote(&name, None);
        if let (Some(txg), Some(plan)) = (self.answer("promote", done, refused)?, plan) {
            self.model.promoted(ds, &plan, txg);
        }
        Ok(())
    }

    /// Returns a dataset to its newest snapshot; with `all` to any one, and newer snapshots
    /// and bookmarks are destroyed before.
    fn roll_back(&self, hand: &mut Hand, ds: DsId, all: Option<u32>) -> Result<()> {
        let (snaps, marks) = {
            let notes = self.model.notes.lock();
            (notes.snaps_of(ds), notes.marks_of(ds))
        };
        let Some(at) = (match all {
            Some(which) => (which as usize).checked_rem(snaps.len()),
            None => snaps.len().checked_sub(1),
        }) else {
            return Ok(());
        };
        let snap = snaps[at];
        let to = self.model.snap(snap).map(|s| (s.ds, s.born));
        let to = to.ok_or_else(|| Error::bug("no such snapshot"))?;
        let newer = |mark: &usize| self.model.notes.lock().marks[*mark].of > to.1;
        let newer: Vec<usize> = marks.into_iter().filter(newer).collect();
        if all.is_some() {
            if snaps[at + 1..].iter().any(|snap| !self.model.notes.lock().is_free(*snap)) {
                return Ok(());
            }
            for snap in &snaps[at + 1..] {
                self.destroy_snap(*snap, false)?;
            }
            for mark in &newer {
                self.destroy_mark(*mark)?;
            }
        }
        let refused = all.is_none() && !newer.is_empty();
        let name = self.model.notes.lock().snap_name(snap);
        let done = self.writer.rollback(&name, None);
        let what = if all.is_some() { "rollback -r" } else { "rollback" };
        if let Some(txg) = self.answer(what, done, refused)? {
            self.model.notes.lock().rollbacks.push(Rollback { ds, txg, to });
            self.heads.lock().remove(&ds);
            self.adopt(hand, ds, txg);
        }
        Ok(())
    }

    fn rename_dataset(&self, hand: &Hand, ds: DsId, seed: u32) -> Result<()> {
        let above = self.above(hand, seed >> 8);
        let to = format!("{above}/{}", self.common_name(hand, 'm', seed));
        let (from, all, refused) = {
            let notes = self.model.notes.lock();
            let (from, all) = (notes.name(ds), notes.subtree(ds));
            let most = all.iter().map(|ds| depth(&notes.name(*ds))).max().unwrap_or(0);
            if most - depth(&from) + depth(&to) > DEPTH + 1 {
                return Ok(());
            }
            let taken = notes.living().any(|ds| *notes.datasets[ds].name.now() == to);
            let refused = taken || inside(&above, &from);
            (from, all, refused)
        };
        let done = self.writer.rename_dataset(&from, &to, None);
        if let Some(txg) = self.answer("rename", done, refused)? {
            let mut notes = self.model.notes.lock();
            for ds in all {
                let name = notes.name(ds);
                notes.datasets[ds].name.set(txg, format!("{to}{}", &name[from.len()..]));
            }
        }
        Ok(())
    }

    fn rename_snap(&self, hand: &Hand, snap: usize, seed: u32) -> Result<()> {
        let (to, deep) = (self.common_name(hand, 'x', seed), seed & 16 != 0);
        let (fs, from, all, refused) = {
            let notes = self.model.notes.lock();
            let (ds, from) = notes.snaps[snap].home.now().clone();
            let heads = if deep { notes.subtree(ds) } else { vec![ds] };
            let named = |ds: &DsId, name: &str| {
                let mut own = notes.snaps_of(*ds).into_iter();
                own.find(|snap| notes.snaps[*snap].home.now().1 == name)
            };
            let all: Vec<(DsId, usize)> =
                heads.iter().filter_map(|ds| Some((*ds, named(ds, &from)?))).collect();
            let refused = all.iter().any(|(ds, _)| named(ds, &to).is_some());
            (notes.name(ds), from, all, refused)
        };
        let done = self.writer.rename_snapshot(&fs, (&from, &to), deep, None);
        let done = done.map(|(_, txg)| txg);
        if let Some(txg) = self.answer("rename snapshot", done, refused)? {
            let mut notes = self.model.notes.lock();
            for (ds, snap) in all {
                notes.snaps[snap].home.set(txg, (ds, to.clone()));
            }
        }
        Ok(())
    }

    fn hold(&self, snap: usize, seed: u32, releases: bool) -> Result<()> {
        let tag = ["one", "two"][(seed % 2) as usize].to_owned();
        let (snapshot, mut tags) = {
            let notes = self.model.notes.lock();
            (notes.snap_name(snap), notes.snaps[snap].tags.now().clone())
        };
        let hold = [SnapshotHold { snapshot, tag: tag.clone() }];
        let (what, done, changes) = match releases {
            true => ("release", self.writer.release(&hold, None), tags.remove(&tag)),
            false => ("hold", self.writer.hold(&hold, None), tags.insert(tag)),
        };
        if let Some(txg) = self.answer(what, done, !changes)? {
            let mut notes = self.model.notes.lock();
            notes.snaps[snap].tags.set(txg, tags);
            notes.reap(txg);
        }
        Ok(())
    }

    pub(crate) fn bookmark(&self, hand: &Hand, snap: usize, seed: u32) -> Result<()> {
        let short = self.common_name(hand, 'b', seed);
        let (new, ds, of, refused) = {
            let notes = self.model.notes.lock();
            let ds = notes.snaps[snap].home.now().0;
            let own = notes.marks_of(ds);
            // Of another bookmark, sometimes.
            let old = if seed & 32 != 0 { own.first() } else { None };
            let (source, of) = match old {
                Some(mark) => {
                    let mark = &notes.marks[*mark];
                    (format!("{}#{}", notes.name(ds), mark.home.now().1), mark.of)
                }
                None => (notes.snap_name(snap), notes.snaps[snap].born),
            };
            let refused = own.iter().any(|mark| notes.marks[*mark].home.now().1 == short);
            let name = format!("{}#{short}", notes.name(ds));
            (NewBookmark { source, name }, ds, of, refused)
        };
        let done = self.writer.bookmark(&[new], None);
        if let Some(born) = self.answer("bookmark", done, refused)? {
            let home = History::new((ds, short));
            self.model.notes.lock().marks.push(Mark { home, of, born, died: None });
        }
        Ok(())
    }

    fn destroy_mark(&self, mark: usize) -> Result<()> {
        let name = {
            let notes = self.model.notes.lock();
            let (ds, own) = notes.marks[mark].home.now();
            format!("{}#{own}", notes.name(*ds))
        };
        let done = self.writer.destroy_bookmarks(&[name], None);
        if let Some(txg) = self.answer("destroy bookmark", done, false)? {
            self.model.notes.lock().marks[mark].died = Some(txg);
        }
        Ok(())
    }

    fn destroy_snap(&self, snap: usize, defer: bool) -> Result<()> {
        let (name, free) = {
            let notes = self.model.notes.lock();
            (notes.snap_name(snap), notes.is_free(snap))
        };
        let done = self.writer.destroy_snapshots(&[name], defer, None);
        let what = match (defer, free) {
            (true, false) => "destroy -d",
            _ => "destroy snapshot",
        };
        if let Some(txg) = self.answer(what, done, !free && !defer)? {
            let mut notes = self.model.notes.lock();
            match free {
                true => notes.snaps[snap].died = Some(txg),
                false => notes.snaps[snap].deferred.set(txg, true),
            }
        }
        Ok(())
    }

    fn destroy_tree(&self, hand: &Hand, ds: DsId, deep: bool) -> Result<()> {
        let (name, all, snaps, refused) = {
            let notes = self.model.notes.lock();
            let all = notes.subtree(ds);
            if all.len() == hand.datasets.len() {
                // A thread keeps a dataset.
                return Ok(());
            }
            let snaps: Vec<usize> = all.iter().flat_map(|ds| notes.snaps_of(*ds)).collect();
            let outside = |snap: &usize| notes.clones(*snap).iter().any(|c| !all.contains(c));
            let held = |snap: &usize| !notes.snaps[*snap].tags.now().is_empty();
            let refused = match deep {
                true => snaps.iter().any(|snap| held(snap) || outside(snap)),
                false => all.len() > 1 || !snaps.is_empty(),
            };
            (notes.name(ds), all, snaps, refused)
        };
        let listed = self.clones && self.has_livelist(&name)?;
        let done = self.writer.destroy_dataset(&name, deep, None);
        let what = match (listed && !refused, deep) {
            (true, _) => "destroy by livelist",
            (false, true) => "destroy -r",
            (false, false) => "destroy",
        };
        if let Some(txg) = self.answer(what, done, refused)? {
            let mut notes = self.model.notes.lock();
            for ds in all {
                notes.datasets[ds].died = Some(txg);
                for mark in notes.marks_of(ds) {
                    notes.marks[mark].died = Some(txg);
                }
            }
            for snap in snaps {
                notes.snaps[snap].died = Some(txg);
            }
            notes.reap(txg);
        }
        Ok(())
    }

    /// Runs an operation on lineages; false if it is another one.
    pub(crate) fn run_lineage(&self, hand: &mut Hand, op: &Op) -> Result<bool> {
        if !self.lineage {
            return Ok(false);
        }
        let preferred = self.preferred(hand);
        let pick_ds = |which: u32| match preferred.is_empty() || which.is_multiple_of(4) {
            true => hand.datasets[which as usize % hand.datasets.len()],
            false => preferred[which as usize / 4 % preferred.len()],
        };
        let pick = |which: u32| {
            let at = (which as usize).checked_rem(hand.snaps.len())?;
            Some(hand.snaps[at])
        };
        match op {
            Op::Dataset => {
                let above = self.above(hand, hand.made as u32 * 5);
                self.make_dataset(hand, above)?;
            }
            Op::Snapshot { ds } => self.take_snapshots(hand, pick_ds(*ds), ds & 256 != 0)?,
            Op::Clone { snap } => {
                if let Some(origin) = pick(*snap) {
                    let above = self.above(hand, snap >> 8);
                    self.make_clone(hand, origin, above)?;
                }
            }
            Op::Destroy { ds } => self.destroy_tree(hand, pick_ds(*ds), false)?,
            Op::DestroyTree { ds } => self.destroy_tree(hand, pick_ds(*ds), true)?,
            Op::Promote { ds } => {
                // Clones, most of the time.
                let clone =
                    |ds: &DsId| self.model.dataset(*ds).is_some_and(|d| d.clone_of.now().is_some());
                let fit: Vec<DsId> = hand.datasets.iter().copied().filter(clone).collect();
                let at = (*ds as usize / 8).checked_rem(fit.len());
                let ds = at.filter(|_| ds & 7 != 0).map_or_else(|| pick_ds(*ds), |at| fit[at]);
                self.promote(ds)?;
            }
            Op::Rollback { ds } => self.roll_back(hand, pick_ds(*ds), None)?,
            Op::RollbackAll { ds, seed } => self.roll_back(hand, pick_ds(*ds), Some(*seed))?,
            Op::Rename { ds, seed } => self.rename_dataset(hand, pick_ds(*ds), *seed)?,
            Op::DestroyBookmark { mark } => {
                let marks: Vec<usize> = {
                    let notes = self.model.notes.lock();
                    hand.datasets.iter().flat_map(|ds| notes.marks_of(*ds)).collect()
                };
                if let Some(at) = (*mark as usize).checked_rem(marks.len()) {
                    self.destroy_mark(marks[at])?;
                }
            }
            Op::RenameSnapshot { snap, seed }
            | Op::Hold { snap, seed }
            | Op::Release { snap, seed }
            | Op::Bookmark { snap, seed } => {
                let Some(snap) = pick(*snap) else { return Ok(true) };
                match op {
                    Op::RenameSnapshot { .. } => self.rename_snap(hand, snap, *seed)?,
                    Op::Bookmark { .. } => self.bookmark(hand, snap, *seed)?,
                    _ => self.hold(snap, *seed, matches!(op, Op::Release { .. }))?,
                }
            }
            Op::DestroySnapshot { snap } | Op::DestroyDeferred { snap } => {
                if let Some(snap) = pick(*snap) {
                    self.destroy_snap(snap, matches!(op, Op::DestroyDeferred { .. }))?;
                }
            }
            _ => return Ok(false),
        }
        self.forget_dead(hand);
        Ok(true)
    }
}
