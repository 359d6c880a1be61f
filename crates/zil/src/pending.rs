//! Records in memory, by txg.

use std::collections::{BTreeMap, BTreeSet};

use base::ids::IdMap;
use base::{ObjectId, Txg};
use ondisk::BlkPtr;

use crate::size::DATA_MAX;

/// Usual minimum block size of a large file.
const BLOCK_LEAST: u64 = 16 << 10;
/// Minimum and maximum number of name records in a part of their list.
const PART_MIN: usize = 4;
const PART_MAX: usize = 1024;
/// Most bytes up to which consecutive writes are joined in memory.
const JOIN_MAX: u64 = 1 << 20;

/// Whether a write is to be recorded by pointers to its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Indirect {
    No,
    /// If it covers at least half of a block.
    Large,
    /// Wherever possible.
    Always,
}

/// The content of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ItxPayload {
    /// A record as in a block, except for its sequence number.
    Whole(Vec<u8>),
    /// As `Whole`, for a change that may have shortened or removed the file.
    Cut { object: ObjectId, record: Vec<u8> },
    /// A write with its data.
    Data { object: ObjectId, offset: u64, data: Vec<u8> },
    /// A write whose data is fetched later, or whose blocks are then written to their
    /// places.
    Range { object: ObjectId, offset: u64, len: u64, indirect: Indirect },
    /// A write inside one block that is in its final place; `None`: an earlier record
    /// names the block.
    Placed { object: ObjectId, offset: u64, len: u64, block: Option<Box<BlkPtr>> },
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Itx {
    /// Position in the order of changes.
    pub(crate) order: u64,
    pub(crate) txg: Txg,
    pub(crate) payload: ItxPayload,
}

/// The objects whose records are to be committed besides those of names.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommitScope {
    pub(crate) all: bool,
    pub(crate) objects: BTreeSet<ObjectId>,
}

impl CommitScope {
    pub(crate) fn add(&mut self, object: Option<ObjectId>) {
        match object {
            Some(object) => drop(self.objects.insert(object)),
            None => self.all = true,
        }
    }
}

/// Records of names in order, in parts. A single growing list of hundreds of thousands
/// of records would be copied again and again, each time to fresh memory.
#[derive(Default)]
struct NameRecords(Vec<Vec<Itx>>);

impl NameRecords {
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
struct TxgSlot {
    names: NameRecords,
    objects: IdMap<ObjectId, Vec<Itx>>,
}

/// Records that are in no chain.
#[derive(Default)]
pub(crate) struct PendingRecords {
    slots: BTreeMap<Txg, TxgSlot>,
    order: u64,
    /// Position of the last record of names.
    named: u64,
    /// The last txg with a change that has no record.
    barrier: Txg,
    /// The last txg from which a commit took records.
    wanted: Txg,
    copied: BTreeMap<Txg, u64>,
    records: u64,
}

/// The result of [`PendingRecords::gather`].
pub(crate) enum Gathered {
    /// Nothing.
    Nothing,
    /// There is a change without a record: this txg contains all changes so far.
    Wait(Txg),
    /// These records, in order.
    Records(Vec<Itx>),
}

impl PendingRecords {
    /// Calls `synced` for the last txg on disk, once for each txg.
    fn slot(&mut self, txg: Txg, synced: &dyn Fn() -> Txg) -> &mut TxgSlot {
        if !self.slots.contains_key(&txg) {
            self.forget_synced(synced());
        }
        self.slots.entry(txg).or_default()
    }

    /// Drops the records of txgs on disk, which are no longer needed.
    pub(crate) fn forget_synced(&mut self, synced: Txg) {
        self.slots = self.slots.split_off(&synced.next());
        self.copied = self.copied.split_off(&synced.next());
        let count = |s: &TxgSlot| s.names.len() + s.objects.values().map(Vec::len).sum::<usize>();
        self.records = self.slots.values().map(|s| count(s) as u64).sum();
    }

    fn next(&mut self) -> u64 {
        self.order += 1;
        self.order
    }

    /// Whether data of the txg is likely to be committed: a commit took records of this
    /// txg or the previous one.
    pub(crate) fn is_wanted(&self, txg: Txg) -> bool {
        self.wanted != Txg::ZERO && txg <= self.wanted.next()
    }

    /// Number of records, and bytes copied.
    pub(crate) fn held(&self) -> (u64, u64) {
        (self.records, self.copied.values().sum())
    }

    pub(crate) fn name(&mut self, txg: Txg, synced: &dyn Fn() -> Txg, payload: ItxPayload) {
        let order = self.next();
        self.named = order;
        self.slot(txg, synced).names.push(Itx { order, txg, payload });
        self.records += 1;
    }

