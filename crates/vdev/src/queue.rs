//! A leaf's queue: classes of operations, sorted, merged, as deep as is good.
//!
//! # Theory
//! Every operation belongs to a class ([`IoClass`]), and each class has a least and a
//! largest number of operations with the device (`limits`). First go, in turn, classes that
//! have less than their least; then, in the order of their urgency, those that have less
//! than their largest (chapter 10 §11.2). So nothing that somebody waits for waits behind a
//! mass of writes, and nothing starves.
//!
//! The device is swept: what waits is taken in the order of offsets, and what arrives
//! meanwhile is for the next sweep, unless it touches what is taken and is taken along.
//! So a device that is slower than its writers gets few large writes in the order of
//! its sectors. (An elevator that also takes what arrives ahead of it never turns back
//! under a stream of ascending writes: stragglers fill the queue and nothing merges.)
//! There is no thread: whoever submits or completes hands on what fits (`Queue::pump`),
//! one at a time, so a device that completes at once does not recurse. A read that need
//! not wait is made by who asks for it (`reads`), and so is a single write whose submitter
//! waits for it: on the way to another thread and back two switches would be lost, of which
//! each is a tenth of a flash device's flush.
//!
//! An optional request asks for zeros that nobody will read (raidz skip sectors); it
//! is written only between two others, which become one operation by it, and else
//! dropped. If a merged operation fails, its parts are tried alone, so that one bad
//! sector costs one request.
//!
//! # Invariants
//! * The ranges of writes that are ready or with the device are disjoint. A write that
//!   overlaps one of them, or one held before it, is held until those are over: the last
//!   submitted is the last written. Reads are not ordered among writes: nothing is read
//!   while it is written (`write`).
//! * Each request is completed exactly once, without a lock held. What leaves the queue
//!   without being written ([`State::leave`]) is a [`Done`] in the hands of the caller, and
//!   a [`Done`] that is forgotten tells an error (`base::rt::Callback`).
//! * At most `in_flight_max` bytes of writes are in the queue, twice as many with
//!   synchronous ones, or one submission.
//! * If nobody pumps and something is ready, something is with the device, whose completion
//!   pumps: the least of some class that is ready is 1, but for the background's while
//!   others are at work.
//!
//! Departure: synchronous writes are taken by offset like the others rather than first
//! come, first served; the sweeps bound their wait.
//!
//! Lock order: `state` is a leaf lock.

mod depth;
mod limits;
mod reads;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::rt::{self, Callback, Condvar, Instant, Mutex, MutexGuard};
use base::{Buf, BufMut, Error, Result};
use device::{Completion, Device, Io, Op};

use crate::iostat::IoClass;
use crate::tree::Live;
use depth::Depths;
pub(crate) use limits::Tuning;
use limits::{CLASSES, Caps, Courtesy, Guests, LOGGING, QUIET};
pub use limits::{ClassLimits, QueueLimits, WriteLoad};
pub(crate) use reads::{Asked, Turn};
use reads::{ReadRun, Reads, Waiting};

/// Why a write is made (chapter 02 §14).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WritePriority {
    /// As [`WritePriority::SyncWrite`], and it is the caller who waits, for nothing but what
    /// it submits: it may as well make the write itself (log blocks).
    Awaited,
    /// Somebody waits: labels, a group's metadata in its last passes.
    SyncWrite,
    /// A transaction group's.
    #[default]
    AsyncWrite,
}

/// Buffers of one merged operation; well below the kernel's 1024.
const BUFS_MAX: usize = 256;
/// The class whose depth has a bound in bytes, too.
const ASYNC_WRITE: usize = IoClass::AsyncWrite as usize;
const SYNC_READ: usize = IoClass::SyncRead as usize;
const SYNC_WRITE: usize = IoClass::SyncWrite as usize;

/// Told once how a request ended, by being dropped if need be; must not block.
pub(crate) type Done = Callback<Result<()>>;

/// A write of `bufs`, one after the other, at a device byte.
pub(crate) struct Request {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) bufs: Vec<Buf>,
    pub(crate) priority: WritePriority,
    /// Zeros that serve merging alone.
    pub(crate) optional: bool,
    pub(crate) done: Done,
}

impl Request {
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    fn overlaps(&self, other: &Request) -> bool {
        self.offset < other.end() && other.offset < self.end()
    }

