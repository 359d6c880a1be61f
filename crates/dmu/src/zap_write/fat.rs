//! Entries of a fat ZAP: find, add, replace, remove (chapter 03 §14, §17).
//!
//! # Theory
//! The hash selects a pointer, which leads to a leaf. An ordinary addition edits the header
//! (the count of entries) and one leaf; replacing a value edits only the leaf. Changes of
//! the structure are in [`super::grow`].
//!
//! # Invariants
//! * `phys` is the content of block 0; `header`, if present, is block 0. Both are dropped
//!   or renewed by every edit of block 0.
//! * No reference to a block is held while it is edited, so that a store can change it in
//!   place.

use base::{Buf, Error, ErrorKind, Result};
use ondisk::normalize::NameKey;
use ondisk::zap::leafmut::{InsertOutcome, LeafMut, StoredKey, header_init};
use ondisk::zap::{
    FLAG_HASH64, FLAG_PRE_HASHED_KEY, FLAG_UINT64_KEY, FatHeader, FatPhys, LeafEntry,
    PointerLocation, ZapValue,
};
use ondisk::zapleaf::{Leaf, array_chunks, block_shift, chunk_count};

use super::{LE, ZapLimits, ZapStore, absent, exists};
use crate::zap::{Match, ZapEntry};

/// Splits that one addition may take: each adds a bit to the prefix.
const SPLITS_MAX: usize = 48;

/// A key, as it is hashed, stored and compared.
pub(super) struct FatKey<'k> {
    pub(super) hash: u64,
    stored: StoredKey<'k>,
    /// `None` for equality of the stored bytes.
    normalized: Option<&'k NameKey<'k>>,
}

impl<'k> FatKey<'k> {
    /// A name, as `key` describes it.
    pub(super) fn name(
        phys: &FatPhys,
        name: &'k [u8],
        key: &'k NameKey<'k>,
        how: Match,
    ) -> Result<FatKey<'k>> {
        if phys.has_word_keys() {
            return Err(Error::invalid("the keys of this ZAP are not names"));
        }
        Ok(FatKey {
            hash: phys.hash_name(key.hash_form()),
            stored: StoredKey::Name(name),
            normalized: (how != Match::Exact).then_some(key),
        })
    }

    /// A name with a known hash.
    pub(super) fn stored(hash: u64, name: &'k [u8]) -> FatKey<'k> {
        FatKey { hash, stored: StoredKey::Name(name), normalized: None }
    }

    /// A key of words.
    pub(super) fn words(phys: &FatPhys, words: &'k [u64]) -> Result<FatKey<'k>> {
        if !phys.has_word_keys() || words.is_empty() {
            return Err(Error::invalid("the keys of this ZAP are not words"));
        }
        let hash = phys.hash_words(words);
        Ok(FatKey { hash, stored: StoredKey::Words(words), normalized: None })
    }

    fn matches(&self, e: &LeafEntry<'_>) -> Result<bool> {
        match (self.normalized, self.stored) {
            (Some(key), _) => Ok(key.matches(&e.name()?)),
            (None, StoredKey::Name(name)) => e.name_is(name),
            (None, StoredKey::Words(words)) => Ok(e.key_words()? == words),
        }
    }
}

/// Formats a new fat ZAP over blocks 0 and 1.
pub(super) fn init<S: ZapStore + ?Sized>(
    store: &S,
    salt: u64,
    normflags: u64,
    flags: u64,
) -> Result<()> {
    let known = FLAG_HASH64 | FLAG_UINT64_KEY | FLAG_PRE_HASHED_KEY;
    if salt == 0 || flags & !known != 0 {
        return Err(Error::invalid("salt or flags of a new ZAP"));
    }
    init_any_salt(store, salt, normflags, flags)
}

/// [`init`], also with the salt 0 that a damaged microzap may have.
pub(super) fn init_any_salt<S: ZapStore + ?Sized>(
    store: &S,
    salt: u64,
    normflags: u64,
    flags: u64,
) -> Result<()> {
    let size = store.block_size()? as usize;
    let bs = block_shift(size).map_err(|e| e.with_kind(ErrorKind::Invalid))?;
    let phys = FatPhys::initial(bs, salt, normflags, flags);
    let key_size = if phys.has_word_keys() { 8 } else { 1 };
    store.edit(0, &mut |b| header_init(b, &phys))?;
    store.edit(1, &mut |b| LeafMut::init(b, 0, 0, normflags != 0, key_size).map(drop))
}

/// A fat ZAP that is being changed.
pub(super) struct Fat<'a, S: ZapStore + ?Sized> {
    pub(super) store: &'a S,
    pub(super) limits: ZapLimits,
    pub(super) bs: u32,
    pub(super) phys: FatPhys,
    header: Option<Buf>,
}

