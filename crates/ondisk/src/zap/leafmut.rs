//! Writing fat ZAPs: leaf blocks, header fields, embedded pointers (§14, §17).
//!
//! # Theory
//! [`LeafMut`] edits a leaf in place, in the caller's buffer, little-endian (a foreign
//! block is first converted by [`super::byteswap`]). It never needs more memory than
//! the block. If an entry does not fit, it returns [`InsertOutcome::Full`] and the
//! caller splits the leaf: [`LeafMut::split_into`] moves half of the hash range; the
//! caller updates the pointers.
//!
//! # Invariants
//! * A `LeafMut` passed [`Leaf::verify`] when it was made, or its caller vouches that an earlier
//!   one left it so ([`LeafMut::reopen`]), and every operation keeps it true; so free chunks
//!   really are free.
//! * Bucket chains are sorted by collision differentiator.

use base::{Error, Result};

use super::{FatPhys, VALUE_MAX, ZAP_MAGIC, ZBT_HEADER, ZapValue};
use crate::endian::Endian;
use crate::zapleaf::{
    ARRAY_BYTES, CHAIN_END, CHUNK, CHUNK_ARRAY, CHUNK_ENTRY, CHUNK_FREE, ENTRIES_CDSORTED, HEADER,
    LEAF_MAGIC, Leaf, LeafEntry, ZBT_LEAF, array_chunks, block_shift, bucket_of, chunk_count,
    chunks_at, corrupt, u16_at, u32_at,
};

const LE: Endian = Endian::Little;

/// A key as stored in a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredKey<'a> {
    /// A name, without NUL.
    Name(&'a [u8]),
    /// Words of a UINT64 key.
    Words(&'a [u64]),
}

impl StoredKey<'_> {
    fn encode(self) -> Vec<u8> {
        match self {
            StoredKey::Name(name) => [name, &[0]].concat(),
            StoredKey::Words(words) => words.iter().flat_map(|w| w.to_be_bytes()).collect(),
        }
    }

    fn numints(self) -> usize {
        match self {
            StoredKey::Name(name) => name.len() + 1,
            StoredKey::Words(words) => words.len(),
        }
    }

    fn size(self) -> usize {
        match self {
            StoredKey::Name(_) => 1,
            StoredKey::Words(_) => 8,
        }
    }
}

/// The result of an insertion or update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertOutcome {
    /// Done; the entry's collision differentiator.
    Done(u32),
    /// The leaf lacks chunks: split it and try again.
    Full,
}

/// A leaf that is being written.
#[derive(Debug)]
pub struct LeafMut<'a> {
    block: &'a mut [u8],
    bs: u32,
    key_size: usize,
}

