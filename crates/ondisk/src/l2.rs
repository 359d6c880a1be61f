//! The content of a cache device: header, log blocks and their entries (chapter 08 §G).
//!
//! # Theory
//! Buffers are written around a ring. Behind each fixed number of buffers, a log block
//! records their locations and identities. Log blocks form two interleaved chains,
//! whose heads are in the device header. All of it is a cache: data that fails a check
//! is simply not used.
//!
//! # Invariants
//! * A [`DeviceHeader`] was verified by its checksum; its write position is inside its
//!   ring.
//! * A [`LogBlock`]'s entries are at most [`LOG_ENTRIES_MAX`].

use base::{Dva, Error, Guid, Result, Txg};

use crate::endian::Endian;
use crate::label::{LABEL_START_SIZE, leaf_asize, seal_region, usable_size, verify_region};
use crate::removal::{dva, dva_words};

/// Device offset of the header.
pub const HEADER_OFFSET: u64 = LABEL_START_SIZE;
const HEADER_MAGIC: u64 = 0x5a46_5343_4143_4845;
const LOG_MAGIC: u64 = 0x4c4f_4742_4c4b_4844;
const VERSION: u64 = 1;
/// Bytes of a log block, uncompressed.
pub const LOG_BLOCK_SIZE: usize = 65_536;
/// Most entries of a log block.
pub const LOG_ENTRIES_MAX: u64 = 1022;
const LOG_ENTRY_SIZE: usize = 64;
const LOG_ENTRIES_AT: usize = 128;
/// Smaller devices have no log blocks, by default (`l2arc_rebuild_blocks_min_l2size`).
pub const REBUILD_SIZE_MIN: u64 = 1 << 30;
/// Checksum id of log blocks: fletcher-4.
const LOG_CHECKSUM: u64 = 7;
/// Longest sizes in sectors that a packed property can express.
const SECTORS_MAX: u64 = 1 << 16;

/// Bytes of the header on a device of this ashift.
pub fn header_size(ashift: u32) -> usize {
    512.max(1usize.checked_shl(ashift).unwrap_or(0))
}

/// Start and end of the ring of a device of `size` bytes; `None` if it is too small for
/// labels, header and any block.
pub fn ring(size: u64, ashift: u32) -> Option<(u64, u64)> {
    let start = HEADER_OFFSET + header_size(ashift) as u64;
    let end = HEADER_OFFSET + leaf_asize(usable_size(size))?;
    (start < end).then_some((start, end))
}

/// Entries in each log block of a device with this ring. Devices whose ring ends before
/// `least` have no log blocks.
pub fn log_entries(start: u64, end: u64, least: u64) -> u64 {
    if end < least { 0 } else { (end.saturating_sub(start) >> 24).min(LOG_ENTRIES_MAX) }
}

fn sectors(bytes: u64) -> u64 {
    (bytes >> 9).clamp(1, SECTORS_MAX) - 1
}

/// The location of a log block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LogPtr {
    /// Device offset.
    pub daddr: u64,
    /// Bytes of the buffers it describes.
    pub payload_asize: u64,
    /// Device offset of the first of them.
    pub payload_start: u64,
    /// Sizes, compression and checksum, packed.
    pub prop: u64,
    /// Fletcher-4 over the bytes on the device.
    pub cksum: [u64; 4],
}

impl LogPtr {
    fn from_words(words: [u64; 8]) -> LogPtr {
        let [daddr, payload_asize, payload_start, prop, c0, c1, c2, c3] = words;
        LogPtr { daddr, payload_asize, payload_start, prop, cksum: [c0, c1, c2, c3] }
    }

    /// A pointer to a log block of `asize` bytes on the device.
    pub fn new(daddr: u64, asize: u64, compression: u8, cksum: [u64; 4]) -> LogPtr {
        let prop = sectors(LOG_BLOCK_SIZE as u64)
            | sectors(asize) << 16
            | u64::from(compression & 0x7f) << 32
            | LOG_CHECKSUM << 40;
        LogPtr { daddr, prop, cksum, ..LogPtr::default() }
    }

    fn words(&self) -> [u64; 8] {
        let [c0, c1, c2, c3] = self.cksum;
        [self.daddr, self.payload_asize, self.payload_start, self.prop, c0, c1, c2, c3]
    }

