//! The space map of a pool: how full and how fragmented each metaslab is (chapter 05 §1, §12.3).
//!
//! # Theory
//! A metaslab's space map has a header with the bytes allocated and a histogram of its free
//! segments. Both are as of the metaslab's last flush. Changes since then are in the log space
//! maps: `allocated` includes them, the histogram and the fragmentation derived from it do not.
//! So the values are those that `zpool list` and `zdb -mm` of OpenZFS show. A metaslab in which
//! nothing was ever allocated has no space map; here it counts as one free segment.
//!
//! # Invariants
//! * A vdev has at most `spa::space::METASLABS_MAX` metaslabs, a histogram [`CLASSES`] classes.
//!   No sum overflows, whatever the headers contain.

use base::{Guid, Result, Txg};
use metaslab::{Fragmentation, SpaceClass};
use spa::space::{Metaslab, PoolSpace, VdevSpace};
use spa::status::{VdevClass, VdevState, VdevStatus};
use vdev::AllocClass;

use crate::pool::Pool;

pub use metaslab::FreeSizes;

/// Classes of sizes in a [`SegmentHistogram`]: powers of two from 1 byte on.
pub const CLASSES: usize = 64;

/// A histogram of free segments.
///
/// Class `i` counts segments of `2^i` bytes to less than `2^(i+1)` bytes. A segment larger than
/// the last bucket of a space map's header counts as several segments of that bucket's size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentHistogram {
    /// Counts from class 0 on, without the zeros at the end.
    counts: Vec<u64>,
}

impl SegmentHistogram {
    /// A histogram of counts by class. Classes beyond the last one are added to it.
    pub fn new(counts: impl IntoIterator<Item = u64>) -> SegmentHistogram {
        let mut out = SegmentHistogram::default();
        counts.into_iter().enumerate().for_each(|(class, n)| out.add(class, n));
        out
    }

    fn add(&mut self, class: usize, count: u64) {
        let class = class.min(CLASSES - 1);
        if count > 0 && self.counts.len() <= class {
            self.counts.resize(class + 1, 0);
        }
        if let Some(n) = self.counts.get_mut(class) {
            *n = n.saturating_add(count);
        }
    }

    /// Adds the segments of another histogram.
    pub fn merge(&mut self, other: &SegmentHistogram) {
        other.counts.iter().enumerate().for_each(|(class, &n)| self.add(class, n));
    }

    /// Counts from class 0 on, without the zeros at the end.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// The classes from the first to the last that has segments, as log2 of bytes, with their
    /// counts.
    pub fn rows(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        (0u32..).zip(self.counts.iter().copied()).skip_while(|(_, n)| *n == 0)
    }

    /// Bytes in the segments of one class, counted with the smallest size of the class.
    pub fn bytes(class: u32, count: u64) -> u64 {
        1u64.checked_shl(class).unwrap_or(u64::MAX).saturating_mul(count)
    }
}

/// One metaslab.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetaslabMap {
    /// Index in its vdev.
    pub id: u64,
    /// Bytes.
    pub size: u64,
    /// Bytes allocated, including changes in the log space maps.
    pub allocated: u64,
    /// Part of `allocated` that is in the log space maps alone, in bytes; negative if more was
    /// freed. `zdb -m` leaves it out.
    pub unflushed: i64,
    /// Fragmentation of the free space, percent; `None` if its space map has no histogram.
    pub fragmentation: Option<u64>,
    /// Free segments as of the last flush.
    pub segments: SegmentHistogram,
}

impl MetaslabMap {
    /// Bytes free.
    pub fn free(&self) -> u64 {
        self.size.saturating_sub(self.allocated)
    }
}

