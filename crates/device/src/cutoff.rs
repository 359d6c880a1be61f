//! Devices of one pool that can be given up together, also while they do not answer.
//!
//! # Theory
//! A device may keep an operation for ever: a file served by a stopped FUSE server, a
//! dead network disk. The kernel owns the operation's buffers until it answers, so the
//! operation cannot be taken back; what can be taken back is the wait. A [`CutDevice`]
//! wraps a leaf and keeps the completion of each operation in a table. [`Cutoff::cut`]
//! takes all completions out of the table and runs them with an error; an answer that
//! comes later finds no completion and is dropped, buffers included. From then on the
//! devices fail every operation without touching the device below.
//!
//! A cut is to the pool what a crash is: no write is sent after it, those with the kernel
//! may or may not reach the device. The descriptors of operations with the kernel stay
//! open, and so do the locks on their files: nobody opens the pool anew before the last
//! late write is over.
//!
//! [`Device::run`] serves in the calling thread, which the kernel then holds as long as
//! the device is silent. Once an operation of the pool is older than [`SUSPICIOUS`],
//! operations go through `submit` instead, so that a cut frees their threads.
//!
//! # Invariants
//! * Every completion runs exactly once: it is in the table, or it was taken out by the
//!   one thread that runs it.
//! * No completion runs under the lock.
//! * At most `depth` operations of callers are with the engine below, so that no caller
//!   waits inside it, where a cut would not reach. Completions that submit do not wait.
//!
//! Lock order: `state` is a leaf lock.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::rt::{self, Condvar, Instant, Mutex};
use base::{BufMut, Error, ErrorKind, Result};

use crate::op::{Caps, Completion, Device, Done, Io, Op};
use crate::stats::DeviceStats;

/// An operation that lasts longer makes the devices suspicious: nobody lets the kernel
/// hold a thread for them any more.
const SUSPICIOUS: Duration = Duration::from_secs(1);

thread_local! {
    /// This thread runs a completion, which must not wait.
    static COMPLETING: Cell<bool> = const { Cell::new(false) };
}

/// An operation without its buffers, for a completion that comes of a cut.
#[derive(Clone, Copy)]
enum Shape {
    Read(u64),
    Write(u64),
    Flush,
    Trim(u64, u64),
}

impl Shape {
    fn of(io: &Io) -> Shape {
        match io {
            Io::Read { offset, .. } => Shape::Read(*offset),
            Io::Write { offset, .. } => Shape::Write(*offset),
            Io::Flush => Shape::Flush,
            Io::Trim { offset, len } => Shape::Trim(*offset, *len),
        }
    }

    /// The operation with empty buffers: the kernel still has the full ones.
    fn io(self) -> Io {
        match self {
            Shape::Read(offset) => Io::Read { offset, buf: BufMut::alloc(0) },
            Shape::Write(offset) => Io::Write { offset, bufs: Vec::new() },
            Shape::Flush => Io::Flush,
            Shape::Trim(offset, len) => Io::Trim { offset, len },
        }
    }
}

/// An operation that was sent and is not over.
struct Live {
    since: Instant,
    device: Arc<str>,
    /// Absent for one that its caller serves ([`Device::run`]).
    done: Option<(Done, Shape)>,
}

struct State {
    /// By the order in which they were sent: the first is the oldest.
    live: BTreeMap<u64, Live>,
    next: u64,
    /// Operations with the engine below.
    sent: usize,
    /// Operations that began and ended.
    activity: u64,
    cut: bool,
}

/// Gives up all devices of a pool.
pub struct Cutoff {
    state: Mutex<State>,
    room: Condvar,
    depth: usize,
}

fn given_up() -> Error {
    Error::new(ErrorKind::Io, "the pool was given up")
}

fn complete(done: Done, completion: Completion) {
    let before = COMPLETING.replace(true);
    done(completion);
    COMPLETING.set(before);
}

impl Cutoff {
    /// For devices whose engine takes `depth` operations at once.
    pub fn new(depth: usize) -> Arc<Cutoff> {
        let state = State { live: BTreeMap::new(), next: 0, sent: 0, activity: 0, cut: false };
        Arc::new(Cutoff { state: Mutex::new(state), room: Condvar::new(), depth: depth.max(1) })
    }

    /// Ends every operation with an error, also those that come later.
    pub fn cut(&self) {
        let mut state = self.state.lock();
        state.cut = true;
        let ends: Vec<(Done, Shape)> =
            state.live.values_mut().filter_map(|live| live.done.take()).collect();
        drop(state);
        self.room.notify_all();
        for (done, shape) in ends {
            complete(done, Completion { io: shape.io(), result: Err(given_up()) });
        }
    }

    /// Whether the devices were given up.
    pub fn is_cut(&self) -> bool {
        self.state.lock().cut
    }

    /// A number that grows whenever an operation begins or ends.
    pub fn activity(&self) -> u64 {
        self.state.lock().activity
    }