impl<'a> LeafMut<'a> {
    /// Formats an empty leaf over `block`.
    ///
    /// `cdsorted` is true iff the ZAP has normalisation flags; `key_size` is 1
    /// for names, 8 for UINT64 keys.
    ///
    /// # Errors
    /// `Corrupt` for an impossible block size.
    pub fn init(
        block: &'a mut [u8],
        prefix: u64,
        prefix_len: u16,
        cdsorted: bool,
        key_size: usize,
    ) -> Result<LeafMut<'a>> {
        let bs = block_shift(block.len())?;
        let mut leaf = LeafMut { block, bs, key_size };
        leaf.format(prefix, prefix_len, if cdsorted { ENTRIES_CDSORTED } else { 0 });
        Ok(leaf)
    }

    /// Opens an existing little-endian leaf for writing.
    ///
    /// # Errors
    /// `Corrupt` as [`Leaf::verify`].
    pub fn open(block: &'a mut [u8], key_size: usize) -> Result<LeafMut<'a>> {
        let leaf = Leaf::parse(block, LE)?;
        leaf.verify(key_size)?;
        let bs = leaf.block_shift();
        Ok(LeafMut { block, bs, key_size })
    }

    /// Opens a leaf that is, byte for byte, what operations of an earlier `LeafMut` left, none
    /// of which failed.
    ///
    /// # Errors
    /// `Corrupt` for a damaged header.
    pub fn reopen(block: &'a mut [u8], key_size: usize) -> Result<LeafMut<'a>> {
        let leaf = Leaf::parse(block, LE)?;
        if cfg!(debug_assertions) {
            let odd = |e| Error::bug("a ZAP leaf that was changed is damaged").caused_by(e);
            leaf.verify(key_size).map_err(odd)?;
        }
        let bs = leaf.block_shift();
        Ok(LeafMut { block, bs, key_size })
    }

    fn format(&mut self, prefix: u64, prefix_len: u16, flags: u8) {
        let chunks = chunk_count(self.bs);
        let at = chunks_at(self.bs);
        self.block.fill(0);
        self.block[..8].copy_from_slice(&ZBT_LEAF.to_le_bytes());
        self.block[16..24].copy_from_slice(&prefix.to_le_bytes());
        self.block[24..28].copy_from_slice(&LEAF_MAGIC.to_le_bytes());
        self.put16(28, chunks as u16);
        self.put16(32, prefix_len);
        self.block[36] = flags;
        self.block[HEADER..at].fill(0xff);
        for n in 0..chunks {
            let c = at + n * CHUNK;
            self.block[c] = CHUNK_FREE;
            self.put16(c + 22, if n + 1 == chunks { CHAIN_END } else { n as u16 + 1 });
        }
    }

    /// The leaf as a reader sees it.
    ///
    /// # Errors
    /// None in practice: the header was checked when this value was made.
    pub(crate) fn view(&self) -> Result<Leaf<'_>> {
        Leaf::parse(self.block, LE)
    }

    fn put16(&mut self, off: usize, v: u16) {
        self.block[off..off + 2].copy_from_slice(&v.to_le_bytes());
    }

    fn get16(&self, off: usize) -> Result<u16> {
        u16_at(self.block, off, LE)
    }

    fn at(&self, chunk: u16) -> usize {
        chunks_at(self.bs) + usize::from(chunk) * CHUNK
    }

    fn nfree(&self) -> Result<usize> {
        self.get16(28).map(usize::from)
    }

    /// Takes a chunk from the free list.
    fn alloc(&mut self) -> Result<u16> {
        let n = self.get16(34)?;
        if usize::from(n) >= chunk_count(self.bs) {
            return Err(corrupt("the free list is shorter than its counter"));
        }
        let at = self.at(n);
        let next = self.get16(at + 22)?;
        self.put16(34, next);
        let nfree = self.get16(28)?.saturating_sub(1);
        self.put16(28, nfree);
        self.block[at..at + CHUNK].fill(0);
        Ok(n)
    }

    fn free(&mut self, n: u16) -> Result<()> {
        let at = self.at(n);
        let head = self.get16(34)?;
        self.block[at..at + CHUNK].fill(0);
        self.block[at] = CHUNK_FREE;
        self.put16(at + 22, head);
        self.put16(34, n);
        let nfree = self.get16(28)?.saturating_add(1);
        self.put16(28, nfree);
        Ok(())
    }

    /// Stores bytes in a new chain; the caller has checked that there are enough
    /// chunks.
    fn write_array(&mut self, bytes: &[u8]) -> Result<u16> {
        let mut first = CHAIN_END;
        // Last piece first, so that each chunk knows its successor.
        for piece in bytes.chunks(ARRAY_BYTES).rev() {
            let n = self.alloc()?;
            let at = self.at(n);
            self.block[at] = CHUNK_ARRAY;
            self.block[at + 1..at + 1 + piece.len()].copy_from_slice(piece);
            self.put16(at + 22, first);
            first = n;
        }
        Ok(first)
    }

    fn free_array(&mut self, first: u16, bytes: usize) -> Result<()> {
        let mut n = first;
        for _ in 0..array_chunks(bytes) {
            let next = self.get16(self.at(n) + 22)?;
            self.free(n)?;
            n = next;
        }
        Ok(())
    }

    /// Number of chunks of an entry.
    pub fn chunks_for(key: StoredKey<'_>, value: &ZapValue) -> usize {
        1 + array_chunks(key.numints() * key.size()) + array_chunks(value.data.len())
    }

    /// Adds an entry. The caller must know that the key is not there yet.
    ///
    /// `cd` is the differentiator to use (conversion, moves), `None` for the
    /// smallest free one.
    ///
    /// # Errors
    /// `Limit` when it would not fit into an empty leaf (E2BIG), `Invalid` for a
    /// malformed value or a key of the wrong sort, `Corrupt` when the hash does not
    /// belong to this leaf.
    pub fn insert(
        &mut self,
        hash: u64,
        cd: Option<u32>,
        key: StoredKey<'_>,
        value: &ZapValue,
    ) -> Result<InsertOutcome> {
        check_value(value)?;
        if key.size() != self.key_size || key.numints() > usize::from(u16::MAX) {
            return Err(Error::invalid("key of the wrong sort for this ZAP"));
        }
        self.insert_raw(hash, cd, &key.encode(), key.numints() as u16, value)
    }

    fn insert_raw(
        &mut self,
        hash: u64,
        cd: Option<u32>,
        key: &[u8],
        key_numints: u16,
        value: &ZapValue,
    ) -> Result<InsertOutcome> {
        let need = 1 + array_chunks(key.len()) + array_chunks(value.data.len());
        if need > chunk_count(self.bs) {
            return Err(Error::limit("the entry is larger than a ZAP leaf"));
        }
        if !self.view()?.header().covers(hash) {
            return Err(corrupt("the hash belongs into another leaf"));
        }
        if need > self.nfree()? {
            return Ok(InsertOutcome::Full);
        }
        let cd = match cd {
            Some(cd) => cd,
            None => self.view()?.free_cd(hash)?,
        };
        let name = self.write_array(key)?;
        let data = self.write_array(&value.data)?;
        let n = self.alloc()?;
        let at = self.at(n);
        self.block[at] = CHUNK_ENTRY;
        self.put16(at + 4, name);
        self.put16(at + 6, key_numints);
        self.put_value(at, data, value);
        self.block[at + 12..at + 16].copy_from_slice(&cd.to_le_bytes());
        self.block[at + 16..at + 24].copy_from_slice(&hash.to_le_bytes());
        self.link(n, hash, cd)?;
        let count = self.get16(30)?.saturating_add(1);
        self.put16(30, count);
        Ok(InsertOutcome::Done(cd))
    }

    fn put_value(&mut self, at: usize, chunk: u16, value: &ZapValue) {
        self.block[at + 1] = value.int_size;
        self.put16(at + 8, chunk);
        self.put16(at + 10, value.num);
    }

    /// Links an entry into its bucket before the first larger differentiator.
    fn link(&mut self, n: u16, hash: u64, cd: u32) -> Result<()> {
        let len = self.view()?.header().prefix_len;
        let mut place = HEADER + 2 * bucket_of(hash, self.bs, len.into());
        for _ in 0..=chunk_count(self.bs) {
            let next = self.get16(place)?;
            if next == CHAIN_END || u32_at(self.block, self.at(next) + 12, LE)? > cd {
                self.put16(self.at(n) + 2, next);
                self.put16(place, n);
                return Ok(());
            }
            place = self.at(next) + 2;
        }
        Err(corrupt("cycle of entries"))
    }

    fn unlink(&mut self, entry: &Unlinked) -> Result<()> {
        let len = self.view()?.header().prefix_len;
        let mut place = HEADER + 2 * bucket_of(entry.hash, self.bs, len.into());
        for _ in 0..=chunk_count(self.bs) {
            let n = self.get16(place)?;
            if n == entry.chunk {
                let next = self.get16(self.at(n) + 2)?;
                self.put16(place, next);
                return Ok(());
            }
            if n == CHAIN_END {
                break;
            }
            place = self.at(n) + 2;
        }
        Err(corrupt("an entry is not in its bucket"))
    }

    /// Removes the entry at chunk `n` (from [`LeafEntry::chunk`]).
    ///
    /// # Errors
    /// `Corrupt` when there is no entry.
    pub fn remove(&mut self, n: u16) -> Result<()> {
        let entry = Unlinked::of(&self.view()?.entry(n)?, self.key_size);
        self.unlink(&entry)?;
        self.free_array(entry.name_chunk, entry.name_len)?;
        self.free_array(entry.value_chunk, entry.value_len)?;
        self.free(n)?;
        let count = self.get16(30)?.saturating_sub(1);
        self.put16(30, count);
        Ok(())
    }

    /// Replaces the value of the entry at chunk `n`.
    ///
    /// # Errors
    /// `Corrupt` when there is no entry, `Invalid` for a malformed value.
    pub fn update(&mut self, n: u16, value: &ZapValue) -> Result<InsertOutcome> {
        check_value(value)?;
        let entry = Unlinked::of(&self.view()?.entry(n)?, self.key_size);
        if array_chunks(value.data.len()) > self.nfree()? + array_chunks(entry.value_len) {
            return Ok(InsertOutcome::Full);
        }
        self.free_array(entry.value_chunk, entry.value_len)?;
        let data = self.write_array(&value.data)?;
        self.put_value(self.at(n), data, value);
        Ok(InsertOutcome::Done(entry.cd))
    }

    /// Inserts a copy of another leaf's entry, differentiator included.
    fn copy_entry(&mut self, entry: &LeafEntry<'_>) -> Result<InsertOutcome> {
        let key = entry.raw_key(self.key_size)?;
        let value = entry.value()?;
        self.insert_raw(entry.hash, Some(entry.cd), &key, entry.name_numints, &value)
    }

    /// Splits the leaf: this one keeps the lower half of its hash range, a leaf
    /// formatted over `sibling` takes the upper one (§17 "Split"). Chunks of
    /// both are laid out afresh.
    ///
    /// # Errors
    /// `Invalid` when the sizes differ, `NoSpace` when the prefix cannot grow.
    pub fn split_into(&mut self, sibling: &mut [u8], normflags: u64) -> Result<()> {
        if sibling.len() != self.block.len() {
            return Err(Error::invalid("leaves of one ZAP have one size"));
        }
        let header = *self.view()?.header();
        let len = header.prefix_len;
        if len >= 46 {
            return Err(Error::new(base::ErrorKind::NoSpace, "a ZAP leaf cannot be split further"));
        }
        let old = self.block.to_vec();
        let flags = if normflags != 0 { ENTRIES_CDSORTED } else { 0 };
        self.format(header.prefix << 1, len + 1, flags);
        let mut upper =
            LeafMut::init(sibling, header.prefix << 1 | 1, len + 1, flags != 0, self.key_size)?;
        for entry in Leaf::parse(&old, LE)?.entries()? {
            let upper_half = entry.hash >> (63 - len) & 1 == 1;
            let outcome =
                if upper_half { upper.copy_entry(&entry)? } else { self.copy_entry(&entry)? };
            if outcome == InsertOutcome::Full {
                return Err(Error::bug("half of a ZAP leaf does not fit into a leaf"));
            }
        }
        Ok(())
    }
}

