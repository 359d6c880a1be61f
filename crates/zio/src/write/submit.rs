//! The last step of a write: passing blocks to the vdev tree and to the cache.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::rt::{Condvar, Mutex, MutexGuard};
use base::{Buf, Dva, Error, Psize, Result, Txg};
use ondisk::blkptr::{Block, COMPRESS_OFF};
use vdev::{WritePriority, WriteReport, WriteReq};

use super::gang::{GangPiece, Header};
use super::{BlockContent, BlockLayout, Outcome, Placed};
use crate::read::kind_of;
use crate::{BlockKey, SpaceSource, Zio};

/// An entry for the cache.
type CacheEntry = (BlockKey, arc::CacheKind, arc::Block);

/// The most bytes in flight for each [`Writes`].
const IN_FLIGHT_MAX: u64 = 128 << 20;

/// The bytes for one address.
#[derive(Clone)]
pub(crate) struct DvaWrite {
    pub(crate) dva: Dva,
    pub(crate) data: Buf,
    pub(crate) birth: Txg,
    pub(crate) priority: WritePriority,
}

/// Called once when a write has ended, with its result and whether some copies or
/// columns do not hold the bytes although enough do.
pub(crate) type WriteDone = Box<dyn FnOnce(Result<()>, bool) + Send>;

/// Takes the bytes: the vdev tree, or a substitute in tests.
pub(crate) trait Sink: Send + Sync {
    /// Writes; `done` may be called before this returns, or later by any thread.
    fn write(self: Arc<Self>, write: DvaWrite, done: WriteDone);

    /// As [`Sink::write`], for several writes that the devices get together.
    fn write_all(self: Arc<Self>, writes: Vec<(DvaWrite, WriteDone)>) {
        for (write, done) in writes {
            Arc::clone(&self).write(write, done);
        }
    }
}

/// An address whose bytes could not be written, not even at the second try.
#[derive(Debug)]
pub struct Lost {
    /// The address.
    pub dva: Dva,
    /// The block's birth.
    pub birth: Txg,
    /// The last error.
    pub error: Error,
    /// Another address holds the same bytes, so the block is degraded, not lost.
    pub readable: bool,
}

/// Counters of a [`Writes`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteCounts {
    /// Blocks, without holes and embedded ones.
    pub blocks: u64,
    /// Writes to addresses, gang headers included.
    pub writes: u64,
    /// Their bytes, before parity.
    pub bytes: u64,
    /// Writes that were repeated.
    pub retries: u64,
    /// Writes that reached enough leaves of their vdev, but not all.
    pub partial: u64,
}

/// Writes that are in flight together, for example those of a sync pass.
pub struct Writes {
    zio: Arc<Zio>,
    shared: Arc<WritesShared>,
    limit: u64,
    priority: WritePriority,
}

#[derive(Default)]
struct WritesShared {
    state: Mutex<WritesState>,
    changed: Condvar,
    /// Failed writes are kept, to be sent again when their device returns.
    keep: bool,
}

#[derive(Default)]
struct WritesState {
    in_flight: u64,
    bytes: u64,
    sleepers: usize,
    again: VecDeque<WriteJob>,
    lost: Vec<FailedWrite>,
    counts: WriteCounts,
}

/// A write of the bytes for one address, of which other addresses may hold copies.
struct WriteJob {
    write: DvaWrite,
    /// One of the addresses of these bytes was written.
    reached: Arc<AtomicBool>,
    again: bool,
    /// Keeps the block in the table of blocks in flight.
    _marks: Arc<Marks>,
}

struct FailedWrite {
    dva: Dva,
    birth: Txg,
    error: Error,
    reached: Arc<AtomicBool>,
    /// The write, to send it again.
    job: Option<WriteJob>,
}

/// A block's entries in [`super::in_flight`].
struct Marks {
    zio: Arc<Zio>,
    keys: Vec<BlockKey>,
    stamp: u64,
}

impl Drop for Marks {
    fn drop(&mut self) {
        for key in &self.keys {
            self.zio.in_flight.remove(key, self.stamp);
        }
    }
}

