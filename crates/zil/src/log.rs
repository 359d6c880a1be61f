//! The log: adding records and committing them.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use base::planted::BugSwitch;
use base::rt::{Condvar, Mutex};
use base::{BufMut, Dva, Error, ErrorKind, ObjectId, Result, Txg, VdevId};
use codec::checksum::Checksum;
use ondisk::BlkPtr;
use ondisk::zil::{RECORD_SEQ_AT, RecordBody, ZilHeader, records_at, seal};

use crate::chain::{Chain, Moved};
use crate::fill::{Fill, fill};
use crate::forms::{Forms, HeldTxg, ReadyRecords, immediate_write, make_ready};
use crate::pending::{CommitScope, Gathered, Indirect, Itx, ItxPayload, PendingRecords};
use crate::size::{Plan, ROOM_MAX, Sizes};
use crate::stats::{Stats, bump};
use crate::{LogWrite, Source, Store};

/// Record type.
const TX_TRUNCATE: u8 = 10;
/// Largest write whose data is copied when it is written, bytes.
const COPY_MAX: usize = 8 << 10;
/// Most copied bytes that wait; above this, data is fetched at the commit.
const COPIED_MAX: u64 = 64 << 20;
/// Bytes of records that are fetched and written at a time.
const PIECE_MAX: u64 = 8 << 20;
/// Most records that wait; above this, the txg is written soon.
const RECORDS_MAX: u64 = 1 << 20;

/// Property `sync`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// Commits write the log.
    #[default]
    Standard = 0,
    /// Every change is committed.
    Always = 1,
    /// Commits do nothing.
    Disabled = 2,
}

/// The outcome of a batch.
#[derive(Clone, Debug)]
enum BatchOutcome {
    Safe,
    Failed(ErrorKind, String),
    /// Its leader panicked: its records wait for their txgs.
    Abandoned,
}

/// The committers that wait for the same blocks.
#[derive(Default)]
struct CommitBatch {
    end: OnceLock<BatchOutcome>,
}

/// State of the leader, and the next batch.
#[derive(Default)]
struct LeaderState {
    writing: bool,
    /// The contents of the next batch, and the committers that wait for it.
    scope: CommitScope,
    batch: Arc<CommitBatch>,
    /// The threads of the next batch.
    callers: Vec<u32>,
}

/// The outcome of a part of a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PieceResult {
    /// It is in the chain, and flushed.
    Logged,
    /// The whole batch is in txgs that are on disk.
    Stalled,
}

/// The leader's batch. However its write ends, also by a panic, the next leader can
/// begin and the waiting committers are notified.
struct LeaderGuard<'a> {
    log: &'a Log,
    batch: Arc<CommitBatch>,
    end: BatchOutcome,
}

impl Drop for LeaderGuard<'_> {
    fn drop(&mut self) {
        let mut leader = self.log.leader.lock();
        leader.writing = false;
        // Set once, because the batch was taken out of the shared state.
        let _first = self.batch.end.set(std::mem::replace(&mut self.end, BatchOutcome::Abandoned));
        drop(leader);
        self.log.ended.notify_all();
    }
}

/// Records that were taken out of their lists. Unless they become durable, later
/// commits wait for their txgs.
struct TakenRecords<'a> {
    log: &'a Log,
    newest: Txg,
    safe: bool,
}

impl Drop for TakenRecords<'_> {
    fn drop(&mut self) {
        if !self.safe {
            self.log.pending.lock().barrier(self.newest);
        }
    }
}

/// Blocks that were added to the chain. Unless they are flushed, the chain is abandoned
/// in the held txg.
struct IssuedBlocks<'a> {
    log: &'a Log,
    txg: Txg,
    flushed: bool,
}

impl Drop for IssuedBlocks<'_> {
    fn drop(&mut self) {
        let mut chain = self.log.chain.lock();
        if self.flushed {
            return chain.flushed();
        }
        chain.end(self.txg);
        drop(chain);
        self.log.stats.both(|s| bump(&s.errors, 1));
    }
}

/// The records of one change, which are all in one block or not written at all.
pub struct Bundle {
    txg: Txg,
    bytes: Vec<u8>,
    /// All of them could be encoded.
    whole: bool,
    cuts: bool,
}