/// The fields of an entry that are needed after its borrow ended.
struct Unlinked {
    chunk: u16,
    hash: u64,
    cd: u32,
    name_chunk: u16,
    name_len: usize,
    value_chunk: u16,
    value_len: usize,
}

impl Unlinked {
    fn of(e: &LeafEntry<'_>, key_size: usize) -> Unlinked {
        Unlinked {
            chunk: e.chunk,
            hash: e.hash,
            cd: e.cd,
            name_chunk: e.name_chunk,
            name_len: e.name_len(key_size),
            value_chunk: e.value_chunk,
            value_len: e.value_len(),
        }
    }
}

/// Whether a value can be stored at all.
///
/// # Errors
/// `Invalid` when length and integer size contradict each other, `Limit` beyond
/// [`VALUE_MAX`] bytes.
pub fn check_value(value: &ZapValue) -> Result<()> {
    if !matches!(value.int_size, 1 | 2 | 4 | 8)
        || value.data.len() != usize::from(value.int_size) * usize::from(value.num)
    {
        return Err(Error::invalid("malformed ZAP value"));
    }
    if value.data.len() > VALUE_MAX {
        return Err(Error::limit("a ZAP value is at most 8192 bytes"));
    }
    Ok(())
}

impl FatPhys {
    /// The state of a new fat ZAP: one leaf in block 1 (§14.1).
    pub fn initial(bs: u32, salt: u64, normflags: u64, flags: u64) -> FatPhys {
        FatPhys {
            zt_shift: u64::from(bs.saturating_sub(4)),
            freeblk: 2,
            num_leafs: 1,
            salt,
            normflags,
            flags,
            ..FatPhys::default()
        }
    }

