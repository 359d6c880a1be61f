//! The write pipeline: blocks are compressed, checksummed, allocated and written.
//!
//! # Theory
//! Blocks are gathered into batches. A worker takes a batch, compresses and checksums its
//! blocks into one buffer, waits until all earlier batches have allocated, allocates, and
//! writes the buffer, which is mostly one write. So all cores work, yet addresses depend
//! only on the order of blocks: the same calls give the same image.
//!
//! # Invariants
//! * Results are returned in the order in which blocks were pushed.
//! * [`WritePipeline::push`] never waits. [`WritePipeline::reap`] does; between the two at
//!   most [`IN_FLIGHT`] bytes are in flight, if the caller checks
//!   [`WritePipeline::is_full`].
//! * Batches are taken in order and each advances the sequence, also when it fails: no
//!   worker waits forever.
//!
//! Lock order: the queue and the space are never held together.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use base::rt::{Condvar, JoinHandle, Mutex, Receiver, Sender, oneshot, parallelism, spawn};
use base::{Asize, BufMut, Dva, Error, Lsize, Psize, Result, Txg, VdevId};
use codec::checksum::fletcher::fletcher4;
use codec::compress::{Compression, compress, is_zero};
use ondisk::ObjType;
use ondisk::blkptr::{BlkPtr, Block, COMPRESS_OFF, Head, Hole};
use ondisk::label::LABEL_START_SIZE;

use crate::space::BumpSpace;

/// Checksum id of fletcher4.
const FLETCHER4: u8 = 7;
/// Bytes, and blocks, of one batch.
const BATCH_BYTES: usize = 1 << 20;
const BATCH_BLOCKS: usize = 256;
/// Bytes of blocks pushed without a result yet.
const IN_FLIGHT: usize = 96 << 20;

/// The destination of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dest {
    /// A block of an object.
    Object { object: u64, level: u8 },
    /// A block of the meta-dnode.
    Dnodes { blkid: u64 },
    /// The object set.
    Objset,
}

/// A block to be written.
pub(crate) struct BlockJob {
    pub(crate) dest: Dest,
    pub(crate) object_type: ObjType,
    pub(crate) level: u8,
    pub(crate) fill: u64,
    pub(crate) lz4: bool,
    pub(crate) copies: usize,
    pub(crate) data: BufMut,
}

/// A block that was written, or became a hole.
pub(crate) struct PlacedBlock {
    pub(crate) dest: Dest,
    pub(crate) bp: BlkPtr,
}

type BatchAnswer = Receiver<Result<Vec<PlacedBlock>>>;

struct BlockBatch {
    seq: u64,
    jobs: Vec<BlockJob>,
    answer: Sender<Result<Vec<PlacedBlock>>>,
}

#[derive(Default)]
struct BatchQueue {
    batches: VecDeque<BlockBatch>,
    stop: bool,
}

struct OrderedSpace {
    space: BumpSpace,
    next: u64,
}

struct PipelineShared {
    file: Arc<File>,
    txg: Txg,
    ashift: u32,
    queue: Mutex<BatchQueue>,
    ready: Condvar,
    ordered: Mutex<OrderedSpace>,
    advanced: Condvar,
}

/// Blocks being written.
pub(crate) struct WritePipeline {
    shared: Arc<PipelineShared>,
    threads: Vec<JoinHandle<()>>,
    open: Vec<BlockJob>,
    open_bytes: usize,
    in_flight: VecDeque<(BatchAnswer, usize)>,
    bytes: usize,
    seq: u64,
}

/// The stored form of a block: its position in the buffer, and the fields of its pointer.
struct Stored {
    at: usize,
    asize: usize,
    psize: usize,
    compression: u8,
    words: [u64; 4],
}

/// Appends the stored form of `data`, padded to whole sectors.
fn store(data: &[u8], lz4: bool, ashift: u32, out: &mut Vec<u8>) -> Stored {
    let sector = 1usize << ashift;
    let at = out.len();
    // Chapter 02 §4.1: an eighth must be saved, in whole sectors.
    let limit = (data.len() - data.len() / 8) / sector * sector;
    let packed = if lz4 && limit > 0 {
        out.resize(at + limit, 0);
        compress(Compression::Lz4, data, &mut out[at..])
    } else {
        None
    };
    let (psize, compression) = match packed.map(|n| (n, n.next_multiple_of(sector))) {
        Some((n, psize)) if psize < data.len() => {
            out.truncate(at + n);
            out.resize(at + psize, 0);
            (psize, Compression::Lz4.id())
        }
        _ => {
            out.truncate(at);
            out.extend_from_slice(data);
            (data.len(), COMPRESS_OFF)
        }
    };
    let words = fletcher4(&out[at..at + psize], false);
    let asize = psize.next_multiple_of(sector);
    out.resize(at + asize, 0);
    Stored { at, asize, psize, compression, words }
}

/// The pointer to a stored block.
fn pointer(job: &BlockJob, stored: &Stored, offsets: &[u64], txg: Txg) -> BlkPtr {
    let dva =
        |&offset| Dva { vdev: VdevId(0), offset, asize: Asize(stored.asize as u64), gang: false };
    let dvas: Vec<Dva> = offsets.iter().map(dva).collect();
    let head = Head {
        object_type: job.object_type,
        level: job.level,
        lsize: Lsize(job.data.len() as u64),
        birth: txg,
    };
    let mut block = Block::new(head, Psize(stored.psize as u64), stored.compression, &dvas);
    (block.checksum, block.fill, block.words) = (FLETCHER4, job.fill, stored.words);
    BlkPtr::Block(block)
}

/// Writes at an offset in the vdev.
pub(crate) fn write_at(file: &File, bytes: &[u8], offset: u64) -> Result<()> {
    file.write_all_at(bytes, offset + LABEL_START_SIZE)
        .map_err(|e| Error::io("cannot write the image", e))
}

