//! Dnodes (chapter 03 §2): the type of an object and the location of its blocks.
//!
//! # Invariants of a parsed [`Dnode`]
//! * 1 to 3 block pointers, a bonus and a spill pointer that fit its slots.
//! * 1 to 12 levels; indirect blocks of 4 KiB to 128 KiB; data blocks of 512
//!   bytes to 16 MiB, a power of two as soon as there is more than one.

use base::limits::{BLOCK_SIZE_MAX, DNODE_LEVELS_MAX};
use base::{Error, Result};

use crate::blkptr::{BLKPTR_SIZE, BlkPtr};
use crate::endian::Endian;
use crate::objtype::ObjType;

/// Bytes of one dnode slot.
pub const DNODE_SIZE: usize = 512;
/// Bytes of one block of dnodes.
pub const DNODE_BLOCK_SIZE: usize = 16_384;
/// Slots in one block of dnodes.
pub const DNODES_PER_BLOCK: u64 = 32;
/// Bytes before the block pointers.
pub const CORE_SIZE: usize = 64;
/// Shift of the number of object ids in an object set.
pub const OBJECT_SHIFT_MAX: u32 = 48;

/// `dn_flags` bits (chapter 03 §2.2).
pub mod flags {
    /// `used` is in bytes, not sectors.
    pub const USED_BYTES: u8 = 1;
    /// Counted in the user and group used objects.
    pub const USERUSED_ACCOUNTED: u8 = 2;
    /// A spill block pointer ends the dnode.
    pub const SPILL_BLKPTR: u8 = 4;
    /// Counted in the object counters.
    pub const USEROBJUSED_ACCOUNTED: u8 = 8;
}

/// A checked dnode.
#[derive(Clone, Debug, PartialEq)]
pub struct Dnode {
    /// Type of the object.
    pub object_type: ObjType,
    /// log2 of the indirect block size.
    pub indirect_shift: u8,
    /// Levels of the tree; with 1, the pointers lead to data.
    pub levels: u8,
    /// Type of the bonus and of the spill block.
    pub bonus_type: ObjType,
    /// Checksum for data, 0 = inherit.
    pub checksum: u8,
    /// Compression for data, 0 = inherit.
    pub compression: u8,
    /// Bits of [`flags`].
    pub flags: u8,
    /// Bytes of a data block.
    pub data_block_size: u32,
    /// 512-byte slots taken, 1 to 32.
    pub slots: u8,
    /// Highest data block ever written.
    pub max_blkid: u64,
    /// Space used, bytes.
    pub used: u64,
    /// Byte order of the bonus.
    pub endian: Endian,
    /// 1 to 3 pointers to the top of the tree.
    pub blkptrs: Vec<BlkPtr>,
    /// The bonus, `bonuslen` bytes.
    pub bonus: Vec<u8>,
    /// The spill block, if there is one.
    pub spill: Option<BlkPtr>,
}

impl Dnode {
    /// Number of slots of the dnode that starts at `bytes`, without checking the rest.
    /// `None` for a free slot.
    pub fn peek_slots(bytes: &[u8]) -> Option<u8> {
        match (bytes.first(), bytes.get(12)) {
            (Some(&t), Some(&extra)) if t != 0 => Some(extra.saturating_add(1)),
            _ => None,
        }
    }

