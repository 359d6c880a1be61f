//! Dirty time logs: the transaction groups that a leaf misses (chapter 05 §8).
//!
//! # Theory
//! A leaf has two sets of txgs. *Missing* are the txgs for which the leaf lacks data; it is
//! stored on disk (`spa`). *Scrub* are the txgs that the leaf missed again while a scan was
//! repairing it: a repair that could not be written. Interior vdevs have no sets of their own:
//! what is *partial* below a vdev is the union of what its leaves miss.
//!
//! A scan that ends without having skipped anything calls [`Tree::excise`]. For each leaf that
//! was there all the time it replaces *missing* up to the last txg of the scan by *scrub*. A
//! leaf that was away for a moment may lack repairs of that moment, which nothing recorded
//! because there was no leaf to write to. So each leaf counts its absences, and a leaf whose
//! count has changed since the scan began ([`Tree::begin_scan`]) keeps what it misses.
//!
//! The resilver of a leaf may be *deferred* until the scan that runs has ended
//! ([`Tree::set_deferred`]). That scan does not visit blocks for its sake, and writes nothing
//! that it misses.
//!
//! # Invariants
//! * A txg leaves *missing* only by [`Tree::excise`], [`Tree::set_dtl`] and
//!   [`Tree::clear_missing`].
//! * Every change of *missing* is reported once by [`Tree::take_missing`], so that it becomes
//!   durable with the txg that is written next.
//!
//! Lock order: the locks of the sets are leaves; *missing* is locked before *scrub*.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::rt::{Mutex, RwLock};
use base::{Guid, Result, Txg, VdevId};

use crate::rebuild::UNKNOWN_BIRTH;
use crate::spec::VdevKind;
use crate::tree::{Node, NodeId, Tree};

/// A sorted set of txg ranges, both ends included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxgRanges(Vec<(Txg, Txg)>);

impl TxgRanges {
    /// Builds the set from ranges in any order; drops empty ones and joins adjacent
    /// ones.
    pub fn new(mut ranges: Vec<(Txg, Txg)>) -> TxgRanges {
        ranges.retain(|(first, last)| first <= last);
        ranges.sort();
        let mut joined: Vec<(Txg, Txg)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match joined.last_mut() {
                Some(prev) if first <= prev.1.next() => prev.1 = prev.1.max(last),
                _ => joined.push((first, last)),
            }
        }
        TxgRanges(joined)
    }

    /// Whether the set contains the txg.
    pub fn contains(&self, txg: Txg) -> bool {
        let at = self.0.partition_point(|(_, last)| *last < txg);
        self.0.get(at).is_some_and(|(first, _)| *first <= txg)
    }

    /// Adds one txg; returns false if the set already contained it.
    pub fn insert(&mut self, txg: Txg) -> bool {
        let at = self.0.partition_point(|(_, last)| last.next() < txg);
        let Some(range) = self.0.get_mut(at).filter(|range| range.0 <= txg.next()) else {
            self.0.insert(at, (txg, txg));
            return true;
        };
        if range.0 <= txg && txg <= range.1 {
            return false;
        }
        (range.0, range.1) = (range.0.min(txg), range.1.max(txg));
        let end = range.1;
        if let Some(&(first, last)) = self.0.get(at + 1)
            && first <= end.next()
        {
            self.0[at].1 = last;
            self.0.remove(at + 1);
        }
        true
    }

    /// Removes one txg.
    pub fn remove(&mut self, txg: Txg) {
        let at = self.0.partition_point(|(_, last)| *last < txg);
        let Some(&(first, last)) = self.0.get(at).filter(|range| range.0 <= txg) else { return };
        let below = (first < txg).then(|| (first, Txg(txg.0 - 1)));
        let above = (txg < last).then(|| (txg.next(), last));
        self.0.splice(at..=at, below.into_iter().chain(above));
    }

    /// Adds the txgs from `first` to `last`, both included; nothing if `last` is smaller.
    pub fn insert_range(&mut self, first: Txg, last: Txg) {
        let mut ranges = std::mem::take(&mut self.0);
        ranges.push((first, last));
        *self = TxgRanges::new(ranges);
    }

    /// Removes the txgs from `first` to `last`, both included.
    pub fn remove_range(&mut self, first: Txg, last: Txg) {
        if last < first {
            return;
        }
        let mut left = Vec::with_capacity(self.0.len() + 1);
        for &(from, to) in &self.0 {
            if to < first || last < from {
                left.push((from, to));
                continue;
            }
            if from < first {
                left.push((from, Txg(first.0 - 1)));
            }
            if last < to {
                left.push((last.next(), to));
            }
        }
        self.0 = left;
    }

    /// Adds all txgs of another set.
    pub fn union(&mut self, other: &TxgRanges) {
        if !other.is_empty() {
            let mut ranges = std::mem::take(&mut self.0);
            ranges.extend_from_slice(&other.0);
            *self = TxgRanges::new(ranges);
        }
    }

    /// Whether the set has no txgs.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The smallest txg.
    pub fn first(&self) -> Option<Txg> {
        self.0.first().map(|r| r.0)
    }

    /// The largest txg.
    pub fn last(&self) -> Option<Txg> {
        self.0.last().map(|r| r.1)
    }

    /// The ranges, ascending.
    pub fn ranges(&self) -> &[(Txg, Txg)] {
        &self.0
    }
}