    /// Uncompressed bytes.
    pub fn lsize(&self) -> u64 {
        ((self.prop & 0xffff) + 1) << 9
    }

    /// Bytes on the device.
    pub fn asize(&self) -> u64 {
        ((self.prop >> 16 & 0xffff) + 1) << 9
    }

    /// Compression id: off or lz4.
    pub fn compression(&self) -> u8 {
        (self.prop >> 32 & 0x7f) as u8
    }

    /// Whether the block and its buffers lie in the ring and are not being overwritten
    /// (chapter 08 §G.3). `hand` is the write position.
    pub fn is_usable(&self, header: &DeviceHeader, hand: u64) -> bool {
        let asize = self.asize();
        let Some(last) = self.daddr.checked_add(asize - 1) else { return false };
        let inside = asize <= LOG_BLOCK_SIZE as u64
            && self.lsize() == LOG_BLOCK_SIZE as u64
            && self.payload_start >= header.start
            && self.payload_start < header.end
            && self.daddr >= header.start
            && last <= header.end;
        if header.first_sweep {
            return inside && self.payload_start <= last && last < hand;
        }
        let (from, to, evict) = (self.payload_start, last, header.evict);
        let holds = |a: u64, b: u64, x: u64| {
            if a <= b { (a..=b).contains(&x) } else { x >= a || x <= b }
        };
        inside
            && !holds(from, to, hand)
            && !holds(from, to, evict)
            && !holds(hand, evict, from)
            && !holds(hand, evict, to)
    }
}

/// A cache device's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceHeader {
    /// Pool that it caches.
    pub pool_guid: Guid,
    /// The device.
    pub vdev_guid: Guid,
    /// Entries in each log block.
    pub log_entries: u64,
    /// Device offset up to which buffers were evicted.
    pub evict: u64,
    /// The ring has not been filled once yet.
    pub first_sweep: bool,
    /// Device offset of the ring's start.
    pub start: u64,
    /// Device offset of the ring's end.
    pub end: u64,
    /// The two newest log blocks: heads of the two chains.
    pub newest: [LogPtr; 2],
    /// Bytes of live log blocks.
    pub lb_asize: u64,
    /// Number of live log blocks.
    pub lb_count: u64,
    /// UTC seconds of the last trim.
    pub trim_time: u64,
    /// State of trimming.
    pub trim_state: u64,
    /// Byte order.
    pub endian: Endian,
}

impl DeviceHeader {
    /// Verifies and parses the header: [`header_size`] bytes from [`HEADER_OFFSET`].
    ///
    /// # Errors
    /// `Checksum` if it is damaged or absent, `Corrupt` if it contradicts itself,
    /// `Unsupported` for an unknown version. In each case the cache cannot be rebuilt,
    /// and no data is lost.
    pub fn parse(bytes: &[u8]) -> Result<DeviceHeader> {
        let endian = verify_region(bytes, HEADER_OFFSET)?;
        Self::parse_unverified(bytes, endian)
    }

    /// The [`header_size`] bytes of the header, with its checksum.
    ///
    /// # Errors
    /// None for a header of valid size.
    pub fn encode(&self, ashift: u32) -> Result<Vec<u8>> {
        let [first, second] = self.newest;
        let mut words = vec![HEADER_MAGIC, VERSION, self.pool_guid.0, self.vdev_guid.0];
        words.extend([self.log_entries, self.evict, u64::from(self.first_sweep)]);
        words.extend([self.start, self.end]);
        words.extend(first.words());
        words.extend(second.words());
        words.extend([self.lb_asize, self.lb_count, self.trim_time, self.trim_state]);
        let mut out: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        out.resize(header_size(ashift), 0);
        seal_region(&mut out, HEADER_OFFSET)?;
        Ok(out)
    }

