//! Records in memory, by group.

use std::collections::{BTreeMap, BTreeSet};

use base::ids::IdMap;
use base::{ObjectId, Txg};
use ondisk::BlkPtr;

use crate::size::DATA_MAX;

/// Blocks of a large file are not smaller, usually.
const BLOCK_LEAST: u64 = 16 << 10;
/// Records of names in a part of their list.
const PART_MIN: usize = 4;
const PART_MAX: usize = 1024;
/// Bytes of one write that are joined in memory.
const JOIN_MAX: u64 = 1 << 20;

/// Whether a write is to be recorded by pointers to its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Indirect {
    No,
    /// Where it is half of a block at least.
    Large,
    /// Wherever it can be.
    Always,
}

/// What a record will hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A record as it is in a block, but for its sequence.
    Whole(Vec<u8>),
    /// Likewise; the file became shorter by it, perhaps, or is no more.
    Cut { object: ObjectId, record: Vec<u8> },
    /// A write with its data.
    Data { object: ObjectId, offset: u64, data: Vec<u8> },
    /// A write whose data is fetched later, or whose blocks are written to their places then.
    Range { object: ObjectId, offset: u64, len: u64, indirect: Indirect },
    /// A write inside one block that is at its place; `None`: that an earlier record names.
    Placed { object: ObjectId, offset: u64, len: u64, block: Option<Box<BlkPtr>> },
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Itx {
    /// Place in the order of what was done.
    pub(crate) order: u64,
    pub(crate) txg: Txg,
    pub(crate) what: What,
}

/// Whose records are wanted beside those of names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wants {
    pub(crate) all: bool,
    pub(crate) objects: BTreeSet<ObjectId>,
}

impl Wants {
    pub(crate) fn add(&mut self, object: Option<ObjectId>) {
        match object {
            Some(object) => drop(self.objects.insert(object)),
            None => self.all = true,
        }
    }
}

/// Records of names in order, in parts: a list of hundreds of thousands that grows is copied
/// again and again, each time to memory that nobody has used yet.
#[derive(Default)]
struct Names(Vec<Vec<Itx>>);

impl Names {
    fn push(&mut self, itx: Itx) {
        match self.0.last_mut() {
            Some(last) if last.len() < last.capacity() => last.push(itx),
            _ => {
                let mut part = Vec::with_capacity((2 * self.len()).clamp(PART_MIN, PART_MAX));
                part.push(itx);
                self.0.push(part);
            }
        }
    }

    fn len(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }
}

#[derive(Default)]
struct Slot {
    names: Names,
    objects: IdMap<ObjectId, Vec<Itx>>,
}

/// Records that are in no chain.
#[derive(Default)]
pub(crate) struct Pending {
    slots: BTreeMap<Txg, Slot>,
    order: u64,
    /// Place of the last record of names.
    named: u64,
    /// The last group with a change that has no record.
    barrier: Txg,
    /// The last group of which a commit took records.
    wanted: Txg,
    copied: BTreeMap<Txg, u64>,
    records: u64,
}

/// What [`Pending::gather`] found.
pub(crate) enum Found {
    /// Nothing.
    Nothing,
    /// Something without a record: this group has all that was done so far.
    Wait(Txg),
    /// These, in order.
    Records(Vec<Itx>),
}

impl Pending {
    /// `synced` is asked for the last group on disk, once a group.
    fn slot(&mut self, txg: Txg, synced: &dyn Fn() -> Txg) -> &mut Slot {
        if !self.slots.contains_key(&txg) {
            self.forget_synced(synced());
        }
        self.slots.entry(txg).or_default()
    }

    /// Records of groups on disk are of no use.
    pub(crate) fn forget_synced(&mut self, synced: Txg) {
        self.slots = self.slots.split_off(&synced.next());
        self.copied = self.copied.split_off(&synced.next());
        let count = |s: &Slot| s.names.len() + s.objects.values().map(Vec::len).sum::<usize>();
        self.records = self.slots.values().map(|s| count(s) as u64).sum();
    }

    fn next(&mut self) -> u64 {
        self.order += 1;
        self.order
    }

    /// Whether data of the group is likely to be asked for: a commit took some of it, or of
    /// the group before.
    pub(crate) fn is_wanted(&self, txg: Txg) -> bool {
        self.wanted != Txg::ZERO && txg <= self.wanted.next()
    }

    /// Records there are, and bytes copied.
    pub(crate) fn held(&self) -> (u64, u64) {
        (self.records, self.copied.values().sum())
    }

    pub(crate) fn name(&mut self, txg: Txg, synced: &dyn Fn() -> Txg, what: What) {
        let order = self.next();
        self.named = order;
        self.slot(txg, synced).names.push(Itx { order, txg, what });
        self.records += 1;
    }

