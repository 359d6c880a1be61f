//! Block reference tables as they are on disk: reading and judging them (chapter 08 §C.1).
//!
//! # Theory
//! Each top-level vdev with cloned blocks has an object whose bonus buffer names a ZAP of
//! exact counts. Its data are counters of the ZAP's entries, one for each 16 MiB, so that
//! memory can prove for most blocks that they are not in the ZAP.
//!
//! # Invariants
//! The counters add up to the number of entries that the header states, and that the ZAP
//! states. A table that does not hold this must not be written: a counter that is too small
//! would let the space of a shared block be freed ([`load`] fails, and the pool is only read).

use std::collections::{BTreeMap, BTreeSet};

use base::{Error, ErrorKind, Result, VdevId};
use dsl::Mos;
use dsl::write::features;
use ondisk::Endian;
use ondisk::brt::{BrtVdev, parse_directory_key};
use ondisk::config::PoolConfig;
use ondisk::zap::ZapValue;

/// The feature that counts the tables.
pub(crate) const BLOCK_CLONING: &str = "com.fudosecurity:block_cloning";
/// The feature of tables whose values are numbers instead of bytes.
pub(crate) const BLOCK_CLONING_ENDIAN: &str = "com.truenas:block_cloning_endian";
/// Counters of one table: 256 TiB in ranges of 16 MiB.
const COUNTERS_MAX: u64 = 1 << 24;
/// Bytes that one counter covers. With more, a counter of 16 bits might not be enough.
pub(crate) const RANGE_MAX: u64 = 16 << 20;
/// Bytes of a counter.
pub(crate) const COUNTER: u64 = 2;

/// The table of one vdev, without its entries.
#[derive(Clone, Debug)]
pub(crate) struct RefTable {
    /// The object with the counters.
    pub(crate) object: u64,
    /// Bytes of a block of that object.
    pub(crate) block_size: u64,
    pub(crate) header: BrtVdev,
    /// Entries in each range.
    pub(crate) counters: Vec<u16>,
}

impl RefTable {
    fn load(mos: &Mos, object: u64) -> Result<RefTable> {
        let handle = mos.object(object)?;
        let header = BrtVdev::parse(&handle.dnode().bonus, handle.dnode().endian)?;
        let block_size = handle.block_size();
        if header.byteorder != 0 || handle.dnode().endian != Endian::Little {
            return Err(Error::unsupported("a block reference table of the other byte order"));
        }
        if header.size > COUNTERS_MAX
            || header.range_size > RANGE_MAX
            || block_size < COUNTER
            || !block_size.is_power_of_two()
        {
            return Err(Error::corrupt("a block reference table of an impossible size"));
        }
        let bytes = header.size * COUNTER;
        let mut counters = Vec::new();
        for blkid in 0..bytes.div_ceil(block_size) {
            let (block, _) = handle.read_written(blkid, mos.io())?;
            let rest = usize::try_from(bytes - blkid * block_size).unwrap_or(usize::MAX);
            let part = block.get(..rest.min(block.len())).unwrap_or_default();
            counters.extend(part.as_chunks::<2>().0.iter().map(|c| u16::from_le_bytes(*c)));
        }
        Ok(RefTable { object, block_size, header, counters })
    }

    /// The range that an offset lies in.
    pub(crate) fn range_of(&self, offset: u64) -> Option<usize> {
        usize::try_from(offset / self.header.range_size.max(1)).ok()
    }

    /// Whether a block at `offset` may have an entry.
    pub(crate) fn may_have(&self, offset: u64) -> bool {
        let counter = self.range_of(offset).and_then(|range| self.counters.get(range));
        counter.is_some_and(|entries| *entries > 0)
    }
}

/// The count in an entry; `Corrupt` for one that no writer makes.
pub(crate) fn count_of(value: &ZapValue) -> Result<u64> {
    let bytes = || value.as_bytes().filter(|b| b.len() == 8).and_then(|b| b.first_chunk());
    let count = value.as_u64().or_else(|| bytes().map(|b| u64::from_le_bytes(*b)));
    let odd = || Error::corrupt("an entry of the block reference table is no count");
    count.filter(|count| *count > 0).ok_or_else(odd)
}

