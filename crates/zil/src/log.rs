//! Records in, commits out.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use base::rt::{Condvar, Mutex};
use base::{BufMut, Dva, Error, ErrorKind, ObjectId, Result, Txg, VdevId};
use codec::checksum::Checksum;
use ondisk::BlkPtr;
use ondisk::zil::{Body, RECORD_SEQ_AT, ZilHeader, records_at, seal};

use crate::chain::{Chain, Moved};
use crate::fill::{Fill, fill};
use crate::forms::{Forms, Held, Ready, immediate_write, make_ready};
use crate::pending::{Found, Indirect, Itx, Pending, Wants, What};
use crate::size::{Plan, ROOM_MAX, Sizes};
use crate::stats::{Stats, bump, caller};
use crate::{LogWrite, Source, Store};

/// Record type.
const TX_TRUNCATE: u8 = 10;
/// Data of a write that is copied when it is written.
const COPY_MAX: usize = 8 << 10;
/// Bytes copied that wait; beyond, data is fetched at the commit.
const COPIED_MAX: u64 = 64 << 20;
/// Bytes of records that are fetched and written at a time.
const PIECE_MAX: u64 = 8 << 20;
/// Records that wait; beyond, the group is written soon.
const RECORDS_MAX: u64 = 1 << 20;

/// Property `sync`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// Commits are made as asked for.
    #[default]
    Standard = 0,
    /// Every change is committed.
    Always = 1,
    /// Nothing is: a commit is nothing.
    Disabled = 2,
}

/// How a batch ended.
#[derive(Clone, Debug)]
enum End {
    Safe,
    Failed(ErrorKind, String),
    /// Who wrote it panicked: its records wait for their groups.
    Abandoned,
}

/// Those who wait for the same blocks.
#[derive(Default)]
struct Batch {
    end: OnceLock<End>,
}

/// Whose turn it is to write.
#[derive(Default)]
struct Turn {
    writing: bool,
    /// What the next batch is for, and who waits for it.
    wants: Wants,
    batch: Arc<Batch>,
    /// The threads that it is for.
    callers: Vec<u32>,
}

/// What became of a part of a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Went {
    /// It is in the chain, and flushed.
    Logged,
    /// The whole batch is in groups that are on disk.
    Stalled,
}

/// A batch being written by its committer. However that ends, a panic included, the turn
/// is given up and those who wait are told.
struct Writing<'a> {
    log: &'a Log,
    batch: Arc<Batch>,
    end: End,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let mut turn = self.log.turn.lock();
        turn.writing = false;
        // Set once: the batch was taken from the turn.
        let _first = self.batch.end.set(std::mem::replace(&mut self.end, End::Abandoned));
        drop(turn);
        self.log.ended.notify_all();
    }
}

/// Records that were taken out of their lists: unless they are safe in the end, commits
/// wait for their groups.
struct Taken<'a> {
    log: &'a Log,
    newest: Txg,
    safe: bool,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.safe {
            self.log.pending.lock().barrier(self.newest);
        }
    }
}

/// Blocks that were added to the chain: unless they are flushed in the end, the chain is
/// given up in the group that is held.
struct Issued<'a> {
    log: &'a Log,
    txg: Txg,
    flushed: bool,
}

impl Drop for Issued<'_> {
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

/// Records of one change: in one block, or in none.
pub struct Bundle {
    txg: Txg,
    bytes: Vec<u8>,
    /// All of them could be put into bytes.
    whole: bool,
    cuts: bool,
}

impl Bundle {
    /// Of a transaction of `txg`.
    pub fn new(txg: Txg) -> Bundle {
        Bundle { txg, bytes: Vec::new(), whole: true, cuts: false }
    }

    /// One more record, of type `kind`.
    pub fn push(&mut self, kind: u8, body: &Body<'_>) {
        self.cuts |= kind == TX_TRUNCATE;
        match body.encode(kind, self.txg) {
            Ok(record) => self.bytes.extend(record),
            Err(_) => self.whole = false,
        }
    }

