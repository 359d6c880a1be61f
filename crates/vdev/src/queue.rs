//! A leaf's write queue: sorted, merged, a few operations deep.
//!
//! # Theory
//! The device is swept: what waits is taken in the order of offsets, and what arrives
//! meanwhile is for the next sweep, unless it touches what is taken and is taken along.
//! So a device that is slower than its writers gets few large writes in the order of
//! its sectors. (An elevator that also takes what arrives ahead of it never turns back
//! under a stream of ascending writes: stragglers fill the queue and nothing merges.)
//! There is no thread: whoever submits or completes hands on what fits (`Queue::pump`),
//! one at a time, so a device that completes at once does not recurse.
//!
//! An optional request asks for zeros that nobody will read (raidz skip sectors); it
//! is written only between two others, which become one operation by it, and else
//! dropped. If a merged operation fails, its parts are tried alone, so that one bad
//! sector costs one request.
//!
//! # Invariants
//! * The ranges that are ready or with the device are disjoint. A request that overlaps
//!   one of them, or one held before it, is held until those are over: the last
//!   submitted is the last written.
//! * Each request is completed exactly once, without a lock held.
//! * At most `in_flight_max` bytes are in the queue, twice as many with synchronous writes,
//!   or one submission.
//! * If nobody pumps and something is ready, something of its class is with the
//!   device, whose completion pumps.
//!
//! Departure: synchronous writes are taken first, but by offset like the others
//! rather than first come, first served; the sweeps bound their wait.
//!
//! Lock order: `state` is a leaf lock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use base::rt::atomic::{AtomicU64, AtomicUsize};
use base::rt::{self, Condvar, Instant, Mutex, MutexGuard};
use base::{Buf, Error, Result};
use device::{Completion, Device, Io, Op};

use crate::tree::Live;

/// Why a write is made (chapter 02 §14).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WritePriority {
    /// Somebody waits: log blocks, labels.
    SyncWrite,
    /// A transaction group's.
    #[default]
    AsyncWrite,
}

/// How deep and how large a leaf's writes may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteLimits {
    /// Synchronous operations with a device at once.
    pub sync_write_max_active: usize,
    /// Asynchronous operations with a device at once.
    pub async_write_max_active: usize,
    /// The same where seeks cost nothing (everything but rotating disks), as long as
    /// what is with the device is less than the depth above times the size below: many
    /// small writes gain by depth, large ones would only delay reads.
    pub async_write_deep_active: usize,
    /// Bytes of one merged operation; a larger request is not split.
    pub aggregation_limit: u64,
    /// Bytes in a leaf's queue, from which on submitters wait.
    pub in_flight_max: u64,
}

impl Default for WriteLimits {
    fn default() -> Self {
        WriteLimits {
            sync_write_max_active: 10,
            async_write_max_active: 10,
            async_write_deep_active: 32,
            aggregation_limit: 1 << 20,
            in_flight_max: 64 << 20,
        }
    }
}

/// The limits in force, shared by the snapshots of one pool.
pub(crate) struct Tuning {
    sync_active: AtomicUsize,
    async_active: AtomicUsize,
    deep_active: AtomicUsize,
    aggregation: AtomicU64,
    in_flight: AtomicU64,
}

impl Default for Tuning {
    fn default() -> Self {
        let limits = WriteLimits::default();
        Tuning {
            sync_active: AtomicUsize::new(limits.sync_write_max_active),
            async_active: AtomicUsize::new(limits.async_write_max_active),
            deep_active: AtomicUsize::new(limits.async_write_deep_active),
            aggregation: AtomicU64::new(limits.aggregation_limit),
            in_flight: AtomicU64::new(limits.in_flight_max),
        }
    }
}

impl Tuning {
    pub(crate) fn get(&self) -> WriteLimits {
        WriteLimits {
            sync_write_max_active: self.sync_active.load(Relaxed).max(1),
            async_write_max_active: self.async_active.load(Relaxed).max(1),
            async_write_deep_active: self.deep_active.load(Relaxed),
            aggregation_limit: self.aggregation.load(Relaxed),
            in_flight_max: self.in_flight.load(Relaxed),
        }
    }

    pub(crate) fn set(&self, limits: WriteLimits) {
        self.sync_active.store(limits.sync_write_max_active, Relaxed);
        self.async_active.store(limits.async_write_max_active, Relaxed);
        self.deep_active.store(limits.async_write_deep_active, Relaxed);
        self.aggregation.store(limits.aggregation_limit, Relaxed);
        self.in_flight.store(limits.in_flight_max, Relaxed);
    }
}

/// Buffers of one merged operation; well below the kernel's 1024.
const BUFS_MAX: usize = 256;
/// The classes, first served first.
const CLASSES: usize = 2;

