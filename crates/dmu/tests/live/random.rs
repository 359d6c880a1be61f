//! Random operations in two txgs at a time, in either order.

use base::ErrorKind;
use dmu::{Io, ObjectSpec, Objset, ObjsetProps, Zap, zaps};
use ondisk::ObjType;
use ondisk::objset::ObjsetType;
use ondisk::zap::ZapValue;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use zio::Writes;

use crate::model::{Obj, ObjectStates, ObjsetModel};
use crate::walk::PoolWalk;
use crate::world::{ObjsetFixture, object};

pub struct LiveRng(pub u64);

impl LiveRng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }

    /// Zeros, bytes that compress to almost nothing, or bytes that do not compress.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        match self.below(4) {
            0 => vec![0; len],
            1 => vec![self.next() as u8 | 1; len],
            _ => (0..len).map(|_| (self.next() >> 20) as u8).collect(),
        }
    }

    /// A block id: near or far.
    fn block(&mut self) -> u64 {
        match self.below(10) {
            0..=5 => self.below(8),
            6..=7 => self.below(130),
            8 => self.below(40_000),
            _ => self.below(1 << 22),
        }
    }
}

struct Driver {
    world: ObjsetFixture,
    model: ObjsetModel,
    disk: ObjectStates,
    rng: LiveRng,
    /// No operations while a txg is written.
    quiet: bool,
    /// Object ids freed recently, and when: they are not reused at once.
    gone: Vec<(u64, std::ops::Range<u64>)>,
}

impl Driver {
    fn new(kind: ObjsetType, seed: u64) -> Driver {
        let rng = LiveRng(seed | 1);
        let props = ObjsetProps { hole_birth: !seed.is_multiple_of(8), ..ObjsetProps::default() };
        let world = ObjsetFixture::new(kind, props, seed.is_multiple_of(2));
        Driver {
            world,
            model: ObjsetModel { txgs: Vec::new() },
            disk: ObjectStates::new(),
            rng,
            quiet: false,
            gone: Vec::new(),
        }
    }

    fn os(&self) -> Arc<Objset> {
        Arc::clone(&self.world.os)
    }

    fn create(&mut self, i: usize) {
        let rng = &mut self.rng;
        let bonus_type = [ObjType::SA, ObjType::OTN_UINT64_METADATA][rng.below(2) as usize];
        let slots = [1, 1, 1, 2, 4, 32][rng.below(6) as usize];
        let len = 1 + rng.below(120) as usize;
        let spec = ObjectSpec {
            object_type: ObjType::PLAIN_FILE_CONTENTS,
            block_size: [512, 512, 1536, 4096][rng.below(4) as usize],
            indirect_shift: [12, 12, 13][rng.below(3) as usize],
            bonus_type,
            bonus: rng.bytes(len),
            slots,
        };
        let (tx, taken) = (self.world.tx(self.model.txgs[i].0), self.model.taken());
        let wanted = self.rng.below(3).eq(&0).then(|| 1 + self.rng.below(96));
        let free = |id: u64| (id..id + u64::from(slots)).all(|n| !taken.contains(&n));
        let id = match wanted {
            Some(id) => match self.os().claim(&tx, object(id), &spec) {
                Ok(()) => id,
                Err(e) => {
                    let gone = self.gone.iter().map(|(_, r)| r.clone());
                    let exists = !free(id)
                        || gone.into_iter().any(|r| r.start < id + u64::from(slots) && id < r.end);
                    assert!(exists || id % 32 + u64::from(slots) > 32, "{id}: {e}");
                    return;
                }
            },
            None => self.os().allocate(&tx, &spec).unwrap().0,
        };
        assert!(free(id), "object {id} of {slots} slots is not free");
        let room = usize::from(slots) * 512 - 192 - len;
        let nblkptr = if bonus_type == ObjType::SA { 1 } else { (1 + (room >> 7)).min(3) as u8 };
        let obj = Obj {
            object_type: spec.object_type,
            bonus_type,
            bonus: spec.bonus,
            spill: None,
            slots,
            bs: u64::from(spec.block_size),
            shift: spec.indirect_shift,
            nblkptr,
            max: 0,
            grown: false,
            blocks: BTreeMap::new(),
            own: Default::default(),
            moved: BTreeMap::new(),
            moves: BTreeMap::new(),
            freed: Vec::new(),
            births: BTreeMap::new(),
            died: BTreeMap::new(),
            zap: None,
        };
        self.model.txgs[i..].iter_mut().for_each(|g| drop(g.1.insert(id, obj.clone())));
    }

