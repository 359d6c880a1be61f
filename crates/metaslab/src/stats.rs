//! Sums and statistics of space.

use base::{Result, Txg};
use ondisk::spacemap::HISTOGRAM_SIZE;

use crate::MsKey;
use crate::range_tree::{Histogram, Seg};
use crate::slab::Metaslab;
use crate::space::Space;

/// Bytes by state; raw, parity included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Sum of the metaslabs' sizes.
    pub capacity: u64,
    /// Allocated as of the last write of a pass.
    pub allocated: u64,
    /// Freed, but not yet allocatable (chapter 05 §6).
    pub deferred: u64,
    /// Allocated, but not yet counted in `allocated`.
    pub reserved: u64,
}

impl Totals {
    /// Bytes that can be allocated.
    pub fn free(&self) -> u64 {
        let taken = self.allocated.saturating_add(self.deferred).saturating_add(self.reserved);
        self.capacity.saturating_sub(taken)
    }

    /// The sum of two.
    #[must_use]
    pub fn plus(&self, other: &Totals) -> Totals {
        Totals {
            capacity: self.capacity + other.capacity,
            allocated: self.allocated + other.allocated,
            deferred: self.deferred + other.deferred,
            reserved: self.reserved + other.reserved,
        }
    }
}

/// A metaslab, as of the last write of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaslabStatus {
    /// Its place.
    pub seg: Seg,
    /// Its space map; 0 for none.
    pub object: u64,
    /// Bytes of that map.
    pub length: u64,
    /// Bytes that are allocated according to that map alone.
    pub own_allocated: u64,
    /// Bytes that are allocated.
    pub allocated: u64,
    /// Free segments by size, as stored; `None` if the map does not have them.
    pub histogram: Option<[u64; HISTOGRAM_SIZE]>,
    /// The first txg whose changes are in the log space maps alone; 0 for none.
    pub unflushed_txg: Txg,
    /// Ranges of these changes.
    pub unflushed_ranges: u64,
}

impl Metaslab {
    pub(crate) fn status(&self) -> MetaslabStatus {
        MetaslabStatus {
            seg: Seg { start: self.start, len: self.size },
            object: self.object,
            length: self.length,
            own_allocated: self.own_alloc,
            allocated: self.allocated(),
            histogram: (self.object != 0 && self.long_header).then_some(self.histogram),
            unflushed_txg: self.unflushed_txg,
            unflushed_ranges: (self.unflushed_allocs.len() + self.unflushed_frees.len()) as u64,
        }
    }
}

/// Free segments of a metaslab by size: bucket 0 counts those of one to two units of the vdev's
/// ashift, the last one all that are larger (§2.5).
pub type FreeHistogram = [u64; HISTOGRAM_SIZE];

/// The ranges that can be allocated, by size. A range ends with its metaslab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSizes {
    /// Entry `i` counts the ranges of `2^i ..= 2^(i+1)-1` bytes.
    pub counts: Histogram,
    /// Their bytes.
    pub bytes: [u64; 64],
    /// Bytes of the largest range.
    pub largest: u64,
}

impl Default for FreeSizes {
    fn default() -> FreeSizes {
        FreeSizes { counts: [0; 64], bytes: [0; 64], largest: 0 }
    }
}

impl FreeSizes {
    /// Adds a range.
    fn add(&mut self, len: u64) {
        let class = len.checked_ilog2().unwrap_or(0) as usize;
        if let (Some(count), Some(bytes)) = (self.counts.get_mut(class), self.bytes.get_mut(class))
        {
            *count += 1;
            *bytes = bytes.saturating_add(len);
        }
        self.largest = self.largest.max(len);
    }