    /// Writes the fields into a header block, little endian; the embedded
    /// pointer table is left alone.
    ///
    /// # Errors
    /// `Corrupt` when the block size is impossible or the fields contradict
    /// each other.
    pub fn encode(&self, block: &mut [u8]) -> Result<()> {
        self.check(block_shift(block.len())?)?;
        let words = [
            ZBT_HEADER,
            ZAP_MAGIC,
            self.zt_blk,
            self.zt_numblks,
            self.zt_shift,
            self.zt_nextblk,
            self.zt_blks_copied,
            self.freeblk,
            self.num_leafs,
            self.num_entries,
            self.salt,
            self.normflags,
            self.flags,
        ];
        for (word, v) in block.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *word = v.to_le_bytes();
        }
        Ok(())
    }
}

/// Formats block 0 of a new fat ZAP: header and pointers, all to block 1.
///
/// # Errors
/// As [`FatPhys::encode`].
pub fn header_init(block: &mut [u8], phys: &FatPhys) -> Result<()> {
    block.fill(0);
    phys.encode(block)?;
    let pointers = 0..block.len() as u64 / 16;
    set_embedded_pointers(block, pointers, 1)
}

/// Sets embedded pointers of a little-endian header block.
///
/// # Errors
/// `Invalid` for pointers beyond the table.
pub fn set_embedded_pointers(
    block: &mut [u8],
    range: std::ops::Range<u64>,
    blkid: u64,
) -> Result<()> {
    let half = block.len() / 2;
    let table = block.get_mut(half..).unwrap_or_default().as_chunks_mut::<8>().0;
    let slots = usize::try_from(range.start)
        .ok()
        .zip(usize::try_from(range.end).ok())
        .and_then(|(a, b)| table.get_mut(a..b))
        .ok_or_else(|| Error::invalid("no such embedded ZAP pointers"))?;
    slots.fill(blkid.to_le_bytes());
    Ok(())
}

