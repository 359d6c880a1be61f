//! Free space on a leaf: where a range of a top-level vdev lies on it, discarding it, and
//! writing a pattern to it.
//!
//! # Theory
//! A discard or a pattern concerns one leaf, while free space is known as ranges of the
//! top-level vdev. [`Tree::ranges_on`] translates such a range, level by level, from the top to
//! the leaf. Mirrors pass it on. A raidz stores sector *s* of its space on child *s mod width*
//! at row *s / width*; so the sectors of a range that are on one child are consecutive there.
//! (An expanded raidz does the same with its present width, whatever the width of the blocks
//! was.) A dRAID stores consecutive stripes of a group in consecutive sectors of each child of
//! the group, so a range is one range on a child for each group; stripes that are not whole in
//! the range are left out.
//!
//! The operations pass through the leaf's queue in classes of their own, and one that overlaps
//! another write waits for it, like every write (`queue`).
//!
//! # Invariants
//! * Every byte of a translated range is inside the leaf's allocatable area, and belongs to the
//!   range: no sector of a neighbouring block is touched.
//! * A range has at most [`RANGES_MAX`] translated ranges.
//!
//! Lock order: no locks.

use base::rt::{Callback, oneshot};
use base::{Buf, Error, ErrorKind, Guid, Result};

use crate::draid::DraidGeometry;
use crate::map::RaidzGeometry;
use crate::queue::{WritePriority, WriteRequest};
use crate::tree::{Geometry, LABEL_START, Node, Tree};

/// Ranges of one leaf that one range of its vdev becomes, at most: 4096 groups of a dRAID have
/// 128 GiB or more, and a metaslab has at most 16 GiB.
const RANGES_MAX: usize = 4096;

/// An operation on free space of a leaf.
#[derive(Clone, Debug)]
pub enum FreeSpaceOp {
    /// Discard so many bytes.
    Discard(u64),
    /// Write these buffers.
    Fill(Vec<Buf>),
}

impl FreeSpaceOp {
    fn len(&self) -> u64 {
        match self {
            FreeSpaceOp::Discard(len) => *len,
            FreeSpaceOp::Fill(bufs) => bufs.iter().map(|b| b.len() as u64).sum(),
        }
    }
}

impl RaidzGeometry {
    /// The part of a range that is on child `child`; empty if there is none.
    fn range_on(&self, child: u64, offset: u64, len: u64) -> (u64, u64) {
        let width = u64::from(self.width);
        let (first, end) = (offset.div_ceil(1 << self.ashift), (offset + len) >> self.ashift);
        let row = |sector: u64| sector.saturating_sub(child).div_ceil(width);
        let (from, to) = (row(first), row(end.max(first)));
        (from << self.ashift, (to - from) << self.ashift)
    }
}

impl DraidGeometry {
    /// The parts of a range that are on child `child`.
    fn ranges_on(&self, child: u32, offset: u64, len: u64) -> Result<Vec<(u64, u64)>> {
        let (mut at, end) = (offset, offset + len);
        let mut out: Vec<(u64, u64)> = Vec::new();
        while at < end {
            if out.len() >= RANGES_MAX {
                return Err(Error::limit("a range of free space crosses too many dRAID groups"));
            }
            let group_end = (at / self.group_size() + 1) * self.group_size();
            let to = end.min(group_end);
            if let Some((from, size)) = self.range_in_group(child, at, to) {
                match out.last_mut() {
                    Some(last) if last.0 + last.1 == from => last.1 += size,
                    _ => out.push((from, size)),
                }
            }
            at = to;
        }
        Ok(out)
    }
}

