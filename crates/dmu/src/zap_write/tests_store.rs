//! Test support: blocks in memory with injected faults, an audit of a whole ZAP that shares
//! no code with the writer, and names with a chosen hash.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use base::{Buf, BufMut, Error, ErrorKind, Result};
use ondisk::Endian;
use ondisk::normalize::hash_name;
use ondisk::zap::{FatHeader, FatPhys, HASH_BITS, MicroZap, PointerLocation, ZapBlock, ZapValue};
use ondisk::zapleaf::{ENTRIES_CDSORTED, Leaf};

use super::{Index, ZapLimits, ZapMut, ZapStore};

const LE: Endian = Endian::Little;

/// Blocks in memory; absent ones are holes.
pub(super) struct MemStore {
    size: Cell<u32>,
    pub(super) blocks: RefCell<BTreeMap<u64, Buf>>,
    /// Edits, reads, frees and size changes until one fails.
    pub(super) accesses_left: Cell<u64>,
    /// Once the fuse blew, everything fails.
    pub(super) dead: Cell<bool>,
    stay_dead: Cell<bool>,
    pub(super) edits: Cell<u64>,
    /// Number of changes, and the index kept after that many.
    changes: Cell<u64>,
    kept: Cell<Option<(u64, Index)>>,
    /// Blocks as checking edits left them.
    checked: RefCell<BTreeSet<u64>>,
    /// Edits that had to check their block.
    pub(super) checks: Cell<u64>,
    /// How often the kept index was used.
    pub(super) recalled: Cell<u64>,
}

impl MemStore {
    pub(super) fn new(size: u32) -> MemStore {
        MemStore {
            size: Cell::new(size),
            blocks: RefCell::default(),
            accesses_left: Cell::new(u64::MAX),
            dead: Cell::new(false),
            stay_dead: Cell::new(false),
            edits: Cell::new(0),
            changes: Cell::new(0),
            kept: Cell::default(),
            checked: RefCell::default(),
            checks: Cell::new(0),
            recalled: Cell::new(0),
        }
    }

    pub(super) fn with_blocks(blocks: &[&[u8]]) -> MemStore {
        let store = MemStore::new(blocks[0].len() as u32);
        for (blkid, block) in (0..).zip(blocks) {
            store.blocks.borrow_mut().insert(blkid, Buf::copy_of(block));
        }
        store
    }

    pub(super) fn zap(&self) -> ZapMut<'_, MemStore> {
        ZapMut::new(self)
    }

    pub(super) fn zap_with(&self, limits: ZapLimits) -> ZapMut<'_, MemStore> {
        ZapMut::with_limits(self, limits)
    }

    fn burn(&self) -> Result<()> {
        let left = self.accesses_left.get();
        self.accesses_left.set(left.saturating_sub(1));
        if left == 0 && !self.dead.get() {
            self.dead.set(true);
            return Err(Error::new(ErrorKind::NoSpace, "injected"));
        }
        if self.dead.get() && self.stay_dead.get() {
            return Err(Error::new(ErrorKind::Io, "injected again"));
        }
        Ok(())
    }

    /// Fails the `n`th access from now on, and with `stay` all after it.
    pub(super) fn break_at(&self, n: u64, stay: bool) {
        self.accesses_left.set(n);
        self.dead.set(false);
        self.stay_dead.set(stay);
    }

    /// No more faults; whether one was injected.
    pub(super) fn mend(&self) -> bool {
        self.accesses_left.set(u64::MAX);
        self.stay_dead.set(false);
        self.dead.replace(false)
    }

    pub(super) fn copy(&self) -> MemStore {
        let copy = MemStore::new(self.size.get());
        for (id, block) in self.blocks.borrow().iter() {
            copy.blocks.borrow_mut().insert(*id, Buf::copy_of(block));
        }
        copy
    }
}

impl ZapStore for MemStore {
    fn block_size(&self) -> Result<u32> {
        Ok(self.size.get())
    }

    fn read(&self, blkid: u64) -> Result<Buf> {
        self.burn()?;
        let blocks = self.blocks.borrow();
        Ok(blocks.get(&blkid).cloned().unwrap_or_else(|| Buf::zeros(self.size.get() as usize)))
    }

