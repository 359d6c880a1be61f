//! The ZAP: names mapped to arrays of integers (chapter 03 §12–§19).
//!
//! # Theory
//! A ZAP is either one *microzap* block (an unordered array of names and numbers) or a
//! *fat* ZAP: a header block, a table of 2^zt_shift pointers indexed by the high bits
//! of the hash, and leaf blocks ([`crate::zapleaf`]). A lookup by name goes from hash
//! to pointer to leaf to bucket. Iteration is in the order of (hash, cd), where cd, the
//! collision differentiator, distinguishes entries of equal hash.
//!
//! # Invariants
//! * Nothing here reads blocks: callers pass the bytes of each.
//! * [`FatHeader`] has a consistent pointer table: its size matches zt_shift, and every
//!   block id that it returns is below `zap_freeblk`.
//! * Hashes have their low bits masked off; two hashes compare as numbers.
//!
//! # Departures
//! A pointer table that lists a block at or beyond `zap_freeblk` is refused as
//! corrupt rather than followed.

pub mod bulk;
pub mod leafmut;
#[cfg(test)]
mod tests;

use base::{Error, Result};

use crate::endian::Endian;
use crate::normalize::NameKey;
use crate::zapleaf::{Leaf, ZBT_LEAF, block_shift, u64_at};

pub use crate::zapleaf::{LeafEntry, ZapValue};

/// First word of a microzap block.
pub(crate) const ZBT_MICRO: u64 = 0x8000_0000_0000_0003;
/// First word of a fat ZAP's block 0.
pub(crate) const ZBT_HEADER: u64 = 0x8000_0000_0000_0001;
/// Second word of a fat ZAP's block 0.
pub(crate) const ZAP_MAGIC: u64 = 0x2_F52A_B2AB;
/// `zap_flags`: 48-bit hashes.
pub const FLAG_HASH64: u64 = 1;
/// `zap_flags`: keys are arrays of 64-bit words.
pub const FLAG_UINT64_KEY: u64 = 2;
/// `zap_flags`: the first word of the key is the hash.
pub const FLAG_PRE_HASHED_KEY: u64 = 4;
/// Bytes of a name, NUL included.
pub const NAME_MAX: usize = 256;
/// Bytes of a directory entry's name under feature longname, NUL included.
pub const NAME_MAX_LONG: usize = 1024;
/// Bytes of one value.
pub const VALUE_MAX: usize = 8192;
/// Largest microzap block (feature large_microzap).
pub(crate) const MICRO_SIZE_MAX: usize = 1 << 20;
/// Bytes of a microzap name without its NUL.
pub const MICRO_NAME_MAX: usize = 49;

const MZ_HEADER: usize = 64;
const MZ_ENTRY: usize = 64;
const MZ_NAME: usize = 50;
const MZ_NAME_AT: usize = MZ_ENTRY - MZ_NAME;
const POLY: u64 = 0xC96C_5795_D787_0F42;

/// For each byte value, its CRC followed by 0 to 7 zero bytes.
const fn crc_tables() -> [[u64; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut i = 0;
    while i < 256 {
        let mut c = i as u64;
        let mut k = 0;
        while k < 8 {
            c = (c >> 1) ^ (if c & 1 == 1 { POLY } else { 0 });
            k += 1;
        }
        tables[0][i] = c;
        i += 1;
    }
    let mut zeros = 1;
    while zeros < 8 {
        let mut i = 0;
        while i < 256 {
            let before = tables[zeros - 1][i];
            tables[zeros][i] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
            i += 1;
        }
        zeros += 1;
    }
    tables
}

static CRC: [[u64; 256]; 8] = crc_tables();

/// Processes eight bytes in one step, because looking up a name hashes it against its
/// whole directory.
fn crc(mut h: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let all = (h ^ u64::from_le_bytes(*word)).to_le_bytes();
        h = (0..8).fold(0, |sum, i| sum ^ CRC[7 - i][usize::from(all[i])]);
    }
    for b in rest {
        h = (h >> 8) ^ CRC[0][usize::from(h as u8 ^ b)];
    }
    h
}

fn mask(h: u64, bits: u32) -> u64 {
    h & !(1u64.checked_shl(64 - bits).map_or(0, |v| v - 1))
}

/// Hash of a string key: `name` normalised and without its NUL (§15).
///
/// `bits` is 28, or 48 with [`FLAG_HASH64`].
pub fn hash(salt: u64, name: &[u8], bits: u32) -> u64 {
    mask(crc(salt, name), bits)
}

