//! The writing half of a volume.
//!
//! # Theory
//! A write is split at multiples of 1 MiB (or of a larger block). Each piece is one
//! transaction, under a lock on its range of blocks, and adds its record to the intent log in
//! that transaction (chapter 06 §17.1: TX_WRITE). Whole blocks are replaced without being
//! read; a block that is written in part is read first.
//!
//! [`Volume::discard`] frees the whole blocks of a range, [`Volume::zero`] in addition zeroes
//! the parts of blocks at both ends. Both skip what is a hole already, and log TX_TRUNCATE
//! for the rest. A long range takes several transactions, each with its own record.
//!
//! [`Volume::flush`] is the barrier of a block device: what was written before it is durable
//! when it returns.
//!
//! # Sizes
//! The size on disk changes in a txg, never in the log. A volume grows in memory when the txg
//! with its new size is on disk: no record in the log is then ever behind the end of the
//! volume on disk. It shrinks in memory first, with all writers excluded, then the blocks
//! behind the new end are freed, and the size on disk changes in the transaction that frees
//! the last of them. After a crash in between, the volume has its old size, and its end may
//! read as zeros.
//!
//! # Crash argument
//! After a crash the volume is in the state of the last txg on disk, with the records of the
//! log replayed upon it in the order of the changes (crate `zil`). All that a successful
//! flush covers is in one of them. A write that no flush covers may be there in part;
//! each sector of 512 bytes has its old content or its new one.
//!
//! # Invariants
//! * Nothing is written behind the end, and no lock but the range lock is held during I/O.
//! * Records of writes name their block always, because a replay of volumes knows no
//!   TX_WRITE2.
//!
//! Lock order: `resizing` → range lock → transaction ([`VolumeHost::begin`]) → dmu. No thread
//! waits for a txg with a transaction open.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use base::range_lock::RangeLock;
use base::rt::Mutex;
use base::{Error, ErrorKind, ObjectId, Result, Txg, VdevId};
use dmu::{Early, Io, Objset, OutagePolicy, PrefetchMode, Tx, zaps};
use ondisk::BlkPtr;
use ondisk::zap::ZapValue;
use ondisk::zil::RecordBody;
use zil::Log;

use crate::{DATA, PROPS, Volume, check_size};

/// Bytes that one transaction writes at most, but at least one block.
const WRITE_MAX: u64 = 1 << 20;
/// A block takes at least one sector, which is 4 KiB on most pools.
const SECTOR: u64 = 4 << 10;
/// Bytes that a transaction makes dirty besides data: the block of the dnode.
const DNODE_BLOCK: u64 = 16 << 10;
/// Data blocks that one transaction frees at most: those below 16 indirect blocks.
const FREE_BLOCKS: u64 = 16 << 10;
/// Data blocks that one txg frees before a thread that frees more waits for it.
const TXG_BLOCKS: u64 = 256 << 10;
const TX_TRUNCATE: u8 = 10;

/// The interface to the pool below a volume.
pub trait VolumeHost: Send + Sync {
    /// Begins a transaction that makes at most `bytes` of blocks dirty. `frees`: it frees
    /// space, and may use the part reserved for that. Waits at the write throttle. `outage`
    /// is the policy of the transaction's reads for absent devices.
    ///
    /// # Errors
    /// `NoSpace`, `Quota`, `ReadOnly`, that of a suspension.
    fn begin(&self, bytes: u64, frees: bool, outage: OutagePolicy) -> Result<Tx>;

    /// Requests that `txg` be written soon, and waits until it is on disk.
    ///
    /// # Errors
    /// That of a suspension.
    fn synced(&self, txg: Txg) -> Result<()>;

    /// The intent log, if there is one; otherwise a flush waits for the txg.
    fn log(&self) -> Option<Arc<Log>>;

    /// Property `readonly`.
    fn is_read_only(&self) -> bool;
}

/// The writable state besides the object set.
pub(crate) struct Rw {
    host: Arc<dyn VolumeHost>,
    log: Option<Arc<Log>>,
    lock: RangeLock,
    /// Held while the size changes.
    resizing: Mutex<()>,
    /// The newest txg with a change.
    newest: AtomicU64,
    /// Blocks that a txg frees.
    freeing: Mutex<(Txg, u64)>,
}

impl std::fmt::Debug for Rw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Rw")
    }
}

