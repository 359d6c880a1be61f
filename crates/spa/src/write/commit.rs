//! Making a txg durable: labels and uberblock in the order that survives a crash at any
//! point (chapter 01 §6; chapter 05 §9.4, §9.5).
//!
//! # Theory
//! ```text
//! flush everything the txg wrote to
//! labels 0 and 2 of every dirty top-level vdev          flush
//! the uberblock, in all four labels of the chosen tops  flush
//! labels 1 and 3 of every dirty top-level vdev          flush
//! ```
//! A crash before the uberblock is on any device leaves the old uberblock and, in the odd
//! labels, the configuration that belongs to it: labels newer than the uberblock are
//! ignored. From the first new uberblock on, the even labels have the new configuration.
//! The odd ones are never written while an even one may be torn.
//!
//! # Failures
//! * A flush: the data written to the leaf since the last flush then counts as lost. The
//!   step fails if a top-level vdev (a log excepted) would not survive the loss of all its
//!   leaves that failed or are missing.
//! * A label: each dirty top-level vdev (a log excepted) needs one leaf with one of the
//!   step's two labels.
//! * The uberblock: one is enough, on a vdev with metaslabs.
//!
//! A step that fails makes the whole sequence start again, once; after that the txg is not
//! committed, and the caller suspends the pool. The uberblocks written by then may still be
//! found after a crash: everything that they refer to was durable before.
//!
//! # Departures from OpenZFS
//! * Every top-level vdev gets the uberblock if there are no more than `CHOSEN_MAX`;
//!   otherwise that many, from a start that the caller draws.
//! * A leaf whose even labels could not be written gets no uberblock in that commit.
//! * A failed flush counts; OpenZFS ignores it.
//!
//! # Test instruments
//! [`Plants`] makes two classic mistakes on demand, so that the simulator can show that it
//! would find them. Only tests set them.
//!
//! Lock order: no locks; the caller is the sync thread.

use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;

use base::planted::BugSwitch;
use base::{Buf, BufMut, Error, ErrorKind, Guid, Result, VdevId};
use nvlist::NvList;
use ondisk::config::{VdevConfig, VdevType};
use ondisk::label::{
    LABELS, VDEV_PHYS_OFFSET, VDEV_PHYS_SIZE, encode_slot, encode_vdev_phys, label_offset,
    parse_slot, parse_vdev_phys, slot_of_txg, slot_offset, slot_size,
};
use ondisk::uberblock::{ScratchState, Uberblock};

use super::uberblock::is_needed;

/// Top-level vdevs that get the uberblock of a txg with a clean configuration.
pub(crate) const CHOSEN_MAX: usize = 3;
/// Leaves whose labels are in flight at once: bounds memory, not order.
const LEAVES_AT_ONCE: usize = 128;
/// How often the whole sequence is tried.
const ATTEMPTS: usize = 2;

/// A write of a commit.
#[derive(Clone, Debug)]
pub struct LeafWrite {
    /// The leaf.
    pub leaf: Guid,
    /// Byte on the device, labels included.
    pub offset: u64,
    /// The content.
    pub data: Buf,
}

/// The interface of a commit to the devices.
pub trait LabelDevices {
    /// Performs all writes, in any order, and waits. Results are in the order of `writes`.
    fn write_leaves(&self, writes: Vec<LeafWrite>) -> Vec<Result<()>>;

    /// Makes the data written to the leaves of these top-level vdevs durable, and waits.
    /// Returns a result for each open leaf; leaves that are not open may be omitted.
    fn flush(&self, tops: &[VdevId]) -> Vec<(Guid, Result<()>)>;
}

/// A leaf that is open for writing.
#[derive(Clone, Debug)]
pub struct CommitLeaf {
    /// Its guid.
    pub guid: Guid,
    /// Usable bytes: whole labels' worth (chapter 01 §1, rule 1).
    pub psize: u64,
    /// Its label's list, if the configuration of its top-level vdev is dirty.
    pub label: Option<NvList>,
}