/// Hash of a key made of 64-bit words (§15).
pub fn hash_words(salt: u64, key: &[u64], bits: u32) -> u64 {
    let h = key.iter().fold(salt, |h, w| crc(h, &w.to_le_bytes()));
    mask(h, bits)
}

/// Significant hash bits of microzaps and of fat ZAPs without [`FLAG_HASH64`].
pub const HASH_BITS: u32 = 28;
/// Significant hash bits of fat ZAPs with [`FLAG_HASH64`].
pub(crate) const HASH_BITS_64: u32 = 48;

/// A block of a ZAP, recognised by its first word.
#[derive(Clone, Copy, Debug)]
pub enum ZapBlock<'a> {
    /// Block 0 of a small ZAP: all of it.
    Micro(MicroZap<'a>),
    /// Block 0 of a fat ZAP.
    FatHeader(FatHeader<'a>),
    /// A leaf of a fat ZAP.
    Leaf(Leaf<'a>),
}

impl<'a> ZapBlock<'a> {
    /// Recognises and checks a block.
    ///
    /// # Errors
    /// `Corrupt` when it is none of the three (pointer-table blocks have no
    /// mark and are never recognised) or its header is impossible.
    pub fn parse(block: &'a [u8], endian: Endian) -> Result<ZapBlock<'a>> {
        match u64_at(block, 0, endian)? {
            ZBT_MICRO => MicroZap::parse(block, endian).map(ZapBlock::Micro),
            ZBT_HEADER => FatHeader::parse(block, endian).map(ZapBlock::FatHeader),
            ZBT_LEAF => Leaf::parse(block, endian).map(ZapBlock::Leaf),
            other => Err(Error::corrupt(format!("not a ZAP block: it starts with {other:#x}"))),
        }
    }
}

/// A microzap (§13).
#[derive(Clone, Copy, Debug)]
pub struct MicroZap<'a> {
    block: &'a [u8],
    endian: Endian,
    /// Salt of the hash.
    pub salt: u64,
    /// Normalisation flags (§16).
    pub normflags: u64,
}

/// One entry of a microzap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MicroEntry<'a> {
    /// Slot in the block.
    pub slot: usize,
    /// Name, without NUL.
    pub name: &'a [u8],
    /// Value.
    pub value: u64,
    /// Collision differentiator.
    pub cd: u32,
}

impl<'a> MicroZap<'a> {
    /// Checks the header of a microzap block.
    ///
    /// # Errors
    /// `Corrupt` when the size or type is impossible.
    pub fn parse(block: &'a [u8], endian: Endian) -> Result<MicroZap<'a>> {
        if block.is_empty() || !block.len().is_multiple_of(512) || block.len() > MICRO_SIZE_MAX {
            let len = block.len();
            return Err(Error::corrupt(format!("a microzap cannot have {len} bytes")));
        }
        if u64_at(block, 0, endian)? != ZBT_MICRO {
            return Err(Error::corrupt("not a microzap"));
        }
        Ok(MicroZap {
            block,
            endian,
            salt: u64_at(block, 8, endian)?,
            normflags: u64_at(block, 16, endian)?,
        })
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.block.len() / MZ_ENTRY - 1
    }

    /// The slots' bytes.
    fn raw(&self) -> &'a [[u8; MZ_ENTRY]] {
        self.block.get(MZ_HEADER..).unwrap_or_default().as_chunks().0
    }

    fn entry(&self, slot: usize, raw: &'a [u8; MZ_ENTRY]) -> Option<MicroEntry<'a>> {
        let name = raw.get(MZ_NAME_AT..)?;
        // An unterminated name ends with its field.
        let len = name.iter().position(|b| *b == 0).unwrap_or(MZ_NAME);
        let name = name.get(..len).filter(|n| !n.is_empty())?;
        Some(MicroEntry {
            slot,
            name,
            value: self.endian.u64(raw, 0)?,
            cd: self.endian.u32(raw, 8)?,
        })
    }

    /// The entry in a slot; `None` if it is free or there is no such slot.
    pub fn slot(&self, slot: usize) -> Option<MicroEntry<'a>> {
        self.entry(slot, self.raw().get(slot)?)
    }

    /// The first slot without an entry at or after `from`.
    pub fn free_slot(&self, from: usize) -> Option<usize> {
        let free = |raw: &[u8; MZ_ENTRY]| raw[MZ_NAME_AT] == 0;
        Some(from + self.raw().get(from..)?.iter().position(free)?)
    }

    /// Every entry, in slot order.
    pub fn entries(&self) -> impl Iterator<Item = MicroEntry<'a>> + use<'a> {
        let zap = *self;
        zap.raw().iter().enumerate().filter_map(move |(slot, raw)| zap.entry(slot, raw))
    }

    /// The entry whose stored name is `name`, by scanning.
    pub fn find(&self, name: &[u8]) -> Option<MicroEntry<'a>> {
        let ends = MZ_NAME_AT + name.len();
        if name.is_empty() || ends > MZ_ENTRY || name.contains(&0) {
            return None;
        }
        // Compares eight bytes at a time: the first of the name, or all of a shorter
        // one with its end.
        let word = |raw: &[u8]| raw.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let mut begin = [0; 8];
        let shown = name.len().min(8);
        begin[..shown].copy_from_slice(&name[..shown]);
        let mask = if shown < 7 { (1 << (8 * (shown + 1))) - 1 } else { u64::MAX };
        let begin = word(&begin);
        let is_it = |raw: &[u8; MZ_ENTRY]| {
            word(&raw[MZ_NAME_AT..]) & mask == begin
                && raw.get(MZ_NAME_AT..ends) == Some(name)
                && raw.get(ends).is_none_or(|&end| end == 0)
        };
        let slot = self.raw().iter().position(is_it)?;
        self.slot(slot)
    }

    /// The entry that matches `key`; of several that normalise alike, the one with the
    /// lowest differentiator.
    pub fn find_key(&self, key: &NameKey<'_>) -> Option<MicroEntry<'a>> {
        match key.exact() {
            Some(name) => self.find(name),
            None => self.entries().filter(|e| key.matches(e.name)).min_by_key(|e| e.cd),
        }
    }

    /// An index in (hash, cd) order. `hash_of` hashes a stored name (normalised
    /// if [`MicroZap::normflags`] says so): [`crate::normalize::hash_name`].
    pub fn index(&self, mut hash_of: impl FnMut(&[u8]) -> u64) -> MicroIndex {
        let mut keys: Vec<MicroKey> = self
            .entries()
            .map(|e| MicroKey { hash: hash_of(e.name), cd: e.cd, slot: e.slot as u32 })
            .collect();
        keys.sort_unstable();
        MicroIndex { keys }
    }
}

/// The position of an entry in cursor order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MicroKey {
    /// Hash of the normalised name.
    pub hash: u64,
    /// Collision differentiator.
    pub cd: u32,
    /// Slot in the block, which has 64 bytes for each.
    pub slot: u32,
}