    /// Parses the dnode that starts at `bytes` (its first slot, and all that
    /// follows in the block). `None` for a free slot.
    ///
    /// # Errors
    /// `Corrupt` when a field breaks the rules of chapter 03 §2.3.
    pub fn parse(bytes: &[u8], endian: Endian) -> Result<Option<Dnode>> {
        let mut r = endian.reader(bytes, "dnode");
        let object_type = ObjType(r.u8()?);
        let indirect_shift = r.u8()?;
        let levels = r.u8()?;
        let nblkptr = usize::from(r.u8()?);
        let bonus_type = ObjType(r.u8()?);
        let (checksum, compression, flags) = (r.u8()?, r.u8()?, r.u8()?);
        let sectors = r.u16()?;
        let bonuslen = usize::from(r.u16()?);
        let slots = r.u8()?.saturating_add(1);
        r.skip(3)?;
        let (max_blkid, used) = (r.u64()?, r.u64()?);
        if object_type == ObjType::NONE {
            return Ok(None);
        }
        let bad = |what: &str| Err(Error::corrupt(format!("invalid dnode: {what}")));
        if !object_type.is_valid() || !bonus_type.is_valid() {
            return bad("type");
        }
        if !(1..=3).contains(&nblkptr) {
            return bad("number of block pointers");
        }
        if levels == 0 || levels > DNODE_LEVELS_MAX {
            return bad("levels");
        }
        if !(12..=17).contains(&indirect_shift) {
            return bad("indirect block size");
        }
        let data_block_size = u32::from(sectors) << 9;
        if data_block_size == 0 || u64::from(data_block_size) > BLOCK_SIZE_MAX {
            return bad("data block size");
        }
        if (max_blkid > 0 || levels > 1) && !data_block_size.is_power_of_two() {
            return bad("data block size is no power of two");
        }
        // The last byte must have an offset of 64 bits.
        if (u128::from(max_blkid) + 1) * u128::from(data_block_size) > 1 << 64 {
            return bad("more data blocks than 64 bits can address");
        }
        let size = usize::from(slots) * DNODE_SIZE;
        let Some(whole) = bytes.get(..size) else { return bad("more slots than its block") };
        let bonus_at = CORE_SIZE + nblkptr * BLKPTR_SIZE;
        let has_spill = flags & self::flags::SPILL_BLKPTR != 0;
        let spill_at = size - if has_spill { BLKPTR_SIZE } else { 0 };
        let Some(bonus) =
            (bonus_at + bonuslen <= spill_at).then(|| &whole[bonus_at..bonus_at + bonuslen])
        else {
            return bad("bonus length");
        };
        let blkptrs = (0..nblkptr)
            .map(|i| BlkPtr::parse_nth(whole.get(CORE_SIZE..).unwrap_or_default(), i, endian))
            .collect::<Result<Vec<_>>>()?;
        let spill = if has_spill {
            Some(BlkPtr::parse_nth(whole.get(spill_at..).unwrap_or_default(), 0, endian)?)
        } else {
            None
        };
        Ok(Some(Dnode {
            object_type,
            indirect_shift,
            levels,
            bonus_type,
            checksum,
            compression,
            flags,
            data_block_size,
            slots,
            max_blkid,
            used: if flags & self::flags::USED_BYTES != 0 {
                used
            } else {
                used.saturating_mul(512)
            },
            endian,
            blkptrs,
            bonus: bonus.to_vec(),
            spill,
        }))
    }

    /// Writes the dnode over the start of `out`, little-endian, including all its
    /// slots.
    ///
    /// # Errors
    /// `Invalid` if the slots are not there, if the bonus or the pointers do not fit
    /// them, or if a pointer cannot be written ([`BlkPtr::encode`]).
    pub fn encode(&self, out: &mut [u8]) -> Result<()> {
        let bad = |what: &str| Error::invalid(format!("this dnode cannot be written: {what}"));
        let size = usize::from(self.slots) * DNODE_SIZE;
        let out = out.get_mut(..size).filter(|o| !o.is_empty()).ok_or_else(|| bad("slots"))?;
        let has_spill = self.flags & self::flags::SPILL_BLKPTR != 0;
        let bonus_at = CORE_SIZE + self.blkptrs.len() * BLKPTR_SIZE;
        let spill_at = size - if has_spill { BLKPTR_SIZE } else { 0 };
        if !(1..=3).contains(&self.blkptrs.len()) || has_spill != self.spill.is_some() {
            return Err(bad("pointers"));
        }
        if bonus_at + self.bonus.len() > spill_at {
            return Err(bad("bonus"));
        }
        let sectors = u16::try_from(self.data_block_size >> 9).map_err(|_| bad("block size"))?;
        out.fill(0);
        out[..8].copy_from_slice(&[
            self.object_type.0,
            self.indirect_shift,
            self.levels,
            self.blkptrs.len() as u8,
            self.bonus_type.0,
            self.checksum,
            self.compression,
            self.flags,
        ]);
        let in_bytes = self.flags & self::flags::USED_BYTES != 0;
        let used = if in_bytes { self.used } else { self.used.div_ceil(512) };
        out[8..10].copy_from_slice(&sectors.to_le_bytes());
        out[10..12].copy_from_slice(&(self.bonus.len() as u16).to_le_bytes());
        out[12] = self.slots - 1;
        out[16..24].copy_from_slice(&self.max_blkid.to_le_bytes());
        out[24..32].copy_from_slice(&used.to_le_bytes());
        for (i, bp) in self.blkptrs.iter().enumerate() {
            let at = CORE_SIZE + i * BLKPTR_SIZE;
            let raw = bp.encode().ok_or_else(|| bad("a redacted block"))?;
            out[at..at + BLKPTR_SIZE].copy_from_slice(&raw);
        }
        out[bonus_at..bonus_at + self.bonus.len()].copy_from_slice(&self.bonus);
        if let Some(spill) = &self.spill {
            let raw = spill.encode().ok_or_else(|| bad("a redacted block"))?;
            out[spill_at..].copy_from_slice(&raw);
        }
        Ok(())
    }