    fn class(&self) -> usize {
        IoClass::from(self.priority) as usize
    }
}

struct Queued {
    request: Request,
    /// When it came.
    since: Instant,
    /// When it is its turn.
    sweep: u64,
    /// Part of a merged operation that failed.
    alone: bool,
    /// When it was submitted, for [`Queue::drain`].
    epoch: u64,
}

#[derive(Default)]
struct State {
    /// By offset.
    ready: [BTreeMap<u64, Queued>; CLASSES],
    /// With the device: first byte, byte behind the last.
    flying: BTreeMap<u64, u64>,
    /// Wait for what they overlap, in order.
    held: VecDeque<Queued>,
    reads: Reads,
    active: [usize; CLASSES],
    /// The class that was served last for having less than its least.
    last: usize,
    courtesy: Courtesy,
    depths: Depths,
    /// Asynchronous writes until nobody is there whom they disturb.
    recent: u32,
    /// When the last log block came.
    logged: Option<Instant>,
    /// Bytes with the device.
    flying_bytes: u64,
    /// The ready ones: sweep, offset.
    order: [BTreeSet<(u64, u64)>; CLASSES],
    /// The sweep that a class is at.
    sweep: [u64; CLASSES],
    /// Of everything in the queue.
    bytes: u64,
    /// Requests of each epoch that are not over; the last one is the present's.
    open: VecDeque<usize>,
    first_epoch: u64,
    pumping: bool,
    /// Threads that wait for `changed`.
    waiting: usize,
}

/// The requests of one device operation.
struct Run {
    start: u64,
    end: u64,
    class: usize,
    /// When it was handed to the device.
    began: Instant,
    parts: Vec<Queued>,
}

impl State {
    fn epoch(&self) -> u64 {
        self.first_epoch + self.open.len() as u64 - 1
    }

    /// Whether the range overlaps one that is ready or flying. These are disjoint, so
    /// of each set only the last that starts before the range's end can.
    fn conflicts(&self, request: &Request) -> bool {
        let (from, end) = (request.offset, request.end());
        let ready = |set: &BTreeMap<u64, Queued>| {
            set.range(..end).next_back().is_some_and(|(_, q)| q.request.end() > from)
        };
        self.ready.iter().any(ready)
            || self.flying.range(..end).next_back().is_some_and(|(_, &e)| e > from)
    }

    /// Makes a request ready, for the next sweep.
    fn insert(&mut self, mut queued: Queued) {
        let (class, offset) = (queued.request.class(), queued.request.offset);
        queued.sweep = self.sweep[class] + 1;
        self.order[class].insert((queued.sweep, offset));
        self.ready[class].insert(offset, queued);
    }

    fn admit(&mut self, request: Request, since: Instant) {
        let blocked =
            self.conflicts(&request) || self.held.iter().any(|h| h.request.overlaps(&request));
        self.bytes += request.len;
        if request.priority == WritePriority::Awaited {
            self.logged = Some(since);
        }
        let epoch = self.epoch();
        if let Some(count) = self.open.back_mut() {
            *count += 1;
        }
        let queued = Queued { request, since, sweep: 0, alone: false, epoch };
        if blocked {
            self.held.push_back(queued);
        } else {
            self.insert(queued);
        }
    }

    /// Makes those ready that nothing holds any more.
    fn release(&mut self) {
        for queued in std::mem::take(&mut self.held) {
            let earlier = self.held.iter().any(|h| h.request.overlaps(&queued.request));
            if earlier || self.conflicts(&queued.request) {
                self.held.push_back(queued);
            } else {
                self.insert(queued);
            }
        }
    }

    /// A request leaves the queue.
    fn leave(&mut self, queued: Queued, out: &mut Vec<Done>) {
        self.bytes -= queued.request.len;
        if let Some(count) = self.open.get_mut((queued.epoch - self.first_epoch) as usize) {
            *count -= 1;
        }
        self.close_epochs();
        out.push(queued.request.done);
    }

    /// Forgets epochs in which nothing is open.
    fn close_epochs(&mut self) {
        while self.open.len() > 1 && self.open.front() == Some(&0) {
            self.open.pop_front();
            self.first_epoch += 1;
        }
    }

