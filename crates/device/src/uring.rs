//! The io_uring engine: calling threads submit operations, one reactor thread reaps
//! them.
//!
//! # Theory
//! All devices of an engine share one ring. A batch is pushed under the lock and
//! submitted by one `io_uring_enter`. At most `depth` operations are in the kernel, so
//! the completion ring (twice as large) never overflows. A submitter waits while the
//! ring is full. The reactor runs completions, which may submit more operations; it
//! puts those on a backlog instead.
//!
//! The reactor continues short transfers. When a thread dies, the kernel cancels its
//! operations; cancelled and interrupted operations are submitted again.
//!
//! # Invariants
//! * An operation's buffers and vectors stay in its slot until its completion is
//!   reaped; a slot is reused only after that.
//! * The submission ring is used only under the lock, the completion ring only by the
//!   reactor.
//! * The reactor exits when the engine is dropped and nothing is in flight.
//!
//! Lock order: `state` is a leaf lock.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use base::rt::{self, Condvar, Mutex};
use base::{Error, Result};
use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::Errno;

use crate::engine::IoJob;
use crate::op::Io;

const WAKE: u64 = u64::MAX;

thread_local! {
    static REACTOR: Cell<bool> = const { Cell::new(false) };
}

struct OpSlot {
    job: IoJob,
    /// Bytes already transferred.
    done: usize,
    /// The vectors that a vectored write refers to; they live as long as the slot.
    vectors: Vec<IoSlice<'static>>,
}

struct UringState {
    slots: Vec<Option<Box<OpSlot>>>,
    free: Vec<usize>,
    in_flight: usize,
    backlog: VecDeque<IoJob>,
    stopping: bool,
}

struct UringShared {
    ring: IoUring,
    state: Mutex<UringState>,
    room: Condvar,
    depth: usize,
}

pub(crate) struct UringEngine(Arc<UringShared>);

fn unavailable(source: std::io::Error) -> Error {
    Error::unsupported("io_uring is not available here; use the thread engine").caused_by(source)
}

impl UringEngine {
    pub(crate) fn new(depth: usize) -> Result<UringEngine> {
        let entries = depth as u32 + 1;
        let ring = IoUring::builder()
            .setup_cqsize((entries * 2).next_power_of_two())
            .setup_clamp()
            .build(entries)
            .map_err(unavailable)?;
        let mut probe = io_uring::Probe::new();
        ring.submitter().register_probe(&mut probe).map_err(unavailable)?;
        let wanted = [
            opcode::Read::CODE,
            opcode::Write::CODE,
            opcode::Writev::CODE,
            opcode::Fsync::CODE,
            opcode::Fallocate::CODE,
            opcode::Nop::CODE,
        ];
        if !wanted.iter().all(|op| probe.is_supported(*op)) {
            return Err(Error::unsupported("this kernel's io_uring lacks operations"));
        }
        // Clamping may have made the ring smaller than requested.
        let depth = depth.min((ring.params().sq_entries() as usize).saturating_sub(1)).max(1);
        let shared = Arc::new(UringShared {
            ring,
            state: Mutex::new(UringState {
                slots: Vec::new(),
                free: Vec::new(),
                in_flight: 0,
                backlog: VecDeque::new(),
                stopping: false,
            }),
            room: Condvar::new(),
            depth,
        });
        let reactor = Arc::clone(&shared);
        rt::spawn("device-reactor", move || reactor.react())?;
        Ok(UringEngine(shared))
    }

    pub(crate) fn submit(&self, jobs: Vec<IoJob>) {
        self.0.submit(jobs);
    }
}

impl Drop for UringEngine {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.stopping = true;
        let wake = opcode::Nop::new().build().user_data(WAKE);
        self.0.push(&wake);
        self.0.enter();
    }
}

impl UringShared {
    fn submit(&self, jobs: Vec<IoJob>) {
        let mut state = self.state.lock();
        let mut pushed = false;
        for job in jobs {
            while state.in_flight >= self.depth && !REACTOR.get() {
                if std::mem::take(&mut pushed) {
                    self.enter();
                }
                self.room.wait(&mut state);
            }
            if state.in_flight >= self.depth {
                state.backlog.push_back(job);
                continue;
            }
            self.start(&mut state, job);
            pushed = true;
        }
        if pushed {
            self.enter();
        }
    }

    /// Puts a job into a slot and the submission ring; the caller holds the lock.
    fn start(&self, state: &mut UringState, job: IoJob) {
        job.target.stats.begin();
        let slot = Box::new(OpSlot { job, done: 0, vectors: Vec::new() });
        let index = match state.free.pop() {
            Some(index) => index,
            None => {
                state.slots.push(None);
                state.slots.len() - 1
            }
        };
        state.in_flight += 1;
        let slot = state.slots[index].insert(slot);
        self.push(&slot.entry().user_data(index as u64));
    }

    /// Pushes an entry. The caller holds the lock, so it is the only user of the
    /// submission ring.
    fn push(&self, entry: &squeue::Entry) {
        // SAFETY: callers hold `state`'s lock, so no other SubmissionQueue exists.
        let mut queue = unsafe { self.ring.submission_shared() };
        // SAFETY: the entry points into a slot (or nothing) that outlives the operation.
        while unsafe { queue.push(entry) }.is_err() {
            // The ring is full only when an earlier enter failed; the kernel empties
            // it.
            drop(queue);
            self.enter();
            // SAFETY: as above.
            queue = unsafe { self.ring.submission_shared() };
        }
    }

