//! Dedup tables: names, keys, entries, logs and statistics (chapter 08 §B).
//!
//! # Theory
//! A table maps a block's checksum and sizes to the block's addresses and its reference
//! count. Old tables have one 256-byte entry for four numbers of copies ([`Legacy`]).
//! New ("flat") tables have entries of 72 bytes, and a log in front of the ZAPs. Values
//! are stored behind a header byte, mostly compressed by ZLE.
//! # Invariants
//! * A decoded value has exactly the size of its form; decompression writes nowhere
//!   else.
//! * [`LogRecords`] yields at most one record for each 120 bytes.

use base::{Dva, Error, Lsize, Psize, Result, Txg};
use codec::checksum::Checksum;
use codec::compress::Compression;

use crate::blkptr::{Block, Head, Protection};
use crate::endian::Endian;
use crate::objtype::ObjType;
use crate::removal::{dva, dva_words};

/// Bytes of a decoded legacy value.
pub(crate) const LEGACY_SIZE: usize = 256;
/// Bytes of a decoded flat value.
pub(crate) const FLAT_SIZE: usize = 72;
/// Bytes of a key.
pub(crate) const KEY_SIZE: usize = 40;
/// Words of a key.
pub(crate) const KEY_WORDS: usize = 5;
/// Bytes of a log block.
pub const LOG_BLOCK: u64 = 128 << 10;

/// Class of an entry, by its total reference count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Obsolete; only freed.
    Ditto,
    /// More than one reference.
    Duplicate,
    /// One reference.
    Unique,
}

impl Class {
    /// All classes by number, which is also the search order.
    pub const ALL: [Class; 3] = [Class::Ditto, Class::Duplicate, Class::Unique];

    /// The name in directory keys.
    pub fn name(self) -> &'static str {
        match self {
            Class::Ditto => "ditto",
            Class::Duplicate => "duplicate",
            Class::Unique => "unique",
        }
    }

    /// The class of an entry with this many references, of which there is at least one.
    pub fn of_count(refcnt: u64) -> Class {
        if refcnt > 1 { Class::Duplicate } else { Class::Unique }
    }

    /// Its number.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The class with this number; `None` means "in no class".
    pub fn from_code(code: u8) -> Option<Class> {
        Class::ALL.get(usize::from(code)).copied()
    }
}

/// Checksums that can identify blocks.
pub const CHECKSUMS: [Checksum; 5] =
    [Checksum::Sha256, Checksum::Sha512, Checksum::Skein, Checksum::Edonr, Checksum::Blake3];

/// Name of an entry ZAP, in the MOS directory (legacy) or in the table's own directory.
pub fn zap_key(checksum: Checksum, class: Class) -> String {
    format!("DDT-{}-zap-{}", checksum.name(), class.name())
}

/// Name of a flat table's directory, in the MOS directory.
pub fn directory_key(checksum: Checksum) -> String {
    format!("DDT-{}", checksum.name())
}

/// Name of one of a flat table's two logs, in its directory.
pub fn log_key(checksum: Checksum, log: u8) -> String {
    format!("DDT-log-{}-{log}", checksum.name())
}

/// MOS directory name of the ZAP of statistics.
pub const STATISTICS_KEY: &str = "DDT-statistics";

/// The identity of a block, ordered as in logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Key {
    /// Checksum words; of encrypted blocks the last two are the MAC.
    pub words: [u64; 4],
    /// Sizes, compression and encryption, packed.
    pub prop: u64,
}

impl Key {
    /// The key of a block.
    pub fn of(block: &Block) -> Key {
        let encrypted = block.protection == crate::blkptr::Protection::Encrypted;
        let units = |bytes: u64| (bytes >> 9).saturating_sub(1) & 0xffff;
        let prop = units(block.head.lsize.0)
            | units(block.psize.0) << 16
            | u64::from(block.compression & 0x7f) << 32
            | u64::from(encrypted) << 39;
        Key { words: block.words, prop }
    }

