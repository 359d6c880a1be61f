//! Pointers to blocks that were copied to another place without a change of what they mean
//! (chapter 02 §2.5, §12).
//!
//! # Theory
//! A block's *identity* is its first address with the txg in which the bytes there were
//! written. Pointers with one identity lead to the same bytes, although they need not be equal:
//! a clone has its own logical birth, an entry of a list no checksum. So a pointer is changed
//! field by field: addresses, physical birth, and, for a block of pointers whose content
//! changed with it, checksum and compression. All else stays as it was, byte for byte.

use base::{Error, Result, Txg};

use super::{BLKPTR_SIZE, BlkPtr, Block, Protection};
use crate::endian::Endian;

/// The identity of a block's bytes: vdev and offset of the first address, and the physical
/// birth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockPlace {
    /// Top-level vdev.
    pub vdev: u32,
    /// Byte offset.
    pub offset: u64,
    /// Effective physical birth.
    pub birth: Txg,
}

impl Block {
    /// This block, with its logical birth as its physical one.
    #[must_use]
    pub fn without_physical_birth(&self) -> Block {
        Block { physical_birth: Txg::ZERO, ..*self }
    }

    /// Its identity.
    pub fn place(&self) -> BlockPlace {
        let dva = self.dva();
        BlockPlace { vdev: dva.vdev.0, offset: dva.offset, birth: self.effective_physical_birth() }
    }

    /// This pointer, leading to the copy `to` of its block: it has the addresses, the physical
    /// birth, the checksum and the compression of `to`, and its own logical birth.
    #[must_use]
    pub fn relocated(&self, to: &Block) -> Block {
        let physical = to.effective_physical_birth();
        let mut new = *self;
        let words = if self.protection == Protection::Encrypted { 2 } else { 3 };
        new.raw[..words].copy_from_slice(&to.raw[..words]);
        new.copies = to.copies;
        new.physical_birth = if physical == self.head.birth { Txg::ZERO } else { physical };
        new.compression = to.compression;
        // The entry of a list has no checksum, and gets none.
        if self.words != [0; 4] {
            new.words = to.words;
        }
        new
    }
}

/// Changes the pointer that is stored in `raw`, in byte order `endian`, so that it leads to the
/// copy `to` of its block. Only the fields that differ change.
///
/// # Errors
/// `Bug` if there is no pointer to a block.
pub fn relocate_pointer(raw: &mut [u8], endian: Endian, to: &Block) -> Result<()> {
    let no_block = || Error::bug("a pointer to no block was to be relocated");
    let at: &mut [u8; BLKPTR_SIZE] =
        raw.first_chunk_mut().ok_or_else(|| Error::bug("a pointer is cut off"))?;
    let BlkPtr::Block(old) = BlkPtr::parse(at, endian)? else { return Err(no_block()) };
    let (before, after) = (BlkPtr::Block(old), BlkPtr::Block(old.relocated(to)));
    let (Some(before), Some(after)) = (before.encode(), after.encode()) else {
        return Err(no_block());
    };
    let words = at.chunks_exact_mut(8).zip(before.chunks_exact(8).zip(after.chunks_exact(8)));
    for (stored, (was, is)) in words {
        let bits = |bytes: &[u8]| Endian::Little.u64(bytes, 0).unwrap_or_default();
        let changed = bits(was) ^ bits(is);
        let word = endian.u64(stored, 0).unwrap_or_default() ^ changed;
        stored.copy_from_slice(&endian.bytes_of(word));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use base::{Asize, Dva, Lsize, Psize, VdevId};
    use proptest::prelude::*;

    use super::*;
    use crate::blkptr::Head;
    use crate::objtype::ObjType;

    fn dva(vdev: u32, sector: u64, sectors: u64) -> Dva {
        Dva { vdev: VdevId(vdev), offset: sector << 9, asize: Asize(sectors << 9), gang: false }
    }

    fn block(birth: u64, physical: u64, dvas: &[Dva]) -> Block {
        let head = Head {
            object_type: ObjType::PLAIN_FILE_CONTENTS,
            level: 1,
            lsize: Lsize(131_072),
            birth: Txg(birth),
        };
        let mut block = Block::new(head, Psize(4096), 15, dvas);
        (block.checksum, block.fill, block.words) = (7, 12, [1, 2, 3, 4]);
        block.physical_birth = Txg(physical);
        block
    }

    /// A stored pointer changes in its addresses, physical birth, checksum and compression, in
    /// either byte order, and bits that no parser keeps stay.
    #[test]
    fn only_what_leads_to_the_bytes_changes() {
        let old = block(50, 0, &[dva(0, 100, 8), dva(1, 700, 8)]);
        let mut to = block(50, 90, &[dva(2, 9, 8), dva(0, 4000, 8)]);
        (to.words, to.compression) = ([9, 8, 7, 6], 13);
        for endian in [Endian::Little, Endian::Big] {
            let mut raw = [0; BLKPTR_SIZE];
            let little = BlkPtr::Block(old).encode().unwrap();
            for (to, from) in raw.chunks_exact_mut(8).zip(little.chunks_exact(8)) {
                to.copy_from_slice(&endian.bytes_of(Endian::Little.u64(from, 0).unwrap()));
            }
            // Padding.
            raw[0x40..0x48].fill(0x5a);
            relocate_pointer(&mut raw, endian, &to).unwrap();
            let Ok(BlkPtr::Block(new)) = BlkPtr::parse(&raw, endian) else { panic!("no block") };
            assert_eq!(new.dvas().collect::<Vec<_>>(), to.dvas().collect::<Vec<_>>());
            assert_eq!((new.head, new.fill), (old.head, old.fill));
            assert_eq!((new.physical_birth, new.words, new.compression), (Txg(90), to.words, 13));
            assert_eq!(new.place(), to.place());
            assert!(!new.rewritten && raw[0x40..0x48] == [0x5a; 8]);
        }
    }

    proptest! {
        /// Whatever the births, the copy's place is found, and there and back is the same pointer.
        #[test]
        fn relocation_can_be_undone(birth in 1u64..100, own in 0u64..100, other in 1u64..200) {
            let old = block(birth, if own == birth { 0 } else { own }, &[dva(0, 100, 8)]);
            let to = block(1, other, &[dva(3, 8, 8)]);
            let new = old.relocated(&to);
            prop_assert_eq!(new.place(), to.place());
            prop_assert_eq!(new.head, old.head);
            prop_assert_eq!(new.relocated(&old), old);
        }
    }
}