/// Verifies what must hold of a block before it is written, as a read verifies it afterwards:
/// its sizes and its birth.
fn check(
    block: &Block,
    content: &BlockContent,
    layout: &BlockLayout,
    outcome: Outcome,
) -> Result<()> {
    let (birth, physical) = (block.head.birth, block.physical_birth);
    let sizes = content.stored.len() as u64 == block.psize.0
        && block.psize.0 <= block.head.lsize.0
        && (content.whole.is_empty() || content.whole.len() as u64 == block.head.lsize.0);
    // A block that is rewritten in place keeps its address in the txg of its birth. One that
    // moves without logical change keeps its logical birth, which is older.
    let moved = block.rewritten || outcome == Outcome::Copied && physical > Txg::ZERO;
    let in_order = if moved { physical > birth } else { physical <= birth };
    let births = birth > Txg::ZERO && (physical == Txg::ZERO || in_order);
    let addresses = match layout {
        BlockLayout::Plain(dvas) => {
            !dvas.is_empty() && dvas.len() <= 3 && dvas.iter().all(|d| d.asize.0 >= block.psize.0)
        }
        BlockLayout::Gang(_) => block.dva().gang,
    };
    if sizes && births && addresses {
        return Ok(());
    }
    Err(base::bug!("a block that must not be written: {block:?}, {outcome:?}").at_dva(block.dva()))
}

impl Writes {
    /// An empty batch.
    pub fn new(zio: &Arc<Zio>) -> Writes {
        Writes::with_limit(zio, IN_FLIGHT_MAX)
    }

    /// A batch with at most `limit` bytes in flight; a larger block is written alone.
    pub(crate) fn with_limit(zio: &Arc<Zio>, limit: u64) -> Writes {
        Writes {
            zio: Arc::clone(zio),
            shared: Arc::new(WritesShared {
                keep: zio.waits_for_devices(),
                ..WritesShared::default()
            }),
            limit,
            priority: WritePriority::default(),
        }
    }

    /// A batch for a waiting caller that can handle failures: a write that fails twice
    /// is not kept until devices return.
    pub fn fail_fast(zio: &Arc<Zio>) -> Writes {
        let (zio, shared) = (Arc::clone(zio), Arc::default());
        Writes { zio, shared, limit: IN_FLIGHT_MAX, priority: WritePriority::SyncWrite }
    }

    /// The same batch with another priority, for a caller that waits.
    #[must_use]
    pub fn with_priority(self, priority: WritePriority) -> Writes {
        Writes { priority, ..self }
    }

    /// Waits until every submitted write has ended, and returns those that failed. The
    /// calling thread repeats failed writes once, and again whenever absent devices
    /// have returned ([`crate::Outage`]).
    pub fn wait(&self) -> Vec<Lost> {
        let mut repeated = None;
        loop {
            let lost = self.settle();
            let is_gone = |f: &&FailedWrite| f.job.is_some() && !f.reached.load(Ordering::Acquire);
            let again =
                lost.iter().find(is_gone).is_some_and(|f| self.zio.wait_for_retry(&f.error));
            if !again {
                if let (Some(birth), true) = (repeated, lost.is_empty()) {
                    self.zio.tree().clear_missing(birth);
                }
                return lost.into_iter().map(FailedWrite::into_lost).collect();
            }
            for mut fallen in lost {
                repeated = Some(fallen.birth);
                let Some(job) = fallen.job.take() else {
                    self.shared.state.lock().lost.push(fallen);
                    continue;
                };
                let mut state = self.shared.state.lock();
                state.bytes += job.write.data.len() as u64;
                state.in_flight += 1;
                state.counts.retries += 1;
                drop(state);
                self.send(WriteJob { again: false, ..job });
            }
        }
    }

    /// Waits until every write has ended; returns those that failed twice.
    fn settle(&self) -> Vec<FailedWrite> {
        let mut state = self.shared.state.lock();
        loop {
            state = match state.again.pop_front() {
                Some(job) => self.repeat(state, job),
                None if state.in_flight > 0 => self.shared.sleep(state),
                None => return std::mem::take(&mut state.lost),
            };
        }
    }

    /// The counters so far.
    pub fn counts(&self) -> WriteCounts {
        self.shared.state.lock().counts
    }

    /// Number of writes in flight.
    pub fn in_flight(&self) -> u64 {
        self.shared.state.lock().in_flight
    }

