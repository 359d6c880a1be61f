//! Indirect vdevs: translating the addresses of removed vdevs (chapter 02 §12).
//!
//! # Invariants
//! * Entries are sorted, do not overlap, are not empty and do not overflow.

use base::limits::INDIRECT_HOPS_MAX;
use base::{Error, Result, Txg, VdevId};

use crate::tree::Tree;

/// `len` bytes at `src` of the removed vdev are now at `dst_offset` of `dst_vdev`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndirectEntry {
    /// First byte in the removed vdev.
    pub src: u64,
    /// Bytes.
    pub len: u64,
    /// The vdev to which they were copied; it may have been removed, too.
    pub dst_vdev: VdevId,
    /// First byte there.
    pub dst_offset: u64,
}

/// A contiguous piece of a translated range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Position of its entry in the mapping.
    pub entry: usize,
    /// Distance from the start of the requested range, in bytes.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// The vdev that holds the piece.
    pub vdev: VdevId,
    /// First byte of the piece in that vdev.
    pub offset: u64,
    /// The txg of the copy, if the births are known.
    pub birth: Option<Txg>,
}

/// A removed vdev's mapping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndirectMap {
    entries: Vec<IndirectEntry>,
    /// (end offset, copied in): ascending.
    births: Vec<(u64, Txg)>,
    /// Bytes of all entries.
    mapped: u64,
}

impl IndirectMap {
    /// Builds a mapping from entries and births (end offset of a range, txg in which it
    /// was copied) as stored, both ascending.
    ///
    /// # Errors
    /// `Corrupt` if either is out of order, or an entry is empty or overflows.
    pub fn new(entries: Vec<IndirectEntry>, births: Vec<(u64, Txg)>) -> Result<IndirectMap> {
        let (mut end, mut mapped) = (0u64, 0u64);
        for entry in &entries {
            mapped = mapped.saturating_add(entry.len);
            let next = entry.src.checked_add(entry.len);
            let fits = entry.dst_offset.checked_add(entry.len).is_some();
            match next {
                Some(next) if entry.len > 0 && entry.src >= end && fits => end = next,
                _ => return Err(Error::corrupt("a removed vdev's mapping is out of order")),
            }
        }
        if !births.is_sorted_by_key(|b| b.0) {
            return Err(Error::corrupt("a removed vdev's births are out of order"));
        }
        Ok(IndirectMap { entries, births, mapped })
    }

    /// The entries.
    pub fn entries(&self) -> &[IndirectEntry] {
        &self.entries
    }

    /// The same mapping without the entries that `keep` refuses by their positions.
    pub fn filtered(&self, mut keep: impl FnMut(usize) -> bool) -> IndirectMap {
        let kept = self.entries.iter().enumerate().filter(|(at, _)| keep(*at));
        let entries: Vec<IndirectEntry> = kept.map(|(_, entry)| *entry).collect();
        let mapped = entries.iter().map(|entry| entry.len).sum();
        IndirectMap { entries, births: self.births.clone(), mapped }
    }

    /// Adds the segments that one txg copied. They are ascending and behind all others, and the
    /// last one ends at `end`.
    ///
    /// # Errors
    /// `Corrupt` if they are out of order; nothing is added then.
    pub fn append(&mut self, entries: &[IndirectEntry], end: u64, txg: Txg) -> Result<()> {
        let more = IndirectMap::new(entries.to_vec(), vec![(end, txg)])?;
        let before = self.entries.last().map_or(0, |last| last.src + last.len);
        let last = more.entries.last().map_or(0, |last| last.src + last.len);
        let births = self.births.last().is_none_or(|(at, _)| *at <= end);
        if more.entries.first().is_some_and(|first| first.src < before) || last > end || !births {
            return Err(Error::corrupt("a removed vdev's mapping is out of order"));
        }
        self.mapped = self.mapped.saturating_add(more.mapped);
        self.entries.extend(more.entries);
        self.births.extend(more.births);
        Ok(())
    }

    /// Bytes of all entries.
    pub fn mapped(&self) -> u64 {
        self.mapped
    }