impl PipelineShared {
    /// Writes the blocks of a batch.
    fn run(&self, batch: &BlockBatch, out: &mut Vec<u8>) -> Result<Vec<PlacedBlock>> {
        out.clear();
        let mut stored = Vec::with_capacity(batch.jobs.len());
        for job in &batch.jobs {
            stored.push(if is_zero(&job.data) {
                None
            } else {
                let form = store(&job.data, job.lz4, self.ashift, out);
                // Copies follow each other, in the buffer as on disk.
                for _ in 1..job.copies {
                    out.extend_from_within(form.at..form.at + form.asize);
                }
                Some(form)
            });
        }
        let offsets = self.place(batch, &stored)?;
        let mut done = Vec::with_capacity(stored.len());
        // (start in the buffer, end in the buffer, offset on the vdev)
        let mut run: (usize, usize, u64) = (0, 0, 0);
        for ((job, form), offsets) in batch.jobs.iter().zip(&stored).zip(&offsets) {
            let Some(form) = form else {
                done.push(PlacedBlock { dest: job.dest, bp: BlkPtr::Hole(Hole::default()) });
                continue;
            };
            for (copy, &offset) in offsets.iter().enumerate() {
                let at = form.at + copy * form.asize;
                if run.2 + (run.1 - run.0) as u64 != offset {
                    write_at(&self.file, &out[run.0..run.1], run.2)?;
                    run = (at, at, offset);
                }
                run.1 = at + form.asize;
            }
            done.push(PlacedBlock { dest: job.dest, bp: pointer(job, form, offsets, self.txg) });
        }
        write_at(&self.file, &out[run.0..run.1], run.2)?;
        Ok(done)
    }

    /// Waits until the earlier batches have allocated, and allocates every copy of this
    /// batch's blocks.
    fn place(&self, batch: &BlockBatch, stored: &[Option<Stored>]) -> Result<Vec<Vec<u64>>> {
        let mut ordered = self.ordered.lock();
        while ordered.next != batch.seq {
            self.advanced.wait(&mut ordered);
        }
        let mut all = Vec::with_capacity(stored.len());
        let mut failed = None;
        for (job, form) in batch.jobs.iter().zip(stored) {
            let asize = form.as_ref().map(|f| f.asize as u64);
            let one = |_| ordered.space.alloc(asize.unwrap_or(0));
            match (0..asize.map_or(0, |_| job.copies)).map(one).collect() {
                Ok(offsets) => all.push(offsets),
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            }
        }
        ordered.next += 1;
        drop(ordered);
        self.advanced.notify_all();
        failed.map_or(Ok(all), Err)
    }

    fn work(&self) {
        let mut out = Vec::new();
        let mut queue = self.queue.lock();
        loop {
            match queue.batches.pop_front() {
                Some(batch) => {
                    drop(queue);
                    let result = self.run(&batch, &mut out);
                    let BlockBatch { answer, jobs, .. } = batch;
                    answer.send(result);
                    drop(jobs);
                    queue = self.queue.lock();
                }
                None if queue.stop => return,
                None => self.ready.wait(&mut queue),
            }
        }
    }
}

impl WritePipeline {
    /// Starts a worker for each core.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn start(file: Arc<File>, space: BumpSpace, txg: Txg) -> Result<WritePipeline> {
        let shared = Arc::new(PipelineShared {
            file,
            txg,
            ashift: space.ashift,
            queue: Mutex::default(),
            ready: Condvar::new(),
            ordered: Mutex::new(OrderedSpace { space, next: 0 }),
            advanced: Condvar::new(),
        });
        let mut pipe = WritePipeline {
            shared: Arc::clone(&shared),
            threads: Vec::new(),
            open: Vec::new(),
            open_bytes: 0,
            in_flight: VecDeque::new(),
            bytes: 0,
            seq: 0,
        };
        for _ in 0..parallelism() {
            let shared = Arc::clone(&shared);
            pipe.threads.push(spawn("synth", move || shared.work())?);
        }
        Ok(pipe)
    }

    /// Adds a block. Does not wait.
    pub(crate) fn push(&mut self, job: BlockJob) {
        self.open_bytes += job.data.len();
        self.open.push(job);
        if self.open_bytes >= BATCH_BYTES || self.open.len() >= BATCH_BLOCKS {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let (sender, answer) = oneshot();
        let jobs = std::mem::take(&mut self.open);
        let bytes = std::mem::take(&mut self.open_bytes);
        self.in_flight.push_back((answer, bytes));
        self.bytes += bytes;
        let batch = BlockBatch { seq: self.seq, jobs, answer: sender };
        self.seq += 1;
        self.shared.queue.lock().batches.push_back(batch);
        self.shared.ready.notify_one();
    }

    /// Whether the caller should reap before it pushes more.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes > IN_FLIGHT || self.in_flight.len() > 4 * self.threads.len() + 4
    }

    /// The results of the oldest batch; `None` when nothing is in flight.
    ///
    /// # Errors
    /// `NoSpace`, or the file's.
    pub(crate) fn reap(&mut self) -> Result<Option<Vec<PlacedBlock>>> {
        if self.in_flight.is_empty() {
            self.flush();
        }
        let Some((answer, bytes)) = self.in_flight.pop_front() else { return Ok(None) };
        self.bytes -= bytes;
        answer.wait().flatten().map(Some)
    }

    /// The present space; nothing may be in flight.
    pub(crate) fn space(&self) -> BumpSpace {
        self.shared.ordered.lock().space.clone()
    }
}

impl Drop for WritePipeline {
    fn drop(&mut self) {
        self.shared.queue.lock().stop = true;
        self.shared.ready.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