impl Bundle {
    /// The records of a transaction of `txg`.
    pub fn new(txg: Txg) -> Bundle {
        Bundle { txg, bytes: Vec::new(), whole: true, cuts: false }
    }

    /// Adds a record of type `kind`.
    pub fn push(&mut self, kind: u8, body: &RecordBody<'_>) {
        self.cuts |= kind == TX_TRUNCATE;
        match body.encode(kind, self.txg) {
            Ok(record) => self.bytes.extend(record),
            Err(_) => self.whole = false,
        }
    }

    /// As [`Bundle::push`], by value.
    #[must_use]
    pub fn with(mut self, kind: u8, body: &RecordBody<'_>) -> Bundle {
        self.push(kind, body);
        self
    }

    /// Marks that a part of the change has no record, so that commits wait for its txg.
    pub fn mark_incomplete(&mut self) {
        self.whole = false;
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.whole && self.bytes.is_empty()
    }
}

/// The intent log of one object set.
pub struct Log {
    store: Arc<dyn Store>,
    mode: AtomicU8,
    /// `logbias=throughput`.
    throughput: AtomicBool,
    xattrs: AtomicBool,
    /// The dataset is destroyed, or the pool is being exported.
    closed: AtomicBool,
    replaying: AtomicBool,
    leader: Mutex<LeaderState>,
    ended: Condvar,
    pending: Mutex<PendingRecords>,
    chain: Mutex<Chain>,
    sizes: Mutex<Sizes>,
    stats: Stats,
    /// **Test instrument**, off: writes records of objects before those of names.
    pub plant_disorder: BugSwitch,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Log({:?})", *self.chain.lock())
    }
}

impl Log {
    /// The empty log of object set `objset`. `slim`: the pool's version supports blocks
    /// with the chain header in front (version 23).
    pub fn new(objset: u64, slim: bool, store: Arc<dyn Store>) -> Arc<Log> {
        let checksum = if slim { Checksum::Zilog2 } else { Checksum::Zilog };
        Arc::new(Log {
            store,
            mode: AtomicU8::new(0),
            throughput: AtomicBool::new(false),
            xattrs: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            replaying: AtomicBool::new(false),
            leader: Mutex::default(),
            ended: Condvar::new(),
            pending: Mutex::default(),
            chain: Mutex::new(Chain::new(objset, checksum)),
            sizes: Mutex::default(),
            stats: Stats::default(),
            plant_disorder: BugSwitch::default(),
        })
    }

    /// Sets property `sync`.
    pub fn set_mode(&self, mode: Mode) {
        self.mode.store(mode as u8, SeqCst);
    }

    /// Property `sync`.
    pub fn mode(&self) -> Mode {
        match self.mode.load(SeqCst) {
            1 => Mode::Always,
            2 => Mode::Disabled,
            _ => Mode::Standard,
        }
    }

    /// Sets whether records of extended attributes among system attributes may be
    /// written, because the pool's feature for them is enabled. The feature is
    /// activated with the chain.
    pub fn set_xattrs(&self, on: bool) {
        self.xattrs.store(on, SeqCst);
    }

    /// The value set by [`Log::set_xattrs`].
    pub fn takes_xattrs(&self) -> bool {
        self.xattrs.load(SeqCst)
    }

    /// Sets property `logbias`: whether data is written to its final place at once.
    pub fn set_throughput(&self, on: bool) {
        self.throughput.store(on, SeqCst);
    }

    /// The counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    // ------------------------------------------------------------------ records

    /// Whether the caller's change is to be recorded; in a replay it is noted as done
    /// instead.
    fn takes(&self, txg: Txg) -> bool {
        if self.replaying.load(SeqCst) {
            self.chain.lock().replayed(txg);
            return false;
        }
        if self.mode() == Mode::Disabled || self.closed.load(SeqCst) {
            // Later commits must not omit an earlier change.
            self.pending.lock().barrier(txg);
            return false;
        }
        true
    }

    /// The records, if they can be written.
    fn fitting(&self, bundle: Bundle) -> Option<Vec<u8>> {
        if bundle.whole && bundle.bytes.len() as u64 <= ROOM_MAX {
            return Some(bundle.bytes);
        }
        self.pending.lock().barrier(bundle.txg);
        None
    }