    fn repeat<'a>(
        &'a self,
        state: MutexGuard<'a, WritesState>,
        job: WriteJob,
    ) -> MutexGuard<'a, WritesState> {
        drop(state);
        self.send(WriteJob { again: true, ..job });
        self.shared.state.lock()
    }

    /// Waits until `n` more bytes may be in flight. `kept` are jobs that were admitted
    /// but not sent; they are sent before waiting.
    fn admit(&self, n: u64, kept: &mut Vec<WriteJob>) {
        let mut state = self.shared.state.lock();
        while state.bytes > 0 && state.bytes + n > self.limit {
            if !kept.is_empty() {
                drop(state);
                self.send_all(std::mem::take(kept));
                state = self.shared.state.lock();
                continue;
            }
            state = match state.again.pop_front() {
                Some(job) => self.repeat(state, job),
                None => self.shared.sleep(state),
            };
        }
        state.bytes += n;
        state.in_flight += 1;
        state.counts.writes += 1;
        state.counts.bytes += n;
    }

    /// Sends an admitted job.
    fn send(&self, job: WriteJob) {
        let (write, done) = self.with_end(job);
        self.zio.sink().write(write, done);
    }

    fn send_all(&self, jobs: Vec<WriteJob>) {
        if !jobs.is_empty() {
            let writes = jobs.into_iter().map(|job| self.with_end(job)).collect();
            self.zio.sink().write_all(writes);
        }
    }

    fn with_end(&self, job: WriteJob) -> (DvaWrite, WriteDone) {
        let write = job.write.clone();
        let shared = Arc::clone(&self.shared);
        (write, Box::new(move |result, partial| shared.ended(job, result, partial)))
    }

    fn give_up(&self, dva: Dva, birth: Txg, error: Error) {
        let reached = Arc::new(AtomicBool::new(false));
        self.shared.state.lock().lost.push(FailedWrite { dva, birth, error, reached, job: None });
    }
}

impl FailedWrite {
    fn into_lost(self) -> Lost {
        Lost {
            readable: self.reached.load(Ordering::Acquire),
            dva: self.dva,
            birth: self.birth,
            error: self.error,
        }
    }
}

impl WritesShared {
    fn sleep<'a>(&'a self, mut state: MutexGuard<'a, WritesState>) -> MutexGuard<'a, WritesState> {
        state.sleepers += 1;
        self.changed.wait(&mut state);
        state.sleepers -= 1;
        state
    }

    fn ended(&self, job: WriteJob, result: Result<()>, partial: bool) {
        let n = job.write.data.len() as u64;
        let partial = partial && result.is_ok();
        if result.is_err() && !job.again {
            // A completion must not write, because it runs on a thread of the device.
            let mut state = self.state.lock();
            state.counts.retries += 1;
            state.again.push_back(job);
            return self.wake(state);
        }
        // Threads that wait may rely on the table not containing a block whose writes
        // have ended.
        let fallen = match result {
            Ok(()) => {
                job.reached.store(true, Ordering::Release);
                drop(job);
                None
            }
            Err(error) => Some(FailedWrite {
                dva: job.write.dva,
                birth: job.write.birth,
                error,
                reached: Arc::clone(&job.reached),
                job: self.keep.then_some(job),
            }),
        };
        let mut state = self.state.lock();
        state.bytes -= n;
        state.in_flight -= 1;
        state.counts.partial += u64::from(partial);
        state.lost.extend(fallen);
        self.wake(state);
    }

    fn wake(&self, state: MutexGuard<'_, WritesState>) {
        let wake = state.sleepers > 0;
        drop(state);
        if wake {
            self.changed.notify_all();
        }
    }
}

impl Zio {
    /// Writes a placed block's bytes to each of its addresses, and puts the content
    /// into the cache. Returns before the devices have the bytes; waits only while too
    /// much is in flight. [`Writes::wait`] reports failures.
    ///
    /// Until this returns, the pointer must not be used for reads.
    pub fn submit(&self, placed: Placed, writes: &Writes) {
        self.submit_all([placed], writes);
    }

    /// As [`Zio::submit`], for several blocks: neighbours reach their devices as one
    /// operation, and the cache is locked once.
    pub fn submit_all(&self, placed: impl IntoIterator<Item = Placed>, writes: &Writes) {
        let (mut entries, mut jobs) = (Vec::new(), Vec::new());
        let space = self.space.read().clone();
        for Placed { bp, outcome, parts, .. } in placed {
            let (Some(block), Some((content, layout))) = (bp.as_block(), parts) else { continue };
            if let Err(e) = check(block, &content, &layout, outcome) {
                writes.give_up(block.dva(), block.effective_physical_birth(), e);
                continue;
            }
            let (mut pieces, mut headers) = (Vec::new(), Vec::new());
            match layout {
                BlockLayout::Plain(dvas) => {
                    pieces.push(GangPiece { dvas, bytes: content.stored.clone() })
                }
                BlockLayout::Gang(node) => {
                    let stored = &content.stored;
                    let made = node.pieces(self, block, stored, &mut pieces, &mut headers);
                    if let Err(e) = made {
                        writes.give_up(block.dva(), block.effective_physical_birth(), e);
                        continue;
                    }
                }
            }
            if let Err(e) = self.check_allocated(space.as_deref(), block, &pieces) {
                writes.give_up(block.dva(), block.effective_physical_birth(), e);
                continue;
            }
            let marks = Arc::new(writes.zio.mark(block, &content.stored, headers));
            entries.extend(self.entry(block, content, outcome));
            jobs.push((block.effective_physical_birth(), marks, pieces));
        }
        self.cache().insert_all(entries);
        writes.shared.state.lock().counts.blocks += jobs.len() as u64;
        let mut ready = Vec::with_capacity(jobs.len());
        for (birth, marks, pieces) in jobs {
            for GangPiece { dvas, bytes } in pieces {
                let reached = Arc::new(AtomicBool::new(false));
                for dva in dvas {
                    writes.admit(bytes.len() as u64, &mut ready);
                    let data = bytes.clone();
                    let write = DvaWrite { dva, data, birth, priority: writes.priority };
                    let (reached, marks) = (Arc::clone(&reached), Arc::clone(&marks));
                    ready.push(WriteJob { write, reached, again: false, _marks: marks });
                }
            }
        }
        writes.send_all(ready);
    }