impl Tree {
    /// The device ranges of a leaf that hold a range of its top-level vdev: offsets of the
    /// device, and bytes; ascending for raidz, mirrors and single leaves. None for a leaf
    /// without a device of its own (a distributed spare).
    ///
    /// # Errors
    /// `NotFound` if there is no such leaf; `Unsupported` while a raidz expansion runs;
    /// `Corrupt` for a range outside the vdev.
    pub fn ranges_on(&self, leaf: Guid, offset: u64, len: u64) -> Result<Vec<(u64, u64)>> {
        let found = self.leaves().find(|(_, node)| node.guid() == leaf);
        let (id, node) = found.ok_or_else(|| Error::not_found("there is no such leaf"))?;
        if !node.kind().is_device() {
            return Ok(Vec::new());
        }
        let top = self.top(node.top())?;
        if offset.checked_add(len).is_none_or(|end| end > top.asize()) {
            return Err(Error::corrupt("free space outside its vdev").on_vdev(leaf));
        }
        // From the top down; the last is the leaf.
        let mut path = vec![id];
        let mut at = node;
        while let Some(parent) = at.parent().filter(|p| p.0 != 0) {
            path.push(parent);
            at = self.node(parent);
        }
        path.reverse();
        let mut ranges = vec![(offset, len)];
        for pair in path.windows(2) {
            let parent = self.node(pair[0]);
            let child = parent.children().iter().position(|c| *c == pair[1]);
            let child = child.ok_or_else(|| base::bug!("a vdev is not its parent's child"))?;
            let mut below = Vec::new();
            for (offset, len) in ranges {
                below.extend(Self::ranges_below(parent, child as u64, offset, len)?);
            }
            ranges = below;
        }
        ranges.retain(|(_, len)| *len > 0);
        Ok(ranges.into_iter().map(|(offset, len)| (offset + LABEL_START, len)).collect())
    }

    fn ranges_below(parent: &Node, child: u64, offset: u64, len: u64) -> Result<Vec<(u64, u64)>> {
        match &parent.geometry {
            Geometry::Plain => Ok(vec![(offset, len)]),
            Geometry::Raidz(raidz) if raidz.reflow.is_some() => {
                Err(Error::unsupported("a raidz vdev is being expanded").on_vdev(parent.guid()))
            }
            Geometry::Raidz(raidz) => Ok(vec![raidz.range_on(child, offset, len)]),
            Geometry::Draid(draid) => draid.ranges_on(child as u32, offset, len),
        }
    }

    /// Whether a leaf's device discards; false for one that is not open.
    pub fn can_discard(&self, leaf: Guid) -> bool {
        let device = self.find(leaf).and_then(Node::device);
        device.is_some_and(|device| device.caps().trim)
    }

    /// Discards free space of a leaf, or writes to it, at offsets of its device; waits for all.
    /// The caller guarantees that nothing is allocated there meanwhile. A failure concerns no
    /// data, so it is neither a write error nor a missing txg.
    ///
    /// # Errors
    /// `NotFound` if there is no such leaf; `Io` if it cannot be written; the first error of
    /// the device.
    pub fn on_free_space(&self, leaf: Guid, ops: Vec<(u64, FreeSpaceOp)>) -> Result<()> {
        let found = self.leaves().find(|(_, node)| node.guid() == leaf);
        let (_, node) = found.ok_or_else(|| Error::not_found("there is no such leaf"))?;
        let closed = || Error::new(ErrorKind::Io, "the device is not open for writing");
        let (_, queue) = node.writable().ok_or_else(|| closed().on_vdev(leaf))?;
        let mut slots = Vec::with_capacity(ops.len());
        let mut batch = Vec::with_capacity(ops.len());
        for (offset, op) in ops {
            let (slot, end) = oneshot::<Result<()>>();
            slots.push(end);
            let len = op.len();
            let inside = node.device().is_some_and(|device| {
                let usable = ondisk_end(device.size());
                offset >= LABEL_START && offset.checked_add(len).is_some_and(|e| e <= usable)
            });
            if !inside || len == 0 {
                slot.send(Err(base::bug!("free space at {offset:#x} is outside its leaf")));
                continue;
            }
            let (bufs, priority) = match op {
                FreeSpaceOp::Discard(_) => (Vec::new(), WritePriority::Trim),
                FreeSpaceOp::Fill(bufs) => (bufs, WritePriority::Initializing),
            };
            let done = Callback::new(move |result: Result<()>| slot.send(result));
            batch.push(WriteRequest { offset, len, bufs, priority, optional: false, done });
        }
        queue.submit(batch);
        let mut first = Ok(());
        for end in slots {
            let result = end.wait().flatten().map_err(|e| e.on_vdev(leaf));
            first = first.and(result);
        }
        first
    }
}