    /// As [`DeviceHeader::parse`], without verifying the checksum.
    ///
    /// # Errors
    /// `Corrupt` or `Unsupported`.
    pub(crate) fn parse_unverified(bytes: &[u8], endian: Endian) -> Result<DeviceHeader> {
        let mut r = endian.reader(bytes, "cache device header");
        let [magic, version, pool, vdev, entries, evict, flags, start, end] = r.u64s()?;
        let newest = [LogPtr::from_words(r.u64s()?), LogPtr::from_words(r.u64s()?)];
        let [lb_asize, lb_count, trim_time, trim_state] = r.u64s()?;
        if magic != HEADER_MAGIC {
            return Err(Error::corrupt("no cache device header"));
        }
        if version != VERSION {
            return Err(Error::unsupported("cache device header of an unknown version"));
        }
        if start < HEADER_OFFSET || !(start..=end).contains(&evict) || entries > LOG_ENTRIES_MAX {
            return Err(Error::corrupt("a cache device header contradicts itself"));
        }
        Ok(DeviceHeader {
            pool_guid: Guid(pool),
            vdev_guid: Guid(vdev),
            log_entries: entries,
            evict,
            first_sweep: flags & 1 != 0,
            start,
            end,
            newest,
            lb_asize,
            lb_count,
            trim_time,
            trim_state,
            endian,
        })
    }

    /// The write position: behind the newest log block.
    pub fn hand(&self) -> u64 {
        let [newest, _] = self.newest;
        if newest == LogPtr::default() {
            return self.start;
        }
        newest.daddr.saturating_add(newest.asize())
    }
}

/// A cached buffer, as a log block describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// First address of the block.
    pub dva: Dva,
    /// Its physical birth.
    pub birth: Txg,
    /// Packed properties.
    pub prop: u64,
    /// Device offset of the buffer.
    pub daddr: u64,
    /// Compression level.
    pub complevel: u64,
}

/// What a log entry says of a buffer, apart from its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct EntryFacts {
    /// Logical bytes.
    pub lsize: u64,
    /// Physical bytes.
    pub psize: u64,
    /// Compression id.
    pub compression: u8,
    /// Metadata, else data.
    pub metadata: bool,
    /// Prefetched.
    pub prefetch: bool,
    /// Encrypted or authenticated.
    pub protected: bool,
    /// Frequently (else recently) used.
    pub mfu: bool,
}

impl EntryFacts {
    fn prop(&self) -> u64 {
        sectors(self.lsize)
            | sectors(self.psize) << 16
            | u64::from(self.compression & 0x7f) << 32
            | u64::from(self.prefetch) << 39
            | (1 + u64::from(self.metadata)) << 48
            | u64::from(self.protected) << 56
            | if self.mfu { 3 } else { 1 } << 57
    }
}

impl LogEntry {
    /// The entry of a buffer at device offset `daddr`.
    pub fn new(dva: Dva, birth: Txg, daddr: u64, facts: EntryFacts) -> LogEntry {
        LogEntry { dva, birth, prop: facts.prop(), daddr, complevel: 0 }
    }

    /// What it says of the buffer.
    pub fn facts(&self) -> EntryFacts {
        EntryFacts {
            lsize: self.lsize(),
            psize: self.psize(),
            compression: self.compression(),
            metadata: self.is_metadata(),
            prefetch: self.is_prefetch(),
            protected: self.is_protected(),
            mfu: self.is_mfu(),
        }
    }

    /// Logical bytes.
    pub fn lsize(&self) -> u64 {
        ((self.prop & 0xffff) + 1) << 9
    }

    /// Physical bytes.
    pub fn psize(&self) -> u64 {
        ((self.prop >> 16 & 0xffff) + 1) << 9
    }

    /// Compression id.
    pub fn compression(&self) -> u8 {
        (self.prop >> 32 & 0x7f) as u8
    }

    /// Whether it is metadata.
    pub fn is_metadata(&self) -> bool {
        self.prop >> 48 & 0xff == 2
    }

    /// Whether it was prefetched.
    pub(crate) fn is_prefetch(&self) -> bool {
        self.prop >> 39 & 1 == 1
    }

    /// Whether it is encrypted or authenticated.
    pub(crate) fn is_protected(&self) -> bool {
        self.prop >> 56 & 1 == 1
    }

    /// Whether it was frequently (else recently) used.
    pub(crate) fn is_mfu(&self) -> bool {
        self.prop >> 57 & 0xf == 3
    }
}

/// A log block, decompressed. Its bytes were verified against its pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogBlock {
    /// The block before it in its chain.
    pub prev: LogPtr,
    /// The buffers that it describes.
    pub entries: Vec<LogEntry>,
}

