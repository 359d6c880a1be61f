//! Block-pointer objects: lists of blocks to be freed or remembered (chapter 04 §6.1).
//!
//! # Theory
//! The data of a bpobj is a packed array of 128-byte block pointers, without the fields
//! that freeing does not need; its bonus counts them. A bpobj may include others
//! through a list of object ids.
//!
//! # Invariants
//! * [`BpobjPhys`] never reports sub-objects without a list that contains them, because
//!   writers leave stale counts behind.

use base::{Error, Result};

use crate::blkptr::{BLKPTR_SIZE, BlkPtr};
use crate::endian::Endian;

/// Bonus length of the oldest form: entries and bytes.
pub(crate) const BPOBJ_SIZE_V0: usize = 16;
/// Bonus length with compressed and uncompressed totals.
pub const BPOBJ_SIZE_V1: usize = 32;
/// Bonus length with sub-objects: the standard form.
pub const BPOBJ_SIZE_V2: usize = 48;
/// Bonus length with the count of FREE entries (feature livelist).
pub const BPOBJ_SIZE: usize = 56;

/// bpobj_phys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BpobjPhys {
    /// Entries in this object's own array.
    pub num_blkptrs: u64,
    /// Allocated bytes, sub-objects included.
    pub bytes: u64,
    /// Compressed bytes.
    pub comp: u64,
    /// Uncompressed bytes.
    pub uncomp: u64,
    /// Object that holds the ids of the sub-objects, or 0.
    pub subobjs: u64,
    /// Sub-objects; 0 if there is no list.
    pub num_subobjs: u64,
    /// Own entries that are marked FREE.
    pub num_freed: u64,
    /// The form found: 16, 32, 48 or 56 bytes.
    pub size: usize,
}

impl BpobjPhys {
    /// Parses a bonus buffer of any of the four sizes.
    ///
    /// # Errors
    /// `Corrupt` for another size or impossible counts.
    pub fn parse(bonus: &[u8], endian: Endian) -> Result<BpobjPhys> {
        let size = match bonus.len() {
            0..BPOBJ_SIZE_V0 => return Err(Error::corrupt("the bonus of a bpobj is too short")),
            BPOBJ_SIZE_V0..BPOBJ_SIZE_V1 => BPOBJ_SIZE_V0,
            BPOBJ_SIZE_V1..BPOBJ_SIZE_V2 => BPOBJ_SIZE_V1,
            BPOBJ_SIZE_V2..BPOBJ_SIZE => BPOBJ_SIZE_V2,
            _ => BPOBJ_SIZE,
        };
        let w = |i: usize| if i * 8 < size { endian.u64(bonus, i * 8).unwrap_or(0) } else { 0 };
        let subobjs = w(4);
        let phys = BpobjPhys {
            num_blkptrs: w(0),
            bytes: w(1),
            comp: w(2),
            uncomp: w(3),
            subobjs,
            num_subobjs: if subobjs == 0 { 0 } else { w(5) },
            num_freed: w(6),
            size,
        };
        if phys.num_blkptrs > u64::MAX / BLKPTR_SIZE as u64
            || phys.num_subobjs > u64::MAX / 8
            || phys.num_freed > phys.num_blkptrs
        {
            return Err(Error::corrupt("bpobj: impossible counts"));
        }
        Ok(phys)
    }

    /// The bonus buffer, little endian, in the form of `self.size`.
    pub fn encode(&self) -> Vec<u8> {
        let words = [
            self.num_blkptrs,
            self.bytes,
            self.comp,
            self.uncomp,
            self.subobjs,
            self.num_subobjs,
            self.num_freed,
        ];
        words.iter().take(self.size / 8).flat_map(|w| w.to_le_bytes()).collect()
    }

    /// Whether it and its sub-objects contain nothing.
    pub fn is_empty(&self) -> bool {
        self.num_blkptrs == 0 && self.num_subobjs == 0
    }
}

/// An entry of a bpobj.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BpobjEntry {
    /// The block; its checksum is zero unless it is deduplicated, its payload
    /// is gone if it was embedded, its fill is 0.
    pub bp: BlkPtr,
    /// Livelists: the block was freed.
    pub freed: bool,
}

