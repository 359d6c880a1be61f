//! The index of a cache device: from a block's identity to its place on the device.
//!
//! # Theory
//! Blocks are written around a ring and evicted in the same order. So the records are kept
//! in a queue in ring order: eviction takes them from its front, a write appends, and the
//! rebuild, which finds the newest log blocks first, prepends. A hash table leads from an
//! identity to a record's number in the queue. A record has 32 bytes; with its share of the
//! table a block takes less than 48 bytes ([`RingIndex::memory`]).
//!
//! A block that was freed leaves a dead record until the ring passes it.
//!
//! # Invariants
//! * The table has exactly the live records, and no two of them have one identity.
//! * Records are in ring order.

use std::collections::VecDeque;
use std::hash::BuildHasher;

use hashbrown::HashTable;
use ondisk::l2::EntryFacts;

/// A block's identity in its pool: first address and physical birth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId {
    /// Top-level vdev of the first address.
    pub vdev: u32,
    /// Byte offset of the first address.
    pub offset: u64,
    /// Physical birth.
    pub birth: u64,
}

/// A block on a cache device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedBlock {
    /// Its identity.
    pub id: BlockId,
    /// Device offset, a multiple of 512.
    pub daddr: u64,
    /// What is known of it.
    pub facts: EntryFacts,
}

impl CachedBlock {
    /// Whether the index can hold it: sizes of whole sectors, physical not above logical.
    pub fn is_valid(&self) -> bool {
        let size = |n: u64| n > 0 && n.is_multiple_of(512) && n <= base::limits::BLOCK_SIZE_MAX;
        size(self.facts.lsize)
            && size(self.facts.psize)
            && self.facts.psize <= self.facts.lsize
            && self.id.offset.is_multiple_of(512)
            && self.daddr.is_multiple_of(512)
            && self.daddr >> 9 < 1 << 48
    }
}

/// Sums over the blocks of an index; all in bytes but `blocks`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexSums {
    /// Number of live blocks.
    pub blocks: u64,
    /// Logical bytes.
    pub lsize: u64,
    /// Bytes on the device, padded to sectors.
    pub asize: u64,
    /// Of these, blocks that were prefetched and not used.
    pub prefetch: u64,
    /// Of these, blocks used once.
    pub mru: u64,
    /// Of these, blocks used again.
    pub mfu: u64,
    /// Of these, data.
    pub data: u64,
    /// Of these, metadata.
    pub metadata: u64,
}

impl IndexSums {
    fn change(&mut self, facts: &EntryFacts, asize: u64, by: impl Fn(&mut u64, u64)) {
        by(&mut self.blocks, 1);
        by(&mut self.lsize, facts.lsize);
        by(&mut self.asize, asize);
        let state = match (facts.prefetch, facts.mfu) {
            (true, _) => &mut self.prefetch,
            (false, true) => &mut self.mfu,
            (false, false) => &mut self.mru,
        };
        by(state, asize);
        by(if facts.metadata { &mut self.metadata } else { &mut self.data }, asize);
    }
}

/// A [`CachedBlock`], packed.
#[derive(Clone, Copy, Default)]
struct PackedBlock {
    /// Offset in sectors, and flags in the low byte.
    place: u64,
    birth: u64,
    /// Device offset in sectors, and physical size in sectors less one in the low 16 bits.
    daddr: u64,
    vdev: u32,
    /// Logical size in sectors, less one.
    lsize: u16,
    compression: u8,
}

const LIVE: u64 = 1;
const METADATA: u64 = 2;
const PREFETCH: u64 = 4;
const PROTECTED: u64 = 8;
const MFU: u64 = 16;