/// The entries of a microzap in cursor order (§19).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MicroIndex {
    keys: Vec<MicroKey>,
}

impl MicroIndex {
    /// Every key, ascending.
    pub fn keys(&self) -> &[MicroKey] {
        &self.keys
    }

    /// The keys at or after (hash, cd).
    pub fn from(&self, hash: u64, cd: u32) -> &[MicroKey] {
        let at = self.keys.partition_point(|k| (k.hash, k.cd) < (hash, cd));
        self.keys.get(at..).unwrap_or_default()
    }

    /// The keys with exactly this hash, lowest cd first.
    pub fn with_hash(&self, hash: u64) -> &[MicroKey] {
        let tail = self.from(hash, 0);
        let n = tail.partition_point(|k| k.hash == hash);
        tail.get(..n).unwrap_or_default()
    }

    /// Adds an entry; replaces an earlier one with the same hash and cd.
    pub fn insert(&mut self, key: MicroKey) {
        let at = self.keys.partition_point(|k| (k.hash, k.cd) < (key.hash, key.cd));
        match self.keys.get_mut(at).filter(|k| (k.hash, k.cd) == (key.hash, key.cd)) {
            Some(known) => *known = key,
            None => self.keys.insert(at, key),
        }
    }

    /// Removes the entry of a slot.
    pub fn remove(&mut self, hash: u64, slot: u32) {
        let first = self.keys.partition_point(|k| k.hash < hash);
        let tail = self.keys.get(first..).unwrap_or_default();
        if let Some(at) = tail.iter().position(|k| k.hash != hash || k.slot == slot)
            && tail.get(at).is_some_and(|k| k.hash == hash)
        {
            self.keys.remove(first + at);
        }
    }