/// A top-level vdev.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VdevMap {
    /// Name as in `zpool status`: a path, `mirror-0`, `raidz2-1`.
    pub name: String,
    /// Index among the top-level vdevs.
    pub id: u64,
    /// Guid.
    pub guid: Guid,
    /// Allocation class: normal, special, dedup or log.
    pub class: VdevClass,
    /// log2 of its sector in bytes.
    pub ashift: u32,
    /// Bytes of a metaslab, except where the vdev's layout shortens it.
    pub metaslab_size: u64,
    /// Bytes in all metaslabs, parity included.
    pub size: u64,
    /// Bytes allocated, parity included.
    pub allocated: u64,
    /// Fragmentation of the free space, percent, as `zpool list -v` shows it.
    pub fragmentation: Option<u64>,
    /// Free segments of all metaslabs.
    pub segments: SegmentHistogram,
    /// The metaslabs by id.
    pub metaslabs: Vec<MetaslabMap>,
}

impl VdevMap {
    /// Bytes free.
    pub fn free(&self) -> u64 {
        self.size.saturating_sub(self.allocated)
    }
}

/// The space of a pool, metaslab by metaslab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolMap {
    /// Name.
    pub name: String,
    /// Guid.
    pub guid: Guid,
    /// State of the pool as a whole.
    pub state: VdevState,
    /// The txg whose space this is.
    pub txg: Txg,
    /// Version of the on-disk format; 5000 with feature flags.
    pub version: u64,
    /// Bytes in all metaslabs but those of log vdevs, parity included.
    pub size: u64,
    /// Bytes allocated, likewise.
    pub allocated: u64,
    /// Fragmentation of the normal class, percent, as `zpool list` shows it.
    pub fragmentation: Option<u64>,
    /// Free segments of all vdevs but log vdevs.
    pub segments: SegmentHistogram,
    /// The top-level vdevs: normal ones, then dedup, special, log.
    pub vdevs: Vec<VdevMap>,
}

impl PoolMap {
    /// Bytes free.
    pub fn free(&self) -> u64 {
        self.size.saturating_sub(self.allocated)
    }
}

/// `part` of `whole` in whole percent, rounded down, as `zpool list` shows CAP; 0 of nothing.
pub fn percent(part: u64, whole: u64) -> u64 {
    let percent = (u128::from(part) * 100).checked_div(u128::from(whole)).unwrap_or(0);
    u64::try_from(percent).unwrap_or(u64::MAX)
}

/// Several metaslabs as one: sums, and the mean fragmentation weighted by free space. `id` is
/// that of the first.
pub fn combine(metaslabs: &[MetaslabMap]) -> MetaslabMap {
    let mut out = MetaslabMap { id: metaslabs.first().map_or(0, |m| m.id), ..Default::default() };
    for m in metaslabs {
        out.size = out.size.saturating_add(m.size);
        out.allocated = out.allocated.saturating_add(m.allocated);
        out.unflushed = out.unflushed.saturating_add(m.unflushed);
        out.segments.merge(&m.segments);
    }
    let parts = metaslabs.iter().map(|m| (m.free(), m.fragmentation));
    out.fragmentation = Fragmentation::of_group(parts).0;
    out
}

impl Pool {
    /// The pool's space, metaslab by metaslab.
    ///
    /// # Errors
    /// Those of reading the MOS; `Corrupt` when the space maps contradict themselves.
    pub fn space_map(&self) -> Result<PoolMap> {
        let space = self.core.space()?;
        let (txg, version) = match &self.core.writer {
            Some(writer) => {
                let uberblock = writer.published().uberblock;
                (uberblock.txg, uberblock.version)
            }
            None => {
                let uberblock = self.core.spa.uberblock();
                (uberblock.txg, uberblock.version)
            }
        };
        let root = self.core.spa.vdev_status();
        let mut out = of_space(&space, &root);
        self.name().clone_into(&mut out.name);
        (out.guid, out.txg, out.version) = (self.guid(), txg, version);
        Ok(out)
    }