impl PackedBlock {
    fn of(block: &CachedBlock) -> PackedBlock {
        let (id, facts) = (&block.id, &block.facts);
        let flag = |on: bool, bit: u64| if on { bit } else { 0 };
        let flags = LIVE
            | flag(facts.metadata, METADATA)
            | flag(facts.prefetch, PREFETCH)
            | flag(facts.protected, PROTECTED)
            | flag(facts.mfu, MFU);
        PackedBlock {
            place: (id.offset >> 9) << 8 | flags,
            birth: id.birth,
            daddr: (block.daddr >> 9) << 16 | ((facts.psize >> 9) - 1),
            vdev: id.vdev,
            lsize: ((facts.lsize >> 9) - 1) as u16,
            compression: facts.compression,
        }
    }

    fn is_live(&self) -> bool {
        self.place & LIVE != 0
    }

    fn id(&self) -> BlockId {
        BlockId { vdev: self.vdev, offset: (self.place >> 8) << 9, birth: self.birth }
    }

    fn daddr(&self) -> u64 {
        (self.daddr >> 16) << 9
    }

    fn block(&self) -> CachedBlock {
        let has = |bit: u64| self.place & bit != 0;
        let facts = EntryFacts {
            lsize: (u64::from(self.lsize) + 1) << 9,
            psize: ((self.daddr & 0xffff) + 1) << 9,
            compression: self.compression,
            metadata: has(METADATA),
            prefetch: has(PREFETCH),
            protected: has(PROTECTED),
            mfu: has(MFU),
        };
        CachedBlock { id: self.id(), daddr: self.daddr(), facts }
    }
}

/// Records in one allocation.
const CHUNK: u64 = 256;
type Chunk = Box<[PackedBlock; CHUNK as usize]>;

/// The number of the first record; far from both ends of the range, and a multiple of
/// [`CHUNK`].
const MIDDLE: u64 = 1 << 40;

/// Most records of one index: numbers are stored with 32 bits.
pub const RECORDS_MAX: u64 = 1 << 31;

/// The index of one device.
pub struct RingIndex {
    table: HashTable<u32>,
    hasher: foldhash::fast::FixedState,
    chunks: VecDeque<Chunk>,
    /// Number of the first record in the front chunk.
    base: u64,
    /// Numbers of the oldest record, and of the one after the newest.
    oldest: u64,
    next: u64,
    sector: u64,
    sums: IndexSums,
}

impl RingIndex {
    /// An empty index of a device with sectors of `sector` bytes. `seed` keys its hash, so
    /// that the content of a hostile device cannot degrade the table.
    pub fn new(sector: u64, seed: u64) -> RingIndex {
        RingIndex {
            table: HashTable::new(),
            hasher: foldhash::fast::FixedState::with_seed(seed),
            chunks: VecDeque::new(),
            base: MIDDLE,
            oldest: MIDDLE,
            next: MIDDLE,
            sector: sector.max(512),
            sums: IndexSums::default(),
        }
    }

    /// Bytes that a block takes on the device.
    pub fn asize(&self, psize: u64) -> u64 {
        psize.next_multiple_of(self.sector)
    }

    /// The sums over its blocks.
    pub fn sums(&self) -> &IndexSums {
        &self.sums
    }

    /// Number of records, dead ones included.
    pub fn records(&self) -> u64 {
        self.next - self.oldest
    }

    /// Memory, bytes.
    pub fn memory(&self) -> u64 {
        let chunks = self.chunks.len() * (size_of::<[PackedBlock; CHUNK as usize]>() + 8);
        (chunks + self.table.allocation_size()) as u64
    }

    fn record(&self, number: u64) -> Option<&PackedBlock> {
        let at = number.checked_sub(self.base)?;
        self.chunks.get((at / CHUNK) as usize).map(|chunk| &chunk[(at % CHUNK) as usize])
    }

    fn record_mut(&mut self, number: u64) -> Option<&mut PackedBlock> {
        let at = number.checked_sub(self.base)?;
        self.chunks.get_mut((at / CHUNK) as usize).map(|chunk| &mut chunk[(at % CHUNK) as usize])
    }

    /// The full number of a record from its low 32 bits.
    fn widen(&self, low: u32) -> u64 {
        self.base + u64::from(low.wrapping_sub(self.base as u32))
    }