    /// Adds the ranges of other metaslabs.
    pub fn merge(&mut self, other: &FreeSizes) {
        let add = |to: &mut [u64; 64], from: &[u64; 64]| {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = to.saturating_add(*from));
        };
        add(&mut self.counts, &other.counts);
        add(&mut self.bytes, &other.bytes);
        self.largest = self.largest.max(other.largest);
    }

    /// Number of ranges.
    pub fn ranges(&self) -> u64 {
        self.counts.iter().fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// Bytes of all ranges.
    pub fn space(&self) -> u64 {
        self.bytes.iter().fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// Fragmentation in percent, by the rule for space maps (§12.3), of the ranges as they are.
    pub fn fragmentation(&self) -> u64 {
        Fragmentation::of_classes((0..).zip(self.counts)).0.unwrap_or(0)
    }
}

impl Space {
    /// The ranges of a metaslab that can be allocated, by size; `None` if it is not loaded.
    /// What was freed in the last txgs is not among them.
    ///
    /// # Errors
    /// `NotFound` if it does not exist.
    pub fn free_sizes(&self, key: MsKey) -> Result<Option<FreeSizes>> {
        let layout = self.layout();
        let (_, slab) = layout.slab(key)?;
        Ok(slab.with(|ms| {
            let mut sizes = FreeSizes::default();
            ms.allocatable.as_ref()?.iter().for_each(|range| sizes.add(range.len));
            Some(sizes)
        }))
    }
}

/// Bytes held back so that a full pool can still free space (chapter 05 §11.2).
/// `rdspace` is the normal class's deflated capacity, `embedded_log` that of its
/// embedded logs.
pub fn slop(rdspace: u64, embedded_log: u64) -> u64 {
    let slop = (rdspace >> 5).min(128 << 30);
    let slop = slop - embedded_log.min(slop / 2);
    slop.max((rdspace / 2).min(128 << 20))
}

/// Percent by size of a free segment: 512 bytes to 512 MiB (§12.3).
const FACTORS: [u64; 21] =
    [100, 99, 97, 93, 88, 83, 77, 71, 64, 57, 50, 43, 36, 29, 23, 17, 12, 7, 3, 1, 0];

/// Fragmentation of free space in percent (§12.3); `None` if unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragmentation(pub Option<u64>);

impl Fragmentation {
    /// Fragmentation of one metaslab, from the histogram in its space map. Bucket 0 counts free
    /// segments of `2^shift` bytes. No histogram, however damaged, makes the sums overflow.
    pub fn of_histogram(histogram: &[u64; HISTOGRAM_SIZE], shift: u32) -> Fragmentation {
        Fragmentation::of_classes((u64::from(shift)..).zip(histogram.iter().copied()))
    }

    /// Fragmentation of segments by class: class `i` has those of `2^i` bytes and more.
    fn of_classes(classes: impl Iterator<Item = (u64, u64)>) -> Fragmentation {
        let (mut sum, mut weight) = (0u128, 0u128);
        for (class, n) in classes {
            let space = u128::from(n) << class.min(63);
            let step = usize::try_from(class.saturating_sub(9)).unwrap_or(usize::MAX);
            let factor = FACTORS[step.min(FACTORS.len() - 1)];
            sum = sum.saturating_add(space.saturating_mul(u128::from(factor)));
            weight = weight.saturating_add(space);
        }
        Fragmentation(Some(percent(sum, weight)))
    }

    /// Fragmentation over metaslabs with these free bytes and percentages: the mean, weighted
    /// by free space. It is unknown if that of more than half of the metaslabs is.
    pub fn of_group(slabs: impl Iterator<Item = (u64, Option<u64>)>) -> Fragmentation {
        let (mut all, mut valid, mut sum, mut weight) = (0u64, 0u64, 0u128, 0u128);
        for (free, percent) in slabs {
            all += 1;
            let Some(percent) = percent else { continue };
            valid += 1;
            sum = sum.saturating_add(u128::from(free) * u128::from(percent));
            weight = weight.saturating_add(u128::from(free));
        }
        let known = all > 0 && valid * 2 >= all;
        Fragmentation(known.then(|| percent(sum, weight)))
    }
}

fn percent(sum: u128, weight: u128) -> u64 {
    u64::try_from(sum / weight.max(1)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slop_of_the_chapter() {
        let m = 1u64 << 20;
        let vectors = [(100, 50), (2048, 128), (10 << 10, 320), (1 << 20, 32 << 10)];
        for (space, expect) in vectors {
            assert_eq!(slop(space * m, 0), expect * m);
        }
        assert_eq!(slop(8 << 40, 0), 128 << 30);
        assert_eq!(slop(10 << 30, 64 << 20), 256 << 20);
    }

    #[test]
    fn fragmentation_of_the_chapter() {
        let mut histogram = [0; HISTOGRAM_SIZE];
        for class in [12, 15, 25] {
            histogram[class - 9] = 1;
        }
        let of = Fragmentation::of_histogram;
        assert_eq!(of(&histogram, 9), Fragmentation(Some(12)));
        assert_eq!(of(&[0; HISTOGRAM_SIZE], 12), Fragmentation(Some(0)));
        let half = [(10, Some(50)), (30, Some(10)), (5, None), (5, None)];
        assert_eq!(Fragmentation::of_group(half.into_iter()), Fragmentation(Some(20)));
        let few = [(10, Some(50)), (5, None), (5, None)];
        assert_eq!(Fragmentation::of_group(few.into_iter()), Fragmentation(None));
    }

    #[test]
    fn free_ranges_by_size() {
        let mut sizes = FreeSizes::default();
        assert_eq!((sizes.ranges(), sizes.space(), sizes.fragmentation()), (0, 0, 0));
        [4096, 8191, 1 << 15, 1 << 25].into_iter().for_each(|len| sizes.add(len));
        assert_eq!((sizes.counts[12], sizes.bytes[12]), (2, 4096 + 8191));
        assert_eq!((sizes.ranges(), sizes.largest), (4, 1 << 25));
        let mut histogram = [0; HISTOGRAM_SIZE];
        for (class, n) in [(12, 2), (15, 1), (25, 1)] {
            histogram[class - 9] = n;
        }
        let stored = Fragmentation::of_histogram(&histogram, 9);
        assert_eq!(stored, Fragmentation(Some(sizes.fragmentation())));
        let mut twice = sizes;
        twice.merge(&sizes);
        assert_eq!((twice.ranges(), twice.space()), (8, 2 * sizes.space()));
        assert_eq!((twice.largest, twice.fragmentation()), (1 << 25, sizes.fragmentation()));
    }

    /// Of a metaslab as it is: two blocks, one of which is freed and waits.
    #[test]
    fn free_ranges_of_a_metaslab() {
        let vdev = base::VdevId(0);
        let key = MsKey { vdev, ms: 0 };
        let space = Space::new(1);
        let desc = crate::VdevDesc {
            vdev,
            class: crate::SpaceClass::Normal,
            asize: 16 << 20,
            ashift: 9,
            ms_shift: 24,
            align: 0,
            data_disks: 1,
            allocating: true,
            metaslabs: vec![crate::MsDesc::default()],
        };
        space.add_vdev(&desc, None).unwrap();
        assert_eq!(space.free_sizes(key).unwrap(), None, "it is not loaded");
        assert!(space.free_sizes(MsKey { vdev, ms: 1 }).is_err());
        let plan = space.load_plan(key).unwrap().unwrap();
        space.load(&plan, std::iter::empty()).unwrap();
        let sizes = space.free_sizes(key).unwrap().unwrap();
        assert_eq!((sizes.ranges(), sizes.largest, sizes.space()), (1, 16 << 20, 16 << 20));
    }

    /// A damaged space map had 2^64 - 1 free segments in each bucket: the sums, of 128 bits,
    /// overflowed.
    #[test]
    fn no_histogram_overflows() {
        for shift in [0, 9, 16, 40, 64, u32::MAX] {
            let Fragmentation(percent) =
                Fragmentation::of_histogram(&[u64::MAX; HISTOGRAM_SIZE], shift);
            assert!(percent.is_some_and(|p| p <= 100), "{shift}: {percent:?}");
        }
        let most = [(u64::MAX, Some(u64::MAX)); 3];
        assert!(Fragmentation::of_group(most.into_iter()).0.is_some());
    }
}
