//! A simple model of an object set: for each txg that is not on disk one copy of all
//! objects.

use std::collections::{BTreeMap, BTreeSet};

use ondisk::ObjType;

/// One object in one txg.
#[derive(Clone, Debug, PartialEq)]
pub struct Obj {
    pub object_type: ObjType,
    pub bonus_type: ObjType,
    pub bonus: Vec<u8>,
    pub spill: Option<Vec<u8>>,
    pub slots: u8,
    pub bs: u64,
    pub shift: u8,
    pub nblkptr: u8,
    pub max: u64,
    /// The object once had more than `nblkptr` blocks.
    pub grown: bool,
    pub blocks: BTreeMap<u64, Vec<u8>>,
    /// Written by this txg.
    pub own: BTreeSet<u64>,
    /// Blocks that this txg only moves, and whether they keep their births.
    pub moved: BTreeMap<u64, bool>,
    /// Freed by this txg.
    pub freed: Vec<(u64, u64)>,
    /// The txgs that wrote the blocks on disk.
    pub births: BTreeMap<u64, u64>,
    /// The txgs that moved blocks on disk, which kept their births.
    pub moves: BTreeMap<u64, u64>,
    /// The txgs in which blocks became holes.
    pub died: BTreeMap<u64, u64>,
    /// Entries, if it is a ZAP.
    pub zap: Option<BTreeMap<Vec<u8>, u64>>,
}

impl Obj {
    fn was_freed(&self, blkid: u64) -> bool {
        self.freed.iter().any(|(a, b)| (*a..*b).contains(&blkid))
    }

    fn reach(&mut self, blkid: u64) {
        self.max = self.max.max(blkid);
        self.grown |= blkid >= u64::from(self.nblkptr);
    }

    pub fn fits(&self, bonus: usize, spill: bool) -> bool {
        let pointers = usize::from(self.nblkptr) + usize::from(spill);
        64 + 128 * pointers + bonus <= usize::from(self.slots) * 512
    }
}

/// Objects by id.
pub type ObjectStates = BTreeMap<u64, Obj>;

/// The states of the txgs that are not on disk, oldest first.
pub struct ObjsetModel {
    pub txgs: Vec<(u64, ObjectStates)>,
}

impl ObjsetModel {
    pub fn begin(&mut self, txg: u64) {
        let mut state = self.txgs.last().map(|g| g.1.clone()).unwrap_or_default();
        for obj in state.values_mut() {
            obj.own.clear();
            obj.moved.clear();
            obj.freed.clear();
        }
        self.txgs.push((txg, state));
    }

    pub fn newest(&self) -> &ObjectStates {
        &self.txgs.last().unwrap().1
    }

    /// Objects that exist in all txgs from `i` on.
    pub fn common(&self, i: usize) -> Vec<u64> {
        let all = |id: &&u64| self.txgs[i..].iter().all(|g| g.1.contains_key(id));
        self.txgs[i].1.keys().filter(all).copied().collect()
    }

    pub fn all(&mut self, i: usize, id: u64) -> impl Iterator<Item = &mut Obj> {
        self.txgs[i..].iter_mut().map(move |g| g.1.get_mut(&id).unwrap())
    }

    /// Whether all txgs from `i` on agree on the sizes of blocks.
    pub fn one_size(&self, i: usize, id: u64) -> bool {
        let size = |g: &(u64, ObjectStates)| (g.1[&id].bs, g.1[&id].shift);
        self.txgs[i..].iter().all(|g| size(g) == size(&self.txgs[i]))
    }

    /// Object ids in use in any txg.
    pub fn taken(&self) -> BTreeSet<u64> {
        let all = self.txgs.iter().flat_map(|g| &g.1);
        all.flat_map(|(&id, o)| id..id + u64::from(o.slots)).collect()
    }

    /// Bytes within one block.
    fn put(&mut self, i: usize, id: u64, blkid: u64, skip: usize, bytes: &[u8]) {
        for (j, obj) in self.all(i, id).enumerate() {
            let size = obj.bs as usize;
            let there = obj.blocks.contains_key(&blkid);
            if j == 0 || obj.was_freed(blkid) && !there {
                obj.own.insert(blkid);
                obj.moved.remove(&blkid);
            }
            obj.reach(blkid);
            let block = obj.blocks.entry(blkid).or_insert_with(|| vec![0; size]);
            block[skip..skip + bytes.len()].copy_from_slice(bytes);
        }
    }

    pub fn write(&mut self, i: usize, id: u64, mut offset: u64, mut data: &[u8]) {
        let bs = self.txgs[i].1[&id].bs;
        while !data.is_empty() {
            let n = (bs - offset % bs).min(data.len() as u64) as usize;
            self.put(i, id, offset / bs, (offset % bs) as usize, &data[..n]);
            (offset, data) = (offset + n as u64, &data[n..]);
        }
    }