    /// Records a change of names, made by a transaction of `txg` that is still open, as
    /// a record of type `kind` that any commit writes. If the change removes the last
    /// name of an object, `gone` is that object; its content is not needed after a
    /// crash.
    pub fn name(&self, txg: Txg, kind: u8, body: &RecordBody<'_>, gone: Option<ObjectId>) {
        self.names(Bundle::new(txg).with(kind, body), gone);
    }

    /// As [`Log::name`], with several records that are logged together or not at all.
    pub fn names(&self, bundle: Bundle, gone: Option<ObjectId>) {
        let txg = bundle.txg;
        if self.takes(txg)
            && let Some(record) = self.fitting(bundle)
        {
            let mut pending = self.pending.lock();
            let payload = match gone {
                Some(object) => ItxPayload::Cut { object, record },
                None => ItxPayload::Whole(record),
            };
            pending.name(txg, &|| self.store.synced_txg(), payload);
            if let Some(gone) = gone {
                pending.drop_object(gone);
            }
        }
    }

    /// Records a change of one object's attributes or extent, likewise; a commit of the
    /// object writes it.
    pub fn object(&self, txg: Txg, object: ObjectId, kind: u8, body: &RecordBody<'_>) {
        self.objects(Bundle::new(txg).with(kind, body), object);
    }

    /// As [`Log::object`], with several records that are logged together or not at all.
    pub fn objects(&self, bundle: Bundle, object: ObjectId) {
        let (txg, cuts) = (bundle.txg, bundle.cuts);
        if self.takes(txg)
            && let Some(record) = self.fitting(bundle)
        {
            let payload =
                if cuts { ItxPayload::Cut { object, record } } else { ItxPayload::Whole(record) };
            self.pending.lock().object(txg, &|| self.store.synced_txg(), object, payload);
        }
    }

    /// Records a write of `data` to a file.
    pub fn write(&self, txg: Txg, object: ObjectId, offset: u64, data: &[u8]) {
        if data.is_empty() || !self.takes(txg) {
            return;
        }
        let len = data.len() as u64;
        let indirect = if self.throughput.load(SeqCst) {
            Indirect::Always
        } else if len >= immediate_write() && !self.store.has_log_vdevs() {
            Indirect::Large
        } else {
            Indirect::No
        };
        let held = {
            let mut pending = self.pending.lock();
            let copy = indirect == Indirect::No
                && data.len() <= COPY_MAX
                && pending.is_wanted(txg)
                && pending.held().1 < COPIED_MAX;
            let payload = if copy {
                ItxPayload::Data { object, offset, data: data.to_vec() }
            } else {
                ItxPayload::Range { object, offset, len, indirect }
            };
            pending.object(txg, &|| self.store.synced_txg(), object, payload);
            pending.held().0
        };
        if held > RECORDS_MAX {
            self.store.dirty(txg);
        }
    }

    /// Records a change without a log record: commits wait for its txg.
    pub fn barrier(&self, txg: Txg) {
        if self.replaying.load(SeqCst) {
            self.chain.lock().replayed(txg);
        } else {
            self.pending.lock().barrier(txg);
        }
    }

    /// Commits the object's present records together with the names that follow, so
    /// that its content exists when its new name does.
    pub fn commit_with_names(&self, object: ObjectId) {
        self.pending.lock().commit_with_names(object);
    }

    // ------------------------------------------------------------------ commits

    /// Returns when all records of names, and those of `object` (`None`: of all
    /// objects), are durable. The caller must hold no lock of a file, and no txg. `thread`
    /// is the id of the thread that requests the commit, 0 if unknown; only for
    /// [`Stats::shared`].
    ///
    /// # Errors
    /// The error of a suspension; nothing is guaranteed to be durable then.
    pub fn commit(&self, source: &dyn Source, object: Option<ObjectId>, thread: u32) -> Result<()> {
        self.stats.both(|s| bump(&s.commits, 1));
        if self.mode() == Mode::Disabled {
            return Ok(());
        }
        let start = base::rt::now();
        let done = self.join_batch(source, object, thread);
        let time = start.elapsed();
        self.stats.both(|s| s.took(time));
        done
    }