    fn find(&self, id: &BlockId) -> Option<u64> {
        let hash = self.hasher.hash_one(id);
        let is = |&low: &u32| self.record(self.widen(low)).is_some_and(|r| r.id() == *id);
        self.table.find(hash, is).map(|&low| self.widen(low))
    }

    /// The block with this identity.
    pub fn get(&self, id: &BlockId) -> Option<CachedBlock> {
        self.record(self.find(id)?).map(PackedBlock::block)
    }

    /// Whether the block was restored from a log block: it was written in an earlier use of
    /// the device.
    pub fn is_restored(&self, id: &BlockId) -> bool {
        self.find(id).is_some_and(|number| number < MIDDLE)
    }

    /// The live blocks, the oldest first.
    pub fn blocks(&self) -> Vec<CachedBlock> {
        let records = (self.oldest..self.next).filter_map(|number| self.record(number));
        records.filter(|record| record.is_live()).map(PackedBlock::block).collect()
    }

    /// Whether the block is there.
    pub fn contains(&self, id: &BlockId) -> bool {
        self.find(id).is_some()
    }

    fn enter(&mut self, number: u64, block: &CachedBlock) {
        let record = PackedBlock::of(block);
        if let Some(slot) = self.record_mut(number) {
            *slot = record;
        }
        let RingIndex { table, hasher, chunks, base, .. } = self;
        let hash_of = |low: &u32| {
            let at = u64::from(low.wrapping_sub(*base as u32));
            let id = chunks.get((at / CHUNK) as usize).map(|c| c[(at % CHUNK) as usize].id());
            hasher.hash_one(id.unwrap_or(BlockId { vdev: 0, offset: 0, birth: 0 }))
        };
        table.insert_unique(hasher.hash_one(block.id), number as u32, hash_of);
        let asize = self.asize(block.facts.psize);
        self.sums.change(&block.facts, asize, |to, n| *to += n);
    }

    /// Adds the newest block; an older record of the same identity dies. False if the block
    /// is not valid or the index is full.
    pub fn push(&mut self, block: &CachedBlock) -> bool {
        if !block.is_valid() || self.records() >= RECORDS_MAX {
            return false;
        }
        self.remove(&block.id);
        if self.next == self.base + self.chunks.len() as u64 * CHUNK {
            self.chunks.push_back(Box::new([PackedBlock::default(); CHUNK as usize]));
        }
        let number = self.next;
        self.next += 1;
        self.enter(number, block);
        true
    }

    /// Adds a block that is older than all others. False if it is not valid, if a newer one
    /// has its identity, or if the index is full.
    pub(crate) fn push_oldest(&mut self, block: &CachedBlock) -> bool {
        if !block.is_valid() || self.records() >= RECORDS_MAX || self.contains(&block.id) {
            return false;
        }
        if self.oldest == self.base {
            self.chunks.push_front(Box::new([PackedBlock::default(); CHUNK as usize]));
            self.base -= CHUNK;
        }
        self.oldest -= 1;
        self.enter(self.oldest, block);
        true
    }

    /// Removes a block; its record stays until the ring passes it.
    pub fn remove(&mut self, id: &BlockId) -> Option<CachedBlock> {
        let number = self.find(id)?;
        self.unlink(number)
    }

    fn unlink(&mut self, number: u64) -> Option<CachedBlock> {
        let record = self.record_mut(number).filter(|r| r.is_live())?;
        let block = record.block();
        record.place &= !LIVE;
        let hash = self.hasher.hash_one(block.id);
        if let Ok(entry) = self.table.find_entry(hash, |&low| low == number as u32) {
            entry.remove();
        }
        let asize = self.asize(block.facts.psize);
        self.sums.change(&block.facts, asize, |to, n| *to -= n);
        Some(block)
    }