    /// The next operation of a class, merged up to `most` bytes. What is not worth writing
    /// leaves the queue: the caller tells `dropped`, without the lock.
    fn next_run(&mut self, class: usize, most: u64, dropped: &mut Vec<Done>) -> Option<Run> {
        loop {
            let &(sweep, offset) = self.order[class].first()?;
            self.sweep[class] = self.sweep[class].max(sweep);
            let mut parts = VecDeque::from([self.take(class, offset)?]);
            self.extend(class, most, &mut parts);
            let mut left = false;
            while let Some(last) = parts.pop_back_if(|last| last.request.optional) {
                self.leave(last, dropped);
                left = true;
            }
            while let Some(first) = parts.pop_front_if(|first| first.request.optional) {
                self.leave(first, dropped);
                left = true;
            }
            let range = parts.front().zip(parts.back());
            let range = range.map(|(first, last)| (first.request.offset, last.request.end()));
            if let Some((start, end)) = range {
                self.flying.insert(start, end);
                self.flying_bytes += end - start;
                self.begin(class);
            }
            // Not before the others count as flying.
            if left {
                self.release();
            }
            if let Some((start, end)) = range {
                let began = rt::now();
                return Some(Run { start, end, class, began, parts: parts.into() });
            }
        }
    }

    /// Adds the neighbours that touch, behind and before, up to `most` bytes.
    fn extend(&mut self, class: usize, most: u64, parts: &mut VecDeque<Queued>) {
        let only = &parts[0];
        if only.alone {
            return;
        }
        let (mut start, mut end) = (only.request.offset, only.request.end());
        let mut bufs = only.request.bufs.len();
        let fits = |next: &Queued, len: u64, bufs: usize| {
            !next.alone
                && len + next.request.len <= most
                && bufs + next.request.bufs.len() <= BUFS_MAX
        };
        while let Some(next) = self.ready[class].get(&end)
            && fits(next, end - start, bufs)
            && let Some(next) = self.take(class, end)
        {
            end = next.request.end();
            bufs += next.request.bufs.len();
            parts.push_back(next);
        }
        while let Some((&at, next)) = self.ready[class].range(..start).next_back()
            && next.request.end() == start
            && fits(next, end - start, bufs)
            && let Some(next) = self.take(class, at)
        {
            start = at;
            bufs += next.request.bufs.len();
            parts.push_front(next);
        }
    }

    fn take(&mut self, class: usize, offset: u64) -> Option<Queued> {
        let queued = self.ready[class].remove(&offset)?;
        self.order[class].remove(&(queued.sweep, offset));
        Some(queued)
    }

    /// An operation goes to the device.
    fn begin(&mut self, class: usize) {
        self.active[class] += 1;
        self.courtesy.begin(class);
        match class {
            SYNC_READ | SYNC_WRITE => self.recent = QUIET,
            ASYNC_WRITE => self.recent = self.recent.saturating_sub(1),
            _ => {}
        }
    }

    /// It is over.
    fn end(&mut self, class: usize, bytes: u64, limits: &QueueLimits, clock: u64) {
        self.active[class] -= 1;
        self.courtesy.end(class, limits);
        let full = self.active[class] + 1 >= self.depths.limit(class);
        let waiting = if full { self.waiting(class) } else { 0 };
        let now = std::time::Duration::from_nanos(clock);
        self.depths.done(class, bytes, waiting, limits.adapts(class), now);
    }

    fn waiting(&self, class: usize) -> usize {
        self.ready[class].len() + self.reads.waiting(class)
    }

    fn nothing_waits(&self) -> bool {
        self.ready.iter().all(BTreeMap::is_empty) && !self.reads.any()
    }

    /// What the limits come to now.
    fn caps(&self, limits: &QueueLimits, tuning: &Tuning) -> Caps {
        let reading = self.active[SYNC_READ] > 0 || self.reads.waiting(SYNC_READ) > 0;
        let logging = self.logged.is_some_and(|at| at.elapsed() < LOGGING);
        let guests = Guests { reading, recent: self.recent, logging };
        limits.caps(|| tuning.load(), &self.depths, &self.courtesy, guests)
    }

    /// Whether one more operation of a class may go to the device.
    fn has_room(&self, class: usize, caps: &Caps) -> bool {
        let (active, (shallow, bytes)) = (self.active[class], caps.deep);
        active < caps.classes[class].max as usize
            && (class != ASYNC_WRITE || active < shallow || self.flying_bytes < bytes)
    }