    /// Submits the pushed entries to the kernel, under the lock. Retries when the
    /// kernel is busy or took only a part, because no other call would submit entries
    /// that stay in the ring.
    fn enter(&self) {
        loop {
            if let Err(error) = self.ring.submit()
                && error.raw_os_error() != Some(Errno::INTR.raw_os_error())
            {
                rt::sleep(std::time::Duration::from_micros(100));
            }
            // SAFETY: callers hold `state`'s lock, so no other SubmissionQueue exists.
            if unsafe { self.ring.submission_shared() }.is_empty() {
                return;
            }
        }
    }

    fn react(&self) {
        REACTOR.set(true);
        loop {
            // Waits without submitting; submitting is the task of the submitters.
            // SAFETY: no argument is passed.
            let waited = unsafe { self.ring.submitter().enter::<()>(0, 1, ENTER_GETEVENTS, None) };
            if waited.is_err() {
                // EINTR, or the kernel lacks memory: check and try again.
                rt::sleep(std::time::Duration::from_micros(50));
            }
            // SAFETY: only this thread uses the completion ring.
            let reaped: Vec<_> = unsafe { self.ring.completion_shared() }
                .map(|entry| (entry.user_data(), entry.result()))
                .collect();
            for (index, result) in reaped {
                if index != WAKE {
                    self.reap(index as usize, result);
                }
            }
            let mut state = self.state.lock();
            let mut pushed = false;
            while state.in_flight < self.depth {
                let Some(job) = state.backlog.pop_front() else { break };
                self.start(&mut state, job);
                pushed = true;
            }
            if pushed {
                self.enter();
            }
            if state.stopping && state.in_flight == 0 && state.backlog.is_empty() {
                return;
            }
        }
    }

    fn reap(&self, index: usize, result: i32) {
        let mut state = self.state.lock();
        let Some(slot) = state.slots.get_mut(index).and_then(Option::as_mut) else { return };
        let Some(outcome) = slot.advance(result) else {
            let entry = slot.entry().user_data(index as u64);
            self.push(&entry);
            self.enter();
            return;
        };
        let Some(slot) = state.slots[index].take() else { return };
        state.free.push(index);
        state.in_flight -= 1;
        slot.job.target.stats.leave();
        drop(state);
        self.room.notify_one();
        slot.job.finish(outcome);
    }
}

/// `IORING_ENTER_GETEVENTS`.
const ENTER_GETEVENTS: u32 = 1;

impl OpSlot {
    /// The submission entry for the rest of the transfer.
    fn entry(&mut self) -> squeue::Entry {
        let fd = types::Fd(self.job.target.fd.as_raw_fd());
        let done = self.done;
        match &mut self.job.op.io {
            Io::Read { offset, buf } => {
                let rest = &mut buf[done..];
                opcode::Read::new(fd, rest.as_mut_ptr(), rest.len() as u32)
                    .offset(*offset + done as u64)
                    .build()
            }
            Io::Write { offset, bufs } => {
                self.vectors.clear();
                let mut skip = done;
                for buf in bufs.iter() {
                    let cut = skip.min(buf.len());
                    skip -= cut;
                    if cut < buf.len() {
                        // SAFETY: the bytes belong to a `Buf` in this slot, which
                        // outlives the operation; the lifetime is not used otherwise.
                        let bytes = unsafe {
                            std::slice::from_raw_parts(buf.as_ptr().add(cut), buf.len() - cut)
                        };
                        self.vectors.push(IoSlice::new(bytes));
                    }
                }
                let at = *offset + done as u64;
                match self.vectors.as_slice() {
                    [one] => {
                        opcode::Write::new(fd, one.as_ptr(), one.len() as u32).offset(at).build()
                    }
                    // IoSlice is guaranteed to have iovec's layout.
                    many => opcode::Writev::new(
                        fd,
                        many.as_ptr().cast(),
                        many.len().min(IOV_MAX) as u32,
                    )
                    .offset(at)
                    .build(),
                }
            }
            Io::Flush => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            Io::Trim { offset, len } => {
                // FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE.
                opcode::Fallocate::new(fd, *len).offset(*offset).mode(1 | 2).build()
            }
        }
    }

    /// Processes a completion; `None` if the operation has to continue.
    fn advance(&mut self, result: i32) -> Option<Result<usize>> {
        let (target, io) = (&self.job.target, &self.job.op.io);
        if result < 0 {
            let errno = Errno::from_raw_os_error(-result);
            return match errno {
                Errno::INTR | Errno::AGAIN | Errno::CANCELED => None,
                errno => Some(Err(target.error(io, errno))),
            };
        }
        let whole = match io {
            Io::Read { .. } => self.job.need,
            Io::Write { .. } => io.len() as usize,
            Io::Flush | Io::Trim { .. } => return Some(Ok(io.len() as usize)),
        };
        self.done += result as usize;
        if self.done >= whole {
            Some(Ok(io.len() as usize))
        } else if result == 0 {
            Some(Err(target.short(io, self.done)))
        } else {
            None
        }
    }
}

/// The most vectors that the kernel accepts at once.
const IOV_MAX: usize = 1024;
