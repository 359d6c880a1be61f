//! Passes, the far ends of objects, calls that fail.

use base::{Error, ErrorKind, ObjectId, Txg};
use dmu::{Io, ObjectSpec, ObjsetProps, Tx};
use ondisk::ObjType;
use ondisk::objset::ObjsetType;
use zio::Writes;

use crate::random::LiveRng;
use crate::walk::PoolWalk;
use crate::world::ObjsetFixture;

fn file() -> ObjectSpec {
    let object_type = ObjType::PLAIN_FILE_CONTENTS;
    ObjectSpec { object_type, indirect_shift: 12, ..ObjectSpec::default() }
}

fn check(world: &ObjsetFixture, txg: u64) -> PoolWalk {
    let walk = PoolWalk::new(&world.reader(), txg, true);
    world.check_blocks(&walk.reached);
    world.check_space(&walk.places);
    walk
}

/// As for the MOS: one txg in passes, from the second on in place.
#[test]
fn passes_rewrite_in_place() {
    let mut world = ObjsetFixture::new(ObjsetType::Meta, ObjsetProps::mos(), true);
    let (os, mut rng) = (world.os.clone(), LiveRng(5));
    let spec = ObjectSpec { object_type: ObjType::SPACE_MAP, ..file() };
    let ids: Vec<ObjectId> =
        (0..40).map(|_| os.allocate(&Tx::syncing(Txg(1)), &spec).unwrap()).collect();
    let mut model: Vec<Vec<Vec<u8>>> = vec![vec![vec![0; 512]; 40]; ids.len()];
    for txg in 1..6 {
        for pass in 0..6 {
            let tx = Tx::syncing(Txg(txg));
            for n in 0..30 {
                let (o, b) = (rng.below(40) as usize, rng.below(40));
                let data = if n == 0 && pass < 4 { vec![0; 512] } else { rng.bytes(512) };
                if pass < 4 || model[o][b as usize].iter().any(|x| *x != 0) {
                    os.write(&tx, ids[o], b * 512, &data).unwrap();
                    model[o][b as usize] = data;
                }
            }
            let writes = Writes::new(&world.zio);
            let pending = world.sync(txg, &writes, pass > 0);
            assert!(world.sync(txg, &writes, pass > 0).is_none(), "written twice");
            assert!(writes.wait().is_empty());
            world.end(txg, pending);
            assert!(!os.is_dirty(Txg(txg)));
            let walk = check(&world, txg);
            for (id, blocks) in ids.iter().zip(&model) {
                for (b, data) in (0..).zip(blocks) {
                    let found = walk.objects[&id.0].blocks.get(&b);
                    let zeros = vec![0; 512];
                    assert_eq!(found.map_or(&zeros[..], |f| &f.1), &data[..]);
                    let live = os.object(*id, Io::WAIT).unwrap().read_block(b, Io::WAIT).unwrap();
                    assert_eq!(live[..], data[..]);
                }
            }
        }
        // A block that keeps its size keeps its address.
        let before = check(&world, txg).places;
        let full = [7u8, 1].map(|seed| LiveRng(seed.into()));
        for mut rng in full {
            let data: Vec<u8> = (0..512).map(|_| (rng.next() >> 20) as u8 | 1).collect();
            os.write(&Tx::syncing(Txg(txg)), ids[3], 0, &data).unwrap();
            model[3][0] = data;
            let writes = Writes::new(&world.zio);
            let pending = world.sync(txg, &writes, true);
            assert!(writes.wait().is_empty());
            world.end(txg, pending);
        }
        let after = check(&world, txg).places;
        assert!(before.difference(&after).count() <= 6, "most places serve again");
        world.synced(txg);
    }
    world.reopen();
}

#[test]
fn the_far_end_of_objects() {
    let world = ObjsetFixture::new(ObjsetType::Zfs, ObjsetProps::default(), true);
    let os = world.os.clone();
    let tx = world.tx(1);
    let id = os.allocate(&tx, &file()).unwrap();
    let last = (1u64 << 55) - 2;
    os.write(&tx, id, last * 512, &[1; 512]).unwrap();
    os.write(&tx, id, 0, &[2; 512]).unwrap();
    os.write(&tx, id, 1 << 49, &[3; 1000]).unwrap();
    let kind = |e: Result<(), Error>| e.unwrap_err().kind();
    assert_eq!(kind(os.write(&tx, id, u64::MAX - 3, &[1; 8])), ErrorKind::Invalid);
    assert_eq!(kind(os.edit_block(&tx, id, 1 << 55, &mut |_| Ok(()))), ErrorKind::Invalid);
    world.commit(1);
    let walk = check(&world, 1);
    let tree = &walk.objects[&id.0];
    assert_eq!(tree.blocks.len(), 4);
    assert_eq!(tree.dnode.as_ref().unwrap().levels, 12);
    world.synced(1);

    // No step loops over block ids: not in memory, at the sync, or at publication.
    let tx = world.tx(2);
    os.free_range(&tx, id, u64::MAX, u64::MAX).unwrap();
    os.free_range(&tx, id, u64::MAX - 600, 100).unwrap();
    os.free_range(&tx, id, 700, (1 << 62) - 1).unwrap();
    let object = os.object(id, Io::WAIT).unwrap();
    assert_eq!(object.next_data_block(1, Io::WAIT).unwrap(), Some(last));
    assert_eq!(object.next_hole_block(0, Io::WAIT).unwrap(), Some(1));
    world.commit(2);
    let walk = check(&world, 2);
    let blocks: Vec<u64> = walk.objects[&id.0].blocks.keys().copied().collect();
    assert_eq!(blocks, [0, last]);
    world.synced(2);

    os.free_range(&world.tx(3), id, 512, u64::MAX - 512).unwrap();
    world.commit(3);
    let walk = check(&world, 3);
    assert_eq!(walk.objects[&id.0].dnode.as_ref().unwrap().max_blkid, 0);
    world.synced(3);
    os.write(&world.tx(4), id, last * 512, &[1; 512]).unwrap();
    world.commit(4);
    os.free_object(&world.tx(5), id).unwrap();
    world.commit(5);
    assert!(check(&world, 5).objects.keys().all(|id| id >> 48 != 0));
}