    /// log2 of the number of pointers in an indirect block.
    pub fn epb_shift(&self) -> u32 {
        u32::from(self.indirect_shift) - 7
    }

    /// Bytes of a block at `level`.
    pub fn block_size(&self, level: u8) -> u64 {
        if level == 0 { u64::from(self.data_block_size) } else { 1 << self.indirect_shift }
    }

    /// Id of the block at `level` that covers data block `blkid`.
    pub fn covering(&self, blkid: u64, level: u8) -> u64 {
        blkid.checked_shr(self.epb_shift() * u32::from(level)).unwrap_or(0)
    }

    /// Index of the dnode's own pointer that leads to data block `blkid`; `None` beyond
    /// the tree's capacity.
    pub fn root_index(&self, blkid: u64) -> Option<usize> {
        let index = self.covering(blkid, self.levels - 1);
        usize::try_from(index).ok().filter(|&i| i < self.blkptrs.len())
    }
}

/// The dnodes of one block of the meta-dnode: (slot, dnode or error). Interior slots of
/// large dnodes are skipped (chapter 03 §2.4).
pub fn dnodes_in_block(
    block: &[u8],
    endian: Endian,
) -> impl Iterator<Item = (u64, Result<Dnode>)> + '_ {
    let mut slot = 0usize;
    std::iter::from_fn(move || {
        loop {
            let bytes = block.get(slot * DNODE_SIZE..).filter(|b| b.len() >= DNODE_SIZE)?;
            let at = slot as u64;
            slot += usize::from(Dnode::peek_slots(bytes).unwrap_or(1));
            match Dnode::parse(bytes, endian) {
                Ok(None) => {}
                Ok(Some(dnode)) => return Some((at, Ok(dnode))),
                Err(e) => return Some((at, Err(e))),
            }
        }
    })
}

