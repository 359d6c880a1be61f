//! Space maps: append-only logs of allocated and freed ranges (chapter 05 §2-4).
//!
//! # Theory
//! A space map is an array of 64-bit words: one-word entries, two-word entries, and
//! debug entries with the txg of the entries that follow. Offsets and lengths are in
//! units that depend on the map's role, not on the map ([`Params`]). Replaying all
//! entries gives the allocated set, which the caller does. This module converts between
//! words and ranges.
//!
//! # Invariants
//! * Every [`Range`] that the reader yields lies inside the role's space, is not
//!   empty, and is of a type that the role allows; its end does not overflow.
//! * A two-word entry never straddles two blocks, so blocks can be read alone.
//! * The reader's work is linear in the bytes given, and it allocates nothing.

use base::{Error, Result, Txg, VdevId};

use crate::endian::Endian;

/// Bytes of the bonus header without histogram.
pub const HEADER_V0_SIZE: usize = 24;
/// Bytes of the bonus header with histogram.
pub const HEADER_SIZE: usize = 320;
/// Buckets of the histogram.
pub const HISTOGRAM_SIZE: usize = 32;
const HISTOGRAM_AT: usize = 64;

/// Most units that a one-word entry covers.
const RUN_MAX: u64 = 1 << 15;
/// Units below which a one-word entry's offset must lie.
const OFFSET_LIMIT: u64 = 1 << 47;
/// Most units that a two-word entry covers.
const RUN2_MAX: u64 = 1 << 36;
const OFFSET2_MASK: u64 = (1 << 63) - 1;
const DEBUG_PREFIX: u64 = 0b10 << 62;
const TWO_WORD_PREFIX: u64 = 0b11 << 62;
/// The debug word that fills a block's last word.
const PADDING: u64 = DEBUG_PREFIX;

/// The header in the object's bonus buffer (chapter 05 §2.2).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Header {
    /// The object's own id; informational.
    pub object: u64,
    /// Valid bytes of the object.
    pub length: u64,
    /// Bytes allocated minus bytes freed over all entries.
    pub alloc: i64,
    /// Free segments by size, if the header has the long form. A hint.
    pub histogram: Option<[u64; HISTOGRAM_SIZE]>,
}

impl Header {
    /// Parses a bonus buffer.
    ///
    /// # Errors
    /// `Corrupt` if it is too short or the length is not whole words.
    pub fn parse(bonus: &[u8], endian: Endian) -> Result<Header> {
        let [object, length, alloc] = endian.reader(bonus, "space map header").u64s()?;
        if length % 8 != 0 {
            return Err(Error::corrupt("a space map's length is not whole words"));
        }
        let histogram = match bonus.get(HISTOGRAM_AT..HEADER_SIZE) {
            Some(bytes) => Some(endian.reader(bytes, "space map histogram").u64s()?),
            None => None,
        };
        Ok(Header { object, length, alloc: alloc.cast_signed(), histogram })
    }

    /// The bonus buffer to write: 320 bytes, or 24 without histogram.
    pub fn encode(&self) -> Vec<u8> {
        let head = [self.object, self.length, self.alloc.cast_unsigned()];
        let mut out: Vec<u8> = head.iter().flat_map(|w| w.to_le_bytes()).collect();
        if let Some(histogram) = &self.histogram {
            out.resize(HISTOGRAM_AT, 0);
            out.extend(histogram.iter().flat_map(|w| w.to_le_bytes()));
        }
        out
    }
}

/// Adds a free segment of `size` bytes to a histogram (chapter 05 §2.5).
pub fn histogram_add(histogram: &mut [u64; HISTOGRAM_SIZE], size: u64, shift: u32) {
    let Some(class) = size.checked_ilog2().map(|log| log.saturating_sub(shift) as usize) else {
        return;
    };
    let last = HISTOGRAM_SIZE - 1;
    let (bucket, count) = if class <= last { (class, 1) } else { (last, 1u64 << (class - last)) };
    if let Some(n) = histogram.get_mut(bucket) {
        *n = n.saturating_add(count);
    }
}

/// The type of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The range becomes allocated.
    Alloc,
    /// The range becomes free.
    Free,
}

/// The role of a map, which determines how its words are interpreted (chapter 05 §2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    start: u64,
    size: u64,
    shift: u32,
    only: Option<Kind>,
    log: bool,
}

impl Params {
    /// A metaslab's map; `start` and `size` in bytes of the top-level vdev.
    pub fn metaslab(start: u64, size: u64, ashift: u32) -> Params {
        Params { start, size, shift: ashift, only: None, log: false }
    }