fn read_only() -> Error {
    Error::new(ErrorKind::ReadOnly, "the volume is read-only")
}

impl Volume {
    /// Opens the volume in `os` for writing. `os` is open for writing, and no other volume is
    /// open over it.
    ///
    /// # Errors
    /// As [`Volume::open`].
    pub fn open_rw(
        os: Arc<Objset>,
        host: Arc<dyn VolumeHost>,
        prefetch: PrefetchMode,
        io: Io,
    ) -> Result<Volume> {
        let rw = Rw {
            log: host.log(),
            host,
            lock: RangeLock::default(),
            resizing: Mutex::default(),
            newest: AtomicU64::new(0),
            freeing: Mutex::new((Txg::ZERO, 0)),
        };
        Volume::open_as(os, Some(rw), prefetch, io)
    }

    /// Whether writing is allowed now: the volume is open for it, and property `readonly` is
    /// off.
    pub fn is_writable(&self) -> bool {
        self.rw().is_ok()
    }

    fn rw(&self) -> Result<&Rw> {
        let rw = self.rw_always()?;
        if rw.host.is_read_only() { Err(read_only()) } else { Ok(rw) }
    }

    /// The state for work that continues while `readonly` is set.
    pub(crate) fn rw_always(&self) -> Result<&Rw> {
        self.state.rw.as_ref().ok_or_else(read_only)
    }

    /// Checks that a range is inside the volume.
    fn check_range(&self, offset: u64, len: u64) -> Result<Range<u64>> {
        let end = offset.checked_add(len).filter(|end| *end <= self.size());
        let past = || Error::new(ErrorKind::NoSpace, "past the end of the volume");
        end.map(|end| offset..end).ok_or_else(past)
    }

    fn begin(&self, bytes: u64, frees: bool) -> Result<Tx> {
        let rw = self.rw_always()?;
        let tx = rw.host.begin(bytes, frees, self.outage)?;
        rw.newest.fetch_max(tx.txg().0, SeqCst);
        Ok(tx)
    }

    /// The log, unless it is being replayed: a replay notes each record when it is done.
    fn log(&self) -> Option<&Log> {
        let log = self.state.rw.as_ref()?.log.as_deref();
        log.filter(|log| !log.is_replaying())
    }

