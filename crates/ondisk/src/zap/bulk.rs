//! Builds whole ZAPs from entries, block by block, for callers that know every entry
//! before they write the first (chapter 03 §13, §14, §17).
//!
//! # Theory
//! The leaves of a fat ZAP are a partition of the hash range. With all entries in hash
//! order, the partition is found by halving ranges until each fits a leaf. The result
//! is the same as that of insertions with splits, without any split. The pointer table
//! is as deep as the deepest leaf: embedded, or in blocks 1..=n, in front of the
//! leaves.
//!
//! # Invariants
//! * Entries are sorted by (hash, cd), and cds are distinct within one hash.
//! * Blocks are built one at a time, so that memory is one block in addition to the
//!   entries.

use base::{Error, ErrorKind, Result};

use super::leafmut::{InsertOutcome, LeafMut, StoredKey, set_embedded_pointers};
use super::{FatPhys, MICRO_NAME_MAX, ZapValue, hash, micro_init, micro_set};
use crate::zapleaf::{array_chunks, block_shift, chunk_count};

/// Largest ordinary microzap, bytes.
const MICRO_MAX: usize = 128 << 10;

/// An entry to be written: a name without NUL, and a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkEntry<'a> {
    /// Name.
    pub name: &'a [u8],
    /// Value.
    pub value: ZapValue,
}

struct Keyed<'a> {
    hash: u64,
    cd: u32,
    entry: BulkEntry<'a>,
}

impl Keyed<'_> {
    fn chunks(&self) -> usize {
        1 + array_chunks(self.entry.name.len() + 1) + array_chunks(self.entry.value.data.len())
    }
}

struct LeafPlan {
    prefix: u64,
    len: u32,
    entries: std::ops::Range<usize>,
}

enum ZapForm {
    Micro { size: usize },
    Fat { bs: u32, zt_shift: u32, table: u64, leaves: Vec<LeafPlan> },
}

/// A ZAP that is about to be written.
pub struct BulkZap<'a> {
    salt: u64,
    normflags: u64,
    entries: Vec<Keyed<'a>>,
    form: ZapForm,
}