/// Where an entry was found.
struct Hit {
    chunk: u16,
    value_chunks: usize,
}

impl<'a, S: ZapStore + ?Sized> Fat<'a, S> {
    /// The ZAP with this block 0, which has been verified.
    pub(super) fn new(store: &'a S, header: Buf, phys: FatPhys, limits: ZapLimits) -> Fat<'a, S> {
        let bs = header.len().trailing_zeros();
        Fat { store, limits, bs, phys, header: Some(header) }
    }

    pub(super) fn phys(&self) -> &FatPhys {
        &self.phys
    }

    pub(super) fn key_size(&self) -> usize {
        if self.phys.has_word_keys() { 8 } else { 1 }
    }

    /// Block 0.
    pub(super) fn header(&mut self) -> Result<Buf> {
        if let Some(header) = &self.header {
            return Ok(header.clone());
        }
        let header = self.block(0)?;
        self.header = Some(header.clone());
        Ok(header)
    }

    /// Records that block 0 now has these fields.
    pub(super) fn renew(&mut self, phys: FatPhys) {
        self.header = None;
        self.phys = phys;
    }

    /// A block; fails if its size is wrong.
    pub(super) fn block(&self, blkid: u64) -> Result<Buf> {
        let block = self.store.read(blkid)?;
        if block.len() != 1 << self.bs {
            return Err(Error::corrupt("blocks of a ZAP differ in size").at_block(0, blkid));
        }
        Ok(block)
    }

    /// Pointer `index` of the table; 0 for no leaf.
    pub(super) fn pointer(&mut self, index: u64) -> Result<u64> {
        let header = self.header()?;
        let header = FatHeader::parse(&header, LE)?;
        match header.pointer_at(index)? {
            PointerLocation::Embedded(leaf) => Ok(leaf),
            PointerLocation::External { blkid, index } => {
                header.read_pointer(&self.block(blkid)?, index, LE)
            }
        }
    }

    /// The leaf for `hash`; `None` if there is none.
    pub(super) fn leaf(&mut self, hash: u64) -> Result<Option<(u64, Buf)>> {
        let leaf = self.pointer(self.phys.pointer_index(hash))?;
        if leaf == 0 {
            return Ok(None);
        }
        Ok(Some((leaf, self.block(leaf)?)))
    }

    fn find(&self, leaf: &Leaf<'_>, key: &FatKey<'_>) -> Result<Option<Hit>> {
        let found = leaf.lookup(key.hash, |e| key.matches(e))?;
        Ok(found.map(|e| Hit { chunk: e.chunk, value_chunks: e.value_chunks() }))
    }

    /// The entry that `key` finds.
    pub(super) fn lookup(&mut self, key: &FatKey<'_>) -> Result<Option<ZapEntry>> {
        let Some((_, block)) = self.leaf(key.hash)? else { return Ok(None) };
        let leaf = Leaf::parse(&block, LE)?;
        let Some(e) = leaf.lookup(key.hash, |e| key.matches(e))? else { return Ok(None) };
        Ok(Some(ZapEntry { name: e.name()?, value: e.value()?, hash: e.hash, cd: e.cd }))
    }

    /// The value that `key` finds, also one of words.
    pub(super) fn value(&mut self, key: &FatKey<'_>) -> Result<Option<ZapValue>> {
        let Some((_, block)) = self.leaf(key.hash)? else { return Ok(None) };
        let leaf = Leaf::parse(&block, LE)?;
        leaf.lookup(key.hash, |e| key.matches(e))?.map(|e| e.value()).transpose()
    }

    /// Adds an entry, or replaces a value if `replace`. `cd` is the smallest free one
    /// unless given.
    pub(super) fn put(
        &mut self,
        key: &FatKey<'_>,
        cd: Option<u32>,
        value: &ZapValue,
        replace: bool,
    ) -> Result<()> {
        let need = LeafMut::chunks_for(key.stored, value);
        if need > chunk_count(self.bs) {
            return Err(Error::limit("the entry is larger than a ZAP leaf"));
        }
        for _ in 0..=SPLITS_MAX {
            let (blkid, block) = self.leaf(key.hash)?.ok_or_else(no_leaf)?;
            let leaf = Leaf::parse(&block, LE)?;
            let hit = self.find(&leaf, key)?;
            if hit.is_some() && !replace {
                return Err(exists());
            }
            let (freed, need) = match &hit {
                Some(hit) => (hit.value_chunks, array_chunks(value.data.len())),
                None => (0, need),
            };
            let room = usize::from(leaf.header().nfree) + freed;
            if need > room {
                self.check_splitting_helps(&leaf, key.hash, need - freed)?;
                self.split(blkid, block)?;
                continue;
            }
            let depth = u64::from(leaf.header().prefix_len);
            drop(block);
            match hit {
                Some(hit) => self.edit_leaf(blkid, |leaf| leaf.update(hit.chunk, value))?,
                None => {
                    self.counted(1, blkid, |leaf| leaf.insert(key.hash, cd, key.stored, value))?
                }
            }
            self.grow_ahead(depth, room - need);
            return Ok(());
        }
        Err(Error::corrupt("splitting the leaves of a ZAP makes no room"))
    }

    /// Removes the entry that `key` finds.
    pub(super) fn remove(&mut self, key: &FatKey<'_>) -> Result<()> {
        let (blkid, block) = self.leaf(key.hash)?.ok_or_else(absent)?;
        let leaf = Leaf::parse(&block, LE)?;
        let hit = self.find(&leaf, key)?.ok_or_else(absent)?;
        let emptied = leaf.header().nentries == 1 && leaf.header().prefix_len > 0;
        drop(block);
        self.counted(-1, blkid, |leaf| leaf.remove(hit.chunk).map(|()| InsertOutcome::Done(0)))?;
        if emptied && self.limits.shrink {
            // The entry is removed already. Merging is tried again when a leaf becomes
            // empty.
            drop(self.shrink(key.hash));
        }
        Ok(())
    }

    /// Edits a leaf and the count of entries.
    fn counted(
        &mut self,
        by: i64,
        blkid: u64,
        op: impl FnMut(&mut LeafMut<'_>) -> Result<InsertOutcome>,
    ) -> Result<()> {
        let before = self.phys;
        let odd = || Error::corrupt("a ZAP's count of entries is wrong");
        let num_entries = before.num_entries.checked_add_signed(by).ok_or_else(odd)?;
        self.set_header(FatPhys { num_entries, ..before })?;
        let done = self.edit_leaf(blkid, op);
        if done.is_err() {
            // The caller gets the first error, not one of restoring the count.
            drop(self.set_header(before));
        }
        done
    }

    /// Writes the header's fields; block 0's pointers stay.
    pub(super) fn set_header(&mut self, phys: FatPhys) -> Result<()> {
        self.header = None;
        self.store.edit(0, &mut |b| phys.encode(b))?;
        self.phys = phys;
        Ok(())
    }

    fn edit_leaf(
        &self,
        blkid: u64,
        mut op: impl FnMut(&mut LeafMut<'_>) -> Result<InsertOutcome>,
    ) -> Result<()> {
        let key_size = self.key_size();
        self.store.edit_checked(blkid, &mut |b, checked| {
            let mut leaf = match checked {
                true => LeafMut::reopen(b, key_size)?,
                false => LeafMut::open(b, key_size)?,
            };
            match op(&mut leaf)? {
                InsertOutcome::Done(_) => Ok(()),
                InsertOutcome::Full => Err(Error::bug("a ZAP leaf has less room than it said")),
            }
        })
    }

    /// Refuses the entry when a leaf is full of entries whose hashes no prefix separates
    /// from `hash`. Otherwise the pointer table would double up to its limit.
    fn check_splitting_helps(&self, leaf: &Leaf<'_>, hash: u64, more: usize) -> Result<()> {
        let shift = 64 - self.shift_max();
        let mut together = more;
        for e in leaf.entries()? {
            if e.hash >> shift == hash >> shift {
                together += e.chunks(self.key_size());
            }
        }
        if together > chunk_count(self.bs) {
            return Err(Error::new(ErrorKind::NoSpace, "too many names of a ZAP have one hash"));
        }
        Ok(())
    }

    /// Bits that index the largest pointer table (§14.2).
    pub(super) fn shift_max(&self) -> u32 {
        self.phys.hash_bits() - 2
    }
}

#[cold]
fn no_leaf() -> Error {
    Error::corrupt("a ZAP has no leaf for this name")
}
