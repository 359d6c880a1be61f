//! Leaf blocks of a fat ZAP (chapter 03 §14.3, §14.4, §17).
//!
//! # Theory
//! A leaf is a hash table in one block: a header, 2^(bs−5) bucket heads, then 24-byte
//! chunks. An entry is one chunk that heads two chains of array chunks, the name and
//! the value; the entries of a bucket are chained. A leaf holds every entry whose hash
//! starts with its prefix.
//!
//! # Invariants
//! * [`Leaf`] is read-only and trusts no stored value. Chunk numbers are checked where
//!   they are used, and every walk takes at most as many steps as there are chunks, so
//!   that a cycle is an error of kind `Corrupt`. Free lists and counters are not needed
//!   for reading and are checked only by [`Leaf::verify`].
//! * [`LeafMut`](crate::zap::leafmut::LeafMut) is the writer.
//! * Among equal matches, readers select the lowest collision differentiator,
//!   regardless of the order of the chain.

use base::{Error, Result};

use crate::endian::Endian;

/// First word of a leaf block.
pub(crate) const ZBT_LEAF: u64 = 0x8000_0000_0000_0000;
/// `lh_magic`.
pub(crate) const LEAF_MAGIC: u32 = 0x02AB_1EAF;
/// End of a chunk chain, empty bucket.
pub(crate) const CHAIN_END: u16 = 0xffff;
/// `lh_flags`: bucket chains are sorted by collision differentiator.
pub const ENTRIES_CDSORTED: u8 = 1;
/// Data bytes in one array chunk.
pub(crate) const ARRAY_BYTES: usize = 21;

pub(crate) const HEADER: usize = 48;
pub(crate) const CHUNK: usize = 24;
pub(crate) const CHUNK_ENTRY: u8 = 252;
pub(crate) const CHUNK_ARRAY: u8 = 251;
pub(crate) const CHUNK_FREE: u8 = 253;
/// log2 of the smallest and largest block of a fat ZAP.
pub(crate) const BS_MIN: u32 = 9;
pub(crate) const BS_MAX: u32 = 17;
/// Chunks of the largest leaf.
const CHUNKS_MAX: usize = 5118;

pub(crate) fn u16_at(b: &[u8], off: usize, e: Endian) -> Result<u16> {
    e.u16(b, off).ok_or_else(short)
}

pub(crate) fn u32_at(b: &[u8], off: usize, e: Endian) -> Result<u32> {
    e.u32(b, off).ok_or_else(short)
}

pub(crate) fn u64_at(b: &[u8], off: usize, e: Endian) -> Result<u64> {
    e.u64(b, off).ok_or_else(short)
}

#[cold]
fn short() -> Error {
    Error::corrupt("a structure is cut short")
}

#[cold]
pub(crate) fn corrupt(what: &str) -> Error {
    Error::corrupt(format!("ZAP leaf: {what}"))
}

/// log2 of a fat ZAP block of `len` bytes.
///
/// # Errors
/// `Corrupt` unless `len` is a power of two from 512 to 131072.
pub fn block_shift(len: usize) -> Result<u32> {
    let shift = len.trailing_zeros();
    if len.is_power_of_two() && (BS_MIN..=BS_MAX).contains(&shift) {
        Ok(shift)
    } else {
        Err(Error::corrupt(format!("a fat ZAP cannot have blocks of {len} bytes")))
    }
}

/// Buckets of a leaf of `1 << bs` bytes.
pub(crate) fn buckets(bs: u32) -> usize {
    1 << (bs - 5)
}

/// Offset of chunk 0.
pub(crate) fn chunks_at(bs: u32) -> usize {
    HEADER + 2 * buckets(bs)
}

/// Chunks of a leaf of `1 << bs` bytes.
pub fn chunk_count(bs: u32) -> usize {
    ((1usize << bs) - 2 * buckets(bs)) / CHUNK - 2
}

/// Number of chunks for `bytes` of name or value.
pub fn array_chunks(bytes: usize) -> usize {
    bytes.div_ceil(ARRAY_BYTES)
}

