//! An independent walk over an object set on disk, which verifies all rules of the format.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::{Buf, Txg};
use dmu::{Io, Objset};
use ondisk::dnode::{DNODE_SIZE, dnodes_in_block, flags};
use ondisk::objset::ObjsetType;
use ondisk::{BlkPtr, Dnode, Endian, ObjType, ObjsetPhys};
use zio::Zio;

use crate::world::{dsize, key_of};

/// The tree that the walk found.
#[derive(Default)]
pub struct ObjectTree {
    pub dnode: Option<Dnode>,
    /// Data blocks, without holes.
    pub blocks: BTreeMap<u64, (BlkPtr, Buf)>,
    /// Ranges `[first, past)` of holes, and the birth of the pointer that covers them.
    pub holes: Vec<(u64, u64, Txg)>,
    pub spill: Option<Buf>,
    /// All pointers with a birth: (level, block, pointer).
    pub pointers: Vec<(u8, u64, BlkPtr)>,
    used: u64,
}

impl ObjectTree {
    /// The birth of the hole at a block; `None` if it is no hole.
    pub fn hole_birth(&self, blkid: u64) -> Option<Txg> {
        self.holes.iter().find(|(a, b, _)| (*a..*b).contains(&blkid)).map(|h| h.2)
    }
}

pub struct PoolWalk {
    zio: Arc<Zio>,
    txg: Txg,
    hole_birth: bool,
    pub reached: BTreeMap<Vec<u8>, u64>,
    pub places: BTreeSet<u64>,
    pub objects: BTreeMap<u64, ObjectTree>,
}

impl PoolWalk {
    /// Walks and checks the object set at the reader's root.
    pub fn new(os: &Arc<Objset>, txg: u64, hole_birth: bool) -> PoolWalk {
        let mut walk = PoolWalk {
            zio: Arc::clone(os.zio()),
            txg: Txg(txg),
            hole_birth,
            reached: BTreeMap::new(),
            places: BTreeSet::new(),
            objects: BTreeMap::new(),
        };
        let root = os.root_bp();
        walk.reach(&root);
        let phys = ObjsetPhys::parse(&walk.zio.read(&root, Io::WAIT).unwrap(), Endian::Little);
        let phys = phys.unwrap();
        let meta = walk.tree(&phys.meta_dnode, 0);
        let mut count = 0;
        for (blkid, (bp, block)) in &meta.blocks {
            let mut free = [true; 32];
            let mut dnodes = 0;
            for (slot, dnode) in dnodes_in_block(block, Endian::Little) {
                let dnode = dnode.unwrap();
                free[slot as usize..slot as usize + usize::from(dnode.slots)].fill(false);
                let tree = walk.tree(&dnode, blkid * 32 + slot);
                walk.objects.insert(blkid * 32 + slot, tree);
                dnodes += 1;
            }
            assert!(dnodes > 0, "a block without dnodes is a hole");
            assert_eq!(bp.fill(), dnodes);
            count += dnodes;
            for (slot, _) in free.iter().enumerate().filter(|(_, free)| **free) {
                let bytes = &block[slot * DNODE_SIZE..(slot + 1) * DNODE_SIZE];
                assert!(bytes.iter().all(|&b| b == 0), "free slot {slot} is not zero");
            }
        }
        assert_eq!(root.fill(), count);
        assert_eq!(os.object_count(), count);
        assert_eq!(phys.meta_dnode.levels >= 6, phys.kind != ObjsetType::Meta);
        let special = [&phys.user_used, &phys.group_used, &phys.project_used];
        for (i, dnode) in special.into_iter().enumerate() {
            if let Some(dnode) = dnode {
                let tree = walk.tree(dnode, u64::MAX - i as u64);
                walk.objects.insert(u64::MAX - i as u64, tree);
            }
        }
        walk
    }

    fn reach(&mut self, bp: &BlkPtr) {
        let Some(key) = key_of(bp) else { return };
        *self.reached.entry(key).or_default() += 1;
        for dva in bp.as_block().into_iter().flat_map(|b| b.dvas().collect::<Vec<_>>()) {
            assert!(self.places.insert(dva.offset), "two blocks at one address: {bp:?}");
        }
    }

    fn tree(&mut self, dn: &Dnode, id: u64) -> ObjectTree {
        let mut tree = ObjectTree { dnode: Some(dn.clone()), ..ObjectTree::default() };
        let top = dn.levels - 1;
        for (i, bp) in dn.blkptrs.iter().enumerate() {
            self.node(dn, bp, top, i as u64, self.txg, &mut tree);
        }
        assert_eq!(dn.flags & flags::SPILL_BLKPTR != 0, dn.spill.is_some());
        if let Some(bp) = &dn.spill {
            assert!(!bp.is_hole() && bp.head().object_type == dn.bonus_type);
            self.reach(bp);
            tree.used += dsize(bp);
            tree.spill = Some(self.zio.read(bp, Io::WAIT).unwrap());
        }
        assert_eq!(tree.used, dn.used, "used of object {id}");
        let last = tree.blocks.keys().next_back().copied().unwrap_or(0);
        assert!(last <= dn.max_blkid, "object {id} has a block behind its last one");
        tree
    }

    fn node(
        &mut self,
        dn: &Dnode,
        bp: &BlkPtr,
        level: u8,
        blkid: u64,
        max: Txg,
        to: &mut ObjectTree,
    ) {
        let shift = dn.epb_shift();
        let span = 1u64.checked_shl(shift * u32::from(level)).unwrap_or(u64::MAX);
        let first = blkid.saturating_mul(span);
        assert!(bp.birth() <= max, "younger than what leads to it: {bp:?}");
        if bp.birth() != Txg::ZERO {
            assert_eq!((bp.head().level, bp.head().object_type), (level, dn.object_type));
            let right = bp.head().lsize.0 == dn.block_size(level);
            assert!(right || bp.is_hole() && dn.levels > 1 && level == 0, "{bp:?}");
            to.pointers.push((level, blkid, *bp));
        }
        if bp.is_hole() {
            assert!(self.hole_birth || bp.birth() == Txg::ZERO);
            to.holes.push((first, first.saturating_add(span), bp.birth()));
            return;
        }
        self.reach(bp);
        to.used += dsize(bp);
        let block = self.zio.read(bp, Io::WAIT).unwrap();
        if level == 0 {
            if dn.object_type != ObjType::DNODE {
                assert_eq!(bp.fill(), 1);
            }
            to.blocks.insert(blkid, (*bp, block));
            return;
        }
        let mut fill = 0;
        for i in 0..1u64 << shift {
            let child = BlkPtr::parse_nth(&block, i as usize, Endian::Little).unwrap();
            fill += child.fill();
            self.node(dn, &child, level - 1, blkid << shift | i, bp.birth(), to);
        }
        assert!(fill > 0 && bp.fill() == fill, "fill of {bp:?}: {fill}");
    }
}