impl<'a> BulkZap<'a> {
    /// Plans a ZAP of these entries, in any order: a microzap if they fit one,
    /// otherwise a fat ZAP with blocks of `1 << bs` bytes.
    ///
    /// # Errors
    /// `Exists` if two entries have one name, `Invalid` for a name that is empty or
    /// holds a NUL, `Limit` for an entry larger than a leaf or too many of one hash.
    pub fn new(
        entries: Vec<BulkEntry<'a>>,
        salt: u64,
        normflags: u64,
        bs: u32,
    ) -> Result<BulkZap<'a>> {
        if entries.iter().any(|e| e.name.is_empty() || e.name.contains(&0)) {
            return Err(Error::invalid("this name cannot be in a ZAP"));
        }
        let mut keyed = Vec::with_capacity(entries.len());
        for entry in entries {
            let hash = if normflags == 0 {
                hash(salt, entry.name, super::HASH_BITS)
            } else {
                crate::normalize::hash_name(salt, entry.name, normflags, super::HASH_BITS)
            };
            keyed.push(Keyed { hash, cd: 0, entry });
        }
        keyed.sort_unstable_by(|a, b| (a.hash, a.entry.name).cmp(&(b.hash, b.entry.name)));
        for i in 1..keyed.len() {
            let (before, this) = keyed.split_at_mut(i);
            if let (Some(before), Some(this)) = (before.last(), this.first_mut())
                && before.hash == this.hash
            {
                if before.entry.name == this.entry.name {
                    return Err(Error::new(
                        ErrorKind::Exists,
                        "two entries of a ZAP have one name",
                    ));
                }
                this.cd = before.cd + 1;
            }
        }
        let form = match micro_size(&keyed) {
            Some(size) => ZapForm::Micro { size },
            None => plan_fat(&keyed, bs)?,
        };
        Ok(BulkZap { salt, normflags, entries: keyed, form })
    }

    /// Bytes of one block.
    pub fn block_size(&self) -> usize {
        match self.form {
            ZapForm::Micro { size } => size,
            ZapForm::Fat { bs, .. } => 1 << bs,
        }
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        match &self.form {
            ZapForm::Micro { .. } => 1,
            ZapForm::Fat { table, leaves, .. } => 1 + table + leaves.len() as u64,
        }
    }

    /// Writes block `blkid` over `out`, which has [`BulkZap::block_size`] bytes.
    ///
    /// # Errors
    /// `Invalid` for another size or a block that is not there.
    pub fn block(&self, blkid: u64, out: &mut [u8]) -> Result<()> {
        if out.len() != self.block_size() || blkid >= self.blocks() {
            return Err(Error::invalid("no such block of a ZAP"));
        }
        match &self.form {
            ZapForm::Micro { .. } => {
                micro_init(out, self.salt, self.normflags)?;
                for (slot, k) in self.entries.iter().enumerate() {
                    let value = k.entry.value.as_u64().unwrap_or_default();
                    micro_set(out, slot, k.entry.name, value, k.cd)?;
                }
                Ok(())
            }
            ZapForm::Fat { zt_shift, table, leaves, .. } if blkid <= *table => {
                self.header_or_table(blkid, out, *zt_shift, *table, leaves)
            }
            ZapForm::Fat { table, leaves, .. } => {
                let plan = usize::try_from(blkid - 1 - table).ok().and_then(|i| leaves.get(i));
                let plan = plan.ok_or_else(|| Error::invalid("no such leaf of a ZAP"))?;
                self.leaf(plan, out)
            }
        }
    }

    fn header_or_table(
        &self,
        blkid: u64,
        out: &mut [u8],
        zt_shift: u32,
        table: u64,
        leaves: &[LeafPlan],
    ) -> Result<()> {
        out.fill(0);
        if blkid == 0 {
            let phys = FatPhys {
                zt_blk: u64::from(table != 0),
                zt_numblks: table,
                zt_shift: u64::from(zt_shift),
                freeblk: self.blocks(),
                num_leafs: leaves.len() as u64,
                num_entries: self.entries.len() as u64,
                salt: self.salt,
                normflags: self.normflags,
                ..FatPhys::default()
            };
            phys.encode(out)?;
        }
        if blkid == 0 && table != 0 {
            return Ok(());
        }
        // The part of the table that this block holds, in pointers.
        let per = out.len() as u64 / if table == 0 { 16 } else { 8 };
        let first = blkid.saturating_sub(1) * per;
        let at = leaves.partition_point(|l| (l.prefix + 1) << (zt_shift - l.len) <= first);
        for (i, leaf) in leaves.iter().enumerate().skip(at) {
            let width = zt_shift - leaf.len;
            let from = (leaf.prefix << width).max(first) - first;
            let to = ((leaf.prefix + 1) << width).min(first + per).saturating_sub(first);
            if from >= to {
                break;
            }
            let id = 1 + table + i as u64;
            if table == 0 {
                set_embedded_pointers(out, from..to, id)?;
            } else {
                let words = out.as_chunks_mut::<8>().0;
                words[from as usize..to as usize].fill(id.to_le_bytes());
            }
        }
        Ok(())
    }

    fn leaf(&self, plan: &LeafPlan, out: &mut [u8]) -> Result<()> {
        let mut leaf = LeafMut::init(out, plan.prefix, plan.len as u16, self.normflags != 0, 1)?;
        for k in &self.entries[plan.entries.clone()] {
            let key = StoredKey::Name(k.entry.name);
            if leaf.insert(k.hash, Some(k.cd), key, &k.entry.value)? == InsertOutcome::Full {
                return Err(Error::bug("a planned ZAP leaf overflows"));
            }
        }
        Ok(())
    }
}

/// Bytes of the microzap that holds these entries, if one can.
fn micro_size(entries: &[Keyed<'_>]) -> Option<usize> {
    let fits = |k: &Keyed<'_>| {
        k.entry.name.len() <= MICRO_NAME_MAX && k.entry.value.as_u64().is_some() && k.cd < 100
    };
    let size = ((entries.len() + 1) * 64).next_multiple_of(512);
    (size <= MICRO_MAX && entries.iter().all(fits)).then_some(size)
}