/// Bucket of `hash` in a leaf of `1 << bs` bytes whose prefix has `prefix_len` bits.
pub(crate) fn bucket_of(hash: u64, bs: u32, prefix_len: u32) -> usize {
    let bits = bs - 5;
    // A leaf this deep has no hash bits left for buckets; the shift saturates.
    let rest = hash.checked_shl(prefix_len).unwrap_or(0);
    (rest >> (64 - bits)) as usize
}

/// The header of a leaf, checked for range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafHeader {
    /// Hash prefix, right aligned.
    pub prefix: u64,
    /// Bits in the prefix, at most 48.
    pub prefix_len: u16,
    /// Free chunks as recorded; verified by [`Leaf::verify`] only.
    pub nfree: u16,
    /// Entries as recorded; verified by [`Leaf::verify`] only.
    pub nentries: u16,
    /// First free chunk, or [`CHAIN_END`]; verified by [`Leaf::verify`] only.
    pub freelist: u16,
    /// [`ENTRIES_CDSORTED`].
    pub flags: u8,
}

impl LeafHeader {
    /// First hash after this leaf's range; `None` after the last leaf.
    pub fn next_hash(&self) -> Option<u64> {
        next_hash_after_leaf(self.prefix, u32::from(self.prefix_len))
    }

    /// Whether entries with this hash belong to the leaf.
    pub fn covers(&self, hash: u64) -> bool {
        hash.checked_shr(64 - u32::from(self.prefix_len)).unwrap_or(0) == self.prefix
    }
}

/// First hash behind the leaf of that prefix, or `None` after the last (§19).
pub(crate) fn next_hash_after_leaf(prefix: u64, prefix_len: u32) -> Option<u64> {
    if prefix_len == 0 || prefix_len > 63 {
        return None;
    }
    let next = prefix.checked_add(1)?;
    if next >> prefix_len != 0 { None } else { Some(next << (64 - prefix_len)) }
}

/// A leaf block.
#[derive(Clone, Copy, Debug)]
pub struct Leaf<'a> {
    block: &'a [u8],
    endian: Endian,
    bs: u32,
    header: LeafHeader,
}

impl<'a> Leaf<'a> {
    /// Checks the header of a leaf block.
    ///
    /// # Errors
    /// `Corrupt` when the size, type, magic or prefix is impossible.
    pub fn parse(block: &'a [u8], endian: Endian) -> Result<Leaf<'a>> {
        let bs = block_shift(block.len())?;
        if u64_at(block, 0, endian)? != ZBT_LEAF {
            return Err(corrupt("wrong block type"));
        }
        if u32_at(block, 24, endian)? != LEAF_MAGIC {
            return Err(corrupt("wrong magic number"));
        }
        let header = LeafHeader {
            prefix: u64_at(block, 16, endian)?,
            nfree: u16_at(block, 28, endian)?,
            nentries: u16_at(block, 30, endian)?,
            prefix_len: u16_at(block, 32, endian)?,
            freelist: u16_at(block, 34, endian)?,
            flags: block[36],
        };
        if header.prefix_len > 48 || header.prefix >> header.prefix_len != 0 {
            return Err(corrupt("impossible prefix"));
        }
        Ok(Leaf { block, endian, bs, header })
    }

    /// The checked header.
    pub fn header(&self) -> &LeafHeader {
        &self.header
    }

    /// log2 of the block size.
    pub fn block_shift(&self) -> u32 {
        self.bs
    }

    /// Byte order of the block.
    pub fn endian(&self) -> Endian {
        self.endian
    }

    /// Chunks in the block.
    pub fn chunks(&self) -> usize {
        chunk_count(self.bs)
    }

    /// The 24 bytes of a chunk, which must be of `kind`.
    fn chunk(&self, n: u16, kind: u8) -> Result<&'a [u8; CHUNK]> {
        if usize::from(n) >= self.chunks() {
            return Err(corrupt("chunk number out of range"));
        }
        let at = chunks_at(self.bs) + usize::from(n) * CHUNK;
        let chunk: &[u8; CHUNK] = self.block[at..].first_chunk().ok_or_else(short)?;
        if chunk[0] != kind { Err(corrupt("chunk of the wrong type")) } else { Ok(chunk) }
    }