/// Converts a leaf to the other byte order; array data is not changed.
pub(crate) fn byteswap_leaf(block: &mut [u8], bs: u32) -> Result<()> {
    let at = chunks_at(bs);
    let (head, chunks) =
        block.split_at_mut_checked(at).ok_or_else(|| corrupt("leaf is cut short"))?;
    for (from, to) in [(0, 8), (8, 16), (16, 24), (24, 28), (28, 30), (30, 32), (32, 34), (34, 36)]
    {
        head[from..to].reverse();
    }
    for slot in head[HEADER..].as_chunks_mut::<2>().0 {
        slot.reverse();
    }
    for chunk in chunks.as_chunks_mut::<CHUNK>().0 {
        match chunk[0] {
            CHUNK_ENTRY => {
                for (from, to) in [(2, 4), (4, 6), (6, 8), (8, 10), (10, 12), (12, 16), (16, 24)] {
                    chunk[from..to].reverse();
                }
            }
            CHUNK_ARRAY | CHUNK_FREE => chunk[22..].reverse(),
            _ => return Err(corrupt("unknown chunk type")),
        }
    }
    Ok(())
}

/// Builds a whole fat ZAP in memory, block by block, with an embedded pointer
/// table.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct FatBuilder {
    bs: u32,
    phys: FatPhys,
    blocks: Vec<Vec<u8>>,
}

