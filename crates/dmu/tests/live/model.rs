//! What an object set holds, naively: for each group that is not on disk one copy of
//! everything.

use std::collections::{BTreeMap, BTreeSet};

use ondisk::ObjType;

/// One object in one group.
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
    /// More than `nblkptr` blocks were there once.
    pub grown: bool,
    pub blocks: BTreeMap<u64, Vec<u8>>,
    /// Written by this group.
    pub own: BTreeSet<u64>,
    /// Freed by this group.
    pub freed: Vec<(u64, u64)>,
    /// The groups that wrote the blocks on disk.
    pub births: BTreeMap<u64, u64>,
    /// The groups in which blocks became holes.
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

/// Objects by number.
pub type State = BTreeMap<u64, Obj>;

/// The states of the groups that are not on disk, oldest first.
pub struct Model {
    pub groups: Vec<(u64, State)>,
}

impl Model {
    pub fn begin(&mut self, txg: u64) {
        let mut state = self.groups.last().map(|g| g.1.clone()).unwrap_or_default();
        for obj in state.values_mut() {
            obj.own.clear();
            obj.freed.clear();
        }
        self.groups.push((txg, state));
    }

    pub fn newest(&self) -> &State {
        &self.groups.last().unwrap().1
    }

    /// Objects that all groups from `i` on have.
    pub fn common(&self, i: usize) -> Vec<u64> {
        let all = |id: &&u64| self.groups[i..].iter().all(|g| g.1.contains_key(id));
        self.groups[i].1.keys().filter(all).copied().collect()
    }

    pub fn all(&mut self, i: usize, id: u64) -> impl Iterator<Item = &mut Obj> {
        self.groups[i..].iter_mut().map(move |g| g.1.get_mut(&id).unwrap())
    }

    /// All groups from `i` on agree on the sizes of blocks.
    pub fn one_size(&self, i: usize, id: u64) -> bool {
        let size = |g: &(u64, State)| (g.1[&id].bs, g.1[&id].shift);
        self.groups[i..].iter().all(|g| size(g) == size(&self.groups[i]))
    }

    /// Numbers that some group has in use.
    pub fn taken(&self) -> BTreeSet<u64> {
        let all = self.groups.iter().flat_map(|g| &g.1);
        all.flat_map(|(&id, o)| id..id + u64::from(o.slots)).collect()
    }

    /// Bytes within one block.
    fn put(&mut self, i: usize, id: u64, blkid: u64, skip: usize, bytes: &[u8]) {
        for (j, obj) in self.all(i, id).enumerate() {
            let size = obj.bs as usize;
            let there = obj.blocks.contains_key(&blkid);
            if j == 0 || obj.was_freed(blkid) && !there {
                obj.own.insert(blkid);
            }
            obj.reach(blkid);
            let block = obj.blocks.entry(blkid).or_insert_with(|| vec![0; size]);
            block[skip..skip + bytes.len()].copy_from_slice(bytes);
        }
    }

    pub fn write(&mut self, i: usize, id: u64, mut offset: u64, mut data: &[u8]) {
        let bs = self.groups[i].1[&id].bs;
        while !data.is_empty() {
            let n = (bs - offset % bs).min(data.len() as u64) as usize;
            self.put(i, id, offset / bs, (offset % bs) as usize, &data[..n]);
            (offset, data) = (offset + n as u64, &data[n..]);
        }
    }

    pub fn free_range(&mut self, i: usize, id: u64, offset: u64, len: u64) {
        let bs = self.groups[i].1[&id].bs;
        let last = self.groups[i..].iter().map(|g| g.1[&id].max).max().unwrap();
        let end = offset.saturating_add(len);
        if len == 0 || offset / bs > last {
            return;
        }
        let to_end = end / bs > last;
        let (first, past) = (offset.div_ceil(bs), end / bs);
        let zero = |model: &mut Model, b: u64, from: u64, to: u64| {
            for (j, obj) in model.all(i, id).enumerate() {
                // A hole stays a hole, whichever group made it one.
                let Some(block) = obj.blocks.get_mut(&b) else { continue };
                block[from as usize..to as usize].fill(0);
                if j == 0 {
                    obj.own.insert(b);
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
                if j == 0 {
                    obj.own.insert(0);
                }
            }
        }
    }

    /// The oldest group reached the disk: `disk` is what was there before.
    pub fn publish(&mut self, disk: &State) -> (u64, State) {
        let (txg, mut state) = self.groups.remove(0);
        for (id, obj) in &mut state {
            let zeros =
                |o: &Obj, b: u64| o.blocks.get(&b).is_some_and(|d| d.iter().all(|&x| x == 0));
            let holes: Vec<u64> = obj.own.iter().copied().filter(|&b| zeros(obj, b)).collect();
            for b in holes {
                obj.blocks.remove(&b);
                obj.own.remove(&b);
                for (_, newer) in &mut self.groups {
                    let Some(newer) = newer.get_mut(id).filter(|o| !o.own.contains(&b)) else {
                        break;
                    };
                    newer.blocks.remove(&b);
                }
            }
            if let Some(old) = disk.get(id) {
                (obj.births, obj.died) = (old.births.clone(), old.died.clone());
                for &b in old.blocks.keys().filter(|b| !obj.blocks.contains_key(b)) {
                    obj.died.insert(b, txg);
                }
            }
            for &b in &obj.own {
                obj.births.insert(b, txg);
            }
            obj.births.retain(|b, _| obj.blocks.contains_key(b));
            obj.died.retain(|b, _| !obj.blocks.contains_key(b));
        }
        (txg, state)
    }
}
