//! Reading a stream: grammar, lengths and sums are checked as its records go by.

use std::io::{ErrorKind as IoErrorKind, Read};

use base::{Error, ErrorKind, Result};
use codec::checksum::fletcher::Fletcher4;
use ondisk::endian::Endian;

use super::record::{CHECKSUM_AT, HEADER_SIZE, HeaderKind, MAGIC, StreamRecord};

/// What a record may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamPlace {
    /// Nothing, or a substream that is no part of a package.
    Outside,
    /// The BEGIN of a substream.
    Substream { in_package: bool },
    /// The BEGIN of a package.
    Header,
    /// The header of a package and any number of its substreams.
    Package,
}

/// A record with its payload.
#[derive(Debug)]
pub struct ReadRecord<'a> {
    /// Its header.
    pub record: StreamRecord,
    /// Bytes behind the header.
    pub payload: &'a [u8],
    /// The running checksum that the header carried; zero if none.
    pub stored_sum: [u64; 4],
    /// Byte offset of the header, from where this reader began.
    pub offset: u64,
}

/// Reads records from `input` until the stream ends; it reads nothing behind the last one.
#[derive(Debug)]
pub struct StreamReader<R> {
    input: R,
    endian: Endian,
    sum: Fletcher4,
    /// Whether sums are compared.
    verifies: bool,
    state: StreamPlace,
    offset: u64,
    payload: Vec<u8>,
}

impl<R: Read> StreamReader<R> {
    /// A reader at the start of a stream.
    pub fn new(input: R) -> StreamReader<R> {
        StreamReader {
            input,
            endian: Endian::Little,
            sum: Fletcher4::new(),
            verifies: true,
            state: StreamPlace::Outside,
            offset: 0,
            payload: Vec::new(),
        }
    }

    /// The same without comparing sums, for what reads damaged streams.
    #[must_use]
    pub fn without_sums(self) -> StreamReader<R> {
        StreamReader { verifies: false, ..self }
    }

    /// The byte order of the stream's integers.
    pub fn endian(&self) -> Endian {
        self.endian
    }

    /// Bytes read so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether the last record ended everything: a substream that is no part of a package, or
    /// a package.
    pub fn is_complete(&self) -> bool {
        self.state == StreamPlace::Outside
    }

    /// What was read from.
    pub fn into_inner(self) -> R {
        self.input
    }