    /// The class to be served next.
    fn choose(&mut self, limits: &QueueLimits, caps: &Caps) -> Option<usize> {
        if self.active.iter().sum::<usize>() >= limits.max_active as usize {
            return None;
        }
        let least = |class: &usize| {
            self.waiting(*class) > 0 && self.active[*class] < caps.classes[*class].min as usize
        };
        if let Some(class) = (1..=CLASSES).map(|i| (self.last + i) % CLASSES).find(least) {
            self.last = class;
            return Some(class);
        }
        (0..CLASSES).find(|&class| self.waiting(class) > 0 && self.has_room(class, caps))
    }

    fn pick(&mut self, tuning: &Tuning, dropped: &mut Vec<Done>) -> Picked {
        let (limits, mut picked) = (tuning.get(), Picked::default());
        loop {
            let caps = self.caps(&limits, tuning);
            let Some(class) = self.choose(&limits, &caps) else { break };
            if let Some(run) = self.reads.next(class, &limits, rt::now()) {
                self.begin(class);
                picked.reads.push(run);
            } else {
                let most =
                    if class == ASYNC_WRITE { caps.merged } else { limits.aggregation_limit };
                picked.writes.extend(self.next_run(class, most, dropped));
            }
        }
        picked
    }
}

/// What goes to the device next.
#[derive(Default)]
struct Picked {
    writes: Vec<Run>,
    reads: Vec<ReadRun>,
}

impl Picked {
    fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.reads.is_empty()
    }
}

/// One leaf's queue. It outlives the snapshots that share it by its device.
pub(crate) struct Queue {
    device: Arc<dyn Device>,
    live: Arc<Live>,
    tuning: Arc<Tuning>,
    state: Mutex<State>,
    /// The beginning of [`Depths`]' time.
    epoch: Instant,
    /// Bytes left the queue, or an epoch ended.
    changed: Condvar,
}

impl Queue {
    pub(crate) fn new(device: Arc<dyn Device>, live: Arc<Live>, tuning: Arc<Tuning>) -> Arc<Queue> {
        let depths = Depths::new(device.caps().rotational == Some(true));
        let state = State { open: VecDeque::from([0]), depths, ..State::default() };
        let (state, changed, epoch) = (Mutex::new(state), Condvar::new(), rt::now());
        Arc::new(Queue { device, live, tuning, state, epoch, changed })
    }

