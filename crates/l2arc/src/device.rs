//! One cache device: ring, log blocks, header.
//!
//! # Theory
//! The *hand* is where the next block is written, *evict* the offset up to which old blocks
//! were evicted. A batch is planned first: for each block the ring makes room (at the end of
//! the device it wraps), and behind every `log_entries` blocks a log block is placed. Then
//! all of it is written, the blocks enter the index, and the header is written.
//!
//! # Invariants
//! * No indexed block overlaps a range that is being written: it was evicted before.
//! * A block is in the index only after its write completed without error.
//! * The log blocks in `logs` are those between evict and hand, in ring order.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use base::planted::BugSwitch;
use base::rt::{self, Mutex};
use base::{Buf, Dva, Error, Guid, Result, Txg};
use codec::checksum::fletcher::fletcher4;
use codec::compress::Compression;
use device::{Device, Io};
use ondisk::endian::Endian;
use ondisk::l2::{
    DeviceHeader, EntryFacts, HEADER_OFFSET, LOG_BLOCK_SIZE, LOG_ENTRIES_MAX, LogBlock, LogEntry,
    LogPtr, header_size, log_entries, ring,
};

use crate::index::{BlockId, CachedBlock, IndexSums, RingIndex};
use crate::timed::{self, Abandoned};
use crate::{READ_LIMIT, WRITE_LIMIT};

/// Errors after which a device is not used any more until it is cleared or reopened.
const ERRORS_MAX: u64 = 10;
/// Bytes of one write.
const WRITE_MAX: u64 = 1 << 20;
const LZ4: u8 = 15;
const OFF: u8 = 2;
/// Least bytes that are trimmed ahead of the hand (`l2arc_trim_ahead`).
const TRIM_MIN: u64 = 64 << 20;

/// The state of a cache device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// In use.
    Online,
    /// Too many errors: it is not used until it is cleared.
    Faulted,
}

/// What identifies a cache device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// Its guid.
    pub guid: Guid,
    /// Its pool's guid.
    pub pool: Guid,
    /// log2 of its sector, from its label.
    pub ashift: u32,
    /// Devices whose ring ends before this have no log blocks
    /// (`l2arc_rebuild_blocks_min_l2size`).
    pub rebuild_min: u64,
    /// Entries of each log block, for tests with small rings; `None`: what the format
    /// demands for the ring's size (chapter 08 §G.1).
    pub log_entries: Option<u64>,
    /// Most bytes of the ring, for tests that overwrite it often; `None`: the whole device.
    pub ring_max: Option<u64>,
}

/// Bugs to plant ([`base::planted`]), before the device is used.
#[derive(Debug, Default)]
pub struct CacheBugs {
    /// What the device returns is not verified.
    pub unverified: BugSwitch,
    /// A block that was freed stays in the index.
    pub keep_freed: BugSwitch,
    /// The rebuild accepts what the ring overwrote.
    pub overwritten_logs: BugSwitch,
    /// The rebuild accepts the header of another pool or device.
    pub foreign_header: BugSwitch,
}

/// Operations and errors of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    /// Reads and their bytes.
    pub reads: [u64; 2],
    /// Writes and their bytes.
    pub writes: [u64; 2],
    /// Reads that failed.
    pub read_errors: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Blocks with a wrong checksum.
    pub checksum_errors: u64,
    /// Blocks that the ring overwrote while they were read.
    pub overwritten: u64,
}

#[derive(Default)]
struct DeviceCounters {
    reads: [AtomicU64; 2],
    writes: [AtomicU64; 2],
    read_errors: AtomicU64,
    write_errors: AtomicU64,
    checksum_errors: AtomicU64,
    overwritten: AtomicU64,
}

fn count(pair: &[AtomicU64; 2], bytes: u64) {
    pair[0].fetch_add(1, Relaxed);
    pair[1].fetch_add(bytes, Relaxed);
}

/// A block to be written.
#[derive(Clone, Debug)]
pub struct NewBlock {
    /// Its identity.
    pub id: BlockId,
    /// Its first address, as its pointer has it.
    pub dva: Dva,
    /// What is known of it.
    pub facts: EntryFacts,
    /// Its bytes as stored; `facts.psize` of them.
    pub stored: Buf,
}

/// What the writer of a device owns.
pub(crate) struct RingWriter {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) hand: u64,
    pub(crate) evict: u64,
    /// The ring has not been filled once yet.
    pub(crate) first_sweep: bool,
    pub(crate) entries_each: u64,
    pub(crate) newest: [LogPtr; 2],
    /// Blocks written since the last log block.
    open: Vec<LogEntry>,
    open_asize: u64,
    /// Log blocks on the device: offset and bytes, the oldest first.
    pub(crate) logs: VecDeque<(u64, u64)>,
    pub(crate) logs_asize: u64,
    trimmed: u64,
}

