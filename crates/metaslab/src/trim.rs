//! Free space for discards and patterns: ranges of a metaslab that is excluded from allocation,
//! and the ranges that became free recently.
//!
//! # Theory
//! Only *allocatable* ranges may be discarded or overwritten (chapter 05 §3.2). A range that was
//! freed and is deferred, held by a pin, or kept by a checkpoint is not allocatable: an older
//! uberblock, a reader or the checkpoint may still need its content. The caller first excludes
//! the metaslab from allocation ([`Space::disable`]). From then on its allocatable set only
//! grows, so a range that [`Space::free_ranges`] returns stays free until the caller allows
//! allocation again.
//!
//! The excluding is not enough for older uberblocks. A range that was freed in txg T becomes
//! allocatable when T + 2 ends, and an import may go back two txgs from the newest uberblock. But
//! T + 1 and T + 2 may have left no uberblock, because nothing changed in them. So the caller
//! says which uberblock is the newest, and gets ranges only if no metaslab's range became
//! allocatable after it ([`FreeSpace::NotDurable`]). In a nearly full pool space is not deferred,
//! and no import can count on an older uberblock.
//!
//! While [`Space::set_collecting`] is on, each metaslab collects the ranges that become
//! allocatable, without those that are allocated again. The collection is a hint: it may be
//! dropped at any time, and is, above [`COLLECTED_MAX`] ranges.
//!
//! # Invariants
//! * What is collected of a loaded metaslab is allocatable.

use base::rt::atomic::Ordering;
use base::{Result, Txg, VdevId};

use crate::MsKey;
use crate::range_tree::{RangeTree, Seg};
use crate::slab::Metaslab;
use crate::space::Space;

/// Ranges that a metaslab collects.
const COLLECTED_MAX: usize = 1 << 16;

/// A metaslab's place and free bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaslabFree {
    /// The metaslab.
    pub key: MsKey,
    /// Its bytes of the vdev.
    pub seg: Seg,
    /// Bytes that are not allocated.
    pub free: u64,
    /// Whether it has a space map: something was allocated from it at some time.
    pub was_used: bool,
}

/// The allocatable ranges of a metaslab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FreeSpace {
    /// The ranges, ascending.
    Ranges(Vec<Seg>),
    /// The metaslab is not loaded.
    NotLoaded,
    /// An uberblock to which an import may go back refers to some of them. That ends with the
    /// uberblock of a later txg.
    NotDurable,
}

impl Metaslab {
    /// Collects a range that becomes allocatable.
    pub(crate) fn collect(&mut self, set: &RangeTree) {
        if let Some(recent) = &mut self.recent {
            for seg in set.iter() {
                // It was dropped when it was allocated, so it is not there.
                let _again = recent.add(seg.start, seg.len);
            }
            if recent.len() > COLLECTED_MAX {
                recent.clear();
            }
        }
    }

    /// A range is allocated.
    pub(crate) fn uncollect(&mut self, at: u64, size: u64) {
        if let Some(recent) = &mut self.recent {
            let _gone = recent.clear_range(at, size);
        }
    }

    fn free_ranges(&self, from: u64, most: usize, deferred: bool) -> FreeSpace {
        let Some(free) = &self.allocatable else { return FreeSpace::NotLoaded };
        let mut out: Vec<Seg> = free.from(from).take(most).collect();
        if deferred {
            let early = self.defer.iter().flat_map(|set| set.from(from));
            out.extend(early.take(most));
            out.sort_unstable_by_key(|seg| seg.start);
            out.truncate(most);
        }
        FreeSpace::Ranges(out)
    }

    /// Takes what was collected and is allocatable now.
    fn take_recent(&mut self) -> FreeSpace {
        let Some(free) = &self.allocatable else { return FreeSpace::NotLoaded };
        let recent = self.recent.as_mut().map(RangeTree::drain).unwrap_or_default();
        let still = recent.into_iter().filter(|seg| free.contains(seg.start, seg.len));
        FreeSpace::Ranges(still.collect())
    }
}