/// Offset of the fill word in a block pointer.
const FILL: usize = 0x58;

impl BpobjEntry {
    /// Entry `index` of a data block.
    ///
    /// # Errors
    /// `Corrupt` when the block is shorter or the pointer is invalid or a hole.
    pub fn parse_nth(block: &[u8], index: usize, endian: Endian) -> Result<BpobjEntry> {
        let bp = BlkPtr::parse_nth(block, index, endian)?;
        if bp.is_hole() {
            return Err(Error::corrupt("bpobj: an entry is a hole"));
        }
        let fill = endian
            .u64(block, index.saturating_mul(BLKPTR_SIZE).saturating_add(FILL))
            .unwrap_or_default();
        // The payload of an embedded pointer overlaps the fill word. Stored entries
        // have no payload, so the bit has the same meaning.
        Ok(BpobjEntry { bp, freed: fill & 1 == 1 })
    }
}

/// Sub-object `index` of a block of the sub-object list.
///
/// # Errors
/// `Corrupt` when the block is shorter.
pub fn subobj_nth(block: &[u8], index: usize, endian: Endian) -> Result<u64> {
    index
        .checked_mul(8)
        .and_then(|off| endian.u64(block, off))
        .ok_or_else(|| Error::corrupt("bpobj: sub-object outside its block"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_four_sizes() {
        let full = BpobjPhys {
            num_blkptrs: 27,
            bytes: 2,
            comp: 3,
            uncomp: 4,
            subobjs: 5,
            num_subobjs: 6,
            num_freed: 9,
            size: 56,
        };
        let raw = full.encode();
        assert_eq!(BpobjPhys::parse(&raw, Endian::Little).unwrap(), full);
        let v2 = BpobjPhys::parse(&raw[..48], Endian::Little).unwrap();
        assert_eq!(v2, BpobjPhys { num_freed: 0, size: 48, ..full });
        let v1 = BpobjPhys::parse(&raw[..32], Endian::Little).unwrap();
        assert_eq!(v1, BpobjPhys { subobjs: 0, num_subobjs: 0, ..v2 }.with_size(32));
        let v0 = BpobjPhys::parse(&raw[..16], Endian::Little).unwrap();
        assert_eq!(v0, BpobjPhys { comp: 0, uncomp: 0, ..v1 }.with_size(16));
        assert_eq!(v0.encode(), raw[..16]);
        assert!(BpobjPhys::parse(&raw[..15], Endian::Little).is_err());
    }

    impl BpobjPhys {
        fn with_size(self, size: usize) -> BpobjPhys {
            BpobjPhys { size, ..self }
        }
    }

    #[test]
    fn stale_subobject_counts_are_ignored() {
        let raw = BpobjPhys { num_subobjs: 3, size: 48, ..BpobjPhys::default() }.encode();
        assert!(BpobjPhys::parse(&raw, Endian::Little).unwrap().is_empty());
    }

    #[test]
    fn entries_carry_the_free_mark() {
        // Chapter 04 §20.3's pointer as a bpobj stores it.
        let mut raw = vec![0; 256];
        for (off, v) in
            [(0x80, 8u64), (0x88, 0x18250), (0xb0, 0x800b_0702_0007_0007), (0xd0, 0xf), (0xd8, 1)]
        {
            raw[off..off + 8].copy_from_slice(&v.to_le_bytes());
        }
        let e = BpobjEntry::parse_nth(&raw, 1, Endian::Little).unwrap();
        assert!(e.freed);
        assert_eq!(e.bp.birth().0, 15);
        raw[0xd8] = 0;
        assert!(!BpobjEntry::parse_nth(&raw, 1, Endian::Little).unwrap().freed);
        assert!(BpobjEntry::parse_nth(&raw, 0, Endian::Little).is_err());
        assert!(BpobjEntry::parse_nth(&raw, 2, Endian::Little).is_err());
        assert!(BpobjEntry::parse_nth(&raw, usize::MAX, Endian::Little).is_err());
        assert_eq!(subobj_nth(&raw, 16, Endian::Little).unwrap(), 8);
        assert!(subobj_nth(&raw, 32, Endian::Little).is_err());
    }
}