    pub(crate) fn object(
        &mut self,
        txg: Txg,
        synced: &dyn Fn() -> Txg,
        object: ObjectId,
        payload: ItxPayload,
    ) {
        let order = self.next();
        let copied =
            if let ItxPayload::Data { data, .. } = &payload { data.len() as u64 } else { 0 };
        let named = self.named;
        let list = self.slot(txg, synced).objects.entry(object).or_default();
        if let (ItxPayload::Range { offset, len, indirect, .. }, Some(last)) = (&payload, list.last_mut())
            // A change made after a name must not be ordered before it.
            && last.order > named
            && let ItxPayload::Range { offset: start, len: had, indirect: form, .. } = &mut last.payload
            && form == indirect
            && start.checked_add(*had) == Some(*offset)
            && *had + len <= JOIN_MAX
        {
            *had += len;
            return;
        }
        if list.is_empty() {
            // Most files get one record in a txg.
            list.reserve_exact(1);
        }
        list.push(Itx { order, txg, payload });
        self.records += 1;
        *self.copied.entry(txg).or_default() += copied;
    }

    pub(crate) fn barrier(&mut self, txg: Txg) {
        self.barrier = self.barrier.max(txg);
    }

    /// Orders an object's records with those of names, before the names that follow.
    pub(crate) fn commit_with_names(&mut self, object: ObjectId) {
        for slot in self.slots.values_mut() {
            if let Some(list) = slot.objects.remove(&object) {
                list.into_iter().for_each(|itx| slot.names.push(itx));
            }
        }
    }

    /// Drops the records of an object that was removed.
    pub(crate) fn drop_object(&mut self, object: ObjectId) {
        for slot in self.slots.values_mut() {
            let gone = slot.objects.remove(&object);
            self.records -= gone.map_or(0, |list| list.len() as u64);
        }
    }

    /// Takes the records that a commit writes.
    pub(crate) fn gather(&mut self, scope: &CommitScope, synced: Txg) -> Gathered {
        self.forget_synced(synced);
        if self.barrier > synced {
            let last = self.slots.keys().next_back().copied();
            return Gathered::Wait(last.map_or(self.barrier, |t| t.max(self.barrier)));
        }
        let mut found = Vec::new();
        for slot in self.slots.values_mut() {
            found.extend(std::mem::take(&mut slot.names.0).into_iter().flatten());
            if scope.all {
                slot.objects.drain().for_each(|(_, list)| found.extend(list));
            } else {
                let lists = scope.objects.iter().filter_map(|o| slot.objects.remove(o));
                lists.for_each(|list| found.extend(list));
            }
        }
        self.records -= found.len() as u64;
        for itx in &found {
            if let (ItxPayload::Data { data, .. }, Some(n)) =
                (&itx.payload, self.copied.get_mut(&itx.txg))
            {
                *n = n.saturating_sub(data.len() as u64);
            }
        }
        if found.is_empty() {
            return Gathered::Nothing;
        }
        self.wanted = found.iter().map(|itx| itx.txg).fold(self.wanted, Txg::max);
        found.sort_unstable_by_key(|itx| itx.order);
        Gathered::Records(found)
    }
}

impl Itx {
    /// Whether its data is to be written only to its final place.
    pub(crate) fn is_indirect(&self) -> bool {
        matches!(&self.payload, ItxPayload::Range { indirect, .. } if *indirect != Indirect::No)
    }

    /// Bytes in a block, undivided; approximate for a record that is to be indirect.
    pub(crate) fn size(&self) -> u64 {
        let header = ondisk::zil::WRITE_HEADER as u64;
        match &self.payload {
            ItxPayload::Whole(bytes) | ItxPayload::Cut { record: bytes, .. } => bytes.len() as u64,
            ItxPayload::Data { data, .. } => header + (data.len() as u64).next_multiple_of(8),
            // One record for each block, whose size is not known yet.
            ItxPayload::Range { len, indirect, .. } if *indirect != Indirect::No => {
                len.div_ceil(BLOCK_LEAST) * header
            }
            ItxPayload::Range { len, .. } => {
                len.div_ceil(DATA_MAX) * header + len.next_multiple_of(8)
            }
            ItxPayload::Placed { .. } => header,
        }
    }

