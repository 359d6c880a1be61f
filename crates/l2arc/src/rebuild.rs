//! Restoring the index from the log blocks of an earlier use (chapter 08 §G.3).
//!
//! # Theory
//! The header leads to the two newest log blocks, and each log block to the one before the
//! previous. The rebuild walks from the newest to the oldest, and adds their blocks in front
//! of those found already, so readers find the newest blocks first. It stops at the first
//! pointer that is not valid, log block that is not intact, or when memory is short; what
//! was found stays.
//!
//! # Invariants
//! * Every byte of the device is hostile. Log blocks and blocks must lie strictly behind
//!   each other around the ring, as seen from the hand backwards. So a chain with a loop
//!   ends, and the number of blocks is at most the number of sectors of the ring.
//! * A device of another pool, another vdev or another shape is ignored and begun anew.

use std::sync::atomic::Ordering::Relaxed;

use base::Buf;
use codec::checksum::fletcher::fletcher4;
use ondisk::endian::Endian;
use ondisk::l2::{DeviceHeader, HEADER_OFFSET, LOG_BLOCK_SIZE, LogBlock, LogPtr};

use crate::device::{CacheDevice, RingWriter};
use crate::index::{BlockId, CachedBlock};

const OFF: u8 = 2;

/// How a rebuild ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebuildEnd {
    /// All that was intact is back: logical bytes, bytes on the device, blocks, blocks that
    /// a newer record had already, and log blocks.
    Done {
        /// Logical bytes.
        size: u64,
        /// Bytes on the device.
        asize: u64,
        /// Blocks.
        blocks: u64,
        /// Blocks that were in the index already.
        known: u64,
        /// Log blocks.
        logs: u64,
        /// A log block was not intact.
        damaged: bool,
        /// Memory was short.
        short: bool,
        /// A log block could not be read.
        failed: bool,
    },
    /// There is no usable header, or it is that of another use.
    NoHeader,
    /// The header is of an unknown version.
    Unsupported,
    /// The header could not be read.
    Failed,
}

/// A position on the walk: offsets measured backwards from the hand.
struct Walk {
    start: u64,
    end: u64,
    hand: u64,
    /// Distance of the last accepted position.
    passed: u64,
    /// Planted: what the ring overwrote is accepted, so many times.
    careless: u32,
}

impl Walk {
    /// How far `at` lies behind the hand; the largest number for an offset outside the ring.
    fn distance(&self, at: u64) -> u64 {
        match at {
            _ if at < self.start || at > self.end => u64::MAX,
            _ if at < self.hand => self.hand - at,
            _ => self.hand - self.start + (self.end - at),
        }
    }

    /// Accepts a range if it lies behind everything accepted before.
    fn accept(&mut self, at: u64, len: u64) -> bool {
        let inside = at >= self.start && at.checked_add(len).is_some_and(|to| to <= self.end);
        if !inside || len == 0 {
            return false;
        }
        if self.careless > 0 {
            self.careless -= 1;
            return true;
        }
        let from = self.distance(at);
        // The range may touch the hand, but not contain it.
        if from < len || from - len < self.passed {
            return false;
        }
        self.passed = from;
        true
    }
}

impl CacheDevice {
    /// Restores the index. `enough` is asked after each log block with the memory of this
    /// device's index, and ends the rebuild when it returns true. Blocks can be read
    /// meanwhile; nothing is written until the end.
    pub fn rebuild(&self, enough: &dyn Fn(u64) -> bool) -> RebuildEnd {
        self.rebuilding.store(true, Relaxed);
        let end = self.restore_or_clear(enough);
        self.rebuilding.store(false, Relaxed);
        end
    }

    /// As [`CacheDevice::rebuild`], for a caller that has set `rebuilding` and resets it.
    pub(crate) fn restore_or_clear(&self, enough: &dyn Fn(u64) -> bool) -> RebuildEnd {
        let end = self.restore(enough);
        if !matches!(end, RebuildEnd::Done { .. }) && !self.gone.load(Relaxed) {
            self.start_anew();
        }
        end
    }

    fn restore(&self, enough: &dyn Fn(u64) -> bool) -> RebuildEnd {
        let Ok(raw) = self.read_at(HEADER_OFFSET, self.header_size()) else {
            return RebuildEnd::Failed;
        };
        let header = match DeviceHeader::parse(&raw) {
            Ok(header) => header,
            Err(e) if e.kind() == base::ErrorKind::Unsupported => return RebuildEnd::Unsupported,
            Err(_) => return RebuildEnd::NoHeader,
        };
        let mut writer = self.writer.lock();
        if !self.accept(&header, &mut writer) {
            return RebuildEnd::NoHeader;
        }
        self.note_ring(&writer);
        let hand = writer.hand;
        drop(writer);
        self.walk(&header, hand, enough)
    }