impl RingWriter {
    pub(crate) fn new(start: u64, end: u64, spec: &DeviceSpec) -> RingWriter {
        let by_size = log_entries(start, end, spec.rebuild_min);
        RingWriter {
            start,
            end,
            hand: start,
            evict: start,
            first_sweep: true,
            entries_each: spec.log_entries.map_or(by_size, |n| n.min(LOG_ENTRIES_MAX)),
            newest: [LogPtr::default(); 2],
            open: Vec::new(),
            open_asize: 0,
            logs: VecDeque::new(),
            logs_asize: 0,
            trimmed: 0,
        }
    }

    pub(crate) fn header(&self, spec: &DeviceSpec) -> DeviceHeader {
        DeviceHeader {
            pool_guid: spec.pool,
            vdev_guid: spec.guid,
            log_entries: self.entries_each,
            evict: self.evict,
            first_sweep: self.first_sweep,
            start: self.start,
            end: self.end,
            newest: self.newest,
            lb_asize: self.logs_asize,
            lb_count: self.logs.len() as u64,
            trim_time: 0,
            trim_state: 0,
            endian: Endian::Little,
        }
    }

    fn drop_logs(&mut self, range: &Range<u64>) {
        while let Some(&(_, asize)) = self.logs.front().filter(|(at, _)| range.contains(at)) {
            self.logs.pop_front();
            self.logs_asize -= asize;
        }
    }
}

/// The result of a feed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeedCounts {
    /// Blocks written.
    pub blocks: u64,
    /// Bytes written, log blocks and padding included.
    pub bytes: u64,
    /// Writes sent to the device.
    pub sent: u64,
    /// Writes that failed.
    pub failed: u64,
    /// Log blocks written, and their bytes.
    pub logs: [u64; 2],
    /// Live blocks evicted.
    pub evicted: u64,
}

/// An open cache device.
pub struct CacheDevice {
    /// Planted bugs; none by default.
    pub bugs: CacheBugs,
    spec: DeviceSpec,
    name: String,
    device: Arc<dyn Device>,
    pub(crate) writer: Mutex<RingWriter>,
    pub(crate) index: Mutex<RingIndex>,
    faulted: AtomicBool,
    filling: AtomicBool,
    /// A batch is being written.
    pub(crate) writing: AtomicBool,
    /// Bytes and number of log blocks.
    logs: [AtomicU64; 2],
    /// The rebuild is running: nothing is written.
    pub(crate) rebuilding: AtomicBool,
    /// The device was removed, or its pool is being closed.
    pub(crate) gone: AtomicBool,
    pub(crate) memory: AtomicU64,
    pub(crate) abandoned: Abandoned,
    counters: DeviceCounters,
    since: rt::Instant,
}

impl CacheDevice {
    /// An open device with an empty ring. Nothing is read or written yet.
    ///
    /// # Errors
    /// `Invalid` for a device that is too small.
    pub fn new(spec: DeviceSpec, name: &str, device: Arc<dyn Device>) -> Result<CacheDevice> {
        if !(9..=16).contains(&spec.ashift) {
            return Err(Error::invalid("a cache device with an impossible sector size"));
        }
        let (start, end) = ring(device.size(), spec.ashift)
            .ok_or_else(|| Error::invalid("the cache device is too small"))?;
        let end = spec.ring_max.map_or(end, |most| end.min(start.saturating_add(most)));
        let writer = RingWriter::new(start, end, &spec);
        let index = RingIndex::new(1 << spec.ashift, rt::random_u64().unwrap_or(1));
        Ok(CacheDevice {
            bugs: CacheBugs::default(),
            name: name.to_owned(),
            device,
            writer: Mutex::new(writer),
            index: Mutex::new(index),
            faulted: AtomicBool::new(false),
            filling: AtomicBool::new(true),
            writing: AtomicBool::new(false),
            logs: Default::default(),
            rebuilding: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            memory: AtomicU64::new(0),
            abandoned: Abandoned::default(),
            counters: DeviceCounters::default(),
            since: rt::now(),
            spec,
        })
    }

    /// Its identity.
    pub fn spec(&self) -> &DeviceSpec {
        &self.spec
    }

    /// Its path, for people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device below.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Its state.
    pub fn health(&self) -> Health {
        if self.faulted.load(Relaxed) { Health::Faulted } else { Health::Online }
    }