    /// Whether this is the queue of that device.
    pub(crate) fn is_of(&self, device: &Arc<dyn Device>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.device), Arc::as_ptr(device))
    }

    /// Takes requests; waits while the queue is full. Not from a completion.
    pub(crate) fn submit(self: &Arc<Self>, batch: Vec<Request>) {
        let len: u64 = batch.iter().map(|r| r.len).sum();
        let mut state = self.state.lock();
        let mut max = self.tuning.get().in_flight_max;
        if batch.iter().all(|r| r.class() == SYNC_WRITE) {
            // Somebody waits: not behind what nobody waits for.
            max = max.saturating_mul(2);
        }
        while state.bytes > 0 && state.bytes.saturating_add(len) > max {
            self.wait(&mut state);
        }
        let now = rt::now();
        if batch.iter().any(|r| r.priority == WritePriority::Awaited) {
            self.tuning.log_came(rt::uptime());
        }
        let alone = |one: &Request| one.priority == WritePriority::Awaited && !one.optional;
        let by_caller =
            matches!(&batch[..], [one] if alone(one)) && self.is_free(&state, SYNC_WRITE);
        for request in batch {
            state.admit(request, now);
        }
        // It is held if it overlaps another one, and then nothing is ready.
        let mut dropped = Vec::new();
        let run = match by_caller {
            true => state.next_run(SYNC_WRITE, self.tuning.get().aggregation_limit, &mut dropped),
            false => None,
        };
        let Some(run) = run else { return self.pump_on(state, dropped) };
        drop(state);
        dropped.into_iter().for_each(|done| done.call(Ok(())));
        let Op { io, done } = self.operation(run);
        done(self.device.run(io));
    }

    /// Whether one more operation of a class may go at once, and would not overtake another.
    fn is_free(&self, state: &State, class: usize) -> bool {
        let limits = self.tuning.get();
        let caps = state.caps(&limits, &self.tuning);
        state.waiting(class) == 0
            && state.has_room(class, &caps)
            && state.active.iter().sum::<usize>() < limits.max_active as usize
    }

    /// Waits until everything that was submitted before is over.
    pub(crate) fn drain(&self) {
        let mut state = self.state.lock();
        let mine = state.epoch();
        state.open.push_back(0);
        state.close_epochs();
        while state.first_epoch <= mine {
            self.wait(&mut state);
        }
    }

    fn wait(&self, state: &mut MutexGuard<'_, State>) {
        state.waiting += 1;
        self.changed.wait(state);
        state.waiting -= 1;
    }

    /// Somebody wants to read, and waits for it. Whatever keeps it from going at once pumps
    /// when it is over.
    pub(crate) fn ask(self: &Arc<Self>, class: IoClass, offset: u64, len: u64) -> Asked {
        let (class, began) = (class as usize, rt::now());
        self.live.in_flight.fetch_add(1, Relaxed);
        let mut state = self.state.lock();
        if self.is_free(&state, class) {
            state.begin(class);
            drop(state);
            return Asked::Go(Turn { queue: Arc::clone(self), class, len, began, over: false });
        }
        let slot = state.reads.add(class, offset, len, began);
        Asked::Wait(Waiting { slot, offset, len })
    }

    /// A read that its reader made is over.
    fn read_over(self: &Arc<Self>, turn: &Turn, ok: bool, merged: bool) {
        self.live.in_flight.fetch_sub(1, Relaxed);
        let now = rt::now();
        let class = IoClass::ALL[turn.class];
        if ok {
            let took = now.since(turn.began);
            self.live.io.done(class, turn.len, merged, took);
            self.live.io.waited(class, std::time::Duration::ZERO, took);
        }
        let mut state = self.state.lock();
        state.end(turn.class, turn.len, &self.tuning.get(), self.clock(now));
        self.pump(state);
    }

    fn clock(&self, now: Instant) -> u64 {
        u64::try_from(now.since(self.epoch).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Hands to the device what may go.
    fn pump<'a>(self: &'a Arc<Self>, state: MutexGuard<'a, State>) {
        self.pump_on(state, Vec::new());
    }

    /// The same; `dones` have left the queue and are to be told.
    fn pump_on<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, State>, mut dones: Vec<Done>) {
        if state.pumping {
            // The thread that pumps looks again before it leaves.
            drop(state);
            return dones.into_iter().for_each(|done| done.call(Ok(())));
        }
        state.pumping = true;
        loop {
            let picked = match state.nothing_waits() {
                true => Picked::default(),
                false => state.pick(&self.tuning, &mut dones),
            };
            if picked.is_empty() && dones.is_empty() {
                state.pumping = false;
                return;
            }
            let waiting = state.waiting > 0;
            drop(state);
            let reads = picked.reads.into_iter().map(|run| self.reading(run));
            let ops = reads.chain(picked.writes.into_iter().map(|run| self.operation(run)));
            let ops: Vec<Op> = ops.collect();
            if !ops.is_empty() {
                self.device.submit(ops);
            }
            if !dones.is_empty() {
                if waiting {
                    self.changed.notify_all();
                }
                std::mem::take(&mut dones).into_iter().for_each(|done| done.call(Ok(())));
            }
            state = self.state.lock();
        }
    }

    fn reading(self: &Arc<Self>, run: ReadRun) -> Op {
        let io = Io::read(run.start, (run.end - run.start) as usize);
        let mut flight = Flight { queue: Arc::clone(self), run: Some(Flying::Read(run)) };
        Op::new(io, move |completion: Completion| flight.read(completion.into_read()))
    }

    /// A read that was sent from the queue is over.
    fn finish_read(self: &Arc<Self>, run: ReadRun, result: Result<BufMut>) {
        let now = rt::now();
        let (bytes, merged) = (run.end - run.start, run.parts.len() > 1);
        let class = IoClass::ALL[run.class];
        if result.is_ok() {
            self.live.io.done(class, bytes, merged, now.since(run.began));
            for part in &run.parts {
                let (queued, total) = reads::times(&run, part, now);
                self.live.io.waited(class, queued, total);
            }
        }
        let mut state = self.state.lock();
        let mut told = Vec::new();
        if result.is_err() && merged {
            for mut part in run.parts {
                part.alone = true;
                state.reads.insert(part);
            }
        } else {
            told = run.parts;
        }
        state.end(run.class, bytes, &self.tuning.get(), self.clock(now));
        self.pump(state);
        self.live.in_flight.fetch_sub(told.len() as u32, Relaxed);
        match result.map(BufMut::freeze) {
            Ok(whole) => {
                told.into_iter().for_each(|part| part.slot.send((Ok(whole.clone()), run.start)));
            }
            // It had one part.
            Err(error) => {
                if let Some(part) = told.pop() {
                    part.slot.send((Err(error), run.start));
                }
            }
        }
    }

    fn operation(self: &Arc<Self>, mut run: Run) -> Op {
        self.live.in_flight.fetch_add(1, Relaxed);
        let bufs = match &mut run.parts[..] {
            [one] => std::mem::take(&mut one.request.bufs),
            // Kept, for the case that they have to be written one by one.
            parts => parts.iter().flat_map(|p| p.request.bufs.iter().cloned()).collect(),
        };
        let offset = run.start;
        let mut flight = Flight { queue: Arc::clone(self), run: Some(Flying::Write(run)) };
        Op::new(Io::Write { offset, bufs }, move |completion: Completion| {
            flight.write(completion.result.map(drop));
        })
    }

    /// What an operation did, and how long its requests took.
    fn count(&self, run: &Run) {
        let (now, io) = (rt::now(), &self.live.io);
        let Some(first) = run.parts.first() else { return };
        let (bytes, merged) = (run.end - run.start, run.parts.len() > 1);
        io.done(first.request.priority, bytes, merged, now.since(run.began));
        for part in run.parts.iter().filter(|part| !part.request.optional) {
            io.waited(part.request.priority, run.began.since(part.since), now.since(part.since));
        }
    }

    /// Requests that wait, and operations with the device, by class.
    pub(crate) fn depths(&self) -> [(u64, u64); CLASSES] {
        let state = self.state.lock();
        std::array::from_fn(|class| {
            let held = state.held.iter().filter(|q| q.request.class() == class).count();
            let pending = state.ready[class].len() + state.reads.waiting(class) + held;
            (pending as u64, state.active[class] as u64)
        })
    }

    /// The largest depths by class that are in force without regard to the moment.
    pub(crate) fn settled(&self) -> [usize; CLASSES] {
        let limits = self.tuning.get();
        let found = self.state.lock().depths.settled();
        std::array::from_fn(|class| match limits.adapts(class) {
            true => found[class],
            false => limits.classes[class].max as usize,
        })
    }

    /// An operation is over.
    fn finish(self: &Arc<Self>, run: Run, result: Result<()>) {
        self.live.in_flight.fetch_sub(1, Relaxed);
        if result.is_ok() {
            self.count(&run);
        }
        let mut dones = Vec::with_capacity(run.parts.len());
        let mut state = self.state.lock();
        if let Some(end) = state.flying.remove(&run.start) {
            state.flying_bytes -= end - run.start;
        }
        state.end(run.class, run.end - run.start, &self.tuning.get(), self.clock(rt::now()));
        if result.is_err() && run.parts.len() > 1 {
            for mut part in run.parts {
                part.alone = true;
                state.insert(part);
            }
        } else {
            run.parts.into_iter().for_each(|part| state.leave(part, &mut dones));
        }
        state.release();
        let waiting = state.waiting > 0;
        self.pump(state);
        if waiting {
            self.changed.notify_all();
        }
        match (result, dones.pop()) {
            (Ok(()), last) => dones.into_iter().chain(last).for_each(|done| done.call(Ok(()))),
            // It had one part.
            (error, Some(done)) => done.call(error),
            (Err(_), None) => {}
        }
    }
}

enum Flying {
    Write(Run),
    Read(ReadRun),
}

/// Ends its run even if the device drops the operation.
struct Flight {
    queue: Arc<Queue>,
    run: Option<Flying>,
}

impl Flight {
    fn write(&mut self, result: Result<()>) {
        if let Some(Flying::Write(run)) = self.run.take() {
            self.queue.finish(run, result);
        }
    }

    fn read(&mut self, result: Result<BufMut>) {
        if let Some(Flying::Read(run)) = self.run.take() {
            self.queue.finish_read(run, result);
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let lost = || Error::bug("a device dropped an operation without completing it");
        match &self.run {
            Some(Flying::Write(_)) => self.write(Err(lost())),
            Some(Flying::Read(_)) => self.read(Err(lost())),
            None => {}
        }
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
