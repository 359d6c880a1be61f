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
//! # Invariants
//! * At most [`PLACES`] places and [`BYTES`] bytes are in the queue, or one place.
//! * After an error or a panic of any thread, and once the writer has ended, no thread waits.

use std::collections::VecDeque;

use base::rt::{Condvar, Mutex};
use base::{Buf, Error, ErrorKind, Result};

use crate::record::StreamRecord;

/// Places in the queue at most.
const PLACES: usize = 1024;
/// Bytes of content in the queue at most; see `zfs_send_queue_length` (§16).
const BYTES: u64 = 16 << 20;

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
}

pub(super) struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

/// Ends the queue when it is dropped.
pub(super) struct EndsQueue<'a>(&'a Queue);

impl Drop for EndsQueue<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.ended = true;
        state.reads.clear();
        self.0.changed.notify_all();
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
        self.queue.changed.notify_all();
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
        self.queue.changed.notify_all();
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
            }),
            changed: Condvar::new(),
        }
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
            self.changed.wait(&mut state);
        }
        let number = state.first + state.places.len() as u64;
        state.bytes += bytes;
        state.places.push_back(QueuePlace { bytes, content });
        state.reads.extend(read.map(|read| (number, read)));
        self.changed.notify_all();
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
                self.changed.wait(&mut state);
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
            let front = state.places.front_mut();
            let (is_empty, content) = (front.is_none(), front.and_then(|p| p.content.take()));
            if let Some(content) = content {
                let bytes = state.places.pop_front().map_or(0, |place| place.bytes);
                state.first += 1;
                state.bytes -= bytes;
                self.changed.notify_all();
                drop(state);
                for (record, payload) in content? {
                    sink(record, payload)?;
                }
                state = self.state.lock();
                continue;
            }
            if is_empty && state.finished {
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
            self.changed.wait(&mut state);
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
