//! The worked example of chapter 03 §3.8.

use base::Txg;
use dmu::{ObjectSpec, ObjsetProps};
use ondisk::objset::ObjsetType;
use ondisk::{BlkPtr, ObjType};

use crate::walk::{ObjectTree, PoolWalk};
use crate::world::ObjsetFixture;

const DATA: ObjType = ObjType::PLAIN_FILE_CONTENTS;

/// 512 bytes that do not compress.
fn block(seed: u64) -> Vec<u8> {
    let mut x = seed * 2 + 1;
    let mut next = || {
        x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (x >> 40) as u8
    };
    (0..512).map(|_| next()).collect()
}

fn at(tree: &ObjectTree, level: u8, blkid: u64) -> BlkPtr {
    let mut found = tree.pointers.iter().filter(|p| (p.0, p.1) == (level, blkid));
    found.next().map(|p| p.2).unwrap_or_default()
}

#[test]
fn the_worked_example() {
    let mut world = ObjsetFixture::new(ObjsetType::Zfs, ObjsetProps::default(), false);
    let spec = ObjectSpec { object_type: DATA, indirect_shift: 12, ..ObjectSpec::default() };
    let id = world.os.allocate(&world.tx(6), &spec).unwrap();
    let commit = |world: &mut ObjsetFixture, txg: u64| {
        world.commit(txg);
        world.reopen();
        let mut walk = PoolWalk::new(&world.reader(), txg, true);
        world.check_blocks(&walk.reached);
        world.synced(txg);
        walk.objects.remove(&id.0).unwrap()
    };
    let dnode = |tree: &ObjectTree| tree.dnode.clone().unwrap();
    let hole = |level, lsize, birth| (true, level, lsize, Txg(birth));
    let seen = |bp: BlkPtr| (bp.is_hole(), bp.head().level, bp.head().lsize.0, bp.birth());

    for b in 0..100 {
        world.os.write(&world.tx(6), id, b * 512, &block(b)).unwrap();
    }
    let tree = commit(&mut world, 6);
    assert_eq!((dnode(&tree).levels, dnode(&tree).max_blkid), (3, 99));
    assert_eq!(at(&tree, 2, 0).fill(), 100);
    assert_eq!([0, 1, 2, 3].map(|i| at(&tree, 1, i).fill()), [32, 32, 32, 4]);

    world.os.free_range(&world.tx(9), id, 32 * 512, 32 * 512).unwrap();
    let tree = commit(&mut world, 9);
    assert_eq!(seen(at(&tree, 1, 1)), hole(1, 4096, 9));
    assert_eq!((at(&tree, 2, 0).fill(), dnode(&tree).max_blkid), (68, 99));

    world.os.write(&world.tx(12), id, 40 * 512, &block(1000)).unwrap();
    let tree = commit(&mut world, 12);
    assert_eq!((at(&tree, 1, 1).fill(), at(&tree, 2, 0).fill()), (1, 69));
    assert_eq!(at(&tree, 0, 40).birth(), Txg(12));
    for b in (32..64).filter(|b| *b != 40) {
        assert_eq!(seen(at(&tree, 0, b)), hole(0, 512, 9));
    }

    world.os.write(&world.tx(15), id, 70 * 512, &[0; 1024]).unwrap();
    let tree = commit(&mut world, 15);
    assert_eq!(seen(at(&tree, 0, 70)), hole(0, 512, 15));
    assert_eq!(seen(at(&tree, 0, 71)), hole(0, 512, 15));
    assert_eq!((at(&tree, 1, 2).fill(), at(&tree, 2, 0).fill()), (30, 67));

    world.os.write(&world.tx(18), id, 5000 * 512, &block(1001)).unwrap();
    let tree = commit(&mut world, 18);
    assert_eq!((dnode(&tree).levels, at(&tree, 3, 0).fill()), (4, 68));
    assert_eq!((at(&tree, 2, 0).fill(), at(&tree, 2, 0).birth()), (67, Txg(15)));
    world.os.write(&world.tx(19), id, 5002 * 512, &[0; 1024]).unwrap();
    let tree = commit(&mut world, 19);
    assert_eq!(dnode(&tree).max_blkid, 5003);
    assert_eq!((at(&tree, 0, 5002), at(&tree, 0, 5003)), Default::default());

    world.os.free_range(&world.tx(24), id, 0, u64::MAX).unwrap();
    let tree = commit(&mut world, 24);
    let dn = dnode(&tree);
    assert_eq!((dn.levels, dn.max_blkid, dn.used), (4, 0, 0));
    assert_eq!(seen(dn.blkptrs[0]), hole(3, 4096, 24));
    assert_eq!(dn.blkptrs[1], BlkPtr::default());
}

/// Blocks that a snapshot has are freed, and the tree grows above them: an incremental send
/// must find the holes.
#[test]
fn holes_keep_a_birth_when_the_tree_grows() {
    let mut world = ObjsetFixture::new(ObjsetType::Zfs, ObjsetProps::default(), true);
    let spec = ObjectSpec { object_type: DATA, indirect_shift: 12, ..ObjectSpec::default() };
    let id = world.os.allocate(&world.tx(1), &spec).unwrap();
    for b in 0..3 {
        world.os.write(&world.tx(1), id, b * 512, &block(b)).unwrap();
    }
    world.commit(1);
    world.os.free_range(&world.tx(2), id, 0, u64::MAX).unwrap();
    world.os.write(&world.tx(2), id, 5000 * 512, &block(5)).unwrap();
    world.commit(2);
    world.reopen();
    let walk = PoolWalk::new(&world.reader(), 2, true);
    let tree = &walk.objects[&id.0];
    (0..3).for_each(|b| assert_eq!(tree.hole_birth(b), Some(Txg(2))));
}