    /// Joins the next batch, and becomes its leader if there is none.
    fn join_batch(&self, source: &dyn Source, object: Option<ObjectId>, thread: u32) -> Result<()> {
        let mut leader = self.leader.lock();
        leader.scope.add(object);
        leader.callers.push(thread);
        let batch = Arc::clone(&leader.batch);
        while leader.writing {
            self.ended.wait(&mut leader);
            match batch.end.get() {
                None => {}
                Some(BatchOutcome::Safe) => return Ok(()),
                Some(BatchOutcome::Failed(kind, text)) => {
                    return Err(Error::new(*kind, text.clone()));
                }
                Some(BatchOutcome::Abandoned) => {
                    // Records that are not durable by now have a barrier.
                    drop(leader);
                    return self.join_batch(source, object, thread);
                }
            }
        }
        // There is no leader: this thread leads its batch.
        leader.writing = true;
        let scope = std::mem::take(&mut leader.scope);
        let callers = std::mem::take(&mut leader.callers);
        leader.batch = Arc::default();
        drop(leader);
        let mut writing = LeaderGuard { log: self, batch, end: BatchOutcome::Abandoned };
        self.stats.both(|s| s.shared_by(callers.len()));
        self.stats.count_callers(&callers);
        let done = self.run(source, &scope);
        writing.end = match &done {
            Ok(()) => BatchOutcome::Safe,
            Err(e) => BatchOutcome::Failed(e.kind(), e.to_string()),
        };
        done
    }

    /// Writes a batch, or waits for the txgs of its records.
    fn run(&self, source: &dyn Source, scope: &CommitScope) -> Result<()> {
        let found = self.pending.lock().gather(scope, self.store.synced_txg());
        let records = match found {
            Gathered::Nothing => return Ok(()),
            Gathered::Wait(txg) => return self.stall(txg).map(drop),
            Gathered::Records(mut records) => {
                if self.plant_disorder.load(Relaxed) {
                    records.sort_by_key(|r| {
                        matches!(r.payload, ItxPayload::Whole(_) | ItxPayload::Cut { .. })
                    });
                }
                records
            }
        };
        let newest = records.iter().map(|r| r.txg).fold(Txg::ZERO, Txg::max);
        // The records are in no list any more, and nothing may follow them in the chain
        // unless they are in it.
        let mut taken = TakenRecords { log: self, newest, safe: false };
        let done = self.run_pieces(source, records, newest);
        taken.safe = done.is_ok();
        done
    }

    fn run_pieces(&self, source: &dyn Source, records: Vec<Itx>, newest: Txg) -> Result<()> {
        // Data that would be written now, and again by the txg.
        let twice: u64 = records.iter().filter(|itx| !itx.is_indirect()).map(Itx::size).sum();
        if twice > PIECE_MAX && twice >= self.store.dirty_bytes() / 2 {
            self.stall(newest)?;
            return Ok(());
        }
        let mut records = records.into_iter().peekable();
        while records.peek().is_some() {
            let (mut piece, mut size) = (Vec::new(), 0);
            while let Some(itx) =
                records.next_if(|itx| piece.is_empty() || size + itx.size() <= PIECE_MAX)
            {
                size += itx.size();
                piece.push(itx);
            }
            if self.run_records(source, piece, newest)? == PieceResult::Stalled {
                return Ok(());
            }
        }
        Ok(())
    }

    /// `newest` is the newest txg of the whole batch.
    fn run_records(
        &self,
        source: &dyn Source,
        records: Vec<Itx>,
        newest: Txg,
    ) -> Result<PieceResult> {
        let unusable = self.chain.lock().is_ending();
        if unusable || self.closed.load(SeqCst) {
            return self.stall(newest);
        }
        let Some(first) = self.chain.lock().stub().map(|s| s.size) else {
            return self.begin(newest);
        };
        let mut forms = Forms::default();
        match make_ready(&*self.store, source, records, &mut forms)? {
            None => self.stall(newest),
            Some(ReadyRecords { records, held }) => {
                self.write_batch(&records, &forms, first, newest, held)
            }
        }
    }

    /// Waits for txgs instead of writing.
    fn stall(&self, txg: Txg) -> Result<PieceResult> {
        self.stats.both(|s| bump(&s.stalls, 1));
        self.store.wait_synced(txg)?;
        Ok(PieceResult::Stalled)
    }