    /// The device that has kept an operation longest, and for how long.
    pub fn oldest(&self) -> Option<(Arc<str>, Duration)> {
        let state = self.state.lock();
        let (_, live) = state.live.first_key_value()?;
        Some((Arc::clone(&live.device), live.since.elapsed()))
    }

    /// Counts a system call on `device` as an operation while the watch lives: opening a
    /// file may take as long as reading it.
    ///
    /// # Errors
    /// `Io` when the devices were given up.
    pub fn watch(self: &Arc<Self>, device: &str) -> Result<Watch> {
        let mut state = self.state.lock();
        if state.cut {
            return Err(given_up());
        }
        let id = Cutoff::enter(&mut state, &device.into(), None);
        drop(state);
        Ok(Watch { cutoff: Arc::clone(self), id })
    }

    fn is_suspicious(state: &State) -> bool {
        state.live.first_key_value().is_some_and(|(_, l)| l.since.elapsed() > SUSPICIOUS)
    }

    fn enter(state: &mut State, device: &Arc<str>, done: Option<(Done, Shape)>) -> u64 {
        let id = state.next;
        state.next += 1;
        state.activity += 1;
        state.live.insert(id, Live { since: rt::now(), device: Arc::clone(device), done });
        id
    }

    /// An operation with the engine is over.
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

/// A system call that is under way.
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

/// A leaf of a pool that can be given up.
pub struct CutDevice {
    below: Arc<dyn Device>,
    name: Arc<str>,
    cutoff: Arc<Cutoff>,
}

impl CutDevice {
    /// Wraps a leaf; `name` is for messages, its path.
    pub fn new(below: Arc<dyn Device>, name: &str, cutoff: &Arc<Cutoff>) -> CutDevice {
        CutDevice { below, name: name.into(), cutoff: Arc::clone(cutoff) }
    }

    fn wrap(&self, state: &mut State, op: Op) -> Op {
        let Op { io, done } = op;
        let id = Cutoff::enter(state, &self.name, Some((done, Shape::of(&io))));
        state.sent += 1;
        let mut over = Over { cutoff: Arc::clone(&self.cutoff), id: Some(id) };
        Op::new(io, move |completion| over.tell(completion))
    }
}

/// Tells the table, also of an operation that the device below dropped.
struct Over {
    cutoff: Arc<Cutoff>,
    id: Option<u64>,
}

impl Over {
    fn tell(&mut self, completion: Completion) {
        if let Some(id) = self.id.take() {
            self.cutoff.over(id, completion);
        }
    }
}

impl Drop for Over {
    fn drop(&mut self) {
        let result = Err(Error::bug("a device dropped an operation without completing it"));
        self.tell(Completion { io: Io::Flush, result });
    }
}

impl Device for CutDevice {
    fn caps(&self) -> &Caps {
        self.below.caps()
    }

    fn size(&self) -> u64 {
        self.below.size()
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

    /// Keeps what it is given until it is told to answer.
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

    /// A pool's disk was a file of a FUSE server that was stopped: everything that waited
    /// for it waited for ever, the export that should have ended that included. Those who
    /// wait get an error; the late answers reach nobody.
    #[test]
    fn a_cut_ends_every_wait_and_late_answers_reach_nobody() {
        let silent = Silent::new();
        let cutoff = Cutoff::new(4);
        let device = Arc::new(CutDevice::new(Arc::clone(&silent) as _, "silent", &cutoff));
        let told = Arc::new(AtomicUsize::new(0));
        let op = |n: usize| {
            let told = Arc::clone(&told);
            Op::new(Io::read(512 * n as u64, 512), move |completion| {
                assert_eq!(completion.into_read().unwrap_err().kind(), ErrorKind::Io);
                told.fetch_add(1, SeqCst);
            })
        };
        device.submit((0..4).map(op).collect());
        // No room: these wait outside of the engine.
        let (beside, more): (_, Vec<Op>) = (Arc::clone(&device), (4..9).map(op).collect());
        let waiting = rt::spawn("submits", move || beside.submit(more)).unwrap();
        let beside = Arc::clone(&device);
        let reading = rt::spawn("runs", move || beside.run(Io::read(0, 512)).result.is_err());
        while cutoff.oldest().is_none_or(|(_, age)| age < Duration::from_millis(20)) {
            std::thread::yield_now();
        }
        let (name, _) = cutoff.oldest().unwrap();
        assert_eq!((&*name, told.load(SeqCst)), ("silent", 0));
        cutoff.cut();
        waiting.join().unwrap();
        assert_eq!(told.load(SeqCst), 9);
        silent.answer();
        assert_eq!(told.load(SeqCst), 9);
        // What a thread did itself lasts until the device answers, and failed then.
        assert_eq!(reading.unwrap().join(), Some(true));
        assert!(cutoff.oldest().is_none());
        // What comes later fails at once, though the device would answer.
        assert!(device.run(Io::read(0, 512)).result.is_err());
        device.submit(vec![op(0)]);
        assert_eq!(told.load(SeqCst), 10);
    }

    #[test]
    fn what_is_not_cut_passes() {
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