    fn bucket_head(&self, bucket: usize) -> Result<u16> {
        u16_at(self.block, HEADER + 2 * bucket, self.endian)
    }

    /// The entry at chunk `n`.
    ///
    /// # Errors
    /// `Corrupt` when there is none or its fields are impossible.
    pub fn entry(&self, n: u16) -> Result<LeafEntry<'a>> {
        let c = self.chunk(n, CHUNK_ENTRY)?;
        let e = self.endian;
        let entry = LeafEntry {
            leaf: *self,
            chunk: n,
            int_size: c[1],
            next: u16_at(c, 2, e)?,
            name_chunk: u16_at(c, 4, e)?,
            name_numints: u16_at(c, 6, e)?,
            value_chunk: u16_at(c, 8, e)?,
            value_numints: u16_at(c, 10, e)?,
            cd: u32_at(c, 12, e)?,
            hash: u64_at(c, 16, e)?,
        };
        if !matches!(entry.int_size, 1 | 2 | 4 | 8) {
            return Err(corrupt("integer size of a value"));
        }
        Ok(entry)
    }

    /// The entry with this hash for which `matcher` is true; of several, the
    /// one with the lowest collision differentiator.
    ///
    /// # Errors
    /// `Corrupt` when the hash does not belong into this leaf, or a chain is
    /// broken or endless; errors of `matcher`.
    pub fn lookup(
        &self,
        hash: u64,
        mut matcher: impl FnMut(&LeafEntry<'a>) -> Result<bool>,
    ) -> Result<Option<LeafEntry<'a>>> {
        if !self.header.covers(hash) {
            return Err(corrupt("the pointer table leads to a leaf with another prefix"));
        }
        let bucket = bucket_of(hash, self.bs, self.header.prefix_len.into());
        let mut best: Option<LeafEntry<'a>> = None;
        let mut budget = self.chunks();
        self.walk_bucket(bucket, &mut budget, |entry| {
            if entry.hash == hash && best.is_none_or(|b| entry.cd < b.cd) && matcher(entry)? {
                best = Some(*entry);
            }
            Ok(())
        })?;
        Ok(best)
    }

    /// The smallest differentiator that no entry of this hash uses.
    ///
    /// # Errors
    /// `Corrupt` when the bucket's chain is broken or endless.
    pub fn free_cd(&self, hash: u64) -> Result<u32> {
        let bucket = bucket_of(hash, self.bs, self.header.prefix_len.into());
        let mut taken = Vec::new();
        self.walk_bucket(bucket, &mut self.chunks(), |e| {
            if e.hash == hash {
                taken.push(e.cd);
            }
            Ok(())
        })?;
        taken.sort_unstable();
        Ok(taken.iter().zip(0..).find(|(cd, i)| **cd != *i).map_or(taken.len() as u32, |(_, i)| i))
    }

    fn walk_bucket(
        &self,
        bucket: usize,
        budget: &mut usize,
        mut visit: impl FnMut(&LeafEntry<'a>) -> Result<()>,
    ) -> Result<()> {
        let mut n = self.bucket_head(bucket)?;
        while n != CHAIN_END {
            *budget = budget.checked_sub(1).ok_or_else(|| corrupt("cycle of entries"))?;
            let entry = self.entry(n)?;
            visit(&entry)?;
            n = entry.next;
        }
        Ok(())
    }

    /// Every entry, sorted by (hash, cd): the order of cursors (§19).
    ///
    /// # Errors
    /// `Corrupt` when a chain is broken or endless.
    pub fn entries(&self) -> Result<Vec<LeafEntry<'a>>> {
        let mut all = Vec::with_capacity(usize::from(self.header.nentries).min(self.chunks()));
        let mut budget = self.chunks();
        for bucket in 0..buckets(self.bs) {
            self.walk_bucket(bucket, &mut budget, |e| {
                all.push(*e);
                Ok(())
            })?;
        }
        all.sort_by_key(|e| (e.hash, e.cd));
        Ok(all)
    }

    /// The first entry at or after (hash, cd) in cursor order, by scanning.
    ///
    /// # Errors
    /// As [`Leaf::entries`].
    pub(crate) fn first_from(&self, hash: u64, cd: u32) -> Result<Option<LeafEntry<'a>>> {
        let mut best: Option<LeafEntry<'a>> = None;
        let mut budget = self.chunks();
        for bucket in 0..buckets(self.bs) {
            self.walk_bucket(bucket, &mut budget, |e| {
                let key = (e.hash, e.cd);
                if key >= (hash, cd) && best.is_none_or(|b| key < (b.hash, b.cd)) {
                    best = Some(*e);
                }
                Ok(())
            })?;
        }
        Ok(best)
    }

    /// Appends `len` bytes of the array chain starting at `first` to `out`.
    fn read_array(&self, first: u16, len: usize, out: &mut Vec<u8>) -> Result<()> {
        self.walk_array(first, len, |piece| {
            out.extend_from_slice(piece);
            true
        })
    }

    /// Calls `visit` with each piece of an array until it returns false.
    fn walk_array(
        &self,
        first: u16,
        mut len: usize,
        mut visit: impl FnMut(&'a [u8]) -> bool,
    ) -> Result<()> {
        if array_chunks(len) > self.chunks() {
            return Err(corrupt("an array is larger than the leaf"));
        }
        let mut n = first;
        while len > 0 {
            let chunk = self.chunk(n, CHUNK_ARRAY)?;
            let take = len.min(ARRAY_BYTES);
            if !visit(&chunk[1..=take]) {
                return Ok(());
            }
            len -= take;
            n = u16_at(chunk, 22, self.endian)?;
        }
        Ok(())
    }

    /// Checks everything that reading does not need: each chunk on exactly one
    /// chain, counters, buckets and hashes, distinct differentiators.
    ///
    /// `key_size` is 1 for string keys and 8 for UINT64 keys.
    ///
    /// # Errors
    /// `Corrupt` naming the first violation.
    pub fn verify(&self, key_size: usize) -> Result<()> {
        // Writers verify every leaf that they change. So this walks the chunks
        // directly, without the calls that readers of single entries make.
        let all = self.block[chunks_at(self.bs)..].as_chunks::<CHUNK>().0;
        let swap = self.endian != Endian::Little;
        let u16_of = |c: &[u8; CHUNK], at: usize| {
            let v = u16::from_le_bytes([c[at], c[at + 1]]);
            if swap { v.swap_bytes() } else { v }
        };
        let mut used = [0u64; CHUNKS_MAX.div_ceil(64)];
        let mut taken = 0;
        let mut take = |n: u16, kind: u8| {
            let c = all.get(usize::from(n)).ok_or_else(|| corrupt("chunk number out of range"))?;
            let (word, bit) = (usize::from(n) / 64, 1 << (n % 64));
            if c[0] != kind {
                return Err(corrupt("chunk of the wrong type"));
            }
            if used[word] & bit != 0 {
                return Err(corrupt("a chunk is on two chains"));
            }
            used[word] |= bit;
            taken += 1;
            Ok(c)
        };
        let mut keys = Vec::new();
        let mut entries = 0;
        for bucket in 0..buckets(self.bs) {
            let mut n = self.bucket_head(bucket)?;
            keys.clear();
            while n != CHAIN_END {
                let c = take(n, CHUNK_ENTRY)?;
                entries += 1;
                let int_size = usize::from(c[1]);
                let (hash, cd) = (u64_at(c, 16, self.endian)?, u32_at(c, 12, self.endian)?);
                if !matches!(int_size, 1 | 2 | 4 | 8) {
                    return Err(corrupt("integer size of a value"));
                }
                if !self.header.covers(hash)
                    || bucket_of(hash, self.bs, self.header.prefix_len.into()) != bucket
                {
                    return Err(corrupt("an entry is in the wrong bucket"));
                }
                keys.push((hash, cd));
                let name = (u16_of(c, 4), usize::from(u16_of(c, 6)) * key_size);
                let value = (u16_of(c, 8), usize::from(u16_of(c, 10)) * int_size);
                for (mut at, len) in [name, value] {
                    for _ in 0..array_chunks(len) {
                        at = u16_of(take(at, CHUNK_ARRAY)?, 22);
                    }
                    if at != CHAIN_END {
                        return Err(corrupt("an array is longer than its entry says"));
                    }
                }
                n = u16_of(c, 2);
            }
            // Equal hashes share a bucket.
            keys.sort_unstable();
            if keys.windows(2).any(|w| w[0] == w[1]) {
                return Err(corrupt("two entries share hash and differentiator"));
            }
        }
        let mut free = 0;
        let mut n = self.header.freelist;
        while n != CHAIN_END {
            n = u16_of(take(n, CHUNK_FREE)?, 22);
            free += 1;
        }
        if taken != self.chunks() {
            return Err(corrupt("a chunk is on no chain"));
        }
        if free != usize::from(self.header.nfree) || entries != usize::from(self.header.nentries) {
            return Err(corrupt("wrong counters"));
        }
        Ok(())
    }
}