    /// From its words, as a ZAP of 64-bit keys gives them.
    pub fn from_words(words: [u64; KEY_WORDS]) -> Key {
        let [a, b, c, d, prop] = words;
        Key { words: [a, b, c, d], prop }
    }

    /// The words of the ZAP's key.
    pub fn to_words(self) -> [u64; KEY_WORDS] {
        let [a, b, c, d] = self.words;
        [a, b, c, d, self.prop]
    }

    /// Logical size in bytes.
    pub fn lsize(self) -> u64 {
        ((self.prop & 0xffff) + 1) << 9
    }

    /// Physical size in bytes.
    pub fn psize(self) -> u64 {
        ((self.prop >> 16 & 0xffff) + 1) << 9
    }

    /// Compression id.
    pub fn compression(self) -> u8 {
        (self.prop >> 32 & 0x7f) as u8
    }

    /// Whether the block is encrypted.
    pub fn is_encrypted(self) -> bool {
        self.prop >> 39 & 1 == 1
    }

    /// A physical block of this key's entry, as a pointer without the dedup bit has it that
    /// was born with the block; `None` for one without an address.
    pub fn block(self, checksum: Checksum, phys: &Phys) -> Option<Block> {
        let addresses: Vec<Dva> = phys.addresses(self.is_encrypted()).collect();
        if addresses.is_empty() {
            return None;
        }
        let (object_type, level, lsize) = (ObjType::DEDUP, 0, Lsize(self.lsize()));
        let head = Head { object_type, level, lsize, birth: phys.birth };
        let mut block = Block::new(head, Psize(self.psize()), self.compression(), &[]);
        (block.checksum, block.words) = (checksum.id(), self.words);
        if self.is_encrypted() {
            block.protection = Protection::Encrypted;
        }
        Some(block.with_dvas(&addresses))
    }
}

/// One physical block of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Phys {
    /// Raw words of three addresses; of encrypted blocks the third is salt and IV.
    pub dvas: [[u64; 2]; 3],
    /// Block pointers that refer to it.
    pub refcnt: u64,
    /// Txg in which it was written.
    pub birth: Txg,
}

impl Phys {
    /// Its valid addresses. `encrypted` excludes the third word pair.
    pub fn addresses(&self, encrypted: bool) -> impl Iterator<Item = Dva> + '_ {
        let usable = if encrypted { 2 } else { 3 };
        self.dvas.iter().take(usable).map(|&words| dva(words)).filter(Dva::is_valid)
    }

    /// Whether a pointer with this first address and physical birth refers to it
    /// (chapter 08 §B.3).
    pub fn matches(&self, first: Dva, birth: Txg) -> bool {
        self.birth == birth && self.dvas.first().is_some_and(|&words| dva(words) == first)
    }

    fn from_words(words: [u64; 8]) -> Phys {
        let [a0, a1, b0, b1, c0, c1, refcnt, birth] = words;
        Phys { dvas: [[a0, a1], [b0, b1], [c0, c1]], refcnt, birth: Txg(birth) }
    }

    fn to_words(self) -> [u64; 8] {
        let [[a0, a1], [b0, b1], [c0, c1]] = self.dvas;
        [a0, a1, b0, b1, c0, c1, self.refcnt, self.birth.0]
    }

    /// A block at up to three addresses, with one reference.
    pub fn new(addresses: &[Dva], birth: Txg) -> Phys {
        let mut phys = Phys { refcnt: 1, birth, ..Phys::default() };
        for (words, address) in phys.dvas.iter_mut().zip(addresses) {
            *words = dva_words(*address);
        }
        phys
    }
}

/// An old table's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Legacy {
    /// Obsolete first, then those written with one, two and three copies.
    pub phys: [Phys; 4],
}

/// A new table's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Flat {
    /// The block.
    pub phys: Phys,
    /// UTC seconds at which it entered its class.
    pub class_start: u64,
}

/// An entry of either form. Flat ones are kept in memory by the million, so they are small.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Of an old table.
    Legacy(Box<Legacy>),
    /// Of a new table.
    Flat(Flat),
}