    /// Sets the error counters to 0, and takes a faulted device into use again.
    pub fn clear(&self) {
        let c = &self.counters;
        for counter in [&c.read_errors, &c.write_errors, &c.checksum_errors] {
            counter.store(0, Relaxed);
        }
        self.faulted.store(false, Relaxed);
    }

    /// Its operations and errors.
    pub fn counts(&self) -> DeviceCounts {
        let c = &self.counters;
        let pair = |p: &[AtomicU64; 2]| [p[0].load(Relaxed), p[1].load(Relaxed)];
        DeviceCounts {
            reads: pair(&c.reads),
            writes: pair(&c.writes),
            read_errors: c.read_errors.load(Relaxed),
            write_errors: c.write_errors.load(Relaxed),
            checksum_errors: c.checksum_errors.load(Relaxed),
            overwritten: c.overwritten.load(Relaxed),
        }
    }

    /// How long it has been counting.
    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// The sums over its blocks.
    pub fn sums(&self) -> IndexSums {
        *self.index.lock().sums()
    }

    /// Bytes and number of its log blocks.
    pub fn logs(&self) -> [u64; 2] {
        [self.logs[0].load(Relaxed), self.logs[1].load(Relaxed)]
    }

    /// Bytes of its ring.
    pub fn capacity(&self) -> u64 {
        let all = ring(self.device.size(), self.spec.ashift).map_or(0, |(start, end)| end - start);
        self.spec.ring_max.map_or(all, |most| all.min(most))
    }

    /// Memory of its index, bytes.
    pub fn memory(&self) -> u64 {
        self.memory.load(Relaxed)
    }

    /// The ring is being filled for the first time.
    pub(crate) fn is_filling(&self) -> bool {
        self.filling.load(Relaxed)
    }

    /// Whether it can be read and written now.
    pub fn is_usable(&self) -> bool {
        self.health() == Health::Online
            && !self.gone.load(Relaxed)
            && self.abandoned.load(SeqCst) == 0
    }

    /// Whether it can be fed now.
    pub(crate) fn is_writable(&self) -> bool {
        self.is_usable() && self.device.caps().writable && !self.rebuilding.load(Relaxed)
    }

    /// Whether a batch is being written now.
    pub fn is_writing(&self) -> bool {
        self.writing.load(Relaxed)
    }

    /// Marks the device as removed: it is not used any more.
    pub(crate) fn retire(&self) {
        self.gone.store(true, Relaxed);
    }

    pub(crate) fn note_index(&self, index: &RingIndex) {
        self.memory.store(index.memory(), Relaxed);
    }

    pub(crate) fn note_ring(&self, writer: &RingWriter) {
        self.logs[0].store(writer.logs_asize, Relaxed);
        self.logs[1].store(writer.logs.len() as u64, Relaxed);
        self.filling.store(writer.first_sweep, Relaxed);
    }

    fn failed(&self, counter: &AtomicU64) {
        if counter.fetch_add(1, Relaxed) + 1 >= ERRORS_MAX {
            self.faulted.store(true, Relaxed);
        }
    }

    /// The indexed blocks, the oldest first; for tests, because it copies the index.
    pub fn blocks(&self) -> Vec<CachedBlock> {
        self.index.lock().blocks()
    }

    /// Whether the block is on the device.
    pub fn contains(&self, id: &BlockId) -> bool {
        self.index.lock().contains(id)
    }

    /// The block's bytes as stored, not verified. `Ok(None)` if it is not there or has
    /// another size.
    ///
    /// # Errors
    /// Those of the device, which were counted: for the caller this is a miss.
    pub fn read(&self, id: &BlockId, psize: u64) -> Result<Option<Buf>> {
        if !self.is_usable() {
            return Ok(None);
        }
        let found = self.index.lock().get(id);
        let Some(block) = found.filter(|b| b.facts.psize == psize) else { return Ok(None) };
        let buf = self.read_at(block.daddr, psize as usize)?;
        // The ring may have overwritten it meanwhile.
        let still = self.index.lock().get(id).is_some_and(|b| b.daddr == block.daddr);
        if !still {
            self.counters.overwritten.fetch_add(1, Relaxed);
        }
        Ok(still.then_some(buf))
    }

    pub(crate) fn read_at(&self, offset: u64, len: usize) -> Result<Buf> {
        let done =
            timed::run(&*self.device, vec![Io::read(offset, len)], READ_LIMIT, &self.abandoned)
                .and_then(|mut done| done.pop().ok_or_else(|| Error::bug("no completion")))
                .and_then(device::Completion::into_read);
        match done {
            Ok(buf) => {
                count(&self.counters.reads, len as u64);
                Ok(buf.freeze())
            }
            Err(e) => {
                self.failed(&self.counters.read_errors);
                Err(e)
            }
        }
    }