    /// The next record; `None` at the end of the input behind a complete stream. Another
    /// stream may follow it, so a receiver stops where [`StreamReader::is_complete`] says.
    ///
    /// # Errors
    /// `Interrupted` if the input ends inside the stream, `Checksum` if a sum is wrong,
    /// `Corrupt` for what is no stream, and those of reading.
    pub fn next_record(&mut self) -> Result<Option<ReadRecord<'_>>> {
        let offset = self.offset;
        let mut header = [0; HEADER_SIZE];
        match self.fill(&mut header)? {
            0 if self.state == StreamPlace::Outside => return Ok(None),
            HEADER_SIZE => {}
            _ => return Err(cut_off(self.offset)),
        }
        if matches!(self.state, StreamPlace::Outside | StreamPlace::Package) {
            self.start(&header)?;
        }
        let record = StreamRecord::parse(self.endian, &header)?;
        let ends = self.step(&record)?;
        let stored_sum = self.sum_header(&header, &record)?;
        let len = record.payload_len()?;
        self.payload.clear();
        // A length that lies costs no more memory than the bytes that come.
        let got = (&mut self.input).take(len as u64).read_to_end(&mut self.payload);
        let got = got.map_err(|e| Error::io("cannot read the stream", e))?;
        self.offset += got as u64;
        if got != len {
            return Err(cut_off(self.offset));
        }
        self.sum.update(&self.payload, self.endian == Endian::Big);
        if ends {
            self.sum = Fletcher4::new();
        }
        Ok(Some(ReadRecord { record, payload: &self.payload, stored_sum, offset }))
    }

    /// Fills `to` as far as there is input; the bytes read.
    fn fill(&mut self, to: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while let Some(rest) = to.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.input.read(rest) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == IoErrorKind::Interrupted => {}
                Err(e) => return Err(Error::io("cannot read the stream", e)),
            }
        }
        self.offset += done as u64;
        Ok(done)
    }

    /// Takes the byte order from what must be a BEGIN, or the END of a package.
    fn start(&mut self, header: &[u8; HEADER_SIZE]) -> Result<()> {
        let order = [Endian::Little, Endian::Big];
        if self.state == StreamPlace::Package && order.map(|o| o.u32(header, 0)).contains(&Some(5))
        {
            return Ok(());
        }
        match order.into_iter().find(|order| order.u64(header, 8) == Some(MAGIC)) {
            Some(order) => self.endian = order,
            None => return Err(Error::corrupt("invalid stream (bad magic number)")),
        }
        self.sum = Fletcher4::new();
        Ok(())
    }

    /// Moves to the state behind `record`; whether a sum ends with it.
    fn step(&mut self, record: &StreamRecord) -> Result<bool> {
        let in_package = self.state == StreamPlace::Package;
        let (next, ends) = match (self.state, record) {
            (StreamPlace::Outside | StreamPlace::Package, StreamRecord::Begin(begin)) => {
                match begin.kind()? {
                    HeaderKind::Substream => (StreamPlace::Substream { in_package }, false),
                    HeaderKind::Package if !in_package => (StreamPlace::Header, false),
                    HeaderKind::Package => {
                        return Err(Error::corrupt("the stream has a package inside a package"));
                    }
                }
            }
            (
                StreamPlace::Header | StreamPlace::Substream { in_package: true },
                StreamRecord::End(_),
            ) => (StreamPlace::Package, true),
            (
                StreamPlace::Substream { in_package: false } | StreamPlace::Package,
                StreamRecord::End(_),
            ) => (StreamPlace::Outside, true),
            (StreamPlace::Substream { .. }, StreamRecord::Begin(_)) | (StreamPlace::Header, _) => {
                let name = record.name();
                return Err(Error::corrupt(format!("the stream has a misplaced {name} record")));
            }
            (StreamPlace::Substream { .. }, _) => (self.state, false),
            (StreamPlace::Outside | StreamPlace::Package, _) => {
                return Err(Error::corrupt("the stream does not begin with a BEGIN record"));
            }
        };
        self.state = next;
        Ok(ends)
    }

    /// Adds a header to the running sum and compares what it says of the bytes before it;
    /// returns the sum that it carries.
    fn sum_header(
        &mut self,
        header: &[u8; HEADER_SIZE],
        record: &StreamRecord,
    ) -> Result<[u64; 4]> {
        let swapped = self.endian == Endian::Big;
        if matches!(record, StreamRecord::Begin(_)) {
            self.sum.update(header, swapped);
            return Ok([0; 4]);
        }
        let before = self.sum;
        let (head, tail) = header.split_at(CHECKSUM_AT);
        let word = |i: usize| self.endian.u64(tail, 8 * i).unwrap_or(0);
        let stored = [0, 1, 2, 3].map(word);
        self.sum.update(head, swapped);
        // Old senders left it out.
        if self.verifies && stored != [0; 4] && stored != self.sum.words {
            let message = format!("invalid stream (checksum mismatch at byte {})", self.offset);
            return Err(Error::new(ErrorKind::Checksum, message));
        }
        self.sum.update(tail, swapped);
        // Behind a package there is nothing to sum.
        if let StreamRecord::End(end) = record
            && self.verifies
            && before != Fletcher4::new()
            && end.checksum != before.words
        {
            let message = "invalid stream (checksum mismatch at its end)";
            return Err(Error::new(ErrorKind::Checksum, message));
        }
        Ok(stored)
    }
}

fn cut_off(at: u64) -> Error {
    let message = format!("invalid stream: incomplete, it ends after {at} bytes");
    Error::new(ErrorKind::Interrupted, message)
}