/// The sets of one leaf. Successive snapshots share them.
#[derive(Default)]
pub(crate) struct MissingTxgs {
    missing: RwLock<Arc<TxgRanges>>,
    scrub: Mutex<TxgRanges>,
    /// *Missing* changed since the last call of [`Tree::take_missing`].
    changed: AtomicBool,
    /// How often a snapshot was built in which the leaf cannot be used.
    absences: AtomicU64,
    /// Its resilver waits for the end of the one that runs.
    deferred: AtomicBool,
}

impl MissingTxgs {
    pub(crate) fn get(&self) -> Arc<TxgRanges> {
        Arc::clone(&self.missing.read())
    }

    /// Whether the leaf lacks data of this txg; of any, for [`UNKNOWN_BIRTH`].
    pub(crate) fn contains(&self, txg: Txg) -> bool {
        let missing = self.missing.read();
        missing.contains(txg) || (txg == UNKNOWN_BIRTH && !missing.is_empty())
    }

    /// Replaces the set by one that is stored already.
    pub(crate) fn set(&self, ranges: TxgRanges) {
        *self.missing.write() = Arc::new(ranges);
    }

    /// Records that the leaf lacks data of this txg.
    pub(crate) fn add(&self, txg: Txg) {
        if self.contains(txg) {
            return;
        }
        let mut missing = self.missing.write();
        if Arc::make_mut(&mut missing).insert(txg) {
            self.changed.store(true, Ordering::Relaxed);
        }
    }

    /// Records that a scan could not repair the leaf's data of this txg.
    pub(crate) fn add_unrepaired(&self, txg: Txg) {
        let mut missing = self.missing.write();
        if Arc::make_mut(&mut missing).insert(txg) {
            self.changed.store(true, Ordering::Relaxed);
        }
        self.scrub.lock().insert(txg);
    }

    /// Records that the leaf has all data of this txg after all.
    pub(crate) fn remove(&self, txg: Txg) {
        if self.contains(txg) {
            Arc::make_mut(&mut self.missing.write()).remove(txg);
        }
    }

    /// The leaf cannot be used in the snapshot that is being built.
    pub(crate) fn note_absence(&self) {
        self.absences.fetch_add(1, Ordering::Relaxed);
    }

    fn take_changed(&self) -> Option<Arc<TxgRanges>> {
        let missing = self.missing.read();
        self.changed.swap(false, Ordering::Relaxed).then(|| Arc::clone(&missing))
    }

    /// Replaces everything up to `last` by what a scan could not repair; returns whether that
    /// changed the set.
    fn excise(&self, last: Txg) -> bool {
        let mut missing = self.missing.write();
        let unrepaired = std::mem::take(&mut *self.scrub.lock());
        let mut left = TxgRanges::clone(&missing);
        left.remove_range(Txg::ZERO, last);
        left.union(&unrepaired);
        let changed = left != **missing;
        if changed {
            *missing = Arc::new(left);
            self.changed.store(true, Ordering::Relaxed);
        }
        changed
    }
}

/// The leaves that a scan began with, and how often each had been absent.
#[derive(Clone, Debug, Default)]
pub struct ScanLeaves(HashMap<Guid, u64>);

impl ScanLeaves {
    /// Leaves out the leaves for which `keep` is false.
    pub fn retain(&mut self, keep: impl Fn(Guid) -> bool) {
        self.0.retain(|guid, _| keep(*guid));
    }

    /// Whether a vdev of this guid was there when the scan began, and ever since.
    pub fn has(&self, tree: &Tree, guid: Guid) -> bool {
        tree.find(guid).is_some_and(|node| self.had(node))
    }

    /// Whether a leaf has been there since the scan began.
    pub fn had(&self, node: &Node) -> bool {
        let absences = node.live.missing.absences.load(Ordering::Relaxed);
        self.0.get(&node.guid()) == Some(&absences)
    }
}

/// Whether a vdev has missing txgs of its own: leaves, and distributed spares.
fn has_dtl(node: &Node) -> bool {
    node.kind().is_device() || matches!(node.kind(), VdevKind::DraidSpare { .. })
}

impl Node {
    /// Whether the resilver of this leaf waits for the end of the one that runs.
    pub fn is_deferred(&self) -> bool {
        self.live.missing.deferred.load(Ordering::Relaxed)
    }
}

impl Tree {
    /// Notes that a scan begins, which will repair the leaves that are there: forgets what
    /// earlier scans could not repair, and returns what [`Tree::excise`] needs at its end.
    pub fn begin_scan(&self) -> ScanLeaves {
        self.begin_scan_if(|_| true)
    }