    /// The smallest cd that no entry of this hash has.
    pub fn free_cd(&self, hash: u64) -> u32 {
        // Keys are sorted, so the first gap is the result.
        let mut cd = 0;
        for key in self.with_hash(hash) {
            if key.cd == cd {
                cd += 1;
            }
        }
        cd
    }
}

/// The fields of a fat ZAP's header (§14.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FatPhys {
    /// First block of the external pointer table; 0 = embedded.
    pub zt_blk: u64,
    /// Blocks of the external pointer table; 0 = embedded.
    pub zt_numblks: u64,
    /// log2 of the number of pointers.
    pub zt_shift: u64,
    /// First block of the table being grown into, or 0.
    pub zt_nextblk: u64,
    /// Blocks of the old table already copied.
    pub zt_blks_copied: u64,
    /// Next block id that was never used.
    pub freeblk: u64,
    /// Leaf blocks.
    pub num_leafs: u64,
    /// Entries.
    pub num_entries: u64,
    /// Salt of the hash.
    pub salt: u64,
    /// Normalisation flags (§16).
    pub normflags: u64,
    /// [`FLAG_HASH64`], [`FLAG_UINT64_KEY`], [`FLAG_PRE_HASHED_KEY`].
    pub flags: u64,
}

impl FatPhys {
    /// Significant bits of hashes.
    pub fn hash_bits(&self) -> u32 {
        if self.flags & FLAG_HASH64 != 0 { HASH_BITS_64 } else { HASH_BITS }
    }

    /// Whether keys are arrays of 64-bit words.
    pub fn has_word_keys(&self) -> bool {
        self.flags & FLAG_UINT64_KEY != 0
    }

    /// Hash of a key made of words, with this ZAP's flags and salt.
    pub fn hash_words(&self, key: &[u64]) -> u64 {
        if self.flags & FLAG_PRE_HASHED_KEY != 0 {
            return mask(key.first().copied().unwrap_or(0), self.hash_bits());
        }
        hash_words(self.salt, key, self.hash_bits())
    }

    /// Hash of an already normalised name.
    pub fn hash_name(&self, normalized: &[u8]) -> u64 {
        hash(self.salt, normalized, self.hash_bits())
    }

    /// Index in the pointer table.
    pub fn pointer_index(&self, hash: u64) -> u64 {
        hash.checked_shr(64 - (self.zt_shift as u32).min(64)).unwrap_or(0)
    }

    /// Checks every field against the others, for blocks of `1 << bs` bytes.
    fn check(&self, bs: u32) -> Result<()> {
        let bad = |what: &str| Err(Error::corrupt(format!("fat ZAP header: {what}")));
        if self.flags & !(FLAG_HASH64 | FLAG_UINT64_KEY | FLAG_PRE_HASHED_KEY) != 0 {
            return bad("unknown flags");
        }
        // A leaf may be as deep as the table; growth stops two bits before that.
        if self.zt_shift > u64::from(self.hash_bits()) {
            return bad("the pointer table is too large");
        }
        if self.freeblk < 2 || self.freeblk > 1 << 48 || self.num_leafs >= self.freeblk {
            return bad("impossible block counts");
        }
        let in_use = |blk: u64, n: u64| {
            blk != 0 && blk.checked_add(n).is_some_and(|end| end <= self.freeblk)
        };
        if self.zt_numblks == 0 {
            if self.zt_blk != 0 || self.zt_nextblk != 0 || self.zt_blks_copied != 0 {
                return bad("an embedded pointer table with blocks");
            }
            if self.zt_shift != u64::from(bs) - 4 {
                return bad("the embedded pointer table has the wrong size");
            }
            return Ok(());
        }
        if self.zt_numblks > 1 << 48
            || self.zt_numblks.checked_shl(bs - 3) != Some(1 << self.zt_shift)
        {
            return bad("the pointer table has the wrong size");
        }
        if !in_use(self.zt_blk, self.zt_numblks) {
            return bad("the pointer table lies beyond the ZAP");
        }
        if self.zt_nextblk == 0 {
            if self.zt_blks_copied != 0 {
                return bad("blocks copied without a new pointer table");
            }
        } else if !in_use(self.zt_nextblk, 2 * self.zt_numblks)
            || self.zt_blks_copied >= self.zt_numblks
        {
            return bad("the new pointer table is impossible");
        }
        Ok(())
    }
}