    pub(crate) fn object(
        &mut self,
        txg: Txg,
        synced: &dyn Fn() -> Txg,
        object: ObjectId,
        what: What,
    ) {
        let order = self.next();
        let copied = if let What::Data { data, .. } = &what { data.len() as u64 } else { 0 };
        let named = self.named;
        let list = self.slot(txg, synced).objects.entry(object).or_default();
        if let (What::Range { offset, len, indirect, .. }, Some(last)) = (&what, list.last_mut())
            // What came after a name does not go before it.
            && last.order > named
            && let What::Range { offset: start, len: had, indirect: form, .. } = &mut last.what
            && form == indirect
            && start.checked_add(*had) == Some(*offset)
            && *had + len <= JOIN_MAX
        {
            *had += len;
            return;
        }
        if list.is_empty() {
            // Most files get one record in a group.
            list.reserve_exact(1);
        }
        list.push(Itx { order, txg, what });
        self.records += 1;
        *self.copied.entry(txg).or_default() += copied;
    }

    pub(crate) fn barrier(&mut self, txg: Txg) {
        self.barrier = self.barrier.max(txg);
    }

    /// Has an object's records go with those of names: they come before what follows now.
    pub(crate) fn adopt(&mut self, object: ObjectId) {
        for slot in self.slots.values_mut() {
            if let Some(list) = slot.objects.remove(&object) {
                list.into_iter().for_each(|itx| slot.names.push(itx));
            }
        }
    }

    /// The object is no more, and nobody needs its records.
    pub(crate) fn drop_object(&mut self, object: ObjectId) {
        for slot in self.slots.values_mut() {
            let gone = slot.objects.remove(&object);
            self.records -= gone.map_or(0, |list| list.len() as u64);
        }
    }

    /// Takes what a commit writes.
    pub(crate) fn gather(&mut self, wants: &Wants, synced: Txg) -> Found {
        self.forget_synced(synced);
        if self.barrier > synced {
            let last = self.slots.keys().next_back().copied();
            return Found::Wait(last.map_or(self.barrier, |t| t.max(self.barrier)));
        }
        let mut found = Vec::new();
        for slot in self.slots.values_mut() {
            found.extend(std::mem::take(&mut slot.names.0).into_iter().flatten());
            if wants.all {
                slot.objects.drain().for_each(|(_, list)| found.extend(list));
            } else {
                let lists = wants.objects.iter().filter_map(|o| slot.objects.remove(o));
                lists.for_each(|list| found.extend(list));
            }
        }
        self.records -= found.len() as u64;
        for itx in &found {
            if let (What::Data { data, .. }, Some(n)) = (&itx.what, self.copied.get_mut(&itx.txg)) {
                *n = n.saturating_sub(data.len() as u64);
            }
        }
        if found.is_empty() {
            return Found::Nothing;
        }
        self.wanted = found.iter().map(|itx| itx.txg).fold(self.wanted, Txg::max);
        found.sort_unstable_by_key(|itx| itx.order);
        Found::Records(found)
    }
}

impl Itx {
    /// Whether its data is to go to its place alone.
    pub(crate) fn is_indirect(&self) -> bool {
        matches!(&self.what, What::Range { indirect, .. } if *indirect != Indirect::No)
    }

    /// Bytes in a block, undivided; of what is to be indirect about so many.
    pub(crate) fn size(&self) -> u64 {
        let header = ondisk::zil::WRITE_HEADER as u64;
        match &self.what {
            What::Whole(bytes) | What::Cut { record: bytes, .. } => bytes.len() as u64,
            What::Data { data, .. } => header + (data.len() as u64).next_multiple_of(8),
            // A record for each block, the size of which nobody knows yet.
            What::Range { len, indirect, .. } if *indirect != Indirect::No => {
                len.div_ceil(BLOCK_LEAST) * header
            }
            What::Range { len, .. } => len.div_ceil(DATA_MAX) * header + len.next_multiple_of(8),
            What::Placed { .. } => header,
        }
    }