#[test]
fn calls_that_fail_leave_nothing_behind() {
    let world = ObjsetFixture::new(ObjsetType::Other, ObjsetProps::default(), true);
    let (os, tx) = (world.os.clone(), world.tx(1));
    let kind = |e: Result<(), Error>| e.unwrap_err().kind();
    let missing = ObjectId(77);
    assert_eq!(kind(os.write(&tx, missing, 0, &[1])), ErrorKind::NotFound);
    assert_eq!(kind(os.set_bonus(&tx, missing, &[1])), ErrorKind::NotFound);
    assert_eq!(kind(os.free_object(&tx, missing)), ErrorKind::NotFound);
    assert!(!os.is_dirty(Txg(1)));
    os.claim(&tx, missing, &file()).unwrap();
    assert_eq!(kind(os.claim(&tx, missing, &file())), ErrorKind::Exists);
    assert_eq!(kind(os.claim(&tx, ObjectId(0), &file())), ErrorKind::Exists);
    let crossing = ObjectSpec { slots: 4, ..file() };
    assert_eq!(kind(os.claim(&tx, ObjectId(30), &crossing)), ErrorKind::Invalid);
    for bad in [
        ObjectSpec { indirect_shift: 20, ..file() },
        ObjectSpec { block_size: 700, ..file() },
        ObjectSpec { slots: 33, ..file() },
        ObjectSpec { bonus: vec![0; 321], ..file() },
        ObjectSpec { object_type: ObjType::NONE, ..file() },
    ] {
        assert_eq!(os.allocate(&tx, &bad).unwrap_err().kind(), ErrorKind::Invalid);
    }
    world.commit(1);
    check(&world, 1);
    world.synced(1);
    // The first change of a txg fails: the object is in it, and the next txgs continue.
    for txg in 2..9 {
        let tx = world.tx(txg);
        let refuse = &mut |_: &mut [u8]| Err(Error::invalid("no"));
        assert_eq!(kind(os.edit_block(&tx, missing, 0, refuse)), ErrorKind::Invalid);
        world.commit(txg);
        check(&world, txg);
        world.synced(txg);
    }
    world.zio.cache().clear();
    assert_eq!(world.zio.cache().size(), 0, "memory of dirty blocks");
}

/// The simulator set a spill block of zeros alone (seed 501060): compression made it a hole, so
/// the object came back from the disk without one. No object has such a spill block, for a
/// header of attributes begins with a magic number; it is refused.
#[test]
fn a_spill_block_of_zeros_is_refused() {
    let world = ObjsetFixture::new(ObjsetType::Other, ObjsetProps::default(), true);
    let os = world.os.clone();
    let tx = world.tx(1);
    let spec = ObjectSpec { bonus_type: ObjType::SA, ..file() };
    let id = os.allocate(&tx, &spec).unwrap();
    os.set_spill(&tx, id, Some(&[7; 1024])).unwrap();
    let zeros = os.set_spill(&tx, id, Some(&[0; 3584]));
    assert_eq!(zeros.unwrap_err().kind(), ErrorKind::Invalid);
    world.commit(1);
    let walk = check(&world, 1);
    assert!(walk.objects[&id.0].dnode.as_ref().unwrap().spill.is_some());
    world.synced(1);
}