impl Flat {
    fn parse(bytes: &[u8], endian: Endian) -> Result<Flat> {
        let mut r = endian.reader(bytes, "dedup table entry");
        let phys = Phys::from_words(r.u64s()?);
        Ok(Flat { phys, class_start: r.u64()? })
    }

    /// The payload, little-endian.
    pub fn encode(&self) -> [u8; FLAT_SIZE] {
        let mut out = [0; FLAT_SIZE];
        let words = self.phys.to_words().into_iter().chain([self.class_start]);
        for (bytes, word) in out.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        out
    }
}

impl Entry {
    /// Decodes an entry ZAP's value, which consists of bytes. `flat` selects the
    /// table's form.
    ///
    /// # Errors
    /// `Corrupt` if the value is too short or does not decompress.
    pub fn decode(value: &[u8], flat: bool) -> Result<Entry> {
        let bad = || Error::corrupt("an odd entry in a dedup table");
        let (&head, payload) = value.split_first().ok_or_else(bad)?;
        let endian = if head >> 7 == 1 { Endian::Little } else { Endian::Big };
        let mut plain = [0u8; LEGACY_SIZE];
        let size = if flat { FLAT_SIZE } else { LEGACY_SIZE };
        let plain = plain.get_mut(..size).ok_or_else(bad)?;
        match head & 0x7f {
            OFF => plain.copy_from_slice(payload.get(..size).ok_or_else(bad)?),
            ZLE => {
                codec::compress::decompress(ZLE, payload, plain).map_err(|e| bad().caused_by(e))?
            }
            _ => return Err(bad()),
        }
        if flat {
            return Ok(Entry::Flat(Flat::parse(plain, endian)?));
        }
        let mut r = endian.reader(plain, "dedup table entry");
        let mut legacy = Box::<Legacy>::default();
        for phys in &mut legacy.phys {
            *phys = Phys::from_words(r.u64s()?);
        }
        Ok(Entry::Legacy(legacy))
    }

    /// The value to store: little-endian; a legacy entry is compressed if that makes it
    /// smaller (chapter 08 §B.2).
    pub fn encode(&self) -> Vec<u8> {
        let legacy = match self {
            Entry::Flat(flat) => return [&[0x80 | OFF][..], &flat.encode()].concat(),
            Entry::Legacy(legacy) => legacy,
        };
        let words = legacy.phys.iter().flat_map(|p| p.to_words());
        let plain: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        let mut packed = [0u8; LEGACY_SIZE - 1];
        match codec::compress::compress(Compression::Zle, &plain, &mut packed) {
            Some(len) => [&[0x80 | ZLE], packed.get(..len).unwrap_or_default()].concat(),
            None => [&[0x80 | OFF], plain.as_slice()].concat(),
        }
    }

    /// The physical blocks.
    pub fn phys(&self) -> &[Phys] {
        match self {
            Entry::Legacy(legacy) => &legacy.phys,
            Entry::Flat(flat) => std::slice::from_ref(&flat.phys),
        }
    }

    /// The physical blocks, to be changed.
    pub fn phys_mut(&mut self) -> &mut [Phys] {
        match self {
            Entry::Legacy(legacy) => &mut legacy.phys,
            Entry::Flat(flat) => std::slice::from_mut(&mut flat.phys),
        }
    }

    /// References to all of its blocks together.
    pub fn total_refcnt(&self) -> u64 {
        self.phys().iter().fold(0, |sum, p| sum.saturating_add(p.refcnt))
    }
}

/// Compression id "off".
const OFF: u8 = 2;
/// Compression id "zle".
const ZLE: u8 = 14;

/// A log object's bonus buffer (chapter 08 §B.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogHeader {
    /// The log is being written into the ZAPs.
    pub flushing: bool,
    /// Bytes in use: whole blocks.
    pub length: u64,
    /// Txg in which it became active.
    pub first_txg: Txg,
    /// The last key that was flushed; entries up to it are stale.
    pub checkpoint: Option<Key>,
}

