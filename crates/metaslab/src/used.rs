//! Used space of a metaslab, for the rebuild of a leaf and the removal of a vdev.
//!
//! # Theory
//! A rebuild copies what a vdev's space maps say is used, without a look at block pointers. Used
//! is everything that is not allocatable: also what was freed in the last txgs, to which older
//! uberblocks refer.
//!
//! Blocks that are allocated while the rebuild runs are written to the new leaf like to any
//! other, and need no copy. Worse, a copy from a leaf that is silently damaged would replace
//! right bytes. So a metaslab notes what it allocates from [`Space::note_allocations`] on, and
//! [`Space::used_ranges`] leaves that out. The notes are a hint: they are dropped above
//! [`NOTED_MAX`] ranges, and at the end of an import.
//!
//! The removal of a vdev copies blocks, not deferred frees: nothing would ever free the copies of
//! those ([`Space::live_ranges`]).
//!
//! # Invariants
//! * A range that was used before [`Space::note_allocations`] and is used since is returned.
//! * Ranges begin and end where blocks may.

use base::{Result, VdevId};

use crate::MsKey;
use crate::range_tree::{RangeTree, Seg};
use crate::slab::Metaslab;
use crate::space::Space;

/// Ranges that a metaslab notes.
const NOTED_MAX: usize = 1 << 14;
/// Ranges that one call returns.
const RANGES_MAX: usize = 4096;

/// The used ranges of a metaslab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsedSpace {
    /// The ranges from an offset on, ascending, and the offset up to which these are all.
    Ranges(Vec<Seg>, u64),
    /// The metaslab is not loaded.
    NotLoaded,
}

impl Metaslab {
    /// Notes a range that is being allocated.
    pub(crate) fn note_allocated(&mut self, at: u64, size: u64) {
        if let Some(noted) = &mut self.noted {
            // It may have been freed and allocated again.
            let _before = noted.clear_range(at, size);
            if noted.len() > NOTED_MAX || noted.add(at, size).is_err() {
                noted.clear();
            }
        }
    }

    fn used_ranges(&self, from: u64, most: u64) -> UsedSpace {
        let Some(free) = &self.allocatable else { return UsedSpace::NotLoaded };
        let (end, align) = (self.start + self.size, self.align.max(1));
        let mut at = (from - from % align).max(self.start);
        let first = at;
        let mut free = free.from(first).peekable();
        let mut noted = self.noted.iter().flat_map(|noted| noted.from(first)).peekable();
        let (mut out, mut bytes): (Vec<Seg>, u64) = (Vec::new(), 0);
        let most = (most - most % align).max(align);
        while at < end {
            let hole = match (free.peek(), noted.peek()) {
                (Some(a), Some(b)) if a.start <= b.start => free.next(),
                (_, Some(_)) => noted.next(),
                (_, None) => free.next(),
            };
            let stop = hole.map_or(end, |hole| hole.start.min(end));
            if stop > at {
                let len = (stop - at).min(most - bytes);
                out.push(Seg { start: at, len });
                bytes += len;
                if bytes >= most || out.len() >= RANGES_MAX {
                    return UsedSpace::Ranges(out, at + len);
                }
            }
            at = at.max(hole.map_or(end, |hole| hole.end()));
        }
        UsedSpace::Ranges(out, at)
    }
}

impl Metaslab {
    fn live_ranges(&self, from: u64, most: u64) -> UsedSpace {
        let UsedSpace::Ranges(mut live, end) = self.used_ranges(from, most) else {
            return UsedSpace::NotLoaded;
        };
        let pending = self.pending.as_ref().map(|pending| &pending.free);
        let freed = [&self.freeing, &self.freed, &self.held];
        for set in freed.into_iter().chain(&self.defer).chain(pending) {
            if !set.is_empty() {
                live = live.into_iter().flat_map(|seg| without(seg, set)).collect();
            }
        }
        UsedSpace::Ranges(live, end)
    }
}

/// The parts of a range that are not in a set.
fn without(seg: Seg, set: &RangeTree) -> Vec<Seg> {
    let (mut out, mut at) = (Vec::new(), seg.start);
    for hole in set.from(seg.start).take_while(|hole| hole.start < seg.end()) {
        if hole.start > at {
            out.push(Seg { start: at, len: hole.start - at });
        }
        at = at.max(hole.end());
    }
    if at < seg.end() {
        out.push(Seg { start: at, len: seg.end() - at });
    }
    out
}

