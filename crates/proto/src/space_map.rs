//! The space map of a pool on the wire.
//!
//! A pool has many metaslabs, so a reply has at most [`METASLABS_PAGE`] of them and says where
//! to continue. Pages of a pool that is being written may be of different txgs.

use base::{Guid, Txg};
use cenote::space_map::{MetaslabMap, PoolMap, SegmentHistogram, VdevMap};
use serde::{Deserialize, Serialize};

use crate::{VdevHealth, VdevRole};

/// Metaslabs in one reply: with the longest histograms they take 12 MiB.
pub(crate) const METASLABS_PAGE: usize = 8192;

/// A metaslab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetaslabSpace {
    /// Index in its vdev.
    pub id: u64,
    /// Bytes.
    pub size: u64,
    /// Bytes allocated.
    pub allocated: u64,
    /// Bytes of that which are in the log space maps alone.
    pub unflushed: i64,
    /// Percent.
    pub fragmentation: Option<u64>,
    /// Free segments by log2 of their size in bytes, without the zeros at the end.
    pub segments: Vec<u64>,
}

/// A top-level vdev with some of its metaslabs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VdevSpaceMap {
    /// Name for display.
    pub name: String,
    /// Index among the top-level vdevs.
    pub id: u64,
    /// Guid.
    pub guid: u64,
    /// Class.
    pub class: VdevRole,
    /// log2 of its sectors.
    pub ashift: u32,
    /// Bytes of a metaslab.
    pub metaslab_size: u64,
    /// Bytes in all metaslabs.
    pub size: u64,
    /// Bytes allocated.
    pub allocated: u64,
    /// Percent.
    pub fragmentation: Option<u64>,
    /// Free segments by log2 of their size in bytes.
    pub segments: Vec<u64>,
    /// Metaslabs by id.
    pub metaslabs: Vec<MetaslabSpace>,
}

/// A pool's space map, or a page of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceMap {
    /// Name.
    pub name: String,
    /// Guid.
    pub guid: u64,
    /// State of the whole pool.
    pub health: VdevHealth,
    /// The txg whose space this is.
    pub txg: u64,
    /// Version of the on-disk format.
    pub version: u64,
    /// Bytes in all metaslabs but those of logs.
    pub size: u64,
    /// Bytes allocated.
    pub allocated: u64,
    /// Percent.
    pub fragmentation: Option<u64>,
    /// Free segments by log2 of their size in bytes.
    pub segments: Vec<u64>,
    /// All top-level vdevs.
    pub vdevs: Vec<VdevSpaceMap>,
    /// Metaslabs of all vdevs to skip for the next page; `None` for the last page.
    pub next: Option<u64>,
}

impl SpaceMap {
    /// The page of a map that begins after `from` metaslabs, counted over all vdevs in order.
    pub fn page(map: PoolMap, from: u64) -> SpaceMap {
        let mut skip = usize::try_from(from).unwrap_or(usize::MAX);
        let (mut room, mut rest) = (METASLABS_PAGE, false);
        let mut vdevs = Vec::with_capacity(map.vdevs.len());
        for v in map.vdevs {
            let begin = skip.min(v.metaslabs.len());
            let end = v.metaslabs.len().min(begin.saturating_add(room));
            skip -= begin;
            room -= end - begin;
            rest |= end < v.metaslabs.len();
            let taken = v.metaslabs.into_iter().take(end).skip(begin);
            vdevs.push(VdevSpaceMap {
                name: v.name,
                id: v.id,
                guid: v.guid.0,
                class: v.class.into(),
                ashift: v.ashift,
                metaslab_size: v.metaslab_size,
                size: v.size,
                allocated: v.allocated,
                fragmentation: v.fragmentation,
                segments: v.segments.counts().to_vec(),
                metaslabs: taken.map(MetaslabSpace::from).collect(),
            });
        }
        let sent = u64::try_from(METASLABS_PAGE - room).unwrap_or(u64::MAX);
        SpaceMap {
            name: map.name,
            guid: map.guid.0,
            health: map.state.into(),
            txg: map.txg.0,
            version: map.version,
            size: map.size,
            allocated: map.allocated,
            fragmentation: map.fragmentation,
            segments: map.segments.counts().to_vec(),
            vdevs,
            next: rest.then(|| from.saturating_add(sent)),
        }
    }

