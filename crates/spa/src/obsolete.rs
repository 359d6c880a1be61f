//! Obsolete bytes of the mappings of removed vdevs, as they are stored (chapter 08 §D.4).
//!
//! # Theory
//! Of each entry of a mapping some bytes may be obsolete: no pointer refers to them any more,
//! and their copies are free. They are recorded in two steps. A free appends its range
//! to the vdev's *obsolete map*. When the mapping is condensed, the map is put aside, and its
//! bytes are added to the *counts* of the new mapping: a number for each entry. So the obsolete
//! bytes of an entry are its count and what is in the obsolete map and in the one put aside.
//!
//! # Invariants
//! * [`Counts`] never has more obsolete bytes of an entry than the entry has bytes.

use base::{Error, Result, VdevId};
use dsl::Mos;
use dsl::write::MosRead;
use dsl::write::store::DIRECTORY;
use ondisk::ObjType;
use ondisk::config::{PoolConfig, VdevConfig, VdevType};
use ondisk::objtype::Byteswap;
use ondisk::removal::MappingHeader;
use vdev::{IndirectEntry, IndirectMap};

/// The key of a vdev's obsolete map in its ZAP.
pub(crate) const MAP_KEY: &str = "com.delphix:indirect_obsolete_sm";
/// The key of a vdev's ZAP that says that nothing was freed unrecorded.
pub(crate) const PRECISE_KEY: &str = "com.delphix:obsolete_counts_are_precise";
/// The entry of the object directory while a mapping is condensed.
pub(crate) const CONDENSING_KEY: &str = "com.delphix:condensing_indirect";

/// The mapping that is being condensed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CondenseRecord {
    /// Its vdev.
    pub(crate) vdev: VdevId,
    /// The obsolete map that was put aside; 0 for none.
    pub(crate) aside: u64,
    /// The new mapping.
    pub(crate) next: u64,
}

impl CondenseRecord {
    /// The record of a pool; `None` if nothing is being condensed.
    ///
    /// # Errors
    /// `Corrupt` for a record of another form; those of reading.
    pub(crate) fn stored(mos: &dyn MosRead) -> Result<Option<CondenseRecord>> {
        let Some(value) = mos.zap_lookup(DIRECTORY, CONDENSING_KEY.as_bytes())? else {
            return Ok(None);
        };
        let odd = || Error::corrupt("the record of a mapping that is condensed has another form");
        let words = value.u64s().ok_or_else(odd)?;
        let &[vdev, aside, next] = words.first_chunk().ok_or_else(odd)?;
        let vdev = VdevId(u32::try_from(vdev).map_err(|_| odd())?);
        Ok(Some(CondenseRecord { vdev, aside, next }))
    }
}

/// The removed vdevs of a configuration.
pub(crate) fn removed_vdevs(config: &PoolConfig) -> impl Iterator<Item = &VdevConfig> {
    config.vdev_tree.children.iter().filter(|c| c.kind == VdevType::Indirect)
}

/// The header of a mapping.
///
/// # Errors
/// `Corrupt` if the object is none; those of reading.
pub(crate) fn mapping_header(mos: &dyn MosRead, object: u64) -> Result<MappingHeader> {
    let info = mos.info(object)?;
    MappingHeader::parse(&info.bonus, info.endian)
}

/// Obsolete bytes by entry of a mapping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts(Vec<u32>);

fn too_many() -> Error {
    Error::corrupt("more of a removed vdev's mapping is obsolete than there is")
}

impl Counts {
    /// Nothing of `map` is obsolete.
    pub(crate) fn none(map: &IndirectMap) -> Counts {
        Counts(vec![0; map.entries().len()])
    }