    /// The pool-wide map of one txg.
    pub fn log() -> Params {
        Params { start: 0, size: u64::MAX, shift: 9, only: None, log: true }
    }

    /// A vdev's checkpoint map.
    pub fn checkpoint(asize: u64, ashift: u32) -> Params {
        Params { start: 0, size: asize, shift: ashift, only: Some(Kind::Free), log: false }
    }

    /// A removed vdev's obsolete map.
    pub fn obsolete(asize: u64) -> Params {
        Params { start: 0, size: asize, shift: 0, only: Some(Kind::Alloc), log: false }
    }

    /// A leaf's dirty time log: "bytes" are transaction groups.
    pub fn dtl() -> Params {
        Params { start: 0, size: u64::MAX, shift: 0, only: Some(Kind::Alloc), log: false }
    }

    fn range(&self, kind: Kind, offset: u64, run: u64, vdev: u32) -> Option<Range> {
        let bytes = |units: u64| {
            let bytes = units.checked_shl(self.shift)?;
            (bytes >> self.shift == units).then_some(bytes)
        };
        let offset = bytes(offset)?.checked_add(self.start)?;
        let len = bytes(run)?;
        let limit = self.start.checked_add(self.size)?;
        let inside = offset.checked_add(len)? <= limit;
        let allowed = self.only.is_none_or(|only| only == kind);
        (inside && allowed).then_some(Range { kind, offset, len, vdev: VdevId(vdev) })
    }
}

/// A range that an entry allocates or frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Allocate or free.
    pub kind: Kind,
    /// First byte, within the top-level vdev.
    pub offset: u64,
    /// Bytes; not zero.
    pub len: u64,
    /// The vdev of a log's entry; zero in other maps.
    pub vdev: VdevId,
}

/// The meaning of one or two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A debug entry, or padding (txg 0).
    Debug {
        /// The type of the entries behind it; `None` for historical actions.
        kind: Option<Kind>,
        /// Sync pass, low 10 bits.
        pass: u32,
        /// Transaction group, low 50 bits.
        txg: Txg,
    },
    /// A range.
    Range(Range),
}

/// Reads the entries of whole blocks, or of a whole object cut to its length.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    words: std::slice::ChunksExact<'a, u8>,
    endian: Endian,
    params: Params,
    failed: bool,
}

impl<'a> Entries<'a> {
    /// The entries of `bytes`, which start at a block boundary and end at the map's
    /// length or at a block boundary.
    pub fn new(bytes: &'a [u8], endian: Endian, params: Params) -> Entries<'a> {
        Entries { words: bytes.chunks_exact(8), endian, params, failed: false }
    }

    /// Only the ranges.
    pub fn ranges(self) -> impl Iterator<Item = Result<Range>> + 'a {
        self.filter_map(|entry| match entry {
            Ok(Entry::Range(range)) => Some(Ok(range)),
            Ok(Entry::Debug { .. }) => None,
            Err(e) => Some(Err(e)),
        })
    }

    fn word(&mut self) -> Option<u64> {
        self.words.next().and_then(|bytes| self.endian.u64(bytes, 0))
    }

    fn decode(&mut self, word: u64) -> Result<Entry> {
        let kind_of = |bit: u64| if bit == 0 { Kind::Alloc } else { Kind::Free };
        let range = match word >> 62 {
            0b10 => {
                let kind = match word >> 60 & 3 {
                    0 => Some(Kind::Alloc),
                    1 => Some(Kind::Free),
                    _ => None,
                };
                let pass = (word >> 50 & 0x3ff) as u32;
                return Ok(Entry::Debug { kind, pass, txg: Txg(word & ((1 << 50) - 1)) });
            }
            0b11 => {
                let second = self
                    .word()
                    .ok_or_else(|| Error::corrupt("a space map entry straddles two blocks"))?;
                let run = (word >> 24 & (RUN2_MAX - 1)) + 1;
                // Only a log's entries have a vdev; in other maps the field is unused.
                let vdev = if self.params.log { (word & 0xff_ffff) as u32 } else { 0 };
                self.params.range(kind_of(second >> 63), second & OFFSET2_MASK, run, vdev)
            }
            _ if self.params.log => None,
            _ => {
                let run = (word & (RUN_MAX - 1)) + 1;
                self.params.range(kind_of(word >> 15 & 1), word >> 16, run, 0)
            }
        };
        range
            .map(Entry::Range)
            .ok_or_else(|| Error::corrupt("a space map entry lies outside its space"))
    }
}