impl Space {
    /// The ranges of a metaslab that hold blocks, from an offset on, out of about `most` used
    /// bytes: without those that were freed and are not allocatable yet.
    ///
    /// # Errors
    /// `NotFound` if it does not exist.
    pub fn live_ranges(&self, key: MsKey, from: u64, most: u64) -> Result<UsedSpace> {
        let layout = self.layout();
        let (_, slab) = layout.slab(key)?;
        Ok(slab.with(|ms| ms.live_ranges(from, most)))
    }

    /// The used ranges of a metaslab from an offset on, of about `most` bytes.
    ///
    /// # Errors
    /// `NotFound` if it does not exist.
    pub fn used_ranges(&self, key: MsKey, from: u64, most: u64) -> Result<UsedSpace> {
        let layout = self.layout();
        let (_, slab) = layout.slab(key)?;
        Ok(slab.with(|ms| ms.used_ranges(from, most)))
    }

    /// Has the metaslabs of a vdev note what they allocate from now on, or forget it.
    ///
    /// # Errors
    /// `Corrupt` if there is no such vdev.
    pub fn note_allocations(&self, vdev: VdevId, on: bool) -> Result<()> {
        let layout = self.layout();
        for slab in &layout.group(vdev)?.slabs {
            slab.with(|ms| ms.noted = on.then(RangeTree::new));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SpaceClass, VdevDesc, Want};
    use base::{Dva, Txg};

    const V: VdevId = VdevId(0);
    const KEY: MsKey = MsKey { vdev: V, ms: 0 };

    fn space(align: u64) -> Space {
        let space = Space::new(1);
        let desc = VdevDesc {
            vdev: V,
            class: SpaceClass::Normal,
            asize: 16 << 20,
            ashift: 9,
            ms_shift: 24,
            align,
            data_disks: 1,
            allocating: true,
            metaslabs: vec![crate::MsDesc::default()],
        };
        space.add_vdev(&desc, None).unwrap();
        space
    }

    fn allocate(space: &Space, txg: u64, size: u64) -> Dva {
        let (class, txg) = (SpaceClass::Normal, Txg(txg));
        let want = Want {
            psize: size,
            record: 0,
            copies: 1,
            class,
            txg,
            hint: 1,
            metadata: false,
            gang_child: false,
            avoid: None,
        };
        space.allocate(&want, &|_| size).unwrap()[0]
    }

    fn write(space: &Space, txg: u64) {
        let facts =
            crate::MapFacts { logs: false, v2: true, long_header: true, block_size: 1 << 17 };
        for key in space.take_dirty(Txg(txg)) {
            if let Some(write) = space.prepare_write(key, Txg(txg), 1, &facts).unwrap() {
                space.written(key, 77 + key.ms, write.length + 8).unwrap();
            }
        }
        space.synced(Txg(txg), true).unwrap();
    }

    /// All used ranges, in steps of `most` bytes.
    fn used(space: &Space, most: u64) -> Vec<Seg> {
        let (mut out, mut from): (Vec<Seg>, u64) = (Vec::new(), 0);
        while from < 16 << 20 {
            let UsedSpace::Ranges(some, end) = space.used_ranges(KEY, from, most).unwrap() else {
                unreachable!("it is loaded")
            };
            assert!(end > from && some.iter().all(|s| s.start >= from && s.end() <= end));
            for seg in some {
                match out.last_mut() {
                    Some(last) if last.end() == seg.start => last.len += seg.len,
                    _ => out.push(seg),
                }
            }
            from = end;
        }
        out
    }

    fn has(ranges: &[Seg], dva: Dva) -> bool {
        let end = dva.offset + dva.asize.0;
        ranges.iter().any(|seg| seg.start <= dva.offset && seg.end() >= end)
    }

    #[test]
    fn used_is_what_cannot_be_allocated() {
        let space = space(0);
        assert_eq!(space.used_ranges(KEY, 0, 1 << 20).unwrap(), UsedSpace::NotLoaded);
        let blocks: Vec<Dva> = (0..40).map(|_| allocate(&space, 4, 5 << 9)).collect();
        write(&space, 4);
        for (i, block) in blocks.iter().enumerate() {
            if i % 3 == 0 {
                space.free(Txg(5), *block).unwrap();
            }
        }
        write(&space, 5);
        assert!(blocks.iter().all(|b| has(&used(&space, 1 << 20), *b)), "deferred frees are used");
        (6..9).for_each(|txg| write(&space, txg));
        for most in [1, 512, 7 << 9, 1 << 20] {
            let used = used(&space, most);
            for (i, block) in blocks.iter().enumerate() {
                assert_eq!(has(&used, *block), i % 3 != 0, "{i} {most}");
            }
            assert_eq!(used.iter().map(|s| s.len).sum::<u64>(), 26 * (5 << 9), "{most}");
        }
        let UsedSpace::Ranges(none, end) = space.used_ranges(KEY, u64::MAX - 511, 1).unwrap()
        else {
            unreachable!("it is loaded")
        };
        assert!(none.is_empty() && end >= 16 << 20, "an offset from a disk may be anything");
    }

    /// Frees are not live from the moment at which they are made.
    #[test]
    fn live_is_what_was_not_freed() {
        let space = space(0);
        let blocks: Vec<Dva> = (0..40).map(|_| allocate(&space, 4, 5 << 9)).collect();
        write(&space, 4);
        let live = |from, most| match space.live_ranges(KEY, from, most).unwrap() {
            UsedSpace::Ranges(ranges, _) => ranges,
            UsedSpace::NotLoaded => unreachable!("it is loaded"),
        };
        let check = |when: &str| {
            let ranges = live(0, 1 << 20);
            for (i, block) in blocks.iter().enumerate() {
                assert_eq!(has(&ranges, *block), i % 3 != 0, "{i} {when}");
            }
            assert_eq!(ranges.iter().map(|s| s.len).sum::<u64>(), 26 * (5 << 9), "{when}");
        };
        for block in blocks.iter().step_by(3) {
            space.free(Txg(5), *block).unwrap();
        }
        check("being freed");
        for txg in 5..10 {
            write(&space, txg);
            check("freed");
        }
        let middle = blocks[4].offset + 512;
        let first = live(middle, 512);
        assert_eq!(first, [Seg { start: middle, len: 512 }]);
    }

    #[test]
    fn new_allocations_are_left_out() {
        let space = space(0);
        let old = allocate(&space, 4, 1 << 16);
        let freed = allocate(&space, 4, 1 << 16);
        write(&space, 4);
        space.free(Txg(5), freed).unwrap();
        (5..8).for_each(|txg| write(&space, txg));
        space.note_allocations(V, true).unwrap();
        let new: Vec<Dva> = (0..255).map(|_| allocate(&space, 8, 1 << 16)).collect();
        assert!(new.iter().any(|dva| dva.offset == freed.offset), "it is used again");
        let only = [Seg { start: old.offset, len: 1 << 16 }];
        assert_eq!(used(&space, 1 << 20), only);
        write(&space, 8);
        assert_eq!(used(&space, 1 << 20), only);
        // Freed and allocated again: noted still.
        new.iter().for_each(|dva| space.free(Txg(9), *dva).unwrap());
        (9..12).for_each(|txg| write(&space, txg));
        let _again: Vec<Dva> = (0..255).map(|_| allocate(&space, 12, 1 << 16)).collect();
        assert_eq!(used(&space, 1 << 20), only);
        space.note_allocations(V, false).unwrap();
        assert_eq!(used(&space, 1 << 20).iter().map(|s| s.len).sum::<u64>(), 256 << 16);
    }

    #[test]
    fn ranges_are_cut_where_blocks_may_begin() {
        let align = 5 << 9;
        let space = space(align);
        let blocks: Vec<Dva> = (0..30).map(|_| allocate(&space, 4, align)).collect();
        write(&space, 4);
        for from in [0, 700, align + 3] {
            let UsedSpace::Ranges(some, end) = space.used_ranges(KEY, from, 3000).unwrap() else {
                unreachable!("it is loaded")
            };
            let whole = |n: u64| n.is_multiple_of(align);
            assert!(some.iter().all(|s| whole(s.start) && whole(s.len)), "{some:?}");
            assert!(whole(end) || end >= 16 << 20);
        }
        assert_eq!(blocks.len(), 30);
    }
}