    /// Adds the metaslabs of the next page.
    pub fn append(&mut self, page: SpaceMap) {
        for from in page.vdevs {
            if let Some(to) = self.vdevs.iter_mut().find(|v| v.id == from.id) {
                to.metaslabs.extend(from.metaslabs);
            }
        }
        self.next = page.next;
    }
}

impl From<MetaslabMap> for MetaslabSpace {
    fn from(m: MetaslabMap) -> MetaslabSpace {
        MetaslabSpace {
            id: m.id,
            size: m.size,
            allocated: m.allocated,
            unflushed: m.unflushed,
            fragmentation: m.fragmentation,
            segments: m.segments.counts().to_vec(),
        }
    }
}

impl From<MetaslabSpace> for MetaslabMap {
    fn from(m: MetaslabSpace) -> MetaslabMap {
        MetaslabMap {
            id: m.id,
            size: m.size,
            allocated: m.allocated,
            unflushed: m.unflushed,
            fragmentation: m.fragmentation,
            segments: SegmentHistogram::new(m.segments),
        }
    }
}

impl From<SpaceMap> for PoolMap {
    fn from(map: SpaceMap) -> PoolMap {
        let vdev = |v: VdevSpaceMap| VdevMap {
            name: v.name,
            id: v.id,
            guid: Guid(v.guid),
            class: v.class.into(),
            ashift: v.ashift,
            metaslab_size: v.metaslab_size,
            size: v.size,
            allocated: v.allocated,
            fragmentation: v.fragmentation,
            segments: SegmentHistogram::new(v.segments),
            metaslabs: v.metaslabs.into_iter().map(MetaslabMap::from).collect(),
        };
        PoolMap {
            name: map.name,
            guid: Guid(map.guid),
            state: map.health.into(),
            txg: Txg(map.txg),
            version: map.version,
            size: map.size,
            allocated: map.allocated,
            fragmentation: map.fragmentation,
            segments: SegmentHistogram::new(map.segments),
            vdevs: map.vdevs.into_iter().map(vdev).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote::{VdevClass, VdevState};

    fn map(counts: &[usize]) -> PoolMap {
        let metaslab = |id: usize| MetaslabMap {
            id: id as u64,
            size: 1 << 24,
            allocated: u64::MAX,
            unflushed: i64::MIN,
            fragmentation: Some(u64::MAX),
            segments: SegmentHistogram::new([u64::MAX; 64]),
        };
        let vdev = |(id, n): (usize, &usize)| VdevMap {
            name: format!("disk{id}"),
            id: id as u64,
            guid: Guid(7),
            class: VdevClass::Special,
            ashift: 12,
            metaslab_size: 1 << 24,
            size: 5,
            allocated: 4,
            fragmentation: None,
            segments: SegmentHistogram::new([0, 3]),
            metaslabs: (0..*n).map(metaslab).collect(),
        };
        PoolMap {
            name: "tank".into(),
            guid: Guid(1),
            state: VdevState::Degraded,
            txg: Txg(3),
            version: 5000,
            size: 10,
            allocated: 9,
            fragmentation: Some(12),
            segments: SegmentHistogram::default(),
            vdevs: counts.iter().enumerate().map(vdev).collect(),
        }
    }

    #[test]
    fn pages_join_to_the_whole_map_and_fit_into_frames() {
        for counts in [&[][..], &[0], &[3, 0, 5], &[8192], &[8193, 2], &[5000, 12_000, 1]] {
            let whole = map(counts);
            let mut joined = SpaceMap::page(whole.clone(), 0);
            let mut pages = 1;
            while let Some(next) = joined.next {
                let page = SpaceMap::page(whole.clone(), next);
                crate::send(&mut Vec::new(), &page).unwrap();
                joined.append(page);
                pages += 1;
            }
            let all: usize = counts.iter().sum();
            assert_eq!(pages, all.div_ceil(METASLABS_PAGE).max(1), "{counts:?}");
            assert!(PoolMap::from(joined) == whole, "{counts:?}");
            let beyond = SpaceMap::page(whole, u64::MAX);
            assert!(beyond.next.is_none() && beyond.vdevs.iter().all(|v| v.metaslabs.is_empty()));
        }
    }
}
