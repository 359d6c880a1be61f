//! The last step of sending: neighbouring holes become one record (chapter 07 §8.4).

use base::rt::Mutex;
use base::{Buf, Error, ErrorKind, Result};

use super::queue::{ReadSize, SendRead, SendSink};
use crate::record::{Free, FreeObjects, HEADER_SIZE, StreamRecord, TO_THE_END};
use crate::writer::StreamWriter;

/// Writes records, of which it holds back at most one.
pub(super) struct Emitter<'a, W> {
    writer: StreamWriter<W>,
    pending: Option<StreamRecord>,
    progress: &'a mut dyn FnMut(u64) -> bool,
}

impl<'a, W: std::io::Write> Emitter<'a, W> {
    pub(super) fn new(
        writer: StreamWriter<W>,
        progress: &'a mut dyn FnMut(u64) -> bool,
    ) -> Emitter<'a, W> {
        Emitter { writer, pending: None, progress }
    }

    pub(super) fn record(&mut self, record: StreamRecord, payload: Buf) -> Result<()> {
        if let (Some(before), true) = (&mut self.pending, payload.is_empty())
            && join(before, &record)
        {
            return Ok(());
        }
        self.flush()?;
        match record {
            // The tail of an object is never joined.
            StreamRecord::Free(Free { length: TO_THE_END, .. }) => self.put(&record, &payload),
            StreamRecord::Free(_) | StreamRecord::Redact(_) | StreamRecord::FreeObjects(_) => {
                self.pending = Some(record);
                Ok(())
            }
            _ => self.put(&record, &payload),
        }
    }

    /// Ends a stream that has no END.
    pub(super) fn stop(mut self) -> Result<()> {
        self.flush()?;
        self.writer.flush()
    }

    pub(super) fn finish(mut self, end: &StreamRecord) -> Result<()> {
        self.flush()?;
        self.put(end, &[])?;
        self.writer.flush()
    }

    fn flush(&mut self) -> Result<()> {
        self.pending.take().map_or(Ok(()), |record| self.put(&record, &[]))
    }

    fn put(&mut self, record: &StreamRecord, payload: &[u8]) -> Result<()> {
        self.writer.write(record, payload)?;
        match (self.progress)(self.writer.written()) {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Interrupted, "the stream was ended")),
        }
    }
}

/// Extends `before` by what follows it directly; whether it did.
fn join(before: &mut StreamRecord, next: &StreamRecord) -> bool {
    match (before, next) {
        (StreamRecord::Free(a), StreamRecord::Free(b))
        | (StreamRecord::Redact(a), StreamRecord::Redact(b)) => {
            let follows = a.object == b.object && a.offset.checked_add(a.length) == Some(b.offset);
            let sum = (b.length != TO_THE_END).then(|| a.length.checked_add(b.length)).flatten();
            match sum {
                Some(sum) if follows => a.length = sum,
                _ => return false,
            }
            true
        }
        (StreamRecord::FreeObjects(a), StreamRecord::FreeObjects(b)) => {
            let FreeObjects { first, count, .. } = *b;
            let follows = a.first.checked_add(a.count) == Some(first);
            if follows {
                a.count = a.count.saturating_add(count);
            }
            follows
        }
        _ => false,
    }
}

/// Counts the bytes of a stream that is not made.
#[derive(Default)]
pub(super) struct Counter(Mutex<(u64, Option<StreamRecord>)>);

impl Counter {
    pub(super) fn bytes(self) -> u64 {
        self.0.into_inner().0
    }
}

impl SendSink for Counter {
    fn add(&self, record: StreamRecord, payload: Buf) -> Result<()> {
        let mut state = self.0.lock();
        if let (Some(before), true) = (&mut state.1, payload.is_empty())
            && join(before, &record)
        {
            return Ok(());
        }
        state.0 += (HEADER_SIZE + payload.len()) as u64;
        let joins = !matches!(record, StreamRecord::Free(Free { length: TO_THE_END, .. }));
        state.1 = joins.then_some(record);
        Ok(())
    }

    fn add_read(&self, size: ReadSize, _: SendRead) -> Result<()> {
        let mut state = self.0.lock();
        state.0 += size.records * HEADER_SIZE as u64 + size.bytes;
        state.1 = None;
        Ok(())
    }
}
