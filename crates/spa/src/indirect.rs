//! Mappings of removed vdevs (chapter 02 §12, chapter 08 §D).

use std::sync::Arc;

use base::{Error, Result, Txg, VdevId};
use dsl::Mos;
use ondisk::Endian;
use ondisk::config::{PoolConfig, VdevType};
use ondisk::removal::{BIRTH_ENTRY_SIZE, Births, MAPPING_ENTRY_SIZE, Mapping, MappingHeader};
use vdev::{IndirectEntry, IndirectMap, Tree};

/// Segments in which one removed vdev may have been copied.
const ENTRIES_MAX: u64 = 1 << 26;

/// Loads every mapping. The mapping of a removed vdev may itself be on one removed later,
/// so those that cannot be read yet are tried again after the others.
pub(crate) fn load_all(mos: &Mos, config: &PoolConfig, tree: &Tree) -> Result<()> {
    let mut todo: Vec<_> =
        config.vdev_tree.children.iter().filter(|c| c.kind == VdevType::Indirect).collect();
    todo.reverse();
    let mut last = None;
    while !todo.is_empty() {
        let before = todo.len();
        todo.retain(|vdev| {
            let mapping = vdev.top.as_ref().map(|t| t.indirect.clone()).unwrap_or_default();
            let loaded = load(mos, mapping.mapping.map(|o| o.0), mapping.births.map(|o| o.0))
                .and_then(|map| tree.set_indirect(VdevId(vdev.id), Arc::new(map)));
            match loaded {
                Ok(()) => false,
                Err(e) => {
                    last = Some(e.on_vdev(vdev.guid));
                    true
                }
            }
        });
        if todo.len() == before {
            return Err(last.unwrap_or_else(|| Error::bug("a mapping neither loaded nor failed")));
        }
    }
    Ok(())
}

pub(crate) fn load(mos: &Mos, mapping: Option<u64>, births: Option<u64>) -> Result<IndirectMap> {
    // A vdev that was empty when it was removed has no mapping.
    let Some(mapping) = mapping.filter(|&o| o != 0) else {
        return IndirectMap::new(Vec::new(), Vec::new());
    };
    let object = mos.object(mapping)?;
    let header = MappingHeader::parse(&object.dnode().bonus, object.dnode().endian)?;
    let bytes = little_endian(mos, mapping, header.num_entries, MAPPING_ENTRY_SIZE)?;
    let entries = Mapping::parse(&header, &bytes, Endian::Little)?;
    let entry = |e: &ondisk::removal::MappingEntry| IndirectEntry {
        src: e.source,
        len: e.len(),
        dst_vdev: e.dest.vdev,
        dst_offset: e.dest.offset,
    };
    IndirectMap::new(entries.entries().iter().map(entry).collect(), load_births(mos, births)?)
}

fn load_births(mos: &Mos, births: Option<u64>) -> Result<Vec<(u64, Txg)>> {
    let Some(object) = births.filter(|&o| o != 0) else { return Ok(Vec::new()) };
    let handle = mos.object(object)?;
    let dnode = handle.dnode();
    let count = dnode.endian.u64(&dnode.bonus, 0).unwrap_or(0);
    let bytes = little_endian(mos, object, count, BIRTH_ENTRY_SIZE)?;
    let bonus = count.to_le_bytes();
    Ok(Births::parse(&bonus, &bytes, Endian::Little)?.entries().to_vec())
}

/// The largest expansion by compression: a sector that becomes a whole block.
const EXPANSION_MAX: u64 = 32_768;

/// `count` entries of an object of 64-bit words, whatever the byte orders of its blocks.
fn little_endian(mos: &Mos, object: u64, count: u64, entry: usize) -> Result<Vec<u8>> {
    let words = count.saturating_mul(entry as u64 / 8);
    let handle = mos.object(object)?;
    if words.saturating_mul(8) > handle.dnode().used.saturating_mul(EXPANSION_MAX) {
        return Err(Error::corrupt("mapping is longer than its object").in_object(handle.id()));
    }
    let words = mos.words(object, words, ENTRIES_MAX * 3)?;
    Ok(words.into_iter().flat_map(u64::to_le_bytes).collect())
}