/// The objects of all tables.
///
/// # Errors
/// Those of reading the MOS; `Corrupt` when two names lead to one object.
pub(crate) fn objects(mos: &Mos) -> Result<BTreeMap<VdevId, u64>> {
    let mut out = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for entry in mos.directory()?.entries()? {
        let name = String::from_utf8_lossy(&entry.name).into_owned();
        let Some(vdev) = parse_directory_key(&name) else { continue };
        let object = entry.value.as_u64().unwrap_or(0);
        if object == 0 || !seen.insert(object) {
            return Err(Error::corrupt("a block reference table that two vdevs share"));
        }
        out.insert(vdev, object);
    }
    Ok(out)
}

/// All tables, without judging them.
///
/// # Errors
/// Those of reading the MOS; `Corrupt`, `Unsupported`.
pub(crate) fn read(mos: &Mos) -> Result<BTreeMap<VdevId, RefTable>> {
    let tables = objects(mos)?.into_iter();
    tables.map(|(vdev, object)| Ok((vdev, RefTable::load(mos, object)?))).collect()
}

/// All tables, for a writer of the pool.
///
/// # Errors
/// As [`read`]; `Corrupt` when a table contradicts itself.
pub(crate) fn load(mos: &Mos) -> Result<BTreeMap<VdevId, RefTable>> {
    let tables = read(mos)?;
    let mut zaps = BTreeSet::new();
    for (vdev, table) in &tables {
        let odd = |what: &str| Error::corrupt(format!("block reference table {}: {what}", vdev.0));
        let zap = mos.zap(table.header.entries.0)?;
        let phys = zap.fat_header()?.filter(ondisk::zap::FatPhys::has_word_keys);
        let phys = phys.ok_or_else(|| odd("its entries are in no ZAP of numbers"))?;
        let counted = table.counters.iter().map(|n| u64::from(*n)).sum::<u64>();
        if phys.num_entries != table.header.total_count || counted != table.header.total_count {
            return Err(odd("its counters contradict each other"));
        }
        if !zaps.insert(table.header.entries) {
            return Err(odd("it shares its entries"));
        }
    }
    let dsl_mos: &dyn dsl::write::MosRead = mos;
    if !tables.is_empty() && !features::is_active(dsl_mos, BLOCK_CLONING)? {
        return Err(Error::corrupt("block reference tables of a pool without block_cloning"));
    }
    Ok(tables)
}

/// Why the tables cannot be written; `None` if they can.
///
/// # Errors
/// Those of reading the MOS.
pub(crate) fn obstacle(mos: &Mos, config: &PoolConfig) -> Result<Option<&'static str>> {
    let tables = match load(mos) {
        Ok(tables) => tables,
        Err(e) if e.kind() == ErrorKind::Unsupported => {
            return Ok(Some("its block reference table has the other byte order"));
        }
        Err(e) if matches!(e.kind(), ErrorKind::Io | ErrorKind::DevicesMissing) => return Err(e),
        Err(_) => return Ok(Some("its block reference table is damaged")),
    };
    let exists = |vdev: &VdevId| config.vdev_tree.children.iter().any(|c| c.id == vdev.0);
    let all = tables.keys().all(exists);
    Ok((!all).then_some("it has a block reference table of a vdev that does not exist"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_two_forms() {
        let bytes = |b: &[u8]| ZapValue { int_size: 1, num: b.len() as u16, data: b.to_vec() };
        assert_eq!(count_of(&ZapValue::from_u64(7)).unwrap(), 7);
        assert_eq!(count_of(&bytes(&[1, 2, 0, 0, 0, 0, 0, 0])).unwrap(), 0x201);
        assert_eq!(count_of(&bytes(&[0, 0, 0, 0, 0, 0, 0, 0x80])).unwrap(), 1 << 63);
        for odd in [ZapValue::from_u64(0), bytes(&[0; 8]), bytes(&[1; 7]), bytes(&[1; 9])] {
            assert!(count_of(&odd).is_err(), "{odd:?}");
        }
    }
}