    /// Writes `data`. A write of more than 1 MiB takes several transactions; after an error
    /// a part of it may be written. Durable after [`Volume::flush`], and at once with
    /// `sync=always`.
    ///
    /// # Errors
    /// `NoSpace`, also past the volume's end; `Quota`; `ReadOnly`; those of reading blocks
    /// that are changed in part; that of a suspension.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.rw()?;
        self.write_range(offset, data)?;
        if let Some(counters) = self.state.counters.get() {
            counters.wrote(data.len() as u64);
        }
        self.commit_if_sync_always()
    }

    pub(crate) fn write_range(&self, offset: u64, data: &[u8]) -> Result<()> {
        let (rw, block) = (self.rw_always()?, self.block_size());
        let range = self.check_range(offset, data.len() as u64)?;
        let unit = WRITE_MAX.max(block);
        let mut at = range.start;
        while at < range.end {
            let to = (at / unit + 1).saturating_mul(unit).min(range.end);
            let piece = &data[(at - range.start) as usize..(to - range.start) as usize];
            let (first, past) = (at / block, to.div_ceil(block));
            let _lock = rw.lock.range(first * block..past.saturating_mul(block));
            // The volume may have shrunk.
            self.check_range(at, to - at)?;
            let cost = (past - first).saturating_mul(block.max(SECTOR));
            let tx = self.begin(cost + DNODE_BLOCK, false)?;
            self.state.os.write(&tx, DATA, at, piece)?;
            if let Some(log) = self.log() {
                log.write(tx.txg(), DATA, at, piece);
            }
            at = to;
        }
        Ok(())
    }

    /// Frees the whole blocks in a range, which read as zeros then. The rest of the range
    /// stays as it is.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.rw()?;
        let (range, block) = (self.check_range(offset, len)?, self.block_size());
        let blocks = range.start.div_ceil(block)..range.end / block;
        if blocks.is_empty() {
            return Ok(());
        }
        self.free_range(blocks.start * block..blocks.end * block)?;
        self.commit_if_sync_always()
    }

    /// Zeroes a range, and frees its whole blocks.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub fn zero(&self, offset: u64, len: u64) -> Result<()> {
        self.rw()?;
        self.free_range(self.check_range(offset, len)?)?;
        self.commit_if_sync_always()
    }

    /// Frees the whole blocks of a range inside the volume, and zeroes the rest of it.
    pub(crate) fn free_range(&self, range: Range<u64>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let (rw, block) = (self.rw_always()?, self.block_size());
        let locked = range.start / block * block..range.end.div_ceil(block) * block;
        let _lock = rw.lock.range(locked);
        self.check_range(range.start, range.end - range.start)?;
        let (first, past) = (range.start.div_ceil(block), range.end / block);
        if first > past {
            // Inside one block.
            return self.zero_part(range);
        }
        self.zero_part(range.start..first * block)?;
        self.free_blocks(first..past)?;
        self.zero_part(past * block..range.end)
    }

    /// Zeroes a part of one block, whose lock the caller holds.
    fn zero_part(&self, range: Range<u64>) -> Result<()> {
        let block = range.start / self.block_size();
        if range.is_empty() || self.object(self.io())?.is_hole(block, self.io())? {
            return Ok(());
        }
        let tx = self.begin(self.block_size() + DNODE_BLOCK, true)?;
        let len = range.end - range.start;
        self.state.os.free_range(&tx, DATA, range.start, len)?;
        self.log_freed(&tx, range);
        Ok(())
    }

    /// Frees data blocks whose lock the caller holds.
    fn free_blocks(&self, blocks: Range<u64>) -> Result<()> {
        let mut at = blocks.start;
        while at < blocks.end {
            let object = self.object(self.io())?;
            let data = object.next_data_block(at, self.io())?.filter(|b| *b < blocks.end);
            let Some(first) = data else { return Ok(()) };
            let past = first.saturating_add(FREE_BLOCKS).min(blocks.end);
            let tx = self.begin(2 * DNODE_BLOCK, true)?;
            self.state.os.free_blocks(&tx, DATA, first, past, false)?;
            self.log_freed(&tx, first * self.block_size()..past * self.block_size());
            let txg = tx.txg();
            drop(tx);
            self.throttle_frees(txg, past - first)?;
            at = past;
        }
        Ok(())
    }

    fn log_freed(&self, tx: &Tx, range: Range<u64>) {
        if let Some(log) = self.log() {
            let (object, length) = (DATA, range.end - range.start);
            let body = RecordBody::Truncate { object, offset: range.start, length };
            log.object(tx.txg(), DATA, TX_TRUNCATE, &body);
        }
    }

    /// Waits for the txg when it frees very many blocks.
    fn throttle_frees(&self, txg: Txg, blocks: u64) -> Result<()> {
        let rw = self.rw_always()?;
        let full = {
            let mut freeing = rw.freeing.lock();
            if freeing.0 != txg {
                *freeing = (txg, 0);
            }
            freeing.1 += blocks;
            freeing.1 > TXG_BLOCKS
        };
        if full { rw.host.synced(txg) } else { Ok(()) }
    }

    /// Makes all completed changes durable: they are in the intent log, or on disk.
    ///
    /// # Errors
    /// That of a suspension.
    pub fn flush(&self) -> Result<()> {
        self.flush_for(0)
    }

    /// As [`Volume::flush`]; `thread` is the id of the thread that makes the call, 0 if
    /// unknown, for the intent log's statistics.
    ///
    /// # Errors
    /// As [`Volume::flush`].
    pub fn flush_for(&self, thread: u32) -> Result<()> {
        let Some(rw) = &self.state.rw else { return Ok(()) };
        match (rw.newest.load(SeqCst), &rw.log) {
            (0, _) => Ok(()),
            (_, Some(log)) => log.commit(self, Some(DATA), thread),
            (txg, None) => rw.host.synced(Txg(txg)),
        }
    }

    /// With `sync=always`, waits until the changes are durable. The caller holds no lock.
    fn commit_if_sync_always(&self) -> Result<()> {
        match self.log() {
            Some(log) if log.mode() == zil::Mode::Always => log.commit(self, Some(DATA), 0),
            _ => Ok(()),
        }
    }

    /// Notes that a record of the log was replayed.
    pub(crate) fn note_replayed(&self) -> Result<()> {
        let tx = self.begin(DNODE_BLOCK, true)?;
        if let Some(log) = &self.rw_always()?.log {
            log.barrier(tx.txg());
        }
        Ok(())
    }

    /// Changes the size (`volsize`). The new size is on disk when this returns. What was
    /// behind a smaller size is freed; the space behind the former end of a larger one reads
    /// as zeros. Handles of the volume have the new size at once.
    ///
    /// # Errors
    /// `Invalid` for a size of 0 or that is no multiple of the block size, in OpenZFS's words;
    /// `NoSpace`; `Quota`; `ReadOnly`; those of reading; that of a suspension.
    pub fn set_size(&self, size: u64) -> Result<()> {
        let (rw, block) = (self.rw_always()?, self.block_size());
        check_new_size(size, block)?;
        let _one = rw.resizing.lock();
        let old = self.size();
        if size == old {
            return Ok(());
        }
        let alone = rw.lock.exclusive();
        if size < old {
            self.state.size.store(size, SeqCst);
        }
        let changed = self.change_size(size, old.min(size));
        drop(alone);
        let synced = changed.and_then(|txg| rw.host.synced(txg));
        match (&synced, size < old) {
            (Ok(()), _) => self.state.size.store(size, SeqCst),
            // It was not changed on disk.
            (Err(_), true) => self.state.size.store(old, SeqCst),
            (Err(_), false) => {}
        }
        synced
    }

    /// Frees all blocks from `end` on, and stores the size. Blocks behind a volume's end are
    /// not expected when it grows; another program may have left some.
    fn change_size(&self, size: u64, end: u64) -> Result<Txg> {
        let (rw, block) = (self.rw_always()?, self.block_size());
        let first = end / block;
        let past = self.object(self.io())?.dnode().max_blkid.saturating_add(1);
        self.free_blocks(first..past)?;
        let tx = self.begin(3 * DNODE_BLOCK, true)?;
        zaps::update(&self.state.os, &tx, PROPS, b"size", &ZapValue::from_u64(size))?;
        if first < past {
            self.state.os.free_range(&tx, DATA, end, u64::MAX)?;
        }
        if let Some(log) = &rw.log {
            log.barrier(tx.txg());
        }
        Ok(tx.txg())
    }
}

