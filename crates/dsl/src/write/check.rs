//! A check of all rules that relate directories, datasets, deadlists and feature counts
//! (chapter 04 §5.4, §6.4, "Checks").
//!
//! # Theory
//! All directories and datasets are loaded. Then each rule of the chapter is evaluated as
//! it is written there. Nothing is repaired.
//!
//! # Invariants
//! * The check only reads, and ends on any image: each object is visited once.

mod counts;
mod graph;
mod livelists;
mod sums;

use std::collections::{BTreeMap, BTreeSet};

use base::limits::DATASET_DEPTH_MAX;
use base::{Error, Result};
use ondisk::ObjType;
use ondisk::dslphys::{DslDatasetPhys, DslDirPhys};

use super::{MosRead, Ratios, Usage, birth, bookmark, bpobj, deadlist, links, props};

pub use livelists::check_livelists;

/// A violated rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The object of the MOS that violates it.
    pub object: u64,
    /// The rule, with the numbers.
    pub what: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "object {}: {}", self.object, self.what)
    }
}

/// A directory with its children and reservations.
struct CheckedDir {
    name: String,
    phys: DslDirPhys,
    children: Vec<u64>,
    /// Creation of its origin, 0 if it is no real clone.
    origin_txg: u64,
    refreserved: u64,
}

/// A head or snapshot.
struct CheckedDataset {
    phys: DslDatasetPhys,
    /// Sizes of its deadlist's entries.
    dead: BTreeMap<u64, Usage>,
    /// The deadlist has the form of old pools.
    old_form: bool,
}

impl CheckedDataset {
    fn range(&self, a: u64, b: u64) -> Usage {
        if a >= b { Usage::default() } else { self.dead.range(a..b).map(|(_, u)| *u).sum() }
    }

    fn from(&self, a: u64) -> Usage {
        self.dead.range(a..).map(|(_, u)| *u).sum()
    }
}

struct Checker<'a> {
    mos: &'a dyn MosRead,
    ratios: &'a Ratios,
    dirs: BTreeMap<u64, CheckedDir>,
    datasets: BTreeMap<u64, CheckedDataset>,
    shared_empty: Option<u64>,
    empty_refs: u64,
    out: Vec<Violation>,
}

/// Everything that is wrong with the DSL's part of the MOS; empty if it is consistent.
///
/// # Errors
/// Those of reading the MOS.
pub fn check(mos: &dyn MosRead, ratios: &Ratios) -> Result<Vec<Violation>> {
    let mut c = Checker::new(mos, ratios)?;
    c.load_dirs()?;
    c.load_datasets()?;
    c.graph()?;
    c.deadlist_keys()?;
    c.sums()?;
    c.livelists()?;
    c.free_dir()?;
    c.feature_counts()?;
    Ok(c.out)
}

impl<'a> Checker<'a> {
    fn new(mos: &'a dyn MosRead, ratios: &'a Ratios) -> Result<Checker<'a>> {
        Ok(Checker {
            mos,
            ratios,
            dirs: BTreeMap::new(),
            datasets: BTreeMap::new(),
            shared_empty: mos.directory("empty_bpobj")?,
            empty_refs: 0,
            out: Vec::new(),
        })
    }
}