impl LogHeader {
    /// Parses the bonus buffer.
    ///
    /// # Errors
    /// `Corrupt` if it is too short or its length is not whole blocks,
    /// `Unsupported` for an unknown version.
    pub fn parse(bonus: &[u8], endian: Endian) -> Result<LogHeader> {
        let mut r = endian.reader(bonus, "dedup log header");
        let [info, length, first_txg] = r.u64s()?;
        let key = Key::from_words(r.u64s()?);
        if info & 0xff != 1 {
            return Err(Error::unsupported("dedup log of an unknown version"));
        }
        if length % LOG_BLOCK != 0 {
            return Err(Error::corrupt("a dedup log's length is not whole blocks"));
        }
        let flags = info >> 8 & 0xff;
        Ok(LogHeader {
            flushing: flags & 1 != 0,
            length,
            first_txg: Txg(first_txg),
            checkpoint: (flags & 2 != 0).then_some(key),
        })
    }

    /// The bonus buffer, little-endian.
    pub fn encode(&self) -> [u8; LOG_HEADER_SIZE] {
        let flags = u64::from(self.flushing) | u64::from(self.checkpoint.is_some()) << 1;
        let key = self.checkpoint.unwrap_or_default().to_words();
        let words = [1 | flags << 8, self.length, self.first_txg.0].into_iter().chain(key);
        let mut out = [0; LOG_HEADER_SIZE];
        for (bytes, word) in out.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Whether an entry of this key was flushed already.
    pub fn is_flushed(&self, key: &Key) -> bool {
        self.checkpoint.is_some_and(|checkpoint| *key <= checkpoint)
    }
}

/// An entry of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// The key of its block.
    pub key: Key,
    /// Its state.
    pub entry: Flat,
    /// The class of the ZAP that holds an older copy; `None` if there is none.
    pub stored: Option<Class>,
}

/// Bytes of a log object's bonus buffer.
pub const LOG_HEADER_SIZE: usize = 24 + KEY_SIZE;
/// Bytes of a flat log record.
pub const LOG_RECORD_SIZE: usize = 8 + KEY_SIZE + FLAT_SIZE;
/// Storage class and type of a record without an older copy.
const STORED_NOWHERE: u64 = 3 << 56 | 1 << 48;

impl LogRecord {
    /// The record, little-endian.
    pub fn encode(&self) -> [u8; LOG_RECORD_SIZE] {
        let stored = self.stored.map_or(STORED_NOWHERE, |class| u64::from(class.code()) << 56);
        let head = 1 | (LOG_RECORD_SIZE as u64) << 8 | stored;
        let words = [head].into_iter().chain(self.key.to_words());
        let mut out = [0; LOG_RECORD_SIZE];
        for (bytes, word) in out.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let (_, payload) = out.split_at_mut(LOG_RECORD_SIZE - FLAT_SIZE);
        payload.copy_from_slice(&self.entry.encode());
        out
    }
}

/// The records of one block of a log.
#[derive(Clone, Debug)]
pub struct LogRecords<'a> {
    rest: &'a [u8],
    endian: Endian,
}

impl<'a> LogRecords<'a> {
    /// The records of one block.
    pub fn new(block: &'a [u8], endian: Endian) -> LogRecords<'a> {
        LogRecords { rest: block, endian }
    }

    fn parse(&mut self, head: u64) -> Result<LogRecord> {
        let bad = || Error::corrupt("an odd record in a dedup log");
        let len = (head >> 8 & 0xffff) as usize;
        if head & 0xff != 1 || len < LOG_RECORD_SIZE || !len.is_multiple_of(8) {
            return Err(bad());
        }
        let (record, rest) = self.rest.split_at_checked(len).ok_or_else(bad)?;
        let mut r = self.endian.reader(record, "dedup log record");
        r.skip(8)?;
        let key = Key::from_words(r.u64s()?);
        let entry = Flat::parse(r.remaining(), self.endian)?;
        self.rest = rest;
        let [.., kind, class] = head.to_le_bytes();
        // Storage type 0 is the ZAP, the only one that stores anything.
        let stored = if kind == 0 { Class::from_code(class) } else { None };
        Ok(LogRecord { key, entry, stored })
    }
}

impl Iterator for LogRecords<'_> {
    type Item = Result<LogRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        let head = self.endian.u64(self.rest, 0)?;
        if head & 0xff == 0 {
            return None;
        }
        let record = self.parse(head);
        if record.is_err() {
            self.rest = &[];
        }
        Some(record)
    }
}