    fn begin_scan_if(&self, wanted: impl Fn(&Node) -> bool) -> ScanLeaves {
        let present = self.nodes().filter(|(_, n)| has_dtl(n) && n.readable() && wanted(n));
        let leaves = present.map(|(_, n)| {
            *n.live.missing.scrub.lock() = TxgRanges::default();
            (n.guid(), n.live.missing.absences.load(Ordering::Relaxed))
        });
        ScanLeaves(leaves.collect())
    }

    /// As [`Tree::begin_scan`], for a rebuild of one top-level vdev.
    pub fn begin_leaves(&self, vdev: VdevId) -> ScanLeaves {
        self.begin_scan_if(|node| node.top() == vdev)
    }

    /// Notes that a scan of all blocks that these leaves may miss up to `last` has ended
    /// (chapter 05 §8). A leaf that was there all the time misses only what the scan could
    /// not write to it, and txgs after `last`. Returns the leaves that miss less than before.
    /// [`Tree::take_missing`] has the new sets.
    pub fn excise(&self, leaves: &ScanLeaves, last: Txg) -> Vec<Guid> {
        let there = self.nodes().filter(|(_, n)| has_dtl(n) && n.readable() && leaves.had(n));
        there.filter(|(_, n)| n.live.missing.excise(last)).map(|(_, n)| n.guid()).collect()
    }

    /// The txgs that some leaf below a top-level vdev misses and that its next scan brings: a
    /// leaf whose resilver is deferred does not count.
    ///
    /// # Errors
    /// `Corrupt` if there is no such vdev.
    pub fn partial(&self, vdev: VdevId) -> Result<TxgRanges> {
        let mut all = TxgRanges::default();
        self.add_partial(self.top_node(vdev)?, &mut all);
        Ok(all)
    }

    fn add_partial(&self, id: NodeId, all: &mut TxgRanges) {
        let node = self.node(id);
        if has_dtl(node) && !node.is_deferred() {
            all.union(&node.dtl());
        }
        node.children().iter().for_each(|&child| self.add_partial(child, all));
    }

    /// Whether the pool has removed vdevs.
    pub fn has_removed(&self) -> bool {
        self.nodes().any(|(_, n)| *n.kind() == VdevKind::Indirect)
    }

    /// The range of births that a resilver has to visit: blocks born after the first txg and
    /// not after the second one. Only leaves that can be written count; `None` if none of
    /// them misses anything.
    pub fn resilver_range(&self) -> Option<(Txg, Txg)> {
        let behind = self.nodes().filter(|(_, n)| has_dtl(n) && n.readable());
        let missing = behind.map(|(_, n)| n.dtl()).filter(|dtl| !dtl.is_empty());
        let ends = missing.filter_map(|dtl| Some((dtl.first()?, dtl.last()?)));
        let (first, last) = ends.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))?;
        // Copies of blocks of removed vdevs are younger than the blocks.
        let copied = |node: &Node| {
            let map = node.live.map();
            map.is_some_and(|map| map.births().any(|birth| first <= birth && birth <= last))
        };
        let first = match self.nodes().any(|(_, n)| copied(n)) {
            true => Txg::ZERO,
            false => Txg(first.0.saturating_sub(1)),
        };
        Some((first, last))
    }

    /// Sets a vdev's missing transaction groups, as stored; false if there is no such vdev.
    pub fn set_dtl(&self, guid: Guid, ranges: TxgRanges) -> bool {
        let node = self.find(guid);
        if let Some(node) = node {
            node.live.missing.set(ranges);
        }
        node.is_some()
    }

    /// Defers the resilver of a leaf until the one that runs has ended, or ends this.
    pub fn set_deferred(&self, guid: Guid, deferred: bool) {
        if let Some(node) = self.find(guid) {
            node.live.missing.deferred.store(deferred, Ordering::Relaxed);
        }
    }

    /// Adds the txgs from `first` to `last` to what a vdev misses; false if there is no such
    /// vdev. [`Tree::take_missing`] reports it.
    pub fn add_missing_range(&self, guid: Guid, first: Txg, last: Txg) -> bool {
        let node = self.find(guid);
        if let Some(node) = node {
            let missing = &node.live.missing;
            Arc::make_mut(&mut missing.missing.write()).insert_range(first, last);
            missing.changed.store(true, Ordering::Relaxed);
        }
        node.is_some()
    }

    /// The missing txgs of each vdev for which they changed since the last call.
    pub fn take_missing(&self) -> Vec<(Guid, TxgRanges)> {
        let changed = |(_, node): (NodeId, &Node)| {
            let ranges = node.live.missing.take_changed()?;
            Some((node.guid(), TxgRanges::clone(&ranges)))
        };
        self.nodes().filter_map(changed).collect()
    }
}

#[cfg(test)]
#[path = "dtl_tests.rs"]
mod tests;
