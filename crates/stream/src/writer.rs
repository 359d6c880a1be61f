//! Writing a stream: sums and lengths are filled in.

use base::{Error, Result, bug};
use codec::checksum::fletcher::Fletcher4;
use ondisk::endian::Endian;

use super::record::{CHECKSUM_AT, StreamRecord};

/// Writes records, little-endian unless told otherwise, with their sums.
#[derive(Debug)]
pub struct StreamWriter<W> {
    output: W,
    endian: Endian,
    sum: Fletcher4,
    /// Between the BEGIN and the END of a package's header, whose END carries no sum.
    in_package_header: bool,
    written: u64,
}

impl<W: std::io::Write> StreamWriter<W> {
    /// A writer of a stream.
    pub fn new(output: W) -> StreamWriter<W> {
        StreamWriter::with_order(output, Endian::Little)
    }

    /// A writer in the byte order of a stream that is copied.
    pub fn with_order(output: W, endian: Endian) -> StreamWriter<W> {
        let sum = Fletcher4::new();
        StreamWriter { output, endian, sum, in_package_header: false, written: 0 }
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// What was written to.
    pub fn into_inner(self) -> W {
        self.output
    }

    /// Writes a record. A BEGIN's payload length and an END's checksum are filled in; the
    /// END behind a package is [`StreamWriter::finish_package`].
    ///
    /// # Errors
    /// `Bug` for a payload of another length than the header implies; those of writing.
    pub fn write(&mut self, record: &StreamRecord, payload: &[u8]) -> Result<()> {
        let mut record = *record;
        match &mut record {
            StreamRecord::Begin(begin) => {
                self.sum = Fletcher4::new();
                begin.payload_len = u32::try_from(payload.len())
                    .map_err(|_| Error::invalid("the stream's header is too large"))?;
                self.in_package_header = begin.kind()? == super::HeaderKind::Package;
            }
            StreamRecord::End(end) => end.checksum = self.sum.words,
            _ => {}
        }
        if record.payload_len()? != payload.len() {
            return Err(bug!("a payload has the length that its header says"));
        }
        let swapped = self.endian == Endian::Big;
        let mut header = record.encode(self.endian);
        let is_begin = matches!(record, StreamRecord::Begin(_));
        let ends = matches!(record, StreamRecord::End(_));
        let without = is_begin || (ends && self.in_package_header);
        if !without && let Some((head, tail)) = header.split_at_mut_checked(CHECKSUM_AT) {
            self.sum.update(head, swapped);
            for (to, word) in tail.chunks_exact_mut(8).zip(self.sum.words) {
                to.copy_from_slice(&self.endian.bytes_of(word));
            }
            self.sum.update(tail, swapped);
        } else {
            self.sum.update(&header, swapped);
        }
        self.sum.update(payload, swapped);
        self.put(&header)?;
        self.put(payload)
    }

    /// Ends a package: the END whose fields are all zero (§11.2).
    ///
    /// # Errors
    /// Those of writing.
    pub fn finish_package(&mut self) -> Result<()> {
        let header = StreamRecord::End(super::End::default()).encode(self.endian);
        self.put(&header)
    }

    /// Passes on what is buffered.
    ///
    /// # Errors
    /// Those of writing.
    pub fn flush(&mut self) -> Result<()> {
        self.output.flush().map_err(|e| Error::io("cannot write the stream", e))
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        let done = self.output.write_all(bytes);
        done.map_err(|e| Error::io("cannot write the stream", e))?;
        self.written += bytes.len() as u64;
        Ok(())
    }
}