impl Iterator for Entries<'_> {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        if self.failed {
            return None;
        }
        let word = self.word()?;
        let entry = self.decode(word);
        self.failed = entry.is_err();
        Some(entry)
    }
}

/// Builds the words of one append to a map (chapter 05 §2.4, §2.6).
#[derive(Clone, Debug)]
pub struct Encoder {
    params: Params,
    /// Words of one data block.
    block: u64,
    /// Word index, in the object, of the next word.
    at: u64,
    /// Feature spacemap_v2 is active.
    v2: bool,
    alloc: i64,
    out: Vec<u8>,
}

impl Encoder {
    /// Appends behind `length` bytes in blocks of `block_size` bytes. With `v2`,
    /// two-word entries may be written.
    ///
    /// # Errors
    /// `Invalid` for a block size below two words, or a log without `v2`.
    pub fn new(params: Params, length: u64, block_size: u32, v2: bool) -> Result<Encoder> {
        let block = u64::from(block_size / 8);
        if block < 2 || (params.log && !v2) || !length.is_multiple_of(8) {
            return Err(Error::invalid("this space map cannot be appended to"));
        }
        Ok(Encoder { params, block, at: length / 8, v2, alloc: 0, out: Vec::new() })
    }

    fn word(&mut self, word: u64) {
        self.out.extend_from_slice(&word.to_le_bytes());
        self.at += 1;
    }

    /// The debug entry in front of a group of entries.
    pub fn mark(&mut self, kind: Kind, pass: u32, txg: Txg) {
        let action = u64::from(kind == Kind::Free) << 60;
        let pass = u64::from(pass & 0x3ff) << 50;
        self.word(DEBUG_PREFIX | action | pass | (txg.0 & ((1 << 50) - 1)));
    }

    /// One range, in as many entries as it needs.
    ///
    /// # Errors
    /// `Invalid` if the range is not whole units inside the map's space, or
    /// cannot be expressed without `v2`.
    pub fn push(&mut self, range: Range) -> Result<()> {
        let bad = || Error::invalid("a range does not fit its space map");
        let Params { start, shift, .. } = self.params;
        let from = range.offset.checked_sub(start).ok_or_else(bad)?;
        let (mut offset, mut run) = (from >> shift, range.len >> shift);
        let exact = self.params.range(range.kind, offset, run, range.vdev.0) == Some(range);
        if !exact || run == 0 || range.vdev.0 > 0xff_ffff {
            return Err(bad());
        }
        let signed = i64::try_from(range.len).map_err(|_| bad())?;
        let two = self.v2
            && (self.params.log || run > RUN_MAX || offset.saturating_add(run) > OFFSET_LIMIT);
        if !two && offset.saturating_add(run - 1) >= OFFSET_LIMIT {
            return Err(bad());
        }
        let free = u64::from(range.kind == Kind::Free);
        while run > 0 {
            let n = run.min(if two { RUN2_MAX } else { RUN_MAX });
            if two {
                if self.at % self.block == self.block - 1 {
                    self.word(PADDING);
                }
                self.word(TWO_WORD_PREFIX | (n - 1) << 24 | u64::from(range.vdev.0));
                self.word(free << 63 | offset);
            } else {
                self.word(offset << 16 | free << 15 | (n - 1));
            }
            offset += n;
            run -= n;
        }
        let delta = if free == 0 { signed } else { -signed };
        self.alloc = self.alloc.saturating_add(delta);
        Ok(())
    }

    /// The bytes to append, and the value to add to the header's `alloc`.
    pub fn finish(self) -> (Vec<u8>, i64) {
        (self.out, self.alloc)
    }
}

/// The name under which the log space map of a txg is listed (chapter 05 §4.1).
pub fn log_key(txg: Txg) -> String {
    format!("{:x}", txg.0)
}

/// The txg of a name in the log directory.
///
/// # Errors
/// `Corrupt` for anything but lower-case hexadecimal without leading zeros.
pub fn parse_log_key(key: &str) -> Result<Txg> {
    u64::from_str_radix(key, 16)
        .ok()
        .map(Txg)
        .filter(|&txg| txg != Txg::ZERO && log_key(txg) == key)
        .ok_or_else(|| Error::corrupt("an odd name in the directory of log space maps"))
}

/// The numbers in an array object: space maps by metaslab (chapter 05 §1.2), or
/// unflushed txgs by metaslab (§4.1). Numbers behind its end are zero.
pub fn array(bytes: &[u8], endian: Endian) -> impl ExactSizeIterator<Item = u64> + '_ {
    bytes.chunks_exact(8).map(move |b| endian.u64(b, 0).unwrap_or_default())
}

#[cfg(test)]
mod tests;