    /// Evicts the oldest blocks as long as they begin in `range`; returns how many lived.
    pub fn evict(&mut self, range: std::ops::Range<u64>) -> u64 {
        let mut evicted = 0;
        while self.oldest < self.next {
            let Some(record) = self.record(self.oldest) else { break };
            if !range.contains(&record.daddr()) {
                break;
            }
            evicted += u64::from(self.unlink(self.oldest).is_some());
            self.oldest += 1;
            if self.oldest - self.base == CHUNK {
                self.chunks.pop_front();
                self.base += CHUNK;
            }
        }
        // The table follows a device that holds far fewer blocks than before.
        if self.table.capacity() > 4 * self.table.len() + 1024 {
            let RingIndex { table, hasher, chunks, base, .. } = self;
            table.shrink_to(2 * table.len(), |low| {
                let at = u64::from(low.wrapping_sub(*base as u32));
                let id = chunks.get((at / CHUNK) as usize).map(|c| c[(at % CHUNK) as usize].id());
                hasher.hash_one(id.unwrap_or(BlockId { vdev: 0, offset: 0, birth: 0 }))
            });
        }
        evicted
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        let fresh = RingIndex { hasher: self.hasher.clone(), ..RingIndex::new(self.sector, 0) };
        *self = fresh;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn block(n: u64, daddr: u64) -> CachedBlock {
        let facts = EntryFacts {
            lsize: 8192,
            psize: 4096,
            compression: 15,
            mfu: n.is_multiple_of(2),
            metadata: n.is_multiple_of(3),
            ..EntryFacts::default()
        };
        CachedBlock { id: BlockId { vdev: 1, offset: n << 12, birth: 7 }, daddr, facts }
    }

    #[test]
    fn a_record_has_32_bytes_and_a_block_at_most_48() {
        assert_eq!(size_of::<PackedBlock>(), 32);
        let mut index = RingIndex::new(512, 1);
        let mut worst = 0.0f64;
        for n in 0..100_000u64 {
            assert!(index.push(&block(n, n << 12)));
            if n > 2000 {
                worst = worst.max(index.memory() as f64 / (n + 1) as f64);
            }
        }
        assert!(worst <= 48.0, "{worst} bytes a block");
        assert_eq!(index.sums().blocks, 100_000);
    }

    #[test]
    fn a_block_is_what_was_pushed() {
        let mut index = RingIndex::new(4096, 1);
        let facts = EntryFacts {
            lsize: 16 << 20,
            psize: 512,
            compression: 16,
            metadata: true,
            prefetch: true,
            protected: true,
            mfu: true,
        };
        let id = BlockId { vdev: u32::MAX, offset: u64::MAX << 9, birth: u64::MAX };
        let big = CachedBlock { id, daddr: ((1 << 48) - 1) << 9, facts };
        assert!(index.push(&big));
        assert_eq!(index.get(&id), Some(big));
        assert_eq!(index.sums().asize, 4096);
        assert!(!index.push(&CachedBlock { daddr: 1 << 57, ..big }));
        let odd = EntryFacts { psize: 513, ..facts };
        assert!(!index.push(&CachedBlock { facts: odd, ..big }));
    }

    #[test]
    fn the_oldest_are_evicted_first_and_older_ones_may_be_added() {
        let mut index = RingIndex::new(512, 1);
        for n in (0..1000u64).rev() {
            assert!(index.push_oldest(&block(n, n << 12)));
        }
        assert!(!index.push_oldest(&block(5, 0)));
        assert!(index.push(&block(5, 1000 << 12)));
        assert_eq!(index.evict(0..10 << 12), 9, "one record was dead");
        assert!(!index.contains(&block(9, 0).id) && index.contains(&block(10, 0).id));
        assert_eq!(index.get(&block(5, 0).id).unwrap().daddr, 1000 << 12);
        assert_eq!(index.evict(0..u64::MAX), 991);
        assert_eq!((index.sums().blocks, index.records()), (0, 0));
        assert_eq!(*index.sums(), IndexSums::default());
    }
}