#[cfg(test)]
impl FatBuilder {
    /// An empty fat ZAP with blocks of `1 << bs` bytes.
    ///
    /// # Errors
    /// `Corrupt` for an impossible block size.
    pub(crate) fn new(bs: u32, salt: u64, normflags: u64, flags: u64) -> Result<FatBuilder> {
        let size = 1usize.checked_shl(bs).unwrap_or(0);
        block_shift(size)?;
        let phys = FatPhys::initial(bs, salt, normflags, flags);
        let mut blocks = vec![vec![0; size]; 2];
        header_init(&mut blocks[0], &phys)?;
        let mut builder = FatBuilder { bs, phys, blocks };
        let key_size = builder.key_size();
        LeafMut::init(&mut builder.blocks[1], 0, 0, normflags != 0, key_size)?;
        Ok(builder)
    }

    fn key_size(&self) -> usize {
        if self.phys.has_word_keys() { 8 } else { 1 }
    }

    /// The header's fields.
    pub(crate) fn phys(&self) -> &FatPhys {
        &self.phys
    }

    /// The blocks, by id.
    pub(crate) fn blocks(&self) -> &[Vec<u8>] {
        &self.blocks
    }

    fn leaf_of(&self, hash: u64) -> Result<usize> {
        let off = self.blocks[0].len() / 2 + 8 * self.phys.pointer_index(hash) as usize;
        let id = LE.u64(&self.blocks[0], off).ok_or_else(|| corrupt("no such pointer"))?;
        Ok(id as usize)
    }

    /// Adds an entry under `hash`, splitting leaves as needed.
    ///
    /// # Errors
    /// `NoSpace` when the embedded pointer table cannot distinguish the leaves;
    /// otherwise as [`LeafMut::insert`].
    pub(crate) fn add(
        &mut self,
        hash: u64,
        cd: Option<u32>,
        key: StoredKey<'_>,
        value: &ZapValue,
    ) -> Result<u32> {
        let key_size = self.key_size();
        loop {
            let id = self.leaf_of(hash)?;
            let block = self.blocks.get_mut(id).ok_or_else(|| corrupt("no such leaf"))?;
            let mut leaf = LeafMut::open(block, key_size)?;
            if let InsertOutcome::Done(cd) = leaf.insert(hash, cd, key, value)? {
                self.phys.num_entries += 1;
                self.phys.encode(&mut self.blocks[0])?;
                return Ok(cd);
            }
            self.split(id)?;
        }
    }

    fn split(&mut self, id: usize) -> Result<()> {
        let mut fresh = vec![0; 1 << self.bs];
        let key_size = self.key_size();
        let mut leaf = LeafMut::open(&mut self.blocks[id], key_size)?;
        let header = *leaf.view()?.header();
        let depth = u64::from(header.prefix_len);
        if depth >= self.phys.zt_shift {
            return Err(Error::new(base::ErrorKind::NoSpace, "the embedded pointer table is full"));
        }
        leaf.split_into(&mut fresh, self.phys.normflags)?;
        let width = 1u64 << (self.phys.zt_shift - depth - 1);
        let start = (2 * header.prefix + 1) * width;
        let blkid = self.blocks.len() as u64;
        set_embedded_pointers(&mut self.blocks[0], start..start + width, blkid)?;
        self.blocks.push(fresh);
        self.phys.freeblk += 1;
        self.phys.num_leafs += 1;
        // If a later split fails, the header must already include this one.
        self.phys.encode(&mut self.blocks[0])
    }
}