    /// The first commit: it waits for the txg whose header names the chain.
    fn begin(&self, newest: Txg) -> Result<PieceResult> {
        let hold = self.store.hold()?;
        let txg = hold.txg;
        let size = self.sizes.lock().predict();
        if let Ok(dva) = self.store.allocate(txg, size) {
            let id = [self.store.random(), self.store.random()];
            self.chain.lock().begin(id, dva, size, txg);
            self.store.dirty(txg);
        }
        drop(hold);
        self.stall(txg.max(newest))
    }

    /// `held` has the early blocks that are in flight.
    fn write_batch(
        &self,
        records: &[Itx],
        forms: &Forms,
        first: u64,
        newest: Txg,
        held: Option<HeldTxg>,
    ) -> Result<PieceResult> {
        let blocks = fill(records, first);
        let size: u64 = records.iter().map(Itx::size).sum();
        let largest = records.iter().map(Itx::largest).max().unwrap_or(0);
        let next = {
            let mut sizes = self.sizes.lock();
            sizes.note(Plan::of(size, largest));
            sizes.predict()
        };
        let mut held = match held {
            Some(held) => held,
            None => HeldTxg::empty(self.store.hold()?),
        };
        let txg = held.txg();
        let sizes = blocks.iter().skip(1).map(|b| b.size).chain([next]);
        let Some(blocks_allocated) = self.allocate_blocks(txg, sizes) else {
            // Nothing was changed: the stub stays.
            drop(held);
            return self.stall(newest);
        };
        self.store.dirty(txg);
        // Dropped before the hold.
        let mut issued = IssuedBlocks { log: self, txg, flushed: false };
        let mut wrote: Vec<(u64, u64, bool)> = Vec::new();
        let done = self.seal(&blocks_allocated, txg, &blocks).and_then(|writes| {
            let one = |w: &LogWrite| (w.used as u64, w.data.len() as u64, w.dva.vdev);
            let of = writes.iter().map(one).map(|(n, all, v)| (n, all, self.store.is_log(v)));
            wrote.extend(of);
            let mut vdevs: Vec<VdevId> = writes.iter().map(|w| w.dva.vdev).collect();
            self.store.write(writes)?;
            vdevs.extend(held.wait()?);
            vdevs.sort_unstable();
            vdevs.dedup();
            self.store.flush(&vdevs)
        });
        issued.flushed = done.is_ok();
        drop(issued);
        held.end(done.is_ok());
        let last = txg.max(newest);
        if done.is_err() {
            return self.stall(last);
        }
        self.stats.both(|s| {
            bump(&s.batches, 1);
            bump(&s.records, records.len() as u64);
            forms.count(s);
            for (block, (written, size, slog)) in blocks.iter().zip(&wrote) {
                block.count(s);
                s.block(block.bytes.len() as u64, *written, *size, *slog);
            }
        });
        Ok(PieceResult::Logged)
    }

    /// Allocates the blocks after the stub: all or nothing.
    fn allocate_blocks(
        &self,
        txg: Txg,
        sizes: impl Iterator<Item = u64>,
    ) -> Option<Vec<(Dva, u64)>> {
        let mut blocks_allocated: Vec<(Dva, u64)> = Vec::new();
        for size in sizes {
            match self.store.allocate(txg, size) {
                Ok(dva) => blocks_allocated.push((dva, size)),
                Err(_) => {
                    blocks_allocated.iter().for_each(|(dva, _)| self.store.unallocate(txg, *dva));
                    return None;
                }
            }
        }
        Some(blocks_allocated)
    }