/// The location of the pointer for a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointerLocation {
    /// In the header block: this is the leaf's block id, 0 for no leaf.
    Embedded(u64),
    /// In a block of the external table.
    External {
        /// Block id of the table block.
        blkid: u64,
        /// 64-bit word in it: [`FatHeader::read_pointer`].
        index: usize,
    },
}

/// Block 0 of a fat ZAP: checked fields and the embedded pointer table.
#[derive(Clone, Copy, Debug)]
pub struct FatHeader<'a> {
    block: &'a [u8],
    endian: Endian,
    bs: u32,
    /// The checked fields.
    pub phys: FatPhys,
}

impl<'a> FatHeader<'a> {
    /// Checks a header block.
    ///
    /// # Errors
    /// `Corrupt` when the size, type, magic or any field is impossible.
    pub fn parse(block: &'a [u8], endian: Endian) -> Result<FatHeader<'a>> {
        let bs = block_shift(block.len())?;
        let mut r = endian.reader(block, "fat ZAP header");
        if r.u64()? != ZBT_HEADER || r.u64()? != ZAP_MAGIC {
            return Err(Error::corrupt("not a fat ZAP header"));
        }
        let f: [u64; 11] = r.u64s()?;
        let phys = FatPhys {
            zt_blk: f[0],
            zt_numblks: f[1],
            zt_shift: f[2],
            zt_nextblk: f[3],
            zt_blks_copied: f[4],
            freeblk: f[5],
            num_leafs: f[6],
            num_entries: f[7],
            salt: f[8],
            normflags: f[9],
            flags: f[10],
        };
        phys.check(bs)?;
        Ok(FatHeader { block, endian, bs, phys })
    }

    /// log2 of the block size.
    pub fn block_shift(&self) -> u32 {
        self.bs
    }

    /// The location of the leaf pointer for `hash`.
    ///
    /// # Errors
    /// `Corrupt` when an embedded pointer lies beyond the ZAP.
    pub fn pointer_location(&self, hash: u64) -> Result<PointerLocation> {
        self.pointer_at(self.phys.pointer_index(hash))
    }

    /// The location of pointer `index` of the table.
    ///
    /// # Errors
    /// `Invalid` when the table is smaller, `Corrupt` as
    /// [`FatHeader::pointer_location`].
    pub fn pointer_at(&self, index: u64) -> Result<PointerLocation> {
        if index >> self.phys.zt_shift != 0 {
            return Err(Error::invalid("no such pointer in the ZAP's table"));
        }
        if self.phys.zt_numblks == 0 {
            let off = self.block.len() / 2 + 8 * index as usize;
            return self
                .checked(u64_at(self.block, off, self.endian)?)
                .map(PointerLocation::Embedded);
        }
        let per = self.bs - 3;
        Ok(PointerLocation::External {
            blkid: self.phys.zt_blk + (index >> per),
            index: (index & ((1 << per) - 1)) as usize,
        })
    }

    /// Reads a pointer from a block of the external table; 0 means no leaf.
    ///
    /// # Errors
    /// `Corrupt` when the block is too short or the pointer lies beyond the ZAP.
    pub fn read_pointer(&self, block: &[u8], index: usize, endian: Endian) -> Result<u64> {
        let off = index.checked_mul(8).ok_or_else(|| Error::invalid("pointer index"))?;
        self.checked(u64_at(block, off, endian)?)
    }

    fn checked(&self, blkid: u64) -> Result<u64> {
        if blkid >= self.phys.freeblk {
            return Err(Error::corrupt(format!(
                "a ZAP pointer leads to block {blkid}, beyond its end"
            )));
        }
        Ok(blkid)
    }
}

/// A position between entries: the next entry is the first at or after it (§19).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Cursor {
    /// Hash.
    pub hash: u64,
    /// Collision differentiator.
    pub cd: u32,
}

/// The cookie behind the last entry.
pub const COOKIE_END: u64 = u64::MAX;

impl Cursor {
    /// The position directly behind the entry (hash, cd), in a ZAP with this number of
    /// hash bits; `None` behind the last possible one.
    pub fn after(hash: u64, cd: u32, bits: u32) -> Option<Cursor> {
        match cd.checked_add(1).filter(|cd| fits(*cd, bits)) {
            Some(cd) => Some(Cursor { hash, cd }),
            None => hash.checked_add(1 << (64 - bits)).map(|hash| Cursor { hash, cd: 0 }),
        }
    }