    fn edit(&self, blkid: u64, f: &mut dyn FnMut(&mut [u8]) -> Result<()>) -> Result<()> {
        self.burn()?;
        self.changes.set(self.changes.get() + 1);
        self.edits.set(self.edits.get() + 1);
        self.checked.borrow_mut().remove(&blkid);
        let mut blocks = self.blocks.borrow_mut();
        let old = blocks.remove(&blkid);
        let block = match old {
            Some(old) => old.try_unfreeze().unwrap_or_else(|shared| BufMut::copy_of(&shared)),
            None => BufMut::zeroed(self.size.get() as usize),
        };
        let mut block = block;
        let done = f(&mut block);
        blocks.insert(blkid, block.freeze());
        done
    }

    fn edit_checked(
        &self,
        blkid: u64,
        f: &mut dyn FnMut(&mut [u8], bool) -> Result<()>,
    ) -> Result<()> {
        let checked = self.checked.borrow().contains(&blkid);
        self.checks.set(self.checks.get() + u64::from(!checked));
        self.edit(blkid, &mut |content| f(content, checked))?;
        self.checked.borrow_mut().insert(blkid);
        Ok(())
    }

    fn set_block_size(&self, size: u32) -> Result<()> {
        self.burn()?;
        self.checked.borrow_mut().clear();
        self.changes.set(self.changes.get() + 1);
        let mut blocks = self.blocks.borrow_mut();
        if blocks.keys().any(|id| *id > 0) {
            return Err(Error::invalid("more than one block"));
        }
        let mut new = BufMut::zeroed(size as usize);
        let old = blocks.remove(&0).unwrap_or_default();
        let keep = old.len().min(new.len());
        new[..keep].copy_from_slice(&old[..keep]);
        blocks.insert(0, new.freeze());
        self.size.set(size);
        Ok(())
    }

    fn free_block(&self, blkid: u64, count: u64) -> Result<()> {
        self.burn()?;
        self.changes.set(self.changes.get() + 1);
        self.blocks.borrow_mut().retain(|id, _| *id < blkid || *id - blkid >= count);
        self.checked.borrow_mut().retain(|id| *id < blkid || *id - blkid >= count);
        Ok(())
    }

    fn recall(&self) -> (u64, Option<Index>) {
        let kept = self.kept.take().filter(|(at, _)| *at == self.changes.get());
        self.recalled.set(self.recalled.get() + u64::from(kept.is_some()));
        (self.changes.get(), kept.map(|(_, index)| index))
    }

    /// The kept index must be valid.
    fn keep(&self, changes: u64, known: Index) {
        assert_eq!(changes, self.changes.get(), "each change is counted once");
        assert!(known.is_of(&self.blocks.borrow()[&0]).unwrap());
        self.kept.set(Some((changes, known)));
    }
}

/// An entry as the audit found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AuditedEntry {
    pub(super) value: ZapValue,
    pub(super) hash: u64,
    pub(super) cd: u32,
}

/// Everything that an audit found.
pub(super) struct Audit {
    pub(super) entries: BTreeMap<Vec<u8>, AuditedEntry>,
    /// `None` for a microzap.
    pub(super) phys: Option<FatPhys>,
    pub(super) deepest: u16,
}

/// Checks every block of a ZAP and collects its entries. `leftovers`: blocks to which no
/// pointer refers may exist.
pub(super) fn audit(store: &MemStore, leftovers: bool) -> Audit {
    let blocks = store.blocks.borrow();
    match ZapBlock::parse(&blocks[&0], LE).unwrap() {
        ZapBlock::Micro(m) => {
            assert!(leftovers || blocks.len() == 1);
            audit_micro(&m)
        }
        ZapBlock::FatHeader(h) => audit_fat(&blocks, &h, leftovers),
        ZapBlock::Leaf(_) => panic!("a leaf in block 0"),
    }
}

fn audit_micro(m: &MicroZap<'_>) -> Audit {
    let mut entries = BTreeMap::new();
    let mut cursor = BTreeMap::new();
    for e in m.entries() {
        let hash = hash_name(m.salt, e.name, m.normflags, HASH_BITS);
        let seen = AuditedEntry { value: ZapValue::from_u64(e.value), hash, cd: e.cd };
        assert!(cursor.insert((hash, e.cd), ()).is_none(), "equal (hash, cd)");
        assert!(entries.insert(e.name.to_vec(), seen).is_none(), "equal names");
    }
    Audit { entries, phys: None, deepest: 0 }
}