/// One entry of a leaf.
#[derive(Clone, Copy, Debug)]
pub struct LeafEntry<'a> {
    leaf: Leaf<'a>,
    /// Chunk of the entry.
    pub chunk: u16,
    /// Bytes in one integer of the value: 1, 2, 4 or 8.
    pub int_size: u8,
    pub(crate) next: u16,
    pub(crate) name_chunk: u16,
    /// Bytes of the name with its NUL, or words of a UINT64 key.
    pub name_numints: u16,
    pub(crate) value_chunk: u16,
    /// Integers in the value.
    pub value_numints: u16,
    /// Collision differentiator.
    pub cd: u32,
    /// Hash as stored, low bits masked off.
    pub hash: u64,
}

impl<'a> LeafEntry<'a> {
    pub(crate) fn name_len(&self, key_size: usize) -> usize {
        usize::from(self.name_numints) * key_size
    }

    pub(crate) fn value_len(&self) -> usize {
        usize::from(self.value_numints) * usize::from(self.int_size)
    }

    /// Number of chunks of the value.
    pub fn value_chunks(&self) -> usize {
        array_chunks(self.value_len())
    }

    /// Number of chunks of the whole entry; `key_size` as for [`Leaf::verify`].
    pub fn chunks(&self, key_size: usize) -> usize {
        1 + array_chunks(self.name_len(key_size)) + self.value_chunks()
    }