    /// Takes the ring's state from a header of this device, if it is one.
    fn accept(&self, header: &DeviceHeader, writer: &mut RingWriter) -> bool {
        let (spec, hand) = (self.spec(), header.hand());
        let shape = (header.start, header.end, header.log_entries);
        let same = header.pool_guid == spec.pool && header.vdev_guid == spec.guid;
        let ours = (same || self.bugs.foreign_header.load(Relaxed))
            && shape == (writer.start, writer.end, writer.entries_each)
            && header.log_entries > 0
            && (writer.start..=writer.end).contains(&hand)
            && hand.is_multiple_of(1 << spec.ashift)
            && header.evict.is_multiple_of(1 << spec.ashift);
        if ours {
            (writer.hand, writer.evict) = (hand, header.evict);
            writer.first_sweep = header.first_sweep;
            writer.newest = header.newest;
            if !header.first_sweep {
                writer.evict = writer.evict.max(hand);
            }
        }
        ours
    }

    fn walk(&self, header: &DeviceHeader, hand: u64, enough: &dyn Fn(u64) -> bool) -> RebuildEnd {
        let (start, end) = (header.start, header.end);
        let careless = if self.bugs.overwritten_logs.load(Relaxed) { 10_000 } else { 0 };
        let mut walk = Walk { start, end, hand, passed: 0, careless };
        let (mut blocks, mut known, mut logs) = (0, 0, 0);
        let (mut damaged, mut short, mut failed) = (false, false, false);
        let [mut next, mut later] = header.newest;
        let mut found = Vec::new();
        let usable = |ptr: &LogPtr| careless > 0 || ptr.is_usable(header, hand);
        while next != LogPtr::default() && usable(&next) {
            if self.gone.load(Relaxed) || !self.is_usable() {
                break;
            }
            if enough(self.memory()) {
                short = true;
                break;
            }
            if !walk.accept(next.daddr, next.asize()) {
                damaged = true;
                break;
            }
            let Ok(raw) = self.read_at(next.daddr, next.asize() as usize) else {
                failed = true;
                break;
            };
            let Some(block) = open_log(&raw, &next, header) else {
                damaged = true;
                break;
            };
            let (new, old) = self.add_entries(&block, &next, &mut walk);
            (blocks, known, logs) = (blocks + new, known + old, logs + 1);
            found.push((next.daddr, next.asize()));
            (next, later) = (later, block.prev);
        }
        let sums = self.sums();
        let mut writer = self.writer.lock();
        writer.logs_asize = found.iter().map(|(_, asize)| asize).sum();
        writer.logs = found.into_iter().rev().collect();
        self.note_ring(&writer);
        let (size, asize) = (sums.lsize, sums.asize);
        RebuildEnd::Done { size, asize, blocks, known, logs, damaged, short, failed }
    }

    /// Adds the blocks of a log block, the newest first. Entries that do not lie in order
    /// are left out.
    fn add_entries(&self, block: &LogBlock, ptr: &LogPtr, walk: &mut Walk) -> (u64, u64) {
        let first = walk.distance(ptr.payload_start);
        let (mut new, mut known) = (0, 0);
        let mut index = self.index.lock();
        for entry in block.entries.iter().rev() {
            let id =
                BlockId { vdev: entry.dva.vdev.0, offset: entry.dva.offset, birth: entry.birth.0 };
            let cached = CachedBlock { id, daddr: entry.daddr, facts: entry.facts() };
            let asize = index.asize(cached.facts.psize);
            let belongs = walk.careless > 0 || walk.distance(entry.daddr) <= first;
            if !belongs || !cached.is_valid() || !walk.accept(entry.daddr, asize) {
                continue;
            }
            match index.push_oldest(&cached) {
                true => new += 1,
                false => known += 1,
            }
        }
        self.note_index(&index);
        (new, known)
    }
}

/// A log block that was read, if it is intact.
fn open_log(raw: &Buf, ptr: &LogPtr, header: &DeviceHeader) -> Option<LogBlock> {
    if fletcher4(raw, header.endian != Endian::Little) != ptr.cksum {
        return None;
    }
    let unpacked;
    let bytes: &[u8] = if ptr.compression() == OFF {
        raw
    } else {
        let mut out = vec![0; LOG_BLOCK_SIZE];
        codec::compress::decompress(ptr.compression(), raw, &mut out).ok()?;
        unpacked = out;
        &unpacked
    };
    LogBlock::parse(bytes, header.log_entries, header.endian).ok()
}
