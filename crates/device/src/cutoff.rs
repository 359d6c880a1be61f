//! Devices of one pool that can be cut off together, even while they do not answer.
//!
//! # Theory
//! A device may keep an operation for ever: a file served by a stopped FUSE server, a
//! dead network disk. The kernel owns the operation's buffers until it completes, so
//! the operation cannot be withdrawn. The wait for it can. A [`CutDevice`] wraps a leaf
//! and keeps the completion of each operation in a table. [`Cutoff::cut`] takes all
//! completions out of the table and runs them with an error. A completion that arrives
//! later finds no entry and is dropped together with its buffers. From then on the
//! devices fail every operation without using the device below.
//!
//! To the pool, a cut is like a crash: no write is sent after it, and writes that the
//! kernel already has may or may not reach the device. The descriptors of operations in
//! the kernel stay open, and so do the locks on their files. Therefore the pool cannot
//! be opened again before the last late write has ended.
//!
//! [`Device::run`] does its work in the calling thread, which the kernel then blocks as
//! long as the device does not answer. Once an operation of the pool is older than
//! [`SUSPICIOUS`], operations use `submit` instead, so that a cut frees their threads.
//!
//! # Invariants
//! * Every completion runs exactly once: either it is in the table, or the one thread
//!   that runs it has taken it out.
//! * No completion runs under the lock.
//! * At most `depth` operations of callers are in the engine below, so that no caller
//!   waits inside the engine, where a cut would not reach it. Completions that submit
//!   operations do not wait.
//!
//! Lock order: `state` is a leaf lock.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::rt::{self, Condvar, Instant, Mutex};
use base::{BufMut, Error, ErrorKind, Result};

use crate::op::{Caps, Completion, CompletionFn, Device, Io, Op};
use crate::stats::DeviceStats;

/// An operation that lasts longer marks the devices as suspicious: from then on no
/// thread blocks in the kernel for them.
const SUSPICIOUS: Duration = Duration::from_secs(1);

thread_local! {
    /// This thread is running a completion, which must not wait.
    static COMPLETING: Cell<bool> = const { Cell::new(false) };
}

/// An operation without its buffers, for the completion that a cut produces.
#[derive(Clone, Copy)]
enum OpShape {
    Read(u64),
    Write(u64),
    Flush,
    Trim(u64, u64),
}

impl OpShape {
    fn of(io: &Io) -> OpShape {
        match io {
            Io::Read { offset, .. } => OpShape::Read(*offset),
            Io::Write { offset, .. } => OpShape::Write(*offset),
            Io::Flush => OpShape::Flush,
            Io::Trim { offset, len } => OpShape::Trim(*offset, *len),
        }
    }

    /// The operation with empty buffers; the kernel still owns the full ones.
    fn io(self) -> Io {
        match self {
            OpShape::Read(offset) => Io::Read { offset, buf: BufMut::alloc(0) },
            OpShape::Write(offset) => Io::Write { offset, bufs: Vec::new() },
            OpShape::Flush => Io::Flush,
            OpShape::Trim(offset, len) => Io::Trim { offset, len },
        }
    }
}

/// An operation that was submitted and has not ended.
struct LiveOp {
    since: Instant,
    device: Arc<str>,
    /// `None` for an operation that runs in the caller's thread ([`Device::run`]).
    done: Option<(CompletionFn, OpShape)>,
}

struct CutoffState {
    /// In order of submission: the first is the oldest.
    live: BTreeMap<u64, LiveOp>,
    next: u64,
    /// Operations in the engine below.
    sent: usize,
    /// Counts operations that began and operations that ended.
    activity: u64,
    cut: bool,
}

/// The switch that cuts off all devices of a pool.
pub struct Cutoff {
    state: Mutex<CutoffState>,
    room: Condvar,
    depth: usize,
}

fn given_up() -> Error {
    Error::new(ErrorKind::Io, "the pool was given up")
}

fn complete(done: CompletionFn, completion: Completion) {
    let before = COMPLETING.replace(true);
    done(completion);
    COMPLETING.set(before);
}

impl Cutoff {
    /// For devices whose engine accepts `depth` operations at once.
    pub fn new(depth: usize) -> Arc<Cutoff> {
        let state =
            CutoffState { live: BTreeMap::new(), next: 0, sent: 0, activity: 0, cut: false };
        Arc::new(Cutoff { state: Mutex::new(state), room: Condvar::new(), depth: depth.max(1) })
    }

    /// Ends every operation with an error, including operations submitted later.
    pub fn cut(&self) {
        let mut state = self.state.lock();
        state.cut = true;
        let ends: Vec<(CompletionFn, OpShape)> =
            state.live.values_mut().filter_map(|live| live.done.take()).collect();
        drop(state);
        self.room.notify_all();
        for (done, shape) in ends {
            complete(done, Completion { io: shape.io(), result: Err(given_up()) });
        }
    }

    /// Whether the devices were cut off.
    pub fn is_cut(&self) -> bool {
        self.state.lock().cut
    }