/// The end of a leaf's allocatable area.
fn ondisk_end(size: u64) -> u64 {
    (size >> 18 << 18).saturating_sub(crate::tree::LABEL_END)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draid::DraidParams;
    use base::Txg;
    use std::collections::BTreeSet;

    /// The sectors of one child that a block occupies, found by the map that writes it.
    fn cells(map: &crate::map::BlockMap, child: u32, ashift: u32) -> BTreeSet<u64> {
        let cols = map.stripes.iter().flat_map(|s| &s.cols);
        let mine = cols.filter(|c| c.child == Some(child));
        mine.flat_map(|c| (c.offset >> ashift)..((c.offset + c.stored) >> ashift)).collect()
    }

    fn sectors(ranges: &[(u64, u64)], ashift: u32) -> BTreeSet<u64> {
        let of = |(at, len): &(u64, u64)| (at >> ashift)..((at + len) >> ashift);
        ranges.iter().flat_map(of).collect()
    }

    /// On every child, the range of a block has the sectors of its columns and of the skip
    /// sectors behind them, and those of two neighbours never meet.
    #[test]
    fn raidz_ranges_are_the_columns_of_their_blocks() {
        for (nparity, width) in [(1u32, 2u32), (1, 3), (1, 5), (2, 4), (2, 6), (3, 5), (3, 9)] {
            for ashift in [9, 12] {
                let raidz =
                    RaidzGeometry { ashift, nparity, width, expand_txgs: Vec::new(), reflow: None };
                let mut offset = 7 << ashift;
                for n in 1..40u64 {
                    let psize = n << ashift;
                    let asize = raidz.asize(psize, Txg(9));
                    let map = raidz.map(offset, psize, Txg(9)).unwrap();
                    let mut total = 0;
                    for child in 0..width {
                        let range = raidz.range_on(child.into(), offset, asize);
                        let mine = sectors(&[range], ashift);
                        let used = cells(&map, child, ashift);
                        assert!(used.is_subset(&mine), "{nparity} {width} {n} {child}");
                        total += mine.len() as u64;
                        let next = raidz.range_on(child.into(), offset + asize, asize);
                        assert_eq!(range.0 + range.1, next.0, "neighbours touch");
                    }
                    assert_eq!(total << ashift, asize, "all sectors and no other");
                    offset += asize;
                }
            }
        }
    }

    #[test]
    fn draid_ranges_are_the_columns_of_their_blocks() {
        for (ndata, nparity, nspares, children) in
            [(3u32, 1u32, 1u32, 6usize), (2, 2, 0, 8), (4, 3, 2, 11), (8, 1, 1, 14)]
        {
            let width = ndata + nparity;
            let disks = children as u32 - nspares;
            let ngroups = (1..).find(|n| (n * width) % disks == 0).unwrap();
            let params = DraidParams { ndata, nparity, nspares, ngroups, failure_group: 0 };
            for ashift in [9u32, 12] {
                let draid = DraidGeometry::new(&params, children, ashift).unwrap();
                let stripe = u64::from(width) << ashift;
                // Around the end of a group, too.
                let near = draid.group_size() - 40 * stripe;
                for (at, n) in (0..60u64).map(|i| (near + i * 3 * stripe, 1 + i * 5 % 37)) {
                    let psize = n << ashift;
                    let asize = draid.asize(psize);
                    let map = draid.map(at, psize).unwrap();
                    let mut total = 0;
                    for child in 0..children as u32 {
                        let mine = sectors(&draid.ranges_on(child, at, asize).unwrap(), ashift);
                        assert_eq!(cells(&map, child, ashift), mine, "{params:?} {at} {n} {child}");
                        total += mine.len() as u64;
                    }
                    assert_eq!(total << ashift, asize);
                    // Parts of a stripe belong to neither side.
                    let part =
                        draid.ranges_on(0, at + (1 << ashift), asize - (1 << ashift)).unwrap();
                    let whole = sectors(&draid.ranges_on(0, at, asize).unwrap(), ashift);
                    assert!(sectors(&part, ashift).is_subset(&whole));
                }
            }
        }
    }
}