    /// The ranges of all vdevs but logs that can be allocated at this moment, by size. What was
    /// freed in the last two txgs is not among them.
    ///
    /// # Errors
    /// `ReadOnly` for a pool that is not written; those of reading space maps.
    pub fn free_sizes(&self) -> Result<FreeSizes> {
        let writer = self.writer()?;
        let mut sum = FreeSizes::default();
        for (vdev, class) in writer.space().vdevs() {
            if class != SpaceClass::Log {
                sum.merge(&writer.free_sizes(vdev)?);
            }
        }
        Ok(sum)
    }
}

/// Everything but name, guid, txg and version.
fn of_space(space: &PoolSpace, root: &VdevStatus) -> PoolMap {
    let mut vdevs: Vec<VdevMap> = space.vdevs.iter().map(|v| of_vdev(v, root)).collect();
    let order = |class| match class {
        VdevClass::Normal => 0,
        VdevClass::Dedup => 1,
        VdevClass::Special => 2,
        VdevClass::Log | VdevClass::Cache | VdevClass::Spare => 3,
    };
    vdevs.sort_by_key(|v| (order(v.class), v.id));
    let mut segments = SegmentHistogram::default();
    let counted = vdevs.iter().filter(|v| v.class != VdevClass::Log);
    counted.for_each(|v| segments.merge(&v.segments));
    PoolMap {
        name: String::new(),
        guid: Guid(0),
        state: root.state(),
        txg: Txg::ZERO,
        version: 0,
        size: space.size(),
        allocated: space.allocated(),
        fragmentation: space.fragmentation(),
        segments,
        vdevs,
    }
}

fn of_vdev(v: &VdevSpace, root: &VdevStatus) -> VdevMap {
    let id = u64::from(v.vdev.0);
    let status = root.children.iter().find(|top| top.id == id);
    let metaslabs: Vec<MetaslabMap> =
        v.metaslabs.iter().map(|m| of_metaslab(m, v.ashift)).collect();
    let mut segments = SegmentHistogram::default();
    metaslabs.iter().for_each(|m| segments.merge(&m.segments));
    VdevMap {
        name: status.map_or_else(|| format!("vdev-{id}"), |top| top.name.clone()),
        id,
        guid: status.map_or(Guid(0), |top| top.guid),
        class: match v.class {
            AllocClass::Normal => VdevClass::Normal,
            AllocClass::Log => VdevClass::Log,
            AllocClass::Special => VdevClass::Special,
            AllocClass::Dedup => VdevClass::Dedup,
        },
        ashift: v.ashift,
        metaslab_size: 1u64.checked_shl(v.metaslab_shift).unwrap_or(0),
        size: v.size(),
        allocated: v.allocated(),
        fragmentation: v.fragmentation(),
        segments,
        metaslabs,
    }
}