    /// The txgs in which something was copied.
    pub fn births(&self) -> impl Iterator<Item = Txg> + '_ {
        self.births.iter().map(|(_, txg)| *txg)
    }

    /// The txg in which the byte at `offset` was copied to its present location.
    pub fn birth(&self, offset: u64) -> Option<Txg> {
        let at = self.births.partition_point(|b| b.0 <= offset);
        self.births.get(at).map(|b| b.1)
    }

    /// The pieces that hold `len` bytes from `offset`, in order.
    ///
    /// # Errors
    /// `Corrupt` if a byte of the range is not mapped.
    pub fn segments(&self, offset: u64, len: u64) -> Result<Vec<Segment>> {
        let unmapped = || Error::corrupt("an address on a removed vdev is not mapped");
        let end = offset.checked_add(len).ok_or_else(unmapped)?;
        let mut at = offset;
        let mut index = self.entries.partition_point(|e| e.src + e.len <= offset);
        let mut segments = Vec::new();
        while at < end {
            let entry = self.entries.get(index).filter(|e| e.src <= at).ok_or_else(unmapped)?;
            let skip = at - entry.src;
            let part = (entry.len - skip).min(end - at);
            segments.push(Segment {
                entry: index,
                start: at - offset,
                len: part,
                vdev: entry.dst_vdev,
                offset: entry.dst_offset + skip,
                birth: self.birth(at),
            });
            at += part;
            index += 1;
        }
        Ok(segments)
    }
}