impl Space {
    /// The metaslabs of a vdev, ascending.
    ///
    /// # Errors
    /// `Corrupt` if there is no such vdev.
    pub fn metaslabs(&self, vdev: VdevId) -> Result<Vec<MetaslabFree>> {
        let layout = self.layout();
        let group = layout.group(vdev)?;
        let of = |(i, slab): (usize, &crate::group::LockedMetaslab)| {
            slab.with(|ms| MetaslabFree {
                key: MsKey { vdev, ms: i as u64 },
                seg: Seg { start: ms.start, len: ms.size },
                free: ms.size.saturating_sub(ms.allocated()),
                was_used: ms.object != 0,
            })
        };
        Ok(group.slabs.iter().enumerate().map(of).collect())
    }

    /// The allocatable ranges of a metaslab from an offset on, at most `most`. `newest`: the
    /// newest uberblock.
    ///
    /// # Errors
    /// `NotFound` if it does not exist, or is not excluded from allocation.
    pub fn free_ranges(
        &self,
        key: MsKey,
        newest: Txg,
        from: u64,
        most: usize,
    ) -> Result<FreeSpace> {
        let early = self.plant.trim_deferred.load(Ordering::Relaxed);
        self.excluded(key, if early { Txg::MAX } else { newest }, |ms| {
            ms.free_ranges(from, most, early)
        })
    }

    fn excluded(
        &self,
        key: MsKey,
        newest: Txg,
        ranges: impl FnOnce(&mut Metaslab) -> FreeSpace,
    ) -> Result<FreeSpace> {
        let layout = self.layout();
        let (_, slab) = layout.slab(key)?;
        slab.with(|ms| match (ms.disabled, ms.released > newest) {
            (0, _) => Err(base::bug!("free ranges of a metaslab that is in use")),
            (_, true) => Ok(FreeSpace::NotDurable),
            _ => Ok(ranges(ms)),
        })
    }

    /// Sets whether ranges that become allocatable are collected ([`Space::take_recent`]).
    pub fn set_collecting(&self, on: bool) {
        self.collecting.store(on, Ordering::Relaxed);
        for (_, slab) in self.layout().slabs() {
            slab.with(|ms| match on {
                true => ms.recent.get_or_insert_default().clear(),
                false => ms.recent = None,
            });
        }
    }

    /// Metaslabs that collected something.
    pub fn collected(&self) -> Vec<MsKey> {
        let layout = self.layout();
        let some = |ms: &mut Metaslab| ms.recent.as_ref().is_some_and(|r| !r.is_empty());
        layout.slabs().filter(|(_, slab)| slab.with(some)).map(|(key, _)| key).collect()
    }