    /// The stored bytes of the key, NULs included.
    pub(crate) fn raw_key(&self, key_size: usize) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        self.leaf.read_array(self.name_chunk, self.name_len(key_size), &mut out)?;
        Ok(out)
    }

    /// The name of a string key, without its NUL.
    ///
    /// # Errors
    /// `Corrupt` when the chain is broken or the name is not terminated.
    pub fn name(&self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        self.name_into(&mut out)?;
        Ok(out)
    }

    /// As [`LeafEntry::name`], into a buffer that is cleared first.
    ///
    /// # Errors
    /// As [`LeafEntry::name`].
    pub(crate) fn name_into(&self, out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        self.leaf.read_array(self.name_chunk, self.name_len(1), out)?;
        match out.iter().position(|b| *b == 0) {
            // Some writers count more than one NUL; the name ends at the first.
            Some(end) => {
                out.truncate(end);
                Ok(())
            }
            None => Err(corrupt("a name is not terminated")),
        }
    }

    /// Whether the name of a string key is `name` (without NUL), byte for byte.
    ///
    /// # Errors
    /// `Corrupt` when the chain is broken.
    pub fn name_is(&self, name: &[u8]) -> Result<bool> {
        if self.name_len(1) != name.len() + 1 {
            return Ok(false);
        }
        let mut rest = name;
        let mut same = true;
        self.leaf.walk_array(self.name_chunk, name.len() + 1, |piece| {
            let (head, tail) = rest.split_at(piece.len().min(rest.len()));
            rest = tail;
            // The last piece contains the NUL behind the name's end.
            same = piece.starts_with(head) && piece[head.len()..].iter().all(|b| *b == 0);
            same
        })?;
        Ok(same)
    }

    /// The words of a UINT64 key.
    ///
    /// # Errors
    /// `Corrupt` when the chain is broken.
    pub fn key_words(&self) -> Result<Vec<u64>> {
        let mut bytes = Vec::new();
        self.leaf.read_array(self.name_chunk, self.name_len(8), &mut bytes)?;
        Ok(words(&bytes))
    }

    /// The value.
    ///
    /// # Errors
    /// `Corrupt` when the chain is broken.
    pub fn value(&self) -> Result<ZapValue> {
        let mut data = Vec::with_capacity(self.value_len().min(8192));
        self.leaf.read_array(self.value_chunk, self.value_len(), &mut data)?;
        Ok(ZapValue { int_size: self.int_size, num: self.value_numints, data })
    }

    /// The first integer of an 8-byte value, without allocating.
    ///
    /// # Errors
    /// `Corrupt` when the chain is broken or the value has no 8-byte integer.
    pub fn first_u64(&self) -> Result<u64> {
        if self.int_size != 8 || self.value_numints == 0 {
            return Err(corrupt("the value is not a 64-bit number"));
        }
        let mut word = [0; 8];
        self.leaf.walk_array(self.value_chunk, 8, |piece| {
            if let Some(head) = piece.first_chunk() {
                word = *head;
            }
            false
        })?;
        Ok(u64::from_be_bytes(word))
    }
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().map(|w| u64::from_be_bytes(*w)).collect()
}