    /// One random operation in txg `i`.
    fn step(&mut self, i: usize) {
        let ids = self.model.common(i);
        if ids.len() < 3 || self.rng.below(16) == 0 {
            return self.create(i);
        }
        let id = ids[self.rng.below(ids.len() as u64) as usize];
        let (os, tx) = (self.os(), self.world.tx(self.model.txgs[i].0));
        let obj = self.model.txgs[i].1[&id].clone();
        let one_size = self.model.one_size(i, id);
        match self.rng.below(20) {
            0 => {
                self.remove(i, id);
                let again = os.write(&tx, object(id), 0, b"x").unwrap_err();
                assert_eq!(again.kind(), ErrorKind::NotFound);
            }
            1..=4 if one_size => self.free(i, id, &obj),
            5 => {
                let size = 512 * (1 + self.rng.below(9));
                let shift = [0, 0, 14][self.rng.below(3) as usize];
                let several = self.model.all(i, id).any(|o| o.max > 0);
                let grown = self.model.all(i, id).any(|o| o.grown);
                let done = os.set_block_size(&tx, object(id), size as u32, shift);
                let same = size == obj.bs && (shift == 0 || shift == obj.shift);
                assert!(done.is_ok() || several || grown, "{done:?}");
                assert!(done.is_err() || same || !several);
                if done.is_ok() && !same {
                    self.model.resize(i, id, size, shift);
                }
            }
            6 => {
                let len = self.rng.below(700) as usize;
                let bonus = self.rng.bytes(len);
                let fits = self.model.all(i, id).all(|o| o.fits(len, o.spill.is_some()));
                assert_eq!(os.set_bonus(&tx, object(id), &bonus).is_ok(), fits);
                if fits {
                    self.model.all(i, id).for_each(|o| o.bonus.clone_from(&bonus));
                }
            }
            7 => {
                let len = 512 * (1 + self.rng.below(4)) as usize;
                let mut spill = Some(self.rng.bytes(len)).filter(|_| self.rng.below(3) > 0);
                spill.iter_mut().for_each(|s| s[0] = 1);
                let fits = self.model.all(i, id).all(|o| o.fits(o.bonus.len(), spill.is_some()));
                assert_eq!(os.set_spill(&tx, object(id), spill.as_deref()).is_ok(), fits);
                if fits {
                    self.model.all(i, id).for_each(|o| o.spill.clone_from(&spill));
                }
            }
            8 | 9 if one_size => {
                let n = self.rng.below(obj.blocks.len().max(1) as u64) as usize;
                let Some(blkid) = obj.blocks.keys().nth(n).copied() else { return };
                let keep_birth = self.rng.below(3) > 0;
                if !obj.bs.is_power_of_two() && blkid > 0 {
                    return;
                }
                let content = base::Buf::copy_of(&obj.blocks[&blkid]);
                os.move_block(&tx, object(id), blkid, &content, keep_birth).unwrap();
                self.model.move_block(i, id, blkid, keep_birth);
            }
            _ if one_size => self.write(i, id, &obj),
            _ => {}
        }
    }

    fn remove(&mut self, i: usize, id: u64) {
        let tx = self.world.tx(self.model.txgs[i].0);
        self.os().free_object(&tx, object(id)).unwrap();
        let slots = u64::from(self.model.txgs[i].1[&id].slots);
        self.gone.push((self.model.txgs.last().unwrap().0, id..id + slots));
        self.model.txgs[i..].iter_mut().for_each(|g| drop(g.1.remove(&id)));
    }

    fn free(&mut self, i: usize, id: u64, obj: &Obj) {
        let rng = &mut self.rng;
        let near = |rng: &mut LiveRng| match rng.below(2) {
            0 => rng.block().min(obj.max + 2) * obj.bs,
            _ => rng.below((obj.max + 2) * obj.bs),
        };
        let (a, b) = (near(rng), near(rng));
        let (offset, len) = match rng.below(4) {
            0 => (a, u64::MAX),
            1 => (a, rng.below(3 * obj.bs)),
            _ => (a.min(b), a.max(b) - a.min(b)),
        };
        let tx = self.world.tx(self.model.txgs[i].0);
        self.os().free_range(&tx, object(id), offset, len).unwrap();
        self.model.free_range(i, id, offset, len);
    }

