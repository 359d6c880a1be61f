//! Emptying a part of a top-level vdev: everything in it moves elsewhere, so that the vdev, or its
//! end, can leave the pool without a mapping.
//!
//! # Theory
//! What is allocated in a range of a vdev belongs to one of these:
//! * *Datasets*: their blocks move in batches ([`super::relocation`]); what has to move is found
//!   and given to batches by a caller above this crate.
//! * *The meta object set*, space maps included: no snapshot shares its blocks, so the sync thread
//!   makes them dirty, and the ordinary writing of the txg puts them elsewhere ([`mos`]).
//! * *Intent logs*: their chains are ended, as before the removal of a device. Records refer to
//!   blocks that are written early; those belong to datasets as soon as their txg is on disk.
//! * *Frees that wait* (deferred ones, destroyed datasets): they become free by themselves.
//!
//! Nothing is allocated in the range meanwhile ([`Writer::set_vdev_allocating`]). So what is in it
//! only becomes less, and the bytes that are allocated in it ([`Writer::emptying_left`]) are a measure
//! of progress. They are also the proof of the end: the space maps know every block, whether
//! it was found or not. If something remains that nothing can move, the range is not
//! empty, the caller gives up, and the vdev is allocated from again.
//!
//! # States of a vdev
//! ```text
//! used -- Writer::set_vdev_allocating(false) --> not allocated from -- moves --> empty
//!  ^                                                  |                            |
//!  +-------- Writer::set_vdev_allocating(true) -------+          Writer::end_emptied_removal
//!                                                                                  v
//!                                                                                hole
//! ```
//! The first two are in the configuration (`non_allocating`), so that a crash, an export or another
//! implementation leaves a pool that is whole: its vdev is not allocated from.
//!
//! A removed vdev has no space, and nothing is ever allocated on it. What is emptied is its mapping
//! ([`unmap`]).
//!
//! For the end of a vdev ([`shrink`]) its metaslabs are excluded in memory alone
//! ([`Writer::exclude_range`]): what an import allocates there before the work goes on is moved as
//! well.
//!
//! # Crash argument
//! Moves are complete within their txgs. The end is one txg as well ([`end`]): before it, the vdev is
//! in the pool and empty; after it, nothing refers to it.
//!
//! # Space
//! What is on the vdev must find room on the others. The ledger reserves it from the begin on, as
//! for a removal with a mapping ([`Writer::note_emptying`]).
//!
//! # Invariants
//! * The vdev leaves only if nothing on it is allocated, deferred or about to be allocated, in the
//!   txg that removes it.

mod end;
mod mos;
mod shrink;
mod unmap;

use base::planted::BugSwitch;
use base::{Dva, Error, Result, VdevId};
use ondisk::blkptr::Block;
use ondisk::config::VdevConfig;
use vdev::AllocClass;

use super::Writer;
use super::job_record::{JobKind, JobState};
use super::tasks::{Command, TaskCx};

pub use mos::{MosPlace, MosStep};
pub use shrink::{ExcludedSpace, ShrinkPlan};

/// The part of a top-level vdev that is emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmptyRange {
    /// The vdev.
    pub vdev: VdevId,
    /// Its first byte.
    pub from: u64,
    /// Behind its last byte.
    pub to: u64,
}

impl EmptyRange {
    /// All of a vdev.
    pub fn whole(vdev: VdevId) -> EmptyRange {
        EmptyRange { vdev, from: 0, to: u64::MAX }
    }

    /// Whether it is all of the vdev.
    pub fn is_whole(&self) -> bool {
        self.from == 0
    }

    /// Whether an address is in it.
    pub fn contains(&self, dva: Dva) -> bool {
        dva.vdev == self.vdev && (self.from..self.to).contains(&dva.offset)
    }

    /// Whether an address of a block is in it. The members of a gang are not looked at.
    pub fn touches(&self, block: &Block) -> bool {
        block.dvas().any(|dva| self.contains(dva))
    }
}

/// Why a block is never moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Immovable {
    /// The dedup tables may have its address.
    Deduplicated,
    /// The tables of cloned blocks may have its address.
    Cloned,
    /// It was moved without a logical change by another writer.
    Rewritten,
}

/// Planted bugs ([`base::planted`]).
#[derive(Debug, Default)]
pub struct EmptyingPlants {
    /// One block of the MOS that was found is not made dirty.
    pub left_mos_block: BugSwitch,
    /// A vdev becomes a hole although something is on it.
    pub early_hole: BugSwitch,
    /// The end of a vdev is cut off while log space maps have entries of it.
    pub unflushed_cut: BugSwitch,
}

impl Writer {
    /// Planted bugs of emptying.
    pub fn emptying_plants(&self) -> &EmptyingPlants {
        &self.plants.emptying
    }

