//! Which pointers lead to the same bytes, in pools with removed devices (chapter 08 §D.4).
//!
//! # Theory
//! OpenZFS *remaps* pointers: when it writes a block of pointers anyway, it replaces an address on
//! a removed vdev by the address to which the mapping leads, and the physical birth by the txg of
//! that copy. Snapshots keep the pointer as it was. So one block may have pointers with different
//! addresses. If a move switched one of them alone, the others would lead to freed space.
//!
//! The *home* of a block is the address of its first sector after all mappings, with the logical
//! birth, which no remapping changes. Whether pointers lead to one block is decided by their homes.
//! Without removed vdevs the home is the block's place.
//!
//! A pointer's *forms* are its address and all addresses to which mappings lead from there, as far
//! as they are on removed vdevs. Freeing a pointer makes its forms obsolete. Those of an older
//! pointer of the same block, which are listed in remap deadlists, become obsolete, too: no
//! snapshot has that pointer any more.
//!
//! # Physical birth
//! That of a remapped pointer is newer than snapshots that have the block, and a scan would leave
//! the copy out there ([`super`]). So all copies in such a pool have their logical birth as their
//! physical one. Cloned, deduplicated and rewritten blocks, of which it could not be said, are not
//! moved.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::limits::INDIRECT_HOPS_MAX;
use base::{Dva, VdevId};
use ondisk::blkptr::{Block, BlockPlace};
use vdev::{IndirectMap, Tree};

/// The smallest part of a mapping, bytes.
const SECTOR: u64 = 512;

/// What identifies a block, whichever of its pointers one has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in super::super) struct BlockHome(BlockPlace);

/// The mappings of a pool.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Homes(BTreeMap<VdevId, Arc<IndirectMap>>);

impl Homes {
    pub(in super::super) fn new(tree: &Tree) -> Homes {
        let ids = tree.top_ids();
        Homes(ids.filter_map(|id| Some((id, tree.indirect(id)?))).collect())
    }

    /// Whether there are no mappings.
    pub(in super::super) fn is_plain(&self) -> bool {
        self.0.is_empty()
    }

    /// The addresses on removed vdevs through which this one leads, itself included, and the one
    /// at the end. A damaged mapping ends the way.
    fn way(&self, dva: Dva) -> (Vec<(VdevId, u64)>, (VdevId, u64)) {
        let (mut forms, mut at) = (Vec::new(), (dva.vdev, dva.offset));
        while let Some(map) = self.0.get(&at.0) {
            if forms.len() >= INDIRECT_HOPS_MAX {
                break;
            }
            forms.push(at);
            let Some(first) = map.segments(at.1, SECTOR).ok().and_then(|s| s.first().copied())
            else {
                break;
            };
            at = (first.vdev, first.offset);
        }
        (forms, at)
    }

    /// The forms of an address.
    pub(in super::super) fn forms(&self, dva: Dva) -> Vec<(VdevId, u64)> {
        match self.is_plain() {
            true => Vec::new(),
            false => self.way(dva).0,
        }
    }

    /// Every address under which something may know a block, for its first address.
    pub(in super::super) fn addresses(&self, block: &Block) -> Vec<(VdevId, u64)> {
        let (mut all, end) = self.way(block.dva());
        all.push(end);
        all
    }

    /// The home of a block.
    pub(in super::super) fn of(&self, block: &Block) -> BlockHome {
        if self.is_plain() {
            return BlockHome(block.place());
        }
        let (vdev, offset) = self.way(block.dva()).1;
        BlockHome(BlockPlace { vdev: vdev.0, offset, birth: block.head.birth })
    }

    /// The block with the physical birth that its copy is to have.
    pub(super) fn with_birth(&self, block: &Block) -> Block {
        match self.is_plain() {
            true => *block,
            false => block.without_physical_birth(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vdev::IndirectEntry;

    fn homes() -> Homes {
        let map = |src, dst_vdev, dst_offset| {
            let entry = IndirectEntry { src, len: 8192, dst_vdev: VdevId(dst_vdev), dst_offset };
            Arc::new(IndirectMap::new(vec![entry], Vec::new()).unwrap())
        };
        Homes([(VdevId(0), map(4096, 1, 65536)), (VdevId(1), map(65536, 2, 0))].into())
    }

    fn dva(vdev: u32, offset: u64) -> Dva {
        Dva { vdev: VdevId(vdev), offset, asize: base::Asize(4096), gang: false }
    }

    #[test]
    fn an_address_leads_through_all_mappings() {
        let homes = homes();
        let (forms, end) = homes.way(dva(0, 8192));
        assert_eq!(forms, [(VdevId(0), 8192), (VdevId(1), 69632)]);
        assert_eq!(end, (VdevId(2), 4096));
        assert_eq!(homes.way(dva(1, 69632)), (vec![(VdevId(1), 69632)], end));
        assert_eq!(homes.way(dva(2, 4096)), (vec![], end));
        assert!(Homes::default().forms(dva(0, 8192)).is_empty());
    }

    /// A circle of mappings, or one with a hole, ends the way.
    #[test]
    fn damaged_mappings_end_the_way() {
        let mut homes = homes();
        let (forms, _) = homes.way(dva(0, 0));
        assert_eq!(forms, [(VdevId(0), 0)]);
        let back = IndirectEntry { src: 65536, len: 8192, dst_vdev: VdevId(0), dst_offset: 4096 };
        let map = Arc::new(IndirectMap::new(vec![back], Vec::new()).unwrap());
        homes.0.insert(VdevId(1), map);
        assert_eq!(homes.way(dva(0, 4096)).0.len(), INDIRECT_HOPS_MAX);
    }
}