fn audit_fat(blocks: &BTreeMap<u64, Buf>, h: &FatHeader<'_>, leftovers: bool) -> Audit {
    let phys = h.phys;
    let key_size = if phys.has_word_keys() { 8 } else { 1 };
    let per = 1u64 << (h.block_shift() - 3);
    let pointer = |i: u64| match h.pointer_at(i).unwrap() {
        PointerLocation::Embedded(leaf) => leaf,
        PointerLocation::External { blkid, index } => {
            h.read_pointer(&blocks[&blkid], index, LE).unwrap()
        }
    };
    let mut used: BTreeMap<u64, ()> = BTreeMap::from([(0, ())]);
    let mut use_block = |id: u64| assert!(used.insert(id, ()).is_none(), "block {id} used twice");
    (phys.zt_blk..phys.zt_blk + phys.zt_numblks).for_each(&mut use_block);
    if phys.zt_nextblk != 0 {
        (phys.zt_nextblk..phys.zt_nextblk + 2 * phys.zt_blks_copied).for_each(&mut use_block);
        for i in 0..2 * phys.zt_blks_copied * per {
            let next = &blocks[&(phys.zt_nextblk + i / per)];
            let next = h.read_pointer(next, (i % per) as usize, LE).unwrap();
            assert_eq!(next, pointer(i / 2), "next pointer {i}");
        }
    }
    let mut all = Audit { entries: BTreeMap::new(), phys: Some(phys), deepest: 0 };
    let (mut at, mut leaves) = (0, 0);
    let mut order = Vec::new();
    while at < 1 << phys.zt_shift {
        let id = pointer(at);
        use_block(id);
        let leaf = Leaf::parse(&blocks[&id], LE).unwrap();
        leaf.verify(key_size).unwrap();
        let header = leaf.header();
        assert!(u64::from(header.prefix_len) <= phys.zt_shift);
        let width = 1 << (phys.zt_shift - u64::from(header.prefix_len));
        assert_eq!(at, header.prefix * width);
        (at..at + width).for_each(|i| assert_eq!(pointer(i), id, "pointer {i}"));
        assert_eq!(header.flags == ENTRIES_CDSORTED, phys.normflags != 0);
        all.deepest = all.deepest.max(header.prefix_len);
        for e in leaf.entries().unwrap() {
            let (name, hash) = if key_size == 8 {
                let words = e.key_words().unwrap();
                let name = words.iter().flat_map(|w| w.to_be_bytes()).collect();
                (name, phys.hash_words(&words))
            } else {
                let name = e.name().unwrap();
                let hash = hash_name(phys.salt, &name, phys.normflags, phys.hash_bits());
                (name, hash)
            };
            assert_eq!(hash, e.hash);
            assert!(header.covers(hash));
            order.push((hash, e.cd));
            let seen = AuditedEntry { value: e.value().unwrap(), hash, cd: e.cd };
            assert!(all.entries.insert(name, seen).is_none(), "equal names");
        }
        leaves += 1;
        at += width;
    }
    assert!(order.is_sorted_by(|a, b| a < b), "cursor order");
    assert_eq!(leaves, phys.num_leafs);
    assert_eq!(order.len() as u64, phys.num_entries);
    assert!(*used.last_key_value().unwrap().0 < phys.freeblk);
    if !leftovers {
        assert!(blocks.keys().all(|id| used.contains_key(id)), "a block that nothing names");
    }
    all
}

/// Makes names with a chosen hash: eight free bytes compensate the CRC.
pub(super) struct Forger {
    salt: u64,
    table: [u64; 256],
}

impl Forger {
    pub(super) fn new(salt: u64) -> Forger {
        let table = std::array::from_fn(|i| {
            (0..8).fold(i as u64, |c, _| {
                (c >> 1) ^ (if c & 1 == 1 { 0xC96C_5795_D787_0F42 } else { 0 })
            })
        });
        Forger { salt, table }
    }

    /// Different names whose hash has these high bits, by index.
    pub(super) fn name(&self, hash: u64, number: u64) -> Vec<u8> {
        for attempt in 0u64.. {
            // The low bits of the CRC are free, so that all names differ.
            let mut name = format!("{number}.{attempt}.").into_bytes();
            let mut state = self.salt;
            for b in &name {
                state = (state >> 8) ^ self.table[usize::from(state as u8 ^ b)];
            }
            let mut want = hash;
            for _ in 0..8 {
                let i = self.table.iter().position(|t| t >> 56 == want >> 56).unwrap();
                want = (want ^ self.table[i]) << 8 | i as u64;
            }
            name.extend((want ^ state).to_le_bytes());
            if !name.contains(&0) {
                return name;
            }
        }
        unreachable!()
    }
}