/// One bucket of a table's statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct StatBucket {
    /// Blocks, and their logical, physical and allocated bytes.
    pub blocks: [u64; 4],
    /// The same values, multiplied by the references.
    pub referenced: [u64; 4],
}

/// Buckets by log2 of the reference count.
pub const STAT_BUCKETS: usize = 64;

impl StatBucket {
    /// Adds another bucket.
    pub fn add(&mut self, other: &StatBucket) {
        let sum = |to: &mut [u64; 4], by: &[u64; 4]| {
            to.iter_mut().zip(by).for_each(|(to, by)| *to = to.saturating_add(*by));
        };
        sum(&mut self.blocks, &other.blocks);
        sum(&mut self.referenced, &other.referenced);
    }

    /// Takes another bucket away.
    pub fn subtract(&mut self, other: &StatBucket) {
        let difference = |to: &mut [u64; 4], by: &[u64; 4]| {
            to.iter_mut().zip(by).for_each(|(to, by)| *to = to.saturating_sub(*by));
        };
        difference(&mut self.blocks, &other.blocks);
        difference(&mut self.referenced, &other.referenced);
    }
}

/// What an entry contributes to the statistics of its class (chapter 08 §B.1): the bucket and
/// its part of it; `None` without references. `deflated` gives the bytes that a block counts in
/// space accounting.
pub fn contribution(
    checksum: Checksum,
    key: Key,
    entry: &Entry,
    deflated: &dyn Fn(&Block) -> u64,
) -> Option<(usize, StatBucket)> {
    let bucket = entry.total_refcnt().checked_ilog2()? as usize;
    let mut out = StatBucket::default();
    for phys in entry.phys().iter().filter(|phys| phys.refcnt > 0) {
        let dsize = key.block(checksum, phys).map_or(0, |block| deflated(&block));
        let blocks = [1, key.lsize(), key.psize(), dsize];
        let referenced = blocks.map(|n| n.saturating_mul(phys.refcnt));
        out.add(&StatBucket { blocks, referenced });
    }
    Some((bucket, out))
}

/// The integers of a statistics entry.
pub fn statistics_words(histogram: &[StatBucket; STAT_BUCKETS]) -> Vec<u64> {
    histogram.iter().flat_map(|b| b.blocks.into_iter().chain(b.referenced)).collect()
}