    fn write(&mut self, i: usize, id: u64, obj: &Obj) {
        let tx = self.world.tx(self.model.txgs[i].0);
        let only = !obj.bs.is_power_of_two();
        let blkid = if only { 0 } else { self.rng.block() };
        let whole = self.rng.bytes(obj.bs as usize);
        if self.rng.below(3) == 0 {
            self.os().write(&tx, object(id), blkid * obj.bs, &whole).unwrap();
            return self.model.write(i, id, blkid * obj.bs, &whole);
        }
        let skip = self.rng.below(obj.bs);
        let room = if only { obj.bs - skip } else { 3 * obj.bs };
        let len = 1 + self.rng.below(room) as usize;
        let data = self.rng.bytes(len);
        let offset = blkid * obj.bs + skip;
        self.os().write(&tx, object(id), offset, &data).unwrap();
        self.model.write(i, id, offset, &data);
        if only {
            let error = self.os().write(&tx, object(id), obj.bs, &[1]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
        }
    }

    /// Readers of the live object set get the newest state.
    fn check_live(&mut self) {
        let os = self.os();
        let state = self.model.newest();
        for (&id, obj) in state {
            let found = os.object(object(id), Io::WAIT).unwrap();
            let dn = found.dnode();
            assert_eq!((dn.object_type, dn.bonus_type), (obj.object_type, obj.bonus_type));
            assert_eq!((&dn.bonus, dn.max_blkid, dn.slots), (&obj.bonus, obj.max, obj.slots));
            assert_eq!(found.block_size(), obj.bs);
            let mut blocks: Vec<u64> = (0..4).map(|_| self.rng.block()).collect();
            blocks.extend(obj.blocks.keys());
            for b in blocks {
                let there = obj.blocks.get(&b);
                let block = found.read_block(b, Io::WAIT).unwrap();
                let zeros = vec![0; obj.bs as usize];
                assert_eq!(&*block, &there.unwrap_or(&zeros)[..], "object {id} block {b}");
                assert_eq!(found.is_hole(b, Io::WAIT).unwrap(), there.is_none());
                let next = obj.blocks.range(b..).next().map(|(&b, _)| b);
                assert_eq!(found.next_data_block(b, Io::WAIT).unwrap(), next, "from {b}");
                let hole = (b..=obj.max).find(|b| !obj.blocks.contains_key(b));
                assert_eq!(found.next_hole_block(b, Io::WAIT).unwrap(), hole, "from {b}");
            }
            let spill = found.spill(Io::WAIT).unwrap().map(|(buf, _)| buf.to_vec());
            assert_eq!(spill, obj.spill);
        }
    }

    /// The disk holds the oldest state.
    fn check_disk(&mut self, txg: u64) {
        let reader = self.world.reader();
        let births = self.world.os.props().unwrap().hole_birth;
        let walk = PoolWalk::new(&reader, txg, births);
        self.world.check_blocks(&walk.reached);
        self.world.check_space(&walk.places);
        let plain: Vec<u64> = walk.objects.keys().copied().filter(|id| id >> 48 == 0).collect();
        assert_eq!(plain, self.disk.keys().copied().collect::<Vec<_>>());
        for (id, obj) in &mut self.disk {
            let tree = &walk.objects[id];
            let dn = tree.dnode.as_ref().unwrap();
            assert_eq!((dn.object_type, dn.bonus_type), (obj.object_type, obj.bonus_type));
            assert_eq!((&dn.bonus, dn.max_blkid, dn.slots), (&obj.bonus, obj.max, obj.slots));
            assert_eq!(u64::from(dn.data_block_size), obj.bs);
            assert_eq!(tree.spill.as_deref(), obj.spill.as_deref());
            let found: Vec<u64> = tree.blocks.keys().copied().collect();
            assert_eq!(found, obj.blocks.keys().copied().collect::<Vec<_>>(), "object {id}");
            for (b, (bp, content)) in &tree.blocks {
                assert_eq!(&content[..], &obj.blocks[b][..], "object {id} block {b}");
                // An embedded block has no address, so it is born when it is moved.
                if bp.as_block().is_none()
                    && let Some(moved) = obj.moves.remove(b)
                {
                    obj.births.insert(*b, moved);
                }
                assert_eq!(bp.birth().0, obj.births[b], "object {id} block {b}");
                let moved = obj.moves.get(b).copied();
                assert_eq!(bp.allocation_birth().0, moved.unwrap_or(obj.births[b]));
                let flag = bp.as_block().is_some_and(|block| block.rewritten);
                assert_eq!(flag, moved.is_some(), "object {id} block {b}");
            }
            for (&b, &died) in obj.died.iter().filter(|_| births) {
                let birth = tree.hole_birth(b).unwrap();
                assert!(birth.0 >= died, "object {id} block {b} died in {died}: {birth:?}");
            }
        }
    }

    /// The oldest txg is written, while the others continue.
    fn sync(&mut self) {
        let txg = self.model.txgs[0].0;
        let writes = Writes::new(&self.world.zio);
        let pending = self.world.sync(txg, &writes, false);
        let during = if self.quiet { 0 } else { self.rng.below(6) };
        for _ in 0..during {
            let i = 1 + self.rng.below(self.model.txgs.len() as u64 - 1) as usize;
            self.step(i);
        }
        self.check_live();
        assert!(writes.wait().is_empty());
        self.world.end(txg, pending);
        let (_, disk) = self.model.publish(&self.disk);
        self.disk = disk;
        self.gone.retain(|(last, _)| *last > txg);
        self.check_live();
        self.check_disk(txg);
        self.world.synced(txg);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn txgs_leave_what_was_done_in_them(seed in any::<u64>(), steps in 1u64..40) {
        let kind = [ObjsetType::Zfs, ObjsetType::Other][(seed % 2) as usize];
        let mut driver = Driver::new(kind, seed);
        driver.model.begin(10);
        for _ in 0..8 {
            for _ in 0..steps {
                driver.step(0);
            }
            driver.begin();
            for _ in 0..steps {
                let i = driver.rng.below(2) as usize;
                driver.step(i);
            }
            driver.check_live();
            driver.sync();
            if driver.rng.below(4) == 0 {
                driver.reopen();
            }
        }
        // Nothing is left when everything was freed.
        for id in driver.model.common(0) {
            driver.remove(0, id);
        }
        driver.reopen();
        prop_assert_eq!(driver.world.os.object_count(), 0);
    }
}

impl Driver {
    fn begin(&mut self) {
        let txg = self.model.txgs.last().unwrap().0;
        self.model.begin(txg + 1);
    }

    /// All txgs are written, and the object set is opened again.
    fn reopen(&mut self) {
        self.quiet = true;
        self.begin();
        self.sync();
        assert!(!self.world.os.is_dirty(base::Txg(self.model.txgs[0].0)));
        self.world.reopen();
        self.check_live();
        self.quiet = false;
    }
}

#[test]
fn zaps_grow_and_shrink_over_txgs() {
    let world = ObjsetFixture::new(ObjsetType::Zfs, ObjsetProps::default(), true);
    let (os, mut rng) = (Arc::clone(&world.os), LiveRng(77));
    let id = zaps::create(&os, &world.tx(1), ObjType::OTN_ZAP_METADATA, ObjType::NONE, &[], 0);
    let id = id.unwrap();
    let mut model: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    for txg in 1..12 {
        for n in 0..if txg == 6 { 2000 } else { 60 } {
            let tx = world.tx(txg);
            let name = format!("entry-{}", rng.below(3000)).into_bytes();
            if model.contains_key(&name) && rng.below(3) > 0 || txg > 8 && rng.below(2) > 0 {
                let there = model.remove(&name).is_some();
                assert_eq!(zaps::remove(&os, &tx, id, &name).is_ok(), there);
            } else {
                let value = ZapValue::from_u64(n);
                zaps::update(&os, &tx, id, &name, &value).unwrap();
                model.insert(name, n);
            }
        }
        let check = |os: &Arc<Objset>| {
            let zap = Zap::open(os.object(id, Io::WAIT).unwrap(), Io::WAIT).unwrap();
            let entries = zap.entries().unwrap().into_iter();
            let all: BTreeMap<_, _> =
                entries.map(|e| (e.name.clone(), e.value.as_u64().unwrap())).collect();
            assert_eq!(all, model);
        };
        check(&os);
        world.commit(txg);
        check(&os);
        check(&world.reader());
        let walk = PoolWalk::new(&world.reader(), txg, true);
        world.check_blocks(&walk.reached);
        world.check_space(&walk.places);
        world.synced(txg);
    }
}
