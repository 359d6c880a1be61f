//! The queue between the walk, the threads that read, and the one that writes.
//!
//! # Theory
//! Places are in the order of the stream. The walk adds them at the end, with the records or
//! with the read that yields them; a read takes its place's number along. The writer takes
//! complete places from the front.
//!
//! The writer makes a read itself that no other thread has begun, so one thread can do
//! without readers.
//!
//! Records may be small and many, so a thread is woken only for what it can do: a reader for
//! each read that no thread looks for, the writer when the first place is complete, the walk
//! when half of the queue is free. The writer takes several complete places at a time.
//!
//! # Invariants
//! * At most [`PLACES`] places and [`BYTES`] bytes are in the queue, or one place. The writer has
//!   at most [`TAKEN_BYTES`] more, or one place.
//! * After an error or a panic of any thread, and once the writer has ended, no thread waits.
//! * The walk waits only while more than half of the queue is in use, or its place does not fit;
//!   the writer only while the first place is incomplete and its read has begun; a reader only
//!   while there are no reads. The thread that ends one of these conditions wakes the one that
//!   waits.

use std::collections::VecDeque;

use base::rt::{Condvar, Mutex};
use base::{Buf, Error, ErrorKind, Result};

use crate::record::StreamRecord;

/// Places in the queue at most.
const PLACES: usize = 1024;
/// Bytes of content in the queue at most; see `zfs_send_queue_length` (§16).
const BYTES: u64 = 16 << 20;
/// Places that the writer takes at a time, at most.
const TAKEN: usize = 64;
/// Bytes of content that the writer takes at a time; it takes at least one place.
const TAKEN_BYTES: u64 = 1 << 20;

/// SendRecords with payloads.
pub(super) type SendRecords = Vec<(StreamRecord, Buf)>;
/// Yields a place's records.
pub(super) type SendRead = Box<dyn FnOnce() -> Result<SendRecords> + Send>;

/// What the walk finds.
pub(super) trait SendSink {
    /// A record that is complete.
    ///
    /// # Errors
    /// `Interrupted` when nothing takes records any more.
    fn add(&self, record: StreamRecord, payload: Buf) -> Result<()>;

    /// A read of about `size.bytes`, which yields `size.records` with so many bytes of payload
    /// in all.
    ///
    /// # Errors
    /// As [`SendSink::add`].
    fn add_read(&self, size: ReadSize, read: SendRead) -> Result<()>;
}

/// The size of what a read yields.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadSize {
    pub(super) records: u64,
    pub(super) bytes: u64,
}

struct QueuePlace {
    bytes: u64,
    content: Option<Result<SendRecords>>,
}

struct QueueState {
    places: VecDeque<QueuePlace>,
    /// Number of the first place.
    first: u64,
    reads: VecDeque<(u64, SendRead)>,
    bytes: u64,
    /// The walk has ended.
    finished: bool,
    /// The writer has ended.
    ended: bool,
    /// The walk waits for room.
    walk_waits: bool,
    /// The writer waits for the first place.
    writer_waits: bool,
    /// Readers that wait for a read.
    idle_readers: usize,
}

impl QueueState {
    /// Complete places from the front, at most [`TAKEN`].
    fn take(&mut self) -> Vec<Result<SendRecords>> {
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while taken.len() < TAKEN
            && let Some(place) = self.places.front_mut()
            && (taken.is_empty() || bytes + place.bytes <= TAKEN_BYTES)
            && let Some(content) = place.content.take()
        {
            bytes += place.bytes;
            taken.push(content);
            self.places.pop_front();
            self.first += 1;
        }
        self.bytes -= bytes;
        taken
    }
}

pub(super) struct Queue {
    state: Mutex<QueueState>,
    /// There is room, or the writer has ended.
    room: Condvar,
    /// There is a read, or there will be none.
    work: Condvar,
    /// The first place is complete, or its read has not begun, or there will be none.
    front: Condvar,
}

/// Ends the queue when it is dropped.
pub(super) struct EndsQueue<'a>(&'a Queue);

impl Drop for EndsQueue<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.ended = true;
        state.reads.clear();
        self.0.wake_all();
    }
}

/// Ends the walk when it is dropped: with an error, unless it has a result.
pub(super) struct EndsWalk<'a> {
    queue: &'a Queue,
    result: Result<()>,
}

impl EndsWalk<'_> {
    pub(super) fn with(mut self, result: Result<()>) {
        self.result = result;
    }
}

impl Drop for EndsWalk<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        if let Err(e) = std::mem::replace(&mut self.result, Ok(())) {
            state.places.push_back(QueuePlace { bytes: 0, content: Some(Err(e)) });
        }
        state.finished = true;
        self.queue.wake_all();
    }
}

/// Fills a place when it is dropped: with an error, unless it has content.
struct FillsPlace<'a> {
    queue: &'a Queue,
    number: u64,
    content: Option<Result<SendRecords>>,
}