    /// Drops a block that failed its checksum. Log blocks of an earlier use may name what a
    /// crash left unwritten or what another system overwrote: that says nothing against the
    /// device.
    pub(crate) fn reject(&self, id: &BlockId) {
        if self.index.lock().is_restored(id) {
            self.counters.checksum_errors.fetch_add(1, Relaxed);
        } else {
            self.failed(&self.counters.checksum_errors);
        }
        self.drop_block(id);
    }

    /// Drops a block that was freed. True if it was there.
    pub fn forget(&self, id: &BlockId) -> bool {
        if self.bugs.keep_freed.load(Relaxed) {
            return false;
        }
        self.drop_block(id)
    }

    fn drop_block(&self, id: &BlockId) -> bool {
        self.index.lock().remove(id).is_some()
    }

    /// Writes blocks, and the header behind them. Blocks that do not fit a quarter of the
    /// device are left out. Only one thread feeds a device.
    pub fn feed(&self, blocks: Vec<NewBlock>, trim_ahead: u64) -> FeedCounts {
        let mut counts = FeedCounts::default();
        if !self.is_writable() {
            return counts;
        }
        let mut writer = self.writer.lock();
        let most = (writer.end - writer.start) / 4;
        let mut planned = 0;
        let (mut ios, mut placed) = (WritePlan::default(), Vec::new());
        for block in blocks {
            let asize = block.facts.psize.next_multiple_of(1 << self.spec.ashift);
            if block.stored.len() as u64 != block.facts.psize || planned + asize > most {
                continue;
            }
            let at = self.make_room(&mut writer, asize, &mut ios, &mut counts);
            let cached = CachedBlock { id: block.id, daddr: at, facts: block.facts };
            if !cached.is_valid() {
                continue;
            }
            planned += asize;
            ios.add(at, block.stored, asize);
            writer.hand += asize;
            placed.push(cached);
            if writer.entries_each > 0 {
                writer.open.push(LogEntry::new(block.dva, Txg(block.id.birth), at, block.facts));
                writer.open_asize += asize;
                if writer.open.len() as u64 >= writer.entries_each {
                    self.close_log(&mut writer, &mut ios, &mut counts);
                }
            }
        }
        if placed.is_empty() {
            return counts;
        }
        self.trim(&mut writer, trim_ahead, &mut ios, &mut counts);
        self.writing.store(true, Relaxed);
        if self.send(ios.ios, &mut counts) {
            let mut index = self.index.lock();
            counts.blocks = placed.iter().filter(|block| index.push(block)).count() as u64;
            self.note_index(&index);
        }
        self.write_header(&writer, &mut counts);
        self.writing.store(false, Relaxed);
        self.note_ring(&writer);
        counts
    }

    /// Evicts what the next `len` bytes overwrite, wrapping at the end of the ring, and
    /// returns their offset.
    fn make_room(
        &self,
        writer: &mut RingWriter,
        len: u64,
        ios: &mut WritePlan,
        counts: &mut FeedCounts,
    ) -> u64 {
        if writer.hand + len > writer.end {
            counts.evicted += self.evict(writer, writer.hand..writer.end);
            (writer.hand, writer.evict, writer.first_sweep) = (writer.start, writer.start, false);
            writer.trimmed = 0;
            ios.break_run();
        }
        let to = writer.hand + len;
        if !writer.first_sweep && to > writer.evict {
            counts.evicted += self.evict(writer, writer.evict..to);
            writer.evict = to;
        }
        writer.hand
    }

    fn evict(&self, writer: &mut RingWriter, range: Range<u64>) -> u64 {
        writer.drop_logs(&range);
        let mut index = self.index.lock();
        let evicted = index.evict(range);
        self.note_index(&index);
        evicted
    }