/// A top-level vdev.
#[derive(Clone, Debug)]
pub struct CommitTop<'a> {
    /// Its id.
    pub id: VdevId,
    /// Its configuration.
    pub config: &'a VdevConfig,
    /// Its configuration is dirty: every leaf has a label to write.
    pub dirty: bool,
    /// Its leaves that are open for writing.
    pub leaves: Vec<CommitLeaf>,
}

/// Planted bugs ([`base::planted`]).
#[derive(Debug, Default)]
pub struct Plants {
    /// The uberblock is written before what it refers to was flushed.
    pub uberblock_before_flush: BugSwitch,
    /// All four labels are written at once, before the uberblock.
    pub labels_in_wrong_order: BugSwitch,
}

/// Parameters of a commit.
#[derive(Debug)]
pub struct Commit<'a> {
    /// The txg's uberblock.
    pub uberblock: &'a Uberblock,
    /// Every top-level vdev with space: no holes, removed or missing ones.
    pub tops: &'a [CommitTop<'a>],
    /// Those that the txg wrote to.
    pub written: &'a [VdevId],
    /// Any number; selects the vdevs that get the uberblock if not all do.
    pub start: u64,
    /// The uberblock is written in any case, and to every vdev.
    pub everywhere: bool,
    /// Off.
    pub plants: &'a Plants,
}

/// The result of a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// False: the txg changed nothing, and nothing was written.
    pub written: bool,
    /// Leaves that failed; they lack labels or data of this txg.
    pub failed: Vec<Guid>,
}

/// Commits a txg. When it returns `Ok`, the txg is durable.
///
/// # Errors
/// `Io` when the sequence failed twice: the txg is not committed, the pool has to be
/// suspended. `NameTooLong` for a configuration that does not fit its label, and `Invalid`
/// for an uberblock that cannot be written: nothing was written.
pub fn commit(devices: &dyn LabelDevices, commit: &Commit<'_>) -> Result<Committed> {
    let dirty = commit.tops.iter().any(|t| t.dirty);
    if !commit.everywhere && !is_needed(commit.uberblock, dirty) {
        return Ok(Committed::default());
    }
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let (failed, unlabelled) = (HashSet::new(), HashSet::new());
        let mut attempt = Attempt { devices, commit, dirty, failed, unlabelled };
        match attempt.run() {
            Ok(()) => {
                let mut failed: Vec<Guid> = attempt.failed.into_iter().collect();
                failed.sort_unstable();
                return Ok(Committed { written: true, failed });
            }
            Err(e) if e.kind() == ErrorKind::Io => last = Some(e),
            Err(e) => return Err(e),
        }
    }
    Err(last.unwrap_or_else(|| Error::bug("no attempt to commit was made")))
}

struct Attempt<'a> {
    devices: &'a dyn LabelDevices,
    commit: &'a Commit<'a>,
    dirty: bool,
    /// Leaves that failed so far.
    failed: HashSet<Guid>,
    /// Leaves of dirty vdevs that have neither even label of this txg.
    unlabelled: HashSet<Guid>,
}

fn lost(what: &str) -> Error {
    Error::new(ErrorKind::Io, format!("cannot commit the transaction group: {what}"))
}

impl<'a> Attempt<'a> {
    fn run(&mut self) -> Result<()> {
        let plants = self.commit.plants;
        if !plants.uberblock_before_flush.load(Relaxed) {
            self.flush_data()?;
        }
        if plants.labels_in_wrong_order.load(Relaxed) {
            self.labels(&[0, 1, 2, 3], true)?;
        } else {
            self.labels(&[0, 2], !plants.uberblock_before_flush.load(Relaxed))?;
        }
        self.uberblock()?;
        if plants.uberblock_before_flush.load(Relaxed) {
            self.flush_data()?;
        }
        if !plants.labels_in_wrong_order.load(Relaxed) {
            self.labels(&[1, 3], true)?;
        }
        Ok(())
    }