fn of_metaslab(m: &Metaslab, ashift: u32) -> MetaslabMap {
    let mut segments = SegmentHistogram::default();
    if m.space_map != 0 {
        let shift = usize::try_from(ashift).unwrap_or(usize::MAX);
        let buckets = m.header.histogram.iter().flatten();
        buckets.enumerate().for_each(|(i, &n)| segments.add(shift.saturating_add(i), n));
    } else if m.allocated() == 0
        && let Some(class) = m.size.checked_ilog2()
    {
        segments.add(usize::try_from(class).unwrap_or(usize::MAX), 1);
    }
    MetaslabMap {
        id: m.id,
        size: m.size,
        allocated: m.allocated(),
        unflushed: m.unflushed_alloc,
        fragmentation: m.fragmentation(ashift),
        segments,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::VdevId;
    use ondisk::spacemap::Header;

    fn metaslab(id: u64, alloc: i64, histogram: Option<[u64; 32]>) -> Metaslab {
        let header = Header { alloc, histogram, ..Header::default() };
        Metaslab { id, size: 1 << 24, space_map: 5 + id, header, ..Metaslab::default() }
    }

    fn vdev(id: u32, class: AllocClass, metaslabs: Vec<Metaslab>) -> VdevSpace {
        let (ashift, metaslab_shift) = (9, 24);
        let vdev = VdevId(id);
        let empty = VdevSpace::default();
        VdevSpace { vdev, ashift, metaslab_shift, metaslabs, class, deflate: 512, ..empty }
    }

    #[test]
    fn classes_are_absolute_and_sums_leave_logs_out() {
        let mut histogram = [0; 32];
        (histogram[0], histogram[4]) = (3, 2);
        let normal = metaslab(0, 1 << 23, Some(histogram));
        let flushed = Metaslab { unflushed_alloc: 4096, ..metaslab(1, 1 << 22, None) };
        let space = PoolSpace {
            vdevs: vec![
                vdev(0, AllocClass::Log, vec![normal.clone()]),
                vdev(1, AllocClass::Normal, vec![normal, flushed]),
            ],
            ..PoolSpace::default()
        };
        let map = of_space(&space, &VdevStatus::default());
        assert_eq!(map.size, 2 << 24);
        assert_eq!(map.allocated, (1 << 23) + (1 << 22) + 4096);
        assert_eq!(
            map.segments.rows().collect::<Vec<_>>(),
            [(9, 3), (10, 0), (11, 0), (12, 0), (13, 2)]
        );
        let classes: Vec<VdevClass> = map.vdevs.iter().map(|v| v.class).collect();
        assert_eq!(classes, [VdevClass::Normal, VdevClass::Log]);
        let [first, second] = &map.vdevs[0].metaslabs[..] else { panic!("two metaslabs") };
        assert_eq!((first.free(), first.fragmentation), (1 << 23, Some(89)));
        assert_eq!((second.allocated, second.unflushed), ((1 << 22) + 4096, 4096));
        assert_eq!(second.fragmentation, None);
        let both = combine(&map.vdevs[0].metaslabs);
        assert_eq!((both.size, both.fragmentation), (2 << 24, Some(89)));
        assert_eq!(combine(&[]), MetaslabMap::default());
        assert_eq!((percent(1, 3), percent(7, 0), percent(u64::MAX, 1)), (33, 0, u64::MAX));
    }

    /// A pool was almost empty, and its histogram showed almost no free space: metaslabs
    /// without a space map were left out.
    #[test]
    fn an_untouched_metaslab_is_one_free_segment() {
        let untouched = Metaslab { space_map: 0, ..metaslab(0, 0, None) };
        let logged = Metaslab { unflushed_alloc: 512, ..untouched.clone() };
        let metaslabs = vec![untouched.clone(), untouched, logged];
        let space = PoolSpace {
            vdevs: vec![vdev(0, AllocClass::Normal, metaslabs)],
            ..PoolSpace::default()
        };
        let map = of_space(&space, &VdevStatus::default());
        assert_eq!(map.segments.rows().collect::<Vec<_>>(), [(24, 2)]);
        assert_eq!(map.fragmentation, Some(0));
    }

    /// Headers of a hostile pool: nothing overflows, nothing is negative.
    #[test]
    fn hostile_headers() {
        let evil = |id, alloc| metaslab(id, alloc, Some([u64::MAX; 32]));
        let metaslabs = vec![evil(0, i64::MAX), evil(1, i64::MIN), evil(2, -1)];
        let evil = VdevSpace { ashift: 60, ..vdev(0, AllocClass::Normal, metaslabs) };
        let space = PoolSpace { vdevs: vec![evil; 3], ..PoolSpace::default() };
        let map = of_space(&space, &VdevStatus::default());
        assert!(map.segments.counts().len() <= CLASSES);
        assert!(map.vdevs.iter().all(|v| v.fragmentation.is_some_and(|f| f <= 100)));
        assert_eq!(map.vdevs[0].metaslabs[1].allocated, 0);
        let many = SegmentHistogram::new([u64::MAX; 100]);
        assert_eq!((many.counts().len(), many.counts()[63]), (CLASSES, u64::MAX));
        assert_eq!(SegmentHistogram::bytes(63, 3), u64::MAX);
        assert_eq!(SegmentHistogram::bytes(64, 0), 0);
    }
}