    /// The same.
    #[must_use]
    pub fn with(mut self, kind: u8, body: &Body<'_>) -> Bundle {
        self.push(kind, body);
        self
    }

    /// Says that a part of the change has no record: it waits for its group.
    pub fn lacks(&mut self) {
        self.whole = false;
    }

    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        self.whole && self.bytes.is_empty()
    }
}

/// One object set's intent log.
pub struct Log {
    store: Arc<dyn Store>,
    mode: AtomicU8,
    /// `logbias=throughput`.
    throughput: AtomicBool,
    xattrs: AtomicBool,
    /// The dataset is gone, or the pool is being exported.
    closed: AtomicBool,
    replaying: AtomicBool,
    turn: Mutex<Turn>,
    ended: Condvar,
    pending: Mutex<Pending>,
    chain: Mutex<Chain>,
    sizes: Mutex<Sizes>,
    stats: Stats,
    /// **Test instrument**, off: records of objects go before those of names.
    pub plant_disorder: AtomicBool,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Log({:?})", *self.chain.lock())
    }
}

impl Log {
    /// The log of object set `objset`, empty; `slim`: the pool's version knows blocks with
    /// their chain header in front (23).
    pub fn new(objset: u64, slim: bool, store: Arc<dyn Store>) -> Arc<Log> {
        let checksum = if slim { Checksum::Zilog2 } else { Checksum::Zilog };
        Arc::new(Log {
            store,
            mode: AtomicU8::new(0),
            throughput: AtomicBool::new(false),
            xattrs: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            replaying: AtomicBool::new(false),
            turn: Mutex::default(),
            ended: Condvar::new(),
            pending: Mutex::default(),
            chain: Mutex::new(Chain::new(objset, checksum)),
            sizes: Mutex::default(),
            stats: Stats::default(),
            plant_disorder: AtomicBool::new(false),
        })
    }

    /// Property `sync`, from now on.
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

    /// Whether records of extended attributes among system attributes may be written: the
    /// pool's feature for them is enabled, and goes with the chain.
    pub fn set_xattrs(&self, on: bool) {
        self.xattrs.store(on, SeqCst);
    }

    /// As [`Log::set_xattrs`] said.
    pub fn takes_xattrs(&self) -> bool {
        self.xattrs.load(SeqCst)
    }

    /// Property `logbias`, from now on: whether data goes to its place at once.
    pub fn set_throughput(&self, on: bool) {
        self.throughput.store(on, SeqCst);
    }

    /// What it did so far.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    // ------------------------------------------------------------------ records

    /// Whether the caller's change is to be recorded; in a replay it is noted instead.
    fn takes(&self, txg: Txg) -> bool {
        if self.replaying.load(SeqCst) {
            self.chain.lock().replayed(txg);
            return false;
        }
        if self.mode() == Mode::Disabled || self.closed.load(SeqCst) {
            // Who commits afterwards must not miss what came before.
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

    /// A change of names, made by a transaction of `txg` that is still open: a record of
    /// type `kind` that any commit writes. By it `gone` has no name any more, and its
    /// content is nobody's concern after a crash.
    pub fn name(&self, txg: Txg, kind: u8, body: &Body<'_>, gone: Option<ObjectId>) {
        self.names(Bundle::new(txg).with(kind, body), gone);
    }

    /// The same with several records, none of which is in the log without the others.
    pub fn names(&self, bundle: Bundle, gone: Option<ObjectId>) {
        let txg = bundle.txg;
        if self.takes(txg)
            && let Some(record) = self.fitting(bundle)
        {
            let mut pending = self.pending.lock();
            let what = match gone {
                Some(object) => What::Cut { object, record },
                None => What::Whole(record),
            };
            pending.name(txg, &|| self.store.synced_txg(), what);
            if let Some(gone) = gone {
                pending.drop_object(gone);
            }
        }
    }

    /// A change of one object's attributes or extent, likewise: a commit of the object
    /// writes it.
    pub fn object(&self, txg: Txg, object: ObjectId, kind: u8, body: &Body<'_>) {
        self.objects(Bundle::new(txg).with(kind, body), object);
    }

    /// The same with several records, none of which is in the log without the others.
    pub fn objects(&self, bundle: Bundle, object: ObjectId) {
        let (txg, cuts) = (bundle.txg, bundle.cuts);
        if self.takes(txg)
            && let Some(record) = self.fitting(bundle)
        {
            let what = if cuts { What::Cut { object, record } } else { What::Whole(record) };
            self.pending.lock().object(txg, &|| self.store.synced_txg(), object, what);
        }
    }

    /// A write of `data` to a file.
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
            let what = if copy {
                What::Data { object, offset, data: data.to_vec() }
            } else {
                What::Range { object, offset, len, indirect }
            };
            pending.object(txg, &|| self.store.synced_txg(), object, what);
            pending.held().0
        };
        if held > RECORDS_MAX {
            self.store.dirty(txg);
        }
    }