    fn tops(&self) -> &'a [CommitTop<'a>] {
        self.commit.tops
    }

    /// Step 2.
    fn flush_data(&mut self) -> Result<()> {
        let written = self.commit.written;
        let failed = self.flush(written);
        for top in self.tops().iter().filter(|t| written.contains(&t.id) && !is_log(t)) {
            let present =
                |guid: Guid| !failed.contains(&guid) && top.leaves.iter().any(|l| l.guid == guid);
            if !survives(top.config, &present) {
                return Err(lost("what it wrote cannot be made durable"));
            }
        }
        Ok(())
    }

    /// Flushes and returns the leaves that failed.
    fn flush(&mut self, tops: &[VdevId]) -> HashSet<Guid> {
        if tops.is_empty() {
            return HashSet::new();
        }
        let results = self.devices.flush(tops).into_iter();
        let failed: HashSet<Guid> = results.filter(|r| r.1.is_err()).map(|r| r.0).collect();
        self.failed.extend(&failed);
        failed
    }

    /// Steps 3 and 5: the labels `which` of every leaf of every dirty vdev.
    fn labels(&mut self, which: &[usize], flush: bool) -> Result<()> {
        let dirty: Vec<&CommitTop<'_>> = self.tops().iter().filter(|t| t.dirty).collect();
        if dirty.is_empty() {
            return Ok(());
        }
        let leaves: Vec<&CommitLeaf> = dirty.iter().flat_map(|t| &t.leaves).collect();
        let mut good: HashSet<Guid> = HashSet::new();
        for some in leaves.chunks(LEAVES_AT_ONCE) {
            let mut writes = Vec::with_capacity(some.len() * which.len());
            for leaf in some {
                let list = leaf
                    .label
                    .as_ref()
                    .ok_or_else(|| base::bug!("a dirty vdev's leaf has no label to write"))?;
                for &label in which {
                    writes.push(label_write(leaf, list, label)?);
                }
            }
            good.extend(self.write(writes));
        }
        if flush {
            let ids: Vec<VdevId> = dirty.iter().map(|t| t.id).collect();
            for guid in self.flush(&ids) {
                good.remove(&guid);
            }
        }
        for top in &dirty {
            let took = top.leaves.iter().any(|l| good.contains(&l.guid));
            if !took && !is_log(top) {
                return Err(lost("no device takes its label"));
            }
        }
        if which.contains(&0) {
            let without = leaves.iter().map(|l| l.guid).filter(|g| !good.contains(g));
            self.unlabelled.extend(without);
        }
        Ok(())
    }

    /// Performs the writes; returns the leaves where at least one succeeded.
    fn write(&mut self, writes: Vec<LeafWrite>) -> HashSet<Guid> {
        let leaves: Vec<Guid> = writes.iter().map(|w| w.leaf).collect();
        let results = self.devices.write_leaves(writes);
        let mut good = HashSet::new();
        for (leaf, result) in leaves.into_iter().zip(results) {
            match result {
                Ok(()) => good.insert(leaf),
                Err(_) => self.failed.insert(leaf),
            };
        }
        good
    }

    /// Step 4.
    fn uberblock(&mut self) -> Result<()> {
        let chosen = self.chosen();
        let mut writes = Vec::new();
        let mut count = HashSet::new();
        for top in &chosen {
            for leaf in &top.leaves {
                // An uberblock is useless without a label that belongs to it.
                if self.unlabelled.contains(&leaf.guid) {
                    continue;
                }
                for label in 0..LABELS {
                    writes.push(self.uberblock_write(top, leaf, label)?);
                }
                if top.config.top.as_ref().is_some_and(|t| t.metaslab_array != 0) {
                    count.insert(leaf.guid);
                }
            }
        }
        let mut good = self.write(writes);
        let ids: Vec<VdevId> = chosen.iter().map(|t| t.id).collect();
        for guid in self.flush(&ids) {
            good.remove(&guid);
        }
        if good.is_disjoint(&count) {
            return Err(lost("no device takes the uberblock"));
        }
        Ok(())
    }

    /// All, if the configuration is dirty or the caller wants it; else a few with metaslabs.
    fn chosen(&self) -> Vec<&'a CommitTop<'a>> {
        if self.dirty || self.commit.everywhere {
            return self.tops().iter().collect();
        }
        let has_metaslabs =
            |t: &&CommitTop<'_>| t.config.top.as_ref().is_some_and(|t| t.metaslab_array != 0);
        let fit: Vec<&CommitTop<'_>> =
            self.tops().iter().filter(|t| !is_log(t)).filter(has_metaslabs).collect();
        let start = self.commit.start.checked_rem(fit.len() as u64).unwrap_or(0);
        fit.iter().cycle().skip(start as usize).take(fit.len().min(CHOSEN_MAX)).copied().collect()
    }

    fn uberblock_write(
        &self,
        top: &CommitTop<'_>,
        leaf: &CommitLeaf,
        label: usize,
    ) -> Result<LeafWrite> {
        let ub = self.commit.uberblock;
        let ashift = top.config.top.as_ref().map_or(9, |t| t.ashift);
        let scratch = ub.reflow().map_or(ScratchState::Unused, |r| r.scratch);
        let slot = slot_of_txg(ashift, ub.txg, ub.is_multihost(), scratch);
        let within =
            slot_offset(ashift, slot).ok_or_else(|| base::bug!("no such uberblock slot"))?;
        let offset = start_of(leaf, label)? + within;
        let mut data = BufMut::zeroed(slot_size(ashift));
        encode_slot(ub, &mut data, offset)?;
        // An import must find exactly this uberblock.
        let found = parse_slot(&data, offset);
        if found.is_none_or(|f| (f.rank(), f.root_bp) != (ub.rank(), ub.root_bp)) {
            return Err(base::bug!("an uberblock that does not read as what it is"));
        }
        Ok(LeafWrite { leaf: leaf.guid, offset, data: data.freeze() })
    }
}