impl Checker<'_> {
    fn wrong(&mut self, object: u64, what: impl Into<String>) {
        self.out.push(Violation { object, what: what.into() });
    }

    /// A rule about two numbers.
    fn equal<T: PartialEq + std::fmt::Debug>(&mut self, object: u64, what: &str, found: T, due: T) {
        if found != due {
            self.wrong(object, format!("{what} is {found:?}, should be {due:?}"));
        }
    }

    fn load_dirs(&mut self) -> Result<()> {
        let root = self.mos.required("root_dataset")?;
        let mut work = vec![(root, 0, String::new(), 0)];
        while let Some((object, parent, name, depth)) = work.pop() {
            if depth > DATASET_DEPTH_MAX || self.dirs.contains_key(&object) {
                self.wrong(object, "the directory is reached twice");
                continue;
            }
            let phys = self.mos.dir(object)?;
            self.equal(object, "parent", phys.parent_obj, parent);
            let children = self.mos.numbers(phys.child_dir_zapobj)?;
            for (child, number) in &children {
                work.push((*number, object, format!("{name}/{child}"), depth + 1));
            }
            let origin_txg = links::origin_txg(self.mos, phys.origin_obj)?.0;
            let refreserved = match props::own(self.mos, phys.props_zapobj, "refreservation")? {
                Some(value) => value.number().unwrap_or(0),
                None => 0,
            };
            let children = children.into_iter().map(|(_, number)| number).collect();
            let dir = CheckedDir { name, phys, children, origin_txg, refreserved };
            self.dirs.insert(object, dir);
        }
        Ok(())
    }

    fn load_datasets(&mut self) -> Result<()> {
        let heads: Vec<(u64, u64)> =
            self.dirs.iter().map(|(dir, d)| (*dir, d.phys.head_dataset_obj)).collect();
        for (dir, head) in heads {
            if head == 0 {
                continue;
            }
            let phys = self.mos.dataset(head)?;
            if phys.is_snapshot() {
                self.wrong(dir, "the head is a snapshot");
                continue;
            }
            let mut all = vec![head];
            all.extend(self.mos.numbers(phys.snapnames_zapobj)?.into_iter().map(|(_, s)| s));
            for object in all {
                self.load_dataset(object, dir)?;
            }
        }
        Ok(())
    }

    fn load_dataset(&mut self, object: u64, dir: u64) -> Result<()> {
        let phys = self.mos.dataset(object)?;
        self.equal(object, "directory", phys.dir_obj, dir);
        let old_form = self.mos.info(phys.deadlist_obj)?.bonus_type == ObjType::BPOBJ_HDR;
        let dead = if old_form {
            self.load_old_deadlist(phys.deadlist_obj)?
        } else {
            self.load_deadlist(phys.deadlist_obj)?
        };
        if self.datasets.insert(object, CheckedDataset { phys, dead, old_form }).is_some() {
            self.wrong(object, "the dataset is reached twice");
        }
        Ok(())
    }

    /// Each birth as an entry of its own.
    fn load_old_deadlist(&mut self, object: u64) -> Result<BTreeMap<u64, Usage>> {
        let mut dead: BTreeMap<u64, Usage> = BTreeMap::new();
        bpobj::for_each(self.mos, object, &mut |entry| {
            let key = birth(&entry.bp).0.saturating_sub(1);
            *dead.entry(key).or_default() += self.ratios.space_of(&entry.bp);
            Ok(())
        })?;
        Ok(dead)
    }

    fn load_deadlist(&mut self, object: u64) -> Result<BTreeMap<u64, Usage>> {
        let keys = deadlist::keys(self.mos, object)?;
        let mut dead = BTreeMap::new();
        for (&key, &list) in &keys {
            let next = keys.range(key.saturating_add(1)..).next().map_or(u64::MAX, |(k, _)| *k);
            let usage = bpobj::usage(self.mos, list)?;
            dead.insert(key, usage);
            if self.shared_empty == Some(list) {
                self.empty_refs += 1;
            }
            let (mut sum, mut misplaced) = (Usage::default(), 0u64);
            bpobj::for_each(self.mos, list, &mut |entry| {
                let one = self.ratios.space_of(&entry.bp);
                sum += if entry.freed { -one } else { one };
                let born = birth(&entry.bp).0;
                misplaced += u64::from(born <= key || born > next);
                Ok(())
            })?;
            self.equal(list, "sum of the list's blocks", usage, sum);
            self.equal(object, &format!("blocks under the wrong key {key}"), misplaced, 0);
        }
        let total = deadlist::total(self.mos, object)?;
        self.equal(object, "sum of the deadlist", total, dead.values().copied().sum());
        Ok(dead)
    }

    fn dataset(&self, object: u64) -> Result<&CheckedDataset> {
        self.datasets
            .get(&object)
            .ok_or_else(|| Error::corrupt(format!("object {object} is no dataset of the pool")))
    }

    /// Keys that a dataset's deadlist must have (§6.4), and separately those for bookmarks.
    fn due_keys(&self, object: u64) -> Result<(BTreeSet<u64>, BTreeSet<u64>)> {
        let (mut keys, mut seen) = (BTreeSet::new(), BTreeSet::new());
        let mut at = self.dataset(object)?;
        while at.phys.prev_snap_obj != 0 {
            if !seen.insert(at.phys.prev_snap_obj) {
                return Err(Error::corrupt("a dataset comes before itself"));
            }
            at = self.dataset(at.phys.prev_snap_obj)?;
            keys.insert(at.phys.prev_snap_txg.0);
        }
        let mut marks = BTreeSet::new();
        let (mut ds, mut dirs) = (self.dataset(object)?, BTreeSet::new());
        let mut limit = ds.phys.prev_snap_txg;
        while let Some(dir) = self.dirs.get(&ds.phys.dir_obj) {
            if !dirs.insert(ds.phys.dir_obj) {
                return Err(Error::corrupt("a clone is its own origin"));
            }
            for mark in bookmark::with_fbn(self.mos, dir.phys.head_dataset_obj)? {
                if mark.phys.creation_txg < limit {
                    marks.insert(mark.phys.creation_txg.0);
                }
            }
            let Some(origin) = self.datasets.get(&dir.phys.origin_obj) else { break };
            if links::is_pool_origin(self.mos, dir.phys.origin_obj, &origin.phys)? {
                break;
            }
            limit = origin.phys.creation_txg;
            ds = origin;
        }
        Ok((keys, marks))
    }

    fn deadlist_keys(&mut self) -> Result<()> {
        let objects: Vec<u64> = self.datasets.keys().copied().collect();
        for object in objects {
            let ds = self.dataset(object)?;
            if ds.old_form {
                continue;
            }
            let found: BTreeSet<u64> = ds.dead.keys().copied().collect();
            let is_head = !ds.phys.is_snapshot();
            let (mut due, marks) = self.due_keys(object)?;
            if is_head {
                due.extend(marks);
                self.equal(object, "set of deadlist keys", found, due);
            } else if !found.is_superset(&due) {
                self.wrong(object, format!("deadlist keys are {found:?}, should be {due:?}"));
            }
        }
        Ok(())
    }
}