/// Readers get a block without a copy. The content of their reference stays the same,
/// whether the block is changed in its txg or in the next, or written to disk.
#[test]
fn what_a_reader_holds_does_not_change() {
    let world = ObjsetFixture::new(ObjsetType::Other, ObjsetProps::default(), true);
    let os = world.os.clone();
    let id = os.allocate(&world.tx(1), &file()).unwrap();
    let read = |range| os.object(id, Io::WAIT).unwrap().read_part(0, range, Io::WAIT).unwrap();
    let mut held = Vec::new();
    for n in 1..=3u8 {
        os.write(&world.tx(1), id, 0, &[n; 512]).unwrap();
        held.push((read(8..24), n));
    }
    os.write(&world.tx(2), id, 8, &[4; 8]).unwrap();
    held.push((read(8..16), 4));
    held.push((read(16..24), 3));
    world.commit(1);
    check(&world, 1);
    world.synced(1);
    os.write(&world.tx(2), id, 8, &[5; 16]).unwrap();
    held.push((read(8..24), 5));
    assert_eq!(os.object(id, Io::WAIT).unwrap().dnode().max_blkid, 0);
    os.write(&world.tx(2), id, 512, &[6; 512]).unwrap();
    assert_eq!(os.object(id, Io::WAIT).unwrap().dnode().max_blkid, 1, "the dnode shown is new");
    world.commit(2);
    check(&world, 2);
    for (part, n) in held {
        assert!(part.iter().all(|b| *b == n), "{n}");
    }
    assert!(!os.is_object_dirty(id));
}

/// Story: a newer txg freed a block. Then the older one, still open, zeroed a part of it,
/// found the hole, and kept the old bytes on disk (found by the simulator, seed 302081).
#[test]
fn an_older_txg_zeroes_what_a_newer_one_freed() {
    let world = ObjsetFixture::new(ObjsetType::Zfs, ObjsetProps::default(), false);
    let os = world.os.clone();
    let id = os.allocate(&world.tx(1), &file()).unwrap();
    os.write(&world.tx(1), id, 0, &[7; 3 * 512]).unwrap();
    os.free_range(&world.tx(2), id, 512, 512).unwrap();
    os.free_range(&world.tx(1), id, 600, 100).unwrap();
    world.commit(1);
    let walk = check(&world, 1);
    let mut due = [7; 512];
    due[88..188].fill(0);
    assert_eq!(walk.objects[&id.0].blocks[&1].1[..], due);
    world.synced(1);
    world.commit(2);
    let walk = check(&world, 2);
    let all_zero = |b: &[u8]| b.iter().all(|b| *b == 0);
    assert!(walk.objects[&id.0].blocks.get(&1).is_none_or(|b| all_zero(&b.1)));
    assert_eq!(walk.objects[&id.0].blocks[&2].1[..], [7; 512]);
}

/// A checking edit is told whether the content is what one left in the same txg: not if it comes
/// from the disk or an older txg, and not after a change by other means or an edit that failed.
#[test]
fn content_is_checked_until_another_change() {
    let world = ObjsetFixture::new(ObjsetType::Zfs, ObjsetProps::default(), true);
    let os = world.os.clone();
    let id = os.allocate(&Tx::syncing(Txg(1)), &file()).unwrap();
    let seen = |txg: u64, works: bool| {
        let mut seen = Vec::new();
        let done = os.edit_checked(&Tx::syncing(Txg(txg)), id, 0, &mut |block, checked| {
            seen.push(checked);
            block[0] = block[0].wrapping_add(1);
            if works { Ok(()) } else { Err(Error::invalid("")) }
        });
        assert_eq!(done.is_ok(), works);
        seen
    };
    let plain = |txg: u64| {
        let mut edit = |block: &mut [u8]| {
            block[1] = block[1].wrapping_add(1);
            Ok(())
        };
        os.edit_block(&Tx::syncing(Txg(txg)), id, 0, &mut edit).unwrap();
    };
    let check_again = |txg: u64| {
        assert_eq!(seen(txg, true), [false]);
        assert_eq!(seen(txg, true), [true]);
    };
    check_again(1);
    assert_eq!(seen(1, true), [true]);
    plain(1);
    check_again(1);
    os.write(&Tx::syncing(Txg(1)), id, 0, &[7; 512]).unwrap();
    check_again(1);
    assert_eq!(seen(1, false), [true]);
    check_again(1);
    os.free_blocks(&Tx::syncing(Txg(1)), id, 0, 1, false).unwrap();
    check_again(1);
    os.set_block_size(&Tx::syncing(Txg(1)), id, 1024, 0).unwrap();
    check_again(1);
    os.object(id, Io::WAIT).unwrap().read_block(0, Io::WAIT).unwrap();
    assert_eq!(seen(1, true), [true], "a read changes nothing");
    // The newer txg begins with the older one's content.
    check_again(2);
    assert_eq!(seen(1, true), [true, true], "the change reaches both");
    plain(1);
    assert_eq!(seen(2, true), [false]);
    assert_eq!(seen(1, true), [false, true]);
    os.write(&Tx::syncing(Txg(1)), id, 0, &[8; 1024]).unwrap();
    assert_eq!(seen(1, true), [false, false]);
    for txg in 1..3 {
        let writes = Writes::new(&world.zio);
        let pending = world.sync(txg, &writes, false);
        assert!(writes.wait().is_empty());
        world.end(txg, pending);
    }
    check_again(3);
}