    /// Takes the ranges that a metaslab collected and that are allocatable. `newest`: the newest
    /// uberblock.
    ///
    /// # Errors
    /// As [`Space::free_ranges`].
    pub fn take_recent(&self, key: MsKey, newest: Txg) -> Result<FreeSpace> {
        self.excluded(key, newest, Metaslab::take_recent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SpaceClass, VdevDesc, Want};
    use base::{Asize, Dva};

    const V: VdevId = VdevId(0);

    fn space() -> Space {
        let space = Space::new(1);
        let desc = VdevDesc {
            vdev: V,
            class: SpaceClass::Normal,
            asize: 64 << 20,
            ashift: 9,
            ms_shift: 24,
            align: 0,
            data_disks: 1,
            allocating: true,
            metaslabs: vec![crate::MsDesc::default(); 4],
        };
        space.add_vdev(&desc, None).unwrap();
        space
    }

    fn allocate(space: &Space, txg: u64, size: u64) -> Dva {
        let want = Want {
            psize: size,
            record: 0,
            copies: 1,
            class: SpaceClass::Normal,
            txg: Txg(txg),
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
        space.check().unwrap();
    }

    fn is_free(space: &Space, dva: Dva) -> bool {
        let key = MsKey { vdev: V, ms: dva.offset >> 24 };
        space.disable(key, true).unwrap();
        let ranges = space.free_ranges(key, space.synced_txg(), 0, usize::MAX).unwrap();
        space.disable(key, false).unwrap();
        let FreeSpace::Ranges(ranges) = ranges else { unreachable!("{ranges:?}") };
        let end = dva.offset + dva.asize.0;
        ranges.iter().any(|seg| seg.start < end && seg.end() > dva.offset)
    }

    fn recent(space: &Space) -> u64 {
        let mut sum = 0;
        for key in space.collected() {
            space.disable(key, true).unwrap();
            let ranges = space.take_recent(key, space.synced_txg()).unwrap();
            space.disable(key, false).unwrap();
            let FreeSpace::Ranges(ranges) = ranges else { unreachable!("{ranges:?}") };
            sum += ranges.iter().map(|seg| seg.len).sum::<u64>();
        }
        sum
    }

    /// A block is in the free ranges from the second txg after that which freed it, and is
    /// collected then, unless it is allocated again.
    #[test]
    fn freed_ranges_appear_when_they_are_allocatable() {
        let space = space();
        space.set_collecting(true);
        let block = allocate(&space, 4, 1 << 16);
        let other = allocate(&space, 4, 1 << 16);
        write(&space, 4);
        assert!(!is_free(&space, block));
        space.free(Txg(5), block).unwrap();
        for txg in 5..7 {
            write(&space, txg);
            assert!(!is_free(&space, block), "freed in 5, deferred in {txg}");
            assert_eq!(recent(&space), 0);
        }
        write(&space, 7);
        assert!(is_free(&space, block) && !is_free(&space, other));
        let pinned = space.pin(V, other.offset, Txg(7)).unwrap();
        space.free(Txg(8), other).unwrap();
        for txg in 8..13 {
            write(&space, txg);
        }
        assert!(pinned && !is_free(&space, other), "a pin holds it");
        assert_eq!(recent(&space), 1 << 16);
        assert_eq!(recent(&space), 0, "taken");
        space.unpin(V, other.offset);
        write(&space, 13);
        assert!(is_free(&space, other));
        // It is allocated again before it is taken.
        let all: Vec<Dva> = (0..)
            .map_while(|_| {
                let want = Want {
                    psize: 1 << 16,
                    record: 0,
                    copies: 1,
                    class: SpaceClass::Normal,
                    txg: Txg(14),
                    hint: 1,
                    metadata: false,
                    gang_child: false,
                    avoid: None,
                };
                space.allocate(&want, &|_| 1 << 16).ok().map(|dvas| dvas[0])
            })
            .collect();
        assert!(all.iter().any(|dva| dva.offset == other.offset));
        assert_eq!(recent(&space), 0);
        let _size: Asize = other.asize;
    }

    #[test]
    fn ranges_of_a_metaslab_in_use_are_refused() {
        let space = space();
        let key = MsKey { vdev: V, ms: 0 };
        assert!(base::bug::is_met(|| space.free_ranges(key, Txg::MAX, 0, 1)));
        assert!(base::bug::is_met(|| space.take_recent(key, Txg::MAX)));
    }

    /// Txgs without changes leave no uberblock: what they made allocatable waits for one.
    #[test]
    fn ranges_wait_for_an_uberblock() {
        let space = space();
        space.set_collecting(true);
        let block = allocate(&space, 4, 1 << 16);
        write(&space, 4);
        space.free(Txg(5), block).unwrap();
        (5..8).for_each(|txg| write(&space, txg));
        let key = MsKey { vdev: V, ms: block.offset >> 24 };
        space.disable(key, true).unwrap();
        for newest in 5..7 {
            let early = space.free_ranges(key, Txg(newest), 0, 9).unwrap();
            assert_eq!(early, FreeSpace::NotDurable);
            assert_eq!(space.take_recent(key, Txg(newest)).unwrap(), FreeSpace::NotDurable);
        }
        let ranges = space.take_recent(key, Txg(7)).unwrap();
        let seg = Seg { start: block.offset, len: 1 << 16 };
        assert_eq!(ranges, FreeSpace::Ranges(vec![seg]));
    }
}