    /// Verifies that all addresses of a block are allocated before bytes go there. Costs a
    /// few lookups in small trees, 0.2 µs a block.
    fn check_allocated(
        &self,
        space: Option<&dyn SpaceSource>,
        block: &Block,
        pieces: &[GangPiece],
    ) -> Result<()> {
        let Some(space) = space else { return Err(base::bug!("a write without a space source")) };
        let tree = self.tree();
        for piece in pieces {
            let psize = Psize(piece.bytes.len() as u64);
            for &dva in &piece.dvas {
                // The asize of a gang's address counts all members.
                let asize = match dva.gang {
                    true => tree.asize(dva.vdev, psize, block.effective_physical_birth())?,
                    false => dva.asize,
                };
                if !space.is_allocated(Dva { asize, ..dva }) {
                    return Err(base::bug!("a block at a free address: {block:?}").at_dva(dva));
                }
            }
        }
        Ok(())
    }

    /// The cache entry, as a read would have stored it.
    fn entry(&self, block: &Block, content: BlockContent, outcome: Outcome) -> Option<CacheEntry> {
        let key = self.key(block);
        if outcome == Outcome::Rewritten {
            // A read of the old content that is in flight must not be kept either.
            self.cache().remove(&key);
        }
        if !content.cache {
            return None;
        }
        let compressed = block.compression != COMPRESS_OFF;
        let entry = arc::Block {
            stored: compressed.then_some(content.stored),
            tag: block.compression,
            whole: content.whole,
            remember: false,
            usage: self.tier_use(content.tiers, block),
        };
        Some((key, kind_of(block), entry))
    }

    fn mark(self: &Arc<Self>, block: &Block, stored: &Buf, headers: Vec<Header>) -> Marks {
        let stamp = self.in_flight.stamp();
        let key = self.key(block);
        let mut keys = vec![key];
        self.in_flight.put_stored(key, stamp, stored.clone());
        for Header { at, bytes } in headers {
            let key = BlockKey { vdev: at.vdev.0, offset: at.offset, ..key };
            self.in_flight.put_header(key, stamp, bytes);
            keys.push(key);
        }
        Marks { zio: Arc::clone(self), keys, stamp }
    }

    fn sink(&self) -> Arc<dyn Sink> {
        match &*self.sink.read() {
            Some(sink) => Arc::clone(sink),
            None => self.tree(),
        }
    }

    /// Sends writes to `sink` from now on.
    #[cfg(test)]
    pub(crate) fn set_sink(&self, sink: Arc<dyn Sink>) {
        *self.sink.write() = Some(sink);
    }
}

/// Writes use the tree that is current when they begin (decision 6).
impl Sink for vdev::Tree {
    fn write(self: Arc<Self>, write: DvaWrite, done: WriteDone) {
        let DvaWrite { dva, data, birth, priority } = write;
        let req = WriteReq { vdev: dva.vdev, offset: dva.offset, data, birth, priority };
        vdev::Tree::write(&self, req, move |report| done(report.result, !report.failed.is_empty()));
    }

    fn write_all(self: Arc<Self>, writes: Vec<(DvaWrite, WriteDone)>) {
        let one = |(write, done): (DvaWrite, WriteDone)| {
            let DvaWrite { dva, data, birth, priority } = write;
            let req = WriteReq { vdev: dva.vdev, offset: dva.offset, data, birth, priority };
            let tell = move |report: WriteReport| done(report.result, !report.failed.is_empty());
            (req, vdev::WriteCallback::new(tell))
        };
        vdev::Tree::write_all(&self, writes.into_iter().map(one).collect());
    }
}