impl Tree {
    /// The pieces of a range on vdevs that have not been removed, through as many mappings as
    /// they lead through; the range itself if its vdev was not removed. `birth` is that of the
    /// block.
    ///
    /// # Errors
    /// `Corrupt` if a byte is not mapped; `Limit` for a chain of removed vdevs that is too long.
    pub fn pieces(&self, vdev: VdevId, offset: u64, len: u64, birth: Txg) -> Result<Vec<Segment>> {
        let whole = Segment { entry: 0, start: 0, len, vdev, offset, birth: Some(birth) };
        let mut out = vec![whole];
        for _ in 0..INDIRECT_HOPS_MAX {
            let mut moved = false;
            let mut next = Vec::with_capacity(out.len());
            for at in out {
                let Some(map) = self.indirect(at.vdev) else {
                    next.push(at);
                    continue;
                };
                moved = true;
                for part in map.segments(at.offset, at.len)? {
                    let (start, birth) = (at.start + part.start, part.birth.or(at.birth));
                    next.push(Segment { start, birth, ..part });
                }
            }
            out = next;
            if !moved {
                return Ok(out);
            }
        }
        Err(Error::limit("an address is moved from one removed vdev to the next too often"))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base::{ErrorKind, Guid};
    use device::{Device, MemDevice};

    use super::*;
    use crate::{Spec, VdevKind};

    fn entry(src: u64, len: u64, vdev: u32, dst_offset: u64) -> IndirectEntry {
        IndirectEntry { src, len, dst_vdev: VdevId(vdev), dst_offset }
    }

    #[test]
    fn a_range_is_split_along_entries() {
        let entries = vec![entry(0x1000, 0x1000, 1, 0x8000), entry(0x2000, 0x800, 2, 0x200)];
        let map = IndirectMap::new(entries, vec![(0x2000, Txg(7)), (0x2800, Txg(9))]).unwrap();
        let parts = map.segments(0x1800, 0x1000).unwrap();
        assert_eq!(
            parts,
            [
                Segment {
                    entry: 0,
                    start: 0,
                    len: 0x800,
                    vdev: VdevId(1),
                    offset: 0x8800,
                    birth: Some(Txg(7))
                },
                Segment {
                    entry: 1,
                    start: 0x800,
                    len: 0x800,
                    vdev: VdevId(2),
                    offset: 0x200,
                    birth: Some(Txg(9))
                },
            ]
        );
        for (offset, len) in [(0xfff, 2), (0x2000, 0x801), (0x2800, 1), (u64::MAX, 2)] {
            assert_eq!(map.segments(offset, len).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }

    #[test]
    fn what_is_not_kept_is_not_mapped() {
        let entries = vec![entry(0, 512, 1, 0), entry(512, 512, 2, 0), entry(4096, 512, 3, 0)];
        let map = IndirectMap::new(entries, vec![(4608, Txg(5))]).unwrap();
        let less = map.filtered(|at| at != 1);
        assert_eq!(less.entries(), [map.entries()[0], map.entries()[2]]);
        assert_eq!((map.mapped(), less.mapped()), (1536, 1024));
        assert!(less.segments(0, 1024).is_err());
        let found = less.segments(4096, 512).unwrap();
        assert_eq!((found[0].entry, found[0].vdev, found[0].birth), (1, VdevId(3), Some(Txg(5))));
    }

    #[test]
    fn a_mapping_grows_txg_by_txg() {
        let mut map = IndirectMap::default();
        map.append(&[entry(0x1000, 0x1000, 1, 0)], 0x2000, Txg(7)).unwrap();
        map.append(&[entry(0x2000, 512, 2, 0), entry(0x4000, 512, 2, 512)], 0x4200, Txg(9))
            .unwrap();
        let all =
            [entry(0x1000, 0x1000, 1, 0), entry(0x2000, 512, 2, 0), entry(0x4000, 512, 2, 512)];
        let whole = IndirectMap::new(all.to_vec(), vec![(0x2000, Txg(7)), (0x4200, Txg(9))]);
        assert_eq!(map, whole.unwrap());
        for (entries, end) in [
            (vec![entry(0x4100, 512, 1, 0)], 0x4300),
            (vec![entry(0x4200, 512, 1, 0)], 0x4300),
            (vec![], 0x4000),
        ] {
            let before = map.clone();
            assert!(map.append(&entries, end, Txg(10)).is_err(), "{entries:?}");
            assert_eq!(map, before);
        }
    }

    #[test]
    fn disordered_mappings_are_refused() {
        for entries in [
            vec![entry(0x1000, 0x1000, 0, 0), entry(0x1800, 0x1000, 0, 0)],
            vec![entry(0, 0, 0, 0)],
            vec![entry(u64::MAX, 2, 0, 0)],
            vec![entry(0, 2, 0, u64::MAX)],
        ] {
            assert!(IndirectMap::new(entries, vec![]).is_err());
        }
        assert!(IndirectMap::new(vec![], vec![(5, Txg(1)), (4, Txg(2))]).is_err());
    }

    /// Vdev 0 was moved to vdev 1, and that to a mirror of two leaves, in txg 8 and 20.
    fn moved_twice() -> (Arc<Tree>, [Arc<MemDevice>; 2]) {
        let leaf = |i: u64| Spec::new(VdevKind::File, i, Guid(100 + i));
        let removed =
            |id: u64| Spec::new(VdevKind::Indirect, id, Guid(20 + id)).with_space(9, 1 << 20);
        let mirror = Spec::new(VdevKind::Mirror, 2, Guid(22))
            .with_children(vec![leaf(0), leaf(1)])
            .with_space(9, 1 << 20);
        let children = vec![removed(0), removed(1), mirror];
        let root = Spec::new(VdevKind::Root, 0, Guid(1)).with_children(children);
        let disks = [0, 1].map(|i| Arc::new(MemDevice::new(format!("{i}"), 6 << 20)));
        let tree = Tree::build(&root, &|leaf| {
            let disk = disks.get((leaf.guid.0 - 100) as usize).cloned();
            disk.map(|disk| disk as Arc<dyn Device>).ok_or_else(|| Error::not_found("no leaf"))
        });
        let tree = tree.unwrap();
        let first = vec![entry(0x1000, 0x1000, 1, 0x400)];
        let first = IndirectMap::new(first, vec![(0x2000, Txg(8))]).unwrap();
        let second = vec![entry(0x400, 0x800, 2, 0x8000), entry(0xc00, 0x800, 2, 0x200)];
        let second = IndirectMap::new(second, vec![(0xc00, Txg(20)), (0x1400, Txg(21))]).unwrap();
        tree.set_indirect(VdevId(0), Arc::new(first)).unwrap();
        tree.set_indirect(VdevId(1), Arc::new(second)).unwrap();
        (tree, disks)
    }

    #[test]
    fn pieces_lead_through_all_mappings() {
        let (tree, _) = moved_twice();
        let pieces = tree.pieces(VdevId(0), 0x1400, 0x600, Txg(5)).unwrap();
        let places = pieces.iter().map(|p| (p.start, p.len, p.vdev.0, p.offset, p.birth));
        let due = [(0, 0x400, 2, 0x8400, Some(Txg(20))), (0x400, 0x200, 2, 0x200, Some(Txg(21)))];
        assert_eq!(places.collect::<Vec<_>>(), due);
        let stays = tree.pieces(VdevId(2), 77, 512, Txg(5)).unwrap();
        assert_eq!((stays[0].offset, stays[0].birth), (77, Some(Txg(5))));
        let unmapped = tree.pieces(VdevId(0), 0x1fff, 2, Txg(5)).unwrap_err();
        assert_eq!(unmapped.kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn a_block_is_rewritten_where_it_is_now() {
        let (tree, disks) = moved_twice();
        let data = base::Buf::copy_of(&[7; 0x1000]);
        let healed = tree.rewrite(VdevId(0), 0x1000, &data, Txg(5)).unwrap();
        assert_eq!((healed.pieces, healed.bytes, healed.failed), (4, 0x2000, 0));
        for disk in &disks {
            for at in [0x200, 0x8000] {
                let found = disk.peek(crate::LABEL_START + at, 0x800).unwrap();
                assert_eq!(found, [7; 0x800]);
            }
        }
    }

    #[test]
    fn a_resilver_of_copies_visits_all_older_blocks() {
        let (tree, _) = moved_twice();
        assert!(tree.has_removed());
        tree.add_missing_range(Guid(100), Txg(9), Txg(12));
        assert_eq!(tree.resilver_range(), Some((Txg(8), Txg(12))));
        tree.add_missing_range(Guid(100), Txg(21), Txg(30));
        assert_eq!(tree.resilver_range(), Some((Txg(0), Txg(30))));
    }
}