/// A value: `num` integers of `int_size` bytes, big endian, back to back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZapValue {
    /// 1, 2, 4 or 8.
    pub int_size: u8,
    /// Number of integers.
    pub num: u16,
    /// `int_size · num` bytes.
    pub data: Vec<u8>,
}

impl ZapValue {
    /// One 64-bit integer: the value of most entries.
    pub fn from_u64(v: u64) -> ZapValue {
        ZapValue { int_size: 8, num: 1, data: v.to_be_bytes().to_vec() }
    }

    /// A value of 64-bit integers; `None` if there are more than 1024.
    pub fn from_u64s(v: &[u64]) -> Option<ZapValue> {
        let num = u16::try_from(v.len()).ok().filter(|n| *n <= 1024)?;
        Some(ZapValue { int_size: 8, num, data: v.iter().flat_map(|w| w.to_be_bytes()).collect() })
    }

    /// A value of 16-bit integers (SA layouts); `None` if more than 4096.
    pub fn from_u16s(v: &[u16]) -> Option<ZapValue> {
        let num = u16::try_from(v.len()).ok().filter(|n| *n <= 4096)?;
        Some(ZapValue { int_size: 2, num, data: v.iter().flat_map(|w| w.to_be_bytes()).collect() })
    }

    /// A value of bytes; `None` if there are more than 8192.
    pub fn from_bytes(v: &[u8]) -> Option<ZapValue> {
        let num = u16::try_from(v.len()).ok().filter(|n| *n <= 8192)?;
        Some(ZapValue { int_size: 1, num, data: v.to_vec() })
    }

    /// The number, if this is exactly one 64-bit integer.
    pub fn as_u64(&self) -> Option<u64> {
        match (self.int_size, self.num) {
            (8, 1) => self.data.first_chunk().map(|w| u64::from_be_bytes(*w)),
            _ => None,
        }
    }

    /// The first number of an array of 64-bit integers. Directory entries use it when a
    /// value has more than one (chapter 06 §7.1).
    pub fn first_u64(&self) -> Option<u64> {
        if self.int_size != 8 {
            return None;
        }
        self.data.first_chunk().map(|w| u64::from_be_bytes(*w))
    }

    /// The bytes, if the integers are bytes.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        (self.int_size == 1).then_some(&self.data)
    }

    /// The string without its NUL, if the integers are bytes.
    pub fn as_str_bytes(&self) -> Option<&[u8]> {
        let bytes = self.as_bytes()?;
        bytes.split(|b| *b == 0).next()
    }

    /// The numbers, if they are 64-bit integers.
    pub fn u64s(&self) -> Option<Vec<u64>> {
        (self.int_size == 8).then(|| words(&self.data))
    }

    /// The numbers, if they are 16-bit integers.
    pub fn u16s(&self) -> Option<Vec<u16>> {
        (self.int_size == 2)
            .then(|| self.data.as_chunks().0.iter().map(|w| u16::from_be_bytes(*w)).collect())
    }
}