    pub fn free_range(&mut self, i: usize, id: u64, offset: u64, len: u64) {
        let bs = self.txgs[i].1[&id].bs;
        let last = self.txgs[i..].iter().map(|g| g.1[&id].max).max().unwrap();
        let end = offset.saturating_add(len);
        if len == 0 || offset / bs > last {
            return;
        }
        let to_end = end / bs > last;
        let (first, past) = (offset.div_ceil(bs), end / bs);
        let zero = |model: &mut ObjsetModel, b: u64, from: u64, to: u64| {
            for (j, obj) in model.all(i, id).enumerate() {
                // A hole stays a hole, whichever txg made it.
                let Some(block) = obj.blocks.get_mut(&b) else { continue };
                block[from as usize..to as usize].fill(0);
                if j == 0 {
                    obj.own.insert(b);
                    obj.moved.remove(&b);
                }
            }
        };
        if !to_end && first > past {
            return zero(self, past, offset % bs, end % bs);
        }
        if !offset.is_multiple_of(bs) {
            zero(self, offset / bs, offset % bs, bs);
        }
        if !to_end && !end.is_multiple_of(bs) {
            zero(self, past, 0, end % bs);
        }
        let past = if to_end { u64::MAX } else { past };
        for (j, obj) in self.all(i, id).enumerate() {
            obj.blocks.retain(|b, _| !(first..past).contains(b));
            obj.own.retain(|b| !(first..past).contains(b));
            obj.moved.retain(|b, _| !(first..past).contains(b));
            if j == 0 && first < past {
                obj.freed.push((first, past));
            }
            if to_end {
                obj.max = obj.max.min(first.saturating_sub(1));
            }
        }
    }

    pub fn resize(&mut self, i: usize, id: u64, size: u64, shift: u8) {
        for (j, obj) in self.all(i, id).enumerate() {
            obj.bs = size;
            if shift != 0 {
                obj.shift = shift;
            }
            if let Some(block) = obj.blocks.get_mut(&0) {
                block.resize(size as usize, 0);
                if j == 0 || obj.moved.contains_key(&0) {
                    obj.own.insert(0);
                    obj.moved.remove(&0);
                }
            }
        }
    }

    /// A block is written anew with the same content.
    pub fn move_block(&mut self, i: usize, id: u64, blkid: u64, keep_birth: bool) {
        let Some(obj) = self.txgs[i].1.get_mut(&id) else { return };
        if obj.blocks.contains_key(&blkid) && !obj.own.contains(&blkid) {
            *obj.moved.entry(blkid).or_insert(true) &= keep_birth;
        }
    }

    /// The oldest txg reached the disk: `disk` is the state before.
    pub fn publish(&mut self, disk: &ObjectStates) -> (u64, ObjectStates) {
        let (txg, mut state) = self.txgs.remove(0);
        for (id, obj) in &mut state {
            let zeros =
                |o: &Obj, b: u64| o.blocks.get(&b).is_some_and(|d| d.iter().all(|&x| x == 0));
            let written = obj.own.iter().chain(obj.moved.keys()).copied();
            let holes: Vec<u64> = written.filter(|&b| zeros(obj, b)).collect();
            for b in holes {
                obj.blocks.remove(&b);
                obj.own.remove(&b);
                obj.moved.remove(&b);
                for (_, newer) in &mut self.txgs {
                    let writes = |o: &&mut Obj| o.own.contains(&b) || o.moved.contains_key(&b);
                    let Some(newer) = newer.get_mut(id).filter(|o| !writes(o)) else { break };
                    newer.blocks.remove(&b);
                }
            }
            if let Some(old) = disk.get(id) {
                (obj.births, obj.died) = (old.births.clone(), old.died.clone());
                obj.moves.clone_from(&old.moves);
                for &b in old.blocks.keys().filter(|b| !obj.blocks.contains_key(b)) {
                    obj.died.insert(b, txg);
                }
            }
            let moved = obj.moved.iter().filter(|(_, keep)| !**keep).map(|(b, _)| b);
            for &b in obj.own.iter().chain(moved) {
                obj.births.insert(b, txg);
                obj.moves.remove(&b);
            }
            obj.moves.extend(obj.moved.iter().filter(|(_, keep)| **keep).map(|(&b, _)| (b, txg)));
            obj.moves.retain(|b, _| obj.blocks.contains_key(b));
            obj.births.retain(|b, _| obj.blocks.contains_key(b));
            obj.died.retain(|b, _| !obj.blocks.contains_key(b));
        }
        (txg, state)
    }
}