    /// Places a log block of the open entries behind the last block.
    fn close_log(&self, writer: &mut RingWriter, ios: &mut WritePlan, counts: &mut FeedCounts) {
        let entries = std::mem::take(&mut writer.open);
        let payload_asize = std::mem::take(&mut writer.open_asize);
        let Some(payload_start) = entries.first().map(|e| e.daddr) else { return };
        let raw = LogBlock { prev: writer.newest[1], entries }.encode();
        let sector = 1usize << self.spec.ashift;
        let mut packed = vec![0; LOG_BLOCK_SIZE];
        let most = LOG_BLOCK_SIZE - sector;
        let stored = match codec::compress::compress(Compression::Lz4, &raw, &mut packed[..most]) {
            Some(n) if n > 0 && n.next_multiple_of(sector) <= most => {
                packed.truncate(n.next_multiple_of(sector));
                packed[n..].fill(0);
                (packed, LZ4)
            }
            _ => (raw, OFF),
        };
        let (bytes, compression) = stored;
        let asize = bytes.len() as u64;
        let at = self.make_room(writer, asize, ios, counts);
        let cksum = fletcher4(&bytes, false);
        let mut ptr = LogPtr::new(at, asize, compression, cksum);
        (ptr.payload_asize, ptr.payload_start) = (payload_asize, payload_start);
        writer.newest = [ptr, writer.newest[0]];
        writer.logs.push_back((at, asize));
        writer.logs_asize += asize;
        writer.hand += asize;
        ios.add(at, Buf::copy_of(&bytes), asize);
        counts.logs[0] += 1;
        counts.logs[1] += asize;
    }

    /// Trims ahead of the hand (`l2arc_trim_ahead`, percent of a turn).
    fn trim(
        &self,
        writer: &mut RingWriter,
        ahead: u64,
        ios: &mut WritePlan,
        counts: &mut FeedCounts,
    ) {
        if ahead == 0 || writer.first_sweep || !self.device.caps().trim {
            return;
        }
        let to = (writer.hand + ahead.max(TRIM_MIN)).min(writer.end);
        let from = writer.hand.max(writer.trimmed);
        if to <= from {
            return;
        }
        if to > writer.evict {
            counts.evicted += self.evict(writer, writer.evict..to);
            writer.evict = to;
        }
        writer.trimmed = to;
        ios.ios.push(Io::Trim { offset: from, len: to - from });
    }

    /// Sends operations; true if all succeeded.
    fn send(&self, ios: Vec<Io>, counts: &mut FeedCounts) -> bool {
        let sizes: Vec<Option<u64>> =
            ios.iter().map(|io| matches!(io, Io::Write { .. }).then(|| io.len())).collect();
        let writes = sizes.iter().flatten().count() as u64;
        counts.sent += writes;
        match timed::run(&*self.device, ios, WRITE_LIMIT, &self.abandoned) {
            Err(_) => {
                self.failed(&self.counters.write_errors);
                counts.failed += writes;
                false
            }
            Ok(done) => {
                let mut good = true;
                for (completion, size) in done.iter().zip(sizes) {
                    match (&completion.result, size) {
                        (Ok(_), Some(bytes)) => {
                            count(&self.counters.writes, bytes);
                            counts.bytes += bytes;
                        }
                        (Err(_), Some(_)) => {
                            self.failed(&self.counters.write_errors);
                            counts.failed += 1;
                            good = false;
                        }
                        // A device that cannot trim is none the worse.
                        (_, None) => {}
                    }
                }
                good
            }
        }
    }

    fn write_header(&self, writer: &RingWriter, counts: &mut FeedCounts) {
        if let Ok(bytes) = writer.header(&self.spec).encode(self.spec.ashift) {
            let write = Io::Write { offset: HEADER_OFFSET, bufs: vec![Buf::copy_of(&bytes)] };
            self.send(vec![write], counts);
        }
    }

    /// Makes the device empty: a fresh header, so that no earlier content is ever found.
    pub(crate) fn start_anew(&self) {
        let mut writer = self.writer.lock();
        let fresh = RingWriter::new(writer.start, writer.end, &self.spec);
        *writer = fresh;
        self.index.lock().clear();
        self.note_ring(&writer);
        if self.device.caps().writable {
            self.write_header(&writer, &mut FeedCounts::default());
        }
    }

    /// Bytes of the device header.
    pub(crate) fn header_size(&self) -> usize {
        header_size(self.spec.ashift)
    }
}

/// Writes in the order of the ring, neighbours joined.
#[derive(Default)]
struct WritePlan {
    ios: Vec<Io>,
    next: u64,
}

impl WritePlan {
    fn break_run(&mut self) {
        self.next = 0;
    }

    fn add(&mut self, at: u64, stored: Buf, asize: u64) {
        let padding = asize - stored.len() as u64;
        let mut new = vec![stored];
        if padding > 0 {
            new.push(Buf::zeros(padding as usize));
        }
        let joins = self.next == at;
        self.next = at + asize;
        if let Some(last) = self.ios.last_mut().filter(|_| joins)
            && last.len() + asize <= WRITE_MAX
            && let Io::Write { bufs, .. } = last
        {
            bufs.append(&mut new);
            return;
        }
        self.ios.push(Io::Write { offset: at, bufs: new });
    }
}