    /// A change that no record says: commits wait for its group.
    pub fn barrier(&self, txg: Txg) {
        if self.replaying.load(SeqCst) {
            self.chain.lock().replayed(txg);
        } else {
            self.pending.lock().barrier(txg);
        }
    }

    /// What was done to the object so far goes with the names that come now: its content is
    /// there when its new name is.
    pub fn adopt(&self, object: ObjectId) {
        self.pending.lock().adopt(object);
    }

    // ------------------------------------------------------------------ commits

    /// Returns when all names, and what was done to `object` (`None`: to all), is safe. The
    /// caller holds no lock of a file, and no group.
    ///
    /// # Errors
    /// That of a suspension; nothing is promised then.
    pub fn commit(&self, source: &dyn Source, object: Option<ObjectId>) -> Result<()> {
        self.stats.both(|s| bump(&s.commits, 1));
        if self.mode() == Mode::Disabled {
            return Ok(());
        }
        let start = base::rt::now();
        let done = self.share(source, object);
        let time = start.elapsed();
        self.stats.both(|s| s.took(time));
        done
    }

    /// Joins the next batch, and writes it if nobody else does.
    fn share(&self, source: &dyn Source, object: Option<ObjectId>) -> Result<()> {
        let mut turn = self.turn.lock();
        turn.wants.add(object);
        turn.callers.push(caller());
        let batch = Arc::clone(&turn.batch);
        while turn.writing {
            self.ended.wait(&mut turn);
            match batch.end.get() {
                None => {}
                Some(End::Safe) => return Ok(()),
                Some(End::Failed(kind, text)) => return Err(Error::new(*kind, text.clone())),
                Some(End::Abandoned) => {
                    // What is not safe by now has a barrier.
                    drop(turn);
                    return self.share(source, object);
                }
            }
        }
        // Nobody writes: the batch is the caller's.
        turn.writing = true;
        let wants = std::mem::take(&mut turn.wants);
        let callers = std::mem::take(&mut turn.callers);
        turn.batch = Arc::default();
        drop(turn);
        let mut writing = Writing { log: self, batch, end: End::Abandoned };
        self.stats.both(|s| s.shared_by(callers.len()));
        self.stats.company_of(&callers);
        let done = self.run(source, &wants);
        writing.end = match &done {
            Ok(()) => End::Safe,
            Err(e) => End::Failed(e.kind(), e.to_string()),
        };
        done
    }

    /// Writes a batch, or waits for the groups of what is in it.
    fn run(&self, source: &dyn Source, wants: &Wants) -> Result<()> {
        let found = self.pending.lock().gather(wants, self.store.synced_txg());
        let records = match found {
            Found::Nothing => return Ok(()),
            Found::Wait(txg) => return self.stall(txg).map(drop),
            Found::Records(mut records) => {
                if self.plant_disorder.load(Relaxed) {
                    records.sort_by_key(|r| matches!(r.what, What::Whole(_) | What::Cut { .. }));
                }
                records
            }
        };
        let newest = records.iter().map(|r| r.txg).fold(Txg::ZERO, Txg::max);
        // They are in no list any more, and nothing may follow them in the chain unless
        // they are in it.
        let mut taken = Taken { log: self, newest, safe: false };
        let done = self.run_pieces(source, records, newest);
        taken.safe = done.is_ok();
        done
    }