    /// The 64-bit form that readdir returns. `bits` is 28 or 48.
    pub fn cookie(self, bits: u32) -> u64 {
        (self.hash >> (64 - bits)) | (u64::from(self.cd) << bits)
    }

    /// The position that a cookie represents; `None` at the end.
    pub fn from_cookie(cookie: u64, bits: u32) -> Option<Cursor> {
        if cookie == COOKIE_END {
            return None;
        }
        let cd = u32::try_from(cookie >> bits).ok().filter(|cd| fits(*cd, bits)).unwrap_or(0);
        Some(Cursor { hash: cookie << (64 - bits), cd })
    }
}

/// Whether a cookie has room for this differentiator and stays below the end.
fn fits(cd: u32, bits: u32) -> bool {
    if bits >= HASH_BITS_64 { cd < 0xffff } else { cd < u32::MAX }
}

/// Formats an empty microzap of `block.len()` bytes, little endian.
///
/// # Errors
/// `Invalid` unless the size is a multiple of 512 up to [`MICRO_SIZE_MAX`].
pub fn micro_init(block: &mut [u8], salt: u64, normflags: u64) -> Result<()> {
    if block.is_empty() || !block.len().is_multiple_of(512) || block.len() > MICRO_SIZE_MAX {
        return Err(Error::invalid("size of a microzap"));
    }
    block.fill(0);
    for (word, v) in block.as_chunks_mut::<8>().0.iter_mut().zip([ZBT_MICRO, salt, normflags]) {
        *word = v.to_le_bytes();
    }
    Ok(())
}

/// Writes an entry into a slot of a little-endian microzap block.
///
/// # Errors
/// `Invalid` for a slot beyond the block or a name that is empty, holds a NUL
/// or is longer than [`MICRO_NAME_MAX`].
pub fn micro_set(block: &mut [u8], slot: usize, name: &[u8], value: u64, cd: u32) -> Result<()> {
    if name.is_empty() || name.len() > MICRO_NAME_MAX || name.contains(&0) {
        return Err(Error::invalid("this name cannot be in a microzap"));
    }
    let raw = micro_slot_mut(block, slot)?;
    raw.fill(0);
    raw[..8].copy_from_slice(&value.to_le_bytes());
    raw[8..12].copy_from_slice(&cd.to_le_bytes());
    raw[14..14 + name.len()].copy_from_slice(name);
    Ok(())
}

/// Frees a slot of a microzap block.
///
/// # Errors
/// `Invalid` for a slot beyond the block.
pub fn micro_clear(block: &mut [u8], slot: usize) -> Result<()> {
    micro_slot_mut(block, slot).map(|raw| raw.fill(0))
}

fn micro_slot_mut(block: &mut [u8], slot: usize) -> Result<&mut [u8; MZ_ENTRY]> {
    slot.checked_add(1)
        .and_then(|n| n.checked_mul(MZ_ENTRY))
        .and_then(|at| block.get_mut(at..)?.first_chunk_mut())
        .ok_or_else(|| Error::invalid("no such slot in the microzap"))
}

/// Rewrites a foreign microzap, header or leaf block in the other byte order
/// (§18); pointer-table blocks are plain words.
///
/// # Errors
/// `Corrupt` when the block is none of these.
pub fn byteswap(block: &mut [u8], from: Endian) -> Result<()> {
    match ZapBlock::parse(block, from)? {
        ZapBlock::Micro(_) => {
            let (entries, _) = block.as_chunks_mut::<MZ_ENTRY>();
            for (i, e) in entries.iter_mut().enumerate() {
                if i == 0 {
                    swap_words(&mut e[..24]);
                } else {
                    e[..8].reverse();
                    e[8..12].reverse();
                }
            }
            Ok(())
        }
        ZapBlock::FatHeader(_) => {
            swap_words(block);
            Ok(())
        }
        ZapBlock::Leaf(leaf) => {
            let bs = leaf.block_shift();
            leafmut::byteswap_leaf(block, bs)
        }
    }
}

/// Swaps the bytes of each 64-bit word: headers and pointer-table blocks.
pub fn swap_words(block: &mut [u8]) {
    for word in block.as_chunks_mut::<8>().0 {
        word.reverse();
    }
}