/// Checks a new `volsize`.
///
/// # Errors
/// `Invalid`, in OpenZFS's words.
pub fn check_new_size(size: u64, block_size: u64) -> Result<()> {
    if size == 0 {
        return Err(Error::invalid("'volsize' cannot be zero"));
    }
    if !size.is_multiple_of(block_size) {
        let text = "'volsize' must be a multiple of volume block size";
        return Err(Error::invalid(text));
    }
    check_size(Some(size), block_size)
        .map(drop)
        .map_err(|_| Error::invalid("volume size exceeds limit for this system"))
}

impl zil::Source for Volume {
    fn read(&self, object: ObjectId, offset: u64, len: u64) -> Result<Option<Vec<u8>>> {
        if object != DATA {
            return Ok(None);
        }
        let _lock = self.rw_always()?.lock.range(offset..offset.saturating_add(len));
        let len = len.min(self.size().saturating_sub(offset));
        let mut out = vec![0; usize::try_from(len).map_err(|_| Error::limit("a long record"))?];
        self.object(self.io())?.read_into(offset, &mut out, self.io())?;
        Ok(Some(out))
    }

    fn block_size(&self, object: ObjectId) -> Option<u64> {
        (object == DATA).then_some(self.state.block_size)
    }

    fn has_write2(&self) -> bool {
        false
    }

    fn early_blocks(&self, txg: Txg) -> Option<Box<dyn zil::EarlyBlocks>> {
        Some(Box::new(EarlyVolumeBlocks(self.state.os.early(txg, self.outage))))
    }
}

/// Early writes of a volume's blocks by a commit.
struct EarlyVolumeBlocks(Early);

impl zil::EarlyBlocks for EarlyVolumeBlocks {
    fn block_size(&self, object: ObjectId) -> Option<u64> {
        self.0.block_size(object)
    }

    fn block(&mut self, object: ObjectId, block: u64) -> Result<Option<BlkPtr>> {
        self.0.block(object, block)
    }

    fn wait(&mut self) -> Result<Vec<VdevId>> {
        self.0.wait()
    }

    fn keep(self: Box<Self>) {
        self.0.keep();
    }
}