fn plan_fat(entries: &[Keyed<'_>], bs: u32) -> Result<ZapForm> {
    let size = 1usize.checked_shl(bs).unwrap_or(0);
    block_shift(size)?;
    let limit = chunk_count(bs);
    let mut leaves = Vec::new();
    // Ranges still to be processed, the lowest on top.
    let mut open = vec![LeafPlan { prefix: 0, len: 0, entries: 0..entries.len() }];
    while let Some(plan) = open.pop() {
        let part = entries.get(plan.entries.clone()).unwrap_or_default();
        if part.iter().map(Keyed::chunks).sum::<usize>() <= limit {
            leaves.push(plan);
            continue;
        }
        // Growth of the pointer table stops two bits before the hash ends.
        if plan.len >= super::HASH_BITS - 2 {
            return Err(Error::limit("too many entries of one hash for a ZAP"));
        }
        let bit = 63 - plan.len;
        let middle = plan.entries.start + part.partition_point(|k| k.hash >> bit & 1 == 0);
        let (prefix, len) = (plan.prefix << 1, plan.len + 1);
        open.push(LeafPlan { prefix: prefix | 1, len, entries: middle..plan.entries.end });
        open.push(LeafPlan { prefix, len, entries: plan.entries.start..middle });
    }
    let deepest = leaves.iter().map(|l| l.len).max().unwrap_or(0);
    let (zt_shift, table) = if deepest <= bs - 4 {
        (bs - 4, 0)
    } else {
        let zt_shift = deepest.max(bs - 3);
        (zt_shift, 1u64 << (zt_shift - (bs - 3)))
    };
    Ok(ZapForm::Fat { bs, zt_shift, table, leaves })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endian::Endian;
    use crate::zap::{PointerLocation, ZapBlock};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn find(blocks: &[Vec<u8>], name: &[u8]) -> Option<u64> {
        let block = |i: u64| ZapBlock::parse(&blocks[i as usize], Endian::Little).unwrap();
        match block(0) {
            ZapBlock::Micro(m) => m.find(name).map(|e| e.value),
            ZapBlock::FatHeader(h) => {
                let hash = h.phys.hash_name(name);
                let leaf = match h.pointer_location(hash).unwrap() {
                    PointerLocation::Embedded(id) => id,
                    PointerLocation::External { blkid, index } => {
                        h.read_pointer(&blocks[blkid as usize], index, Endian::Little).unwrap()
                    }
                };
                let ZapBlock::Leaf(leaf) = block(leaf) else { panic!("not a leaf") };
                leaf.verify(1).unwrap();
                assert!(leaf.header().covers(hash));
                let all = leaf.entries().unwrap();
                let entry = all.iter().find(|e| e.hash == hash && e.name().unwrap() == name)?;
                entry.value().unwrap().as_u64()
            }
            ZapBlock::Leaf(_) => panic!("a leaf in block 0"),
        }
    }

    fn check(names: &BTreeMap<Vec<u8>, u64>, bs: u32) -> usize {
        let entries =
            names.iter().map(|(name, v)| BulkEntry { name, value: ZapValue::from_u64(*v) });
        let zap = BulkZap::new(entries.collect(), 0x1234_5679, 0, bs).unwrap();
        let blocks: Vec<Vec<u8>> = (0..zap.blocks())
            .map(|i| {
                let mut out = vec![0xee; zap.block_size()];
                zap.block(i, &mut out).unwrap();
                out
            })
            .collect();
        for (name, value) in names {
            assert_eq!(find(&blocks, name), Some(*value));
        }
        assert_eq!(find(&blocks, b"not there"), None);
        blocks.len()
    }

    #[test]
    fn tables_are_embedded_or_external() {
        let names = |n: u64| (0..n).map(|i| (format!("name-{i}").into_bytes(), i)).collect();
        assert_eq!(check(&names(0), 14), 1);
        assert_eq!(check(&names(2047), 14), 1);
        assert!(check(&names(2048), 14) > 2);
        // Small blocks: the table leaves the header soon.
        let blocks = check(&names(5000), 9);
        assert!(blocks > 1000, "{blocks}");
        check(&names(20_000), 12);
        let all: BTreeMap<Vec<u8>, u64> = names(5000);
        let entries = all.iter().map(|(name, v)| BulkEntry { name, value: ZapValue::from_u64(*v) });
        let zap = BulkZap::new(entries.collect(), 1, 0, 9).unwrap();
        let mut header = [0; 512];
        zap.block(0, &mut header).unwrap();
        let ZapBlock::FatHeader(h) = ZapBlock::parse(&header, Endian::Little).unwrap() else {
            panic!("not a header")
        };
        assert!(h.phys.zt_numblks >= 16 && h.phys.num_entries == 5000, "{:?}", h.phys);
    }

    #[test]
    fn refusals() {
        let e = |name| BulkEntry { name, value: ZapValue::from_u64(1) };
        assert!(BulkZap::new(vec![e(b"a"), e(b"a")], 1, 0, 14).is_err());
        assert!(BulkZap::new(vec![e(b"")], 1, 0, 14).is_err());
        assert!(BulkZap::new(vec![e(b"a\0b")], 1, 0, 14).is_err());
    }

    proptest! {
        #[test]
        fn what_was_written_is_found(
            names in prop::collection::btree_map("[a-f]{1,120}", any::<u64>(), 0..300),
            bs in 9u32..=17,
        ) {
            let names = names.into_iter().map(|(n, v)| (n.into_bytes(), v)).collect();
            check(&names, bs);
        }
    }
}