fn start_of(leaf: &CommitLeaf, label: usize) -> Result<u64> {
    label_offset(leaf.psize, label)
        .ok_or_else(|| base::bug!("a leaf without room for labels").on_vdev(leaf.guid))
}

fn label_write(leaf: &CommitLeaf, list: &NvList, label: usize) -> Result<LeafWrite> {
    let offset = start_of(leaf, label)? + VDEV_PHYS_OFFSET;
    let mut data = BufMut::zeroed(VDEV_PHYS_SIZE);
    encode_vdev_phys(list, &mut data, offset)?;
    if !parse_vdev_phys(&data, offset).is_ok_and(|found| found == *list) {
        return Err(base::bug!("a label that does not read as what it is").on_vdev(leaf.guid));
    }
    Ok(LeafWrite { leaf: leaf.guid, offset, data: data.freeze() })
}

fn is_log(top: &CommitTop<'_>) -> bool {
    top.config.top.as_ref().is_some_and(|t| t.is_log)
}

/// Whether a vdev keeps its data if only the `present` leaves do.
fn survives(vdev: &VdevConfig, present: &dyn Fn(Guid) -> bool) -> bool {
    let alive = || vdev.children.iter().filter(|c| survives(c, present)).count();
    match vdev.kind {
        VdevType::Disk | VdevType::File => present(vdev.guid),
        // Its data is on its dRAID's leaves, which are checked themselves.
        VdevType::DraidSpare => true,
        VdevType::Raidz | VdevType::Draid => {
            vdev.children.len() - alive() <= vdev.nparity() as usize
        }
        VdevType::Mirror | VdevType::Replacing | VdevType::Spare => alive() > 0,
        VdevType::Root => alive() == vdev.children.len(),
        VdevType::Missing | VdevType::Hole | VdevType::Indirect => false,
    }
}

#[cfg(test)]
mod tests;