    /// Links the blocks and completes them.
    fn seal(
        &self,
        blocks_allocated: &[(Dva, u64)],
        txg: Txg,
        blocks: &[Fill],
    ) -> Result<Vec<LogWrite>> {
        let newest: Vec<Txg> = blocks.iter().map(|b| b.newest).collect();
        let (links, checksum, mut seq) = {
            let mut chain = self.chain.lock();
            let links = chain.extend(blocks_allocated, txg, &newest);
            let before = chain.record_seq;
            chain.record_seq += blocks.iter().map(|b| b.starts.len() as u64).sum::<u64>();
            (links, chain.checksum(), before)
        };
        if links.len() != blocks.len() + 1 {
            return Err(base::bug!("a batch of another size than its blocks"));
        }
        let at = records_at(checksum);
        let mut writes = Vec::with_capacity(blocks.len());
        for (block, pair) in blocks.iter().zip(links.windows(2)) {
            let [own, next] = pair else { continue };
            let mut data = BufMut::alloc(own.size as usize);
            let odd = || base::bug!("records that do not fit their block");
            let (room, rest) = data
                .get_mut(at..)
                .and_then(|behind| behind.split_at_mut_checked(block.bytes.len()))
                .ok_or_else(odd)?;
            room.copy_from_slice(&block.bytes);
            rest.fill(0);
            for start in &block.starts {
                seq += 1;
                let sequence = room.get_mut(start + RECORD_SEQ_AT..start + RECORD_SEQ_AT + 8);
                sequence.ok_or_else(odd)?.copy_from_slice(&seq.to_le_bytes());
            }
            let used = seal(&mut data, block.bytes.len(), &own.ptr, &next.ptr)?;
            writes.push(LogWrite { dva: own.dva, birth: own.alloc, data: data.freeze(), used });
        }
        Ok(writes)
    }

    // ------------------------------------------------------------------ txgs

    /// Whether `txg` must write the header although nothing else changed.
    pub fn is_dirty(&self, txg: Txg) -> bool {
        self.chain.lock().is_dirty(txg)
    }

    /// For the sync thread, when it writes `txg` of the object set: returns the header,
    /// if that changes, and the blocks to free.
    pub fn sync(&self, txg: Txg) -> Option<Moved> {
        let moved = self.chain.lock().sync(txg);
        if !self.chain.lock().is_replaying() {
            self.replaying.store(false, SeqCst);
        }
        moved
    }

    /// Ends the chain for good, in the open txg, for which the caller must wait. From
    /// then on, commits wait for txgs.
    ///
    /// # Errors
    /// The error of a suspension.
    pub fn close(&self) -> Result<Txg> {
        self.closed.store(true, SeqCst);
        // A batch in flight ends first, and none begins after.
        let mut leader = self.leader.lock();
        while leader.writing {
            self.ended.wait(&mut leader);
        }
        leader.writing = true;
        drop(leader);
        let held = self.store.hold();
        if let Ok(hold) = &held {
            let mut chain = self.chain.lock();
            if chain.stub().is_some() {
                chain.end(hold.txg);
                drop(chain);
                self.store.dirty(hold.txg);
            }
        }
        self.leader.lock().writing = false;
        self.ended.notify_all();
        held.map(|hold| hold.txg)
    }

    /// Begins closed: as [`Log::close`], for a log that is not in use yet.
    pub fn begin_closed(&self) {
        self.closed.store(true, SeqCst);
    }

    /// Undoes [`Log::close`]: records are accepted again.
    pub fn reopen(&self) {
        self.closed.store(false, SeqCst);
    }

    // ------------------------------------------------------------------ replay

    /// Begins the replay of a log with this header: nothing is recorded until
    /// [`Log::end_replay`].
    ///
    /// # Errors
    /// `Bug` if the log is in use.
    pub fn begin_replay(&self, header: ZilHeader) -> Result<()> {
        self.chain.lock().begin_replay(header)?;
        self.replaying.store(true, SeqCst);
        Ok(())
    }

    /// Whether the log has blocks, written here or by another system.
    pub fn is_in_use(&self) -> bool {
        let chain = self.chain.lock();
        chain.stub().is_some() || chain.is_replaying()
    }

    /// Whether a replay is in progress.
    pub fn is_replaying(&self) -> bool {
        self.replaying.load(SeqCst)
    }

    /// Record `seq` is replayed next; 0: no record of the log.
    pub fn replaying(&self, seq: u64) {
        self.chain.lock().replaying(seq);
    }

    /// Ends the replay after all records. When this returns, their txgs are on disk,
    /// and so is the txg that removes the header and frees `free`.
    ///
    /// # Errors
    /// The error of a suspension.
    pub fn end_replay(&self, free: Vec<BlkPtr>) -> Result<()> {
        let hold = self.store.hold()?;
        self.chain.lock().end_replay(hold.txg, free);
        self.store.dirty(hold.txg);
        let txg = hold.txg;
        drop(hold);
        self.store.wait_synced(txg)
    }
}
