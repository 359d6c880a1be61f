//! The three sizes of a block on which all accounting is based (chapter 04 §0).

use std::ops::{Add, AddAssign, Neg, Sub, SubAssign};
use std::sync::Arc;

use base::VdevId;
use ondisk::BlkPtr;
use ondisk::blkptr::Block;
use ondisk::dslphys::Space;

/// Bytes, signed: U (allocated, deflated), C (compressed), X (uncompressed). Arithmetic
/// wraps, as it does on disk: a wrong sum in a damaged pool stays wrong by the same amount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// U.
    pub used: i64,
    /// C.
    pub comp: i64,
    /// X.
    pub uncomp: i64,
}

impl Usage {
    /// From sizes as they are stored.
    pub fn of(used: u64, comp: u64, uncomp: u64) -> Usage {
        Usage { used: used as i64, comp: comp as i64, uncomp: uncomp as i64 }
    }

    /// Only U.
    pub fn bytes(used: i64) -> Usage {
        Usage { used, ..Usage::default() }
    }

    /// Whether all three are zero.
    pub fn is_zero(&self) -> bool {
        *self == Usage::default()
    }

    /// In the form of a structure on disk.
    pub fn space(self) -> Space {
        Space { used: self.used as u64, comp: self.comp as u64, uncomp: self.uncomp as u64 }
    }
}

impl From<Space> for Usage {
    fn from(s: Space) -> Usage {
        Usage::of(s.used, s.comp, s.uncomp)
    }
}

impl Add for Usage {
    type Output = Usage;
    fn add(self, o: Usage) -> Usage {
        Usage {
            used: self.used.wrapping_add(o.used),
            comp: self.comp.wrapping_add(o.comp),
            uncomp: self.uncomp.wrapping_add(o.uncomp),
        }
    }
}

impl Neg for Usage {
    type Output = Usage;
    fn neg(self) -> Usage {
        Usage {
            used: self.used.wrapping_neg(),
            comp: self.comp.wrapping_neg(),
            uncomp: self.uncomp.wrapping_neg(),
        }
    }
}

impl Sub for Usage {
    type Output = Usage;
    fn sub(self, o: Usage) -> Usage {
        self + -o
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, o: Usage) {
        *self = *self + o;
    }
}

impl SubAssign for Usage {
    fn sub_assign(&mut self, o: Usage) {
        *self = *self - o;
    }
}

impl std::iter::Sum for Usage {
    fn sum<I: Iterator<Item = Usage>>(iter: I) -> Usage {
        iter.fold(Usage::default(), Add::add)
    }
}

/// Adds a signed number of bytes to a stored one.
pub(crate) fn add(stored: &mut u64, bytes: i64) {
    *stored = stored.wrapping_add_signed(bytes);
}

/// Deflate ratios of the top-level vdevs, by vdev id: accounted bytes per 512 allocated
/// ones. The default is 512, so that the empty table is right for pools of plain disks and
/// mirrors, and for those without `deflate`. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Ratios(Arc<[u64]>);

impl Ratios {
    /// The table of a pool whose vdevs have these ratios.
    pub fn new(ratios: Vec<u64>) -> Ratios {
        Ratios(ratios.into())
    }

    fn of(&self, vdev: VdevId) -> u64 {
        self.0.get(vdev.0 as usize).copied().unwrap_or(512)
    }

    /// U of a block on disk.
    pub fn used(&self, block: &Block) -> u64 {
        block.dvas().map(|d| (d.asize.0 >> 9).wrapping_mul(self.of(d.vdev))).sum()
    }

    /// The sizes that a pointer counts: none for holes and redacted blocks.
    pub fn space_of(&self, bp: &BlkPtr) -> Usage {
        let head = bp.head();
        let data = head.level == 0 && !head.object_type.is_metadata();
        match bp {
            BlkPtr::Hole(_) | BlkPtr::Redacted(_) => Usage::default(),
            BlkPtr::Embedded(_) => Usage::of(0, 0, if data { head.lsize.0 } else { 0 }),
            BlkPtr::Block(b) => {
                let uncomp = if data { head.lsize.0 } else { b.psize.0 };
                Usage::of(self.used(b), b.psize.0, uncomp)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use base::{Asize, Dva, Lsize, Psize, Txg};
    use ondisk::ObjType;
    use ondisk::blkptr::Head;

    use super::*;

    #[test]
    fn sizes_of_blocks() {
        let dva = |vdev, asize| Dva { vdev: VdevId(vdev), asize: Asize(asize), ..Dva::default() };
        let head =
            |object_type, level| Head { object_type, level, lsize: Lsize(131_072), birth: Txg(9) };
        let dvas = [dva(0, 4096), dva(1, 196_608)];
        let ratios = Ratios::new(vec![512, 341]);
        let bp = |t, level| BlkPtr::Block(Block::new(head(t, level), Psize(65_536), 15, &dvas));
        let used = 4096 + 384 * 341;
        let of = |bp: &BlkPtr| ratios.space_of(bp);
        assert_eq!(of(&bp(ObjType::PLAIN_FILE_CONTENTS, 0)), Usage::of(used, 65_536, 131_072));
        assert_eq!(of(&bp(ObjType::PLAIN_FILE_CONTENTS, 1)), Usage::of(used, 65_536, 65_536));
        assert_eq!(of(&bp(ObjType::MASTER_NODE, 0)), Usage::of(used, 65_536, 65_536));
        assert_eq!(of(&BlkPtr::default()), Usage::default());
        assert_eq!(Ratios::default().space_of(&bp(ObjType::ZVOL, 0)).used, 4096 + 196_608);
    }
}