impl Drop for FillsPlace<'_> {
    fn drop(&mut self) {
        let content = self.content.take();
        let content = content.unwrap_or_else(|| Err(Error::bug("a read ended in a panic")));
        let mut state = self.queue.state.lock();
        let at = usize::try_from(self.number - state.first).ok();
        if let Some(place) = at.and_then(|at| state.places.get_mut(at)) {
            place.content = Some(content);
        }
        if at == Some(0) && state.writer_waits {
            self.queue.front.notify_one();
        }
    }
}

fn ended() -> Error {
    Error::new(ErrorKind::Interrupted, "the stream was ended")
}

impl Queue {
    pub(super) fn new() -> Queue {
        Queue {
            state: Mutex::new(QueueState {
                places: VecDeque::new(),
                first: 0,
                reads: VecDeque::new(),
                bytes: 0,
                finished: false,
                ended: false,
                walk_waits: false,
                writer_waits: false,
                idle_readers: 0,
            }),
            room: Condvar::new(),
            work: Condvar::new(),
            front: Condvar::new(),
        }
    }

    fn wake_all(&self) {
        self.room.notify_all();
        self.work.notify_all();
        self.front.notify_all();
    }

    pub(super) fn ends_with_this(&self) -> EndsQueue<'_> {
        EndsQueue(self)
    }

    fn put(
        &self,
        bytes: u64,
        content: Option<Result<SendRecords>>,
        read: Option<SendRead>,
    ) -> Result<()> {
        let mut state = self.state.lock();
        loop {
            if state.ended {
                return Err(ended());
            }
            let fits = state.places.len() < PLACES && state.bytes + bytes <= BYTES;
            if fits || state.places.is_empty() {
                break;
            }
            state.walk_waits = true;
            self.room.wait(&mut state);
            state.walk_waits = false;
        }
        let number = state.first + state.places.len() as u64;
        state.bytes += bytes;
        state.places.push_back(QueuePlace { bytes, content });
        if let Some(read) = read {
            state.reads.push_back((number, read));
            if state.idle_readers > 0 {
                self.work.notify_one();
            }
        }
        // It is complete, or no other thread may be there to read it.
        if state.writer_waits && state.places.len() == 1 {
            self.front.notify_one();
        }
        Ok(())
    }

    pub(super) fn ends_with_walk(&self) -> EndsWalk<'_> {
        EndsWalk { queue: self, result: Err(Error::bug("a walk ended in a panic")) }
    }

    fn fill(&self, number: u64, read: SendRead) {
        let mut place = FillsPlace { queue: self, number, content: None };
        place.content = Some(read());
    }

    /// Makes reads until there are no more.
    pub(super) fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            if state.ended {
                return;
            }
            let Some((number, read)) = state.reads.pop_front() else {
                if state.finished {
                    return;
                }
                state.idle_readers += 1;
                self.work.wait(&mut state);
                state.idle_readers -= 1;
                continue;
            };
            drop(state);
            self.fill(number, read);
            state = self.state.lock();
        }
    }

    /// Passes the records to `sink`, in order, until the walk's end.
    ///
    /// # Errors
    /// The first error of the walk, of a read or of `sink`.
    pub(super) fn drain(
        &self,
        mut sink: impl FnMut(StreamRecord, Buf) -> Result<()>,
    ) -> Result<()> {
        let mut state = self.state.lock();
        loop {
            let taken = state.take();
            if !taken.is_empty() {
                let is_half = state.places.len() <= PLACES / 2 && state.bytes <= BYTES / 2;
                if state.walk_waits && is_half {
                    self.room.notify_one();
                }
                drop(state);
                for content in taken {
                    for (record, payload) in content? {
                        sink(record, payload)?;
                    }
                }
                state = self.state.lock();
                continue;
            }
            if state.places.is_empty() && state.finished {
                return Ok(());
            }
            // Reads are begun in order, so the first one is that of the first place, if any.
            let first = state.first;
            if let Some((number, read)) = state.reads.pop_front_if(|(n, _)| *n == first) {
                drop(state);
                self.fill(number, read);
                state = self.state.lock();
                continue;
            }
            state.writer_waits = true;
            self.front.wait(&mut state);
            state.writer_waits = false;
        }
    }
}

impl SendSink for Queue {
    fn add(&self, record: StreamRecord, payload: Buf) -> Result<()> {
        let bytes = payload.len() as u64;
        self.put(bytes, Some(Ok(vec![(record, payload)])), None)
    }

    fn add_read(&self, size: ReadSize, read: SendRead) -> Result<()> {
        self.put(size.bytes, None, Some(read))
    }
}

impl SendSink for std::sync::Arc<Queue> {
    fn add(&self, record: StreamRecord, payload: Buf) -> Result<()> {
        (**self).add(record, payload)
    }

    fn add_read(&self, size: ReadSize, read: SendRead) -> Result<()> {
        (**self).add_read(size, read)
    }
}