    /// The counts that a mapping has.
    ///
    /// # Errors
    /// `Corrupt` if they contradict the mapping; those of reading.
    pub(crate) fn load(mos: &Mos, header: &MappingHeader, map: &IndirectMap) -> Result<Counts> {
        let mut out = Counts::none(map);
        let Some(object) = header.counts else { return Ok(out) };
        let handle = mos.object(object.0)?;
        let words = handle.dnode().object_type.byteswap() == Byteswap::Uint32;
        let size = usize::try_from(handle.block_size()).unwrap_or(0);
        if !words || size < 4 {
            return Err(Error::corrupt("the counts of a mapping are no numbers").in_object(object));
        }
        for (blkid, part) in out.0.chunks_mut(size / 4).enumerate() {
            let block = handle.read_little(blkid as u64, mos.io())?;
            for (count, bytes) in part.iter_mut().zip(block.as_chunks().0) {
                *count = u32::from_le_bytes(*bytes);
            }
        }
        let exceeds = |(count, entry): (&u32, &IndirectEntry)| u64::from(*count) > entry.len;
        if out.0.iter().zip(map.entries()).any(exceeds) {
            return Err(too_many().in_object(object));
        }
        Ok(out)
    }

    /// Adds an obsolete range.
    ///
    /// # Errors
    /// `Corrupt` if part of it is not mapped, or an entry has fewer bytes than are obsolete.
    pub(crate) fn add(&mut self, map: &IndirectMap, offset: u64, len: u64) -> Result<()> {
        for part in map.segments(offset, len)? {
            let of = map.entries().get(part.entry).map_or(0, |entry| entry.len);
            let count = self.0.get_mut(part.entry).ok_or_else(too_many)?;
            let sum = u64::from(*count).saturating_add(part.len);
            *count = u32::try_from(sum).ok().filter(|_| sum <= of).ok_or_else(too_many)?;
        }
        Ok(())
    }

    /// Obsolete bytes of all entries.
    pub(crate) fn total(&self) -> u64 {
        self.0.iter().map(|count| u64::from(*count)).sum()
    }

    /// Obsolete bytes of an entry.
    pub(crate) fn of(&self, entry: usize) -> u32 {
        self.0.get(entry).copied().unwrap_or(0)
    }
}

/// Whether a condensed mapping has an entry: some of it is not obsolete.
pub(crate) fn is_kept(counts: &Counts, at: usize, entry: &IndirectEntry) -> bool {
    u64::from(counts.of(at)) < entry.len
}

/// Whether an object is a space map.
pub(crate) fn is_space_map(mos: &dyn MosRead, object: u64) -> Result<bool> {
    Ok(mos.info(object)?.object_type == ObjType::SPACE_MAP)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> IndirectMap {
        let entry =
            |src, len, dst_offset| IndirectEntry { src, len, dst_vdev: VdevId(1), dst_offset };
        let entries = vec![entry(0, 4096, 0), entry(4096, 512, 8192), entry(8192, 1024, 512)];
        IndirectMap::new(entries, Vec::new()).unwrap()
    }

    #[test]
    fn ranges_are_added_to_their_entries() {
        let map = map();
        let mut counts = Counts::none(&map);
        counts.add(&map, 1024, 512).unwrap();
        counts.add(&map, 3584, 1024).unwrap();
        counts.add(&map, 8192, 1024).unwrap();
        assert_eq!(counts, Counts(vec![1024, 512, 1024]));
        let kept = |at: usize| is_kept(&counts, at, &map.entries()[at]);
        assert_eq!([kept(0), kept(1), kept(2)], [true, false, false]);
    }

    #[test]
    fn impossible_ranges_are_refused() {
        let map = map();
        for (offset, len) in [(4608, 512), (0, 8192), (9216, 1), (u64::MAX, 1), (0, u64::MAX)] {
            assert!(Counts::none(&map).add(&map, offset, len).is_err(), "{offset} {len}");
        }
        let mut counts = Counts::none(&map);
        counts.add(&map, 8192, 1024).unwrap();
        assert!(counts.add(&map, 8192, 1).is_err(), "twice");
    }
}