impl LogBlock {
    /// The block's [`LOG_BLOCK_SIZE`] bytes, uncompressed. Entries beyond
    /// [`LOG_ENTRIES_MAX`] are left out.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(LOG_BLOCK_SIZE);
        out.extend(LOG_MAGIC.to_le_bytes());
        out.extend(self.prev.words().iter().flat_map(|w| w.to_le_bytes()));
        out.resize(LOG_ENTRIES_AT, 0);
        for e in self.entries.iter().take(LOG_ENTRIES_MAX as usize) {
            let [d0, d1] = dva_words(e.dva);
            let words = [d0, d1, e.birth.0, e.prop, e.daddr, e.complevel, 0, 0];
            out.extend(words.iter().flat_map(|w| w.to_le_bytes()));
        }
        out.resize(LOG_BLOCK_SIZE, 0);
        out
    }

    /// Parses a block of which `log_entries` entries are in use.
    ///
    /// # Errors
    /// `Corrupt` for a wrong magic or a block that is cut off.
    pub fn parse(bytes: &[u8], log_entries: u64, endian: Endian) -> Result<LogBlock> {
        let mut r = endian.reader(bytes, "cache device log block");
        if r.u64()? != LOG_MAGIC {
            return Err(Error::corrupt("no cache device log block"));
        }
        let prev = LogPtr::from_words(r.u64s()?);
        r.skip(LOG_ENTRIES_AT - r.offset())?;
        let count = log_entries.min(LOG_ENTRIES_MAX) as usize;
        let raw = r.take(count * LOG_ENTRY_SIZE)?;
        let mut entries = Vec::with_capacity(count);
        for raw in raw.chunks_exact(LOG_ENTRY_SIZE) {
            let [d0, d1, birth, prop, daddr, complevel] =
                endian.reader(raw, "cache device log entry").u64s()?;
            let birth = Txg(birth);
            entries.push(LogEntry { dva: dva([d0, d1]), birth, prop, daddr, complevel });
        }
        Ok(LogBlock { prev, entries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Chapter 08 §G.3, the worked header (ashift 12, 2 GiB).
    fn header_words() -> Vec<u64> {
        let mut w = vec![HEADER_MAGIC, 1, 7, 8, 127, 0x40_1000, 1, 0x40_1000, 0x7ff8_0000];
        w.extend([0xbf_9000, 0xf_e000, 0xaf_b000, 0x70f_0007_007f]);
        w.extend([
            0x84_23f9_c945,
            0x0001_7b57_a90d_8dce,
            0x0235_62ee_c444_1332,
            0x477a_baad_a674_164f,
        ]);
        w.extend([0xaf_a000, 0x10_4000, 0x9f_6000, 0x70f_0007_007f, 0, 0, 0, 0]);
        w.extend([0x8000, 8, 0, 0]);
        w
    }

    #[test]
    fn the_header_of_the_specification() {
        for ashift in [9, 12] {
            let mut raw: Vec<u8> = header_words().iter().flat_map(|w| w.to_le_bytes()).collect();
            raw.resize(header_size(ashift), 0);
            crate::label::seal_region(&mut raw, HEADER_OFFSET).unwrap();
            let h = DeviceHeader::parse(&raw).unwrap();
            assert_eq!((h.log_entries, h.lb_count, h.first_sweep), (127, 8, true));
            let [newest, second] = h.newest;
            assert_eq!((newest.lsize(), newest.asize(), newest.compression()), (65_536, 4096, 15));
            assert_eq!(h.hand(), 0xbf_a000);
            assert_eq!(h.encode(ashift).unwrap(), raw);
            let mut again = LogPtr::new(newest.daddr, newest.asize(), 15, newest.cksum);
            again.payload_asize = newest.payload_asize;
            again.payload_start = newest.payload_start;
            assert_eq!(again, newest);
            assert!(newest.is_usable(&h, h.hand()) && second.is_usable(&h, h.hand()));
            assert!(!newest.is_usable(&h, newest.daddr));
            raw[300] ^= 1;
            assert!(DeviceHeader::parse(&raw).is_err());
        }
    }

    /// The header that OpenZFS wrote on the cache device of the golden pool `l2arc`.
    #[test]
    fn a_header_of_openzfs() {
        let words: [u64; 29] = [
            0x5a46_5343_4143_4845,
            1,
            0x1519_a75c_9c6e_e872,
            0x6571_1521_74f7_db4b,
            0xf,
            0x40_0200,
            1,
            0x40_0200,
            0xff8_0000,
            0x38b_9c00,
            0x16_1000,
            0x375_8c00,
            0x70f_0001_007f,
            0x53_0c2a_1f11,
            0x2f19_00af_e7c2,
            0xe_7ae3_a3bb_54d3,
            0x33a_707b_6eeb_8bc3,
            0x375_8800,
            0x18_1a00,
            0x35d_6e00,
            0x70f_0001_007f,
            0x4d_bda1_8e89,
            0x2a80_c925_3a83,
            0xc_afaa_d79a_6d4d,
            0x2c6_123f_6350_9bf8,
            0xc800,
            0x32,
            0,
            0,
        ];
        let mut raw: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        raw.resize(472, 0);
        raw.extend(0x0210_da7a_b10c_7a11u64.to_le_bytes());
        raw.extend([
            0x15, 0x93, 0xfb, 0x9b, 0x51, 0xb0, 0xf9, 0x44, 0x2a, 0x14, 0xb0, 0x66, 0x37, 0x18,
            0x7c, 0xe0, 0xc0, 0xfa, 0x26, 0xbb, 0x79, 0xb0, 0x24, 0xfd, 0x20, 0xe8, 0x84, 0x6f,
            0x28, 0xd5, 0x12, 0x9e,
        ]);
        let header = DeviceHeader::parse(&raw).unwrap();
        assert_eq!((header.lb_count, header.lb_asize, header.log_entries), (50, 51_200, 15));
        assert_eq!(header.encode(9).unwrap(), raw);
    }

    #[test]
    fn log_blocks() {
        let mut raw = vec![0; LOG_BLOCK_SIZE];
        raw[..8].copy_from_slice(&LOG_MAGIC.to_le_bytes());
        let entry = [0x10u64, 0x2990, 10, 0x0201_0002_000f_000f, 0xaf_b000, 0];
        for (bytes, word) in raw[128..].chunks_exact_mut(8).zip(entry) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let block = LogBlock::parse(&raw, 127, Endian::Little).unwrap();
        assert_eq!(block.entries.len(), 127);
        let e = block.entries[0];
        assert_eq!((e.dva.offset, e.dva.asize.0, e.birth), (0x2990 << 9, 0x2000, Txg(10)));
        assert_eq!((e.lsize(), e.psize(), e.compression(), e.daddr), (8192, 8192, 2, 0xaf_b000));
        assert!(!e.is_metadata() && !e.is_mfu() && !e.is_prefetch() && !e.is_protected());
        assert_eq!(LogBlock::parse(&raw, u64::MAX, Endian::Little).unwrap().entries.len(), 1022);
        assert_eq!(LogEntry::new(e.dva, e.birth, e.daddr, e.facts()), e);
        assert_eq!(LogBlock { entries: block.entries[..1].to_vec(), ..block }.encode(), raw);
        assert!(LogBlock::parse(&raw, 127, Endian::Big).is_err());
        assert!(LogBlock::parse(&raw[..200], 127, Endian::Little).is_err());
    }

    #[test]
    fn entries_follow_the_size() {
        let least = REBUILD_SIZE_MIN;
        assert_eq!(log_entries(0x40_1000, 0x7ff8_0000, least), 127);
        assert_eq!(log_entries(0x40_1000, (1 << 30) - 1, least), 0);
        assert_eq!(log_entries(0x40_1000, (1 << 30) - 1, 0), 63);
        assert_eq!(log_entries(0, 1 << 60, least), 1022);
        assert_eq!(ring(2 << 30, 12), Some((0x40_1000, 0x7ff8_0000)));
        assert_eq!(ring(63 << 20, 12), None);
    }

    proptest! {
        #[test]
        fn hostile_headers_never_panic(
            cuts in prop::collection::vec((16usize..232, any::<u8>()), 0..20),
            hand: u64,
        ) {
            let mut raw: Vec<u8> = header_words().iter().flat_map(|w| w.to_le_bytes()).collect();
            raw.resize(512, 0);
            for (at, byte) in cuts {
                raw[at] = byte;
            }
            if let Ok(h) = DeviceHeader::parse_unverified(&raw, Endian::Little) {
                let _ = (h.hand(), h.newest[0].is_usable(&h, hand));
            }
            let _ = DeviceHeader::parse(&raw);
            let _ = LogBlock::parse(&raw, hand, Endian::Little);
        }
    }
}