/// Changes the byte order of a block of the meta-dnode, but for its bonus areas: those of
/// encrypted dnodes have the order in which they were encrypted.
///
/// Slots that no dnode of a valid shape uses stay as they are.
pub fn swap_dnodes(block: &mut [u8]) {
    let mut rest = block;
    while rest.len() >= DNODE_SIZE {
        let size = usize::from(Dnode::peek_slots(rest).unwrap_or(1)) * DNODE_SIZE;
        let is_free = rest.first() == Some(&0);
        let (dnode, after) = rest.split_at_mut(size.min(rest.len()));
        rest = after;
        let pointers = CORE_SIZE + usize::from(dnode[3]) * BLKPTR_SIZE;
        let spill = if dnode[7] & flags::SPILL_BLKPTR != 0 { BLKPTR_SIZE } else { 0 };
        if is_free || pointers + spill > dnode.len() {
            continue;
        }
        dnode[8..10].reverse();
        dnode[10..12].reverse();
        crate::zap::swap_words(&mut dnode[16..pointers]);
        let spill = dnode.len() - spill;
        crate::zap::swap_words(&mut dnode[spill..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plain() -> [u8; 512] {
        let mut raw = [0; 512];
        raw[..12].copy_from_slice(&[1, 17, 1, 3, 0, 0, 0, 1, 0x20, 0, 0, 0]);
        raw[16] = 1;
        raw[24..26].copy_from_slice(&[0xd6, 0x3e]);
        raw
    }

    #[test]
    fn parses_the_object_directory_of_the_specification() {
        let d = Dnode::parse(&plain(), Endian::Little).unwrap().unwrap();
        assert_eq!(d.object_type, ObjType::OBJECT_DIRECTORY);
        assert_eq!((d.data_block_size, d.max_blkid, d.used, d.levels), (16384, 1, 16086, 1));
        assert_eq!(d.blkptrs.len(), 3);
        assert_eq!(d.root_index(2), Some(2));
        assert_eq!(d.root_index(3), None);
    }

    #[test]
    fn refuses_what_would_break_the_walk() {
        for (at, value) in
            [(1, 30), (2, 0), (2, 13), (3, 0), (3, 4), (8, 0), (8, 3), (12, 1), (11, 2)]
        {
            let mut raw = plain();
            raw[at] = value;
            assert!(Dnode::parse(&raw, Endian::Little).is_err(), "byte {at} = {value}");
        }
        assert_eq!(Dnode::parse(&[0; 512], Endian::Little).unwrap(), None);
        assert!(Dnode::parse(&plain()[..100], Endian::Little).is_err());
    }

    #[test]
    fn what_is_written_is_read() {
        let mut d = Dnode::parse(&plain(), Endian::Little).unwrap().unwrap();
        let mut out = [0xee; 1024];
        d.encode(&mut out).unwrap();
        assert_eq!(out[..512], plain());
        // A bonus, a spill block and a second slot.
        (d.bonus_type, d.bonus, d.slots) = (ObjType::SA, (0..200).collect(), 2);
        assert!(d.encode(&mut out[..600]).is_err());
        d.encode(&mut out).unwrap();
        assert_eq!(Dnode::parse(&out, Endian::Little).unwrap(), Some(d.clone()));
        d.spill = Some(BlkPtr::default());
        assert!(d.encode(&mut out).is_err());
        d.flags |= flags::SPILL_BLKPTR;
        d.encode(&mut out).unwrap();
        assert_eq!(Dnode::parse(&out, Endian::Little).unwrap(), Some(d.clone()));
        d.bonus.resize(1024, 0);
        assert!(d.encode(&mut out).is_err());
    }

    #[test]
    fn a_swapped_block_has_the_same_dnodes() {
        let mut d = Dnode::parse(&plain(), Endian::Little).unwrap().unwrap();
        (d.bonus_type, d.bonus, d.slots) = (ObjType::SA, (0..200).collect(), 2);
        (d.spill, d.flags) = (Some(BlkPtr::default()), d.flags | flags::SPILL_BLKPTR);
        let mut block = [0; 4096];
        block[512..1024].copy_from_slice(&plain());
        d.encode(&mut block[1024..]).unwrap();
        // A shape that no dnode has: more pointers than slots.
        (block[2048], block[2048 + 3]) = (1, 9);
        let mut swapped = block;
        swap_dnodes(&mut swapped);
        assert_ne!(swapped, block);
        assert_eq!(swapped[2048..], block[2048..]);
        let dnodes = |block: &[u8], endian| -> Vec<_> {
            dnodes_in_block(&block[..2048], endian)
                .map(|(slot, d)| (slot, Dnode { endian: Endian::Little, ..d.unwrap() }))
                .collect()
        };
        assert_eq!(dnodes(&swapped, Endian::Big), dnodes(&block, Endian::Little));
        swap_dnodes(&mut swapped);
        assert_eq!(swapped, block);
    }

    #[test]
    fn covering_blocks_and_capacity() {
        let mut raw = plain();
        raw[1] = 12;
        raw[2] = 3;
        let d = Dnode::parse(&raw, Endian::Little).unwrap().unwrap();
        assert_eq!((d.covering(99, 1), d.covering(99, 2)), (3, 0));
        assert_eq!(d.root_index(3 * 1024 - 1), Some(2));
        assert_eq!(d.root_index(3 * 1024), None);
        assert_eq!(d.root_index(u64::MAX), None);
    }

    proptest! {
        #[test]
        fn random_blocks_never_panic_and_end(
            mut block in prop::collection::vec(any::<u8>(), 0..4096), big in any::<bool>(),
        ) {
            for slot in block.chunks_mut(512) {
                if slot.len() > 12 && slot[0] & 1 == 1 {
                    slot[..4].copy_from_slice(&[19, 14, 2, 1]);
                    slot[12] &= 3;
                }
            }
            let endian = if big { Endian::Big } else { Endian::Little };
            let n = dnodes_in_block(&block, endian).count();
            prop_assert!(n <= block.len() / 512);
        }
    }
}