    /// Size of its largest indivisible part, bytes.
    pub(crate) fn largest(&self) -> u64 {
        match &self.payload {
            ItxPayload::Whole(bytes) | ItxPayload::Cut { record: bytes, .. } => bytes.len() as u64,
            ItxPayload::Placed { .. } => ondisk::zil::WRITE_HEADER as u64,
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

    fn range(object: u64, offset: u64, len: u64) -> ItxPayload {
        ItxPayload::Range { object: ObjectId(object), offset, len, indirect: Indirect::No }
    }

    fn records(found: Gathered) -> Vec<ItxPayload> {
        match found {
            Gathered::Records(list) => list.into_iter().map(|i| i.payload).collect(),
            Gathered::Nothing => Vec::new(),
            Gathered::Wait(txg) => unreachable!("{txg}"),
        }
    }

    #[test]
    fn an_object_waits_unless_it_is_committed_or_renamed() {
        let mut p = PendingRecords::default();
        let one = |id| CommitScope { objects: [ObjectId(id)].into(), ..CommitScope::default() };
        p.object(Txg(5), &|| Txg(3), ObjectId(1), range(1, 0, 10));
        p.object(Txg(5), &|| Txg(3), ObjectId(2), range(2, 0, 10));
        p.object(Txg(5), &|| Txg(3), ObjectId(1), range(1, 10, 5));
        p.name(Txg(4), &|| Txg(3), ItxPayload::Whole(whole(1)));
        p.object(Txg(5), &|| Txg(3), ObjectId(1), range(1, 15, 5));
        assert_eq!(p.held().0, 4);
        let found = records(p.gather(&one(1), Txg(3)));
        assert_eq!(found, [range(1, 0, 15), ItxPayload::Whole(whole(1)), range(1, 15, 5)]);
        assert!(records(p.gather(&one(1), Txg(3))).is_empty());
        p.commit_with_names(ObjectId(2));
        assert_eq!(records(p.gather(&one(9), Txg(3))), [range(2, 0, 10)]);
        p.object(Txg(6), &|| Txg(3), ObjectId(2), range(2, 0, 10));
        p.drop_object(ObjectId(2));
        assert!(
            records(p.gather(&CommitScope { all: true, ..CommitScope::default() }, Txg(3)))
                .is_empty()
        );
    }

    /// The list of names was copied completely whenever it had grown to twice its size:
    /// with 100,000 files created in a txg, to several MiB of fresh memory.
    #[test]
    fn many_names_stay_where_they_are_and_in_order() {
        let mut p = PendingRecords::default();
        let mut places = Vec::new();
        for n in 0..10_000u64 {
            let payload = if n == 5_000 {
                p.object(Txg(5), &|| Txg(3), ObjectId(1), range(1, 0, 10));
                p.commit_with_names(ObjectId(1));
                continue;
            } else {
                ItxPayload::Whole(n.to_le_bytes().to_vec())
            };
            p.name(Txg(5), &|| Txg(3), payload);
            let part = p.slots[&Txg(5)].names.0.last().unwrap();
            places.push(std::ptr::from_ref(part.last().unwrap()));
        }
        let now = p.slots[&Txg(5)].names.0.iter().flatten().map(std::ptr::from_ref);
        let then: std::collections::HashSet<_> = places.into_iter().collect();
        let kept = now.filter(|at| then.contains(at)).count();
        assert_eq!(kept, 9_999, "none was moved");
        let found = records(p.gather(&CommitScope::default(), Txg(3)));
        let expected = |n: u64| match n {
            5_000 => range(1, 0, 10),
            n => ItxPayload::Whole(n.to_le_bytes().to_vec()),
        };
        assert_eq!(found, (0..10_000).map(expected).collect::<Vec<_>>());
    }

    #[test]
    fn writes_of_two_forms_are_not_joined() {
        let mut p = PendingRecords::default();
        let part =
            |offset, indirect| ItxPayload::Range { object: ObjectId(1), offset, len: 8, indirect };
        let (yes, no) = (Indirect::Large, Indirect::No);
        for (offset, indirect) in [(0, yes), (8, yes), (16, no), (24, no)] {
            p.object(Txg(5), &|| Txg(3), ObjectId(1), part(offset, indirect));
        }
        let long = |offset, indirect| match part(offset, indirect) {
            ItxPayload::Range { object, .. } => {
                ItxPayload::Range { object, offset, len: 16, indirect }
            }
            other => other,
        };
        let all = CommitScope { all: true, ..CommitScope::default() };
        assert_eq!(records(p.gather(&all, Txg(3))), [long(0, yes), long(16, no)]);
    }

    #[test]
    fn txgs_on_disk_are_forgotten_and_barriers_wait_for_them() {
        let mut p = PendingRecords::default();
        let all = CommitScope { all: true, ..CommitScope::default() };
        p.name(Txg(4), &|| Txg(3), ItxPayload::Whole(whole(1)));
        p.barrier(Txg(5));
        p.name(Txg(6), &|| Txg(3), ItxPayload::Whole(whole(2)));
        assert!(matches!(p.gather(&all, Txg(3)), Gathered::Wait(Txg(6))));
        assert!(matches!(p.gather(&all, Txg(4)), Gathered::Wait(Txg(6))));
        assert_eq!(records(p.gather(&all, Txg(5))), [ItxPayload::Whole(whole(2))]);
        let data = ItxPayload::Data { object: ObjectId(1), offset: 0, data: vec![1; 100] };
        p.object(Txg(7), &|| Txg(6), ObjectId(1), data);
        assert_eq!(p.held(), (1, 100));
        p.forget_synced(Txg(7));
        assert_eq!(p.held(), (0, 0));
    }
}