/// Parses the 512 integers of a statistics entry (chapter 08 §B.1).
///
/// # Errors
/// `Corrupt` for another number of integers.
pub fn parse_statistics(words: &[u64]) -> Result<[StatBucket; STAT_BUCKETS]> {
    if words.len() != STAT_BUCKETS * 8 {
        return Err(Error::corrupt("dedup statistics of an odd size"));
    }
    let mut out = [StatBucket::default(); STAT_BUCKETS];
    for (bucket, words) in out.iter_mut().zip(words.chunks_exact(8)) {
        let (blocks, referenced) = words.split_at(4);
        bucket.blocks.copy_from_slice(blocks);
        bucket.referenced.copy_from_slice(referenced);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Chapter 08 §B.2, the flat value.
    fn flat_value() -> Vec<u8> {
        let mut v = vec![0x82];
        for word in [0x10u64, 0x58, 0, 0, 0, 0, 1, 11, 0x6b01_78a9] {
            v.extend(word.to_le_bytes());
        }
        v
    }

    /// Chapter 08 §B.2, the legacy value of the same block.
    const LEGACY: [u8; 14] =
        [0x8e, 0x7f, 0x00, 0x10, 0x46, 0x00, 0x70, 0x66, 0x00, 0x01, 0x46, 0x00, 0x0b, 0xc6];

    #[test]
    fn the_values_of_the_specification() {
        let value = flat_value();
        assert_eq!(value.len(), 73);
        let entry = Entry::decode(&value, true).unwrap();
        let Entry::Flat(flat) = entry else { unreachable!() };
        assert_eq!(
            (flat.class_start, flat.phys.refcnt, flat.phys.birth),
            (0x6b01_78a9, 1, Txg(11))
        );
        let first = flat.phys.addresses(false).next().unwrap();
        assert_eq!((first.offset, first.asize.0), (0xb000, 0x2000));
        assert!(flat.phys.matches(first, Txg(11)) && !flat.phys.matches(first, Txg(12)));
        assert_eq!(entry.encode(), value);
        assert_eq!(Phys::new(&[first], Txg(11)), flat.phys);

        // The dump ends in a run that covers more than the fields shown.
        let Ok(Entry::Legacy(legacy)) = Entry::decode(&LEGACY, false) else {
            panic!("{:?}", Entry::decode(&LEGACY, false))
        };
        let phys = legacy.phys[1];
        assert_eq!((phys.refcnt, phys.birth), (1, Txg(11)));
        assert_eq!(phys.addresses(false).next().unwrap().asize.0, 0x2000);
        let entry = Entry::Legacy(legacy);
        assert_eq!(entry.total_refcnt(), 1);
        let again = entry.encode();
        assert!(again[0] == 0x8e && again.len() < 30, "{again:x?}");
        assert_eq!(Entry::decode(&again, false).unwrap(), entry);
        assert!(Entry::decode(&[], true).is_err());
        assert!(Entry::decode(&value[..70], true).is_err());
        assert!(Entry::decode(&[0x83; 73], true).is_err());
    }

    #[test]
    fn keys_and_names() {
        let key = Key::from_words([1, 2, 3, 4, 0x2_000f_000f]);
        assert_eq!((key.lsize(), key.psize(), key.compression()), (8192, 8192, 2));
        assert!(!key.is_encrypted());
        assert_eq!(Key::from_words(key.to_words()), key);
        assert_eq!(zap_key(Checksum::Sha256, Class::Duplicate), "DDT-sha256-zap-duplicate");
        assert_eq!(directory_key(Checksum::Blake3), "DDT-blake3");
        assert_eq!(log_key(Checksum::Sha512, 1), "DDT-log-sha512-1");
        assert!(parse_statistics(&[0; 511]).is_err());
        assert_eq!(parse_statistics(&[7; 512]).unwrap()[63].referenced, [7; 4]);
    }

    #[test]
    fn logs() {
        let Ok(Entry::Flat(flat)) = Entry::decode(&flat_value(), true) else { unreachable!() };
        let mut block = Vec::new();
        for (i, class) in [(1u64, 1u64), (2, 3)] {
            let kind = u64::from(class == 3);
            block.extend((1 | 120 << 8 | kind << 48 | class << 56u64).to_le_bytes());
            block.extend([i, 0, 0, 0, 0].iter().flat_map(|w: &u64| w.to_le_bytes()));
            block.extend(flat.encode());
        }
        block.resize(4096, 0);
        let records: Vec<_> = LogRecords::new(&block, Endian::Little).map(Result::unwrap).collect();
        assert_eq!(records.len(), 2);
        assert_eq!((records[0].stored, records[1].stored), (Some(Class::Duplicate), None));
        assert_eq!(records[1].entry, flat);
        let again: Vec<u8> = records.iter().flat_map(LogRecord::encode).collect();
        assert!(block.starts_with(&again));
        block[1] = 119;
        let mut records = LogRecords::new(&block, Endian::Little);
        assert!(records.next().unwrap().is_err() && records.next().is_none());

        let words = [1 | 3 << 8, LOG_BLOCK, 9, 1, 0, 0, 0, 0];
        let bonus: Vec<u8> = words.iter().flat_map(|w: &u64| w.to_be_bytes()).collect();
        let header = LogHeader::parse(&bonus, Endian::Big).unwrap();
        assert!(header.flushing && header.first_txg == Txg(9));
        assert!(header.is_flushed(&Key::from_words([1, 0, 0, 0, 0])));
        assert!(!header.is_flushed(&Key::from_words([1, 0, 0, 0, 1])));
        assert!(LogHeader::parse(&bonus, Endian::Little).is_err());
        assert_eq!(LogHeader::parse(&header.encode(), Endian::Little).unwrap(), header);
        let empty = LogHeader { flushing: false, checkpoint: None, ..header };
        assert_eq!(LogHeader::parse(&empty.encode(), Endian::Little).unwrap(), empty);
    }

    #[test]
    fn contributions_to_statistics() {
        let key = Key::from_words([1, 2, 3, 4, 0x2_000f_001f]);
        let dva = |offset| Dva { offset, asize: base::Asize(12_288), ..Dva::default() };
        let deflated = |block: &Block| block.dvas().map(|d| d.asize.0).sum();
        let of = |entry: &Entry| contribution(Checksum::Sha256, key, entry, &deflated);
        let mut phys = Phys::new(&[dva(0x1000), dva(0x8000)], Txg(7));
        assert_eq!(key.block(Checksum::Sha256, &Phys::default()), None);
        let block = key.block(Checksum::Sha256, &phys).unwrap();
        assert_eq!((block.dvas().len(), block.head.birth, block.dedup), (2, Txg(7), false));
        assert_eq!(Key::of(&block), key);
        phys.refcnt = 5;
        let flat = Entry::Flat(Flat { phys, class_start: 0 });
        let blocks = [1, 16_384, 8192, 24_576];
        let bucket = StatBucket { blocks, referenced: blocks.map(|n| 5 * n) };
        assert_eq!(of(&flat), Some((2, bucket)));
        let mut sum = [StatBucket::default(); STAT_BUCKETS];
        sum[2].add(&bucket);
        assert_eq!(parse_statistics(&statistics_words(&sum)).unwrap(), sum);
        sum[2].subtract(&bucket);
        assert_eq!(sum, [StatBucket::default(); STAT_BUCKETS]);
        // Both blocks of an old entry count; the bucket is that of all references.
        let mut legacy = Legacy::default();
        (legacy.phys[1], legacy.phys[3]) = (phys, Phys { refcnt: 1 << 63, ..phys });
        let (bucket, both) = of(&Entry::Legacy(Box::new(legacy))).unwrap();
        assert_eq!(
            (bucket, both.blocks, both.referenced[3]),
            (63, blocks.map(|n| 2 * n), u64::MAX)
        );
        phys.refcnt = 0;
        assert_eq!(of(&Entry::Flat(Flat { phys, class_start: 0 })), None);
        // An encrypted block's third address is salt and IV.
        let sealed = Key { prop: key.prop | 1 << 39, ..key };
        let mut words = phys;
        words.dvas[2] = [u64::MAX; 2];
        let block = sealed.block(Checksum::Sha256, &words).unwrap();
        assert_eq!((block.dvas().len(), Key::of(&block)), (2, sealed));
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(
            raw in prop::collection::vec(prop_oneof![Just(0u8), Just(120u8), any::<u8>()], 0..400),
            flat in any::<bool>(),
            zle in any::<bool>(),
        ) {
            let _ = Entry::decode(&raw, flat);
            let mut value = raw.clone();
            if let Some(head) = value.first_mut() {
                *head = if zle { 0x8e } else { 0x02 };
            }
            if let Ok(entry) = Entry::decode(&value, flat) {
                let _ = entry.total_refcnt();
                prop_assert_eq!(Entry::decode(&entry.encode(), flat).unwrap(), entry);
            }
            prop_assert!(LogRecords::new(&raw, Endian::Little).count() <= raw.len() / 120 + 1);
            let _ = LogHeader::parse(&raw, Endian::Little);
        }
    }
}
