//! Space by user, group and project against sums over all objects.

use std::collections::BTreeMap;

use base::ObjectId;
use dmu::{Io, ObjectSpec, ObjsetProps, Zap};
use ondisk::ObjType;
use ondisk::objset::ObjsetType;
use ondisk::sa::SA_MAGIC;
use ondisk::znode::ZFS_PROJID;

use crate::random::LiveRng;
use crate::walk::PoolWalk;
use crate::world::ObjsetFixture;

/// Attributes at the offsets that a file has.
fn attributes(ids: [u64; 3]) -> Vec<u8> {
    let mut sa = vec![0; 8 + 136];
    sa[..4].copy_from_slice(&SA_MAGIC.to_le_bytes());
    sa[4..6].copy_from_slice(&(1u16 << 10 | 2).to_le_bytes());
    let flags = if ids[2] == 0 { 0 } else { ZFS_PROJID };
    for (at, value) in [(24, ids[0]), (32, ids[1]), (48, flags), (128, ids[2])] {
        sa[8 + at..16 + at].copy_from_slice(&u64::to_le_bytes(value));
    }
    sa
}

#[test]
fn sums_are_right_after_each_txg() {
    let mut world = ObjsetFixture::new(ObjsetType::Zfs, ObjsetProps::default(), true);
    let mut rng = LiveRng(99);
    let mut owners: BTreeMap<u64, [u64; 3]> = BTreeMap::new();
    for txg in 1..30 {
        for _ in 0..12 {
            let tx = world.tx(txg);
            let os = &world.os;
            let ids = [rng.below(4) * 1000, rng.below(3), rng.below(3)];
            let pick = rng.below(owners.len().max(1) as u64) as usize;
            let some = owners.keys().nth(pick).copied();
            match (rng.below(6), some) {
                (0, _) | (_, None) => {
                    let inside = rng.below(3) > 0;
                    let bonus = if inside { attributes(ids) } else { Vec::new() };
                    let spec = ObjectSpec {
                        object_type: ObjType::PLAIN_FILE_CONTENTS,
                        bonus_type: ObjType::SA,
                        bonus,
                        ..ObjectSpec::default()
                    };
                    let id = os.allocate(&tx, &spec).unwrap();
                    if !inside {
                        let mut spill = attributes(ids);
                        spill.resize(512, 0);
                        os.set_spill(&tx, id, Some(&spill)).unwrap();
                    }
                    owners.insert(id.0, ids);
                }
                (1, Some(id)) => {
                    os.set_bonus(&tx, ObjectId(id), &attributes(ids)).unwrap();
                    owners.insert(id, ids);
                }
                (2, Some(id)) if txg > 10 => {
                    os.free_object(&tx, ObjectId(id)).unwrap();
                    owners.remove(&id);
                }
                (_, Some(id)) => {
                    let data = rng.bytes(2000);
                    os.write(&tx, ObjectId(id), rng.below(60_000), &data).unwrap();
                }
            }
        }
        if txg == 29 {
            for id in std::mem::take(&mut owners).keys() {
                world.os.free_object(&world.tx(txg), ObjectId(*id)).unwrap();
            }
        }
        world.commit(txg);
        let reader = world.reader();
        let walk = PoolWalk::new(&reader, txg, true);
        world.check_blocks(&walk.reached);
        world.check_space(&walk.places);
        world.synced(txg);
        for i in 0..3 {
            let mut sums: BTreeMap<String, u64> = BTreeMap::new();
            for (id, ids) in &owners {
                let used = walk.objects[id].dnode.as_ref().unwrap().used;
                *sums.entry(format!("{:x}", ids[i])).or_default() += 512 + used;
                *sums.entry(format!("obj-{:x}", ids[i])).or_default() += 1;
            }
            let object = reader.special(-1 - i as i64).unwrap();
            let entries = Zap::open(object, Io::WAIT).unwrap().entries().unwrap();
            let found: BTreeMap<String, u64> = entries
                .into_iter()
                .map(|e| (String::from_utf8(e.name).unwrap(), e.value.as_u64().unwrap()))
                .collect();
            assert_eq!(found, sums, "txg {txg}");
        }
        if txg % 5 == 0 {
            world.reopen();
        }
    }
}