    /// A counter that grows whenever an operation begins or ends.
    pub fn activity(&self) -> u64 {
        self.state.lock().activity
    }

    /// The device with the oldest operation in flight, and the age of that operation.
    pub fn oldest(&self) -> Option<(Arc<str>, Duration)> {
        let state = self.state.lock();
        let (_, live) = state.live.first_key_value()?;
        Some((Arc::clone(&live.device), live.since.elapsed()))
    }

    /// Counts a system call on `device` as an operation during the lifetime of the
    /// returned value, because opening a file may take as long as reading it.
    ///
    /// # Errors
    /// `Io` when the devices were cut off.
    pub fn watch(self: &Arc<Self>, device: &str) -> Result<Watch> {
        let mut state = self.state.lock();
        if state.cut {
            return Err(given_up());
        }
        let id = Cutoff::enter(&mut state, &device.into(), None);
        drop(state);
        Ok(Watch { cutoff: Arc::clone(self), id })
    }

    fn is_suspicious(state: &CutoffState) -> bool {
        state.live.first_key_value().is_some_and(|(_, l)| l.since.elapsed() > SUSPICIOUS)
    }

    fn enter(
        state: &mut CutoffState,
        device: &Arc<str>,
        done: Option<(CompletionFn, OpShape)>,
    ) -> u64 {
        let id = state.next;
        state.next += 1;
        state.activity += 1;
        state.live.insert(id, LiveOp { since: rt::now(), device: Arc::clone(device), done });
        id
    }

    /// Ends an operation of the engine.
    fn over(&self, id: u64, completion: Completion) {
        let mut state = self.state.lock();
        let done = state.live.remove(&id).and_then(|live| live.done);
        state.sent -= 1;
        state.activity += 1;
        drop(state);
        self.room.notify_one();
        if let Some((done, _)) = done {
            complete(done, completion);
        }
    }
}

/// A system call in flight.
pub struct Watch {
    cutoff: Arc<Cutoff>,
    id: u64,
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut state = self.cutoff.state.lock();
        state.live.remove(&self.id);
        state.activity += 1;
    }
}

/// A leaf of a pool that can be cut off.
pub struct CutDevice {
    below: Arc<dyn Device>,
    name: Arc<str>,
    cutoff: Arc<Cutoff>,
}

impl CutDevice {
    /// Wraps a leaf; `name` is its path, for messages.
    pub fn new(below: Arc<dyn Device>, name: &str, cutoff: &Arc<Cutoff>) -> CutDevice {
        CutDevice { below, name: name.into(), cutoff: Arc::clone(cutoff) }
    }

    fn wrap(&self, state: &mut CutoffState, op: Op) -> Op {
        let Op { io, done } = op;
        let id = Cutoff::enter(state, &self.name, Some((done, OpShape::of(&io))));
        state.sent += 1;
        let mut over = TableEntry { cutoff: Arc::clone(&self.cutoff), id: Some(id) };
        Op::new(io, move |completion| over.complete(completion))
    }
}

/// Removes an operation from the table, even if the device below drops it.
struct TableEntry {
    cutoff: Arc<Cutoff>,
    id: Option<u64>,
}

impl TableEntry {
    fn complete(&mut self, completion: Completion) {
        if let Some(id) = self.id.take() {
            self.cutoff.over(id, completion);
        }
    }
}

impl Drop for TableEntry {
    fn drop(&mut self) {
        let result = Err(Error::bug("a device dropped an operation without completing it"));
        self.complete(Completion { io: Io::Flush, result });
    }
}

impl Device for CutDevice {
    fn caps(&self) -> &Caps {
        self.below.caps()
    }

    fn size(&self) -> u64 {
        self.below.size()
    }

    fn refresh_size(&self) -> Result<u64> {
        self.below.refresh_size()
    }

    fn submit(&self, batch: Vec<Op>) {
        let mut rest = batch.into_iter().peekable();
        let cutoff = &self.cutoff;
        while rest.peek().is_some() {
            let mut state = cutoff.state.lock();
            while !state.cut && state.sent >= cutoff.depth && !COMPLETING.get() {
                cutoff.room.wait(&mut state);
            }
            if state.cut {
                drop(state);
                for op in rest {
                    let Op { io, done } = op;
                    complete(done, Completion { io, result: Err(given_up()) });
                }
                return;
            }
            let room = match COMPLETING.get() {
                true => usize::MAX,
                false => cutoff.depth - state.sent,
            };
            let ops: Vec<Op> =
                rest.by_ref().take(room).map(|op| self.wrap(&mut state, op)).collect();
            drop(state);
            self.below.submit(ops);
        }
    }

    fn describe(&self) -> String {
        self.below.describe()
    }

    fn stats(&self) -> &DeviceStats {
        self.below.stats()
    }

    fn is_at(&self, path: &Path) -> bool {
        self.below.is_at(path)
    }