    /// Bytes of it that cannot be divided among blocks.
    pub(crate) fn largest(&self) -> u64 {
        match &self.what {
            What::Whole(bytes) | What::Cut { record: bytes, .. } => bytes.len() as u64,
            What::Placed { .. } => ondisk::zil::WRITE_HEADER as u64,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(n: u8) -> Vec<u8> {
        vec![n; 8]
    }

    fn range(object: u64, offset: u64, len: u64) -> What {
        What::Range { object: ObjectId(object), offset, len, indirect: Indirect::No }
    }

    fn records(found: Found) -> Vec<What> {
        match found {
            Found::Records(list) => list.into_iter().map(|i| i.what).collect(),
            Found::Nothing => Vec::new(),
            Found::Wait(txg) => unreachable!("{txg}"),
        }
    }

    #[test]
    fn an_object_waits_unless_it_is_wanted_or_renamed() {
        let mut p = Pending::default();
        let one = |id| Wants { objects: [ObjectId(id)].into(), ..Wants::default() };
        p.object(Txg(5), &|| Txg(3), ObjectId(1), range(1, 0, 10));
        p.object(Txg(5), &|| Txg(3), ObjectId(2), range(2, 0, 10));
        p.object(Txg(5), &|| Txg(3), ObjectId(1), range(1, 10, 5));
        p.name(Txg(4), &|| Txg(3), What::Whole(whole(1)));
        p.object(Txg(5), &|| Txg(3), ObjectId(1), range(1, 15, 5));
        assert_eq!(p.held().0, 4);
        let found = records(p.gather(&one(1), Txg(3)));
        assert_eq!(found, [range(1, 0, 15), What::Whole(whole(1)), range(1, 15, 5)]);
        assert!(records(p.gather(&one(1), Txg(3))).is_empty());
        p.adopt(ObjectId(2));
        assert_eq!(records(p.gather(&one(9), Txg(3))), [range(2, 0, 10)]);
        p.object(Txg(6), &|| Txg(3), ObjectId(2), range(2, 0, 10));
        p.drop_object(ObjectId(2));
        assert!(records(p.gather(&Wants { all: true, ..Wants::default() }, Txg(3))).is_empty());
    }

    /// The list of names was copied whole whenever it had grown to twice its size: with
    /// 100,000 files made in a group, to memory of several MiB that was not there yet.
    #[test]
    fn many_names_stay_where_they_are_and_in_order() {
        let mut p = Pending::default();
        let mut places = Vec::new();
        for n in 0..10_000u64 {
            let what = if n == 5_000 {
                p.object(Txg(5), &|| Txg(3), ObjectId(1), range(1, 0, 10));
                p.adopt(ObjectId(1));
                continue;
            } else {
                What::Whole(n.to_le_bytes().to_vec())
            };
            p.name(Txg(5), &|| Txg(3), what);
            let part = p.slots[&Txg(5)].names.0.last().unwrap();
            places.push(std::ptr::from_ref(part.last().unwrap()));
        }
        let now = p.slots[&Txg(5)].names.0.iter().flatten().map(std::ptr::from_ref);
        let then: std::collections::HashSet<_> = places.into_iter().collect();
        let kept = now.filter(|at| then.contains(at)).count();
        assert_eq!(kept, 9_999, "none was moved");
        let found = records(p.gather(&Wants::default(), Txg(3)));
        let expected = |n: u64| match n {
            5_000 => range(1, 0, 10),
            n => What::Whole(n.to_le_bytes().to_vec()),
        };
        assert_eq!(found, (0..10_000).map(expected).collect::<Vec<_>>());
    }

    #[test]
    fn writes_of_two_forms_are_not_joined() {
        let mut p = Pending::default();
        let part = |offset, indirect| What::Range { object: ObjectId(1), offset, len: 8, indirect };
        let (yes, no) = (Indirect::Large, Indirect::No);
        for (offset, indirect) in [(0, yes), (8, yes), (16, no), (24, no)] {
            p.object(Txg(5), &|| Txg(3), ObjectId(1), part(offset, indirect));
        }
        let long = |offset, indirect| match part(offset, indirect) {
            What::Range { object, .. } => What::Range { object, offset, len: 16, indirect },
            other => other,
        };
        let all = Wants { all: true, ..Wants::default() };
        assert_eq!(records(p.gather(&all, Txg(3))), [long(0, yes), long(16, no)]);
    }

    #[test]
    fn groups_on_disk_are_forgotten_and_barriers_wait_for_them() {
        let mut p = Pending::default();
        let all = Wants { all: true, ..Wants::default() };
        p.name(Txg(4), &|| Txg(3), What::Whole(whole(1)));
        p.barrier(Txg(5));
        p.name(Txg(6), &|| Txg(3), What::Whole(whole(2)));
        assert!(matches!(p.gather(&all, Txg(3)), Found::Wait(Txg(6))));
        assert!(matches!(p.gather(&all, Txg(4)), Found::Wait(Txg(6))));
        assert_eq!(records(p.gather(&all, Txg(5))), [What::Whole(whole(2))]);
        let data = What::Data { object: ObjectId(1), offset: 0, data: vec![1; 100] };
        p.object(Txg(7), &|| Txg(6), ObjectId(1), data);
        assert_eq!(p.held(), (1, 100));
        p.forget_synced(Txg(7));
        assert_eq!(p.held(), (0, 0));
    }
}