/// Told once how a request ended; must not block.
pub(crate) type Done = Box<dyn FnOnce(Result<()>) + Send>;

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
        match self.priority {
            WritePriority::SyncWrite => 0,
            WritePriority::AsyncWrite => 1,
        }
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
    active: [usize; CLASSES],
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

    /// The next operation of a class; what is not worth writing goes to `dropped`.
    fn next_run(
        &mut self,
        class: usize,
        limits: &WriteLimits,
        dropped: &mut Vec<Queued>,
    ) -> Option<Run> {
        loop {
            let &(sweep, offset) = self.order[class].first()?;
            self.sweep[class] = self.sweep[class].max(sweep);
            let mut parts = VecDeque::from([self.take(class, offset)?]);
            self.extend(class, limits, &mut parts);
            while let Some(last) = parts.pop_back_if(|last| last.request.optional) {
                dropped.push(last);
            }
            while let Some(first) = parts.pop_front_if(|first| first.request.optional) {
                dropped.push(first);
            }
            if let (Some(first), Some(last)) = (parts.front(), parts.back()) {
                let (start, end) = (first.request.offset, last.request.end());
                self.flying.insert(start, end);
                self.flying_bytes += end - start;
                self.active[class] += 1;
                let began = rt::now();
                return Some(Run { start, end, class, began, parts: parts.into() });
            }
        }
    }

    /// Adds the neighbours that touch, behind and before, as far as the limits allow.
    fn extend(&mut self, class: usize, limits: &WriteLimits, parts: &mut VecDeque<Queued>) {
        let only = &parts[0];
        if only.alone {
            return;
        }
        let (mut start, mut end) = (only.request.offset, only.request.end());
        let mut bufs = only.request.bufs.len();
        let fits = |next: &Queued, len: u64, bufs: usize| {
            !next.alone
                && len + next.request.len <= limits.aggregation_limit
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

    /// Whether one more operation of a class may go to the device.
    fn may_go(&self, class: usize, limits: &WriteLimits) -> bool {
        let active = self.active[class];
        if class == 0 {
            return active < limits.sync_write_max_active;
        }
        let most = limits.async_write_max_active;
        let enough = limits.aggregation_limit.saturating_mul(most as u64);
        active < most || (active < limits.async_write_deep_active && self.flying_bytes < enough)
    }

    fn pick(&mut self, limits: &WriteLimits, dropped: &mut Vec<Queued>) -> Vec<Run> {
        let mut runs = Vec::new();
        for class in 0..CLASSES {
            while self.may_go(class, limits)
                && let Some(run) = self.next_run(class, limits, dropped)
            {
                runs.push(run);
            }
        }
        if !dropped.is_empty() {
            self.release();
        }
        runs
    }
}

/// One leaf's queue. It outlives the snapshots that share it by its device.
pub(crate) struct Queue {
    device: Arc<dyn Device>,
    live: Arc<Live>,
    tuning: Arc<Tuning>,
    state: Mutex<State>,
    /// Bytes left the queue, or an epoch ended.
    changed: Condvar,
}

impl Queue {
    pub(crate) fn new(device: Arc<dyn Device>, live: Arc<Live>, tuning: Arc<Tuning>) -> Arc<Queue> {
        let state = State { open: VecDeque::from([0]), ..State::default() };
        Arc::new(Queue { device, live, tuning, state: Mutex::new(state), changed: Condvar::new() })
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
        if batch.iter().all(|r| r.priority == WritePriority::SyncWrite) {
            // Somebody waits: not behind what nobody waits for.
            max = max.saturating_mul(2);
        }
        while state.bytes > 0 && state.bytes.saturating_add(len) > max {
            self.wait(&mut state);
        }
        let now = rt::now();
        for request in batch {
            state.admit(request, now);
        }
        self.pump(state);
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

    /// Hands to the device what may go.
    fn pump<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, State>) {
        if state.pumping {
            // Whoever pumps looks again before leaving.
            return;
        }
        state.pumping = true;
        loop {
            let mut limits = self.tuning.get();
            if self.device.caps().rotational == Some(true) {
                limits.async_write_deep_active = 0;
            }
            let (mut dropped, mut dones) = (Vec::new(), Vec::new());
            let runs = state.pick(&limits, &mut dropped);
            dropped.into_iter().for_each(|q| state.leave(q, &mut dones));
            if runs.is_empty() && dones.is_empty() {
                state.pumping = false;
                return;
            }
            let waiting = state.waiting > 0;
            drop(state);
            let ops: Vec<Op> = runs.into_iter().map(|run| self.operation(run)).collect();
            if !ops.is_empty() {
                self.device.submit(ops);
            }
            if !dones.is_empty() {
                if waiting {
                    self.changed.notify_all();
                }
                dones.into_iter().for_each(|done| done(Ok(())));
            }
            state = self.state.lock();
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
        let mut flight = Flight { queue: Arc::clone(self), run: Some(run) };
        Op::new(Io::Write { offset, bufs }, move |completion: Completion| {
            flight.land(completion.result.map(drop));
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
    pub(crate) fn depths(&self) -> [(WritePriority, u64, u64); CLASSES] {
        let state = self.state.lock();
        let of = |class: usize, priority| {
            let held = state.held.iter().filter(|q| q.request.class() == class).count();
            let pending = state.ready[class].len() + held;
            (priority, pending as u64, state.active[class] as u64)
        };
        [of(0, WritePriority::SyncWrite), of(1, WritePriority::AsyncWrite)]
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
        state.active[run.class] -= 1;
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
            (Ok(()), last) => dones.into_iter().chain(last).for_each(|done| done(Ok(()))),
            // It had one part.
            (error, Some(done)) => done(error),
            (Err(_), None) => {}
        }
    }
}

/// Ends its run even if the device drops the operation.
struct Flight {
    queue: Arc<Queue>,
    run: Option<Run>,
}

impl Flight {
    fn land(&mut self, result: Result<()>) {
        if let Some(run) = self.run.take() {
            self.queue.finish(run, result);
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.land(Err(Error::bug("a device dropped a write without completing it")));
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