    fn run(&self, io: Io) -> Completion {
        let mut state = self.cutoff.state.lock();
        if state.cut {
            return Completion { io, result: Err(given_up()) };
        }
        if Cutoff::is_suspicious(&state) {
            drop(state);
            let slot = Arc::new(rt::OneShot::new());
            let filled = Arc::clone(&slot);
            self.submit(vec![Op::new(io, move |completion| filled.set(completion))]);
            return slot.wait();
        }
        let id = Cutoff::enter(&mut state, &self.name, None);
        drop(state);
        let watch = Watch { cutoff: Arc::clone(&self.cutoff), id };
        let completion = self.below.run(io);
        drop(watch);
        match self.cutoff.is_cut() {
            true => Completion { result: Err(given_up()), ..completion },
            false => completion,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

    use super::*;
    use crate::MemDevice;

    /// Keeps its operations until the test calls `answer`.
    struct Silent {
        inner: MemDevice,
        kept: Mutex<Vec<Op>>,
        silent: AtomicBool,
    }

    impl Silent {
        fn new() -> Arc<Silent> {
            let (inner, kept) = (MemDevice::new("silent", 1 << 20), Mutex::new(Vec::new()));
            Arc::new(Silent { inner, kept, silent: AtomicBool::new(true) })
        }

        fn answer(&self) {
            self.silent.store(false, SeqCst);
            let kept = std::mem::take(&mut *self.kept.lock());
            self.inner.submit(kept);
        }
    }

    impl Device for Silent {
        fn caps(&self) -> &Caps {
            self.inner.caps()
        }
        fn size(&self) -> u64 {
            self.inner.size()
        }
        fn submit(&self, batch: Vec<Op>) {
            match self.silent.load(SeqCst) {
                true => self.kept.lock().extend(batch),
                false => self.inner.submit(batch),
            }
        }
        fn describe(&self) -> String {
            self.inner.describe()
        }
        fn stats(&self) -> &DeviceStats {
            self.inner.stats()
        }
    }

    /// A pool's disk was a file of a FUSE server that was stopped. Everything that
    /// waited for it waited for ever, including the export that should have ended the
    /// wait. Now waiting callers get an error, and late completions are dropped.
    #[test]
    fn a_cut_ends_every_wait_and_late_answers_reach_nobody() {
        let silent = Silent::new();
        let cutoff = Cutoff::new(4);
        let device = Arc::new(CutDevice::new(Arc::clone(&silent) as _, "silent", &cutoff));
        let completed = Arc::new(AtomicUsize::new(0));
        let op = |n: usize| {
            let completed = Arc::clone(&completed);
            Op::new(Io::read(512 * n as u64, 512), move |completion| {
                assert_eq!(completion.into_read().unwrap_err().kind(), ErrorKind::Io);
                completed.fetch_add(1, SeqCst);
            })
        };
        device.submit((0..4).map(op).collect());
        // The engine is full: these wait outside of it.
        let (beside, more): (_, Vec<Op>) = (Arc::clone(&device), (4..9).map(op).collect());
        let waiting = rt::spawn("submits", move || beside.submit(more)).unwrap();
        let beside = Arc::clone(&device);
        let reading = rt::spawn("runs", move || beside.run(Io::read(0, 512)).result.is_err());
        while cutoff.oldest().is_none_or(|(_, age)| age < Duration::from_millis(20)) {
            std::thread::yield_now();
        }
        let (name, _) = cutoff.oldest().unwrap();
        assert_eq!((&*name, completed.load(SeqCst)), ("silent", 0));
        cutoff.cut();
        waiting.join().unwrap();
        assert_eq!(completed.load(SeqCst), 9);
        silent.answer();
        assert_eq!(completed.load(SeqCst), 9);
        // An operation in the caller's thread lasts until the device answers; then it
        // fails.
        assert_eq!(reading.unwrap().join(), Some(true));
        assert!(cutoff.oldest().is_none());
        // Later operations fail at once, although the device would answer.
        assert!(device.run(Io::read(0, 512)).result.is_err());
        device.submit(vec![op(0)]);
        assert_eq!(completed.load(SeqCst), 10);
    }

    #[test]
    fn operations_pass_without_a_cut() {
        let cutoff = Cutoff::new(2);
        let device = CutDevice::new(Arc::new(MemDevice::new("m", 1 << 20)), "m", &cutoff);
        let written = crate::submit_and_wait(
            &device,
            (0..8)
                .map(|n| Io::Write { offset: n * 512, bufs: vec![base::Buf::copy_of(&[7; 512])] })
                .collect(),
        );
        assert!(written.iter().all(|c| c.result.is_ok()));
        let read = crate::read_blocking(&device, 0, 4096).unwrap();
        assert_eq!(&read[..], [7; 4096]);
        let watch = cutoff.watch("opened").unwrap();
        assert_eq!(&*cutoff.oldest().unwrap().0, "opened");
        drop(watch);
        assert!(cutoff.oldest().is_none());
        cutoff.cut();
        assert!(cutoff.watch("opened").is_err());
    }
}
