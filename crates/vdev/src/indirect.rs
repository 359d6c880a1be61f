//! Indirect vdevs: translating the addresses of removed vdevs (chapter 02 §12).
//!
//! # Invariants
//! * Entries are sorted, do not overlap, are not empty and do not overflow.

use base::{Error, Result, Txg, VdevId};

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
}

impl IndirectMap {
    /// Builds a mapping from entries and births (end offset of a range, txg in which it
    /// was copied) as stored, both ascending.
    ///
    /// # Errors
    /// `Corrupt` if either is out of order, or an entry is empty or overflows.
    pub fn new(entries: Vec<IndirectEntry>, births: Vec<(u64, Txg)>) -> Result<IndirectMap> {
        let mut end = 0u64;
        for entry in &entries {
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
        Ok(IndirectMap { entries, births })
    }

    /// The entries.
    pub fn entries(&self) -> &[IndirectEntry] {
        &self.entries
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

#[cfg(test)]
mod tests {
    use super::*;
    use base::ErrorKind;

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
                    start: 0,
                    len: 0x800,
                    vdev: VdevId(1),
                    offset: 0x8800,
                    birth: Some(Txg(7))
                },
                Segment {
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
}