    /// Why a block is never moved; `None` for one that can be.
    pub fn immovable(&self, block: &Block) -> Option<Immovable> {
        match block {
            _ if block.dedup => Some(Immovable::Deduplicated),
            _ if block.rewritten => Some(Immovable::Rewritten),
            _ if self.block_refs.may_be_cloned(block) => Some(Immovable::Cloned),
            _ => None,
        }
    }

    /// Sets whether space is allocated from a top-level vdev, for this import and those to come.
    /// When this returns after a prohibition, everything that was allocated on the vdev is on its
    /// devices, and no intent log continues there.
    ///
    /// # Errors
    /// `NotFound` if there is no such vdev with space; those of a suspension.
    pub fn set_vdev_allocating(
        &self,
        vdev: VdevId,
        allocating: bool,
        command: Option<Command>,
    ) -> Result<()> {
        let none = || Error::not_found("no such device in pool");
        let check = move |cx: &mut TaskCx<'_>| {
            let tops = &cx.state.config.vdev_tree.children;
            let top = tops.iter().find(|v| v.id == vdev.0 && super::config::is_concrete(v));
            top.and_then(|v| v.top.as_ref()).map(|_| ()).ok_or_else(none)
        };
        let act = move |cx: &mut TaskCx<'_>, ()| {
            let tops = &mut cx.config().vdev_tree.children;
            let top = tops.iter_mut().find(|v| v.id == vdev.0).and_then(|v| v.top.as_mut());
            if let Some(top) = top {
                top.non_allocating = !allocating;
            }
            if allocating {
                cx.writer.ledger.set_leaving(None);
            }
            cx.writer.space.set_allocating(vdev, allocating)?;
            command.map_or(Ok(()), |c| cx.log_command(&c))
        };
        self.sync_task(check, act)?;
        match allocating {
            true => Ok(()),
            false => {
                self.note_emptying(EmptyRange::whole(vdev))?;
                self.passivated()
            }
        }
    }

    /// Whether a top-level vdev, or its end, can be emptied now.
    fn check_emptying(&self, top: &VdevConfig) -> Result<()> {
        self.check_relocation()?;
        if self.is_resilver_due() || self.is_rebuilding() {
            return Err(Error::busy("a device is being resilvered"));
        }
        if top.children.iter().any(|child| !child.kind.is_leaf()) {
            return Err(Error::busy("a device of it is being replaced"));
        }
        let is_active = |leaf: &VdevConfig| {
            [JobKind::Trim, JobKind::Initialize]
                .iter()
                .any(|kind| self.job_status(leaf.guid, *kind).record.state == JobState::Active)
        };
        if top.leaves().any(is_active) {
            return Err(Error::busy("device is currently being initialized or trimmed"));
        }
        Ok(())
    }

    /// Tells the ledger what is still to be moved away from a range that leaves.
    ///
    /// # Errors
    /// `Corrupt` if there is no such vdev.
    pub fn note_emptying(&self, range: EmptyRange) -> Result<()> {
        if self.is_mapped(range.vdev) {
            return Ok(());
        }
        if range.is_whole() {
            let left = self.space.vdev_totals(range.vdev)?.allocated;
            self.ledger.set_leaving(Some((range.vdev, left)));
            return Ok(());
        }
        let (mut free, mut left) = (0u64, 0u64);
        for ms in self.space.metaslabs(range.vdev)? {
            if ms.seg.start >= range.from {
                free = free.saturating_add(ms.free);
                left = left.saturating_add(ms.seg.len - ms.free);
            }
        }
        // Other classes have no part in what transactions reserve.
        if self.zio.tree().top(range.vdev)?.class() == AllocClass::Normal {
            self.ledger.set_excluded(free, left);
        }
        Ok(())
    }

    /// Bytes of a range that are allocated, were freed and are not free yet, or are about to be
    /// allocated. A range that is no whole vdev begins with a metaslab and ends with the vdev. Of
    /// a removed vdev, the bytes of its mapping that are needed.
    ///
    /// # Errors
    /// `Corrupt` if there is no such vdev; as [`Writer::mapped_left`].
    pub fn emptying_left(&self, range: EmptyRange) -> Result<u64> {
        if self.is_mapped(range.vdev) {
            return self.mapped_left(range.vdev);
        }
        if range.is_whole() {
            let totals = self.space.vdev_totals(range.vdev)?;
            return Ok(totals
                .allocated
                .saturating_add(totals.deferred)
                .saturating_add(totals.reserved));
        }
        let all = self.space.metaslabs(range.vdev)?;
        let first = all.iter().take_while(|ms| ms.seg.start < range.from).count();
        self.space.left_from(range.vdev, first as u64)
    }

    /// Allocated bytes in a range.
    ///
    /// # Errors
    /// `Corrupt` if there is no such vdev.
    pub fn emptying_allocated(&self, range: EmptyRange) -> Result<u64> {
        let all = self.space.metaslabs(range.vdev)?;
        let inside = all.iter().filter(|ms| ms.seg.start >= range.from);
        Ok(inside.map(|ms| ms.seg.len - ms.free).fold(0, u64::saturating_add))
    }
}