    fn run_pieces(&self, source: &dyn Source, records: Vec<Itx>, newest: Txg) -> Result<()> {
        // Written now, and by the group once more.
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
            if self.run_records(source, piece, newest)? == Went::Stalled {
                return Ok(());
            }
        }
        Ok(())
    }

    /// `newest`: of the whole batch.
    fn run_records(&self, source: &dyn Source, records: Vec<Itx>, newest: Txg) -> Result<Went> {
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
            Some(Ready { records, held }) => {
                self.write_batch(&records, &forms, first, newest, held)
            }
        }
    }

    /// Waits for groups instead of writing.
    fn stall(&self, txg: Txg) -> Result<Went> {
        self.stats.both(|s| bump(&s.stalls, 1));
        self.store.wait_synced(txg)?;
        Ok(Went::Stalled)
    }

    /// The first commit: it waits for the group whose header has the chain.
    fn begin(&self, newest: Txg) -> Result<Went> {
        let hold = self.store.hold()?;
        let txg = hold.txg;
        let size = self.sizes.lock().foretell();
        if let Ok(dva) = self.store.allocate(txg, size) {
            let id = [self.store.random(), self.store.random()];
            self.chain.lock().begin(id, dva, size, txg);
            self.store.dirty(txg);
        }
        drop(hold);
        self.stall(txg.max(newest))
    }

    /// `held`: with blocks that are on their way to their places.
    fn write_batch(
        &self,
        records: &[Itx],
        forms: &Forms,
        first: u64,
        newest: Txg,
        held: Option<Held>,
    ) -> Result<Went> {
        let blocks = fill(records, first);
        let size: u64 = records.iter().map(Itx::size).sum();
        let largest = records.iter().map(Itx::largest).max().unwrap_or(0);
        let next = {
            let mut sizes = self.sizes.lock();
            sizes.note(Plan::of(size, largest));
            sizes.foretell()
        };
        let mut held = match held {
            Some(held) => held,
            None => Held::empty(self.store.hold()?),
        };
        let txg = held.txg();
        let sizes = blocks.iter().skip(1).map(|b| b.size).chain([next]);
        let Some(places) = self.places(txg, sizes) else {
            // Nothing was changed: the stub stays.
            drop(held);
            return self.stall(newest);
        };
        self.store.dirty(txg);
        // Dropped before the hold.
        let mut issued = Issued { log: self, txg, flushed: false };
        let mut wrote: Vec<(u64, u64, bool)> = Vec::new();
        let done = self.seal(&places, txg, &blocks).and_then(|writes| {
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
        Ok(Went::Logged)
    }

    /// Space for the blocks after the stub: all or nothing.
    fn places(&self, txg: Txg, sizes: impl Iterator<Item = u64>) -> Option<Vec<(Dva, u64)>> {
        let mut places: Vec<(Dva, u64)> = Vec::new();
        for size in sizes {
            match self.store.allocate(txg, size) {
                Ok(dva) => places.push((dva, size)),
                Err(_) => {
                    places.iter().for_each(|(dva, _)| self.store.unallocate(txg, *dva));
                    return None;
                }
            }
        }
        Some(places)
    }

    /// Chains the blocks, and completes them.
    fn seal(&self, places: &[(Dva, u64)], txg: Txg, blocks: &[Fill]) -> Result<Vec<LogWrite>> {
        let newest: Vec<Txg> = blocks.iter().map(|b| b.newest).collect();
        let (links, checksum, mut seq) = {
            let mut chain = self.chain.lock();
            let links = chain.extend(places, txg, &newest);
            let before = chain.record_seq;
            chain.record_seq += blocks.iter().map(|b| b.starts.len() as u64).sum::<u64>();
            (links, chain.checksum(), before)
        };
        if links.len() != blocks.len() + 1 {
            return Err(Error::bug("a batch of another size than its blocks"));
        }
        let at = records_at(checksum);
        let mut writes = Vec::with_capacity(blocks.len());
        for (block, pair) in blocks.iter().zip(links.windows(2)) {
            let [own, next] = pair else { continue };
            let mut data = BufMut::alloc(own.size as usize);
            let odd = || Error::bug("records that do not fit their block");
            let (room, rest) = data
                .get_mut(at..)
                .and_then(|behind| behind.split_at_mut_checked(block.bytes.len()))
                .ok_or_else(odd)?;
            room.copy_from_slice(&block.bytes);
            rest.fill(0);
            for start in &block.starts {
                seq += 1;
                let place = room.get_mut(start + RECORD_SEQ_AT..start + RECORD_SEQ_AT + 8);
                place.ok_or_else(odd)?.copy_from_slice(&seq.to_le_bytes());
            }
            let used = seal(&mut data, block.bytes.len(), &own.ptr, &next.ptr)?;
            writes.push(LogWrite { dva: own.dva, birth: own.alloc, data: data.freeze(), used });
        }
        Ok(writes)
    }

    // ------------------------------------------------------------------ groups

    /// Whether group `txg` must write the header although nothing else changed.
    pub fn is_dirty(&self, txg: Txg) -> bool {
        self.chain.lock().is_dirty(txg)
    }

    /// For the sync thread, when it writes group `txg` of the object set: its header, if that
    /// changes, and what to free.
    pub fn sync(&self, txg: Txg) -> Option<Moved> {
        let moved = self.chain.lock().sync(txg);
        if !self.chain.lock().is_replaying() {
            self.replaying.store(false, SeqCst);
        }
        moved
    }

    /// Ends the chain for good, in the open group; the caller waits for that. Commits wait
    /// for groups from then on.
    ///
    /// # Errors
    /// That of a suspension.
    pub fn close(&self) -> Result<Txg> {
        self.closed.store(true, SeqCst);
        // A batch under way ends before, and none begins after.
        let mut turn = self.turn.lock();
        while turn.writing {
            self.ended.wait(&mut turn);
        }
        turn.writing = true;
        drop(turn);
        let held = self.store.hold();
        if let Ok(hold) = &held {
            let mut chain = self.chain.lock();
            if chain.stub().is_some() {
                chain.end(hold.txg);
                drop(chain);
                self.store.dirty(hold.txg);
            }
        }
        self.turn.lock().writing = false;
        self.ended.notify_all();
        held.map(|hold| hold.txg)
    }

    /// Undoes [`Log::close`]: records are taken again.
    pub fn reopen(&self) {
        self.closed.store(false, SeqCst);
    }

    // ------------------------------------------------------------------ replay

    /// A log with this header is going to be replayed: nothing is recorded until
    /// [`Log::end_replay`].
    ///
    /// # Errors
    /// `Bug` if the log is in use.
    pub fn begin_replay(&self, header: ZilHeader) -> Result<()> {
        self.chain.lock().begin_replay(header)?;
        self.replaying.store(true, SeqCst);
        Ok(())
    }

    /// Whether there are blocks of the log, written here or by others.
    pub fn is_in_use(&self) -> bool {
        let chain = self.chain.lock();
        chain.stub().is_some() || chain.is_replaying()
    }

    /// Whether a replay is going on.
    pub fn is_replaying(&self) -> bool {
        self.replaying.load(SeqCst)
    }

    /// What is done next is record `seq`; 0: nothing of the log.
    pub fn replaying(&self, seq: u64) {
        self.chain.lock().replaying(seq);
    }

    /// All records are done. Their groups, and one in which the header goes and `free` is
    /// freed, are on disk when this returns.
    ///
    /// # Errors
    /// That of a suspension.
    pub fn end_replay(&self, free: Vec<BlkPtr>) -> Result<()> {
        let hold = self.store.hold()?;
        self.chain.lock().end_replay(hold.txg, free);
        self.store.dirty(hold.txg);
        let txg = hold.txg;
        drop(hold);
        self.store.wait_synced(txg)
    }
}
